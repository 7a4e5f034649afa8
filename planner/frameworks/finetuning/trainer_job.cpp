// What LLaMA-Factory's and axolotl's YAML ask of a Trainer.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "models/lora.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

class LlamaFactory : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    if (!is_switched_on(yaml_, "do_train")) return std::move(job_);
    hand_trainer();
    const std::string kind = word_of(yaml_, "finetuning_type", "lora");
    if (kind == "lora" || kind == "oft") make_adapters();
    make_weights(kind);
    say(job_.own_script, "recompute", !is_switched_on(yaml_, "disable_gradient_checkpointing"),
        "disable_gradient_checkpointing");
    const std::string stage = word_of(yaml_, "stage", "sft");
    // Chosen and rejected answers run as one batch.
    if (stage == "dpo" || stage == "rm") say(job_.own_script, "pairs", true, "stage");
    const bool packs =
        is_switched_on(yaml_, "packing") || is_switched_on(yaml_, "neat_packing") || stage == "pt";
    assume_length("cutoff_len", packs,
                  static_cast<std::int64_t>(figure_of(yaml_, "cutoff_len", 2048)));
    assume(kind);
    return std::move(job_);
  }

 private:
  // Its arguments are a Trainer's and its own, side by side.
  void hand_trainer() {
    const OptionList& trainer = known_options("trainer");
    for (const Setting& setting : yaml_) {
      const std::string name = "--" + setting.key;
      if (trainer.find(name) == nullptr || setting.key == "gradient_checkpointing") continue;
      hand(job_.trainer, setting.key, name);
    }
    hand_deepspeed();
    hand_or(job_.trainer, "cutoff_len", "--max_length", 2048);
    if (!yaml_.has("per_device_train_batch_size")) {
      say(job_.trainer, "--per_device_train_batch_size", 8);
      job_.assumed.emplace_back(
          "8 sequences a GPU, transformers' default: per_device_train_batch_size is not said");
    }
    if (!yaml_.has("gradient_accumulation_steps")) {
      say(job_.trainer, "--gradient_accumulation_steps", 1);
    }
  }

  void make_adapters() {
    Settings& own = job_.own_script;
    const auto rank = static_cast<std::int64_t>(figure_of(yaml_, "lora_rank", 8));
    say(own, "lora", true, "finetuning_type");
    hand_or(own, "lora_rank", "lora.r", 8);
    hand_or(own, "lora_alpha", "lora.lora_alpha", 2 * rank);
    hand(own, "lora_dropout", "lora.lora_dropout");
    hand(own, "use_dora", "lora.use_dora");
    save_modules("additional_target");
    if (yaml_.has("lora_target")) {
      target("lora_target");
    } else {
      say(own, "lora.target_modules", "all-linear");
    }
    const std::string quantizer = quantizer_of(yaml_);
    const bool four = figure_of(yaml_, "quantization_bit", 0) <= 4;
    if (quantizer == "bnb") {
      const bool doubles =
          !yaml_.has("double_quantization") || is_switched_on(yaml_, "double_quantization");
      say(own, "frozen", !four ? "int8" : doubles ? "nf4-double" : "nf4", "quantization_bit");
    } else if (!quantizer.empty()) {
      say(own, "frozen", four ? "int4" : "int8", "quantization_bit");
    } else if (const std::string model = word_of(yaml_, "model_name_or_path");
               is_quantized_checkpoint(model)) {
      say(own, "frozen", "int4", "model_name_or_path");
      job_.assumed.push_back(fmt::format("weights of 4 bits, by the name {}", shown(model)));
    }
  }

  // Trained weights are made fp32 as they are loaded, unless pure_bf16 asks for none of it.
  void make_weights(const std::string& kind) {
    const std::string format = is_switched_on(yaml_, "bf16") || is_switched_on(yaml_, "pure_bf16")
                                   ? "bf16"
                               : is_switched_on(yaml_, "fp16") ? "fp16"
                                                               : "fp32";
    const bool adapts = kind == "lora" || kind == "oft";
    const bool narrow = adapts || is_switched_on(yaml_, "pure_bf16");
    say(job_.own_script, "weights", narrow ? format : "fp32", "pure_bf16");
    if (format == "fp32") {
      job_.assumed.emplace_back(
          "products in bf16: neither bf16 nor fp16 is on, so they run in fp32");
    }
  }

  void assume(const std::string& kind) {
    if (kind == "freeze") {
      assume_less(
          fmt::format("every weight is trained: freeze trains {} layers, which no plan can say",
                      std::abs(figure_of(yaml_, "freeze_trainable_layers", 2))));
    }
    if (kind == "oft") job_.assumed.emplace_back("LoRA's adapters of rank 8 in place of oft's");
    for (const std::string_view key : {"use_galore", "use_apollo", "use_badam", "use_muon"}) {
      if (is_switched_on(yaml_, key)) read_optimizer(std::string(key.substr(4)));
    }
    read_optimizer(word_of(yaml_, "optim"));
    for (const std::string_view key : {"use_unsloth", "enable_liger_kernel", "use_kt"}) {
      if (!is_switched_on(yaml_, key)) continue;
      assume_less(fmt::format("transformers' own modules: what {} changes is not counted", key));
    }
    // Of which no key tells: an environment variable does (USE_MCA).
    const bool megatron =
        yaml_.has("tensor_model_parallel_size") || yaml_.has("pipeline_model_parallel_size") ||
        is_switched_on(yaml_, "use_mca") || is_switched_on(yaml_, "use_megatron_bridge");
    if (megatron) assume_less("a Trainer's job: what Megatron makes of it is not read");
  }
};

class Axolotl : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    hand_trainer();
    const std::string adapter = word_of(yaml_, "adapter");
    if (adapter == "lora" || adapter == "qlora") make_adapters(adapter);
    make_weights();
    const bool recomputes = is_switched_on(yaml_, "gradient_checkpointing") ||
                            is_switched_on(yaml_, "fsdp_config.activation_checkpointing") ||
                            is_switched_on(yaml_, "fsdp_config.fsdp_activation_checkpointing");
    say(job_.own_script, "recompute", recomputes, "gradient_checkpointing");
    const std::string rl = word_of(yaml_, "rl");
    if (rl == "dpo" || rl == "ipo" || rl == "orpo" || rl == "simpo") {
      say(job_.own_script, "pairs", true, "rl");
    }
    make_accelerate();
    assume_length("sequence_len", is_switched_on(yaml_, "sample_packing"),
                  static_cast<std::int64_t>(figure_of(yaml_, "sequence_len", 512)));
    assume(adapter, rl);
    return std::move(job_);
  }

 private:
  void hand_trainer() {
    Settings& trainer = job_.trainer;
    for (const std::string_view key :
         {"learning_rate", "weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2",
          "adam_epsilon", "deepspeed", "torch_compile", "fp16", "max_steps"}) {
      hand(trainer, key, fmt::format("--{}", key));
    }
    hand_deepspeed();
    // bf16 where the GPU has it, unless fp16 is asked for.
    const bool fp16 = is_switched_on(yaml_, "fp16") || is_switched_on(yaml_, "float16");
    say(trainer, "--bf16", !fp16 && word_of(yaml_, "bf16", "auto") != "false", "bf16");
    hand_or(trainer, "sequence_len", "--max_length", 512);
    const double micro = figure_of(yaml_, "micro_batch_size", 1);
    hand_or(trainer, "micro_batch_size", "--per_device_train_batch_size", 1);
    const double all = figure_of(yaml_, "batch_size", 0);
    if (all > 0 && micro > 0 && !yaml_.has("gradient_accumulation_steps")) {
      say(trainer, "--gradient_accumulation_steps",
          std::max<std::int64_t>(1, static_cast<std::int64_t>(all / micro)), "batch_size");
    } else {
      hand_or(trainer, "gradient_accumulation_steps", "--gradient_accumulation_steps", 1);
    }
  }

  void make_adapters(const std::string& adapter) {
    Settings& own = job_.own_script;
    say(own, "lora", true, "adapter");
    hand(own, "lora_r", "lora.r");
    hand(own, "lora_alpha", "lora.lora_alpha");
    hand(own, "lora_dropout", "lora.lora_dropout");
    hand(own, "peft_use_dora", "lora.use_dora");
    save_modules("lora_modules_to_save");
    if (is_switched_on(yaml_, "lora_target_linear")) {
      say(own, "lora.target_modules", "all-linear", "lora_target_linear");
    } else {
      target("lora_target_modules");
    }
    if (adapter == "qlora" && is_switched_on(yaml_, "load_in_4bit")) {
      const bool once = yaml_.has("bnb_config_kwargs.bnb_4bit_use_double_quant") &&
                        !is_switched_on(yaml_, "bnb_config_kwargs.bnb_4bit_use_double_quant");
      say(own, "frozen", once ? "nf4" : "nf4-double", "load_in_4bit");
    } else if (is_switched_on(yaml_, "load_in_8bit")) {
      say(own, "frozen", "int8", "load_in_8bit");
    } else if (is_switched_on(yaml_, "gptq") ||
               is_quantized_checkpoint(word_of(yaml_, "base_model"))) {
      say(own, "frozen", "int4", yaml_.has("gptq") ? "gptq" : "base_model");
    }
  }

  // The model is loaded in the format of its products, and stays in it.
  void make_weights() {
    const bool fp16 = is_switched_on(yaml_, "fp16") || is_switched_on(yaml_, "float16");
    const bool bf16 =
        word_of(yaml_, "bf16", "auto") != "false" || is_switched_on(yaml_, "bfloat16");
    say(job_.own_script, "weights", fp16 ? "fp16" : bf16 ? "bf16" : "fp32", "bf16");
  }

  // FSDP, and degrees of a mesh, which axolotl hands to accelerate.
  void make_accelerate() {
    constexpr std::string_view kSection = "fsdp_config.";
    Settings& accelerate = job_.accelerate;
    if (!yaml_.has_section("fsdp_config") && !yaml_.has("fsdp")) return;
    const Setting* const list = yaml_.find("fsdp");
    // An empty list, or none of either: it is switched off.
    const bool listed = list != nullptr && !list->value.empty() && !text_of(list->value).empty();
    if (!listed && !yaml_.has_section(kSection)) return;
    say(accelerate, "distributed_type", "FSDP", "fsdp");
    for (Setting setting : yaml_) {
      if (!setting.key.starts_with(kSection)) continue;
      std::string name = setting.key.substr(kSection.size());
      if (name == "version") name = "fsdp_version";
      if (!name.starts_with("fsdp_")) name.insert(0, "fsdp_");
      setting.key = std::string(kSection) + name;
      accelerate.add(std::move(setting));
    }
    hand(accelerate, "fsdp_version", "fsdp_config.fsdp_version");
    if (list != nullptr && contains(text_of(list->value), "offload")) {
      say(accelerate, "fsdp_config.fsdp_offload_params", true, "fsdp");
    }
    hand_degrees();
  }

  // As axolotl 067b021c, src/axolotl/utils/distributed.py (_get_parallel_config_kwargs) makes a
  // mesh of them: what is not said is filled, and expert parallelism takes ranks that hold copies
  // of all else.
  void hand_degrees() {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kDegrees{
        {{"dp_shard_size", "dp_shard"},
         {"tensor_parallel_size", "tp"},
         {"context_parallel_size", "cp"}}};
    Settings& accelerate = job_.accelerate;
    const auto name = [](std::string_view degree) {
      return fmt::format("parallelism_config.parallelism_config_{}_size", degree);
    };
    for (const auto& [key, degree] : kDegrees) {
      if (figure_of(yaml_, key, 1) > 1) hand(accelerate, key, name(degree));
    }
    const double experts = figure_of(yaml_, "expert_parallel_size", 1);
    const double copies = std::max(1.0, figure_of(yaml_, "dp_replicate_size", 1));
    if (copies > 1 || (experts > 1 && figure_of(yaml_, "dp_shard_size", 1) <= 1)) {
      const bool said = yaml_.has("dp_replicate_size");
      say(accelerate, name("dp_replicate"),
          static_cast<std::int64_t>(copies * std::max(1.0, experts)),
          said ? "dp_replicate_size" : "expert_parallel_size");
    } else if (figure_of(yaml_, "dp_shard_size", 1) > 1) {
      say(accelerate, std::string(kFillsReplicas), true, "dp_shard_size");
    }
    if (experts <= 1) return;
    assume_less(
        "copies of every weight on each rank of expert_parallel_size: that it spreads experts is "
        "not counted");
  }

  void assume(const std::string& adapter, const std::string& rl) {
    if (!adapter.empty() && adapter != "lora" && adapter != "qlora") {
      assume_less(
          fmt::format("every weight is trained: adapter {} is not counted", shown(adapter)));
    }
    for (const std::string_view key : {"unfrozen_parameters", "lisa_n_layers"}) {
      if (!yaml_.has(key)) continue;
      assume_less(
          fmt::format("every weight is trained: {} leaves some out, which no plan can say", key));
    }
    for (const std::string_view key : {"quantize_moe_experts", "activation_offloading",
                                       "layer_offloading", "tiled_mlp", "lora_mlp_kernel"}) {
      if (!is_switched_on(yaml_, key)) continue;
      assume_less(fmt::format("nothing of {}, which is not counted", key));
    }
    if (word_of(yaml_, "gradient_checkpointing").starts_with("offload")) {
      assume_less("activations on the GPU: gradient_checkpointing: offload is not counted");
    }
    if (yaml_.has("plugins")) {
      assume_less("transformers' own modules: what plugins change is not counted");
    }
    if (rl == "grpo" || rl == "gdpo" || rl == "ebft") {
      job_.assumed.push_back(fmt::format("training alone: {}'s generation is not counted", rl));
    }
    const bool mesh = !job_.accelerate.empty();
    for (const std::string_view key : {"tensor_parallel_size", "context_parallel_size"}) {
      if (!mesh && figure_of(yaml_, key, 1) > 1) {
        job_.assumed.push_back(fmt::format("no {}: it is not read without fsdp_config", key));
      }
    }
    read_optimizer(word_of(yaml_, "optimizer"));
  }
};

// `swift sft`: its arguments are a Trainer's and its own, side by side.
class Swift : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    hand_trainer();
    hand_presets();
    const std::string tuner = word_of(yaml_, "--tuner_type", "lora");
    const bool adapts = tuner == "lora" || tuner == "adalora" || tuner == "longlora";
    if (adapts) make_adapters();
    say(job_.own_script, "weights", is_half() ? "fp16" : "bf16", "--torch_dtype");
    const bool keeps =
        yaml_.has("--gradient_checkpointing") && !is_switched_on(yaml_, "--gradient_checkpointing");
    if (job_.accelerate.empty()) {
      say(job_.own_script, "recompute", !keeps, "--gradient_checkpointing");
    }
    const std::string way = word_of(yaml_, "--rlhf_type");
    for (const std::string_view pairs : {"dpo", "rm", "cpo", "orpo", "simpo"}) {
      if (way == pairs) say(job_.own_script, "pairs", true, "--rlhf_type");
    }
    assume(tuner, adapts, way);
    return std::move(job_);
  }

 private:
  // What the checkpoint is stored in decides, unless it is said; bf16 as nearly all are.
  [[nodiscard]] bool is_half() const {
    return is_switched_on(yaml_, "--fp16") || word_of(yaml_, "--torch_dtype") == "float16";
  }

  void hand_trainer() {
    const OptionList& trainer = known_options("trainer");
    for (const Setting& setting : yaml_) {
      const bool ours = setting.key == "--gradient_checkpointing" || setting.key == "--deepspeed" ||
                        setting.key == "--fsdp" || setting.key == "--bf16" ||
                        setting.key == "--fp16";
      if (!ours && trainer.find(setting.key) != nullptr) job_.trainer.add(setting);
    }
    say(job_.trainer, is_half() ? "--fp16" : "--bf16", true, "--torch_dtype");
    const bool packs = is_switched_on(yaml_, "--packing");
    const std::string_view length =
        packs && yaml_.has("--packing_length") ? "--packing_length" : "--max_length";
    hand(job_.trainer, length, "--max_length");
    job_.shorter = !packs;  // than as long as may be
    if (yaml_.has(length)) {
      assume_length(length.substr(2), packs,
                    static_cast<std::int64_t>(figure_of(yaml_, length, 0)));
    }
    if (!yaml_.has("--per_device_train_batch_size")) {
      say(job_.trainer, "--per_device_train_batch_size", 1);
    }
    // As many as make a step of 16 sequences (swift/trainers/arguments.py).
    if (!yaml_.has("--gradient_accumulation_steps")) say(job_.own_script, "steps_of", 16);
  }

  // Its own files of DeepSpeed's and FSDP2's configuration (swift/config).
  void hand_presets() {
    const std::string deepspeed = word_of(yaml_, "--deepspeed");
    if (deepspeed.size() >= 5 && deepspeed.starts_with("zero") && !contains(deepspeed, ".")) {
      Settings& config = job_.ds_config;
      say(config, "zero_optimization.stage", deepspeed[4] - '0', "--deepspeed");
      say(config, "zero_optimization.overlap_comm", false, "--deepspeed");
      for (const std::string_view key :
           {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
            "gradient_clipping", "bf16.enabled", "fp16.enabled"}) {
        say(config, std::string(key), "auto", "--deepspeed");
      }
      if (deepspeed.ends_with("_offload")) {
        say(config, "zero_optimization.offload_optimizer.device", "cpu", "--deepspeed");
        if (deepspeed[4] == '3') {
          say(config, "zero_optimization.offload_param.device", "cpu", "--deepspeed");
        }
      }
      say(job_.trainer, "--deepspeed", "a preset of ms-swift's", "--deepspeed");
    } else {
      hand(job_.trainer, "--deepspeed", "--deepspeed");
    }
    if (yaml_.has("--deepspeed")) {
      hand(job_.ds_config, "--deepspeed_autotp_size", "tensor_parallel.autotp_size");
      hand(job_.ds_config, "--sequence_parallel_size", "sequence_parallel_size");
    }
    const std::string fsdp = word_of(yaml_, "--fsdp");
    if (fsdp == "fsdp2") {
      Settings& config = job_.accelerate;
      say(config, "distributed_type", "FSDP", "--fsdp");
      say(config, "fsdp_config.fsdp_version", 2, "--fsdp");
      say(config, "fsdp_config.fsdp_reshard_after_forward", true, "--fsdp");
      say(config, "fsdp_config.fsdp_activation_checkpointing", true, "--fsdp");
      say(config, "mixed_precision", is_half() ? "fp16" : "bf16", "--torch_dtype");
    } else if (!fsdp.empty()) {
      say(job_.trainer, "--fsdp", true, "--fsdp");
    }
  }

  void make_adapters() {
    Settings& own = job_.own_script;
    say(own, "lora", true, "--tuner_type");
    hand_or(own, "--lora_rank", "lora.r", 8);
    hand_or(own, "--lora_alpha", "lora.lora_alpha", 32);
    hand_or(own, "--lora_dropout", "lora.lora_dropout", 0.05);
    hand(own, "--use_dora", "lora.use_dora");
    save_modules("--modules_to_save");
    if (yaml_.has("--target_modules") && !yaml_.has("--target_regex")) {
      target("--target_modules");
    } else if (yaml_.has("--target_regex")) {
      say(own, "lora.target_modules", layers_of_pattern(word_of(yaml_, "--target_regex")),
          "--target_regex");
    } else {
      say(own, "lora.target_modules", "all-linear");
    }
    const std::string quantizer = word_of(yaml_, "--quant_method");
    const bool four = figure_of(yaml_, "--quant_bits", 8) <= 4;
    if (quantizer == "bnb") {
      const bool once = yaml_.has("--bnb_4bit_use_double_quant") &&
                        !is_switched_on(yaml_, "--bnb_4bit_use_double_quant");
      say(own, "frozen", !four ? "int8" : once ? "nf4" : "nf4-double", "--quant_method");
    } else if (!quantizer.empty()) {
      say(own, "frozen", four ? "int4" : "int8", "--quant_method");
    } else if (is_quantized_checkpoint(word_of(yaml_, "--model"))) {
      say(own, "frozen", "int4", "--model");
    }
  }

  void assume(const std::string& tuner, bool adapts, const std::string& way) {
    if (!adapts && tuner != "full") {
      assume_less(fmt::format("every weight is trained: tuner_type {} is not counted", tuner));
    }
    if (!adapts) {
      for (const std::string_view key :
           {"--freeze_llm", "--freeze_parameters", "--freeze_parameters_regex",
            "--freeze_parameters_ratio", "--lisa_activated_layers"}) {
        const std::string value = word_of(yaml_, key);
        if (value.empty() || value == "false" || value == "0") continue;
        assume_less(fmt::format(
            "every weight is trained: {} leaves some out, which no plan can say", key.substr(2)));
      }
    }
    if (way == "rm" || (yaml_.has("--task_type") && word_of(yaml_, "--task_type") != "causal_lm")) {
      assume_less("a head as large as the vocabulary: this task has a small one");
    }
    if (is_switched_on(yaml_, "--use_galore")) read_optimizer("galore");
    read_optimizer(word_of(yaml_, "--optim"));
    if (yaml_.has("--optimizer"))
      assume_less("Adam's two moments in place of what optimizer keeps");
    if (is_switched_on(yaml_, "--use_liger_kernel") ||
        word_of(yaml_, "--tuner_backend") == "unsloth") {
      assume_less("transformers' own modules: other kernels' savings are not counted");
    }
    if (way == "grpo" || way == "gkd" || way == "ppo") {
      job_.assumed.push_back(fmt::format("training alone: {}'s generation is not counted", way));
    }
    if (figure_of(yaml_, "--sequence_parallel_size", 1) > 1 && !yaml_.has("--deepspeed")) {
      job_.assumed.emplace_back("no sequence_parallel_size: it is read beside deepspeed alone");
      job_.takes_less = true;
    }
  }
};

}  // namespace

bool is_switched_on(const Settings& yaml, std::string_view key) {
  const Setting* const found = yaml.find(key);
  if (found == nullptr || found->value.is_null()) return false;
  const std::string word = lower_case(text_of(found->value));
  return !word.empty() && word != "false" && word != "no" && word != "off" && word != "0";
}

std::string word_of(const Settings& yaml, std::string_view key, std::string_view otherwise) {
  const Setting* const found = yaml.find(key);
  if (found == nullptr || found->value.is_null()) return std::string(otherwise);
  return lower_case(text_of(found->value));
}

double figure_of(const Settings& yaml, std::string_view key, double otherwise) {
  const Setting* const found = yaml.find(key);
  if (found == nullptr || found->value.is_null()) return otherwise;
  try {
    return number_of(found->value);
  } catch (const Error&) {
    return otherwise;  // what is no number is said elsewhere
  }
}

std::string quantizer_of(const Settings& llama_factory) {
  if (!llama_factory.has("quantization_bit")) return "";
  const std::string method = word_of(llama_factory, "quantization_method", "bnb");
  // Others are of checkpoints that are quantised already (ff6d4d12,
  // src/llamafactory/model/model_utils/quantization.py:163).
  return method == "bnb" || method == "hqq" || method == "eetq" ? method : "";
}

bool is_quantized_checkpoint(std::string_view model) {
  const std::string name = lower_case(model);
  return contains(name, "gptq") || contains(name, "awq") || contains(name, "aqlm");
}

TrainerJob job_of_llama_factory(const Settings& yaml, const Place& place) {
  return LlamaFactory(yaml, place).make();
}

TrainerJob job_of_axolotl(const Settings& yaml, const Place& place) {
  return Axolotl(yaml, place).make();
}

TrainerJob job_of_swift(const Settings& arguments, const Place& place) {
  return Swift(arguments, place).make();
}

}  // namespace qplan
