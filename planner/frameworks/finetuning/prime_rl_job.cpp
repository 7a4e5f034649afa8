#include <fmt/format.h>

#include <algorithm>

#include "models/model_spec.h"
#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/finetuning/prime_rl.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

bool learns_from_answers(const Settings& toml) {
  return toml.has_section("orchestrator.");
}

// A section that is switched on unless "None" stands in its place.
bool is_off(const Settings& toml, std::string_view key) {
  const std::string word = lower_case(word_of(toml, key));
  return word == "none" || word == "null" || word == "false";
}

class PrimeRl : JobMaker {
 public:
  PrimeRl(const Settings& toml, const Place& place)
      : JobMaker(toml, place), of_answers_(learns_from_answers(toml)) {}

  TrainerJob make() {
    make_degrees();
    make_batch();
    make_formats();
    make_memory();
    return std::move(job_);
  }

 private:
  // "model.cp" of the trainer, wherever it stands.
  [[nodiscard]] std::string key(std::string_view name) const {
    return fmt::format("{}{}", of_answers_ ? "trainer." : "", name);
  }
  [[nodiscard]] std::int64_t whole(std::string_view name, std::int64_t otherwise) const {
    const double said = figure_of(yaml_, name, static_cast<double>(otherwise));
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(said));
  }

  void make_degrees() {
    Settings& to = job_.torchtitan;
    const PrimeRlGpus gpus = gpus_of_prime_rl(yaml_);
    const std::string_view groups = "deployment.nodes_per_fsdp_group";
    const std::int64_t replicas =
        yaml_.has(groups) ? std::max<std::int64_t>(1, gpus.nodes / whole(groups, gpus.nodes))
                          : whole(key("model.dp_replicate"), 1);
    say(to, "parallelism.data_parallel_shard_degree", -1, key("model.dp_replicate"));
    if (replicas > 1) {
      say(to, "parallelism.data_parallel_replicate_degree", replicas,
          yaml_.has(groups) ? std::string(groups) : key("model.dp_replicate"));
    }
    if (figure_of(yaml_, key("model.cp"), 1) > 1) {
      hand(to, key("model.cp"), "parallelism.context_parallel_degree");
      if (word_of(yaml_, key("model.cp_style"), "ring") == "ulysses") {
        job_.assumed.emplace_back(
            "keys and values gathered by context parallelism: cp_style ulysses exchanges heads, "
            "which is not predicted under this framework");
      }
    }
    if (const std::int64_t ranks = expert_ranks(gpus, replicas); ranks > 1) {
      say(to, "parallelism.expert_parallel_degree", ranks, key("model.ep"));
      const bool deepep = word_of(yaml_, key("model.ep_comm_backend"), "torch") == "deepep";
      say(to, "moe_comm_backend", deepep ? "deepep" : "standard", key("model.ep_comm_backend"));
    }
    if (yaml_.has(key("model.reshard_after_forward"))) {
      say(to, "parallelism.fsdp_reshard_after_forward",
          is_switched_on(yaml_, key("model.reshard_after_forward")) ? "always" : "never",
          key("model.reshard_after_forward"));
    }
  }

  // "auto" is as many as there are in a group, 8 at most, of a model with experts
  // (src/prime_rl/trainer/parallel_dims.py, resolve_ep).
  [[nodiscard]] std::int64_t expert_ranks(const PrimeRlGpus& gpus, std::int64_t replicas) const {
    if (const double said = figure_of(yaml_, key("model.ep"), 0); said >= 1) {
      return static_cast<std::int64_t>(said);
    }
    const std::string name = built_in_of_id(model_of_prime_rl(yaml_));
    if (name.empty() || !load_model(name).moe || word_of(yaml_, key("model.impl")) == "hf")
      return 1;
    return std::min<std::int64_t>(8,
                                  gpus.nodes * gpus.of_node / std::max<std::int64_t>(1, replicas));
  }

  void make_batch() {
    Settings& to = job_.torchtitan;
    std::string length_key = of_answers_ ? "trainer.model.seq_len" : "data.seq_len";
    if (of_answers_ && !yaml_.has(length_key)) length_key = "seq_len";
    const std::int64_t length = whole(length_key, of_answers_ ? 2048 : 128);
    const std::string batch_key = of_answers_ ? "orchestrator.batch_size" : "data.batch_size";
    const std::int64_t batch = whole(batch_key, 128);
    const std::int64_t micro = of_answers_ ? 1 : whole("data.micro_batch_size", 1);
    say(to, "training.max_context_length", length, length_key);
    say(to, "training.num_tokens_per_microbatch_per_dp_rank", micro * length,
        "data.micro_batch_size");
    say(to, "training.num_tokens_per_train_step", batch * length, batch_key);
    if (!of_answers_) return;
    job_.shorter = true;
    job_.assumed.push_back(fmt::format(
        "the trainer alone, of {} answers with {} tokens each, the most: engines and orchestrator "
        "have GPUs of their own and are not counted, and answers are packed",
        batch, length));
  }

  void make_formats() {
    Settings& own = job_.own_script;
    if (word_of(yaml_, key("model.optimization_dtype"), "float32") == "bfloat16") {
      say(own, "weights", "bf16", key("model.optimization_dtype"));
      say(own, "mixed_precision.reduce_dtype",
          word_of(yaml_, key("model.reduce_dtype"), "float32") == "bfloat16" ? "bf16" : "fp32",
          key("model.reduce_dtype"));
    } else if (word_of(yaml_, key("model.reduce_dtype"), "float32") == "bfloat16") {
      job_.assumed.emplace_back("gradients reduced in fp32: reduce_dtype bfloat16 is not counted");
    }
    const std::string optimizer = word_of(yaml_, key("optim.type"), "adamw");
    if (optimizer != "adamw") {
      say(own, "optimizer", optimizer == "sign_sgd" ? "sgd" : optimizer, key("optim.type"));
    }
    const std::string quantized = word_of(yaml_, key("model.quantization.type"));
    if (quantized == "fp8" || quantized == "mxfp8") {
      say(job_.torchtitan, "model.converters", quantized, key("model.quantization.type"));
    }
  }

  void make_memory() {
    Settings& to = job_.torchtitan;
    say(to, "compile.enable", !is_off(yaml_, key("model.compile")), key("model.compile"));
    say(to, "training.disable_cuda_graphs", true);
    say(to, "loss", std::string(kWholeLoss));
    if (of_answers_) assume_less("a loss of whole logits: the trainer's head works in chunks");
    make_checkpointing();
    const bool all = is_switched_on(yaml_, key("model.fsdp_cpu_offload"));
    say(to, "training.enable_cpu_offload", all, key("model.fsdp_cpu_offload"));
    const bool full = yaml_.has_section(key("model.full_offload.")) ||
                      is_switched_on(yaml_, key("model.full_offload"));
    const std::string states = key("model.optim_cpu_offload");
    if (full) {
      assume_less("states and gradients on the GPU: full_offload keeps and steps them on the host");
    } else if (!all && (!yaml_.has(states) || is_switched_on(yaml_, states))) {
      assume_less(
          "states on the GPU: optim_cpu_offload, on by itself, keeps them on the host and copies "
          "them for each step");
    }
    if (yaml_.has_section(key("model.lora."))) {
      assume_less("all weights trained: adapters (model.lora) are not counted as such");
    }
    if (yaml_.has_section(key("model.vlm."))) {
      job_.assumed.emplace_back("the text's layers alone: the tower of model.vlm is not counted");
    }
  }

  // On by itself, as is the offload of what it keeps.
  void make_checkpointing() {
    const std::string_view offload = "model.ac_offloading";
    const bool moves = !is_off(yaml_, key(offload));
    const bool off = is_off(yaml_, key("model.ac")) && !moves;
    const bool selective = word_of(yaml_, key("model.ac.mode"), "full") == "selective";
    say(job_.torchtitan, "activation_checkpoint",
        off         ? "None"
        : selective ? "SelectiveAC"
                    : "FullAC",
        key("model.ac.mode"));
    if (selective) {
      job_.assumed.emplace_back(
          "operations recomputed as torchtitan chooses them: what model.ac.targets names is not "
          "followed");
    } else if (figure_of(yaml_, key("model.ac.freq"), 1) > 1) {
      job_.assumed.emplace_back(
          "every layer recomputed whole: model.ac.freq leaves layers out, which no plan says");
    }
    if (!off && moves) {
      assume_less("layers' inputs on the GPU: ac_offloading, on by itself, moves them to the host");
    }
  }

  bool of_answers_;
};

}  // namespace

bool is_prime_rl(const Settings& toml) {
  if (learns_from_answers(toml)) {
    return toml.has_section("trainer.") || toml.has_section("deployment.") ||
           toml.has_section("model.") || toml.has_section("inference.");
  }
  const bool data = toml.has_section("data.") || toml.has("data.name");
  return data && toml.has("model.name") &&
         (toml.has_section("optim.") || toml.has_section("deployment.") || toml.has("max_steps"));
}

bool is_prime_rl_of_others(const Settings& toml) {
  if (is_prime_rl(toml)) return false;
  const bool engines =
      toml.has_section("vllm.") && (toml.has_section("server.") ||
                                    toml.has_section("deployment.") || toml.has_section("model."));
  const bool trainer = toml.has("model.name") && toml.has_section("optim.");
  return engines || trainer || toml.has_section("train.source.") || toml.has_section("data.fake.");
}

PrimeRlGpus gpus_of_prime_rl(const Settings& toml) {
  const auto whole = [&](std::string_view key, std::int64_t otherwise) {
    const double said = figure_of(toml, key, static_cast<double>(otherwise));
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(said));
  };
  if (word_of(toml, "deployment.type", "single_node") == "multi_node") {
    return {whole("deployment.num_train_nodes", 2), whole("deployment.gpus_per_node", 8)};
  }
  return {1, whole("deployment.num_train_gpus", 1)};
}

std::string model_of_prime_rl(const Settings& toml) {
  for (const std::string_view key : {"trainer.model.name", "model.name"}) {
    if (const Setting* const name = toml.find(key)) return text_of(name->value);
  }
  return "Qwen/Qwen3-0.6B";  // configs/shared.py, BaseModelConfig
}

TrainerJob job_of_prime_rl(const Settings& toml, const Place& place) {
  return PrimeRl(toml, place).make();
}

}  // namespace qplan
