// A Hugging Face Trainer's arguments beside ds_config.json: what both say has to be the same.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/deepspeed/check_parameters.h"
#include "planner/frameworks/deepspeed/own_switch.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

using enum Severity;

constexpr std::string_view kSource = "transformers 5.23.0, integrations/deepspeed.py";

// transformers compares them when it starts, where ds_config.json says a value that is not "auto"
// (trainer_config_process, fill_match), and takes the argument's default where nobody says it.
struct Pair {
  std::string_view key, argument;
};

constexpr auto kPairs = std::to_array<Pair>({
    {"train_micro_batch_size_per_gpu", "--per_device_train_batch_size"},
    {"gradient_accumulation_steps", "--gradient_accumulation_steps"},
    {"gradient_clipping", "--max_grad_norm"},
    {"optimizer.params.lr", "--learning_rate"},
    {"optimizer.params.eps", "--adam_epsilon"},
    {"optimizer.params.weight_decay", "--weight_decay"},
    {"scheduler.params.warmup_max_lr", "--learning_rate"},
});

class TrainerCase {
 public:
  TrainerCase(const ConfigPart& config, const ConfigPart& trainer)
      : config_(config), trainer_(trainer) {}

  // Of ds_config.json; null: not said, "auto", or known only when it runs.
  [[nodiscard]] const Setting* said(std::string_view key) const {
    const Setting* const found = config_.settings.find(key);
    const bool fixed = found != nullptr && found->resolved && !found->value.is_null() &&
                       text_of(found->value) != "auto";
    return fixed ? found : nullptr;
  }

  [[nodiscard]] bool says(std::string_view key) const {
    const Setting* const found = config_.settings.find(key);
    return found != nullptr && !found->value.is_null();
  }

  // As given, or the parser's default; null: known only when it runs.
  [[nodiscard]] Json argument(std::string_view name) const {
    const Setting* const found = trainer_.settings.find(name);
    if (found != nullptr) return found->resolved ? found->value : Json(nullptr);
    const KnownOption* const known = known_options("trainer").find(name);
    return known == nullptr ? Json(nullptr) : Json(known->otherwise);
  }

  [[nodiscard]] bool on(std::string_view name) const {
    const Json value = argument(name);
    try {
      return !value.is_null() && truth_of(value);
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] const Setting* given(std::string_view name) const {
    return trainer_.settings.find(name);
  }

 private:
  const ConfigPart &config_, &trainer_;
};

void differ(const Setting& key, std::string_view name, const Setting* given,
            const std::string& taken, Findings& out) {
  const std::string other = given != nullptr
                                ? fmt::format("{} {}", name, taken)
                                : fmt::format("{} {}, which nobody says otherwise", name, taken);
  out.push_back({error,
                 "trainer_mismatch",
                 given != nullptr ? given->place : key.place,
                 fmt::format("{} is {} in {} and the Trainer has {}: it compares the two and stops",
                             key.key, text_of(key.value), key.place.file, other),
                 fmt::format("make them agree, or write \"auto\" for {}", key.key),
                 std::string(kSource),
                 {}});
}

// Words of a plan were compared already, where both files say them.
bool is_said(const Setting& key, const Setting* given, const Findings& out) {
  return given != nullptr && std::any_of(out.begin(), out.end(), [&](const Finding& f) {
           const auto at = [&](const Setting& s) {
             return f.place.file == s.place.file && f.place.line == s.place.line;
           };
           return f.rule == "contradiction" && (at(key) || at(*given));
         });
}

void check_pairs(const TrainerCase& c, Findings& out) {
  for (const Pair& pair : kPairs) {
    const Setting* const key = c.said(pair.key);
    const Json taken = c.argument(pair.argument);
    if (key == nullptr || taken.is_null() || text_of(taken).empty()) continue;
    const Setting* const given = c.given(pair.argument);
    if (same_value(key->value, taken) || is_said(*key, given, out)) continue;
    differ(*key, pair.argument, given, text_of(taken), out);
  }
}

void check_betas(const TrainerCase& c, Findings& out) {
  const Setting* const key = c.said("optimizer.params.betas");
  if (key == nullptr || !key->value.is_array() || key->value.size() != 2) return;
  constexpr std::array<std::string_view, 2> kNames{"--adam_beta1", "--adam_beta2"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const Json taken = c.argument(kNames.at(i));
    if (taken.is_null() || same_value(key->value[i], taken)) continue;
    differ(*key, kNames.at(i), c.given(kNames.at(i)), text_of(taken), out);
  }
}

// "bf16": {"enabled": true} and --bf16 are one switch in two places.
void check_formats(const TrainerCase& c, Findings& out) {
  constexpr std::array<std::array<std::string_view, 3>, 2> kSwitches{
      {{"bf16.enabled", "--bf16", "--bf16_full_eval"},
       {"fp16.enabled", "--fp16", "--fp16_full_eval"}}};
  for (const auto& [name, argument, of_evaluation] : kSwitches) {
    const Setting* const key = c.said(name);
    if (key == nullptr || !key->value.is_boolean()) continue;
    const bool taken = c.on(argument) || c.on(of_evaluation);
    if (key->value.get<bool>() == taken || is_said(*key, c.given(argument), out)) continue;
    differ(*key, argument, c.given(argument), taken ? "true" : "false", out);
  }
}

// A block without "enabled" is off to DeepSpeed (runtime/precision_config.py), transformers
// compares no value that is not there, and accelerate adds the block alone where there is none.
void check_left_off(const TrainerCase& c, const ConfigPart& config, Findings& out) {
  for (const auto& [block, argument] : {std::pair{"bf16", "--bf16"}, {"fp16", "--fp16"}}) {
    const std::string section = fmt::format("{}.", block);
    const auto first = std::find_if(
        config.settings.begin(), config.settings.end(),
        [&](const Setting& s) { return s.key == block || s.key.starts_with(section); });
    if (first == config.settings.end() || c.says(section + "enabled") || !c.on(argument)) continue;
    const bool empty = first->key == block;
    if (empty && !first->value.is_object()) continue;  // refused as what it is
    Correction fix;
    const bool json = first->syntax == Syntax::json && first->text.end > first->text.begin;
    if (empty && json) {
      fix = Correction{
          {first->place.file, first->text.begin, first->text.end, R"({"enabled": "auto"})"}};
    }
    out.push_back(
        {error, "format_left_off", first->place,
         fmt::format("the block {0} has no \"enabled\", so that DeepSpeed leaves it off, and "
                     "nobody switches it on for {1}: the weights train in the format that they "
                     "are loaded in",
                     block, argument),
         fmt::format("\"{}\": {{\"enabled\": \"auto\"}}", block),
         "transformers 5.23.0, integrations/deepspeed.py (fill_match); accelerate 16cb6eb8, "
         "src/accelerate/utils/dataclasses.py (set_mixed_precision)",
         std::move(fix)});
  }
}

// micro-batch x accumulation x all ranks, as the Trainer counts them.
void check_whole_batch(const TrainerCase& c, std::int64_t gpus, Findings& out) {
  const Setting* const key = c.said("train_batch_size");
  if (key == nullptr || gpus == 0) return;
  try {
    const auto of = [&](std::string_view name) { return whole_of(c.argument(name), 1, 1 << 30); };
    const std::int64_t micro = of("--per_device_train_batch_size"),
                       steps = of("--gradient_accumulation_steps");
    const std::int64_t product = micro * steps * gpus;
    const bool known = std::any_of(out.begin(), out.end(),
                                   [](const Finding& f) { return f.rule == "batch_arithmetic"; });
    if (whole_of(key->value) == product || known) return;
    out.push_back(
        {error,
         "trainer_mismatch",
         key->place,
         fmt::format("train_batch_size is {}, and the Trainer has {} x {} x {} GPUs = {}: "
                     "it compares the two and stops",
                     text_of(key->value), micro, steps, gpus, product),
         "make them agree, or write \"auto\"",
         std::string(kSource),
         {}});
  } catch (const Error&) {
    return;  // what is no number is said elsewhere
  }
}

// Where ds_config.json does not say the accumulation, accelerate fills in 1 and DeepSpeed
// multiplies.
void check_unsaid_accumulation(const TrainerCase& c, std::int64_t ranks, Findings& out) {
  const Setting *const all = c.said("train_batch_size"), *const micro = c.said(
                                                             "train_micro_batch_size_per_gpu");
  if (all == nullptr || micro == nullptr || c.says("gradient_accumulation_steps")) return;
  try {
    const std::int64_t product = whole_of(micro->value, 1) * ranks;
    if (ranks == 0 || whole_of(all->value, 1) == product) return;
    out.push_back({error,
                   "batch_arithmetic",
                   all->place,
                   fmt::format("{} sequences a step are not micro-batch {} x accumulation 1, which "
                               "nobody says otherwise, x data-parallel {} = {}",
                               text_of(all->value), text_of(micro->value), ranks, product),
                   "add gradient_accumulation_steps",
                   "DeepSpeed edaa7221, deepspeed/runtime/config.py:937",
                   {}});
  } catch (const Error&) {
    return;  // what is no number is said elsewhere
  }
}

}  // namespace

void check_trainer(const Scene& scene, Findings& out) {
  const ConfigPart* const config = scene.files.find(Dialect::ds_config);
  const ConfigPart* const trainer = scene.files.find(Dialect::trainer);
  if (config == nullptr || trainer == nullptr || config->of_accelerate) return;
  // A file that only lies beside the script is nobody's.
  const auto known = std::count_if(
      trainer->settings.begin(), trainer->settings.end(),
      [](const Setting& s) { return known_options("trainer").find(s.key) != nullptr; });
  const Setting* const names = trainer->settings.find("--deepspeed");
  if (names == nullptr || is_switch_of_deepspeed(*trainer, *names) || known < 4) return;
  const TrainerCase c(*config, *trainer);
  if (!config->settings.has_section("zero_optimization") && !has_degrees_alone(*config)) {
    out.push_back({error,
                   "trainer_needs_zero",
                   config->place,
                   "a Trainer wants the block zero_optimization, and stops without it",
                   "\"zero_optimization\": {\"stage\": 0} shards nothing",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py (DeepSpeedPlugin)",
                   {}});
  }
  check_pairs(c, out);
  check_betas(c, out);
  check_formats(c, out);
  check_left_off(c, *config, out);
  check_unsaid_accumulation(c, scene.draft.plan.dp, out);
  const bool ranks_share = scene.draft.plan.cp > 1 || scene.draft.plan.tp > 1;
  if (!ranks_share) check_whole_batch(c, scene.question.limits.gpus, out);
}

}  // namespace qplan
