// cairn generate: a prompt to standard output, without HTTP. The same path as a request to the
// server: Render, Encode, Submit, Detokenize.

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "commands.h"
#include "flags.h"
#include "load_model.h"
#include "server/openai_json.h"
#include "text/detokenizer.h"
#include "text_file.h"

namespace cairn {
namespace {

constexpr auto kPatience = std::chrono::hours(24);
constexpr size_t kPromptBytesMax = size_t{16} << 20;

struct GenerateFlags {
  ModelFlags model;
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  int64_t seed = -1;
  bool chat = false;
  bool stats = false;
};

Result<std::string> ReadPrompt(const GenerateFlags& flags) {
  if (!flags.prompt.empty() && !flags.prompt_file.empty()) {
    return InvalidArgument("[generate] both -p and --prompt-file, wanted one");
  }
  if (flags.prompt_file.empty()) {
    if (flags.prompt.empty())
      return InvalidArgument("[generate] no prompt, wanted -p TEXT or --prompt-file FILE");
    return flags.prompt;
  }
  return ReadTextFile("--prompt-file", flags.prompt_file, kPromptBytesMax);
}

Result<Prompt> BuildPrompt(const GenerateFlags& flags, const PromptBuilder& builder,
                           const std::string& text) {
  if (!flags.chat) return builder.FromText(text);
  ChatPrompt chat;
  chat.messages_json = "[";
  if (!flags.system.empty())
    chat.messages_json += R"({"role":"system","content":)" + QuoteJson(flags.system) + "},";
  chat.messages_json += R"({"role":"user","content":)" + QuoteJson(text) + "}]";
  return builder.FromChat(chat);
}

Request MakeRequest(const GenerateFlags& flags, Prompt prompt, int64_t context_length) {
  Request r;
  r.prompt = std::move(prompt.tokens);
  r.system_end = prompt.system_end;
  r.tail_begin = prompt.tail_begin;
  r.raw = prompt.raw;
  r.max_tokens = flags.sampling.max_tokens > 0 ? flags.sampling.max_tokens : context_length;
  r.sampling.temperature = static_cast<float>(flags.sampling.temp);
  r.sampling.top_p = static_cast<float>(flags.sampling.top_p);
  r.sampling.top_k = flags.sampling.top_k;
  r.sampling.min_p = static_cast<float>(flags.sampling.min_p);
  r.sampling.seed = flags.seed >= 0 ? static_cast<uint64_t>(flags.seed) : std::random_device{}();
  r.id = "generate";
  return r;
}

void PrintStats(const EndEvent& end, const ReuseReport& reuse) {
  const double prefill =
      end.prefill_ms > 0 ? 1e3 * static_cast<double>(reuse.replayed_tokens()) / end.prefill_ms : 0;
  const double decode = end.decode_ms > 0 && end.generated > 1
                            ? 1e3 * static_cast<double>(end.generated - 1) / end.decode_ms
                            : 0;
  std::fprintf(stderr, "%lld prompt tokens, %.1f tokens/s; %lld generated, %.1f tokens/s\n",
               static_cast<long long>(reuse.prompt_tokens), prefill,
               static_cast<long long>(end.generated), decode);
}

Status Generate(const GenerateFlags& flags) {
  if (!flags.system.empty() && !flags.chat)
    return InvalidArgument("[generate] --system without --chat, wanted both or neither");
  ASSIGN_OR_RETURN(const std::string text, ReadPrompt(flags));
  ASSIGN_OR_RETURN(const LoadedModel loaded,
                   LoadModelFile(flags.model, {flags.sampling.chat_template,
                                               flags.sampling.chat_template_args}));
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(flags.model, flags.engine));
  AddModelOptions(loaded, flags.engine, options);
  options.decode_concurrency = options.prompt_concurrency = 1;
  ASSIGN_OR_RETURN(Prompt prompt, BuildPrompt(flags, *loaded.prompts, text));
  ASSIGN_OR_RETURN(auto engine, Engine::Create(loaded.model, options));
  ASSIGN_OR_RETURN(auto stream, engine->Submit(MakeRequest(flags, std::move(prompt),
                                                           loaded.model->info().context_length)));
  const bool terminal = isatty(STDERR_FILENO);
  Detokenizer detokenizer(loaded.tokenizer.get());
  ReuseReport reuse;
  while (true) {
    const auto event = stream->Next(std::chrono::steady_clock::now() + kPatience);
    if (!event) return Internal("[generate] the engine gave no event in a day");
    if (const auto* admitted = std::get_if<AdmittedEvent>(&*event)) reuse = admitted->reuse;
    if (const auto* progress = std::get_if<ProgressEvent>(&*event); progress && terminal) {
      std::fprintf(stderr, "\rprompt %lld of %lld ", static_cast<long long>(progress->processed),
                   static_cast<long long>(progress->total));
      if (progress->processed >= progress->total) std::fprintf(stderr, "\r\033[K");
    }
    if (const auto* token = std::get_if<TokenEvent>(&*event)) {
      const std::string piece = detokenizer.Push(token->token);
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    }
    if (const auto* end = std::get_if<EndEvent>(&*event)) {
      const std::string rest = detokenizer.Flush();
      std::fwrite(rest.data(), 1, rest.size(), stdout);
      std::printf("\n");
      stream->End(end->generated);
      if (flags.stats || terminal) PrintStats(*end, reuse);
      return end->error;
    }
  }
}

}  // namespace

void AddGenerate(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* cmd = app.add_subcommand("generate", "a prompt to standard output, without a server");
  AddModelFlags(*cmd, flags->model);
  AddSamplingFlags(*cmd, flags->sampling);
  cmd->add_option("-p,--prompt", flags->prompt, "the prompt");
  cmd->add_option("--prompt-file", flags->prompt_file, "a file that holds the prompt");
  cmd->add_flag("--chat", flags->chat,
                "the prompt is a user message, rendered by the model's template");
  cmd->add_option("--system", flags->system, "system message, with --chat");
  cmd->add_option("--seed", flags->seed, "seed of the sampler; -1: another one each time")
      ->check(CLI::Range(int64_t{-1}, INT64_MAX));
  cmd->add_flag("--stats", flags->stats, "print token counts and rates on standard error");
  cmd->add_option("--cache-dir", flags->engine.cache_dir, "not in this version");
  AddEnvironmentNames(*cmd);
  cmd->callback([flags, &run] { run = [flags] { return ExitStatus(Generate(*flags)); }; });
}

}  // namespace cairn
