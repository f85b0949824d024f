#include "gguf_tokenizer.h"

#include <string>

namespace cairn {
namespace {

Result<std::vector<std::string>> Strings(const ModelFile& file, const std::string& key) {
  ASSIGN_OR_RETURN(const auto views, file.GetStringArray(key));
  return std::vector<std::string>(views.begin(), views.end());
}

// A token id, or nullopt where the file has none or one outside the vocabulary.
Result<std::optional<Token>> FindToken(const ModelFile& file, const std::string& name,
                                       size_t vocab_size) {
  ASSIGN_OR_RETURN(const auto id, file.FindI64("tokenizer.ggml." + name + "_token_id"));
  if (!id || *id < 0 || *id >= static_cast<int64_t>(vocab_size)) return std::optional<Token>();
  return std::optional<Token>(static_cast<Token>(*id));
}

}  // namespace

Result<TokenizerSpec> ReadTokenizerSpec(const ModelFile& file) {
  TokenizerSpec spec;
  const std::string prefix = "tokenizer.ggml.";
  ASSIGN_OR_RETURN(const auto model, file.GetString(prefix + "model"));
  ASSIGN_OR_RETURN(spec.kind, ParseTokenizerKind(model));
  ASSIGN_OR_RETURN(const auto pre, file.FindString(prefix + "pre"));
  if (pre) spec.pre = *pre;
  ASSIGN_OR_RETURN(spec.tokens, Strings(file, prefix + "tokens"));
  if (file.Has(prefix + "merges")) {
    ASSIGN_OR_RETURN(spec.merges, Strings(file, prefix + "merges"));
  } else if (spec.kind == TokenizerKind::kByteLevelBpe && spec.pre != "kimi-k2") {
    return DataLoss("[tokenizer] " + prefix + "merges is missing");  // Kimi's follow from the ranks
  }
  if (file.Has(prefix + "scores")) {
    ASSIGN_OR_RETURN(spec.scores, file.GetF32Array(prefix + "scores"));
  }
  if (file.Has(prefix + "token_type")) {
    ASSIGN_OR_RETURN(const auto types, file.GetI64Array(prefix + "token_type"));
    if (types.size() != spec.tokens.size()) {
      return DataLoss("[tokenizer] " + std::to_string(types.size()) +
                      " token types, wanted one for each of " + std::to_string(spec.tokens.size()) +
                      " tokens");
    }
    for (const int64_t type : types) {
      if (type < 1 || type > 6)
        return DataLoss("[tokenizer] token type " + std::to_string(type) + ", wanted 1 to 6");
      spec.types.push_back(static_cast<TokenType>(type));
    }
  }
  const size_t n = spec.tokens.size();
  ASSIGN_OR_RETURN(spec.bos, FindToken(file, "bos", n));
  ASSIGN_OR_RETURN(spec.eos, FindToken(file, "eos", n));
  ASSIGN_OR_RETURN(spec.eot, FindToken(file, "eot", n));
  ASSIGN_OR_RETURN(spec.eom, FindToken(file, "eom", n));
  ASSIGN_OR_RETURN(spec.unknown, FindToken(file, "unknown", n));
  ASSIGN_OR_RETURN(spec.padding, FindToken(file, "padding", n));
  ASSIGN_OR_RETURN(spec.add_bos, file.FindBool(prefix + "add_bos_token"));
  ASSIGN_OR_RETURN(spec.add_eos, file.FindBool(prefix + "add_eos_token"));
  ASSIGN_OR_RETURN(spec.add_space_prefix, file.FindBool(prefix + "add_space_prefix"));
  return spec;
}

}  // namespace cairn
