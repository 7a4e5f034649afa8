#include "planner/frameworks/writers.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/frameworks/kinds_of_nodes.h"

namespace qplan {
namespace {

// In quotes unless a shell reads it as it is.
std::string shell_quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:=,@%";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos;
  if (plain) return text;
  // A variable is to be expanded; anything else is not.
  return text.find('$') != std::string::npos ? '"' + text + '"' : "'" + text + "'";
}

std::string spelled(const WrittenOption& option) {
  if (option.value.is_boolean() && option.value.get<bool>()) return option.key;
  std::string text = option.key;
  for (const std::string& value : list_of(option.value)) text += ' ' + shell_quoted(value);
  return text;
}

// A batch system reads its lines by rules of its own: a name of plain letters is one to all.
std::string job_name(const std::string& model) {
  std::string name;
  for (const char c : model) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain || c == '.' || c == '_' ? c : '-';
  }
  return name;
}

}  // namespace

// A model's name is its folder's, which may hold anything.
std::string remark_lines(const std::vector<std::string>& remarks) {
  std::string text;
  for (const std::string& remark : remarks) {
    std::string line = remark;
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    text += "# " + line + '\n';
  }
  return text;
}

std::string bash_array(std::string_view name, const std::vector<WrittenOption>& options) {
  std::string text = std::string(name) + "=(\n";
  for (const WrittenOption& option : options) text += "  " + spelled(option) + '\n';
  return text + ")\n";
}

std::string continued(const std::vector<WrittenOption>& options) {
  std::string text;
  for (const WrittenOption& option : options) {
    text += (text.empty() ? "  " : " \\\n  ") + spelled(option);
  }
  return text + '\n';
}

Nodes nodes_of(const Subject& s) {
  const std::int64_t world = s.plan.world();
  if (world <= s.gpus_per_node) return {1, world};
  // A world that does not fill its nodes takes the most even split.
  std::int64_t gpus = s.gpus_per_node;
  while (world % gpus != 0) --gpus;
  return {world / gpus, gpus};
}

EmittedFile slurm_script(const Subject& s, const std::vector<std::string>& remarks,
                         std::string_view script) {
  const Nodes nodes = nodes_of(s);
  const std::string head = fmt::format(
      "#!/bin/bash\n{}#SBATCH --job-name={}\n#SBATCH --nodes={}\n"
      "#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node={}\n"
      "#SBATCH --exclusive\n",
      remark_lines(remarks), job_name(s.model.name), nodes.count, nodes.gpus);
  // Slurm numbers nodes by their names, and tasks in the order of a file where it is told to
  // (srun(1), --distribution=arbitrary).
  const std::string start =
      on_several_kinds(s)
          ? fmt::format(
                "#SBATCH --nodefile=hosts.txt\nset -euo pipefail\n"
                "export SLURM_HOSTFILE=hosts.txt\n"
                "export MASTER_ADDR=$(head -n 1 hosts.txt)\n"
                "srun --distribution=arbitrary bash -c "
                "'NODE_RANK=$SLURM_PROCID exec bash {}'\n",
                script)
          : fmt::format(
                "set -euo pipefail\n"
                "export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | "
                "head -n 1)\n"
                "srun bash -c 'NODE_RANK=$SLURM_NODEID exec bash {}'\n",
                script);
  return {"train.sbatch", head + start, true};
}

Json lora_target_names(const Subject& s) {
  const LoraTargets chosen = s.plan.lora().targets;
  if (chosen.empty()) return "all-linear";
  Json names = Json::array();
  for (const auto& [target, word] : Words<LoraTarget>::table) {
    if (chosen.has(target)) names.push_back(std::string(word));
  }
  return names;
}

TrainerScript trainer_script(const Subject& s) {
  if (s.model.vision) {
    return {"# sft_vlm.py is TRL's example: examples/scripts.",
            "TRL_DIR",
            "/path/to/trl",
            "examples/scripts/sft_vlm.py",
            {{"--model_name_or_path", "${MODEL_PATH}"},
             {"--dataset_name", "${DATA_PATH}"},
             {"--output_dir", "${CHECKPOINT_PATH}"}}};
  }
  return {"# run_clm.py is transformers' example: examples/pytorch/language-modeling.",
          "TRANSFORMERS_DIR",
          "/path/to/transformers",
          "examples/pytorch/language-modeling/run_clm.py",
          {{"--model_name_or_path", "${MODEL_PATH}"},
           {"--train_file", "${DATA_PATH}"},
           {"--output_dir", "${CHECKPOINT_PATH}"},
           {"--do_train", true}}};
}

std::string paths_block(const std::vector<std::pair<std::string, std::string>>& paths) {
  std::string text = "# Replace these paths.\n";
  for (const auto& [name, path] : paths) text += fmt::format("{}={}\n", name, path);
  return text;
}

std::vector<WrittenOption> megatron_training() {
  const TrainingDefaults& t = kTraining;
  return {{"--train-iters", t.steps},
          {"--lr", t.learning_rate},
          {"--min-lr", t.min_learning_rate},
          {"--lr-decay-style", "cosine"},
          {"--lr-warmup-iters", t.warmup_steps},
          {"--weight-decay", t.weight_decay},
          {"--clip-grad", t.clip_grad},
          {"--adam-beta1", t.beta1},
          {"--adam-beta2", t.beta2},
          {"--init-method-std", 0.02},
          {"--log-interval", t.log_interval},
          {"--save-interval", t.save_interval},
          {"--eval-interval", t.save_interval},
          {"--eval-iters", 10}};
}

std::vector<WrittenOption> trainer_training() {
  const TrainingDefaults& t = kTraining;
  return {{"--learning_rate", t.learning_rate},
          {"--max_steps", t.steps},
          {"--adam_beta2", t.beta2},
          {"--weight_decay", t.weight_decay},
          {"--logging_steps", t.log_interval},
          {"--save_steps", t.save_interval}};
}

EmittedFile readme(std::string_view title, const std::vector<std::string>& remarks,
                   std::string_view how) {
  std::string text = fmt::format("# {}\n\n", title);
  for (const std::string& remark : remarks) text += remark + "\n\n";
  return {"README.md", text + std::string(how), false};
}

}  // namespace qplan
