#pragma once
// Random numbers by counter: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC'11). A number depends on (key, counter) and on nothing drawn before, so every rank can
// make just its shard of a parameter, in any order, and all plans start from the same model.

#include <array>
#include <cstdint>

namespace qplan {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

constexpr PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  // Multipliers, and the increments of the key between rounds, of the paper's section 4.3.
  constexpr std::uint64_t m0 = 0xD2511F53U, m1 = 0xCD9E8D57U;
  constexpr std::uint32_t w0 = 0x9E3779B9U, w1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = m0 * counter[0], b = m1 * counter[2];
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32U); };
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    counter = {high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)};
    key[0] += w0;
    key[1] += w1;
  }
  return counter;
}

// What a stream of numbers is for: streams of one seed do not overlap.
enum class RandomStream : std::uint32_t { weights = 1, tokens = 2, images = 3 };

// Block `index` of number `which` (a parameter, a sequence) of a stream. A seed has 64 bits.
constexpr PhiloxBlock random_block(std::uint64_t seed, RandomStream stream, std::uint32_t which,
                                   std::uint64_t index) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  return philox({low(index), low(index >> 32U), which, static_cast<std::uint32_t>(stream)},
                {low(seed), low(seed >> 32U)});
}

}  // namespace qplan
