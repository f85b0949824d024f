#include "model/mamba2_config.h"

#include <cmath>
#include <string>

namespace cairn {

Result<Mamba2Config> ReadMamba2Config(const ModelFile& file, std::string_view architecture) {
  const std::string_view arch = architecture;
  Mamba2Config config;
  SsdShape& shape = config.shape;
  ASSIGN_OR_RETURN(config.conv_kernel, ReadSize(file, arch, "ssm.conv_kernel", 2, 8));
  ASSIGN_OR_RETURN(const int inner, ReadSize(file, arch, "ssm.inner_size", 1, 1 << 20));
  ASSIGN_OR_RETURN(shape.state_dim, ReadSize(file, arch, "ssm.state_size", 1, 4096));
  ASSIGN_OR_RETURN(shape.heads, ReadSize(file, arch, "ssm.time_step_rank", 1, 1 << 16));
  ASSIGN_OR_RETURN(shape.groups, ReadSize(file, arch, "ssm.group_count", 1, 4096));
  if (inner % shape.heads != 0 || shape.heads % shape.groups != 0) {
    return DataLoss("[model] Mamba2 sizes do not divide: inner size " + std::to_string(inner) +
                    ", " + std::to_string(shape.heads) + " heads, " + std::to_string(shape.groups) +
                    " groups");
  }
  shape.head_dim = inner / shape.heads;
  const std::string limits = std::string(arch) + ".ssm.time_step_limit";
  if (!file.Has(limits)) return config;
  ASSIGN_OR_RETURN(const std::vector<float> values, file.GetF32Array(limits));
  if (values.size() != 2 || !(values[0] >= 0) || !(values[1] >= values[0])) {
    return DataLoss("[model] " + limits + " has " + std::to_string(values.size()) +
                    " values, wanted the least and the largest step");
  }
  config.step_limits = {.min = values[0], .max = values[1]};
  return config;
}

Result<float> ReadFactor(const ModelFile& file, std::string_view architecture, std::string_view key,
                         float fallback) {
  const std::string name = std::string(architecture) + "." + std::string(key);
  ASSIGN_OR_RETURN(const float value, file.GetF32Or(name, fallback));
  if (!std::isfinite(value) || value == 0)
    return DataLoss("[model] " + name + " is " + std::to_string(value) + ", wanted a factor");
  return value;
}

}  // namespace cairn
