// The optimizer's step of a block: on the device over elements and, for Muon, over matrices, on the
// host what is offloaded.

#include <algorithm>
#include <cmath>

#include "models/program/state_builder.h"
#include "models/program/state_shares.h"

namespace qplan {
namespace {

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

// Whether the second weight is the up projection of the first one's gated MLP.
bool is_up_of(const Parameter& gate, const Parameter& up) {
  using enum ParameterRole;
  const bool packed =
      gate.role == gate_proj || gate.role == shared_gate_proj || gate.role == expert_gate_proj;
  return packed && up.role != gate.role && pack_begin(up.role) == gate.role &&
         gate.adapter == Adapter::none && up.adapter == Adapter::none;
}

}  // namespace

HostAdam host_step(const Recipe& r, const BlockShape& s, std::int64_t elements) {
  HostAdam step{.params = elements,
                .nvme = s.nvme,
                .grad = s.main_params_dtype,
                .main_params = s.main_params_dtype,
                .moments = s.moment_dtype,
                .working = activation_dtype_of(s),
                .fused = r.kernels.fused_adam};
  if (kMegatronCore.has(r.kind)) {
    // HybridDeviceOptimizer (Megatron-LM d98e8a64, megatron/core/optimizer/cpu_offloading/
    // hybrid_optimizer.py) keeps fp32 weights, torch's moments and gradients like them, and copies
    // to and from the GPU convert there. Gradients are clipped before.
    step.grad = step.main_params = step.moments = step.working = DType::fp32;
  } else if (kDeepSpeed.has(r.kind)) {
    // DeepSpeed's step multiplies the gradients (unscale_and_clip_grads in zero/stage3.py), steps,
    // and casts what it has updated (_reassign_or_swap_out_partitioned_parameters).
    step.casts_apart = true;
    step.clipping = 2;
  } else if (r.kind == RecipeKind::qplan) {
    step.grad = s.grad_dtype;
  } else {
    // torch's FSDP steps the shards themselves; their norm and their clipping are the host's, too.
    step.working = step.main_params;
    step.clipping = 3;
  }
  return step;
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

void StateBuilder::optimizer_step() {
  const auto& s = c_.shape;
  auto& b = c_.b;
  const std::int64_t on_host = offloaded_elements(s, shard_.total());
  const std::int64_t on_device = shard_.total() - on_host;
  if (on_host > 0) {
    const auto n = static_cast<double>(on_host);
    const HostAdam work = host_step(c_.recipe, s, on_host);
    const bool as_kept = !kMegatronCore.has(c_.recipe.kind);
    const DType grad = as_kept ? kept_dtype() : work.grad;
    b.aside(Stream::d2h, HostCopy{Bytes(n * size_of(grad)), true}, {gradients_}, {});
    Op& step = b.aside(Stream::host, work, {}, {});
    step.after = only(Stream::d2h);
    // Parameters that live on the host stay there until they are gathered.
    if (!s.params_offload) {
      Op& back =
          b.aside(Stream::h2d, HostCopy{Bytes(n * size_of(work.working)), false}, {}, {weights_});
      back.after = only(Stream::host);
    }
  }
  if (on_device > 0) {
    if (!c_.recipe.states.clips_in_update) {
      b.compute(Rowwise{.kind = RowwiseKind::scale,
                        .rows = 1,
                        .cols = on_device,
                        .dtype = s.main_params_dtype,
                        .fused = c_.recipe.kernels.fused},
                {gradients_}, {gradients_});
    }
    for (const MatrixUpdate& update : matrix_updates()) orthogonalize(update);
    if (const Update rest = elementwise_update(); rest.params > 0) {
      b.compute(rest, {gradients_, optimizer_}, {weights_, optimizer_});
    }
  }
  if (on_host > 0) {
    b.wait_for(s.params_offload ? Stream::host : Stream::h2d);
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
