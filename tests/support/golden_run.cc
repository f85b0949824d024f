#include "support/golden_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "model/decoder_model.h"
#include "model/load.h"
#include "model/open_model.h"
#include "support/model_runner.h"

namespace cairn::testing {
namespace {

constexpr int kRowsMax = 128;
constexpr int kThreads = 2;

void CompareStates(const GoldenSet& set, const std::vector<StateTensor>& states, GoldenRun* run) {
  for (const StateTensor& state : states) {
    const std::string path = set.directory + "states/" + state.name + ".npy";
    std::error_code ec;
    if (!std::filesystem::exists(path, ec)) {
      ++run->states_unknown;
      continue;
    }
    const NpyArray stored = LastPositions(ReadNpy(path), state.shape);
    ++run->states_seen;
    if (stored.shape != state.shape) {
      run->misshapen = state.name;
      continue;
    }
    double scale = 1;
    for (const float x : stored.data) scale = std::max<double>(scale, std::abs(x));
    for (size_t i = 0; i < stored.data.size(); ++i) {
      const double error = std::abs(static_cast<double>(state.data[i]) - stored.data[i]) / scale;
      if (!(error <= run->states)) run->states = error;  // NaN stays
    }
  }
}

}  // namespace

Result<std::unique_ptr<Model>> LoadWithFloatKv(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  return LoadModel(*file, {.kv_type = KvType::kF32, .context_length = {}, .progress = {}});
}

GoldenRun RunGolden(const Model& model, CpuLevel level, const GoldenSet& set, bool with_states) {
  const int64_t vocab = model.info().vocab_size;
  GoldenRun run(vocab);
  if (vocab != set.logits.shape[1]) {
    run.misshapen = "logits";
    return run;
  }
  ModelRunner runner(model, level, kThreads, kRowsMax);
  const int chunks[] = {kRowsMax};
  for (const GoldenCase& c : set.cases) {
    TestSequence sequence(model);
    const std::vector<float> logits = runner.Feed(sequence, c.tokens, chunks);
    for (size_t i = 0; i < c.positions.size(); ++i)
      run.logits.Add(set.Row(c, i), &logits[c.positions[i] * vocab]);
    if (!with_states || !c.states) continue;
    CompareStates(set, ExportState(model, sequence.state(), sequence.blocks(), sequence.position),
                  &run);
  }
  return run;
}

}  // namespace cairn::testing
