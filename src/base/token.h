// The token id, the one unit that prompts, caches and models share.
#pragma once

#include <cstdint>

namespace cairn {

using Token = int32_t;

}  // namespace cairn
