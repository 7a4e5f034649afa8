#include "planner/frameworks/readers/recognise.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/readers/foreign_files.h"
#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

bool has_any(const Settings& settings, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return settings.has(key); });
}

// The same of names that may have dashes in place of underscores.
bool has_either(const Settings& settings, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) {
    std::string dashed(key);
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    return settings.has(key) || settings.has(dashed);
  });
}

bool is_slime(const Settings& settings) {
  return has_any(settings, {"--rollout-batch-size", "--actor-num-nodes", "--colocate",
                            "--n-samples-per-prompt", "--rollout-num-gpus-per-engine",
                            "--max-tokens-per-gpu"});
}

bool is_trainer(const Settings& settings) {
  return has_any(settings, {"--per_device_train_batch_size", "--model_name_or_path",
                            "--per-device-train-batch-size", "--gradient_checkpointing"});
}

bool is_megatron(const Settings& settings) {
  return has_any(settings,
                 {"--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--num-layers",
                  "--hidden-size", "--micro-batch-size", "--expert-model-parallel-size",
                  "--use-distributed-optimizer", "--recompute-granularity", "--moe-router-topk",
                  "--context-parallel-size"});
}

// "--zero-stage" is other programs' word, too: of one of them that has none of Megatron's it is
// theirs.
bool is_megatron_deepspeed(const Settings& settings, const std::string& script) {
  const bool own = has_any(settings, {"--ds-sequence-parallel-size", "--no-pipeline-parallel",
                                      "--deepspeed-activation-checkpointing"});
  const bool fork = own || (settings.has("--zero-stage") && !is_own_script(settings, script));
  return fork || (is_megatron(settings) &&
                  has_any(settings, {"--deepspeed", "--deepspeed_config", "--deepspeed-config"}));
}

// Many words of a Trainer's, and one of Megatron's that it has not: a slip of whoever wrote them.
bool is_mostly_trainers(const Settings& settings) {
  constexpr std::ptrdiff_t kMany = 8;
  const OptionList &trainer = known_options("trainer"), &megatron = known_options("megatron");
  const auto is_own = [&](const Setting& s) {
    return trainer.find(s.key) != nullptr && s.key.find('_') != std::string::npos;
  };
  const auto is_megatrons = [&](const Setting& s) {
    return trainer.find(s.key) == nullptr && megatron.find(s.key) != nullptr;
  };
  return std::count_if(settings.begin(), settings.end(), is_own) >= kMany &&
         std::count_if(settings.begin(), settings.end(), is_megatrons) <= 1;
}

// By its lines, or by its name where DeepSpeed would take none of them.
bool is_hostfile(const ConfigText& file) {
  if (file.text.find("--") != std::string::npos) return false;
  const bool named = base_name(file.name).find("hostfile") != std::string::npos;
  return named || file.text.find(" slots=") != std::string::npos ||
         file.text.find("\tslots=") != std::string::npos;
}

}  // namespace

FileKind file_kind_of(const ConfigText& file) {
  const std::filesystem::path path(file.name);
  const std::string extension = path.extension().string();
  const std::size_t start = file.text.find_first_not_of(" \t\r\n", byte_order_mark(file.text));
  if (start == std::string::npos) return FileKind::empty;
  if (extension == ".md" || path.filename() == kHostsFile) return FileKind::prose;
  if (extension == ".json" || file.text[start] == '{') return FileKind::json;
  if (extension == ".yaml" || extension == ".yml") return FileKind::yaml;
  if (extension == ".py") return FileKind::python;
  if (extension == ".toml") return FileKind::toml;
  return is_hostfile(file) ? FileKind::hostfile : FileKind::script;
}

JsonKind json_kind_of(const Settings& settings) {
  if (settings.has("fingerprint") && settings.has_section("plan.")) return JsonKind::plan;
  if (has_any(settings, {"architectures", "model_type"})) return JsonKind::model;
  if (settings.has_section("fsdp_config.")) return JsonKind::fsdp;
  const bool deepspeed = has_any(settings, {"train_batch_size", "train_micro_batch_size_per_gpu",
                                            "gradient_accumulation_steps"}) ||
                         settings.has_section("zero_optimization") ||
                         settings.has_section("fp16.") || settings.has_section("bf16.");
  return deepspeed ? JsonKind::ds_config : JsonKind::unknown;
}

Dialect dialect_of(const Settings& arguments, const std::string& script) {
  if (is_slime(arguments)) return Dialect::slime;
  if (is_trainer(arguments) && is_mostly_trainers(arguments)) return Dialect::trainer;
  if (is_megatron_deepspeed(arguments, script)) return Dialect::megatron_deepspeed;
  if (script.find("torchtitan") != std::string::npos) return Dialect::torchtitan;
  if (is_trainer(arguments) && !is_megatron(arguments)) return Dialect::trainer;
  return Dialect::megatron;
}

bool is_own_script(const Settings& arguments, const std::string& script) {
  return !is_megatron(arguments) && !script.empty() &&
         base_name(script).find("pretrain") == std::string::npos;
}

bool is_of_megatron(const std::string& script) {
  constexpr std::array<std::string_view, 7> kScripts{
      "pretrain_gpt.py",  "pretrain_hybrid.py", "pretrain_mamba.py", "pretrain_vlm.py",
      "pretrain_bert.py", "pretrain_t5.py",     "train_rl.py"};
  return std::find(kScripts.begin(), kScripts.end(), base_name(script)) != kScripts.end();
}

bool is_megatron_yaml(const Settings& yaml) {
  return has_sizes_of_megatron(yaml) && is_of_megatrons_names(yaml);
}

// Keys that the documentation of each has its examples begin with.
bool is_llama_factory(const Settings& yaml) {
  return has_any(yaml, {"model_name_or_path"}) &&
         has_any(yaml, {"finetuning_type", "stage", "template", "cutoff_len", "lora_target"});
}

bool is_axolotl(const Settings& yaml) {
  return has_any(yaml, {"base_model"}) &&
         (has_any(yaml, {"micro_batch_size", "sequence_len", "num_epochs", "adapter",
                         "val_set_size", "sample_packing", "flash_attention", "load_in_8bit",
                         "load_in_4bit", "pretraining_dataset"}) ||
          yaml.has_section("datasets"));
}

bool is_ms_swift(const Settings& yaml) {
  if (has_either(yaml, {"sampler_engine", "num_return_sequences"})) return false;
  return has_either(yaml, {"model", "mcore_model", "adapters", "load_args"}) &&
         has_either(yaml, {"dataset", "cached_dataset", "tuner_type", "rlhf_type", "template"}) &&
         (has_either(yaml, {"tuner_type", "rlhf_type", "per_device_train_batch_size",
                            "micro_batch_size", "dataset_num_proc", "max_length"}));
}

bool is_ms_swift_megatron(const Settings& yaml) {
  return has_either(yaml, {"micro_batch_size", "global_batch_size", "tensor_model_parallel_size",
                           "expert_model_parallel_size", "recompute_granularity", "train_iters"});
}

bool is_trl(const Settings& yaml) {
  // Mixtures are named so by TRL itself and by programs around it.
  const bool has_data = has_any(yaml, {"dataset_name", "dataset_config", "datasets"}) ||
                        yaml.has_section("dataset_mixture") || yaml.has_section("dataset_mixer");
  return has_any(yaml, {"model_name_or_path"}) && has_data && !is_llama_factory(yaml) &&
         !is_foreign_to_trl(yaml);
}

namespace {

bool has_parts_of_torchtune(const Settings& yaml) {
  return std::any_of(yaml.begin(), yaml.end(), [](const Setting& setting) {
    return setting.key.ends_with("_component_") && text_of(setting.value).starts_with("torchtune.");
  });
}

// Its recipes train one model of the file, whatever else stands beside it.
bool trains_by_torchtune(const Settings& yaml) {
  return yaml.has_section("model.") && yaml.has_section("optimizer.") &&
         yaml.has_section("loss.") && !yaml.has("ppo_epochs") && !yaml.has("grpo_samples");
}

}  // namespace

bool is_torchtune(const Settings& yaml) {
  return has_parts_of_torchtune(yaml) && trains_by_torchtune(yaml);
}

bool is_torchtune_of_others(const Settings& yaml) {
  return has_parts_of_torchtune(yaml) && !trains_by_torchtune(yaml);
}

bool is_automodel(const Settings& yaml) {
  const Setting* const model = yaml.find("model._target_");
  const bool of_nemo =
      model != nullptr && text_of(model->value).find("NeMoAutoModel") != std::string::npos;
  const bool recipe = has_any(yaml, {"recipe"});
  const bool schedule = yaml.has("step_scheduler.local_batch_size");
  // A block may be misspelt: a model of its own and a recipe tell as much.
  return yaml.has_section("model.") &&
         ((of_nemo && recipe) ||
          (schedule && (of_nemo || recipe || yaml.has_section("distributed.")))) &&
         !is_automodel_of_others(yaml);
}

bool is_automodel_of_others(const Settings& yaml) {
  const Setting* const recipe = yaml.find("recipe");
  if (recipe == nullptr) return false;
  const std::string name = text_of(recipe->value);
  const bool trains = name.find("NextTokenPrediction") != std::string::npos ||
                      name.find("VLM") != std::string::npos;
  return name.find("Recipe") != std::string::npos && !trains;
}

bool is_nanotron(const Settings& yaml) {
  const auto sections = {"general.", "tokens.", "parallelism.", "optimizer.",
                         "model.model_config."};
  const auto there = std::count_if(sections.begin(), sections.end(), [&](std::string_view section) {
    return yaml.has_section(section);
  });
  // One of them may be misspelt.
  return there >= 4 || (yaml.has_section("general.") && yaml.has_section("tokens.") &&
                        yaml.has_section("parallelism."));
}

bool is_torchtitan_toml(const Settings& toml) {
  const OptionList &list = known_options("torchtitan_toml"),
                   &older = known_options("torchtitan_toml_older");
  std::set<std::string> tables;
  std::size_t known = 0;
  for (const Setting& setting : toml) tables.insert(setting.key.substr(0, setting.key.find('.')));
  for (const std::string& table : tables) {
    if (has_block(list, table) || has_block(older, table)) ++known;
  }
  const bool trains =
      toml.has_section("training.") || toml.has_section("parallelism.") || toml.has("model.flavor");
  return trains && known >= 2 && known * 2 >= tables.size();
}

bool is_accelerate(const Settings& yaml) {
  const bool named = has_any(yaml, {"compute_environment"}) || yaml.has_section("fsdp_config.") ||
                     distributed_type_of(yaml).said != nullptr;
  return named && is_of_accelerates_names(yaml);
}

bool is_accelerate_deepspeed(const Settings& yaml) {
  return distributed_type_of(yaml).meant == "DEEPSPEED";
}

std::string base_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace qplan
