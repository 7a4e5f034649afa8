// Routing, the order of token copies, their way to other ranks' experts, and the products.

#include <fmt/format.h>

#include <numeric>

#include "executor/cuda/ops.h"
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
  return {.experts = moe.num_experts,
          .top_k = moe.top_k,
          .normed = moe.norm_topk_prob,
          .scale = static_cast<float>(moe.routed_scaling_factor),
          .sigmoid = moe.sigmoid_scores,
          .groups = static_cast<int>(moe.num_groups),
          .best_groups = static_cast<int>(moe.topk_group)};
}

// Rows of the microbatch that ranks before this one hold.
std::int64_t rows_before(const CudaRank& rank, std::int64_t rows) {
  return rank.job.plan.sequence_parallel ? rank.at.tp * rows : 0;
}

kernels::Sequences sequences_of(const CudaRank& rank, std::int64_t rows) {
  return {rows_before(rank, rows), rank.job.plan.seq_len / rank.job.plan.cp};
}

// Counts lie by rank of the exchange, [etp][ep][expert]: those of one ep group.
std::int64_t counts_before(const CudaRank& rank, const Tensor& counts, std::int64_t etp) {
  return etp * rank.job.plan.ep * counts.cols;
}

// Token copies of a microbatch, as the host knows them: of each rank of an ep group, for each
// expert.
class Copies {
 public:
  Copies(CudaRank& rank, const Command& c, const Tensor& counts, std::int64_t etp,
         cudaStream_t stream)
      : first_(rank.expert_counts(c, counts, stream).begin() + counts_before(rank, counts, etp)),
        experts_(counts.cols),
        ranks_(rank.job.plan.ep),
        local_(moe_of(rank).num_experts / ranks_) {}
  [[nodiscard]] std::int64_t local_experts() const { return local_; }
  // From one rank to the experts of another.
  [[nodiscard]] std::int64_t between(std::int64_t source, std::int64_t holder) const {
    const auto begin = first_ + source * experts_ + holder * local_;
    return std::accumulate(begin, begin + local_, std::int64_t{0});
  }
  // From all ranks to one expert.
  [[nodiscard]] std::int64_t of_expert(std::int64_t expert) const {
    std::int64_t sum = 0;
    for (std::int64_t r = 0; r < ranks_; ++r) sum += *(first_ + r * experts_ + expert);
    return sum;
  }

 private:
  std::vector<std::int32_t>::const_iterator first_;
  std::int64_t experts_, ranks_, local_;
};

// Rows of this rank's experts that one ep group sent, in the order of a grouped product.
kernels::RowGroups groups_of(const CudaRank& rank, const Tensor& counts, std::int64_t etp) {
  const std::int64_t local = moe_of(rank).num_experts / rank.job.plan.ep;
  return {ints_of(counts) + counts_before(rank, counts, etp) + rank.expert_at.ep * local,
          static_cast<int>(local), rank.job.plan.ep, static_cast<int>(counts.cols)};
}

// Without a grouped product: one product an expert, of as many rows as it has. `first`: its
// expert's weight or weight gradient, the others `stride` numbers apart. Of adapters, whose ranks
// are narrower than a grouped product's tiles, always.
void expert_by_expert(CudaRank& rank, const Command& c, const GroupedGemm& work, std::int64_t etp,
                      const Tensor& in, const Tensor& other, const Tensor& first,
                      std::int64_t stride, cudaStream_t stream) {
  const Copies copies(rank, c, rank.tensor(c, c.reads[2]), etp, stream);
  const std::int64_t first_expert = rank.expert_at.ep * copies.local_experts();
  const Adapter adapter = adapter_of(rank, c);
  const bool wgrad = c.op->role == Role::weight_gradient;
  const bool dgrad = c.op->role == Role::input_gradient;
  const bool is_b = adapter == Adapter::lora_b;
  const AdapterView view = is_b ? adapter_view(rank, c) : AdapterView{};
  // `in` holds a layer's outer columns in backward, and an adapter's inner ones in forward.
  const std::int64_t in_column = wgrad || dgrad ? view.column : view.inner;
  const std::int64_t other_column = wgrad || dgrad ? view.inner : view.column;
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < copies.local_experts(); ++expert) {
    const std::int64_t rows = copies.of_expert(first_expert + expert);
    if (rows == 0) continue;
    const Tensor w = first.part(expert * stride, first.rows, first.cols);
    const Tensor x = in.row_range(begin, rows).part(in_column, rows, in.cols);
    const Tensor y = other.row_range(begin, rows).part(other_column, rows, other.cols);
    begin += rows;
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
                         x.data, y.data, w.data, stream, {}, nullptr, view.scale);
    } else {
      rank.blas.multiply({.m = rows,
                          .n = work.n,
                          .k = work.k,
                          .a_stride = x.cols,
                          .b_stride = w.cols,
                          .c_stride = y.cols,
                          .b_transposed = !dgrad,
                          .accumulate = dgrad ? adapter == Adapter::lora_a : is_b},
                         x.data, w.data, y.data, stream, {}, nullptr, view.scale);
    }
  }
}

}  // namespace

// {rows, counts, numbers?} -> {rows, numbers?}. Rows sorted by expert lie by the rank that holds
// the expert; what arrives lies by source; back the same way.
void exchange_rows(CudaRank& rank, const Command& c, ncclComm_t group, cudaStream_t stream) {
  const bool to_experts = c.op->role == Role::dispatch;
  const Copies copies(rank, c, rank.tensor(c, c.reads[1]), rank.expert_at.etp, stream);
  const std::int64_t own = rank.expert_at.ep, ranks = rank.job.plan.ep;
  const auto outgoing = [&](std::int64_t peer) {
    return to_experts ? copies.between(own, peer) : copies.between(peer, own);
  };
  const auto incoming = [&](std::int64_t peer) {
    return to_experts ? copies.between(peer, own) : copies.between(own, peer);
  };
  std::int64_t arriving = 0;
  for (std::int64_t peer = 0; peer < ranks; ++peer) arriving += incoming(peer);
  const std::int64_t room = rank.tensor(c, c.writes[0]).rows;
  if (arriving > room) {
    throw DeviceError(fmt::format(
        "the experts receive {} token copies and the plan has room for {}; use a larger "
        "--moe-imbalance",
        arriving, room));
  }
  const auto move = [&](const Tensor& from, const Tensor& to) {
    const auto element = static_cast<std::int64_t>(size_of(from.dtype));
    std::int64_t sent = 0, received = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      const auto bytes = [&](std::int64_t rows) {
        return static_cast<std::size_t>(rows * from.cols * element);
      };
      check(ncclSend(from.row_range(sent, 0).data, bytes(outgoing(peer)), ncclInt8, peer, group,
                     stream));
      check(ncclRecv(to.row_range(received, 0).data, bytes(incoming(peer)), ncclInt8, peer, group,
                     stream));
      sent += outgoing(peer);
      received += incoming(peer);
    }
  };
  check(ncclGroupStart());  // one kernel for both
  move(rank.tensor(c, c.reads[0]), rank.tensor(c, c.writes[0]));
  if (c.writes.count > 1) move(rank.tensor(c, c.reads[2]), rank.tensor(c, c.writes[1]));
  check(ncclGroupEnd());
}

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
  kernels::ForcedRouting forced;
  if (p.routing != Routing::natural) {
    forced = {(std::int64_t{c.action.microbatch} * p.dp + rank.at.dp) * p.micro_batch_size,
              p.seq_len, rank.positions_on_device()};
  }
  kernels::Router router = router_of(rank);
  if (c.op->parameter != kNoParameter) {
    const auto& correction = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
    router.correction = bf16_of(parameter_in(rank.tensor(c, c.reads[1]), correction));
  }
  std::int32_t* visits = c.writes.count > 3 ? ints_of(rank.tensor(c, c.writes[3])) : nullptr;
  kernels::route(float_of(rank.tensor(c, c.writes[0])), ints_of(rank.tensor(c, c.writes[1])),
                 ints_of(rank.tensor(c, c.writes[2])), visits, float_of(logits), router,
                 sequences_of(rank, logits.rows), p.micro_batch_size, forced, logits.rows,
                 static_cast<std::int32_t*>(rank.scratch()), stream);
}

// {tokens, row map, counts, scores?} -> {copies by expert, their weights?}; {rows, row map,
// numbers?} -> {sums by token, numbers by choice?}; {rows, counts, numbers?} -> {rows, numbers?},
// grouped by expert or back.
void launch_permute(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const kernels::Router router = router_of(rank);
  const Tensor from = rank.tensor(c, c.reads[0]), to = rank.tensor(c, c.writes[0]);
  const Tensor map = rank.tensor(c, c.reads[1]);
  const std::int32_t* row_map = ints_of(map);
  float* numbers = c.writes.count > 1 ? float_of(rank.tensor(c, c.writes[1])) : nullptr;
  if (c.op->role == Role::group_rows || c.op->role == Role::ungroup_rows) {
    const std::int64_t ranks = rank.job.plan.ep, local = router.experts / ranks;
    const kernels::Arrivals arrivals{row_map + counts_before(rank, map, rank.expert_at.etp), ranks,
                                     router.experts, rank.expert_at.ep * local, local};
    const float* own = numbers != nullptr ? float_of(rank.tensor(c, c.reads[2])) : nullptr;
    kernels::group_rows(bf16_of(to), numbers, bf16_of(from), own, arrivals,
                        c.op->role == Role::group_rows, from.rows, from.cols, stream);
  } else if (c.op->role == Role::sort_tokens) {
    const float* scores = numbers != nullptr ? float_of(rank.tensor(c, c.reads[3])) : nullptr;
    kernels::sort_tokens(bf16_of(to), numbers, bf16_of(from), row_map, scores, router, from.rows,
                         from.cols, stream);
  } else {
    QPLAN_CHECK(c.op->role == Role::sum_copies, "a permutation says which");
    const float* by_place = numbers != nullptr ? float_of(rank.tensor(c, c.reads[2])) : nullptr;
    kernels::sum_copies(bf16_of(to), numbers, bf16_of(from), row_map, by_place, router.top_k,
                        to.rows, to.cols, stream);
  }
}

// {rows, numbers} -> {rows}; {d rows, rows, numbers} -> {d rows, d numbers}.
void launch_scale_rows(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const Tensor given = rank.tensor(c, c.reads[0]), result = rank.tensor(c, c.writes[0]);
  const float* numbers = float_of(rank.tensor(c, c.reads[backward ? 2 : 1]));
  if (!backward) {
    return kernels::scale_rows(bf16_of(result), bf16_of(given), numbers, given.rows, given.cols,
                               stream);
  }
  kernels::scale_rows_backward(bf16_of(result), float_of(rank.tensor(c, c.writes[1])),
                               bf16_of(given), bf16_of(rank.tensor(c, c.reads[1])), numbers,
                               given.rows, given.cols, stream);
}

namespace {

// Of all etp ranks' shares at once.
kernels::RowGroups groups_of_all(const CudaRank& rank, const Tensor& counts, std::int64_t rows) {
  kernels::RowGroups groups = groups_of(rank, counts, 0);
  groups.shares = rank.job.plan.etp;
  groups.share_stride = static_cast<int>(counts_before(rank, counts, 1));
  groups.share_rows = rows / rank.job.plan.etp;
  return groups;
}

kernels::GroupedWeights grouped(const Tensor& weights, const PackedParameter& bias,
                                std::int64_t width) {
  return {bf16_of(weights.part(bias.offset, 1, width)), width, 1, bias.stride};
}

// Each etp rank's share of a slot's rows, and its groups: what every ep group has sent.
template <class Visit>
void each_share(const CudaRank& rank, const Tensor& counts, std::int64_t rows, Visit visit) {
  const std::int64_t share = rows / rank.job.plan.etp;
  for (int etp = 0; etp < rank.job.plan.etp; ++etp) {
    visit(etp * share, share, groups_of(rank, counts, etp));
  }
}

// The bias (of neighbours the first, which the others follow) that a product adds to y, each row's
// times its scale, or its gradient from dy.
void experts_bias(const CudaRank& rank, const Command& c, const PackedParameter& bias,
                  const Tensor& rows, cudaStream_t stream) {
  const bool gradient = c.op->role == Role::weight_gradient;
  const Tensor slot = rank.tensor(c, gradient ? c.writes[0] : c.reads[1]);
  const Tensor counts = rank.tensor(c, c.reads[2]);
  const float* scale = c.reads.count > 3 ? float_of(rank.tensor(c, c.reads[3])) : nullptr;
  each_share(rank, counts, rows.rows,
             [&](std::int64_t first, std::int64_t share, const kernels::RowGroups& groups) {
               kernels::bf16* const own = bf16_of(rows.row_range(first, share));
               const float* own_scale = scale == nullptr ? nullptr : scale + first;
               if (gradient) {
                 kernels::group_bias_gradient(
                     {float_of(slot.part(bias.offset, 1, rows.cols)), rows.cols, 1, bias.stride},
                     own, own_scale, groups, stream);
               } else {
                 kernels::add_group_bias(own, own_scale, grouped(slot, bias, rows.cols), groups,
                                         share, stream);
               }
             });
}

}  // namespace

// {up, dact, scale, counts, dout, weights} -> {dup, dscale}: what is left to add to dscale.
void add_bias_to_scale_gradient(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const auto& bias = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  if (rank.expert_at.etp > 0) return;  // whose products have no bias
  const Tensor dout = rank.tensor(c, c.reads[4]), weights = rank.tensor(c, c.reads[5]);
  float* const dscale = float_of(rank.tensor(c, c.writes[1]));
  each_share(rank, rank.tensor(c, c.reads[3]), dout.rows,
             [&](std::int64_t first, std::int64_t share, const kernels::RowGroups& groups) {
               kernels::group_bias_scale_gradient(
                   dscale + first, bf16_of(dout.row_range(first, share)),
                   grouped(weights, bias, dout.cols), groups, share, stream);
             });
}

// forward {x, weights, counts, scale?} -> {y}; input gradient {dy, weights, counts} -> {dx}; weight
// gradient {dy, x, counts, scale?} -> {gradients}.
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
  const Tensor first = slot.part(p.offset, out_features, p.cols);
  const Tensor counts = rank.tensor(c, c.reads[2]);
  if (rank.load_log != nullptr) rank.load_log->note(c, counts, stream);
  const auto product = [&](const kernels::RowGroups& groups, const Tensor& x, const Tensor& y) {
    if (wgrad) {
      kernels::grouped_weight_gradient({float_of(first), out_features, p.cols, p.stride},
                                       bf16_of(x), bf16_of(y), groups, x.rows, stream);
      return;
    }
    const kernels::GroupedWeights weights{bf16_of(first), out_features, p.cols, p.stride};
    const auto run = dgrad ? kernels::grouped_input_gradient : kernels::grouped_forward;
    run(bf16_of(y), bf16_of(x), weights, groups, x.rows, stream);
  };
  const kernels::RowGroups all = groups_of_all(rank, counts, in.rows);
  const bool together = kernels::has_grouped_products() && adapter_of(rank, c) == Adapter::none;
  if (together && all.count * all.shares <= kernels::kMostRowGroups) {
    product(all, in, other);
  } else {
    each_share(rank, counts, in.rows,
               [&](std::int64_t begin, std::int64_t share, const kernels::RowGroups& groups) {
                 const Tensor x = in.row_range(begin, share), y = other.row_range(begin, share);
                 if (together) return product(groups, x, y);
                 expert_by_expert(rank, c, work, begin / share, x, y, first, p.stride, stream);
               });
  }
  const PackedParameter* const bias = bias_of(rank, c, p);
  if (bias == nullptr || dgrad) return;
  if (wgrad || adds_bias(rank, p)) experts_bias(rank, c, *bias, wgrad ? in : other, stream);
}

}  // namespace qplan
