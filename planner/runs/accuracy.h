#pragma once
// How far predictions are from measurements: figures of pairs (docs/reference/contract.md 7).

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace qplan {

// A number measured and the one predicted for it, in one unit.
struct Pair {
  double measured = 0, predicted = 0;
  [[nodiscard]] double error() const { return predicted / measured - 1; }
};

// One measured run beside what was said of it.
struct Outcome {
  std::string id, source;
  std::string set;   // what a ranking set shares; empty: no set
  std::string plan;  // what its members differ in
  std::string kin;   // the plan but for the ZeRO stage and the micro-batch
  int zero = 0;
  std::int64_t micro_batch = 0;
  double bubble = 1;      // (m + pp - 1) / m, of m microbatches
  bool unsteady = false;  // MeasuredRun::unsteady
  bool failed = false;
  std::optional<double> measured_step_s;
  std::optional<double> step_s, step_low_s, step_high_s;  // predicted; none: not priced
  std::optional<Pair> memory;                             // where both are known and of one kind
  std::string unpriced;          // a reason that starts with its kind, up to ": "; empty: priced
  std::optional<bool> feasible;  // none: cannot be asked about
};
using Outcomes = std::vector<const Outcome*>;

// Of errors predicted/measured - 1. A figure of no rows is absent.
struct ErrorFigures {
  std::size_t rows = 0;
  std::optional<double> median_abs, mean_abs, p90_abs, worst_abs, median_signed;
};

struct RankingFigures {
  std::size_t sets = 0;
  std::optional<double> kendall_tau, top1_regret;
};

// Feasibility called right and wrong.
struct FitFigures {
  std::size_t ok_called_feasible = 0, ok_called_infeasible = 0;
  std::size_t failed_called_infeasible = 0, failed_called_feasible = 0;
};

// The stated interval: the share of measurements inside it, and half its width over the prediction.
struct IntervalFigures {
  std::optional<double> coverage, median_half_width;
};

struct Figures {
  std::size_t rows = 0, priced = 0;
  std::map<std::string, std::size_t> unpriced;  // kind of reason -> rows
  ErrorFigures step_time, memory;
  RankingFigures ranking;
  FitFigures fits;
  IntervalFigures interval;
};

// Whether every row counts alike, or every source (with its rows sharing its weight). Counts are of
// rows either way.
enum class Weighting { rows, sources };
Figures figures_of(const Outcomes& outcomes, Weighting weighting = Weighting::rows);

// Two runs alike but for ZeRO 0 or 1 move the same bytes; where their measured times differ by more
// than kTwinRatio, something else was in play, and which of the two it hit cannot be told. A larger
// micro-batch does the same work in fewer and larger pieces; where it takes over kSlowRatio times
// as long as a smaller one, pipeline bubbles aside, something else hit it; as it did a run whose
// own steps differ.
inline constexpr double kTwinRatio = 1.5, kSlowRatio = 2;
// The outcomes that this puts in doubt, in their order.
Outcomes in_doubt(const Outcomes& outcomes);
// `outcomes` without those in `apart`.
Outcomes without(const Outcomes& outcomes, const Outcomes& apart);

// Smallest ranking set: distinct plans with a measured time.
inline constexpr std::size_t kSmallestSet = 4;

}  // namespace qplan
