#include "engine/cache_admin.h"

#include <algorithm>
#include <string>

#include "cache/prefix_tree.h"

namespace cairn {

Result<CacheView> ViewCache(Engine& engine, size_t preview_tokens_max) {
  CacheView view;
  view.enabled = engine.options().cache.enabled();
  RETURN_IF_ERROR(engine.Run([&](EngineView& e) {
    const PrefixTree& tree = e.tree;
    view.bytes = tree.bytes();
    view.bytes_max = tree.options().bytes_max;
    view.checkpoints = tree.checkpoint_count();
    view.paths = tree.path_count();
    view.paths_max = tree.options().paths_max;
    view.evictions_bytes = tree.evictions().bytes;
    view.evictions_paths = tree.evictions().paths;
    view.pins = tree.pin_count();
    view.pinned_bytes = tree.pinned_bytes();
    view.pinned_bytes_max = tree.pinned_bytes_max();
    for (const NodeInfo& n : tree.List()) {
      const auto preview = n.tokens.first(std::min(n.tokens.size(), preview_tokens_max));
      view.nodes.push_back({.id = n.id,
                            .parent = n.parent,
                            .begin = n.begin,
                            .end = n.end,
                            .preview = {preview.begin(), preview.end()},
                            .kinds = MarkKindNames(n.kinds),
                            .has_state = n.has_state,
                            .salted = n.salted,
                            .freed_bytes = n.freed_bytes,
                            .last_use = n.last_use,
                            .children = n.children,
                            .leases = n.leases,
                            .pinned = n.pinned});
    }
  }));
  return view;
}

Result<CacheExplanation> ExplainPrompt(Engine& engine, std::span<const Token> prompt,
                                       std::string_view salt) {
  CacheExplanation out;
  out.reuse.prompt_tokens = static_cast<int64_t>(prompt.size());
  if (!engine.options().cache.enabled()) {
    out.reuse.miss_reason = MissReason::kEmptyCache;
    return out;
  }
  RETURN_IF_ERROR(engine.Run([&](EngineView& e) {
    const Match match = e.tree.Find(prompt, salt);
    out.reuse.restore_point = match.restore_point;
    out.reuse.matched = match.matched;
    out.reuse.miss_reason = match.miss_reason;
    for (const Mark& mark : e.tree.Checkpoints(prompt, salt))
      out.checkpoints.push_back({mark.position, MarkKindNames(mark.kinds)});
  }));
  return out;
}

Status DropNode(Engine& engine, uint64_t id) {
  bool found = false;
  RETURN_IF_ERROR(engine.Run([&](EngineView& e) { found = e.tree.Drop(id); }));
  if (!found) return NotFound("[cache] no node " + std::to_string(id));
  return Status();
}

Status PinNode(Engine& engine, uint64_t id) {
  Status pinned;
  RETURN_IF_ERROR(engine.Run([&](EngineView& e) { pinned = e.tree.Pin(id); }));
  return pinned;
}

Status UnpinNode(Engine& engine, uint64_t id) {
  Status unpinned;
  RETURN_IF_ERROR(engine.Run([&](EngineView& e) { unpinned = e.tree.Unpin(id); }));
  return unpinned;
}

Status ClearCache(Engine& engine) {
  return engine.Run([](EngineView& e) { e.tree.Clear(); });
}

}  // namespace cairn
