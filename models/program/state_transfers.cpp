// How states move between ranks: parameters before they are used, gradients as they are made and
// once a step.

#include <algorithm>
#include <utility>

#include "models/program/state_builder.h"
#include "models/program/state_shares.h"

namespace qplan {
namespace {

// A layer has at most four matrices to cut between: qkv, o, gate and up, down.
double reduction_calls(const Recipe& recipe, const BlockShape& s, std::int64_t count) {
  if (!recipe.states.buckets || s.kind != BlockKind::decoder) return 1;
  const Bytes gradients(static_cast<double>(count) * size_of(DType::bf16));
  return std::clamp(gradients / recipe.states.buckets->size, 1.0, 4.0);
}

Rowwise zero_fill(DType dtype, std::int64_t elements) {
  return {.kind = RowwiseKind::zero_fill, .rows = 1, .cols = elements, .dtype = dtype};
}

}  // namespace

void StateBuilder::enter_forward() {
  if (!gathers_parameters(c_.recipe, c_.shape.zero)) return;
  wait_for_parameters();
  c_.b.compute(Join{}, {c_.weights, c_.adapters}, {});
  copy_out(c_.weights);
  prefetch(c_.shape.next, "next weights", "next frozen weights");
}

void StateBuilder::enter_backward() {
  if (!gathers_parameters(c_.recipe, c_.shape.zero) || c_.shape.zero != 3) return;
  wait_for_parameters();
  c_.b.compute(Join{}, {c_.weights_backward, c_.adapters_backward}, {});
  copy_out(c_.weights_backward);
  prefetch(c_.shape.previous, "previous weights", "previous frozen weights");
}

// Where no rank has another share, the copy from the host is all that comes.
void StateBuilder::wait_for_parameters() {
  c_.b.wait_for(Stream::gather_comm);
  if (c_.shape.params_offload) c_.b.wait_for(Stream::h2d);
}

void StateBuilder::copy_out(SlotId gathered) {
  const auto& s = c_.shape;
  const std::int64_t dense = own_.dense + own_.frozen_dense;
  const std::int64_t expert = own_.expert + own_.frozen_expert;
  const std::int64_t count = (s.dense_shard > 1 ? dense : 0) + (s.expert_shard > 1 ? expert : 0);
  if (!c_.recipe.states.copies_gathered || count == 0) return;
  c_.rowwise(RowwiseKind::copy, 1, count, {gathered}, {}).role = Role::copy_gathered;
}

bool StateBuilder::flattens() const {
  const auto& s = c_.shape;
  return c_.recipe.states.flat_parameters && (s.dense_shard > 1 || s.expert_shard > 1);
}

SlotId StateBuilder::flat_gradients() {
  auto& b = c_.b;
  const DType dtype = b.at(whole_gradients_).dtype;
  const Storage storage = dtype == reduce_dtype() ? Storage::wire : Storage::local;
  const SlotId flat = b.slot("flat gradients", dtype, 1, own_.total(), storage);
  b.at(flat).flow = Flow::gradients;
  c_.rowwise(RowwiseKind::copy, 1, own_.total(), {whole_gradients_}, {flat});
  return flat;
}

void StateBuilder::add_whole() {
  if (own_.total() == 0) return;
  auto& b = c_.b;
  const DType sum = b.at(gradients_).dtype;
  const bool widens = b.at(whole_gradients_).dtype != sum;
  b.compute(Rowwise{.kind = widens ? RowwiseKind::accumulate : RowwiseKind::add,
                    .rows = 1,
                    .cols = own_.total(),
                    .dtype = sum},
            {whole_gradients_, gradients_}, {gradients_});
}

// What was added up whole goes into the array that is reduced. That array has no slot: this list
// allocates nothing, and it is gone when the next block's is made.
void StateBuilder::copy_sums() {
  auto& b = c_.b;
  const auto pass = [&](RowwiseKind kind) {
    b.compute(Rowwise{.kind = kind, .rows = 1, .cols = own_.total(), .dtype = reduce_dtype()},
              {gradients_}, {gradients_});
  };
  if (b.at(gradients_).dtype != reduce_dtype()) {
    pass(RowwiseKind::cast);
  } else if (c_.recipe.states.copies_gathered) {
    pass(RowwiseKind::copy);
  }
  if (flattens()) pass(RowwiseKind::scale);
}

void StateBuilder::leave_backward() {
  if (c_.shape.sums_whole) return add_whole();
  if (!reduces_every_microbatch(c_.shape)) return;
  if (own_.total() > 0 && c_.recipe.states.adds_gradients) {
    c_.b.before_first_write(whole_gradients_,
                            zero_fill(c_.b.at(whole_gradients_).dtype, own_.total()));
  }
  drain();
  if (own_.total() == 0) return;
  const auto& s = c_.shape;
  auto& b = c_.b;
  SlotId input = flattens() ? flat_gradients() : whole_gradients_;
  if (b.at(input).dtype != reduce_dtype()) {
    const SlotId narrow = std::exchange(
        input, b.slot("reduction input", reduce_dtype(), 1, own_.total(), Storage::wire));
    b.at(input).flow = Flow::gradients;
    // Reads 2 bytes and writes 4: as a cast from fp32.
    const bool torch = c_.recipe.states.copies_gathered;
    b.compute(Rowwise{.kind = torch ? RowwiseKind::chunk_cat : RowwiseKind::cast,
                      .rows = 1,
                      .cols = own_.total(),
                      .dtype = reduce_dtype(),
                      .fused = !torch},
              {narrow}, {input});
  }
  if (flattens()) {
    b.compute(
        Rowwise{
            .kind = RowwiseKind::scale, .rows = 1, .cols = own_.total(), .dtype = reduce_dtype()},
        {input}, {input});
  }
  keep_gradients(input);
  reduce_microbatch(own_.dense, dense_axis(s), s.dense_shard, input);
  sum_replicas(input);
  reduce_microbatch(own_.expert, Axis::edp, s.expert_shard, input);
  if (!s.overlap.has(OverlapKind::grad)) {
    b.wait_for(Stream::reduce_comm);
    b.flush();
  }
}

void StateBuilder::drain() {
  if (c_.shape.sums_whole || c_.shape.next.total() == 0) return;
  auto& b = c_.b;
  const SlotId pending =
      b.slot("reduction in flight", reduce_dtype(), 1, c_.shape.next.total(), Storage::wire);
  b.at(pending).flow = Flow::gradients;
  b.wait_for(Stream::reduce_comm);
  b.compute(Join{}, {pending}, {});
}

void StateBuilder::prefetch(const RankParameters& n, std::string_view name,
                            std::string_view frozen_name) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  bool gathered = false;
  const auto bring = [&](const RankParameters& part, SlotId whole, double element, bool narrows) {
    if (s.params_offload) {
      const auto shard = static_cast<double>(ceil_div(part.dense, s.dense_shard) +
                                             ceil_div(part.expert, s.expert_shard));
      b.aside(Stream::h2d, HostCopy{Bytes(shard * element), false}, {}, {whole});
    }
    const bool any = gather_shards(part, whole, element, narrows,
                                   s.params_offload ? only(Stream::h2d) : StreamSet{});
    // One rank: only the working copy is made.
    if (!any && !s.params_offload) b.compute(Join{}, {}, {whole});
    gathered = gathered || any;
  };
  if (const auto count = static_cast<double>(n.frozen().total()); count > 0) {
    bring(n.frozen(), whole_frozen(frozen_name, n), frozen_bytes(n, false) / count, false);
  }
  const bool narrows = working_params() == DType::fp32 && c_.activation_dtype() != DType::fp32;
  if (n.total() > 0) bring(n, whole_parameters(name, n), size_of(c_.activation_dtype()), narrows);
  // Without overlap the next block's parameters are waited for before this block computes.
  // DeepSpeed's overlap_comm is one switch for both directions (docs/reference/frameworks.md 3.1).
  const bool one_switch = c_.recipe.states.shard_style == ShardStyle::distributed_optimizer;
  const bool prefetches =
      s.overlap.has(OverlapKind::param) || (one_switch && s.overlap.has(OverlapKind::grad));
  if (gathered && !prefetches) {
    b.wait_for(Stream::gather_comm);
    b.flush();
  }
}

// foreach_all_gather in torch's _fsdp_collectives.py: shards of fp32 become what is computed with,
// then all go side by side into the gather's buffer, on a stream of their own.
void StateBuilder::copy_in(std::int64_t shard, double element, bool narrows) {
  const auto pass = [&](RowwiseKind kind, std::int64_t numbers, DType dtype) {
    c_.b.aside(Stream::gather_comm,
               Rowwise{.kind = kind, .rows = 1, .cols = numbers, .dtype = dtype}, {}, {});
  };
  if (narrows) pass(RowwiseKind::cast, shard, DType::fp32);
  const double words = static_cast<double>(shard) * element / size_of(DType::bf16);
  pass(RowwiseKind::copy, static_cast<std::int64_t>(words), DType::bf16);
}

bool StateBuilder::gather_shards(const RankParameters& n, SlotId whole, double element,
                                 bool narrows, StreamSet after) {
  const auto& s = c_.shape;
  bool any = false;
  const auto gather = [&](std::int64_t count, Axis axis, int ranks) {
    if (count == 0 || ranks == 1) return;
    const Bytes bytes(static_cast<double>(count) * element);
    if (c_.recipe.states.copies_gathered) copy_in(ceil_div(count, ranks), element, narrows);
    Op& op = c_.b.aside(Stream::gather_comm, Collective{CollectiveKind::all_gather, axis, bytes},
                        {}, {whole});
    op.after = op.after | after;
    any = true;
  };
  gather(n.dense, dense_axis(s), s.dense_shard);
  gather(n.expert, Axis::edp, s.expert_shard);
  const std::int64_t unshared =
      (s.dense_shard == 1 ? n.dense : 0) + (s.expert_shard == 1 ? n.expert : 0);
  if (any && unshared > 0 && c_.recipe.states.copies_unshared) {
    c_.b.aside(
        Stream::gather_comm,
        Rowwise{
            .kind = RowwiseKind::copy, .rows = 1, .cols = unshared, .dtype = c_.activation_dtype()},
        {}, {whole});
  }
  return any;
}

void StateBuilder::once_a_step() {
  if (own_.total() == 0 || borrows_) return;
  const auto& s = c_.shape;
  auto& b = c_.b;
  // Gradients are added to: ours, and a main_grad buffer (Megatron's zero_grad_buffer, nanotron's
  // accumulator, DeepSpeed's clear_hp_grads). torch's zero_grad drops gradients instead.
  if (c_.recipe.states.adds_gradients || c_.recipe.states.fp32_accumulation ||
      widens_gradients(c_.recipe, s)) {
    const RankParameters kept = s.zero >= 2 ? sharded(own_, s) : own_;
    b.into(&Block::clear);
    b.compute(zero_fill(kept_dtype(), kept.total()), {}, {gradients_});
  }
  const bool gathers = gathers_parameters(c_.recipe, s.zero);
  if (s.zero == 1 || (s.zero == 2 && !gathers)) {
    b.into(&Block::gather);
    gather_updated({});
    b.wait_for(Stream::gather_comm);
    b.flush();
  }
  b.into(&Block::reduce);
  if (!reduces_every_microbatch(s)) sum_embedding_copies();
  if (own_.partial > 0 && c_.recipe.states.sums_shared_gradients) {
    sum_shared(own_.partial, Axis::tp, Role::replicated_gradients);
  }
  if (!reduces_every_microbatch(s)) {
    if (s.sums_whole) copy_sums();
    const double grad = size_of(s.sums_whole ? reduce_dtype() : kept_dtype());
    reduce_whole(own_.dense, dense_axis(s), s.zero == 0 ? s.dense_replicas : s.dense_shard, grad);
    if (s.zero > 0 && s.dense_replicas > 1) {
      const Bytes shard(static_cast<double>(ceil_div(own_.dense, s.dense_shard)) * grad);
      c_.b.aside(Stream::reduce_comm,
                 Collective{CollectiveKind::all_reduce, Axis::dp_replicate, shard}, {gradients_},
                 {gradients_});
    }
    reduce_whole(own_.expert, Axis::edp, s.zero == 0 ? s.expert_replicas : s.expert_shard, grad);
  }
  b.into(&Block::norm);
  // Backward waits for what it reduces, and must not wait for the other end of the pipeline.
  if (reduces_every_microbatch(s)) {
    sum_embedding_copies();
    b.wait_for(Stream::reduce_comm);
  }
  b.compute(Rowwise{.kind = RowwiseKind::sum_of_squares,
                    .rows = 1,
                    .cols = shard_.total(),
                    .dtype = kept_dtype(),
                    .fused = c_.recipe.kernels.fused},
            {gradients_}, {});
  b.into(&Block::update);
  optimizer_step();
}

void StateBuilder::sum_shared(std::int64_t count, Axis axis, Role role) {
  const auto& s = c_.shape;
  const std::int64_t mine = s.zero >= 2 ? ceil_div(count, s.dense_shard) : count;
  const Bytes bytes(static_cast<double>(mine) * size_of(kept_dtype()));
  c_.b.aside(Stream::reduce_comm, Collective{CollectiveKind::all_reduce, axis, bytes}, {gradients_},
             {gradients_})
      .role = role;
}

void StateBuilder::sum_embedding_copies() {
  const auto& s = c_.shape;
  const bool has_copy =
      s.kind == BlockKind::embedding && s.embedding_table == EmbeddingTable::copied;
  if (!has_copy && !copies_embedding(c_.model, s)) return;
  sum_shared(vocabulary_share(c_.model, s) * c_.model.hidden_size, Axis::embedding,
             Role::tied_gradients);
}

// What is kept of the microbatches before joins this one's gradients ahead of their reduction,
// whose sum is then what is kept; what is shared with nobody is added to it. An addition behind the
// reduction would hold up the compute that is queued behind it until the reduction is done
// (docs/evidence/archive/executor-draws-2026-11.md). Others add while they reduce, or keep one
// microbatch's alone (torch's foreach_reduce): of theirs only the reduction is an op.
void StateBuilder::keep_gradients(SlotId input) {
  const auto& s = c_.shape;
  const bool dense = own_.dense > 0 && (s.dense_shard > 1 || s.dense_replicas > 1);
  const bool expert = own_.expert > 0 && s.expert_shard > 1;
  if (!c_.recipe.states.adds_gradients) {
    // One rank: its gradients are everybody's.
    if (!dense && !expert) c_.b.compute(Join{}, {input}, {gradients_});
    return;
  }
  const bool whole = (own_.dense > 0 && !dense) || (own_.expert > 0 && !expert);
  c_.b.compute(Rowwise{.kind = RowwiseKind::add,
                       .rows = 1,
                       .cols = sharded(own_, s).total(),
                       .dtype = kept_dtype()},
               {gradients_, input},
               {dense || expert ? input : kNoSlot, whole ? gradients_ : kNoSlot});
}

void StateBuilder::reduce_microbatch(std::int64_t count, Axis axis, int ranks, SlotId input) {
  if (count == 0 || ranks == 1) return;
  const Bytes bytes(static_cast<double>(count) * size_of(reduce_dtype()));
  c_.b.aside(Stream::reduce_comm, Collective{CollectiveKind::reduce_scatter, axis, bytes}, {input},
             {gradients_});
}

// Copies of a shard (HSDP).
void StateBuilder::sum_replicas(SlotId input) {
  const auto& s = c_.shape;
  if (own_.dense == 0 || s.dense_replicas == 1) return;
  const Bytes shard(static_cast<double>(own_.dense) * size_of(reduce_dtype()) / s.dense_shard);
  const bool in_place = c_.recipe.states.adds_gradients && s.dense_shard > 1;
  c_.b.aside(Stream::reduce_comm, Collective{CollectiveKind::all_reduce, Axis::dp_replicate, shard},
             {in_place ? gradients_ : input}, {gradients_});
}

void StateBuilder::reduce_whole(std::int64_t count, Axis axis, int ranks, double element) {
  if (count == 0 || ranks == 1) return;
  const auto kind =
      c_.shape.zero == 0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
  Collective reduction{kind, axis, Bytes(static_cast<double>(count) * element)};
  reduction.calls = reduction_calls(c_.recipe, c_.shape, count);
  c_.b.aside(Stream::reduce_comm, reduction, {gradients_}, {gradients_});
}

void StateBuilder::gather_updated(StreamSet after) {
  const auto& s = c_.shape;
  const auto gather = [&](std::int64_t count, Axis axis, int ranks) {
    if (count == 0 || ranks == 1) return;
    const Bytes bytes(static_cast<double>(count) * size_of(c_.activation_dtype()));
    Collective gathering{CollectiveKind::all_gather, axis, bytes};
    const auto& buckets = c_.recipe.states.buckets;
    const bool at_once = buckets && buckets->gathers_at_once;
    if (at_once && s.kind != BlockKind::embedding) gathering.calls = 0;
    c_.b.aside(Stream::gather_comm, gathering, {weights_}, {weights_}).after = after;
  };
  gather(own_.dense, dense_axis(s), s.dense_shard);
  gather(own_.expert, Axis::edp, s.expert_shard);
}

}  // namespace qplan
