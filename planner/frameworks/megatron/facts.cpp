// The model as Megatron's flags, and the defaults that nobody wants: frameworks that were made for
// GPT-2 still assume it. Defaults are the parser's (options/megatron.tsv).

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/megatron/expert_facts.h"
#include "planner/frameworks/megatron/layer_facts.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/shared.h"

namespace qplan {
namespace {

using namespace megatron;
using enum Severity;

const MlaSpec kNoMla{};

const MlaSpec& mla(const Subject& s) {
  return s.model.mla ? *s.model.mla : kNoMla;
}
bool has_mla(const Subject& s) {
  return s.model.mla.has_value();
}
bool has_mamba(const Subject& s) {
  return s.model.mamba.has_value();
}
template <std::int64_t MambaSpec::*Size>
Json mamba_size(const Subject& s) {
  return has_mamba(s) ? Json((*s.model.mamba).*Size) : Json(nullptr);
}
bool has_delta_net(const Subject& s) {
  return s.model.delta_net.has_value();
}
template <std::int64_t DeltaNetSpec::*Size>
Json delta_net_size(const Subject& s) {
  return has_delta_net(s) ? Json((*s.model.delta_net).*Size) : Json(nullptr);
}
bool grouped_queries(const Subject& s) {
  return !has_mla(s) && s.model.num_key_value_heads != s.model.num_attention_heads;
}

// A number of the config's rope_scaling, which no shape depends on.
Json rope_number(const Subject& s, std::string_view key) {
  for (const std::string_view section : {"rope_scaling", "rope_parameters"}) {
    const auto rope = s.config.find(std::string(section));
    if (rope == s.config.end() || !rope->is_object()) continue;
    const auto found = rope->find(std::string(key));
    if (found != rope->end() && found->is_number()) return *found;
  }
  return nullptr;
}

// gpt-oss's experts: SwiGLU by a sigmoid of 1.702 x, its linear half shifted by 1, both clamped.
bool clamps_gates(const Subject& s) {
  return s.model.architecture == "gpt_oss";
}

Json gate_clamp(const Subject& s) {
  if (!clamps_gates(s)) return nullptr;
  const auto limit = s.config.find("swiglu_limit");
  return limit != s.config.end() && limit->is_number() ? *limit : Json(7.0);
}

// A number of YaRN's that a flag of its own says.
template <double RopeScaling::*Number>
Json yarn_number(const Subject& s) {
  return rotates_by_yarn(s.model) ? Json((*s.model.rope_scaling).*Number) : Json(nullptr);
}

bool by_yarn(const Subject& s) {
  return rotates_by_yarn(s.model);
}

// Megatron rounds a vocabulary up; published ones are rounded already, and tokenizers have fewer.
bool same_vocabulary(const Json& given, const Json& wanted) {
  const std::int64_t x = whole_of(given, 1), y = whole_of(wanted, 1);
  const auto rounded = [](std::int64_t n) { return (n + 127) / 128; };
  return rounded(x) == rounded(y) || (x < y && 100 * x >= 99 * y);
}

constexpr auto kFacts = std::to_array<Fact>({
    // Shapes.
    kLayers,
    kHidden,
    {.key = "--ffn-hidden-size",
     .write = [](const Subject& s) { return Json(s.model.intermediate_size); },
     .otherwise = "",
     .why = kOtherShapes,
     .computed = default_mlp_width,
     // Where every layer has experts it shapes nothing.
     .judged =
         [](const Subject& s) {
           return std::any_of(s.model.layers.begin(), s.model.layers.end(),
                              [](const LayerKind& layer) { return layer.dense_mlp(); });
         }},
    kHeads,
    {.key = "--kv-channels",
     .write =
         [](const Subject& s) { return Json(has_mla(s) ? mla(s).v_head_dim : s.model.head_dim); },
     .otherwise = "",
     .why = "Megatron divides hidden by heads, and heads get another width",
     .computed = default_head_width,
     .judged = [](const Subject& s) { return !has_mla(s); }},
    {.key = "--group-query-attention",
     .write = [](const Subject& s) { return if_true(grouped_queries(s)); },
     .otherwise = "false",
     .why =
         "without it --num-query-groups is ignored and every head gets keys and values of its own"},
    {.key = "--num-query-groups",
     .write =
         [](const Subject& s) { return if_true(grouped_queries(s), s.model.num_key_value_heads); },
     .otherwise = "1",
     .why = kOtherShapes,
     .judged = grouped_queries},
    {.key = "--qk-layernorm",
     .write = [](const Subject& s) { return if_true(s.model.qk_norm || has_mla(s)); },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--qk-l2-norm",
     .write = [](const Subject& s) { return if_true(s.model.qk_l2_norm); },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--vocab-size",
     .write = [](const Subject& s) { return Json(s.model.vocab_size); },
     .otherwise = "",
     .why = "embeddings get another size; without it the tokenizer decides",
     .computed = [](const Subject& s) { return Json(s.model.vocab_size); },
     .same = same_vocabulary},
    {.key = "--make-vocab-size-divisible-by",
     .write = [](const Subject&) { return Json(128); },
     .otherwise = "128",
     .judged = never},
    kPositions,
    kUntied,

    // Layers.
    {.key = "--position-embedding-type",
     .write = position_word,
     .otherwise = "learned_absolute",
     .why = kOtherModel,
     .computed = nullptr,
     .same =
         [](const Json& given, const Json& wanted) {
           // YaRN is rotation too, rescaled.
           return same_value(given, wanted) ||
                  (text_of(given) == "yarn" && text_of(wanted) == "rope");
         }},
    {.key = "--yarn-original-max-position-embeddings",
     .write =
         [](const Subject& s) {
           const double positions = by_yarn(s) ? s.model.rope_scaling->original_positions : 0;
           return if_true(positions > 0, static_cast<std::int64_t>(positions));
         },
     .otherwise = "",
     .severity = warning,
     .why = "long positions turn at another rate",
     .computed = [](const Subject& s) { return by_yarn(s) ? Json(4096) : Json(nullptr); },
     .judged = by_yarn},
    {.key = "--yarn-beta-fast",
     .write = yarn_number<&RopeScaling::beta_fast>,
     .otherwise = "",
     .severity = warning,
     .why = "long positions turn at another rate",
     .computed = [](const Subject& s) { return by_yarn(s) ? Json(32) : Json(nullptr); },
     .judged = by_yarn},
    {.key = "--yarn-beta-slow",
     .write = yarn_number<&RopeScaling::beta_slow>,
     .otherwise = "",
     .severity = warning,
     .why = "long positions turn at another rate",
     .computed = [](const Subject& s) { return by_yarn(s) ? Json(1) : Json(nullptr); },
     .judged = by_yarn},
    {.key = "--no-yarn-correction-range-round-to-int",
     .write =
         [](const Subject& s) { return if_true(by_yarn(s) && !s.model.rope_scaling->truncate); },
     .otherwise = "false",
     .severity = warning,
     .why = "long positions turn at another rate"},
    {.key = "--window-size",
     .write = window_size,
     .otherwise = "",
     .why = "every layer attends to the whole sequence",
     .same = same_window},
    {.key = "--window-attn-skip-freq",
     .write = window_frequency,
     .otherwise = "",
     .why = "other layers attend to the whole sequence",
     .same = same_mixers,
     .judged = [](const Subject& s) { return !window_frequency(s).is_null(); }},
    {.key = "--softmax-type",
     .write = [](const Subject& s) { return if_true(s.model.attention_sinks, "learnable"); },
     .otherwise = "vanilla",
     .why = kOtherModel},
    {.key = "--rotary-base",
     .write = rope_theta,
     .otherwise = "10000",
     .why = kOtherRotation,
     .judged = modern},
    {.key = "--rotary-percent",
     .write = [](const Subject& s) { return if_true(modern(s), s.model.rotary_fraction); },
     .otherwise = "1.0",
     .why = kOtherModel,
     .judged = modern},
    {.key = "--rotary-interleaved",
     .write = [](const Subject& s) { return if_true(s.model.rotary_interleaved); },
     .otherwise = "false",
     .severity = warning,
     .why = "other numbers of a head turn together"},
    {.key = "--no-rope-freq",
     .write = rope_frequency,
     .otherwise = "",
     .why = "other layers rotate",
     .same = same_rotation},
    {.key = "--use-rope-scaling",
     .write =
         [](const Subject& s) {
           return if_true(s.model.rope_scaling && !has_mla(s) && !by_yarn(s));
         },
     .otherwise = "false",
     .severity = warning,
     .why = "long positions turn at another rate"},
    {.key = "--rope-scaling-factor",
     .write =
         [](const Subject& s) {
           const bool llama = s.model.rope_scaling && !has_mla(s) && !by_yarn(s);
           return llama ? rope_number(s, "factor") : Json(nullptr);
         },
     .otherwise = "8.0",
     .severity = warning,
     .why = "long positions turn at another rate"},
    {.key = "--normalization",
     .write =
         [](const Subject& s) {
           return Json(s.model.norm == Norm::rms_norm ? "RMSNorm" : "LayerNorm");
         },
     .otherwise = "LayerNorm",
     .why = kOtherModel},
    {.key = "--norm-epsilon",
     .write = [](const Subject& s) { return Json(s.model.norm_epsilon); },
     .otherwise = "1e-05",
     .severity = warning,
     .why = "norms round otherwise"},
    {.key = "--swiglu",
     .write =
         [](const Subject& s) {
           return if_true(s.model.mlp == MlpKind::swiglu && !clamps_gates(s));
         },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--quick-geglu",
     .write = [](const Subject& s) { return if_true(clamps_gates(s)); },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--glu-linear-offset",
     .write = [](const Subject& s) { return if_true(clamps_gates(s), 1.0); },
     .otherwise = "0.0",
     .why = kOtherModel},
    {.key = "--activation-func-clamp-value",
     .write = gate_clamp,
     .otherwise = "",
     .severity = warning,
     .why = "what experts multiply is bounded otherwise"},
    kSquaredRelu,
    {.key = "--disable-bias-linear",
     .write = without_linear_bias,
     .otherwise = "false",
     .why = "linear layers get biases that the model has not, which etp above 1 refuses"},
    {.key = "--add-qkv-bias",
     .write =
         [](const Subject& s) {
           return if_true(s.model.qkv_bias && !s.model.attention_output_bias);
         },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--apply-layernorm-1p",
     .write =
         [](const Subject& s) {
           return if_true(s.model.architecture == "nemotron" || s.model.zero_centered_norms);
         },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--attention-dropout",
     .write = [](const Subject&) { return Json("0.0"); },
     .otherwise = "0.1",
     .severity = warning,
     .why = "attention is dropped at random, and the masks take memory",
     .judged = modern},
    {.key = "--hidden-dropout",
     .write = [](const Subject&) { return Json("0.0"); },
     .otherwise = "0.1",
     .severity = warning,
     .why = "activations are dropped at random, and the masks take memory",
     .judged = modern},

    // Gated DeltaNet. The older name of it serves releases since 0.16 as well as today's.
    {.key = "--experimental-attention-variant",
     .write = [](const Subject& s) { return if_true(has_delta_net(s), "gated_delta_net"); },
     .otherwise = "",
     .why = "every layer attends",
     .same =
         [](const Json& given, const Json& wanted) {
           return same_value(given, wanted) ||
                  (text_of(given) == "gdn" && text_of(wanted) == "gated_delta_net");
         }},
    {.key = "--linear-attention-freq",
     .write = delta_net_frequency,
     .otherwise = "",
     .why = "other layers attend",
     .same = same_mixers,
     .judged = has_delta_net},
    {.key = "--linear-conv-kernel-dim",
     .write = delta_net_size<&DeltaNetSpec::conv_kernel>,
     .otherwise = "4",
     .why = kOtherShapes,
     .judged = has_delta_net},
    {.key = "--linear-key-head-dim",
     .write = delta_net_size<&DeltaNetSpec::key_head_dim>,
     .otherwise = "128",
     .why = kOtherShapes,
     .judged = has_delta_net},
    {.key = "--linear-value-head-dim",
     .write = delta_net_size<&DeltaNetSpec::value_head_dim>,
     .otherwise = "128",
     .why = kOtherShapes,
     .judged = has_delta_net},
    {.key = "--linear-num-key-heads",
     .write = delta_net_size<&DeltaNetSpec::num_key_heads>,
     .otherwise = "16",
     .why = kOtherShapes,
     .judged = has_delta_net},
    {.key = "--linear-num-value-heads",
     .write = delta_net_size<&DeltaNetSpec::num_value_heads>,
     .otherwise = "32",
     .why = kOtherShapes,
     .judged = has_delta_net},
    {.key = "--attention-output-gate",
     .write = [](const Subject& s) { return if_true(s.model.attention_output_gate); },
     .otherwise = "false",
     .why = kOtherModel},

    // Mamba-2: what layers are is told one by one.
    {.key = "--hybrid-layer-pattern",
     .write = hybrid_pattern,
     .otherwise = "",
     .why = "layers are of other kinds",
     .same = same_pattern},
    {.key = "--spec",
     .write =
         [](const Subject& s) {
           return if_true(has_mamba(s),
                          Json::array({"megatron.core.models.hybrid.hybrid_layer_specs",
                                       "hybrid_stack_spec"}));
         },
     .otherwise = "",
     .judged = never},
    {.key = "--mamba-num-heads",
     .write = mamba_size<&MambaSpec::num_heads>,
     .otherwise = "",
     .why = "the scan is twice as wide as the model",
     .judged = has_mamba},
    {.key = "--mamba-head-dim",
     .write = mamba_size<&MambaSpec::head_dim>,
     .otherwise = "64",
     .why = kOtherShapes,
     .judged = has_mamba},
    {.key = "--mamba-num-groups",
     .write = mamba_size<&MambaSpec::num_groups>,
     .otherwise = "8",
     .why = kOtherShapes,
     .judged = has_mamba},
    {.key = "--mamba-state-dim",
     .write = mamba_size<&MambaSpec::state_size>,
     .otherwise = "128",
     .why = kOtherShapes,
     .judged = has_mamba},

    // Latent attention.
    {.key = "--multi-latent-attention",
     .write = [](const Subject& s) { return if_true(has_mla(s)); },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--q-lora-rank",
     .write = [](const Subject& s) { return if_true(mla(s).q_lora_rank > 0, mla(s).q_lora_rank); },
     .otherwise = "",
     .why = kOtherShapes},
    {.key = "--kv-lora-rank",
     .write = [](const Subject& s) { return if_true(has_mla(s), mla(s).kv_lora_rank); },
     .otherwise = "32",
     .why = kOtherShapes,
     .judged = has_mla},
    {.key = "--qk-head-dim",
     .write = [](const Subject& s) { return if_true(has_mla(s), mla(s).qk_nope_head_dim); },
     .otherwise = "128",
     .why = kOtherShapes,
     .judged = has_mla},
    {.key = "--qk-pos-emb-head-dim",
     .write = [](const Subject& s) { return if_true(has_mla(s), mla(s).qk_rope_head_dim); },
     .otherwise = "64",
     .why = kOtherShapes,
     .judged = has_mla},
    {.key = "--v-head-dim",
     .write = [](const Subject& s) { return if_true(has_mla(s), mla(s).v_head_dim); },
     .otherwise = "128",
     .why = kOtherShapes,
     .judged = has_mla},
    {.key = "--rotary-scaling-factor",
     .write =
         [](const Subject& s) {
           if (by_yarn(s)) return Json(s.model.rope_scaling->factor);
           if (!has_mla(s)) return Json(nullptr);
           const Json factor = rope_number(s, "factor");
           return factor.is_null() ? Json(1) : factor;
         },
     .otherwise = "1.0",
     .severity = warning,
     .why = "long positions turn at another rate",
     .judged = [](const Subject& s) { return has_mla(s) || by_yarn(s); }},
    {.key = "--mscale",
     .write =
         [](const Subject& s) { return has_mla(s) ? rope_number(s, "mscale") : Json(nullptr); },
     .otherwise = "1.0",
     .severity = warning,
     .why = "attention is scaled otherwise",
     .judged = has_mla},
    {.key = "--mscale-all-dim",
     .write =
         [](const Subject& s) {
           return has_mla(s) ? rope_number(s, "mscale_all_dim") : Json(nullptr);
         },
     .otherwise = "0.0",
     .severity = warning,
     .why = "attention is scaled otherwise",
     // Without rescaling its value multiplies a logarithm of one.
     .judged = [](const Subject& s) { return has_mla(s) && s.model.rope_scaling; }},
    {.key = "--mtp-num-layers",
     .write =
         [](const Subject& s) {
           return if_true(s.model.num_mtp_layers > 0, s.model.num_mtp_layers);
         },
     .otherwise = "",
     .severity = note,
     .why = "the layers that predict further tokens are left out"},
});

}  // namespace

std::span<const Fact> megatron_facts() {
  static const std::vector<Fact> all = [] {
    std::vector<Fact> facts(kFacts.begin(), kFacts.end());
    const auto experts = expert_facts();
    facts.insert(facts.end(), experts.begin(), experts.end());
    return facts;
  }();
  return all;
}

}  // namespace qplan
