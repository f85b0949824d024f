// Small text files that the command line names.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace cairn {

// The whole file, or pipe. what: the flag, for messages. kNotFound: it cannot be read, or is a
// folder. kInvalidArgument: it holds more than bytes_max; no more than that is read of it.
Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t bytes_max);

}  // namespace cairn
