#pragma once
// How long answers are: what a rollout takes depends on the longest, what is trained on their sum.

#include <cstdint>
#include <vector>

namespace qplan {

// Lengths in tokens. Either stated one by one, or drawn from a log-normal distribution cut off at
// `max`, whose mean (after the cut) is `mean`.
struct ResponseLengths {
  double mean = 1024;
  std::int64_t max = 4096;
  // Standard deviation of the logarithm before the cut. 0.6 is taken where nobody says: no
  // published run that we hold says more than mean and maximum. The higher, the more answers reach
  // the cut and the longer the few last ones keep an engine from the next phase.
  double spread = 0.6;
  std::vector<std::int64_t> stated{};  // empty: the distribution

  // `n` lengths, ascending: the distribution's quantiles at (i + 1/2) / n, each at least 1.
  [[nodiscard]] std::vector<std::int64_t> quantiles(std::int64_t n) const;
};

}  // namespace qplan
