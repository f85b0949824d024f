#include "model/gguf_types.h"

#include "kernels/quant.h"

namespace cairn {
namespace {

struct NumberedType {
  uint32_t number;
  GgmlTypeInfo info;
};

// Source: the enumeration and block structures published with the GGUF specification. Numbers that
// are missing here were withdrawn before release.
constexpr NumberedType kTypes[] = {
    {0, {"F32", 1, 4}},         {1, {"F16", 1, 2}},         {2, {"Q4_0", 32, 18}},
    {3, {"Q4_1", 32, 20}},      {6, {"Q5_0", 32, 22}},      {7, {"Q5_1", 32, 24}},
    {8, {"Q8_0", 32, 34}},      {9, {"Q8_1", 32, 36}},      {10, {"Q2_K", 256, 84}},
    {11, {"Q3_K", 256, 110}},   {12, {"Q4_K", 256, 144}},   {13, {"Q5_K", 256, 176}},
    {14, {"Q6_K", 256, 210}},   {15, {"Q8_K", 256, 292}},   {16, {"IQ2_XXS", 256, 66}},
    {17, {"IQ2_XS", 256, 74}},  {18, {"IQ3_XXS", 256, 98}}, {19, {"IQ1_S", 256, 50}},
    {20, {"IQ4_NL", 32, 18}},   {21, {"IQ3_S", 256, 110}},  {22, {"IQ2_S", 256, 82}},
    {23, {"IQ4_XS", 256, 136}}, {24, {"I8", 1, 1}},         {25, {"I16", 1, 2}},
    {26, {"I32", 1, 4}},        {27, {"I64", 1, 8}},        {28, {"F64", 1, 8}},
    {29, {"IQ1_M", 256, 56}},   {30, {"BF16", 1, 2}},       {34, {"TQ1_0", 256, 54}},
    {35, {"TQ2_0", 256, 66}},   {39, {"MXFP4", 32, 17}},    {40, {"NVFP4", 64, 36}},
};

}  // namespace

const char* GgufValueTypeName(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
      return "uint8";
    case GgufValueType::kI8:
      return "int8";
    case GgufValueType::kU16:
      return "uint16";
    case GgufValueType::kI16:
      return "int16";
    case GgufValueType::kU32:
      return "uint32";
    case GgufValueType::kI32:
      return "int32";
    case GgufValueType::kF32:
      return "float32";
    case GgufValueType::kBool:
      return "bool";
    case GgufValueType::kString:
      return "string";
    case GgufValueType::kArray:
      return "array";
    case GgufValueType::kU64:
      return "uint64";
    case GgufValueType::kI64:
      return "int64";
    case GgufValueType::kF64:
      return "float64";
  }
  return "unknown";
}

uint64_t GgufValueBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

const GgmlTypeInfo* FindGgmlType(uint32_t ggml_type) {
  for (const NumberedType& t : kTypes) {
    if (t.number == ggml_type) return &t.info;
  }
  return nullptr;
}

std::string GgmlTypeName(uint32_t ggml_type) {
  const GgmlTypeInfo* info = FindGgmlType(ggml_type);
  return info != nullptr ? info->name : "type " + std::to_string(ggml_type);
}

std::string SupportedTensorTypes() {
  std::string list;
  for (const NumberedType& t : kTypes) {
    if (!WeightTypeFromGgml(t.number)) continue;
    if (!list.empty()) list += ", ";
    list += t.info.name;
  }
  return list;
}

}  // namespace cairn
