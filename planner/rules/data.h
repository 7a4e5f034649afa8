#pragma once
// Data parallelism: what is sharded, and by whom.

#include "planner/rules/rule.h"

namespace qplan::rules {

inline constexpr auto kData = std::to_array<Rule>({
    {"zero_above_one", kDistributedOptimizer | set_of(megatron_legacy, nanotron),
     [](const Case& c) { return c.p.zero > 1; },
     [](const Case& c) {
       return fmt::format("{} shards the optimizer only (zero 1), not zero {}{}", recipe_name(c),
                          c.p.zero,
                          kDistributedOptimizer.has(c.recipe) ? "; megatron-fsdp does" : "");
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:324 "
     "(use_distributed_optimizer); nanotron 2411b022, src/nanotron/helpers.py:409"},
    {"zero_below_two", kTorch | kMegatronFsdp, [](const Case& c) { return c.p.zero < 2; },
     [](const Case& c) {
       return fmt::format(
           "{} shards parameters: zero 3, or 2 to keep them gathered after forward, not {}",
           recipe_name(c), c.p.zero);
     },
     "torchtitan b5bcd76c, torchtitan/distributed/fsdp.py:124; accelerate 16cb6eb8, "
     "src/accelerate/utils/dataclasses.py:1869; Megatron-LM d98e8a64, "
     "--data-parallel-sharding-strategy"},
    {"zero_of_ddp", set_of(ddp), [](const Case& c) { return c.p.zero > 0 || c.p.fsdp_shard > 0; },
     [](const Case&) {
       return std::string("ddp replicates every state; use zero 0, or fsdp1, fsdp2 or deepspeed");
     },
     "PyTorch 2.9, torch/nn/parallel/distributed.py (whole models on every rank)"},
    {"zero_with_pipeline", kDeepSpeed, [](const Case& c) { return c.p.pp > 1 && c.p.zero > 1; },
     [](const Case& c) {
       return fmt::format("DeepSpeed's pipeline (pp {}) works with zero 0 or 1, not {}", c.p.pp,
                          c.p.zero);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/pipe/engine.py:77"},
    {"tensor_parallel_available", set_of(ddp, fsdp1), [](const Case& c) { return c.p.tp > 1; },
     [](const Case& c) { return not_in(c, "tensor parallelism", "use tp 1"); },
     "accelerate 16cb6eb8, src/accelerate/commands/launch.py:1206"},
    {"autotp_zero", set_of(deepspeed), [](const Case& c) { return c.p.tp > 1 && c.p.zero > 2; },
     [](const Case& c) {
       return fmt::format("DeepSpeed's AutoTP (tp {}) is predicted with zero 0 to 2, not 3",
                          c.p.tp);
     },
     "qplan: AutoTP at stage 3, which DeepSpeed has since August 2026 (eec237ee8), is not "
     "predicted"},
    {"mics_zero", kDeepSpeed, [](const Case& c) { return c.p.fsdp_shard > 0 && c.p.zero < 3; },
     [](const Case& c) {
       return fmt::format("DeepSpeed shards inside groups (MiCS, fsdp_shard {}) only at zero 3",
                          c.p.fsdp_shard);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/mics.py:18 (MiCS is an optimizer of stage 3)"},
});

}  // namespace qplan::rules
