#include "tests/executor/plain/attention.h"

#include <cmath>
#include <numeric>

namespace qplan::plain {

AttentionLayer::AttentionLayer(Part part, const LayerKind& kind) : p_(part), m_(part.m) {
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

Buffer AttentionLayer::forward(const Buffer& x) {
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

Buffer AttentionLayer::backward(const Buffer& dy) {
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

void AttentionLayer::project() {
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

Buffer AttentionLayer::project_backward(Buffer& dq, Buffer& dk, Buffer& dv) {
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

RopeShape AttentionLayer::plain_rope(std::int64_t heads) const {
  return {.heads = heads, .head_dim = m_.head_dim, .magnitude = rope_magnitude(m_.rope_scaling)};
}

RopeShape AttentionLayer::latent_rope(std::int64_t heads) const {
  return {heads, m_.head_dim, m_.mla->qk_nope_head_dim, RopePairs::neighbours,
          rope_magnitude(m_.rope_scaling)};
}

void AttentionLayer::project_latent() {
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

Buffer AttentionLayer::latent_backward(Buffer& dq, Buffer& dk, Buffer& dv) {
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

}  // namespace qplan::plain
