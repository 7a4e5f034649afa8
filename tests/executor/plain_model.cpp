#include "tests/executor/plain_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "executor/math/activation.h"
#include "executor/math/attention.h"
#include "executor/math/cross_entropy.h"
#include "executor/math/embedding.h"
#include "executor/math/gemm.h"
#include "executor/math/norm.h"
#include "executor/math/permute.h"
#include "executor/math/rope.h"
#include "executor/math/router.h"

namespace qplan {
namespace {

using namespace math;
using enum ParameterRole;

struct Buffer {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> data;
  Buffer() = default;
  Buffer(std::int64_t r, std::int64_t c) : rows(r), cols(c), data(at(r * c)) {}
  [[nodiscard]] Matrix view() { return {data, rows, cols}; }
  [[nodiscard]] ConstMatrix view() const { return {data, rows, cols}; }
};

// A part of the model with its parameters at hand.
struct Part {
  const ModelSpec& m;
  const std::vector<ModelParameter>& parameters;
  const std::vector<std::vector<float>>& weights;
  std::vector<std::vector<float>>& gradients;
  double capacity_factor = 0;
  ModelPart part = ModelPart::decoder;
  std::int64_t layer = 0;

  [[nodiscard]] const ModelParameter* find(ParameterRole role, bool bias = false,
                                           std::int64_t copy = 0) const {
    const auto it = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) {
      return p.part == part && p.layer == layer && p.parameter.role == role &&
             p.parameter.bias == bias && p.copy == copy;
    });
    return it == parameters.end() ? nullptr : &*it;
  }
  [[nodiscard]] ConstFloats vector(ParameterRole role, bool bias = false,
                                   std::int64_t copy = 0) const {
    const ModelParameter* p = find(role, bias, copy);
    return p == nullptr ? ConstFloats() : ConstFloats(weights[at(p->index)]);
  }
  [[nodiscard]] Floats gradient(ParameterRole role, bool bias = false,
                                std::int64_t copy = 0) const {
    const ModelParameter* p = find(role, bias, copy);
    return p == nullptr ? Floats() : Floats(gradients[at(p->index)]);
  }
  [[nodiscard]] ConstMatrix matrix(ParameterRole role, std::int64_t copy = 0) const {
    const ModelParameter* p = find(role, false, copy);
    return {vector(role, false, copy), p->parameter.rows, p->parameter.cols};
  }

  [[nodiscard]] Buffer linear(ParameterRole role, ConstMatrix x, std::int64_t copy = 0) const {
    const ConstMatrix w = matrix(role, copy);
    Buffer y(x.rows, w.rows);
    math::linear(x, w, y.view());
    const ConstFloats bias = vector(role, true, copy);
    if (!bias.empty()) add_bias(bias, y.view());
    return y;
  }
  [[nodiscard]] Buffer linear_backward(ParameterRole role, ConstMatrix x, ConstMatrix dy,
                                       std::int64_t copy = 0) const {
    const ConstMatrix w = matrix(role, copy);
    Buffer dx(x.rows, x.cols);
    linear_dgrad(dy, w, dx.view());
    linear_wgrad(dy, x, {gradient(role, false, copy), w.rows, w.cols});
    const Floats dbias = gradient(role, true, copy);
    if (!dbias.empty()) bias_backward(dy, dbias);
    return dx;
  }

  [[nodiscard]] NormShape norm_shape() const { return {m.norm_epsilon, norm_around_zero(m)}; }
  [[nodiscard]] Buffer norm(ParameterRole role, const Buffer& x) const {
    Buffer y(x.rows, x.cols);
    if (m.norm == Norm::layer_norm) {
      layer_norm(x.view(), vector(role), vector(role, true), norm_shape(), y.view());
    } else {
      rms_norm(x.view(), vector(role), norm_shape(), y.view());
    }
    return y;
  }
  [[nodiscard]] Buffer norm_backward(ParameterRole role, const Buffer& x, const Buffer& dy) const {
    Buffer dx(x.rows, x.cols);
    if (m.norm == Norm::layer_norm) {
      layer_norm_backward(x.view(), vector(role), norm_shape(), dy.view(), dx.view(),
                          gradient(role), gradient(role, true));
    } else {
      rms_norm_backward(x.view(), vector(role), norm_shape(), dy.view(), dx.view(), gradient(role));
    }
    return dx;
  }
};

void add_to(Buffer& y, const Buffer& x) {
  add(x.view(), y.view());
}

// A row of heads as rows of one head each.
Buffer by_heads(const Buffer& x, std::int64_t dim) {
  Buffer y = x;
  y.rows = x.rows * x.cols / dim;
  y.cols = dim;
  return y;
}

class AttentionLayer {
 public:
  AttentionLayer(Part part, const LayerKind& kind) : p_(part), m_(part.m) {
    shape_.heads = m_.num_attention_heads;
    shape_.kv_heads = m_.num_key_value_heads;
    shape_.head_dim = m_.head_dim;
    shape_.v_head_dim = m_.mla ? m_.mla->v_head_dim : m_.head_dim;
    shape_.scale = 1 / std::sqrt(static_cast<double>(m_.head_dim));
    shape_.causal = m_.causal;
    shape_.window = kind.window;
    const std::int64_t turned =
        m_.mla ? m_.mla->qk_rope_head_dim
               : static_cast<std::int64_t>(static_cast<double>(m_.head_dim) * m_.rotary_fraction);
    frequencies_ = rope_frequencies(m_.rope_theta, turned, m_.rope_scaling);
    if (m_.mla) shape_.scale *= latent_score_scale(m_.rope_scaling);
  }

  Buffer forward(const Buffer& x) {
    positions_.resize(at(x.rows));
    std::iota(positions_.begin(), positions_.end(), 0);
    x_ = x;
    m_.mla ? project_latent() : project();
    out_ = Buffer(x.rows, shape_.heads * shape_.v_head_dim);
    lse_ = Buffer(x.rows, shape_.heads);
    attention(input(), shape_, out_.view(), lse_.view());
    const ConstFloats learned = p_.vector(sinks);
    if (!learned.empty()) apply_sinks(learned, shape_, out_.view(), lse_.view());
    return p_.linear(o_proj, out_.view());
  }

  Buffer backward(const Buffer& dy) {
    const Buffer dout = p_.linear_backward(o_proj, out_.view(), dy.view());
    Buffer dq(q_.rows, q_.cols), dk(k_.rows, k_.cols), dv(v_.rows, v_.cols);
    attention_backward(input(), shape_, out_.view(), lse_.view(), dout.view(), dq.view(), dk.view(),
                       dv.view());
    const ConstFloats learned = p_.vector(sinks);
    if (!learned.empty()) {
      sinks_backward(learned, shape_, out_.view(), lse_.view(), dout.view(), p_.gradient(sinks));
    }
    return m_.mla ? latent_backward(dq, dk, dv) : project_backward(dq, dk, dv);
  }

 private:
  [[nodiscard]] AttentionInput input() const {
    return {q_.view(), k_.view(), v_.view(), positions_, positions_};
  }
  [[nodiscard]] bool turns() const { return m_.position == PositionEmbedding::rope; }

  void project() {
    q_ = q_raw_ = p_.linear(q_proj, x_.view());
    k_ = k_raw_ = p_.linear(k_proj, x_.view());
    v_ = p_.linear(v_proj, x_.view());
    if (m_.qk_norm) {
      q_.data = p_.norm(q_norm, by_heads(q_raw_, m_.head_dim)).data;
      k_.data = p_.norm(k_norm, by_heads(k_raw_, m_.head_dim)).data;
    }
    if (!turns()) return;
    rope(q_.view(), plain_rope(shape_.heads), positions_, frequencies_);
    rope(k_.view(), plain_rope(shape_.kv_heads), positions_, frequencies_);
  }

  Buffer project_backward(Buffer& dq, Buffer& dk, Buffer& dv) {
    if (turns()) {
      rope_backward(dq.view(), plain_rope(shape_.heads), positions_, frequencies_);
      rope_backward(dk.view(), plain_rope(shape_.kv_heads), positions_, frequencies_);
    }
    if (m_.qk_norm) {
      const std::int64_t d = m_.head_dim;
      dq.data = p_.norm_backward(q_norm, by_heads(q_raw_, d), by_heads(dq, d)).data;
      dk.data = p_.norm_backward(k_norm, by_heads(k_raw_, d), by_heads(dk, d)).data;
    }
    Buffer dx = p_.linear_backward(q_proj, x_.view(), dq.view());
    add_to(dx, p_.linear_backward(k_proj, x_.view(), dk.view()));
    add_to(dx, p_.linear_backward(v_proj, x_.view(), dv.view()));
    return dx;
  }

  [[nodiscard]] RopeShape plain_rope(std::int64_t heads) const {
    return {.heads = heads, .head_dim = m_.head_dim, .magnitude = rope_magnitude(m_.rope_scaling)};
  }
  [[nodiscard]] RopeShape latent_rope(std::int64_t heads) const {
    return {heads, m_.head_dim, m_.mla->qk_nope_head_dim, RopePairs::neighbours,
            rope_magnitude(m_.rope_scaling)};
  }

  // Each head's key: its own part of the expanded latent, then the one rope key of all heads.
  void project_latent() {
    const MlaSpec& a = *m_.mla;
    const bool low_rank = a.q_lora_rank > 0;
    if (low_rank) {
      q_down_ = p_.linear(q_a_proj, x_.view());
      q_down_normed_ = p_.norm(q_a_norm, q_down_);
    }
    q_ = low_rank ? p_.linear(q_b_proj, q_down_normed_.view()) : p_.linear(q_proj, x_.view());
    const Buffer kv_down = p_.linear(kv_a_proj, x_.view());
    latent_ = Buffer(x_.rows, a.kv_lora_rank);
    k_ = Buffer(x_.rows, shape_.heads * shape_.head_dim);
    v_ = Buffer(x_.rows, shape_.heads * shape_.v_head_dim);
    add(kv_down.view().columns(0, a.kv_lora_rank), latent_.view());
    latent_normed_ = p_.norm(kv_a_norm, latent_);
    const Buffer up = p_.linear(kv_b_proj, latent_normed_.view());
    const std::int64_t nope = a.qk_nope_head_dim, v = a.v_head_dim;
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const std::int64_t begin = head * (nope + v);
      const Matrix key = k_.view().columns(head * shape_.head_dim, shape_.head_dim);
      add(up.view().columns(begin, nope), key.columns(0, nope));
      add(kv_down.view().columns(a.kv_lora_rank, a.qk_rope_head_dim),
          key.columns(nope, a.qk_rope_head_dim));
      add(up.view().columns(begin + nope, v), v_.view().columns(head * v, v));
    }
    rope(q_.view(), latent_rope(shape_.heads), positions_, frequencies_);
    rope(k_.view(), latent_rope(shape_.heads), positions_, frequencies_);
  }

  Buffer latent_backward(Buffer& dq, Buffer& dk, Buffer& dv) {
    const MlaSpec& a = *m_.mla;
    rope_backward(dq.view(), latent_rope(shape_.heads), positions_, frequencies_);
    rope_backward(dk.view(), latent_rope(shape_.heads), positions_, frequencies_);
    const std::int64_t nope = a.qk_nope_head_dim, v = a.v_head_dim;
    Buffer dup(x_.rows, shape_.heads * (nope + v));
    Buffer dkv_down(x_.rows, a.kv_lora_rank + a.qk_rope_head_dim);
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const std::int64_t begin = head * (nope + v);
      const ConstMatrix key = dk.view().columns(head * shape_.head_dim, shape_.head_dim);
      add(key.columns(0, nope), dup.view().columns(begin, nope));
      add(key.columns(nope, a.qk_rope_head_dim),
          dkv_down.view().columns(a.kv_lora_rank, a.qk_rope_head_dim));
      add(dv.view().columns(head * v, v), dup.view().columns(begin + nope, v));
    }
    const Buffer dnormed = p_.linear_backward(kv_b_proj, latent_normed_.view(), dup.view());
    const Buffer dlatent = p_.norm_backward(kv_a_norm, latent_, dnormed);
    add(dlatent.view(), dkv_down.view().columns(0, a.kv_lora_rank));
    Buffer dx = p_.linear_backward(kv_a_proj, x_.view(), dkv_down.view());
    if (a.q_lora_rank == 0) {
      add_to(dx, p_.linear_backward(q_proj, x_.view(), dq.view()));
    } else {
      const Buffer dq_normed = p_.linear_backward(q_b_proj, q_down_normed_.view(), dq.view());
      const Buffer dq_down = p_.norm_backward(q_a_norm, q_down_, dq_normed);
      add_to(dx, p_.linear_backward(q_a_proj, x_.view(), dq_down.view()));
    }
    return dx;
  }

  Part p_;
  const ModelSpec& m_;
  AttentionShape shape_;
  std::vector<double> frequencies_;
  std::vector<std::int64_t> positions_;
  Buffer x_, q_, k_, v_, q_raw_, k_raw_, out_, lse_;
  Buffer q_down_, q_down_normed_, latent_, latent_normed_;
};

Activation activation_of(const ModelSpec& m) {
  if (m.architecture == "gpt_oss") return Activation::swiglu_clamped;
  if (m.mlp == MlpKind::swiglu) return Activation::swiglu;
  return m.mlp == MlpKind::relu2 ? Activation::relu2 : Activation::gelu_tanh;
}

// One MLP: a layer's, a shared expert's or one expert's.
class Mlp {
 public:
  Mlp(Part part, ParameterRole gate, ParameterRole up, ParameterRole down, std::int64_t copy = 0)
      : p_(part), gate_(gate), up_(up), down_(down), copy_(copy) {}

  Buffer forward(const Buffer& x) {
    x_ = x;
    const Activation kind = activation_of(p_.m);
    const Buffer up = p_.linear(up_, x.view(), copy_);
    in_ = Buffer(x.rows, is_gated(kind) ? 2 * up.cols : up.cols);
    if (is_gated(kind)) {
      const Buffer gate = p_.linear(gate_, x.view(), copy_);
      add(gate.view(), in_.view().columns(0, up.cols));
      add(up.view(), in_.view().columns(up.cols, up.cols));
    } else {
      add(up.view(), in_.view());
    }
    act_ = Buffer(x.rows, up.cols);
    activate(kind, std::as_const(in_).view(), {}, act_.view());
    return p_.linear(down_, act_.view(), copy_);
  }

  Buffer backward(const Buffer& dy) {
    const Activation kind = activation_of(p_.m);
    const Buffer dact = p_.linear_backward(down_, act_.view(), dy.view(), copy_);
    Buffer din(in_.rows, in_.cols);
    activate_backward(kind, std::as_const(in_).view(), {}, dact.view(), din.view(), {});
    if (!is_gated(kind)) return p_.linear_backward(up_, x_.view(), din.view(), copy_);
    const std::int64_t f = act_.cols;
    Buffer dx = p_.linear_backward(gate_, x_.view(), din.view().columns(0, f), copy_);
    add_to(dx, p_.linear_backward(up_, x_.view(), din.view().columns(f, f), copy_));
    return dx;
  }

 private:
  Part p_;
  ParameterRole gate_, up_, down_;
  std::int64_t copy_;
  Buffer x_, in_, act_;
};

class Experts {
 public:
  explicit Experts(Part part) : p_(part) {
    const MoeSpec& moe = *p_.m.moe;
    shape_ = {.experts = moe.num_experts,
              .top_k = moe.top_k,
              .sigmoid_scores = moe.sigmoid_scores,
              .num_groups = moe.num_groups,
              .topk_group = moe.topk_group,
              .norm_topk_prob = moe.norm_topk_prob,
              .routed_scaling_factor = moe.routed_scaling_factor};
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      experts_.emplace_back(p_, expert_gate_proj, expert_up_proj, expert_down_proj, e);
    }
    if (moe.shared_expert_intermediate_size > 0) {
      shared_ = std::make_unique<Mlp>(p_, shared_gate_proj, shared_up_proj, shared_down_proj);
    }
  }

  Buffer forward(const Buffer& x) {
    x_ = x;
    const Buffer logits = p_.linear(router, x.view());
    scores_ = Buffer(x.rows, shape_.experts);
    weights_ = Buffer(x.rows, shape_.top_k);
    chosen_.resize(at(x.rows * shape_.top_k));
    router_scores(logits.view(), shape_, scores_.view());
    choose_experts(scores_.view(), p_.vector(score_correction), shape_, chosen_);
    router_weights(scores_.view(), chosen_, shape_, weights_.view());
    order_ = order_by_expert(sent(), shape_.experts);
    Buffer rows(std::ssize(order_.copies), x.cols);
    permute(x.view(), order_.copies, shape_.top_k, rows.view());
    expert_out_ = Buffer(rows.rows, rows.cols);
    each_expert([&](Mlp& expert, std::int64_t first, std::int64_t count) {
      const Buffer out = expert.forward(part_of(rows, first, count));
      add(out.view(), expert_out_.view().row_range(first, count));
    });
    Buffer y(x.rows, x.cols);
    unpermute(expert_out_.view(), order_.copies, shape_.top_k, weights_.data, y.view());
    if (shared_) add_shared(y);
    return y;
  }

  Buffer backward(const Buffer& dy) {
    Buffer drows(expert_out_.rows, expert_out_.cols), dweights(weights_.rows, weights_.cols);
    unpermute_backward(std::as_const(expert_out_).view(), order_.copies, shape_.top_k,
                       weights_.data, dy.view(), drows.view(), dweights.data);
    Buffer dpermuted(drows.rows, drows.cols);
    each_expert([&](Mlp& expert, std::int64_t first, std::int64_t count) {
      const Buffer part = expert.backward(part_of(drows, first, count));
      add(part.view(), dpermuted.view().row_range(first, count));
    });
    Buffer dx(x_.rows, x_.cols), dlogits(scores_.rows, scores_.cols);
    unpermute(dpermuted.view(), order_.copies, shape_.top_k, {}, dx.view());
    router_backward(scores_.view(), chosen_, dweights.view(), {}, shape_, dlogits.view());
    add_to(dx, p_.linear_backward(router, x_.view(), dlogits.view()));
    if (shared_) add_to(dx, shared_backward(dy));
    return dx;
  }

 private:
  template <class Visit>
  void each_expert(Visit visit) {
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      const std::int64_t first = order_.offsets[at(e)], end = order_.offsets[at(e + 1)];
      if (end > first) visit(experts_[at(e)], first, end - first);
    }
  }
  static Buffer part_of(const Buffer& x, std::int64_t first, std::int64_t count) {
    Buffer part(count, x.cols);
    add(x.view().row_range(first, count), part.view());
    return part;
  }

  // The choices, -1 where a copy is beyond its expert's capacity: as many others are preferred.
  [[nodiscard]] std::vector<std::int32_t> sent() const {
    std::vector<std::int32_t> kept = chosen_;
    if (p_.capacity_factor == 0) return kept;
    const double capacity = std::ceil(static_cast<double>(chosen_.size()) /
                                      static_cast<double>(shape_.experts) * p_.capacity_factor);
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      int preferred = 0;
      for (std::size_t j = 0; j < chosen_.size(); ++j) {
        const bool better =
            weights_.data[j] > weights_.data[i] || (weights_.data[j] == weights_.data[i] && j < i);
        if (chosen_[j] == chosen_[i] && better) ++preferred;
      }
      if (preferred >= capacity) kept[i] = -1;
    }
    return kept;
  }

  // Qwen2-MoE weighs its shared expert by sigmoid(x . gate); others take it as it is.
  [[nodiscard]] double shared_weight(std::int64_t token) const {
    if (!p_.m.moe->shared_expert_gate) return 1;
    return 1 / (1 + std::exp(-static_cast<double>(shared_logits_.view().at(token, 0))));
  }
  void add_shared(Buffer& y) {
    shared_out_ = shared_->forward(x_);
    if (p_.m.moe->shared_expert_gate) shared_logits_ = p_.linear(shared_expert_gate, x_.view());
    for (std::int64_t t = 0; t < y.rows; ++t) {
      for (std::int64_t c = 0; c < y.cols; ++c) {
        y.view().at(t, c) += static_cast<float>(shared_weight(t) * shared_out_.view().at(t, c));
      }
    }
  }
  Buffer shared_backward(const Buffer& dy) {
    Buffer dout(dy.rows, dy.cols), dlogit(dy.rows, 1);
    for (std::int64_t t = 0; t < dy.rows; ++t) {
      const double weight = shared_weight(t);
      double product = 0;
      for (std::int64_t c = 0; c < dy.cols; ++c) {
        const double d = dy.view().at(t, c);
        product += d * shared_out_.view().at(t, c);
        dout.view().at(t, c) = static_cast<float>(weight * d);
      }
      dlogit.view().at(t, 0) = static_cast<float>(product * weight * (1 - weight));
    }
    Buffer dx = shared_->backward(dout);
    if (p_.m.moe->shared_expert_gate) {
      add_to(dx, p_.linear_backward(shared_expert_gate, x_.view(), dlogit.view()));
    }
    return dx;
  }

  Part p_;
  RouterShape shape_;
  std::vector<Mlp> experts_;
  std::unique_ptr<Mlp> shared_;
  std::vector<std::int32_t> chosen_;
  ExpertOrder order_;
  Buffer x_, scores_, weights_, expert_out_, shared_out_, shared_logits_;
};

class DecoderLayer {
 public:
  DecoderLayer(Part part, const LayerKind& kind) : p_(part), attention_(part, kind) {
    if (kind.moe) {
      experts_ = std::make_unique<Experts>(part);
    } else {
      mlp_ = std::make_unique<Mlp>(part, gate_proj, up_proj, down_proj);
    }
  }
  Buffer forward(Buffer x) {
    x_ = x;
    add_to(x, attention_.forward(p_.norm(input_norm, x_)));
    x2_ = x;
    const Buffer normed = p_.norm(post_attention_norm, x2_);
    add_to(x, mlp_ ? mlp_->forward(normed) : experts_->forward(normed));
    return x;
  }
  Buffer backward(Buffer dy) {
    const Buffer dnormed = mlp_ ? mlp_->backward(dy) : experts_->backward(dy);
    add_to(dy, p_.norm_backward(post_attention_norm, x2_, dnormed));
    const Buffer dattention = attention_.backward(dy);
    add_to(dy, p_.norm_backward(input_norm, x_, dattention));
    return dy;
  }

 private:
  Part p_;
  AttentionLayer attention_;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<Experts> experts_;
  Buffer x_, x2_;
};

// Sum of the losses of predicting targets[t] from row t, and the gradient of `scale` times it.
struct Prediction {
  double loss = 0;
  Buffer dhidden;
};
Prediction predict(const Part& table, ParameterRole role, const Buffer& hidden,
                   std::span<const std::int32_t> targets, double scale) {
  Buffer logits = table.linear(role, hidden.view());
  const VocabularyShard whole{0, table.m.vocab_size};
  const std::size_t n = targets.size();
  std::vector<float> maxima(n), sums(n), target(n), losses(n);
  logits_max(logits.view(), whole, maxima);
  logits_sums(logits.view(), whole, targets, maxima, sums, target);
  cross_entropy(sums, target, losses);
  cross_entropy_backward(logits.view(), whole, targets, maxima, sums, scale, logits.view());
  return {std::accumulate(losses.begin(), losses.end(), 0.0),
          table.linear_backward(role, hidden.view(), logits.view())};
}

// Multi-token prediction of the token after the next (arXiv 2412.19437, section 2.2, its last token
// left out: that has no target). Adds to the gradient of the hidden state.
class NextPrediction {
 public:
  NextPrediction(const Part& model, const Part& embedding, const Part& head)
      : p_(with_part(model)),
        embedding_(embedding),
        head_(head),
        layer_(p_, {.moe = p_.m.moe.has_value(), .window = 0}) {}

  double run(const Buffer& all_hidden, std::span<const std::int32_t> next,
             std::span<const std::int32_t> targets, double scale, Buffer& dhidden) {
    const std::int64_t rows = std::ssize(targets), h = p_.m.hidden_size;
    Buffer hidden(rows, h), embedded(rows, h), both(rows, 2 * h);
    add(all_hidden.view().row_range(0, rows), hidden.view());
    embed(embedding_.matrix(embed_tokens), 0, next, embedded.view());
    add(p_.norm(mtp_embed_norm, embedded).view(), both.view().columns(0, h));
    add(p_.norm(mtp_hidden_norm, hidden).view(), both.view().columns(h, h));
    const Buffer out = layer_.forward(p_.linear(mtp_proj, both.view()));
    const Buffer normed = p_.norm(mtp_final_norm, out);
    const Prediction prediction = predict(head_, lm_head, normed, targets, scale);

    const Buffer dout = p_.norm_backward(mtp_final_norm, out, prediction.dhidden);
    const Buffer dboth = p_.linear_backward(mtp_proj, both.view(), layer_.backward(dout).view());
    Buffer dembedded(rows, h), dnormed(rows, h);
    add(dboth.view().columns(0, h), dembedded.view());
    add(dboth.view().columns(h, h), dnormed.view());
    const Buffer dnext = p_.norm_backward(mtp_embed_norm, embedded, dembedded);
    embed_backward(dnext.view(), 0, next, {embedding_.gradient(embed_tokens), p_.m.vocab_size, h});
    add(p_.norm_backward(mtp_hidden_norm, hidden, dnormed).view(),
        dhidden.view().row_range(0, rows));
    return prediction.loss;
  }

 private:
  static Part with_part(Part model) {
    model.part = ModelPart::mtp;
    return model;
  }
  Part p_, embedding_, head_;
  DecoderLayer layer_;
};

// Sums over one sequence.
struct Losses {
  double main = 0, mtp = 0;
};

// Gradients are added: of `scale` times the one sum, and `mtp_scale` times the other.
Losses run_sequence(Part part, std::span<const std::int32_t> ids, double scale, double mtp_scale) {
  const ModelSpec& m = part.m;
  const std::size_t n = ids.size() - 1;
  const auto inputs = ids.first(n), targets = ids.last(n);
  Part embedding = part, head = part;
  embedding.part = ModelPart::embedding;
  head.part = ModelPart::head;

  Buffer x(std::ssize(inputs), m.hidden_size);
  embed(embedding.matrix(embed_tokens), 0, inputs, x.view());
  std::vector<std::int32_t> positions(inputs.size());
  std::iota(positions.begin(), positions.end(), 0);
  if (m.position == PositionEmbedding::learned) {
    Buffer learned(x.rows, m.hidden_size);
    embed(embedding.matrix(embed_positions), 0, positions, learned.view());
    add_to(x, learned);
  }
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  for (std::int64_t i = 0; i < m.num_layers; ++i) {
    part.layer = i;
    layers.push_back(std::make_unique<DecoderLayer>(part, m.layers[at(i)]));
    x = layers.back()->forward(x);
  }
  const Buffer normed = head.norm(final_norm, x);
  const bool tied = m.tie_word_embeddings;
  Losses losses;
  Prediction prediction =
      predict(tied ? embedding : head, tied ? embed_tokens : lm_head, normed, targets, scale);
  losses.main = prediction.loss;
  if (m.num_mtp_layers > 0) {
    part.layer = 0;
    losses.mtp =
        NextPrediction(part, embedding, head)
            .run(normed, targets.first(n - 1), targets.last(n - 1), mtp_scale, prediction.dhidden);
  }
  Buffer dx = head.norm_backward(final_norm, x, prediction.dhidden);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    dx = (*layer)->backward(dx);
  }
  embed_backward(dx.view(), 0, inputs,
                 {embedding.gradient(embed_tokens), m.vocab_size, m.hidden_size});
  if (m.position == PositionEmbedding::learned) {
    embed_backward(dx.view(), 0, positions,
                   {embedding.gradient(embed_positions), m.max_position_embeddings, m.hidden_size});
  }
  return losses;
}

}  // namespace

PlainModel::PlainModel(const ModelSpec& model, const WeightSource& weights, double capacity_factor)
    : model_(model), parameters_(model_parameters(model)), capacity_factor_(capacity_factor) {
  for (const ModelParameter& it : parameters_) {
    Buffer values(it.parameter.rows, it.parameter.cols);
    weights(it, 0, 0, values.view());
    weights_.push_back(std::move(values.data));
  }
}

double PlainModel::step(std::span<const std::int32_t> ids, std::int64_t seq_len) {
  gradients_.clear();
  for (const auto& w : weights_) gradients_.emplace_back(w.size());
  const std::int64_t sequences = std::ssize(ids) / (seq_len + 1);
  const auto tokens = static_cast<double>(sequences * seq_len);
  const auto mtp_tokens = static_cast<double>(sequences * (seq_len - 1));
  double loss = 0;
  mtp_loss_ = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const Losses one = run_sequence({model_, parameters_, weights_, gradients_, capacity_factor_},
                                    ids.subspan(at(i * (seq_len + 1)), at(seq_len + 1)), 1 / tokens,
                                    model_.mtp_loss_weight / mtp_tokens);
    loss += one.main / tokens;
    mtp_loss_ += one.mtp / mtp_tokens;
  }
  return loss;
}

}  // namespace qplan
