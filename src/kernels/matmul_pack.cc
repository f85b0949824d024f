// PackedMatrix: from the file's rows to panels (matmul_layout.h) and back.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernels/matmul.h"
#include "kernels/matmul_affine_layout.h"
#include "kernels/matmul_layout.h"
#include "kernels/matmul_scalar_formats.h"
#include "kernels/quant_blocks.h"

namespace cairn {
namespace {

constexpr int64_t kSizeMax = int64_t{1} << 31;  // of n and of k

size_t PanelBytes(WeightType type, int64_t k) { return kPanelColumns * RowBytes(type, k); }

Result<uint64_t> FileBytes(WeightType type, int64_t n, int64_t k) {
  if (n <= 0 || k <= 0 || n > kSizeMax || k > kSizeMax || k % BlockElements(type) != 0) {
    return InvalidArgument("[matmul] matrix shape, got [" + std::to_string(n) + ", " +
                           std::to_string(k) + "], wanted positive sizes and a row of whole " +
                           WeightTypeName(type) + " blocks");
  }
  const auto bytes = CheckedMul(static_cast<uint64_t>(n + kPanelColumns - 1), RowBytes(type, k));
  if (!bytes || *bytes > uint64_t{1} << 62) {
    return InvalidArgument("[matmul] matrix size overflows, got [" + std::to_string(n) + ", " +
                           std::to_string(k) + "]");
  }
  return static_cast<uint64_t>(n) * RowBytes(type, k);
}

// One block of 32 columns x 32 k: bytes [8 quads][128] -> the packed form.
template <typename F>
void PackQuants(const uint8_t* tile, uint8_t* out) {
  if constexpr (F::kBits == 8) {
    std::memcpy(out, tile, kTileBytes);
    return;
  }
  std::memset(out, 0, F::kBlockBytes);
  for (int q = 0; q < kQuads; ++q) {
    const uint8_t* u = tile + q * kQuadBytes;
    for (int i = 0; i < 64; ++i) {
      out[q * 64 + i] = static_cast<uint8_t>((u[i] & 15) | (u[64 + i] & 15) << 4);
    }
    if constexpr (F::kBits == 5) {
      uint8_t* plane = out + kPlaneOffset;
      for (int i = 0; i < kQuadBytes; ++i) plane[i] |= static_cast<uint8_t>((u[i] >> 4) << q);
    }
    if constexpr (F::kBits == 6) {
      uint8_t* plane = out + kPlaneOffset + q / 4 * kQuadBytes;
      const int shift = q % 4 * 2;
      for (int i = 0; i < kQuadBytes; ++i) plane[i] |= static_cast<uint8_t>((u[i] >> 4) << shift);
    }
  }
}

template <typename F>
void PackHeader(const FileBlock* columns, uint8_t* header) {
  std::memset(header, 0, F::kHeaderBytes);
  if constexpr (F::kScales == Scales::kAffine) {
    constexpr int kBytes = F::kNumberBytes;
    for (int c = 0; c < kPanelColumns; ++c) {
      std::memcpy(header + kBytes * c, columns[c].affine, kBytes);
      std::memcpy(header + F::kBiasOffset + kBytes * c, columns[c].affine + kBytes, kBytes);
    }
    return;
  }
  for (int c = 0; c < kPanelColumns; ++c) {
    const FileBlock& f = columns[c];
    std::memcpy(header + 2 * c, &f.d, sizeof f.d);
    if constexpr (F::kMin) std::memcpy(header + kHeaderMin + 2 * c, &f.d_min, sizeof f.d_min);
    if constexpr (F::kScales == Scales::kSixBit) {
      for (int i = 0; i < 8; ++i) {
        header[kHeaderLow + i * 32 + c] =
            static_cast<uint8_t>((f.scale[i] & 15) | (f.min[i] & 15) << 4);
        const int high = f.scale[i] >> 4 | (f.min[i] >> 4) << 2;
        header[kHeaderHigh + i / 2 * 32 + c] |= static_cast<uint8_t>(high << (i % 2 * 4));
      }
    }
    if constexpr (F::kHalves) {
      for (int i = 0; i < 16; ++i) header[kHeaderScales + i * 32 + c] = f.scale[i];
    }
  }
}

// `count` <= 32 rows of the file -> one panel; missing columns have weights of zero.
template <typename F>
void PackQuantizedPanel(WeightType type, const std::byte* rows, int count, int64_t k,
                        uint8_t* panel) {
  const size_t row_bytes = RowBytes(type, k);
  const size_t block_bytes = BlockBytes(type);
  FileBlock columns[kPanelColumns] = {};
  uint8_t tile[kTileBytes] = {};
  for (int64_t g = 0; g < k / BlockElements(type); ++g, panel += F::kGroupBytes) {
    for (int c = 0; c < count; ++c) {
      ReadFileBlock(
          type, rows + static_cast<size_t>(c) * row_bytes + static_cast<size_t>(g) * block_bytes,
          &columns[c]);
    }
    PackHeader<F>(columns, panel);
    for (int i = 0; i < F::kGroup; ++i) {
      for (int c = 0; c < kPanelColumns; ++c) {
        for (int q = 0; q < kQuads; ++q) {
          std::memcpy(tile + q * kQuadBytes + c * 4, columns[c].u + i * kBlockK + q * 4, 4);
        }
      }
      PackQuants<F>(tile, panel + F::kHeaderBytes + i * F::kBlockBytes);
    }
  }
}

template <typename T>
void PackFloatPanel(const std::byte* rows, int count, int64_t k, T* panel) {
  constexpr int64_t kStrip = 16;  // of k: a panel's cache lines are written once
  for (int64_t begin = 0; begin < k; begin += kStrip) {
    const int64_t end = std::min(k, begin + kStrip);
    for (int c = 0; c < count; ++c) {
      const std::byte* row = rows + static_cast<size_t>(c * k) * sizeof(T);
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(panel + i * kPanelColumns + c, row + static_cast<size_t>(i) * sizeof(T),
                    sizeof(T));
      }
    }
  }
}

void PackPanel(WeightType type, const std::byte* rows, int count, int64_t k, std::byte* panel) {
  switch (type) {
    case WeightType::kF32:
      return PackFloatPanel(rows, count, k, reinterpret_cast<uint32_t*>(panel));
    case WeightType::kF16:
    case WeightType::kBF16:
      return PackFloatPanel(rows, count, k, reinterpret_cast<uint16_t*>(panel));
    default:
      WithAnyFormat(type, [&]<typename F>() {
        PackQuantizedPanel<F>(type, rows, count, k, reinterpret_cast<uint8_t*>(panel));
      });
  }
}

float HalfAt(const uint8_t* p, int i) {
  uint16_t h;
  std::memcpy(&h, p + 2 * i, sizeof h);
  return HalfToFloat(h);
}

// Column `c` of block b, the operations of DequantizeRow (quant.cc).
template <typename F>
void DequantizeColumn(const uint8_t* panel, int64_t b, int c, float* out) {
  const uint8_t* header = GroupHeader<F>(panel, b);
  const uint8_t* quants = BlockQuants<F>(panel, b);
  const int i = static_cast<int>(b % F::kGroup);
  if constexpr (F::kScales == Scales::kAffine) {
    const float scale = AffineValue<F>(header, c);
    const float offset = AffineValue<F>(header + F::kBiasOffset, c);
    for (int k = 0; k < kBlockK; ++k) {
      out[k] = scale * static_cast<float>(BlockValue<F>(quants, k / 4, c * 4 + k % 4)) + offset;
    }
    return;
  }
  const float d = HalfAt(header, c);
  float scale[2] = {d, d};
  float min = 0;
  if constexpr (F::kMin) min = HalfAt(header + kHeaderMin, c);
  if constexpr (F::kScales == Scales::kSixBit) {
    scale[0] = scale[1] = d * static_cast<float>(SixBitScale(header, i, c));
    min = min * static_cast<float>(SixBitMin(header, i, c));
  }
  if constexpr (F::kHalves) {
    for (int h = 0; h < 2; ++h) {
      scale[h] = d * static_cast<int8_t>(header[kHeaderScales + (2 * i + h) * 32 + c]);
    }
  }
  for (int k = 0; k < kBlockK; ++k) {
    const int u = BlockValue<F>(quants, k / 4, c * 4 + k % 4);
    const float v = scale[k / 16] * static_cast<float>(u - F::kZero);
    out[k] = !F::kMin ? v : F::kScales == Scales::kSixBit ? v - min : v + min;
  }
}

}  // namespace

Result<PackedMatrix> PackedMatrix::Pack(WeightType type, int64_t n, int64_t k,
                                        std::span<const std::byte> rows, PanelArena* arena) {
  const Part part = {type, n, rows};
  return PackStacked({&part, 1}, k, arena);
}

Result<PackedMatrix> PackedMatrix::PackStacked(std::span<const Part> parts, int64_t k,
                                               PanelArena* arena) {
  if (parts.empty()) return InvalidArgument("[matmul] no matrices to stack");
  PackedMatrix m;
  m.type_ = parts[0].type;
  m.k_ = k;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    if (p.type != m.type_ || (i + 1 < parts.size() && p.n % kPanelColumns != 0)) {
      return InvalidArgument(
          "[matmul] stacked matrices, wanted one type and, but for the last, a multiple of 32 "
          "rows");
    }
    ASSIGN_OR_RETURN(const uint64_t bytes, FileBytes(p.type, p.n, k));
    if (bytes != p.rows.size()) {
      return InvalidArgument("[matmul] bytes of a " + std::string(WeightTypeName(p.type)) +
                             " matrix, got " + std::to_string(p.rows.size()) + ", wanted " +
                             std::to_string(bytes));
    }
    m.n_ += p.n;
  }
  const size_t panel_bytes = PanelBytes(m.type_, k);
  const int64_t panel_count = (m.n_ + kPanelColumns - 1) / kPanelColumns;
  m.packed_bytes_ = static_cast<size_t>(panel_count) * panel_bytes;
  std::shared_ptr<std::byte> panels;
  if (arena != nullptr) {
    ASSIGN_OR_RETURN(panels, arena->Allocate(m.packed_bytes_));
  } else {
    auto buffer = std::make_shared<AlignedBuffer>(m.packed_bytes_);
    panels = std::shared_ptr<std::byte>(buffer, buffer->data());
  }
  m.panels_ = panels;
  std::byte* panel = panels.get();
  for (const Part& p : parts) {
    for (int64_t row = 0; row < p.n; row += kPanelColumns, panel += panel_bytes) {
      const int count = static_cast<int>(std::min<int64_t>(kPanelColumns, p.n - row));
      PackPanel(p.type, p.rows.data() + static_cast<size_t>(row) * RowBytes(p.type, k), count, k,
                panel);
    }
  }
  return m;
}

void PackedMatrix::DequantizeRow(int64_t row, std::span<float> out) const {
  CHECK(row >= 0 && row < n_ && static_cast<int64_t>(out.size()) == k_);
  const int c = static_cast<int>(row % kPanelColumns);
  const uint8_t* panel = reinterpret_cast<const uint8_t*>(panels_.get()) +
                         static_cast<size_t>(row / kPanelColumns) * PanelBytes(type_, k_);
  if (type_ == WeightType::kF32) {
    for (int64_t i = 0; i < k_; ++i) {
      std::memcpy(&out[i], panel + 4 * (i * kPanelColumns + c), sizeof(float));
    }
  } else if (!IsQuantized(type_)) {
    for (int64_t i = 0; i < k_; ++i) {
      uint16_t h;
      std::memcpy(&h, panel + 2 * (i * kPanelColumns + c), sizeof h);
      out[i] = type_ == WeightType::kF16 ? HalfToFloat(h) : BFloat16ToFloat(h);
    }
  } else {
    WithAnyFormat(type_, [&]<typename F>() {
      for (int64_t b = 0; b < k_ / kBlockK; ++b) {
        DequantizeColumn<F>(panel, b, c, out.data() + b * kBlockK);
      }
    });
  }
}

}  // namespace cairn
