// The estimate of a plan: where its time goes, what its prices rest on, how far off they may be.

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <map>
#include <numeric>
#include <string>
#include <variant>

#include "costmodel/fold/plan_view.h"
#include "costmodel/measured.h"
#include "costmodel/peak.h"
#include "costmodel/worst_rank.h"

namespace qplan {
namespace {

// What a rank computes in a step if the others never make it wait.
struct OwnWork {
  Seconds all, recomputed;
};

// What a price rests on: matrix products share their GPU's rate, grouped or not; each other kind of
// work has measurements of its own.
std::size_t fit_of(const Work& work) {
  return std::holds_alternative<GroupedGemm>(work) ? Work(Gemm{}).index() : work.index();
}

// The error of works priced by one fit, in seconds, one sigma. How far the fit misses one shape
// says little of how far it misses the next, so that these errors average out. What it misses all
// shapes by together (Errors::sustained, Errors::assumed) does not.
struct FitError {
  double shared = 0;
  std::map<std::string, double> apart;  // by work

  void add(const Work& work, const Price& price, double seconds, const Errors& typical) {
    const double most = price.source == PriceSource::assumed ? typical.assumed : typical.sustained;
    const double together = std::min(price.error, most);
    shared += seconds * together;
    apart[to_string(work)] += seconds * std::sqrt(price.error * price.error - together * together);
  }
  [[nodiscard]] double square() const {
    return std::accumulate(apart.begin(), apart.end(), shared * shared,
                           [](double sum, const auto& e) { return sum + e.second * e.second; });
  }
};

// Every stage's forward and backward priced apart, one block at a time.
struct PricedWork {
  const Errors* typical = nullptr;  // the machine's
  std::vector<OwnWork> ranks;
  double table = 0, formula = 0, assumed = 0;              // seconds, by the source of the price
  std::array<FitError, std::variant_size_v<Work>> errors;  // by fit

  void add(const Work& work, const Price& price, double seconds) {
    errors[fit_of(work)].add(work, price, seconds, *typical);
    switch (price.source) {
      case PriceSource::table:
        table += seconds;
        break;
      case PriceSource::formula:
        formula += seconds;
        break;
      case PriceSource::assumed:
        assumed += seconds;
        break;
    }
  }
  [[nodiscard]] double sum() const { return std::max(table + formula + assumed, 1e-30); }
  [[nodiscard]] PricedFrom priced_from() const {
    return {table / sum(), formula / sum(), assumed / sum()};
  }
  // Of the priced time; several fits err independently.
  [[nodiscard]] double error() const {
    const double square =
        std::accumulate(errors.begin(), errors.end(), 0.0,
                        [](double total, const FitError& e) { return total + e.square(); });
    return std::sqrt(square) / sum();
  }
  [[nodiscard]] OwnWork busiest() const {
    return *std::max_element(ranks.begin(), ranks.end(),
                             [](const OwnWork& a, const OwnWork& b) { return a.all < b.all; });
  }
};

// Adds the stages of `v` that are of `cost`'s kind of GPU.
template <class View, class IsOfKind>
void add_priced_work(const CostModel& cost, const View& v, IsOfKind is_of_kind, PricedWork& work) {
  const ParallelPlan& plan = *v.plan;
  const RankGrid grid = rank_grid(plan, cost.facts());
  const CostContext context = context_of(plan, cost.hardware(), grid, cost.recipe(), cost.facts());
  const auto microbatches = static_cast<double>(microbatches_of_stage(v.schedule));
  work.typical = &cost.hardware().errors;
  work.ranks.resize(static_cast<std::size_t>(plan.pp));
  for (std::size_t i = 0; i < v.stages.of_stage.size(); ++i) {
    const int rank = rank_of_stage(plan.schedule, plan.pp, static_cast<int>(i));
    if (!is_of_kind(rank)) continue;
    OwnWork& own = work.ranks[static_cast<std::size_t>(rank)];
    for (const Run& run : v.stages.runs(i)) {
      const Block block = build_block(cost.model(), cost.recipe(), run.shape);
      for (const Part part : {Part::forward, Part::backward}) {
        const PricedPart priced = price_part(block, part, context);
        for (std::size_t k = 0; k < priced.ops.size(); ++k) {
          const double seconds = priced.durations[k].time.value() * run.count;
          work.add(priced.ops[k].work, priced.prices[k], seconds);
          if (priced.ops[k].stream != Stream::compute) continue;
          own.all += Seconds(seconds * microbatches);
          if (priced.ops[k].recomputed) own.recomputed += Seconds(seconds * microbatches);
        }
      }
    }
  }
}

// Tokens and FLOPs a second, by the step time.
void set_rates(const CostModel& cost, const ParallelPlan& plan, Estimate& e) {
  const double tokens =
      static_cast<double>(plan.global_batch_size) * static_cast<double>(plan.seq_len);
  const auto gpus = static_cast<double>(plan.world());
  e.tokens_per_s = tokens / e.step_time.value();
  e.tokens_per_s_per_gpu = e.tokens_per_s / gpus;
  const Flops flops =
      step_model_flops(cost.model(), plan.seq_len, plan.global_batch_size, plan.lora());
  e.model_tflops_per_gpu = flops.value() / e.step_time.value() / gpus / 1e12;
  e.mfu =
      e.model_tflops_per_gpu * 1e12 / peak_rate(cost.hardware().gpu, plan.precision).rate.value();
}

// Of a step whose router is free: the busiest rank's share is taken for 1.2, and runs lie between
// none and half as much again (Megatron-Bridge's cards: 8,655 tokens/s for 13,011 by force).
constexpr double kRoutingError = 0.1;

// Errors that do not depend on each other, together. (std::hypot would ask for glibc 2.35.)
double root_of_squares(std::initializer_list<double> errors) {
  double sum = 0;
  for (const double error : errors) sum += error * error;
  return std::sqrt(sum);
}

// Of the launching thread, which is as quick as a machine's processor: runs on the same GPU in
// other machines tell nothing of it. Our own executor calibrates on the machine that it runs on.
double launch_error(const CostModel& cost, const Estimate& e) {
  if (cost.recipe().executable) return 0;
  return cost.hardware().errors.launch * (e.time.host / e.step_time);
}

// What makes a step worse known than what `errors` of the recipe were read off.
double unfamiliar(const CostModel& cost, const ParallelPlan& plan, bool measured) {
  if (cost.recipe().executable) return 0;
  const bool routed = cost.model().moe && plan.routing == Routing::natural;
  return root_of_squares(
      {routed ? kRoutingError : 0, measured ? 0 : cost.hardware().errors.assumed});
}

void set_step_interval(Estimate& e, double relative) {
  e.step_time_low = e.step_time * (1 - relative);
  e.step_time_high = e.step_time * (1 + relative);
}

void set_intervals(const CostModel& cost, const ParallelPlan& plan, const PricedWork& work,
                   Estimate& e) {
  // What the recipe leaves out comes on top, and what runs of it on this GPU told.
  const Recipe& recipe = cost.recipe();
  const double experts = !cost.model().moe              ? 0
                         : plan.moe_capacity_factor > 0 ? recipe.errors.dropping
                                                        : recipe.errors.expert;
  const double of_recipe = root_of_squares({recipe.errors.model, experts});
  const MeasuredOn* measured =
      find_measured_on(recipe.kind, cost.hardware().gpu.name, plan.lora_rank > 0);
  const double sigma =
      root_of_squares({work.error(), of_recipe, unfamiliar(cost, plan, measured != nullptr)}) *
      (measured == nullptr ? 1 : measured->widening());
  const double relative = kIntervalSigmas * root_of_squares({sigma, launch_error(cost, e)});
  set_step_interval(e, relative);
  // docs/reference/physics.md 10.4: allocated memory to 3% (5% with experts), one sigma of half
  // that.
  const double memory_error = cost.model().moe ? 0.05 : 0.03;
  const Bytes peak = on_worst_rank(e.memory, &StageMemory::peak);
  e.peak_low = peak * (1 - memory_error);
  e.peak_high = peak * (1 + memory_error);
}

}  // namespace

double half_width(const Estimate& e) {
  return (e.step_time_high - e.step_time_low) / e.step_time / 2;
}

void widen(Estimate& e, double sigma) {
  set_step_interval(e, root_of_squares({half_width(e), kIntervalSigmas * sigma}));
}

Flops step_model_flops(const ModelSpec& whole, std::int64_t seq_len, std::int64_t sequences,
                       const Lora& lora) {
  // Folded from the program's own ops on one rank: forward only, times three; where weights are
  // frozen, forward and the shorter backward. Multi-token prediction does not count
  // (docs/reference/physics.md 2.2 has the figures without).
  ModelSpec model = whole;
  model.num_mtp_layers = 0;
  BlockShape shape;
  shape.seq_len = seq_len;
  shape.lora_rank = lora.rank;
  shape.lora_targets = lora.targets;
  shape.frozen = lora.rank > 0;
  const Recipe& recipe = recipe_of(RecipeKind::qplan);
  const auto both_ways = [&](BlockKind kind, LayerKind layer) {
    BlockShape s = shape;
    s.kind = kind;
    s.layer = layer;
    const Block block = build_block(model, recipe, s);
    Flops forward, backward;
    for (const Op& op : block.forward) forward += model_flops(op.work);
    for (const Op& op : block.backward) backward += model_flops(op.work);
    return s.frozen ? forward + backward : forward * 3.0;
  };
  Flops total = both_ways(BlockKind::head, {});
  std::vector<std::pair<LayerKind, Flops>> known;
  for (const LayerKind& kind : model.layers) {
    auto it = std::find_if(known.begin(), known.end(),
                           [&](const auto& entry) { return entry.first == kind; });
    if (it == known.end()) {
      known.emplace_back(kind, both_ways(BlockKind::decoder, kind));
      it = known.end() - 1;
    }
    total += it->second;
  }
  return total * static_cast<double>(sequences);
}

Estimate CostModel::evaluate(const ParallelPlan& plan) const {
  Estimate e;
  const PlanView v = view(plan);
  e.memory = memory(plan);
  e.capacity = e.memory.capacity;
  e.fits = fits(e.memory);
  e.step_time = step_time(v, FreeWork{});

  // Each kind of work is freed in turn, in a fixed order; the differences telescope.
  FreeWork free;
  Seconds left = e.step_time;
  const auto part = [&](Cost cost) {
    // Without more of the work no step takes longer, but for what rounding leaves.
    const Seconds now = std::min(left, step_time(v, free.add(cost)));
    const Seconds share = left - now;
    left = now;
    return share;
  };
  e.time.tp = part(Cost::tp);
  e.time.cp = part(Cost::cp);
  e.time.ep = part(Cost::ep);
  e.time.pp_p2p = part(Cost::p2p);
  e.time.dp = part(Cost::dp);
  e.time.offload = part(Cost::offload);
  e.time.host = part(Cost::host);
  e.time.optimizer = part(Cost::optimizer);
  // What is left is compute, recomputation and the bubble; one stage has no bubble.
  PricedWork work;
  for (const CostModel* kind : kinds_of(plan)) {
    const auto is_of_kind = [&](int rank) { return &of_rank(plan, rank) == kind; };
    add_priced_work(*kind, kind == this ? v : kind->view(plan), is_of_kind, work);
  }
  const OwnWork most = work.busiest();
  const Seconds busiest = plan.pp == 1 ? left : std::min(most.all, left);
  e.time.recompute = std::min(most.recomputed, busiest);
  e.time.compute = busiest - e.time.recompute;
  e.time.pp_bubble = left - busiest;

  e.priced_from = work.priced_from();
  set_intervals(*this, plan, work, e);
  set_rates(*this, plan, e);
  return e;
}

}  // namespace qplan
