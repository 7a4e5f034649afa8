#include "planner/frameworks/megatron/expert_facts.h"

#include "planner/frameworks/megatron/layer_facts.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/shared.h"

namespace qplan::megatron {
namespace {

using enum Severity;

const MoeSpec kNoExperts{};

const MoeSpec& moe(const Subject& s) {
  return s.model.moe ? *s.model.moe : kNoExperts;
}
bool has_experts(const Subject& s) {
  return s.model.moe.has_value();
}

// The first value: "--moe-aux-loss-coeff 0.001".
Json aux_loss(const Subject& s) {
  return if_true(has_experts(s) && moe(s).aux_loss_coefficient > 0, moe(s).aux_loss_coefficient);
}

constexpr auto kExpertFacts = std::to_array<Fact>({
    {.key = "--num-experts",
     .write = [](const Subject& s) { return if_true(has_experts(s), moe(s).num_experts); },
     .otherwise = "",
     .why = kOtherShapes},
    {.key = "--moe-router-topk",
     .write = [](const Subject& s) { return if_true(has_experts(s), moe(s).top_k); },
     .otherwise = "2",
     .why = "a token visits another number of experts",
     .judged = has_experts},
    {.key = "--moe-ffn-hidden-size",
     .write =
         [](const Subject& s) { return if_true(has_experts(s), moe(s).moe_intermediate_size); },
     .otherwise = "",
     .why = "experts get the width of --ffn-hidden-size",
     .computed = [](const Subject& s) { return Json(s.model.intermediate_size); },
     .judged = has_experts},
    {.key = "--moe-layer-freq",
     .write = layer_frequency,
     .otherwise = "1",
     .why = "other layers get experts",
     .same = same_layers,
     .judged = has_experts},
    {.key = "--moe-shared-expert-intermediate-size",
     .write =
         [](const Subject& s) {
           const std::int64_t width = moe(s).shared_expert_intermediate_size;
           return if_true(width > 0, width);
         },
     .otherwise = "",
     .why = kOtherShapes},
    {.key = "--moe-shared-expert-gate",
     .write = [](const Subject& s) { return if_true(moe(s).shared_expert_gate); },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--moe-latent-size",
     .write = [](const Subject& s) { return if_true(moe(s).latent_size > 0, moe(s).latent_size); },
     .otherwise = "",
     .why = "experts work in the width of the model"},
    {.key = "--use-fused-weighted-squared-relu",
     .write =
         [](const Subject& s) { return if_true(has_experts(s) && s.model.mlp == MlpKind::relu2); },
     .otherwise = "false",
     .severity = warning,
     .why = "an expert's activation and its weight are kernels of their own"},
    {.key = "--moe-router-score-function",
     .write =
         [](const Subject& s) {
           return if_true(has_experts(s), moe(s).sigmoid_scores ? "sigmoid" : "softmax");
         },
     .otherwise = "softmax",
     .why = kOtherModel,
     .judged = has_experts},
    {.key = "--moe-router-pre-softmax",
     .write =
         [](const Subject& s) {
           // Scores are taken over all experts, then chosen: unless the chosen ones are made to sum
           // to 1.
           return if_true(has_experts(s) && (!moe(s).norm_topk_prob || moe(s).sigmoid_scores));
         },
     .otherwise = "false",
     .severity = warning,
     .why = "experts are weighted otherwise",
     // With sigmoid scores it makes no difference.
     .judged = [](const Subject& s) { return has_experts(s) && !moe(s).sigmoid_scores; }},
    {.key = "--moe-router-enable-expert-bias",
     .write = [](const Subject& s) { return if_true(moe(s).router_bias && moe(s).sigmoid_scores); },
     .otherwise = "false",
     .severity = warning,
     .why = "experts are chosen otherwise"},
    {.key = "--moe-router-num-groups",
     .write = [](const Subject& s) { return if_true(moe(s).num_groups > 1, moe(s).num_groups); },
     .otherwise = "1",
     .severity = warning,
     .why = "experts are chosen otherwise"},
    {.key = "--moe-router-group-topk",
     .write = [](const Subject& s) { return if_true(moe(s).num_groups > 1, moe(s).topk_group); },
     .otherwise = "1",
     .severity = warning,
     .why = "experts are chosen otherwise"},
    {.key = "--moe-router-topk-scaling-factor",
     .write =
         [](const Subject& s) {
           return if_true(moe(s).routed_scaling_factor != 1, moe(s).routed_scaling_factor);
         },
     .otherwise = "1",
     .severity = warning,
     .why = "experts are weighted otherwise"},
    {.key = "--moe-apply-probs-on-input",
     .write = [](const Subject& s) { return if_true(moe(s).scales_inputs); },
     .otherwise = "false",
     .why = "what experts make is weighted, not what they read"},
    {.key = "--moe-router-dtype",
     .write = [](const Subject& s) { return if_true(has_experts(s), "fp32"); },
     .otherwise = "",
     .judged = never},
    {.key = "--moe-router-load-balancing-type",
     .write =
         [](const Subject& s) {
           return if_true(has_experts(s), moe(s).sigmoid_scores ? "seq_aux_loss" : "aux_loss");
         },
     .otherwise = "aux_loss",
     .judged = never},
    {.key = "--moe-aux-loss-coeff",
     .write = aux_loss,
     .otherwise = "0.0",
     .severity = note,
     .why = "nothing keeps the experts' loads even; right only where balance is learned already",
     // Other coefficients are a choice; none at all is a default.
     .same =
         [](const Json& given, const Json& wanted) {
           return number_of(wanted) == 0 || number_of(Json(first_of(given))) != 0;
         }},
    {.key = "--moe-grouped-gemm",
     .write = [](const Subject& s) { return if_true(has_experts(s)); },
     .otherwise = "false",
     .severity = warning,
     .why = "experts are multiplied one after another",
     .judged = has_experts},
});

}  // namespace

std::span<const Fact> expert_facts() {
  return kExpertFacts;
}

}  // namespace qplan::megatron
