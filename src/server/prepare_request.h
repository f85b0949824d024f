// Parse -> Render -> Encode: what the worker makes of a request's body before the engine sees it.
// Threads: any; of the context only what does not change after loading is read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api_reply.h"
#include "server/reasoning_splitter.h"
#include "server/serve_context.h"
#include "text/stop_matcher.h"

namespace cairn {

struct PreparedRequest {
  std::optional<GenerationRequest> request;
  ApiError error;  // if there is no request
  ReasoningSplitter::Begin reasoning = ReasoningSplitter::Begin::kPlain;
  std::string echo;
  std::vector<int64_t> echo_offsets;  // by prompt token, for echoed logprobs
  std::shared_ptr<const StopSet> stops;
};
PreparedRequest PrepareRequest(const ServeContext& context, Route route, const std::string& body);

// Render and Encode: the prompt of a checked request.
Result<Prompt> BuildPrompt(const PromptBuilder& prompts, GenerationRequest& request);

}  // namespace cairn
