#include "state/state_layout.h"

#include "base/bytes.h"

namespace cairn {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPartBytesMax = size_t{1} << 40;

size_t FixedBytes(const StateKind& kind) {
  if (const auto* w = std::get_if<WindowKv>(&kind))
    return static_cast<size_t>(w->blocks() * kBlockTokens) * w->bytes_per_token;
  if (const auto* r = std::get_if<Recurrent>(&kind)) return r->bytes;
  return std::get<Conv>(kind).bytes;
}

}  // namespace

Result<StateLayout> StateLayout::Create(std::vector<StatePart> parts, size_t hidden_bytes) {
  StateLayout layout;
  size_t kv_offset = 0, state_offset = 0;
  for (const StatePart& part : parts) {
    if (const auto* kv = std::get_if<FullKv>(&part.kind)) {
      if (kv->bytes_per_token > kPartBytesMax)
        return InvalidArgument("[state_layout] KV bytes per token too large");
      layout.offsets_.push_back(kv_offset);
      kv_offset += kv->bytes_per_token * kBlockTokens;
      layout.kv_bytes_per_token_ += kv->bytes_per_token;
      continue;
    }
    if (const auto* w = std::get_if<WindowKv>(&part.kind);
        w &&
        (w->window <= 0 || w->bytes_per_token > kPartBytesMax / (w->blocks() * kBlockTokens))) {
      return InvalidArgument("[state_layout] window KV size out of range");
    }
    const size_t bytes = FixedBytes(part.kind);
    if (bytes > kPartBytesMax) return InvalidArgument("[state_layout] state bytes too large");
    layout.trimmable_ = false;
    layout.offsets_.push_back(state_offset);
    layout.state_bytes_ += bytes;
    state_offset += AlignUp(bytes, kAlignment);
  }
  if (hidden_bytes > kPartBytesMax) return InvalidArgument("[state_layout] hidden row too large");
  layout.parts_ = std::move(parts);
  layout.hidden_offset_ = state_offset;
  layout.hidden_bytes_ = hidden_bytes;
  layout.buffer_bytes_ = state_offset + AlignUp(hidden_bytes, kAlignment);
  return layout;
}

}  // namespace cairn
