#pragma once
// The files of one job, told apart and read: which framework each speaks to, and what starts it.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/formats.h"
#include "planner/frameworks/setting.h"
#include "planner/frameworks/shell.h"

namespace qplan {

struct ConfigText {
  std::string name, text;
};

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
  fsdp_module,  // FullyShardedDataParallel(...) in Python
};

// Settings of one dialect, of one file or command.
struct ConfigPart {
  Dialect dialect = Dialect::megatron;
  Settings settings;
  Place place;
};

// A command that starts the job on its GPUs.
struct Launch {
  std::string program;  // "torchrun", "deepspeed", "accelerate", "ray", "srun", "python"
  Place place;
  Settings options;    // the launcher's own
  std::string script;  // what it starts
  Place script_place;
  std::optional<std::int64_t> nodes, gpus_per_node;
  std::map<std::string, std::string> environment;
};

struct JobFiles {
  std::vector<ConfigText> texts;
  std::vector<ConfigPart> parts;
  std::vector<Launch> launches;
  std::vector<PythonText> python;
  std::vector<ShellWord> installs;  // "deepspeed==0.10.0" of pip install
  std::vector<Finding> findings;
  std::optional<std::int64_t> host_slots;  // GPUs that a hostfile lists

  [[nodiscard]] const ConfigPart* find(Dialect dialect) const;
};

// Throws Error for a file that is no text, or cannot be read as what it plainly is.
JobFiles read_job_files(std::span<const ConfigText> files);

}  // namespace qplan
