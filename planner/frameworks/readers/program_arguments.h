#pragma once
// Arguments as the parsers of single programs take them (arguments.h reads any): Megatron's flags,
// transformers' names with either sign, keys of a YAML.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/setting.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

// Words under Megatron's flags and its relatives'. `script` is what takes them; empty: not known.
Settings read_flags(std::span<const ShellWord> words, const std::string& script);
// A Trainer's, which are spelled with '_' or with '-'.
Settings read_trainer_flags(std::span<const ShellWord> words);
// `trl sft`'s, and ms-swift's: of `swift sft`, or of `megatron sft`.
Settings read_trl_arguments(std::span<const ShellWord> words);
Settings read_swift_arguments(std::span<const ShellWord> words, bool megatron);
Settings read_openrlhf_arguments(std::span<const ShellWord> words);

// "a=b" of LLaMA-Factory's command, "--a-b c" of axolotl's.
Settings words_of_command(std::span<const ShellWord> words);
// A YAML's keys as arguments. Those of Ray's groups are theirs but for what trains. ms-swift's may
// have either sign.
Settings keys_as_arguments(const Settings& yaml);
Settings swift_arguments(const Settings& yaml);

// "--training.steps 10" as torchtitan's configuration names it.
Settings torchtitan_keys(const Settings& arguments);
// The same on top of a TOML, as tyro spells them: dashes for underscores, and
// "--compile.no-enable".
Settings titan_toml_keys(const Settings& arguments);
// What launchers and Trainers share; the rest is not judged.
Settings shared_with_trainers(const Settings& arguments);

// A word that only a run can tell and that may be arguments of its own ($GPT_ARGS): one that is no
// flag's first value; empty: there is none.
std::string open_word(std::span<const ShellWord> words);

bool is_yaml_name(std::string_view word);
// "scripts/sft.py --config x.yaml", "scripts/dpo.py x.yaml".
bool names_yaml(std::span<const ShellWord> words);

}  // namespace qplan
