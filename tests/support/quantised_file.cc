#include "support/quantised_file.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "kernels/quant.h"
#include "model/weights.h"

namespace cairn::testing {
namespace {

constexpr int64_t kBlock = 32;

bool IsQuantisable(const TensorInfo& tensor) {
  if (tensor.shape.size() < 2 || tensor.shape.back() % kBlock != 0) return false;
  for (const char* kept : {"norm", "conv", "ffn_gate_inp"}) {
    if (tensor.name.find(kept) != std::string::npos) return false;
  }
  return tensor.name.ends_with(".weight");
}

// f16 scale, then 32 int8.
std::vector<std::byte> QuantiseBlocks(const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    float largest = 0;
    for (size_t i = begin; i < begin + kBlock; ++i)
      largest = std::max(largest, std::abs(values[i]));
    const uint16_t scale = FloatToHalf(largest / 127);
    const float inverse = largest > 0 ? 127 / largest : 0;
    bytes.push_back(static_cast<std::byte>(scale & 0xff));
    bytes.push_back(static_cast<std::byte>(scale >> 8));
    for (size_t i = begin; i < begin + kBlock; ++i)
      bytes.push_back(static_cast<std::byte>(static_cast<int8_t>(std::rint(values[i] * inverse))));
  }
  return bytes;
}

std::string EncodedValue(const ModelFile::Entry& entry) {
  const std::string bytes(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
  if (entry.type == cairn::GgufValueType::kString) return EncodeString(bytes);
  if (entry.type != cairn::GgufValueType::kArray) return bytes;
  return Encode(static_cast<uint32_t>(entry.element_type)) + Encode(entry.count) + bytes;
}

std::vector<float> Values(WeightType type, std::span<const std::byte> bytes, int64_t count) {
  CHECK(!IsQuantized(type));
  std::vector<float> values(static_cast<size_t>(count));
  DequantizeRow(type, bytes, values);
  return values;
}

std::vector<std::byte> Copy(const ModelFile& file, bool (*quantise)(const TensorInfo&)) {
  GgufWriter writer;
  CopyEntries(file, writer);
  const auto tensors = file.OpenTensors();
  for (const TensorInfo& tensor : file.ListTensors()) {
    const std::vector<uint64_t> dims(tensor.shape.rbegin(), tensor.shape.rend());
    const Result<TensorView> view = tensors->Get(tensor.name);
    CHECK(view.ok());
    const std::vector<float> values = Values(view->type, view->bytes, tensor.element_count());
    if (quantise(tensor)) {
      writer.Tensor(tensor.name, kTensorQ8_0, dims, QuantiseBlocks(values));
    } else {
      writer.TensorF32s(tensor.name, dims, values);
    }
  }
  return writer.Bytes();
}

}  // namespace

void CopyEntry(const ModelFile::Entry& entry, std::string_view key, GgufWriter& writer) {
  writer.Raw(key, static_cast<uint32_t>(entry.type), EncodedValue(entry));
}

void CopyEntries(const ModelFile& file, GgufWriter& writer) {
  for (const ModelFile::Entry& entry : file.entries()) CopyEntry(entry, entry.key, writer);
}

std::vector<float> TensorValues(const GgufTensor& tensor) {
  const auto type = WeightTypeFromGgml(tensor.ggml_type);
  CHECK(type.has_value());
  return Values(*type, tensor.bytes, tensor.element_count());
}

std::vector<std::byte> QuantisedCopy(const ModelFile& file) { return Copy(file, IsQuantisable); }

std::vector<std::byte> FloatCopy(const ModelFile& file) {
  return Copy(file, [](const TensorInfo&) { return false; });
}

}  // namespace cairn::testing
