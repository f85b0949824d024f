// Text to token ids and back. The vocabulary comes from GGUF metadata (TokenizerSpec), from a
// Hugging Face tokenizer.json or a tiktoken.model; all give the ids that tokenizer.json would.
// Owns: the vocabulary. Threads: all const methods may be called from many threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"

namespace cairn {

// Token types as GGUF numbers them (tokenizer.ggml.token_type).
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

enum class TokenizerKind {
  kByteLevelBpe,   // tokenizer.ggml.model "gpt2"
  kSentencePiece,  // tokenizer.ggml.model "llama" (Gemma's GGUF files too)
};

// GGUF keys stand after the fields; all begin with "tokenizer.ggml.".
struct TokenizerSpec {
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;  // model
  std::string pre;                                    // pre
  std::vector<std::string> tokens;                    // tokens
  std::vector<std::string> merges;                    // merges, "left right"; kByteLevelBpe only
  std::vector<float> scores;                          // scores; kSentencePiece only
  std::vector<TokenType> types;                       // token_type; empty: all normal
  std::optional<Token> bos;                           // bos_token_id
  std::optional<Token> eos;                           // eos_token_id
  std::optional<Token> eot;                           // eot_token_id
  std::optional<Token> eom;                           // eom_token_id
  std::optional<Token> unknown;                       // unknown_token_id
  std::optional<Token> padding;                       // padding_token_id
  std::optional<bool> add_bos;                        // add_bos_token; absent: as the family does
  std::optional<bool> add_eos;                        // add_eos_token; absent: no
  std::optional<bool> add_space_prefix;  // add_space_prefix; absent: yes for kSentencePiece
};

// "gpt2", "llama", "gemma..." -> kind; kUnsupported for others.
Result<TokenizerKind> ParseTokenizerKind(std::string_view gguf_model);

struct EncodeOptions {
  bool add_special = false;   // what the model puts around a raw text (BOS)
  bool parse_special = true;  // control tokens spelt out in the text become that token
};

class Tokenizer {
 public:
  static Result<Tokenizer> Create(const TokenizerSpec& spec);
  // config_json: the text of tokenizer_config.json, or empty; names the bos and eos tokens.
  static Result<Tokenizer> FromJson(std::string_view tokenizer_json,
                                    std::string_view config_json = {});

  // ranks: the text of a tiktoken.model, which Kimi models have instead of a tokenizer.json.
  // kUnsupported if the config names another tokenizer class than theirs.
  static Result<Tokenizer> FromRanks(std::string_view ranks, std::string_view config_json);

  // Errors: kInvalidArgument if text is not valid UTF-8. User-defined tokens (<think>, runs of
  // spaces) are matched with either setting of parse_special, as Hugging Face and llama.cpp do.
  Result<std::vector<Token>> Encode(std::string_view text, EncodeOptions options = {}) const;

  // The bytes a token stands for; a part of a character for many tokens, a control token's own
  // text; empty for ids without a token.
  std::string_view TokenBytes(Token token) const;
  // Text with broken bytes replaced by U+FFFD. Control tokens are left out if skip_special.
  std::string Decode(std::span<const Token> tokens, bool skip_special) const;

  int vocab_size() const { return static_cast<int>(flags_.size()); }
  bool IsValid(Token token) const { return token >= 0 && token < vocab_size(); }
  bool IsSpecial(Token token) const;  // control or unknown
  bool IsAdded(Token token) const;    // matched whole in text: control, unknown, user-defined
  bool IsEndOfGeneration(Token token) const;
  std::span<const Token> end_of_generation() const { return end_of_generation_; }  // sorted
  std::optional<Token> bos() const { return bos_; }
  std::optional<Token> eos() const { return eos_; }
  std::string_view bos_text() const { return bos_ ? TokenBytes(*bos_) : std::string_view(); }
  std::string_view eos_text() const { return eos_ ? TokenBytes(*eos_) : std::string_view(); }
  bool adds_bos() const { return !prefix_.empty(); }
  // The token spelt exactly so, if it is a control or user-defined one.
  std::optional<Token> FindAdded(std::string_view text) const;

 private:
  struct Handle;  // the Rust side

  Tokenizer() = default;
  Status LoadTables();
  Status NameTokens(std::string_view config_json);
  void FindEndOfGeneration(std::initializer_list<std::optional<Token>> named);

  std::shared_ptr<const Handle> handle_;
  std::string bytes_;           // of all tokens, end to end
  std::vector<uint64_t> ends_;  // [vocab_size]
  std::vector<uint8_t> flags_;  // [vocab_size]
  std::vector<Token> prefix_;   // add_special puts these before the text
  std::vector<Token> suffix_;   // and these after it
  std::vector<Token> end_of_generation_;
  std::optional<Token> bos_;
  std::optional<Token> eos_;
  bool strip_leading_space_ = false;  // Decode drops the space that encoding put before the text
};

}  // namespace cairn
