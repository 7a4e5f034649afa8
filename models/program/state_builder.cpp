#include "models/program/state_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace qplan {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t ceil_of(double bytes) {
  return static_cast<std::int64_t>(std::ceil(bytes));
}

// Bytes per parameter on the device that any optimizer has.
double master_bytes(const Recipe& r, const BlockShape& s) {
  const bool fp32_working = r.states.working_params == DType::fp32 && gathers_parameters(r, s.zero);
  // Weights that were loaded in 16 bits and are updated in place are their own master.
  const bool one_copy =
      r.states.updates_working_weights && size_of(s.main_params_dtype) < size_of(DType::fp32);
  const double main = fp32_working || one_copy ? 0 : size_of(s.main_params_dtype);
  // fp16 keeps an fp32 copy of the gradients beside the master weights
  // (docs/reference/frameworks.md 2.2: 20 bytes); torch's own optimizers have neither.
  const bool copies_gradients =
      s.precision == Precision::fp16 && main > 0 && !r.states.updates_working_weights;
  return main + (copies_gradients ? 4 : 0);
}

Axis dense_axis(const BlockShape& s) {
  return s.dense_replicas > 1 && s.zero > 0 ? Axis::dp_shard : Axis::dp_cp;
}

RankParameters sharded(const RankParameters& n, const BlockShape& s) {
  return {.dense = ceil_div(n.dense, s.dense_shard), .expert = ceil_div(n.expert, s.expert_shard)};
}

// A layer has at most four matrices to cut between: qkv, o, gate and up, down.
double reduction_calls(const Recipe& recipe, const BlockShape& s, std::int64_t count) {
  if (!recipe.states.buckets || s.kind != BlockKind::decoder) return 1;
  const Bytes gradients(static_cast<double>(count) * size_of(DType::bf16));
  return std::clamp(gradients / recipe.states.buckets->size, 1.0, 4.0);
}

Rowwise zero_fill(DType dtype, std::int64_t elements) {
  return {.kind = RowwiseKind::zero_fill, .rows = 1, .cols = elements, .dtype = dtype};
}

// Of the weights that products of fp8 read: not the router's, nor those at the vocabulary.
std::int64_t linear_elements(const std::vector<PackedParameter>& table) {
  std::int64_t sum = 0;
  for (const PackedParameter& p : table) {
    if (is_projection(p.whole)) sum += p.elements();
  }
  return sum;
}

// Whether the second weight is the up projection of the first one's gated MLP.
bool is_up_of(const Parameter& gate, const Parameter& up) {
  using enum ParameterRole;
  const bool packed =
      gate.role == gate_proj || gate.role == shared_gate_proj || gate.role == expert_gate_proj;
  return packed && up.role != gate.role && pack_begin(up.role) == gate.role &&
         gate.adapter == Adapter::none && up.adapter == Adapter::none;
}

bool reduces_every_microbatch(const BlockShape& s) {
  return s.zero >= 2;
}

}  // namespace

void StateBuilder::declare() {
  declare_frozen();
  const auto& s = c_.shape;
  auto& b = c_.b;
  if (own_.total() == 0) return;
  const bool gathers = gathers_parameters(c_.recipe, s.zero);
  const RankParameters shard = sharded(own_, s);
  const RankParameters kept = gathers ? shard : own_;
  const DType in_place = c_.wide_adapters() ? DType::fp32 : c_.activation_dtype();
  const DType working = gathers ? working_params() : in_place;
  const bool narrows = !gathers && !s.frozen;
  const std::int64_t narrow = s.fp8_parameters && narrows ? linear_elements(b.parameters()) : 0;
  weights_ = b.slot("weights", working, 1, kept.total() - narrow, Storage::weight);
  if (narrow > 0) b.slot("fp8 weights", DType::fp8, 1, narrow, Storage::weight);
  if (s.narrow_copies > 0 && narrows) {
    b.slot("fp8 copies of weights", DType::fp8, s.narrow_copies, linear_elements(b.parameters()),
           Storage::weight);
  }
  if (s.params_offload) b.at(weights_).fraction = 0;
  const RankParameters grads = s.zero >= 2 ? shard : own_;
  gradients_ = b.slot("gradients", kept_dtype(), 1, grads.total(),
                      s.fresh_gradients ? Storage::fresh_gradient : Storage::gradient);
  if (widens_gradients(c_.recipe, s) && !borrows_) {
    b.slot("gradients of a microbatch", c_.activation_dtype(), 1, own_.total(), Storage::gradient);
  }
  // DDP reduces out of buckets of its own, beside the gradients that autograd makes, unless it is
  // told to make those views of them (gradient_as_bucket_view; nanotron's trainer.py does not).
  const bool buckets = c_.recipe.states.buckets && s.dense_shard * s.dense_replicas > 1;
  if (buckets && !borrows_) {
    // nanotron's are of what autograd makes, which hooks add to fp32 sums.
    const DType reduced = c_.recipe.states.fp32_accumulation ? c_.activation_dtype() : kept_dtype();
    b.slot("reduction buckets", reduced, 1, own_.total(), Storage::gradient);
  }
  const bool on_host =
      s.zero >= 2 && s.optimizer_offload >= 1 && c_.recipe.states.offloads_as_reduced;
  if (on_host) b.at(gradients_).fraction = 0;
  shard_ = s.zero >= 1 ? shard : own_;
  if (borrows_) {
    borrow(weights_);
    borrow(gradients_);
  } else {
    declare_optimizer();
  }

  SlotId forward = weights_, backward = weights_, gradients = gradients_;
  if (gathers) {
    forward = whole_parameters("gathered weights", own_);
    backward = s.zero == 3 ? whole_parameters("gathered weights again", own_) : forward;
  }
  if (reduces_every_microbatch(s)) {
    const bool fp32 = c_.recipe.states.fp32_accumulation && !keeps_bf16_gradients();
    // A head that runs in parts adds up its gradients in the format that they are reduced in
    // (accumulate_unsharded_grad_if_needed in torch's _fsdp_param.py).
    const DType summed = c_.loss_chunks() > 1 ? reduce_dtype() : c_.activation_dtype();
    const DType dtype = fp32 ? DType::fp32 : summed;
    const bool sent = dtype == reduce_dtype() && !flattens();
    const Storage storage = sent ? Storage::wire : Storage::local;
    gradients = b.slot("whole gradients", dtype, 1, own_.total(), storage);
    b.at(gradients).flow = Flow::gradients;
  }
  whole_gradients_ = gradients;
  if (s.frozen) {
    c_.adapters = forward;
    c_.adapters_backward = backward;
    c_.adapter_gradients = gradients;
  } else {
    c_.weights = c_.expert_weights = forward;
    c_.weights_backward = c_.expert_weights_backward = backward;
    c_.gradients = c_.expert_gradients = gradients;
  }
}

// As many bytes as the update's ops say that they keep.
void StateBuilder::declare_optimizer() {
  const std::int64_t on_device = shard_.total() - offloaded_elements(c_.shape, shard_.total());
  Bytes states = state_bytes(elementwise_update());
  for (const MatrixUpdate& update : matrix_updates()) states += state_bytes(update.step);
  const double master = c_.wide_adapters() ? 0 : master_bytes(c_.recipe, c_.shape);
  const double all = master * as_double(on_device) + states.value();
  optimizer_ = c_.b.slot("optimizer", DType::boolean, 1, ceil_of(all), Storage::optimizer);
}

// Weights without gradients or an optimizer's states.
void StateBuilder::declare_frozen() {
  const auto& s = c_.shape;
  auto& b = c_.b;
  const RankParameters frozen = own_.frozen();
  if (frozen.total() == 0) return;
  const bool gathers = gathers_parameters(c_.recipe, s.zero);
  const FrozenFormat format = s.frozen_weights;
  if (is_quantized(format) || (format == FrozenFormat::fp32 && gathers)) {
    // Bytes, for two formats share the array.
    const double bytes = frozen_bytes(own_, gathers);
    frozen_ = b.slot("frozen weights", DType::boolean, 1, ceil_of(bytes), Storage::frozen);
  } else {
    const RankParameters kept = gathers ? sharded(frozen, s) : frozen;
    const std::int64_t narrow = s.fp8_parameters && !gathers ? linear_elements(b.parameters()) : 0;
    frozen_ =
        b.slot("frozen weights", c_.activation_dtype(), 1, kept.total() - narrow, Storage::frozen);
    if (narrow > 0) b.slot("frozen fp8 weights", DType::fp8, 1, narrow, Storage::frozen);
  }
  if (s.narrow_copies > 0 && !gathers) {
    b.slot("fp8 copies of weights", DType::fp8, s.narrow_copies, linear_elements(b.parameters()),
           Storage::frozen);
  }
  if (s.params_offload) b.at(frozen_).fraction = 0;
  if (borrows_) borrow(frozen_);
  SlotId forward = frozen_, backward = frozen_;
  if (gathers) {
    forward = whole_frozen("gathered frozen weights", own_);
    backward = s.zero == 3 ? whole_frozen("gathered frozen weights again", own_) : forward;
  }
  c_.weights = c_.expert_weights = forward;
  c_.weights_backward = c_.expert_weights_backward = backward;
}

// Bytes of frozen weights: of this rank's shards as they are kept, or whole as they are gathered.
double StateBuilder::frozen_bytes(const RankParameters& n, bool of_shards) const {
  const auto& s = c_.shape;
  const auto share = [&](std::int64_t elements, int ranks) {
    return static_cast<double>(of_shards ? ceil_div(elements, ranks) : elements);
  };
  const FrozenFormat format = s.frozen_weights;
  const double plain = of_shards && format == FrozenFormat::fp32 ? size_of(DType::fp32)
                                                                 : size_of(c_.activation_dtype());
  const double linear = is_quantized(format) ? quantized_bytes(format) : plain;
  return share(n.frozen_dense - n.frozen_linear, s.dense_shard) * plain +
         share(n.frozen_linear, s.dense_shard) * linear +
         share(n.frozen_expert, s.expert_shard) * linear;
}

void StateBuilder::borrow(SlotId slot) {
  c_.b.at(slot).of_embedding = true;
  c_.b.at(slot).fraction = 0;
}

bool StateBuilder::keeps_bf16_gradients() const {
  return c_.shape.grad_dtype == DType::bf16 && c_.recipe.states.reduces_as_kept;
}

DType StateBuilder::reduce_dtype() const {
  return keeps_bf16_gradients() ? DType::bf16 : c_.recipe.states.reduce_dtype;
}

// Both FSDPs make a reduced shard what its parameters are, however it was reduced
// (_cast_grad_to_param_dtype in torch's fsdp/_runtime_utils.py, foreach_reduce in
// fsdp/_fully_shard/_fsdp_collectives.py).
DType StateBuilder::kept_dtype() const {
  const DType dtype = c_.shape.grad_dtype;
  if (narrow_shards()) return working_params();
  if (c_.wide_adapters()) return DType::fp32;  // autograd makes a gradient what its parameter is
  return c_.recipe.states.flat_parameters && dtype == DType::bf16 ? DType::fp32 : dtype;
}

// A program that loads its weights in 16 bits shards those, and no wider copy is made of them.
bool StateBuilder::narrow_shards() const {
  return c_.recipe.states.working_params == DType::fp32 && c_.shape.precision != Precision::fp32 &&
         c_.shape.main_params_dtype != DType::fp32;
}

// fp32 precision has no narrower copy to work with.
DType StateBuilder::working_params() const {
  if (c_.shape.precision == Precision::fp32) return DType::fp32;
  return narrow_shards() ? c_.shape.main_params_dtype : c_.recipe.states.working_params;
}

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

void StateBuilder::leave_backward() {
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
    b.compute(
        Rowwise{
            .kind = RowwiseKind::cast, .rows = 1, .cols = own_.total(), .dtype = reduce_dtype()},
        {narrow}, {input});
  }
  if (flattens()) {
    b.compute(
        Rowwise{
            .kind = RowwiseKind::scale, .rows = 1, .cols = own_.total(), .dtype = reduce_dtype()},
        {input}, {input});
  }
  const bool dense = reduce_scatter(own_.dense, dense_axis(s), s.dense_shard, s.dense_replicas,
                                    Axis::dp_replicate, input);
  const bool expert = reduce_scatter(own_.expert, Axis::edp, s.expert_shard, 1, Axis::edp, input);
  // One rank: its gradients are everybody's.
  if (!dense && !expert) b.compute(Join{}, {input}, {gradients_});
  if (!s.overlap.has(OverlapKind::grad)) {
    b.wait_for(Stream::reduce_comm);
    b.flush();
  }
}

void StateBuilder::drain() {
  if (c_.shape.next.total() == 0) return;
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
  const auto bring = [&](const RankParameters& part, SlotId whole, double element) {
    if (s.params_offload) {
      const auto shard = static_cast<double>(ceil_div(part.dense, s.dense_shard) +
                                             ceil_div(part.expert, s.expert_shard));
      b.aside(Stream::h2d, HostCopy{Bytes(shard * element), false}, {}, {whole});
    }
    const bool any =
        gather_shards(part, whole, element, s.params_offload ? only(Stream::h2d) : StreamSet{});
    // One rank: only the working copy is made.
    if (!any && !s.params_offload) b.compute(Join{}, {}, {whole});
    gathered = gathered || any;
  };
  if (const auto count = static_cast<double>(n.frozen().total()); count > 0) {
    bring(n.frozen(), whole_frozen(frozen_name, n), frozen_bytes(n, false) / count);
  }
  if (n.total() > 0) bring(n, whole_parameters(name, n), size_of(c_.activation_dtype()));
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

bool StateBuilder::gather_shards(const RankParameters& n, SlotId whole, double element,
                                 StreamSet after) {
  const auto& s = c_.shape;
  bool any = false;
  const auto gather = [&](std::int64_t count, Axis axis, int ranks) {
    if (count == 0 || ranks == 1) return;
    const Bytes bytes(static_cast<double>(count) * element);
    Op& op = c_.b.aside(Stream::gather_comm, Collective{CollectiveKind::all_gather, axis, bytes},
                        {}, {whole});
    op.after = op.after | after;
    any = true;
  };
  gather(n.dense, dense_axis(s), s.dense_shard);
  gather(n.expert, Axis::edp, s.expert_shard);
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
    const double grad = size_of(kept_dtype());
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
                    .dtype = kept_dtype()},
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
  const bool has_copy = s.kind == BlockKind::embedding && c_.recipe.states.sums_shared_gradients &&
                        s.embedding_table == EmbeddingTable::copied;
  if (!has_copy && !copies_embedding(c_.model, s)) return;
  sum_shared(vocabulary_share(c_.model, s) * c_.model.hidden_size, Axis::embedding,
             Role::tied_gradients);
}

SlotId StateBuilder::whole_parameters(std::string_view name, const RankParameters& n) {
  const SlotId id = c_.b.slot(name, c_.activation_dtype(), 1, n.total(), Storage::wire);
  c_.b.at(id).flow = Flow::weights;
  return id;
}

SlotId StateBuilder::whole_frozen(std::string_view name, const RankParameters& n) {
  const bool bytes = is_quantized(c_.shape.frozen_weights);
  const SlotId id =
      bytes ? c_.b.slot(name, DType::boolean, 1, ceil_of(frozen_bytes(n, false)), Storage::wire)
            : whole_parameters(name, n.frozen());
  c_.b.at(id).flow = Flow::weights;
  c_.b.at(id).channel = kFrozenChannel;
  return id;
}

bool StateBuilder::reduce_scatter(std::int64_t count, Axis axis, int ranks, int replicas,
                                  Axis replica_axis, SlotId input) {
  if (count == 0 || (ranks == 1 && replicas == 1)) return false;
  const Bytes bytes(static_cast<double>(count) * size_of(reduce_dtype()));
  if (ranks > 1) {
    c_.b.aside(Stream::reduce_comm, Collective{CollectiveKind::reduce_scatter, axis, bytes},
               {input}, {gradients_});
  }
  if (replicas > 1) {
    c_.b.aside(Stream::reduce_comm,
               Collective{CollectiveKind::all_reduce, replica_axis, bytes / ranks}, {input},
               {gradients_});
  }
  return true;
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

void StateBuilder::optimizer_step() {
  const auto& s = c_.shape;
  auto& b = c_.b;
  const std::int64_t on_host = offloaded_elements(s, shard_.total());
  const std::int64_t on_device = shard_.total() - on_host;
  if (on_host > 0) {
    const auto n = static_cast<double>(on_host);
    b.aside(Stream::d2h, HostCopy{Bytes(n * size_of(kept_dtype())), true}, {gradients_}, {});
    Op& step = b.aside(Stream::host, HostAdam{on_host, s.nvme}, {}, {});
    step.after = only(Stream::d2h);
    Op& back = b.aside(Stream::h2d, HostCopy{Bytes(n * size_of(c_.activation_dtype())), false}, {},
                       {weights_});
    back.after = only(Stream::host);
  }
  if (on_device > 0) {
    if (!c_.recipe.states.clips_in_update) {
      b.compute(Rowwise{.kind = RowwiseKind::scale,
                        .rows = 1,
                        .cols = on_device,
                        .dtype = s.main_params_dtype},
                {gradients_}, {gradients_});
    }
    for (const MatrixUpdate& update : matrix_updates()) orthogonalize(update);
    if (const Update rest = elementwise_update(); rest.params > 0) {
      b.compute(rest, {gradients_, optimizer_}, {weights_, optimizer_});
    }
  }
  if (on_host > 0) {
    b.wait_for(Stream::h2d);
    b.flush();
  }
  const bool later = s.overlap.has(OverlapKind::param);
  if (s.zero >= 1 && !gathers_parameters(c_.recipe, s.zero) && !later) {
    gather_updated(only(Stream::compute));
    b.wait_for(Stream::gather_comm);
    b.flush();
  }
}

Update StateBuilder::elementwise_update() const {
  const auto& s = c_.shape;
  const auto& table = c_.b.parameters();
  Update step{.params = shard_.total() - offloaded_elements(s, shard_.total()),
              .grad = kept_dtype(),
              .main_params = s.main_params_dtype,
              .moments = s.moment_dtype,
              .working = working_params(),
              .fused = c_.recipe.kernels.fused_adam,
              .optimizer = s.optimizer,
              .flattens = c_.recipe.states.flattens_gradients && (s.zero == 1 || s.zero == 2)};
  const auto trained =
      std::count_if(table.begin(), table.end(), [](const PackedParameter& p) { return !p.frozen; });
  switch (s.optimizer) {
    case OptimizerKind::adam:
    case OptimizerKind::sgd:
    case OptimizerKind::lion:
      break;
    case OptimizerKind::adam8bit:
      // bitsandbytes goes through tensors one by one; shards are one.
      if (s.zero == 0) step.tensors = trained;
      break;
    case OptimizerKind::adafactor:
      step.tensors = trained;
      for (const PackedParameter& p : table) {
        if (!p.frozen) step.factors += p.copies * factors_of(p);
      }
      break;
    case OptimizerKind::muon:
      step.optimizer = OptimizerKind::adam;
      step.params = 0;
      for (const PackedParameter& p : table) {
        if (p.frozen || is_hidden_matrix(p.whole)) continue;
        const bool expert = is_expert(p.whole.role);
        step.params += ceil_div(p.elements(), s.zero == 0 ? 1
                                              : expert    ? s.expert_shard
                                                          : s.dense_shard);
      }
      break;
  }
  return step;
}

// Those of this rank's parameters, whole, as many as it has of each.
std::vector<StateBuilder::MatrixUpdate> StateBuilder::hidden_matrices() const {
  const auto& s = c_.shape;
  const auto& table = c_.b.parameters();
  std::vector<MatrixUpdate> all;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const PackedParameter& p = table[i];
    if (p.frozen || !is_hidden_matrix(p.whole)) continue;
    const bool expert = is_expert(p.whole.role), split = p.whole.split != Split::none;
    const int ranks = !split ? 1 : expert ? s.etp : s.tp;
    const Muon step{.rows = p.rows * (p.whole.split == Split::cols ? 1 : ranks),
                    .cols = p.cols * (p.whole.split == Split::cols ? ranks : 1),
                    .matrices = as_double(p.copies),
                    .params = p.elements(),
                    .grad = kept_dtype(),
                    .main_params = s.main_params_dtype,
                    .moments = s.moment_dtype,
                    .working = working_params()};
    const bool one_layer =
        c_.recipe.kernels.orthogonalizes_layers && !all.empty() &&
        is_up_of(table[static_cast<std::size_t>(all.back().parameter)].whole, p.whole);
    if (one_layer) {
      all.back().step.rows += step.rows;
      all.back().step.params += step.params;
    } else {
      all.push_back({step, static_cast<std::int16_t>(i), ranks, expert});
    }
  }
  return all;
}

// Megatron and DeepSpeed deal whole matrices out to the ranks that share states
// (LayerWiseDistributedOptimizer, Megatron-LM d98e8a64,
// megatron/core/optimizer/layer_wise_optimizer.py; get_flat_partition, DeepSpeed edaa7221,
// deepspeed/runtime/zero/stage_1_and_2.py). What is meant is the rank that has most of a stage's,
// all taken to be of one size, and blocks beside the layers as one of these.
std::vector<StateBuilder::MatrixUpdate> StateBuilder::matrix_updates() const {
  const auto& s = c_.shape;
  if (s.optimizer != OptimizerKind::muon) return {};
  std::vector<MatrixUpdate> updates = hidden_matrices();
  const double layers = as_double(std::max<std::int64_t>(s.dealt_layers, 1));
  double dense = 0, expert = 0;
  for (const MatrixUpdate& u : updates) (u.expert ? expert : dense) += u.step.matrices;
  for (MatrixUpdate& u : updates) {
    const int ranks = s.zero == 0 ? 1 : u.expert ? s.expert_shard : s.dense_shard;
    const double all = (u.expert ? expert : dense) * layers;
    const double share = std::ceil(all / ranks) / all;
    u.step.matrices *= share;
    u.step.params = ceil_of(as_double(u.step.params) * share);
  }
  return updates;
}

// Of matrices that tensor parallelism splits each rank gathers the momentum and orthogonalises the
// whole (--muon-tp-mode duplicated, Megatron-LM d98e8a64's default).
void StateBuilder::orthogonalize(const MatrixUpdate& update) {
  auto& b = c_.b;
  const Muon& step = update.step;
  const SlotId iterated = b.slot("Newton-Schulz iterations", DType::boolean, 1,
                                 ceil_of(newton_schulz_bytes(step).value()));
  SlotId momentum = kNoSlot;
  if (update.ranks > 1) {
    momentum = b.slot("gathered momentum", DType::fp32, step.rows, step.cols);
    Collective gathering{
        CollectiveKind::all_gather, update.expert ? Axis::etp : Axis::tp,
        Bytes(as_double(step.rows) * as_double(step.cols) * step.matrices * size_of(DType::fp32))};
    gathering.calls = step.matrices;
    b.exposed(gathering, {gradients_, optimizer_}, {momentum});
  }
  b.compute(step, {gradients_, optimizer_, momentum}, {weights_, optimizer_, iterated}).parameter =
      update.parameter;
}

}  // namespace qplan
