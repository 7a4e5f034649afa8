// What ms-swift refuses of its arguments, and what it costs where it does not.

#include <algorithm>
#include <array>

#include "planner/frameworks/finetuning/trap.h"
#include "planner/frameworks/torch/trainer_words.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kSwiftSft = "ms-swift 3602360a, swift/arguments/sft_args.py";
constexpr std::string_view kSwiftBase = "ms-swift 3602360a, swift/arguments/base_args/base_args.py";
constexpr std::string_view kSteps =
    "transformers 5.23.0, src/transformers/trainer.py (max_steps); ms-swift 3602360a, "
    "swift/arguments/base_args/data_args.py:46";
constexpr std::string_view kSwiftQuant =
    "ms-swift 3602360a, swift/arguments/base_args/quant_args.py";
constexpr std::string_view kSwiftRlhf = "ms-swift 3602360a, swift/arguments/rlhf_args.py";
constexpr std::string_view kSwiftTrainer = "ms-swift 3602360a, swift/trainers/arguments.py";
constexpr std::string_view kSwiftCore =
    "ms-swift 3602360a, swift/megatron/arguments/megatron_args.py";

constexpr std::string_view kScheduler =
    "ms-swift 3602360a, swift/megatron/utils/megatron_lm_utils.py:593; Megatron-LM d98e8a64, "
    "megatron/core/optimizer_param_scheduler.py:150";

// Megatron's, and FlashAttention of a version.
bool is_attention_backend(const std::string& name) {
  const KnownOption* const known = known_options("megatron").find("--attention-backend");
  const std::string kind =
      name == "flash_2" || name == "flash_3" || name == "flash_4" ? "flash" : name;
  return known == nullptr ||
         std::find(known->choices.begin(), known->choices.end(), kind) != known->choices.end();
}

// Of ms-swift, its own and those that it registers (get_supported_tuners in base_args.py,
// tuner_plugin/mapping.py).
bool is_tuner(std::string_view name) {
  constexpr std::array<std::string_view, 14> kTuners{
      "lora", "full",      "longlora", "adalora", "llamapro", "adapter",  "vera",
      "boft", "fourierft", "reft",     "bone",    "ia3",      "lora_llm", "dummy"};
  return std::find(kTuners.begin(), kTuners.end(), name) != kTuners.end();
}

bool is_flash(const Case& c) {
  return c.word("--attn_impl").starts_with("flash_att");
}

bool denies(const Case& c, std::string_view key) {
  return c.has(key) && !c.on(key);
}

constexpr auto kSwiftTraps = std::to_array<Trap>({
    {"quantized_full", error, "--quant_method",
     [](const Case& c) { return c.is("--quant_method", "bnb") && c.is("--tuner_type", "full"); },
     "weights of 4 or 8 bits cannot be trained: the Trainer stops without adapters beside them",
     "--tuner_type lora", "transformers 5.23.0, src/transformers/trainer_utils.py:131"},
    {"refused_value", error, "--attn_impl",
     [](const Case& c) {
       const std::string name = c.word("--attn_impl");
       return name != "flash_attn" && kernel_name_of(name) == KernelName::meant;
     },
     "--attn_impl must be one of flash_attn, flash_attention_2, flash_attention_3, sdpa, eager, "
     "flex_attention",
     "flash_attn, or another of them",
     "ms-swift 3602360a, swift/model/utils.py:34; transformers 5.23.0, "
     "src/transformers/modeling_utils.py:1848"},
    {"refused_value", error, "--tuner_type",
     [](const Case& c) {
       return !c.has("--external_plugins") && !is_tuner(c.word("--tuner_type"));
     },
     "ms-swift knows no such tuner_type, and stops", "--tuner_type lora, or full",
     "ms-swift 3602360a, swift/pipelines/train/tuner.py:348"},
    {"packing_attention", error, "--packing",
     [](const Case& c) { return c.on("--packing") && !is_flash(c); },
     "packing needs FlashAttention, for samples of one sequence would attend to each other",
     "--attn_impl flash_attn, or no packing", kSwiftSft},
    {"packing_attention", error, "--padding_free",
     [](const Case& c) { return c.on("--padding_free") && !c.on("--packing") && !is_flash(c); },
     "padding_free needs FlashAttention, for samples of one sequence would attend to each other",
     "--attn_impl flash_attn, or no padding_free", kSwiftSft},
    {"options_exclude", error, "--lazy_tokenize",
     [](const Case& c) { return c.on("--lazy_tokenize") && c.on("--packing"); },
     "lazy_tokenize and packing exclude each other", "keep one of them", kSwiftBase},
    {"options_exclude", error, "--lazy_tokenize",
     [](const Case& c) { return c.on("--lazy_tokenize") && c.on("--streaming"); },
     "lazy_tokenize and streaming exclude each other", "keep one of them", kSwiftBase},
    {"option_needs", error, "--streaming",
     [](const Case& c) { return c.on("--streaming") && c.figure("--max_steps", -1) <= 0; },
     "data that is streamed has no length, and the Trainer stops without max_steps",
     "--max_steps, a whole number", kSteps},
    {"options_exclude", error, "--fsdp", [](const Case& c) { return c.has("--deepspeed"); },
     "fsdp and deepspeed exclude each other", "keep one of them", kSwiftSft},
    {"options_exclude", error, "--save_only_model",
     [](const Case& c) { return c.on("--save_only_model") && c.is("--fsdp", "fsdp2"); },
     "FSDP2 saves shards, and save_only_model does not go with them", "--save_only_model false",
     kSwiftSft},
    {"option_needs", error, "--deepspeed_autotp_size",
     [](const Case& c) { return !c.has("--deepspeed"); }, "deepspeed_autotp_size needs deepspeed",
     "--deepspeed zero0, zero1 or zero2", kSwiftSft},
    {"option_needs", error, "--deepspeed_autotp_size",
     [](const Case& c) { return c.word("--deepspeed").starts_with("zero3"); },
     "AutoTP does not run under ZeRO-3", "--deepspeed zero0, zero1 or zero2", kSwiftSft},
    {"option_needs", error, "--zero_hpz_partition_size",
     [](const Case& c) { return !c.has("--deepspeed"); }, "zero_hpz_partition_size needs deepspeed",
     "--deepspeed zero3", kSwiftSft},
    {"option_needs", error, "--quant_method",
     [](const Case& c) { return !c.is("--quant_method", "fp8") && !c.has("--quant_bits"); },
     "quant_method needs quant_bits", "--quant_bits 4", kSwiftQuant},
    {"quantized_bits", error, "--quant_bits",
     [](const Case& c) {
       const double bits = c.figure("--quant_bits", 4);
       return c.is("--quant_method", "bnb") && bits != 4 && bits != 8;
     },
     "bitsandbytes has weights of 4 and of 8 bits", "--quant_bits 4", kSwiftQuant},
    {"option_needs", warning, "--quant_bits",
     [](const Case& c) { return !c.has("--quant_method"); },
     "quant_bits does nothing without quant_method: weights stay as they are stored",
     "--quant_method bnb", kSwiftQuant},
    {"options_exclude", error, "--warmup_ratio",
     [](const Case& c) {
       return c.figure("--warmup_ratio", 0) > 0 && c.figure("--warmup_steps", 0) > 0;
     },
     "warmup_ratio and warmup_steps exclude each other", "keep one of them", kSwiftTrainer},
    {"option_needs", error, "--warmup_ratio",
     [](const Case& c) { return c.figure("--warmup_ratio", 0) >= 1; },
     "warmup_ratio is a share of the steps, below 1", "--warmup_steps", kSwiftTrainer},
    {"option_needs", error, "--use_vllm",
     [](const Case& c) {
       const bool generates = c.is("--rlhf_type", "grpo") || c.is("--rlhf_type", "gkd");
       return generates && c.on("--use_vllm") && !c.has("--vllm_mode");
     },
     "use_vllm needs a vllm_mode", "--vllm_mode colocate, or server", kSwiftRlhf},
    {"option_needs", error, "--vllm_mode", [](const Case& c) { return denies(c, "--use_vllm"); },
     "vllm_mode goes with use_vllm alone", "--use_vllm true", kSwiftRlhf},
    {"option_needs", error, "--async_generate",
     [](const Case& c) { return c.on("--async_generate") && !c.is("--vllm_mode", "server"); },
     "async_generate needs a server of vLLM's", "--vllm_mode server", kSwiftRlhf},
    {"options_exclude", error, "--ref_model",
     [](const Case& c) {
       const bool refers = c.is("--rlhf_type", "dpo") || c.is("--rlhf_type", "kto") ||
                           c.is("--rlhf_type", "grpo") || c.is("--rlhf_type", "ppo");
       const bool none = c.is("--rlhf_type", "grpo") && c.figure("--beta", 0.04) == 0;
       return c.has("--rlhf_type") && !none && (!refers || !c.is("--tuner_type", "full", "lora"));
     },
     "a reference model stands beside dpo, kto, ppo and grpo with tuner_type full alone: adapters "
     "compare with the model without them",
     "leave it out", kSwiftRlhf},
});

constexpr auto kMegatronTraps = std::to_array<Trap>({
    {"option_needs", error, "--min_lr",
     [](const Case& c) {
       const double least = c.figure("--min_lr", 0);
       return least < 0 || (c.has("--lr") && least > c.figure("--lr", least));
     },
     "min_lr lies between 0 and lr: the schedule stops the job when it is built",
     "--min_lr, smaller than --lr", kScheduler},
    {"options_exclude", warning, "--lr_warmup_iters",
     [](const Case& c) { return c.has("--lr_warmup_fraction"); },
     "lr_warmup_fraction counts, and lr_warmup_iters beside it is not read", "keep one of them",
     "ms-swift 3602360a, swift/megatron/utils/megatron_lm_utils.py:588"},
    {"option_needs", error, "--streaming",
     [](const Case& c) { return c.on("--streaming") && !c.has("--train_iters"); },
     "data that is streamed has no length, and ms-swift stops without train_iters",
     "--train_iters, a whole number",
     "ms-swift 3602360a, swift/megatron/arguments/megatron_args.py:1057"},
    {"option_needs", error, "--lr_warmup_fraction",
     [](const Case& c) { return c.figure("--lr_warmup_fraction", 0) >= 1; },
     "lr_warmup_fraction is below 1: the schedule stops the job when it is built",
     "--lr_warmup_fraction 0.05", kScheduler},
    {"option_needs", error, "--lr_warmup_iters",
     [](const Case& c) {
       const double decay = c.figure("--lr_decay_iters", c.figure("--train_iters", 0));
       return !c.has("--lr_warmup_fraction") && decay > 0 &&
              c.figure("--lr_warmup_iters", 0) >= decay;
     },
     "lr_warmup_iters is below the iterations in which the rate decays (lr_decay_iters, else "
     "train_iters): the schedule stops the job when it is built",
     "--lr_warmup_iters, fewer", kScheduler},
    {"option_needs", error, "--lr_warmup_init",
     [](const Case& c) {
       return c.has("--lr") && c.figure("--lr_warmup_init", 0) > c.figure("--lr", 1e9);
     },
     "lr_warmup_init is at most lr, where warm-up ends", "--lr_warmup_init 0", kScheduler},
    {"option_needs", error, "--lr_decay_style",
     [](const Case& c) {
       return c.is("--lr_decay_style", "wsd") && !c.has("--lr_wsd_decay_iters");
     },
     "lr_decay_style WSD needs lr_wsd_decay_iters", "--lr_wsd_decay_iters 1000", kScheduler},
    {"recompute_method", error, "--recompute_method",
     [](const Case& c) { return c.is("--recompute_granularity", "selective", "selective"); },
     "recompute_method goes with recompute_granularity full alone; selective is the default",
     "--recompute_granularity full", kSwiftCore},
    {"refused_value", error, "--attention_backend",
     [](const Case& c) { return !is_attention_backend(c.word("--attention_backend", "flash")); },
     "Megatron-Core has no such attention_backend",
     "--attention_backend flash, fused, unfused, local or auto", kSwiftCore},
    {"options_exclude", error, "--group_by_length",
     [](const Case& c) { return c.on("--group_by_length") && !denies(c, "--padding_free"); },
     "group_by_length and padding_free, which is on unless said, exclude each other",
     "--padding_free false", kSwiftCore},
    {"uneven_stages", error, "--decoder_first_pipeline_num_layers",
     [](const Case& c) { return c.figure("--pipeline_model_parallel_size", 1) <= 1; },
     "the first of one stage has all layers", "leave it out, or more stages", kSwiftCore},
    {"uneven_stages", error, "--decoder_last_pipeline_num_layers",
     [](const Case& c) { return c.figure("--pipeline_model_parallel_size", 1) <= 1; },
     "the last of one stage has all layers", "leave it out, or more stages", kSwiftCore},
    {"options_exclude", error, "--async_save",
     [](const Case& c) { return c.on("--async_save") && c.has("--save_total_limit"); },
     "async_save and save_total_limit exclude each other", "keep one of them", kSwiftCore},
    {"option_needs", error, "--save_total_limit",
     [](const Case& c) { return c.figure("--save_total_limit", 2) < 2; },
     "save_total_limit is 2 at least", "--save_total_limit 2", kSwiftCore},
    {"option_needs", error, "--tuner_type",
     [](const Case& c) { return c.is("--tuner_type", "lora_llm") && !c.on("--no_save_optim"); },
     "lora_llm needs no_save_optim", "--no_save_optim true", kSwiftCore},
    {"option_needs", error, "--tuner_type",
     [](const Case& c) {
       return c.is("--tuner_type", "lora_llm") &&
              (denies(c, "--merge_lora") || denies(c, "--save_safetensors"));
     },
     "lora_llm needs merge_lora", "--merge_lora true", kSwiftCore},
    {"option_needs", error, "--bridge_backend",
     [](const Case& c) {
       return c.is("--bridge_backend", "megatron-bridge") && !c.is("--tuner_type", "full", "full");
     },
     "bridge_backend megatron-bridge has no adapters", "--bridge_backend mcore-bridge", kSwiftCore},
    {"options_exclude", error, "--freeze_parameters_ratio",
     [](const Case& c) {
       const double ratio = c.figure("--freeze_parameters_ratio", 0);
       return ratio > 0 && ratio < 1 && c.figure("--pipeline_model_parallel_size", 1) > 1;
     },
     "freeze_parameters_ratio does not go with pipeline stages", "--freeze_parameters", kSwiftCore},
    {"option_needs", error, "--tp_comm_overlap",
     [](const Case& c) { return c.on("--tp_comm_overlap") && !c.on("--sequence_parallel"); },
     "tp_comm_overlap needs sequence_parallel", "--sequence_parallel true", kSwiftCore},
    {"option_needs", error, "--use_megatron_fsdp",
     [](const Case& c) {
       return c.on("--use_megatron_fsdp") &&
              c.word("--optimizer").find("muon") != std::string::npos;
     },
     "Megatron-FSDP has Adam and SGD, not muon", "--optimizer adam", kSwiftCore},
    {"options_exclude", error, "--optimizer",
     [](const Case& c) {
       return c.is("--optimizer", "muon") &&
              (c.on("--overlap_grad_reduce") || c.on("--overlap_param_gather"));
     },
     "muon does not go with overlap_grad_reduce and overlap_param_gather", "--optimizer dist_muon",
     kSwiftCore},
    {"option_needs", error, "--num_iterations",
     [](const Case& c) {
       return c.is("--rlhf_type", "grpo") && c.figure("--num_iterations", 1) > 1;
     },
     "the Megatron form of grpo has one iteration a batch", "--num_iterations 1", kSwiftCore},
    {"option_needs", error, "--use_vllm",
     [](const Case& c) {
       return c.is("--rlhf_type", "grpo") && denies(c, "--use_vllm") && !c.on("--use_ray");
     },
     "the Megatron form of grpo generates by vLLM alone", "--use_vllm true", kSwiftCore},
    {"option_needs", error, "--use_ray",
     [](const Case& c) {
       // A YAML that says so may be the one.
       const bool of_command = c.part.settings.find("--use_ray")->syntax == Syntax::words;
       return of_command && c.on("--use_ray") && !c.has("--config") && c.part.open_word.empty();
     },
     "Ray's form of the command takes all of it from a YAML, and stops without one",
     "--config x.yaml", "ms-swift 3602360a, swift/ray/megatron/pipeline.py:402"},
    {"option_needs", error, "--truncation_strategy",
     [](const Case& c) {
       return c.is("--rlhf_type", "grpo") && !c.is("--truncation_strategy", "left") &&
              !c.is("--truncation_strategy", "delete");
     },
     "grpo truncates on the left, or deletes", "--truncation_strategy left", kSwiftCore},
    {"option_needs", error, "--teacher_model_server",
     [](const Case& c) { return c.is("--rlhf_type", "gkd") && !c.has("--gkd_logits_topk"); },
     "a teacher_model_server sends the likeliest tokens alone: gkd_logits_topk says how many",
     "--gkd_logits_topk 64", kSwiftCore},
});

}  // namespace

std::span<const Trap> swift_traps() {
  return kSwiftTraps;
}

std::span<const Trap> swift_megatron_traps() {
  return kMegatronTraps;
}

}  // namespace qplan
