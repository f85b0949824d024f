// What the routes about the cache and the slots show, as JSON. Threads: pure functions.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"
#include "engine/cache_admin.h"
#include "engine/engine.h"

namespace cairn {

std::string CacheJson(const CacheView& view,
                      const std::function<std::string(std::span<const Token>)>& text_of);
std::string ExplanationJson(const CacheExplanation& explanation);
// llama.cpp's shape: one object for each slot, idle ones too.
std::string SlotsJson(const std::vector<EngineView::SequenceInfo>& sequences, int slot_count,
                      int64_t context_length);

}  // namespace cairn
