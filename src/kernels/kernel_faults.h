// Planted faults. A test puts one into a KernelContext to see that the tests of exactness would
// catch such a mistake (tests/scenarios); every other context has none.
//
// Threads: as the kernels; immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/weight_type.h"

namespace cairn {

struct Activations;
struct AttentionShape;
struct AttentionSlice;
struct Conv1dShape;
struct KernelContext;
struct RecurrentSlice;
struct RouterShape;
struct SsdShape;
class PackedMatrix;

// Each function is asked first by the kernel of its name and takes that kernel's arguments. True:
// it did the work, in its own wrong way, and the kernel has nothing left to do.
class KernelFaults {
 public:
  virtual ~KernelFaults() = default;
  virtual bool Attend(const KernelContext& /*ctx*/, const AttentionShape& /*shape*/,
                      std::span<const AttentionSlice> /*slices*/, const float* /*q*/,
                      int64_t /*ldq*/, float* /*out*/, int64_t /*ldout*/) const {
    return false;
  }
  // All rows of PrepareActivations: q [rows, k], blocks [rows, k / 32].
  virtual bool QuantizeRows(const float* /*x*/, int /*rows*/, int64_t /*k*/, int8_t* /*q*/,
                            ActivationBlock* /*blocks*/) const {
    return false;
  }
  virtual bool MatMul(const KernelContext& /*ctx*/, const Activations& /*a*/,
                      const PackedMatrix& /*w*/, float* /*y*/, int64_t /*ldy*/) const {
    return false;
  }
  virtual bool Conv1d(const KernelContext& /*ctx*/, const Conv1dShape& /*shape*/,
                      std::span<const RecurrentSlice> /*slices*/, const float* /*u*/,
                      int64_t /*ldu*/, std::span<const float> /*w*/,
                      std::span<const float> /*bias*/, float* /*y*/, int64_t /*ldy*/) const {
    return false;
  }
  virtual bool RouteExperts(const KernelContext& /*ctx*/, const RouterShape& /*shape*/,
                            float* /*logits*/, int64_t /*ld*/, const float* /*bias*/, int /*rows*/,
                            int32_t* /*ids*/, float* /*weights*/) const {
    return false;
  }
  virtual bool SsdScan(const KernelContext& /*ctx*/, const SsdShape& /*shape*/,
                       std::span<const RecurrentSlice> /*slices*/, const float* /*u*/,
                       const float* /*b*/, const float* /*c*/, int64_t /*ld*/, const float* /*dt*/,
                       const float* /*decay*/, const float* /*d*/, float* /*out*/,
                       int64_t /*ldout*/) const {
    return false;
  }
};

}  // namespace cairn
