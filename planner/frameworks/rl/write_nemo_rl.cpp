// A step as NeMo-RL's YAML, on top of its example.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/frameworks/rl/megatron_words.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/written_step.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

// Answers that do not divide among ranks, or among their micro-batches: what it asserts of a batch
// (7ea279ab, nemo_rl/distributed/batched_data_dict.py, shard_by_batch_size).
bool splits_unevenly(const Subject& s) {
  const WrittenStep written = job_to_write(s);
  const RlJob& job = written.step.job;
  if (s.plan.dp <= 0 || job.answers() % s.plan.dp != 0 || job.batch() % s.plan.dp != 0) return true;
  return !written.packs && job.batch() / s.plan.dp % s.plan.micro_batch_size != 0;
}

// Nodes of which some train and the others make answers; of a few GPUs one for both.
Nodes shared_nodes(const Subject& s, const RlJob& job) {
  if (job.colocated()) return nodes_of(s);
  const std::int64_t all = s.plan.world() + job.rollout_gpus;
  if (all <= s.gpus_per_node) return {1, all};
  const std::int64_t both = std::gcd(static_cast<std::int64_t>(s.plan.world()), job.rollout_gpus);
  std::int64_t gpus = s.gpus_per_node;
  while (both % gpus != 0) --gpus;
  return {all / gpus, gpus};
}

constexpr auto kNemoLimits = std::to_array<Limit>({
    {"nemo_rl_word",
     [](const Subject& s) {
       return by_megatron(s) && s.plan.precision == Precision::bf16 &&
              !flag_without_key(MegatronKeys::nemo_rl, s).flag.empty();
     },
     [](const Subject& s) {
       const UnsaidFlag unsaid = flag_without_key(MegatronKeys::nemo_rl, s);
       return fmt::format("NeMo-RL's megatron_cfg has no key for Megatron's {}; leave {} out",
                          unsaid.flag, unsaid.word);
     }},
    {"rl_states",
     [](const Subject& s) {
       const bool narrow = by_shards(s) && s.plan.main_params_dtype != DType::fp32;
       return narrow || has_rl_states(s);
     },
     [](const Subject& s) { return rl_states_message(s, "NeMo-RL"); }},
    {"nemo_rl_adapters", [](const Subject& s) { return s.plan.lora_rank > 0; },
     [](const Subject&) {
       return std::string(
           "qplan writes NeMo-RL's configuration without adapters (LoRA); leave lora_rank out");
     }},
    {"nemo_rl_recompute",
     [](const Subject& s) {
       const Recompute& r = s.plan.recompute;
       return r.layers > 0 || (by_shards(s) && r.kind == RecomputeKind::selective);
     },
     [](const Subject&) {
       return std::string(
           "NeMo-RL recomputes all layers or none of them whole; use recompute full");
     }},
    {"nemo_rl_shards",
     [](const Subject& s) {
       return by_shards(s) && (s.plan.zero != 3 || s.plan.cp_comm != CpComm::p2p ||
                               (s.plan.fsdp_shard > 0 && s.plan.fsdp_shard % s.plan.cp != 0));
     },
     [](const Subject&) {
       return std::string(
           "NeMo-RL's FSDP2 shards weights, too, and rotates keys around a ring; use "
           "zero 3 and cp_comm p2p");
     }},
    {"nemo_rl_batch", splits_unevenly,
     [](const Subject& s) {
       const WrittenStep written = job_to_write(s);
       const RlJob& job = written.step.job;
       return fmt::format(
           "NeMo-RL deals {} answers of a step and {} of an optimizer step to data-parallel ranks "
           "and their micro-batches alike: use a dp that divides them, not {}",
           job.answers(), job.batch(), s.plan.dp);
     }},
    {"nemo_rl_epochs",
     [](const Subject& s) {
       return s.step != nullptr && s.step->job.epochs > 1 &&
              s.step->job.algorithm == Algorithm::grpo;
     },
     [](const Subject&) {
       return std::string("NeMo-RL's GRPO trains on its answers once; use 1 epoch");
     }},
});

// Keys in the order that they come, as sections within sections.
std::string yaml_of(const std::vector<WrittenOption>& options, const std::string& section = "",
                    int depth = 0) {
  std::string text;
  std::vector<std::string> seen;
  const std::string indent(static_cast<std::size_t>(2 * depth), ' ');
  for (const WrittenOption& option : options) {
    if (!option.key.starts_with(section)) continue;
    const std::string rest = option.key.substr(section.size());
    const std::size_t dot = rest.find('.');
    const std::string name = rest.substr(0, dot);
    if (dot == std::string::npos) {
      const Json& value = option.value;
      text += fmt::format("{}{}: {}\n", indent, name,
                          value.is_string() ? value.get<std::string>() : value.dump());
    } else if (std::find(seen.begin(), seen.end(), name) == seen.end()) {
      seen.push_back(name);
      text +=
          fmt::format("{}{}:\n{}", indent, name, yaml_of(options, section + name + ".", depth + 1));
    }
  }
  return text;
}

std::vector<WrittenOption> keys_of(const Subject& s, const WrittenStep& written) {
  const RlJob& job = written.step.job;
  const RolloutLayout& layout = written.step.layout;
  const ParallelPlan& p = s.plan;
  const bool ppo = job.algorithm == Algorithm::ppo;
  const std::string method = ppo ? "ppo." : "grpo.";
  const std::int64_t length = written.packs ? job.prompt_len + job.response.max : p.seq_len;
  std::vector<WrittenOption> keys{
      {method + "num_prompts_per_step", job.prompts},
      {method + "num_generations_per_prompt", job.samples},
      {method + "skip_reference_policy_logprobs_calculation", !job.reference},
  };
  if (ppo) keys.push_back({"ppo.ppo_epochs", job.epochs});
  if (job.staleness > 0) {
    keys.push_back({fmt::format("{}async_{}enabled", method, method), true});
    keys.push_back(
        {fmt::format("{}async_{}max_trajectory_age_steps", method, method), job.staleness});
    keys.push_back({"loss_fn.use_importance_sampling_correction", true});
  }
  if (!job.reference) keys.push_back({"loss_fn.reference_policy_kl_penalty", 0});
  keys.push_back({"loss_fn.force_on_policy_ratio", !job.old_logprobs});
  keys.insert(keys.end(), {{"policy.model_name", "/path/to/" + s.model.name},
                           {"policy.train_global_batch_size", job.batch()},
                           {"policy.train_micro_batch_size", p.micro_batch_size},
                           {"policy.logprob_batch_size", p.micro_batch_size},
                           {"policy.max_total_sequence_length", length},
                           {"policy.make_sequence_length_divisible_by", 2 * p.tp * p.cp},
                           {"policy.dynamic_batching.enabled", false},
                           {"policy.sequence_packing.enabled", written.packs}});
  if (written.packs) {
    const std::int64_t tokens = p.seq_len * p.micro_batch_size;
    keys.push_back({"policy.sequence_packing.train_mb_tokens", tokens});
    keys.push_back({"policy.sequence_packing.logprob_mb_tokens", tokens});
  }
  keys.push_back({"policy.dtensor_cfg.enabled", by_shards(s)});
  if (by_shards(s)) {
    const int copies = p.fsdp_shard > 0 ? p.dp * p.cp / p.fsdp_shard : 1;
    keys.insert(keys.end(), {{"policy.dtensor_cfg.tensor_parallel_size", p.tp},
                             {"policy.dtensor_cfg.context_parallel_size", p.cp},
                             {"policy.dtensor_cfg.dp_replicate_size", copies},
                             {"policy.dtensor_cfg.sequence_parallel", p.sequence_parallel},
                             {"policy.dtensor_cfg.activation_checkpointing",
                              p.recompute.kind == RecomputeKind::full},
                             {"policy.dtensor_cfg.cpu_offload", p.offload.params},
                             {"policy.megatron_cfg.enabled", false}});
  } else {
    keys.insert(keys.end(), {{"policy.optimizer", nullptr},
                             {"policy.scheduler", nullptr},
                             {"policy.megatron_cfg.enabled", true},
                             {"policy.megatron_cfg.activation_checkpointing",
                              p.recompute.kind != RecomputeKind::none}});
    const auto words = megatron_keys(MegatronKeys::nemo_rl, s);
    keys.insert(keys.end(), words.begin(), words.end());
  }
  keys.insert(keys.end(),
              {{"policy.generation.backend", "vllm"},
               {"policy.generation.max_new_tokens", job.response.max},
               {"policy.generation.vllm_cfg.tensor_parallel_size", layout.tp},
               {"policy.generation.vllm_cfg.pipeline_parallel_size", layout.pp},
               {"policy.generation.vllm_cfg.expert_parallel_size", layout.ep},
               {"policy.generation.vllm_cfg.gpu_memory_utilization", layout.memory_share},
               {"policy.generation.vllm_cfg.max_model_len", length},
               {"policy.generation.vllm_cfg.async_engine", job.staleness > 0 || layout.dp > 1},
               {"policy.generation.vllm_kwargs.max_num_seqs", layout.max_running},
               {"policy.generation.colocated.enabled", job.colocated()}});
  if (layout.precision == Precision::fp8) {
    keys.push_back({"policy.generation.vllm_cfg.precision", "fp8"});
  }
  const Nodes nodes = shared_nodes(s, job);
  if (!job.colocated()) {
    const bool one = nodes.count == 1;
    keys.push_back({"policy.generation.colocated.resources.num_nodes",
                    one ? Json(nullptr) : Json(job.rollout_gpus / nodes.gpus)});
    keys.push_back({"policy.generation.colocated.resources.gpus_per_node",
                    one ? job.rollout_gpus : nodes.gpus});
  }
  keys.push_back({"cluster.num_nodes", nodes.count});
  keys.push_back({"cluster.gpus_per_node", nodes.gpus});
  return keys;
}

}  // namespace

std::span<const Limit> nemo_rl_limits() {
  return kNemoLimits;
}

std::vector<EmittedFile> write_nemo_rl(const Subject& s, const std::vector<std::string>& remarks) {
  const WrittenStep written = step_to_write(s);
  const bool ppo = written.step.job.algorithm == Algorithm::ppo;
  const std::string example = ppo ? "ppo_math_1B" : "grpo_math_1B";
  std::string text = remark_lines(remarks);
  text += fmt::format(
      "# Lies in NeMo-RL's examples/configs; replace model_name. Started by\n"
      "#   uv run examples/run_{}.py --config examples/configs/qplan.yaml\n"
      "defaults: {}.yaml\n",
      ppo ? "ppo" : "grpo", example);
  return {{"qplan.yaml", text + yaml_of(keys_of(s, written)), false}};
}

}  // namespace qplan
