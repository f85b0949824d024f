#include "server/admin_json.h"

#include <cstring>
#include <optional>

#include "server/openai_json.h"

namespace cairn {
namespace {

// "key":value pairs in order. Values are written by us: numbers, booleans, quoted strings.
class Object {
 public:
  Object& Raw(const char* key, const std::string& json) {
    text_ += (text_.empty() ? "\"" : ",\"") + std::string(key) + "\":" + json;
    return *this;
  }
  template <typename Integer>
  Object& Number(const char* key, Integer value) {
    return Raw(key, std::to_string(value));
  }
  Object& Bool(const char* key, bool value) { return Raw(key, value ? "true" : "false"); }
  Object& String(const char* key, const std::string& value) { return Raw(key, QuoteJson(value)); }
  std::string Text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

std::string ArrayOf(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",") + item;
  return "[" + text + "]";
}

std::string KindsJson(const std::vector<const char*>& kinds) {
  std::vector<std::string> quoted;
  for (const char* kind : kinds) quoted.push_back(QuoteJson(kind));
  return ArrayOf(quoted);
}

template <typename Integer>
std::string OrNull(const std::optional<Integer>& value) {
  return value ? std::to_string(*value) : "null";
}

}  // namespace

std::string CacheJson(const CacheView& view,
                      const std::function<std::string(std::span<const Token>)>& text_of) {
  std::vector<std::string> nodes;
  for (const CacheNodeView& n : view.nodes) {
    std::vector<std::string> tokens;
    // The text of a salted branch is its owner's.
    const std::span<const Token> preview =
        n.salted ? std::span<const Token>() : std::span<const Token>(n.preview);
    for (const Token t : preview) tokens.push_back(std::to_string(t));
    nodes.push_back(Object()
                        .Number("id", n.id)
                        .Raw("parent", n.parent == 0 ? "null" : std::to_string(n.parent))
                        .Number("begin", n.begin)
                        .Number("end", n.end)
                        .Bool("checkpoint", n.has_state)
                        .Raw("kinds", KindsJson(n.kinds))
                        .Number("bytes", n.freed_bytes)
                        .Number("last_use", n.last_use)
                        .Number("children", n.children)
                        .Number("in_use", n.leases)
                        .Bool("pinned", n.pinned)
                        .Bool("salted", n.salted)
                        .Raw("tokens", ArrayOf(tokens))
                        .String("text", text_of(preview))
                        .Text());
  }
  return Object()
      .Bool("enabled", view.enabled)
      .Number("bytes", view.bytes)
      .Number("bytes_max", view.bytes_max)
      .Number("checkpoints", view.checkpoints)
      .Number("paths", view.paths)
      .Raw("paths_max", OrNull(view.paths_max))
      .Raw("evictions", Object()
                            .Number("bytes", view.evictions_bytes)
                            .Number("paths", view.evictions_paths)
                            .Text())
      .Raw("pins", Object()
                       .Number("count", view.pins)
                       .Number("bytes", view.pinned_bytes)
                       .Number("bytes_max", view.pinned_bytes_max)
                       .Text())
      .Raw("nodes", ArrayOf(nodes))
      .Text();
}

std::string ExplanationJson(const CacheExplanation& e) {
  std::vector<std::string> checkpoints;
  for (const auto& c : e.checkpoints) {
    checkpoints.push_back(
        Object().Number("position", c.position).Raw("kinds", KindsJson(c.kinds)).Text());
  }
  const ReuseReport& r = e.reuse;
  return Object()
      .Number("prompt_tokens", r.prompt_tokens)
      .Number("matched_tokens", r.matched)
      .Number("restore_point", r.restore_point)
      .Number("replayed_tokens", r.replayed_tokens())
      .Raw("miss_reason", r.miss_reason ? QuoteJson(MissReasonName(*r.miss_reason)) : "null")
      .Raw("divergence_token", r.matched < r.prompt_tokens ? std::to_string(r.matched) : "null")
      .Raw("checkpoints", ArrayOf(checkpoints))
      .Text();
}

std::string SlotsJson(const std::vector<EngineView::SequenceInfo>& sequences, int slot_count,
                      int64_t context_length) {
  std::vector<std::string> slots;
  for (const auto& s : sequences) {
    const bool has_slot =
        std::strcmp(s.phase, "prefill") == 0 || std::strcmp(s.phase, "decode") == 0;
    if (!has_slot) continue;
    slots.push_back(Object()
                        .Number("id", slots.size())
                        .Number("id_task", s.id)
                        .Number("n_ctx", context_length)
                        .Bool("is_processing", true)
                        .String("phase", s.phase)
                        .String("request_id", s.request_id)
                        .Number("prompt_tokens", s.prompt_tokens)
                        .Number("processed", s.processed)
                        .Number("generated", s.generated)
                        .Number("restore_point", s.restore_point)
                        .Text());
  }
  while (slots.size() < static_cast<size_t>(slot_count)) {
    slots.push_back(Object()
                        .Number("id", slots.size())
                        .Number("n_ctx", context_length)
                        .Bool("is_processing", false)
                        .Text());
  }
  return ArrayOf(slots);
}

}  // namespace cairn
