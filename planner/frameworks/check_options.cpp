// Option by option: is there one of that name, and does it take this value?

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "models/edit_distance.h"
#include "models/error.h"
#include "planner/frameworks/aliases.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/trainer_fsdp.h"
#include "planner/frameworks/option_names.h"
#include "planner/frameworks/refused_values.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

// Of the file that a Trainer's --fsdp_config names: held against what it reads (check_training).
bool is_of_fsdp_file(const ConfigPart& part, const Setting& setting) {
  return (part.dialect == Dialect::trainer || part.dialect == Dialect::trl) &&
         setting.key.starts_with(kTrainersFsdp);
}

// Blocks of ds_config.json that are pydantic models, which forbid more (DeepSpeed edaa7221,
// deepspeed/runtime/config_utils.py:110).
bool is_of_strict_block(const std::string& key) {
  constexpr std::array<std::string_view, 11> kBlocks{
      "zero_optimization", "fp16",        "bf16",         "bfloat16",
      "comms_logger",      "tensorboard", "wandb",        "comet",
      "csv_monitor",       "compile",     "hybrid_engine"};
  const std::size_t dot = key.find('.');
  return dot != std::string::npos &&
         std::find(kBlocks.begin(), kBlocks.end(), key.substr(0, dot)) != kBlocks.end();
}

// What becomes of a key that nobody knows.
std::string_view fate(const ConfigPart& part, const std::string& key) {
  switch (part.dialect) {
    case Dialect::megatron:
      return "Megatron-LM has no such argument and stops";
    case Dialect::megatron_yaml:
      return "Megatron-LM has no argument of that name";
    case Dialect::slime:
      return key.starts_with("--sglang-")
                 ? "neither slime nor sglang has such an argument, and both ignore it silently"
                 : "neither slime nor Megatron-LM has such an argument, and slime ignores it "
                   "silently";
    case Dialect::megatron_deepspeed:
      return "Megatron-DeepSpeed has no such argument and stops";
    case Dialect::ds_config:
      return is_of_strict_block(key) ? "DeepSpeed refuses unknown keys of this block"
                                     : "DeepSpeed knows no such key and ignores it silently";
    case Dialect::accelerate: {
      // It looks at the outermost names alone, as whatever lies within an unknown one shows.
      const std::string outermost = key.substr(0, key.find('.'));
      const bool known = known_options(option_list_of(part.dialect)).find(outermost) != nullptr;
      return known ? "accelerate knows no such key and ignores it silently"
                   : "accelerate knows no such key and stops";
    }
    case Dialect::nanotron:
      return "nanotron has no such key and stops";
    case Dialect::torchtitan:
    case Dialect::torchtitan_toml:
      return "torchtitan has no such field and stops";
    case Dialect::trainer:
      return "transformers' parser knows no such argument and stops";
    case Dialect::llama_factory:
      return "LLaMA-Factory knows no such argument and stops";
    case Dialect::axolotl:
      return "axolotl knows no such key and ignores it silently";
    case Dialect::automodel:
      return "NeMo AutoModel's class of this block has no such field and stops";
    case Dialect::torchtune:
      return key.starts_with("model.")
                 ? "torchtune's builder of models has no such argument and stops"
                 : "torchtune's recipes read no such key, and ignore it";
    case Dialect::openrlhf:
      return "OpenRLHF has no such argument and stops";
    case Dialect::trl:
      return "TRL has no such argument and stops";
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
      return "ms-swift has no such argument and stops";
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::bridge:
    case Dialect::own_script:
      break;
  }
  return "nobody reads it";
}

// As the file spells it.
std::string spelled_key(const ConfigPart& part, const std::string& key) {
  if (part.dialect != Dialect::megatron_yaml) return key;
  std::string name = key.substr(std::min<std::size_t>(2, key.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The fork's fp8 is a switch for each format.
std::string fp8_switch(const ConfigPart& part, const Setting& setting) {
  if (part.dialect != Dialect::megatron_deepspeed || setting.key != "--fp8-format") return "";
  const std::string flag = "--fp8-" + text_of(setting.value);
  return is_known(part, flag) && !part.settings.has(flag) ? flag : "";
}

// Whether a program of one's own may read this file or these words, beside TRL: it has arguments of
// its own, and may want an older release.
bool is_around_trl(const ConfigPart& part) {
  return part.dialect == Dialect::trl && part.script != "trl";
}

// "sft.py --max_seq_length 8": what TRL's own script of that name has dropped stops it, too. One
// that reads a YAML is another's.
bool is_named_as_trls(const ConfigPart& part, const Setting& setting) {
  const Setting* const verb = part.settings.find("verb");
  return is_around_trl(part) && setting.syntax == Syntax::words && verb != nullptr &&
         part.script == text_of(verb->value) + ".py";
}

void stop_at(const ConfigPart& part, const Setting& setting, Finding& finding) {
  finding.severity = Severity::error;
  finding.message = fmt::format("{}: {}", setting.key, fate(part, setting.key));
}

void correct_alias(const Scene& scene, const ConfigPart& part, const Setting& setting,
                   const Alias& alias, Finding& finding) {
  finding.instead = alias.real.empty() ? fmt::format("leave it out{}", alias.remark)
                                       : fmt::format("write {}{}", alias.real, alias.remark);
  finding.fix = alias.real.empty()     ? removed(scene, part, setting)
                : alias.remark.empty() ? with_key(scene, part, setting, std::string(alias.real))
                                       : Correction{};
  if (const std::string flag = fp8_switch(part, setting); !flag.empty()) {
    finding.instead = fmt::format("write {}", flag);
    finding.fix = replaced(scene, setting, flag);
  }
}

// Of what a program, or the release that it is written for, may well have: to take it out or to
// rename it would break a job that runs.
Correction may_be_right() {
  Correction none;
  none.why_not = "the program, or the release that it wants, may take it";
  return none;
}

constexpr std::string_view kGoneSwitch = "--sglang-enable-ep-moe";

void explain_gone_switch(const Scene& scene, const ConfigPart& part, const Setting& setting,
                         Finding& finding) {
  finding.message =
      "--sglang-enable-ep-moe is gone from sglang, and nothing takes its place "
      "silently";
  finding.instead = "write --sglang-ep-size with the number of GPUs of an engine";
  finding.source = "slime 624b824a, scripts/run-deepseek-r1.sh:116";
  const Setting* const gpus = part.settings.find("--rollout-num-gpus-per-engine");
  if (gpus != nullptr && gpus->resolved && !part.settings.has("--sglang-ep-size")) {
    finding.fix = replaced(scene, setting, "--sglang-ep-size " + text_of(gpus->value));
  }
}

// "gradient_checkpoint" of "gradient_checkpointing"; more words are another name's.
bool is_word_begun(const std::string& written, const std::string& real) {
  return real.size() > written.size() && real.starts_with(written) && real[written.size()] != '_' &&
         real[written.size()] != '-';
}

// The block of ds_config.json that has a key of this name; empty: none has, or several have.
std::string block_with(const std::string& name) {
  std::string block;
  for (const std::string& known : known_options("deepspeed").names()) {
    const std::size_t dot = known.rfind('.');
    if (dot == std::string::npos || known.substr(dot + 1) != name) continue;
    if (!block.empty()) return "";
    block = known.substr(0, dot);
  }
  return block;
}

Finding unknown_option(const Scene& scene, const ConfigPart& part, const Setting& setting) {
  const bool field = part.dialect == Dialect::trainer && setting.syntax == Syntax::python;
  Finding finding{
      Severity::error,
      "unknown_option",
      setting.place,
      field ? fmt::format("{}: TrainingArguments has no such field, and Python stops",
                          setting.key.substr(std::min<std::size_t>(2, setting.key.size())))
            : fmt::format("{}: {}", spelled_key(part, setting.key), fate(part, setting.key)),
      "",
      source_of_options(part)};
  if (is_around_trl(part)) {
    finding.severity = Severity::note;
    finding.message = fmt::format("{}: TRL has no such argument; the job stops unless {} adds it",
                                  spelled_key(part, setting.key),
                                  part.script.empty() ? "the program" : part.script);
  }
  // "gradient_checkpointing_kwargs:" with nothing below it, and what is meant beside it.
  if (setting.key.ends_with("use_reentrant") && setting.syntax == Syntax::yaml) {
    finding.severity = Severity::error;
    finding.message =
        fmt::format("{} stands beside gradient_checkpointing_kwargs, and not in it", setting.key);
    finding.instead = "indent it below gradient_checkpointing_kwargs";
    return finding;
  }
  if (const Alias* const alias = alias_of(part.dialect, setting.key)) {
    if (is_named_as_trls(part, setting)) stop_at(part, setting, finding);
    correct_alias(scene, part, setting, *alias, finding);
    // Another tool's name, which no release of TRL's had.
    if (is_around_trl(part) && setting.key == "--lora_rank") finding.severity = Severity::warning;
    if (finding.severity == Severity::note) finding.fix = may_be_right();
    return finding;
  }
  // A fork of slime's that is started the same way.
  if (part.dialect == Dialect::slime && known_options("miles").find(setting.key) != nullptr) {
    finding.severity = Severity::note;
    finding.message = fmt::format(
        "{}: an argument of miles, a fork of slime; slime itself has none "
        "of that name, and ignores it silently",
        setting.key);
    finding.fix = may_be_right();
    return finding;
  }
  if (setting.key == kGoneSwitch) {
    explain_gone_switch(scene, part, setting, finding);
    return finding;
  }
  const std::string certain = certain_key(part, setting);
  const std::string near = certain.empty() ? nearest_key(part, setting) : certain;
  const bool fork = part.dialect == Dialect::megatron_deepspeed;
  const bool own_program = !part.script.empty() && !is_of_megatron(part.script) &&
                           !(fork && base_name(part.script).starts_with("pretrain"));
  if ((fork || part.dialect == Dialect::megatron) && own_program) {
    finding.severity = Severity::note;
    finding.message =
        fmt::format("{}: {} has no such argument; the job stops unless {} adds it", setting.key,
                    fork ? "Megatron-DeepSpeed" : "Megatron-LM", base_name(part.script));
    finding.instead = near.empty() ? "" : fmt::format("did you mean {}?", near);
    return finding;
  }
  // Programs around TRL had a list of this name.
  const bool of_programs = setting.key == "--dataset_configs";
  if (is_around_trl(part) && !of_programs && !near.empty() &&
      (is_slip(setting.key, near) || is_word_begun(setting.key, near))) {
    stop_at(part, setting, finding);
  }
  constexpr std::string_view kDeepspeed = "deepspeed_config.";
  if (part.dialect == Dialect::accelerate && setting.key.starts_with(kDeepspeed) &&
      known_options("deepspeed").find(setting.key.substr(kDeepspeed.size())) != nullptr) {
    finding.severity = Severity::warning;
    finding.instead = "write it in a ds_config.json, which deepspeed_config_file names";
    return finding;
  }
  // Outside of its blocks DeepSpeed asks for the keys that it knows: a program may have its own.
  if (part.dialect == Dialect::ds_config && setting.key.find('.') == std::string::npos) {
    if (const std::string block = block_with(setting.key); !block.empty() && near.empty()) {
      finding.instead = fmt::format("write it in {}", block);
      return finding;
    }
    if (near.empty() || (certain.empty() && !is_slip(setting.key, near))) {
      finding.severity = Severity::warning;
    }
  }
  // Its programs are copied with the repository, and given arguments of one's own.
  if (part.dialect == Dialect::openrlhf && (near.empty() || !is_slip(setting.key, near))) {
    finding.severity = Severity::note;
    finding.message =
        fmt::format("{}: OpenRLHF has no such argument; the job stops unless a copy of it adds it",
                    setting.key);
  }
  // What nobody reads is a slip, or another release's, a plugin's or a copy's.
  const bool ignores = part.dialect == Dialect::axolotl || part.dialect == Dialect::torchtune ||
                       part.dialect == Dialect::slime;
  if (ignores && (near.empty() || !is_slip(setting.key, near))) {
    finding.severity = Severity::warning;
  }
  finding.instead = near.empty() ? "leave it out"
                                 : fmt::format("did you mean {}?", field ? near.substr(2) : near);
  if (!certain.empty()) finding.fix = with_key(scene, part, setting, certain);
  if (finding.severity == Severity::note) finding.fix = may_be_right();
  return finding;
}

Finding misnamed_block(const ConfigPart& part, const MeantBlock& block) {
  Finding finding{Severity::error,
                  "unknown_option",
                  block.place,
                  fmt::format("{}: {}; what stands in it is judged as {}'s", block.written,
                              fate(part, block.written), block.meant),
                  fmt::format("did you mean {}?", block.meant),
                  source_of_options(part)};
  const std::string name = block.meant.substr(block.meant.rfind('.') + 1);  // npos + 1: none
  if (block.name.end == block.name.begin) {
    finding.fix.why_not = "its name does not stand in the file in one piece";
  } else {
    finding.fix = Correction{{block.place.file, block.name.begin, block.name.end, name}};
    finding.fix.renames = true;
  }
  return finding;
}

// The block of a file of blocks that nobody knows, whatever stands in it; empty: it is none, or its
// keys have a meaning elsewhere.
std::string block_of_unknown(const ConfigPart& part, const Setting& setting) {
  const std::string& key = setting.key;
  const bool blocks = part.dialect == Dialect::ds_config || part.dialect == Dialect::accelerate ||
                      part.dialect == Dialect::torchtitan_toml || part.dialect == Dialect::nanotron;
  if (!blocks || alias_of(part.dialect, key) != nullptr) return "";
  if (part.dialect == Dialect::accelerate && key.starts_with("deepspeed_config.")) return "";
  std::string block =
      unknown_block(without_indices(key), known_options(option_list_of(part.dialect)));
  // A table's own header.
  return block.empty() && setting.syntax == Syntax::toml && setting.value.is_object() ? key : block;
}

void leave_to(std::string_view owner, Severity severity, Finding& finding) {
  finding.severity = severity;
  finding.message += fmt::format(", unless {}", owner);
  finding.fix = {};
}

// What a program or a module of one's own may add to the fields of nanotron and torchtitan;
// `block`: the finding is of one, whatever stands in it.
void leave_to_owner(const ConfigPart& part, const std::string& block, Finding& finding) {
  const bool listed = part.dialect == Dialect::nanotron || part.dialect == Dialect::torchtitan_toml;
  const bool slip = listed && !block.empty() &&
                    !certain_block(block, known_options(option_list_of(part.dialect))).empty();
  if (finding.fix.renames || slip) return;
  if (part.dialect == Dialect::nanotron && !block.empty() && block.find('.') == std::string::npos) {
    return leave_to("the program that reads it has a class of its own", Severity::warning, finding);
  }
  if (part.dialect != Dialect::torchtitan_toml) return;
  // An experiment's own fields are often named on its command line alone.
  constexpr std::array<std::string_view, 6> kOwn{"",       "llama2", "llama3",
                                                 "llama4", "qwen3",  "deepseek_v3"};
  const std::string model = word_of(part.settings, "model.name");
  if (std::find(kOwn.begin(), kOwn.end(), model) == kOwn.end()) {
    return leave_to("a module that --job.custom_config_module names adds it", Severity::note,
                    finding);
  }
  for (const std::string_view key :
       {"job.custom_config_module", "experimental.custom_args_module"}) {
    const std::string module = word_of(part.settings, key);
    if (module.empty()) continue;
    // torchtitan's own modules add few.
    const bool own = module.starts_with("torchtitan.");
    return leave_to(fmt::format("the module that {} names adds it", key),
                    own ? Severity::warning : Severity::note, finding);
  }
}

// Where a block's name stands above its first key.
Place place_of_name(const Scene& scene, const Setting& first, const std::string& block) {
  const std::string& text = scene.text_of(first.place.file);
  const std::string name = block.substr(block.rfind('.') + 1);  // npos + 1: all of it
  const bool known = first.name.end > first.name.begin && first.name.end <= text.size() &&
                     first.key.size() > block.size();
  const std::size_t at = known ? text.rfind(name, first.name.begin) : std::string::npos;
  return at == std::string::npos ? first.place : Place{first.place.file, line_of(text, at)};
}

Finding unknown_block_of(const Scene& scene, const ConfigPart& part, const Setting& first,
                         const std::string& block) {
  // Outside of its blocks DeepSpeed asks for the keys that it knows: a program may have its own.
  const bool others = part.dialect == Dialect::ds_config && block.find('.') == std::string::npos;
  const std::string holder = others ? block_with(block) : "";
  std::vector<std::string> outermost;
  for (const std::string& name : known_options(option_list_of(part.dialect)).names()) {
    outermost.push_back(name.substr(0, name.find('.')));
  }
  const std::string near = others ? nearest_name(block, outermost) : "";
  const bool slip = !near.empty() && is_slip(block, near);
  return {others && holder.empty() && !slip ? Severity::warning : Severity::error,
          "unknown_option",
          place_of_name(scene, first, block),
          fmt::format("{}: {}, with all that stands in it", block, fate(part, block)),
          slip             ? fmt::format("did you mean {}?", near)
          : holder.empty() ? "leave it out"
                           : fmt::format("write it in {}", holder),
          source_of_options(part)};
}

// Whether a Trainer or accelerate reads a ds_config.json, by themselves, and hand on what they made
// of it: whose "auto" says so, too.
bool is_read_by_trainer(const JobFiles& files, const ConfigPart& part) {
  if (files.find(Dialect::megatron_deepspeed) != nullptr) return false;
  const auto has_auto = [](const Setting& s) { return text_of(s.value) == "auto"; };
  return std::any_of(part.settings.begin(), part.settings.end(), has_auto) ||
         std::any_of(files.parts.begin(), files.parts.end(), [](const ConfigPart& other) {
           return other.dialect == Dialect::trainer || other.dialect == Dialect::accelerate;
         });
}

// Who stops at a key that stands twice in one file; empty: the last counts.
std::string_view refuser_of_twice(const JobFiles& files, const ConfigPart& part) {
  if (part.dialect == Dialect::ds_config && !is_read_by_trainer(files, part)) return "DeepSpeed";
  return part.dialect == Dialect::llama_factory ? "LLaMA-Factory" : "";
}

void check_repetition(const JobFiles& files, const ConfigPart& part, Findings& out) {
  if (part.dialect == Dialect::megatron_yaml || part.dialect == Dialect::own_script ||
      part.dialect == Dialect::bridge || part.dialect == Dialect::torchtitan ||
      part.dialect == Dialect::torchtitan_toml) {  // whose reader says it
    return;
  }
  const std::string_view refuser = refuser_of_twice(files, part);
  for (const Setting& setting : part.settings) {
    const Setting* const last = part.settings.find(setting.key);
    if (last == &setting) continue;
    if (setting.key == "verb") continue;  // of TRL: told by keys, and said
    // A later file may well say another than an earlier one; in one file it is a slip.
    const bool slip = last->place.file == setting.place.file;
    const bool file_of_keys = setting.syntax != Syntax::words && setting.syntax != Syntax::python;
    if (!refuser.empty() && slip && file_of_keys) {
      out.push_back(
          {Severity::error,
           "said_twice",
           setting.place,
           fmt::format("{} stands twice, and {} stops", setting.key, refuser),
           "keep one",
           part.dialect == Dialect::ds_config
               ? "DeepSpeed edaa7221, deepspeed/runtime/config_utils.py:205"
               : "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:119 (OmegaConf.load)",
           {}});
      continue;
    }
    if (setting.value.is_object() && slip) {
      out.push_back({Severity::warning,
                     "said_twice",
                     setting.place,
                     fmt::format("{} stands twice: the block in {} counts, and nothing of this one",
                                 setting.key, to_string(last->place)),
                     "keep one",
                     "Python 3, Lib/json/decoder.py (the last counts)",
                     {}});
      continue;
    }
    if (same_value(last->value, setting.value)) continue;
    if (!last->resolved || !setting.resolved) continue;  // of two branches one is taken
    out.push_back({slip ? Severity::warning : Severity::note, "said_twice", setting.place,
                   fmt::format("{} is {} here and {} in {}, which counts", setting.key,
                               shown(text_of(setting.value)), shown(text_of(last->value)),
                               to_string(last->place)),
                   "keep one", "Python 3, Lib/argparse.py (the last counts)"});
  }
}

}  // namespace

bool is_slip(std::string_view written, std::string_view real) {
  return edit_distance(written, real) <= 1;
}

void check_options(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (option_list_of(part.dialect).empty() || part.derived) continue;
    if (part.dialect == Dialect::megatron_yaml) {
      out.push_back(
          {Severity::warning, "yaml_is_not_read", part.place,
           "Megatron takes arguments, and reads no file of this shape; it is judged as if "
           "its keys were arguments",
           "an argument list, as `qplan emit` writes it",
           "Megatron-LM d98e8a64, megatron/training/arguments.py (yaml_cfg)"});
    }
    for (const MeantBlock& block : part.meant_blocks) out.push_back(misnamed_block(part, block));
    std::set<std::string> unknown;
    for (const Setting& setting : part.settings) {
      if (is_of_fsdp_file(part, setting)) continue;
      if (is_known(part, setting)) {
        check_value(scene, part, setting, out);
      } else if (setting.resolved || setting.key.find('$') == std::string::npos) {
        const std::string block = block_of_unknown(part, setting);
        if (block.empty()) {
          out.push_back(unknown_option(scene, part, setting));
          leave_to_owner(part, "", out.back());
        } else if (unknown.insert(block).second) {
          out.push_back(unknown_block_of(scene, part, setting, block));
          leave_to_owner(part, block, out.back());
        }
      }
    }
    check_repetition(scene.files, part, out);
  }
}

}  // namespace qplan
