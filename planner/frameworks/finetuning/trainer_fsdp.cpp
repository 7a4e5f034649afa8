#include "planner/frameworks/finetuning/trainer_fsdp.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"

namespace qplan {
namespace {

// Names that accelerate's yaml has for the same.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kOfYaml{
    {{"version", "fsdp_version"}, {"cpu_offload", "fsdp_offload_params"}}};

std::string key_of_yaml(const std::string& name) {
  for (const auto& [own, yaml] : kOfYaml) {
    if (name == own) return "fsdp_config." + std::string(yaml);
  }
  return "fsdp_config.fsdp_" + name;
}

bool is_fsdp_on(const Setting* fsdp) {
  if (fsdp == nullptr || !fsdp->resolved) return false;
  const std::string text = lower_case(text_of(fsdp->value));
  return !text.empty() && text != "false" && text != "none";
}

// The strategy among the words of --fsdp; empty: it is a switch, or says none.
std::string strategy_of(const Setting& fsdp) {
  constexpr std::array<std::string_view, 5> kStrategies{"hybrid_shard_zero2", "hybrid_shard",
                                                        "full_shard", "shard_grad_op", "no_shard"};
  const std::string words = lower_case(text_of(fsdp.value));
  for (const std::string_view strategy : kStrategies) {
    if (words.find(strategy) != std::string::npos) return std::string(strategy);
  }
  return "";
}

}  // namespace

const std::vector<std::string>& fsdp_keys_of_trainer() {
  static const std::vector<std::string> kKeys{"activation_checkpointing",
                                              "auto_wrap_policy",
                                              "backward_prefetch",
                                              "cpu_offload",
                                              "cpu_ram_efficient_loading",
                                              "forward_prefetch",
                                              "limit_all_gathers",
                                              "min_num_params",
                                              "reshard_after_forward",
                                              "state_dict_type",
                                              "sync_module_states",
                                              "transformer_layer_cls_to_wrap",
                                              "use_orig_params",
                                              "version",
                                              "xla",
                                              "xla_fsdp_grad_ckpt",
                                              "xla_fsdp_settings",
                                              "xla_fsdp_v2"};
  return kKeys;
}

std::string without_fsdp(const std::string& key) {
  constexpr std::string_view kPrefix = "fsdp_";
  return key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
}

bool is_fsdp_of_trainer(const Settings& json) {
  const std::vector<std::string>& known = fsdp_keys_of_trainer();
  return !json.empty() && std::all_of(json.begin(), json.end(), [&](const Setting& setting) {
    const std::string outermost = setting.key.substr(0, setting.key.find('.'));
    return std::find(known.begin(), known.end(), without_fsdp(outermost)) != known.end();
  });
}

Settings accelerate_of_trainer(const Settings& trainer) {
  Settings yaml;
  const Setting* const fsdp = trainer.find("--fsdp");
  if (!is_fsdp_on(fsdp)) return yaml;
  const std::string strategy = strategy_of(*fsdp);
  if (strategy == "no_shard") return yaml;
  yaml.add({"distributed_type", "FSDP", fsdp->place});
  for (Setting setting : trainer) {
    if (!setting.key.starts_with(kTrainersFsdp)) continue;
    setting.key = key_of_yaml(without_fsdp(setting.key.substr(kTrainersFsdp.size())));
    yaml.add(std::move(setting));
  }
  const auto say = [&](const std::string& name, Json value) {
    const std::string key = "fsdp_config." + name;
    if (!yaml.has(key)) yaml.add({key, std::move(value), fsdp->place});
  };
  // Words are the first FSDP's, as releases before 5 had them all.
  say("fsdp_version", strategy.empty() ? 2 : 1);
  say("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
  const bool second = same_value(yaml.find("fsdp_config.fsdp_version")->value, Json(2));
  const bool keeps = strategy == "shard_grad_op" || strategy == "hybrid_shard_zero2";
  if (second) {
    say("fsdp_reshard_after_forward", !keeps);
  } else {
    std::string name = strategy.empty() ? "FULL_SHARD" : strategy;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
    say("fsdp_sharding_strategy", std::move(name));
  }
  if (lower_case(text_of(fsdp->value)).find("offload") != std::string::npos) {
    say("fsdp_offload_params", true);
  }
  return yaml;
}

}  // namespace qplan
