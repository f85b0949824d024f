// The subcommands. Each adds its CLI11 subcommand to `app`; when it was chosen, `run` is set to the
// function that does it. run returns the exit status: 0 done, 1 the job failed, 2 wrong input.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace cairn {

using RunCommand = std::function<int()>;

void AddServe(CLI::App& app, RunCommand& run);
void AddGenerate(CLI::App& app, RunCommand& run);
void AddBench(CLI::App& app, RunCommand& run);
void AddBenchCache(CLI::App& bench, RunCommand& run);  // a subcommand of bench
void AddInspect(CLI::App& app, RunCommand& run);
void AddSelftest(CLI::App& app, RunCommand& run);
void AddCache(CLI::App& app, RunCommand& run);

}  // namespace cairn
