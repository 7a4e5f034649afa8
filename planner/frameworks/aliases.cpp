#include "planner/frameworks/aliases.h"

#include <algorithm>
#include <array>
#include <span>

namespace qplan {
namespace {

constexpr auto kMegatronAliases = std::to_array<Alias>({
    {"--head-size", "--kv-channels", ""},
    {"--head-dim", "--kv-channels", ""},
    {"--experts-per-tok", "--moe-router-topk", ""},
    {"--num-experts-per-tok", "--moe-router-topk", ""},
    {"--moe-top-k", "--moe-router-topk", ""},
    {"--expert-capacity-factor", "--moe-expert-capacity-factor",
     "; Qwen and DeepSeek train without one, for it drops tokens"},
    {"--router-aux-loss-coef", "--moe-aux-loss-coeff", ""},
    {"--aux-loss-coeff", "--moe-aux-loss-coeff", ""},
    {"--warmup-steps", "--lr-warmup-iters", ""},
    {"--nccl-timeout", "--distributed-timeout-minutes", ", in minutes"},
    {"--save-dir", "--save", ""},
    {"--checkpoint-dir", "--save", ""},
    {"--use-legacy-models", "", "; Megatron-LM has no others than its core's any more"},
    {"--fp8", "--fp8-format", ""},
    {"--fake-init-process-group", "--fake-process-group", ""},
    {"--overlap-p2p-comm", "--overlap-p2p-communication-warmup-flush", ""},
    {"--grad-reduce-in-fp32", "--accumulate-allreduce-grads-in-fp32", ""},
    {"--offload-optimizer", "",
     "; DeepSpeed reads it from ds_config.json, Megatron-LM has "
     "--optimizer-cpu-offload"},
    {"--offload_optimizer", "",
     "; DeepSpeed reads it from ds_config.json, Megatron-LM has "
     "--optimizer-cpu-offload"},
    {"--offload-param", "", "; DeepSpeed reads it from ds_config.json"},
    {"--offload_param", "", "; DeepSpeed reads it from ds_config.json"},
    {"--zero-stage", "", "; Megatron-LM shards by --use-distributed-optimizer"},
    {"--pipeline-model-parallel-split-rank", "",
     "; it split encoders from decoders, is gone, and never placed stages on nodes"},
    {"--model-parallel-size", "--tensor-model-parallel-size", ""},
    {"--batch-size", "--micro-batch-size", ""},
    {"--warmup", "--lr-warmup-fraction", ""},
    {"--type", "", "; layers are described one flag at a time"},
});

constexpr auto kForkAliases = std::to_array<Alias>({
    {"--context-parallel-size", "--ds-sequence-parallel-size", ""},
    {"--expert-model-parallel-size", "--moe-expert-parallel-size", ""},
    {"--expert-tensor-parallel-size", "", ""},
    {"--fp8-format", "--fp8-hybrid", ""},
    {"--nccl-timeout", "--distributed-timeout-minutes", ", in minutes"},
    {"--save-dir", "--save", ""},
    {"--offload_optimizer", "",
     "; it stands in ds_config.json: zero_optimization.offload_optimizer"},
    {"--offload_param", "", "; it stands in ds_config.json: zero_optimization.offload_param"},
    {"--group-query-attention", "--num-key-value-heads", ""},
    {"--num-query-groups", "--num-key-value-heads", ""},
    {"--norm-epsilon", "--layernorm-epsilon", ""},
    {"--rotary-base", "--rotary-position-embeddings-theta", ""},
    {"--batch-size", "--micro-batch-size", ""},
    {"--model-parallel-size", "--tensor-model-parallel-size", ""},
    {"--warmup", "--lr-warmup-fraction", ""},
    {"--qk-layernorm", "", "; models that normalise queries and keys cannot be built"},
});

constexpr auto kDeepspeedAliases = std::to_array<Alias>({
    {"zero_optimization.stage3_prefetch", "zero_optimization.stage3_prefetch_bucket_size",
     "; prefetching has no switch"},
    {"activation_checkpointing.enable", "",
     "; the block only configures deepspeed.checkpointing: the model turns it on"},
    {"activation_checkpointing.enabled", "",
     "; the block only configures deepspeed.checkpointing: the model turns it on"},
    {"activation_checkpointing.checkpoint_granularity", "", "; layers are chosen by the model"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", ""},
    {"micro_batch_size", "train_micro_batch_size_per_gpu", ""},
    {"micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", ""},
    {"global_batch_size", "train_batch_size", ""},
    {"batch_size", "train_batch_size", ""},
    {"train_micro_batch_size_per_device", "train_micro_batch_size_per_gpu", ""},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu", ""},
    {"accumulation_steps", "gradient_accumulation_steps", ""},
    {"grad_accum_steps", "gradient_accumulation_steps", ""},
    {"max_grad_norm", "gradient_clipping", ""},
    {"clip_grad", "gradient_clipping", ""},
    {"gradient_clip_val", "gradient_clipping", ""},
});

constexpr auto kTorchtitanAliases = std::to_array<Alias>({
    {"training.local_batch_size", "training.num_tokens_per_microbatch_per_dp_rank",
     ", in tokens: local_batch_size x seq_len"},
    {"training.batch_size", "training.num_tokens_per_microbatch_per_dp_rank",
     ", in tokens: batch_size x seq_len"},
    {"training.global_batch_size", "training.num_tokens_per_train_step",
     ", in tokens: global_batch_size x seq_len"},
    {"training.seq_len", "training.max_context_length", ""},
    {"job.config_file", "--module and --config, which name a function",
     ": TOML files are gone since 0.2.2"},
    {"parallelism.expert_tensor_parallel_degree", "", "; experts are not split"},
});

constexpr auto kLlamaFactoryAliases = std::to_array<Alias>({
    {"lora_r", "lora_rank", ""},
    {"lora_target_modules", "lora_target", ""},
    {"load_in_4bit", "quantization_bit", ": 4"},
    {"load_in_8bit", "quantization_bit", ": 8"},
    {"base_model", "model_name_or_path", ""},
    {"max_length", "cutoff_len", ""},
    {"max_seq_length", "cutoff_len", ""},
    {"sequence_len", "cutoff_len", ""},
    {"flash_attention", "flash_attn", ": fa2"},
    {"sample_packing", "packing", ""},
    {"micro_batch_size", "per_device_train_batch_size", ""},
    {"num_epochs", "num_train_epochs", ""},
    {"evaluation_strategy", "eval_strategy", ""},
});

constexpr auto kAxolotlAliases = std::to_array<Alias>({
    {"lora_rank", "lora_r", ""},
    {"lora_target", "lora_target_modules", ""},
    {"cutoff_len", "sequence_len", ""},
    {"max_seq_length", "sequence_len", ""},
    {"packing", "sample_packing", ""},
    {"per_device_train_batch_size", "micro_batch_size", ""},
    {"num_train_epochs", "num_epochs", ""},
    {"adam_eps", "adam_epsilon", ""},
});

constexpr auto kTrlAliases = std::to_array<Alias>({
    {"--torch_dtype", "--dtype", ""},
    {"--max_prompt_length", "", "; this release cuts no prompts"},
    {"--max_seq_length", "--max_length", ""},
    {"--lora_rank", "--lora_r", ""},
    {"--dataset_text_field_name", "--dataset_text_field", ""},
    {"--evaluation_strategy", "--eval_strategy", ""},
    {"--use_liger", "--use_liger_kernel", ""},
});

constexpr auto kAutoModelAliases = std::to_array<Alias>({
    {"step_scheduler.micro_batch_size", "step_scheduler.local_batch_size", ""},
    {"step_scheduler.grad_acc_steps", "step_scheduler.global_batch_size",
     ": local_batch_size x accumulation x data-parallel ranks"},
    {"peft.rank", "peft.dim", ""},
    {"peft.r", "peft.dim", ""},
    {"peft.lora_alpha", "peft.alpha", ""},
    {"peft.lora_dropout", "peft.dropout", ""},
    {"distributed.tensor_parallel_size", "distributed.tp_size", ""},
    {"distributed.context_parallel_size", "distributed.cp_size", ""},
    {"distributed.pipeline_parallel_size", "distributed.pp_size", ""},
    {"distributed.expert_parallel_size", "distributed.ep_size", ""},
});

constexpr auto kSwiftAliases = std::to_array<Alias>({
    {"--train_type", "--tuner_type", ""},
    {"--sft_type", "--tuner_type", ""},
    {"--quantization_bit", "--quant_bits", ""},
    {"--model_id_or_path", "--model", ""},
    {"--model_name_or_path", "--model", ""},
    {"--lora_r", "--lora_rank", ""},
    {"--lora_target_modules", "--target_modules", ""},
    {"--batch_size", "--per_device_train_batch_size", ""},
    {"--max_seq_length", "--max_length", ""},
    {"--use_flash_attn", "--attn_impl", ": flash_attn"},
});

constexpr auto kSwiftMegatronAliases = std::to_array<Alias>({
    {"--load", "--mcore_model", ""},
    {"--train_type", "--tuner_type", ""},
    {"--save", "--output_dir", ""},
    {"--max_epochs", "--num_train_epochs", ""},
    {"--save_interval", "--save_steps", ""},
    {"--eval_interval", "--eval_steps", ""},
    {"--log_interval", "--logging_steps", ""},
    {"--num_workers", "--dataloader_num_workers", ""},
    {"--seq_length", "--max_length", ""},
    {"--per_device_train_batch_size", "--micro_batch_size", ""},
    {"--learning_rate", "--lr", ""},
    {"--gradient_accumulation_steps", "--global_batch_size",
     ": micro_batch_size x accumulation x data-parallel ranks"},
    {"--adapter_load", "--mcore_adapter", ""},
    {"--ref_load", "--mcore_ref_model", ""},
    {"--no_initialization", "--perform_initialization", ": false"},
    {"--num_layers_per_virtual_pipeline_stage", "--virtual_pipeline_model_parallel_size",
     ": the chunks a stage holds"},
});

std::span<const Alias> aliases_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron:
    case Dialect::megatron_yaml:
    case Dialect::slime:
      return kMegatronAliases;
    case Dialect::megatron_deepspeed:
      return kForkAliases;
    case Dialect::ds_config:
      return kDeepspeedAliases;
    case Dialect::torchtitan:
      return kTorchtitanAliases;
    case Dialect::llama_factory:
      return kLlamaFactoryAliases;
    case Dialect::axolotl:
      return kAxolotlAliases;
    case Dialect::automodel:
      return kAutoModelAliases;
    case Dialect::trl:
      return kTrlAliases;
    case Dialect::ms_swift:
      return kSwiftAliases;
    case Dialect::ms_swift_megatron:
      return kSwiftMegatronAliases;
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::bridge:
    case Dialect::trainer:
    case Dialect::accelerate:
    case Dialect::own_script:
    case Dialect::torchtune:
    case Dialect::openrlhf:
    case Dialect::torchtitan_toml:
    case Dialect::nanotron:
      break;
  }
  return {};
}

}  // namespace

const Alias* alias_of(Dialect dialect, std::string_view written) {
  const auto aliases = aliases_of(dialect);
  const auto found = std::find_if(aliases.begin(), aliases.end(),
                                  [&](const Alias& alias) { return alias.written == written; });
  return found == aliases.end() ? nullptr : &*found;
}

}  // namespace qplan
