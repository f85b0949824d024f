#include "support/gguf_writer.h"

#include <cstring>
#include <fstream>

namespace cairn::testing {
namespace {

uint32_t NumberOf(GgufType type) { return static_cast<uint32_t>(type); }

std::string ArrayHeader(GgufType element, uint64_t count) {
  return Encode(NumberOf(element)) + Encode(count);
}

void PadTo(std::string* bytes, uint64_t alignment) {
  while (bytes->size() % alignment != 0) bytes->push_back('\0');
}

}  // namespace

std::string EncodeString(std::string_view text) {
  return Encode(static_cast<uint64_t>(text.size())) + std::string(text);
}

GgufWriter& GgufWriter::Raw(std::string_view key, uint32_t type, std::string_view encoded) {
  keys_ += EncodeString(key) + Encode(type) + std::string(encoded);
  ++key_count_;
  return *this;
}

GgufWriter& GgufWriter::U32(std::string_view key, uint32_t value) {
  return Raw(key, NumberOf(GgufType::kU32), Encode(value));
}
GgufWriter& GgufWriter::U64(std::string_view key, uint64_t value) {
  return Raw(key, NumberOf(GgufType::kU64), Encode(value));
}
GgufWriter& GgufWriter::I32(std::string_view key, int32_t value) {
  return Raw(key, NumberOf(GgufType::kI32), Encode(value));
}
GgufWriter& GgufWriter::F32(std::string_view key, float value) {
  return Raw(key, NumberOf(GgufType::kF32), Encode(value));
}
GgufWriter& GgufWriter::F64(std::string_view key, double value) {
  return Raw(key, NumberOf(GgufType::kF64), Encode(value));
}
GgufWriter& GgufWriter::Bool(std::string_view key, bool value) {
  return Raw(key, NumberOf(GgufType::kBool), Encode(static_cast<uint8_t>(value)));
}
GgufWriter& GgufWriter::String(std::string_view key, std::string_view value) {
  return Raw(key, NumberOf(GgufType::kString), EncodeString(value));
}

GgufWriter& GgufWriter::Strings(std::string_view key, std::span<const std::string> values) {
  std::string encoded = ArrayHeader(GgufType::kString, values.size());
  for (const std::string& value : values) encoded += EncodeString(value);
  return Raw(key, NumberOf(GgufType::kArray), encoded);
}

GgufWriter& GgufWriter::I32s(std::string_view key, std::span<const int32_t> values) {
  std::string encoded = ArrayHeader(GgufType::kI32, values.size());
  for (const int32_t value : values) encoded += Encode(value);
  return Raw(key, NumberOf(GgufType::kArray), encoded);
}

GgufWriter& GgufWriter::F32s(std::string_view key, std::span<const float> values) {
  std::string encoded = ArrayHeader(GgufType::kF32, values.size());
  for (const float value : values) encoded += Encode(value);
  return Raw(key, NumberOf(GgufType::kArray), encoded);
}

GgufWriter& GgufWriter::Tensor(std::string_view name, uint32_t type, std::vector<uint64_t> dims,
                               std::span<const std::byte> bytes) {
  PadTo(&data_, alignment_);
  tensors_.push_back({std::string(name), type, std::move(dims), data_.size()});
  data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return *this;
}

GgufWriter& GgufWriter::TensorF32s(std::string_view name, std::vector<uint64_t> dims,
                                   std::span<const float> values) {
  return Tensor(name, kTensorF32, std::move(dims), std::as_bytes(values));
}

GgufWriter& GgufWriter::LieKeyCount(uint64_t count) {
  key_count_lie_ = count;
  return *this;
}
GgufWriter& GgufWriter::LieTensorCount(uint64_t count) {
  tensor_count_lie_ = count;
  return *this;
}
GgufWriter& GgufWriter::LieLastOffset(uint64_t offset) {
  last_offset_lie_ = offset;
  return *this;
}

std::vector<std::byte> GgufWriter::Bytes() const {
  std::string keys = keys_;
  uint64_t key_count = key_count_;
  if (alignment_ != 32) {
    keys += EncodeString("general.alignment") + Encode(NumberOf(GgufType::kU32)) +
            Encode(static_cast<uint32_t>(alignment_));
    ++key_count;
  }
  std::string file = "GGUF" + Encode(version_) +
                     Encode(tensor_count_lie_.value_or(tensors_.size())) +
                     Encode(key_count_lie_.value_or(key_count)) + keys;
  for (const TensorRecord& tensor : tensors_) {
    file += EncodeString(tensor.name) + Encode(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) file += Encode(dim);
    const bool last = &tensor == &tensors_.back();
    file += Encode(tensor.type) +
            Encode(last ? last_offset_lie_.value_or(tensor.offset) : tensor.offset);
  }
  PadTo(&file, alignment_);
  file += data_;
  std::vector<std::byte> bytes(file.size());
  std::memcpy(bytes.data(), file.data(), file.size());
  return bytes;
}

bool GgufWriter::Write(const std::string& path) const {
  const std::vector<std::byte> bytes = Bytes();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  return static_cast<bool>(out.flush());
}

}  // namespace cairn::testing
