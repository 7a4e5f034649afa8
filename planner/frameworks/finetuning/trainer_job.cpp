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
#include "planner/frameworks/option.h"

namespace qplan {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Layers that a pattern names ("...layers.[\d]+.(mlp|self_attn).(up|down|q|k)_proj"): the words of
// the group before "_proj", or of the whole.
Json layers_of_pattern(const std::string& pattern) {
  Json names = Json::array();
  for (const auto& [target, word] : Words<LoraTarget>::table) {
    bool named = contains(pattern, word);
    constexpr std::string_view kEnd = "_proj";
    const std::size_t close = pattern.find(")_proj");
    const std::size_t open = close == std::string::npos ? close : pattern.rfind('(', close);
    if (!named && open != std::string::npos && word.ends_with(kEnd)) {
      const std::string group = "|" + pattern.substr(open + 1, close - open - 1) + "|";
      named = contains(group, fmt::format("|{}|", word.substr(0, word.size() - kEnd.size())));
    }
    if (named) names.push_back(std::string(word));
  }
  return names;
}

class JobMaker {
 public:
  JobMaker(const Settings& yaml, const Place& place) : yaml_(yaml), place_(place) {}

 protected:
  // A key of the YAML under another name; nothing where it is not said.
  void hand(Settings& to, std::string_view key, std::string name) const {
    const Setting* const found = yaml_.find(key);
    if (found == nullptr) return;
    Setting setting = *found;
    setting.key = std::move(name);
    to.add(std::move(setting));
  }

  // What stands nowhere, or follows; it has the place of `key`.
  void say(Settings& to, std::string name, Json value, std::string_view key = "") const {
    const Setting* const found = yaml_.find(key);
    to.add({std::move(name), std::move(value), found != nullptr ? found->place : place_});
  }

  void hand_or(Settings& to, std::string_view key, std::string name, Json otherwise) const {
    if (yaml_.has(key)) return hand(to, key, std::move(name));
    say(to, std::move(name), std::move(otherwise));
  }

  // A block of ds_config.json's keys in place of a path.
  void hand_deepspeed() {
    constexpr std::string_view kBlock = "deepspeed.";
    for (Setting setting : yaml_) {
      if (!setting.key.starts_with(kBlock)) continue;
      setting.key = setting.key.substr(kBlock.size());
      job_.ds_config.add(std::move(setting));
    }
    if (!job_.ds_config.empty()) say(job_.trainer, "--deepspeed", "a block of this file");
  }

  // Adapters of these layers: all linear ones, or those of a list ("q_proj,v_proj").
  void target(std::string_view key) {
    const Setting* const found = yaml_.find(key);
    if (found == nullptr) return;
    Json names = Json::array();
    if (found->value.is_array()) {
      names = found->value;
    } else if (contains(text_of(found->value), "(") || contains(text_of(found->value), ".*")) {
      names = layers_of_pattern(text_of(found->value));
    } else {
      std::string name;
      for (const char c : text_of(found->value) + ",") {
        if (c == ' ') continue;
        if (c != ',') {
          name += c;
        } else if (!name.empty()) {
          names.push_back(std::exchange(name, ""));
        }
      }
    }
    const bool all =
        names.size() == 1 && (text_of(names[0]) == "all" || text_of(names[0]) == "all-linear");
    say(job_.own_script, "lora.target_modules", all ? Json("all-linear") : std::move(names), key);
  }

  void assume_less(std::string sentence) {
    job_.assumed.push_back(std::move(sentence));
    job_.takes_less = true;
  }

  void read_optimizer(const std::string& name) {
    if (name.empty()) return;
    say(job_.own_script, "optimizer", name, yaml_.has("optim") ? "optim" : "optimizer");
  }

  void assume_length(std::string_view key, bool packs, std::int64_t length) {
    if (packs) return;
    job_.assumed.push_back(fmt::format(
        "every sequence has {} {}, the most: without packing one has its own tokens alone", key,
        length));
  }

  const Settings& yaml_;
  const Place& place_;
  TrainerJob job_;
};

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
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kDegrees{
        {{"dp_replicate_size", "dp_replicate"},
         {"dp_shard_size", "dp_shard"},
         {"tensor_parallel_size", "tp"},
         {"context_parallel_size", "cp"}}};
    for (const auto& [key, degree] : kDegrees) {
      if (figure_of(yaml_, key, 1) <= 1) continue;
      hand(accelerate, key, fmt::format("parallelism_config.parallelism_config_{}_size", degree));
    }
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
  return word_of(llama_factory, "quantization_method", "bnb");
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

}  // namespace qplan
