#pragma once
// One's own runs correct a machine's profile: three factors that mean something, each held to 1 as
// firmly as the stated interval is narrow.

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/evaluate.h"
#include "costmodel/profiles/hardware.h"

namespace qplan {

// What a profile's figures are multiplied by.
struct FitFactors {
  double compute = 1;        // rates of matrix products, attention and scans in long runs
  double communication = 1;  // rates of collectives in a node and of the network
  double launch = 1;         // what the host takes to launch an op
};
struct FitFactor {
  std::string_view key, label;
  double FitFactors::*value;
};
std::span<const FitFactor> fit_factors();

// A measured run, and what a machine makes of it; none: it cannot be asked about.
struct FitRun {
  std::string name;
  Seconds measured;
  std::function<std::optional<Estimate>(const HardwareProfile&)> predict;
};

// What a recorded step says of one factor alone: kernels of products and attention took `ratio`
// times what they were predicted to.
struct TracedCompute {
  std::string name;
  double ratio = 1;
};

struct FittedRun {
  std::string name;
  double measured_s = 0;
  double before_s = 0, after_s = 0;  // predicted
  double sigma_before = 0;           // relative, of the stated interval
  double sigma_after = 0;            // ... with what these runs told
  [[nodiscard]] double error_before() const { return before_s / measured_s - 1; }
  [[nodiscard]] double error_after() const { return after_s / measured_s - 1; }
  // Corrected as far as may be and still more than twice as far off as the stated interval reaches,
  // as no more than 1% of a normal distribution are: nothing of such a run makes others surer.
  [[nodiscard]] bool stays_outside() const;
};

struct ProfileFit {
  FitFactors factors;
  FitFactors spread;         // one sigma of each factor's logarithm, afterwards
  FitFactors spread_before;  // ... and before, by the interval
  double narrowed = 1;       // sigma of a further run of this kind, after over before; 1 where a
                             // run stays outside
  std::vector<FittedRun> runs;
  bool traces_count = false;  // false, too, where the runs would fit worse with what traces say
  Json overlay;               // what the corrected profile says, without `extends`
};

// Minimises sum (ln(measured / predicted) / noise)^2 + sum (ln factor / prior)^2, so that the first
// sum is never larger than it was at factors of 1. Traces hold their factor to what they say, but
// for a fit in which that sum would grow. `base`: a built-in machine or a profile's file.
// Throws Error where no run can be predicted, or one is faster than its GPUs' peak.
ProfileFit fit_profile(const std::string& base, const std::vector<FitRun>& runs,
                       const std::vector<TracedCompute>& traces = {});

// The machine with the factors on it; `base` as above.
HardwareProfile corrected_machine(const std::string& base, const FitFactors& factors,
                                  double narrowed = 1);

}  // namespace qplan
