#include "load_model.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/bytes.h"
#include "base/log.h"
#include "gguf_tokenizer.h"
#include "model/gguf.h"
#include "model/load.h"

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
    std::ifstream in(flag, std::ios::binary);
    if (!in)
      return NotFound("[template] --chat-template " + flag + ": neither a file nor a template");
    if (std::filesystem::file_size(flag, ec) > kTemplateBytesMax) {
      return InvalidArgument("[template] " + flag + ": more than " + FormatSize(kTemplateBytesMax));
    }
    std::stringstream text;
    text << in.rdbuf();
    source = text.str();
  } else if (!flag.empty()) {
    source = flag;
  } else {
    ASSIGN_OR_RETURN(const auto own, file.FindString("tokenizer.chat_template"));
    if (own) source = *own;
  }
  return source;
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
  ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(loaded.path));
  ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadTokenizerSpec(file));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Create(spec));
  loaded.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  PromptBuilderOptions prompts;
  ASSIGN_OR_RETURN(prompts.template_source, TemplateSource(file, templates.chat_template));
  loaded.template_source = prompts.template_source;
  prompts.default_kwargs_json = templates.chat_template_args;
  ASSIGN_OR_RETURN(PromptBuilder builder, PromptBuilder::Create(loaded.tokenizer, prompts));
  loaded.prompts = std::make_shared<const PromptBuilder>(std::move(builder));
  ASSIGN_OR_RETURN(auto model, LoadModel(file, options));
  loaded.model = std::move(model);
  const ModelInfo& info = loaded.model->info();
  if (loaded.tokenizer->vocab_size() > info.vocab_size) {
    return DataLoss("[model] " + loaded.path + ": " +
                    std::to_string(loaded.tokenizer->vocab_size()) +
                    " tokens in the tokenizer, but the embedding has " +
                    std::to_string(info.vocab_size) + " rows");
  }
  if (info.context_length > info.trained_context_length) {
    LogWarning("[model] context of " + std::to_string(info.context_length) +
               " tokens; the model declares " + std::to_string(info.trained_context_length));
  }
  return loaded;
}

void AddTextOptions(const LoadedModel& loaded, EngineOptions& options) {
  const auto ends = loaded.tokenizer->end_of_generation();
  options.end_tokens.assign(ends.begin(), ends.end());
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
