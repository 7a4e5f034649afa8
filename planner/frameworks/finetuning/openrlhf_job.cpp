// What OpenRLHF's programs (3c3be623) ask of DeepSpeed: train_sft, train_rm, train_dpo and the
// policy of train_ppo_ray, by the dotted names of its releases since 0.10 and the flat ones before.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/frameworks/finetuning/job_maker.h"
#include "planner/frameworks/finetuning/openrlhf.h"

namespace qplan {
namespace {

class OpenRlhf : JobMaker {
 public:
  OpenRlhf(const Settings& arguments, const Place& place, std::string verb)
      : JobMaker(arguments, place), verb_(std::move(verb)) {}

  TrainerJob make() {
    make_batch();
    make_length();
    make_shards();
    if (figure_of(yaml_, "--ds.lora.rank", 0) > 0) make_adapters();
    say(job_.own_script, "weights", is_half() ? "fp16" : "bf16", "--ds.param_dtype");
    const std::string_view recompute = "--model.gradient_checkpointing_enable";
    say(job_.own_script, "recompute", is_switched_on(yaml_, recompute), recompute);
    if (has_pairs()) say(job_.own_script, "pairs", true, "verb");
    if (learns_from_answers()) make_actor();
    assume();
    return std::move(job_);
  }

 private:
  [[nodiscard]] bool learns_from_answers() const { return verb_.starts_with("ppo"); }
  [[nodiscard]] bool has_pairs() const { return verb_ == "dpo" || verb_ == "rm"; }
  [[nodiscard]] bool is_half() const { return word_of(yaml_, "--ds.param_dtype") == "fp16"; }

  void make_batch() {
    hand_or(job_.own_script, "--train.batch_size", "global_batch", 128);
    if (const std::int64_t samples = samples_of_tokens(); samples > 0) {
      say(job_.trainer, "--per_device_train_batch_size", samples, "--train.max_tokens_per_gpu");
      return;
    }
    const int otherwise = !learns_from_answers() ? 8 : is_older() ? 4 : 1;
    hand_or(job_.trainer, "--train.micro_batch_size", "--per_device_train_batch_size", otherwise);
  }

  // Names of before 0.10, whose defaults were others.
  [[nodiscard]] bool is_older() const { return yaml_.has("flat names"); }

  [[nodiscard]] std::int64_t actor_gpus() const {
    return static_cast<std::int64_t>(figure_of(yaml_, "--actor.num_nodes", 1) *
                                     figure_of(yaml_, "--actor.num_gpus_per_node", 8));
  }
  // Ranks of the policy's that have samples of their own.
  [[nodiscard]] std::int64_t data_ranks() const {
    const double share = figure_of(yaml_, "--ds.tensor_parallel_size", 1) *
                         figure_of(yaml_, "--ds.ring_attn_size", 1);
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(static_cast<double>(actor_gpus()) / std::max(1.0, share)));
  }

  // Sequences of whole length that a micro-batch of so many tokens holds; 0: it is of samples.
  [[nodiscard]] std::int64_t samples_of_tokens() {
    if (!is_switched_on(yaml_, "--train.dynamic_batch_enable")) return 0;
    const double tokens = figure_of(yaml_, "--train.max_tokens_per_gpu", 16192);
    auto samples = std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens / length()));
    // Packs of several numbers fill a batch; a plan's are all alike.
    const auto batch = static_cast<std::int64_t>(figure_of(yaml_, "--train.batch_size", 128));
    while (samples > 1 && batch % (samples * data_ranks()) != 0) --samples;
    job_.assumed.push_back(
        fmt::format("micro-batches of {} whole sequence{}: use_dynamic_batch packs as many as have "
                    "max_tokens_per_gpu",
                    samples, samples == 1 ? "" : "s"));
    return samples;
  }

  // Of a prompt and its answer together.
  [[nodiscard]] double length() const {
    const bool parts = yaml_.has("--prompt_max_len") || yaml_.has("--generate_max_len");
    if (learns_from_answers() && parts && !yaml_.has("--data.max_len")) {
      return figure_of(yaml_, "--prompt_max_len", 1024) +
             figure_of(yaml_, "--generate_max_len", 1024);
    }
    return figure_of(yaml_, "--data.max_len", has_pairs() ? 512 : 2048);
  }

  void make_length() {
    const auto tokens = static_cast<std::int64_t>(length());
    const bool whole = yaml_.has("--data.max_len") || !yaml_.has("--prompt_max_len");
    say(job_.trainer, "--max_length", tokens, whole ? "--data.max_len" : "--prompt_max_len");
    job_.shorter = true;
    job_.assumed.push_back(
        whole ? fmt::format("every sequence has max_len {}, the most: samples are not cut to it "
                            "and have their own tokens alone",
                            tokens)
              : fmt::format("every sequence has {} tokens: a prompt and an answer of the most",
                            tokens));
  }

  // What openrlhf/utils/deepspeed/deepspeed_utils.py makes of its arguments.
  void make_shards() {
    Settings& config = job_.ds_config;
    say(job_.trainer, "--deepspeed", "OpenRLHF's own configuration", "--ds.zero_stage");
    hand_or(config, "--ds.zero_stage", "zero_optimization.stage", 2);
    for (const std::string_view key :
         {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
      say(config, std::string(key), "auto");
    }
    say(config, is_half() ? "fp16.enabled" : "bf16.enabled", true, "--ds.param_dtype");
    say(job_.trainer, is_half() ? "--fp16" : "--bf16", true, "--ds.param_dtype");
    say(config, "zero_optimization.overlap_comm", is_switched_on(yaml_, "--ds.overlap_comm"),
        "--ds.overlap_comm");
    if (is_switched_on(yaml_, "--ds.adam_offload")) {
      say(config, "zero_optimization.offload_optimizer.device", "cpu", "--ds.adam_offload");
    }
    const std::string sums = word_of(yaml_, "--ds.grad_accum_dtype");
    if (sums == "fp32" || sums == "bf16" || sums == "fp16") {
      hand(config, "--ds.grad_accum_dtype", "data_types.grad_accum_dtype");
    }
    if (figure_of(yaml_, "--ds.tensor_parallel_size", 1) > 1) {
      hand(config, "--ds.tensor_parallel_size", "tensor_parallel.autotp_size");
    }
    if (figure_of(yaml_, "--ds.ring_attn_size", 1) > 1) {
      hand(config, "--ds.ring_attn_size", "sequence_parallel_size");
      job_.assumed.emplace_back(
          "sequences that are split by Ulysses' exchange: ring_attn_size passes keys and values "
          "around, which is not modelled under DeepSpeed");
    }
  }

  void make_adapters() {
    Settings& own = job_.own_script;
    say(own, "lora", true, "--ds.lora.rank");
    hand(own, "--ds.lora.rank", "lora.r");
    hand_or(own, "--ds.lora.alpha", "lora.lora_alpha", 16);
    hand(own, "--ds.lora.dropout", "lora.lora_dropout");
    if (yaml_.has("--ds.lora.target_modules")) {
      target("--ds.lora.target_modules");
    } else {
      say(own, "lora.target_modules", "all-linear");
    }
    if (is_switched_on(yaml_, "--ds.load_in_4bit")) {
      say(own, "frozen", "nf4-double", "--ds.load_in_4bit");
    }
  }

  // The policy's own GPUs, of those of the job.
  void make_actor() {
    const std::int64_t gpus = actor_gpus();
    say(job_.own_script, "trains_on", gpus, "--actor.num_gpus_per_node");
    std::vector<std::string_view> beside;
    const bool all = is_switched_on(yaml_, "--train.colocate_all");
    const bool reference = figure_of(yaml_, "--algo.kl.init_coef", 0.01) > 0;
    const bool engines = figure_of(yaml_, "--vllm.num_engines", 0) >= 1;
    const bool critic = !word_of(yaml_, "--critic.model_name_or_path").empty();
    const bool apart = critic && is_switched_on(yaml_, "--train.colocate_critic_reward");
    if (reference && (all || is_switched_on(yaml_, "--train.colocate_actor_ref"))) {
      beside.emplace_back("the reference");
    }
    if (all && engines && !is_switched_on(yaml_, "--train.async_enable")) {
      beside.emplace_back("vLLM's engines");
    }
    if (all && critic && !apart) beside.emplace_back("the critic");
    if (all && !apart && !yaml_.has("--reward.remote_url")) {
      beside.emplace_back("the reward model");
    }
    job_.assumed.push_back(fmt::format(
        "the policy's training alone, on the actor's {} GPUs: generation, reference, "
        "critic and reward are not counted{}",
        gpus,
        beside.empty() ? std::string(", and have GPUs of their own")
                       : fmt::format("; on these GPUs stand also {}", fmt::join(beside, ", "))));
  }

  void assume() {
    const bool muon = word_of(yaml_, learns_from_answers() ? "--actor.optim" : "--optim") == "muon";
    if (muon) read_optimizer("muon");
    if (figure_of(yaml_, "--ds.zpg", 1) > 1) {
      job_.assumed.emplace_back("weights sharded over all ranks: zpg keeps copies in each group");
    }
    if (is_switched_on(yaml_, "--ds.use_liger_kernel")) {
      assume_less("transformers' own modules: other kernels' savings are not counted");
    }
    if (is_switched_on(yaml_, "--ds.deepcompile")) {
      job_.assumed.emplace_back("eager modules: what deepcompile makes of them is not counted");
    }
    if (verb_ == "rm")
      assume_less("a head as large as the vocabulary: a reward model has one number");
    if (verb_ == "dpo") {
      job_.assumed.emplace_back(
          "training alone: the reference's weights and forward are not counted");
    }
  }

  std::string verb_;
};

}  // namespace

TrainerJob job_of_openrlhf(const Settings& arguments, const Place& place) {
  return OpenRlhf(dotted_openrlhf(arguments), place, word_of(arguments, "verb", "sft")).make();
}

}  // namespace qplan
