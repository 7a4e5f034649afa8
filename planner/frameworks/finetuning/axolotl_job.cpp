// What axolotl's YAML asks of a Trainer.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "models/lora.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

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
    for (const std::string_view key :
         {"quantize_moe_experts", "layer_offloading", "tiled_mlp", "lora_mlp_kernel"}) {
      if (!is_switched_on(yaml_, key)) continue;
      assume_less(fmt::format("nothing of {}, which is not counted", key));
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

TrainerJob job_of_axolotl(const Settings& yaml, const Place& place) {
  return Axolotl(yaml, place).make();
}

}  // namespace qplan
