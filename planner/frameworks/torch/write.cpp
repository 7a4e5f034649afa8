#include <fmt/format.h>

#include <algorithm>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/kinds_of_nodes.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

std::string yaml_scalar(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

// Sections in the order they first appear; keys above them.
std::string yaml_text(const std::vector<WrittenOption>& options) {
  std::string top, sections;
  std::vector<std::string> seen;
  for (const WrittenOption& option : options) {
    const std::size_t dot = option.key.find('.');
    if (dot == std::string::npos) {
      top += fmt::format("{}: {}\n", option.key, yaml_scalar(option.value));
      continue;
    }
    const std::string section = option.key.substr(0, dot);
    if (std::find(seen.begin(), seen.end(), section) != seen.end()) continue;
    seen.push_back(section);
    sections += section + ":\n";
    for (const WrittenOption& member : options) {
      if (!member.key.starts_with(section + ".")) continue;
      sections += fmt::format("  {}: {}\n", member.key.substr(dot + 1), yaml_scalar(member.value));
    }
  }
  return top + sections;
}

std::string python(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.dump();
}

// The keywords of one section: "    name=value,".
std::string keywords(const std::vector<WrittenOption>& options, const std::string& section) {
  std::string text;
  for (const WrittenOption& option : options) {
    if (!option.key.starts_with(section + ".")) continue;
    text += fmt::format("            {}={},\n", option.key.substr(section.size() + 1),
                        python(option.value));
  }
  return text;
}

// torchtitan's own recipes all run the loss in chunks, where there are whole ones.
std::string loss_lines(bool in_chunks) {
  const std::string_view vocabulary = "global_vocab_size=decoder_vocab_size(model_spec),\n";
  if (!in_chunks) {
    return fmt::format("        loss=CrossEntropyLoss.Config(\n            {}        ),\n",
                       vocabulary);
  }
  return fmt::format(
      "        loss=ChunkedLossWrapper.Config(\n"
      "            loss_fn=CrossEntropyLoss.Config(\n"
      "                {}"
      "            ),\n"
      "        ),\n",
      vocabulary);
}

const WrittenOption* find(const std::vector<WrittenOption>& options, std::string_view key) {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const WrittenOption& o) { return o.key == key; });
  return found == options.end() ? nullptr : &*found;
}

}  // namespace

std::string accelerate_text(const Subject& s, const std::vector<std::string>& remarks) {
  std::vector<WrittenOption> options;
  const auto add = [&](const std::vector<WrittenOption>& more) {
    options.insert(options.end(), more.begin(), more.end());
  };
  if (s.recipe == RecipeKind::deepspeed) {
    add({{"compute_environment", "LOCAL_MACHINE"},
         {"distributed_type", "DEEPSPEED"},
         {"deepspeed_config.deepspeed_config_file", "ds_config.json"},
         {"deepspeed_config.deepspeed_multinode_launcher", "standard"},
         {"deepspeed_config.zero3_init_flag", s.plan.zero == 3}});
  } else {
    add(written(accelerate_facts(), s));
    add(written(accelerate_options(), s));
    add({{"fsdp_config.fsdp_state_dict_type", "SHARDED_STATE_DICT"},
         {"fsdp_config.fsdp_cpu_ram_efficient_loading", true}});
  }
  add({{"num_machines", nodes_of(s).count},
       {"num_processes", s.plan.world()},
       {"machine_rank", 0},
       {"rdzv_backend", "static"},
       {"same_network", true},
       {"main_training_function", "main"},
       {"use_cpu", false}});
  return remark_lines(remarks) + yaml_text(options);
}

std::vector<EmittedFile> write_fsdp2(const Subject& s, const std::vector<std::string>& remarks) {
  const TrainerScript script = trainer_script(s);
  std::vector<WrittenOption> arguments = script.arguments;
  const auto trainer = written(trainer_options(), s);
  arguments.insert(arguments.end(), trainer.begin(), trainer.end());
  auto more = trainer_training();
  // DeepSpeed clips by its own configuration, the Trainer by its argument; before what it logs.
  more.insert(more.end() - 2, {"--max_grad_norm", kTraining.clip_grad});
  arguments.insert(arguments.end(), more.begin(), more.end());
  std::string text = fmt::format(
      "#!/bin/bash\n{}# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>\n"
      "# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch.\n{}\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n",
      remark_lines(remarks), script.remark);
  text += paths_block({{std::string(script.path_name), std::string(script.path)},
                       {"MODEL_PATH", "/path/to/hugging_face_checkpoint"},
                       {"DATA_PATH", "/path/to/data"},
                       {"CHECKPOINT_PATH", "/path/to/checkpoints"}});
  text += fmt::format(
      "accelerate launch --config_file accelerate.yaml --machine_rank \"${{NODE_RANK:-0}}\" \\\n"
      "  --main_process_ip \"${{MASTER_ADDR:-localhost}}\" --main_process_port "
      "\"${{MASTER_PORT:-6000}}\" \\\n"
      "  \"${}/{}\" \\\n",
      script.path_name, script.script);
  text += continued(arguments);
  return {{"accelerate.yaml", accelerate_text(s, remarks), false},
          {"train.sh", text, true},
          slurm_script(s, remarks, "train.sh")};
}

std::vector<EmittedFile> write_torchtitan(const Subject& s,
                                          const std::vector<std::string>& remarks) {
  const TorchtitanModel* const model = torchtitan_model(s.model.name);
  const auto options = written(torchtitan_options(), s);
  const std::string checkpoint = text_of(find(options, "activation_checkpoint")->value);
  const WrittenOption* const backend = find(options, "moe_comm_backend");
  std::string text = remark_lines(remarks);
  text +=
      "# torchtitan reads it by: --module qplan_config --config qplan (see train.sh)\n"
      "from torchtitan.components.checkpointer import CheckpointManager\n"
      "from torchtitan.components.data import ConcatThenSplitPackingConfig, GrainDataLoader\n"
      "from torchtitan.components.loss import ";
  const bool in_chunks = text_of(find(options, "loss")->value) == kLossInChunks;
  if (in_chunks) text += "ChunkedLossWrapper, ";
  text +=
      "CrossEntropyLoss\n"
      "from torchtitan.components.optimizer import default_adamw, LRSchedulersContainer\n"
      "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig\n";
  if (checkpoint != "None") {
    text +=
        fmt::format("from torchtitan.distributed.activation_checkpoint import {}\n", checkpoint);
  }
  text += fmt::format(
      "from torchtitan.hf_datasets.text_datasets import DATASETS\n"
      "from torchtitan.models.common.config_utils import decoder_vocab_size\n"
      "from torchtitan.models.{} import model_registry\n"
      "from torchtitan.trainer import Trainer\n\n\n",
      model->module);
  std::string arguments =
      backend == nullptr ? "" : fmt::format(", moe_comm_backend={}", backend->value.dump());
  if (!model->attention_backend.empty()) {
    arguments += fmt::format(", attn_backend=\"{}\"", model->attention_backend);
  }
  text += fmt::format(
      "def qplan() -> Trainer.Config:\n"
      "    model_spec = model_registry(\"{}\"{})\n"
      "    return Trainer.Config(\n"
      "{}"
      "        # Replace these paths.\n"
      "        hf_assets_path=\"/path/to/tokenizer\",\n"
      "        dataloader=GrainDataLoader.Config(\n"
      "            dataset=ConcatThenSplitPackingConfig(dataset=DATASETS[\"c4\"]),\n"
      "        ),\n"
      "        model_spec=model_spec,\n"
      "        optimizer=default_adamw(lr={}),\n"
      "        lr_scheduler=LRSchedulersContainer.Config(warmup_steps={}),\n"
      "        training=TrainingConfig(\n{}            steps={},\n        ),\n"
      "        parallelism=ParallelismConfig(\n{}        ),\n"
      "        compile=CompileConfig(\n{}        ),\n"
      "        activation_checkpoint={},\n"
      "        checkpoint=CheckpointManager.Config(interval={}),\n"
      "    )\n",
      model->flavor, arguments, loss_lines(in_chunks), kTraining.learning_rate,
      kTraining.warmup_steps, keywords(options, "training"), kTraining.steps,
      keywords(options, "parallelism"), keywords(options, "compile"),
      checkpoint == "None" ? "None" : checkpoint + ".Config()", kTraining.save_interval);
  const Nodes nodes = nodes_of(s);
  // torch's elastic rendezvous ranks nodes by their names, whatever --node-rank says
  // (dynamic_rendezvous.py: sorted participants); the static one does as it is told.
  const std::string_view meeting =
      on_several_kinds(s)
          ? "--master-addr \"${MASTER_ADDR:-localhost}\" --master-port 29500"
          : "--rdzv-backend c10d --rdzv-endpoint \"${MASTER_ADDR:-localhost}:29500\"";
  const std::string script = fmt::format(
      "#!/bin/bash\n{}# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>\n"
      "# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n"
      "TORCHTITAN_DIR=${{TORCHTITAN_DIR:-/path/to/torchtitan}}\n"
      "export PYTHONPATH=\"$PWD:$TORCHTITAN_DIR\"\n"
      "export PYTORCH_ALLOC_CONF=expandable_segments:True\n"
      "torchrun --nproc-per-node {} --nnodes {} --node-rank \"${{NODE_RANK:-0}}\" \\\n"
      "  {} \\\n"
      "  -m torchtitan.train --module qplan_config --config qplan\n",
      remark_lines(remarks), nodes.gpus, nodes.count, meeting);
  return {{"qplan_config.py", text, false},
          {"train.sh", script, true},
          slurm_script(s, remarks, "train.sh")};
}

}  // namespace qplan
