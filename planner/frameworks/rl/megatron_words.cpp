#include "planner/frameworks/rl/megatron_words.h"

#include <algorithm>
#include <array>

#include "models/text.h"
#include "planner/frameworks/megatron/megatron.h"

namespace qplan {
namespace {

// negated: the flag says that the field is off.
enum class Kind : std::uint8_t { plain, negated };

struct Name {
  std::string_view flag, verl, nemo;  // empty: it has none
  // What stands for a flag that is not there, over the framework's own default.
  std::string_view verl_without = {}, nemo_without = {};
  Kind kind = Kind::plain;
};

constexpr std::string_view kVerl = "actor_rollout_ref.actor.";
constexpr std::string_view kNemo = "policy.megatron_cfg.";

// verl b178a3cd, verl/trainer/config/engine/megatron.yaml; what it hands to Megatron's classes as
// it is stands under override_transformer_config, override_ddp_config and
// override_optimizer_config. NeMo-RL 7ea279ab, nemo_rl/models/policy/__init__.py.
constexpr auto kNames = std::to_array<Name>({
    {"--tensor-model-parallel-size", "megatron.tensor_model_parallel_size",
     "tensor_model_parallel_size"},
    {"--pipeline-model-parallel-size", "megatron.pipeline_model_parallel_size",
     "pipeline_model_parallel_size"},
    {"--num-virtual-stages-per-pipeline-rank", "megatron.virtual_pipeline_model_parallel_size",
     "virtual_pipeline_model_parallel_size", "null"},
    {"--context-parallel-size", "megatron.context_parallel_size", "context_parallel_size"},
    {"--expert-model-parallel-size", "megatron.expert_model_parallel_size",
     "expert_model_parallel_size"},
    {"--expert-tensor-parallel-size", "megatron.expert_tensor_parallel_size",
     "expert_tensor_parallel_size"},
    {"--sequence-parallel", "megatron.sequence_parallel", "sequence_parallel", "False", "False"},
    {"--use-distributed-optimizer", "megatron.use_distributed_optimizer",
     "optimizer.use_distributed_optimizer", "False", "False"},
    {"--decoder-first-pipeline-num-layers",
     "megatron.override_transformer_config.num_layers_in_first_pipeline_stage",
     "num_layers_in_first_pipeline_stage"},
    {"--decoder-last-pipeline-num-layers",
     "megatron.override_transformer_config.num_layers_in_last_pipeline_stage",
     "num_layers_in_last_pipeline_stage"},
    {"--account-for-embedding-in-pipeline-split",
     "megatron.override_transformer_config.account_for_embedding_in_pipeline_split",
     "account_for_embedding_in_pipeline_split"},
    {"--account-for-loss-in-pipeline-split",
     "megatron.override_transformer_config.account_for_loss_in_pipeline_split",
     "account_for_loss_in_pipeline_split"},
    {"--cp-comm-type", "megatron.override_transformer_config.cp_comm_type", ""},
    {"--recompute-granularity", "megatron.override_transformer_config.recompute_granularity",
     "recompute_granularity"},
    {"--recompute-method", "megatron.override_transformer_config.recompute_method", ""},
    {"--recompute-num-layers", "megatron.override_transformer_config.recompute_num_layers", ""},
    {"--recompute-modules", "megatron.override_transformer_config.recompute_modules",
     "recompute_modules"},
    {"--moe-token-dispatcher-type",
     "megatron.override_transformer_config.moe_token_dispatcher_type", "moe_token_dispatcher_type"},
    {"--moe-flex-dispatcher-backend",
     "megatron.override_transformer_config.moe_flex_dispatcher_backend",
     "moe_flex_dispatcher_backend"},
    {"--moe-permute-fusion", "megatron.override_transformer_config.moe_permute_fusion",
     "moe_permute_fusion", "", "False"},
    {"--no-gradient-accumulation-fusion",
     "megatron.override_transformer_config.gradient_accumulation_fusion",
     "gradient_accumulation_fusion", "", "True", Kind::negated},
    {"--attention-backend", "megatron.override_transformer_config.attention_backend",
     "attention_backend", "auto"},
    {"--accumulate-allreduce-grads-in-fp32", "megatron.override_ddp_config.grad_reduce_in_fp32",
     "distributed_data_parallel_config.grad_reduce_in_fp32"},
    {"--overlap-grad-reduce", "megatron.override_ddp_config.overlap_grad_reduce",
     "distributed_data_parallel_config.overlap_grad_reduce", "", "False"},
    {"--overlap-param-gather", "megatron.override_ddp_config.overlap_param_gather",
     "distributed_data_parallel_config.overlap_param_gather", "", "False"},
    {"--use-precision-aware-optimizer",
     "optim.override_optimizer_config.use_precision_aware_optimizer",
     "optimizer.use_precision_aware_optimizer", "", "False"},
    {"--optimizer-cpu-offload", "optim.override_optimizer_config.optimizer_cpu_offload",
     "optimizer.optimizer_cpu_offload"},
    {"--optimizer-offload-fraction", "optim.override_optimizer_config.optimizer_offload_fraction",
     "optimizer.optimizer_offload_fraction"},
});

// What both say elsewhere, or take as Megatron's own loop would not: sequences and batches are the
// job's, formats the framework's, and the loss is its own over logits.
constexpr std::array<std::string_view, 10> kElsewhere{"--micro-batch-size",
                                                      "--global-batch-size",
                                                      "--seq-length",
                                                      "--bf16",
                                                      "--cross-entropy-loss-fusion",
                                                      "--cross-entropy-fusion-impl",
                                                      "--main-grads-dtype",
                                                      "--main-params-dtype",
                                                      "--exp-avg-dtype",
                                                      "--exp-avg-sq-dtype"};

std::string key_of(MegatronKeys keys, const Name& name) {
  const std::string_view tail = keys == MegatronKeys::verl ? name.verl : name.nemo;
  if (tail.empty()) return "";
  return std::string(keys == MegatronKeys::verl ? kVerl : kNemo) + std::string(tail);
}

// What the field is as the flag has it; null: the flag is not there.
Json as_flag(const Name& name, const Json& value) {
  if (value.is_null()) return nullptr;
  if (!value.is_boolean()) return value;
  const bool on = value.get<bool>() != (name.kind == Kind::negated);
  // Megatron's table knows both ways to reduce gradients; false is the other one.
  if (!on && name.flag == "--accumulate-allreduce-grads-in-fp32") return false;
  if (name.flag == "--moe-permute-fusion") return on;
  return on ? Json(true) : Json(nullptr);
}

}  // namespace

Settings megatron_flags(MegatronKeys keys, const OmegaConfig& config) {
  Settings flags;
  const auto value_of = [&](std::string_view flag) -> Json {
    for (const Name& name : kNames) {
      if (name.flag == flag) return config.value(key_of(keys, name));
    }
    return nullptr;
  };
  // Both have modules to recompute by default, which count where that is switched on.
  const bool off =
      keys == MegatronKeys::nemo_rl && !config.on("policy.megatron_cfg.activation_checkpointing");
  const std::string granularity = off ? "" : text_of(value_of("--recompute-granularity"));
  for (const Name& name : kNames) {
    const std::string key = key_of(keys, name);
    if (key.empty()) continue;
    if (name.flag.starts_with("--recompute")) {
      const bool of_full = name.flag != "--recompute-modules";
      const bool granular = name.flag == "--recompute-granularity";
      if (granularity != "full" && granularity != "selective") continue;
      if (!granular && of_full != (granularity == "full")) continue;
    }
    Setting setting;
    if (const Setting* const said = config.said(key)) {
      setting = *said;
      setting.whole = setting.text = setting.name = {};  // the flag stands nowhere
    }
    setting.key = std::string(name.flag);
    setting.value = as_flag(name, config.value(key));
    if (setting.value.is_null() && setting.resolved) continue;
    if (name.flag == "--accumulate-allreduce-grads-in-fp32" && setting.value == false) {
      setting.key = "--grad-reduce-in-bf16";
      setting.value = true;
    }
    flags.add(std::move(setting));
  }
  return flags;
}

std::vector<WrittenOption> megatron_keys(MegatronKeys keys, const Subject& subject) {
  const auto flags = written(megatron_options(), subject);
  std::vector<WrittenOption> result;
  const bool half = subject.plan.grad_dtype != DType::fp32;
  for (const Name& name : kNames) {
    const std::string key = key_of(keys, name);
    if (key.empty()) continue;
    const auto found = std::find_if(flags.begin(), flags.end(),
                                    [&](const WrittenOption& o) { return o.key == name.flag; });
    const std::string_view without =
        keys == MegatronKeys::verl ? name.verl_without : name.nemo_without;
    if (name.flag == "--accumulate-allreduce-grads-in-fp32") {
      result.push_back({key, !half});
    } else if (found != flags.end()) {
      result.push_back({key, name.kind == Kind::negated ? Json(false) : found->value});
    } else if (!without.empty()) {
      result.push_back({key, hydra_value(without)});
    }
  }
  return result;
}

namespace {

// The flags that have neither a key nor another place: a few, and a search asks of every plan
// whether it has one of them.
std::vector<const Option*> options_without_key(MegatronKeys keys) {
  std::vector<const Option*> without;
  for (const Option& option : megatron_options()) {
    const bool elsewhere =
        std::find(kElsewhere.begin(), kElsewhere.end(), option.key) != kElsewhere.end();
    const bool named = std::any_of(kNames.begin(), kNames.end(), [&](const Name& name) {
      return name.flag == option.key && !key_of(keys, name).empty();
    });
    if (elsewhere || named || option.key == "--grad-reduce-in-bf16") continue;
    without.push_back(&option);
  }
  return without;
}

}  // namespace

UnsaidFlag flag_without_key(MegatronKeys keys, const Subject& subject) {
  static const std::vector<const Option*> of_verl = options_without_key(MegatronKeys::verl);
  static const std::vector<const Option*> of_nemo_rl = options_without_key(MegatronKeys::nemo_rl);
  for (const Option* const option : keys == MegatronKeys::verl ? of_verl : of_nemo_rl) {
    // Every layer, which is what NeMo-RL's "full" is.
    const bool every =
        keys == MegatronKeys::nemo_rl && subject.plan.recompute.layers == 0 &&
        (option->key == "--recompute-method" || option->key == "--recompute-num-layers");
    if (every || option->write(subject).is_null()) continue;
    for (const Option& row : megatron_options()) {
      if (row.key == option->key) return {std::string(row.key), std::string(row.word)};
    }
  }
  return {};
}

}  // namespace qplan
