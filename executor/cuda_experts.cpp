// Routing, the order of token copies, and the products of experts; experts of one rank.

#include "executor/cuda_ops.h"
#include "models/error.h"

namespace qplan {
namespace {

std::int32_t* ints_of(const Tensor& tensor) {
  QPLAN_CHECK(tensor.dtype == DType::int32, "maps and counts are int32");
  void* data = tensor.data;
  return static_cast<std::int32_t*>(data);
}

const MoeSpec& moe_of(const CudaRank& rank) {
  return *rank.job.model.moe;
}

kernels::Router router_of(const CudaRank& rank) {
  const MoeSpec& moe = moe_of(rank);
  return {moe.num_experts, moe.top_k, moe.norm_topk_prob,
          static_cast<float>(moe.routed_scaling_factor)};
}

// Rows of the microbatch that ranks before this one hold.
std::int64_t rows_before(const CudaRank& rank, std::int64_t rows) {
  return rank.job.plan.sequence_parallel ? rank.at.tp * rows : 0;
}

kernels::Sequences sequences_of(const CudaRank& rank, std::int64_t rows) {
  return {rows_before(rank, rows), rank.job.plan.seq_len};
}

}  // namespace

// {logits, weights} -> {scores, row map, counts, visits?}; {scores, d weights, row map, visits?} ->
// {d logits}.
void launch_router(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const ParallelPlan& p = rank.job.plan;
  const MoeSpec& moe = moe_of(rank);
  if (backward) {
    const Tensor scores = rank.tensor(c, c.reads[0]);
    const std::int32_t* visits = c.reads.count > 3 ? ints_of(rank.tensor(c, c.reads[3])) : nullptr;
    // arXiv 2412.19437, equations 17 to 20; the mean over the global batch's sequences.
    const auto tokens = static_cast<double>(p.seq_len);
    const double balance = moe.aux_loss_coefficient / static_cast<double>(p.global_batch_size) *
                           static_cast<double>(moe.num_experts) /
                           (static_cast<double>(moe.top_k) * tokens * tokens);
    kernels::route_backward(float_of(rank.tensor(c, c.writes[0])), float_of(scores),
                            float_of(rank.tensor(c, c.reads[1])),
                            ints_of(rank.tensor(c, c.reads[2])), visits,
                            static_cast<float>(balance), router_of(rank),
                            sequences_of(rank, scores.rows), scores.rows, stream);
    return;
  }
  const Tensor logits = rank.tensor(c, c.reads[0]);
  std::int64_t forced = -1;
  if (p.routing == Routing::forced) {
    const std::int64_t sequence =
        (std::int64_t{c.action.microbatch} * p.dp + rank.at.dp) * p.micro_batch_size;
    forced = sequence * p.seq_len + rows_before(rank, logits.rows);
  }
  std::int32_t* visits = c.writes.count > 3 ? ints_of(rank.tensor(c, c.writes[3])) : nullptr;
  kernels::route(float_of(rank.tensor(c, c.writes[0])), ints_of(rank.tensor(c, c.writes[1])),
                 ints_of(rank.tensor(c, c.writes[2])), visits, float_of(logits), router_of(rank),
                 sequences_of(rank, logits.rows), p.micro_batch_size, forced, logits.rows, stream);
}

// {tokens, row map, counts, scores?} -> {copies by expert, their weights?}; {rows, row map,
// numbers?} -> {sums by token, numbers by choice?}.
void launch_permute(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const kernels::Router router = router_of(rank);
  const Tensor from = rank.tensor(c, c.reads[0]), to = rank.tensor(c, c.writes[0]);
  const std::int32_t* row_map = ints_of(rank.tensor(c, c.reads[1]));
  float* numbers = c.writes.count > 1 ? float_of(rank.tensor(c, c.writes[1])) : nullptr;
  if (c.op->role == Role::sort_tokens) {
    const float* scores = numbers != nullptr ? float_of(rank.tensor(c, c.reads[3])) : nullptr;
    kernels::sort_tokens(bf16_of(to), numbers, bf16_of(from), row_map, scores, router, from.rows,
                         from.cols, stream);
  } else {
    QPLAN_CHECK(c.op->role == Role::sum_copies, "experts of one rank need no grouping");
    const float* by_place = numbers != nullptr ? float_of(rank.tensor(c, c.reads[2])) : nullptr;
    kernels::sum_copies(bf16_of(to), numbers, bf16_of(from), row_map, by_place, router.top_k,
                        to.rows, to.cols, stream);
  }
}

// forward {x, weights, counts} -> {y}; input gradient {dy, weights, counts} -> {dx}; weight
// gradient {dy, x, counts} -> {gradients}. One product an expert, of as many rows as it has.
void launch_experts_product(CudaRank& rank, const Command& c, const GroupedGemm& work,
                            cudaStream_t stream) {
  const auto& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  const bool wgrad = c.op->role == Role::weight_gradient;
  const bool dgrad = c.op->role == Role::input_gradient;
  // The weight is (out, in): of forward (n, k), of dgrad (k, n).
  const std::int64_t out_features = dgrad ? work.k : work.n;
  const Tensor in = rank.tensor(c, c.reads[0]);
  const Tensor slot = wgrad ? rank.tensor(c, c.writes[0]) : rank.tensor(c, c.reads[1]);
  const Tensor other = wgrad ? rank.tensor(c, c.reads[1]) : rank.tensor(c, c.writes[0]);
  std::int64_t first = 0;
  const auto& counts = rank.expert_counts(c, rank.tensor(c, c.reads[2]), stream);
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    const std::int64_t rows = counts[expert];
    if (rows == 0) continue;
    const auto copy = static_cast<std::int64_t>(expert);
    const Tensor w = slot.part(p.offset + copy * p.stride, out_features, p.cols);
    const Tensor x = in.row_range(first, rows), y = other.row_range(first, rows);
    first += rows;
    if (wgrad) {
      rank.blas.multiply({.m = w.rows,
                          .n = w.cols,
                          .k = rows,
                          .a_stride = x.cols,
                          .b_stride = y.cols,
                          .c_stride = w.cols,
                          .a_transposed = true,
                          .accumulate = true,
                          .out = w.dtype},
                         x.data, y.data, w.data, stream);
    } else {
      rank.blas.multiply({.m = rows,
                          .n = work.n,
                          .k = work.k,
                          .a_stride = x.cols,
                          .b_stride = w.cols,
                          .c_stride = y.cols,
                          .b_transposed = !dgrad},
                         x.data, w.data, y.data, stream);
    }
  }
}

}  // namespace qplan
