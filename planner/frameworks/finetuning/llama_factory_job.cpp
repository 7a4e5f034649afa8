// What LLaMA-Factory's YAML asks of a Trainer.

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "models/lora.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/job_maker.h"

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

}  // namespace

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

}  // namespace qplan
