#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cctype>
#include <cstdio>
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

constexpr const char* kTextPattern = "[%Y-%m-%d %H:%M:%S.%e] [%n] %v";
constexpr const char* kJsonPattern = "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",%v}";

// spdlog keeps its loggers in a registry of its own; ours is found there by name.
struct Sink {
  std::shared_ptr<spdlog::logger> logger = spdlog::stderr_color_mt("cairn");
  std::atomic<LogFormat> format{LogFormat::kText};

  Sink() { logger->set_pattern(kTextPattern); }
};

Sink& TheSink() {
  static Sink sink;
  return sink;
}

const char* LevelName(LogLevel level) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};
  return kNames[static_cast<int>(level)];
}

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// As a name=value pair holds it: in quotes where it would not read as one word.
std::string TextValue(const std::string& value) {
  const bool is_word = !value.empty() && value.find_first_of(" \"=\n\r\t\\") == std::string::npos;
  return is_word ? value : JsonString(value);
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

void SetLogLevel(LogLevel level) { TheSink().logger->set_level(ToSpdlog(level)); }

Result<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return InvalidArgument("[log] format \"" + std::string(name) + "\", wanted text or json");
}

void SetLogFormat(LogFormat format) {
  TheSink().format = format;
  TheSink().logger->set_pattern(format == LogFormat::kJson ? kJsonPattern : kTextPattern);
}

std::string LogLine(LogFormat format, LogLevel level, std::string_view message,
                    std::span<const LogField> fields) {
  std::string line;
  if (format == LogFormat::kText) {
    line.append("[").append(LevelName(level)).append("] ").append(message);
    for (const LogField& f : fields)
      line.append(" ").append(f.name).append("=").append(TextValue(f.value));
    return line;
  }
  line.append("\"level\":\"").append(LevelName(level)).append("\",\"message\":");
  line += JsonString(message);
  for (const LogField& f : fields) {
    line += "," + JsonString(f.name) + ":";
    line += f.is_number ? f.value : JsonString(f.value);
  }
  return line;
}

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && TheSink().logger->should_log(ToSpdlog(level));
}

void Log(LogLevel level, std::string_view message, std::span<const LogField> fields) {
  if (!LogEnabled(level)) return;
  Sink& sink = TheSink();
  sink.logger->log(ToSpdlog(level), LogLine(sink.format, level, message, fields));
}

}  // namespace cairn
