#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "text/bridge.h"
#include "text/utf8.h"

namespace cairn {

namespace {

constexpr uint8_t kFlagSpecial = 2;  // bridge/src/byte_table.rs
constexpr uint8_t kFlagAdded = 4;

// Control tokens that end an answer, by the names their families gave them. A model's metadata
// names one or two; chat models often end with another.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "[EOS]",
    "<EOT>",
};

// Strings end to end, as the bridge takes them.
struct PackedStrings {
  explicit PackedStrings(const std::vector<std::string>& strings) {
    size_t total = 0;
    for (const std::string& s : strings) total += s.size();
    bytes.reserve(total);
    ends.reserve(strings.size());
    for (const std::string& s : strings) {
      bytes += s;
      ends.push_back(bytes.size());
    }
  }
  bridge::CairnStrings view() const { return {bridge::SliceOf(bytes), ends.data(), ends.size()}; }

  std::string bytes;
  std::vector<uint64_t> ends;
};

template <typename T>
std::vector<T> ArrayOf(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

Status CheckId(const char* name, std::optional<Token> id, size_t vocab_size) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < vocab_size)) return Status();
  return DataLoss("[tokenizer] " + std::string(name) + " is " + std::to_string(*id) +
                  ", wanted a token below " + std::to_string(vocab_size));
}

Status CheckSpec(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  RETURN_IF_ERROR(CheckId("bos_token_id", spec.bos, n));
  RETURN_IF_ERROR(CheckId("eos_token_id", spec.eos, n));
  RETURN_IF_ERROR(CheckId("eot_token_id", spec.eot, n));
  RETURN_IF_ERROR(CheckId("eom_token_id", spec.eom, n));
  RETURN_IF_ERROR(CheckId("unknown_token_id", spec.unknown, n));
  if (!spec.types.empty() && spec.types.size() != n) {
    return DataLoss("[tokenizer] token_type has " + std::to_string(spec.types.size()) +
                    " entries, wanted " + std::to_string(n));
  }
  return Status();
}

}  // namespace

struct Tokenizer::Handle {
  ~Handle() {
    if (tokenizer != nullptr) bridge::cairn_tokenizer_free(tokenizer);
  }
  bridge::CairnTokenizer* tokenizer = nullptr;
};

Result<TokenizerKind> ParseTokenizerKind(std::string_view gguf_model) {
  if (gguf_model == "gpt2") return TokenizerKind::kByteLevelBpe;
  if (gguf_model == "llama" || gguf_model == "gemma") return TokenizerKind::kSentencePiece;
  return Unsupported("[tokenizer] tokenizer model is '" + std::string(gguf_model) +
                     "', wanted gpt2 or llama");
}

Result<Tokenizer> Tokenizer::Create(const TokenizerSpec& spec) {
  RETURN_IF_ERROR(CheckSpec(spec));
  bridge::cairn_bridge_init();
  const PackedStrings tokens(spec.tokens);
  const PackedStrings merges(spec.merges);
  std::vector<int32_t> types(spec.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  for (size_t i = 0; i < spec.types.size(); ++i) types[i] = static_cast<int32_t>(spec.types[i]);
  if (spec.unknown && spec.kind == TokenizerKind::kSentencePiece) {
    types[*spec.unknown] = static_cast<int32_t>(TokenType::kUnknown);
  }
  if (!spec.scores.empty() && spec.scores.size() != spec.tokens.size()) {
    return DataLoss("[tokenizer] scores has " + std::to_string(spec.scores.size()) +
                    " entries, wanted " + std::to_string(spec.tokens.size()));
  }
  const std::vector<float> no_scores(spec.scores.empty() ? spec.tokens.size() : 0, 0.0f);
  const bool is_sentence_piece = spec.kind == TokenizerKind::kSentencePiece;
  bridge::CairnSpec packed = {};
  packed.kind = is_sentence_piece ? 1 : 0;
  packed.pre = bridge::SliceOf(spec.pre);
  packed.tokens = tokens.view();
  packed.merges = merges.view();
  packed.scores = spec.scores.empty() ? no_scores.data() : spec.scores.data();
  packed.types = types.data();
  packed.add_space_prefix = spec.add_space_prefix.value_or(true) ? 1 : 0;

  Tokenizer made;
  auto handle = std::make_shared<Handle>();
  bridge::Reply reply;
  const int32_t code = bridge::cairn_tokenizer_from_spec(&packed, &handle->tokenizer, reply.out());
  RETURN_IF_ERROR(reply.ToStatus(code, "tokenizer"));
  made.handle_ = std::move(handle);
  RETURN_IF_ERROR(made.LoadTables());
  made.bos_ = spec.bos;
  made.eos_ = spec.eos;
  // Files without add_bos_token: Llama's SentencePiece and Llama 3 begin texts with BOS.
  const bool adds_bos_by_family = is_sentence_piece || spec.pre == "llama-bpe" ||
                                  spec.pre == "llama3" || spec.pre == "llama-v3";
  if (spec.bos && spec.add_bos.value_or(adds_bos_by_family)) made.prefix_ = {*spec.bos};
  if (spec.eos && spec.add_eos.value_or(false)) made.suffix_ = {*spec.eos};
  made.FindEndOfGeneration({spec.eos, spec.eot, spec.eom});
  return made;
}

Result<Tokenizer> Tokenizer::FromJson(std::string_view tokenizer_json,
                                      std::string_view config_json) {
  if (!IsValidUtf8(tokenizer_json) || !IsValidUtf8(config_json)) {
    return DataLoss("[tokenizer] tokenizer.json is not valid UTF-8");
  }
  bridge::cairn_bridge_init();
  Tokenizer made;
  auto handle = std::make_shared<Handle>();
  bridge::Reply reply;
  const int32_t code = bridge::cairn_tokenizer_from_json(bridge::SliceOf(tokenizer_json),
                                                         &handle->tokenizer, reply.out());
  RETURN_IF_ERROR(reply.ToStatus(code, "tokenizer"));
  made.handle_ = std::move(handle);
  RETURN_IF_ERROR(made.LoadTables());
  RETURN_IF_ERROR(made.NameTokens(config_json));
  if (!made.bos_ && !made.prefix_.empty()) made.bos_ = made.prefix_.front();
  made.FindEndOfGeneration({made.eos_});
  return made;
}

Result<Tokenizer> Tokenizer::FromRanks(std::string_view ranks, std::string_view config_json) {
  if (!IsValidUtf8(ranks) || !IsValidUtf8(config_json)) {
    return DataLoss("[tokenizer] tiktoken.model is not valid UTF-8");
  }
  bridge::cairn_bridge_init();
  Tokenizer made;
  auto handle = std::make_shared<Handle>();
  bridge::Reply reply;
  const int32_t code = bridge::cairn_tokenizer_from_ranks(
      bridge::SliceOf(ranks), bridge::SliceOf(config_json), &handle->tokenizer, reply.out());
  RETURN_IF_ERROR(reply.ToStatus(code, "tokenizer"));
  made.handle_ = std::move(handle);
  RETURN_IF_ERROR(made.LoadTables());
  RETURN_IF_ERROR(made.NameTokens(config_json));
  made.FindEndOfGeneration({made.eos_});
  return made;
}

// The bos and eos tokens that a tokenizer_config.json names; an empty text names none.
Status Tokenizer::NameTokens(std::string_view config_json) {
  if (config_json.empty()) return Status();
  for (auto [name, slot] : {std::pair("bos_token", &bos_), {"eos_token", &eos_}}) {
    bridge::Reply text;
    const int32_t code =
        bridge::cairn_config_token(bridge::SliceOf(config_json), bridge::SliceOf(name), text.out());
    RETURN_IF_ERROR(text.ToStatus(code, "tokenizer"));
    *slot = FindAdded(text.text());
  }
  return Status();
}

Status Tokenizer::LoadTables() {
  const auto part = [&](int32_t number, auto take) -> Status {
    bridge::Reply reply;
    const int32_t code = bridge::cairn_tokenizer_part(handle_->tokenizer, number, reply.out());
    RETURN_IF_ERROR(reply.ToStatus(code, "tokenizer"));
    take(reply.text());
    return Status();
  };
  RETURN_IF_ERROR(part(0, [&](std::string_view b) { bytes_ = b; }));
  RETURN_IF_ERROR(part(1, [&](std::string_view b) { ends_ = ArrayOf<uint64_t>(b); }));
  RETURN_IF_ERROR(part(2, [&](std::string_view b) { flags_ = ArrayOf<uint8_t>(b); }));
  RETURN_IF_ERROR(part(3, [&](std::string_view b) { prefix_ = ArrayOf<Token>(b); }));
  RETURN_IF_ERROR(part(4, [&](std::string_view b) { suffix_ = ArrayOf<Token>(b); }));
  return part(5, [&](std::string_view b) { strip_leading_space_ = b == "\x01"; });
}

void Tokenizer::FindEndOfGeneration(std::initializer_list<std::optional<Token>> named) {
  for (const std::optional<Token>& token : named) {
    if (token) end_of_generation_.push_back(*token);
  }
  for (Token token = 0; token < vocab_size(); ++token) {
    if (!IsSpecial(token)) continue;
    const std::string_view text = TokenBytes(token);
    if (std::find(std::begin(kEndNames), std::end(kEndNames), text) != std::end(kEndNames)) {
      end_of_generation_.push_back(token);
    }
  }
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
  end_of_generation_.erase(std::unique(end_of_generation_.begin(), end_of_generation_.end()),
                           end_of_generation_.end());
}

Result<std::vector<Token>> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  if (!IsValidUtf8(text)) return InvalidArgument("[tokenizer] text is not valid UTF-8");
  bridge::Reply reply;
  const int32_t code = bridge::cairn_tokenizer_encode(handle_->tokenizer, bridge::SliceOf(text),
                                                      options.parse_special ? 1 : 0, reply.out());
  RETURN_IF_ERROR(reply.ToStatus(code, "tokenizer"));
  std::vector<Token> ids = ArrayOf<Token>(reply.text());
  if (options.add_special) {
    ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
    ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  }
  return ids;
}

std::string_view Tokenizer::TokenBytes(Token token) const {
  if (!IsValid(token)) return {};
  const uint64_t start = token == 0 ? 0 : ends_[token - 1];
  return std::string_view(bytes_).substr(start, ends_[token] - start);
}

std::string Tokenizer::Decode(std::span<const Token> tokens, bool skip_special) const {
  std::string bytes;
  for (Token token : tokens) {
    if (skip_special && IsSpecial(token)) continue;
    bytes += TokenBytes(token);
  }
  if (strip_leading_space_ && !bytes.empty() && bytes[0] == ' ') bytes.erase(0, 1);
  return ReplaceBrokenUtf8(bytes);
}

bool Tokenizer::IsSpecial(Token token) const {
  return IsValid(token) && (flags_[token] & kFlagSpecial) != 0;
}

bool Tokenizer::IsAdded(Token token) const {
  return IsValid(token) && (flags_[token] & kFlagAdded) != 0;
}

bool Tokenizer::IsEndOfGeneration(Token token) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), token);
}

std::optional<Token> Tokenizer::FindAdded(std::string_view text) const {
  if (text.empty()) return std::nullopt;
  for (Token token = 0; token < vocab_size(); ++token) {
    if (IsAdded(token) && TokenBytes(token) == text) return token;
  }
  return std::nullopt;
}

}  // namespace cairn
