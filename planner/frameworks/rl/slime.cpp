// slime's rollout side: what its script says of answers, engines and who makes them. Its training
// side is Megatron's (planner/frameworks/megatron).

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "planner/frameworks/rl/rl.h"

namespace qplan {
namespace {

// Throws Error for what is no number, or is known to a run alone.
class SlimeArguments {
 public:
  explicit SlimeArguments(const Settings& settings) : settings_(settings) {}

  [[nodiscard]] bool has(std::string_view key) const { return settings_.has(key); }
  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t otherwise) const {
    const Setting* const found = known(key);
    return found == nullptr ? otherwise : whole_of(found->value, 1, std::int64_t{1} << 30);
  }
  [[nodiscard]] double number(std::string_view key, double otherwise) const {
    const Setting* const found = known(key);
    return found == nullptr ? otherwise : number_of(found->value);
  }
  [[nodiscard]] std::string word(std::string_view key, std::string_view otherwise) const {
    const Setting* const found = known(key);
    return found == nullptr ? std::string(otherwise) : text_of(found->value);
  }

 private:
  [[nodiscard]] const Setting* known(std::string_view key) const {
    const Setting* const found = settings_.find(key);
    if (found != nullptr && !found->resolved) throw Error("only a run can tell");
    return found;
  }
  const Settings& settings_;
};

// SGLang: --rollout-num-gpus-per-engine ranks, of which attention's data parallelism makes copies.
RolloutLayout layout_of(const SlimeArguments& a) {
  RolloutLayout layout;
  const auto each = static_cast<int>(a.whole("--rollout-num-gpus-per-engine", 1));
  const bool copies = a.has("--sglang-enable-dp-attention");
  layout.dp = copies ? static_cast<int>(a.whole("--sglang-dp-size", 1)) : 1;
  if (each % layout.dp != 0) throw Error("the engine's GPUs do not divide among its copies");
  layout.tp = each / layout.dp;
  layout.ep =
      static_cast<int>(a.whole("--sglang-ep-size", a.whole("--sglang-expert-parallel-size", 1)));
  layout.redundant_experts =
      a.has("--sglang-ep-num-redundant-experts")
          ? static_cast<int>(a.number("--sglang-ep-num-redundant-experts", 0))
          : 0;
  if (a.has("--sglang-enable-ep-moe") && layout.ep == 1) layout.ep = each;
  layout.memory_share =
      std::clamp(a.number("--sglang-mem-fraction-static", RolloutLayout{}.memory_share), 0.01, 1.0);
  // --sglang-server-concurrency: requests that a server is sent at once.
  layout.max_running =
      a.whole("--sglang-max-running-requests",
              std::max<std::int64_t>(1, a.whole("--sglang-server-concurrency", 512) / layout.dp));
  return layout;
}

}  // namespace

std::int64_t engines_of_slime(const Settings& settings, std::int64_t gpus) {
  const SlimeArguments a(settings);
  try {
    const bool said = a.has("--actor-num-nodes") && a.has("--actor-num-gpus-per-node");
    if (!said || a.has("--colocate") || a.has("--debug-train-only")) return 0;
    const std::int64_t engines = a.whole("--rollout-num-gpus", 0);
    const std::int64_t actor =
        a.whole("--actor-num-nodes", 1) * a.whole("--actor-num-gpus-per-node", 8);
    return actor + engines == gpus ? engines : 0;
  } catch (const Error&) {
    return 0;  // said where the values are checked
  }
}

// Defaults: slime 624b824a, slime/utils/arguments.py.
std::optional<RlStep> step_of_slime(const Settings& settings, const std::string& script,
                                    const ParallelPlan& plan, std::vector<std::string>& assumed) {
  const SlimeArguments a(settings);
  const bool answers = a.has("--rollout-batch-size") && a.has("--rollout-max-response-len");
  if (!answers || a.has("--debug-train-only") || a.has("--debug-rollout-only")) return std::nullopt;
  try {
    if (a.word("--loss-type", "policy_loss") == "sft_loss") return std::nullopt;
    RlStep step;
    RlJob& job = step.job;
    job.algorithm =
        a.word("--advantage-estimator", "grpo") == "ppo" ? Algorithm::ppo : Algorithm::grpo;
    job.prompts = a.whole("--rollout-batch-size", 1);
    job.samples = a.whole("--n-samples-per-prompt", 1);
    job.response.max = a.whole("--rollout-max-response-len", 1);
    job.response.mean = std::max(1.0, static_cast<double>(job.response.max) / 2);
    job.prompt_len = a.whole("--rollout-max-prompt-len",
                             std::clamp<std::int64_t>(plan.seq_len - job.response.max, 1, 512));
    const std::int64_t steps = a.whole("--num-steps-per-rollout", 1);
    const std::int64_t batch = a.whole("--global-batch-size", job.answers() / steps);
    if (batch < 1 || job.answers() % batch != 0) return std::nullopt;  // which checks say
    job.train_batch = batch;
    const bool loss = a.has("--use-kl-loss") && a.number("--kl-loss-coef", 0) != 0;
    job.reference = loss || a.number("--kl-coef", 0) != 0;
    job.old_logprobs = !a.has("--use-rollout-logprobs");
    job.balanced = a.has("--balance-data");
    job.change_of_hands = change_of_hands_in(Framework::slime);
    if (!a.has("--colocate")) {
      job.rollout_gpus = a.whole("--rollout-num-gpus", 0);
      if (job.rollout_gpus == 0) return std::nullopt;
      job.staleness = script.find("train_async") == std::string::npos ? 0 : 1;
      assumed.push_back(
          fmt::format("{} GPUs that make answers beside those that train", job.rollout_gpus));
    }
    step.layout = layout_of(a);
    assumed.push_back(
        fmt::format("prompts of {} tokens and answers of {} in the mean, half of the longest: no "
                    "file says what they are",
                    job.prompt_len, static_cast<std::int64_t>(job.response.mean)));
    return step;
  } catch (const Error&) {
    return std::nullopt;  // said where the values are checked
  }
}

}  // namespace qplan
