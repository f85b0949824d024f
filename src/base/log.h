// Log lines on standard error through spdlog, which is included here only by log.cc. Threads: safe
// from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cairn {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off" (mlx_lm's upper-case names too).
Result<LogLevel> ParseLogLevel(std::string_view name);
void SetLogLevel(LogLevel level);

// kText: "[time] [cairn] [level] message name=value". kJson: one object a line, with time, level,
// message and each field.
enum class LogFormat { kText, kJson };
Result<LogFormat> ParseLogFormat(std::string_view name);  // "text", "json"
void SetLogFormat(LogFormat format);

// What belongs to a line beside its message; `request` is a request's id in every line about it.
struct LogField {
  LogField(std::string_view field, std::string_view text) : name(field), value(text) {}
  LogField(std::string_view field, int64_t number)
      : name(field), value(std::to_string(number)), is_number(true) {}

  std::string name, value;
  bool is_number = false;
};

void Log(LogLevel level, std::string_view message, std::span<const LogField> fields = {});
bool LogEnabled(LogLevel level);  // whether Log would write; for lines that cost to make
// The line without its time: what Log writes in a format.
std::string LogLine(LogFormat format, LogLevel level, std::string_view message,
                    std::span<const LogField> fields);

inline void LogInfo(std::string_view m) { Log(LogLevel::kInfo, m); }
inline void LogWarning(std::string_view m) { Log(LogLevel::kWarning, m); }
inline void LogError(std::string_view m) { Log(LogLevel::kError, m); }

}  // namespace cairn
