// FLOPs of each kind of work.

#include "models/program/work.h"

#include <algorithm>

#include "models/overloaded.h"

namespace qplan {
namespace {

// Two products of every scored pair: q.k over head_dim, p.v over v_head_dim.
double attention_forward_flops(const Attention& a, double pairs) {
  const std::int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  return 2 * as_double(a.batch) * as_double(a.heads) * as_double(a.head_dim + v_dim) * pairs;
}

Flops attention_flops(const Attention& a, double backward_factor) {
  const double forward = attention_forward_flops(a, score_pairs(a));
  return Flops(a.pass == Pass::forward ? forward : backward_factor * forward);
}

// Written-out scores compute the full square, masked afterwards; backward keeps the probabilities.
Flops executed_attention_flops(const Attention& a) {
  if (a.kernel != AttentionKernel::unfused) return attention_flops(a, 2.5);
  const double forward = attention_forward_flops(a, as_double(a.q_len) * as_double(a.kv_len));
  return Flops(a.pass == Pass::forward ? forward : 2 * forward);
}

Flops gemm_flops(const Gemm& g) {
  return Flops(2 * as_double(g.m) * as_double(g.n) * as_double(g.k) * as_double(g.batch));
}

Flops grouped_flops(const GroupedGemm& g) {
  return Flops(2 * as_double(g.rows) * as_double(g.n) * as_double(g.k));
}

// K K^T, V K^T, S (a (I - b K K^T)) and S Q of each token, whose sizes Megatron takes as V's.
Flops delta_rule_model_flops(const GatedDeltaRule& w) {
  const double forward = 2.0 * 4 * as_double(w.batch) * as_double(w.seq_len) *
                         as_double(w.value_heads) * as_double(w.value_dim) * as_double(w.value_dim);
  return Flops(w.pass == Pass::forward ? forward : 2 * forward);
}

// Megatron's estimate of the scan: 7 FLOPs of each number of the state and token, times three with
// backward.
Flops scan_model_flops(const StateSpaceScan& w) {
  const double forward = 7.0 * as_double(w.batch) * as_double(w.seq_len) * as_double(w.heads) *
                         as_double(w.head_dim) * as_double(w.state_size);
  return Flops(w.pass == Pass::forward ? forward : 2 * forward);
}

Flops newton_schulz_flops(const Muon& w) {
  Flops sum;
  for (const Gemm& product : newton_schulz_products(w)) sum += gemm_flops(product);
  return sum * (kNewtonSchulzSteps * w.matrices);
}

}  // namespace

double score_pairs(const Attention& a) {
  const double q = as_double(a.q_len);
  const double kv = as_double(a.kv_len);
  const double window = a.window > 0 ? as_double(a.window) : kv;
  if (!a.causal) return q * std::min(kv, window);
  // The query at position p sees min(p, window) keys; positions run from kv - q to kv.
  const double begin = std::max(0.0, kv - q);
  const double bend = std::clamp(window, begin, kv);
  return (bend * bend - begin * begin) / 2 + (kv - bend) * window;
}

Bytes key_value_bytes(const Attention& a, double element) {
  const std::int64_t seen = a.window > 0 ? std::min(a.kv_len, a.window + a.q_len - 1) : a.kv_len;
  const std::int64_t v_dim = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  const std::int64_t width = a.head_dim + (a.latent ? 0 : v_dim);
  return Bytes(element * as_double(a.batch) * as_double(a.kv_heads) * as_double(seen) *
               as_double(width));
}

Flops flops(const Work& work) {
  return std::visit(
      Overloaded{[](const Gemm& w) { return gemm_flops(w); },
                 [](const GroupedGemm& w) { return grouped_flops(w); },
                 [](const Attention& w) { return executed_attention_flops(w); },
                 [](const Rowwise&) { return Flops(); }, [](const Collective&) { return Flops(); },
                 [](const SendRecv&) { return Flops(); }, [](const Update&) { return Flops(); },
                 [](const HostCopy&) { return Flops(); }, [](const HostAdam&) { return Flops(); },
                 [](const Join&) { return Flops(); },
                 [](const GatedDeltaRule& w) {
                   const DeltaRuleParts parts = parts_of(w);
                   return parts.within_flops + parts.between_flops;
                 },
                 [](const StateSpaceScan& w) { return parts_of(w).flops; },
                 [](const Muon& w) { return newton_schulz_flops(w); }},
      work);
}

Flops model_flops(const Work& work) {
  if (const auto* attention = std::get_if<Attention>(&work)) {
    return attention_flops(*attention, 2);
  }
  if (const auto* rule = std::get_if<GatedDeltaRule>(&work)) return delta_rule_model_flops(*rule);
  if (const auto* scan = std::get_if<StateSpaceScan>(&work)) return scan_model_flops(*scan);
  if (std::holds_alternative<Muon>(work)) return Flops();  // an optimizer's are not the model's
  return flops(work);
}

bool fused_softmax(const Attention& a) {
  return (a.batch * a.heads) % 4 == 0 && a.q_len % 4 == 0 && a.kv_len % 4 == 0;
}

}  // namespace qplan
