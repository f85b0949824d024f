// cairn: the command line. Start here for the subcommands; each lives in a file of its own.
// A wrong flag or file: one line on standard error (what, got, wanted), exit 2.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

#include "commands.h"

namespace {

// One line, whatever the library wrote.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("cairn: serves hybrid language models with exact prompt checkpoints");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("cairn " CAIRN_VERSION));
  app.option_defaults()->always_capture_default();
  cairn::RunCommand run;
  cairn::AddServe(app, run);
  cairn::AddGenerate(app, run);
  cairn::AddBench(app, run);
  cairn::AddInspect(app, run);
  cairn::AddSelftest(app, run);
  cairn::AddCache(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::fprintf(stderr, "cairn: %s (see cairn --help)\n", OneLine(e.what()).c_str());
    return 2;
  }
  try {
    const int status = run ? run() : 2;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    std::fprintf(stderr, "cairn: standard output cannot be written\n");
    return status == 0 ? 1 : status;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cairn: %s\n", OneLine(e.what()).c_str());
    return 1;
  }
}
