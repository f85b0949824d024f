// Log lines on standard error through spdlog, which is included here only by log.cc. Threads: safe
// from any thread.
#pragma once

#include <string_view>

#include "base/status.h"

namespace cairn {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off" (mlx_lm's upper-case names too).
Result<LogLevel> ParseLogLevel(std::string_view name);
void SetLogLevel(LogLevel level);
void Log(LogLevel level, std::string_view message);

inline void LogInfo(std::string_view m) { Log(LogLevel::kInfo, m); }
inline void LogWarning(std::string_view m) { Log(LogLevel::kWarning, m); }
inline void LogError(std::string_view m) { Log(LogLevel::kError, m); }

}  // namespace cairn
