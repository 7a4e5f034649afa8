// The arrays that a block's states lie in: weights, frozen ones, gradients, and in which formats.

#include "models/program/state_builder.h"

#include <cmath>

#include "models/program/state_shares.h"

namespace qplan {
namespace {

// Of the weights that products of fp8 read: not the router's, nor those at the vocabulary.
std::int64_t linear_elements(const std::vector<PackedParameter>& table) {
  std::int64_t sum = 0;
  for (const PackedParameter& p : table) {
    if (is_projection(p.whole)) sum += p.elements();
  }
  return sum;
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
  // Sums that stay whole are let go with the reduction that makes shards of them.
  const RankParameters grads = s.zero >= 2 && !s.sums_whole ? shard : own_;
  gradients_ = b.slot("gradients", s.sums_whole ? summed_dtype() : kept_dtype(), 1, grads.total(),
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
  const bool on_host = s.zero >= 2 && !s.sums_whole && s.optimizer_offload >= 1 &&
                       c_.recipe.states.offloads_as_reduced;
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
  if (s.zero >= 2) {
    const bool fp32 = c_.recipe.states.fp32_accumulation && !keeps_bf16_gradients();
    // A head that runs in parts adds up its gradients in the format that they are reduced in
    // (accumulate_unsharded_grad_if_needed in torch's _fsdp_param.py).
    const DType summed = c_.loss_parts().count > 1 ? reduce_dtype() : c_.activation_dtype();
    const DType dtype = fp32 ? DType::fp32 : summed;
    const bool sent = dtype == reduce_dtype() && !flattens() && !s.sums_whole;
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

bool StateBuilder::keeps_bf16_gradients() const {
  return c_.shape.grad_dtype == DType::bf16 && c_.recipe.states.reduces_as_kept;
}

DType StateBuilder::reduce_dtype() const {
  return keeps_bf16_gradients() ? DType::bf16 : c_.recipe.states.reduce_dtype;
}

// FSDP2 adds up in the format that it reduces in (to_accumulated_grad_if_needed in torch's
// _fsdp_param.py), FSDP1 leaves it to autograd (_post_backward_hook in its fsdp/_runtime_utils.py).
DType StateBuilder::summed_dtype() const {
  return c_.recipe.states.flat_parameters ? c_.activation_dtype() : reduce_dtype();
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

}  // namespace qplan
