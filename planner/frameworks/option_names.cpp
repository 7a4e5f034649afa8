#include "planner/frameworks/option_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {

std::string without_indices(const std::string& key) {
  std::string name;
  for (std::size_t at = 0; at <= key.size();) {
    const std::size_t dot = std::min(key.find('.', at), key.size());
    const std::string part = key.substr(at, dot - at);
    const bool index =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return is_digit(c); });
    if (!index) name += (name.empty() ? "" : ".") + part;
    at = dot + 1;
  }
  return name;
}

namespace {

// The search through a list's names, which a job that is judged again asks for once more.
template <class Search>
std::string remembered(Dialect dialect, std::string_view question, const std::string& key,
                       const Search& search) {
  constexpr std::size_t kMost = 4096;
  thread_local std::map<std::tuple<Dialect, std::string_view, std::string>, std::string> answers;
  if (answers.size() > kMost) answers.clear();
  const auto known = answers.find({dialect, question, key});
  if (known != answers.end()) return known->second;
  return answers.emplace(std::tuple(dialect, question, key), search()).first->second;
}

// Flags that DeepSpeed's own parser adds, and that launchers pass on.
constexpr std::array<std::string_view, 8> kDeepspeedFlags{
    "--deepspeed",  "--deepspeed_config", "--deepspeed-config", "--deepscale",
    "--local_rank", "--local-rank",       "--deepspeed_mpi",    "--ds_inference"};

// transformers' run_clm.py has its arguments and the Trainer's. Another script may have any of its
// own: there a slip of the Trainer's words is one where most of them are right.
bool is_known_to_trainer(const ConfigPart& part, const std::string& key) {
  const OptionList &trainer = known_options("trainer"), &script = known_options("run_clm");
  if (script.find(key) != nullptr || !key.starts_with("--")) return true;
  const auto begins = [&](const std::string& name) { return name.starts_with(key); };
  const auto spelled_so = std::count_if(trainer.names().begin(), trainer.names().end(), begins);
  if (base_name(part.script) == "run_clm.py") {
    // Python's argparse takes a beginning that only one name has.
    return spelled_so == 1 && std::none_of(script.names().begin(), script.names().end(), begins);
  }
  const auto right =
      std::count_if(part.settings.begin(), part.settings.end(),
                    [&](const Setting& s) { return trainer.find(s.key) != nullptr; });
  const std::string near = remembered(Dialect::trainer, "trainer", key,
                                      [&] { return nearest_name(key, trainer.names()); });
  return right < 5 || spelled_so > 0 || near.empty() || !is_slip(key, near);
}

// Names that the parser has only to say that they are gone (arguments.py:589).
constexpr std::array<std::string_view, 3> kGone{"--batch-size", "--model-parallel-size",
                                                "--warmup"};

// axolotl's keys of FSDP, which older releases began with "fsdp_" (validation.py,
// check_fsdp_config_kwargs_prefix): as the list has them.
constexpr std::string_view kShards = "fsdp_config.", kOldPrefix = "fsdp_";

// Whether a program of one's own hands nanotron another class of models ("is_mamba_config").
bool has_own_model(const ConfigPart& part) {
  constexpr std::string_view kBegin = "model.model_config.is_", kEnd = "_config";
  const OptionList& list = known_options("nanotron");
  return std::any_of(part.settings.begin(), part.settings.end(), [&](const Setting& setting) {
    return setting.key.starts_with(kBegin) && setting.key.ends_with(kEnd) &&
           list.find(setting.key) == nullptr && certain_key(setting.key, list).empty();
  });
}

std::string listed_key(const ConfigPart& part, const std::string& key) {
  if (part.dialect == Dialect::nanotron) return without_indices(key);
  const bool old = part.dialect == Dialect::axolotl && key.starts_with(kShards) &&
                   key.compare(kShards.size(), kOldPrefix.size(), kOldPrefix) == 0 &&
                   key != "fsdp_config.fsdp_version";
  return old ? std::string(kShards) + key.substr(kShards.size() + kOldPrefix.size()) : key;
}

// torch's FSDP1 had these, and nobody reads them any more: what is the default may be said.
bool is_default_of_fsdp1(const ConfigPart& part, const std::string& key) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kDefaults{
      {{"sharding_strategy", "FULL_SHARD"},
       {"backward_prefetch", "BACKWARD_PRE"},
       {"limit_all_gathers", "true"},
       {"forward_prefetch", "false"}}};
  const std::string name = listed_key(part, key).substr(kShards.size());
  return std::any_of(kDefaults.begin(), kDefaults.end(), [&](const auto& known) {
    return known.first == name &&
           same_value(part.settings.find(key)->value, Json(std::string(known.second)));
  });
}

// Sections whose keys are not listed are whoever's they are.
bool is_of_open_section(const OptionList& list, const std::string& key) {
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    if (list.find(key.substr(0, dot) + ".*") != nullptr) return true;
  }
  return false;
}

// Of these blocks the classes are known that their keys go to; of their own blocks the names.
bool is_known_to_automodel(const OptionList& list, const std::string& key) {
  constexpr std::array<std::string_view, 3> kBlocks{"distributed.", "peft.", "step_scheduler."};
  constexpr std::array<std::string_view, 2> kInner{"distributed.pipeline.", "distributed.moe."};
  const auto begins = [&](std::string_view block) { return key.starts_with(block); };
  if (std::none_of(kBlocks.begin(), kBlocks.end(), begins)) return true;
  const bool inner = std::any_of(kInner.begin(), kInner.end(), begins);
  std::size_t end = key.find('.', key.find('.') + 1);
  if (inner && end != std::string::npos) end = key.find('.', end + 1);
  const std::string name = key.substr(0, end);
  return list.find(name) != nullptr || name.ends_with('_');  // "_target_"
}

// Recipes ask for the keys that they know; what other keys refer to ("${name}") is somebody's own.
// Parts are whatever classes take: there slips alone are told.
bool is_known_to_torchtune(const ConfigPart& part, const OptionList& list, const std::string& key) {
  if (list.find(key) != nullptr) return true;
  const std::string reference = fmt::format("${{{}}}", key);
  const bool refers =
      std::any_of(part.settings.begin(), part.settings.end(), [&](const Setting& setting) {
        return setting.value.is_string() &&
               setting.value.get<std::string>().find(reference) != std::string::npos;
      });
  return refers || (key.find('.') != std::string::npos && certain_key(key, list).empty());
}

// The lists whose names a part may use.
std::vector<const OptionList*> lists_of(const ConfigPart& part) {
  std::vector<const OptionList*> lists{&known_options(option_list_of(part.dialect))};
  if (part.dialect == Dialect::slime) {
    lists.push_back(&known_options("megatron"));
    lists.push_back(&known_options("sglang"));
  }
  if (part.dialect == Dialect::torchtitan_toml) {
    lists.push_back(&known_options("torchtitan_toml_older"));
  }
  if (part.dialect == Dialect::nanotron) lists.push_back(&known_options("nanotron_older"));
  if (part.dialect == Dialect::trainer) lists.push_back(&known_options("run_clm"));
  if (part.dialect == Dialect::ms_swift || part.dialect == Dialect::trl) {
    lists.push_back(&known_options("trainer"));
  }
  return lists;
}

// What a slip may be of: names of the same block.
std::vector<std::string> candidates(const ConfigPart& part, const std::string& key) {
  std::vector<std::string> names;
  for (const OptionList* const list : lists_of(part)) {
    names.insert(names.end(), list->names().begin(), list->names().end());
  }
  if (part.dialect == Dialect::llama_factory) {
    for (const std::string& name : known_options("trainer").names()) {
      if (name.find('-', 2) == std::string::npos) names.push_back(name.substr(2));
    }
  }
  const std::size_t dot = key.rfind('.');
  if (dot != std::string::npos) {
    const std::string block = key.substr(0, dot + 1);
    std::erase_if(names, [&](const std::string& name) { return !name.starts_with(block); });
  }
  return names;
}

// A name of the lists as the file begins it.
std::string prefixed(const ConfigPart& part, const std::string& written, std::string name) {
  const bool old = !name.empty() && listed_key(part, written) != written;
  return old ? name.insert(kShards.size(), kOldPrefix) : name;
}

// Whether keys are the names of fields (LLaMA-Factory ff6d4d12,
// src/llamafactory/hparams/parser.py:154 parse_dict; TRL f2cd5771, trl/scripts/utils.py:359
// compares with action.dest).
bool names_fields(const ConfigPart& part, const Setting& setting) {
  return part.dialect == Dialect::llama_factory ||
         (part.dialect == Dialect::trl && setting.syntax == Syntax::yaml);
}

std::size_t dashes_of(std::string_view name) {
  return name.starts_with("--") ? 2 : 0;
}

// "--report-to" as the field is called.
std::string as_field(std::string name) {
  std::replace(name.begin() + static_cast<std::ptrdiff_t>(dashes_of(name)), name.end(), '-', '_');
  return name;
}

bool is_slip_of_sglang(const std::string& key) {
  const OptionList& list = known_options("sglang");
  const std::array<const OptionList*, 2> lists{&list, &known_options("slime")};
  return list.find(key) == nullptr && !remembered(Dialect::slime, "sglang", key, [&] {
                                         return certain_name(key, lists);
                                       }).empty();
}

// Arguments of a Trainer's that are gone from every release of transformers that LLaMA-Factory
// (4.55 and later) and TRL (4.56.2) take; options/trainer.tsv has them of older ones.
bool is_gone_from_trainer(Dialect dialect, const std::string& key) {
  constexpr std::array<std::string_view, 3> kGoneArguments{"evaluation_strategy", "split_batches",
                                                           "dispatch_batches"};
  if (dialect != Dialect::llama_factory && dialect != Dialect::trl) return false;
  const std::string name = as_field(key).substr(dashes_of(key));
  return std::find(kGoneArguments.begin(), kGoneArguments.end(), name) != kGoneArguments.end();
}

}  // namespace

const KnownOption* known_option(const ConfigPart& part, const std::string& written) {
  const std::string key = listed_key(part, written);
  // A script of one's own may have these arguments, of other types.
  const bool own = part.dialect == Dialect::trainer && !part.script.empty() &&
                   base_name(part.script) != "run_clm.py";
  for (const OptionList* const list : lists_of(part)) {
    if (own && list == &known_options("run_clm")) continue;
    if (const KnownOption* const known = list->find(key)) return known;
  }
  // A Trainer's arguments are LLaMA-Factory's too.
  const bool factory = part.dialect == Dialect::llama_factory;
  return factory ? known_options("trainer").find(fmt::format("--{}", key)) : nullptr;
}

bool is_known(const ConfigPart& part, const std::string& key) {
  const bool takes = takes_megatrons(part.dialect);
  if (takes && std::find(kGone.begin(), kGone.end(), key) != kGone.end()) return false;
  if (is_gone_from_trainer(part.dialect, key)) return false;
  const OptionList& list = known_options(option_list_of(part.dialect));
  if (list.find(key) != nullptr) return true;
  switch (part.dialect) {
    case Dialect::slime:
      // sglang's own arguments come with its version: a slip alone is none. The one that is gone is
      // known below.
      return known_options("megatron").find(key) != nullptr || key.starts_with("--router-") ||
             (key.starts_with("--sglang-") && key != "--sglang-enable-ep-moe" &&
              !is_slip_of_sglang(key));
    case Dialect::megatron_deepspeed:
      return std::find(kDeepspeedFlags.begin(), kDeepspeedFlags.end(), key) !=
             kDeepspeedFlags.end();
    case Dialect::megatron_yaml:
      return !key.starts_with("--");  // the same key stands once as a flag
    case Dialect::trainer:
      return is_known_to_trainer(part, key);
    case Dialect::torchtitan:
      return key == "activation_checkpoint" || key == "moe_comm_backend" || key == "loss";
    case Dialect::ds_config:
    case Dialect::accelerate: {
      // A comment: DeepSpeed looks up the keys that it knows, and only sections refuse others.
      if (part.dialect == Dialect::ds_config && key.starts_with("_")) return true;
      // One that stands within a section by its indentation is missed outside of all.
      if (part.dialect == Dialect::accelerate && key.ends_with(".distributed_type") &&
          !part.settings.has("distributed_type")) {
        return true;
      }
      return is_of_open_section(list, key);
    }
    case Dialect::llama_factory:
    case Dialect::axolotl: {
      // Of a block only fsdp_config's keys are listed.
      const std::size_t dot = key.find('.');
      if (dot == std::string::npos) return known_option(part, key) != nullptr;
      if (part.dialect == Dialect::llama_factory || !key.starts_with(kShards)) {
        return is_known(part, key.substr(0, dot));
      }
      return known_option(part, key) != nullptr || is_default_of_fsdp1(part, key);
    }
    case Dialect::torchtune:
      return is_known_to_torchtune(part, list, key);
    case Dialect::automodel:
      return is_known_to_automodel(list, key);
    case Dialect::nanotron: {
      const OptionList& older = known_options("nanotron_older");
      const std::string name = listed_key(part, key);
      if (has_own_model(part) &&
          (name.starts_with("model.model_config.") || name.starts_with("model.init_method."))) {
        return true;
      }
      return list.find(name) != nullptr || older.find(name) != nullptr || has_block(list, name) ||
             has_block(older, name) || is_of_open_section(list, name) ||
             is_of_open_section(older, name);
    }
    case Dialect::torchtitan_toml: {
      const OptionList& older = known_options("torchtitan_toml_older");
      // A table's header, too.
      return older.find(key) != nullptr || has_block(list, key) || has_block(older, key);
    }
    case Dialect::openrlhf:
    case Dialect::trl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron: {
      if (part.dialect == Dialect::trl && known_options("accelerate_launch").find(key) != nullptr) {
        return true;  // which it hands to the launcher
      }
      // Ray's form of `megatron rlhf` (swift/cli/_megatron/rlhf.py:18).
      if (part.dialect == Dialect::ms_swift_megatron && key == "--config" &&
          is_switched_on(part.settings, "--use_ray")) {
        return true;
      }
      // Python's argparse takes a beginning that only one name has.
      const auto begins = [&](const std::string& name) { return name.starts_with(key); };
      return known_option(part, key) != nullptr || !key.starts_with("--") ||
             std::count_if(list.names().begin(), list.names().end(), begins) == 1;
    }
    case Dialect::megatron:
      // Where NVIDIA's ModelOpt is installed.
      return known_options("megatron_post_training").find(key) != nullptr;
    case Dialect::bridge:
    case Dialect::own_script:
    case Dialect::verl:
    case Dialect::nemo_rl:
      break;
  }
  return false;
}

namespace {

// Of a call's keywords, which may be another class's or release's: what is a slip of a field, or
// its beginning alone, which argparse takes and Python does not.
bool is_slip_of_field(const std::string& key) {
  const OptionList &trainer = known_options("trainer"), &trl = known_options("trl");
  if (trainer.find(key) != nullptr || trl.find(key) != nullptr || !key.starts_with("--")) {
    return false;
  }
  constexpr std::size_t kShortest = 8;  // "--tp" and "--seq" begin whatever they begin
  const bool begins = key.size() >= kShortest &&
                      std::any_of(trainer.names().begin(), trainer.names().end(),
                                  [&](const std::string& name) { return name.starts_with(key); });
  const std::string near = remembered(Dialect::trainer, "field", key,
                                      [&] { return nearest_name(key, trainer.names()); });
  return begins || (!near.empty() && is_slip(key, near));
}

}  // namespace

bool is_known(const ConfigPart& part, const Setting& setting) {
  const bool dash = setting.key.find('-', dashes_of(setting.key)) != std::string::npos;
  // TRL hands what is no field of its own to the launcher.
  const bool handed_on = part.dialect == Dialect::trl &&
                         known_options("accelerate_launch").find(setting.key) != nullptr &&
                         known_option(part, as_field(setting.key)) == nullptr;
  // In a YAML no beginning of a name is one.
  const bool begins = part.dialect == Dialect::trl && setting.syntax == Syntax::yaml &&
                      setting.key.starts_with("--") && !handed_on &&
                      known_option(part, setting.key) == nullptr;
  const bool no_field = (dash && names_fields(part, setting) && !handed_on) || begins;
  const bool keyword = part.dialect == Dialect::trainer && setting.syntax == Syntax::python;
  if (keyword) return !is_slip_of_field(setting.key);
  return !no_field && is_known(part, setting.key);
}

namespace {

std::string certain_name_of(const ConfigPart& part, const std::string& written) {
  const std::string key = listed_key(part, written);
  auto lists = lists_of(part);
  if (part.dialect != Dialect::llama_factory) {
    return prefixed(part, written, remembered(part.dialect, "certain", key, [&] {
                      return certain_name(key, lists);
                    }));
  }
  // A Trainer's arguments stand here without their dashes.
  lists.push_back(&known_options("trainer"));
  const auto certain = [&](const std::string& name) {
    return remembered(part.dialect, "certain", name, [&] { return certain_name(name, lists); });
  };
  std::string own = certain(key);
  if (own.starts_with("--")) own.clear();  // the same argument, two letters away
  std::string argument = certain("--" + key);
  if (!argument.starts_with("--")) argument.clear();  // the same key once more
  if (own.empty() == argument.empty()) return "";     // none, or one of either
  return own.empty() ? argument.substr(2) : own;
}

}  // namespace

std::string certain_key(const ConfigPart& part, const Setting& written) {
  if (!names_fields(part, written)) return certain_name_of(part, written.key);
  std::string field = as_field(written.key);
  // In a YAML a beginning of a name is none, and is_known() takes one.
  const bool spelled = field != written.key && is_known(part, field);
  return spelled ? field : as_field(certain_name_of(part, written.key));
}

std::string nearest_key(const ConfigPart& part, const Setting& written) {
  const std::string key = listed_key(part, written.key);
  const std::string name =
      prefixed(part, written.key, remembered(part.dialect, "nearest", key, [&] {
                 return nearest_name(key, candidates(part, key));
               }));
  return names_fields(part, written) ? as_field(name) : name;
}

}  // namespace qplan
