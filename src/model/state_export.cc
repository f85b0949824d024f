#include "model/state_export.h"

#include <algorithm>
#include <cstring>

#include "kernels/quant.h"

namespace cairn {
namespace {

// Value heads are tiled over the key heads in GGUF; the checkpoint groups them by key head.
int64_t CheckpointHead(const GatedDeltaShape& shape, int64_t head) {
  if (shape.map == DeltaHeadMap::kGrouped) return head;
  const int repeat = shape.value_heads / shape.key_heads;
  return head % shape.key_heads * repeat + head / shape.key_heads;
}

}  // namespace

std::vector<StateTensor> ExportKv(int layer, const AttentionShape& shape, RopePairs pairs,
                                  size_t kv_offset, std::span<std::byte* const> blocks,
                                  int64_t end) {
  const int64_t d = shape.head_dim, heads = shape.kv_heads;
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, end - shape.window) : 0;
  const int64_t tokens = end - first;
  const std::string tag = "layer" + std::to_string(layer) + "_";
  StateTensor k{tag + "k", {heads, tokens, d}, std::vector<float>(heads * tokens * d)};
  StateTensor v{tag + "v", {heads, tokens, d}, std::vector<float>(heads * tokens * d)};
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t at = first + t;
      const std::byte* head = blocks[at / kBlockPositions] + kv_offset + h * shape.head_bytes();
      const int slot = static_cast<int>(at % kBlockPositions);
      for (int64_t i = 0; i < d; ++i) {
        // GGUF llama keeps a pair of the rotation side by side, the checkpoint half a head apart.
        const int64_t to = pairs == RopePairs::kInterleaved ? i % 2 * (d / 2) + i / 2 : i;
        const int64_t out = (h * tokens + t) * d;
        k.data[out + to] = StoredKey(shape, head, slot, static_cast<int>(i));
        v.data[out + i] = StoredValue(shape, head, slot, static_cast<int>(i));
      }
    }
  }
  return {std::move(k), std::move(v)};
}

std::vector<StateTensor> ExportLatentKv(int layer, const AttentionShape& shape, int64_t latent,
                                        size_t kv_offset, std::span<std::byte* const> blocks,
                                        int64_t tokens) {
  const std::string tag = "layer" + std::to_string(layer) + "_";
  StateTensor k{tag + "k", {1, tokens, latent}, {}};
  StateTensor v{tag + "v", {1, tokens, shape.head_dim - latent}, {}};
  for (int64_t t = 0; t < tokens; ++t) {
    const std::byte* row = blocks[t / kBlockPositions] + kv_offset;
    const int slot = static_cast<int>(t % kBlockPositions);
    for (int i = 0; i < shape.head_dim; ++i)
      (i < latent ? k : v).data.push_back(StoredKey(shape, row, slot, i));
  }
  return {std::move(k), std::move(v)};
}

std::vector<StateTensor> ExportMamba2(int layer, const Mamba2Layer::Options& options,
                                      const std::byte* state) {
  const Mamba2Config& config = options.config;
  const auto* conv = reinterpret_cast<const float*>(state + options.conv_offset);
  const auto* ssm = reinterpret_cast<const float*>(state + options.ssm_offset);
  const int64_t inputs = config.conv_kernel - 1, channels = config.conv_shape().channels;
  const int64_t heads = config.shape.heads, p = config.shape.head_dim, n = config.shape.state_dim;
  const std::string tag = "layer" + std::to_string(layer) + "_";
  StateTensor c{tag + "conv", {inputs, channels}, {conv, conv + inputs * channels}};
  StateTensor m{tag + "ssm", {heads, p, n}, std::vector<float>(heads * p * n)};
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < p; ++j) m.data[(h * p + j) * n + i] = ssm[(h * n + i) * p + j];
    }
  }
  return {std::move(c), std::move(m)};
}

std::vector<StateTensor> ExportGatedDelta(int layer, const GatedDeltaShape& shape, int conv_kernel,
                                          const float* conv, const float* delta) {
  const int64_t dk = shape.key_dim, dv = shape.value_dim, value_heads = shape.value_heads;
  const int64_t v_begin = 2 * shape.key_heads * dk, channels = v_begin + value_heads * dv;
  const int64_t inputs = conv_kernel - 1;
  const std::string tag = "layer" + std::to_string(layer) + "_";
  StateTensor c{tag + "conv", {inputs, channels}, std::vector<float>(inputs * channels)};
  for (int64_t i = 0; i < inputs * channels; ++i) {
    const int64_t channel = i % channels, in_v = channel - v_begin;
    const int64_t to =
        in_v < 0 ? channel : v_begin + CheckpointHead(shape, in_v / dv) * dv + in_v % dv;
    c.data[i - channel + to] = conv[i];
  }
  StateTensor s{tag + "delta", {value_heads, dv, dk}, std::vector<float>(value_heads * dv * dk)};
  for (int64_t h = 0; h < value_heads; ++h) {
    for (int64_t i = 0; i < dk; ++i) {
      for (int64_t j = 0; j < dv; ++j) {
        s.data[(CheckpointHead(shape, h) * dv + j) * dk + i] = delta[(h * dk + i) * dv + j];
      }
    }
  }
  return {std::move(c), std::move(s)};
}

}  // namespace cairn
