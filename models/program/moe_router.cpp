// Who goes where: the router's probabilities and choices, and what ranks tell each other of them
// before tokens move.

#include "models/program/moe_part.h"

namespace qplan {

// Probabilities, choices and counts; with several expert ranks everybody learns everybody's counts,
// from which follows where each row goes.
void MoePart::route(SlotId logits) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  probs_ = b.slot("router probs", DType::fp32, c_.local_tokens, moe.num_experts);
  row_map_ = b.slot("row map", DType::int32, c_.local_tokens, 2 * moe.top_k);
  if (c_.recipe.form.routing) counts_ = b.slot("expert counts", DType::int32, 1, moe.num_experts);
  const bool balances = c_.recipe.form.routing && moe.aux_loss_coefficient > 0;
  if (balances) {
    balance_ = b.slot("visits of sequences", DType::int32, s.micro_batch_size, moe.num_experts);
  }
  c_.rowwise(RowwiseKind::router, c_.local_tokens, moe.num_experts, {logits, c_.weights},
             {probs_, row_map_, counts_, balance_})
      .parameter = b.parameter(ParameterRole::score_correction);
  if (counts_ == kNoSlot) return;
  // Ranks that hold parts of a sequence learn of all of it.
  for (const auto& [axis, parts] :
       {std::pair{Axis::tp, s.sequence_parallel ? s.tp : 1}, std::pair{Axis::cp, s.cp}}) {
    if (!balances || parts == 1) continue;
    const Bytes bytes(static_cast<double>(s.micro_batch_size * moe.num_experts) *
                      size_of(DType::int32));
    b.aside(Stream::model_comm, Collective{CollectiveKind::all_reduce, axis, bytes}, {balance_},
            {balance_})
        .role = Role::sequence_balance;
    b.wait_for(Stream::model_comm);
  }
  std::int64_t ranks = 1;
  for (const auto& [axis, size] : {std::pair{Axis::ep, s.ep}, std::pair{Axis::etp, s.etp}}) {
    if (size == 1) continue;
    ranks *= size;
    const SlotId all = b.slot("expert counts of all", DType::int32, ranks, moe.num_experts);
    const Bytes bytes(static_cast<double>(ranks * moe.num_experts) * size_of(DType::int32));
    b.aside(Stream::model_comm, Collective{CollectiveKind::all_gather, axis, bytes}, {counts_},
            {all})
        .role = Role::expert_counts;
    b.wait_for(Stream::model_comm);
    counts_ = all;
  }
}

// HybridEP tells every rank the choices of all: each forward gathers a byte a token and expert
// (all_gather_into_tensor of the boolean routing map; backward goes by what forward found), from
// which a kernel finds where rows go, priced as nothing. DeepEP, branch hybrid-ep, csrc/hybrid_ep:
// HybridEPBuffer::metadata_preprocessing, Executor::allgather_routing_map. The launching thread
// waits for the counts between gather and exchange; here before both, so that they stay one piece
// of communication where two microbatches are merged.
void MoePart::tell_routing() {
  auto& b = c_.b;
  const auto& s = c_.shape;
  if (s.counts_on_host) b.host_sync();
  if (s.dispatcher != MoeDispatcher::hybridep || s.ep == 1 || c_.recipe.form.routing) return;
  const std::int64_t tokens = c_.local_tokens * s.ep, experts = c_.model.moe->num_experts;
  const SlotId map = b.slot("routing of all", DType::boolean, tokens, experts);
  const Bytes bytes(static_cast<double>(tokens * experts) * size_of(DType::boolean));
  b.aside(Stream::model_comm, Collective{CollectiveKind::all_gather, Axis::ep, bytes}, {row_map_},
          {map});
}

}  // namespace qplan
