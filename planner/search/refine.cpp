#include "planner/search/refine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/program/step_program.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

using P = ParallelPlan;

bool is_whole_recompute(const ParallelPlan& plan) {
  return plan.recompute.kind == RecomputeKind::full;
}

// The first few of those that nobody refused, fastest first.
std::vector<ParallelPlan> best_of(const std::vector<Candidate>& known) {
  std::vector<const Candidate*> best;
  for (const Candidate& c : known) {
    if (!c.refused && c.step_time < kNever) best.push_back(&c);
  }
  std::stable_sort(best.begin(), best.end(), [](const Candidate* a, const Candidate* b) {
    return a->step_time < b->step_time;
  });
  best.resize(std::min(best.size(), kFewest));
  std::vector<ParallelPlan> plans;
  for (const Candidate* c : best) plans.push_back(c->plan);
  return plans;
}

class Neighbours {
 public:
  Neighbours(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
             const std::vector<Candidate>& known)
      : cost_(cost),
        space_(space),
        options_(options),
        known_(known),
        rules_(cost, space, options),
        sifter_(cost),
        places_layers_(places_layers(cost, space)) {}

  void of(const ParallelPlan& plan) {
    other_chunks(plan);
    recompute_less(plan);
    offload_less(plan);
    hide_exchange(plan);
  }

  std::vector<Candidate> take() { return std::move(found_); }

 private:
  template <class T>
  [[nodiscard]] bool asked(T P::*member) const {
    return !space_[member].empty();
  }

  [[nodiscard]] bool may_run(ScheduleKind kind) const {
    const auto& schedules = space_[&P::schedule];
    if (schedules.empty()) return cost_.recipe().can.schedules.has(kind);
    return std::find(schedules.begin(), schedules.end(), kind) != schedules.end();
  }

  [[nodiscard]] bool is_known(const ParallelPlan& plan) const {
    const auto same = [&](const Candidate& c) { return c.plan == plan; };
    return std::any_of(known_.begin(), known_.end(), same) ||
           std::any_of(found_.begin(), found_.end(), same);
  }

  // The least number that fits, where more fit better; the most where none does.
  template <class Fits>
  static int least_of(int least, int most, const Fits& fits) {
    while (least < most) {
      const int half = (least + most) / 2;
      if (fits(half)) {
        most = half;
      } else {
        least = half + 1;
      }
    }
    return most;
  }

  // Of a stage.
  [[nodiscard]] int most_layers(const ParallelPlan& plan) const {
    const std::vector<int> layers = stage_layers(cost_.model(), plan);
    return *std::max_element(layers.begin(), layers.end());
  }

  [[nodiscard]] std::optional<Candidate> fitting(const ParallelPlan& plan) {
    Allowed tried{plan};
    weigh(cost_, options_, sifter_, tried);
    if (tried.room != Room::fits) return std::nullopt;
    return Candidate{plan, tried.device_peak};
  }

  void try_plan(const ParallelPlan& plan) {
    if (is_known(plan) || !rules_.broken(plan).empty()) return;
    if (auto fits = fitting(plan)) found_.push_back(std::move(*fits));
  }

  void try_with_layers_moved(const ParallelPlan& plan) {
    if (!places_layers_ || plan.pp == 1 || !rules_.broken(plan).empty()) return;
    if (const auto even = evened(cost_, plan)) try_plan(*even);
  }

  // Which number is best depends on what is recomputed and where states lie, of which not all is
  // enumerated.
  void other_chunks(const ParallelPlan& plan) {
    const bool chunked =
        plan.schedule == ScheduleKind::one_f_one_b || plan.schedule == ScheduleKind::interleaved;
    if (plan.pp == 1 || asked(&P::vpp) || !chunked || !places_layers_) return;
    const std::int64_t most = layers_with_ends(cost_.model()) / plan.pp;
    for (int v = 1; v <= std::min<std::int64_t>(kMostChunks, most); ++v) {
      ParallelPlan other = plan;
      other.vpp = v;
      other.schedule = v == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved;
      if (v == plan.vpp || !may_run(other.schedule)) continue;
      other.pipeline_layout = framework_layout(cost_.model(), other, cost_.recipe().kind);
      if (other.recompute.layers >= most_layers(other)) {
        if (asked(&P::recompute)) continue;
        other.recompute.layers = 0;
      }
      try_plan(other);
      try_with_layers_moved(other);
      recompute_less(other);
    }
  }

  // As few of each chunk's layers as fit (Megatron's block method), none if that does: how many is
  // a question of memory.
  void recompute_less(const ParallelPlan& plan) {
    if (!is_whole_recompute(plan)) return;
    if (!cost_.recipe().can.recompute.has(RecomputeChoice::blocks)) return;
    const bool given = asked(&P::recompute);
    if (given && plan.recompute.layers == 0) return;
    if (!given) recompute_least(plan, given);
    if (!places_layers_ || plan.pp == 1) return;
    if (const auto even = evened(cost_, plan)) recompute_least(*even, given);
  }

  void recompute_least(const ParallelPlan& plan, bool given) {
    if (!rules_.broken(plan).empty()) return;  // only steps that there are can be weighed
    ParallelPlan least = plan;
    if (!given) {
      least.recompute = {};
      if (rules_.broken(least).empty() && fitting(least)) return try_plan(least);
      least.recompute = plan.recompute;
    }
    const auto fits = [&](int count) {
      least.recompute.layers = count;
      return fitting(least).has_value();
    };
    const int few = given ? plan.recompute.layers : 1;
    const int many = given ? few : most_layers(plan) - 1;
    if (few <= many && fits(least_of(few, many, fits))) try_plan(least);
  }

  // As few twentieths of the optimizer as fit, none if that does.
  void offload_less(const ParallelPlan& plan) {
    if (asked(&P::offload) || plan.offload != Offload{.optimizer = 1.0}) return;
    ParallelPlan less = plan;
    const auto fits = [&](int twentieths) {
      less.offload.optimizer = twentieths / 20.0;
      return rules_.broken(less).empty() && fitting(less).has_value();
    };
    if (fits(least_of(0, 19, fits))) try_plan(less);
  }

  // Of one microbatch beside the compute of another: Megatron-Core's alone, whose HybridModel (of
  // Mamba-2 layers) has not had it in every release. Where it is hidden, more ranks may share the
  // experts.
  void hide_exchange(const ParallelPlan& plan) {
    if (cost_.model().mamba) return;
    if (asked(&P::overlap) || cost_.recipe().kind != RecipeKind::megatron || plan.ep == 1) return;
    ParallelPlan hidden = plan;
    hidden.overlap.add(OverlapKind::ep);
    for (int wider = 0; wider < 3; ++wider, hidden.ep *= 2) {
      if (wider > 0 && asked(&P::ep)) return;
      if (hidden.ep > cost_.model().moe->num_experts) return;
      hidden.recompute = plan.recompute;
      try_plan(hidden);
      try_with_layers_moved(hidden);
      if (asked(&P::recompute)) continue;
      hidden.recompute = {};
      try_plan(hidden);
      try_with_layers_moved(hidden);
    }
  }

  const CostModel& cost_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  const std::vector<Candidate>& known_;
  Rules rules_;
  PlanSifter sifter_;
  bool places_layers_;
  std::vector<Candidate> found_;
};

}  // namespace

bool places_layers(const CostModel& cost, const SearchSpace& space) {
  return space.job.pipeline_layout.empty() && cost.recipe().can.takes_layout;
}

std::optional<ParallelPlan> evened(const CostModel& cost, const ParallelPlan& plan) {
  ParallelPlan even = plan;
  even.pipeline_layout = balanced_layout(cost.model().num_layers, plan, cost.end_work(plan));
  if (even.pipeline_layout.empty()) return std::nullopt;
  if (even.pipeline_layout == stage_layers(cost.model(), plan)) return std::nullopt;
  return even;
}

std::vector<Candidate> neighbours_of_best(const CostModel& cost, const SearchSpace& space,
                                          const SearchOptions& options,
                                          const std::vector<Candidate>& known) {
  Neighbours neighbours(cost, space, options, known);
  for (const ParallelPlan& plan : best_of(known)) neighbours.of(plan);
  return neighbours.take();
}

}  // namespace qplan
