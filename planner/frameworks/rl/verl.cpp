// What verl's configuration asks for: the plan of its training, and the job around it.

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/rl/megatron_words.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/verl_keys.h"

namespace qplan {
namespace {

using namespace verl;

// Adapters beside frozen weights.
void read_adapters(Draft& draft, const OmegaConfig& c, bool megatron,
                   std::vector<std::string>& assumed) {
  const std::int64_t of_megatron = c.whole("actor_rollout_ref.model.lora.rank", 0);
  const std::int64_t rank = std::max(of_megatron, c.whole(key(kModel, "lora_rank"), 0));
  if (rank <= 0) return;
  ParallelPlan& plan = draft.plan;
  plan.lora_rank = static_cast<int>(rank);
  const bool own = of_megatron > 0;
  plan.lora_alpha = static_cast<int>(own ? c.whole("actor_rollout_ref.model.lora.alpha", 32)
                                         : c.whole(key(kModel, "lora_alpha"), 16));
  const Json targets =
      c.value(own ? "actor_rollout_ref.model.lora.target_modules" : key(kModel, "target_modules"));
  if (megatron) {
    if (targets.is_array()) draft.adapted_modules = list_of(targets);
    return;
  }
  if (targets.is_null() || text_of(targets) == "all-linear") return;
  std::string others;
  for (const std::string& target : list_of(targets)) {
    if (const auto known = try_from_word<LoraTarget>(target)) {
      plan.lora_targets.add(*known);
    } else {
      others += (others.empty() ? "" : ", ") + target;
    }
  }
  if (!others.empty()) {
    assumed.push_back(fmt::format("no adapters of {}, which no plan names", shown(others)));
  }
}

// FSDP of transformers' modules, by its first and second interface alike.
void settle_shards(Draft& draft, const OmegaConfig& c, const Numbers& n,
                   std::vector<std::string>& assumed) {
  ParallelPlan& plan = draft.plan;
  plan.cp = n.parts;
  plan.dp = static_cast<int>(n.dp());
  if (n.parts > 1) {
    plan.cp_comm = CpComm::p2p;
    assumed.emplace_back(
        "a ring over the ranks of a sequence: Ulysses' exchange of heads is not predicted over "
        "FSDP");
  }
  plan.zero = c.on(key(kActor, "fsdp_config.reshard_after_forward"), true) ? 3 : 2;
  // Fewer than all ranks: copies of them (workers/fsdp_workers.py, create_device_mesh).
  const std::int64_t shard = c.whole(key(kActor, "fsdp_config.fsdp_size"), -1);
  if (shard > 0 && shard < n.trainers()) plan.fsdp_shard = static_cast<int>(shard);
  if (c.on(key(kActor, "fsdp_config.offload_policy"))) {
    plan.offload.params = true;
    plan.offload.optimizer = 1;
  }
  if (c.on(key(kModel, "enable_gradient_checkpointing"), true)) {
    plan.recompute = {RecomputeKind::full, {}, 0};
  }
  const std::string weights = c.word(key(kActor, "fsdp_config.model_dtype"), "fp32");
  if (weights == "bfloat16" || weights == "bf16") {
    plan.grad_dtype = plan.main_params_dtype = plan.moment_dtype = DType::bf16;
  }
  if (c.word(key(kActor, "strategy")) == "fsdp") {
    assumed.emplace_back("FSDP2 in the place of FSDP1, which verl takes unless it is told");
  }
}

// Micro-batches of log-probabilities, and what the loss over the logits keeps. FSDP's worker hands
// logits of 16 bits to flash-attn's cross entropy, whose gradient takes their place; where the
// entropy is trained, or answers are padded and cut out of the logits, a copy stands beside
// (workers/actor/dp_actor.py, _forward_micro_batch). The policy's log-probabilities come with the
// entropy: compiled in one pass where padding is removed, else torch's softmax and its product
// beside logits and their copy. Megatron's has a clone and a softmax beside the logits, and then
// the cross entropy's fp32 copy (workers/actor/megatron_actor.py,
// utils/megatron/tensor_parallel.py). Fused kernels make no logits.
void settle_passes(RlJob& job, const OmegaConfig& c, const Numbers& n, bool megatron) {
  const bool fused = c.on(key(kModel, "use_fused_kernels"));
  const bool entropy = c.figure(key(kActor, "entropy_coeff"), 0) != 0;
  if (!megatron) {
    job.loss = fused                    ? LossKind::liger
               : entropy || !job.packed ? LossKind::unfused
                                        : LossKind::compiled;
  }
  job.logit_bytes = fused ? 0 : megatron || !job.packed ? 8 : 2;
  const double length = job.packed ? static_cast<double>(job.prompt_len) + job.response.mean
                                   : static_cast<double>(n.longest);
  const auto tokens_of = [&](std::string_view section) -> std::int64_t {
    if (c.on(key(section, "log_prob_use_dynamic_bsz"), c.on(key(kActor, "use_dynamic_bsz")))) {
      return c.whole(key(section, "log_prob_max_token_len_per_gpu"), 16384);
    }
    const std::int64_t all = c.whole(key(section, "log_prob_micro_batch_size"), n.dp());
    const std::int64_t answers =
        c.whole(key(section, "log_prob_micro_batch_size_per_gpu"), all / n.dp());
    const auto one =
        static_cast<std::int64_t>(length * static_cast<double>(std::max<std::int64_t>(1, answers)));
    return std::max(one, n.longest) / n.parts;
  };
  const std::int64_t mine = job.old_logprobs ? tokens_of(kRollout) : 0;
  job.pass_tokens = std::max(mine, job.reference ? tokens_of(kRef) : 0);
  if (job.pass_tokens == 0) job.logit_bytes = 0;
  // No more than a rank has in all.
  const std::int64_t each = ceil_div(job.answers(), n.dp());
  job.pass_tokens = std::min(job.pass_tokens, each * n.longest / n.parts);
}

RlStep step_of(const OmegaConfig& c, const Numbers& n, bool megatron,
               std::vector<std::string>& assumed) {
  RlStep step;
  RlJob& job = step.job;
  const bool critic = c.on("critic.enable", c.word("algorithm.adv_estimator", "gae") == "gae");
  job.algorithm = critic ? Algorithm::ppo : Algorithm::grpo;
  job.prompts = n.prompts;
  job.samples = n.samples;
  job.prompt_len = c.whole("data.max_prompt_length", 512);
  job.response.max = std::max<std::int64_t>(1, c.whole("data.max_response_length", 512));
  job.response.mean = std::max(1.0, static_cast<double>(job.response.max) / 2);
  assumed.push_back(
      fmt::format("prompts of {} tokens, the longest, and answers of {} in the mean, half of the "
                  "longest: no file says what they are",
                  job.prompt_len, static_cast<std::int64_t>(job.response.mean)));
  // Where optimizer steps do not divide a rollout the last one is smaller; here all are.
  const std::int64_t steps = ceil_div(n.prompts, n.mini);
  job.train_batch = job.answers() % steps == 0 ? job.answers() / steps : job.answers();
  job.epochs = std::max<std::int64_t>(1, c.whole(key(kActor, "ppo_epochs"), 1));
  job.reference = c.on(key(kActor, "use_kl_loss")) || c.on("algorithm.use_kl_in_reward");
  job.old_logprobs = !c.on("algorithm.rollout_correction.bypass_mode");
  job.packed = megatron ? c.on(key(kActor, "megatron.use_remove_padding"), true)
                        : c.on(key(kModel, "use_remove_padding"), true);
  job.balanced = c.on("trainer.balance_batch", true);
  job.change_of_hands = change_of_hands_in(Framework::verl);
  job.rollout_gpus = n.rollout_gpus;
  job.staleness = n.rollout_gpus > 0 ? 1 : 0;
  const std::string states = key(kActor, megatron ? "megatron." : "fsdp_config.");
  const bool weights = c.on(states + "param_offload"), moments = c.on(states + "optimizer_offload");
  const bool apart = n.rollout_gpus > 0;  // nobody has to make room
  job.offload_trainer =
      apart || weights || moments || c.on(key(kActor, "fsdp_config.offload_policy"));
  if (weights != moments && !apart) {
    job.weights_stay = moments;
    job.moments_stay = weights;
  }
  job.sleep_level = apart || c.on(key(kRollout, "free_cache_engine"), true) ? 1 : 0;
  settle_passes(job, c, n, megatron);

  RolloutLayout& layout = step.layout;
  const auto degree = [&](std::string_view name) {
    return static_cast<int>(std::clamp<std::int64_t>(c.whole(key(kRollout, name), 1), 1, 1 << 20));
  };
  layout.tp = degree("tensor_model_parallel_size");
  layout.pp = degree("pipeline_model_parallel_size");
  layout.dp = degree("data_parallel_size");
  layout.ep = degree("expert_parallel_size");
  layout.memory_share =
      std::clamp(c.figure(key(kRollout, "gpu_memory_utilization"), 0.5), 0.01, 1.0);
  layout.max_running = std::max<std::int64_t>(1, c.whole(key(kRollout, "max_num_seqs"), 256));
  if (c.word(key(kRollout, "quantization")) == "fp8") layout.precision = Precision::fp8;
  return step;
}

}  // namespace

RecipeKind recipe_of_verl(const Settings& settings) {
  return is_megatron(settings) ? RecipeKind::megatron : RecipeKind::fsdp2;
}

Settings megatron_flags_of_verl(const Settings& settings) {
  if (!is_megatron(settings)) return {};
  return megatron_flags(MegatronKeys::verl, OmegaConfig(settings, defaults_of(settings)));
}

std::string model_of_verl(const Settings& settings) {
  const Setting* const path = settings.find(key(kModel, "path"));
  if (path == nullptr || !path->value.is_string()) return "";
  const auto text = path->value.get<std::string>();
  // "$HOME/models/Qwen2.5-3B-Instruct" names it all the same.
  const std::size_t slash = text.rfind('/');
  const std::string name = text.substr(slash + 1);  // npos + 1: the whole of it
  return name.find_first_of("$<{}") != std::string::npos ? "" : text;
}

RlReading settle_verl(Draft& draft, const Settings& settings, const ModelSpec& model,
                      std::int64_t gpus) {
  const OmegaConfig c(settings, defaults_of(settings));
  const bool megatron = is_megatron(settings), sft = is_sft(settings);
  const Numbers n(c, megatron, gpus);
  RlReading reading;
  ParallelPlan& plan = draft.plan;
  const std::int64_t nodes = c.whole("trainer.nnodes", sft ? 0 : 1);
  reading.gpus = nodes * c.whole("trainer.n_gpus_per_node", sft ? 0 : 8);
  if (n.rollout_gpus > 0) {
    reading.gpus += c.whole("rollout.nnodes", 1) * c.whole("rollout.n_gpus_per_node", 8);
  }
  if (c.is_open("trainer.nnodes") || c.is_open("trainer.n_gpus_per_node") ||
      c.is_open("rollout.nnodes") || c.is_open("rollout.n_gpus_per_node")) {
    reading.gpus = 0;
  }
  read_adapters(draft, c, megatron, reading.assumed);
  if (megatron) {
    settle_megatron(draft, model);
    settle_adapters(draft, model);
    plan.dp = static_cast<int>(n.dp());
  } else {
    settle_shards(draft, c, n, reading.assumed);
  }
  const std::string products =
      c.word(key(kActor, megatron ? "megatron.dtype" : "fsdp_config.dtype"), "bfloat16");
  if (products == "float16" || products == "fp16") plan.precision = Precision::fp16;
  if (model.num_mtp_layers > 0 && !c.on(key(kModel, "mtp.enable_train"))) {
    reading.takes_less = true;
    reading.assumed.emplace_back(
        "layers that predict further tokens are counted: verl trains without them unless "
        "model.mtp says so");
  }

  // Sequences: as many tokens as a micro-batch may have, or whole answers padded to the longest.
  const bool dynamic = c.on(key(kActor, "use_dynamic_bsz"),
                            sft && program_of(settings).find("fsdp_sft") == std::string::npos);
  const std::int64_t longest = sft ? c.whole("data.max_length", 1024) : n.longest;
  const std::int64_t most = c.whole(key(kActor, "ppo_max_token_len_per_gpu"), sft ? 8192 : 16384);
  plan.seq_len = std::max<std::int64_t>(1, longest);
  plan.micro_batch_size = 1;
  if (dynamic) {
    plan.seq_len = std::max(plan.seq_len, most * n.parts);
  } else {
    const std::int64_t all = c.whole(key(kActor, "ppo_micro_batch_size"), n.dp());
    plan.micro_batch_size = std::max<std::int64_t>(
        1, c.whole(key(kActor, "ppo_micro_batch_size_per_gpu"), sft ? 4 : all / n.dp()));
  }
  if (sft) {
    if (!megatron && c.on(key(kModel, "use_fused_kernels"))) {
      plan.loss = LossKind::liger;
    } else if (!megatron) {
      reading.takes_less = true;
      reading.assumed.emplace_back(
          "torch's loss over fp32 logits; verl's takes less, as its logits have 16 bits");
    }
    const std::int64_t batch = std::max<std::int64_t>(1, c.whole("data.train_batch_size", 256));
    plan.global_batch_size = dynamic ? std::max(batch * longest / plan.seq_len, n.dp()) : batch;
    if (dynamic) {
      const std::int64_t each = std::max<std::int64_t>(1, plan.global_batch_size / n.dp());
      plan.global_batch_size = each * n.dp();
    }
    return reading;
  }
  reading.step = step_of(c, n, megatron, reading.assumed);
  RlJob& job = reading.step->job;
  job.by_number = !dynamic && job.packed;
  if (job.by_number && plan.micro_batch_size > 1) {
    reading.takes_less = true;
    reading.assumed.push_back(fmt::format(
        "memory of micro-batches of {} answers of the mean length: without padding they are as "
        "long as they are",
        plan.micro_batch_size));
  }
  // What does not divide among ranks and micro-batches is left out of a step (or stops it, as the
  // checks say).
  const std::int64_t each = plan.micro_batch_size * plan.dp;
  plan.global_batch_size = dynamic ? packing_of(job, model, plan).sequences
                                   : std::max<std::int64_t>(1, job.batch() / each) * each;
  return reading;
}

}  // namespace qplan
