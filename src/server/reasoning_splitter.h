// Reasoning and answer of a reply, told apart as the text streams by. Reasoning is what stands
// between <think> and </think> at the beginning of the reply, or before </think> if the prompt
// already opened it. Tags, and line feeds next to them, belong to neither.
// The result does not depend on how the text was cut; text that may still become a tag is held
// back. Threads: one owner; no locks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

class ReasoningSplitter {
 public:
  enum class Begin {
    kPlain,    // the model has no such tags: everything is content
    kMayOpen,  // the reply may begin with <think>
    kOpen,     // the prompt ended with <think>
  };
  // Reasoning comes before content.
  struct Output {
    std::string reasoning, content;
    bool empty() const { return reasoning.empty() && content.empty(); }
  };

  explicit ReasoningSplitter(Begin begin);

  Output Push(std::string_view text);
  Output Flush();  // the end: all that was held back

  // Bytes of the text so far that were given out or dropped as tags.
  uint64_t settled_bytes() const { return text_bytes_ - held_.size(); }
  // Where the reasoning ends, after its closing tag; all of the text so far if it is still open;
  // nullopt if there is none.
  std::optional<uint64_t> reasoning_end() const;

 private:
  enum class Place { kStart, kReasoningStart, kReasoning, kContentStart, kContent };

  bool Step(Output& output);
  bool Start(Output& output);
  bool Reasoning(Output& output);
  bool DropLineFeeds();

  Place place_;
  std::string held_;
  uint64_t text_bytes_ = 0;
  bool has_reasoning_ = false;
  std::optional<uint64_t> closed_at_;
};

}  // namespace cairn
