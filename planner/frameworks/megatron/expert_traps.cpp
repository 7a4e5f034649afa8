#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/megatron/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = MegatronCase;
using Trap = MegatronTrap;

// Whether tokens are balanced by losses alone, which a capacity needs (transformer_config.py:1847).
bool balances_by_loss(const Case& c) {
  const Setting* const kinds = c.find("--moe-router-load-balancing-type");
  if (kinds == nullptr) return true;  // aux_loss
  const std::vector<std::string> list = list_of(kinds->value);
  return std::all_of(list.begin(), list.end(), [](const std::string& kind) {
    return kind == "none" || kind.ends_with("aux_loss");
  });
}

// Groups of experts that a token is routed to first (transformer_config.py:2678).
bool groups_fit(const Case& c) {
  const Setting* const groups = c.find("--moe-router-num-groups");
  const Setting* const chosen = c.find("--moe-router-group-topk");
  if (groups == nullptr) return chosen == nullptr || c.may_be_said("--moe-router-num-groups");
  const int count = degree_of(groups->value);
  return c.model().moe->num_experts % count == 0 &&
         (chosen == nullptr || degree_of(chosen->value) <= count);
}

constexpr auto kExpertTraps = std::to_array<Trap>({
    {"dispatcher_default", warning, "--num-experts",
     [](const Case& c) {
       return c.model().moe && !c.slime() && c.has("--num-experts") &&
              !c.has("--moe-token-dispatcher-type") && c.part.dialect == Dialect::megatron;
     },
     "the default dispatcher gathers every token on every rank",
     "add --moe-token-dispatcher-type alltoall",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:891",
     "--moe-token-dispatcher-type alltoall"},
    {"expert_tensor_default", warning, "--expert-model-parallel-size",
     [](const Case& c) {
       return c.model().moe && c.plan().tp > 1 && c.plan().ep > 1 &&
              !c.has("--expert-tensor-parallel-size");
     },
     "expert tensor parallelism is as wide as tp unless said, so that experts take etp x ep ranks",
     "add --expert-tensor-parallel-size 1",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:586", "--expert-tensor-parallel-size 1"},
    {"capacity_drops_tokens", warning, "--moe-expert-capacity-factor",
     [](const Case& c) { return c.has("--moe-expert-capacity-factor") && c.model().moe; },
     "a capacity drops tokens, and this model is trained without dropping", "leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:917", "", true},
    {"forced_balance", warning, "--moe-router-force-load-balancing",
     [](const Case& c) { return c.has("--moe-router-force-load-balancing"); },
     "tokens go to random experts: for benchmarks only", "leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/moe/README.md", "", true},
    {"flex_backend", error, "--moe-enable-deepep",
     [](const Case& c) {
       return c.has("--moe-enable-deepep") && !c.is("--moe-token-dispatcher-type", "flex");
     },
     "DeepEP is a backend of the flex dispatcher", "--moe-token-dispatcher-type flex",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1745"},
    {"shared_overlap", error, "--moe-shared-expert-overlap",
     [](const Case& c) {
       return c.has("--moe-shared-expert-overlap") &&
              (c.plan().moe_dispatcher == MoeDispatcher::allgather ||
               c.has("--overlap-moe-expert-parallel-comm"));
     },
     "shared experts overlap with alltoall or flex, and not with "
     "--overlap-moe-expert-parallel-comm",
     "leave it out", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1824",
     "", true},
    {"delayed_weights", error, "--delay-wgrad-compute",
     [](const Case& c) {
       return c.has("--delay-wgrad-compute") && !c.has("--overlap-moe-expert-parallel-comm");
     },
     "weight gradients are delayed only behind --overlap-moe-expert-parallel-comm", "leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:3074", "", true},
    {"padding_without_quantization", error, "--moe-router-padding-for-quantization",
     [](const Case& c) {
       return c.has("--moe-router-padding-for-quantization") && !c.has("--fp8-format") &&
              !c.has("--fp4-format");
     },
     "routing is padded for fp8 and fp4 alone", "leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2651", "", true},
    {"mapping_of_experts", error, "--use-tp-pp-dp-mapping",
     [](const Case& c) {
       const ParallelPlan& p = c.plan();
       return c.has("--use-tp-pp-dp-mapping") && c.model().moe && p.pp > 1 &&
              p.etp * p.ep != p.tp * p.cp;
     },
     "with pipelines inside data parallelism experts have as many copies as the rest: etp x ep is "
     "tp x cp",
     "leave it out", "Megatron-LM d98e8a64, megatron/core/parallel_state.py:897", "", true},
    {"router_groups", error, "--moe-router-group-topk",
     [](const Case& c) { return c.model().moe && !groups_fit(c); },
     "tokens choose among --moe-router-num-groups groups, which divide the experts and of which no "
     "more are chosen than there are",
     "give a number of groups that divides the experts",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2678"},
    {"expert_bias_of_scores", error, "--moe-router-enable-expert-bias",
     [](const Case& c) {
       if (!c.has("--moe-router-enable-expert-bias")) return false;
       const Setting* const score = c.find("--moe-router-score-function");
       return score == nullptr ? !c.may_be_said("--moe-router-score-function")
                               : text_of(score->value) == "softmax";
     },
     "experts have a bias only where scores are sigmoid or sqrtsoftplus",
     "add --moe-router-score-function sigmoid, or leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2621"},
    {"weights_of_balancing", error, "--moe-aux-loss-coeff",
     [](const Case& c) {
       const Setting* const kinds = c.find("--moe-router-load-balancing-type");
       const Setting* const weights = c.find("--moe-aux-loss-coeff");
       if (kinds == nullptr || weights == nullptr) return false;
       const std::size_t several = list_of(kinds->value).size();
       return several > 1 && several != list_of(weights->value).size();
     },
     "several ways of balancing have a weight each", "give as many weights as ways",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1829"},
    {"capacity_of_balancing", error, "--moe-expert-capacity-factor",
     [](const Case& c) { return c.has("--moe-expert-capacity-factor") && !balances_by_loss(c); },
     "a capacity goes with tokens balanced by a loss, or not at all", "leave it out",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1847", "", true},
    {"padding_without_capacity", error, "--moe-pad-expert-input-to-capacity",
     [](const Case& c) {
       return c.has("--moe-pad-expert-input-to-capacity") &&
              (!c.may_be_said("--moe-expert-capacity-factor") || c.has("--moe-enable-deepep"));
     },
     "experts' inputs are padded to a capacity, which there is none of, or which DeepEP has not",
     "leave it out", "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1864",
     "", true},
    {"recompute_of_grouped", error, "--recompute-modules",
     [](const Case& c) {
       return c.model().moe && c.has("--recompute-modules") &&
              c.plan().recompute.modules.has(RecomputeModule::moe_act) &&
              !c.may_be_said("--moe-grouped-gemm");
     },
     "moe_act is recomputed only beside grouped products", "add --moe-grouped-gemm",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1959",
     "--moe-grouped-gemm"},
});

}  // namespace

std::span<const Trap> megatron_expert_traps() {
  return kExpertTraps;
}

}  // namespace qplan
