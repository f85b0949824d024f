// Plain type shared with files compiled for one instruction set; includes nothing. attention.h
// states the layouts.
#pragma once

namespace cairn {

enum class KvType { kF32, kF16, kQ8_0 };

}  // namespace cairn
