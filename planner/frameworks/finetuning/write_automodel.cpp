// NeMo AutoModel's own YAML, of FSDP2's plans and of those with stages or spread experts.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "planner/frameworks/finetuning/automodel.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

constexpr auto kAutoModelLimits = std::to_array<Limit>({
    {"automodel_embeddings", [](const Subject& s) { return s.plan.lora_embeddings; },
     [](const Subject&) {
       return std::string(
           "NeMo AutoModel's adapters leave embedding and head frozen; leave lora_embeddings out");
     }},
    {"automodel_frozen",
     [](const Subject& s) { return s.plan.frozen_weights != FrozenFormat::computed; },
     [](const Subject&) {
       return std::string(
           "qplan writes no quantised weights for NeMo AutoModel; use trl, or frozen_weights "
           "computed");
     }},
    {"automodel_precision", [](const Subject& s) { return s.plan.precision != Precision::bf16; },
     [](const Subject& s) {
       return fmt::format(
           "NeMo AutoModel's products are written in bf16, not in {}; use precision=bf16",
           to_word(s.plan.precision));
     }},
    {"automodel_optimizer",
     [](const Subject& s) { return s.plan.optimizer != OptimizerKind::adam; },
     [](const Subject&) {
       return std::string("qplan writes AdamW for NeMo AutoModel; use optimizer=adam, or fsdp2");
     }},
    {"automodel_replicas",
     [](const Subject& s) { return s.plan.fsdp_shard > 0 && s.plan.fsdp_shard < 2 * s.plan.cp; },
     [](const Subject& s) {
       return fmt::format(
           "NeMo AutoModel's FSDP2 has no copies alone (dp_replicate_size below dp_size); use "
           "fsdp_shard=0, or at least {}",
           2 * s.plan.cp);
     }},
    {"automodel_context",
     [](const Subject& s) { return s.plan.cp > 1 && s.plan.cp_comm != CpComm::all_gather; },
     [](const Subject&) {
       return std::string("NeMo AutoModel gathers keys and values; use cp_comm=all_gather");
     }},
    {"automodel_sync", [](const Subject& s) { return s.plan.pp > 1 && !s.plan.sync_each_batch; },
     [](const Subject&) {
       return std::string(
           "qplan writes whole sums of gradients for NeMo AutoModel without stages; leave "
           "sync_each_batch out");
     }},
    {"automodel_vision", [](const Subject& s) { return s.model.vision.has_value(); },
     [](const Subject&) {
       return std::string("qplan writes NeMo AutoModel's recipe of text models; use fsdp2");
     },
     Asks::model},
});

bool spreads(const Subject& s) {
  return s.plan.pp > 1 || s.plan.ep > 1;
}

constexpr auto kSpreadLimits = std::to_array<Limit>({
    {"automodel_spread", [](const Subject& s) { return !spreads(s); },
     [](const Subject&) {
       return std::string(
           "NeMo AutoModel without stages and spread experts is FSDP2 of Hugging Face's modules; "
           "use pp or ep above 1, or the recipe fsdp2");
     }},
    {"automodel_experts",
     [](const Subject& s) { return s.plan.ep > 1 && !automodel_has_experts(s.config); },
     [](const Subject& s) {
       return fmt::format(
           "NeMo AutoModel spreads experts of its own layers alone, and has none of "
           "{}; use ep=1",
           s.model.name);
     }},
    {"automodel_stages", [](const Subject& s) { return !s.plan.pipeline_layout.empty(); },
     [](const Subject&) {
       return std::string(
           "qplan writes stages of as many layers each for NeMo AutoModel; use no "
           "pipeline_layout");
     }},
    {"automodel_loss", [](const Subject& s) { return torchtitan_loss_chunks(s.model, s.plan) > 1; },
     [](const Subject&) {
       return std::string("NeMo AutoModel's loss runs whole; use loss=compiled");
     }},
    {"automodel_graphs", [](const Subject& s) { return s.plan.cuda_graph; },
     [](const Subject&) {
       return std::string("qplan writes no CUDA graphs for NeMo AutoModel; use cuda_graph=false");
     }},
    {"automodel_dispatcher",
     [](const Subject& s) {
       return s.plan.ep == 1 && s.plan.moe_dispatcher != MoeDispatcher::alltoall;
     },
     [](const Subject&) {
       return std::string(
           "experts that are not spread are not dispatched; use "
           "moe_dispatcher=alltoall");
     }},
});

std::string yaml_value(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string list;
  for (const Json& item : value) list += (list.empty() ? "" : ", ") + item.dump();
  return "[" + list + "]";
}

// "a.b.c" under one another, sections in the order they first appear.
std::string yaml_text(const std::vector<WrittenOption>& options) {
  std::string text;
  std::vector<std::string> open;
  for (const auto& [key, value] : options) {
    std::vector<std::string> path;
    for (std::size_t from = 0;;) {
      const std::size_t dot = key.find('.', from);
      path.push_back(key.substr(from, dot == std::string::npos ? dot : dot - from));
      if (dot == std::string::npos) break;
      from = dot + 1;
    }
    for (std::size_t depth = 0; depth < path.size(); ++depth) {
      const bool leaf = depth + 1 == path.size();
      if (!leaf && depth < open.size() && open[depth] == path[depth]) continue;
      if (depth == 0) text += '\n';
      text += fmt::format("{}{}:{}\n", std::string(2 * depth, ' '), path[depth],
                          leaf ? " " + yaml_value(value) : "");
      open.resize(depth);
      if (!leaf) open.push_back(path[depth]);
    }
  }
  return text;
}

Json target_patterns(const Subject& s) {
  const LoraTargets chosen = s.plan.lora().targets;
  if (chosen.empty()) return Json::array({"*_proj"});
  Json list = Json::array();
  for (const auto& [target, word] : Words<LoraTarget>::table) {
    if (chosen.has(target)) list.push_back(fmt::format("*{}", word));
  }
  return list;
}

std::string dispatcher_word(MoeDispatcher dispatcher) {
  return dispatcher == MoeDispatcher::alltoall ? "torch" : std::string(to_word(dispatcher));
}

Json checkpointing_word(RecomputeKind kind) {
  if (kind == RecomputeKind::selective) return "selective";
  return kind == RecomputeKind::full;
}

// Degrees and stages that FSDP2 alone has not.
std::vector<WrittenOption> spread_options(const Subject& s, std::int64_t local) {
  std::vector<WrittenOption> all{{"distributed.pp_size", s.plan.pp},
                                 {"distributed.ep_size", s.plan.ep}};
  if (s.plan.overlap.has(OverlapKind::tp)) {
    all.push_back({"distributed.enable_async_tensor_parallel", true});
  }
  if (s.plan.pp == 1) return all;
  const auto* const schedule =
      std::find_if(kAutoModelSchedules.begin(), kAutoModelSchedules.end(),
                   [&](const auto& known) { return known.kind == s.plan.schedule; });
  all.insert(all.end(), {{"distributed.pipeline.pp_schedule", std::string(schedule->word)},
                         {"distributed.pipeline.pp_microbatch_size", s.plan.micro_batch_size},
                         {"distributed.pipeline.pp_batch_size", local},
                         {"distributed.pipeline.layers_per_stage",
                          s.model.num_layers / (s.plan.pp * s.plan.vpp)}});
  return all;
}

}  // namespace

// Architectures of experts that NeMo AutoModel has layers of its own for, which alone are spread
// (nemo_automodel/_transformers/registry.py).
bool automodel_has_experts(const Json& config) {
  constexpr std::array<std::string_view, 9> kArchitectures{
      "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM",
      "GptOssForCausalLM",     "KimiK3ForCausalLM",      "MiniMaxM2ForCausalLM",
      "NemotronHForCausalLM",  "Qwen3MoeForCausalLM",    "Qwen3NextForCausalLM"};
  const auto names = config.find("architectures");
  if (names == config.end() || !names->is_array() || names->empty()) return false;
  const std::string name = text_of(names->front());
  return std::find(kArchitectures.begin(), kArchitectures.end(), name) != kArchitectures.end();
}

std::span<const Limit> automodel_limits() {
  return kAutoModelLimits;
}

std::span<const Limit> automodel_spread_limits() {
  return kSpreadLimits;
}

std::vector<EmittedFile> write_automodel(const Subject& s,
                                         const std::vector<std::string>& remarks) {
  const Nodes nodes = nodes_of(s);
  const bool adapts = s.plan.lora_rank > 0;
  const int shard = s.plan.fsdp_shard > 0 ? s.plan.fsdp_shard / s.plan.cp : s.plan.dp;
  const TrainingDefaults& t = kTraining;
  // One pass through the stages takes the whole of a step (pipelining/config.py: pp_batch_size).
  const bool stages = s.plan.pp > 1;
  const std::int64_t local =
      stages ? s.plan.global_batch_size / s.plan.dp : s.plan.micro_batch_size;
  std::vector<WrittenOption> all{
      {"recipe", "TrainFinetuneRecipeForNextTokenPrediction"},
      {"step_scheduler.global_batch_size", s.plan.global_batch_size},
      {"step_scheduler.local_batch_size", local},
      {"step_scheduler.ckpt_every_steps", t.save_interval},
      {"step_scheduler.max_steps", t.steps},
      {"dist_env.backend", "nccl"},
      {"dist_env.timeout_minutes", 10},
      {"model._target_", "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained"},
      {"model.pretrained_model_name_or_path", "/path/to/hugging_face_checkpoint"},
      // States are as wide as the weights: fp32 beside products in bf16.
      {"model.torch_dtype", adapts ? "bfloat16" : "float32"}};
  if (s.plan.ep > 1) {
    all.insert(all.end(),
               {{"model.backend._target_", "nemo_automodel.components.models.common.BackendConfig"},
                {"model.backend.dispatcher", dispatcher_word(s.plan.moe_dispatcher)}});
  }
  const std::vector<WrittenOption> degrees{
      {"compile.enabled", s.plan.compile},
      {"distributed.strategy", "fsdp2"},
      {"distributed.dp_size", s.plan.dp},
      {"distributed.dp_replicate_size", s.plan.dp / std::max(1, shard)},
      {"distributed.tp_size", s.plan.tp},
      {"distributed.cp_size", s.plan.cp},
      {"distributed.sequence_parallel", s.plan.tp > 1 && s.plan.sequence_parallel},
      {"distributed.activation_checkpointing", checkpointing_word(s.plan.recompute.kind)},
      {"distributed.reshard_after_forward", s.plan.zero == 3}};
  all.insert(all.end(), degrees.begin(), degrees.end());
  if (s.recipe == RecipeKind::fsdp2_compile) {
    const auto more = spread_options(s, local);
    all.insert(all.end(), more.begin(), more.end());
  }
  // It waits for the last micro-batch unless it is told (distributed/config.py).
  if (!stages && (!s.plan.sync_each_batch || s.plan.num_microbatches() > 1)) {
    all.push_back({"distributed.defer_fsdp_grad_sync", !s.plan.sync_each_batch});
  }
  if (s.plan.offload.params) {
    all.push_back(
        {"distributed.offload_policy._target_", "torch.distributed.fsdp.CPUOffloadPolicy"});
  }
  if (adapts) {
    all.insert(all.end(), {{"peft._target_", "nemo_automodel.components._peft.lora.PeftConfig"},
                           {"peft.target_modules", target_patterns(s)},
                           {"peft.dim", s.plan.lora_rank},
                           {"peft.alpha", s.plan.lora_alpha},
                           {"peft.dropout", s.plan.lora_dropout}});
    if (s.plan.dora) all.push_back({"peft.use_dora", true});
  }
  all.insert(
      all.end(),
      {{"loss_fn._target_", "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
       {"dataset._target_", "nemo_automodel.components.datasets.llm.squad.make_squad_dataset"},
       {"dataset.dataset_name", "/path/to/data"},
       {"dataset.split", "train"},
       {"packed_sequence.packed_sequence_size", s.plan.seq_len},
       {"dataloader._target_", "torchdata.stateful_dataloader.StatefulDataLoader"},
       {"dataloader.collate_fn", "nemo_automodel.components.datasets.utils.default_collater"},
       {"optimizer._target_", "torch.optim.AdamW"},
       {"optimizer.lr", std::stod(std::string(t.learning_rate))},
       {"optimizer.betas", Json::array({t.beta1, t.beta2})},
       {"optimizer.weight_decay", t.weight_decay},
       {"lr_scheduler.lr_decay_style", "cosine"},
       {"lr_scheduler.lr_warmup_steps", t.warmup_steps},
       {"checkpoint.enabled", true},
       {"checkpoint.checkpoint_dir", "/path/to/checkpoints"}});
  const std::string script = fmt::format(
      "#!/bin/bash\n{}# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...>\n"
      "# MASTER_ADDR=<of the first> bash train.sh; under Slurm: sbatch train.sbatch. Replace the "
      "paths\n# and the dataset in automodel.yaml.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\n"
      "torchrun --nproc-per-node {} --nnodes {} --node-rank \"${{NODE_RANK:-0}}\" \\\n"
      "  --master-addr \"${{MASTER_ADDR:-localhost}}\" --master-port \"${{MASTER_PORT:-6000}}\" "
      "\\\n"
      "  -m nemo_automodel.recipes.llm.train_ft --config automodel.yaml\n",
      remark_lines(remarks), nodes.gpus, nodes.count);
  return {{"automodel.yaml", remark_lines(remarks) + yaml_text(all), false},
          {"train.sh", script, true},
          slurm_script(s, remarks, "train.sh")};
}

}  // namespace qplan
