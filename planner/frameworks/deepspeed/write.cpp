#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/optimizer_names.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

// "zero_optimization.stage" becomes an object in an object.
void place(Json& root, std::string_view key, const Json& value) {
  Json* at = &root;
  for (;;) {
    const std::size_t dot = key.find('.');
    if (!at->is_object()) *at = Json::object();
    if (dot == std::string_view::npos) break;
    at = &(*at)[std::string(key.substr(0, dot))];
    key.remove_prefix(dot + 1);
  }
  (*at)[std::string(key)] = value;
}

std::string deepspeed_launch(const Subject& s) {
  const Nodes nodes = nodes_of(s);
  std::string text =
      fmt::format("deepspeed --num_gpus {} --num_nodes {} \\\n", nodes.gpus, nodes.count);
  if (nodes.count > 1) {
    text += "  --hostfile \"$HOSTFILE\" --master_addr \"$MASTER_ADDR\" --master_port 6000 \\\n";
  }
  return text;
}

std::string hosts_block(const Subject& s) {
  const Nodes nodes = nodes_of(s);
  if (nodes.count == 1) return "";
  return fmt::format(
      "# {} lines of \"<host> slots={}\"; run on one node, which reaches the others by ssh.\n"
      "HOSTFILE=${{HOSTFILE:-/path/to/hostfile}}\n"
      "MASTER_ADDR=${{MASTER_ADDR:-first-host}}\n",
      nodes.count, nodes.gpus);
}

// The Trainer splits sequences where accelerate's ParallelismConfig says so, which is read from the
// environment (accelerate 1.12). DeepSpeed's launcher sends .deepspeed_env to the other nodes.
std::string sequence_block(const Subject& s) {
  if (s.plan.cp == 1) return "";
  const std::vector<std::string> settings{
      "ACCELERATE_USE_PARALLELISM_CONFIG=true",
      fmt::format("PARALLELISM_CONFIG_DP_REPLICATE_SIZE={}", s.plan.dp),
      fmt::format("PARALLELISM_CONFIG_SP_SIZE={}", s.plan.cp),
      "PARALLELISM_CONFIG_SP_BACKEND=deepspeed",
      "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE=true",
      "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION=flash_attention_2"};
  std::string text = "# Sequences split over ranks (Ulysses), by accelerate 1.12 or later.\n";
  for (const std::string& setting : settings) text += "export " + setting + '\n';
  if (nodes_of(s).count > 1) {
    text += fmt::format("printf '%s\\n' {} > .deepspeed_env\n", fmt::join(settings, " \\\n  "));
  }
  return text;
}

// Buffers that DeepSpeed would take anyway, spelled out: elements of each bucket.
std::vector<WrittenOption> buckets(const Subject& s) {
  std::vector<WrittenOption> keys{{"zero_optimization.contiguous_gradients", true},
                                  {"zero_optimization.reduce_bucket_size", 500000000}};
  if (s.plan.zero == 3) {
    keys.push_back({"zero_optimization.stage3_prefetch_bucket_size", 50000000});
    keys.push_back({"zero_optimization.stage3_max_live_parameters", 1000000000});
    keys.push_back({"zero_optimization.stage3_param_persistence_threshold", 100000});
    keys.push_back({"zero_optimization.stage3_gather_16bit_weights_on_model_save", true});
  } else {
    keys.push_back({"zero_optimization.allgather_bucket_size", 500000000});
  }
  return keys;
}

// Where it has a name there: its settings.
void place_optimizer(Json& config, OptimizerKind kind) {
  const std::string_view name = deepspeed_optimizer(kind);
  if (name.empty()) return;
  Json& optimizer = config["optimizer"];
  optimizer["type"] = std::string(name);
  Json params{{"lr", std::stod(std::string(kTraining.learning_rate))}};
  const bool has_betas = kind != OptimizerKind::sgd && kind != OptimizerKind::muon;
  if (has_betas) params["betas"] = {kTraining.beta1, kTraining.beta2};
  if (kind == OptimizerKind::adam) params["eps"] = 1e-8;
  params["weight_decay"] = kTraining.weight_decay;
  if (optimizer.contains("params")) params.update(optimizer["params"]);
  optimizer["params"] = std::move(params);
  // DeepSpeed asks for this of an optimizer that its ZeRO was not tried with (zero/utils.py).
  if (kind == OptimizerKind::sgd) config["zero_allow_untested_optimizer"] = true;
}

}  // namespace

std::string ds_config_text(const std::vector<WrittenOption>& options, const Subject& s) {
  Json config = Json::object();
  for (const WrittenOption& option : options) place(config, option.key, option.value);
  for (const WrittenOption& option : buckets(s)) place(config, option.key, option.value);
  for (const std::string_view part : {"offload_optimizer", "offload_param"}) {
    Json& zero = config["zero_optimization"];
    if (!zero.contains(std::string(part))) continue;
    zero[std::string(part)]["pin_memory"] = true;
    if (s.plan.offload.nvme) zero[std::string(part)]["nvme_path"] = "/path/to/nvme";
  }
  place_optimizer(config, s.plan.optimizer);
  config["gradient_clipping"] = 1.0;
  config["steps_per_print"] = kTraining.log_interval;
  return config.dump(2) + '\n';
}

std::vector<EmittedFile> write_deepspeed(const Subject& s,
                                         const std::vector<std::string>& remarks) {
  const TrainerScript script = trainer_script(s);
  std::vector<WrittenOption> all = script.arguments;
  all.push_back({"--deepspeed", "ds_config.json"});
  const auto trainer = written(trainer_options(), s);
  all.insert(all.end(), trainer.begin(), trainer.end());
  const auto rest = trainer_training();
  all.insert(all.end(), rest.begin(), rest.end());
  std::string text = fmt::format("#!/bin/bash\n{}{}\nset -euo pipefail\ncd \"$(dirname \"$0\")\"\n",
                                 remark_lines(remarks), script.remark);
  text += paths_block({{std::string(script.path_name), std::string(script.path)},
                       {"MODEL_PATH", "/path/to/hugging_face_checkpoint"},
                       {"DATA_PATH", "/path/to/data"},
                       {"CHECKPOINT_PATH", "/path/to/checkpoints"}});
  text += hosts_block(s) + sequence_block(s) + deepspeed_launch(s);
  text += fmt::format("  \"${}/{}\" \\\n", script.path_name, script.script);
  text += continued(all);
  return {{"ds_config.json", ds_config_text(written(deepspeed_options(), s), s), false},
          {"train.sh", text, true},
          readme("DeepSpeed", remarks,
                 "`ds_config.json` is read by DeepSpeed, `train.sh` starts the job; replace the "
                 "paths in it.\n")};
}

std::vector<EmittedFile> write_megatron_deepspeed(const Subject& s,
                                                  const std::vector<std::string>& remarks) {
  std::vector<WrittenOption> training = megatron_training();
  training.push_back({"--save", "${CHECKPOINT_PATH}"});
  training.push_back({"--load", "${CHECKPOINT_PATH}"});
  std::string text = fmt::format(
      "#!/bin/bash\n{}# Needs deepspeedai/Megatron-DeepSpeed and deepspeed 0.10.2 or later.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n",
      remark_lines(remarks));
  text += paths_block({{"MEGATRON_DEEPSPEED_DIR", "/path/to/Megatron-DeepSpeed"},
                       {"TOKENIZER_PATH", "/path/to/tokenizer"},
                       {"DATA_PATH", "/path/to/data_text_document"},
                       {"CHECKPOINT_PATH", "/path/to/checkpoints"}});
  text += hosts_block(s);
  text += '\n' + bash_array("MODEL_ARGS", written(megatron_deepspeed_facts(), s));
  text += '\n' + bash_array("PLAN_ARGS", written(megatron_deepspeed_options(), s));
  text += '\n' + bash_array("TRAINING_ARGS", training);
  text += '\n' + bash_array("DATA_ARGS", {{"--tokenizer-type", "HFTokenizer"},
                                          {"--tokenizer-model", "${TOKENIZER_PATH}"},
                                          {"--data-path", "${DATA_PATH}"},
                                          {"--split", "99,1,0"}});
  text += "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  text += deepspeed_launch(s);
  text +=
      "  \"$MEGATRON_DEEPSPEED_DIR/pretrain_gpt.py\" \\\n"
      "  --deepspeed --deepspeed_config ds_config.json \\\n"
      "  \"${MODEL_ARGS[@]}\" \"${PLAN_ARGS[@]}\" \"${TRAINING_ARGS[@]}\" \"${DATA_ARGS[@]}\"\n";
  return {{"ds_config.json", ds_config_text(written(megatron_deepspeed_config(), s), s), false},
          {"train.sh", text, true},
          readme("Megatron-DeepSpeed", remarks,
                 "`ds_config.json` is read by DeepSpeed, `train.sh` starts the job; replace the "
                 "paths in it.\n")};
}

}  // namespace qplan
