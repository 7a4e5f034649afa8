// NeMo-RL's YAML, and what it asks for.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/rl/megatron_words.h"
#include "planner/frameworks/rl/nemo_rl_keys.h"
#include "planner/frameworks/rl/rl.h"

namespace qplan {

namespace nemo_rl {
namespace {

constexpr auto kEngineKeys = std::to_array<EngineKeys>({
    {"vllm", "vllm_cfg.tensor_parallel_size", "vllm_cfg.pipeline_parallel_size",
     "vllm_cfg.expert_parallel_size", "", "vllm_cfg.gpu_memory_utilization",
     "vllm_kwargs.max_num_seqs"},
    {"sglang", "sglang_cfg.tp_size", "sglang_cfg.pp_size", "sglang_cfg.ep_size",
     "sglang_cfg.dp_size", "sglang_cfg.mem_fraction_static", "sglang_cfg.max_running_requests"},
    {"trtllm", "trtllm_cfg.tensor_parallel_size", "trtllm_cfg.pipeline_parallel_size",
     "trtllm_cfg.moe_expert_parallel_size", "", "trtllm_cfg.gpu_memory_utilization",
     "trtllm_cfg.max_batch_size"},
});

}  // namespace

const EngineKeys* engine_of(const OmegaConfig& c) {
  const std::string backend = c.word(under(kEngine, "backend"), "vllm");
  const auto* const found = std::find_if(kEngineKeys.begin(), kEngineKeys.end(),
                                         [&](const EngineKeys& e) { return e.backend == backend; });
  return found == kEngineKeys.end() ? nullptr : found;
}

// NeMo-RL 7ea279ab, nemo_rl/algorithms/grpo.py:857.
Gpus gpus_of(const OmegaConfig& c) {
  const std::int64_t nodes = std::max<std::int64_t>(1, c.whole("cluster.num_nodes", 1));
  const std::int64_t each = std::max<std::int64_t>(1, c.whole("cluster.gpus_per_node", 1));
  Gpus gpus{nodes * each, 0};
  if (c.on(under(kEngine, "colocated.enabled"), true)) return gpus;
  const std::int64_t of_node = c.whole(under(kEngine, "colocated.resources.gpus_per_node"), 0);
  gpus.engines =
      nodes == 1 ? of_node : c.whole(under(kEngine, "colocated.resources.num_nodes"), 0) * each;
  gpus.engines = std::clamp<std::int64_t>(gpus.engines, 0, gpus.all - 1);
  return gpus;
}

}  // namespace nemo_rl

namespace {

using namespace nemo_rl;

int degree_said(const OmegaConfig& c, const std::string& name) {
  return static_cast<int>(std::clamp<std::int64_t>(c.whole(name, 1), 1, 1 << 20));
}

// What is trained: "grpo", "ppo", "dpo", "sft"; empty: something else.
std::string_view method_of(const Settings& settings) {
  for (const std::string_view method : {"ppo", "grpo", "distillation", "dpo", "sft"}) {
    if (settings.has_section(under(method, "."))) return method;
  }
  return "";
}

// Of other GPUs than the files say, the same share makes answers.
std::int64_t engines_of(const Gpus& said, std::int64_t gpus) {
  return said.all == gpus ? said.engines : gpus * said.engines / said.all;
}

void read_adapters(Draft& draft, const OmegaConfig& c, std::vector<std::string>& assumed) {
  const std::string section =
      by_megatron_cfg(c) ? under(kMegatron, "peft.") : under(kShards, "lora_cfg.");
  if (!c.on(section + "enabled")) return;
  ParallelPlan& plan = draft.plan;
  plan.lora_rank = static_cast<int>(std::max<std::int64_t>(1, c.whole(section + "dim", 8)));
  plan.lora_alpha = static_cast<int>(std::max<std::int64_t>(1, c.whole(section + "alpha", 32)));
  plan.lora_dropout = std::clamp(c.figure(section + "dropout", 0), 0.0, 0.99);
  const Json targets = c.value(section + "target_modules");
  if (!targets.is_array() || targets.empty()) return;  // all linear layers
  if (by_megatron_cfg(c)) {
    draft.adapted_modules = list_of(targets);
    return;
  }
  if (c.on(section + "match_all_linear", true)) return;
  for (const std::string& target : list_of(targets)) {
    if (const auto known = try_from_word<LoraTarget>(target)) plan.lora_targets.add(*known);
  }
  if (plan.lora_targets.empty()) {
    assumed.emplace_back("adapters of every linear layer: their patterns are not read");
  }
}

// DTensor's mesh, or AutoModel's with its own experts.
void settle_shards(Draft& draft, const OmegaConfig& c, std::int64_t trainers,
                   std::vector<std::string>& assumed) {
  ParallelPlan& plan = draft.plan;
  plan.tp = degree_said(c, under(kShards, "tensor_parallel_size"));
  plan.cp = degree_said(c, under(kShards, "context_parallel_size"));
  plan.zero = 3;
  plan.dp = static_cast<int>(std::max<std::int64_t>(1, trainers / (plan.tp * plan.cp)));
  const int copies = degree_said(c, under(kShards, "dp_replicate_size"));
  if (copies > 1) plan.fsdp_shard = std::max(1, plan.dp * plan.cp / copies);
  plan.sequence_parallel = plan.tp > 1 && c.on(under(kShards, "sequence_parallel"));
  const int experts = degree_said(c, under(kShards, "expert_parallel_size"));
  if (experts > 1) {
    plan.ep = experts;
    draft.recipe = RecipeKind::fsdp2_compile;
    assumed.emplace_back(
        "experts as torchtitan spreads them over FSDP2's ranks, in the place of AutoModel's");
  }
  if (c.on(under(kShards, "activation_checkpointing"))) {
    plan.recompute = {RecomputeKind::full, {}, 0};
  }
  if (c.on(under(kShards, "cpu_offload"))) {
    plan.offload.params = true;
    plan.offload.optimizer = 1;
  }
}

RolloutLayout layout_of(const OmegaConfig& c, const ParallelPlan& plan,
                        std::vector<std::string>& assumed) {
  RolloutLayout layout;
  const EngineKeys* const engine = engine_of(c);
  if (engine == nullptr) {
    layout.tp = plan.tp;
    layout.ep = 1;
    assumed.push_back(
        fmt::format("engines of vLLM's kind at the trainer's tp {}: those of {} are "
                    "not predicted",
                    plan.tp, shown(c.word(under(kEngine, "backend")))));
    return layout;
  }
  layout.tp = degree_said(c, under(kEngine, engine->tp));
  layout.pp = degree_said(c, under(kEngine, engine->pp));
  layout.ep = degree_said(c, under(kEngine, engine->ep));
  // vLLM's experts lie over dp x tp ranks (nemo_rl/models/generation/vllm/vllm_generation.py:135).
  layout.dp = engine->dp.empty() ? std::max(1, layout.ep / layout.tp)
                                 : degree_said(c, under(kEngine, engine->dp));
  if (engine->backend == "trtllm") layout.dp = 1;
  layout.memory_share = std::clamp(c.figure(under(kEngine, engine->share), 0.6), 0.01, 1.0);
  layout.max_running = std::max<std::int64_t>(1, c.whole(under(kEngine, engine->running), 256));
  if (c.word(under(kEngine, "vllm_cfg.precision")) == "fp8") layout.precision = Precision::fp8;
  return layout;
}

// Micro-batches of log-probabilities, and what of their logits is there at once: 16 bits, a copy of
// fp32 and its logarithms of the softmax (DistributedLogprob in nemo_rl/distributed/model_utils.py,
// and dtensor_policy_worker.py, which chunks spare nothing where the vocabulary is whole: they are
// put together again).
void settle_passes(RlJob& job, const OmegaConfig& c, const ParallelPlan& plan,
                   std::int64_t length) {
  if (!job.old_logprobs && !job.reference) return;
  constexpr double kNarrow = 2, kWhole = 2 + 4 + 4;
  const bool in_chunks = c.whole("policy.logprob_chunk_size", 0) > 0;
  job.logit_bytes = in_chunks && (by_megatron_cfg(c) || plan.tp > 1) ? kNarrow : kWhole;
  const std::int64_t micro = std::max<std::int64_t>(1, c.whole("policy.train_micro_batch_size", 1));
  const std::int64_t each =
      std::max<std::int64_t>(1, c.whole("policy.logprob_batch_size", micro)) * length;
  std::int64_t tokens = each;
  for (const std::string_view way : {"policy.sequence_packing.", "policy.dynamic_batching."}) {
    const std::string section(way);
    if (!c.on(section + "enabled")) continue;
    tokens = std::max(length, c.whole(section + "logprob_mb_tokens", each));
    break;
  }
  const std::int64_t of_rank = ceil_div(job.answers(), plan.dp) * length;
  job.pass_tokens = std::max<std::int64_t>(1, std::min(tokens, of_rank) / plan.cp);
}

RlStep step_of(const OmegaConfig& c, std::string_view method, const ParallelPlan& plan,
               std::int64_t length, std::int64_t engines, std::vector<std::string>& assumed) {
  RlStep step;
  RlJob& job = step.job;
  const std::string section = under(method, ".");
  job.algorithm = method == "ppo" ? Algorithm::ppo : Algorithm::grpo;
  job.prompts = std::max<std::int64_t>(1, c.whole(section + "num_prompts_per_step", 32));
  job.samples = std::max<std::int64_t>(1, c.whole(section + "num_generations_per_prompt", 16));
  const std::int64_t longest = std::min(length, c.whole(under(kEngine, "max_new_tokens"), length));
  // Prompt and answer share max_total_sequence_length; of mathematics' a prompt is a small part.
  job.prompt_len = std::max<std::int64_t>(
      1, std::max(length - longest, std::min<std::int64_t>(512, length / 8)));
  job.response.max = std::max<std::int64_t>(1, length - job.prompt_len);
  job.response.mean = std::max(1.0, static_cast<double>(job.response.max) / 2);
  assumed.push_back(fmt::format(
      "prompts of {} tokens and answers of {} in the mean, half of the longest: no file "
      "says what they are",
      job.prompt_len, static_cast<std::int64_t>(job.response.mean)));
  job.train_batch =
      std::min(job.answers(), c.whole("policy.train_global_batch_size", job.answers()));
  if (job.train_batch < 1 || job.answers() % job.train_batch != 0) job.train_batch = job.answers();
  job.epochs = method == "ppo" ? std::max<std::int64_t>(1, c.whole("ppo.ppo_epochs", 1)) : 1;
  job.reference = !c.on(section + "skip_reference_policy_logprobs_calculation");
  job.old_logprobs = !c.on("loss_fn.force_on_policy_ratio");
  if (method == "distillation") {
    // Of the student's answers the teacher's logits are made, and nothing of the student's own.
    job.reference = true;
    job.old_logprobs = false;
    assumed.emplace_back("a teacher of the student's size, in the place of a reference");
  }
  job.packed = c.on("policy.sequence_packing.enabled") || c.on("policy.dynamic_batching.enabled");
  job.balanced = true;  // BatchedDataDict.shard_by_batch_size deals packed sequences by length
  if (method != "distillation") settle_passes(job, c, plan, length);
  job.rollout_gpus = engines;
  const std::string async = fmt::format("{}async_{}.", section, method);
  if (engines > 0 && c.on(async + "enabled")) {
    job.staleness = std::clamp<std::int64_t>(c.whole(async + "max_trajectory_age_steps", 1), 1, 64);
  }
  step.layout = layout_of(c, plan, assumed);
  return step;
}

}  // namespace

bool is_nemo_rl(const std::string& script) {
  const std::string name = base_name(script);
  return name.starts_with("run_grpo") || name.starts_with("run_ppo") ||
         name.starts_with("run_dpo") || name == "run_sft.py" || name == "run_rm.py" ||
         name.starts_with("run_distillation") || name == "run_vlm_grpo.py";
}

bool is_nemo_rl_yaml(const Settings& yaml) {
  // What stands on top of a parent says as little as it likes.
  const Setting* const parent = yaml.find("defaults");
  const bool on_top = parent != nullptr && text_of(parent->value).ends_with(".yaml");
  if (on_top && !yaml.has_section("trainer.")) return true;
  const bool trains = !method_of(yaml).empty() || yaml.has_section("distillation.") ||
                      yaml.has_section("rm.") || yaml.has_section("loss_fn.") ||
                      yaml.has_section("cluster.");
  return trains && yaml.has_section("policy.");
}

RecipeKind recipe_of_nemo_rl(const Settings& settings) {
  return by_megatron_cfg(OmegaConfig(settings)) ? RecipeKind::megatron : RecipeKind::fsdp2;
}

Settings megatron_flags_of_nemo_rl(const Settings& settings) {
  const OmegaConfig c(settings);
  if (!by_megatron_cfg(c)) return {};
  return megatron_flags(MegatronKeys::nemo_rl, c);
}

std::string model_of_nemo_rl(const Settings& settings) {
  const std::string name = OmegaConfig(settings).word("policy.model_name");
  return name.find('$') == std::string::npos ? name : "";
}

RlReading settle_nemo_rl(Draft& draft, const Settings& settings, const ModelSpec& model,
                         std::int64_t gpus) {
  const OmegaConfig c(settings);
  RlReading reading;
  ParallelPlan& plan = draft.plan;
  const Gpus said = gpus_of(c);
  const bool says = c.said("cluster.num_nodes") != nullptr || c.said("cluster.gpus_per_node");
  reading.gpus = says ? said.all : 0;
  const std::int64_t engines = engines_of(said, gpus), trainers = gpus - engines;
  read_adapters(draft, c, reading.assumed);
  if (by_megatron_cfg(c)) {
    settle_megatron(draft, model);
    settle_adapters(draft, model);
    if (!model.moe) plan.moe_permute_fusion = true;  // nothing to fuse
    // Megatron-Core takes it (what its own script asserts is not run); no plan says it.
    if (plan.overlap.has(OverlapKind::param) && !plan.overlap.has(OverlapKind::grad)) {
      plan.overlap.remove(OverlapKind::param);
      reading.assumed.emplace_back(
          "weights that are gathered ahead of a step: overlap_param_gather without "
          "overlap_grad_reduce is not predicted");
    }
    const std::int64_t split = std::int64_t{plan.tp} * plan.pp * plan.cp;
    plan.dp = static_cast<int>(std::max<std::int64_t>(1, trainers / split));
    if (c.on(under(kMegatron, "fp8_cfg.enabled"))) {
      plan.precision = Precision::fp8;
      plan.fp8_param_gather = c.on(under(kMegatron, "fp8_cfg.fp8_param"));
    }
  } else {
    settle_shards(draft, c, trainers, reading.assumed);
  }
  if (model.num_mtp_layers > 0 && c.whole(under(kMegatron, "mtp_num_layers"), 0) == 0) {
    reading.takes_less = true;
    reading.assumed.emplace_back(
        "layers that predict further tokens are counted: mtp_num_layers is 0");
  }

  const std::int64_t length =
      std::max<std::int64_t>(1, c.whole("policy.max_total_sequence_length", 512));
  const std::int64_t micro = std::max<std::int64_t>(1, c.whole("policy.train_micro_batch_size", 1));
  const bool packing = c.on("policy.sequence_packing.enabled");
  const bool dynamic = c.on("policy.dynamic_batching.enabled");
  plan.seq_len = length;
  plan.micro_batch_size = micro;
  if (packing || dynamic) {
    const std::string tokens = packing ? "policy.sequence_packing.train_mb_tokens"
                                       : "policy.dynamic_batching.train_mb_tokens";
    plan.seq_len = std::max(length, c.whole(tokens, length * micro));
    plan.micro_batch_size = 1;
  }
  const std::int64_t batch =
      std::max<std::int64_t>(1, c.whole("policy.train_global_batch_size", 512));
  const std::string_view method = method_of(settings);
  if (method == "grpo" || method == "ppo" || method == "distillation") {
    reading.step = step_of(c, method, plan, length, engines, reading.assumed);
    const RlJob& job = reading.step->job;
    plan.global_batch_size = job.packed ? packing_of(job, model, plan).sequences : job.batch();
    return reading;
  }
  // Answers are given: of each a sequence, and two where they are compared.
  const std::int64_t answers = method == "dpo" || settings.has_section("rm.") ? 2 : 1;
  if (method.empty() && !settings.has_section("rm.")) {
    reading.assumed.emplace_back(
        "training alone: what the teachers of a distillation take is not counted");
  }
  if (packing || dynamic) {
    const std::int64_t sequences =
        std::max<std::int64_t>(1, answers * batch * length / plan.seq_len);
    plan.global_batch_size = ceil_div(sequences, plan.dp) * plan.dp;
    reading.assumed.emplace_back("sequences that are full: how long the samples are no file says");
  } else {
    plan.micro_batch_size *= answers;
    plan.global_batch_size = batch * answers;
  }
  return reading;
}

}  // namespace qplan
