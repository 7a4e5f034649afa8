// Which experts a token's copies go to: scores, choice, capacity, and what the balance loss knows.

#include "executor/math/router.h"

#include <algorithm>
#include <cmath>

#include "executor/cpu/ops.h"
#include "executor/math/permute.h"

namespace qplan {

math::RouterShape router_shape(const CpuRank& rank) {
  const MoeSpec& moe = moe_of(rank);
  return {.experts = moe.num_experts,
          .top_k = moe.top_k,
          .sigmoid_scores = moe.sigmoid_scores,
          .num_groups = moe.num_groups,
          .topk_group = moe.topk_group,
          .norm_topk_prob = moe.norm_topk_prob,
          .routed_scaling_factor = moe.routed_scaling_factor};
}

std::vector<std::int32_t> chosen_experts(const CpuRank& rank, const Tensor& row_map) {
  const std::int64_t k = moe_of(rank).top_k;
  std::vector<std::int32_t> chosen;
  const auto map = ints(row_map);
  for (std::int64_t t = 0; t < row_map.rows; ++t) {
    const auto row = map.subspan(static_cast<std::size_t>(t * 2 * k), static_cast<std::size_t>(k));
    chosen.insert(chosen.end(), row.begin(), row.end());
  }
  return chosen;
}

namespace {

using math::Matrix;

// Forced routing: every expert equally often, whatever the scores say. Depends on the place in the
// global batch only, so that every plan routes alike.
void force(const CpuRank& rank, const Command& c, std::vector<std::int32_t>& chosen) {
  const ParallelPlan& p = rank.job.plan;
  const std::int64_t k = moe_of(rank).top_k, experts = moe_of(rank).num_experts;
  const std::vector<std::int64_t> positions = rank.positions();
  const std::int64_t rows = std::ssize(chosen) / k;
  const std::int64_t skipped = p.sequence_parallel ? rank.at.tp * rows : 0;
  const std::int64_t first =
      (std::int64_t{c.action.microbatch} * p.dp + rank.at.dp) * p.micro_batch_size;
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int64_t row = skipped + t;
    const std::int64_t sequence = first + row / (p.seq_len / p.cp);
    const std::int64_t token = sequence * p.seq_len + positions[static_cast<std::size_t>(row)];
    for (std::int64_t j = 0; j < k; ++j) {
      chosen[static_cast<std::size_t>(t * k + j)] =
          static_cast<std::int32_t>((token * k + j) % experts);
    }
  }
}

// Which of the microbatch's sequences a row of this rank belongs to.
std::int64_t sequence_of(const CpuRank& rank, std::int64_t row, std::int64_t rows) {
  const ParallelPlan& p = rank.job.plan;
  return ((p.sequence_parallel ? rank.at.tp * rows : 0) + row) / (p.seq_len / p.cp);
}

void count_visits(const CpuRank& rank, const std::vector<std::int32_t>& chosen,
                  const Tensor& visits) {
  const std::int64_t k = moe_of(rank).top_k, rows = std::ssize(chosen) / k;
  std::ranges::fill(ints(visits), 0);
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const std::int64_t sequence = sequence_of(rank, i / k, rows);
    ++ints(visits)[static_cast<std::size_t>(sequence * visits.cols +
                                            chosen[static_cast<std::size_t>(i)])];
  }
}

// By which copies are kept where experts take a share: their probabilities, or how near they are to
// the begin of their sequence (Megatron's rows are tokens first, sequences second).
std::vector<float> worth_of_copies(const CpuRank& rank, math::ConstMatrix scores,
                                   const std::vector<std::int32_t>& chosen) {
  const std::int64_t k = moe_of(rank).top_k, rows = scores.rows;
  std::vector<float> worth(chosen.size());
  if (rank.job.plan.moe_token_drop_policy == TokenDropPolicy::probs) {
    math::router_weights(scores, chosen, router_shape(rank), Matrix(worth, rows, k));
    return worth;
  }
  const std::vector<std::int64_t> positions = rank.positions();
  const ParallelPlan& p = rank.job.plan;
  const std::int64_t skipped = p.sequence_parallel ? rank.at.tp * rows : 0;
  for (std::int64_t i = 0; i < rows * k; ++i) {
    worth[static_cast<std::size_t>(i)] =
        -static_cast<float>(positions[static_cast<std::size_t>(skipped + i / k)]);
  }
  return worth;
}

void route(CpuRank& rank, const Command& c) {
  const MoeSpec& moe = moe_of(rank);
  const math::RouterShape shape = router_shape(rank);
  Values logits(rank.tensor(c, c.reads[0])), scores(rank.tensor(c, c.writes[0]), false);
  const Tensor row_map = rank.tensor(c, c.writes[1]), counts = rank.tensor(c, c.writes[2]);
  math::router_scores(logits.matrix(), shape, scores.matrix());
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(row_map.rows * moe.top_k));
  if (rank.job.plan.routing != Routing::natural) {
    force(rank, c, chosen);
  } else {
    std::vector<float> correction;
    if (c.op->parameter != kNoParameter) {
      const auto& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
      Values values(parameter_in(rank.tensor(c, c.reads[1]), p));
      correction.assign(values.all().begin(), values.all().end());
    }
    math::choose_experts(scores.matrix(), correction, shape, chosen);
  }
  std::vector<std::int32_t> sent = chosen;
  if (const double factor = rank.job.plan.moe_capacity_factor; factor > 0) {
    math::drop_over_capacity(sent, worth_of_copies(rank, scores.matrix(), chosen), moe.num_experts,
                             expert_capacity(std::ssize(chosen), moe, factor));
  }
  std::ranges::fill(ints(counts), 0);
  // The balance is of what the router wants, dropped or not (Megatron's router.py).
  if (c.writes.count > 3) count_visits(rank, chosen, rank.tensor(c, c.writes[3]));
  for (std::int64_t i = 0; i < std::ssize(chosen); ++i) {
    const std::int64_t k = moe.top_k, place = i / k * 2 * k + i % k;
    const std::int32_t expert = sent[static_cast<std::size_t>(i)];
    ints(row_map)[static_cast<std::size_t>(place)] = chosen[static_cast<std::size_t>(i)];
    ints(row_map)[static_cast<std::size_t>(place + k)] = expert < 0 ? 1 : 0;
    if (expert >= 0) ++ints(counts)[static_cast<std::size_t>(expert)];
  }
  scores.commit();
}

void route_backward(CpuRank& rank, const Command& c) {
  Values scores(rank.tensor(c, c.reads[0])), dweights(rank.tensor(c, c.reads[1]));
  Values dlogits(rank.tensor(c, c.writes[0]), false);
  const std::vector<std::int32_t> chosen = chosen_experts(rank, rank.tensor(c, c.reads[2]));
  const math::RouterShape shape = router_shape(rank);
  if (c.reads.count < 4) {
    math::router_backward(scores.matrix(), chosen, dweights.matrix(), {}, shape, dlogits.matrix());
    dlogits.commit();
    return;
  }
  // Row by row, for a rank may hold the end of one sequence and the begin of the next. The balance
  // loss is a mean over the global batch's sequences.
  const Tensor visits = rank.tensor(c, c.reads[3]);
  const ParallelPlan& plan = rank.job.plan;
  for (std::int64_t row = 0; row < scores.matrix().rows; ++row) {
    const std::int64_t sequence = sequence_of(rank, row, scores.matrix().rows);
    const auto counts = ints(visits.row_range(sequence, 1));
    const std::vector<double> of_sequence(counts.begin(), counts.end());
    const math::BalanceGradient balance{.coefficient = moe_of(rank).aux_loss_coefficient /
                                                       static_cast<double>(plan.global_batch_size),
                                        .visits = of_sequence,
                                        .tokens = plan.seq_len};
    const auto k = static_cast<std::size_t>(shape.top_k);
    math::router_backward(
        scores.matrix().row_range(row, 1),
        math::ConstExpertIds(chosen).subspan(static_cast<std::size_t>(row) * k, k),
        dweights.matrix().row_range(row, 1), balance, shape, dlogits.matrix().row_range(row, 1));
  }
  dlogits.commit();
}

}  // namespace

void run_router(CpuRank& rank, const Command& c, bool backward) {
  backward ? route_backward(rank, c) : route(rank, c);
}

}  // namespace qplan
