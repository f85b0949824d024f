#include "model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "base/bytes.h"

namespace cairn {
namespace {

// The least a key can take: name length, one byte of name, type, one byte of value.
constexpr uint64_t kEntryBytesMin = 8 + 1 + 4 + 1;
// The least a tensor record can take: name length, one byte of name, dimension count, one
// dimension, type, offset.
constexpr uint64_t kTensorBytesMin = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint32_t kDimsMax = 4;
constexpr uint64_t kAlignmentMin = 8;  // the format wants a multiple of 8

std::string Number(uint64_t value) { return std::to_string(value); }

// Indices of `items` sorted by `key`; the first key that occurs twice, if any.
template <typename Item, typename Key>
std::optional<std::string_view> SortByName(const std::vector<Item>& items, Key key,
                                           std::vector<uint32_t>* order) {
  order->resize(items.size());
  std::iota(order->begin(), order->end(), 0u);
  std::sort(order->begin(), order->end(),
            [&](uint32_t a, uint32_t b) { return key(items[a]) < key(items[b]); });
  for (size_t i = 1; i < order->size(); ++i) {
    const std::string_view name = key(items[(*order)[i]]);
    if (name == key(items[(*order)[i - 1]])) return name;
  }
  return std::nullopt;
}

}  // namespace

Status GgufParser::Parse(GgufFile* file) {
  file->bytes_ = bytes_;
  RETURN_IF_ERROR(ParseHeader(file));
  RETURN_IF_ERROR(ParseEntries(file));
  RETURN_IF_ERROR(ParseTensors(file));
  RETURN_IF_ERROR(ReadAlignment(*file));
  return PlaceTensors(file);
}

Status GgufParser::ParseHeader(GgufFile* file) {
  std::span<const std::byte> magic;
  RETURN_IF_ERROR(ReadBytes("magic", 4, &magic));
  const std::string_view magic_text(reinterpret_cast<const char*>(magic.data()), magic.size());
  if (magic_text != "GGUF") {
    return DataLoss("[gguf] magic: got " + QuoteForMessage(magic_text) + ", wanted 'GGUF'");
  }
  uint32_t version = 0;
  RETURN_IF_ERROR(ReadNumber("version", &version));
  if (version != 2 && version != 3) {
    const uint32_t swapped = __builtin_bswap32(version);
    if (swapped == 2 || swapped == 3) {
      return Unsupported("[gguf] byte order: got big endian, wanted little endian");
    }
    return Unsupported("[gguf] version: got " + Number(version) + ", wanted 2 or 3");
  }
  file->version_ = version;
  RETURN_IF_ERROR(ReadNumber("tensor count", &tensor_count_));
  RETURN_IF_ERROR(ReadNumber("key count", &key_count_));
  if (key_count_ > limits_.key_count_max) {
    return ResourceExhausted("[gguf] key count: got " + Number(key_count_) + ", wanted at most " +
                             Number(limits_.key_count_max));
  }
  if (tensor_count_ > limits_.tensor_count_max) {
    return ResourceExhausted("[gguf] tensor count: got " + Number(tensor_count_) +
                             ", wanted at most " + Number(limits_.tensor_count_max));
  }
  // Both limits are small, so the products cannot overflow.
  if (key_count_ * kEntryBytesMin + tensor_count_ * kTensorBytesMin > remaining()) {
    return DataLoss("[gguf] truncated: got " + Number(remaining()) + " bytes after the header, " +
                    "wanted " + Number(key_count_) + " keys and " + Number(tensor_count_) +
                    " tensors");
  }
  return {};
}

Status GgufParser::ParseEntries(GgufFile* file) {
  file->entries_.resize(key_count_);
  for (GgufFile::Entry& entry : file->entries_) RETURN_IF_ERROR(ParseEntry(&entry));
  return file->IndexEntries();
}

Status GgufParser::ParseEntry(GgufFile::Entry* entry) {
  RETURN_IF_ERROR(ReadString("key", limits_.name_bytes_max, &entry->key));
  if (entry->key.empty()) return DataLoss("[gguf] key: got an empty name");
  Status status = [&]() -> Status {
    RETURN_IF_ERROR(ReadValueType("value type", &entry->type));
    if (entry->type == GgufValueType::kString) {
      std::string_view text;
      RETURN_IF_ERROR(ReadString("string", limits_.string_bytes_max, &text));
      entry->bytes = std::as_bytes(std::span(text));
      return {};
    }
    uint64_t count = 1;
    GgufValueType type = entry->type;
    if (entry->type == GgufValueType::kArray) {
      RETURN_IF_ERROR(ReadValueType("array element type", &entry->element_type));
      RETURN_IF_ERROR(ReadNumber("array length", &entry->count));
      count = entry->count;
      type = entry->element_type;
    }
    const size_t begin = position_;
    array_elements_left_ = limits_.array_elements_max;
    RETURN_IF_ERROR(SkipValues(type, count, /*depth=*/1));
    entry->bytes = bytes_.subspan(begin, position_ - begin);
    return {};
  }();
  if (status.ok()) return status;
  return {status.code(), status.message() + " (key " + QuoteForMessage(entry->key) + ")"};
}

Status GgufParser::SkipValues(GgufValueType type, uint64_t count, int depth) {
  if (count > array_elements_left_) {
    return ResourceExhausted("[gguf] array length: got " + Number(count) + ", wanted at most " +
                             Number(limits_.array_elements_max) + " elements in all");
  }
  array_elements_left_ -= count;
  std::span<const std::byte> values;
  switch (type) {
    case GgufValueType::kString:
      for (uint64_t i = 0; i < count; ++i) {
        std::string_view text;
        RETURN_IF_ERROR(ReadString("string", limits_.string_bytes_max, &text));
      }
      return {};
    case GgufValueType::kArray:
      if (depth >= limits_.array_depth_max) {
        return ResourceExhausted("[gguf] nested arrays: got more than " +
                                 std::to_string(limits_.array_depth_max) + " levels");
      }
      for (uint64_t i = 0; i < count; ++i) {
        GgufValueType element_type{};
        uint64_t element_count = 0;
        RETURN_IF_ERROR(ReadValueType("array element type", &element_type));
        RETURN_IF_ERROR(ReadNumber("array length", &element_count));
        RETURN_IF_ERROR(SkipValues(element_type, element_count, depth + 1));
      }
      return {};
    default:
      // count is limited above, so the product cannot overflow.
      RETURN_IF_ERROR(ReadBytes("value", count * GgufValueBytes(type), &values));
      return type == GgufValueType::kBool ? CheckBools(values) : Status();
  }
}

Status GgufParser::CheckBools(std::span<const std::byte> values) {
  for (const std::byte value : values) {
    if (std::to_integer<unsigned>(value) > 1) {
      return DataLoss("[gguf] bool: got " + Number(std::to_integer<unsigned>(value)) +
                      ", wanted 0 or 1");
    }
  }
  return {};
}

Status GgufParser::ParseTensors(GgufFile* file) {
  file->tensors_.resize(tensor_count_);
  offsets_.resize(tensor_count_);
  for (size_t i = 0; i < tensor_count_; ++i) {
    RETURN_IF_ERROR(ParseTensor(&file->tensors_[i], &offsets_[i]));
  }
  const auto twice =
      SortByName(file->tensors_, [](const GgufTensor& t) { return t.name; }, &file->tensor_order_);
  if (twice) return DataLoss("[gguf] tensor " + QuoteForMessage(*twice) + ": got it twice");
  return {};
}

Status GgufParser::ParseTensor(GgufTensor* tensor, uint64_t* offset) {
  RETURN_IF_ERROR(ReadString("tensor name", limits_.name_bytes_max, &tensor->name));
  if (tensor->name.empty()) return DataLoss("[gguf] tensor name: got an empty name");
  const auto broken = [&](const std::string& what) {
    return DataLoss("[gguf] tensor " + QuoteForMessage(tensor->name) + ": " + what);
  };
  uint32_t dim_count = 0;
  RETURN_IF_ERROR(ReadNumber("dimension count", &dim_count));
  if (dim_count < 1 || dim_count > kDimsMax) {
    return broken("got " + Number(dim_count) + " dimensions, wanted 1 to " + Number(kDimsMax));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dim_count; ++i) {
    uint64_t dim = 0;
    RETURN_IF_ERROR(ReadNumber("dimension", &dim));
    if (dim == 0) return broken("got a dimension of 0");
    const auto product = CheckedMul(elements, dim);
    if (!product || *product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return broken("got more than 2^63 elements");
    }
    elements = *product;
    tensor->dims.push_back(static_cast<int64_t>(dim));
  }
  RETURN_IF_ERROR(ReadNumber("tensor type", &tensor->ggml_type));
  RETURN_IF_ERROR(ReadNumber("tensor offset", offset));
  const GgmlTypeInfo* type = FindGgmlType(tensor->ggml_type);
  if (type != nullptr && static_cast<uint64_t>(tensor->dims[0]) % type->block_elements != 0) {
    return broken("got rows of " + Number(static_cast<uint64_t>(tensor->dims[0])) +
                  " elements, wanted a multiple of " + Number(type->block_elements) + " for " +
                  type->name);
  }
  return {};
}

Status GgufParser::ReadAlignment(const GgufFile& file) {
  ASSIGN_OR_RETURN(alignment_, file.GetU64Or("general.alignment", alignment_));
  if (!std::has_single_bit(alignment_) || alignment_ < kAlignmentMin ||
      alignment_ > limits_.alignment_max) {
    return DataLoss("[gguf] general.alignment: got " + Number(alignment_) +
                    ", wanted a power of two from " + Number(kAlignmentMin) + " to " +
                    Number(limits_.alignment_max));
  }
  return {};
}

// Gives each tensor its bytes. A type without known size keeps none; only its start is checked.
Status GgufParser::PlaceTensors(GgufFile* file) {
  const uint64_t data_begin = AlignUp(position_, alignment_);
  const uint64_t data_bytes = bytes_.size() > data_begin ? bytes_.size() - data_begin : 0;
  for (size_t i = 0; i < file->tensors_.size(); ++i) {
    GgufTensor& tensor = file->tensors_[i];
    const auto broken = [&](const std::string& what) {
      return DataLoss("[gguf] tensor " + QuoteForMessage(tensor.name) + ": " + what);
    };
    if (offsets_[i] % alignment_ != 0) {
      return broken("got offset " + Number(offsets_[i]) + ", wanted a multiple of " +
                    Number(alignment_));
    }
    const GgmlTypeInfo* type = FindGgmlType(tensor.ggml_type);
    const auto elements = static_cast<uint64_t>(tensor.element_count());
    const auto size = type != nullptr
                          ? CheckedMul(elements / type->block_elements, type->block_bytes)
                          : std::optional<uint64_t>(0);
    if (!size || offsets_[i] > data_bytes || *size > data_bytes - offsets_[i]) {
      return broken("got bytes " + Number(offsets_[i]) + " + " +
                    (size ? Number(*size) : "more than 2^64") + ", wanted them inside " +
                    Number(data_bytes) + " bytes of data (truncated file?)");
    }
    tensor.bytes = bytes_.subspan(data_begin + offsets_[i], *size);
  }
  std::vector<const GgufTensor*> by_offset;
  by_offset.reserve(file->tensors_.size());
  for (const GgufTensor& tensor : file->tensors_) {
    if (!tensor.bytes.empty()) by_offset.push_back(&tensor);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->bytes.data() < b->bytes.data();
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& before = *by_offset[i - 1];
    if (before.bytes.data() + before.bytes.size() > by_offset[i]->bytes.data()) {
      return DataLoss("[gguf] tensors " + QuoteForMessage(before.name) + " and " +
                      QuoteForMessage(by_offset[i]->name) + ": got overlapping data");
    }
  }
  return {};
}

Status GgufParser::ReadBytes(const char* what, uint64_t count, std::span<const std::byte>* out) {
  if (count > remaining()) {
    return DataLoss(std::string("[gguf] ") + what + " at byte " + Number(position_) + ": got " +
                    Number(remaining()) + " bytes to the end of the file, wanted " + Number(count) +
                    " (truncated file?)");
  }
  *out = bytes_.subspan(position_, count);
  position_ += count;
  return {};
}

Status GgufParser::ReadString(const char* what, uint64_t bytes_max, std::string_view* out) {
  uint64_t length = 0;
  RETURN_IF_ERROR(ReadNumber("string length", &length));
  // Longer than the file is damage; longer than the limit is refused.
  if (length > remaining()) {
    return DataLoss(std::string("[gguf] ") + what + " at byte " + Number(position_) + ": got " +
                    Number(remaining()) + " bytes to the end of the file, wanted " +
                    Number(length) + " (truncated file?)");
  }
  if (length > bytes_max) {
    return ResourceExhausted(std::string("[gguf] ") + what + " at byte " + Number(position_) +
                             ": got " + Number(length) + " bytes, wanted at most " +
                             Number(bytes_max));
  }
  *out = {reinterpret_cast<const char*>(bytes_.data() + position_), length};
  position_ += length;
  return {};
}

Status GgufParser::ReadValueType(const char* what, GgufValueType* type) {
  uint32_t number = 0;
  RETURN_IF_ERROR(ReadNumber(what, &number));
  if (number >= kGgufValueTypeCount) {
    return DataLoss(std::string("[gguf] ") + what + " at byte " + Number(position_ - 4) + ": got " +
                    Number(number) + ", wanted 0 to " + Number(kGgufValueTypeCount - 1));
  }
  *type = static_cast<GgufValueType>(number);
  return {};
}

}  // namespace cairn
