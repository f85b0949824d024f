// What /metrics shows: counters and gauges of the engine as they are at the moment of scraping,
// histograms that the engine fills, and replies by route and status. prometheus-cpp is included
// only by metrics.cc. Owns: histograms and reply counters. Threads: all members from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace cairn {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  // What the engine shall call. Metrics must outlive it.
  EngineObserver Observer();
  void CountReply(std::string_view route, int status);
  // Of a finished answer, for the llamacpp:*_seconds counters.
  void CountTimes(double prompt_seconds, double predicted_seconds);

  // The text format. engine: nullptr while the model loads. pending: requests that are read but not
  // submitted yet.
  std::string Text(const Engine* engine, int64_t pending) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
