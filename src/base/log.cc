#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cctype>
#include <string>

namespace cairn {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

// spdlog keeps its loggers in a registry of its own; ours is found there by name.
std::shared_ptr<spdlog::logger> Logger() {
  static std::shared_ptr<spdlog::logger> logger = spdlog::stderr_color_mt("cairn");
  return logger;
}

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view name) {
  std::string n(name);
  for (char& c : n) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (n == "debug") return LogLevel::kDebug;
  if (n == "info") return LogLevel::kInfo;
  if (n == "warning" || n == "warn") return LogLevel::kWarning;
  if (n == "error" || n == "critical") return LogLevel::kError;
  if (n == "off") return LogLevel::kOff;
  return InvalidArgument("[log] level \"" + std::string(name) +
                         "\", wanted debug, info, warning, error or off");
}

void SetLogLevel(LogLevel level) { Logger()->set_level(ToSpdlog(level)); }

void Log(LogLevel level, std::string_view message) { Logger()->log(ToSpdlog(level), message); }

}  // namespace cairn
