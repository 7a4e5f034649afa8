// NeMo AutoModel (36044ad3): its YAML as the job of torch's that it asks for, and its own YAML
// written. Without stages and experts spread over ranks it is FSDP2, or DDP, on Hugging Face's
// modules; with them it has torchtitan's degrees and schedules.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

class AutoModel : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    strategy_ = word_of(yaml_, "distributed.strategy", "fsdp2");
    const bool spread = degree("pp_size") > 1 || degree("ep_size") > 1;
    if (spread) {
      make_torchtitan();
    } else {
      make_accelerate();
    }
    make_formats();
    if (yaml_.has_section("peft.")) make_adapters();
    assume();
    return std::move(job_);
  }

 private:
  [[nodiscard]] double degree(std::string_view name) const {
    return figure_of(yaml_, fmt::format("distributed.{}", name), 1);
  }

  // What packs samples, or cuts and pads them.
  [[nodiscard]] std::string_view length_key() const {
    for (const std::string_view key :
         {"packed_sequence.packed_sequence_size", "packed_sequence.pack_size",
          "packed_sequence.max_length", "dataset.seq_len", "dataset.seq_length",
          "dataset.max_length", "dataset.block_size"}) {
      if (figure_of(yaml_, key, 0) > 0) return key;
    }
    return "";
  }

  [[nodiscard]] std::string checkpointing() const {
    const std::string word = word_of(yaml_, "distributed.activation_checkpointing", "false");
    if (word == "selective") return word;
    return is_switched_on(yaml_, "distributed.activation_checkpointing") && word != "disabled" &&
                   word != "none"
               ? "full"
               : "none";
  }

  void make_accelerate() {
    Settings& to = job_.accelerate;
    const bool copies = strategy_ == "ddp";
    say(to, "distributed_type", copies ? "MULTI_GPU" : "FSDP", "distributed.strategy");
    say(to, "fsdp_config.fsdp_version", 2, "distributed.strategy");
    say(to, "mixed_precision", "bf16", "distributed.mp_policy.param_dtype");
    if (yaml_.has("distributed.reshard_after_forward")) {
      hand(to, "distributed.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward");
    }
    if (yaml_.has_section("distributed.offload_policy.")) {
      say(to, "fsdp_config.fsdp_offload_params", true, "distributed.offload_policy._target_");
    }
    constexpr std::array<std::string_view, 3> kDegrees{"tp", "cp", "dp_replicate"};
    for (const std::string_view name : kDegrees) {
      const std::string key = fmt::format("{}_size", name);
      if (degree(key) <= 1) continue;
      hand(to, fmt::format("distributed.{}", key),
           fmt::format("parallelism_config.parallelism_config_{}", key));
    }
    if (degree("cp_size") > 1) {
      say(to, "parallelism_config.parallelism_config_cp_comm_strategy", "allgather",
          "distributed.cp_size");
    }
    Settings& trainer = job_.trainer;
    hand_or(trainer, "step_scheduler.local_batch_size", "--per_device_train_batch_size", 1);
    if (is_switched_on(yaml_, "compile.enabled") ||
        is_switched_on(yaml_, "distributed.enable_compile")) {
      say(trainer, "--torch_compile", true, "compile.enabled");
    }
    hand_or(job_.own_script, "step_scheduler.global_batch_size", "global_batch", 32);
    if (!length_key().empty()) hand(trainer, length_key(), "--max_length");
    const std::string keeps = checkpointing();
    if (keeps != "none") {
      say(job_.own_script, "recompute", keeps == "full" ? Json(true) : Json("selective"),
          "distributed.activation_checkpointing");
    }
  }

  // Stages and experts: torchtitan's words, of which the layers' own kernels are not.
  void make_torchtitan() {
    Settings& to = job_.torchtitan;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kDegrees{
        {{"tp_size", "parallelism.tensor_parallel_degree"},
         {"pp_size", "parallelism.pipeline_parallel_degree"},
         {"cp_size", "parallelism.context_parallel_degree"},
         {"ep_size", "parallelism.expert_parallel_degree"},
         {"dp_replicate_size", "parallelism.data_parallel_replicate_degree"}}};
    for (const auto& [key, name] : kDegrees) {
      if (degree(key) > 1) hand(to, fmt::format("distributed.{}", key), std::string(name));
    }
    say(to, "parallelism.enable_sequence_parallel",
        is_switched_on(yaml_, "distributed.sequence_parallel"), "distributed.sequence_parallel");
    if (yaml_.has("distributed.reshard_after_forward")) {
      say(to, "parallelism.fsdp_reshard_after_forward",
          is_switched_on(yaml_, "distributed.reshard_after_forward") ? "always" : "never",
          "distributed.reshard_after_forward");
    }
    if (yaml_.has_section("distributed.offload_policy.")) {
      say(to, "training.enable_cpu_offload", true, "distributed.offload_policy._target_");
    }
    const bool stages = degree("pp_size") > 1;
    const std::int64_t local = whole("step_scheduler.local_batch_size", 1);
    const std::int64_t micro = stages ? whole("distributed.pipeline.pp_microbatch_size", 1) : local;
    if (stages) make_stages(local, micro);
    const std::int64_t length = length_key().empty() ? 2048 : whole(length_key(), 2048);
    if (length_key().empty()) {
      job_.assumed.emplace_back("sequences of 2048 tokens: the file does not say");
    }
    say(to, "training.max_context_length", length, length_key());
    say(to, "training.num_tokens_per_microbatch_per_dp_rank", micro * length,
        "step_scheduler.local_batch_size");
    say(to, "training.num_tokens_per_train_step",
        whole("step_scheduler.global_batch_size", 32) * length, "step_scheduler.global_batch_size");
    say(to, "training.disable_cuda_graphs", true);
    say(to, "compile.enable", is_switched_on(yaml_, "compile.enabled"), "compile.enabled");
    say(to, "loss", std::string(kWholeLoss));
    const std::string keeps = checkpointing();
    say(to, "activation_checkpoint",
        keeps == "full"        ? "FullAC"
        : keeps == "selective" ? "SelectiveAC"
                               : "None",
        "distributed.activation_checkpointing");
    const std::string dispatcher = word_of(yaml_, "model.backend.dispatcher", "deepep");
    if (degree("ep_size") > 1) {
      say(to, "moe_comm_backend",
          dispatcher == "deepep" || dispatcher == "hybridep" ? dispatcher : "standard",
          "model.backend.dispatcher");
    }
    assume_less("torchtitan's layers in place of NeMo AutoModel's own, which no recipe here has");
  }

  void make_stages(std::int64_t local, std::int64_t micro) {
    Settings& to = job_.torchtitan;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kSchedules{
        {{"1f1b", "1F1B"},
         {"gpipe", "GPipe"},
         {"interleaved1f1b", "Interleaved1F1B"},
         {"interleaved_1f1b", "Interleaved1F1B"},
         {"zbvzerobubble", "ZBVZeroBubble"}}};
    const std::string said = word_of(yaml_, "distributed.pipeline.pp_schedule", "1f1b");
    const auto* const known =
        std::find_if(kSchedules.begin(), kSchedules.end(),
                     [&](const auto& schedule) { return schedule.first == said; });
    say(to, "parallelism.pipeline_parallel_schedule",
        known == kSchedules.end() ? "1F1B" : std::string(known->second),
        "distributed.pipeline.pp_schedule");
    if (known == kSchedules.end()) {
      job_.assumed.push_back(fmt::format("schedule 1F1B in place of {}", shown(said)));
    }
    if (figure_of(yaml_, "distributed.pipeline.layers_per_stage", 0) > 0) {
      hand(to, "distributed.pipeline.layers_per_stage",
           "parallelism.pipeline_parallel_layers_per_stage");
    }
    const std::int64_t all = whole("step_scheduler.global_batch_size", 32);
    if (all > local * std::max<std::int64_t>(1, micro)) {
      job_.assumed.emplace_back(
          "one pass through the stages a step: local_batch_size is one pass, and each of a step "
          "fills and empties them");
    }
  }

  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t otherwise) const {
    const auto value =
        static_cast<std::int64_t>(figure_of(yaml_, key, static_cast<double>(otherwise)));
    return std::max<std::int64_t>(1, value);
  }

  // Products in bf16 and sums in fp32, unless mp_policy says otherwise; states as weights are.
  void make_formats() {
    Settings& own = job_.own_script;
    const std::string stored = word_of(yaml_, "model.torch_dtype", "auto");
    const bool wide = contains(stored, "float32") || stored == "fp32";
    const bool half = contains(stored, "float16") && !contains(stored, "bfloat16");
    say(own, "weights",
        wide               ? "fp32"
        : half             ? "fp16"
        : stored == "auto" ? "auto"
                           : "bf16",
        "model.torch_dtype");
    say(own, "mixed_precision.param_dtype", "bf16", "distributed.mp_policy.param_dtype");
    const bool narrow = contains(word_of(yaml_, "distributed.mp_policy.reduce_dtype"), "bfloat16");
    say(own, "mixed_precision.reduce_dtype", narrow ? "bf16" : "fp32",
        "distributed.mp_policy.reduce_dtype");
  }

  void make_adapters() {
    Settings& own = job_.own_script;
    say(own, "lora", true, "peft._target_");
    hand_or(own, "peft.dim", "lora.r", 8);
    hand_or(own, "peft.alpha", "lora.lora_alpha", 32);
    hand(own, "peft.dropout", "lora.lora_dropout");
    hand(own, "peft.use_dora", "lora.use_dora");
    Json names = Json::array();
    if (const Setting* const said = yaml_.find("peft.target_modules")) {
      for (std::string name : list_of(said->value)) {
        if (name == "*_proj" || name == "*") {
          names = "all-linear";
          break;
        }
        std::erase(name, '*');
        names.push_back(name.substr(name.rfind('.') + 1));
      }
    }
    const bool all = names.is_string() || names.empty();
    say(own, "lora.target_modules", all ? Json("all-linear") : std::move(names),
        "peft.target_modules");
    if (yaml_.has_section("peft.exclude_modules") || yaml_.has("peft.exclude_modules")) {
      job_.assumed.emplace_back("adapters of all linear layers: exclude_modules is not read");
    }
    if (is_switched_on(yaml_, "quantization.load_in_4bit")) {
      const bool doubles = is_switched_on(yaml_, "quantization.bnb_4bit_use_double_quant");
      say(own, "frozen", doubles ? "nf4-double" : "nf4", "quantization.load_in_4bit");
    } else if (is_switched_on(yaml_, "quantization.load_in_8bit")) {
      say(own, "frozen", "int8", "quantization.load_in_8bit");
    }
  }

  void assume() {
    if (strategy_ == "megatron_fsdp" || strategy_ == "megatron-fsdp" || strategy_ == "mfsdp") {
      job_.assumed.emplace_back(
          "FSDP2's shards in place of Megatron-FSDP's of Hugging Face's modules");
    }
    const bool packs = figure_of(yaml_, "packed_sequence.packed_sequence_size", 0) > 0 ||
                       figure_of(yaml_, "packed_sequence.pack_size", 0) > 0 ||
                       word_of(yaml_, "dataset._target_").find("mock") != std::string::npos;
    if (!packs) {
      job_.assumed.emplace_back(
          "every sequence has the most tokens: without packing one has its own alone");
      job_.takes_less = true;
    }
    if (yaml_.has_section("teacher_model.")) {
      job_.assumed.emplace_back(
          "training alone: the teacher's weights and forward are not counted");
    }
    for (const std::string_view key :
         {"freeze_config.freeze_language_model", "freeze_config.freeze_vision_tower"}) {
      if (!is_switched_on(yaml_, key) || yaml_.has_section("peft.")) continue;
      assume_less(
          fmt::format("every weight is trained: {} leaves some out, which no plan can say", key));
    }
    // By its class: "torch.optim.AdamW", Transformer Engine's FusedAdam.
    const std::string optimizer = word_of(yaml_, "optimizer._target_");
    const std::string name = optimizer.substr(optimizer.rfind('.') + 1);
    if (!contains(name, "adam")) read_optimizer(name);
    if (contains(word_of(yaml_, "loss_fn._target_"), "linear_ce") ||
        is_switched_on(yaml_, "model.use_liger_kernel")) {
      assume_less("transformers' own loss: a fused one keeps no logits");
    }
    if (is_switched_on(yaml_, "fp8.enabled")) {
      job_.assumed.emplace_back("products in bf16: fp8 of torchao is not counted");
    }
  }

  std::string strategy_;
};

constexpr auto kLimits = std::to_array<Limit>({
    {"automodel_embeddings", [](const Subject& s) { return s.plan.lora_embeddings; },
     [](const Subject&) {
       return std::string(
           "NeMo AutoModel's adapters leave embedding and head frozen; leave lora_embeddings out");
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
    {"automodel_replicas", [](const Subject& s) { return s.plan.fsdp_shard == 1; },
     [](const Subject&) {
       return std::string(
           "NeMo AutoModel's FSDP2 has no copies alone (dp_replicate_size below "
           "dp_size); use fsdp_shard=0, or more than 1");
     }},
    {"automodel_context",
     [](const Subject& s) { return s.plan.cp > 1 && s.plan.cp_comm != CpComm::all_gather; },
     [](const Subject&) {
       return std::string("NeMo AutoModel gathers keys and values; use cp_comm=all_gather");
     }},
    {"automodel_vision", [](const Subject& s) { return s.model.vision.has_value(); },
     [](const Subject&) {
       return std::string("qplan writes NeMo AutoModel's recipe of text models; use fsdp2");
     },
     /*of_model=*/true},
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

}  // namespace

std::span<const Limit> automodel_limits() {
  return kLimits;
}

TrainerJob job_of_automodel(const Settings& yaml, const Place& place) {
  return AutoModel(yaml, place).make();
}

std::vector<EmittedFile> write_automodel(const Subject& s,
                                         const std::vector<std::string>& remarks) {
  const Nodes nodes = nodes_of(s);
  const bool adapts = s.plan.lora_rank > 0;
  const int shard = s.plan.fsdp_shard > 0 ? s.plan.fsdp_shard / s.plan.cp : s.plan.dp;
  const TrainingDefaults& t = kTraining;
  std::vector<WrittenOption> all{
      {"recipe", "TrainFinetuneRecipeForNextTokenPrediction"},
      {"step_scheduler.global_batch_size", s.plan.global_batch_size},
      {"step_scheduler.local_batch_size", s.plan.micro_batch_size},
      {"step_scheduler.ckpt_every_steps", t.save_interval},
      {"step_scheduler.max_steps", t.steps},
      {"dist_env.backend", "nccl"},
      {"dist_env.timeout_minutes", 10},
      {"model._target_", "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained"},
      {"model.pretrained_model_name_or_path", "/path/to/hugging_face_checkpoint"},
      // States are as wide as the weights: fp32 beside products in bf16.
      {"model.torch_dtype", adapts ? "bfloat16" : "float32"},
      {"compile.enabled", s.plan.compile},
      {"distributed.strategy", "fsdp2"},
      {"distributed.dp_size", s.plan.dp},
      {"distributed.dp_replicate_size", s.plan.dp / std::max(1, shard)},
      {"distributed.tp_size", s.plan.tp},
      {"distributed.cp_size", s.plan.cp},
      {"distributed.sequence_parallel", false},
      {"distributed.activation_checkpointing", s.plan.recompute.kind == RecomputeKind::full},
      {"distributed.reshard_after_forward", s.plan.zero == 3}};
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
