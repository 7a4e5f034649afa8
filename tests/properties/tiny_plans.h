#pragma once
// Seeded random plans that the executor runs in milliseconds: a few ranks, a few short sequences,
// every word of a plan that changes what is executed.

#include "tests/properties/random_plans.h"

namespace qplan {

class TinyPlans {
 public:
  explicit TinyPlans(unsigned seed) : random_(seed) {}

  ParallelPlan next(const ModelSpec& model) {
    const Recipe& recipe = recipe_of(RecipeKind::qplan);
    for (;;) {
      const ParallelPlan plan = any(model, recipe);
      if (plan.world() > 16 || plan.global_batch_size > 32) continue;
      if (broken_rule(model, plan, recipe, {plan.world(), 90}).empty()) return plan;
    }
  }

 private:
  ParallelPlan any(const ModelSpec& model, const Recipe& recipe) {
    RandomPlans& r = random_;
    ParallelPlan p;
    p.precision = Precision::fp32;
    p.tp = r.pick<int>({1, 1, 2, 4, 8});
    p.pp = r.pick<int>({1, 1, 2, 4});
    p.cp = r.pick<int>({1, 1, 1, 2, 4});
    p.dp = r.pick<int>({1, 1, 2, 3, 4});
    // Forced routing leaves room for the mean only; of very few tokens no expert gets the mean.
    p.routing = p.tp * p.cp <= 2 && r.coin(0.4) ? Routing::forced : Routing::natural;
    if (p.pp > 1) {
      p.schedule = r.pick<ScheduleKind>({ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                         ScheduleKind::interleaved, ScheduleKind::zb_h1,
                                         ScheduleKind::zbv, ScheduleKind::dualpipe});
    }
    if (p.schedule == ScheduleKind::interleaved || p.schedule == ScheduleKind::zbv) p.vpp = 2;
    if (p.pp == 2 && r.coin(0.2) && p.vpp == 1) p.pipeline_layout = {1, 3};
    if (model.moe) {
      p.ep = r.pick<int>({1, 2, 4, 8});
      p.etp = r.pick<int>({1, 1, 2});
      // Capacity is of a rank's tokens: one rank has what tp and cp would spread.
      if (p.tp * p.cp == 1 && r.coin(0.3)) {
        p.moe_capacity_factor = r.pick<double>({0.5, 1, 1.5});
        p.moe_token_drop_policy =
            r.pick<TokenDropPolicy>({TokenDropPolicy::probs, TokenDropPolicy::position});
      }
    }
    p.zero = r.pick<int>({0, 1, 2, 3});
    if (p.zero > 0 && p.dp == 4 && r.coin(0.3)) p.fsdp_shard = 2 * p.cp;
    p.micro_batch_size = r.pick<std::int64_t>({1, 2});
    p.global_batch_size = p.micro_batch_size * p.dp * r.pick<std::int64_t>({1, 2, 4, 8});
    p.seq_len = r.pick<std::int64_t>({16, 32});
    p.recompute.kind =
        r.pick<RecomputeKind>({RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full});
    if (p.recompute.kind == RecomputeKind::selective && r.coin(0.8)) {
      for (const auto& [module, word] : Words<RecomputeModule>::table) {
        if (r.coin(0.3)) p.recompute.modules.add(module);
      }
    }
    if (p.recompute.kind == RecomputeKind::full && r.coin(0.3)) p.recompute.layers = 1;
    if (r.coin(0.15)) p.offload.optimizer = r.pick<double>({0.5, 1.0});
    if (r.coin(0.25)) {
      p.lora_rank = r.pick<int>({1, 2, 4});
      p.lora_embeddings = r.coin(0.3);
      p.dora = r.coin(0.4);
      for (const auto& [target, word] : Words<LoraTarget>::table) {
        if (r.coin(0.4)) p.lora_targets.add(target);
      }
    }
    if (r.coin(0.3)) {
      p.optimizer = r.pick<OptimizerKind>(
          {OptimizerKind::sgd, OptimizerKind::muon, OptimizerKind::adafactor});
    }
    p.sequence_parallel = p.tp > 1 && r.coin(0.7);
    p.cp_comm = r.pick<CpComm>({CpComm::p2p, CpComm::all_gather, CpComm::a2a});
    if (r.coin(0.6)) p.overlap = recipe.defaults.overlap;
    if (r.coin(0.2)) p.overlap.add(OverlapKind::tp);
    if (p.ep > 1 && r.coin(0.3)) p.overlap.add(OverlapKind::ep);
    return p;
  }

  RandomPlans random_;
};

}  // namespace qplan
