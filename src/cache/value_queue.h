// Everything that `--cache-policy value` may evict, so arranged that the least valuable is found
// without looking at all of it.
//
// The value of an item is  rate(class, age) * saved / bytes:  the replay cost that keeping it saves
// in the next request, on average, for each byte that letting it go frees. Items of one class whose
// saved / bytes differ by less than a factor of sqrt(2) lie in one bucket, oldest first; as rates
// fall with age, only the oldest of each bucket is looked at. A choice costs O(buckets) (a few
// hundred at most, whatever the number of items), a change O(log items).
//
// Threads: one. Deterministic: ties go to the older, then to the smaller id.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "cache/reuse_model.h"

namespace cairn {

struct TreeNode;

struct ValueItem {
  uint64_t id = 0;
  TreeNode* node = nullptr;
  ReuseClass reuse_class;
  uint64_t last_request = 0;  // of the clock that counts requests
  double saved = 0;           // replay cost
  uint64_t bytes = 0;
  bool is_leaf = false;
};

class ValueQueue {
 public:
  // The place of an item, for Erase.
  struct Key {
    int bucket = 0;
    uint64_t last_request = 0, id = 0;
  };
  struct Victim {
    TreeNode* node;
    double value;
  };

  Key Insert(const ValueItem& item);
  void Erase(const Key& key);
  const ValueItem& Get(const Key& key) const;  // REQUIRES: it is there
  // The least valuable item now; nullopt: there is none.
  std::optional<Victim> Least(const ReuseModel& model, uint64_t now, bool leaves_only) const;
  static double Value(const ReuseModel& model, uint64_t now, const ValueItem& item);
  size_t size() const { return size_; }
  size_t bucket_count() const { return buckets_.size(); }
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (const auto& [bucket, items] : buckets_) {
      for (const auto& [key, item] : items) fn(item);
    }
  }

 private:
  using Items = std::map<std::pair<uint64_t, uint64_t>, ValueItem>;  // by last request, id
  std::map<int, Items> buckets_;
  size_t size_ = 0;
};

}  // namespace cairn
