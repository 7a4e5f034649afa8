#pragma once
// The one way that numbers become a hash: FNV-1a over whole words, with the upper bits folded down.

#include <cstdint>

namespace qplan {

inline constexpr std::uint64_t kHashSeed = 14695981039346656037ULL;  // FNV-1a's offset basis

constexpr std::uint64_t hash_mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 1099511628211ULL;  // FNV's prime
  return hash ^ (hash >> 31U);
}

}  // namespace qplan
