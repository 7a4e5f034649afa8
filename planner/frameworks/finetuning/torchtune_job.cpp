// What torchtune's YAML (bd2a0fc7c) asks of torch: fully_shard of every layer, or one GPU, on its
// own modules, which are priced as Hugging Face's.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "models/model_spec.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/job_maker.h"

namespace qplan {
namespace {

class Torchtune : JobMaker {
 public:
  using JobMaker::JobMaker;

  TrainerJob make() {
    make_shards();
    make_batch();
    make_formats();
    if (yaml_.has("model.lora_rank")) make_adapters();
    assume();
    return std::move(job_);
  }

 private:
  void make_shards() {
    Settings& to = job_.accelerate;
    say(to, "distributed_type", "FSDP");
    say(to, "fsdp_config.fsdp_version", 2);
    hand(to, "fsdp_reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward");
    hand(to, "fsdp_cpu_offload", "fsdp_config.fsdp_offload_params");
    for (const auto& [key, name] : {std::pair{"tensor_parallel_dim", "tp_size"},
                                    {"context_parallel_dim", "cp_size"},
                                    {"data_parallel_replicate_dim", "dp_replicate_size"}}) {
      if (figure_of(yaml_, key, 1) <= 1) continue;
      hand(to, key, fmt::format("parallelism_config.parallelism_config_{}", name));
    }
    if (figure_of(yaml_, "context_parallel_dim", 1) > 1) {
      say(to, "parallelism_config.parallelism_config_cp_comm_strategy",
          word_of(yaml_, "context_parallel_rotate_method", "allgather"), "context_parallel_dim");
    }
  }

  void make_batch() {
    Settings& trainer = job_.trainer;
    // What is no number is refused by its own name.
    for (const auto& [key, name] :
         {std::pair{"batch_size", "--per_device_train_batch_size"},
          {"gradient_accumulation_steps", "--gradient_accumulation_steps"}}) {
      if (figure_of(yaml_, key, 0) >= 1) {
        hand(trainer, key, name);
      } else {
        say(trainer, name, 1, key);
      }
    }
    if (is_switched_on(yaml_, "compile") || is_switched_on(yaml_, "compile.model")) {
      say(trainer, "--torch_compile", true, "compile");
    }
    const std::string_view key = "tokenizer.max_seq_len";
    const auto length = static_cast<std::int64_t>(figure_of(yaml_, key, 0));
    if (length > 0) hand(trainer, key, "--max_length");
    const bool packs = is_switched_on(yaml_, "dataset.packed");
    if (length > 0) {
      assume_length("tokenizer.max_seq_len", packs, length);
    } else {
      job_.shorter = !packs;
    }
    // An answer chosen and one rejected run as one batch.
    if (contains(part("loss"), "dpo")) {
      say(job_.own_script, "pairs", true, "loss._component_");
    }
    say(job_.own_script, "recompute",
        word_of(yaml_, "ac_mode") == "selective"
            ? Json("selective")
            : Json(is_switched_on(yaml_, "enable_activation_checkpointing")),
        "enable_activation_checkpointing");
  }

  // One format for weights, gradients, their sums and the optimizer's states.
  void make_formats() {
    Settings& own = job_.own_script;
    const std::string format = word_of(yaml_, "dtype", "bf16");
    say(own, "weights", format, "dtype");
    say(own, "mixed_precision.param_dtype", format, "dtype");
    say(own, "mixed_precision.reduce_dtype", format, "dtype");
    say(job_.accelerate, "mixed_precision", "bf16", "dtype");
    if (format != "bf16") {
      job_.assumed.emplace_back("products in bf16: dtype makes them fp32");
    }
  }

  void make_adapters() {
    Settings& own = job_.own_script;
    say(own, "lora", true, "model.lora_rank");
    hand(own, "model.lora_rank", "lora.r");
    hand_or(own, "model.lora_alpha", "lora.lora_alpha", 16);
    hand(own, "model.lora_dropout", "lora.lora_dropout");
    hand(own, "model.use_dora", "lora.use_dora");
    Json names = Json::array();
    if (const Setting* const said = yaml_.find("model.lora_attn_modules")) {
      for (const std::string& name : list_of(said->value)) {
        names.push_back(name == "output_proj" ? "o_proj" : name);
      }
    }
    if (is_switched_on(yaml_, "model.apply_lora_to_mlp")) {
      for (const char* const name : {"gate_proj", "up_proj", "down_proj"}) names.push_back(name);
    }
    say(own, "lora.target_modules", std::move(names), "model.lora_attn_modules");
    if (is_switched_on(yaml_, "model.apply_lora_to_output")) {
      job_.assumed.emplace_back("a head without adapters: apply_lora_to_output gives it some");
    }
    const bool quantized =
        contains(part("model"), ".qlora_") || is_switched_on(yaml_, "model.quantize_base");
    if (quantized) say(own, "frozen", "nf4-double", "model._component_");
  }

  void assume() {
    if (is_switched_on(yaml_, "optimizer_in_bwd")) {
      assume_less(
          "gradients of all weights at once: optimizer_in_bwd steps and frees them one by one");
    }
    const std::string loss = part("loss");
    if (contains(loss, "linear") || contains(loss, "chunked")) {
      assume_less("a loss of whole logits: torchtune's works in chunks");
    }
    for (const auto& [key, what] :
         {std::pair{"teacher_model.", "the teacher's"}, {"ref_checkpointer.", "the reference's"}}) {
      if (!yaml_.has_section(key)) continue;
      job_.assumed.push_back(
          fmt::format("training alone: {} weights and forward are not counted", what));
    }
    if (is_switched_on(yaml_, "enable_fp8_training")) {
      job_.assumed.emplace_back("products in bf16: fp8 of torchao is not counted");
    }
    if (yaml_.has_section("quantizer.")) {
      job_.assumed.emplace_back(
          "weights as they are: what the quantizer makes of them while they "
          "are trained is not counted");
    }
    const std::string optimizer = part("optimizer");
    const std::string name = optimizer.substr(optimizer.rfind('.') + 1);  // npos + 1: all of it
    if (name != "adamw" && name != "adam") read_optimizer(name);
  }

  // The class or function that a section is made by.
  [[nodiscard]] std::string part(std::string_view section) const {
    return lower_case(word_of(yaml_, fmt::format("{}._component_", section)));
  }
};

}  // namespace

TrainerJob job_of_torchtune(const Settings& yaml, const Place& place) {
  return Torchtune(yaml, place).make();
}

std::string model_of_torchtune(const Settings& yaml) {
  std::string name = word_of(yaml, "model._component_");
  name.erase(0, name.rfind('.') + 1);  // npos + 1: nothing
  for (const std::string_view begin : {"qlora_", "lora_"}) {
    if (name.starts_with(begin)) name.erase(0, begin.size());
  }
  for (const std::string_view end : {"_instruct", "_base"}) {
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  }
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string dashes = name;
  for (std::size_t at = 0; at < name.size(); ++at) {
    if (is_built_in(name)) return name;
    const std::size_t dash = dashes.find('-', at);
    if (dash == std::string::npos) break;
    name = dashes;
    name[dash] = '.';
    at = dash;
  }
  return is_built_in(name) ? name : dashes;
}

}  // namespace qplan
