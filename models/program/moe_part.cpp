// Mixture of experts: norm, router, dispatch, expert MLPs, combine, shared expert, residual
// (physics.md 3.3 and 6; frameworks.md 2.4 rows 9-18).

#include <algorithm>
#include <cmath>

#include "models/program/layer_context.h"

namespace qplan {
namespace {

// Distinct ranks that `k` of `experts` experts, spread over `ranks`, are expected to live on
// (uniform routing): DeepEP sends a token once to each. physics.md 3.3.
double distinct_ranks(std::int64_t experts, int ranks, std::int64_t k) {
  const double elsewhere = static_cast<double>(experts - experts / ranks);
  double none = 1;  // C(E - E/ranks, k) / C(E, k)
  for (std::int64_t i = 0; i < k; ++i) {
    none *= std::max(0.0, elsewhere - static_cast<double>(i)) / static_cast<double>(experts - i);
  }
  return ranks * (1 - none);
}

bool library_dispatch(MoeDispatcher d) {
  return d == MoeDispatcher::deepep || d == MoeDispatcher::hybridep;
}

}  // namespace

MoePart::Rows MoePart::rows() const {
  const MoeSpec& moe = *c_.model.moe;
  const std::int64_t sent = c_.local_tokens * moe.top_k;
  const double received = std::ceil(static_cast<double>(sent) * c_.shape.moe_load) * c_.shape.etp;
  return {sent, static_cast<std::int64_t>(received)};
}

// One direction of the token exchange over the expert-parallel group.
Collective MoePart::exchange() const {
  const MoeSpec& moe = *c_.model.moe;
  const double row = static_cast<double>(c_.hidden) * 2;
  const double sent = static_cast<double>(c_.local_tokens * moe.top_k) * c_.shape.moe_load;
  if (library_dispatch(c_.shape.dispatcher)) {
    const double copies =
        distinct_ranks(moe.num_experts, c_.shape.ep, moe.top_k) / static_cast<double>(moe.top_k);
    return {CollectiveKind::all_to_all, Axis::ep, Bytes(sent * copies * row), true};
  }
  return {CollectiveKind::all_to_all, Axis::ep, Bytes(sent * row), false};
}

SlotId MoePart::dispatch(SlotId tokens) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const DType act = c_.activation_dtype();
  const Rows n = rows();
  const std::int64_t before_etp = n.received / s.etp;
  SlotId arrived = kNoSlot;
  if (s.dispatcher == MoeDispatcher::allgather && s.ep > 1) {
    const std::int64_t all = c_.local_tokens * s.ep;
    const SlotId gathered = b.slot("tokens of all", act, all, c_.hidden);
    const Bytes bytes(static_cast<double>(all * c_.hidden) * size_of(act));
    b.exposed(Collective{CollectiveKind::all_gather, Axis::ep, bytes}, {tokens}, {gathered});
    arrived = b.slot("dispatched", act, before_etp, c_.hidden);
    c_.rowwise(RowwiseKind::permute, before_etp, c_.hidden, {gathered, row_map_}, {arrived});
  } else if (library_dispatch(s.dispatcher) && s.ep > 1) {
    const SlotId raw = b.slot("received", act, before_etp, c_.hidden);
    b.exposed(exchange(), {tokens}, {raw});
    arrived = b.slot("dispatched", act, before_etp, c_.hidden);
    c_.rowwise(RowwiseKind::permute, before_etp, c_.hidden, {raw, row_map_}, {arrived});
  } else {
    const SlotId sorted = b.slot("permuted", act, n.sent, c_.hidden);
    c_.rowwise(RowwiseKind::permute, n.sent, c_.hidden, {tokens, row_map_}, {sorted});
    arrived = sorted;
    if (s.ep > 1) {
      const SlotId raw = b.slot("received", act, before_etp, c_.hidden);
      b.exposed(exchange(), {sorted}, {raw});
      arrived = raw;
      if (c_.model.moe->num_experts / s.ep > 1) {
        arrived = b.slot("dispatched", act, before_etp, c_.hidden);
        c_.rowwise(RowwiseKind::permute, before_etp, c_.hidden, {raw}, {arrived});
      }
    }
  }
  if (s.etp > 1) {
    const SlotId whole = b.slot("dispatched over etp", act, n.received, c_.hidden);
    const Bytes bytes(static_cast<double>(n.received * c_.hidden) * size_of(act));
    b.exposed(Collective{CollectiveKind::all_gather, Axis::etp, bytes}, {arrived}, {whole});
    arrived = whole;
  }
  return arrived;
}

SlotId MoePart::combine(SlotId expert_out) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const DType act = c_.activation_dtype();
  const Rows n = rows();
  const std::int64_t before_etp = n.received / s.etp;
  SlotId leaving = expert_out;
  if (s.etp > 1) {
    leaving = b.slot("expert sum", act, before_etp, c_.hidden);
    const Bytes bytes(static_cast<double>(n.received * c_.hidden) * size_of(act));
    b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::etp, bytes}, {expert_out},
              {leaving});
  }
  const SlotId combined = b.slot("combined", act, c_.local_tokens, c_.hidden);
  if (s.dispatcher == MoeDispatcher::allgather && s.ep > 1) {
    const std::int64_t all = c_.local_tokens * s.ep;
    const SlotId scattered = b.slot("partial of all", act, all, c_.hidden);
    c_.rowwise(RowwiseKind::unpermute, before_etp, c_.hidden, {leaving, row_map_}, {scattered});
    const Bytes bytes(static_cast<double>(all * c_.hidden) * size_of(act));
    b.exposed(Collective{CollectiveKind::reduce_scatter, Axis::ep, bytes}, {scattered}, {combined});
    return combined;
  }
  if (library_dispatch(s.dispatcher) && s.ep > 1) {
    const SlotId raw = b.slot("sorted back", act, before_etp, c_.hidden);
    c_.rowwise(RowwiseKind::unpermute, before_etp, c_.hidden, {leaving, row_map_}, {raw});
    b.exposed(exchange(), {raw}, {combined});
    return combined;
  }
  if (s.ep > 1) {
    if (c_.model.moe->num_experts / s.ep > 1) {
      const SlotId sorted = b.slot("sorted back", act, before_etp, c_.hidden);
      c_.rowwise(RowwiseKind::permute, before_etp, c_.hidden, {leaving}, {sorted});
      leaving = sorted;
    }
    const SlotId back = b.slot("returned", act, n.sent, c_.hidden);
    b.exposed(exchange(), {leaving}, {back});
    leaving = back;
  }
  c_.rowwise(RowwiseKind::unpermute, n.sent, c_.hidden, {leaving, row_map_}, {combined});
  return combined;
}

SlotId MoePart::forward(SlotId x) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  const std::int64_t fe = moe.moe_intermediate_size / s.etp;
  const std::int64_t groups = moe.num_experts / s.ep;
  const Rows n = rows();
  x_ = x;
  normed_ = b.slot("moe normed", act, c_.local_tokens, c_.hidden);
  eager_norm_ = c_.eager_norm_copy();
  c_.norm_forward(x, normed_, c_.local_tokens, c_.hidden, eager_norm_);

  b.begin_module(RecomputeModule::moe);
  const SlotId logits = b.slot("router logits", DType::fp32, c_.local_tokens, moe.num_experts);
  b.compute(Gemm{.m = c_.local_tokens, .n = moe.num_experts, .k = c_.hidden}, {normed_, c_.weights},
            {logits});
  probs_ = b.slot("router probs", DType::fp32, c_.local_tokens, moe.num_experts);
  row_map_ = b.slot("row map", DType::int32, c_.local_tokens, 2 * moe.top_k);
  c_.rowwise(RowwiseKind::router, c_.local_tokens, moe.num_experts, {logits}, {probs_, row_map_});
  if (c_.recipe.moe_host_sync && s.dispatcher == MoeDispatcher::alltoall) b.host_sync();

  expert_in_ = c_.linear_input(dispatch(normed_), n.received, c_.hidden);
  row_probs_ = b.slot("row probs", DType::fp32, n.received, 2);
  up_ = b.slot("expert up", act, n.received, 2 * fe);
  const GroupedGemm up{.groups = groups,
                       .rows = n.received,
                       .n = 2 * fe,
                       .k = c_.hidden,
                       .dtype = c_.linear_dtype()};
  b.compute(up, {expert_in_, c_.expert_weights}, {up_});
  b.begin_module(RecomputeModule::moe_act);
  const SlotId activated = b.slot("expert act", act, n.received, fe);
  c_.rowwise(RowwiseKind::swiglu, n.received, fe, {up_, probs_}, {activated, row_probs_});
  act_ = c_.linear_input(activated, n.received, fe);
  b.end_module(RecomputeModule::moe_act);
  const SlotId out = b.slot("expert out", act, n.received, c_.hidden);
  const GroupedGemm down{
      .groups = groups, .rows = n.received, .n = c_.hidden, .k = fe, .dtype = c_.linear_dtype()};
  b.compute(down, {act_, c_.expert_weights}, {out});
  SlotId sum = combine(out);

  if (moe.shared_expert_intermediate_size > 0) {
    b.begin_module(RecomputeModule::shared_experts);
    const std::int64_t fs = moe.shared_expert_intermediate_size / s.tp;
    shared_up_ = b.slot("shared up", act, c_.tokens, 2 * fs);
    c_.gathered_linear(normed_, shared_up_, 2 * fs, c_.hidden);
    shared_act_ = b.slot("shared act", act, c_.tokens, fs);
    c_.rowwise(RowwiseKind::swiglu, c_.tokens, fs, {shared_up_}, {shared_act_});
    const SlotId shared = c_.linear_reduced(shared_act_, c_.hidden, fs, "shared sum");
    b.end_module(RecomputeModule::shared_experts);
    const SlotId both = b.slot("expert and shared", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, shared}, {both});
    sum = both;
  }
  b.end_module(RecomputeModule::moe);
  const SlotId y = b.slot("y", act, c_.local_tokens, c_.hidden, Storage::wire);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, x}, {y});
  return y;
}

SlotId MoePart::backward(SlotId dy) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  const std::int64_t fe = moe.moe_intermediate_size / s.etp;
  const std::int64_t groups = moe.num_experts / s.ep;
  const Rows n = rows();
  const bool accumulate = c_.recipe.fp32_gradient_accumulation && s.grad_dtype == DType::fp32;

  SlotId dnormed_shared = kNoSlot;
  if (moe.shared_expert_intermediate_size > 0) {
    const std::int64_t fs = moe.shared_expert_intermediate_size / s.tp;
    const SlotId dy_whole = c_.gather_sequence(dy, c_.hidden);
    const SlotId dact = b.slot("d shared act", act, c_.tokens, fs);
    c_.linear_dgrad(dy_whole, dact, c_.tokens, c_.hidden, fs);
    c_.linear_wgrad(dy_whole, shared_act_, c_.tokens, c_.hidden, fs);
    const SlotId dup = b.slot("d shared up", act, c_.tokens, 2 * fs);
    c_.rowwise(RowwiseKind::swiglu_backward, c_.tokens, fs, {shared_up_, dact}, {dup});
    const SlotId normed_whole = c_.gather_sequence(normed_, c_.hidden);
    const SlotId partial = b.slot("d shared partial", act, c_.tokens, c_.hidden);
    c_.linear_dgrad(dup, partial, c_.tokens, 2 * fs, c_.hidden);
    c_.linear_wgrad(dup, normed_whole, c_.tokens, 2 * fs, c_.hidden);
    dnormed_shared = c_.reduce_partial(partial, c_.hidden, "d shared normed");
  }

  // Combine's backward sends gradients the way tokens went, dispatch's the way they came back.
  const SlotId dout = dispatch(dy);
  const GroupedGemm down_dgrad{
      .groups = groups, .rows = n.received, .n = fe, .k = c_.hidden, .dtype = c_.linear_dtype()};
  const SlotId dout_in = c_.linear_input(dout, n.received, c_.hidden);
  const SlotId dact = b.slot("d expert act", act, n.received, fe);
  b.compute(down_dgrad, {dout_in, c_.expert_weights_backward}, {dact});
  const GroupedGemm down_wgrad{.groups = groups,
                               .rows = n.received,
                               .n = c_.hidden,
                               .k = fe,
                               .dtype = c_.linear_dtype(),
                               .weight_gradient = true,
                               .accumulate_fp32 = accumulate};
  b.compute(down_wgrad, {dout_in, act_}, {c_.expert_gradients});
  const SlotId dup_raw = b.slot("d expert up", act, n.received, 2 * fe);
  const SlotId dprobs = b.slot("d probs", DType::fp32, n.received, 1);
  c_.rowwise(RowwiseKind::swiglu_backward, n.received, fe, {up_, dact, row_probs_},
             {dup_raw, dprobs});
  const SlotId dup = c_.linear_input(dup_raw, n.received, 2 * fe);
  const SlotId din = b.slot("d expert in", act, n.received, c_.hidden);
  const GroupedGemm up_dgrad{.groups = groups,
                             .rows = n.received,
                             .n = c_.hidden,
                             .k = 2 * fe,
                             .dtype = c_.linear_dtype()};
  b.compute(up_dgrad, {dup, c_.expert_weights_backward}, {din});
  const GroupedGemm up_wgrad{.groups = groups,
                             .rows = n.received,
                             .n = 2 * fe,
                             .k = c_.hidden,
                             .dtype = c_.linear_dtype(),
                             .weight_gradient = true,
                             .accumulate_fp32 = accumulate};
  b.compute(up_wgrad, {dup, expert_in_}, {c_.expert_gradients});
  const SlotId dnormed = combine(din);

  const SlotId dlogits = b.slot("d router logits", DType::fp32, c_.local_tokens, moe.num_experts);
  c_.rowwise(RowwiseKind::router_backward, c_.local_tokens, moe.num_experts,
             {probs_, dprobs, row_map_}, {dlogits});
  const SlotId drouter = b.slot("d router in", act, c_.local_tokens, c_.hidden);
  b.compute(Gemm{.m = c_.local_tokens, .n = c_.hidden, .k = moe.num_experts},
            {dlogits, c_.weights_backward}, {drouter});
  b.compute(Gemm{.m = moe.num_experts, .n = c_.hidden, .k = c_.local_tokens}, {dlogits, normed_},
            {c_.gradients});
  const SlotId sum = b.slot("d moe normed", act, c_.local_tokens, c_.hidden);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {dnormed, drouter, dnormed_shared},
             {sum});
  const SlotId dx = b.slot("d x2", act, c_.local_tokens, c_.hidden);
  c_.norm_backward(x_, sum, dy, dx, c_.local_tokens, c_.hidden, eager_norm_);
  return dx;
}

}  // namespace qplan
