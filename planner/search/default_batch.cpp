#include "planner/search/default_batch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "models/plan/parallel_plan.h"
#include "models/portable_math.h"
#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"

namespace qplan {
namespace {

// What a batch may be a multiple of, and what that is worth: shares of the layouts of one world.
using Wishes = std::map<std::int64_t, double>;

// A layout splits a model over t ranks (tensor and context parallelism) times p stages; its N / (t
// p) data-parallel ranks get whole micro-batches of 1, 2 or 4 sequences, and interleaved stages get
// a multiple of p of them. Larger micro-batches and degrees beyond 64 are rarer, and are left to
// chance. Heads are split evenly, and most models have a power of two of them, so that other
// numbers of ranks count for a tenth.
Wishes wishes_of(std::int64_t gpus) {
  constexpr std::int64_t kMostRanks = 64, kMostStages = 64;
  Wishes wishes;
  double all = 0;
  const auto wish = [&](std::int64_t factor, double weight) {
    wishes[factor] += weight;
    all += weight;
  };
  for (const std::int64_t t : divisors(gpus)) {
    if (t > kMostRanks) break;
    const double splits = std::has_single_bit(static_cast<std::uint64_t>(t)) ? 1 : 0.1;
    for (const std::int64_t p : divisors(gpus / t)) {
      if (p > kMostStages) break;
      for (const std::int64_t micro_batch : {1, 2, 4}) {
        const double weight = splits / static_cast<double>(micro_batch);
        wish(gpus / t / p * micro_batch, weight);
        if (p > 1) wish(gpus / t * micro_batch, weight);
      }
    }
  }
  for (auto& [factor, weight] : wishes) weight /= all;
  return wishes;
}

// The sequences in [low, high] and how many of a world's wishes each fulfils, 0 to 1.
struct Candidates {
  std::int64_t low = 1;
  std::vector<double> fulfilled;

  void add(const Wishes& wishes) {
    const std::int64_t high = low + std::ssize(fulfilled) - 1;
    for (const auto& [factor, weight] : wishes) {
      for (std::int64_t b = ceil_div(low, factor) * factor; b <= high; b += factor) {
        fulfilled[static_cast<std::size_t>(b - low)] += weight;
      }
    }
  }
};

// Of so many GPUs: 17 that get 1092 sequences are no data-parallel ranks, but one pipeline.
bool divides_among_ranks(std::int64_t batch, std::int64_t gpus) {
  return gpus == 1 || std::gcd(batch, gpus) > 1;
}

// The best of those within a factor of the wanted number that `counts`. 0: none serves any world.
template <class Counts>
std::int64_t best_within(double factor, double wanted, const std::vector<Wishes>& worlds,
                         Counts counts) {
  const auto most = static_cast<double>(kMostSequences);
  Candidates range;
  // 32 sequences over 4/3 are 24, whatever the last digit of the quotient.
  constexpr double kRounding = 1e-9;
  range.low = std::max<std::int64_t>(1, std::llround(std::ceil(wanted / factor - kRounding)));
  const std::int64_t high = std::llround(std::floor(std::min(wanted * factor + kRounding, most)));
  if (high < range.low) return 0;
  const auto count = static_cast<std::size_t>(high - range.low + 1);
  // Of several worlds each should get something: their geometric mean. A world that a batch does
  // not split over at all counts as a hundredth, not as nothing, for it may be that none does.
  constexpr double kNothing = 0.01;
  std::vector<double> value(count, 0);
  std::vector<bool> serves(count, false);
  for (const Wishes& wishes : worlds) {
    range.fulfilled.assign(count, 0);
    range.add(wishes);
    for (std::size_t i = 0; i < count; ++i) {
      value[i] += portable::log(kNothing + range.fulfilled[i]) / static_cast<double>(worlds.size());
      if (range.fulfilled[i] > 0) serves[i] = true;
    }
  }
  std::int64_t best = 0;
  double best_value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t batch = range.low + static_cast<std::int64_t>(i);
    if (!serves[i] || !counts(batch)) continue;
    // A batch that is a tenth off serves 5% more layouts, or it is not taken.
    constexpr double kDistance = 0.5;
    const double v =
        value[i] - kDistance * std::abs(portable::log(static_cast<double>(batch) / wanted));
    if (best == 0 || v > best_value) {
      best = batch;
      best_value = v;
    }
  }
  return best;
}

}  // namespace

std::int64_t default_seq_len(const ModelSpec& model) {
  const std::int64_t usual = ParallelPlan{}.seq_len, positions = model.max_position_embeddings;
  return positions > 0 ? std::min(usual, positions) : usual;
}

std::int64_t default_tokens(std::int64_t gpus) {
  constexpr std::int64_t kTokens = 4 << 20, kTokensOfGpu = 1024;
  return std::max(kTokens, kTokensOfGpu * gpus);
}

std::int64_t default_global_batch_size(std::span<const std::int64_t> gpus, std::int64_t seq_len) {
  std::vector<Wishes> worlds;
  std::int64_t tokens = 0;
  for (const std::int64_t n : gpus) {
    worlds.push_back(wishes_of(n));
    tokens = std::max(tokens, default_tokens(n));
  }
  const double wanted = std::max(1.0, static_cast<double>(tokens) / static_cast<double>(seq_len));
  // Within a third; worlds such as primes, whose data-parallel ranks are all or one, need more: to
  // divide among the ranks of each up to twice as many, to serve one whatever it takes.
  const auto most = static_cast<double>(kMostSequences);
  const auto serves_each = [&](std::int64_t batch) {
    return std::all_of(gpus.begin(), gpus.end(),
                       [&](std::int64_t n) { return divides_among_ranks(batch, n); });
  };
  constexpr double kFew = 8;  // of so few long sequences ranks share each
  for (const double factor : {4.0 / 3, 2.0}) {
    if (worlds.size() == 1 || wanted < kFew) break;
    if (const std::int64_t batch = best_within(factor, wanted, worlds, serves_each)) return batch;
  }
  const auto any = [](std::int64_t) { return true; };
  for (double factor = 4.0 / 3; wanted / factor <= most && factor < 2 * most; factor *= 1.5) {
    if (const std::int64_t batch = best_within(factor, wanted, worlds, any)) return batch;
  }
  return std::llround(wanted);
}

std::int64_t default_global_batch_size(std::int64_t gpus, std::int64_t seq_len) {
  return default_global_batch_size(std::span(&gpus, 1), seq_len);
}

}  // namespace qplan
