#pragma once
// Experts, beyond the sizes.

#include "planner/rules/rule.h"

namespace qplan::rules {

// Whether the libraries that send experts' rows have kernels for these GPUs; 94 and 95 are AMD's.
constexpr bool has_expert_library(int compute_capability) {
  return compute_capability >= 90 && compute_capability != 94 && compute_capability != 95;
}

inline constexpr auto kExperts = std::to_array<Rule>({
    {"expert_parallel_available", kEarlyMegatron | kFsdpOfModules | set_of(ddp),
     [](const Case& c) { return c.p.ep > 1; },
     [](const Case& c) {
       return not_in(c, "expert parallelism for this model",
                     fmt::format("use ep 1, not {}", c.p.ep));
     },
     "accelerate 16cb6eb8, src/accelerate/parallelism_config.py (no experts); Megatron-DeepSpeed "
     "4efb479d, megatron/arguments.py:608 (experts of other models)"},
    {"expert_tensor_available", kEvery - kCoreAndOwn, [](const Case& c) { return c.p.etp > 1; },
     [](const Case& c) {
       return not_in(c, "expert tensor parallelism", fmt::format("use etp 1, not {}", c.p.etp));
     },
     "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:1159 (--moe-expert-parallel-size alone); "
     "DeepSpeed edaa7221, deepspeed/module_inject/auto_ep_folding.py:214; torchtitan b5bcd76c, "
     "torchtitan/distributed/parallel_dims.py:188; nanotron 2411b022, "
     "src/nanotron/config/parallelism_config.py:38"},
    {"autoep_zero3", set_of(deepspeed),
     [](const Case& c) { return c.p.zero == 3 && c.p.ep > 1 && (c.p.tp > 1 || c.p.cp > 1); },
     [](const Case& c) {
       return fmt::format("DeepSpeed's AutoEP (ep {}) at zero 3 excludes tp and cp above 1",
                          c.p.ep);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:1896"},
    {"experts_within_shards", set_of(fsdp2_compile),
     [](const Case& c) {
       return c.p.fsdp_shard > 0 && std::int64_t{c.p.fsdp_shard} * c.p.tp % c.p.ep != 0;
     },
     [](const Case& c) {
       return fmt::format(
           "torchtitan spreads experts over the ranks that share one copy of the states: ep {} "
           "does not divide fsdp_shard {} x tp {}; shard over more ranks",
           c.p.ep, c.p.fsdp_shard, c.p.tp);
     },
     "torchtitan b5bcd76c, torchtitan/distributed/parallel_dims.py:188"},
    {"dispatcher_without_experts", kEvery,
     [](const Case& c) { return !c.m.moe && is_dispatch_library(c.p.moe_dispatcher); },
     [](const Case& c) {
       return fmt::format("the model has no experts for dispatcher {}",
                          to_word(c.p.moe_dispatcher));
     },
     "arithmetic: without experts no token is sent"},
    {"dispatcher_available", kEvery - kMegatronCore - kDTensors - set_of(dualpipe),
     [](const Case& c) { return is_dispatch_library(c.p.moe_dispatcher); },
     [](const Case& c) {
       return not_in(c, fmt::format("{} dispatcher", to_word(c.p.moe_dispatcher)), "use alltoall");
     },
     "Megatron-LM d98e8a64, --moe-flex-dispatcher-backend; qplan: no other recipe has the choice"},
    {"capacity_without_experts", kCoreAndOwn,
     [](const Case& c) { return !c.m.moe && c.p.moe_capacity_factor > 0; },
     [](const Case& c) {
       return fmt::format("the model has no experts for capacity {}", c.p.moe_capacity_factor);
     },
     "arithmetic: without experts no copy is dropped"},
    {"drop_policy_without_capacity", kEvery,
     [](const Case& c) {
       return c.p.moe_capacity_factor == 0 && c.p.moe_token_drop_policy != TokenDropPolicy::probs;
     },
     [](const Case& c) {
       return fmt::format(
           "drop {} says which copies beyond a capacity are dropped; give a capacity",
           to_word(c.p.moe_token_drop_policy));
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:932; arithmetic: "
     "without a capacity no copy is dropped"},
    {"deepep_group", kMegatronCore,
     [](const Case& c) {
       return c.p.moe_dispatcher == MoeDispatcher::deepep && std::int64_t{c.p.ep} * c.p.tp == 1;
     },
     [](const Case&) {
       return std::string("dispatcher deepep needs ep x tp above 1; use alltoall");
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/moe/token_dispatcher.py:1836"},
    {"dispatcher_gpu", kEvery,
     [](const Case& c) {
       const int generation = c.limits.compute_capability;
       return is_dispatch_library(c.p.moe_dispatcher) && generation > 0 &&
              !has_expert_library(generation);
     },
     [](const Case& c) {
       return fmt::format(
           "dispatcher {} is for NVIDIA's Hopper and Blackwell of data centres (compute capability "
           "90, 100, 103), not {}; use alltoall",
           to_word(c.p.moe_dispatcher), c.limits.compute_capability);
     },
     "DeepEP dd758ca, README.md:65"},
    {"dispatcher_links", kEvery,
     [](const Case& c) {
       return is_dispatch_library(c.p.moe_dispatcher) && c.limits.nvlinked > 0 &&
              c.p.ep * c.p.etp > c.limits.nvlinked;
     },
     [](const Case& c) {
       return fmt::format(
           "dispatcher {} writes to every rank of a node over NVLink, which joins {} of its GPUs "
           "here, "
           "not the {} of ep x etp; use alltoall",
           to_word(c.p.moe_dispatcher), c.limits.nvlinked, c.p.ep * c.p.etp);
     },
     "DeepEP dd758ca, README.md:71"},
    {"dispatcher_rack", kMegatronCore,
     [](const Case& c) { return c.p.moe_dispatcher == MoeDispatcher::deepep && c.limits.rack; },
     [](const Case&) {
       return std::string(
           "dispatcher deepep is not for racks whose NVLink joins GPUs of several nodes (GB200, "
           "GB300): Megatron-Bridge stops there; use hybridep");
     },
     "Megatron-Bridge 183c5c02, src/megatron/bridge/training/flex_dispatcher_backend.py:92"},
    {"dispatcher_network", kEvery,
     [](const Case& c) {
       return is_dispatch_library(c.p.moe_dispatcher) && c.limits.library_reach > 0 &&
              c.p.ep * c.p.etp > c.limits.library_reach;
     },
     [](const Case& c) {
       return fmt::format(
           "dispatcher {} writes to other nodes by InfiniBand's verbs, which this network has not, "
           "and ep x etp {} is more than the {} GPUs of a node; use alltoall",
           to_word(c.p.moe_dispatcher), c.p.ep * c.p.etp, c.limits.library_reach);
     },
     "DeepEP dd758ca, README.md:72; qplan: EFA and TCP are no RDMA of its kind, and others' "
     "rewrites of it are not priced"},
    // Whose modules are transformers'.
    {"every_expert", kHuggingFace, [](const Case& c) { return c.m.moe && c.m.moe->scales_inputs; },
     [](const Case& c) {
       return fmt::format(
           "transformers' module of this model multiplies every token with all {} experts, which "
           "is not modelled; predict it as megatron, or fsdp2-compile",
           c.m.moe->num_experts);
     },
     "transformers 5.23.0, models/llama4/modeling_llama4.py (Llama4TextMoe.forward); qplan: not "
     "modelled"},
    {"every_key", kDeepSpeed | kTorch, [](const Case& c) { return c.m.indexer.has_value(); },
     [](const Case& c) {
       return fmt::format(
           "transformers' module of this model scores every key and masks all but the {} that its "
           "indexer chose, which is not modelled; predict it as megatron",
           c.m.indexer->top_k);
     },
     "transformers 5.23.0, models/deepseek_v32/modeling_deepseek_v32.py "
     "(DeepseekV32Indexer.forward); qplan: not modelled"},
    {"model_available", kEarlyMegatron,
     [](const Case& c) {
       return c.m.qk_norm || c.m.moe || c.m.mla || c.m.vision || c.m.parallel_mlp ||
              c.m.norm_place != NormPlace::before || c.m.gelu_gate;
     },
     [](const Case& c) {
       return fmt::format("{} cannot build a model with {}; use megatron", recipe_name(c),
                          c.m.moe       ? "these experts"
                          : c.m.mla     ? "latent attention"
                          : c.m.vision  ? "a vision tower"
                          : c.m.qk_norm ? "normalised queries and keys"
                                        : "layers of this form");
     },
     "Megatron-DeepSpeed 4efb479d, megatron/model/transformer.py; qplan: Megatron-LM of 2021-22 "
     "had none of these parts"},
});

}  // namespace qplan::rules
