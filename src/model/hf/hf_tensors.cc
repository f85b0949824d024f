#include "model/hf/hf_tensors.h"

#include <cstring>
#include <memory>

#include "base/check.h"
#include "kernels/quant.h"
#include "model/hf/exp_double.h"

namespace cairn {
namespace {

// Rows that lie end to end in the file.
bool IsOneStretch(const HfRecipe& recipe) {
  for (size_t i = 1; i < recipe.runs.size(); ++i) {
    const HfRun& before = recipe.runs[i - 1];
    if (recipe.runs[i].source != before.source ||
        recipe.runs[i].begin != before.begin + before.count) {
      return false;
    }
  }
  return !recipe.runs.empty();
}

size_t SourceRowBytes(const HfSource& source) {
  return source.data.size() / static_cast<size_t>(source.rows);
}

// Rows of float types.
void CopyRows(const HfRun& run, std::byte* out) {
  const size_t row_bytes = SourceRowBytes(*run.source);
  std::memcpy(out, run.source->data.data() + run.begin * row_bytes, run.count * row_bytes);
}

// Rows of float types as columns: out [k, count].
void TransposeRows(const HfRun& run, std::byte* out) {
  const HfSource& s = *run.source;
  const size_t row_bytes = SourceRowBytes(s), size = row_bytes / static_cast<size_t>(s.k);
  for (int64_t i = 0; i < s.k; ++i) {
    for (int64_t row = run.begin; row < run.begin + run.count; ++row, out += size)
      std::memcpy(out, s.data.data() + row * row_bytes + i * size, size);
  }
}

// Rows of affine types: each group's scale, offset and integers side by side (quant.h).
void InterleaveRows(const HfRun& run, std::byte* out) {
  const HfSource& s = *run.source;
  const AffineFormat format = *AffineFormatOf(s.type);
  const size_t group_bytes = static_cast<size_t>(format.group) * format.bits / 8;
  const size_t scale_bytes = format.scale_bytes();
  const int64_t groups = s.k / format.group;
  for (int64_t g = run.begin * groups; g < (run.begin + run.count) * groups; ++g) {
    std::memcpy(out, s.scales.data() + g * scale_bytes, scale_bytes);
    std::memcpy(out + scale_bytes, s.biases.data() + g * scale_bytes, scale_bytes);
    std::memcpy(out + 2 * scale_bytes, s.data.data() + g * group_bytes, group_bytes);
    out += 2 * scale_bytes + group_bytes;
  }
}

void ReleaseSource(const HfSource& source, const HfShards& shards) {
  shards.ReleasePages(source.data);
  if (!source.scales.empty()) shards.ReleasePages(source.scales);
  if (!source.biases.empty()) shards.ReleasePages(source.biases);
}

// All elements as float32, changed.
void ChangeValues(const HfRecipe& recipe, float* out) {
  for (const HfRun& run : recipe.runs) {
    const HfSource& s = *run.source;
    const size_t row_bytes = SourceRowBytes(s);
    const size_t count = static_cast<size_t>(run.count * s.k);
    DequantizeRow(s.type, s.data.subspan(run.begin * row_bytes, run.count * row_bytes),
                  {out, count});
    for (size_t i = 0; i < count; ++i) {
      out[i] =
          recipe.value == HfValue::kAddOne ? out[i] + 1.0f : static_cast<float>(-ExpDouble(out[i]));
    }
    out += count;
  }
}

}  // namespace

uint64_t HfRecipe::bytes() const {
  uint64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= static_cast<uint64_t>(shape[i]);
  return rows * RowBytes(type, shape.empty() ? 1 : shape.back());
}

TensorView MakeTensor(const HfRecipe& recipe, const HfShards& shards) {
  TensorView view;
  view.type = recipe.type;
  view.shape = recipe.shape;
  if (!recipe.constant.empty()) {
    view.bytes = std::as_bytes(std::span(recipe.constant));
    return view;
  }
  if (recipe.value == HfValue::kAsIs && !recipe.transposed && !IsQuantized(recipe.type) &&
      IsOneStretch(recipe)) {
    const HfRun& first = recipe.runs.front();
    view.bytes =
        first.source->data.subspan(first.begin * SourceRowBytes(*first.source), recipe.bytes());
    return view;
  }
  const size_t bytes = recipe.bytes();
  const auto copy = std::make_shared_for_overwrite<std::byte[]>(bytes);
  if (recipe.value != HfValue::kAsIs) {
    ChangeValues(recipe, reinterpret_cast<float*>(copy.get()));
  } else {
    std::byte* out = copy.get();
    for (const HfRun& run : recipe.runs) {
      if (recipe.transposed) {
        TransposeRows(run, out);
      } else {
        IsQuantized(recipe.type) ? InterleaveRows(run, out) : CopyRows(run, out);
      }
      out += run.count * RowBytes(recipe.type, run.source->k);
    }
    CHECK(out == copy.get() + bytes);
  }
  const HfSource* released = nullptr;
  for (const HfRun& run : recipe.runs) {
    if (run.source != released) ReleaseSource(*run.source, shards);
    released = run.source;
  }
  view.bytes = {copy.get(), bytes};
  view.owner = copy;
  return view;
}

}  // namespace cairn
