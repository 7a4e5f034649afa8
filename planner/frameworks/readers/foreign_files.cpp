#include "planner/frameworks/readers/foreign_files.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>

#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {
namespace {

struct NameCount {
  std::size_t known = 0, all = 0;
  [[nodiscard]] std::size_t unknown() const { return all - known; }
};

std::string outermost(const std::string& key) {
  return key.substr(0, key.find('.'));
}

std::string last_name(const std::string& key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1: none
}

std::set<std::string> outermost_names(const Settings& yaml) {
  std::set<std::string> names;
  for (const Setting& setting : yaml) names.insert(outermost(setting.key));
  return names;
}

template <class IsKnown>
NameCount count_names(const std::set<std::string>& names, IsKnown is_known) {
  const auto known = std::count_if(names.begin(), names.end(), is_known);
  return {static_cast<std::size_t>(known), names.size()};
}

// Whether all names that stand outermost are among these, two at least.
template <std::size_t N>
bool has_only(const Settings& yaml, const std::array<std::string_view, N>& sections) {
  const std::set<std::string> names = outermost_names(yaml);
  return names.size() > 1 && std::all_of(names.begin(), names.end(), [&](const auto& name) {
           return std::find(sections.begin(), sections.end(), name) != sections.end() &&
                  yaml.has_section(name + ".");
         });
}

constexpr std::array<std::string_view, 3> kFlagScale{"system", "model", "data"};

// Programs that are told by keys, all of which stand in the file ("a." is a section), or by what a
// value begins with.
struct Tool {
  std::string_view name;
  std::array<std::string_view, 3> keys;
  std::string_view value{};
};
constexpr auto kTools = std::to_array<Tool>({
    {"VeOmni", {"train.", "data.train_path", "train.micro_batch_size"}},
    {"litgpt", {"data.", "train.", ""}, "litgpt."},
    {"litgpt", {"train.global_batch_size", "train.micro_batch_size", "eval."}},
    {"AReaL", {"experiment_name", "cluster.n_nodes", "cluster.n_gpus_per_node"}},
    {"ROLL", {"num_gpus_per_node", "actor_train.", ""}},
    {"EasyR1", {"worker.actor.", "worker.rollout.", "trainer."}},
    {"open-instruct", {"model_name_or_path", "use_slow_tokenizer", "per_device_train_batch_size"}},
    {"open-instruct", {"model_name_or_path", "checkpointing_steps", "with_tracking"}},
    {"NeMo's first release", {"trainer.devices", "exp_manager.", "model."}},
    {"verl (its generation)", {"rollout.temperature", "data.n_samples", "trainer."}},
    {"verl's trainer of SFT", {"model.partial_pretrain", "data.train_batch_size", "trainer."}},
    {"PipelineRL", {"actor.", "finetune.", "world."}},
    {"SkyRL", {"generator.", "trainer.policy.", "trainer.placement."}},
    {"SkyRL (a part of it)", {"transformer_config_kwargs", "tensor_model_parallel_size", ""}},
    {"MindSpeed-LLM's trainer of FSDP2", {"parallel.fsdp_modules", "data.", "model."}},
    {"llm-foundry", {"max_seq_len", "device_train_microbatch_size", "model."}},
    {"SkyPilot (what its `run` starts may be read)", {"resources.", "run", ""}},
});

bool is_of(const Settings& yaml, const Tool& tool) {
  const bool keys = std::all_of(tool.keys.begin(), tool.keys.end(), [&](std::string_view key) {
    return key.empty() || (key.ends_with('.') ? yaml.has_section(std::string(key)) : yaml.has(key));
  });
  return keys &&
         (tool.value.empty() || std::any_of(yaml.begin(), yaml.end(), [&](const Setting& setting) {
            return text_of(setting.value).starts_with(tool.value);
          }));
}

bool is_part_of_verl(const Settings& yaml) {
  return std::any_of(yaml.begin(), yaml.end(), [](const Setting& setting) {
    const std::string value = text_of(setting.value);
    return (last_name(setting.key) == "_target_" && value.starts_with("verl.")) ||
           value.find("${oc.select:actor_rollout_ref.") != std::string::npos;
  });
}

// Of NeMo's jobs in Megatron-LM's functional tests: arguments by their paths.
bool is_job_of_nemo(const Settings& yaml) {
  return yaml.has_section("MODEL_ARGS.trainer.");
}

}  // namespace

bool is_of_gpt_neox(const Settings& keys) {
  // Each is spelled with either sign (megatron/neox_arguments).
  const auto has_key = [&](std::string_view name) {
    std::string other(name);
    std::replace(other.begin(), other.end(), '-', '_');
    return keys.has(name) || keys.has(other);
  };
  return (has_key("pipe-parallel-size") || has_key("model-parallel-size")) &&
         (has_key("num-layers") || has_key("hidden-size"));
}

std::string_view other_tool_of(const Settings& yaml) {
  if (is_of_gpt_neox(yaml)) return "GPT-NeoX";
  if (yaml.has("dist_config") || yaml.has("train_dataset") || yaml.has_section("dist_config.")) {
    return "LLaMA-Factory's second version";
  }
  if (yaml.has("defaults") && yaml.has_section("trainer.")) return "NeMo or verl";
  if (is_job_of_nemo(yaml)) return "NeMo";
  if (is_part_of_verl(yaml)) return "verl (a part of it)";
  if (has_only(yaml, kFlagScale) && yaml.has_section("system.")) return "FlagScale";
  if (yaml.has_section("modules.")) return "Primus";
  if (yaml.has_section("runtime_args.") && yaml.has_section("models.")) return "ChatLearn";
  for (const Tool& tool : kTools) {
    if (is_of(yaml, tool)) return tool.name;
  }
  return "";
}

bool is_composed(const Settings& yaml) {
  const auto of_files = [](const Setting& setting) {
    const auto names = list_of(setting.value);
    return setting.value.is_array() && !names.empty() &&
           std::all_of(names.begin(), names.end(),
                       [](const std::string& name) { return name.ends_with(".yaml"); });
  };
  return yaml.has("defaults") || yaml.has_section("defaults.") || yaml.has_section("modules.") ||
         std::any_of(yaml.begin(), yaml.end(), [&](const Setting& setting) {
           const bool outer = setting.key.find('.') == std::string::npos;
           return last_name(setting.key) == "_target_" || (outer && of_files(setting));
         });
}

bool has_sizes_of_megatron(const Settings& yaml) {
  constexpr std::array<std::string_view, 8> kKeys{"tensor_model_parallel_size",
                                                  "pipeline_model_parallel_size",
                                                  "context_parallel_size",
                                                  "expert_model_parallel_size",
                                                  "num_layers",
                                                  "hidden_size",
                                                  "num_attention_heads",
                                                  "use_distributed_optimizer"};
  return std::any_of(yaml.begin(), yaml.end(), [&](const Setting& setting) {
    const std::string name = setting.key.substr(setting.key.rfind('.') + 1);
    return std::find(kKeys.begin(), kKeys.end(), name) != kKeys.end();
  });
}

bool is_of_megatrons_names(const Settings& yaml) {
  // megatron/training/yaml_arguments.py at d98e8a64.
  constexpr std::array<std::string_view, 2> kSections{"language_model", "model_parallel"};
  if (is_composed(yaml)) return false;
  std::set<std::string> names, sections;
  bool flat = false;
  for (const Setting& setting : yaml) {
    names.insert(last_name(setting.key));
    if (setting.key.find('.') == std::string::npos) {
      flat = true;
    } else if (std::find(kSections.begin(), kSections.end(), outermost(setting.key)) ==
               kSections.end()) {
      sections.insert(outermost(setting.key));
    }
  }
  // One section may hold them all ("model:").
  if (sections.size() > 1 || (flat && !sections.empty())) return false;
  const OptionList& list = known_options("megatron");
  const NameCount count = count_names(names, [&](std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return list.find("--" + name) != nullptr;
  });
  return count.known * 5 >= count.all * 3;
}

bool is_of_accelerates_names(const Settings& yaml) {
  const OptionList& list = known_options("accelerate");
  const NameCount count = count_names(
      outermost_names(yaml), [&](const std::string& name) { return list.find(name) != nullptr; });
  return count.known * 2 >= count.all && !is_composed(yaml);
}

bool is_foreign_to_trl(const Settings& yaml) {
  const OptionList &trl = known_options("trl"), &trainer = known_options("trainer");
  const NameCount count = count_names(outermost_names(yaml), [&](const std::string& name) {
    return trl.find("--" + name) != nullptr || trainer.find("--" + name) != nullptr;
  });
  return count.unknown() >= 5 && count.known * 4 < count.all * 3;
}

bool is_written_by_swift(const Settings& json) {
  return json.has("swift_version") && (json.has("global_world_size") || json.has("model_meta"));
}

}  // namespace qplan
