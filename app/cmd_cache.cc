// cairn cache: the disk tier's tool. Not in this version: named, refused, exit 2.

#include <CLI/CLI.hpp>

#include <cstdio>

#include "commands.h"

namespace cairn {

void AddCache(CLI::App& app, RunCommand& run) {
  CLI::App* cmd = app.add_subcommand("cache", "disk tier (not in this version)");
  cmd->allow_extras();
  cmd->callback([&run] {
    run = [] {
      std::fprintf(stderr,
                   "cairn: [cache] not in this version; a running server answers GET /v1/cache\n");
      return 2;
    };
  });
}

}  // namespace cairn
