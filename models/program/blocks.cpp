#include "models/program/blocks.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "models/program/layer_context.h"
#include "models/program/liveness.h"
#include "models/program/recompute.h"

namespace qplan {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Megatron pads the vocabulary to a multiple of 128 * tp (vocab_utils.py).
std::int64_t vocabulary_share(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t unit = std::int64_t{128} * s.tp;
  return ceil_div(m.vocab_size, unit) * unit / s.tp;
}

std::int64_t norm_parameters(const ModelSpec& m, std::int64_t width) {
  return m.norm == Norm::layer_norm ? 2 * width : width;
}

std::int64_t attention_parameters(const ModelSpec& m, int tp) {
  const std::int64_t h = m.hidden_size;
  if (m.mla) {
    const MlaSpec& a = *m.mla;
    const std::int64_t qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
    const std::int64_t heads = m.num_attention_heads / tp;
    const std::int64_t q = a.q_lora_rank > 0
                               ? h * a.q_lora_rank + a.q_lora_rank + a.q_lora_rank * heads * qk
                               : h * heads * qk;
    const std::int64_t kv = h * (a.kv_lora_rank + a.qk_rope_head_dim) + a.kv_lora_rank +
                            a.kv_lora_rank * heads * (a.qk_nope_head_dim + a.v_head_dim);
    return q + kv + heads * a.v_head_dim * h;
  }
  const std::int64_t q_width = m.num_attention_heads * m.head_dim;
  const std::int64_t kv_width = m.num_key_value_heads * m.head_dim;
  std::int64_t n = h * (q_width + 2 * kv_width) / tp + q_width * h / tp;
  if (m.qkv_bias) n += (q_width + 2 * kv_width) / tp;
  if (m.attention_output_bias) n += h;
  if (m.qk_norm) n += 2 * m.head_dim;
  if (m.attention_sinks) n += m.num_attention_heads / tp;
  return n;
}

std::int64_t mlp_parameters(const ModelSpec& m, std::int64_t f, int tp) {
  const std::int64_t up = m.mlp == MlpKind::swiglu ? 2 : 1;
  std::int64_t n = (up + 1) * m.hidden_size * f / tp;
  if (m.mlp_bias) n += up * f / tp + m.hidden_size;
  return n;
}

RankParameters decoder_parameters(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t h = m.hidden_size;
  RankParameters n;
  n.dense = attention_parameters(m, s.tp) + 2 * norm_parameters(m, h);
  if (!s.layer.moe) {
    n.dense += mlp_parameters(m, m.intermediate_size, s.tp);
    return n;
  }
  const MoeSpec& moe = *m.moe;
  n.dense += h * moe.num_experts + (moe.router_bias ? moe.num_experts : 0);
  if (moe.shared_expert_intermediate_size > 0) {
    n.dense += 3 * h * moe.shared_expert_intermediate_size / s.tp;
    if (moe.shared_expert_gate) n.dense += h;
  }
  const std::int64_t one = 3 * h * moe.moe_intermediate_size / s.etp +
                           (moe.expert_bias ? 2 * moe.moe_intermediate_size / s.etp + h : 0);
  n.expert = moe.num_experts / s.ep * one;
  return n;
}

// The vision tower as a model of its own: an encoder with the same parts (Qwen3-VL).
ModelSpec tower_spec(const ModelSpec& m) {
  const VisionSpec& v = *m.vision;
  ModelSpec t;
  t.hidden_size = v.hidden_size;
  t.intermediate_size = v.intermediate_size;
  t.num_attention_heads = t.num_key_value_heads = v.num_heads;
  t.head_dim = v.hidden_size / v.num_heads;
  t.mlp = MlpKind::gelu;
  t.norm = Norm::layer_norm;
  t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
  t.causal = false;
  return t;
}

std::int64_t merger_parameters(const VisionSpec& v) {
  const std::int64_t wide = v.hidden_size * v.spatial_merge_size * v.spatial_merge_size;
  const std::int64_t products = wide * wide + wide + wide * v.out_hidden_size + v.out_hidden_size;
  // The main merger normalises before merging, the deepstack mergers after it.
  const auto taps = static_cast<std::int64_t>(v.deepstack_layers.size());
  return (1 + taps) * products + 2 * v.hidden_size + taps * 2 * wide;
}

// Bytes of optimizer state per parameter on the device.
std::int64_t optimizer_bytes(const Recipe& r, const BlockShape& s) {
  const bool fp32_working = r.working_params == DType::fp32;
  double bytes = 2 * size_of(s.moment_dtype) + (fp32_working ? 0 : size_of(s.main_params_dtype));
  // fp16 keeps an fp32 copy of the gradients beside the master weights (frameworks.md 2.2: 20
  // bytes).
  if (s.precision == Precision::fp16 && !fp32_working) bytes += 4;
  return static_cast<std::int64_t>(bytes);
}

Axis dense_axis(const BlockShape& s) {
  return s.dense_replicas > 1 && s.zero > 0 ? Axis::dp_shard : Axis::dp_cp;
}

bool reduces_every_microbatch(const BlockShape& s) {
  return s.zero >= 2;
}

// States, parameter gathers, gradient reductions and the optimizer step: the same for every block.
class StateBuilder {
 public:
  StateBuilder(LayerContext& c, RankParameters own) : c_(c), own_(own) {}

  // Makes the slots and tells the context what products read and write.
  void declare() {
    const auto& s = c_.shape;
    auto& b = c_.b;
    if (own_.total() == 0) return;
    const bool gathers = gathers_parameters(c_.recipe, s.zero);
    const RankParameters shard = {ceil_div(own_.dense, s.dense_shard),
                                  ceil_div(own_.expert, s.expert_shard)};
    const RankParameters kept = gathers ? shard : own_;
    const DType working = gathers ? c_.recipe.working_params : c_.activation_dtype();
    weights_ = b.slot("weights", working, 1, kept.total(), Storage::weight);
    if (s.params_offload) b.at(weights_).fraction = 0;
    const RankParameters grads = s.zero >= 2 ? shard : own_;
    gradients_ = b.slot("gradients", s.grad_dtype, 1, grads.total(), Storage::gradient);
    if (s.zero >= 2 && s.optimizer_offload >= 1) b.at(gradients_).fraction = 0;
    shard_ = s.zero >= 1 ? shard : own_;
    const SlotId optimizer = b.slot("optimizer", DType::boolean, optimizer_bytes(c_.recipe, s),
                                    shard_.total(), Storage::optimizer);
    b.at(optimizer).fraction = 1 - s.optimizer_offload;

    c_.weights = c_.expert_weights = weights_;
    c_.weights_backward = c_.expert_weights_backward = weights_;
    c_.gradients = c_.expert_gradients = gradients_;
    if (gathers) {
      const SlotId whole = whole_parameters("gathered weights", own_);
      c_.weights = c_.expert_weights = whole;
      c_.weights_backward = c_.expert_weights_backward =
          s.zero == 3 ? whole_parameters("gathered weights again", own_) : whole;
    }
    if (reduces_every_microbatch(s)) {
      const DType dtype =
          c_.recipe.fp32_gradient_accumulation ? DType::fp32 : c_.activation_dtype();
      const Storage storage = dtype == c_.recipe.reduce_dtype ? Storage::wire : Storage::local;
      c_.gradients = c_.expert_gradients =
          b.slot("whole gradients", dtype, 1, own_.total(), storage);
    }
  }

  // Forward starts: own parameters have been gathered; the next block's gather runs beside us.
  void enter_forward() {
    if (!gathers_parameters(c_.recipe, c_.shape.zero)) return;
    c_.b.wait_for(Stream::gather_comm);
    c_.b.compute(Join{}, {c_.weights}, {});
    prefetch(c_.shape.next, "next weights");
  }

  void enter_backward() {
    if (!gathers_parameters(c_.recipe, c_.shape.zero) || c_.shape.zero != 3) return;
    c_.b.wait_for(Stream::gather_comm);
    c_.b.compute(Join{}, {c_.weights_backward}, {});
    prefetch(c_.shape.previous, "previous weights");
  }

  // Backward ends: the following block's reduction is waited for, ours is started.
  void leave_backward() {
    if (!reduces_every_microbatch(c_.shape)) return;
    drain();
    if (own_.total() == 0) return;
    const auto& s = c_.shape;
    auto& b = c_.b;
    SlotId input = c_.gradients;
    if (b.at(input).dtype != c_.recipe.reduce_dtype) {
      input = b.slot("reduction input", c_.recipe.reduce_dtype, 1, own_.total(), Storage::wire);
      c_.rowwise(RowwiseKind::cast, 1, own_.total(), {c_.gradients}, {input});
    }
    reduce_scatter(own_.dense, dense_axis(s), s.dense_shard, s.dense_replicas, Axis::dp_replicate,
                   input);
    reduce_scatter(own_.expert, Axis::edp, s.expert_shard, 1, Axis::edp, input);
    if (!s.overlap.has(OverlapKind::grad)) {
      b.wait_for(Stream::reduce_comm);
      b.flush();
    }
  }

  void drain() {
    if (c_.shape.next.total() == 0) return;
    auto& b = c_.b;
    const SlotId pending = b.slot("reduction in flight", c_.recipe.reduce_dtype, 1,
                                  c_.shape.next.total(), Storage::wire);
    b.wait_for(Stream::reduce_comm);
    b.compute(Join{}, {pending}, {});
  }

  void prefetch(const RankParameters& n, std::string_view name) {
    if (n.total() == 0) return;
    auto& b = c_.b;
    const auto& s = c_.shape;
    const SlotId whole = whole_parameters(name, n);
    if (s.params_offload) {
      const double shard = static_cast<double>(ceil_div(n.dense, s.dense_shard) +
                                               ceil_div(n.expert, s.expert_shard));
      b.aside(Stream::h2d, HostCopy{Bytes(shard * 2), false}, {}, {whole});
    }
    const StreamSet offloaded = s.params_offload ? only(Stream::h2d) : StreamSet{};
    bool gathered = false;
    const auto gather = [&](std::int64_t count, Axis axis, int ranks) {
      if (count == 0 || ranks == 1) return;
      const Bytes bytes(static_cast<double>(count) * size_of(c_.activation_dtype()));
      Op& op = b.aside(Stream::gather_comm, Collective{CollectiveKind::all_gather, axis, bytes}, {},
                       {whole});
      op.after = op.after | offloaded;
      gathered = true;
    };
    gather(n.dense, dense_axis(s), s.dense_shard);
    gather(n.expert, Axis::edp, s.expert_shard);
    if (!gathered) b.compute(Join{}, {}, {whole});  // one rank: only the working copy is made
    // Without overlap the next block's parameters are waited for before this block computes.
    // DeepSpeed's overlap_comm is one switch for both directions (frameworks.md 3.1).
    const bool one_switch = c_.recipe.shard_style == ShardStyle::distributed_optimizer;
    const bool prefetches =
        s.overlap.has(OverlapKind::param) || (one_switch && s.overlap.has(OverlapKind::grad));
    if (gathered && !prefetches) {
      b.wait_for(Stream::gather_comm);
      b.flush();
    }
  }

  // gather, reduce, norm and update: once a step.
  void once_a_step() {
    if (own_.total() == 0) return;
    const auto& s = c_.shape;
    auto& b = c_.b;
    const bool gathers = gathers_parameters(c_.recipe, s.zero);
    if (s.zero == 1 || (s.zero == 2 && !gathers)) {
      b.into(&Block::gather);
      gather_updated({});
      b.wait_for(Stream::gather_comm);
      b.flush();
    }
    if (!reduces_every_microbatch(s)) {
      b.into(&Block::reduce);
      const double grad = size_of(s.grad_dtype);
      reduce_whole(own_.dense, Axis::dp_cp, s.zero == 0 ? s.dense_replicas : s.dense_shard, grad);
      reduce_whole(own_.expert, Axis::edp, s.zero == 0 ? s.expert_replicas : s.expert_shard, grad);
    }
    if (s.kind == BlockKind::head && s.tied_head) {
      // The embedding's two copies, on the first and the last stage, share one gradient.
      b.into(&Block::reduce);
      const double count =
          static_cast<double>(vocabulary_share(c_.model, s) * c_.model.hidden_size);
      b.aside(Stream::reduce_comm,
              Collective{CollectiveKind::all_reduce, Axis::embedding,
                         Bytes(count * size_of(s.grad_dtype))},
              {gradients_}, {gradients_});
    }
    b.into(&Block::norm);
    b.compute(Rowwise{.kind = RowwiseKind::sum_of_squares,
                      .rows = 1,
                      .cols = shard_.total(),
                      .dtype = s.grad_dtype},
              {gradients_}, {});
    b.into(&Block::update);
    optimizer_step();
  }

 private:
  SlotId whole_parameters(std::string_view name, const RankParameters& n) {
    return c_.b.slot(name, c_.activation_dtype(), 1, n.total(), Storage::wire);
  }

  void reduce_scatter(std::int64_t count, Axis axis, int ranks, int replicas, Axis replica_axis,
                      SlotId input) {
    if (count == 0) return;
    const Bytes bytes(static_cast<double>(count) * size_of(c_.recipe.reduce_dtype));
    if (ranks > 1) {
      c_.b.aside(Stream::reduce_comm, Collective{CollectiveKind::reduce_scatter, axis, bytes},
                 {input}, {gradients_});
    }
    if (replicas > 1) {
      c_.b.aside(Stream::reduce_comm,
                 Collective{CollectiveKind::all_reduce, replica_axis, bytes / ranks}, {input},
                 {gradients_});
    }
  }

  void reduce_whole(std::int64_t count, Axis axis, int ranks, double element) {
    if (count == 0 || ranks == 1) return;
    const auto kind =
        c_.shape.zero == 0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter;
    c_.b.aside(Stream::reduce_comm,
               Collective{kind, axis, Bytes(static_cast<double>(count) * element)}, {gradients_},
               {gradients_});
  }

  // The updated parameters to every rank (distributed optimizer).
  void gather_updated(StreamSet after) {
    const auto& s = c_.shape;
    const auto gather = [&](std::int64_t count, Axis axis, int ranks) {
      if (count == 0 || ranks == 1) return;
      const Bytes bytes(static_cast<double>(count) * size_of(c_.activation_dtype()));
      Op& op = c_.b.aside(Stream::gather_comm, Collective{CollectiveKind::all_gather, axis, bytes},
                          {weights_}, {weights_});
      op.after = after;
    };
    gather(own_.dense, dense_axis(s), s.dense_shard);
    gather(own_.expert, Axis::edp, s.expert_shard);
  }

  void optimizer_step() {
    const auto& s = c_.shape;
    auto& b = c_.b;
    const auto on_host =
        static_cast<std::int64_t>(static_cast<double>(shard_.total()) * s.optimizer_offload);
    const std::int64_t on_device = shard_.total() - on_host;
    if (on_host > 0) {
      const auto n = static_cast<double>(on_host);
      b.aside(Stream::d2h, HostCopy{Bytes(n * size_of(s.grad_dtype)), true}, {gradients_}, {});
      Op& step = b.aside(Stream::host, HostAdam{on_host, s.nvme}, {}, {});
      step.after = only(Stream::d2h);
      Op& back = b.aside(Stream::h2d, HostCopy{Bytes(n * 2), false}, {}, {weights_});
      back.after = only(Stream::host);
    }
    if (on_device > 0) {
      b.compute(AdamW{.params = on_device,
                      .grad = s.grad_dtype,
                      .main_params = s.main_params_dtype,
                      .moments = s.moment_dtype,
                      .working = c_.recipe.working_params,
                      .fused = c_.recipe.fused_adam},
                {gradients_}, {weights_});
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

  LayerContext& c_;
  RankParameters own_, shard_;
  SlotId weights_ = kNoSlot, gradients_ = kNoSlot;
};

// Transformer Engine keeps one dummy bf16 weight gradient per distinct weight shape when gradients
// accumulate in the weight-gradient product (physics.md 5.2).
void dummy_weight_gradient(LayerContext& c, std::int64_t n, std::int64_t k) {
  if (!c.recipe.dummy_weight_gradients) return;
  c.b.slot("dummy weight gradient", DType::bf16, n, k, Storage::shared);
}

void dummy_weight_gradients(LayerContext& c) {
  const ModelSpec& m = c.model;
  const BlockShape& s = c.shape;
  const std::int64_t h = m.hidden_size;
  if (m.mla) {
    const MlaSpec& a = *m.mla;
    const std::int64_t heads = m.num_attention_heads / s.tp;
    const std::int64_t qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
    if (a.q_lora_rank > 0) dummy_weight_gradient(c, a.q_lora_rank, h);
    dummy_weight_gradient(c, heads * qk, a.q_lora_rank > 0 ? a.q_lora_rank : h);
    dummy_weight_gradient(c, a.kv_lora_rank + a.qk_rope_head_dim, h);
    dummy_weight_gradient(c, heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank);
    dummy_weight_gradient(c, h, heads * a.v_head_dim);
  } else {
    const std::int64_t q = m.num_attention_heads * m.head_dim;
    dummy_weight_gradient(c, (q + 2 * m.num_key_value_heads * m.head_dim) / s.tp, h);
    dummy_weight_gradient(c, h, q / s.tp);
  }
  const std::int64_t up = m.mlp == MlpKind::swiglu ? 2 : 1;
  if (!s.layer.moe) {
    dummy_weight_gradient(c, up * m.intermediate_size / s.tp, h);
    dummy_weight_gradient(c, h, m.intermediate_size / s.tp);
    return;
  }
  dummy_weight_gradient(c, 2 * m.moe->moe_intermediate_size / s.etp, h);
  dummy_weight_gradient(c, h, m.moe->moe_intermediate_size / s.etp);
  if (m.moe->shared_expert_intermediate_size > 0) {
    const std::int64_t fs = m.moe->shared_expert_intermediate_size / s.tp;
    dummy_weight_gradient(c, 2 * fs, h);
    dummy_weight_gradient(c, h, fs);
  }
}

// DeepSpeed's communication buckets, held for the whole step (frameworks.md 3.1).
void communication_buckets(LayerContext& c) {
  if (c.recipe.bucket_elements == 0) return;
  c.b.slot("reduce bucket", c.activation_dtype(), c.recipe.bucket_elements, 1, Storage::shared);
  c.b.slot("second bucket", c.activation_dtype(), c.recipe.bucket_elements, 2, Storage::shared);
}

// Moves what backward needs to the host after forward and back before backward.
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
  // An op names eight slots; a long list becomes several pieces of one copy.
  OpList out, back;
  for (std::size_t i = 0; i < moved.size(); i += 8) {
    Op copy_out{.work = HostCopy{{}, true}, .stream = Stream::d2h, .after = only(Stream::compute)};
    Op copy_back{.work = HostCopy{{}, false}, .stream = Stream::h2d, .after = {}};
    Bytes piece;
    for (std::size_t j = i; j < std::min(moved.size(), i + 8); ++j) {
      copy_out.reads.add(moved[j]);
      copy_back.writes.add(moved[j]);
      piece += block.slots[static_cast<std::size_t>(moved[j])].bytes();
    }
    std::get<HostCopy>(copy_out.work).bytes = piece;
    std::get<HostCopy>(copy_back.work).bytes = piece;
    out.push_back(copy_out);
    back.push_back(copy_back);
  }
  block.forward.insert(block.forward.end(), out.begin(), out.end());
  back.push_back({.work = Join{}, .stream = Stream::compute, .after = only(Stream::h2d)});
  block.backward.insert(block.backward.begin(), back.begin(), back.end());
}

Block build_decoder(const ModelSpec& m, const Recipe& r, const BlockShape& s,
                    std::string_view name) {
  BlockBuilder b(name);
  LayerContext c(m, r, s, b);
  StateBuilder state(c, rank_parameters(m, s));
  state.declare();
  dummy_weight_gradients(c);
  communication_buckets(c);
  AttentionPart attention(c);
  MlpPart mlp(c);
  MoePart moe(c);

  b.into(&Block::forward);
  const SlotId x = b.slot("x", c.activation_dtype(), c.local_tokens, c.hidden, Storage::wire);
  state.enter_forward();
  const SlotId middle = attention.forward(x);
  s.layer.moe ? moe.forward(middle) : mlp.forward(middle);
  b.flush();

  b.into(&Block::backward);
  const SlotId dy = b.slot("dy", c.activation_dtype(), c.local_tokens, c.hidden, Storage::wire);
  state.enter_backward();
  const SlotId dmiddle = s.layer.moe ? moe.backward(dy) : mlp.backward(dy);
  attention.backward(dmiddle);
  b.flush();
  state.leave_backward();
  state.once_a_step();
  Block block = b.take();
  recompute(block, s.recompute, s.recompute_modules, c.weights, c.weights_backward);
  if (s.activations_offload) offload_activations(block);
  return block;
}

Block build_embedding(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("embedding");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, rank_parameters(m, s));
  state.declare();
  const DType act = c.activation_dtype();
  b.into(&Block::forward);
  state.enter_forward();
  const SlotId ids = b.slot("token ids", DType::int64, c.tokens, 1);
  // With one tp rank (or plain all-reduce) the looked-up rows are the block's output themselves.
  const bool scattered = s.tp > 1 && s.sequence_parallel;
  const SlotId rows =
      b.slot("embedded", act, c.tokens, c.hidden, scattered ? Storage::local : Storage::wire);
  c.rowwise(RowwiseKind::embedding, c.tokens, c.hidden, {c.weights}, {rows, ids});
  const SlotId y = c.reduce_partial(rows, c.hidden, "y");
  b.at(y).storage = Storage::wire;
  b.flush();
  b.into(&Block::backward);
  const SlotId dy = b.slot("dy", act, c.local_tokens, c.hidden, Storage::wire);
  state.enter_backward();
  const SlotId whole = c.gather_sequence(dy, c.hidden);
  c.rowwise(RowwiseKind::embedding_backward, c.tokens, c.hidden, {whole, ids}, {c.gradients});
  b.flush();
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

// Final norm, logits over this rank's vocabulary, loss. Shared with multi-token prediction.
class LogitsPart {
 public:
  explicit LogitsPart(LayerContext& context) : c_(context) {}

  void forward(SlotId x) {
    auto& b = c_.b;
    const DType act = c_.activation_dtype();
    const std::int64_t v = vocabulary_share(c_.model, c_.shape);
    x_ = x;
    normed_ = b.slot("final normed", act, c_.local_tokens, c_.hidden);
    c_.norm_forward(x, normed_, c_.local_tokens, c_.hidden);
    const SlotId whole = c_.gather_sequence(normed_, c_.hidden);
    logits_ = b.slot("logits", act, c_.tokens, v);
    b.compute(product(v, c_.hidden), {whole, c_.weights}, {logits_});
    if (c_.recipe.logits_stash_bytes > 0) {
      copy_ = b.slot("fp32 logits and log-softmax", DType::boolean, c_.tokens,
                     static_cast<std::int64_t>(c_.recipe.logits_stash_bytes) * v);
    }
    const SlotId loss = b.slot("loss", DType::fp32, c_.tokens, 1);
    c_.rowwise(RowwiseKind::cross_entropy, c_.tokens, v, {logits_}, {loss, copy_});
    if (c_.shape.tp > 1) {
      // Vocabulary-parallel loss: maximum, target logit and sum of exponentials (physics.md 3.1).
      const Bytes bytes(static_cast<double>(c_.tokens) * 4);
      for (int i = 0; i < 3; ++i) {
        b.exposed(Collective{CollectiveKind::all_reduce, Axis::tp, bytes}, {loss}, {loss});
      }
    }
  }

  SlotId backward() {
    auto& b = c_.b;
    const DType act = c_.activation_dtype();
    const std::int64_t v = vocabulary_share(c_.model, c_.shape);
    const SlotId dlogits = b.slot("dlogits", DType::boolean, c_.tokens,
                                  static_cast<std::int64_t>(c_.recipe.logits_grad_bytes) * v);
    c_.rowwise(RowwiseKind::cross_entropy_backward, c_.tokens, v, {logits_, copy_}, {dlogits});
    const SlotId whole = c_.gather_sequence(normed_, c_.hidden, /*wait=*/false);
    const SlotId partial = b.slot("dhead partial", act, c_.tokens, c_.hidden);
    b.compute(product(c_.hidden, v), {dlogits, c_.weights_backward}, {partial});
    if (whole != normed_) {
      b.wait_for(Stream::model_comm);
      b.flush();
    }
    const SlotId dnormed = c_.reduce_partial(partial, c_.hidden, "dhead", /*wait=*/false);
    Gemm wgrad{.m = v, .n = c_.hidden, .k = c_.tokens, .dtype = c_.activation_dtype()};
    wgrad.accumulate_fp32 =
        c_.recipe.fp32_gradient_accumulation && c_.shape.grad_dtype == DType::fp32;
    b.compute(wgrad, {dlogits, whole}, {c_.gradients});
    if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
    const SlotId dx = b.slot("dx", act, c_.local_tokens, c_.hidden, Storage::wire);
    c_.norm_backward(x_, dnormed, kNoSlot, dx, c_.local_tokens, c_.hidden);
    return dx;
  }

 private:
  // The head stays in the activation's precision, whatever the layers run in.
  [[nodiscard]] Gemm product(std::int64_t n, std::int64_t k) const {
    return {.m = c_.tokens, .n = n, .k = k, .dtype = c_.activation_dtype()};
  }

  LayerContext& c_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, logits_ = kNoSlot, copy_ = kNoSlot;
};

Block build_head(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("head");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, rank_parameters(m, s));
  state.declare();
  dummy_weight_gradient(c, vocabulary_share(m, s), m.hidden_size);
  LogitsPart logits(c);
  b.into(&Block::forward);
  const SlotId x = b.slot("x", c.activation_dtype(), c.local_tokens, c.hidden, Storage::wire);
  state.enter_forward();
  logits.forward(x);
  b.flush();
  b.into(&Block::backward);
  state.enter_backward();
  logits.backward();
  b.flush();
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

// DeepSeek-V3's extra prediction: norms of hidden and embedding, projection 2h -> h, one layer, the
// shared head. The main hidden state passes through to the head unchanged.
Block build_mtp(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("mtp");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, rank_parameters(m, s));
  state.declare();
  const DType act = c.activation_dtype();
  const std::int64_t rows = c.local_tokens, h = c.hidden;
  AttentionPart attention(c);
  MlpPart mlp(c);
  MoePart moe(c);
  LogitsPart logits(c);
  b.into(&Block::forward);
  const SlotId x = b.slot("x", act, rows, h, Storage::wire);
  state.enter_forward();
  const SlotId pass = b.slot("hidden passed on", act, rows, h, Storage::wire);
  c.rowwise(RowwiseKind::copy, rows, h, {x}, {pass});
  const SlotId both = b.slot("hidden and embedding", act, rows, 2 * h);
  c.norm_forward(x, both, 2 * rows, h);
  const SlotId projected = b.slot("mtp projected", act, rows, h);
  c.linear(both, projected, rows, h, 2 * h);
  const SlotId middle = attention.forward(projected);
  const SlotId out = s.layer.moe ? moe.forward(middle) : mlp.forward(middle);
  b.at(out).storage = Storage::local;
  logits.forward(out);
  b.flush();
  b.into(&Block::backward);
  const SlotId dpass = b.slot("dy", act, rows, h, Storage::wire);
  state.enter_backward();
  const SlotId dout = logits.backward();
  b.at(dout).storage = Storage::local;
  const SlotId dmiddle = s.layer.moe ? moe.backward(dout) : mlp.backward(dout);
  const SlotId dprojected = attention.backward(dmiddle);
  b.at(dprojected).storage = Storage::local;
  const SlotId dboth = b.slot("d hidden and embedding", act, rows, 2 * h);
  c.linear_dgrad(dprojected, dboth, rows, h, 2 * h);
  c.linear_wgrad(dprojected, both, rows, h, 2 * h);
  const SlotId dx = b.slot("dx", act, rows, h, Storage::wire);
  c.norm_backward(x, dboth, dpass, dx, 2 * rows, h);
  b.flush();
  state.leave_backward();
  state.once_a_step();
  Block block = b.take();
  recompute(block, s.recompute, s.recompute_modules, c.weights, c.weights_backward);
  return block;
}

// Pixels to patches: a convolution whose stride is its kernel, so one product.
Block build_patchify(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const VisionSpec& v = *m.vision;
  BlockBuilder b("patchify");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, rank_parameters(m, s));
  state.declare();
  const std::int64_t rows = s.images * s.patches;
  const std::int64_t pixels = v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size;
  b.into(&Block::forward);
  state.enter_forward();
  const SlotId image = b.slot("pixels", c.activation_dtype(), rows, pixels);
  b.compute(Join{}, {}, {image});
  const SlotId y = b.slot("patches", c.activation_dtype(), rows, v.hidden_size, Storage::wire);
  c.linear(image, y, rows, v.hidden_size, pixels);
  b.into(&Block::backward);
  const SlotId dy = b.slot("dy", c.activation_dtype(), rows, v.hidden_size, Storage::wire);
  state.enter_backward();
  c.linear_wgrad(dy, image, rows, v.hidden_size, pixels);
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

// 2x2 patches -> one token of the text model: norm, product, GELU, product; once more per deepstack
// tap.
Block build_merger(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  const VisionSpec& v = *m.vision;
  BlockBuilder b("merger");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, rank_parameters(m, s));
  state.declare();
  const std::int64_t side = v.spatial_merge_size * v.spatial_merge_size;
  const std::int64_t rows = s.images * s.patches / side, wide = v.hidden_size * side;
  const DType act = c.activation_dtype();
  const std::size_t mergers = 1 + v.deepstack_layers.size();
  b.into(&Block::forward);
  const SlotId x = b.slot("x", act, s.images * s.patches, v.hidden_size, Storage::wire);
  state.enter_forward();
  std::vector<SlotId> normed(mergers), up(mergers), activated(mergers);
  for (std::size_t i = 0; i < mergers; ++i) {
    normed[i] = b.slot("merged normed", act, rows, wide);
    up[i] = b.slot("merged up", act, rows, wide);
    activated[i] = b.slot("merged act", act, rows, wide);
    const SlotId out = b.slot("visual tokens", act, rows, v.out_hidden_size);
    c.rowwise(RowwiseKind::layer_norm, rows, wide, {x, c.weights}, {normed[i]});
    c.linear(normed[i], up[i], rows, wide, wide);
    c.rowwise(RowwiseKind::gelu, rows, wide, {up[i]}, {activated[i]});
    c.linear(activated[i], out, rows, v.out_hidden_size, wide);
  }
  b.into(&Block::backward);
  state.enter_backward();
  SlotId dx = kNoSlot;
  for (std::size_t i = 0; i < mergers; ++i) {
    const SlotId dout = b.slot("d visual tokens", act, rows, v.out_hidden_size);
    b.compute(Join{}, {}, {dout});
    const SlotId dact = b.slot("d merged act", act, rows, wide);
    c.linear_dgrad(dout, dact, rows, v.out_hidden_size, wide);
    c.linear_wgrad(dout, activated[i], rows, v.out_hidden_size, wide);
    const SlotId dup = b.slot("d merged up", act, rows, wide);
    c.rowwise(RowwiseKind::gelu_backward, rows, wide, {up[i], dact}, {dup});
    const SlotId dnormed = b.slot("d merged normed", act, rows, wide);
    c.linear_dgrad(dup, dnormed, rows, wide, wide);
    c.linear_wgrad(dup, normed[i], rows, wide, wide);
    const bool last = i + 1 == mergers;
    const SlotId sum = b.slot("dx", act, rows, wide, last ? Storage::wire : Storage::local);
    c.rowwise(RowwiseKind::layer_norm_backward, rows, wide, {x, dnormed, dx}, {sum, c.gradients});
    dx = sum;
  }
  state.leave_backward();
  state.once_a_step();
  return b.take();
}

// Fully sharded stages: the first gather of forward and the last reduction of backward ...
Block build_stage_entry(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("stage entry");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, {});
  b.into(&Block::forward);
  if (gathers_parameters(r, s.zero)) state.prefetch(s.next, "next weights");
  b.into(&Block::backward);
  state.drain();
  return b.take();
}

// ... and the first gather of backward.
Block build_stage_exit(const ModelSpec& m, const Recipe& r, const BlockShape& s) {
  BlockBuilder b("stage exit");
  LayerContext c(m, r, s, b);
  StateBuilder state(c, {});
  b.into(&Block::backward);
  if (gathers_parameters(r, s.zero) && s.zero == 3) state.prefetch(s.previous, "previous weights");
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

bool gathers_parameters(const Recipe& recipe, int zero) {
  return zero == 3 || (recipe.shard_style == ShardStyle::fully_sharded && zero == 2);
}

RankParameters rank_parameters(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t h = m.hidden_size;
  switch (s.kind) {
    case BlockKind::embedding: {
      RankParameters n{vocabulary_share(m, s) * h, 0};
      if (m.position == PositionEmbedding::learned) n.dense += m.max_position_embeddings * h;
      return n;
    }
    case BlockKind::decoder:
      return decoder_parameters(m, s);
    case BlockKind::head: {
      const bool own = !m.tie_word_embeddings || s.tied_head;
      return {norm_parameters(m, h) + (own ? vocabulary_share(m, s) * h : 0), 0};
    }
    case BlockKind::mtp: {
      RankParameters n = decoder_parameters(m, s);
      n.dense += 2 * h * h + 3 * norm_parameters(m, h);
      return n;
    }
    case BlockKind::patchify: {
      const VisionSpec& v = *m.vision;
      return {v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size * v.hidden_size +
                  v.hidden_size + v.num_position_embeddings * v.hidden_size,
              0};
    }
    case BlockKind::vision: {
      const ModelSpec tower = tower_spec(m);
      return {attention_parameters(tower, s.tp) + 2 * norm_parameters(tower, tower.hidden_size) +
                  mlp_parameters(tower, tower.intermediate_size, s.tp),
              0};
    }
    case BlockKind::merger:
      return {merger_parameters(*m.vision), 0};
    case BlockKind::stage_entry:
    case BlockKind::stage_exit:
    case BlockKind::step_edge:
      return {};
  }
  return {};
}

BlockShape base_shape(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                      double moe_imbalance) {
  BlockShape s;
  s.micro_batch_size = plan.micro_batch_size;
  s.seq_len = plan.seq_len;
  s.tp = plan.tp;
  s.cp = plan.cp;
  s.ep = plan.ep;
  s.etp = plan.etp;
  const int group = plan.dp * plan.cp;
  const auto expert_group = static_cast<int>(plan.edp());
  s.zero = plan.zero;
  s.dense_shard = plan.shard_degree();
  s.dense_replicas = group / s.dense_shard;
  s.expert_shard = plan.zero == 0 ? 1 : expert_group;
  s.expert_replicas = expert_group / s.expert_shard;
  s.sequence_parallel = plan.sequence_parallel;
  s.cp_comm = plan.cp_comm;
  s.dispatcher = plan.moe_dispatcher;
  s.precision = plan.precision;
  s.overlap = plan.overlap;
  s.grad_dtype = plan.precision == Precision::fp16 ? DType::fp16 : plan.grad_dtype;
  s.main_params_dtype = plan.main_params_dtype;
  s.moment_dtype = plan.moment_dtype;
  s.optimizer_offload = plan.offload.optimizer;
  s.params_offload = plan.offload.params;
  s.nvme = plan.offload.nvme;
  s.recompute = plan.recompute.kind;
  s.recompute_modules = plan.recompute.modules.empty() ? recipe.selective : plan.recompute.modules;
  if (s.recompute != RecomputeKind::selective) s.recompute_modules = {};
  s.moe_load = model.moe && plan.routing == Routing::natural ? moe_imbalance : 1.0;
  s.tied_head = model.tie_word_embeddings && plan.pp > 1;
  return s;
}

std::uint64_t hash_of(const BlockShape& s) {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a over the fields
  const auto mix = [&hash](auto value) {
    std::uint64_t bits = 0;
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      bits = static_cast<std::uint64_t>(value * 1e6);
    } else {
      bits = static_cast<std::uint64_t>(value);
    }
    hash = (hash ^ bits) * 1099511628211ULL;
    hash ^= hash >> 29;
  };
  mix(s.kind);
  mix(s.layer.moe);
  mix(s.layer.window);
  mix(s.micro_batch_size);
  mix(s.seq_len);
  mix((s.tp * 4096 + s.cp) * std::int64_t{4096});
  mix((s.ep * 4096 + s.etp) * std::int64_t{4096} + s.zero);
  mix(s.dense_shard * std::int64_t{1000003} + s.expert_shard);
  mix(s.dense_replicas * std::int64_t{1000003} + s.expert_replicas);
  mix(static_cast<int>(s.sequence_parallel) + 2 * static_cast<int>(s.cp_comm) +
      8 * static_cast<int>(s.dispatcher) + 32 * static_cast<int>(s.precision) +
      256 * static_cast<int>(s.recompute));
  mix(s.recompute_modules.bits * 65536U + s.overlap.bits);
  mix(static_cast<int>(s.grad_dtype) + 16 * static_cast<int>(s.main_params_dtype) +
      256 * static_cast<int>(s.moment_dtype));
  mix(s.optimizer_offload);
  mix(static_cast<int>(s.params_offload) + 2 * static_cast<int>(s.activations_offload) +
      4 * static_cast<int>(s.nvme) + 8 * static_cast<int>(s.tied_head));
  mix(s.moe_load);
  mix(s.images * 65536 + s.patches);
  mix(s.next.dense);
  mix(s.next.expert);
  mix(s.previous.dense);
  mix(s.previous.expert);
  return hash;
}

BlockShape compute_shape(BlockShape s) {
  if (s.zero < 2) {
    s.dense_shard = s.expert_shard = s.dense_replicas = s.expert_replicas = 1;
    s.zero = 0;
  }
  s.optimizer_offload = 0;
  s.nvme = false;
  s.moment_dtype = s.main_params_dtype = DType::fp32;
  s.overlap.remove(OverlapKind::ep);
  // From ZeRO-2 on, reductions (and gathers) are part of forward and backward.
  if (s.zero < 2) s.overlap.remove(OverlapKind::grad).remove(OverlapKind::param);
  return s;
}

BlockShape state_shape(BlockShape s) {
  s.micro_batch_size = 1;
  s.seq_len = 1;
  s.cp_comm = CpComm::p2p;
  s.dispatcher = MoeDispatcher::alltoall;
  s.recompute = RecomputeKind::none;
  s.recompute_modules = {};
  s.activations_offload = false;
  s.moe_load = 1;
  s.images = s.patches = 0;
  s.layer.window = 0;
  s.overlap = {};
  s.next = s.previous = {};
  return s;
}

Block build_states(const ModelSpec& m, const Recipe& r, const BlockShape& shape) {
  if (shape.kind == BlockKind::step_edge) return build_step_edge();
  BlockBuilder b("states");
  LayerContext c(m, r, shape, b);
  StateBuilder state(c, rank_parameters(m, shape));
  state.declare();
  state.once_a_step();
  return b.take();
}

Block build_block(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape) {
  switch (shape.kind) {
    case BlockKind::embedding:
      return build_embedding(model, recipe, shape);
    case BlockKind::decoder:
      return build_decoder(model, recipe, shape, shape.layer.moe ? "moe layer" : "dense layer");
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
      return build_decoder(tower_spec(model), recipe, tower, "vision layer");
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

}  // namespace qplan
