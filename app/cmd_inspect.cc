// cairn inspect FILE: what a model file is and what running it costs. Reads metadata only.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cache/stride.h"
#include "commands.h"
#include "flags.h"
#include "model/inspect.h"
#include "model/open_model.h"
#include "report.h"

namespace cairn {
namespace {

struct InspectFlags {
  ModelFlags model;
  std::string file;
  int64_t context = 0;
  bool json = false;
};

std::string Types(const ModelFacts& facts) {
  std::string text;
  for (const auto& [type, count] : facts.tensor_count_by_type) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + type;
  }
  return text;
}

// How close grid checkpoints may sensibly lie: what --prefill-step-size auto takes.
void AddGrid(const ModelFacts& f, Report& r) {
  if (f.trimmable) return;
  const int64_t stride = AutoStride(f.layout);
  std::string text = std::to_string(stride) + " tokens";
  if (f.kv_bytes_per_token > 0) {
    char share[48];
    std::snprintf(share, sizeof share, ", %.3g %% of their KV", 100 * GridShare(f.layout, stride));
    text += share;
  }
  r.Add("auto_stride", stride, "--prefill-step-size auto", text);
}

Report Describe(const ModelFile& file, const ModelFacts& f, const InspectFlags& flags) {
  const int64_t context = flags.context > 0 ? flags.context : f.trained_context_length;
  const uint64_t kv_bytes = f.kv_bytes_per_token * static_cast<uint64_t>(context);
  const uint64_t total = f.weight_bytes + kv_bytes + f.checkpoint_bytes;
  std::vector<std::pair<std::string, double>> types(f.tensor_count_by_type.begin(),
                                                    f.tensor_count_by_type.end());
  auto size = [](uint64_t bytes) { return FormatSize(bytes) + " (" + std::to_string(bytes) + ")"; };
  auto i64 = [](auto v) { return static_cast<int64_t>(v); };
  Report r;
  r.Add("file", file.path(), "file");
  r.Add("name", f.name, "name");
  r.Add("architecture", f.architecture, "architecture");
  r.Add("parameters", f.parameter_count, "parameters");
  r.Add("quantization", f.quantization, "quantisation", f.quantization + ": " + Types(f));
  r.Add("tensor_types", types, "tensor types", Types(f));
  r.Add("layers", i64(f.layer_count), "layers",
        std::to_string(f.layer_count) + ": " + std::to_string(f.attention_layers) +
            " keep KV of every token, " + std::to_string(f.recurrent_layers) +
            " a state of fixed size");
  r.Add("attention_layers", i64(f.attention_layers), "with KV of every token");
  // Windows of attention too: they cannot be cut back either.
  r.Add("recurrent_layers", i64(f.recurrent_layers), "with a state of fixed size");
  r.Add("hidden_size", i64(f.hidden_size), "hidden size");
  r.Add("feed_forward_size", i64(f.ffn_size), "feed-forward size");
  r.Add("heads", i64(f.heads), "attention heads",
        std::to_string(f.heads) + " query, " + std::to_string(f.kv_heads) + " KV, " +
            std::to_string(f.head_dim) + " dims");
  r.Add("kv_heads", i64(f.kv_heads), "KV heads");
  r.Add("head_dim", i64(f.head_dim), "head dim");
  r.Add("vocab_size", i64(f.vocab_size), "vocabulary");
  r.Add("tied_embedding", f.tied_embedding, "tied embedding", f.tied_embedding ? "yes" : "no");
  const auto tokenizer = file.FindString("tokenizer.ggml.model");
  r.Add("tokenizer",
        file.text() != nullptr && !file.text()->tiktoken_model.empty() ? "tiktoken.model"
        : file.text() != nullptr                                       ? "tokenizer.json"
        : tokenizer.ok() && *tokenizer                                 ? std::string(**tokenizer)
                                                                       : "none",
        "tokenizer");
  const auto pre = file.FindString("tokenizer.ggml.pre");
  r.Add("pre_tokenizer", std::string(pre.ok() && *pre ? **pre : "none"), "pre-tokenizer");
  r.Add("trimmable", f.trimmable, "can be cut back",
        f.trimmable ? "yes: KV only" : "no: checkpoints are needed");
  r.Add("state_bytes", i64(f.state_bytes), "state", size(f.state_bytes));
  r.Add("checkpoint_bytes", i64(f.checkpoint_bytes), "checkpoint (state + hidden row)",
        size(f.checkpoint_bytes));
  AddGrid(f, r);
  r.Add("kv_type", flags.model.kv_type, "KV type");
  r.Add("kv_bytes_per_token", i64(f.kv_bytes_per_token), "KV per token",
        size(f.kv_bytes_per_token));
  r.Add("trained_context_length", f.trained_context_length, "declared context");
  r.Add("context_length", context, "context for the figures below");
  r.Add("weight_bytes", i64(f.weight_bytes), "weights", size(f.weight_bytes));
  r.Add("kv_bytes", i64(kv_bytes), "KV of one full context", size(kv_bytes));
  r.Add("memory_bytes", i64(total), "memory for one full context", size(total));
  return r;
}

int Inspect(const InspectFlags& flags) {
  auto fail = [](const Status& status) {
    std::fprintf(stderr, "cairn: %s\n", status.message().c_str());
    return 2;
  };
  ModelFlags model = flags.model;
  if (!flags.file.empty()) model.model = flags.file;
  const auto path = ResolveModelPath(model);
  if (!path.ok()) return fail(path.status());
  const auto kv_type = ResolveKvType(flags.model);
  if (!kv_type.ok()) return fail(kv_type.status());
  const auto file = OpenModelFile(*path);
  if (!file.ok()) return fail(file.status());
  const auto facts = InspectModel(**file, *kv_type);
  if (!facts.ok()) return fail(facts.status());
  const Report report = Describe(**file, *facts, flags);
  flags.json ? report.PrintJson() : report.PrintTable();
  return 0;
}

}  // namespace

void AddInspect(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* cmd = app.add_subcommand("inspect", "what a model file is, and what running it costs");
  cmd->add_option("file,--model", flags->file,
                  "GGUF file, or Hugging Face or MLX directory (default: the bundled model)");
  cmd->add_option("--kv-type", flags->model.kv_type, "f16, f32 or q8_0");
  cmd->add_option("--context-length", flags->context, "tokens of context for the memory figures")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  cmd->add_flag("--json", flags->json, "print one JSON object");
  AddEnvironmentNames(*cmd);
  cmd->callback([flags, &run] { run = [flags] { return Inspect(*flags); }; });
}

}  // namespace cairn
