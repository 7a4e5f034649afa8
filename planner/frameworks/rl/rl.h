#pragma once
// verl (b178a3cd) and NeMo-RL (7ea279ab): a training plan, the job, and the engines that make its
// answers, in one configuration each.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/emit.h"
#include "planner/frameworks/shell/shell.h"
#include "planner/rl/rl_step.h"

namespace qplan {

// The rule of sizes that a branch of a script decides, so that no plan is one's.
inline constexpr std::string_view kBranchesDecide = "branches_decide";

// What a configuration asks for beside the words of a plan.
struct RlReading {
  std::optional<RlStep> step;  // none: it is fine-tuned on answers that are given
  std::int64_t gpus = 0;       // of the whole job, as it says them; 0: it does not
  std::vector<std::string> assumed;
  bool takes_less = false;  // memory than the plan
};

// RlJob::change_of_hands in the framework whose files run the job. slime's engines sleep and are
// handed weights as verl's are: assumed to take as long.
inline Seconds change_of_hands_in(std::optional<Framework> files) {
  const bool quick = files == Framework::verl || files == Framework::slime;
  return quick ? kVerlChangeOfHands : kNemoRlChangeOfHands;
}

// ---- verl ----

// Whether a program, or what it is given, is verl's.
bool is_verl(const std::vector<ShellWord>& words, const std::string& script);
// One of verl's own, all of which read their words by Hydra.
bool is_verl_program(std::string_view program);
// Hydra's overrides ("a.b=c", "+a.b=c", "--config-name x") by their keys.
Settings verl_settings(const std::vector<ShellWord>& words, const std::string& script);
// YAML that overrides verl's own.
bool is_verl_yaml(const Settings& yaml);
// Whether the program trains anything.
bool trains_by_verl(const std::string& script);

RecipeKind recipe_of_verl(const Settings& settings);
// The words of the plan as Megatron's flags, where Megatron trains.
Settings megatron_flags_of_verl(const Settings& settings);
RlReading settle_verl(Draft& draft, const Settings& settings, const ModelSpec& model,
                      std::int64_t gpus);
std::string model_of_verl(const Settings& settings);

std::span<const Limit> verl_limits();

// ---- slime ----

// The rollout side of its script; none where it makes no answers, or only a run can tell. The plan
// is Megatron's.
std::optional<RlStep> step_of_slime(const Settings& settings, const std::string& script,
                                    const ParallelPlan& plan, std::vector<std::string>& assumed);

// Of a job's GPUs those that make answers alone, where the actor's and they are the job's together;
// else its GPUs are the actor's.
std::int64_t engines_of_slime(const Settings& settings, std::int64_t gpus);

// ---- NeMo-RL ----

// Whether a program is one of its examples'; and whether YAML is its configuration.
bool is_nemo_rl(const std::string& script);
bool is_nemo_rl_yaml(const Settings& yaml);
RecipeKind recipe_of_nemo_rl(const Settings& settings);
Settings megatron_flags_of_nemo_rl(const Settings& settings);
RlReading settle_nemo_rl(Draft& draft, const Settings& settings, const ModelSpec& model,
                         std::int64_t gpus);
std::string model_of_nemo_rl(const Settings& settings);

std::span<const Limit> nemo_rl_limits();

}  // namespace qplan
