// What axolotl refuses of its own YAML.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "models/edit_distance.h"
#include "planner/frameworks/finetuning/templates.h"
#include "planner/frameworks/finetuning/trap.h"
#include "planner/frameworks/spelled_values.h"
#include "planner/frameworks/torch/trainer_words.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kValidation =
    "axolotl 067b021c, src/axolotl/utils/schemas/validation.py";
constexpr std::string_view kTemplatesOfAxolotl =
    "axolotl 067b021c, src/axolotl/utils/schemas/enums.py (ChatTemplate)";
constexpr std::string_view kPeft = "axolotl 067b021c, src/axolotl/utils/schemas/peft.py";

// Its own (src/axolotl/utils/schemas/enums.py, CustomSupportedOptimizers), and transformers'.
bool is_optimizer_of_axolotl(const Case& c) {
  constexpr std::array<std::string_view, 15> kOwn{
      "optimi_adamw", "ao_adamw_4bit", "ao_adamw_8bit", "ao_adamw_fp8", "adopt_adamw",
      "came_pytorch", "muon",          "dion",          "sinkgd",       "flash_adamw",
      "flash_adam",   "flash_sgd",     "flash_sgdw",    "flash_lion",   "q_galore_adamw8bit"};
  const std::string name = c.word("optimizer");
  const auto& theirs = known_options("trainer").find("--optim")->choices;
  return name.empty() || std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end() ||
         std::find(theirs.begin(), theirs.end(), name) != theirs.end();
}

// Asked for, and another strategy than one that counts steps.
bool is_other_than_steps(const Case& c, std::string_view strategy) {
  const std::string name = c.word(strategy);
  return !name.empty() && name != "false" && name != "steps";
}

bool has_lora_kernels(const Case& c) {
  return c.on("lora_mlp_kernel") || c.on("lora_qkv_kernel") || c.on("lora_o_kernel");
}

constexpr auto kOfItsWords = std::to_array<Trap>({
    {"refused_value", error, "learning_rate",
     [](const Case& c) {
       const Setting& rate = *c.part.settings.find("learning_rate");
       return rate.resolved && rate.value.is_string() && !is_number(text_of(rate.value));
     },
     "learning_rate is no number, and axolotl stops", "learning_rate: 2.0e-4, say",
     "axolotl 067b021c, src/axolotl/utils/schemas/training.py:284"},
    {"option_needs", error, "fp8_enable_fsdp_float8_all_gather",
     [](const Case& c) {
       return c.on("fp8_enable_fsdp_float8_all_gather") && !c.is("fsdp_version", "2");
     },
     "fp8_enable_fsdp_float8_all_gather needs FSDP2", "fsdp_version: 2", kValidation},
    {"refused_value", error, "fsdp_version",
     [](const Case& c) {
       return c.figure("fsdp_version", 2) != 1 && c.figure("fsdp_version", 2) != 2;
     },
     "FSDP has versions 1 and 2", "fsdp_version: 2",
     "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1833"},
    {"quantized_full", error, "load_in_4bit",
     [](const Case& c) { return c.on("load_in_4bit") && !c.has("adapter"); },
     "weights of 4 bits cannot be trained: axolotl wants an adapter beside them",
     "adapter: qlora, or load_in_4bit: false", kPeft},
    {"quantized_full", error, "load_in_8bit",
     [](const Case& c) { return c.on("load_in_8bit") && !c.has("adapter"); },
     "weights of 8 bits cannot be trained: axolotl wants an adapter beside them",
     "adapter: lora, or load_in_8bit: false", kPeft},
    {"quantized_bits", error, "adapter",
     [](const Case& c) { return c.is("adapter", "qlora") && c.on("load_in_8bit"); },
     "adapter qlora takes weights of 4 bits, not of 8", "adapter: lora", kPeft},
    {"quantized_bits", error, "adapter",
     [](const Case& c) { return c.is("adapter", "qlora") && c.on("gptq"); },
     "adapter qlora takes weights of bitsandbytes, not of GPTQ", "adapter: lora", kPeft},
    {"quantized_bits", error, "adapter",
     [](const Case& c) {
       return c.is("adapter", "qlora") && !c.on("load_in_4bit") && !c.on("load_in_8bit") &&
              !c.on("gptq") && !c.on("merge_lora");
     },
     "adapter qlora needs load_in_4bit", "load_in_4bit: true, or adapter: lora", kPeft},
    {"options_exclude", error, "deepspeed",
     [](const Case& c) { return c.on("deepspeed") && c.on("fsdp"); },
     "deepspeed and fsdp exclude each other", "keep one of them", kValidation},
    {"packing_stage", error, "sample_packing",
     [](const Case& c) { return c.on("sample_packing") && c.on("rl"); },
     "sample_packing does not go with rl", "sample_packing: false", kValidation},
    {"option_needs", error, "rl",
     [](const Case& c) {
       return c.is("rl", "kto") &&
              (!c.has("remove_unused_columns") || c.on("remove_unused_columns"));
     },
     "kto needs remove_unused_columns: false", "remove_unused_columns: false", kValidation},
    {"batch_left_open", error, "base_model",
     [](const Case& c) {
       return c.on("micro_batch_size") + c.on("gradient_accumulation_steps") + c.on("batch_size") <
              2;
     },
     "axolotl wants two of micro_batch_size, gradient_accumulation_steps and batch_size",
     "micro_batch_size and gradient_accumulation_steps", kValidation},
    {"options_exclude", error, "batch_size",
     [](const Case& c) { return c.on("batch_size") && c.on("gradient_accumulation_steps"); },
     "batch_size and gradient_accumulation_steps exclude each other", "leave batch_size out",
     kValidation},
    {"options_exclude", error, "warmup_ratio",
     [](const Case& c) { return c.on("warmup_steps") && c.figure("warmup_ratio", 0) > 0; },
     "warmup_ratio and warmup_steps exclude each other", "keep one of them", kValidation},
    {"options_exclude", error, "saves_per_epoch",
     [](const Case& c) { return c.on("saves_per_epoch") && c.on("save_steps"); },
     "saves_per_epoch and save_steps exclude each other", "keep one of them", kValidation},
    {"options_exclude", error, "evals_per_epoch",
     [](const Case& c) { return c.on("evals_per_epoch") && c.on("eval_steps"); },
     "evals_per_epoch and eval_steps exclude each other", "keep one of them", kValidation},
    {"options_exclude", error, "val_set_size",
     [](const Case& c) {
       return c.figure("val_set_size", 0) > 0 &&
              (c.has("test_datasets") || c.part.settings.has_section("test_datasets."));
     },
     "val_set_size and test_datasets exclude each other", "val_set_size: 0", kValidation},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool second = c.is("fsdp_version", "2") || c.is("fsdp_config.fsdp_version", "2") ||
                           c.is("fsdp_config.version", "2");
       return c.part.settings.has_section("fsdp_config.") && second &&
              (c.is("optimizer", "adamw_8bit") || c.is("optimizer", "adamw_bnb_8bit"));
     },
     "bitsandbytes' 8-bit Adam does not run under FSDP2", "optimizer: adamw_torch_8bit",
     kValidation},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool offloads =
           c.on("fsdp_config.offload_params") || c.on("fsdp_config.fsdp_offload_params");
       const bool second = c.is("fsdp_version", "2") || c.is("fsdp_config.fsdp_version", "2") ||
                           c.is("fsdp_config.version", "2");
       return offloads && !second && c.word("optimizer").find("8bit") != std::string::npos;
     },
     "an 8-bit optimizer does not run where FSDP1 offloads parameters", "optimizer: adamw_torch",
     kValidation},
    {"option_needs", error, "pretraining_dataset", [](const Case& c) { return !c.on("max_steps"); },
     "pretraining_dataset needs max_steps: nobody knows how long the data is",
     "max_steps: a number", kValidation},
    {"option_needs", error, "activation_offloading",
     [](const Case& c) { return c.on("activation_offloading") && !c.on("gradient_checkpointing"); },
     "activation_offloading needs gradient_checkpointing", "gradient_checkpointing: true",
     kValidation},
    {"option_needs", error, "micro_batch_size",
     [](const Case& c) {
       return c.figure("context_parallel_size", 1) > 1 && c.on("sample_packing") &&
              c.figure("micro_batch_size", 1) > 1;
     },
     "context parallelism of packed samples takes one of them at a time", "micro_batch_size: 1",
     kValidation},
    {"options_exclude", error, "batch_flattening",
     [](const Case& c) { return c.on("batch_flattening") && c.on("sample_packing"); },
     "batch_flattening and sample_packing exclude each other", "keep one of them", kValidation},
    {"refused_value", error, "optimizer", [](const Case& c) { return !is_optimizer_of_axolotl(c); },
     "optimizer is neither transformers' nor one of axolotl's own", "adamw_torch_fused",
     "axolotl 067b021c, src/axolotl/core/builders/base.py:458"},
    {"two_precisions", warning, "fp16",
     [](const Case& c) { return c.is("bf16", "true") && c.on("fp16"); },
     "bf16 counts, and fp16 beside it is switched off", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/config/__init__.py:188"},
    {"options_exclude", warning, "flash_attention",
     [](const Case& c) {
       return c.on("flash_attention") && (c.on("xformers_attention") || c.on("sage_attention") ||
                                          c.on("flex_attention"));
     },
     "another attention is asked for beside flash_attention, and that counts", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/schemas/config.py:1557"},
    {"options_exclude", warning, "sdp_attention",
     [](const Case& c) { return c.on("sdp_attention") && c.on("flash_attention"); },
     "flash_attention counts, and sdp_attention beside it is passed over", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/schemas/config.py:1533"},
    {"options_exclude", error, "attn_implementation",
     [](const Case& c) {
       return c.on("flash_attention") || c.on("xformers_attention") || c.on("sage_attention") ||
              c.on("flex_attention") || c.on("sdp_attention") || c.on("eager_attention");
     },
     "attn_implementation excludes the older words for it (flash_attention, ...)",
     "keep attn_implementation", "axolotl 067b021c, src/axolotl/utils/schemas/config.py:1550"},
    {"option_needs", error, "chat_template",
     [](const Case& c) { return c.is("chat_template", "jinja") && !c.has("chat_template_jinja"); },
     "chat_template jinja needs chat_template_jinja", "chat_template_jinja: the template",
     kValidation},
});

// Of how it trains, evaluates and saves. (Tables of more rows are too much for clang-format 14.)
constexpr auto kOfRuns = std::to_array<Trap>({
    {"options_exclude", error, "save_steps",
     [](const Case& c) { return c.on("save_steps") && is_other_than_steps(c, "save_strategy"); },
     "save_steps needs save_strategy steps", "save_strategy: steps, or no save_steps",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:309"},
    {"options_exclude", error, "eval_steps",
     [](const Case& c) { return c.on("eval_steps") && is_other_than_steps(c, "eval_strategy"); },
     "eval_steps needs eval_strategy steps", "eval_strategy: steps, or no eval_steps",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:337"},
    {"options_exclude", error, "evals_per_epoch",
     [](const Case& c) {
       return c.on("evals_per_epoch") && is_other_than_steps(c, "eval_strategy");
     },
     "evals_per_epoch needs eval_strategy steps, or none", "leave eval_strategy out",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:359"},
    {"option_needs", error, "val_set_size",
     [](const Case& c) {
       const bool evaluates = c.on("eval_steps") || c.on("eval_strategy");
       return c.figure("val_set_size", 1) == 0 && evaluates && !c.has("test_datasets") &&
              !c.part.settings.has_section("test_datasets.") && !c.is("eval_strategy", "no") &&
              !c.is("eval_strategy", "false");
     },
     "eval_steps and eval_strategy need data to evaluate on, and val_set_size is 0",
     "val_set_size: 0.05, or no eval_steps",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:347"},
    {"options_exclude", error, "val_set_size",
     [](const Case& c) {
       return c.figure("val_set_size", 0) > 0 &&
              (c.on("streaming") || c.has("pretraining_dataset") ||
               c.part.settings.has_section("pretraining_dataset."));
     },
     "no share is cut off for evaluation of data that streams",
     "test_datasets in place of val_set_size",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1352"},
    {"option_needs", error, "streaming",
     [](const Case& c) { return c.on("streaming") && !c.on("max_steps"); },
     "streaming needs max_steps: nobody knows how long the data is", "max_steps: a number",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1372"},
    {"option_needs", error, "early_stopping_patience",
     [](const Case& c) {
       const double saves = c.figure("save_steps", 0), evals = c.figure("eval_steps", 0);
       return c.on("early_stopping_patience") &&
              (saves == 0 || evals == 0 ||
               (saves >= 1 && evals >= 1 && std::fmod(saves, evals) != 0));
     },
     "early_stopping_patience needs save_steps and eval_steps, the first a multiple of the second",
     "eval_steps: 100 and save_steps: 100",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1618"},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       return c.is("optimizer", "muon") &&
              (c.on("deepspeed") || c.part.settings.has_section("deepspeed."));
     },
     "muon does not run under DeepSpeed", "fsdp_config with fsdp_version: 2",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:894"},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const bool second = c.has("fsdp_version") ? c.is("fsdp_version", "2")
                                                 : c.is("fsdp_config.fsdp_version", "2");
       return c.is("optimizer", "muon") &&
              (c.on("fsdp") || c.part.settings.has_section("fsdp_config.")) && !second;
     },
     "muon runs under FSDP2, not FSDP1", "fsdp_version: 2",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:900"},
    {"narrow_optimizer", error, "optimizer",
     [](const Case& c) {
       const std::string name = c.word("optimizer");
       return c.figure("tensor_parallel_size", 1) > 1 &&
              (name == "adamw_8bit" || name == "adamw_bnb_8bit" || name == "paged_adamw_8bit");
     },
     "bitsandbytes' 8-bit Adam does not go with tensor_parallel_size",
     "optimizer: adamw_torch_8bit",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1778"},
    {"option_needs", error, "context_parallel_size",
     [](const Case& c) {
       const std::string kernels = c.word("attn_implementation");
       return c.figure("context_parallel_size", 1) > 1 && !c.on("use_glm_dsa_kernels") &&
              (kernels == "sdpa" || kernels == "eager" || kernels == "flex_attention" ||
               kernels == "xformers");
     },
     "context_parallel_size needs FlashAttention", "attn_implementation: flash_attention_2",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1654"},
    {"options_exclude", error, "warmup_ratio",
     [](const Case& c) { return c.is("rl", "simpo") && c.figure("warmup_ratio", 0) > 0; },
     "simpo takes no warmup_ratio", "warmup_steps: a number",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1574"},
    {"option_needs", error, "trl.num_generations",
     [](const Case& c) { return c.is("rl", "grpo") && c.figure("trl.num_generations", 2) < 2; },
     "grpo compares answers: a group has 2 at least", "trl.num_generations: 8",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:815"},
});

enum class Schedule : std::uint8_t { known, slip, unknown };

// Its own two (src/axolotl/core/builders/base.py), and transformers'.
Schedule schedule_of(const Case& c) {
  const std::string name = c.word("lr_scheduler");
  const auto& theirs = known_options("trainer").find("--lr_scheduler_type")->choices;
  std::vector<std::string> all(theirs.begin(), theirs.end());
  all.insert(all.end(), {"one_cycle", "rex"});
  if (name.empty() || std::find(all.begin(), all.end(), name) != all.end()) return Schedule::known;
  constexpr std::size_t kNear = 2;
  const bool slip = std::any_of(all.begin(), all.end(), [&](const std::string& real) {
    return edit_distance(name, real) <= (real.size() > 4 ? kNear : 1);
  });
  return slip ? Schedule::slip : Schedule::unknown;
}

// Adapters that are made anew.
bool makes_adapters(const Case& c) {
  return (c.is("adapter", "lora") || c.is("adapter", "qlora")) && !c.has("lora_model_dir");
}

// ... and of schedules, kernels and adapters.
constexpr auto kOfParts = std::to_array<Trap>({
    {"refused_value", error, "lr_scheduler",
     [](const Case& c) { return schedule_of(c) == Schedule::slip; },
     "lr_scheduler is a slip of one of transformers' or of one_cycle and rex, and transformers "
     "stops",
     "one of their names, cosine for instance",
     "axolotl 067b021c, src/axolotl/core/builders/base.py:281; transformers 5.23.0, "
     "src/transformers/training_args.py (SchedulerType)"},
    {"refused_value", warning, "lr_scheduler",
     [](const Case& c) { return schedule_of(c) == Schedule::unknown; },
     "this release of transformers has no such lr_scheduler, and stops",
     "one of its names, cosine for instance",
     "axolotl 067b021c, src/axolotl/core/builders/base.py:281; transformers 5.23.0, "
     "src/transformers/training_args.py (SchedulerType)"},
    {"refused_value", error, "attn_implementation",
     [](const Case& c) {
       return kernel_name_of(c.word("attn_implementation")) == KernelName::meant;
     },
     "attn_implementation must be one of eager, sdpa, flash_attention_2, flash_attention_3, "
     "flex_attention, xformers, sage, fp8, or a kernel of a hub",
     "flash_attention_2, or another of them",
     "axolotl 067b021c, src/axolotl/utils/schemas/config.py:1611"},
    {"option_needs", error, "adapter",
     [](const Case& c) { return makes_adapters(c) && !c.has("lora_r"); },
     "adapters need lora_r, for which axolotl has no default: PEFT stops without it", "lora_r: 16",
     "axolotl 067b021c, src/axolotl/utils/schemas/peft.py:53; PEFT 5d602fdbf, "
     "src/peft/tuners/lora/layer.py:239"},
    {"option_needs", error, "adapter",
     [](const Case& c) { return makes_adapters(c) && c.has("lora_r") && !c.has("lora_alpha"); },
     "adapters need lora_alpha, for which axolotl has no default: PEFT divides it by the rank",
     "lora_alpha: 32",
     "axolotl 067b021c, src/axolotl/utils/schemas/peft.py (lora_alpha); PEFT 5d602fdbf, "
     "src/peft/tuners/lora/layer.py (update_layer)"},
    {"option_needs", error, "adapter",
     [](const Case& c) {
       const Settings& s = c.part.settings;
       return makes_adapters(c) && !c.on("lora_target_linear") && !c.has("lora_target_modules") &&
              !s.has_section("lora_target_modules.") && !c.has("lora_target_parameters") &&
              !s.has_section("lora_target_parameters.") && !c.has("plugins");
     },
     "adapters of no layers: axolotl hands PEFT an empty list where nothing says which, and it "
     "stops",
     "lora_target_linear: true, or lora_target_modules",
     "axolotl 067b021c, src/axolotl/loaders/adapter.py:173"},
});

// ... and of the weights, losses and templates.
constexpr auto kOfModels = std::to_array<Trap>({
    {"generation_batch", error, "trl.num_generations",
     [](const Case& c) {
       const double group = c.figure("trl.num_generations", 0);
       const double batch = c.figure("trl.generation_batch_size",
                                     std::max(1.0, c.figure("micro_batch_size", 1)) *
                                         std::max(1.0, c.figure("gradient_accumulation_steps", 1)));
       return c.is("rl", "grpo") && group >= 2 && std::fmod(batch, group) != 0;
     },
     "generation_batch_size, or else micro_batch_size x gradient_accumulation_steps, holds no "
     "whole number of groups of num_generations",
     "gradient_accumulation_steps: a multiple of num_generations",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:847"},
    {"refused_value", error, "neftune_noise_alpha",
     [](const Case& c) { return c.figure("neftune_noise_alpha", 1) <= 0; },
     "neftune_noise_alpha is above 0", "leave it out",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1562"},
    {"options_exclude", error, "gpu_memory_limit",
     [](const Case& c) {
       return c.has("max_memory") || c.part.settings.has_section("max_memory.");
     },
     "max_memory and gpu_memory_limit exclude each other", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1219"},
    {"option_needs", error, "base_model",
     [](const Case& c) {
       const Settings& s = c.part.settings;
       return !s.has("datasets") && !s.has_section("datasets.") && !s.has("pretraining_dataset") &&
              !s.has_section("pretraining_dataset.");
     },
     "no datasets and no pretraining_dataset: axolotl wants one of the two",
     "datasets: [{path: ..., type: ...}]",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:83"},
    {"options_exclude", error, "load_in_8bit",
     [](const Case& c) {
       return c.on("load_in_8bit") && c.is("adapter", "lora") && has_lora_kernels(c);
     },
     "lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel have no weights of 8 bits",
     "lora_mlp_kernel: false, and so on",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:655"},
    {"options_exclude", error, "trust_remote_code",
     [](const Case& c) { return c.on("trust_remote_code") && has_lora_kernels(c); },
     "lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel do not go with trust_remote_code",
     "trust_remote_code: false", "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:675"},
    {"option_needs", error, "peft_layers_pattern",
     [](const Case& c) {
       return c.on("peft_layers_pattern") && !c.has("peft_layers_to_transform");
     },
     "peft_layers_pattern needs peft_layers_to_transform", "peft_layers_to_transform: [0, 1]",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:609"},
    {"option_needs", error, "relora",
     [](const Case& c) { return c.on("relora") && !c.on("jagged_restart_steps"); },
     "relora needs jagged_restart_steps", "jagged_restart_steps: a number",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1582"},
    {"options_exclude", error, "relora",
     [](const Case& c) {
       return c.on("relora") &&
              (c.on("deepspeed") || c.on("fsdp") || c.part.settings.has_section("fsdp_config."));
     },
     "relora runs under neither FSDP nor DeepSpeed", "leave them out",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1597"},
    {"options_exclude", error, "chunked_cross_entropy",
     [](const Case& c) {
       return c.on("chunked_cross_entropy") + c.on("cut_cross_entropy") +
                  c.on("liger_cross_entropy") + c.on("liger_fused_linear_cross_entropy") >
              1;
     },
     "of the losses that save memory one is taken", "keep one of them",
     "axolotl 067b021c, src/axolotl/utils/schemas/validation.py:1029"},
    {"refused_value", error, "chat_template",
     [](const Case& c) { return template_of_axolotl(c.word("chat_template")) == Template::slip; },
     "chat_template is a slip of one of axolotl's, and it stops",
     "one of its names, tokenizer_default, or jinja with chat_template_jinja", kTemplatesOfAxolotl},
    {"refused_value", warning, "chat_template",
     [](const Case& c) {
       return template_of_axolotl(c.word("chat_template")) == Template::unknown;
     },
     "this release of axolotl has no such chat_template, and stops",
     "one of its names, tokenizer_default, or jinja with chat_template_jinja", kTemplatesOfAxolotl},
    {"recompute_twice", warning, "gradient_checkpointing",
     [](const Case& c) {
       const bool shards = c.on("fsdp_config.activation_checkpointing") ||
                           c.on("fsdp_config.fsdp_activation_checkpointing");
       return shards && c.on("gradient_checkpointing") && !c.on("activation_offloading") &&
              c.word("gradient_checkpointing").find("offload") == std::string::npos;
     },
     "FSDP's activation_checkpointing and gradient_checkpointing are both on, which transformers' "
     "Trainer refuses",
     "gradient_checkpointing: false",
     "axolotl 067b021c, src/axolotl/core/builders/base.py:600; transformers 5.23.0, "
     "src/transformers/trainer.py:879"},
});

constexpr auto kAxolotlTraps = [] {
  std::array<Trap, kOfItsWords.size() + kOfRuns.size() + kOfParts.size() + kOfModels.size()> all{};
  const auto runs = std::copy(kOfItsWords.begin(), kOfItsWords.end(), all.begin());
  const auto models = std::copy(kOfRuns.begin(), kOfRuns.end(), runs);
  const auto parts = std::copy(kOfParts.begin(), kOfParts.end(), models);
  std::copy(kOfModels.begin(), kOfModels.end(), parts);
  return all;
}();

}  // namespace

std::span<const Trap> axolotl_traps() {
  return kAxolotlTraps;
}

}  // namespace qplan
