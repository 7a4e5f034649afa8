// What LLaMA-Factory and axolotl refuse of their own YAML and ms-swift of its arguments, and what
// it costs where they do not.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

struct Case {
  const Scene& scene;
  const ConfigPart& part;
  [[nodiscard]] bool has(std::string_view key) const { return part.settings.has(key); }
  [[nodiscard]] bool on(std::string_view key) const { return is_switched_on(part.settings, key); }
  [[nodiscard]] std::string word(std::string_view key, std::string_view otherwise = "") const {
    return word_of(part.settings, key, otherwise);
  }
  [[nodiscard]] double figure(std::string_view key, double otherwise) const {
    return figure_of(part.settings, key, otherwise);
  }
  [[nodiscard]] bool is(std::string_view key, std::string_view value,
                        std::string_view otherwise = "") const {
    return word(key, otherwise) == value;
  }
  // ZeRO-3 of a ds_config.json, or FSDP.
  [[nodiscard]] bool zero3() const {
    return scene.files.find(Dialect::ds_config) != nullptr && scene.draft.plan.zero == 3;
  }
  [[nodiscard]] bool fsdp() const {
    const ConfigPart* const yaml = scene.files.find(Dialect::accelerate);
    const Setting* const type = yaml == nullptr ? nullptr : yaml->settings.find("distributed_type");
    const bool by_yaml = type != nullptr && text_of(type->value) == "FSDP";
    return by_yaml || (part.dialect == Dialect::llama_factory && on("fsdp"));
  }
  // Of several GPUs.
  [[nodiscard]] bool distributed() const { return scene.question.limits.gpus > 1; }
};

struct Trap {
  Dialect dialect;
  std::string_view rule;
  Severity severity;
  std::string_view at;  // the key whose line is shown; nothing springs where it is not said
  bool (*springs)(const Case&);
  std::string_view message, instead, source;
};

constexpr auto kFactory = Dialect::llama_factory;
constexpr auto kAxolotl = Dialect::axolotl;
constexpr std::string_view kParser = "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py";
constexpr std::string_view kMethod =
    "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/finetuning_args.py";
constexpr std::string_view kData = "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/data_args.py";
constexpr std::string_view kQuantization =
    "LLaMA-Factory ff6d4d12, src/llamafactory/model/model_utils/quantization.py";
constexpr std::string_view kValidation =
    "axolotl 067b021c, src/axolotl/utils/schemas/validation.py";
constexpr std::string_view kPeft = "axolotl 067b021c, src/axolotl/utils/schemas/peft.py";

constexpr auto kSwift = Dialect::ms_swift;
constexpr auto kSwiftMegatron = Dialect::ms_swift_megatron;
constexpr auto kTrl = Dialect::trl;
constexpr std::string_view kTrlSft = "TRL f2cd5771, trl/trainer/sft_trainer.py";
constexpr std::string_view kTrlGrpo = "TRL f2cd5771, trl/trainer/grpo_config.py";
constexpr auto kNemo = Dialect::automodel;
constexpr std::string_view kNemoDist =
    "NeMo-AutoModel 36044ad3, nemo_automodel/recipes/_dist_utils.py";
constexpr std::string_view kNemoMesh =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/distributed/mesh_utils.py";
constexpr std::string_view kNemoPeft =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/_peft/module_matcher.py";
constexpr std::string_view kNemoPipe =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/distributed/pipelining/autopipeline.py";
constexpr std::string_view kNemoTrain =
    "NeMo-AutoModel 36044ad3, nemo_automodel/recipes/llm/train_ft.py";
constexpr std::string_view kSwiftSft = "ms-swift 3602360a, swift/arguments/sft_args.py";
constexpr std::string_view kSwiftBase = "ms-swift 3602360a, swift/arguments/base_args/base_args.py";
constexpr std::string_view kSwiftQuant =
    "ms-swift 3602360a, swift/arguments/base_args/quant_args.py";
constexpr std::string_view kSwiftRlhf = "ms-swift 3602360a, swift/arguments/rlhf_args.py";
constexpr std::string_view kSwiftTrainer = "ms-swift 3602360a, swift/trainers/arguments.py";
constexpr std::string_view kSwiftCore =
    "ms-swift 3602360a, swift/megatron/arguments/megatron_args.py";

bool is_megatron_fsdp(const Case& c) {
  return c.is("distributed.strategy", "megatron_fsdp") ||
         c.is("distributed.strategy", "megatron-fsdp") || c.is("distributed.strategy", "mfsdp");
}

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

bool is_lora(const Case& c) {
  return c.is("finetuning_type", "lora", "lora");
}

bool is_full(const Case& c) {
  return c.is("finetuning_type", "full", "lora") || c.is("finetuning_type", "freeze", "lora");
}

bool is_sft(const Case& c) {
  return c.is("stage", "sft", "sft");
}

constexpr auto kTraps = std::to_array<Trap>({
    // ---- LLaMA-Factory ----
    {kFactory, "quantized_full", error, "quantization_bit", is_full,
     "weights of 4 or 8 bits cannot be trained: LLaMA-Factory takes them for lora and oft alone",
     "finetuning_type: lora, or leave quantization_bit out", kParser},
    {kFactory, "quantized_bits", error, "quantization_bit",
     [](const Case& c) {
       const double bits = c.figure("quantization_bit", 4);
       return quantizer_of(c.part.settings) == "bnb" && bits != 4 && bits != 8;
     },
     "bitsandbytes has weights of 4 and of 8 bits", "quantization_bit: 4", kQuantization},
    {kFactory, "quantized_shards", error, "quantization_bit",
     [](const Case& c) {
       const bool four = quantizer_of(c.part.settings) == "bnb" && c.figure("quantization_bit", 4) == 4;
       return !four && (c.zero3() || c.fsdp());
     },
     "ZeRO-3 and FSDP shard weights of bitsandbytes' 4 bits and no others that are quantised",
     "quantization_bit: 4 with quantization_method: bnb, or ZeRO-2", kQuantization},
    {kFactory, "quantized_shards", error, "model_name_or_path",
     [](const Case& c) {
       return is_quantized_checkpoint(c.word("model_name_or_path")) && (c.zero3() || c.fsdp());
     },
     "ZeRO-3 and FSDP do not shard a checkpoint that is quantised already",
     "the checkpoint in 16 bits with quantization_bit: 4, or ZeRO-2", kQuantization},
    {kFactory, "fp8_of_quantized", error, "fp8",
     [](const Case& c) { return c.on("fp8") && c.has("quantization_bit"); },
     "fp8 and quantization_bit exclude each other", "keep one of them", kParser},
    {kFactory, "lora_word_without_lora", error, "adapter_name_or_path",
     [](const Case& c) { return !is_lora(c); }, "adapters are read for finetuning_type lora alone",
     "leave it out", kParser},
    {kFactory, "lora_word_without_lora", error, "use_dora",
     [](const Case& c) { return c.on("use_dora") && !is_lora(c); },
     "use_dora goes with finetuning_type lora alone", "leave it out", kMethod},
    {kFactory, "lora_word_without_lora", error, "use_rslora",
     [](const Case& c) { return c.on("use_rslora") && !is_lora(c); },
     "use_rslora goes with finetuning_type lora alone", "leave it out", kMethod},
    {kFactory, "lora_word_without_lora", error, "loraplus_lr_ratio",
     [](const Case& c) { return !is_lora(c); },
     "loraplus_lr_ratio goes with finetuning_type lora alone", "leave it out", kMethod},
    {kFactory, "lora_word_without_lora", error, "pissa_init",
     [](const Case& c) { return c.on("pissa_init") && !is_lora(c); },
     "pissa_init goes with finetuning_type lora alone", "leave it out", kMethod},
    {kFactory, "projected_optimizer", error, "finetuning_type",
     [](const Case& c) {
       return is_lora(c) && (c.on("use_galore") || c.on("use_apollo") || c.on("use_badam"));
     },
     "GaLore, APOLLO and BAdam train whole weights, and lora none", "finetuning_type: full", kMethod},
    {kFactory, "projected_optimizer", error, "deepspeed",
     [](const Case& c) { return c.on("use_galore") || c.on("use_apollo"); },
     "GaLore and APOLLO do not run under DeepSpeed", "leave deepspeed out", kParser},
    {kFactory, "projected_optimizer", error, "use_badam",
     [](const Case& c) {
       return c.on("use_badam") && c.distributed() && (c.is("badam_mode", "ratio") || !c.zero3());
     },
     "on several GPUs BAdam goes layer by layer and under ZeRO-3 alone",
     "badam_mode: layer with a ZeRO-3 ds_config.json, or one GPU", kParser},
    {kFactory, "pure_bf16_zero3", error, "pure_bf16",
     [](const Case& c) { return c.on("pure_bf16") && c.zero3(); },
     "pure_bf16 and ZeRO-3 exclude each other", "bf16: true", kParser},
    {kFactory, "unsloth_zero3", error, "use_unsloth",
     [](const Case& c) { return c.on("use_unsloth") && c.zero3(); },
     "Unsloth does not run under ZeRO-3", "ZeRO-2, or leave use_unsloth out", kParser},
    {kFactory, "packing_stage", error, "neat_packing",
     [](const Case& c) { return c.on("neat_packing") && !is_sft(c); },
     "neat_packing is for stage sft alone", "leave it out", kParser},
    {kFactory, "option_needs", error, "train_on_prompt",
     [](const Case& c) { return c.on("train_on_prompt") && !is_sft(c); },
     "train_on_prompt is for stage sft alone", "leave it out", kParser},
    {kFactory, "option_needs", error, "mask_history",
     [](const Case& c) { return c.on("mask_history") && !is_sft(c); },
     "mask_history is for stage sft alone", "leave it out", kParser},
    {kFactory, "options_exclude", error, "mask_history",
     [](const Case& c) { return c.on("mask_history") && c.on("train_on_prompt"); },
     "mask_history and train_on_prompt exclude each other", "keep one of them", kData},
    {kFactory, "option_needs", error, "predict_with_generate",
     [](const Case& c) { return c.on("predict_with_generate") && !is_sft(c); },
     "predict_with_generate is for stage sft alone", "leave it out", kParser},
    {kFactory, "options_exclude", error, "predict_with_generate",
     [](const Case& c) { return c.on("predict_with_generate") && c.zero3(); },
     "predict_with_generate does not run under ZeRO-3", "leave it out, or ZeRO-2", kParser},
    {kFactory, "option_needs", error, "stage",
     [](const Case& c) { return c.is("stage", "ppo") && !c.has("reward_model"); },
     "stage ppo needs a reward_model", "reward_model: the path of one", kMethod},
    {kFactory, "option_needs", error, "stage",
     [](const Case& c) {
       return c.is("stage", "ppo") && is_full(c) && c.is("reward_model_type", "lora", "lora");
     },
     "a reward model of type lora, the default, goes with finetuning_type lora alone",
     "reward_model_type: full", kMethod},
    {kFactory, "options_exclude", error, "val_size",
     [](const Case& c) { return c.figure("val_size", 0) > 1e-6 && c.has("eval_dataset"); },
     "val_size and eval_dataset exclude each other", "keep one of them", kData},
    {kFactory, "options_exclude", error, "max_samples",
     [](const Case& c) { return c.on("streaming"); }, "streaming takes no max_samples",
     "max_steps in its place", kData},
    {kFactory, "option_needs", error, "streaming",
     [](const Case& c) { return c.on("streaming") && c.figure("max_steps", -1) <= 0; },
     "streaming needs max_steps: nobody knows how long the data is", "max_steps: a number", kParser},
    {kFactory, "option_needs", error, "interleave_probs",
     [](const Case& c) { return c.is("mix_strategy", "concat", "concat"); },
     "interleave_probs needs a mix_strategy that interleaves", "mix_strategy: interleave_over",
     kData},
    {kFactory, "option_needs", error, "do_train",
     [](const Case& c) { return c.on("do_train") && !c.has("dataset") && !c.has("tokenized_path"); },
     "do_train needs a dataset", "dataset: a name of dataset_info.json", kParser},
    {kFactory, "no_mixed_precision", warning, "do_train",
     [](const Case& c) {
       return c.on("do_train") && !c.on("bf16") && !c.on("fp16") && !c.on("pure_bf16");
     },
     "neither bf16 nor fp16 is on: products run in fp32, many times slower", "bf16: true", kParser},

    // ---- axolotl ----
    {kAxolotl, "quantized_full", error, "load_in_4bit",
     [](const Case& c) { return c.on("load_in_4bit") && !c.has("adapter"); },
     "weights of 4 bits cannot be trained: axolotl wants an adapter beside them",
     "adapter: qlora, or load_in_4bit: false", kPeft},
    {kAxolotl, "quantized_full", error, "load_in_8bit",
     [](const Case& c) { return c.on("load_in_8bit") && !c.has("adapter"); },
     "weights of 8 bits cannot be trained: axolotl wants an adapter beside them",
     "adapter: lora, or load_in_8bit: false", kPeft},
    {kAxolotl, "quantized_bits", error, "adapter",
     [](const Case& c) { return c.is("adapter", "qlora") && c.on("load_in_8bit"); },
     "adapter qlora takes weights of 4 bits, not of 8", "adapter: lora", kPeft},
    {kAxolotl, "quantized_bits", error, "adapter",
     [](const Case& c) { return c.is("adapter", "qlora") && c.on("gptq"); },
     "adapter qlora takes weights of bitsandbytes, not of GPTQ", "adapter: lora", kPeft},
    {kAxolotl, "quantized_bits", error, "adapter",
     [](const Case& c) {
       return c.is("adapter", "qlora") && !c.on("load_in_4bit") && !c.on("load_in_8bit") &&
              !c.on("gptq") && !c.on("merge_lora");
     },
     "adapter qlora needs load_in_4bit", "load_in_4bit: true, or adapter: lora", kPeft},
    {kAxolotl, "options_exclude", error, "deepspeed",
     [](const Case& c) { return c.on("deepspeed") && c.on("fsdp"); },
     "deepspeed and fsdp exclude each other", "keep one of them", kValidation},
    {kAxolotl, "packing_stage", error, "sample_packing",
     [](const Case& c) { return c.on("sample_packing") && c.on("rl"); },
     "sample_packing does not go with rl", "sample_packing: false", kValidation},
    {kAxolotl, "option_needs", error, "rl",
     [](const Case& c) {
       return c.is("rl", "kto") && (!c.has("remove_unused_columns") || c.on("remove_unused_columns"));
     },
     "kto needs remove_unused_columns: false", "remove_unused_columns: false", kValidation},
    {kAxolotl, "batch_left_open", error, "base_model",
     [](const Case& c) {
       return c.on("micro_batch_size") + c.on("gradient_accumulation_steps") + c.on("batch_size") < 2;
     },
     "axolotl wants two of micro_batch_size, gradient_accumulation_steps and batch_size",
     "micro_batch_size and gradient_accumulation_steps", kValidation},
    {kAxolotl, "options_exclude", error, "batch_size",
     [](const Case& c) { return c.on("batch_size") && c.on("gradient_accumulation_steps"); },
     "batch_size and gradient_accumulation_steps exclude each other", "leave batch_size out",
     kValidation},
    {kAxolotl, "options_exclude", error, "warmup_ratio",
     [](const Case& c) { return c.on("warmup_steps") && c.figure("warmup_ratio", 0) > 0; },
     "warmup_ratio and warmup_steps exclude each other", "keep one of them", kValidation},
    {kAxolotl, "options_exclude", error, "saves_per_epoch",
     [](const Case& c) { return c.on("saves_per_epoch") && c.on("save_steps"); },
     "saves_per_epoch and save_steps exclude each other", "keep one of them", kValidation},
    {kAxolotl, "options_exclude", error, "evals_per_epoch",
     [](const Case& c) { return c.on("evals_per_epoch") && c.on("eval_steps"); },
     "evals_per_epoch and eval_steps exclude each other", "keep one of them", kValidation},
    {kAxolotl, "options_exclude", error, "val_set_size",
     [](const Case& c) {
       return c.figure("val_set_size", 0) > 0 &&
              (c.has("test_datasets") || c.part.settings.has_section("test_datasets."));
     },
     "val_set_size and test_datasets exclude each other", "val_set_size: 0", kValidation},
    {kAxolotl, "narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool second = c.is("fsdp_version", "2") || c.is("fsdp_config.fsdp_version", "2") ||
                           c.is("fsdp_config.version", "2");
       return c.part.settings.has_section("fsdp_config.") && second &&
              (c.is("optimizer", "adamw_8bit") || c.is("optimizer", "adamw_bnb_8bit"));
     },
     "bitsandbytes' 8-bit Adam does not run under FSDP2", "optimizer: adamw_torch_8bit", kValidation},
    {kAxolotl, "narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool offloads =
           c.on("fsdp_config.offload_params") || c.on("fsdp_config.fsdp_offload_params");
       const bool second = c.is("fsdp_version", "2") || c.is("fsdp_config.fsdp_version", "2") ||
                           c.is("fsdp_config.version", "2");
       return offloads && !second && c.word("optimizer").find("8bit") != std::string::npos;
     },
     "an 8-bit optimizer does not run where FSDP1 offloads parameters", "optimizer: adamw_torch",
     kValidation},
    {kAxolotl, "option_needs", error, "pretraining_dataset",
     [](const Case& c) { return !c.on("max_steps"); },
     "pretraining_dataset needs max_steps: nobody knows how long the data is",
     "max_steps: a number", kValidation},
    {kAxolotl, "option_needs", error, "activation_offloading",
     [](const Case& c) { return c.on("activation_offloading") && !c.on("gradient_checkpointing"); },
     "activation_offloading needs gradient_checkpointing", "gradient_checkpointing: true",
     kValidation},
    {kAxolotl, "option_needs", error, "context_parallel_size",
     [](const Case& c) {
       return c.figure("context_parallel_size", 1) > 1 && c.on("sample_packing") &&
              c.figure("micro_batch_size", 1) > 1;
     },
     "context parallelism of packed samples takes one of them at a time", "micro_batch_size: 1",
     kValidation},
    {kAxolotl, "options_exclude", error, "batch_flattening",
     [](const Case& c) { return c.on("batch_flattening") && c.on("sample_packing"); },
     "batch_flattening and sample_packing exclude each other", "keep one of them", kValidation},
    {kAxolotl, "option_needs", error, "chat_template",
     [](const Case& c) { return c.is("chat_template", "jinja") && !c.has("chat_template_jinja"); },
     "chat_template jinja needs chat_template_jinja", "chat_template_jinja: the template",
     kValidation},

    // ---- swift sft ----
    {kSwift, "refused_value", error, "--tuner_type",
     [](const Case& c) { return !c.has("--external_plugins") && !is_tuner(c.word("--tuner_type")); },
     "ms-swift knows no such tuner_type, and stops", "--tuner_type lora, or full",
     "ms-swift 3602360a, swift/pipelines/train/tuner.py:348"},
    {kSwift, "packing_attention", error, "--packing",
     [](const Case& c) { return c.on("--packing") && !is_flash(c); },
     "packing needs FlashAttention, for samples of one sequence would attend to each other",
     "--attn_impl flash_attn, or no packing", kSwiftSft},
    {kSwift, "packing_attention", error, "--padding_free",
     [](const Case& c) { return c.on("--padding_free") && !c.on("--packing") && !is_flash(c); },
     "padding_free needs FlashAttention, for samples of one sequence would attend to each other",
     "--attn_impl flash_attn, or no padding_free", kSwiftSft},
    {kSwift, "options_exclude", error, "--lazy_tokenize",
     [](const Case& c) { return c.on("--lazy_tokenize") && c.on("--packing"); },
     "lazy_tokenize and packing exclude each other", "keep one of them", kSwiftBase},
    {kSwift, "options_exclude", error, "--lazy_tokenize",
     [](const Case& c) { return c.on("--lazy_tokenize") && c.on("--streaming"); },
     "lazy_tokenize and streaming exclude each other", "keep one of them", kSwiftBase},
    {kSwift, "options_exclude", error, "--fsdp", [](const Case& c) { return c.has("--deepspeed"); },
     "fsdp and deepspeed exclude each other", "keep one of them", kSwiftSft},
    {kSwift, "options_exclude", error, "--save_only_model",
     [](const Case& c) { return c.on("--save_only_model") && c.is("--fsdp", "fsdp2"); },
     "FSDP2 saves shards, and save_only_model does not go with them", "--save_only_model false",
     kSwiftSft},
    {kSwift, "option_needs", error, "--deepspeed_autotp_size",
     [](const Case& c) { return !c.has("--deepspeed"); },
     "deepspeed_autotp_size needs deepspeed", "--deepspeed zero0, zero1 or zero2", kSwiftSft},
    {kSwift, "option_needs", error, "--deepspeed_autotp_size",
     [](const Case& c) { return c.word("--deepspeed").starts_with("zero3"); },
     "AutoTP does not run under ZeRO-3", "--deepspeed zero0, zero1 or zero2", kSwiftSft},
    {kSwift, "option_needs", error, "--zero_hpz_partition_size",
     [](const Case& c) { return !c.has("--deepspeed"); },
     "zero_hpz_partition_size needs deepspeed", "--deepspeed zero3", kSwiftSft},
    {kSwift, "option_needs", error, "--quant_method",
     [](const Case& c) { return !c.is("--quant_method", "fp8") && !c.has("--quant_bits"); },
     "quant_method needs quant_bits", "--quant_bits 4", kSwiftQuant},
    {kSwift, "quantized_bits", error, "--quant_bits",
     [](const Case& c) {
       const double bits = c.figure("--quant_bits", 4);
       return c.is("--quant_method", "bnb") && bits != 4 && bits != 8;
     },
     "bitsandbytes has weights of 4 and of 8 bits", "--quant_bits 4", kSwiftQuant},
    {kSwift, "option_needs", warning, "--quant_bits",
     [](const Case& c) { return !c.has("--quant_method"); },
     "quant_bits does nothing without quant_method: weights stay as they are stored",
     "--quant_method bnb", kSwiftQuant},
    {kSwift, "options_exclude", error, "--warmup_ratio",
     [](const Case& c) {
       return c.figure("--warmup_ratio", 0) > 0 && c.figure("--warmup_steps", 0) > 0;
     },
     "warmup_ratio and warmup_steps exclude each other", "keep one of them", kSwiftTrainer},
    {kSwift, "option_needs", error, "--warmup_ratio",
     [](const Case& c) { return c.figure("--warmup_ratio", 0) >= 1; },
     "warmup_ratio is a share of the steps, below 1", "--warmup_steps", kSwiftTrainer},
    {kSwift, "option_needs", error, "--use_vllm",
     [](const Case& c) {
       const bool generates = c.is("--rlhf_type", "grpo") || c.is("--rlhf_type", "gkd");
       return generates && c.on("--use_vllm") && !c.has("--vllm_mode");
     },
     "use_vllm needs a vllm_mode", "--vllm_mode colocate, or server", kSwiftRlhf},
    {kSwift, "option_needs", error, "--vllm_mode",
     [](const Case& c) { return denies(c, "--use_vllm"); },
     "vllm_mode goes with use_vllm alone", "--use_vllm true", kSwiftRlhf},
    {kSwift, "option_needs", error, "--async_generate",
     [](const Case& c) { return c.on("--async_generate") && !c.is("--vllm_mode", "server"); },
     "async_generate needs a server of vLLM's", "--vllm_mode server", kSwiftRlhf},
    {kSwift, "options_exclude", error, "--ref_model",
     [](const Case& c) {
       const bool refers = c.is("--rlhf_type", "dpo") || c.is("--rlhf_type", "kto") ||
                           c.is("--rlhf_type", "grpo") || c.is("--rlhf_type", "ppo");
       const bool none = c.is("--rlhf_type", "grpo") && c.figure("--beta", 0.04) == 0;
       return c.has("--rlhf_type") && !none && (!refers || !c.is("--tuner_type", "full", "lora"));
     },
     "a reference model stands beside dpo, kto, ppo and grpo with tuner_type full alone: adapters "
     "compare with the model without them",
     "leave it out", kSwiftRlhf},

    // ---- megatron sft ----
    {kSwiftMegatron, "recompute_method", error, "--recompute_method",
     [](const Case& c) { return c.is("--recompute_granularity", "selective", "selective"); },
     "recompute_method goes with recompute_granularity full alone; selective is the default",
     "--recompute_granularity full", kSwiftCore},
    {kSwiftMegatron, "refused_value", error, "--attention_backend",
     [](const Case& c) { return !is_attention_backend(c.word("--attention_backend", "flash")); },
     "Megatron-Core has no such attention_backend",
     "--attention_backend flash, fused, unfused, local or auto", kSwiftCore},
    {kSwiftMegatron, "options_exclude", error, "--group_by_length",
     [](const Case& c) { return c.on("--group_by_length") && !denies(c, "--padding_free"); },
     "group_by_length and padding_free, which is on unless said, exclude each other",
     "--padding_free false", kSwiftCore},
    {kSwiftMegatron, "uneven_stages", error, "--decoder_first_pipeline_num_layers",
     [](const Case& c) { return c.figure("--pipeline_model_parallel_size", 1) <= 1; },
     "the first of one stage has all layers", "leave it out, or more stages", kSwiftCore},
    {kSwiftMegatron, "uneven_stages", error, "--decoder_last_pipeline_num_layers",
     [](const Case& c) { return c.figure("--pipeline_model_parallel_size", 1) <= 1; },
     "the last of one stage has all layers", "leave it out, or more stages", kSwiftCore},
    {kSwiftMegatron, "options_exclude", error, "--async_save",
     [](const Case& c) { return c.on("--async_save") && c.has("--save_total_limit"); },
     "async_save and save_total_limit exclude each other", "keep one of them", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--save_total_limit",
     [](const Case& c) { return c.figure("--save_total_limit", 2) < 2; },
     "save_total_limit is 2 at least", "--save_total_limit 2", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--tuner_type",
     [](const Case& c) { return c.is("--tuner_type", "lora_llm") && !c.on("--no_save_optim"); },
     "lora_llm needs no_save_optim", "--no_save_optim true", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--tuner_type",
     [](const Case& c) {
       return c.is("--tuner_type", "lora_llm") &&
              (denies(c, "--merge_lora") || denies(c, "--save_safetensors"));
     },
     "lora_llm needs merge_lora", "--merge_lora true", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--bridge_backend",
     [](const Case& c) {
       return c.is("--bridge_backend", "megatron-bridge") && !c.is("--tuner_type", "full", "full");
     },
     "bridge_backend megatron-bridge has no adapters", "--bridge_backend mcore-bridge", kSwiftCore},
    {kSwiftMegatron, "options_exclude", error, "--freeze_parameters_ratio",
     [](const Case& c) {
       const double ratio = c.figure("--freeze_parameters_ratio", 0);
       return ratio > 0 && ratio < 1 && c.figure("--pipeline_model_parallel_size", 1) > 1;
     },
     "freeze_parameters_ratio does not go with pipeline stages", "--freeze_parameters", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--tp_comm_overlap",
     [](const Case& c) { return c.on("--tp_comm_overlap") && !c.on("--sequence_parallel"); },
     "tp_comm_overlap needs sequence_parallel", "--sequence_parallel true", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--use_megatron_fsdp",
     [](const Case& c) {
       return c.on("--use_megatron_fsdp") && c.word("--optimizer").find("muon") != std::string::npos;
     },
     "Megatron-FSDP has Adam and SGD, not muon", "--optimizer adam", kSwiftCore},
    {kSwiftMegatron, "options_exclude", error, "--optimizer",
     [](const Case& c) {
       return c.is("--optimizer", "muon") &&
              (c.on("--overlap_grad_reduce") || c.on("--overlap_param_gather"));
     },
     "muon does not go with overlap_grad_reduce and overlap_param_gather",
     "--optimizer dist_muon", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--num_iterations",
     [](const Case& c) {
       return c.is("--rlhf_type", "grpo") && c.figure("--num_iterations", 1) > 1;
     },
     "the Megatron form of grpo has one iteration a batch", "--num_iterations 1", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--use_vllm",
     [](const Case& c) {
       return c.is("--rlhf_type", "grpo") && denies(c, "--use_vllm") && !c.on("--use_ray");
     },
     "the Megatron form of grpo generates by vLLM alone", "--use_vllm true", kSwiftCore},
    {kSwiftMegatron, "option_needs", error, "--truncation_strategy",
     [](const Case& c) {
       return c.is("--rlhf_type", "grpo") && !c.is("--truncation_strategy", "left") &&
              !c.is("--truncation_strategy", "delete");
     },
     "grpo truncates on the left, or deletes", "--truncation_strategy left", kSwiftCore},
    // ---- trl sft ----
    {kTrl, "option_needs", error, "--padding_free",
     [](const Case& c) {
       return c.on("--padding_free") && !c.on("--packing") && c.is("verb", "sft", "sft") &&
              !c.is("--max_length", "none", "1024");
     },
     "padding_free without packing does not cut samples to max_length, whose default is 1024",
     "--packing true", kTrlSft},
    {kTrl, "packing_attention", warning, "--packing",
     [](const Case& c) {
       const std::string kernels = c.word("--attn_implementation");
       return c.on("--packing") && kernels.find("flash") == std::string::npos &&
              c.is("--packing_strategy", "bfd", "bfd");
     },
     "samples that are packed attend to each other without FlashAttention",
     "--attn_implementation flash_attention_2", kTrlSft},
    {kTrl, "options_exclude", error, "--auto_find_batch_size",
     [](const Case& c) { return c.on("--auto_find_batch_size") && c.is("verb", "grpo"); },
     "grpo's batch holds whole groups of answers, which auto_find_batch_size would split",
     "--per_device_train_batch_size, smaller", kTrlGrpo},
    {kTrl, "option_needs", error, "--log_completions_hub_repo",
     [](const Case& c) { return !c.on("--log_completions"); },
     "log_completions_hub_repo needs log_completions", "--log_completions true", kTrlGrpo},

    // ---- NeMo AutoModel ----
    {kNemo, "option_needs", error, "distributed.pp_size",
     [](const Case& c) {
       return c.figure("distributed.pp_size", 1) > 1 && !c.has("distributed.pipeline") &&
              !c.part.settings.has_section("distributed.pipeline.");
     },
     "pp_size above 1 needs a block distributed.pipeline, which says schedule and microbatch",
     "pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 1}", kNemoDist},
    {kNemo, "idle_option", note, "distributed.pipeline.pp_schedule",
     [](const Case& c) { return c.figure("distributed.pp_size", 1) <= 1; },
     "distributed.pipeline does nothing with one stage", "pp_size above 1", kNemoDist},
    {kNemo, "strategy_degrees", error, "distributed.pp_size",
     [](const Case& c) {
       return c.figure("distributed.pp_size", 1) > 1 &&
              (is_megatron_fsdp(c) || c.is("distributed.strategy", "ddp"));
     },
     "Megatron-FSDP and DDP have no pipeline stages", "strategy: fsdp2", kNemoMesh},
    {kNemo, "strategy_degrees", error, "distributed.ep_size",
     [](const Case& c) {
       return c.figure("distributed.ep_size", 1) > 1 &&
              (is_megatron_fsdp(c) || c.is("distributed.strategy", "ddp"));
     },
     "Megatron-FSDP and DDP have no expert parallelism", "strategy: fsdp2", kNemoMesh},
    {kNemo, "strategy_degrees", error, "distributed.dp_replicate_size",
     [](const Case& c) {
       return c.figure("distributed.dp_replicate_size", 1) > 1 &&
              (is_megatron_fsdp(c) || c.is("distributed.strategy", "ddp"));
     },
     "dp_replicate_size goes with FSDP2 alone", "strategy: fsdp2", kNemoMesh},
    {kNemo, "strategy_degrees", error, "distributed.tp_size",
     [](const Case& c) {
       return c.figure("distributed.tp_size", 1) > 1 && c.is("distributed.strategy", "ddp");
     },
     "DDP has no tensor parallelism", "strategy: fsdp2", kNemoMesh},
    {kNemo, "strategy_degrees", error, "distributed.cp_size",
     [](const Case& c) {
       return c.figure("distributed.cp_size", 1) > 1 && c.is("distributed.strategy", "ddp");
     },
     "DDP has no context parallelism", "strategy: fsdp2", kNemoMesh},
    {kNemo, "option_needs", error, "distributed.activation_checkpointing",
     [](const Case& c) {
       return c.is("distributed.activation_checkpointing", "selective") && is_megatron_fsdp(c);
     },
     "selective checkpointing goes with FSDP2 and DDP alone", "activation_checkpointing: true",
     kNemoDist},
    {kNemo, "replicas", error, "distributed.dp_replicate_size",
     [](const Case& c) {
       const double copies = c.figure("distributed.dp_replicate_size", 1);
       const double all = c.figure("distributed.dp_size", 0);
       return copies > 1 && all > 0 && (copies >= all || std::fmod(all, copies) != 0);
     },
     "dp_size is a multiple of dp_replicate_size, and larger: FSDP2 has no copies alone",
     "dp_replicate_size: the copies, dp_size: all data-parallel ranks", kNemoMesh},
    {kNemo, "pipeline_batch", error, "distributed.pipeline.pp_microbatch_size",
     [](const Case& c) {
       const double micro = c.figure("distributed.pipeline.pp_microbatch_size", 1);
       return c.figure("distributed.pp_size", 1) > 1 && micro > 0 &&
              std::fmod(c.figure("step_scheduler.local_batch_size", 1), micro) != 0;
     },
     "local_batch_size is no whole number of pp_microbatch_size, and all of it passes through the "
     "stages at once",
     "local_batch_size: a multiple of pp_microbatch_size", kNemoPipe},
    {kNemo, "options_exclude", error, "peft.exclude_modules",
     [](const Case& c) { return c.has("peft.target_modules"); },
     "target_modules and exclude_modules exclude each other", "keep one of them", kNemoPeft},
    {kNemo, "options_exclude", error, "peft.match_all_linear",
     [](const Case& c) {
       return c.on("peft.match_all_linear") &&
              (c.has("peft.target_modules") || c.has("peft.exclude_modules"));
     },
     "match_all_linear takes neither target_modules nor exclude_modules", "keep one of them",
     kNemoPeft},
    {kNemo, "option_needs", error, "loss_fn._target_",
     [](const Case& c) {
       return c.word("loss_fn._target_").find("fusedlinearcrossentropy") != std::string::npos &&
              !c.on("model.output_hidden_states") && !c.on("model.text_config.output_hidden_states") &&
              // Its own models, which alone spread experts, hand them out; stages are asked to.
              !c.part.settings.has_section("model.backend.") &&
              c.figure("distributed.ep_size", 1) <= 1 && c.figure("distributed.pp_size", 1) <= 1 &&
              c.word("recipe").find("vlm") == std::string::npos;
     },
     "FusedLinearCrossEntropy reads hidden states, which the model has to hand out",
     "model.output_hidden_states: true", kNemoTrain},
    {kNemo, "options_exclude", error, "qat.enabled",
     [](const Case& c) { return c.on("qat.enabled") && c.part.settings.has_section("peft."); },
     "quantisation-aware training does not go with adapters", "keep one of them", kNemoTrain},
    {kNemo, "half_states", warning, "model.torch_dtype",
     [](const Case& c) {
       const std::string type = c.word("model.torch_dtype");
       const bool narrow = type.find("bf16") != std::string::npos ||
                           type.find("bfloat16") != std::string::npos;
       return narrow && !c.part.settings.has_section("peft.") &&
              c.word("optimizer._target_").starts_with("torch.optim.adam") &&
              c.scene.files.find(Dialect::accelerate) != nullptr &&
              c.word("recipe").find("benchmark") == std::string::npos;
     },
     "weights and Adam's moments stay in bf16, where small updates are rounded away",
     "torch_dtype: float32, whose products run in bf16 all the same",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/distributed/config.py"},

    {kSwiftMegatron, "option_needs", error, "--teacher_model_server",
     [](const Case& c) { return c.is("--rlhf_type", "gkd") && !c.has("--gkd_logits_topk"); },
     "a teacher_model_server sends the likeliest tokens alone: gkd_logits_topk says how many",
     "--gkd_logits_topk 64", kSwiftCore},
});

// Longer than the model's positions, where its checkpoint is the model that was asked for.
void check_length(const Case& c, std::string_view key, Findings& out) {
  const Setting* const length = c.part.settings.find(key);
  const std::int64_t most = c.scene.question.model.max_position_embeddings;
  if (length == nullptr || most == 0 || c.scene.question.model_of_files || c.has("rope_scaling") ||
      c.has("--rope_scaling"))
    return;
  if (c.figure(key, 0) <= static_cast<double>(most)) return;
  out.push_back({warning, "long_sequences", length->place,
                 fmt::format("{} is {}, and the model was made for {} positions", key,
                             text_of(length->value), most),
                 fmt::format("{}: {}", key, most), "arithmetic: max_position_embeddings"});
}

// A model that stands beside the one that is trained, to be compared with. Of adapters it is the
// same model without them.
void check_reference(const Case& c, Findings& out) {
  const bool factory = c.part.dialect == kFactory;
  const bool swift = c.part.dialect == kSwift || c.part.dialect == kSwiftMegatron;
  const std::string_view key = factory ? "stage" : swift ? "--rlhf_type" : "rl";
  const std::string way = c.word(key);
  const std::string loss = c.word("pref_loss", "sigmoid");
  const bool compares =
      factory ? (way == "dpo" && loss != "orpo" && loss != "simpo") || way == "kto" || way == "ppo"
              : way == "dpo" || way == "ipo" || way == "kto" || way == "grpo" || way == "ppo";
  const bool whole = factory ? is_full(c)
                     : swift
                         ? c.is("--tuner_type", "full", c.part.dialect == kSwift ? "lora" : "full")
                         : !c.has("adapter");
  if (swift && way == "grpo" && c.figure("--beta", 0.04) == 0) return;
  if (!compares || (!whole && !c.has("ref_model"))) return;
  const std::int64_t all = count_parameters(c.scene.question.model).total();
  const bool shards = c.zero3() || c.fsdp();
  const ParallelPlan& plan = c.scene.draft.plan;
  const std::int64_t ranks = c.part.dialect == kSwiftMegatron
                                 ? std::int64_t{plan.tp} * plan.pp * plan.ep
                             : shards ? std::max<std::int64_t>(1, c.scene.question.limits.gpus)
                                      : 1;
  out.push_back(
      {note, "reference_model", c.part.settings.find(key)->place,
       fmt::format("{} holds a second model to compare with, {} in 16 bits on every GPU, which is "
                   "not counted below, nor is its forward",
                   way,
                   human_bytes(Bytes(2.0 * static_cast<double>(all) / static_cast<double>(ranks)))),
       factory ? "finetuning_type: lora compares with the model without its adapters"
       : swift ? "--tuner_type lora compares with the model without its adapters"
               : "adapter: lora compares with the model without its adapters",
       fmt::format("{}; arithmetic: 2 bytes a parameter",
                   factory ? "LLaMA-Factory ff6d4d12, src/llamafactory/train/trainer_utils.py"
                   : swift ? "ms-swift 3602360a, swift/arguments/rlhf_args.py (ref_model)"
                           : "axolotl 067b021c, src/axolotl/core/builders/rl.py")});
}

}  // namespace

namespace {

// AutoModel's recipes ask for the blocks that they know, and look at no other.
void check_blocks(const ConfigPart& part, Findings& out) {
  for (const SectionSlip& slip :
       slipped_sections(part.settings, known_options(option_list_of(part.dialect)))) {
    // Of blocks whose keys are known the keys are held against their classes.
    if (slip.written.find('.') != std::string::npos) continue;
    out.push_back({Severity::error, "unknown_option", slip.first->place,
                   fmt::format("{}: no recipe of NeMo AutoModel has a block of that name, and all "
                               "that stands in it is ignored silently",
                               slip.written),
                   fmt::format("did you mean {}?", slip.real),
                   "qplan: planner/frameworks/options/automodel.tsv, the blocks of its recipes"});
  }
}

}  // namespace

void check_finetuning(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    const bool swift = part.dialect == kSwift || part.dialect == kSwiftMegatron;
    const bool nemo = part.dialect == kNemo || part.dialect == kTrl;
    if (part.dialect != kFactory && part.dialect != kAxolotl && !swift && !nemo) continue;
    const Case c{scene, part};
    for (const Trap& trap : kTraps) {
      if (trap.dialect != part.dialect || !part.settings.has(trap.at) || !trap.springs(c)) continue;
      out.push_back({trap.severity, std::string(trap.rule), part.settings.find(trap.at)->place,
                     std::string(trap.message), std::string(trap.instead),
                     std::string(trap.source)});
    }
    if (part.dialect == kNemo) check_blocks(part, out);
    if (nemo) continue;
    check_length(c,
                 part.dialect == kFactory ? "cutoff_len"
                 : swift                  ? "--max_length"
                                          : "sequence_len",
                 out);
    check_reference(c, out);
  }
}

}  // namespace qplan
