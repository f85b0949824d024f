// The engine's log lines about one request: they carry its id, as the server's lines do.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/log.h"

namespace cairn {

struct Sequence;

// Where memory for the line is out, it is left out.
void LogAbout(const Sequence& sequence, LogLevel level, std::string_view message,
              std::initializer_list<LogField> more = {}) noexcept;

}  // namespace cairn
