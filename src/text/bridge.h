// The C ABI of the Rust bridge (bridge/src/lib.rs). Included by the .cc files of this folder only.
// Threads: a handle may be used by many threads at once; only *_free needs it alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cairn::bridge {

extern "C" {
struct CairnSlice {
  const uint8_t* data;
  size_t size;
};
struct CairnBuffer {
  uint8_t* data;
  size_t size;
  size_t capacity;
};
struct CairnStrings {
  CairnSlice bytes;      // all strings end to end
  const uint64_t* ends;  // [count]
  size_t count;
};
struct CairnSpec {
  int32_t kind;  // 0 byte-level BPE, 1 SentencePiece
  CairnSlice pre;
  CairnStrings tokens;
  CairnStrings merges;
  const float* scores;   // [tokens.count] or null
  const int32_t* types;  // [tokens.count] or null
  int32_t add_space_prefix;
};
struct CairnRenderInput {
  CairnSlice messages, tools, default_kwargs, kwargs, bos_token, eos_token;
  int32_t add_generation_prompt;
  int64_t now_unix_s;
  uint64_t steps_max;  // 0: as many as the input deserves
};
struct CairnTokenizer;
struct CairnTemplate;

void cairn_bridge_init();
void cairn_buffer_free(CairnBuffer buffer);
int32_t cairn_tokenizer_from_spec(const CairnSpec* spec, CairnTokenizer** handle, CairnBuffer* out);
int32_t cairn_tokenizer_from_json(CairnSlice json, CairnTokenizer** handle, CairnBuffer* out);
// ranks: a tiktoken.model; config: the tokenizer_config.json beside it.
int32_t cairn_tokenizer_from_ranks(CairnSlice ranks, CairnSlice config, CairnTokenizer** handle,
                                   CairnBuffer* out);
void cairn_tokenizer_free(CairnTokenizer* handle);
int32_t cairn_tokenizer_part(const CairnTokenizer* handle, int32_t part, CairnBuffer* out);
// out: the text of config[name] (a string, or an object with "content"); empty if there is none.
int32_t cairn_config_token(CairnSlice config, CairnSlice name, CairnBuffer* out);
int32_t cairn_tokenizer_encode(const CairnTokenizer* handle, CairnSlice text, int32_t parse_special,
                               CairnBuffer* out);
int32_t cairn_template_compile(CairnSlice source, CairnTemplate** handle, CairnBuffer* out);
void cairn_template_free(CairnTemplate* handle);
int32_t cairn_template_render(const CairnTemplate* handle, const CairnRenderInput* input,
                              CairnBuffer* out);
}

inline CairnSlice SliceOf(std::string_view s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// What a call left in its out buffer. Owns it.
class Reply {
 public:
  Reply() = default;
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  ~Reply() { cairn_buffer_free(buffer_); }

  CairnBuffer* out() { return &buffer_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(buffer_.data),
            buffer_.data == nullptr ? 0 : buffer_.size};
  }
  // The message in the buffer as a Status; ok for code 0. module is "tokenizer", "chat_template".
  Status ToStatus(int32_t code, const char* module) const {
    if (code == 0) return Status();
    if (code == kTemplateFault) return InvalidArgument(std::string(text()));
    std::string message = "[";
    message.append(module).append("] ").append(text());
    if (code == kInputFault) return InvalidArgument(message);
    if (code == kUnsupportedFault) return Unsupported(message);
    if (code == kExhaustedFault) return ResourceExhausted(std::string(text()));
    return Internal(message);
  }

 private:
  static constexpr int32_t kInputFault = 1;
  static constexpr int32_t kTemplateFault = 2;
  static constexpr int32_t kUnsupportedFault = 3;
  static constexpr int32_t kExhaustedFault = 5;
  CairnBuffer buffer_ = {nullptr, 0, 0};
};

}  // namespace cairn::bridge
