// TRL (f2cd5771): `trl sft --model_name_or_path X`, its arguments or the YAML that --config names,
// as the Trainer's job that they ask for. Programs that call SFTConfig(...) are read as any
// program.

#include <fmt/format.h>

#include <algorithm>

#include "planner/frameworks/finetuning/job_maker.h"

namespace qplan {
namespace {

class Trl : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    verb_ = word_of(yaml_, "verb", "sft");
    hand_trainer();
    hand_configuration();
    if (is_switched_on(yaml_, "--use_peft")) make_adapters();
    const std::string stored =
        word_of(yaml_, "--dtype", word_of(yaml_, "--torch_dtype", "float32"));
    say(job_.own_script, "weights",
        stored == "auto"       ? "auto"
        : stored == "bfloat16" ? "bf16"
        : stored == "float16"  ? "fp16"
                               : "fp32",
        "--dtype");
    const bool keeps =
        yaml_.has("--gradient_checkpointing") && !is_switched_on(yaml_, "--gradient_checkpointing");
    say(job_.own_script, "recompute", !keeps, "--gradient_checkpointing");
    if (has_pairs()) say(job_.own_script, "pairs", true, "verb");
    assume();
    return std::move(job_);
  }

 private:
  [[nodiscard]] bool generates() const { return verb_ == "grpo" || verb_ == "rloo"; }
  [[nodiscard]] bool has_pairs() const {
    return verb_ == "dpo" || verb_ == "reward" || verb_ == "orpo" || verb_ == "cpo";
  }

  // By its name, or the one that older releases gave it.
  [[nodiscard]] std::string_view length_key() const {
    return yaml_.has("--max_length") || !yaml_.has("--max_seq_length") ? "--max_length"
                                                                       : "--max_seq_length";
  }

  void hand_trainer() {
    const OptionList& trainer = known_options("trainer");
    for (const Setting& setting : yaml_) {
      const bool ours = setting.key == "--gradient_checkpointing" || setting.key == "--bf16" ||
                        setting.key == "--fp16";
      if (!ours && trainer.find(setting.key) != nullptr) job_.trainer.add(setting);
    }
    // bf16 unless fp16 is asked for (base_config.py).
    const bool half = is_switched_on(yaml_, "--fp16");
    say(job_.trainer, half ? "--fp16" : "--bf16", true, half ? "--fp16" : "--bf16");
    if (!yaml_.has("--per_device_train_batch_size")) {
      say(job_.trainer, "--per_device_train_batch_size", 8);
    }
    if (!yaml_.has("--gradient_accumulation_steps")) {
      say(job_.trainer, "--gradient_accumulation_steps", 1);
    }
    const double prompt = figure_of(yaml_, "--max_prompt_length", 512);
    const double answer = figure_of(yaml_, "--max_completion_length", 512);
    if (generates()) {
      const auto length = static_cast<std::int64_t>(prompt + answer);
      say(job_.trainer, "--max_length", length, "--max_completion_length");
      job_.assumed.push_back(
          fmt::format("sequences of {} tokens: a prompt of {} and an answer of {}, the most",
                      length, prompt, answer));
      job_.shorter = true;
      return;
    }
    hand_or(job_.trainer, length_key(), "--max_length", 1024);
    const bool packs = is_switched_on(yaml_, "--packing");
    assume_length("max_length", packs,
                  static_cast<std::int64_t>(figure_of(yaml_, length_key(), 1024)));
  }

  // Configurations of accelerate's that it brings by name (trl/accelerate_configs).
  void hand_configuration() {
    const std::string name = word_of(yaml_, "--accelerate_config");
    constexpr std::string_view kKey = "--accelerate_config";
    if (name.size() == 5 && name.starts_with("zero")) {
      say(job_.ds_config, "zero_optimization.stage", name[4] - '0', kKey);
      for (const std::string_view key :
           {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
        say(job_.ds_config, std::string(key), "auto", kKey);
      }
      say(job_.trainer, "--deepspeed", "a configuration of TRL's", kKey);
    } else if (name == "fsdp1" || name == "fsdp2") {
      say(job_.accelerate, "distributed_type", "FSDP", kKey);
      say(job_.accelerate, "fsdp_config.fsdp_version", name == "fsdp2" ? 2 : 1, kKey);
      say(job_.accelerate, "mixed_precision", "bf16", kKey);
    }
  }

  void make_adapters() {
    Settings& own = job_.own_script;
    say(own, "lora", true, "--use_peft");
    hand_or(own, "--lora_r", "lora.r", 16);
    hand_or(own, "--lora_alpha", "lora.lora_alpha", 32);
    hand_or(own, "--lora_dropout", "lora.lora_dropout", 0.05);
    hand(own, "--use_dora", "lora.use_dora");
    save_modules("--lora_modules_to_save");
    target("--lora_target_modules");
    if (is_switched_on(yaml_, "--load_in_4bit")) {
      say(own, "frozen", is_switched_on(yaml_, "--use_bnb_nested_quant") ? "nf4-double" : "nf4",
          "--load_in_4bit");
    } else if (is_switched_on(yaml_, "--load_in_8bit")) {
      say(own, "frozen", "int8", "--load_in_8bit");
    }
  }

  void assume() {
    read_optimizer(word_of(yaml_, "--optim"));
    if (is_switched_on(yaml_, "--use_liger_kernel")) {
      assume_less("transformers' own modules: other kernels' savings are not counted");
    }
    if (generates()) {
      job_.assumed.push_back(fmt::format("training alone: {}'s generation is not counted", verb_));
    }
    if (verb_ == "reward") {
      assume_less("a head as large as the vocabulary: a reward model has one number");
    }
  }

  std::string verb_;
};

}  // namespace

TrainerJob job_of_trl(const Settings& arguments, const Place& place) {
  return Trl(arguments, place).make();
}

}  // namespace qplan
