// Memory for packed weights: 64 MiB mappings filled one matrix after the other, with huge pages
// asked for. Decoding reads every weight once a token; with 4 KiB pages a virtual machine spends
// half of that time on page walks (16 against 33 GB/s of one Zen 4 core, measured). The scratch of
// a step lies in an arena of its own.
//
// Threads: one thread allocates. Ownership: each allocation keeps its mapping alive, so the arena
// itself may go. Untouched ends of mappings cost address space only.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace cairn {

class PanelArena {
 public:
  // Zeroed bytes, 64-byte aligned. ResourceExhausted if the system has no more memory.
  Result<std::shared_ptr<std::byte>> Allocate(size_t size_bytes);

 private:
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;  // the one being filled
  size_t used_ = 0;
};

}  // namespace cairn
