// A model file or directory with all that running it takes: weights, tokenizer, template. Shared by
// the subcommands.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "flags.h"
#include "model/model.h"
#include "text/prompt_builder.h"
#include "text/tokenizer.h"

namespace cairn {

struct LoadedModel {
  std::string path;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const PromptBuilder> prompts;  // template and turn headers
  std::vector<Token> end_tokens;                 // that end a generation, ascending
  std::string template_source;                   // empty: ChatML
};

// What a subcommand may change about templates.
struct TemplateFlags {
  std::string chat_template;       // text, or the path of a file that holds it; empty: the model's
  std::string chat_template_args;  // JSON object; empty: none
};

// Loads --model, showing progress where standard error is a terminal.
Result<LoadedModel> LoadModelFile(const ModelFlags& flags, const TemplateFlags& templates = {});

// What the engine must know of the model and its text side, as far as `flags` do not say.
void AddModelOptions(const LoadedModel& loaded, const EngineFlags& flags, EngineOptions& options);

// Prints what is not ok in one line on standard error. 0 = ok, 2 = the user's input, 1 = anything
// else.
int ExitStatus(const Status& status);

}  // namespace cairn
