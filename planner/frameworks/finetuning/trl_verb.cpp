#include "planner/frameworks/finetuning/trl_verb.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace qplan {

std::string trl_verb_of(const Settings& yaml) {
  // Fields that no other command's class has (trl/trainer/*_config.py), and their losses.
  constexpr std::array<std::string_view, 2> kRloo{"normalize_advantages", "reward_clip_range"};
  constexpr std::array<std::string_view, 8> kGrpo{
      "num_generations",       "reward_funcs",   "num_iterations", "steps_per_generation",
      "generation_batch_size", "reward_weights", "epsilon_high",   "scale_rewards"};
  constexpr std::array<std::string_view, 2> kKto{"desirable_weight", "undesirable_weight"};
  constexpr std::array<std::string_view, 1> kReward{"center_rewards_coefficient"};
  constexpr std::array<std::string_view, 11> kDpo{"beta",
                                                  "discopop_tau",
                                                  "f_alpha_divergence_coef",
                                                  "f_divergence_type",
                                                  "ld_alpha",
                                                  "use_weighting",
                                                  "loss_weights",
                                                  "precompute_ref_log_probs",
                                                  "sync_ref_model",
                                                  "ref_model_sync_steps",
                                                  "ref_model_mixup_alpha"};
  constexpr std::array<std::string_view, 15> kLossesOfDpo{
      "sigmoid",  "hinge",    "ipo",       "exo_pair",     "nca_pair",
      "robust",   "bco_pair", "sppo_hard", "aot",          "aot_pair",
      "apo_zero", "apo_down", "discopop",  "aot_unpaired", "sigmoid_norm"};
  const auto has_any = [&](const auto& keys) {
    return std::any_of(keys.begin(), keys.end(), [&](auto key) { return yaml.has(key); });
  };
  if (has_any(kRloo)) return "rloo";
  if (has_any(kGrpo)) return "grpo";
  const Setting* const loss = yaml.find("loss_type");
  const std::string name = loss == nullptr ? "" : first_of(loss->value);
  if (has_any(kKto) || name == "kto" || name == "apo_zero_unpaired") return "kto";
  if (has_any(kReward)) return "reward";
  const bool of_pairs =
      std::find(kLossesOfDpo.begin(), kLossesOfDpo.end(), name) != kLossesOfDpo.end();
  return of_pairs || has_any(kDpo) ? "dpo" : "";
}

}  // namespace qplan
