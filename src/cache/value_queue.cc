#include "cache/value_queue.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace cairn {
namespace {

constexpr int kHalfOctaves = 1 << 9;  // more than a double's exponents that occur

// Half-octave of saved / bytes, class, leaf or not.
int BucketOf(const ValueItem& item) {
  const double ratio =
      std::max(item.saved, 1e-9) / static_cast<double>(std::max<uint64_t>(1, item.bytes));
  int exponent;
  const double mantissa = std::frexp(ratio, &exponent);  // [0.5, 1)
  const int half = std::clamp(2 * exponent + (mantissa >= 0.70710678 ? 1 : 0), -kHalfOctaves / 2,
                              kHalfOctaves / 2 - 1);
  const int density = half + kHalfOctaves / 2;
  return (item.reuse_class.index() * kHalfOctaves + density) * 2 + item.is_leaf;
}

}  // namespace

ValueQueue::Key ValueQueue::Insert(const ValueItem& item) {
  const Key key{BucketOf(item), item.last_request, item.id};
  Items made;  // where there is no memory, nothing is changed, and no bucket is left empty
  made.emplace(std::pair(key.last_request, key.id), item);
  CHECK(buckets_[key.bucket].insert(made.extract(made.begin())).inserted);
  ++size_;
  return key;
}

void ValueQueue::Erase(const Key& key) {
  const auto bucket = buckets_.find(key.bucket);
  CHECK(bucket != buckets_.end() && bucket->second.erase({key.last_request, key.id}) == 1);
  if (bucket->second.empty()) buckets_.erase(bucket);
  --size_;
}

const ValueItem& ValueQueue::Get(const Key& key) const {
  return buckets_.at(key.bucket).at({key.last_request, key.id});
}

double ValueQueue::Value(const ReuseModel& model, uint64_t now, const ValueItem& item) {
  return model.Rate(item.reuse_class, now - item.last_request) * item.saved /
         static_cast<double>(std::max<uint64_t>(1, item.bytes));
}

std::optional<ValueQueue::Victim> ValueQueue::Least(const ReuseModel& model, uint64_t now,
                                                    bool leaves_only) const {
  const ValueItem* least = nullptr;
  double least_value = 0;
  for (const auto& [bucket, items] : buckets_) {
    const ValueItem& item = items.begin()->second;
    if (leaves_only && !item.is_leaf) continue;
    const double value = Value(model, now, item);
    const auto order = [](const ValueItem& i) { return std::pair(i.last_request, i.id); };
    if (least == nullptr || value < least_value ||
        (value == least_value && order(item) < order(*least))) {
      least = &item;
      least_value = value;
    }
  }
  if (least == nullptr) return std::nullopt;
  return Victim{least->node, least_value};
}

}  // namespace cairn
