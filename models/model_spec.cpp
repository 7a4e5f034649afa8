#include "models/model_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "models/parameters.h"
#include "models/portable_math.h"

namespace qplan {
namespace {

std::int64_t elements(const std::vector<Parameter>& parameters) {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.elements() * p.copies;
  return sum;
}

std::int64_t elements(const ModelSpec& model, ModelPart part, const LayerKind& kind = {}) {
  return elements(parameters_of(model, part, kind));
}

// Expert parameters of one layer that a token does not use.
std::int64_t inactive(const ModelSpec& model, const std::vector<Parameter>& layer) {
  std::int64_t sum = 0;
  for (const Parameter& p : layer) {
    if (is_expert(p.role)) sum += p.elements() * (p.copies - model.moe->top_k);
  }
  return sum;
}

// (query, key) pairs that causal attention scores in a sequence.
double scored_pairs(const ModelSpec& model, const LayerKind& kind, double tokens) {
  if (kind.chunk > 0 && static_cast<double>(kind.chunk) < tokens) {
    const auto chunk = static_cast<double>(kind.chunk);
    const double whole = std::floor(tokens / chunk), rest = tokens - whole * chunk;
    return (whole * chunk * chunk + rest * rest) / 2;
  }
  const std::int64_t seen = model.indexer ? model.indexer->top_k : kind.window;
  const double window = seen > 0 ? std::min(static_cast<double>(seen), tokens) : tokens;
  return window * (tokens - window / 2);
}

}  // namespace

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * portable::log(factor) + 1;
}

double rope_magnitude(const std::optional<RopeScaling>& scaling) {
  if (!scaling || scaling->kind != RopeScalingKind::yarn) return 1;
  if (scaling->attention_factor > 0) return scaling->attention_factor;
  if (scaling->mscale > 0 && scaling->mscale_all_dim > 0) {
    return yarn_magnitude(scaling->factor, scaling->mscale) /
           yarn_magnitude(scaling->factor, scaling->mscale_all_dim);
  }
  return yarn_magnitude(scaling->factor, 1);
}

std::int64_t layer_parameters(const ModelSpec& model, const LayerKind& kind) {
  return elements(model, ModelPart::decoder, kind);
}

ModelSpec tower_spec(const VisionSpec& v) {
  ModelSpec t;
  t.hidden_size = v.hidden_size;
  t.intermediate_size = v.intermediate_size;
  t.num_attention_heads = t.num_key_value_heads = v.num_heads;
  t.head_dim = v.hidden_size / v.num_heads;
  t.mlp = v.gated ? MlpKind::swiglu : MlpKind::gelu;
  t.norm = v.gated ? Norm::rms_norm : Norm::layer_norm;
  t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
  t.causal = false;
  return t;
}

ParameterCount count_parameters(const ModelSpec& model) {
  ParameterCount count;
  count.embedding = elements(model, ModelPart::embedding);
  for (const Parameter& p : parameters_of(model, ModelPart::head)) {
    (p.role == ParameterRole::lm_head ? count.head : count.layers) += p.elements();
  }
  for (const LayerKind& kind : model.layers) {
    const std::vector<Parameter> layer = parameters_of(model, ModelPart::decoder, kind);
    count.layers += elements(layer);
    if (kind.moe) count.inactive_experts += inactive(model, layer);
  }
  if (model.num_mtp_layers > 0) {
    count.mtp = model.num_mtp_layers * elements(model, ModelPart::mtp);
  }
  if (model.vision) {
    count.vision = elements(model, ModelPart::patchify) + elements(model, ModelPart::merger) +
                   model.vision->depth * elements(model, ModelPart::vision);
  }
  return count;
}

double products_beside_attention(const ModelSpec& model, std::int64_t seq_len) {
  const double heads = static_cast<double>(model.num_attention_heads);
  const std::int64_t dims =
      model.mla ? model.mla->qk_nope_head_dim + model.mla->qk_rope_head_dim + model.mla->v_head_dim
                : 2 * model.head_dim;
  const double tokens = static_cast<double>(seq_len);
  double products = 0, attention = 0;
  std::vector<std::pair<const LayerKind*, std::int64_t>> active;  // parameters of each kind
  const auto active_of = [&](const LayerKind& kind) {
    for (const auto& [known, count] : active) {
      if (*known == kind) return count;
    }
    const std::vector<Parameter> layer = parameters_of(model, ModelPart::decoder, kind);
    active.emplace_back(&kind, elements(layer) - (kind.moe ? inactive(model, layer) : 0));
    return active.back().second;
  };
  for (std::size_t i = 0; i < model.layers.size();) {
    const LayerKind& kind = model.layers[i];
    std::size_t end = i + 1;  // layers of a kind that follow one another are counted at once
    while (end < model.layers.size() && model.layers[end] == kind) ++end;
    const auto alike = static_cast<double>(end - i);
    i = end;
    products += alike * 2 * static_cast<double>(active_of(kind)) * tokens;
    if (kind.mixer != Mixer::attention) continue;
    attention += alike * 2 * static_cast<double>(dims) * heads * scored_pairs(model, kind, tokens);
  }
  return attention > 0 ? products / attention : 0;
}

}  // namespace qplan
