#include "models/program/blocks.h"

#include <algorithm>
#include <string_view>

#include "models/program/attention_part.h"
#include "models/program/delta_net_part.h"
#include "models/program/deterministic.h"
#include "models/program/image_part.h"
#include "models/program/layer_context.h"
#include "models/program/liveness.h"
#include "models/program/mamba_part.h"
#include "models/program/mlp_part.h"
#include "models/program/moe_part.h"
#include "models/program/recompute.h"
#include "models/program/state_builder.h"

namespace qplan {

// One dummy bf16 weight gradient per distinct weight shape where gradients accumulate in the
// weight-gradient product (docs/reference/physics.md 5.2).
void dummy_weight_gradient(LayerContext& c, std::int64_t n, std::int64_t k) {
  if (!c.recipe.keeps.dummy_weight_gradients || !c.shape.gradient_accumulation_fusion ||
      c.shape.frozen) {
    return;
  }
  c.b.slot("dummy weight gradient", DType::bf16, n, k, Storage::shared);
}

namespace {

void attention_weight_gradients(LayerContext& c) {
  const ModelSpec& m = c.model;
  const std::int64_t h = m.hidden_size, tp = c.shape.tp;
  if (m.mla) {
    const MlaSpec& a = *m.mla;
    const std::int64_t heads = m.num_attention_heads / tp;
    const std::int64_t qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
    if (a.q_lora_rank > 0) dummy_weight_gradient(c, a.q_lora_rank, h);
    dummy_weight_gradient(c, heads * qk, a.q_lora_rank > 0 ? a.q_lora_rank : h);
    dummy_weight_gradient(c, a.kv_lora_rank + a.qk_rope_head_dim, h);
    dummy_weight_gradient(c, heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank);
    dummy_weight_gradient(c, h, heads * a.v_head_dim);
    if (!m.indexer) return;
    dummy_weight_gradient(c, m.indexer->num_heads * m.indexer->head_dim, a.q_lora_rank);
    dummy_weight_gradient(c, m.indexer->head_dim, h);
    dummy_weight_gradient(c, m.indexer->num_heads, h);
    return;
  }
  const std::int64_t q = m.num_attention_heads * m.head_dim;
  const std::int64_t projected = m.attention_output_gate ? 2 * q : q;
  dummy_weight_gradient(c, (projected + 2 * m.num_key_value_heads * m.head_dim) / tp, h);
  dummy_weight_gradient(c, h, q / tp);
}

void mixer_weight_gradients(LayerContext& c) {
  const ModelSpec& m = c.model;
  const std::int64_t h = m.hidden_size, tp = c.shape.tp;
  switch (c.shape.layer.mixer) {
    case Mixer::attention:
      return attention_weight_gradients(c);
    case Mixer::delta_net: {
      const DeltaNetSpec& d = *m.delta_net;
      dummy_weight_gradient(c, (d.conv_dim() + d.value_dim() + 2 * d.num_value_heads) / tp, h);
      return dummy_weight_gradient(c, h, d.value_dim() / tp);
    }
    case Mixer::mamba:
      dummy_weight_gradient(c, m.mamba->projected() / tp, h);
      return dummy_weight_gradient(c, h, m.mamba->inner() / tp);
    case Mixer::none:
      return;
  }
}

void mlp_weight_gradients(LayerContext& c) {
  const ModelSpec& m = c.model;
  const BlockShape& s = c.shape;
  const std::int64_t h = m.hidden_size;
  const std::int64_t up = m.mlp == MlpKind::swiglu ? 2 : 1;
  if (!s.layer.mlp) return;
  if (!s.layer.moe) {
    dummy_weight_gradient(c, up * m.intermediate_size / s.tp, h);
    dummy_weight_gradient(c, h, m.intermediate_size / s.tp);
    return;
  }
  const std::int64_t width = m.moe->expert_width(h), fe = m.moe->moe_intermediate_size / s.etp;
  dummy_weight_gradient(c, up * fe, width);
  dummy_weight_gradient(c, width, fe);
  if (m.moe->latent_size > 0) {
    dummy_weight_gradient(c, width, h);
    dummy_weight_gradient(c, h, width);
  }
  if (m.moe->shared_expert_intermediate_size > 0) {
    const std::int64_t fs = m.moe->shared_expert_intermediate_size / s.tp;
    dummy_weight_gradient(c, up * fs, h);
    dummy_weight_gradient(c, h, fs);
  }
}

// DeepSpeed's two buckets, from before a block's backward to behind it: they are there through all
// of backward, and gone when the step begins.
void hold_buckets(Block& block, const Recipe& recipe) {
  const std::int64_t elements = recipe.states.bucket_elements;
  if (elements == 0 || block.backward.empty()) return;
  const auto buckets = static_cast<SlotId>(block.slots.size());
  block.slots.push_back({.name = "reduction buckets",
                         .storage = Storage::local,
                         .dtype = DType::bf16,
                         .shape = {2, elements, 1}});
  Op first{.work = Join{}, .stream = Stream::compute}, last = first;
  first.writes.add(buckets);
  last.reads.add(buckets);
  block.backward.insert(block.backward.begin(), first);
  block.backward.push_back(last);
}

// Moves what backward needs to the host after forward, and back before backward. What is under way
// lies in one buffer of a layer's size, so that a layer's copy runs beside the next layer's compute
// and no further: compute waits for the copy before it hands on what it made itself, and a copy
// back begins when the layer behind has taken its own out. (Transformer Engine keeps the tensors of
// the window before last instead of moving them to a buffer: the same bytes, and nothing is copied.
// AsyncDoubleBufferGroupOffloadHandler in its cpu_offload.py, v2.5.)
void offload_activations(Block& block) {
  const auto live = liveness(block, {&block.forward, &block.backward});
  std::vector<bool> held(block.slots.size(), false);
  for (const LiveEvent& e : live.front()) held[static_cast<std::size_t>(e.slot)] = e.allocate;
  Bytes bytes;
  std::vector<SlotId> moved;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (!held[i] || block.slots[i].storage != Storage::local) continue;
    moved.push_back(static_cast<SlotId>(i));
    bytes += block.slots[i].bytes();
  }
  if (moved.empty()) return;
  const auto under_way = static_cast<SlotId>(block.slots.size());
  block.slots.push_back({.name = "activations under way",
                         .storage = Storage::shared,
                         .dtype = DType::boolean,
                         .shape = {static_cast<std::int64_t>(bytes.value()), 1, 1}});
  // An op names eight slots; a long list becomes several pieces of one move.
  OpList out, back;
  back.push_back(
      {.work = HostCopy{bytes, false}, .stream = Stream::h2d, .after = only(Stream::d2h)});
  back.front().writes.add(under_way);
  for (std::size_t i = 0; i < moved.size(); i += 8) {
    Op leave{.work = Join{}, .stream = Stream::compute, .after = only(Stream::d2h)};
    Op come{.work = Join{}, .stream = Stream::compute, .after = only(Stream::h2d)};
    leave.writes.add(under_way);
    come.reads.add(under_way);
    for (std::size_t j = i; j < std::min(moved.size(), i + 8); ++j) {
      leave.reads.add(moved[j]);
      come.writes.add(moved[j]);
    }
    out.push_back(leave);
    back.push_back(come);
  }
  out.push_back(
      {.work = HostCopy{bytes, true}, .stream = Stream::d2h, .after = only(Stream::compute)});
  out.back().reads.add(under_way);
  back.push_back({.work = Join{}, .stream = Stream::h2d, .after = only(Stream::compute)});
  block.forward.insert(block.forward.end(), out.begin(), out.end());
  block.backward.insert(block.backward.begin(), back.begin(), back.end());
}

// Moves a recomputed layer's input to the host when forward is done with it, and back before the
// layer runs once more. Both copies hold the layer up: transformers' are torch's save_on_cpu on the
// stream that computes (5.17, modeling_utils.py), DeepSpeed's cpu_checkpointing copies a tensor at
// a time (copy_to_device in runtime/activation_checkpointing/checkpointing.py, edaa7221).
void offload_checkpoint(Block& block, SlotId input) {
  const auto back = static_cast<SlotId>(block.slots.size());
  Slot copy = block.slots[static_cast<std::size_t>(input)];
  const Bytes bytes = copy.bytes();
  copy.name = "x from host";
  copy.storage = Storage::local;
  block.slots.push_back(copy);
  for (Op& op : block.backward) {
    std::replace(op.reads.ids.begin(), op.reads.ids.begin() + op.reads.count, input, back);
  }
  for (SlotId& id : block.until_backward_ends) {
    if (id == input) id = back;
  }
  Op leaves{.work = HostCopy{bytes, true}, .stream = Stream::d2h, .after = only(Stream::compute)};
  leaves.reads.add(input);
  block.forward.push_back(leaves);
  block.forward.push_back({.work = Join{}, .stream = Stream::compute, .after = only(Stream::d2h)});
  Op comes{.work = HostCopy{bytes, false}, .stream = Stream::h2d, .after = only(Stream::compute)};
  comes.writes.add(back);
  block.backward.insert(
      block.backward.begin(),
      {comes, {.work = Join{}, .stream = Stream::compute, .after = only(Stream::h2d)}});
}

// What a layer is made of, by its kind.
class LayerParts {
 public:
  explicit LayerParts(LayerContext& c)
      : c_(c), attention_(c), delta_net_(c), mamba_(c), mlp_(c), moe_(c) {}

  SlotId mixer_forward(SlotId x) {
    c_.b.layer_module(LayerModule::attention);
    switch (c_.shape.layer.mixer) {
      case Mixer::attention:
        return attention_.forward(x);
      case Mixer::delta_net:
        return delta_net_.forward(x);
      case Mixer::mamba:
        return mamba_.forward(x);
      case Mixer::none:
        break;
    }
    return x;
  }

  SlotId mixer_backward(SlotId dy) {
    c_.b.layer_module(LayerModule::attention);
    switch (c_.shape.layer.mixer) {
      case Mixer::attention:
        return attention_.backward(dy, mlp_.normed_gradient());
      case Mixer::delta_net:
        return delta_net_.backward(dy);
      case Mixer::mamba:
        return mamba_.backward(dy);
      case Mixer::none:
        break;
    }
    return dy;
  }

  SlotId mlp_forward(SlotId x) {
    if (!c_.shape.layer.mlp) return x;
    if (c_.shape.layer.moe) return moe_.forward(x);
    return mlp_.forward(x, c_.model.parallel_mlp ? attention_.normed() : kNoSlot);
  }

  SlotId mlp_backward(SlotId dy) {
    if (!c_.shape.layer.mlp) return dy;
    return c_.shape.layer.moe ? moe_.backward(dy) : mlp_.backward(dy);
  }

 private:
  LayerContext& c_;
  AttentionPart attention_;
  DeltaNetPart delta_net_;
  MambaPart mamba_;
  MlpPart mlp_;
  MoePart moe_;
};

// `s.tap`: of a vision tower (`in_tower`), the deepstack merger that its result feeds; of a
// decoder, the one whose tokens are added to its result.
Block build_decoder(const ModelSpec& m, const Recipe& r, const BlockShape& s, std::string_view name,
                    bool in_tower) {
  BlockBuilder b(name);
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  state.declare();
  mixer_weight_gradients(c);
  mlp_weight_gradients(c);
  LayerParts parts(c);
  const bool feeds = in_tower && s.tap >= 0, adds = !in_tower && s.tap >= 0;
  ImagePart images(c);

  b.into(&Block::forward);
  const SlotId x = b.slot("x", c.hidden_dtype(), c.local_tokens, c.hidden, Storage::wire);
  state.enter_forward();
  const SlotId y = parts.mlp_forward(parts.mixer_forward(x));
  b.at(y).storage = Storage::wire;
  b.layer_module(LayerModule::none);
  if (adds) images.add(y);
  if (feeds) {
    const SlotId tap = tap_wire(c, "tapped", c.local_tokens, c.hidden, s.tap);
    c.rowwise(RowwiseKind::copy, c.local_tokens, c.hidden, {y}, {tap}).role = Role::tap_tower;
  }
  b.flush();

  b.into(&Block::backward);
  state.enter_backward();
  const bool goes_back = !(in_tower && s.frozen);  // gradients end where text begins
  SlotId arriving = kNoSlot;
  if (goes_back) {
    SlotId dy = arriving = b.slot("dy", c.hidden_dtype(), c.local_tokens, c.hidden, Storage::wire);
    if (adds) images.take(dy);
    if (feeds) {
      const SlotId dtap = tap_wire(c, "d tapped", c.local_tokens, c.hidden, s.tap);
      const SlotId sum = b.slot("dy and tap", c.activation_dtype(), c.local_tokens, c.hidden);
      c.rowwise(RowwiseKind::add, c.local_tokens, c.hidden, {dy, dtap}, {sum});
      dy = sum;
    }
    b.at(parts.mixer_backward(parts.mlp_backward(dy))).storage = Storage::wire;
    b.layer_module(LayerModule::none);
  }
  b.flush();
  state.leave_backward();
  state.once_a_step();
  Block block = b.take();
  if (!goes_back) return block;
  recompute(block, r, s, {{c.weights, c.weights_backward}, {c.adapters, c.adapters_backward}});
  const bool checkpoints = kOffloadsCheckpoints.has(r.kind);
  if (s.activations_offload && !checkpoints) offload_activations(block);
  const bool sharded = gathers_parameters(r, s.zero) && s.dense_shard > 1;
  const bool inputs_stay =
      r.keeps.frozen_inputs_stay || (s.use_reentrant && r.kind == RecipeKind::fsdp1);
  if (inputs_stay && s.frozen && sharded && s.recompute == RecomputeKind::full) {
    block.until_backward_ends = {x, arriving};
  }
  if (s.activations_offload && checkpoints && s.recompute == RecomputeKind::full) {
    offload_checkpoint(block, x);
  }
  return block;
}

// Fully sharded stages: the first gather of forward and the last reduction of backward ...
Block build_stage_entry(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("stage entry");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  b.into(&Block::forward);
  if (gathers_parameters(r, s.zero)) state.prefetch(s.next, "next weights", "next frozen weights");
  b.into(&Block::backward);
  state.drain();
  return b.take();
}

// ... and the first gather of backward.
Block build_stage_exit(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("stage exit");
  LayerContext c(m, r, s, b);
  StateBuilder state(c);
  b.into(&Block::backward);
  if (gathers_parameters(r, s.zero) && s.zero == 3)
    state.prefetch(s.previous, "previous weights", "previous frozen weights");
  return b.take();
}

// Once a step: the gradient norm's and the loss's all-reduce; the next step's gathers may start
// after.
Block build_step_edge() {
  BlockBuilder b("step edge");
  b.into(&Block::norm);
  const Bytes scalars(8);
  b.exposed(Collective{CollectiveKind::all_reduce, Axis::world, scalars}, {}, {});
  b.flush();
  b.into(&Block::update);
  Op& ready = b.aside(Stream::gather_comm, Join{}, {}, {});
  ready.after = only(Stream::compute);
  b.host_sync();
  return b.take();
}

}  // namespace

Block build_states(const ModelSpec& m, const Recipe& r, const BlockShape& shape) {
  if (shape.kind == BlockKind::step_edge) return build_step_edge();
  BlockBuilder b("states");
  LayerContext c(m, r, shape, b);
  StateBuilder state(c);
  state.declare();
  state.once_a_step();
  return b.take();
}

namespace {

std::string_view layer_name(const LayerKind& kind) {
  if (kind.mixer == Mixer::mamba) return "mamba layer";
  if (kind.mixer == Mixer::delta_net) return kind.moe ? "delta net moe layer" : "delta net layer";
  if (!kind.mlp) return "attention layer";
  if (kind.mixer == Mixer::none) return kind.moe ? "experts layer" : "mlp layer";
  return kind.moe ? "moe layer" : "dense layer";
}

Block build_kind(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape) {
  switch (shape.kind) {
    case BlockKind::embedding:
    case BlockKind::mtp_embedding:
      return build_embedding(model, recipe, shape);
    case BlockKind::decoder:
      return build_decoder(model, recipe, shape, layer_name(shape.layer), /*in_tower=*/false);
    case BlockKind::head:
      return build_head(model, recipe, shape);
    case BlockKind::mtp:
      return build_mtp(model, recipe, shape);
    case BlockKind::patchify:
      return build_patchify(model, recipe, shape);
    case BlockKind::vision: {
      BlockShape tower = shape;
      tower.kind = BlockKind::decoder;
      tower.micro_batch_size = shape.images;
      tower.seq_len = shape.patches;
      tower.cp = 1;
      tower.lora_rank = 0;  // adapters stand in the text model
      tower.fp32_norms = false;
      return build_decoder(tower_spec(*model.vision), recipe, tower, "vision layer",
                           /*in_tower=*/true);
    }
    case BlockKind::merger:
      return build_merger(model, recipe, shape);
    case BlockKind::stage_entry:
      return build_stage_entry(model, recipe, shape);
    case BlockKind::stage_exit:
      return build_stage_exit(model, recipe, shape);
    case BlockKind::step_edge:
      return build_step_edge();
  }
  return {};
}

}  // namespace

Block build_block(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape) {
  Block block = build_kind(model, recipe, shape);
  if (shape.deterministic && recipe.kernels.fills_new_arrays) fill_new_arrays(block);
  hold_buckets(block, recipe);
  return block;
}

}  // namespace qplan
