#include "planner/frameworks/rl/verl_keys.h"

#include <algorithm>
#include <array>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan::verl {

std::string program_of(const Settings& settings) {
  const Setting* const program = settings.find(kProgram);
  return program == nullptr ? "" : text_of(program->value);
}

namespace {

// Programs whose whole configuration is known: ppo_trainer's, and what their own adds on top (of a
// section all keys).
struct Listed {
  std::string_view program;  // its end
  std::string_view config;   // begins their names beside ppo_trainer and ppo_megatron_trainer
  std::array<std::string_view, 9> adds;
};
constexpr auto kListed = std::to_array<Listed>({
    {"verl.trainer.main_ppo", "", {}},
    // verl b178a3cd, verl/experimental/one_step_off_policy/config.
    {"one_step_off_policy.main_ppo",
     "one_step_off_ppo",
     {"rollout.nnodes", "rollout.n_gpus_per_node"}},
    // verl-recipe 48ea0a7, dapo/config/dapo_trainer.yaml; before verl's rewards had a section of
    // their own (verl c936ec7d5, recipe/dapo/config/dapo_trainer.yaml) under reward_model.
    {"recipe.dapo.main_dapo",
     "dapo",
     {"data.gen_batch_size", "algorithm.filter_groups.", "reward.reward_manager.name",
      "reward.reward_kwargs.", "reward_model.reward_manager", "reward_model.overlong_buffer.",
      "reward_model.reward_kwargs."}},
});

const Listed* listed_program(const std::string& program) {
  const std::string name = base_name(program);
  const auto* const found = std::find_if(kListed.begin(), kListed.end(), [&](const Listed& row) {
    return row.program.starts_with("verl.") ? name == row.program : name.ends_with(row.program);
  });
  return found == kListed.end() ? nullptr : found;
}

// Its own configurations that begin with ppo_trainer's.
bool begins_with(std::string_view name, const Listed& program) {
  return name.empty() || name == "ppo_trainer" || name == "ppo_megatron_trainer" ||
         (!program.config.empty() && name.starts_with(program.config));
}

std::string config_name(const Settings& settings) {
  const Setting* const name = settings.find("--config-name");
  if (name == nullptr || !name->resolved) return name == nullptr ? "" : "?";
  std::string text = text_of(name->value);
  for (const std::string_view end : {".yaml", ".yml"}) {
    if (text.ends_with(end)) text.resize(text.size() - end.size());
  }
  return text;
}

std::string word_of_key(const Settings& settings, std::string_view name) {
  const Setting* const found = settings.find(name);
  return found == nullptr || !found->resolved ? "" : text_of(found->value);
}

}  // namespace

bool is_recipe(const Settings& settings) {
  const std::string program = program_of(settings);
  return program.find("recipe.") != std::string::npos ||
         program.find("recipe/") != std::string::npos;
}

bool is_sft_program(std::string_view program) {
  return program.find("sft_trainer") != std::string_view::npos;
}

bool is_sft(const Settings& settings) {
  return is_sft_program(program_of(settings));
}

bool is_megatron(const Settings& settings) {
  const std::string strategy = word_of_key(settings, key(kActor, "strategy"));
  if (!strategy.empty()) return strategy == "megatron";
  // Groups of newer releases: "model_engine=megatron", of SFT "engine=megatron".
  for (const std::string_view group : {"model_engine", "engine"}) {
    if (word_of_key(settings, group) == "megatron") return true;
  }
  if (config_name(settings).find("megatron") != std::string::npos) return true;
  return settings.has_section("actor_rollout_ref.actor.megatron.");
}

const OptionList* defaults_of(const Settings& settings) {
  if (is_sft(settings)) return nullptr;
  return &known_options(is_megatron(settings) ? "verl_megatron" : "verl");
}

bool has_listed_keys(const Settings& settings) {
  const Listed* const program = listed_program(program_of(settings));
  return program != nullptr && begins_with(config_name(settings), *program);
}

bool is_added_key(const Settings& settings, std::string_view name) {
  const Listed* const program = listed_program(program_of(settings));
  if (program == nullptr) return false;
  return std::any_of(program->adds.begin(), program->adds.end(), [&](std::string_view added) {
    return added.ends_with('.') ? name.starts_with(added) : name == added;
  });
}

Numbers::Numbers(const OmegaConfig& c, bool megatron, std::int64_t of_job) {
  gpus = of_job;
  if (c.said("rollout.nnodes") != nullptr || c.said("rollout.n_gpus_per_node") != nullptr) {
    const std::int64_t engines =
        c.whole("rollout.nnodes", 1) * c.whole("rollout.n_gpus_per_node", 8);
    const std::int64_t trainers =
        c.whole("trainer.nnodes", 1) * c.whole("trainer.n_gpus_per_node", 8);
    // Of other GPUs than the files say, the same share.
    rollout_gpus = engines + trainers == gpus ? engines : gpus * engines / (engines + trainers);
  }
  prompts = std::max<std::int64_t>(1, c.whole("data.train_batch_size", 1024));
  samples = std::max<std::int64_t>(1, c.whole(key(kRollout, "n"), 1));
  mini = std::max<std::int64_t>(1, c.whole(key(kActor, "ppo_mini_batch_size"), 256));
  longest = c.whole("data.max_prompt_length", 512) + c.whole("data.max_response_length", 512);
  const auto degree = [&](std::string_view name) {
    return static_cast<int>(std::clamp<std::int64_t>(c.whole(key(kActor, name), 1), 1, 1 << 20));
  };
  if (megatron) {
    parts = degree("megatron.context_parallel_size");
    split = parts * degree("megatron.tensor_model_parallel_size") *
            degree("megatron.pipeline_model_parallel_size");
  } else {
    const int own = degree("fsdp_config.ulysses_sequence_parallel_size");
    split = parts = std::max(own, degree("ulysses_sequence_parallel_size"));
  }
}

}  // namespace qplan::verl
