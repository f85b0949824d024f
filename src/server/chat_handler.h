// /v1/chat/completions and /v1/completions: one request from its body to the last byte of its
// reply.
//   Parse -> Render -> Encode (on the worker) -> Submit -> for each event: text, stop strings,
//   reasoning, chunks (on the IO thread)
#pragma once

#include <memory>
#include <string>

#include "server/api_reply.h"
#include "server/serve_context.h"

namespace cairn {

// Answers `request` by and by. IO thread. context must outlive the reply.
void StartGeneration(ServeContext& context, Route route, std::shared_ptr<HttpRequest> request,
                     ApiReply reply);

}  // namespace cairn
