#pragma once
// Commands that start a job on its GPUs: torchrun, deepspeed, accelerate, srun, ray, python.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/frameworks/setting.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

struct Launch {
  std::string program;  // "torchrun", "deepspeed", "accelerate", "ray", "srun", "python"
  Place place;
  Settings options;    // the launcher's own
  std::string script;  // what it starts
  Place script_place;
  bool starts_shell = false;  // a shell's script or commands, which start the rest
  std::optional<std::int64_t> nodes, gpus_per_node;
  std::optional<Setting> nodes_said;  // what says the nodes, where one of its own options does
  std::map<std::string, std::string> environment;
};

// "torchrun [options] script.py [arguments]", taken apart.
struct LaunchCommand {
  Launch launch;
  std::vector<ShellWord> arguments;  // of the script
};

// Whether a word is the name of such a command.
bool is_launcher(const std::string& word);

// Nothing: the words from `at` on, which begin with the program, start no training script.
// `directives` are the batch system's, which srun follows.
std::optional<LaunchCommand> read_launch(const ShellCommand& command, std::size_t at,
                                         const std::vector<ShellWord>& directives);

}  // namespace qplan
