// What `swift sft` asks of a Trainer: its arguments are a Trainer's and its own, side by side.

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "models/lora.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

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

TrainerJob job_of_swift(const Settings& arguments, const Place& place) {
  return Swift(arguments, place).make();
}

}  // namespace qplan
