#include "engine/engine_log.h"

#include <exception>
#include <vector>

#include "engine/sequence.h"

namespace cairn {

void LogAbout(const Sequence& s, LogLevel level, std::string_view message,
              std::initializer_list<LogField> more) noexcept {
  try {
    const std::string& id = s.request.log_id.empty() ? s.request.id : s.request.log_id;
    std::vector<LogField> fields = {{"request", id}};
    fields.insert(fields.end(), more.begin(), more.end());
    Log(level, message, fields);
  } catch (const std::exception&) {
  }
}

}  // namespace cairn
