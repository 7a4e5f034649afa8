#pragma once
// What the readers of a job's files have found so far, before what stands on top of what is put
// together. Private to them.

#include <string>
#include <utility>
#include <vector>

#include "planner/frameworks/megatron/bridge_keys.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

// What a command says on top of the YAML that it names.
struct YamlOverride {
  ShellWord file;
  Settings settings;
  std::string script;  // that reads both
};

// A YAML of Megatron-Bridge's, or what a command hands to its programs.
struct BridgeSource {
  PythonText text;
  Place place;
  BridgeYaml kind = BridgeYaml::none;  // none: words of a command
  ShellWord yaml{};                    // that the words name; empty: none
  std::string script{};
  std::vector<MeantBlock> meant_blocks{};
};

// A file that a Trainer reads beside its arguments.
struct TrainerFile {
  Settings settings;
  Place place;
};

struct GatheredJob : JobFiles {
  std::vector<YamlOverride> overrides;
  std::vector<TrainerFile> fsdp_files;  // that --fsdp_config names
  std::vector<BridgeSource> bridge_sources;

  void add(Dialect dialect, Settings settings, Place place, std::string script = "") {
    parts.push_back({dialect, std::move(settings), std::move(place), std::move(script)});
  }
  void note(std::string rule, Place place, std::string message, std::string instead) {
    findings.push_back({Severity::note, std::move(rule), std::move(place), std::move(message),
                        std::move(instead), ""});
  }
  void unknown(Place place, std::string message, std::string instead) {
    findings.push_back({Severity::error, "unknown_file", std::move(place), std::move(message),
                        std::move(instead), ""});
  }
};

}  // namespace qplan
