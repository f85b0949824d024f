#include "kernels/panel_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace cairn {
namespace {

constexpr size_t kMappingBytes = size_t{64} << 20;
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

struct PanelArena::Mapping {
  std::byte* whole;
  size_t whole_bytes;
  std::byte* begin;  // aligned to a huge page
  size_t bytes;
  Mapping(std::byte* memory, size_t memory_bytes, size_t usable_bytes)
      : whole(memory), whole_bytes(memory_bytes), bytes(usable_bytes) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    begin = memory + (AlignUp(address, kHugePageBytes) - address);
    // Only a wish: without it, or without huge pages, everything works, slower.
    (void)madvise(begin, bytes, MADV_HUGEPAGE);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(whole, whole_bytes); }
};

Result<std::shared_ptr<std::byte>> PanelArena::Allocate(size_t size_bytes) {
  const size_t aligned_bytes = AlignUp(size_bytes, 64);
  if (!mapping_ || mapping_->bytes - used_ < aligned_bytes) {
    // A larger matrix gets a mapping of its own size.
    const size_t bytes = AlignUp(std::max(aligned_bytes, kMappingBytes), kHugePageBytes);
    const size_t whole_bytes = bytes + kHugePageBytes;
    void* memory = mmap(nullptr, whole_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return ResourceExhausted("[weights] memory for packed weights, wanted " +
                               std::to_string(size_bytes) + " bytes");
    }
    mapping_ = std::make_shared<Mapping>(static_cast<std::byte*>(memory), whole_bytes, bytes);
    used_ = 0;
  }
  std::shared_ptr<std::byte> allocation(mapping_, mapping_->begin + used_);
  used_ += aligned_bytes;
  return allocation;
}

}  // namespace cairn
