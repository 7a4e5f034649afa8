#pragma once
// Answers that are made once and remembered. Private to costmodel.

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace qplan {

// A map shared by threads: values are made outside the lock and never change once stored.
template <class Key, class Value, class Hash>
class SharedMemo {
 public:
  template <class Make>
  const Value& get(const Key& key, Make make) {
    Shard& shard = shards_[Hash{}(key) % kShards];
    {
      const std::lock_guard lock(shard.mutex);
      const auto it = shard.map.find(key);
      if (it != shard.map.end()) return *it->second;
    }
    auto value = std::make_unique<Value>(make());
    const std::lock_guard lock(shard.mutex);
    return *shard.map.try_emplace(key, std::move(value)).first->second;
  }

 private:
  static constexpr std::size_t kShards = 64;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<Key, std::unique_ptr<Value>, Hash> map;
  };
  std::array<Shard, kShards> shards_;
};

}  // namespace qplan
