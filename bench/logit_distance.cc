// How far a model's token distributions lie from stored ones, on a text: KL divergence, perplexity,
// equal first choices. The stored ones are this program's own (--write) or llama-perplexity's
// --kl-divergence-base: the file format is llama.cpp's (tools/perplexity/perplexity.cpp), so either
// program can judge the other, and both can be judged by the same exactly dequantised weights.
//
//     logit_distance --model M --write BASE --text FILE [--context 512] [--chunks 8]
//     logit_distance --model M --base BASE
//
// Both print one JSON object. Log probabilities more than 16 below the largest logit are cut off in
// the file: its own perplexity (base_perplexity) is a little too low, that of --write is right.
//
// The text is cut into chunks of --context tokens, the first of each replaced by BOS where the
// model wants one; the tokens of the second half of a chunk are scored.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "flags.h"
#include "load_model.h"
#include "state/block_pool.h"
#include "state/sequence_state.h"
#include "state/state_pool.h"
#include "text_file.h"

namespace cairn {
namespace {

constexpr int kRows = 64;              // rows of one forward pass
constexpr double kFloorNats = 16;      // the format keeps logits down to this far below the largest
constexpr int kHeadWords = 4;          // scale and smallest log probability, as two floats
constexpr char kMagic[] = "_logits_";  // 8 bytes in the file
constexpr size_t kTextBytesMax = size_t{64} << 20;

struct Flags {
  ModelFlags model;
  std::string text, write, base;
  int context = 512;
  int chunks = 8;
};

// A row of logits and its normaliser.
struct Row {
  std::span<const float> logits;  // [vocab]
  float max;
  double log_sum;  // log of the sum of exp(logit)
  double LogProb(Token token) const { return logits[token] - log_sum; }
};

Row Normalise(std::span<const float> logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  return {logits, max, max + std::log(sum)};
}

size_t RowWords(int vocab) { return 2 * ((static_cast<size_t>(vocab) + 1) / 2) + kHeadWords; }

// 16 bits a token, linear in the log probability.
void Pack(const Row& row, std::vector<uint16_t>& words) {
  words.assign(RowWords(static_cast<int>(row.logits.size())), 0);
  const float least = *std::min_element(row.logits.begin(), row.logits.end());
  const float low = std::max(least, static_cast<float>(row.max - kFloorNats));
  const float head[2] = {(row.max - low) / 65535.0F, static_cast<float>(low - row.log_sum)};
  std::memcpy(words.data(), head, sizeof head);
  if (!(head[0] > 0)) return;
  for (size_t i = 0; i < row.logits.size(); ++i) {
    const float x = row.logits[i];
    if (x > low) words[kHeadWords + i] = static_cast<uint16_t>(std::lround((x - low) / head[0]));
  }
}

struct Distances {
  std::vector<double> kl, nll, base_nll;  // one a scored token
  int64_t same_top = 0;

  void Add(const Row& row, std::span<const uint16_t> words, Token next) {
    float head[2];
    std::memcpy(head, words.data(), sizeof head);
    const uint16_t* stored = words.data() + kHeadWords;
    auto base = [&](size_t i) { return head[0] * static_cast<double>(stored[i]) + head[1]; };
    double sum = 0;
    size_t top = 0, base_top = 0;
    for (size_t i = 0; i < row.logits.size(); ++i) {
      if (row.logits[i] > row.logits[top]) top = i;
      if (stored[i] > stored[base_top]) base_top = i;
      const double p = base(i);
      if (p > -kFloorNats) sum += std::exp(p) * (p - (row.logits[i] - row.log_sum));
    }
    same_top += top == base_top;
    kl.push_back(sum);
    nll.push_back(-row.LogProb(next));
    base_nll.push_back(-base(next));
  }

  void Print() const;
};

double Mean(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x;
  return v.empty() ? 0 : sum / static_cast<double>(v.size());
}

// Of the mean.
double StandardError(const std::vector<double>& v) {
  const double mean = Mean(v);
  double sum = 0;
  for (const double x : v) sum += (x - mean) * (x - mean);
  const auto n = static_cast<double>(v.size());
  return n < 2 ? 0 : std::sqrt(sum / (n - 1) / n);
}

void Distances::Print() const {
  std::vector<double> sorted = kl, log_ratio, absolute;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < nll.size(); ++i) {
    log_ratio.push_back(nll[i] - base_nll[i]);
    absolute.push_back(std::abs(log_ratio.back()));
  }
  const size_t n = sorted.size();
  std::printf(
      "{\"tokens\": %zu, \"perplexity\": %.6f, \"base_perplexity\": %.6f, \"log_ratio\": %.6f, "
      "\"log_ratio_error\": %.6f, \"kl_mean\": %.8f, \"kl_error\": %.8f, \"kl_median\": %.8f, "
      "\"kl_p99\": %.8f, \"kl_max\": %.8f, \"same_top\": %.6f, \"logprob_difference\": %.6f}\n",
      n, std::exp(Mean(nll)), std::exp(Mean(base_nll)), Mean(log_ratio), StandardError(log_ratio),
      Mean(kl), StandardError(kl), sorted[n / 2], sorted[n * 99 / 100], sorted.back(),
      static_cast<double>(same_top) / static_cast<double>(n), Mean(absolute));
}

// Runs chunks through the model, each from an empty state.
class Scorer {
 public:
  Scorer(const LoadedModel& loaded, const KernelContext& ctx)
      : loaded_(loaded),
        model_(*loaded.model),
        ctx_(ctx),
        blocks_(model_.layout()),
        states_(model_.layout()),
        workspace_(model_.CreateWorkspace(kRows, kRows, ctx.pool->thread_count())),
        logits_(static_cast<size_t>(kRows) * vocab()) {}

  int vocab() const { return model_.info().vocab_size; }

  // visit(row, next token) for each token of the second half.
  template <class Visit>
  Status Score(std::span<const Token> chunk, const Visit& visit) {
    std::vector<Token> tokens(chunk.begin(), chunk.end());
    if (loaded_.tokenizer->adds_bos()) tokens[0] = *loaded_.tokenizer->bos();
    ASSIGN_OR_RETURN(SequenceState state, SequenceState::Create(blocks_, states_));
    const int size = static_cast<int>(tokens.size()), first = size / 2;
    for (int begin = 0; begin + 1 < size; begin += kRows) {
      const int rows = std::min(kRows, size - 1 - begin);
      std::vector<int> wanted;
      for (int r = std::max(0, first - begin); r < rows; ++r) wanted.push_back(r);
      RETURN_IF_ERROR(Forward(state, std::span(tokens).subspan(begin, rows), wanted));
      for (size_t i = 0; i < wanted.size(); ++i) {
        const auto row = std::span(logits_).subspan(i * vocab(), vocab());
        RETURN_IF_ERROR(visit(Normalise(row), tokens[begin + wanted[i] + 1]));
      }
    }
    return {};
  }

 private:
  Status Forward(SequenceState& state, std::span<const Token> tokens, std::span<const int> wanted) {
    const int rows = static_cast<int>(tokens.size());
    RETURN_IF_ERROR(state.Reserve(rows));
    const ForwardSlice slice{.row_begin = 0,
                             .row_count = rows,
                             .position = state.length(),
                             .blocks = state.block_pointers(),
                             .state = state.state(),
                             .taps = {}};
    model_.Forward(
        ctx_,
        {.tokens = tokens, .slices = {&slice, 1}, .logit_rows = wanted, .logits = logits_.data()},
        *workspace_);
    state.Advance(rows);
    return {};
  }

  const LoadedModel& loaded_;
  const Model& model_;
  const KernelContext ctx_;
  BlockPool blocks_;
  StatePool states_;
  std::unique_ptr<Workspace> workspace_;
  std::vector<float> logits_;
};

struct BaseHeader {
  uint32_t context;
  int32_t vocab, chunks;
};

Status Write(const Flags& flags, const LoadedModel& loaded, Scorer& scorer) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--text", flags.text, kTextBytesMax));
  ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                   loaded.tokenizer->Encode(text, {.add_special = true, .parse_special = false}));
  const BaseHeader header{
      .context = static_cast<uint32_t>(flags.context),
      .vocab = scorer.vocab(),
      .chunks = std::min(flags.chunks, static_cast<int>(tokens.size()) / flags.context)};
  if (header.chunks < 1) return InvalidArgument("[logit_distance] --text is shorter than a chunk");
  std::ofstream out(flags.write, std::ios::binary);
  const auto count = static_cast<size_t>(header.chunks) * flags.context;
  out.write(kMagic, 8);
  out.write(reinterpret_cast<const char*>(&header), sizeof header);
  out.write(reinterpret_cast<const char*>(tokens.data()),
            static_cast<std::streamsize>(count * sizeof(Token)));
  std::vector<uint16_t> words;
  std::vector<double> nll;
  for (int i = 0; i < header.chunks; ++i) {
    const auto chunk =
        std::span(tokens).subspan(static_cast<size_t>(i) * flags.context, flags.context);
    RETURN_IF_ERROR(scorer.Score(chunk, [&](const Row& row, Token next) -> Status {
      nll.push_back(-row.LogProb(next));
      Pack(row, words);
      out.write(reinterpret_cast<const char*>(words.data()),
                static_cast<std::streamsize>(words.size() * sizeof words[0]));
      return {};
    }));
  }
  out.close();
  if (!out) return Internal("[logit_distance] cannot write " + flags.write);
  std::printf("{\"tokens\": %zu, \"perplexity\": %.6f}\n", nll.size(), std::exp(Mean(nll)));
  return {};
}

Status Compare(const Flags& flags, Scorer& scorer) {
  std::ifstream in(flags.base, std::ios::binary);
  char magic[8] = {};
  BaseHeader header{};
  in.read(magic, sizeof magic);
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  if (!in || std::memcmp(magic, kMagic, sizeof magic) != 0)
    return DataLoss("[logit_distance] " + flags.base + " holds no log probabilities");
  if (header.vocab != scorer.vocab() || header.context < 4 || header.context > (1U << 20) ||
      header.chunks < 1 || header.chunks > (1 << 16))
    return DataLoss("[logit_distance] " + flags.base + ": another vocabulary, or out of range");
  std::vector<Token> tokens(static_cast<size_t>(header.context) * header.chunks);
  in.read(reinterpret_cast<char*>(tokens.data()),
          static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
  for (const Token token : tokens) {
    if (token < 0 || token >= header.vocab)
      return DataLoss("[logit_distance] " + flags.base + ": a token out of range");
  }
  Distances distances;
  std::vector<uint16_t> words(RowWords(header.vocab));
  for (int i = 0; i < header.chunks; ++i) {
    const auto chunk =
        std::span(tokens).subspan(static_cast<size_t>(i) * header.context, header.context);
    RETURN_IF_ERROR(scorer.Score(chunk, [&](const Row& row, Token next) -> Status {
      in.read(reinterpret_cast<char*>(words.data()),
              static_cast<std::streamsize>(words.size() * sizeof words[0]));
      if (!in) return DataLoss("[logit_distance] " + flags.base + " ends early");
      distances.Add(row, words, next);
      return {};
    }));
  }
  distances.Print();
  return {};
}

Status Run(const Flags& flags) {
  if (flags.write.empty() == flags.base.empty())
    return InvalidArgument("[logit_distance] give --write or --base");
  ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModelFile(flags.model));
  ASSIGN_OR_RETURN(const CpuLevel level, ResolveCpuLevel(flags.model));
  ThreadPool pool(ResolveThreads(flags.model));
  Scorer scorer(loaded, {level, &pool});
  return flags.write.empty() ? Compare(flags, scorer) : Write(flags, loaded, scorer);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::Flags flags;
  CLI::App app("distance of token distributions from stored ones");
  cairn::AddModelFlags(app, flags.model);
  app.add_option("--text", flags.text, "a UTF-8 text, with --write");
  app.add_option("--write", flags.write, "file to write");
  app.add_option("--base", flags.base, "file to compare with");
  app.add_option("--context", flags.context, "tokens of a chunk")->check(CLI::Range(4, 1 << 20));
  app.add_option("--chunks", flags.chunks, "at most")->check(CLI::Range(1, 1 << 16));
  CLI11_PARSE(app, argc, argv);
  return cairn::ExitStatus(cairn::Run(flags));
}
