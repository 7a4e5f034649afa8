#pragma once
// Data parallelism: what is sharded, and by whom.

#include "planner/rules/rule.h"

namespace qplan::rules {

inline constexpr auto kData = std::to_array<Rule>({
    {"zero_above_one", set_of(megatron, megatron_legacy, nanotron),
     [](const Case& c) { return c.p.zero > 1; },
     [](const Case& c) {
       return fmt::format("{} shards the optimizer only (zero 1), not zero {}{}", recipe_name(c),
                          c.p.zero, c.recipe == megatron ? "; megatron-fsdp does" : "");
     },
     "1.2"},
    {"zero_below_two", kTorch | set_of(megatron_fsdp), [](const Case& c) { return c.p.zero < 2; },
     [](const Case& c) {
       return fmt::format(
           "{} shards parameters: zero 3, or 2 to keep them gathered after forward, not {}",
           recipe_name(c), c.p.zero);
     },
     "1.2, 4.1"},
    {"zero_with_pipeline", kDeepSpeed, [](const Case& c) { return c.p.pp > 1 && c.p.zero > 1; },
     [](const Case& c) {
       return fmt::format("DeepSpeed's pipeline (pp {}) works with zero 0 or 1, not {}", c.p.pp,
                          c.p.zero);
     },
     "D01"},
    {"tensor_parallel_available", set_of(fsdp1), [](const Case& c) { return c.p.tp > 1; },
     [](const Case& c) { return not_in(c, "tensor parallelism", "use tp 1"); },
     "4.1: parallelism_config is FSDP2 only"},
    {"autotp_zero", set_of(deepspeed), [](const Case& c) { return c.p.tp > 1 && c.p.zero > 2; },
     [](const Case& c) {
       return fmt::format("DeepSpeed's AutoTP (tp {}) works with zero 0 to 2, not 3", c.p.tp);
     },
     "D05"},
    {"mics_zero", kDeepSpeed, [](const Case& c) { return c.p.fsdp_shard > 0 && c.p.zero < 3; },
     [](const Case& c) {
       return fmt::format("DeepSpeed shards inside groups (MiCS, fsdp_shard {}) only at zero 3",
                          c.p.fsdp_shard);
     },
     "D08"},
});

}  // namespace qplan::rules
