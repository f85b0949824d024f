#include "model/hf/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "model/hf/json.h"

namespace cairn {
namespace {

struct Dtype {
  std::string_view name;
  uint64_t bytes;
};
// Types of the specification whose elements are whole bytes.
constexpr std::array<Dtype, 15> kDtypes = {{{"F64", 8},
                                            {"F32", 4},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"I64", 8},
                                            {"I32", 4},
                                            {"I16", 2},
                                            {"I8", 1},
                                            {"U64", 8},
                                            {"U32", 4},
                                            {"U16", 2},
                                            {"U8", 1},
                                            {"BOOL", 1},
                                            {"F8_E4M3", 1},
                                            {"F8_E5M2", 1}}};

// A tensor while its place is not proven.
struct Placed {
  uint64_t begin = 0, end = 0;
  SafetensorsTensor tensor;
};

std::string Tensor(std::string_view name) {
  return "[safetensors] tensor " + QuoteForMessage(name) + ": ";
}

Status ReadShape(const JsonValue& value, const SafetensorsLimits& limits, SafetensorsTensor* out) {
  const JsonValue* shape = value.Find("shape");
  if (shape == nullptr || !shape->is_array() || shape->elements().size() > limits.dims_max) {
    return DataLoss(Tensor(out->name) + "got " +
                    (shape == nullptr ? "no shape" : "shape " + shape->Describe()) +
                    ", wanted an array of at most " + std::to_string(limits.dims_max) + " sizes");
  }
  for (const JsonValue& dim : shape->elements()) {
    if (dim.kind() != JsonValue::Kind::kInteger || *dim.AsInteger() < 0) {
      return DataLoss(Tensor(out->name) + "got " + dim.Describe() +
                      " in the shape, wanted sizes >= 0");
    }
    out->shape.push_back(*dim.AsInteger());
  }
  return {};
}

Status ReadOffsets(const JsonValue& value, uint64_t data_bytes, Placed* out) {
  const JsonValue* offsets = value.Find("data_offsets");
  const auto bad = [&](const std::string& got) {
    return DataLoss(Tensor(out->tensor.name) + "got " + got + ", wanted data_offsets [begin, end]" +
                    " within the " + std::to_string(data_bytes) + " bytes of data");
  };
  if (offsets == nullptr || !offsets->is_array() || offsets->elements().size() != 2) {
    return bad(offsets == nullptr ? "none" : offsets->Describe());
  }
  uint64_t place[2];
  for (int i = 0; i < 2; ++i) {
    const JsonValue& offset = offsets->elements()[i];
    if (offset.kind() != JsonValue::Kind::kInteger || *offset.AsInteger() < 0) {
      return bad(offset.Describe());
    }
    place[i] = static_cast<uint64_t>(*offset.AsInteger());
  }
  if (place[0] > place[1] || place[1] > data_bytes) {
    return bad(std::string("[") + std::to_string(place[0]) + ", " + std::to_string(place[1]) + "]");
  }
  out->begin = place[0];
  out->end = place[1];
  return {};
}

// nullopt beyond 2^63, also where a size of 0 follows: element_count() multiplies in this order.
std::optional<uint64_t> BytesOf(uint64_t element_bytes, std::span<const int64_t> shape) {
  uint64_t bytes = element_bytes;
  for (const int64_t dim : shape) {
    const std::optional<uint64_t> more = CheckedMul(bytes, static_cast<uint64_t>(dim));
    if (!more || *more > uint64_t{INT64_MAX}) return std::nullopt;
    bytes = *more;
  }
  return bytes;
}

Status ReadTensor(const JsonValue::Member& member, uint64_t data_bytes,
                  const SafetensorsLimits& limits, Placed* out) {
  const auto& [name, value] = member;
  SafetensorsTensor& tensor = out->tensor;
  tensor.name = name;
  if (name.empty() || name.size() > limits.name_bytes_max) {
    return DataLoss(Tensor(name) + "got a name of " + std::to_string(name.size()) +
                    " bytes, wanted 1 to " + std::to_string(limits.name_bytes_max));
  }
  if (!value.is_object()) {
    return DataLoss(Tensor(name) + "got " + value.Describe() + ", wanted an object");
  }
  const JsonValue* dtype = value.Find("dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    return DataLoss(Tensor(name) + "got no dtype");
  }
  const auto known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const Dtype& d) { return d.name == *dtype->AsString(); });
  if (known == kDtypes.end()) {
    std::string names;
    for (const Dtype& d : kDtypes) names += (names.empty() ? "" : ", ") + std::string(d.name);
    return Unsupported(Tensor(name) + "got dtype " + dtype->Describe() + ", wanted one of " +
                       names);
  }
  tensor.dtype = known->name;
  RETURN_IF_ERROR(ReadShape(value, limits, &tensor));
  RETURN_IF_ERROR(ReadOffsets(value, data_bytes, out));
  const std::optional<uint64_t> bytes = BytesOf(known->bytes, tensor.shape);
  if (!bytes || *bytes != out->end - out->begin) {
    return DataLoss(Tensor(name) + "got " + std::to_string(out->end - out->begin) +
                    " bytes, wanted " + (bytes ? std::to_string(*bytes) : "more than 2^63") +
                    " for its shape and dtype");
  }
  return {};
}

// Offsets, sorted, must follow each other from 0 to the end.
Status CheckPlaces(const std::vector<Placed>& sorted, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const Placed& placed : sorted) {
    if (placed.begin != end) {
      return DataLoss(Tensor(placed.tensor.name) + "got data at byte " +
                      std::to_string(placed.begin) + ", wanted " + std::to_string(end) +
                      (placed.begin < end ? " (it overlaps another)" : " (there is a gap)"));
    }
    end = placed.end;
  }
  if (end == data_bytes) return {};
  return DataLoss("[safetensors] data: got " + std::to_string(data_bytes) +
                  " bytes after the header, wanted " + std::to_string(end));
}

}  // namespace

int64_t SafetensorsTensor::element_count() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

std::optional<WeightType> WeightTypeFromDtype(std::string_view dtype) {
  if (dtype == "F32") return WeightType::kF32;
  if (dtype == "F16") return WeightType::kF16;
  if (dtype == "BF16") return WeightType::kBF16;
  return std::nullopt;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path,
                                              const SafetensorsLimits& limits) {
  SafetensorsFile file;
  ASSIGN_OR_RETURN(file.map_, MappedFile::Open(path));
  const Status status = file.Parse(file.map_.bytes(), limits);
  if (!status.ok()) return Status(status.code(), status.message() + " in file '" + path + "'");
  return file;
}

Result<SafetensorsFile> SafetensorsFile::FromBytes(std::span<const std::byte> bytes,
                                                   const SafetensorsLimits& limits) {
  SafetensorsFile file;
  RETURN_IF_ERROR(file.Parse(bytes, limits));
  return file;
}

Status SafetensorsFile::Parse(std::span<const std::byte> bytes, const SafetensorsLimits& limits) {
  bytes_ = bytes;
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) {
    return DataLoss("[safetensors] truncated: got " + std::to_string(bytes.size()) +
                    " bytes, wanted at least 8");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const uint64_t rest = bytes.size() - sizeof header_bytes;
  if (header_bytes > rest || header_bytes > limits.header_bytes_max) {
    return DataLoss("[safetensors] header length: got " + std::to_string(header_bytes) +
                    ", wanted at most " + std::to_string(std::min(rest, limits.header_bytes_max)) +
                    " (the file has " + std::to_string(bytes.size()) + " bytes)");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes,
                              header_bytes);
  if (!text.starts_with('{')) {
    return DataLoss("[safetensors] header: got " + QuoteForMessage(text.substr(0, 8)) +
                    ", wanted a JSON object");
  }
  JsonLimits json;
  json.depth_max = 4;  // {name: {shape: [...]}}
  json.values_max = limits.tensor_count_max * 16;
  ASSIGN_OR_RETURN(const JsonValue header, ParseJson(text, "safetensors header", json));
  if (header.members().size() > limits.tensor_count_max) {
    return ResourceExhausted("[safetensors] tensors: got " +
                             std::to_string(header.members().size()) + ", wanted at most " +
                             std::to_string(limits.tensor_count_max));
  }
  const auto data = bytes.subspan(sizeof header_bytes + header_bytes);
  std::vector<Placed> placed;
  for (const JsonValue::Member& member : header.members()) {
    if (member.first == "__metadata__") continue;
    RETURN_IF_ERROR(ReadTensor(member, data.size(), limits, &placed.emplace_back()));
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  RETURN_IF_ERROR(CheckPlaces(placed, data.size()));
  for (Placed& p : placed) {
    p.tensor.bytes = data.subspan(p.begin, p.end - p.begin);
    tensors_.push_back(std::move(p.tensor));
  }
  return {};
}

bool SafetensorsFile::Contains(std::span<const std::byte> bytes) const {
  return bytes.data() >= bytes_.data() && bytes.data() < bytes_.data() + bytes_.size();
}

void SafetensorsFile::ReleasePages(std::span<const std::byte> bytes) const {
  if (!map_.bytes().empty()) map_.Release(bytes);
}

}  // namespace cairn
