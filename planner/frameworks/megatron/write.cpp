#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/rl/written_step.h"
#include "planner/frameworks/writers.h"

namespace qplan {
namespace {

using Written = std::vector<WrittenOption>;

// Hopper and older order kernels by one queue; where experts' exchanges run beside compute one
// would put them behind each other, and Megatron only advises (arguments.py:1477; as many as
// Megatron-Bridge's performance scripts give, perf_plugins.py).
std::string_view queues(const Subject& s) {
  return s.plan.overlap.has(OverlapKind::ep) ? "32" : "1";
}

// Megatron-FSDP wants several (arguments.py:1450).
std::string queue_line(const Subject& s) {
  if (s.recipe == RecipeKind::megatron_fsdp) return "unset CUDA_DEVICE_MAX_CONNECTIONS\n";
  return fmt::format("export CUDA_DEVICE_MAX_CONNECTIONS={}\n", queues(s));
}

// Dropless experts change their shapes every step, which fragments a caching allocator.
std::string_view allocator_line(const Subject& s) {
  return s.model.moe && !s.plan.cuda_graph
             ? "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
             : "";
}

// What Megatron's deterministic mode wants to find (training/determinism.py; Megatron-Bridge's
// config.py insists on the first).
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFixedOrder{
    {{"NCCL_ALGO", "Ring"},
     {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"},
     {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}}};

// What the plan's words want of the environment besides.
std::vector<std::pair<std::string_view, std::string_view>> environment(const Subject& s) {
  std::vector<std::pair<std::string_view, std::string_view>> variables;
  if (s.plan.deterministic) variables.assign(kFixedOrder.begin(), kFixedOrder.end());
  // From Transformer Engine 2.10 on its newer offload would take weights along, and Megatron stops
  // (training/arguments.py:1939); older ones do not read it.
  if (s.plan.offload.activation_layers < 0) variables.emplace_back("NVTE_CPU_OFFLOAD_V1", "1");
  return variables;
}

std::string environment_lines(const Subject& s) {
  std::string lines;
  for (const auto& [name, value] : environment(s)) {
    lines += fmt::format("export {}={}\n", name, value);
  }
  return lines;
}

std::string torchrun(const Subject& s, std::string_view what) {
  const Nodes nodes = nodes_of(s);
  return fmt::format(
      "torchrun --nproc-per-node {} --nnodes {} --node-rank \"${{NODE_RANK:-0}}\" \\\n"
      "  --master-addr \"${{MASTER_ADDR:-localhost}}\" --master-port \"${{MASTER_PORT:-6000}}\" "
      "\\\n"
      "  {}",
      nodes.gpus, nodes.count, what);
}

constexpr std::string_view kHowToStart =
    "# One node: bash train.sh. Several: on each of them NODE_RANK=<0, 1, ...> MASTER_ADDR=<of "
    "the\n"
    "# first> bash train.sh; under Slurm: sbatch train.sbatch.\n";

// The degrees first, as people look for them; then everything else of the plan.
Written megatron_checkpoints(const Subject& s) {
  const bool fsdp = s.recipe == RecipeKind::megatron_fsdp;
  return {{"--ckpt-format", fsdp ? "fsdp_dtensor" : "torch_dist"},
          {"--save", "${CHECKPOINT_PATH}"},
          {"--load", "${CHECKPOINT_PATH}"}};
}

void append(Written& to, const Written& more) {
  to.insert(to.end(), more.begin(), more.end());
}

bool forced_by_slime(std::string_view key) {
  return key == "--use-distributed-optimizer" || key == "--bf16" || key == "--micro-batch-size" ||
         key == "--global-batch-size" || key == "--seq-length" ||
         key == "--make-vocab-size-divisible-by" || key == "--max-position-embeddings" ||
         key == "--cross-entropy-loss-fusion" || key == "--cross-entropy-fusion-impl" ||
         key == "--attention-dropout" || key == "--hidden-dropout" ||
         key == "--accumulate-allreduce-grads-in-fp32";
}

bool of_optimizer(std::string_view key) {
  return key.starts_with("--optimizer") || key.starts_with("--exp-avg") ||
         key.starts_with("--main-") || key == "--use-precision-aware-optimizer" ||
         key == "--overlap-grad-reduce" || key == "--overlap-param-gather" ||
         key == "--grad-reduce-in-bf16" || key == "--num-distributed-optimizer-instances";
}

// Whose weights slime knows how to hand to its rollouts
// (slime/backends/megatron_utils/megatron_to_hf/__init__.py).
bool slime_converts(const ModelSpec& model) {
  constexpr std::array<std::string_view, 11> kFamilies{
      "deepseek_v3", "glm4_moe", "kimi_k2",   "llama",      "minimax_m2",  "qwen2",
      "qwen2_moe",   "qwen3",    "qwen3_moe", "qwen3_next", "qwen3_vl_moe"};
  return std::find(kFamilies.begin(), kFamilies.end(), model.architecture) != kFamilies.end();
}

// Answers that do not make a micro-batch for each rank and group of them (slime 624b824a,
// slime/utils/dp_schedule.py, build_dp_schedule).
bool has_too_few_answers(const Subject& s) {
  if (s.step == nullptr) return false;
  const std::int64_t group = s.plan.vpp > 1 ? s.plan.pp : 1;
  return s.step->job.batch() < s.plan.dp * group;
}

// What slime's arguments have not of a step.
std::string_view other_step(const Subject& s) {
  if (s.step == nullptr || !s.step->job.generates()) return {};
  const auto& [job, layout] = *s.step;
  if (!job.packed) return "its answers are never padded; leave padding out";
  if (job.epochs > 1) return "it trains on its answers once; use 1 epoch";
  if (job.staleness > 1) return "it trains on answers a step old at most; use staleness 0 or 1";
  if (job.colocated() && !job.offload_trainer) {
    return "with --colocate the trainer always makes room for the engines";
  }
  if (layout.pp > 1) return "qplan writes its engines without stages; use pp 1";
  if (layout.precision != Precision::bf16) {
    return "the format of its engines' weights is the checkpoint's; plan them in bf16";
  }
  return {};
}

constexpr auto kSlimeLimits = std::to_array<Limit>({
    {"slime_model",
     [](const Subject& s) {
       return !slime_converts(s.model) && !s.model.delta_net && !s.model.mamba;
     },
     [](const Subject& s) {
       return fmt::format("slime has no way to hand weights of {} to its rollouts; use megatron",
                          s.model.architecture);
     },
     Asks::model},
    {"slime_optimizer", [](const Subject& s) { return s.plan.zero != 1; },
     [](const Subject&) {
       return std::string("slime always uses Megatron's distributed optimizer; use zero 1");
     }},
    {"slime_loss", [](const Subject& s) { return s.plan.loss != LossKind::by_framework; },
     [](const Subject&) {
       return std::string("slime has losses of its own, which take no fusion; leave loss out");
     }},
    {"slime_precision", [](const Subject& s) { return s.plan.precision != Precision::bf16; },
     [](const Subject& s) {
       return fmt::format("slime trains in bf16, not in {}", to_word(s.plan.precision));
     }},
    {"slime_dispatcher",
     [](const Subject& s) {
       return s.model.moe && s.plan.moe_dispatcher != MoeDispatcher::alltoall;
     },
     [](const Subject&) {
       return std::string("slime's sequences vary in length, which it exchanges by alltoall");
     }},
    {"slime_graphs", [](const Subject& s) { return s.plan.cuda_graph; },
     [](const Subject&) {
       return std::string("slime's sequences vary in length, which CUDA graphs exclude");
     }},
    {"slime_delta_net", [](const Subject& s) { return s.model.delta_net.has_value(); },
     [](const Subject&) {
       return std::string(
           "slime runs Gated DeltaNet by a plug-in that repeats it on every rank of tp and cp, "
           "which qplan does not price; use megatron");
     },
     Asks::model},
    {"slime_mamba", [](const Subject& s) { return s.model.mamba.has_value(); },
     [](const Subject&) {
       return std::string("slime trains GPT models, without Mamba-2 layers; use megatron");
     },
     Asks::model},
    {"slime_batch",
     [](const Subject& s) { return s.plan.micro_batch_size * s.plan.seq_len % s.plan.cp != 0; },
     [](const Subject& s) {
       return fmt::format("{} tokens a microbatch do not divide by cp {}",
                          s.plan.micro_batch_size * s.plan.seq_len, s.plan.cp);
     }},
    {"slime_answers", has_too_few_answers,
     [](const Subject& s) {
       return fmt::format(
           "{} answers of an optimizer step make no micro-batch for each of {} data-parallel "
           "ranks{}",
           s.step->job.batch(), s.plan.dp,
           s.plan.vpp > 1 ? fmt::format(" and each of its groups of {}", s.plan.pp) : "");
     }},
    {"slime_step", [](const Subject& s) { return !other_step(s).empty(); },
     [](const Subject& s) { return fmt::format("slime: {}", other_step(s)); }},
});

// ---- slime's step ----

constexpr double kShare = 0.7;  // of memory, for weights and cache of an engine

// One update a rollout: prompts x samples are the global batch.
WrittenStep slime_step(const Subject& s) {
  if (s.step != nullptr) return {*s.step, s.step->job.packed};
  WrittenStep written;
  RlJob& job = written.step.job;
  job.samples = s.plan.global_batch_size % 8 == 0 ? 8 : 1;
  job.prompts = s.plan.global_batch_size / job.samples;
  job.train_batch = s.plan.global_batch_size;
  job.response.max = s.plan.seq_len * 3 / 4;
  job.reference = false;
  written.step.layout = written_engine(s, kShare);
  return written;
}

Written slime_answers(const Subject& s, const RlJob& job) {
  Written rollout{{"--prompt-data", "${PROMPT_DATA}"},
                  {"--input-key", "prompt"},
                  {"--label-key", "label"},
                  {"--apply-chat-template", true},
                  {"--rollout-shuffle", true},
                  {"--rm-type", "deepscaler"},
                  {"--num-rollout", 3000},
                  {"--rollout-batch-size", job.prompts},
                  {"--n-samples-per-prompt", job.samples}};
  if (s.step != nullptr) rollout.push_back({"--rollout-max-prompt-len", job.prompt_len});
  append(rollout, {{"--rollout-max-response-len", job.response.max},
                   {"--rollout-temperature", 1},
                   {"--global-batch-size", job.batch()}});
  if (job.balanced) rollout.push_back({"--balance-data", true});
  return rollout;
}

Written slime_algorithm(const Subject& s, const RlJob& job) {
  Written algorithm{{"--advantage-estimator", job.algorithm == Algorithm::ppo ? "ppo" : "grpo"}};
  if (s.step != nullptr && job.reference) {
    append(
        algorithm,
        {{"--use-kl-loss", true}, {"--kl-loss-coef", "0.001"}, {"--kl-loss-type", "low_var_kl"}});
  }
  if (!job.old_logprobs) algorithm.push_back({"--use-rollout-logprobs", true});
  append(algorithm, {{"--eps-clip", 0.2}, {"--eps-clip-high", 0.28}});
  return algorithm;
}

// Of those that train and those that make answers.
Nodes nodes_of_all(const Subject& s, const RlJob& job) {
  ParallelPlan all;
  all.dp = static_cast<int>(s.plan.world() + job.rollout_gpus);
  return nodes_of({s.model, s.config, all, s.recipe, s.gpus_per_node});
}

// Engines, and the GPUs of their own.
Written slime_engines(const RlJob& job, const RolloutLayout& layout) {
  Written engines{{"--rollout-num-gpus-per-engine", layout.tp * layout.dp},
                  {"--sglang-mem-fraction-static", layout.memory_share}};
  if (layout.dp > 1) {
    append(engines, {{"--sglang-enable-dp-attention", true}, {"--sglang-dp-size", layout.dp}});
  }
  if (layout.ep > 1) engines.push_back({"--sglang-ep-size", layout.ep});
  if (layout.redundant_experts > 0) {
    engines.push_back({"--sglang-ep-num-redundant-experts", layout.redundant_experts});
  }
  if (!job.colocated()) engines.push_back({"--rollout-num-gpus", job.rollout_gpus});
  return engines;
}

// Which it takes for 8 (slime 624b824a, slime/utils/arguments.py:60).
std::string slime_node(const Nodes& nodes) {
  return nodes.gpus == 8 ? "" : fmt::format("  --num-gpus-per-node {} \\\n", nodes.gpus);
}

}  // namespace

std::span<const Limit> slime_limits() {
  return kSlimeLimits;
}

std::vector<EmittedFile> write_megatron(const Subject& s, const std::vector<std::string>& remarks) {
  Written plan = written(megatron_options(), s);
  Written training = megatron_training();
  append(training, megatron_checkpoints(s));
  // The optimizer on the host copies while the next bucket is being computed.
  if (s.plan.offload.optimizer > 0) plan.push_back({"--overlap-cpu-optimizer-d2h-h2d", true});
  std::string args = remark_lines(remarks) + '\n';
  args += paths_block({{"TOKENIZER_PATH", "/path/to/tokenizer"},
                       {"DATA_PATH", "/path/to/data_text_document"},
                       {"CHECKPOINT_PATH", "/path/to/checkpoints"}});
  args += '\n' + bash_array("MODEL_ARGS", written(megatron_facts(), s));
  args += '\n' + bash_array("PLAN_ARGS", plan);
  args += '\n' + bash_array("TRAINING_ARGS", training);
  args += '\n' + bash_array("DATA_ARGS", {{"--tokenizer-type", "HuggingFaceTokenizer"},
                                          {"--tokenizer-model", "${TOKENIZER_PATH}"},
                                          {"--data-path", "${DATA_PATH}"},
                                          {"--split", "99,1,0"},
                                          {"--num-workers", 2}});
  const std::string script = fmt::format(
      "#!/bin/bash\n{}{}set -euo pipefail\ncd \"$(dirname \"$0\")\"\nsource args.sh\n"
      "MEGATRON_LM_DIR=${{MEGATRON_LM_DIR:-/path/to/Megatron-LM}}\n{}{}{}"
      "{} \"$MEGATRON_LM_DIR/{}\" \\\n"
      "  \"${{MODEL_ARGS[@]}}\" \"${{PLAN_ARGS[@]}}\" \"${{TRAINING_ARGS[@]}}\" "
      "\"${{DATA_ARGS[@]}}\"\n",
      remark_lines(remarks), kHowToStart, queue_line(s), allocator_line(s), environment_lines(s),
      torchrun(s, ""), s.model.mamba ? "pretrain_hybrid.py" : "pretrain_gpt.py");
  return {
      {"args.sh", args, false}, {"train.sh", script, true}, slurm_script(s, remarks, "train.sh")};
}

std::vector<EmittedFile> write_bridge(const Subject& s, const std::vector<std::string>& remarks) {
  const BridgeRecipe& recipe = *bridge_recipe(s.model.name);
  const bool sees = s.model.vision.has_value(), adapts = s.plan.lora_rank > 0;
  // finetune() is pretrain() that insists on weights to start from.
  const std::string_view entry = adapts ? "finetune" : "pretrain";
  std::string text = remark_lines(remarks);
  text += fmt::format(
      "#\n# Needs Megatron-Bridge; replace the paths at the end{}.\n"
      "import torch\n"
      "from megatron.bridge import {}recipes\n"
      "{}"
      "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n"
      "from {} import forward_step\n"
      "from megatron.bridge.training.mixed_precision import *  # noqa: F403\n"
      "from megatron.bridge.training.{} import {}\n\n\n"
      "def config():\n",
      sees     ? ", and the recipe's mock dataset"
      : adapts ? ", and the recipe's dataset"
               : "",
      recipe.provider.empty() ? "" : "AutoBridge, ",
      !adapts       ? ""
      : s.plan.dora ? "from megatron.bridge.peft.dora import DoRA\n"
                    : "from megatron.bridge.peft.lora import LoRA\n",
      sees ? "megatron.bridge.models.qwen_vl.qwen3_vl_step" : "megatron.bridge.training.gpt_step",
      entry, entry);
  text += fmt::format("    cfg = recipes.{}()\n", recipe.function);
  if (!recipe.provider.empty()) text += fmt::format("    cfg.model = {}\n", recipe.provider);
  text += "    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)\n";
  // What recipes of some models say of stages and of what is trained is not the plan's.
  text +=
      "    cfg.model.num_layers_in_first_pipeline_stage = None\n"
      "    cfg.model.num_layers_in_last_pipeline_stage = None\n"
      "    cfg.model.account_for_embedding_in_pipeline_split = False\n"
      "    cfg.model.account_for_loss_in_pipeline_split = False\n";
  if (recipe.function.starts_with("qwen35_text")) {
    text += "    cfg.model.cuda_graph_modules = None\n";  // the recipe captures some
  }
  if (sees) {
    for (const std::string_view part : {"language_model", "vision_model", "vision_projection"}) {
      text += fmt::format("    cfg.model.freeze_{} = False\n", part);
    }
  }
  for (const BridgeAssignment& assignment : bridge_assignments(s)) {
    text += fmt::format("    cfg.{} = {}\n", assignment.target, assignment.value);
  }
  if (s.plan.offload.optimizer > 0) {
    text += "    cfg.optimizer.overlap_cpu_optimizer_d2h_h2d = True\n";
  }
  const bool fp32 = s.plan.grad_dtype == DType::fp32;
  text += fmt::format("    cfg.ddp.grad_reduce_in_fp32 = {}\n", fp32 ? "True" : "False");
  // One length, said in both places that check it.
  text += fmt::format("    cfg.model.seq_length = {}\n", s.plan.seq_len);
  if (s.plan.cuda_graph) {
    text += "    cfg.rng.te_rng_tracker = True\n    cfg.model.use_te_rng_tracker = True\n";
    text += "    cfg.rerun_state_machine.check_for_nan_in_loss = False\n";
    text += "    cfg.ddp.check_for_nan_in_grad = False\n";
  }
  if (adapts) {
    text += fmt::format("    cfg.peft = {}\n", bridge_adapters(s));
    text += "    cfg.checkpoint.pretrained_checkpoint = \"/path/to/pretrained_checkpoint\"\n";
  }
  text += "    cfg.checkpoint.save = \"/path/to/checkpoints\"\n";
  text += "    cfg.checkpoint.load = \"/path/to/checkpoints\"\n    return cfg\n\n\n";
  text += fmt::format("if __name__ == \"__main__\":\n    {}(config(), forward_step)\n", entry);
  const std::string program = std::string(entry) + ".py";
  const std::string script =
      fmt::format("#!/bin/bash\n{}{}set -euo pipefail\ncd \"$(dirname \"$0\")\"\n{}{}{}{}{}\n",
                  remark_lines(remarks), kHowToStart, queue_line(s), allocator_line(s),
                  environment_lines(s), torchrun(s, ""), program);
  return {{program, text, false}, {"train.sh", script, true}, slurm_script(s, remarks, "train.sh")};
}

std::vector<EmittedFile> write_slime(const Subject& s, const std::vector<std::string>& remarks) {
  Written model = written(megatron_facts(), s), perf, optimizer;
  std::erase_if(model, [](const WrittenOption& o) { return forced_by_slime(o.key); });
  for (const WrittenOption& option : written(megatron_options(), s)) {
    if (forced_by_slime(option.key)) continue;
    (of_optimizer(option.key) ? optimizer : perf).push_back(option);
  }
  const WrittenStep step = slime_step(s);
  const auto& [job, layout] = step.step;
  const std::int64_t tokens = s.plan.micro_batch_size * s.plan.seq_len / s.plan.cp;
  append(perf, {{"--use-dynamic-batch-size", true}, {"--max-tokens-per-gpu", tokens}});
  Written adam;
  if (s.plan.optimizer == OptimizerKind::adam) adam.push_back({"--optimizer", "adam"});
  append(adam, {{"--lr", "1e-6"},
                {"--lr-decay-style", "constant"},
                {"--weight-decay", 0.1},
                {"--adam-beta1", 0.9},
                {"--adam-beta2", 0.98}});
  append(adam, optimizer);
  if (s.plan.offload.optimizer > 0) adam.push_back({"--overlap-cpu-optimizer-d2h-h2d", true});
  const Nodes nodes = nodes_of(s);
  std::string text = fmt::format(
      "#!/bin/bash\n{}# On the first node; others join by `ray start --address=<of the "
      "first>:6379`.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\nsource model.sh\n",
      remark_lines(remarks));
  text += paths_block({{"SLIME_DIR", "/path/to/slime"},
                       {"MEGATRON_LM_DIR", "/path/to/Megatron-LM"},
                       {"HF_CHECKPOINT", "/path/to/hugging_face_checkpoint"},
                       {"MEGATRON_CHECKPOINT", "/path/to/torch_dist_checkpoint"},
                       {"SAVE_PATH", "/path/to/checkpoints"},
                       {"PROMPT_DATA", "/path/to/prompts.jsonl"}});
  text += '\n' + bash_array("CKPT_ARGS", {{"--hf-checkpoint", "${HF_CHECKPOINT}"},
                                          {"--ref-load", "${MEGATRON_CHECKPOINT}"},
                                          {"--load", "${SAVE_PATH}"},
                                          {"--save", "${SAVE_PATH}"},
                                          {"--save-interval", 20}});
  text += '\n' + bash_array("ROLLOUT_ARGS", slime_answers(s, job));
  text += '\n' + bash_array("PERF_ARGS", perf);
  text += '\n' + bash_array("OPTIMIZER_ARGS", adam);
  text += '\n' + bash_array("GRPO_ARGS", slime_algorithm(s, job));
  Written engines = slime_engines(job, layout);
  if (s.step != nullptr) {
    engines.push_back({"--sglang-max-running-requests", layout.max_running});
  }
  text += '\n' + bash_array("SGLANG_ARGS", engines);
  // Of a step sequences are what is packed; a plan by itself has so many of this length.
  Written misc;
  if (s.step == nullptr) misc.push_back({"--seq-length", s.plan.seq_len});
  append(misc, {{"--attention-dropout", "0.0"},
                {"--hidden-dropout", "0.0"},
                {"--attention-softmax-in-fp32", true}});
  text += '\n' + bash_array("MISC_ARGS", misc);
  if (s.plan.grad_dtype == DType::fp32) {
    text += "MISC_ARGS+=(--accumulate-allreduce-grads-in-fp32)\n";
  }
  std::string variables;
  for (const auto& [name, value] : environment(s)) {
    variables += fmt::format(R"(, \"{}\": \"{}\")", name, value);
  }
  text += fmt::format(
      "\nexport PYTHONUNBUFFERED=1\n"
      "MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}}\n"
      "ray start --head --node-ip-address \"$MASTER_ADDR\" --num-gpus {0} --disable-usage-stats\n"
      "ray job submit --address=http://127.0.0.1:8265 \\\n"
      "  --runtime-env-json=\"{{\\\"env_vars\\\": {{\\\"PYTHONPATH\\\": \\\"$MEGATRON_LM_DIR\\\", "
      "\\\"CUDA_DEVICE_MAX_CONNECTIONS\\\": \\\"{7}\\\"{2}}}}}\" \\\n"
      "  -- python3 \"$SLIME_DIR/{3}\" \\\n"
      "  --actor-num-nodes {1} \\\n  --actor-num-gpus-per-node {5} \\\n{4}{6}"
      "  \"${{MODEL_ARGS[@]}}\" \"${{CKPT_ARGS[@]}}\" \"${{ROLLOUT_ARGS[@]}}\" \\\n"
      "  \"${{OPTIMIZER_ARGS[@]}}\" \"${{GRPO_ARGS[@]}}\" \"${{PERF_ARGS[@]}}\" \\\n"
      "  \"${{SGLANG_ARGS[@]}}\" \"${{MISC_ARGS[@]}}\"\n",
      nodes_of_all(s, job).gpus, nodes.count, variables,
      job.staleness > 0 ? "train_async.py" : "train.py", job.colocated() ? "  --colocate \\\n" : "",
      nodes.gpus, slime_node(nodes_of_all(s, job)), queues(s));
  return {{"model.sh", remark_lines(remarks) + bash_array("MODEL_ARGS", model), false},
          {"run.sh", text, true}};
}

}  // namespace qplan
