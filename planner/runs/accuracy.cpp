#include "planner/runs/accuracy.h"

#include <algorithm>
#include <cmath>

#include "models/statistics.h"

namespace qplan {
namespace {

// What one item weighs: 1, or its share of its source.
class Weights {
 public:
  Weights(Weighting weighting, const std::vector<std::string>& sources) : weighting_(weighting) {
    for (const std::string& source : sources) count_[source] += 1;
  }
  [[nodiscard]] double of(const std::string& source) const {
    return weighting_ == Weighting::rows ? 1.0 : 1.0 / static_cast<double>(count_.at(source));
  }

 private:
  Weighting weighting_;
  std::map<std::string, std::size_t> count_;
};

template <class Member>
Weights weights_of(const Outcomes& outcomes, Weighting weighting, Member counts) {
  std::vector<std::string> sources;
  for (const Outcome* o : outcomes) {
    if (counts(*o)) sources.push_back(o->source);
  }
  return {weighting, sources};
}

ErrorFigures error_figures(const std::vector<std::pair<Pair, double>>& pairs) {
  ErrorFigures figures;
  figures.rows = pairs.size();
  Weighted absolute, with_sign;
  for (const auto& [pair, weight] : pairs) {
    with_sign.emplace_back(pair.error(), weight);
    absolute.emplace_back(std::abs(pair.error()), weight);
  }
  figures.median_abs = quantile(absolute, 0.5);
  figures.mean_abs = weighted_mean(absolute);
  figures.p90_abs = quantile(absolute, 0.9);
  figures.worst_abs = quantile(absolute, 1);
  figures.median_signed = quantile(with_sign, 0.5);
  return figures;
}

bool is_timed(const Outcome& o) {
  return !o.failed && o.measured_step_s && o.step_s;
}

ErrorFigures time_figures(const Outcomes& outcomes, Weighting weighting) {
  const Weights weights = weights_of(outcomes, weighting, is_timed);
  std::vector<std::pair<Pair, double>> pairs;
  for (const Outcome* o : outcomes) {
    if (!is_timed(*o)) continue;
    pairs.emplace_back(Pair{*o->measured_step_s, *o->step_s}, weights.of(o->source));
  }
  return error_figures(pairs);
}

ErrorFigures memory_figures(const Outcomes& outcomes, Weighting weighting) {
  const auto has_memory = [](const Outcome& o) { return o.memory.has_value(); };
  const Weights weights = weights_of(outcomes, weighting, has_memory);
  std::vector<std::pair<Pair, double>> pairs;
  for (const Outcome* o : outcomes) {
    if (has_memory(*o)) pairs.emplace_back(*o->memory, weights.of(o->source));
  }
  return error_figures(pairs);
}

IntervalFigures interval_figures(const Outcomes& outcomes, Weighting weighting) {
  const Weights weights = weights_of(outcomes, weighting, is_timed);
  Weighted inside, half_widths;
  for (const Outcome* o : outcomes) {
    if (!is_timed(*o)) continue;
    const double weight = weights.of(o->source);
    const bool covered =
        *o->measured_step_s >= *o->step_low_s && *o->measured_step_s <= *o->step_high_s;
    inside.emplace_back(covered ? 1 : 0, weight);
    half_widths.emplace_back((*o->step_high_s - *o->step_low_s) / 2 / *o->step_s, weight);
  }
  return {weighted_mean(inside), quantile(half_widths, 0.5)};
}

// ---- ranking ----

// One plan of a set; the same plan measured again is not another plan.
struct Contender {
  double measured = 0;  // mean over the runs that worked; 0: none did
  std::optional<double> predicted;
  bool feasible = false;
};

struct RankingSet {
  std::string source;
  std::vector<Contender> contenders;
};

Contender merged(const Outcomes& same_plan) {
  Contender c;
  std::size_t worked = 0;
  for (const Outcome* o : same_plan) {
    if (!o->failed) {
      c.measured += *o->measured_step_s;
      ++worked;
    }
    if (!c.predicted) c.predicted = o->step_s;
    c.feasible = c.feasible || (o->feasible.value_or(false) && o->step_s);
  }
  if (worked > 0) c.measured /= static_cast<double>(worked);
  return c;
}

std::vector<RankingSet> ranking_sets(const Outcomes& outcomes) {
  std::map<std::string, std::map<std::string, Outcomes>> by_set;
  for (const Outcome* o : outcomes) {
    if (!o->set.empty() && (o->failed || o->measured_step_s)) by_set[o->set][o->plan].push_back(o);
  }
  std::vector<RankingSet> sets;
  for (const auto& [name, plans] : by_set) {
    RankingSet set{plans.begin()->second.front()->source, {}};
    std::size_t measured = 0;
    for (const auto& [plan, same] : plans) {
      set.contenders.push_back(merged(same));
      if (set.contenders.back().measured > 0) ++measured;
    }
    if (measured >= kSmallestSet) sets.push_back(std::move(set));
  }
  return sets;
}

std::optional<double> tau_of(const RankingSet& set) {
  std::vector<std::pair<double, double>> pairs;
  for (const Contender& c : set.contenders) {
    if (c.measured > 0 && c.predicted) pairs.emplace_back(c.measured, *c.predicted);
  }
  return kendall_tau_b(pairs);
}

// Throughput lost by running the plan predicted fastest among those called feasible.
double regret_of(const RankingSet& set) {
  const Contender* picked = nullptr;
  double best = 0;  // measured step time
  for (const Contender& c : set.contenders) {
    if (c.measured > 0 && (best == 0 || c.measured < best)) best = c.measured;
    if (!c.feasible) continue;
    if (picked == nullptr || *c.predicted < *picked->predicted) picked = &c;
  }
  if (picked == nullptr || picked->measured == 0) return 1;
  return 1 - best / picked->measured;
}

RankingFigures ranking_figures(const Outcomes& outcomes, Weighting weighting) {
  const std::vector<RankingSet> sets = ranking_sets(outcomes);
  std::vector<std::string> sources;
  for (const RankingSet& set : sets) sources.push_back(set.source);
  const Weights weights(weighting, sources);
  Weighted taus, regrets;
  for (const RankingSet& set : sets) {
    const double weight = weights.of(set.source);
    if (const auto tau = tau_of(set)) taus.emplace_back(*tau, weight);
    regrets.emplace_back(regret_of(set), weight);
  }
  return {sets.size(), weighted_mean(taus), weighted_mean(regrets)};
}

FitFigures fit_figures(const Outcomes& outcomes) {
  FitFigures figures;
  for (const Outcome* o : outcomes) {
    if (!o->feasible) continue;
    if (o->failed) {
      ++(*o->feasible ? figures.failed_called_feasible : figures.failed_called_infeasible);
    } else {
      ++(*o->feasible ? figures.ok_called_feasible : figures.ok_called_infeasible);
    }
  }
  return figures;
}

}  // namespace

Figures figures_of(const Outcomes& outcomes, Weighting weighting) {
  Figures figures;
  figures.rows = outcomes.size();
  for (const Outcome* o : outcomes) {
    if (o->unpriced.empty()) {
      ++figures.priced;
    } else {
      ++figures.unpriced[o->unpriced.substr(0, o->unpriced.find(": "))];
    }
  }
  figures.step_time = time_figures(outcomes, weighting);
  figures.memory = memory_figures(outcomes, weighting);
  figures.ranking = ranking_figures(outcomes, weighting);
  figures.fits = fit_figures(outcomes);
  figures.interval = interval_figures(outcomes, weighting);
  return figures;
}

namespace {

bool twins_apart(const Outcome& a, const Outcome& b) {
  const auto [low, high] = std::minmax(*a.measured_step_s, *b.measured_step_s);
  return a.micro_batch == b.micro_batch && a.zero != b.zero && high > kTwinRatio * low;
}

// Whether `a` is slow beside a run with a smaller micro-batch.
bool slow_beside(const Outcome& a, const Outcome& b) {
  return a.micro_batch > b.micro_batch &&
         *a.measured_step_s / a.bubble > kSlowRatio * *b.measured_step_s / b.bubble;
}

}  // namespace

Outcomes in_doubt(const Outcomes& outcomes) {
  std::map<std::string, Outcomes> by_kin;
  for (const Outcome* o : outcomes) {
    if (!o->kin.empty() && !o->failed && o->measured_step_s && o->zero <= 1) {
      by_kin[o->kin].push_back(o);
    }
  }
  Outcomes doubtful;
  for (const Outcome* o : outcomes) {
    if (o->unsteady) {
      doubtful.push_back(o);
      continue;
    }
    const auto kin = by_kin.find(o->kin);
    if (kin == by_kin.end() || o->failed || !o->measured_step_s || o->zero > 1) continue;
    const bool apart = std::any_of(
        kin->second.begin(), kin->second.end(),
        [&](const Outcome* other) { return twins_apart(*o, *other) || slow_beside(*o, *other); });
    if (apart) doubtful.push_back(o);
  }
  return doubtful;
}

Outcomes without(const Outcomes& outcomes, const Outcomes& apart) {
  Outcomes rest;
  for (const Outcome* o : outcomes) {
    if (std::find(apart.begin(), apart.end(), o) == apart.end()) rest.push_back(o);
  }
  return rest;
}

}  // namespace qplan
