#include "planner/frameworks/emit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "models/error.h"
#include "models/plan/words.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/kinds_of_nodes.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/swift.h"
#include "planner/frameworks/pretraining/nanotron.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/written_step.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

constexpr auto kOtherNames =
    std::to_array<std::pair<std::string_view, Framework>>({{"accelerate", Framework::fsdp2}});

bool adapts(const Subject& s) {
  return s.plan.lora_rank > 0;
}

// Who has no words for adapters.
constexpr Limit kFlagsAdapters{"megatron_adapters", adapts, [](const Subject&) {
                                 return std::string(
                                     "Megatron's arguments have no adapters (LoRA): "
                                     "Megatron-Bridge's recipes have; use megatron-bridge");
                               }};
constexpr Limit kScriptAdapters{
    "script_adapters", adapts, [](const Subject&) {
      return std::string(
          "adapters (LoRA) are made by the training script, with PEFT, "
          "and these files are of its launcher; use trl, or megatron-bridge");
    }};
constexpr Limit kNanotronAdapters{"nanotron_adapters", adapts, [](const Subject&) {
                                    return std::string(
                                        "nanotron has no adapters (LoRA); use trl, or "
                                        "megatron-bridge");
                                  }};
constexpr Limit kTitanAdapters{"torchtitan_adapters", adapts, [](const Subject&) {
                                 return std::string(
                                     "qplan writes no adapters (LoRA) for torchtitan; use "
                                     "trl, or megatron-bridge");
                               }};

// Files of torch's and Hugging Face's trainers leave attention to the model or to torch.
constexpr Limit kOwnAttention{
    "attention_of_files",
    [](const Subject& s) {
      return (kTorch | kHuggingFace).has(s.recipe) &&
             s.plan.attention_backend != AttentionBackend::automatic;
    },
    [](const Subject&) {
      return std::string(
          "qplan writes no choice of attention into these files; leave attention_backend out");
    }};

// A Trainer's accelerator_config and NeMo AutoModel's YAML say it, and no other file that qplan
// writes.
constexpr Limit kReducesEach{
    "sync_of_files", [](const Subject& s) { return !s.plan.sync_each_batch; },
    [](const Subject&) {
      return std::string(
          "these files have no word for whole sums of gradients; leave sync_each_batch out");
    }};

// A Trainer's gradient_checkpointing_kwargs ask for them; accelerate's own checkpoints never are.
constexpr Limit kOtherCheckpoints{
    "reentrant_of_files",
    [](const Subject& s) {
      return s.plan.use_reentrant && s.recipe != RecipeKind::deepspeed &&
             s.recipe != RecipeKind::ddp;
    },
    [](const Subject&) {
      return std::string(
          "the checkpoints of these files are not reentrant; leave use_reentrant out");
    }};

// Of the files that qplan writes, accelerate's yaml, a Trainer's arguments and Megatron-DeepSpeed's
// send checkpoints to the host.
constexpr Limit kCheckpointsStay{
    "checkpoints_of_files",
    [](const Subject& s) {
      return kOffloadsCheckpoints.has(s.recipe) && s.plan.offload.activation_layers != 0;
    },
    [](const Subject&) {
      return std::string(
          "in these files checkpoints stay on the device; leave activations out of offload");
    }};

bool offloads_checkpoints(Framework framework) {
  return framework == Framework::deepspeed || framework == Framework::megatron_deepspeed ||
         framework == Framework::fsdp2 || framework == Framework::trl;
}

bool sums_gradients(Framework framework) {
  return framework == Framework::fsdp2 || framework == Framework::trl ||
         framework == Framework::ms_swift || framework == Framework::automodel;
}

std::span<const Limit> only(const Limit& limit) {
  return {&limit, 1};
}

std::vector<std::span<const Limit>> own_limits(Framework framework, RecipeKind recipe) {
  switch (framework) {
    case Framework::megatron:
      return {megatron_limits(), only(kFlagsAdapters)};
    case Framework::megatron_bridge:
      return {megatron_limits(), bridge_limits()};
    case Framework::deepspeed:
      return {deepspeed_limits(), trainer_limits(), only(kScriptAdapters)};
    case Framework::megatron_deepspeed:
      return {megatron_deepspeed_limits(), only(kFlagsAdapters)};
    case Framework::fsdp2:
      return {accelerate_limits(), accelerate_mesh_limits(), trainer_limits(),
              only(kScriptAdapters)};
    case Framework::torchtitan:
      return {torchtitan_limits(), only(kTitanAdapters)};
    case Framework::slime:
      return {megatron_limits(), step_limits(), slime_limits(), only(kFlagsAdapters)};
    case Framework::verl:
      return {rl_limits(), step_limits(), verl_limits()};
    case Framework::nemo_rl:
      return {rl_limits(), step_limits(), nemo_rl_limits()};
    case Framework::automodel:
      if (recipe == RecipeKind::fsdp2_compile) {
        return {torchtitan_limits(), automodel_limits(), automodel_spread_limits()};
      }
      return {accelerate_limits(), trainer_limits(), automodel_limits()};
    case Framework::ms_swift:
      if (recipe == RecipeKind::deepspeed)
        return {deepspeed_limits(), trainer_limits(), swift_limits()};
      if (recipe == RecipeKind::fsdp2)
        return {accelerate_limits(), accelerate_mesh_limits(), trainer_limits(), swift_limits()};
      return {megatron_limits(), swift_megatron_limits()};
    case Framework::trl:
      if (recipe == RecipeKind::deepspeed)
        return {deepspeed_limits(), trainer_limits(), trl_limits()};
      if (recipe == RecipeKind::ddp) return {ddp_limits(), trainer_limits(), trl_limits()};
      return {accelerate_limits(), accelerate_mesh_limits(), trainer_limits(), trl_limits()};
    case Framework::nanotron:
      return {nanotron_limits(), only(kNanotronAdapters)};
  }
  return {};
}

std::vector<std::span<const Limit>> limits_of(Framework framework, RecipeKind recipe) {
  std::vector<std::span<const Limit>> limits = own_limits(framework, recipe);
  limits.insert(limits.end(),
                {only(kOwnAttention), only(kOtherCheckpoints)});  // whoever's the file is
  if (!sums_gradients(framework)) limits.push_back(only(kReducesEach));
  if (!offloads_checkpoints(framework)) limits.push_back(only(kCheckpointsStay));
  return limits;
}

// Bridge's recipes bring layers that qplan does not write as Megatron's flags, and its training
// takes the loss that Megatron-LM's refuses, and settings that no flag has. ms-swift reads the
// model's own configuration.
bool holds_for(Framework framework, const Limit& limit) {
  if (framework == Framework::ms_swift) {
    return limit.rule != "whole_rotary_base" && limit.rule != "loss_of_te";
  }
  if (framework == Framework::automodel) {  // whose models are none of torchtitan's
    return limit.rule != "torchtitan_model" && limit.rule != "torchtitan_positions";
  }
  return framework != Framework::megatron_bridge ||
         (limit.rule != "unwritten_attention" && limit.rule != "whole_rotary_base" &&
          limit.rule != "loss_of_te" && limit.rule != "flags_fp8_attention");
}

}  // namespace

std::optional<Framework> files_named(std::string_view name) {
  for (const auto& [alias, framework] : kOtherNames) {
    if (same_word(alias, name)) return framework;
  }
  const auto framework = try_from_word<Framework>(name);
  return framework && is_written(*framework) ? framework : std::nullopt;
}

std::vector<std::string_view> files_words() {
  std::vector<std::string_view> words;
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (is_written(framework)) words.push_back(word);
  }
  for (const auto& [alias, framework] : kOtherNames) words.push_back(alias);
  return words;
}

Framework written_framework(std::string_view name) {
  if (const auto framework = files_named(name)) return *framework;
  const std::vector<std::string_view> words = files_words();
  if (const auto read = try_from_word<Framework>(name)) {
    throw Error(
        fmt::format("{}'s files are read by `qplan check` and not written; choose one of {}",
                    to_word(*read), fmt::join(words, ", ")));
  }
  const std::string hint = did_you_mean(name, {words.begin(), words.end()});
  throw Error(fmt::format("framework '{}' is unknown; choose one of {}{}", shown(name),
                          fmt::join(words, ", "), hint));
}

RecipeKind recipe_for(Framework framework, RecipeKind of_plan) {
  switch (framework) {
    case Framework::ms_swift:
      if (of_plan == RecipeKind::deepspeed || of_plan == RecipeKind::fsdp2) return of_plan;
      [[fallthrough]];
    case Framework::megatron:
      return of_plan == RecipeKind::megatron_fsdp ? of_plan : RecipeKind::megatron;
    case Framework::megatron_bridge:
    case Framework::slime:
      return RecipeKind::megatron;
    case Framework::deepspeed:
      return RecipeKind::deepspeed;
    case Framework::megatron_deepspeed:
      return RecipeKind::megatron_deepspeed;
    case Framework::automodel:
      return of_plan == RecipeKind::fsdp2_compile ? of_plan : RecipeKind::fsdp2;
    case Framework::fsdp2:
      return RecipeKind::fsdp2;
    case Framework::trl:
      if (of_plan == RecipeKind::deepspeed || of_plan == RecipeKind::ddp) return of_plan;
      return RecipeKind::fsdp2;
    case Framework::torchtitan:
      return RecipeKind::fsdp2_compile;
    case Framework::nanotron:
      return RecipeKind::nanotron;
    case Framework::verl:
    case Framework::nemo_rl:
      return of_plan == RecipeKind::fsdp2 ? of_plan : RecipeKind::megatron;
  }
  return RecipeKind::megatron;
}

RecipeKind usual_recipe(Framework framework, const Json& config, std::int64_t gpus) {
  const bool spreads =
      framework == Framework::automodel && gpus > 1 && automodel_has_experts(config);
  return recipe_for(framework, spreads ? RecipeKind::fsdp2_compile : RecipeKind::megatron);
}

bool has_files_of(Framework framework, const ModelSpec& model) {
  const ParallelPlan plan;
  const Json config;
  const Subject subject{model, config, plan, recipe_for(framework, RecipeKind::megatron)};
  for (const auto& table : limits_of(framework, subject.recipe)) {
    for (const Limit& limit : table) {
      if (limit.asks == Asks::model && holds_for(framework, limit) && limit.broken(subject))
        return false;
    }
  }
  return true;
}

std::optional<Framework> files_of(RecipeKind recipe, const ModelSpec& model,
                                  const ParallelPlan& plan) {
  std::optional<Framework> first;
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework) || recipe_for(framework, recipe) != recipe) continue;
    if (writes_steps(framework)) continue;  // they are written where they are asked for
    // So are its stages and experts: layers of its own, of which torchtitan's are a stand-in.
    if (framework == Framework::automodel && recipe == RecipeKind::fsdp2_compile) continue;
    const auto tables = limits_of(framework, recipe);
    const bool lacks_words =
        plan.lora_rank > 0 && std::any_of(tables.begin(), tables.end(), [](const auto& table) {
          return std::any_of(table.begin(), table.end(),
                             [](const Limit& limit) { return limit.broken == adapts; });
        });
    if (!lacks_words && has_files_of(framework, model)) return framework;
    if (!first) first = framework;
  }
  return first;
}

std::vector<std::string_view> refusals(Framework framework, const Subject& subject,
                                       const ClusterLimits& limits) {
  auto ids = broken_rules(subject.model, subject.plan, recipe_of(subject.recipe), limits);
  if (!ids.empty() && ids.front() == "positive_sizes") return ids;
  for (const auto& table : limits_of(framework, subject.recipe)) {
    for (const Limit& limit : table) {
      if (holds_for(framework, limit) && limit.broken(subject)) ids.push_back(limit.rule);
    }
  }
  if (const auto unordered = kinds_unordered(framework, limits)) ids.push_back(unordered->rule);
  return ids;
}

std::vector<const Limit*> limits_of_plans(Framework framework, const Subject& job) {
  std::vector<const Limit*> limits;
  for (const auto& table : limits_of(framework, job.recipe)) {
    for (const Limit& limit : table) {
      if (limit.asks == Asks::model || !holds_for(framework, limit)) continue;
      if (limit.asks == Asks::plan || limit.broken(job)) limits.push_back(&limit);
    }
  }
  return limits;
}

std::vector<Infeasible> why_inexpressible(Framework framework, const Subject& subject,
                                          const ClusterLimits& limits) {
  auto reasons = why_infeasible(subject.model, subject.plan, recipe_of(subject.recipe), limits);
  if (!reasons.empty() && reasons.front().rule == "positive_sizes") return reasons;
  for (const auto& table : limits_of(framework, subject.recipe)) {
    for (const Limit& limit : table) {
      if (!holds_for(framework, limit) || !limit.broken(subject)) continue;
      reasons.push_back({limit.rule, limit.message(subject)});
    }
  }
  if (auto unordered = kinds_unordered(framework, limits)) reasons.push_back(*std::move(unordered));
  return reasons;
}

std::vector<WrittenOption> written(std::span<const Option> options, const Subject& subject) {
  std::vector<WrittenOption> result;
  for (const Option& option : options) {
    Json value = option.write(subject);
    if (!value.is_null()) result.push_back({std::string(option.key), std::move(value)});
  }
  return result;
}

std::vector<WrittenOption> written(std::span<const Fact> facts, const Subject& subject) {
  std::vector<WrittenOption> result;
  for (const Fact& fact : facts) {
    Json value = fact.write(subject);
    if (!value.is_null()) result.push_back({std::string(fact.key), std::move(value)});
  }
  return result;
}

std::vector<std::string> left_unsaid(Framework framework, const Subject& subject) {
  std::vector<std::string> remarks;
  const ModelSpec& model = subject.model;
  const auto& scaling = model.rope_scaling;
  // Megatron-Bridge reads the model's own configuration.
  const bool flags = framework == Framework::megatron || framework == Framework::slime;
  if (flags && model.mla && scaling && scaling->kind == RopeScalingKind::yarn) {
    // MLATransformerConfig's defaults, of which the parser makes no flags (Megatron-LM d98e8a64,
    // megatron/core/transformer/transformer_config.py:3318-3325).
    const std::array<std::tuple<std::string_view, double, double>, 3> numbers{
        {{"beta_fast", scaling->beta_fast, 32},
         {"beta_slow", scaling->beta_slow, 1},
         {"original_max_position_embeddings", scaling->original_positions, 4096}}};
    for (const auto& [name, value, taken] : numbers) {
      if (value == taken || value == 0) continue;
      remarks.push_back(fmt::format(
          "not said: Megatron-LM has no flag for {} of latent attention's YaRN, which is {} in {} "
          "and {} there; positions turn at other rates until its code says {}",
          name, value, model.name, taken, value));
    }
  }
  const TorchtitanModel* const titan =
      framework == Framework::torchtitan ? torchtitan_model(model.name) : nullptr;
  if (titan != nullptr && titan->leaves_mtp_out) {
    remarks.push_back(fmt::format(
        "not trained: the {} that predict{} further tokens, which torchtitan's own recipes of the "
        "model leave out; the prediction counts {}",
        model.num_mtp_layers == 1 ? "layer" : "layers", model.num_mtp_layers == 1 ? "s" : "",
        model.num_mtp_layers == 1 ? "it" : "them"));
  }
  return remarks;
}

namespace {

std::vector<EmittedFile> files_with(Framework framework, const Subject& subject,
                                    const std::vector<std::string>& remarks) {
  switch (framework) {
    case Framework::megatron:
      return write_megatron(subject, remarks);
    case Framework::megatron_bridge:
      return write_bridge(subject, remarks);
    case Framework::deepspeed:
      return write_deepspeed(subject, remarks);
    case Framework::megatron_deepspeed:
      return write_megatron_deepspeed(subject, remarks);
    case Framework::fsdp2:
      return write_fsdp2(subject, remarks);
    case Framework::torchtitan:
      return write_torchtitan(subject, remarks);
    case Framework::slime:
      return write_slime(subject, remarks);
    case Framework::verl:
      return write_verl(subject, remarks);
    case Framework::nemo_rl:
      return write_nemo_rl(subject, remarks);
    case Framework::ms_swift:
      return write_swift(subject, remarks);
    case Framework::automodel:
      return write_automodel(subject, remarks);
    case Framework::trl:
      return write_trl(subject, remarks);
    case Framework::nanotron:
      break;
  }
  return {};
}

}  // namespace

std::vector<EmittedFile> emit(Framework framework, const Subject& subject,
                              const std::vector<std::string>& given) {
  std::vector<std::string> remarks = given;
  const auto unsaid = left_unsaid(framework, subject);
  remarks.insert(remarks.end(), unsaid.begin(), unsaid.end());
  if (!on_several_kinds(subject)) return files_with(framework, subject, remarks);
  remarks.push_back(kinds_remark(framework, subject));
  std::vector<EmittedFile> files = files_with(framework, subject, remarks);
  const auto of_slurm = [](const EmittedFile& file) { return file.name == "train.sbatch"; };
  if (std::any_of(files.begin(), files.end(), of_slurm)) files.push_back(hosts_file(subject));
  return files;
}

}  // namespace qplan
