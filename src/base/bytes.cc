#include "base/bytes.h"

#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <new>

namespace cairn {

AlignedBuffer::AlignedBuffer(size_t size_bytes) : size_(size_bytes) {
  if (size_bytes == 0) return;
  data_ = static_cast<std::byte*>(::operator new(size_bytes, std::align_val_t{64}));
  std::memset(data_, 0, size_bytes);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() { ::operator delete(data_, std::align_val_t{64}); }

std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

Result<uint64_t> ParseSize(std::string_view text) {
  auto wrong = [&] {
    return InvalidArgument("[size] got \"" + std::string(text) +
                           "\", wanted bytes such as 1073741824, 512M or 2GiB");
  };
  double number = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc{} || !(number >= 0)) return wrong();
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = std::string_view("kmgt").find(unit[0]);
    if (power == std::string_view::npos) return wrong();
    const std::string rest = unit.substr(1);
    if (rest != "" && rest != "ib" && rest != "b") return wrong();
    const double base = rest == "b" ? 1000.0 : 1024.0;
    for (size_t i = 0; i <= power; ++i) scale *= base;
  }
  if (number * scale > 9.0e18) return wrong();
  return static_cast<uint64_t>(number * scale);
}

std::string FormatSize(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string QuoteForMessage(std::string_view text) {
  constexpr size_t kQuotedBytesMax = 80;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "'";
  for (const char c : text.substr(0, kQuotedBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += c;
    } else {
      quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return quoted + (text.size() > kQuotedBytesMax ? "...'" : "'");
}

}  // namespace cairn
