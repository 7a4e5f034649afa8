// Files that scripts and programs name: ds_config.json, accelerate's yaml, what FSDP is told.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/check_launch.h"
#include "planner/frameworks/deepspeed/own_switch.h"
#include "planner/frameworks/finetuning/trainer_fsdp.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {
namespace {

using enum Severity;

void note_missing(const Setting& named, Findings& out) {
  const std::string file = text_of(named.value);
  if (!named.resolved) {
    out.push_back({note, "config_missing", named.place,
                   fmt::format("{} names {}, which only a run can tell: what it says is not judged",
                               named.key, shown(file.empty() ? "a value" : file)),
                   "give the configuration too", ""});
    return;
  }
  out.push_back({note, "config_missing", named.place,
                 fmt::format("{} names {}, which is not among the files given: what it says is not "
                             "judged",
                             named.key, shown(file)),
                 fmt::format("give {} too", shown(base_name(file))), ""});
}

// A program of DeepSpeed's own parser that no file is handed to makes its configuration itself.
void note_unnamed(const ConfigPart& part, Findings& out) {
  const Setting* const on = part.settings.find("--deepspeed");
  if (on == nullptr || !is_switch_of_deepspeed(part, *on)) return;
  if (part.settings.has("--deepspeed_config")) return;
  out.push_back({note, "config_missing", on->place,
                 fmt::format("--deepspeed switches DeepSpeed on and names no file: what {} "
                             "configures is not judged",
                             part.script.empty() ? "the program" : base_name(part.script)),
                 "give the ds_config.json, where there is one",
                 "DeepSpeed edaa7221, deepspeed/__init__.py:285"});
}

// Those that are ds_config.json themselves, and not what accelerate's yaml amounts to.
std::vector<const ConfigPart*> deepspeed_files(const Scene& scene) {
  std::vector<const ConfigPart*> files;
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::ds_config && !part.of_accelerate) files.push_back(&part);
  }
  return files;
}

bool is_given_by_name(const std::vector<const ConfigPart*>& parts, const std::string& path) {
  return std::any_of(parts.begin(), parts.end(), [&](const ConfigPart* part) {
    return base_name(part->place.file) == base_name(path);
  });
}

// Configurations that nobody gave, so that the plan below lacks what they say.
void check_missing_configs(const Scene& scene, Findings& out) {
  const auto is_file = [](const Setting* s) {
    return s != nullptr && (s->value.is_string() || (!s->resolved && s->value.is_null()));
  };
  for (const ConfigPart& part : scene.files.parts) {
    const Setting* const named = part.settings.find("--fsdp_config");
    const bool reads = part.dialect == Dialect::trainer || part.dialect == Dialect::trl;
    if (!reads || part.derived || named == nullptr || !named->value.is_string()) continue;
    const bool here = text_of(named->value).find('{') != std::string::npos;  // as JSON
    if (!here && !part.settings.has_section(kTrainersFsdp)) note_missing(*named, out);
  }
  const std::vector<const ConfigPart*> given = deepspeed_files(scene);
  if (given.size() == 1) return;  // of another name, it is the one that is meant
  for (const ConfigPart& part : scene.files.parts) {
    for (const std::string_view key : {"--deepspeed_config", "--deepspeed-config", "--deepspeed"}) {
      const Setting* const named = part.settings.find(key);
      if (is_file(named) && !is_given_by_name(given, text_of(named->value)))
        note_missing(*named, out);
    }
    if (given.empty()) note_unnamed(part, out);
  }
  if (scene.files.find(Dialect::ds_config) != nullptr) return;
  if (scene.files.find(Dialect::accelerate) != nullptr) return;
  for (const Launch& launch : scene.files.launches) {
    for (const std::string_view key : {"--config_file", "--deepspeed_config_file"}) {
      const Setting* const named = launch.options.find(key);
      if (launch.program == "accelerate" && is_file(named)) note_missing(*named, out);
    }
  }
}

// "--deepspeed_config ds_config.json" beside a file of another name.
void check_file_names(const Scene& scene, Findings& out) {
  const std::vector<const ConfigPart*> all = deepspeed_files(scene);
  const ConfigPart* const config = all.size() == 1 ? all.front() : nullptr;
  for (const ConfigPart& part : scene.files.parts) {
    for (const std::string_view key : {"--deepspeed_config", "--deepspeed-config", "--deepspeed"}) {
      const Setting* const named = part.settings.find(key);
      if (config == nullptr || named == nullptr || !named->value.is_string() || !named->resolved) {
        continue;
      }
      const std::string given = base_name(config->place.file);
      // A block of the same file, or a configuration that a framework brings by a name of its own.
      const bool here =
          config->place.line > 0 || config->place.file == named->place.file || config->derived;
      const std::string written = text_of(named->value);
      if (base_name(written) == given || here) continue;
      // In the folder that is written.
      const std::string meant = written.substr(0, written.rfind('/') + 1) + given;
      out.push_back(
          {error, "other_file_name", named->place,
           fmt::format("{} reads {}, and the file is called {}", key, shown(written), given),
           fmt::format("{} {}", key, meant), "", with_value(scene, *named, meant)});
    }
    const Setting* const yaml = part.settings.find("--megatron_config");
    if (yaml == nullptr) continue;
    out.push_back(
        {error, "no_such_file_argument", yaml->place,
         "neither Megatron-LM nor DeepSpeed reads a file by --megatron_config",
         "pass Megatron's arguments themselves (`qplan emit` writes them)",
         "qplan: planner/frameworks/options/megatron.tsv has what Megatron-LM d98e8a64 reads"});
  }
}

}  // namespace

void check_named_files(const Scene& scene, Findings& out) {
  check_file_names(scene, out);
  check_missing_configs(scene, out);
}

}  // namespace qplan
