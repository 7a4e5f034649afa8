// slime: who gets which GPUs, and how many answers make a step.

#include <fmt/format.h>

#include <array>

#include "models/error.h"
#include "planner/frameworks/megatron/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = MegatronCase;
using Trap = MegatronTrap;

// Throws Error for what is no number, as all that reads values.
std::int64_t whole(const Case& c, std::string_view key, std::int64_t otherwise) {
  const Setting* const found = c.find(key);
  if (found == nullptr) return otherwise;
  if (!found->resolved) throw Error("only a run can tell");
  return whole_of(found->value, 0, std::int64_t{1} << 40);
}

double number(const Case& c, std::string_view key, double otherwise) {
  const Setting* const found = c.find(key);
  if (found == nullptr) return otherwise;
  if (!found->resolved) throw Error("only a run can tell");
  return number_of(found->value);
}

// Defaults: slime/utils/arguments.py (add_cluster_arguments).
std::int64_t actor_gpus(const Case& c) {
  return whole(c, "--actor-num-nodes", 1) * whole(c, "--actor-num-gpus-per-node", 8);
}

bool says_cluster(const Case& c) {
  return c.slime() && c.has("--actor-num-nodes") && c.has("--actor-num-gpus-per-node");
}

std::int64_t answers(const Case& c) {
  return whole(c, "--rollout-batch-size", 0) * whole(c, "--n-samples-per-prompt", 1);
}

bool says_batches(const Case& c) {
  return c.slime() && c.has("--rollout-batch-size") && c.has("--global-batch-size");
}

// GPUs that answer prompts. Those that the actor shares are all of the job's, whoever counts them.
std::int64_t rollout_gpus(const Case& c) {
  const std::int64_t gpus = c.scene.question.limits.gpus;
  if (c.has("--colocate") && !c.has("--rollout-num-gpus") && gpus > 0) return gpus;
  return whole(c, "--rollout-num-gpus", c.has("--colocate") ? actor_gpus(c) : 0);
}

std::string numbers_of_actor(const Case& c) {
  return fmt::format("{} x {} = {}, of {} GPUs", whole(c, "--actor-num-nodes", 1),
                     whole(c, "--actor-num-gpus-per-node", 8), actor_gpus(c),
                     c.scene.question.limits.gpus);
}

std::string numbers_of_both(const Case& c) {
  return fmt::format("{} + {} = {}, of {} GPUs", actor_gpus(c), rollout_gpus(c),
                     actor_gpus(c) + rollout_gpus(c), c.scene.question.limits.gpus);
}

std::string numbers_of_rollout(const Case& c) {
  return fmt::format("{} x {} = {} answers, of --global-batch-size {}",
                     whole(c, "--rollout-batch-size", 0), whole(c, "--n-samples-per-prompt", 1),
                     answers(c), whole(c, "--global-batch-size", 0));
}

std::string numbers_of_engines(const Case& c) {
  return fmt::format("{} GPUs by {}", rollout_gpus(c),
                     whole(c, "--rollout-num-gpus-per-engine", 1));
}

// Ranks that an engine's experts lie on. 0: it does not say that it spreads them.
std::int64_t expert_ranks(const Case& c) {
  for (const std::string_view key : {"--sglang-ep-size", "--sglang-expert-parallel-size"}) {
    if (c.has(key)) return whole(c, key, 1);
  }
  const bool by_engine =
      c.has("--sglang-ep-num-redundant-experts") || c.has("--sglang-enable-ep-moe");
  return by_engine ? whole(c, "--rollout-num-gpus-per-engine", 1) : 0;
}

std::int64_t redundant_experts(const Case& c) {
  return whole(c, "--sglang-ep-num-redundant-experts", 0);
}

// Whether an engine's experts, copies of the busiest among them, lie unevenly on its ranks.
bool experts_left_over(const Case& c) {
  if (!c.slime() || !c.model().moe) return false;
  const std::int64_t ranks = expert_ranks(c);
  return ranks > 0 && (c.model().moe->num_experts + redundant_experts(c)) % ranks != 0;
}

std::string numbers_of_experts(const Case& c) {
  const std::int64_t ranks = expert_ranks(c), experts = c.model().moe->num_experts,
                     more = redundant_experts(c);
  const std::int64_t lacking = (ranks - (experts + more) % ranks) % ranks;
  return fmt::format("{} + {} experts by {} ranks; {} redundant ones would do", experts, more,
                     ranks, more + lacking);
}

constexpr auto kTraps = std::to_array<Trap>({
    {"option_needs", error, "--n-samples-per-prompt",
     [](const Case& c) {
       return says_cluster(c) && c.has("--global-batch-size") && c.has("--n-samples-per-prompt") &&
              c.part.open_word.empty() && !c.may_be_said("--rollout-batch-size");
     },
     "slime has no default for --rollout-batch-size, the prompts of a rollout",
     "add it: the global batch over --n-samples-per-prompt, where a rollout is one step",
     "slime 624b824a, slime/utils/arguments.py:690"},
    {"rollout_steps", error, "--global-batch-size",
     [](const Case& c) {
       if (!says_batches(c) || !c.has("--num-steps-per-rollout")) return false;
       const std::int64_t steps = whole(c, "--num-steps-per-rollout", 1);
       return steps > 0 && whole(c, "--global-batch-size", 0) != answers(c) / steps;
     },
     "the global batch must be the answers of a rollout (--rollout-batch-size x "
     "--n-samples-per-prompt) over --num-steps-per-rollout",
     "leave one of the two out", "slime 624b824a, slime/utils/arguments.py:1974", "", false,
     numbers_of_rollout},
    {"rollout_batch", error, "--global-batch-size",
     [](const Case& c) {
       if (!says_batches(c) || c.has("--num-steps-per-rollout")) return false;
       const std::int64_t batch = whole(c, "--global-batch-size", 0);
       return batch > 0 && answers(c) % batch != 0;
     },
     "the answers of a rollout (--rollout-batch-size x --n-samples-per-prompt) are no whole number "
     "of global batches, and the rest of them trains nothing",
     "a --global-batch-size that divides their product",
     "slime 624b824a, slime/utils/dp_schedule.py (build_dp_schedule)", "", false,
     numbers_of_rollout},
    {"actor_gpus", error, "--actor-num-nodes",
     [](const Case& c) {
       const std::int64_t gpus = c.scene.question.limits.gpus;
       return says_cluster(c) && gpus > 0 && c.has("--colocate") && actor_gpus(c) != gpus;
     },
     "with --colocate the actor takes --actor-num-nodes x --actor-num-gpus-per-node GPUs, which "
     "are "
     "not the job's",
     "numbers whose product is the job's GPUs", "slime 624b824a, slime/utils/arguments.py:1952", "",
     false, numbers_of_actor},
    {"actor_gpus", error, "--actor-num-nodes",
     [](const Case& c) {
       const std::int64_t gpus = c.scene.question.limits.gpus;
       // The engines' GPUs may be counted beside the job's.
       return says_cluster(c) && gpus > 0 && !c.has("--colocate") && actor_gpus(c) > gpus;
     },
     "the actor takes --actor-num-nodes x --actor-num-gpus-per-node GPUs, more than the job has, "
     "and "
     "ray waits for them",
     "fewer of either", "slime 624b824a, slime/ray/placement_group.py", "", false,
     numbers_of_actor},
    {"actor_gpus", error, "--rollout-num-gpus",
     [](const Case& c) {
       const std::int64_t gpus = c.scene.question.limits.gpus;
       if (!says_cluster(c) || gpus <= 0 || c.has("--colocate") || !c.has("--rollout-num-gpus")) {
         return false;
       }
       // More than the job has is said above; the engines' may be counted beside the job's.
       return actor_gpus(c) < gpus && actor_gpus(c) + rollout_gpus(c) != gpus;
     },
     "the actor's --actor-num-nodes x --actor-num-gpus-per-node GPUs and the engines' are not the "
     "job's",
     "numbers whose sum is the job's GPUs",
     "slime 624b824a, slime/ray/placement_group.py (_get_placement_group_layout)", "", false,
     numbers_of_both},
    {"engines_divide", error, "--rollout-num-gpus-per-engine",
     [](const Case& c) {
       if (!c.slime() || !c.has("--rollout-num-gpus-per-engine")) return false;
       if (!says_cluster(c) && !c.has("--rollout-num-gpus")) return false;
       const std::int64_t each = whole(c, "--rollout-num-gpus-per-engine", 1),
                          all = rollout_gpus(c);
       return each == 0 || (all > 0 && all % each != 0);
     },
     "the GPUs that answer prompts do not divide into engines of --rollout-num-gpus-per-engine",
     "a divisor of them", "slime 624b824a, slime/ray/rollout.py", "", false, numbers_of_engines},
    {"redundant_experts", error, "--sglang-ep-num-redundant-experts",
     [](const Case& c) {
       return c.has("--sglang-ep-num-redundant-experts") && experts_left_over(c);
     },
     "the model's experts and --sglang-ep-num-redundant-experts together do not divide over the "
     "ranks of --sglang-ep-size",
     "a number that makes them divide",
     "qplan: sglang lays out experts and redundant ones evenly over ranks", "", false,
     numbers_of_experts},
    {"redundant_experts", error, "--sglang-ep-size",
     [](const Case& c) {
       return !c.has("--sglang-ep-num-redundant-experts") && experts_left_over(c);
     },
     "the model's experts do not divide over the ranks of an engine that they lie on",
     "a --sglang-ep-size that divides them, or --sglang-ep-num-redundant-experts",
     "qplan: sglang lays out experts and redundant ones evenly over ranks", "", false,
     numbers_of_experts},
    {"expert_ranks_of_engine", error, "--sglang-ep-size",
     [](const Case& c) {
       if (!c.slime() || !c.has("--sglang-ep-size")) return false;
       const std::int64_t ranks = whole(c, "--sglang-ep-size", 1);
       return ranks == 0 || whole(c, "--rollout-num-gpus-per-engine", 1) % ranks != 0;
     },
     "the GPUs of an engine do not divide into --sglang-ep-size ranks of experts",
     "a divisor of --rollout-num-gpus-per-engine",
     "qplan: sglang spreads experts over the ranks of one engine"},
    {"static_memory", error, "--sglang-mem-fraction-static",
     [](const Case& c) {
       return c.slime() && c.has("--colocate") && c.has("--sglang-mem-fraction-static") &&
              number(c, "--sglang-mem-fraction-static", 0) > 0.92;
     },
     // What CUDA's context and NCCL's buffers keep of both processes is some 4 GiB of 80.
     "with --colocate the trainer's context and buffers stay on the GPU beside what sglang takes, "
     "which leaves them less than 8%",
     "0.7 to 0.85", "slime 624b824a, docs/en/get_started/usage.md"},
});

}  // namespace

std::span<const Trap> slime_traps() {
  return kTraps;
}

}  // namespace qplan
