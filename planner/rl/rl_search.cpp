#include "planner/rl/rl_search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "planner/rules/feasible.h"
#include "planner/search/search_less.h"

namespace qplan {
namespace {

// Training plans and layouts that are combined, best first by their own time: the sum of two times
// is least among few of each, unless memory forbids.
constexpr int kPlansCombined = 48;
constexpr std::size_t kLayoutsCombined = 6;

// Eighths of the GPUs, in whole nodes where there are several, where both sides run at once;
// quarters where one waits for the other, which pays only by what changes of hands take.
std::vector<std::int64_t> splits_of(const RlJob& job, std::int64_t gpus, std::int64_t node) {
  if (!job.colocated()) return {job.rollout_gpus};
  std::vector<std::int64_t> splits;
  if (job.staleness == 0) splits.push_back(0);
  const std::int64_t unit = gpus > node ? node : 1;
  const int finest = job.staleness > 0 ? 8 : 4;
  for (int part = 1; part < finest; ++part) {
    const std::int64_t aside = gpus * part / finest / unit * unit;
    if (aside == 0 || aside >= gpus) continue;
    if (std::find(splits.begin(), splits.end(), aside) == splits.end()) splits.push_back(aside);
  }
  return splits;
}

// A batch near `sequences` that many data-parallel degrees divide, of 12 GPUs those of 3 too: what
// a search is asked about before each plan's own packing is known.
std::int64_t divisible_batch(std::int64_t sequences, std::int64_t gpus) {
  std::int64_t unit = 1;
  for (std::int64_t d = 2; d <= gpus && 4 * d <= sequences; ++d) {
    if (gpus % d == 0) unit = d;
  }
  return std::max<std::int64_t>(1, ceil_div(sequences, unit)) * unit;
}

// The batches that a search is asked about. What a framework's files say may leave few degrees of
// data parallelism, which one that all divide finds.
std::vector<std::int64_t> batches_of(const Packing& packing, std::int64_t gpus, bool of_files) {
  std::vector<std::int64_t> batches{divisible_batch(packing.sequences, gpus)};
  const std::int64_t all = ceil_div(packing.sequences, gpus) * gpus;
  if (of_files && all != batches.front()) batches.push_back(all);
  return batches;
}

// Its micro-batch as one sequence.
ParallelPlan in_one_sequence(ParallelPlan plan) {
  plan.seq_len *= plan.micro_batch_size;
  plan.micro_batch_size = 1;
  return plan;
}

// A training plan, and with the batch that the job's answers make of it.
struct TrainingPlan {
  ParallelPlan plan, update;
};

}  // namespace

std::vector<RolloutLayout> rollout_layouts(const ModelSpec& model, std::int64_t gpus,
                                           const RolloutLayout& like) {
  // An engine of more than 64 GPUs is no rollout that anybody publishes.
  constexpr std::int64_t kLargestEngine = 64;
  std::vector<RolloutLayout> layouts;
  const auto add = [&](int tp, int dp, int ep) {
    RolloutLayout layout = like;
    layout.tp = tp;
    layout.pp = 1;
    layout.dp = dp;
    layout.ep = ep;
    if (layout.ep == 1) layout.redundant_experts = 0;
    const bool there = std::find(layouts.begin(), layouts.end(), layout) != layouts.end();
    if (!there && rollout_fault(model, layout).empty()) layouts.push_back(layout);
  };
  for (int tp = 1; tp <= std::min(gpus, kLargestEngine); tp *= 2) {
    if (gpus % tp != 0) continue;
    add(tp, 1, 1);
    if (!model.moe) continue;
    for (int dp = 1; std::int64_t{tp} * dp <= std::min(gpus, kLargestEngine); dp *= 2) {
      if (gpus % (std::int64_t{tp} * dp) == 0 && tp * dp > 1) add(tp, dp, tp * dp);
    }
  }
  return layouts;
}

RlSearchResult search_rl(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                         const RlSearchOptions& options) {
  RlSearchResult result;
  std::vector<RlPlan> found;
  std::vector<std::int64_t> splits = {0};
  HandedOver refit;
  if (job.generates()) {
    refit = handed_over(cost.model());
    splits = splits_of(job, space.gpus, cost.hardware().link.gpus_per_node);
    if (!options.split && job.colocated() && job.staleness == 0) splits = {0};
  }
  for (const std::int64_t aside : splits) {
    RlJob split = job;
    split.rollout_gpus = aside;
    ++result.splits;

    // The rollout's side: every layout's time.
    const std::int64_t engines_on = aside > 0 ? aside : space.gpus;
    std::vector<RolloutSide> layouts;
    if (job.generates()) {
      const std::vector<RolloutLayout> candidates =
          options.layouts.empty() ? rollout_layouts(cost.model(), engines_on) : options.layouts;
      for (const RolloutLayout& layout : candidates) {
        if (engines_on % layout.gpus() != 0) continue;
        ++result.layouts;
        const RolloutSide side = rollout_side(cost, split, layout, engines_on, refit);
        if (side.cache_room.value() > 0) layouts.push_back(side);
      }
      std::stable_sort(
          layouts.begin(), layouts.end(),
          [](const RolloutSide& a, const RolloutSide& b) { return a.cost.time() < b.cost.time(); });
      if (layouts.size() > kLayoutsCombined) layouts.resize(kLayoutsCombined);
    } else {
      layouts.push_back({});
    }
    if (layouts.empty()) continue;

    // The training side, asked about a batch near what its answers make.
    SearchSpace training = space;
    training.gpus = space.gpus - aside;
    ParallelPlan one = space.job;
    const Packing packing = packing_of(split, cost.model(), one);
    training.job.document_len = packing.document;
    if (cost.model().moe) training.job.routing = Routing::natural;
    const ClusterLimits limits = limits_of(cost.hardware(), training.gpus);
    // As the step runs it, where no rule forbids that: its own packing makes another batch than was
    // searched with.
    const auto in_step = [&](ParallelPlan plan) -> std::optional<TrainingPlan> {
      plan.document_len = space.job.document_len;
      if (options.one_sequence && job.packed) plan = in_one_sequence(std::move(plan));
      ParallelPlan update = update_plan(split, cost.model(), plan);
      if (!broken_rule(cost.model(), update, cost.recipe(), limits).empty()) return std::nullopt;
      return TrainingPlan{std::move(plan), std::move(update)};
    };
    const auto evaluated = [&](const ParallelPlan& plan, const TrainerCost& trainer,
                               const RolloutSide& rollout) {
      return evaluate_rl(cost, split, plan, trainer, rollout, space.gpus);
    };
    // Beside an engine asleep, a critic, or what stays while answers are made.
    const auto fits_in_step = [&](const ParallelPlan& searched) {
      const auto plan = in_step(searched);
      if (!plan) return false;
      const TrainerCost trainer = trainer_memory(cost, split, plan->plan);
      return std::any_of(layouts.begin(), layouts.end(), [&](const RolloutSide& layout) {
        return evaluated(plan->plan, trainer, layout).fits;
      });
    };
    SearchOptions search_options = options.search;
    search_options.top = std::max(kPlansCombined, options.search.top);
    search_options.alone = false;
    const auto find = [&](const SearchOptions& how) {
      std::vector<ParallelPlan> plans;
      for (const std::int64_t batch : batches_of(packing, training.gpus, options.one_sequence)) {
        training.job.global_batch_size = batch;
        const SearchResult of_batch =
            options.find ? options.find(split, training, how)
                         : search(cost, training, how, [](const SearchResult&) { return false; });
        result.considered += of_batch.considered;
        for (const RankedPlan& ranked : of_batch.plans) plans.push_back(ranked.plan);
      }
      return plans;
    };
    search_options.accepts = fits_in_step;
    std::vector<ParallelPlan> candidates = find(search_options);
    if (candidates.empty()) {  // what comes nearest
      search_options.accepts = nullptr;
      candidates = find(search_options);
    }
    std::vector<ParallelPlan> seen;
    for (ParallelPlan& candidate : candidates) {
      const auto plan = in_step(std::move(candidate));
      if (!plan || std::find(seen.begin(), seen.end(), plan->update) != seen.end()) continue;
      seen.push_back(plan->update);
      const TrainerCost trainer = trainer_cost(cost, split, plan->plan);
      for (const RolloutSide& priced : layouts) {
        ++result.combined;
        found.push_back(
            {plan->update, priced.layout, aside, evaluated(plan->plan, trainer, priced)});
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const RlPlan& a, const RlPlan& b) {
    return a.estimate.step_time < b.estimate.step_time;
  });
  const auto top = static_cast<std::size_t>(options.search.top);
  for (RlPlan& plan : found) {
    std::vector<RlPlan>& to = plan.estimate.fits ? result.plans : result.misfits;
    if (to.size() >= top) continue;
    if (plan.estimate.fits && options.accepts && !options.accepts(job, plan)) {
      ++result.refused;
      continue;
    }
    to.push_back(std::move(plan));
  }
  if (!result.plans.empty()) result.misfits.clear();
  return result;
}

}  // namespace qplan
