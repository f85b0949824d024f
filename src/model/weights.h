// The tensors of a model as its layers want them: packed matrices and float vectors, with shapes
// checked, whatever file they come from. The seam between file formats and architectures.
//
// On the way each tensor's bytes are hashed (once), counted, reported as progress, and its file
// pages released, so loading needs little more memory than the packed model.
//
// Threads: used by the one thread that loads; the source must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/matmul.h"
#include "kernels/panel_arena.h"
#include "kernels/quant.h"

namespace cairn {

// One tensor of a file, row-major: `rows` of RowBytes(type, shape.back()) each.
struct TensorView {
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;  // slowest first: a matrix W is {n, k}
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // of bytes that are no part of a file; else null
};

// Where tensors come from: ModelFile::OpenTensors.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool Has(std::string_view name) const = 0;
  // Errors: NotFound, Unsupported (a type without kernel; the message lists those that have one).
  virtual Result<TensorView> Get(std::string_view name) const = 0;
  // The same without bytes, where making them costs something.
  virtual Result<TensorView> Describe(std::string_view name) const { return Get(name); }
  // Its name in the files where that is another one, for messages; else empty.
  virtual std::string NameInFiles(std::string_view) const { return {}; }
  virtual uint64_t total_bytes() const = 0;                  // of all tensors, for progress
  virtual void Release(const TensorView& tensor) const = 0;  // its pages are not needed any more
};

class Weights {
 public:
  // done / total: file bytes. Called after each tensor, done ascending.
  using Progress = std::function<void(uint64_t bytes_done, uint64_t bytes_total)>;

  explicit Weights(const TensorSource& source, Progress progress = {});

  bool Has(std::string_view name) const { return source_.Has(name); }
  // Shape {n, k}; for sizes that only the file knows (the vocabulary).
  Result<std::vector<int64_t>> Shape(std::string_view name) const;

  // W [n, k]; with `rows`, a permutation of 0..n-1, its row i is the file's row rows[i]. Errors:
  // NotFound, Unsupported type, InvalidArgument with both shapes if they differ.
  Result<PackedMatrix> Matrix(std::string_view name, int64_t n, int64_t k,
                              std::span<const int64_t> rows = {});
  // Several matrices of one k stacked along n in this order. Errors as Matrix, and InvalidArgument
  // where CanStack is false.
  struct Part {
    std::string name;
    int64_t n;
  };
  Result<PackedMatrix> Stacked(std::span<const Part> parts, int64_t k);
  // `experts` matrices, each part's rows of one expert stacked along n: part p is a tensor
  // [experts, n, k]. Errors as Stacked.
  Result<std::vector<PackedMatrix>> Experts(std::span<const Part> parts, int experts, int64_t k);
  // True if the parts are there, share one type, and all n but the last are multiples of 32.
  bool CanStack(std::span<const Part> parts) const;

  // All elements as float32, row-major; `shape` is slowest first. A file may leave out or add
  // dimensions of 1.
  Result<std::vector<float>> Floats(std::string_view name, std::initializer_list<int64_t> shape);
  // A vector [n].
  Result<std::vector<float>> Vector(std::string_view name, int64_t n) { return Floats(name, {n}); }
  // The same, or nullopt if the file has no such tensor (biases, rope_freqs).
  Result<std::optional<std::vector<float>>> OptionalVector(std::string_view name, int64_t n);

  int64_t parameter_count() const { return parameter_count_; }  // of the tensors taken so far
  uint64_t file_bytes() const { return file_bytes_; }           // their bytes in the file
  uint64_t resident_bytes() const { return resident_bytes_; }   // as packed or dequantised
  // Type with the most parameters among the matrices taken: "Q4_0", ...
  std::string quantization() const;
  // 64 bits over name, type, shape and data of every tensor taken, in name order: two files that
  // differ in any bit this model reads have different hashes (up to collisions).
  uint64_t Hash() const;

 private:
  enum class Use { kMatrix, kFloats };
  struct Taken {
    uint64_t hash = 0;  // of the data
    WeightType type = WeightType::kF32;
    std::vector<int64_t> shape;
    int64_t elements = 0;
    Use use = Use::kMatrix;
  };

  // The tensor, if it has this shape.
  Result<TensorView> Check(std::string_view name, std::span<const int64_t> shape) const;
  // Hashes, counts, releases and reports a tensor whose values were copied out.
  void Done(std::string_view name, const TensorView& tensor, Use use, uint64_t resident_bytes);

  const TensorSource& source_;
  Progress progress_;
  std::map<std::string, Taken, std::less<>> taken_;
  int64_t parameter_count_ = 0;
  uint64_t file_bytes_ = 0;
  PanelArena arena_;  // panels lie in huge pages; matrices keep their part of it alive
  uint64_t resident_bytes_ = 0;
};

}  // namespace cairn
