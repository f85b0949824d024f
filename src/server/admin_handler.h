// Routes that answer from the worker: text in, tokens out, and questions to the engine's cache.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/api_reply.h"
#include "server/serve_context.h"

namespace cairn {

// What a job on the worker answers: a body with status 200, or an error.
struct JobAnswer {
  std::string body;
  std::optional<ApiError> error;
};

// Runs `job` on the worker and sends what it answers. IO thread. context must outlive the reply.
void AnswerFromWorker(ServeContext& context, ApiReply reply, size_t body_bytes,
                      std::function<JobAnswer()> job);

// The jobs. Any thread.
JobAnswer TokenizeJob(const LoadedService& loaded, const std::string& body);
JobAnswer DetokenizeJob(const LoadedService& loaded, const std::string& body);
JobAnswer ApplyTemplateJob(const ServeContext& context, const std::string& body);
JobAnswer SlotsJob(const LoadedService& loaded);
JobAnswer ShowCacheJob(const LoadedService& loaded);
JobAnswer ExplainJob(const ServeContext& context, const std::string& body);
JobAnswer ClearJob(const LoadedService& loaded);
JobAnswer DropJob(const LoadedService& loaded, const std::string& id);
JobAnswer PinJob(const LoadedService& loaded, const std::string& id);
JobAnswer UnpinJob(const LoadedService& loaded, const std::string& id);

}  // namespace cairn
