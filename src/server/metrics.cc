#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

#include "base/env.h"

namespace cairn {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

prometheus::Histogram::BucketBoundaries Bounds(double first, double last) {
  prometheus::Histogram::BucketBoundaries bounds;
  for (double decade = first; decade <= last; decade *= 10) {
    for (const double step : {1.0, 2.5, 5.0}) bounds.push_back(decade * step);
  }
  return bounds;
}

struct Sample {
  double value;
  Labels labels = {};
};

// A family whose values lie elsewhere.
MetricFamily MakeFamily(std::string name, std::string help, MetricType type,
                        std::vector<Sample> samples) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  for (Sample& s : samples) {
    ClientMetric metric;
    metric.label = std::move(s.labels);
    if (type == MetricType::Counter)
      metric.counter.value = s.value;
    else
      metric.gauge.value = s.value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

double Value(const std::atomic<uint64_t>& x) { return static_cast<double>(x.load()); }
double Value(const std::atomic<int64_t>& x) { return static_cast<double>(x.load()); }
double Rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  prometheus::Histogram& ttft =
      Histogram("cairn_ttft_seconds", "Submission to the first token", Bounds(1e-3, 1e3));
  prometheus::Histogram& inter_token =
      Histogram("cairn_inter_token_seconds", "Between two tokens of one answer", Bounds(1e-4, 10));
  prometheus::Histogram& step =
      Histogram("cairn_step_seconds", "One step of the engine", Bounds(1e-4, 10));
  prometheus::Histogram& snapshot =
      Histogram("cairn_snapshot_seconds",
                "Saving or restoring the states of one sequence in a step", Bounds(1e-6, 1));
  prometheus::Family<prometheus::Counter>& replies =
      prometheus::BuildCounter()
          .Name("cairn_requests_total")
          .Help("Replies by route and status; 499: the client left first")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& lookups =
      prometheus::BuildCounter()
          .Name("cairn_cache_lookups_total")
          .Help("Prompts by what the cache gave: hit, partial, miss; and why not more")
          .Register(registry);
  std::atomic<uint64_t> prompt_us{0}, predicted_us{0};

  prometheus::Histogram& Histogram(const char* name, const char* help,
                                   prometheus::Histogram::BucketBoundaries bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(
        {}, std::move(bounds));
  }
  void AddEngine(const Engine& engine, int64_t pending, std::vector<MetricFamily>& out) const;
  void AddLlamaNames(const EngineStats& s, int64_t pending, std::vector<MetricFamily>& out) const;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

EngineObserver Metrics::Observer() {
  Impl* m = impl_.get();
  EngineObserver o;
  o.step = [m](double seconds) { m->step.Observe(seconds); };
  o.snapshot = [m](double seconds) { m->snapshot.Observe(seconds); };
  o.inter_token = [m](double seconds) { m->inter_token.Observe(seconds); };
  o.ttft = [m](double seconds) { m->ttft.Observe(seconds); };
  o.lookup = [m](const ReuseReport& r) {
    const char* result = r.restore_point == 0 ? "miss" : r.miss_reason ? "partial" : "hit";
    const char* reason = r.miss_reason ? MissReasonName(*r.miss_reason) : "none";
    m->lookups.Add({{"result", result}, {"reason", reason}}).Increment();
  };
  return o;
}

void Metrics::CountReply(std::string_view route, int status) {
  impl_->replies.Add({{"route", std::string(route)}, {"code", std::to_string(status)}}).Increment();
}

void Metrics::CountTimes(double prompt_seconds, double predicted_seconds) {
  impl_->prompt_us += static_cast<uint64_t>(prompt_seconds * 1e6);
  impl_->predicted_us += static_cast<uint64_t>(predicted_seconds * 1e6);
}

std::string Metrics::Text(const Engine* engine, int64_t pending) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  if (engine != nullptr) {
    impl_->AddEngine(*engine, pending, families);
    impl_->AddLlamaNames(engine->stats(), pending, families);
  }
  return prometheus::TextSerializer().Serialize(families);
}

void Metrics::Impl::AddEngine(const Engine& engine, int64_t pending,
                              std::vector<MetricFamily>& out) const {
  const EngineStats& s = engine.stats();
  auto counter = [&](const char* name, const char* help, std::vector<Sample> samples) {
    out.push_back(MakeFamily(name, help, MetricType::Counter, std::move(samples)));
  };
  auto gauge = [&](const char* name, const char* help, std::vector<Sample> samples) {
    out.push_back(MakeFamily(name, help, MetricType::Gauge, std::move(samples)));
  };
  counter("cairn_prompt_tokens_total", "Prompt tokens, restored ones included",
          {{Value(s.prompt_tokens)}});
  counter("cairn_cached_tokens_total", "Prompt tokens restored from checkpoints",
          {{Value(s.cached_tokens)}});
  counter("cairn_replayed_tokens_total", "Prompt tokens computed", {{Value(s.replayed_tokens)}});
  counter("cairn_generated_tokens_total", "Tokens generated", {{Value(s.generated_tokens)}});
  counter("cairn_steps_total", "Steps of the engine", {{Value(s.steps)}});
  counter("cairn_preemptions_total", "Sequences put back into the queue for lack of memory",
          {{Value(s.preemptions)}});
  counter("cairn_evictions_total", "States and leaves that the cache let go, by the limit",
          {{Value(s.evictions_bytes), {{"reason", "bytes"}}},
           {Value(s.evictions_paths), {{"reason", "paths"}}}});
  counter("cairn_engine_faults_total", "Exceptions that ended what ran", {{Value(s.faults)}});
  counter("cairn_shared_waits_total", "Requests that waited for another one's common prefix",
          {{Value(s.shared_waits)}});
  gauge("cairn_checkpoints", "Checkpoints held", {{Value(s.checkpoints), {{"tier", "memory"}}}});
  gauge("cairn_cache_bytes", "States and KV of the prompt cache",
        {{Value(s.cache_bytes), {{"tier", "memory"}}}});
  gauge("cairn_memory_bytes", "Memory by what it is for; resident: the whole process",
        {{static_cast<double>(engine.model().info().weight_bytes), {{"kind", "weights"}}},
         {Value(s.live_bytes), {{"kind", "live"}}},
         {Value(s.cache_bytes), {{"kind", "cache"}}},
         {Value(s.scratch_bytes), {{"kind", "scratch"}}},
         {Value(s.other_bytes), {{"kind", "other"}}},
         {Value(s.pool_bytes) - Value(s.live_bytes) - Value(s.cache_bytes), {{"kind", "rounding"}}},
         {Value(s.budget_bytes), {{"kind", "budget"}}},
         {static_cast<double>(ResidentBytes()), {{"kind", "resident"}}}});
  gauge("cairn_slots_busy", "Sequences that prefill or decode", {{Value(s.slots_busy)}});
  gauge("cairn_queue_length", "Requests that wait for a slot",
        {{Value(s.queue_length) + static_cast<double>(pending)}});
}

// The names of llama.cpp's server, for dashboards made for it.
void Metrics::Impl::AddLlamaNames(const EngineStats& s, int64_t pending,
                                  std::vector<MetricFamily>& out) const {
  const double prompt_seconds = Value(prompt_us) / 1e6;
  const double predicted_seconds = Value(predicted_us) / 1e6;
  auto add = [&](const char* name, const char* help, MetricType type, double value) {
    out.push_back(MakeFamily(std::string("llamacpp:") + name, help, type, {{value}}));
  };
  add("prompt_tokens_total", "Prompt tokens processed", MetricType::Counter,
      Value(s.replayed_tokens));
  add("prompt_seconds_total", "Prompt processing time", MetricType::Counter, prompt_seconds);
  add("tokens_predicted_total", "Tokens generated", MetricType::Counter, Value(s.generated_tokens));
  add("tokens_predicted_seconds_total", "Generation time", MetricType::Counter, predicted_seconds);
  add("n_decode_total", "Steps of the engine", MetricType::Counter, Value(s.steps));
  add("prompt_tokens_seconds", "Average prompt tokens a second", MetricType::Gauge,
      Rate(Value(s.replayed_tokens), prompt_seconds));
  add("predicted_tokens_seconds", "Average generated tokens a second", MetricType::Gauge,
      Rate(Value(s.generated_tokens), predicted_seconds));
  add("requests_processing", "Requests that prefill or decode", MetricType::Gauge,
      Value(s.slots_busy));
  add("requests_deferred", "Requests that wait for a slot", MetricType::Gauge,
      Value(s.queue_length) + static_cast<double>(pending));
}

}  // namespace cairn
