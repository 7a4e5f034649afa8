#pragma once
// Seeded random plans that the rules accept, for property tests. On failure a test prints the
// plan's line, which parses back.

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/evaluate.h"
#include "models/error.h"
#include "planner/rules/feasible.h"

namespace qplan {

// How many cases a property test tries: `rounds`, or QPLAN_TEST_ROUNDS if that is set (sanitizer
// runs).
inline int test_rounds(int rounds) {
  const char* text = std::getenv("QPLAN_TEST_ROUNDS");
  return text != nullptr ? std::min(rounds, std::max(1, std::atoi(text))) : rounds;
}

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  template <class T>
  T pick(const std::vector<T>& from) {
    return from[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random_)];
  }
  bool coin(double chance) { return std::bernoulli_distribution(chance)(random_); }

  // Some plan of this model and recipe that no rule rejects. Where the rules leave none, the test
  // fails instead of drawing for ever.
  ParallelPlan next(const ModelSpec& model, const Recipe& recipe) {
    for (int draws = 0; draws < 1'000'000; ++draws) {
      const ParallelPlan plan = any(model, recipe);
      if (broken_rule(model, plan, recipe, {plan.world(), 90}).empty()) return plan;
    }
    throw Error("no random plan of " + model.name + " passes the rules of its recipe");
  }

 private:
  ParallelPlan any(const ModelSpec& model, const Recipe& recipe) {
    ParallelPlan p;
    p.tp = pick<int>({1, 1, 2, 4});
    p.pp = pick<int>({1, 1, 2, 3, 4});
    p.cp = pick<int>({1, 1, 2, 4});
    p.dp = pick<int>({1, 2, 3, 4, 8});
    p.schedule = p.pp == 1 ? ScheduleKind::one_f_one_b
                           : pick<ScheduleKind>({ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                                 ScheduleKind::interleaved, ScheduleKind::zb_h1,
                                                 ScheduleKind::zbv, ScheduleKind::dualpipe});
    if (p.schedule == ScheduleKind::interleaved) p.vpp = pick<int>({2, 3});
    if (p.schedule == ScheduleKind::zbv) p.vpp = 2;
    if (model.moe) {
      p.ep = pick<int>({1, 2, 4});
      p.etp = pick<int>({1, 1, 2});
      p.moe_dispatcher = pick<MoeDispatcher>({MoeDispatcher::alltoall, MoeDispatcher::allgather,
                                              MoeDispatcher::deepep, MoeDispatcher::hybridep});
      p.routing = pick<Routing>({Routing::forced, Routing::natural});
    }
    p.zero = pick<int>({0, 1, 2, 3});
    p.micro_batch_size = pick<std::int64_t>({1, 2});
    const auto m = pick<std::int64_t>({1, 2, 3, 4, 6, 8, 12, 17, 24, 48, 96, 240});
    p.global_batch_size = p.micro_batch_size * p.dp * m;
    p.seq_len = pick<std::int64_t>({256, 512, 1024});
    p.recompute.kind =
        pick<RecomputeKind>({RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full});
    if (p.recompute.kind == RecomputeKind::selective && coin(0.8)) {
      for (const auto& [module, word] : Words<RecomputeModule>::table) {
        if (coin(0.3)) p.recompute.modules.add(module);
      }
    }
    if (p.recompute.kind == RecomputeKind::full && coin(0.3)) p.recompute.layers = 1;
    if (coin(0.15)) p.offload.optimizer = pick<double>({0.5, 1.0});
    if (coin(0.1)) p.offload.activation_layers = 1;
    p.sequence_parallel = p.tp > 1 && coin(0.8);
    p.cp_comm = pick<CpComm>({CpComm::p2p, CpComm::all_gather, CpComm::a2a});
    p.grad_dtype = pick<DType>({DType::fp32, DType::bf16});
    if (coin(0.5)) p.overlap = recipe.default_overlap;
    if (coin(0.2)) p.overlap.add(OverlapKind::tp);
    if (p.ep > 1 && coin(0.4)) p.overlap.add(OverlapKind::ep);
    p.cuda_graph = coin(0.1);
    p.cuda_graph_scope =
        pick<CudaGraphScope>({CudaGraphScope::full, CudaGraphScope::layer, CudaGraphScope::router});
    p.deterministic = coin(0.1);
    if (coin(0.15)) {
      p.loss =
          pick<LossKind>({LossKind::unfused, LossKind::native, LossKind::te, LossKind::compiled});
    }
    p.moe_permute_fusion = !coin(0.1);
    if (recipe.kind == RecipeKind::megatron && coin(0.15)) {
      p.precision = Precision::fp8;
      p.fp8_param_gather = coin(0.5);
    }
    p.dropout = coin(0.1);
    if (coin(0.1)) p.attention_backend = AttentionBackend::flash;
    if (coin(0.1)) p.document_len = pick<std::int64_t>({100, 256});
    return p;
  }

  std::mt19937 random_;
};

}  // namespace qplan
