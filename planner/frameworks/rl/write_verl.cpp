// A step as verl's run script.

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "planner/frameworks/rl/megatron_words.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/verl_keys.h"
#include "planner/frameworks/rl/written_step.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

using namespace verl;

// What validate_config and DataProto.chunk refuse of a step's batches (check_verl.cpp has where); a
// warning is none.
std::string why_no_batch(const Subject& s) {
  const WrittenStep written = job_to_write(s);
  const RlJob& job = written.step.job;
  const std::int64_t dp = s.plan.dp, batch = job.batch(), answers = job.answers();
  if (batch % job.samples != 0) {
    return fmt::format("verl's optimizer steps are whole prompts of {} answers: {} are not",
                       job.samples, batch);
  }
  if (answers % dp != 0 || batch % dp != 0) {
    return fmt::format(
        "{} answers of a step and {} of an optimizer step do not divide among {} "
        "data-parallel ranks",
        answers, batch, dp);
  }
  if (written.packs) return "";
  const std::int64_t least = by_megatron(s) ? dp * s.plan.micro_batch_size : s.plan.world();
  if (answers % least != 0) {
    return fmt::format("{} answers of a step are no multiple of the {} that verl deals at once",
                       answers, least);
  }
  if (batch / dp % s.plan.micro_batch_size != 0) {
    return fmt::format("{} answers of an optimizer step on each rank are no multiple of mbs {}",
                       batch / dp, s.plan.micro_batch_size);
  }
  return "";
}

// The word of adapters, or of the weights that they stand beside, that verl's files have no key
// for.
std::string_view other_adapters(const ParallelPlan& plan) {
  if (plan.dora) return "dora";
  if (plan.lora_embeddings) return "lora_embeddings";
  if (plan.lora_dropout > 0) return "lora_dropout";
  if (plan.fp32_norms) return "fp32_norms";
  return plan.frozen_weights != FrozenFormat::computed ? "frozen_weights" : "";
}

constexpr auto kVerlLimits = std::to_array<Limit>({
    {"verl_word",
     [](const Subject& s) {
       return by_megatron(s) && s.plan.precision == Precision::bf16 &&
              !flag_without_key(MegatronKeys::verl, s).flag.empty();
     },
     [](const Subject& s) {
       const UnsaidFlag unsaid = flag_without_key(MegatronKeys::verl, s);
       return fmt::format("verl's configuration has no key for Megatron's {}; leave {} out",
                          unsaid.flag, unsaid.word);
     }},
    {"rl_states", [](const Subject& s) { return has_rl_states(s); },
     [](const Subject& s) { return rl_states_message(s, "verl"); }},
    {"verl_adapters", [](const Subject& s) { return by_megatron(s) && s.plan.lora_rank > 0; },
     [](const Subject&) {
       return std::string(
           "qplan writes verl's adapters (LoRA) for FSDP alone; plan it as fsdp2 or leave "
           "lora_rank "
           "out");
     }},
    {"verl_adapter_kinds", [](const Subject& s) { return !other_adapters(s.plan).empty(); },
     [](const Subject& s) {
       return fmt::format("qplan writes plain adapters for verl; leave {} out",
                          other_adapters(s.plan));
     }},
    {"verl_shards",
     [](const Subject& s) { return by_shards(s) && (s.plan.tp > 1 || s.plan.sequence_parallel); },
     [](const Subject&) {
       return std::string(
           "verl's FSDP splits no matrices: use tp 1 and leave sequence_parallel out");
     }},
    {"verl_ulysses",
     [](const Subject& s) {
       return by_shards(s) && s.plan.cp > 1 &&
              (s.plan.cp_comm != CpComm::p2p || s.model.num_attention_heads % s.plan.cp != 0);
     },
     [](const Subject& s) {
       return fmt::format(
           "verl's FSDP splits sequences by heads (Ulysses), of which there are {}: use a cp that "
           "divides them, with cp_comm p2p as it is predicted",
           s.model.num_attention_heads);
     }},
    {"verl_recompute",
     [](const Subject& s) {
       const Recompute& r = s.plan.recompute;
       return by_shards(s) && (r.kind == RecomputeKind::selective || r.layers > 0);
     },
     [](const Subject&) {
       return std::string(
           "verl's FSDP recomputes whole layers, all of them or none; use recompute "
           "full or none");
     }},
    {"verl_batch", [](const Subject& s) { return !why_no_batch(s).empty(); }, why_no_batch},
    {"verl_apart",
     [](const Subject& s) {
       return s.step != nullptr && !s.step->job.colocated() && s.step->job.staleness != 1;
     },
     [](const Subject& s) {
       return fmt::format(
           "verl's trainer beside GPUs that make answers (one_step_off_policy) trains on those of "
           "the step before: use staleness 1, not {}",
           s.step->job.staleness);
     }},
});

// "key=value" of Hydra; what the configuration has not is added by a '+'.
std::string overriding(const OptionList& list, const WrittenOption& option) {
  const bool known = list.find(option.key) != nullptr;
  return fmt::format("{}{}={}", known ? "" : "+", option.key, hydra_text(option.value));
}

std::vector<WrittenOption> shard_keys(const Subject& s) {
  const ParallelPlan& p = s.plan;
  std::vector<WrittenOption> keys{
      {key(kActor, "strategy"), "fsdp2"},
      {key(kActor, "ulysses_sequence_parallel_size"), p.cp},
      {key(kActor, "fsdp_config.reshard_after_forward"), p.zero == 3},
      {key(kActor, "fsdp_config.fsdp_size"), p.fsdp_shard > 0 ? p.fsdp_shard : -1},
      {key(kModel, "enable_gradient_checkpointing"), p.recompute.kind == RecomputeKind::full}};
  if (p.offload.params) keys.push_back({key(kActor, "fsdp_config.offload_policy"), true});
  if (p.main_params_dtype == DType::bf16) {
    keys.push_back({key(kActor, "fsdp_config.model_dtype"), "bfloat16"});
  }
  if (p.lora_rank > 0) {
    keys.push_back({key(kModel, "lora_rank"), p.lora_rank});
    keys.push_back({key(kModel, "lora_alpha"), p.lora_alpha});
    Json targets = Json::array();
    for (const auto& [target, word] : Words<LoraTarget>::table) {
      if (p.lora_targets.has(target)) targets.push_back(std::string(word));
    }
    keys.push_back(
        {key(kModel, "target_modules"), targets.empty() ? Json("all-linear") : std::move(targets)});
  }
  return keys;
}

// The micro-batches of one who passes over sequences: by tokens, or by their number.
void add_micro_batches(std::vector<WrittenOption>& keys, const std::string& section,
                       std::string_view sequences, std::string_view tokens,
                       std::string_view dynamic, const Subject& s, bool packs) {
  keys.push_back({section + std::string(dynamic), packs});
  if (packs) {
    keys.push_back(
        {section + std::string(tokens), s.plan.seq_len * s.plan.micro_batch_size / s.plan.cp});
  } else {
    keys.push_back({section + std::string(sequences), s.plan.micro_batch_size});
  }
}

std::vector<WrittenOption> step_keys(const Subject& s, const WrittenStep& written) {
  const RlJob& job = written.step.job;
  const RolloutLayout& layout = written.step.layout;
  const bool critic = job.algorithm == Algorithm::ppo;
  const std::string states = key(kActor, by_megatron(s) ? "megatron." : "fsdp_config.");
  const bool moves = job.offload_trainer && job.colocated();
  std::vector<WrittenOption> keys{
      {"algorithm.adv_estimator", critic ? "gae" : "grpo"},
      {"data.train_files", "$TRAIN_FILES"},
      {"data.val_files", "$VAL_FILES"},
      {"data.train_batch_size", job.prompts},
      {"data.max_prompt_length", job.prompt_len},
      {"data.max_response_length", job.response.max},
      {"data.filter_overlong_prompts", true},
      {key(kModel, "path"), "$MODEL_PATH"},
      {by_megatron(s) ? key(kActor, "megatron.use_remove_padding")
                      : key(kModel, "use_remove_padding"),
       job.packed},
      {key(kActor, "optim.lr"), "1e-6"},
      {key(kActor, "ppo_mini_batch_size"), job.batch() / job.samples},
      {key(kActor, "ppo_epochs"), job.epochs},
      {key(kActor, "use_kl_loss"), job.reference},
      {states + "param_offload", moves && !job.weights_stay},
      {states + "optimizer_offload", moves && !job.moments_stay},
  };
  if (by_megatron(s)) keys.push_back({states + "grad_offload", moves});
  const auto add = [&](const std::string& section, std::string_view sequences,
                       std::string_view tokens, std::string_view dynamic) {
    add_micro_batches(keys, section, sequences, tokens, dynamic, s, written.packs);
  };
  add(std::string(kActor), "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu",
      "use_dynamic_bsz");
  add(std::string(kRollout), "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu",
      "log_prob_use_dynamic_bsz");
  if (job.reference) {
    add(std::string(kRef), "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu",
        "log_prob_use_dynamic_bsz");
    keys.push_back(
        {key(kRef, by_megatron(s) ? "megatron.param_offload" : "fsdp_config.param_offload"), true});
  }
  if (critic) {
    keys.push_back({"critic.model.path", "$MODEL_PATH"});
    add("critic.", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu", "use_dynamic_bsz");
  }
  if (!job.old_logprobs) keys.push_back({"algorithm.rollout_correction.bypass_mode", true});
  keys.insert(keys.end(),
              {{key(kRollout, "name"), "vllm"},
               {key(kRollout, "n"), job.samples},
               {key(kRollout, "tensor_model_parallel_size"), layout.tp},
               {key(kRollout, "data_parallel_size"), layout.dp},
               {key(kRollout, "expert_parallel_size"), layout.ep},
               {key(kRollout, "gpu_memory_utilization"), layout.memory_share},
               {key(kRollout, "max_num_seqs"), layout.max_running},
               {key(kRollout, "free_cache_engine"), job.colocated() && job.sleep_level > 0}});
  if (layout.pp > 1) keys.push_back({key(kRollout, "pipeline_model_parallel_size"), layout.pp});
  if (layout.precision == Precision::fp8) keys.push_back({key(kRollout, "quantization"), "fp8"});
  const std::int64_t batched = std::max<std::int64_t>(8192, layout.max_running);
  keys.push_back({key(kRollout, "max_num_batched_tokens"), batched});
  keys.push_back({"trainer.balance_batch", job.balanced});
  return keys;
}

std::vector<WrittenOption> trainer_keys(const Subject& s, const RlJob& job) {
  const Nodes nodes = nodes_of(s);
  std::vector<WrittenOption> keys{{"trainer.nnodes", nodes.count},
                                  {"trainer.n_gpus_per_node", nodes.gpus}};
  if (!job.colocated()) {
    ParallelPlan engines;
    engines.dp = static_cast<int>(job.rollout_gpus);
    const Subject beside{s.model, s.config, engines, s.recipe, s.gpus_per_node};
    const Nodes others = nodes_of(beside);
    keys.push_back({"rollout.nnodes", others.count});
    keys.push_back({"rollout.n_gpus_per_node", others.gpus});
    keys.push_back({"actor_rollout_ref.hybrid_engine", false});
  }
  keys.insert(keys.end(), {{"trainer.logger", Json::array({"console"})},
                           {"trainer.project_name", "qplan"},
                           {"trainer.experiment_name", s.model.name},
                           {"trainer.save_freq", 20},
                           {"trainer.test_freq", -1},
                           {"trainer.total_epochs", 15}});
  return keys;
}

}  // namespace

std::span<const Limit> verl_limits() {
  return kVerlLimits;
}

std::vector<EmittedFile> write_verl(const Subject& s, const std::vector<std::string>& remarks) {
  const WrittenStep step = step_to_write(s);
  const RlJob& job = step.step.job;
  std::vector<WrittenOption> keys = step_keys(s, step);
  const auto words = by_megatron(s) ? megatron_keys(MegatronKeys::verl, s) : shard_keys(s);
  keys.insert(keys.end(), words.begin(), words.end());
  const auto trainer = trainer_keys(s, job);
  keys.insert(keys.end(), trainer.begin(), trainer.end());

  const OptionList& list = known_options(by_megatron(s) ? "verl_megatron" : "verl");
  const bool apart = !job.colocated();
  // Keys of the configuration that the other program adds.
  std::string text;
  for (const WrittenOption& option : keys) {
    const bool of_engines = option.key.starts_with("rollout.");
    const std::string word = of_engines ? fmt::format("{}={}", option.key, hydra_text(option.value))
                                        : overriding(list, option);
    text += fmt::format(" \\\n  {}", quoted_override(word));
  }
  std::string config = apart ? "one_step_off_ppo" : "ppo";
  config += by_megatron(s) ? "_megatron_trainer" : "_trainer";
  const std::string file = fmt::format(
      "#!/bin/bash\n{}set -euo pipefail\n\n{}\n{}python3 -m {} --config-name={}{} \"$@\"\n",
      remark_lines(remarks),
      paths_block({{"MODEL_PATH", "/path/to/" + s.model.name},
                   {"TRAIN_FILES", "/path/to/train.parquet"},
                   {"VAL_FILES", "/path/to/test.parquet"}}),
      by_megatron(s) ? "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" : "",
      apart ? "verl.experimental.one_step_off_policy.main_ppo" : "verl.trainer.main_ppo", config,
      text);
  return {{"run.sh", file, true}};
}

}  // namespace qplan
