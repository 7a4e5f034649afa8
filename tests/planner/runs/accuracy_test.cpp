#include "planner/runs/accuracy.h"

#include <doctest/doctest.h>

namespace qplan {
namespace {

// Sums of a few doubles: what is left is rounding.
constexpr double kRounding = 1e-12;

bool near(const std::optional<double>& value, double expected) {
  return value && *value == doctest::Approx(expected).epsilon(kRounding);
}

Outcome timed(const std::string& source, double measured, double predicted) {
  Outcome o;
  o.id = source + "-" + std::to_string(measured);
  o.source = source;
  o.measured_step_s = measured;
  o.step_s = predicted;
  o.step_low_s = 0.9 * predicted;
  o.step_high_s = 1.2 * predicted;
  o.feasible = true;
  return o;
}

Outcome ranked(const std::string& plan, double measured, double predicted) {
  Outcome o = timed("s", measured, predicted);
  o.set = "set";
  o.plan = plan;
  o.failed = measured == 0;
  if (o.failed) o.measured_step_s.reset();
  return o;
}

Outcomes pointers(const std::vector<Outcome>& outcomes) {
  Outcomes list;
  for (const Outcome& o : outcomes) list.push_back(&o);
  return list;
}

TEST_CASE("errors are predicted over measured less one") {
  const std::vector<Outcome> runs{timed("a", 1, 1.1), timed("a", 2, 1.8), timed("a", 4, 5.2)};
  const ErrorFigures f = figures_of(pointers(runs)).step_time;
  CHECK(f.rows == 3);
  CHECK(near(f.median_abs, 0.1));
  CHECK(near(f.mean_abs, 0.5 / 3));
  CHECK(near(f.worst_abs, 0.3));
  CHECK(near(f.median_signed, 0.1));
  CHECK(near(f.p90_abs, 0.1 + 0.8 * 0.2));  // (n-1) x 0.9 = 1.8
}

TEST_CASE("a figure of no rows is absent") {
  const Figures f = figures_of({});
  CHECK_FALSE(f.step_time.median_abs);
  CHECK_FALSE(f.memory.p90_abs);
  CHECK_FALSE(f.ranking.kendall_tau);
  CHECK_FALSE(f.ranking.top1_regret);
  CHECK_FALSE(f.interval.coverage);
}

TEST_CASE("sources weigh alike however many rows they have") {
  std::vector<Outcome> runs(9, timed("many", 1, 1.1));
  runs.push_back(timed("one", 1, 1.5));
  CHECK(near(figures_of(pointers(runs)).step_time.mean_abs, 0.14));
  CHECK(near(figures_of(pointers(runs), Weighting::sources).step_time.mean_abs, 0.3));
}

TEST_CASE("the interval covers what lies between its ends, ends included") {
  const std::vector<Outcome> runs{timed("a", 0.9, 1), timed("a", 1.2, 1), timed("a", 1.3, 1),
                                  timed("a", 0.8, 1)};
  const IntervalFigures f = figures_of(pointers(runs)).interval;
  CHECK(near(f.coverage, 0.5));
  CHECK(near(f.median_half_width, 0.15));
}

TEST_CASE("top-1 regret is the throughput lost by the plan ranked first") {
  const std::vector<Outcome> runs{ranked("p", 2, 1), ranked("q", 1, 2), ranked("r", 4, 3),
                                  ranked("s", 5, 4)};
  const RankingFigures f = figures_of(pointers(runs)).ranking;
  CHECK(f.sets == 1);
  CHECK(near(f.top1_regret, 0.5));  // p takes 2 s where q takes 1
}

TEST_CASE("to rank a failed run first, or to call none feasible, costs everything") {
  std::vector<Outcome> runs{ranked("p", 2, 2), ranked("q", 1, 3), ranked("r", 4, 4),
                            ranked("s", 5, 5), ranked("failed", 0, 1)};
  CHECK(near(figures_of(pointers(runs)).ranking.top1_regret, 1));
  runs.back().feasible = false;  // foreseen: then p is ranked first
  CHECK(near(figures_of(pointers(runs)).ranking.top1_regret, 0.5));
  for (Outcome& o : runs) o.feasible = false;
  CHECK(near(figures_of(pointers(runs)).ranking.top1_regret, 1));
}

TEST_CASE("a ranking set has at least four plans, and one plan twice is one") {
  const std::vector<Outcome> runs{ranked("p", 2, 1), ranked("q", 1, 2), ranked("r", 4, 3),
                                  ranked("r", 5, 3)};
  CHECK(figures_of(pointers(runs)).ranking.sets == 0);
}

TEST_CASE("a run that cannot be priced is missing, and still may have been the best") {
  std::vector<Outcome> runs{ranked("p", 2, 1), ranked("q", 3, 2), ranked("r", 4, 3),
                            ranked("unpriced", 1, 0)};
  runs.back().step_s.reset();
  runs.back().feasible.reset();
  runs.back().unpriced = "no such thing: at all";
  const Figures f = figures_of(pointers(runs));
  CHECK(f.priced == 3);
  CHECK(f.unpriced.at("no such thing") == 1);
  CHECK(f.step_time.rows == 3);
  CHECK(near(f.ranking.top1_regret, 0.5));
}

TEST_CASE("feasibility is counted by what happened and what was said") {
  std::vector<Outcome> runs{ranked("p", 1, 1), ranked("q", 2, 2), ranked("r", 0, 3),
                            ranked("s", 0, 4)};
  runs[1].feasible = false;
  runs[2].feasible = false;
  const FitFigures f = figures_of(pointers(runs)).fits;
  CHECK(f.ok_called_feasible == 1);
  CHECK(f.ok_called_infeasible == 1);
  CHECK(f.failed_called_infeasible == 1);
  CHECK(f.failed_called_feasible == 1);
}

TEST_CASE("ZeRO twins more than half as long again apart are both in doubt") {
  std::vector<Outcome> runs{timed("a", 1, 1), timed("a", 1.6, 1), timed("a", 1, 1),
                            timed("a", 1.4, 1), timed("a", 9, 1)};
  const std::vector<std::string> twins{"x", "x", "y", "y", "z"};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].kin = twins[i];
    runs[i].zero = static_cast<int>(i % 2);
  }
  const Outcomes all = pointers(runs);
  const Outcomes apart = in_doubt(all);
  CHECK(apart == Outcomes{&runs[0], &runs[1]});
  CHECK(without(all, apart) == Outcomes{&runs[2], &runs[3], &runs[4]});
  // The same plan measured twice is noise, not a twin.
  runs[1].zero = runs[0].zero;
  CHECK(in_doubt(all).empty());
}

TEST_CASE("a run whose own steps differ is in doubt") {
  std::vector<Outcome> runs{timed("a", 1, 1), timed("a", 1, 1)};
  runs[1].unsteady = true;
  CHECK(in_doubt(pointers(runs)) == Outcomes{&runs[1]});
}

TEST_CASE(
    "a run over twice as slow as one with a smaller micro-batch is in doubt, but for bubbles") {
  std::vector<Outcome> runs{timed("a", 1, 1), timed("a", 2.2, 1), timed("a", 1.9, 1)};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].kin = "x";
    runs[i].micro_batch = static_cast<std::int64_t>(i + 1);
  }
  const Outcomes all = pointers(runs);
  CHECK(in_doubt(all) == Outcomes{&runs[1]});
  runs[1].bubble = 1.5;  // fewer microbatches: a longer bubble
  CHECK(in_doubt(all).empty());
}

}  // namespace
}  // namespace qplan
