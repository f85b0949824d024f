// Traces in files: one JSON object a line, a request each, in order of time.
//
//   {"t": 12.5, "segments": [[1, 800], [7, 120, 1]], "output": 300}
//   {"t": 13.0, "tokens": [5, 17, 2], "turns": [0], "output": 40, "salt": "alice"}
//
//   t         time; only its order counts, and 0 is the default. Lines must be in order.
//   tokens    the prompt's token ids; or
//   segments  [seed, length] or [seed, length, 1]: made-up text, equal for equal seeds, a smaller
//             length is a prefix of it; the 1 says that a turn header begins there (a turn mark)
//   turns     positions at which turn headers begin, for `tokens`
//   output    how many tokens are generated. Their ids are those with which the first later prompt
//             goes on from exactly this one, as chats do; if there is none, nobody else's.
//   output_tokens, output_segments   the generated ids themselves, instead of output
//   salt      cache_salt
// Unknown keys are ignored. An empty line is none.
//
// Threads: a free function.
#pragma once

#include <string>

#include "base/status.h"
#include "cache/sim/trace.h"

namespace cairn {

// Errors: kNotFound (no such file), kDataLoss (names the line).
Result<Trace> ReadTraceFile(const std::string& path);

}  // namespace cairn
