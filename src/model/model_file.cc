#include "model/model_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"

namespace cairn {
namespace {

using Entry = ModelFile::Entry;
using WideInt = __int128;  // holds every value of int64 and of uint64

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::optional<WideInt> DecodeInteger(GgufValueType type, const std::byte* bytes) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kBool:
      return Load<uint8_t>(bytes);
    case GgufValueType::kI8:
      return Load<int8_t>(bytes);
    case GgufValueType::kU16:
      return Load<uint16_t>(bytes);
    case GgufValueType::kI16:
      return Load<int16_t>(bytes);
    case GgufValueType::kU32:
      return Load<uint32_t>(bytes);
    case GgufValueType::kI32:
      return Load<int32_t>(bytes);
    case GgufValueType::kU64:
      return Load<uint64_t>(bytes);
    case GgufValueType::kI64:
      return Load<int64_t>(bytes);
    default:
      return std::nullopt;
  }
}

std::optional<double> DecodeFloat(GgufValueType type, const std::byte* bytes) {
  if (type == GgufValueType::kF32) return Load<float>(bytes);
  if (type == GgufValueType::kF64) return Load<double>(bytes);
  return std::nullopt;
}

std::string TypeOf(const Entry& entry) {
  if (entry.type != GgufValueType::kArray) return GgufValueTypeName(entry.type);
  return std::string("array of ") + GgufValueTypeName(entry.element_type);
}

std::string KeyPrefix(const char* format) { return std::string("[") + format + "] key "; }

Status WrongType(const char* format, const Entry& entry, const char* wanted) {
  return InvalidArgument(KeyPrefix(format) + QuoteForMessage(entry.key) + ": got " + TypeOf(entry) +
                         ", wanted " + wanted);
}

Status OutOfRange(const char* format, const Entry& entry, const char* wanted) {
  return InvalidArgument(KeyPrefix(format) + QuoteForMessage(entry.key) + ": got " +
                         ModelFile::Describe(entry) + ", wanted " + wanted);
}

// What Get... makes of Find...: an absent key is an error.
template <typename T>
Result<T> Required(const char* format, Result<std::optional<T>> found, std::string_view key) {
  if (!found.ok()) return found.status();
  if (!found->has_value()) {
    return InvalidArgument(KeyPrefix(format) + QuoteForMessage(key) + ": got none, wanted a value");
  }
  return std::move(**found);
}

template <typename T>
Result<T> Or(Result<std::optional<T>> found, T fallback) {
  if (!found.ok()) return found.status();
  return found->value_or(fallback);
}

}  // namespace

int64_t TensorInfo::element_count() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

const Entry* ModelFile::FindEntry(std::string_view key) const {
  const auto at =
      std::lower_bound(entry_order_.begin(), entry_order_.end(), key,
                       [&](uint32_t i, std::string_view k) { return entries_[i].key < k; });
  if (at == entry_order_.end() || entries_[*at].key != key) return nullptr;
  return &entries_[*at];
}

Status ModelFile::IndexEntries() {
  entry_order_.resize(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) entry_order_[i] = static_cast<uint32_t>(i);
  const auto key = [&](uint32_t i) { return entries_[i].key; };
  std::sort(entry_order_.begin(), entry_order_.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  const auto twice = std::adjacent_find(entry_order_.begin(), entry_order_.end(),
                                        [&](uint32_t a, uint32_t b) { return key(a) == key(b); });
  if (twice == entry_order_.end()) return {};
  return DataLoss(KeyPrefix(format_) + QuoteForMessage(key(*twice)) + ": got it twice");
}

bool ModelFile::Has(std::string_view key) const { return FindEntry(key) != nullptr; }

Result<std::optional<uint64_t>> ModelFile::FindU64(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr) return std::optional<uint64_t>();
  const auto value = entry->type == GgufValueType::kBool
                         ? std::nullopt
                         : DecodeInteger(entry->type, entry->bytes.data());
  if (!value) return WrongType(format_, *entry, "an integer");
  if (*value < 0) return OutOfRange(format_, *entry, "an integer >= 0");
  return std::optional<uint64_t>(static_cast<uint64_t>(*value));
}

Result<std::optional<int64_t>> ModelFile::FindI64(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr) return std::optional<int64_t>();
  const auto value = entry->type == GgufValueType::kBool
                         ? std::nullopt
                         : DecodeInteger(entry->type, entry->bytes.data());
  if (!value) return WrongType(format_, *entry, "an integer");
  if (*value > std::numeric_limits<int64_t>::max())
    return OutOfRange(format_, *entry, "at most 2^63 - 1");
  return std::optional<int64_t>(static_cast<int64_t>(*value));
}

Result<std::optional<float>> ModelFile::FindF32(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr) return std::optional<float>();
  const auto value = DecodeFloat(entry->type, entry->bytes.data());
  if (!value) return WrongType(format_, *entry, "a float");
  if (std::isfinite(*value) && std::abs(*value) > std::numeric_limits<float>::max()) {
    return OutOfRange(format_, *entry, "a value that float32 can hold");
  }
  return std::optional<float>(static_cast<float>(*value));
}

Result<std::optional<bool>> ModelFile::FindBool(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr) return std::optional<bool>();
  if (entry->type != GgufValueType::kBool) return WrongType(format_, *entry, "a bool");
  return std::optional<bool>(entry->bytes[0] != std::byte{0});
}

Result<std::optional<std::string_view>> ModelFile::FindString(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr) return std::optional<std::string_view>();
  if (entry->type != GgufValueType::kString) return WrongType(format_, *entry, "a string");
  return std::optional<std::string_view>(
      std::string_view(reinterpret_cast<const char*>(entry->bytes.data()), entry->bytes.size()));
}

Result<uint64_t> ModelFile::GetU64(std::string_view key) const {
  return Required(format_, FindU64(key), key);
}
Result<int64_t> ModelFile::GetI64(std::string_view key) const {
  return Required(format_, FindI64(key), key);
}
Result<float> ModelFile::GetF32(std::string_view key) const {
  return Required(format_, FindF32(key), key);
}
Result<bool> ModelFile::GetBool(std::string_view key) const {
  return Required(format_, FindBool(key), key);
}
Result<std::string_view> ModelFile::GetString(std::string_view key) const {
  return Required(format_, FindString(key), key);
}
Result<uint64_t> ModelFile::GetU64Or(std::string_view key, uint64_t fallback) const {
  return Or(FindU64(key), fallback);
}
Result<float> ModelFile::GetF32Or(std::string_view key, float fallback) const {
  return Or(FindF32(key), fallback);
}
Result<bool> ModelFile::GetBoolOr(std::string_view key, bool fallback) const {
  return Or(FindBool(key), fallback);
}

Result<const Entry*> ModelFile::GetArray(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr) {
    return InvalidArgument(KeyPrefix(format_) + QuoteForMessage(key) +
                           ": got none, wanted an array");
  }
  if (entry->type != GgufValueType::kArray) return WrongType(format_, *entry, "an array");
  return entry;
}

Result<std::vector<int64_t>> ModelFile::GetI64Array(std::string_view key) const {
  ASSIGN_OR_RETURN(const Entry* entry, GetArray(key));
  const uint64_t stride = GgufValueBytes(entry->element_type);
  std::vector<int64_t> values;
  if (stride != 0) values.reserve(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const auto value = DecodeInteger(entry->element_type, entry->bytes.data() + i * stride);
    if (!value) return WrongType(format_, *entry, "an array of integers");
    if (*value > std::numeric_limits<int64_t>::max()) {
      return OutOfRange(format_, *entry, "elements of at most 2^63 - 1");
    }
    values.push_back(static_cast<int64_t>(*value));
  }
  return values;
}

Result<std::vector<float>> ModelFile::GetF32Array(std::string_view key) const {
  ASSIGN_OR_RETURN(const Entry* entry, GetArray(key));
  const uint64_t stride = GgufValueBytes(entry->element_type);
  std::vector<float> values;
  if (stride != 0) values.reserve(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const auto value = DecodeFloat(entry->element_type, entry->bytes.data() + i * stride);
    if (!value) return WrongType(format_, *entry, "an array of floats");
    if (std::isfinite(*value) && std::abs(*value) > std::numeric_limits<float>::max()) {
      return OutOfRange(format_, *entry, "elements that float32 can hold");
    }
    values.push_back(static_cast<float>(*value));
  }
  return values;
}

Result<std::vector<std::string_view>> ModelFile::GetStringArray(std::string_view key) const {
  ASSIGN_OR_RETURN(const Entry* entry, GetArray(key));
  if (entry->element_type != GgufValueType::kString)
    return WrongType(format_, *entry, "an array of strings");
  std::vector<std::string_view> values;
  values.reserve(entry->count);
  const std::byte* at = entry->bytes.data();
  for (uint64_t i = 0; i < entry->count; ++i) {
    const auto length = Load<uint64_t>(at);  // checked by the parser
    values.emplace_back(reinterpret_cast<const char*>(at + sizeof length), length);
    at += sizeof length + length;
  }
  return values;
}

std::optional<uint64_t> ModelFile::ArraySize(std::string_view key) const {
  const Entry* entry = FindEntry(key);
  if (entry == nullptr || entry->type != GgufValueType::kArray) return std::nullopt;
  return entry->count;
}

std::string ModelFile::Describe(const Entry& entry) {
  if (entry.type == GgufValueType::kString) {
    return QuoteForMessage({reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()});
  }
  if (entry.type == GgufValueType::kArray) {
    return std::string("[") + GgufValueTypeName(entry.element_type) + " x " +
           std::to_string(entry.count) + "]";
  }
  if (entry.type == GgufValueType::kBool) {
    return entry.bytes[0] != std::byte{0} ? "true" : "false";
  }
  if (const auto value = DecodeFloat(entry.type, entry.bytes.data())) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", *value);
    return text;
  }
  const WideInt value = DecodeInteger(entry.type, entry.bytes.data()).value_or(0);
  return value < 0 ? std::to_string(static_cast<int64_t>(value))
                   : std::to_string(static_cast<uint64_t>(value));
}

}  // namespace cairn
