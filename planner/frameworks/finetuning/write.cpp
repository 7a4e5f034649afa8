// ms-swift's scripts: `megatron sft` for Megatron's plans, `swift sft` for FSDP2's and DeepSpeed's.

#include <fmt/format.h>

#include <algorithm>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/megatron/swift.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

constexpr auto kLimits = std::to_array<Limit>({
    {"swift_lora_dtype",
     [](const Subject& s) { return s.plan.lora_dtype != AdapterFormat::computed; },
     [](const Subject&) {
       return std::string(
           "qplan writes ms-swift's adapters in the format of its weights; leave lora_dtype out");
     }},
    {"swift_frozen",
     [](const Subject& s) { return s.plan.frozen_weights != FrozenFormat::computed; },
     [](const Subject&) {
       return std::string(
           "qplan writes no quantised weights for ms-swift; use trl, or frozen_weights computed");
     }},
    {"swift_degrees", [](const Subject& s) { return s.plan.tp > 1 || s.plan.cp > 1; },
     [](const Subject& s) {
       return fmt::format(
           "qplan writes data parallelism alone for `swift sft`, not tp {} and cp {}; use 1 of "
           "each, "
           "or the recipe megatron",
           s.plan.tp, s.plan.cp);
     }},
    {"swift_shards", [](const Subject& s) { return s.plan.fsdp_shard > 0; },
     [](const Subject&) {
       return std::string("ms-swift shards over all of dp; leave fsdp_shard out");
     }},
    {"swift_length", [](const Subject& s) { return s.model.vision.has_value(); },
     [](const Subject&) {
       return std::string(
           "`swift sft` freezes a vision tower unless told otherwise, which qplan "
           "does not write; use fsdp2");
     },
     Asks::model},
});

using Written = std::vector<WrittenOption>;

bool is_megatrons(const Subject& s) {
  return s.recipe != RecipeKind::deepspeed && s.recipe != RecipeKind::fsdp2;
}

// Settings of training that no plan decides, as far as ms-swift has them.
void append_known(Written& to, const Written& more, std::string_view list) {
  for (const auto& [key, value] : more) {
    std::string name = swift_argument(key);
    const bool known = known_options(list).find(name) != nullptr ||
                       (list == "ms_swift" && known_options("trainer").find(name) != nullptr);
    if (known) to.push_back({std::move(name), value});
  }
}

Written adapters(const Subject& s) {
  if (s.plan.lora_rank == 0) return {{"--tuner_type", "full"}};
  Written all{{"--tuner_type", "lora"},
              {"--lora_rank", s.plan.lora_rank},
              {"--lora_alpha", s.plan.lora_alpha},
              {"--lora_dropout", s.plan.lora_dropout},
              {"--target_modules", lora_target_names(s)}};
  if (s.plan.dora) all.push_back({"--use_dora", "true"});
  if (s.plan.lora_embeddings) {
    all.push_back({"--modules_to_save", Json::array({"embed_tokens", "lm_head"})});
  }
  return all;
}

// "--packing true --max_length 4096": a sample is a sequence of the plan's.
Written data(const Subject& s) {
  return {{"--model", "${MODEL_PATH}"},           {"--dataset", "${DATA_PATH}"},
          {"--output_dir", "${CHECKPOINT_PATH}"}, {"--packing", "true"},
          {"--attn_impl", "flash_attn"},          {"--max_length", s.plan.seq_len}};
}

Written plain_arguments(const Subject& s) {
  Written all = data(s);
  for (WrittenOption& option : written(trainer_options(), s)) {
    if (option.key == "--block_size" || option.key == "--max_length") continue;
    if (option.key == "--gradient_checkpointing") continue;  // on unless said, so said below
    if (option.value.is_boolean()) option.value = "true";
    all.push_back(std::move(option));
  }
  const Written tuner = adapters(s);
  all.insert(all.end(), tuner.begin(), tuner.end());
  const bool recomputes =
      s.recipe == RecipeKind::deepspeed && s.plan.recompute.kind == RecomputeKind::full;
  all.push_back({"--gradient_checkpointing", recomputes ? "true" : "false"});
  // Its own are reentrant unless it is told (swift/trainers/mixin.py:913).
  if (recomputes && !s.plan.use_reentrant) {
    all.push_back({"--gradient_checkpointing_kwargs", "{\"use_reentrant\": false}"});
  }
  append_known(all, trainer_training(), "ms_swift");
  return all;
}

// What accelerate's yaml says of FSDP, as the JSON that --fsdp names.
std::string fsdp_text(const Subject& s) {
  constexpr std::string_view kSection = "fsdp_config.fsdp_";
  Json config = Json::object();
  for (const auto& options : {written(accelerate_facts(), s), written(accelerate_options(), s)}) {
    for (const auto& [key, value] : options) {
      if (key.starts_with(kSection)) config[key.substr(kSection.size())] = value;
    }
  }
  config["state_dict_type"] = "SHARDED_STATE_DICT";
  config["cpu_ram_efficient_loading"] = true;
  return Json{{"fsdp", "full_shard auto_wrap"}, {"fsdp_config", config}}.dump(2) + '\n';
}

std::string script_text(const Subject& s, const std::vector<std::string>& remarks,
                        std::string_view command, const Written& arguments) {
  const Nodes nodes = nodes_of(s);
  std::string text = fmt::format(
      "#!/bin/bash\n{}# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>\n"
      "# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n",
      remark_lines(remarks));
  text += paths_block({{"MODEL_PATH", "/path/to/hugging_face_checkpoint"},
                       {"DATA_PATH", "/path/to/data.jsonl"},
                       {"CHECKPOINT_PATH", "/path/to/checkpoints"}});
  // It wants other queues than ms-swift sets unasked.
  if (s.recipe == RecipeKind::megatron_fsdp) text += "export CUDA_DEVICE_MAX_CONNECTIONS=32\n";
  text += "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
  text += fmt::format(
      "export NODE_RANK=\"${{NODE_RANK:-0}}\"\n"
      "export MASTER_ADDR=\"${{MASTER_ADDR:-localhost}}\"\n"
      "export MASTER_PORT=\"${{MASTER_PORT:-6000}}\"\n"
      "NPROC_PER_NODE={} NNODES={} \\\n{} \\\n",
      nodes.gpus, nodes.count, command);
  return text + continued(arguments);
}

}  // namespace

std::span<const Limit> swift_limits() {
  return kLimits;
}

std::vector<EmittedFile> write_swift(const Subject& s, const std::vector<std::string>& remarks) {
  std::vector<EmittedFile> files;
  Written all;
  if (is_megatrons(s)) {
    for (const WrittenOption& option : data(s)) {
      if (option.key != "--attn_impl" && option.key != "--max_length") all.push_back(option);
    }
    const Written plan = swift_megatron_arguments(s);
    all.insert(all.end(), plan.begin(), plan.end());
    append_known(all, megatron_training(), "ms_swift_megatron");
  } else {
    all = plain_arguments(s);
    if (s.recipe == RecipeKind::deepspeed) {
      files.push_back(
          {"ds_config.json", ds_config_text(written(deepspeed_options(), s), s), false});
      all.push_back({"--deepspeed", "ds_config.json"});
    } else {
      files.push_back({"fsdp.json", fsdp_text(s), false});
      all.push_back({"--fsdp", "fsdp.json"});
    }
  }
  const std::string_view command = is_megatrons(s) ? "megatron sft" : "swift sft";
  files.push_back({"train.sh", script_text(s, remarks, command, all), true});
  files.push_back(slurm_script(s, remarks, "train.sh"));
  return files;
}

}  // namespace qplan
