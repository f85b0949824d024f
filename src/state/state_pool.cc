#include "state/state_pool.h"

namespace cairn {

Result<StateBuffer> StatePool::Allocate() {
  ASSIGN_OR_RETURN(const uint32_t index, slab_.Allocate());
  return StateBuffer(this, index);
}

}  // namespace cairn
