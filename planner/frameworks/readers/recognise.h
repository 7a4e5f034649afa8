#pragma once
// What a file or a list of arguments is, by its name and its keys: which framework reads it.

#include <cstdint>
#include <string>
#include <string_view>

#include "planner/frameworks/setting.h"

namespace qplan {

struct ConfigText {
  std::string name, text;
};

enum class FileKind : std::uint8_t {
  empty,
  prose,
  json,
  yaml,
  python,
  toml,
  hostfile,  // DeepSpeed's: "worker-1 slots=8"
  script
};
FileKind file_kind_of(const ConfigText& file);

// Names of nodes alone, which emit writes for Slurm.
inline constexpr std::string_view kHostsFile = "hosts.txt";

enum class JsonKind : std::uint8_t {
  plan,
  model,
  ds_config,
  fsdp,  // what ms-swift's --fsdp names
  unknown
};
JsonKind json_kind_of(const Settings& settings);

enum class Dialect : std::uint8_t {
  megatron,            // arguments
  megatron_yaml,       // the same words as keys
  bridge,              // assignments to a ConfigContainer
  slime,               // Megatron's arguments and its own
  megatron_deepspeed,  // arguments of the fork
  ds_config,
  trainer,  // arguments of a Hugging Face Trainer script
  accelerate,
  torchtitan,
  own_script,     // calls of torch's and transformers' in a program of one's own
  llama_factory,  // a YAML of a Trainer's arguments and its own
  axolotl,
  verl,               // Hydra's overrides, and YAML below them
  nemo_rl,            // YAML, and overrides of it
  ms_swift,           // arguments of `swift sft`: a Trainer's and its own
  ms_swift_megatron,  // of `megatron sft`
  automodel,          // NeMo AutoModel's YAML
  trl,                // arguments of `trl sft`, and "verb": what it trains by
  nanotron,           // its YAML
  torchtune,          // its YAML
  openrlhf,           // arguments of its programs, and "verb": what they train by
  torchtitan_toml,    // job files of releases before its functions in Python
};

// Whether a script takes Megatron's arguments: its own, slime's, the fork's.
constexpr bool takes_megatrons(Dialect dialect) {
  return dialect == Dialect::megatron || dialect == Dialect::slime ||
         dialect == Dialect::megatron_deepspeed;
}

// Of arguments: slime's, the fork's, a Trainer's or Megatron's. `script` is what takes them; empty:
// not known.
Dialect dialect_of(const Settings& arguments, const std::string& script);

// Whether arguments without a mark of any framework belong to a script of the user's own: one that
// is named, and not "pretrain_...".
bool is_own_script(const Settings& arguments, const std::string& script);

// Whether Megatron-LM itself has this script: what takes its arguments and no others.
bool is_of_megatron(const std::string& script);

// YAML with Megatron's degrees or layers as keys, by themselves or in sections. Primus's files,
// whose modules name a framework, are not.
bool is_megatron_yaml(const Settings& yaml);

// YAML of LLaMA-Factory, and of axolotl.
bool is_llama_factory(const Settings& yaml);
bool is_axolotl(const Settings& yaml);

// ms-swift's YAML, whose keys are its arguments; and whether they are those of its Megatron form.
bool is_ms_swift(const Settings& yaml);
bool is_ms_swift_megatron(const Settings& yaml);

// TRL's YAML, whose keys are its arguments.
bool is_trl(const Settings& yaml);

// NeMo AutoModel's YAML of a recipe that trains a language model, and of any other.
bool is_automodel(const Settings& yaml);
bool is_automodel_of_others(const Settings& yaml);

// torchtune's YAML, whose parts are named by "_component_": of a recipe that trains on texts that
// are there, and of any other.
bool is_torchtune(const Settings& yaml);
bool is_torchtune_of_others(const Settings& yaml);

// nanotron's YAML.
bool is_nanotron(const Settings& yaml);

// A job file of torchtitan's, of the releases that read TOML: by its tables.
bool is_torchtitan_toml(const Settings& toml);

// Whose file a YAML is that no reader here reads: "NeMo or verl"; empty: not known.
std::string_view other_tool_of(const Settings& yaml);

// Whether keys are GPT-NeoX's, whose files may be JSON, too.
bool is_of_gpt_neox(const Settings& keys);

// accelerate's yaml: that it is, and that it starts DeepSpeed.
bool is_accelerate(const Settings& yaml);
bool is_accelerate_deepspeed(const Settings& yaml);

// Without its folders.
std::string base_name(const std::string& path);

}  // namespace qplan
