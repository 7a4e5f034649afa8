#pragma once
// The files of each framework. Private to emit().

#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/emit.h"

namespace qplan {

std::vector<EmittedFile> write_megatron(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_bridge(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_verl(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_nemo_rl(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_slime(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_deepspeed(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_megatron_deepspeed(const Subject& s,
                                                  const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_fsdp2(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_torchtitan(const Subject& s,
                                          const std::vector<std::string>& remarks);

std::vector<EmittedFile> write_automodel(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_trl(const Subject& s, const std::vector<std::string>& remarks);
std::vector<EmittedFile> write_swift(const Subject& s, const std::vector<std::string>& remarks);

std::span<const Limit> slime_limits();

// ---- what they share ----

// "# a" a line.
std::string remark_lines(const std::vector<std::string>& remarks);

// A bash array: NAME=( --flag value ... ), one option a line.
std::string bash_array(std::string_view name, const std::vector<WrittenOption>& options);
// `--flag value \` a line, to follow a command.
std::string continued(const std::vector<WrittenOption>& options);

// How many nodes the plan fills, and the GPUs of each.
struct Nodes {
  std::int64_t count = 1, gpus = 8;
};
Nodes nodes_of(const Subject& s);

// train.sbatch: starts `script` once a node under Slurm.
EmittedFile slurm_script(const Subject& s, const std::vector<std::string>& remarks,
                         std::string_view script);

// The script that a Hugging Face launcher starts, and the arguments that only it has: transformers'
// run_clm.py, or TRL's sft_vlm.py for a model that sees.
struct TrainerScript {
  std::string_view remark, path_name, path, script;
  std::vector<WrittenOption> arguments;
};
TrainerScript trainer_script(const Subject& s);

// What the model needs from the user: lines of NAME=/path/to/...
std::string paths_block(const std::vector<std::pair<std::string, std::string>>& paths);

// Settings of training that no plan decides. Files say them so that a run begins; their user
// replaces them.
struct TrainingDefaults {
  std::string_view learning_rate = "3e-4", min_learning_rate = "3e-5";
  double beta1 = 0.9, beta2 = 0.95, weight_decay = 0.1;
  std::string_view clip_grad = "1.0";
  int steps = 1000, warmup_steps = 100, log_interval = 10, save_interval = 500;
};
inline constexpr TrainingDefaults kTraining;
// As Megatron's flags, and as arguments of transformers' Trainer.
std::vector<WrittenOption> megatron_training();
std::vector<WrittenOption> trainer_training();

// Adapters as PEFT has them: layers by name, or "all-linear".
Json lora_target_names(const Subject& s);
// accelerate's yaml for FSDP2, or for DeepSpeed by the ds_config.json beside it.
std::string accelerate_text(const Subject& s, const std::vector<std::string>& remarks);

// ds_config.json for either user of DeepSpeed.
std::string ds_config_text(const std::vector<WrittenOption>& options, const Subject& s);
// The README beside it, since JSON holds no remarks.
EmittedFile readme(std::string_view title, const std::vector<std::string>& remarks,
                   std::string_view how);

}  // namespace qplan
