#include "model/weights.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace cairn {
namespace {

constexpr int64_t kPanelColumns = 32;  // of PackedMatrix: what a stacked part must fill

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Shapes are equal if they are so without dimensions of 1: files store [n], [n, 1] and [1, n].
bool SameShape(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> left;
  std::vector<int64_t> right;
  std::copy_if(a.begin(), a.end(), std::back_inserter(left), [](int64_t d) { return d != 1; });
  std::copy_if(b.begin(), b.end(), std::back_inserter(right), [](int64_t d) { return d != 1; });
  return left == right;
}

int64_t ElementCount(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

}  // namespace

Weights::Weights(const TensorSource& source, Progress progress)
    : source_(source), progress_(std::move(progress)) {}

Result<std::vector<int64_t>> Weights::Shape(std::string_view name) const {
  ASSIGN_OR_RETURN(TensorView tensor, source_.Describe(name));
  return std::move(tensor.shape);
}

Result<PackedMatrix> Weights::Matrix(std::string_view name, int64_t n, int64_t k,
                                     std::span<const int64_t> rows) {
  const int64_t shape[] = {n, k};
  ASSIGN_OR_RETURN(const TensorView tensor, Check(name, shape));
  std::vector<std::byte> ordered;
  const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(n);
  for (const int64_t row : rows) {
    const auto bytes = tensor.bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes);
    ordered.insert(ordered.end(), bytes.begin(), bytes.end());
  }
  CHECK(rows.empty() || ordered.size() == tensor.bytes.size());
  ASSIGN_OR_RETURN(PackedMatrix matrix,
                   PackedMatrix::Pack(
                       tensor.type, n, k,
                       rows.empty() ? tensor.bytes : std::span<const std::byte>(ordered), &arena_));
  Done(name, tensor, Use::kMatrix, matrix.packed_bytes());
  return matrix;
}

Result<PackedMatrix> Weights::Stacked(std::span<const Part> parts, int64_t k) {
  std::vector<TensorView> tensors;
  std::vector<PackedMatrix::Part> stack;
  for (const Part& part : parts) {
    const int64_t shape[] = {part.n, k};
    ASSIGN_OR_RETURN(TensorView tensor, Check(part.name, shape));
    stack.push_back({tensor.type, part.n, tensor.bytes});
    tensors.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(PackedMatrix matrix, PackedMatrix::PackStacked(stack, k, &arena_));
  for (size_t i = 0; i < parts.size(); ++i) {
    // The packed bytes belong to the stack; they are counted once, with its first part.
    Done(parts[i].name, tensors[i], Use::kMatrix, i == 0 ? matrix.packed_bytes() : 0);
  }
  return matrix;
}

Result<std::vector<PackedMatrix>> Weights::Experts(std::span<const Part> parts, int experts,
                                                   int64_t k) {
  std::vector<TensorView> tensors;
  for (const Part& part : parts) {
    const int64_t shape[] = {experts, part.n, k};
    ASSIGN_OR_RETURN(TensorView tensor, Check(part.name, shape));
    tensors.push_back(std::move(tensor));
  }
  std::vector<PackedMatrix> matrices;
  uint64_t packed_bytes = 0;
  for (int e = 0; e < experts; ++e) {
    std::vector<PackedMatrix::Part> stack;
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t bytes = tensors[i].bytes.size() / static_cast<size_t>(experts);
      stack.push_back({tensors[i].type, parts[i].n, tensors[i].bytes.subspan(e * bytes, bytes)});
    }
    ASSIGN_OR_RETURN(PackedMatrix matrix, PackedMatrix::PackStacked(stack, k, &arena_));
    packed_bytes += matrix.packed_bytes();
    matrices.push_back(std::move(matrix));
  }
  for (size_t i = 0; i < parts.size(); ++i)
    Done(parts[i].name, tensors[i], Use::kMatrix, i == 0 ? packed_bytes : 0);
  return matrices;
}

bool Weights::CanStack(std::span<const Part> parts) const {
  std::optional<WeightType> type;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Result<TensorView> tensor = source_.Describe(parts[i].name);
    if (!tensor.ok() || (type && *type != tensor->type)) return false;
    if (i + 1 < parts.size() && parts[i].n % kPanelColumns != 0) return false;
    type = tensor->type;
  }
  return true;
}

Result<std::vector<float>> Weights::Floats(std::string_view name,
                                           std::initializer_list<int64_t> shape) {
  ASSIGN_OR_RETURN(const TensorView tensor, Check(name, {shape.begin(), shape.size()}));
  if (IsQuantized(tensor.type)) {
    return Unsupported("[weights] tensor " + QuoteForMessage(name) + ": got " +
                       WeightTypeName(tensor.type) + ", wanted F32, F16 or BF16");
  }
  std::vector<float> values(static_cast<size_t>(ElementCount(tensor.shape)));
  DequantizeRow(tensor.type, tensor.bytes, values);
  Done(name, tensor, Use::kFloats, values.size() * sizeof(float));
  return values;
}

Result<std::optional<std::vector<float>>> Weights::OptionalVector(std::string_view name,
                                                                  int64_t n) {
  if (!Has(name)) return std::optional<std::vector<float>>();
  ASSIGN_OR_RETURN(std::vector<float> values, Vector(name, n));
  return std::optional<std::vector<float>>(std::move(values));
}

Result<TensorView> Weights::Check(std::string_view name, std::span<const int64_t> shape) const {
  ASSIGN_OR_RETURN(TensorView tensor, source_.Get(name));
  if (!SameShape(tensor.shape, shape)) {
    const std::string original = source_.NameInFiles(name);
    return InvalidArgument(
        "[weights] tensor " + QuoteForMessage(name) + ": got shape " + ShapeText(tensor.shape) +
        ", wanted " + ShapeText(shape) +
        (original.empty() ? "" : "; it is made of " + QuoteForMessage(original)));
  }
  return tensor;
}

void Weights::Done(std::string_view name, const TensorView& tensor, Use use,
                   uint64_t resident_bytes) {
  resident_bytes_ += resident_bytes;
  const auto [at, is_new] = taken_.try_emplace(std::string(name));
  if (!is_new) return;  // taken twice (a tied head): hashed, counted and released once
  Taken& taken = at->second;
  taken.type = tensor.type;
  taken.elements = ElementCount(tensor.shape);
  taken.use = use;
  taken.shape = tensor.shape;
  taken.hash = XXH3_64bits(tensor.bytes.data(), tensor.bytes.size());
  parameter_count_ += taken.elements;
  file_bytes_ += tensor.bytes.size();
  source_.Release(tensor);
  if (progress_) progress_(file_bytes_, source_.total_bytes());
}

std::string Weights::quantization() const {
  std::map<WeightType, int64_t> elements;
  for (const auto& [name, taken] : taken_) {
    if (taken.use == Use::kMatrix) elements[taken.type] += taken.elements;
  }
  if (elements.empty()) return "none";
  const auto most =
      std::max_element(elements.begin(), elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return WeightTypeName(most->first);
}

uint64_t Weights::Hash() const {
  std::string record;  // one line a tensor, in name order
  for (const auto& [name, taken] : taken_) {
    record += std::to_string(name.size()) + ":" + name + " " + WeightTypeName(taken.type) + " " +
              ShapeText(taken.shape) + " " + std::to_string(taken.hash) + "\n";
  }
  return XXH3_64bits(record.data(), record.size());
}

}  // namespace cairn
