#include "state/slab.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace cairn {
namespace {

// Address space is mapped in steps of about this much; only touched pages cost memory.
constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr size_t kChunkItemsMax = 4096;

constexpr size_t kHugePageBytes = size_t{2} << 20;

// Of a slab's warm items together: the state of a sequence of Qwen3.5-0.8B, or the blocks of 2,700
// tokens.
constexpr size_t kWarmBytesMax = size_t{32} << 20;

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Large items lie in huge pages: they are mapped by a few faults instead of thousands, which is
// most of the time of a checkpoint, and kernels that read them walk fewer page tables. Items are
// handed out one beside the other, so at most the last huge page is resident in vain. (A block of
// Qwen3.5-0.8B is 768 KiB, with q8_0 keys and values 408.)
constexpr size_t kHugePageItemBytes = size_t{256} << 10;

// An item's distance to the next: whole huge pages where that wastes at most an eighth, so that a
// freed item gives back whole ones.
size_t StrideBytes(size_t item_bytes) {
  const size_t huge = AlignUp(item_bytes, kHugePageBytes);
  return huge - item_bytes <= item_bytes / 8 ? huge : AlignUp(item_bytes, PageBytes());
}

}  // namespace

Slab::Slab(size_t item_bytes)
    : item_bytes_(item_bytes),
      stride_(StrideBytes(item_bytes)),
      huge_pages_(item_bytes >= kHugePageItemBytes),
      items_per_chunk_(
          stride_ == 0 ? 1 : std::clamp<size_t>(kChunkBytes / stride_, 1, kChunkItemsMax)) {}

Slab::~Slab() {
  CHECK(held() == 0);
  for (const auto& [begin, bytes] : mappings_) munmap(begin, bytes);
}

Result<uint32_t> Slab::Allocate() {
  CHECK(item_bytes_ > 0);
  if (limit_ && held() >= *limit_) {
    return ResourceExhausted("[slab] limit reached, got " + std::to_string(held()) +
                             " items held, wanted fewer than " + std::to_string(*limit_));
  }
  if (free_.empty()) RETURN_IF_ERROR(Grow());
  const uint32_t index = free_.back();
  free_.pop_back();
  if (warm_ > 0) {
    --warm_;
    std::memset(data(index), 0, item_bytes_);
  }
  return index;
}

void Slab::Free(uint32_t index) {
  free_.push_back(index);
  if (huge_pages_ && (warm_ + 1) * stride_ <= kWarmBytesMax) {
    ++warm_;
    return;
  }
  GiveBack(index);
  // Below the warm ones, which are used first.
  std::swap(free_.back(), free_[free_.size() - 1 - warm_]);
}

bool Slab::WarmOne() {
  if (!huge_pages_ || (warm_ + 1) * stride_ > kWarmBytesMax || warm_ == free_.size()) return false;
  std::byte* item = data(free_[free_.size() - 1 - warm_]);
  for (size_t i = 0; i < item_bytes_; i += PageBytes())
    *const_cast<volatile std::byte*>(item + i) = std::byte{0};  // zero it is, as all fresh pages
  ++warm_;
  return true;
}

void Slab::ReleaseWarm() {
  for (; warm_ > 0; --warm_) GiveBack(free_[free_.size() - warm_]);
}

void Slab::GiveBack(uint32_t index) {
  // Cannot fail for a range we mapped. Private anonymous pages read as zero afterwards.
  CHECK(madvise(data(index), stride_, MADV_DONTNEED) == 0);
}

Status Slab::Grow() {
  // Room to begin at a huge page's border; address space costs nothing.
  const size_t bytes = stride_ * items_per_chunk_ + (huge_pages_ ? kHugePageBytes : 0);
  // Whatever may throw comes before the mapping.
  mappings_.reserve(mappings_.size() + 1);
  chunks_.reserve(chunks_.size() + 1);
  free_.reserve(total_ + items_per_chunk_);
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return ResourceExhausted("[slab] no address space, wanted " + std::to_string(bytes) +
                             " bytes more");
  }
  // An error means that there are no huge pages: fine.
  madvise(mapping, bytes, huge_pages_ ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  mappings_.emplace_back(mapping, bytes);
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const size_t skip = huge_pages_ ? AlignUp(address, kHugePageBytes) - address : 0;
  chunks_.push_back(static_cast<std::byte*>(mapping) + skip);
  for (size_t i = items_per_chunk_; i-- > 0;) free_.push_back(static_cast<uint32_t>(total_ + i));
  total_ += items_per_chunk_;
  return {};
}

}  // namespace cairn
