// The scalar level, and the specification of the others in plain operations.
#include <cmath>
#include <cstring>

#include "kernels/matmul_layout.h"
#include "kernels/matmul_panel.h"
#include "kernels/matmul_scalar_formats.h"
#include "kernels/quant.h"

namespace cairn {
namespace {

constexpr int kBlocksUnpacked = 8;  // one group of the K types

// A few blocks as integers with the zero point subtracted, and their scales.
struct Unpacked {
  int16_t w[kBlocksUnpacked][kBlockK][kPanelColumns];
  float scale[kBlocksUnpacked][2][kPanelColumns];  // of the lower and upper half; else [0] only
  float min[kBlocksUnpacked][kPanelColumns];
};

float HalfAt(const uint8_t* p, int i) {
  uint16_t h;
  std::memcpy(&h, p + 2 * i, sizeof h);
  return HalfToFloat(h);
}

template <typename F>
void UnpackScales(const uint8_t* header, int i, int b, Unpacked* out) {
  if constexpr (F::kScales == Scales::kAffine) {
    for (int c = 0; c < kPanelColumns; ++c) {
      out->scale[b][0][c] = AffineValue<F>(header, c);
      out->min[b][c] = AffineValue<F>(header + F::kBiasOffset, c);
    }
    return;
  }
  for (int c = 0; c < kPanelColumns; ++c) {
    const float d = HalfAt(header, c);
    float* scale = &out->scale[b][0][c];
    scale[0] = d;
    if constexpr (F::kMin) out->min[b][c] = HalfAt(header + kHeaderMin, c);
    if constexpr (F::kScales == Scales::kSixBit) {
      scale[0] = d * static_cast<float>(SixBitScale(header, i, c));
      out->min[b][c] = -(out->min[b][c] * static_cast<float>(SixBitMin(header, i, c)));
    }
    if constexpr (F::kHalves) {
      const uint8_t* s = header + kHeaderScales + 2 * i * kPanelColumns + c;
      scale[0] = d * static_cast<float>(static_cast<int8_t>(s[0]));
      scale[kPanelColumns] = d * static_cast<float>(static_cast<int8_t>(s[kPanelColumns]));
    }
  }
}

template <typename F>
void Unpack(const uint8_t* panel, int64_t begin, int count, Unpacked* out) {
  for (int b = 0; b < count; ++b) {
    const uint8_t* quants = BlockQuants<F>(panel, begin + b);
    for (int q = 0; q < kQuads; ++q) {
      for (int i = 0; i < kQuadBytes; ++i) {
        out->w[b][4 * q + i % 4][i / 4] =
            static_cast<int16_t>(BlockValue<F>(quants, q, i) - F::kZero);
      }
    }
    UnpackScales<F>(GroupHeader<F>(panel, begin + b), static_cast<int>((begin + b) % F::kGroup), b,
                    out);
  }
}

template <typename F>
void AddBlock(const Unpacked& u, int b, const int8_t* q, const ActivationBlock& a, float* acc) {
  constexpr int kParts = F::kHalves ? 2 : 1;
  for (int part = 0; part < kParts; ++part) {
    int32_t sum[kPanelColumns] = {};
    for (int k = part * 16; k < (kParts == 1 ? 32 : part * 16 + 16); ++k) {
      const int16_t x = q[k];
      for (int c = 0; c < kPanelColumns; ++c) sum[c] += static_cast<int32_t>(u.w[b][k][c]) * x;
    }
    for (int c = 0; c < kPanelColumns; ++c) {
      acc[c] = std::fma(static_cast<float>(sum[c]), u.scale[b][part][c] * a.scale, acc[c]);
    }
  }
  if constexpr (F::kMin) {
    for (int c = 0; c < kPanelColumns; ++c) acc[c] = std::fma(u.min[b][c], a.scaled_sum, acc[c]);
  }
}

template <typename F>
void QuantizedPanel(const PanelCall& call) {
  const int64_t count = call.k / kBlockK;
  Unpacked u;
  for (int64_t begin = 0; begin < count; begin += kBlocksUnpacked) {
    const int n =
        static_cast<int>(count - begin < kBlocksUnpacked ? count - begin : kBlocksUnpacked);
    Unpack<F>(call.panel, begin, n, &u);
    for (int r = 0; r < call.rows; ++r) {
      float acc[kPanelColumns] = {};
      float* y = call.y + r * call.ldy;
      if (begin > 0) std::memcpy(acc, y, sizeof(float) * static_cast<size_t>(call.columns));
      for (int b = 0; b < n; ++b) {
        AddBlock<F>(u, b, call.q + r * call.k + (begin + b) * kBlockK,
                    call.blocks[r * count + begin + b], acc);
      }
      std::memcpy(y, acc, sizeof(float) * static_cast<size_t>(call.columns));
    }
  }
}

float WeightAt(WeightType type, const uint8_t* panel, int64_t i) {
  if (type == WeightType::kF32) {
    float w;
    std::memcpy(&w, panel + 4 * i, sizeof w);
    return w;
  }
  uint16_t h;
  std::memcpy(&h, panel + 2 * i, sizeof h);
  return type == WeightType::kF16 ? HalfToFloat(h) : BFloat16ToFloat(h);
}

void FloatPanel(const PanelCall& call) {
  constexpr int kUnpacked = 64;
  float w[kUnpacked][kPanelColumns];
  for (int64_t begin = 0; begin < call.k; begin += kUnpacked) {
    const int n = static_cast<int>(call.k - begin < kUnpacked ? call.k - begin : kUnpacked);
    for (int i = 0; i < n * kPanelColumns; ++i) {
      w[i / kPanelColumns][i % kPanelColumns] =
          WeightAt(call.type, call.panel, begin * kPanelColumns + i);
    }
    for (int r = 0; r < call.rows; ++r) {
      float acc[kPanelColumns] = {};
      float* y = call.y + r * call.ldy;
      const float* x = call.x + r * call.k + begin;
      if (begin > 0) std::memcpy(acc, y, sizeof(float) * static_cast<size_t>(call.columns));
      for (int i = 0; i < n; ++i) {
        for (int c = 0; c < kPanelColumns; ++c) acc[c] = std::fma(w[i][c], x[i], acc[c]);
      }
      std::memcpy(y, acc, sizeof(float) * static_cast<size_t>(call.columns));
    }
  }
}

}  // namespace

void MatMulPanelScalar(const PanelCall& call) {
  if (!IsQuantized(call.type)) return FloatPanel(call);
  WithAnyFormat(call.type, [&]<typename F>() { QuantizedPanel<F>(call); });
}

}  // namespace cairn
