#pragma once
// Optimizers: who has which, and what each excludes.

#include "models/program/recipe.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

inline bool is_muon(const Case& c) {
  return c.p.optimizer == OptimizerKind::muon;
}

inline constexpr auto kOptimizers = std::to_array<Rule>({
    {"optimizer_available", kEvery,
     [](const Case& c) { return !recipe_of(c.recipe).can.optimizers.has(c.p.optimizer); },
     [](const Case& c) {
       return not_in(c, fmt::format("optimizer {} that qplan knows", to_word(c.p.optimizer)),
                     "use optimizer " + words_of(recipe_of(c.recipe).can.optimizers));
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:2913; Megatron-LM d98e8a64, "
     "megatron/training/arguments.py:1150; Megatron-DeepSpeed 4efb479d, megatron/arguments.py:940; "
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2079; transformers 5, "
     "src/transformers/optimization.py (Adafactor factors matrices, not flat shards); torchtitan "
     "b5bcd76c, torchtitan/components/optimizer/optimizer.py:143; nanotron 2411b022, "
     "src/nanotron/config/config.py:408"},
    // A momentum alone is of its parameter's format in torch; Megatron's and our own are fp32.
    {"moment_format_of_adam", kEvery,
     [](const Case& c) {
       const bool in_torch = !kCoreAndOwn.has(c.recipe);
       const bool narrows = c.p.optimizer == OptimizerKind::adam ||
                            (in_torch && (c.p.optimizer == OptimizerKind::sgd ||
                                          c.p.optimizer == OptimizerKind::lion));
       return !narrows && c.p.moment_dtype != DType::fp32;
     },
     [](const Case& c) {
       return fmt::format(
           "moment_dtype {} is a choice of Adam's moments, and {} has formats of its own; use "
           "moment_dtype fp32, or optimizer adam",
           to_word(c.p.moment_dtype), to_word(c.p.optimizer));
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:434; qplan: its "
     "executor's momentum is fp32, and states of 8 bits, factors and Muon's have one format"},
    {"precision_aware_adam", kMegatronCore,
     [](const Case& c) {
       return c.p.optimizer != OptimizerKind::adam && c.p.main_params_dtype != DType::fp32;
     },
     [](const Case& c) {
       return fmt::format(
           "main_params_dtype {} comes with the precision-aware optimizer, which is Adam; use "
           "main_params_dtype fp32, or optimizer adam",
           to_word(c.p.main_params_dtype));
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:434"},
    // Megatron's offload takes the precision-aware optimizer; DeepSpeed has host kernels of Adam,
    // Adagrad and Lion; what others cost there nobody measured.
    {"offloaded_adam", kEvery,
     [](const Case& c) {
       return c.p.optimizer != OptimizerKind::adam && c.p.offload.optimizer > 0;
     },
     [](const Case& c) {
       return fmt::format(
           "offload optimizer is a step of Adam's on the host, and {}'s is not modelled there; use "
           "offload none, or optimizer adam",
           to_word(c.p.optimizer));
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1884; qplan: "
     "costmodel/price/compute_price.cpp prices Adam's step on the host"},
    {"muon_fp16", kDistributedOptimizer,
     [](const Case& c) {
       const bool emerging = is_muon(c) || c.p.optimizer == OptimizerKind::lion;
       return emerging && c.p.precision == Precision::fp16;
     },
     [](const Case& c) {
       return fmt::format("optimizer {} is not for fp16; use precision bf16",
                          to_word(c.p.optimizer));
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/__init__.py:775"},
    {"muon_shard_groups", kDistributedOptimizer,
     [](const Case& c) { return is_muon(c) && c.p.zero > 0 && c.p.fsdp_shard > 0; },
     [](const Case&) {
       return std::string(
           "Muon's matrices are dealt out over all of dp and cp, not over groups of them; leave "
           "fsdp_shard out");
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/layer_wise_optimizer.py "
     "(num_distributed_optimizer_instances > 1)"},
    {"muon_expert_vectors", kDistributedOptimizer,
     [](const Case& c) { return is_muon(c) && c.p.zero > 0 && c.m.moe && c.m.moe->expert_bias; },
     [](const Case& c) {
       return fmt::format(
           "{}'s experts have biases, which Muon leaves to Adam, and the distributed optimizer "
           "beside Muon takes none of experts; use zero 0, or optimizer adam",
           c.m.name);
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/__init__.py:919"},
    // Whole gradients are there when they are reduced, so ZeRO-3 orthogonalises at every reduction
    // and gathers momenta for it (_apply_distributed_muon_update).
    {"muon_zero3", set_of(deepspeed), [](const Case& c) { return is_muon(c) && c.p.zero == 3; },
     [](const Case&) {
       return std::string(
           "at ZeRO-3 DeepSpeed gathers momenta and orthogonalises gradients with every reduction, "
           "which is not modelled; use zero 1 or 2");
     },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/stage3.py:1619; qplan: its step has one update"},
    {"whole_matrices", set_of(qplan),
     [](const Case& c) {
       const bool whole = is_muon(c) || c.p.optimizer == OptimizerKind::adafactor;
       return whole && (c.p.zero > 0 || c.p.tp > 1 || c.p.etp > 1);
     },
     [](const Case& c) {
       return fmt::format(
           "optimizer {} steps whole matrices, and qplan's executor exchanges none: tp {}, etp {} "
           "and zero {} leave a rank parts of them; use tp 1, etp 1 and zero 0",
           to_word(c.p.optimizer), c.p.tp, c.p.etp, c.p.zero);
     },
     "qplan: executor/cpu/states.cpp steps matrices that lie whole on a rank"},
});

}  // namespace qplan::rules
