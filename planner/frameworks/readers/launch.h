#pragma once
// Commands that start a job on its GPUs: torchrun, deepspeed, accelerate, srun, mpirun, ray,
// python. Of two in one command ("srun torchrun ...") the inner one starts the processes.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
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
  std::optional<std::int64_t> processes;  // of all nodes, where that is what is counted
  std::optional<Setting> nodes_said;      // what says the nodes, where one of its own options does
  std::optional<std::int64_t> allocated;  // nodes that Slurm starts it on
  std::optional<std::int64_t> allocated_gpus;  // of a node, that Slurm gives it
  std::optional<std::int64_t> tasks;           // of a node, by each of which srun starts it
  // Processes, one a GPU. Nothing: they are not said, or only a run can tell.
  [[nodiscard]] std::optional<std::int64_t> world() const;
  std::map<std::string, std::string> environment;
};

// "torchrun [options] script.py [arguments]", taken apart.
struct LaunchCommand {
  Launch launch;
  std::vector<ShellWord> arguments;  // of the script
};

// The numbers that its CUDA_VISIBLE_DEVICES lists; empty: it is unset, or no list of numbers.
std::vector<std::int64_t> visible_devices(const Launch& launch);

// Whether a word is the name of such a command.
bool is_launcher(const std::string& word);

// Nothing: the words from `at` on, which begin with the program, start no training script.
// `directives` are the batch system's, which srun follows.
std::optional<LaunchCommand> read_launch(const ShellCommand& command, std::size_t at,
                                         const std::vector<ShellWord>& directives);

// The launcher's options that count its processes, in a command of another program's
// ("axolotl train x.yaml --launcher torchrun -- --nproc_per_node 8").
Launch launch_of_options(std::string program, std::span<const ShellWord> options, Place place);

// The processes of a job by what starts them; of a shell that Slurm or MPI starts where
// `by_shells`, which counts after what starts in it.
std::optional<std::int64_t> world_of(std::span<const Launch> launches, bool by_shells);

// Whether something that is started in this launch's shell counts the processes itself.
bool is_counted_inside(std::span<const Launch> launches, const Launch& launch);

}  // namespace qplan
