#include "load_model.h"

#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/bytes.h"
#include "base/log.h"
#include "cache/stride.h"
#include "gguf_tokenizer.h"
#include "model/load.h"
#include "model/open_model.h"
#include "text_file.h"

namespace cairn {
namespace {

constexpr size_t kTemplateBytesMax = 1 << 20;

// A progress line on a terminal, nothing elsewhere.
Weights::Progress TerminalProgress() {
  if (!isatty(STDERR_FILENO)) return {};
  return [](uint64_t done, uint64_t total) {
    std::fprintf(stderr, "\rloading %3d %%  %s of %s ",
                 total ? static_cast<int>(100 * done / total) : 100, FormatSize(done).c_str(),
                 FormatSize(total).c_str());
    if (done >= total) std::fprintf(stderr, "\r\033[K");
  };
}

// --chat-template: the name of a file, or the template itself; else the model's own, else ChatML.
Result<std::string> TemplateSource(const ModelFile& file, const std::string& flag) {
  std::string source;
  std::error_code ec;
  if (!flag.empty() && flag.find('{') == std::string::npos) {
    if (!std::filesystem::is_regular_file(flag, ec))
      return NotFound("[template] --chat-template " + flag + ": neither a file nor a template");
    ASSIGN_OR_RETURN(source, ReadTextFile("--chat-template", flag, kTemplateBytesMax));
  } else if (!flag.empty()) {
    source = flag;
  } else if (file.text() != nullptr) {
    source = file.text()->chat_template;
  } else {
    ASSIGN_OR_RETURN(const auto own, file.FindString("tokenizer.chat_template"));
    if (own) source = *own;
  }
  return source;
}

Result<Tokenizer> MakeTokenizer(const ModelFile& file) {
  if (const HuggingFaceText* text = file.text(); text != nullptr) {
    return text->tokenizer_json.empty()
               ? Tokenizer::FromRanks(text->tiktoken_model, text->tokenizer_config_json)
               : Tokenizer::FromJson(text->tokenizer_json, text->tokenizer_config_json);
  }
  ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadTokenizerSpec(file));
  return Tokenizer::Create(spec);
}

// The ids below `rows` that end a generation, by the tokenizer and by the files beside it.
std::vector<Token> EndTokens(const ModelFile& file, const Tokenizer& tokenizer, int rows) {
  const auto own = tokenizer.end_of_generation();
  std::set<Token> ends(own.begin(), own.end());
  if (file.text() != nullptr) {
    for (const int64_t id : file.text()->end_tokens)
      if (id < tokenizer.vocab_size()) ends.insert(static_cast<Token>(id));
  }
  return {ends.begin(), ends.lower_bound(rows)};
}

// Behind the embedding's rows there may be added tokens alone: Gemma 3's tokenizer has the token of
// an image, for which its text models have no row. A prompt with one is refused by the engine.
Status CheckVocabulary(const LoadedModel& loaded) {
  const int rows = loaded.model->info().vocab_size;
  for (Token token = rows; token < loaded.tokenizer->vocab_size(); ++token) {
    if (loaded.tokenizer->IsAdded(token)) continue;
    return DataLoss(
        "[model] " + loaded.path + ": " + std::to_string(loaded.tokenizer->vocab_size()) +
        " tokens in the tokenizer, but the embedding has " + std::to_string(rows) + " rows");
  }
  return {};
}

// Sampling is what flags and requests say; what the model's authors suggest is worth a line.
void LogSuggestions(const ModelFile& file) {
  const HuggingFaceText* text = file.text();
  if (text == nullptr) return;
  std::ostringstream line;
  for (const auto& [flag, value] : {std::pair("--temp", text->temperature),
                                    {"--top-p", text->top_p},
                                    {"--top-k", text->top_k},
                                    {"--min-p", text->min_p}}) {
    if (value) line << ' ' << flag << ' ' << *value;
  }
  if (!line.str().empty()) LogInfo("[model] generation_config.json suggests" + line.str());
}

}  // namespace

Result<LoadedModel> LoadModelFile(const ModelFlags& flags, const TemplateFlags& templates) {
  LoadedModel loaded;
  ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(flags.log_level));
  SetLogLevel(level);
  ASSIGN_OR_RETURN(loaded.path, ResolveModelPath(flags));
  LoadOptions options;
  ASSIGN_OR_RETURN(options.kv_type, ResolveKvType(flags));
  if (flags.context_length > 0) options.context_length = flags.context_length;
  options.progress = TerminalProgress();
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> opened, OpenModelFile(loaded.path));
  const ModelFile& file = *opened;
  ASSIGN_OR_RETURN(Tokenizer tokenizer, MakeTokenizer(file));
  loaded.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  LogSuggestions(file);
  PromptBuilderOptions prompts;
  ASSIGN_OR_RETURN(prompts.template_source, TemplateSource(file, templates.chat_template));
  loaded.template_source = prompts.template_source;
  prompts.default_kwargs_json = templates.chat_template_args;
  ASSIGN_OR_RETURN(PromptBuilder builder, PromptBuilder::Create(loaded.tokenizer, prompts));
  loaded.prompts = std::make_shared<const PromptBuilder>(std::move(builder));
  ASSIGN_OR_RETURN(auto model, LoadModel(file, options));
  loaded.model = std::move(model);
  const ModelInfo& info = loaded.model->info();
  RETURN_IF_ERROR(CheckVocabulary(loaded));
  loaded.end_tokens = EndTokens(file, *loaded.tokenizer, info.vocab_size);
  if (info.context_length > info.trained_context_length) {
    LogWarning("[model] context of " + std::to_string(info.context_length) +
               " tokens; the model declares " + std::to_string(info.trained_context_length));
  }
#if defined(__GLIBC__)
  malloc_trim(0);  // 7 MiB of a vocabulary of 152k that only the tokenizer's making needed
#endif
  return loaded;
}

void AddModelOptions(const LoadedModel& loaded, const EngineFlags& flags, EngineOptions& options) {
  if (!flags.prefill_step_size) options.cache.stride = AutoStride(loaded.model->layout());
  options.end_tokens = loaded.end_tokens;
  options.turn_headers = loaded.prompts->turn_headers().sequences;
}

int ExitStatus(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "cairn: %s\n", status.message().c_str());
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kUnsupported:
    case StatusCode::kDataLoss:
    case StatusCode::kContextLength:
    case StatusCode::kResourceExhausted:  // a file that is beyond a limit
      return 2;
    default:
      return 1;
  }
}

}  // namespace cairn
