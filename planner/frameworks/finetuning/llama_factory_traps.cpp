// What LLaMA-Factory refuses of its own YAML, and what it costs where it does not.

#include <algorithm>
#include <array>
#include <string>

#include "planner/frameworks/finetuning/templates.h"
#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kParser = "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py";
constexpr std::string_view kTemplatesOfLlamaFactory =
    "LLaMA-Factory ff6d4d12, src/llamafactory/data/template.py:683";
constexpr std::string_view kMethod =
    "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/finetuning_args.py";
constexpr std::string_view kData = "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/data_args.py";
constexpr std::string_view kQuantization =
    "LLaMA-Factory ff6d4d12, src/llamafactory/model/model_utils/quantization.py";

bool is_lora(const Case& c) {
  return c.is("finetuning_type", "lora", "lora");
}

bool is_sft(const Case& c) {
  return c.is("stage", "sft", "sft");
}

// Of a list, or of words with commas between.
std::size_t count_of(const Case& c, std::string_view key) {
  const Setting* const said = c.part.settings.find(key);
  if (said == nullptr || !said->resolved || said->value.is_null()) return 0;
  if (said->value.is_array()) return said->value.size();
  const std::string words = text_of(said->value);
  return 1 + static_cast<std::size_t>(std::count(words.begin(), words.end(), ','));
}

constexpr auto kLlamaFactoryTraps = std::to_array<Trap>({
    {"quantized_full", error, "quantization_bit", is_full,
     "weights of 4 or 8 bits cannot be trained: LLaMA-Factory takes them for lora and oft alone",
     "finetuning_type: lora, or leave quantization_bit out", kParser},
    {"quantized_bits", error, "quantization_bit",
     [](const Case& c) {
       const double bits = c.figure("quantization_bit", 4);
       return quantizer_of(c.part.settings) == "bnb" && bits != 4 && bits != 8;
     },
     "bitsandbytes has weights of 4 and of 8 bits", "quantization_bit: 4", kQuantization},
    {"quantized_shards", error, "quantization_bit",
     [](const Case& c) {
       const std::string quantizer = quantizer_of(c.part.settings);
       const bool four = quantizer == "bnb" && c.figure("quantization_bit", 4) == 4;
       return !quantizer.empty() && !four && (c.zero3() || c.fsdp());
     },
     "ZeRO-3 and FSDP shard weights of bitsandbytes' 4 bits and no others that are quantised",
     "quantization_bit: 4 with quantization_method: bnb, or ZeRO-2", kQuantization},
    {"quantized_shards", error, "model_name_or_path",
     [](const Case& c) {
       return is_quantized_checkpoint(c.word("model_name_or_path")) && (c.zero3() || c.fsdp());
     },
     "ZeRO-3 and FSDP do not shard a checkpoint that is quantised already",
     "the checkpoint in 16 bits with quantization_bit: 4, or ZeRO-2", kQuantization},
    {"fp8_of_quantized", error, "fp8",
     [](const Case& c) { return c.on("fp8") && c.has("quantization_bit"); },
     "fp8 and quantization_bit exclude each other", "keep one of them", kParser},
    {"lora_word_without_lora", error, "adapter_name_or_path",
     [](const Case& c) { return !is_lora(c); }, "adapters are read for finetuning_type lora alone",
     "leave it out", kParser},
    {"lora_word_without_lora", error, "use_dora",
     [](const Case& c) { return c.on("use_dora") && !is_lora(c); },
     "use_dora goes with finetuning_type lora alone", "leave it out", kMethod},
    {"lora_word_without_lora", error, "use_rslora",
     [](const Case& c) { return c.on("use_rslora") && !is_lora(c); },
     "use_rslora goes with finetuning_type lora alone", "leave it out", kMethod},
    {"lora_word_without_lora", error, "loraplus_lr_ratio",
     [](const Case& c) { return !is_lora(c); },
     "loraplus_lr_ratio goes with finetuning_type lora alone", "leave it out", kMethod},
    {"lora_word_without_lora", error, "pissa_init",
     [](const Case& c) { return c.on("pissa_init") && !is_lora(c); },
     "pissa_init goes with finetuning_type lora alone", "leave it out", kMethod},
    {"projected_optimizer", error, "finetuning_type",
     [](const Case& c) {
       return is_lora(c) && (c.on("use_galore") || c.on("use_apollo") || c.on("use_badam"));
     },
     "GaLore, APOLLO and BAdam train whole weights, and lora none", "finetuning_type: full", kMethod},
    {"projected_optimizer", error, "deepspeed",
     [](const Case& c) { return c.on("use_galore") || c.on("use_apollo"); },
     "GaLore and APOLLO do not run under DeepSpeed", "leave deepspeed out", kParser},
    {"projected_optimizer", error, "use_badam",
     [](const Case& c) {
       return c.on("use_badam") && c.distributed() && (c.is("badam_mode", "ratio") || !c.zero3());
     },
     "on several GPUs BAdam goes layer by layer and under ZeRO-3 alone",
     "badam_mode: layer with a ZeRO-3 ds_config.json, or one GPU", kParser},
    {"pure_bf16_zero3", error, "pure_bf16",
     [](const Case& c) { return c.on("pure_bf16") && c.zero3(); },
     "pure_bf16 and ZeRO-3 exclude each other", "bf16: true", kParser},
    {"unsloth_zero3", error, "use_unsloth",
     [](const Case& c) { return c.on("use_unsloth") && c.zero3(); },
     "Unsloth does not run under ZeRO-3", "ZeRO-2, or leave use_unsloth out", kParser},
    {"packing_stage", error, "neat_packing",
     [](const Case& c) { return c.on("neat_packing") && !is_sft(c); },
     "neat_packing is for stage sft alone", "leave it out", kParser},
    {"option_needs", error, "train_on_prompt",
     [](const Case& c) { return c.on("train_on_prompt") && !is_sft(c); },
     "train_on_prompt is for stage sft alone", "leave it out", kParser},
    {"option_needs", error, "mask_history",
     [](const Case& c) { return c.on("mask_history") && !is_sft(c); },
     "mask_history is for stage sft alone", "leave it out", kParser},
    {"options_exclude", error, "mask_history",
     [](const Case& c) { return c.on("mask_history") && c.on("train_on_prompt"); },
     "mask_history and train_on_prompt exclude each other", "keep one of them", kData},
    {"option_needs", error, "predict_with_generate",
     [](const Case& c) { return c.on("predict_with_generate") && !is_sft(c); },
     "predict_with_generate is for stage sft alone", "leave it out", kParser},
    {"options_exclude", error, "predict_with_generate",
     [](const Case& c) { return c.on("predict_with_generate") && c.zero3(); },
     "predict_with_generate does not run under ZeRO-3", "leave it out, or ZeRO-2", kParser},
    {"option_needs", error, "stage",
     [](const Case& c) { return c.is("stage", "ppo") && !c.has("reward_model"); },
     "stage ppo needs a reward_model", "reward_model: the path of one", kMethod},
    {"option_needs", error, "stage",
     [](const Case& c) {
       return c.is("stage", "ppo") && is_full(c) && c.is("reward_model_type", "lora", "lora");
     },
     "a reward model of type lora, the default, goes with finetuning_type lora alone",
     "reward_model_type: full", kMethod},
    {"options_exclude", error, "val_size",
     [](const Case& c) { return c.figure("val_size", 0) > 1e-6 && c.has("eval_dataset"); },
     "val_size and eval_dataset exclude each other", "keep one of them", kData},
    {"option_needs", error, "val_size",
     [](const Case& c) {
       const double share = c.figure("val_size", 0);
       return c.on("streaming") && share > 1e-6 && share < 1;
     },
     "val_size is a whole number of samples where data streams, not a share", "val_size: 1000",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/data_args.py:176"},
    {"option_needs", error, "interleave_probs",
     [](const Case& c) {
       const std::size_t shares = count_of(c, "interleave_probs"), sets = count_of(c, "dataset");
       return shares > 0 && sets > 0 && shares != sets;
     },
     "interleave_probs has one number for each dataset", "as many numbers as datasets",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/data_args.py:170"},
    {"option_needs", error, "eval_strategy",
     [](const Case& c) {
       const bool evaluates = c.is("eval_strategy", "steps") || c.is("eval_strategy", "epoch");
       return evaluates && !c.has("eval_dataset") && c.figure("val_size", 0) < 1e-6;
     },
     "eval_strategy needs an eval_dataset, or a val_size", "val_size: 0.1",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:480"},
    {"refused_value", error, "template",
     [](const Case& c) {
       return template_of_llama_factory(c.word("template")) == Template::slip;
     },
     "template is a slip of one of LLaMA-Factory's, and it stops", "one of its names", kTemplatesOfLlamaFactory},
    {"refused_value", warning, "template",
     [](const Case& c) {
       return template_of_llama_factory(c.word("template")) == Template::unknown;
     },
     "this release of LLaMA-Factory has no such template, and stops", "one of its names",
     kTemplatesOfLlamaFactory},
    {"options_exclude", error, "max_samples",
     [](const Case& c) { return c.on("streaming"); }, "streaming takes no max_samples",
     "max_steps in its place", kData},
    {"option_needs", error, "streaming",
     [](const Case& c) { return c.on("streaming") && c.figure("max_steps", -1) <= 0; },
     "streaming needs max_steps: nobody knows how long the data is", "max_steps: a number", kParser},
    {"option_needs", error, "interleave_probs",
     [](const Case& c) { return c.is("mix_strategy", "concat", "concat"); },
     "interleave_probs needs a mix_strategy that interleaves", "mix_strategy: interleave_over",
     kData},
    {"option_needs", error, "do_train",
     [](const Case& c) { return c.on("do_train") && !c.has("dataset") && !c.has("tokenized_path"); },
     "do_train needs a dataset", "dataset: a name of dataset_info.json", kParser},
    {"no_mixed_precision", warning, "do_train",
     [](const Case& c) {
       return c.on("do_train") && !c.on("bf16") && !c.on("fp16") && !c.on("pure_bf16");
     },
     "neither bf16 nor fp16 is on: products run in fp32, many times slower", "bf16: true", kParser},
});

// ... of quantised weights, of losses and optimizers.
constexpr auto kOfFactoryMethods = std::to_array<Trap>({
    {"quantized_bits", error, "quantization_bit",
     [](const Case& c) {
       return quantizer_of(c.part.settings) == "eetq" && c.figure("quantization_bit", 8) != 8;
     },
     "EETQ has weights of 8 bits alone", "quantization_bit: 8", kQuantization},
    {"idle_option", warning, "quantization_method",
     [](const Case& c) {
       return c.has("quantization_bit") && quantizer_of(c.part.settings).empty() &&
              !is_quantized_checkpoint(c.word("model_name_or_path"));
     },
     "quantization_method names what a checkpoint is quantised by already: weights of one that is "
     "not stay as they are, silently",
     "quantization_method: bnb, or the path of a quantised checkpoint", kQuantization},
    {"options_exclude", error, "pissa_init",
     [](const Case& c) { return c.on("pissa_init") && c.has("quantization_bit"); },
     "pissa_init does not go with quantization_bit: LLaMA-Factory wants scripts/pissa_init.py run "
     "before",
     "leave pissa_init out, or prepare the model by scripts/pissa_init.py",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:239"},
    {"options_exclude", error, "pissa_init",
     [](const Case& c) { return c.on("pissa_init") && c.zero3(); },
     "pissa_init does not run under ZeRO-3", "ZeRO-2, or scripts/pissa_init.py before",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:495"},
    {"options_exclude", error, "pissa_init",
     [](const Case& c) {
       const std::string loss = c.word("pref_loss", "sigmoid");
       const bool compares = c.is("stage", "dpo") && loss != "orpo" && loss != "simpo";
       return c.on("pissa_init") && (compares || c.is("stage", "ppo") || c.is("stage", "kto"));
     },
     "pissa_init changes the weights that this stage compares with", "leave it out",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/finetuning_args.py:621"},
    {"options_exclude", error, "resize_vocab",
     [](const Case& c) { return c.on("resize_vocab") && c.has("quantization_bit"); },
     "embeddings of a quantised model are not resized", "leave resize_vocab out",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:242"},
    {"options_exclude", error, "create_new_adapter",
     [](const Case& c) {
       return c.on("create_new_adapter") && c.has("adapter_name_or_path") &&
              c.has("quantization_bit");
     },
     "no new adapter is made on top of others on a quantised model", "leave it out",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:245"},
    {"options_exclude", error, "adapter_name_or_path",
     [](const Case& c) {
       return c.has("quantization_bit") && count_of(c, "adapter_name_or_path") > 1;
     },
     "a quantised model takes one adapter", "merge them before",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:248"},
    {"option_needs", error, "dpo_label_smoothing",
     [](const Case& c) {
       return c.is("stage", "dpo") && !c.is("pref_loss", "sigmoid", "sigmoid") &&
              c.figure("dpo_label_smoothing", 0) > 1e-6;
     },
     "dpo_label_smoothing goes with pref_loss sigmoid alone", "leave it out, or pref_loss: sigmoid",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/finetuning_args.py:609"},
    {"options_exclude", error, "use_llama_pro",
     [](const Case& c) { return c.on("use_llama_pro") && c.is("finetuning_type", "full", "lora"); },
     "use_llama_pro goes with finetuning_type freeze or lora", "finetuning_type: freeze",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/finetuning_args.py:612"},
    {"options_exclude", error, "finetuning_type",
     [](const Case& c) { return c.on("use_galore") + c.on("use_apollo") + c.on("use_badam") > 1; },
     "GaLore, APOLLO and BAdam exclude each other", "keep one of them",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/finetuning_args.py:618"},
    {"options_exclude", error, "galore_layerwise",
     [](const Case& c) {
       return c.on("use_galore") && c.on("galore_layerwise") && c.distributed();
     },
     "GaLore layer by layer runs on one GPU alone", "galore_layerwise: false",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:506"},
    {"options_exclude", error, "apollo_layerwise",
     [](const Case& c) {
       return c.on("use_apollo") && c.on("apollo_layerwise") && c.distributed();
     },
     "APOLLO layer by layer runs on one GPU alone", "apollo_layerwise: false",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:509"},
    {"options_exclude", error, "load_best_model_at_end",
     [](const Case& c) {
       return c.on("load_best_model_at_end") && (c.is("stage", "rm") || c.is("stage", "ppo"));
     },
     "stages rm and ppo do not load the best model at the end", "load_best_model_at_end: false",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:447"},
    {"options_exclude", error, "compute_accuracy",
     [](const Case& c) { return c.on("compute_accuracy") && c.on("predict_with_generate"); },
     "compute_accuracy and predict_with_generate exclude each other", "keep one of them",
     "LLaMA-Factory ff6d4d12, src/llamafactory/hparams/parser.py:489"},
});

constexpr auto kAllOfLlamaFactory = [] {
  std::array<Trap, kLlamaFactoryTraps.size() + kOfFactoryMethods.size()> all{};
  const auto methods = std::copy(kLlamaFactoryTraps.begin(), kLlamaFactoryTraps.end(), all.begin());
  std::copy(kOfFactoryMethods.begin(), kOfFactoryMethods.end(), methods);
  return all;
}();

}  // namespace

bool is_full(const Case& c) {
  return c.is("finetuning_type", "full", "lora") || c.is("finetuning_type", "freeze", "lora");
}

std::span<const Trap> llama_factory_traps() {
  return kAllOfLlamaFactory;
}

}  // namespace qplan
