// Type numbers of the GGUF format: metadata values and tensors. Source: the GGUF specification.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cairn {

enum class GgufValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
inline constexpr uint32_t kGgufValueTypeCount = 13;

const char* GgufValueTypeName(GgufValueType type);  // "uint32", "string", ...
// Bytes of a value; 0 for string and array, whose size varies.
uint64_t GgufValueBytes(GgufValueType type);

// Storage of a tensor type: `block_elements` values lie in `block_bytes`.
struct GgmlTypeInfo {
  const char* name;  // "Q4_K"
  uint32_t block_elements;
  uint32_t block_bytes;
};
// nullptr for a number that no published version of the format defines. A type listed here need not
// be one that the kernels support.
const GgmlTypeInfo* FindGgmlType(uint32_t ggml_type);
std::string GgmlTypeName(uint32_t ggml_type);  // "Q4_K", or "type 99" if unknown
// "F32, F16, ..." : the types that kernels/quant.h supports, for messages.
std::string SupportedTensorTypes();

}  // namespace cairn
