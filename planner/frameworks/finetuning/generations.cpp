// GRPO's arithmetic: a batch of generated answers is whole groups of them, each of one prompt, and
// feeds whole steps. TRL and ms-swift stop where it is not; here stands what divides.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

constexpr std::string_view kGrpoConfig = "TRL f2cd5771, trl/trainer/grpo_config.py";
constexpr std::string_view kSwiftConfig = "ms-swift 3602360a, swift/rlhf_trainers/args_mixin.py";
constexpr std::string_view kSwiftMegatronConfig =
    "ms-swift 3602360a, swift/megatron/arguments/megatron_args.py";

class Generations {
 public:
  Generations(const Scene& scene, const ConfigPart& part, Findings& out)
      : scene_(scene), part_(part), out_(out) {}

  void run() {
    if (!generates()) return;
    check_share();
    if (!is_known()) return;
    groups_ = whole("--num_generations", 8);
    // Sequences of one step of the optimizer, or of a Trainer's one pass on all ranks.
    const std::int64_t ranks = std::max<std::int64_t>(1, scene_.question.limits.gpus);
    const ParallelPlan& plan = scene_.draft.plan;
    if (megatron()) {
      unit_ = whole("--global_batch_size", 16);
      words_ = fmt::format("global_batch_size {}", unit_);
      steps_ = whole("--steps_per_generation", 1);
    } else {
      const bool swift = part_.dialect == Dialect::ms_swift;
      const std::int64_t micro = whole("--per_device_train_batch_size", swift ? 1 : 8);
      unit_ = micro * ranks;
      words_ = fmt::format("per_device_train_batch_size {} x {} GPUs", micro, ranks);
      const std::int64_t of_sixteen = ceil_div(16, unit_);
      steps_ = whole("--steps_per_generation",
                     whole("--gradient_accumulation_steps", swift ? of_sixteen : 1));
    }
    if (groups_ < 2) {
      if (groups_ < 1 || !teaches()) too_few();
      return;
    }
    if (!check_steps()) return;
    check_groups();
    if (megatron()) check_ranks(plan);
  }

 private:
  [[nodiscard]] bool megatron() const { return part_.dialect == Dialect::ms_swift_megatron; }

  [[nodiscard]] bool generates() const {
    if (part_.derived) return false;
    if (part_.dialect == Dialect::trl) return word_of(part_.settings, "verb") == "grpo";
    if (part_.dialect == Dialect::trainer) return part_.settings.has("--num_generations");
    return (megatron() || part_.dialect == Dialect::ms_swift) &&
           word_of(part_.settings, "--rlhf_type") == "grpo";
  }

  // Distilled from a teacher, an answer is judged by itself.
  [[nodiscard]] bool teaches() const {
    return part_.settings.has("--teacher_model") || part_.settings.has("--teacher_model_server");
  }

  // Whether none of the numbers waits for a run.
  [[nodiscard]] bool is_known() const {
    return std::all_of(part_.settings.begin(), part_.settings.end(), [](const Setting& s) {
      const bool counts = s.key.find("batch_size") != std::string::npos ||
                          s.key.find("generation") != std::string::npos ||
                          s.key == "--gradient_accumulation_steps";
      return s.resolved || !counts;
    });
  }

  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t otherwise) const {
    return static_cast<std::int64_t>(
        figure_of(part_.settings, key, static_cast<double>(otherwise)));
  }

  void say(std::string_view at, std::string message, std::string instead) {
    const Setting* found = part_.settings.find(at);
    if (found == nullptr) found = part_.settings.find("--num_generations");
    out_.push_back({error,
                    "generation_batch",
                    found != nullptr ? found->place : part_.place,
                    std::move(message),
                    std::move(instead),
                    std::string(megatron()                           ? kSwiftMegatronConfig
                                : part_.dialect == Dialect::ms_swift ? kSwiftConfig
                                                                     : kGrpoConfig),
                    {}});
  }

  // vLLM beside training, in the same GPUs: what it keeps is none of the memory below.
  void check_share() {
    const bool trl = part_.dialect == Dialect::trainer || part_.dialect == Dialect::trl;
    const Setting* const vllm = part_.settings.find("--use_vllm");
    const bool on = vllm != nullptr ? is_switched_on(part_.settings, "--use_vllm") : megatron();
    const std::string mode = word_of(part_.settings, "--vllm_mode", trl ? "colocate" : "");
    const bool inside = mode == "colocate" || is_slip(mode, "colocate");
    if (!on || !inside) return;
    const double share =
        figure_of(part_.settings, "--vllm_gpu_memory_utilization", trl ? 0.3 : 0.9);
    check_engines();
    if (share <= 0 || share > 1) return refuse_share(share);
    const bool sleeps = is_switched_on(part_.settings, "--vllm_enable_sleep_mode") ||
                        figure_of(part_.settings, "--sleep_level", 0) > 0;
    const bool much = share >= 0.8 && !sleeps;
    const Setting* const at = part_.settings.find("--vllm_gpu_memory_utilization");
    out_.push_back(
        {much ? warning : note,
         "vllm_share",
         at != nullptr     ? at->place
         : vllm != nullptr ? vllm->place
                           : part_.place,
         fmt::format("vLLM keeps {} of each GPU's memory beside training{}, which is not counted "
                     "below: {:.2g} of it is left",
                     share, sleeps ? " while it generates" : "", 1 - share),
         much ? (trl ? "vllm_enable_sleep_mode true, or a smaller vllm_gpu_memory_utilization"
                     : "sleep_level 1, or a smaller vllm_gpu_memory_utilization")
              : "",
         std::string(trl          ? kGrpoConfig
                     : megatron() ? kSwiftMegatronConfig
                                  : kSwiftConfig),
         {}});
  }

  // Engines of so many ranks each, among all of them.
  void check_engines() {
    const Setting* const said = part_.settings.find("--vllm_tensor_parallel_size");
    const std::int64_t gpus = scene_.question.limits.gpus;
    if (said == nullptr || !said->resolved || gpus <= 0) return;
    const std::int64_t degree = whole(said->key, 1);
    if (degree < 1 || gpus % degree == 0) return;
    std::vector<std::int64_t> fitting;
    for (std::int64_t n = 1; n <= std::min<std::int64_t>(gpus, 16); ++n) {
      if (gpus % n == 0) fitting.push_back(n);
    }
    const bool trl = part_.dialect == Dialect::trainer || part_.dialect == Dialect::trl;
    out_.push_back({error,
                    "rollout_divisibility",
                    said->place,
                    fmt::format("{} GPUs are no whole number of engines of {} "
                                "(vllm_tensor_parallel_size): it stops",
                                gpus, degree),
                    fmt::format("one of {}", fmt::join(fitting, ", ")),
                    trl          ? "TRL f2cd5771, trl/generation/vllm_generation.py:318"
                    : megatron() ? "ms-swift 3602360a, swift/megatron/trainers/rollout_mixin.py:404"
                                 : "ms-swift 3602360a, swift/rlhf_trainers/rollout_mixin.py:433",
                    {}});
  }

  void refuse_share(double share) {
    const Setting& said = *part_.settings.find("--vllm_gpu_memory_utilization");
    const bool percent = share > 1 && share <= 100;
    out_.push_back({error,
                    "refused_value",
                    said.place,
                    fmt::format("{} is {}, and must be a share of each GPU's memory, above 0 and "
                                "up to 1: vLLM stops",
                                said.key, share),
                    percent ? fmt::format("{} for {} percent", share / 100, share) : "",
                    "qplan: vLLM's CacheConfig raises an error (vllm/config/cache.py)",
                    {}});
  }

  void too_few() {
    say("--num_generations",
        fmt::format("{} answer of a prompt has nothing to be compared with", groups_),
        "num_generations of 2 or more");
  }

  // Whether the batch of answers feeds whole steps, which gives its size.
  bool check_steps() {
    const bool sized = part_.settings.has("--generation_batch_size");
    const bool stepped = part_.settings.has("--steps_per_generation");
    batch_ = unit_ * steps_;
    if (!sized) return true;
    const std::int64_t said = whole("--generation_batch_size", batch_);
    const bool trl = part_.dialect == Dialect::trainer || part_.dialect == Dialect::trl;
    if (stepped && trl) {
      say("--generation_batch_size",
          "generation_batch_size and steps_per_generation exclude each other", "keep one of them");
      return false;
    }
    if (stepped ? said != batch_ : unit_ <= 0 || said % unit_ != 0) {
      say("--generation_batch_size",
          fmt::format("generation_batch_size {} is not {} = {}{}", said, words_, unit_,
                      stepped ? fmt::format(" x steps_per_generation {} = {}", steps_, batch_)
                              : std::string(" or a multiple of it")),
          stepped ? "leave generation_batch_size out"
                  : fmt::format("generation_batch_size {}",
                                std::max<std::int64_t>(1, said / std::max<std::int64_t>(1, unit_)) *
                                    unit_));
      return false;
    }
    batch_ = said;
    words_.clear();
    return true;
  }

  void check_groups() {
    if (batch_ % groups_ == 0) return;
    std::vector<std::int64_t> fitting;
    for (std::int64_t n = 2; n <= batch_ && fitting.size() < 6; ++n) {
      if (batch_ % n == 0) fitting.push_back(n);
    }
    const std::string made =
        words_.empty()
            ? ""
            : fmt::format(" = {}{}", words_, steps_ > 1 ? fmt::format(" x {} steps", steps_) : "");
    const std::int64_t per = groups_ / std::gcd(groups_, unit_);
    std::string instead;
    if (!fitting.empty()) instead = fmt::format("num_generations {}", fmt::join(fitting, ", "));
    if (per > 1) {
      instead +=
          fmt::format("{}{} a multiple of {}", instead.empty() ? "" : "; or ",
                      megatron() ? "steps_per_generation" : "gradient_accumulation_steps", per);
    }
    say("--num_generations",
        fmt::format("a batch of {} answers{} is no whole number of groups of num_generations {}",
                    batch_, made, groups_),
        std::move(instead));
  }

  // Megatron's form hands whole microbatches of prompts to each data-parallel rank.
  void check_ranks(const ParallelPlan& plan) {
    const std::int64_t micro = whole("--micro_batch_size", 1);
    if (batch_ % groups_ != 0 || plan.dp < 1 || micro < 1) return;
    const std::int64_t prompts = batch_ / groups_, each = plan.dp * micro;
    if (prompts % each == 0) return;
    say("--num_generations",
        fmt::format(
            "{} answers / num_generations {} = {} prompts do not divide among dp {} ranks in "
            "microbatches of {}: a multiple of {} does",
            batch_, groups_, prompts, plan.dp, micro, each),
        fmt::format("steps_per_generation or global_batch_size for {} answers",
                    each * groups_ * std::max<std::int64_t>(1, ceil_div(prompts, each))));
  }

  const Scene& scene_;
  const ConfigPart& part_;
  Findings& out_;
  std::int64_t groups_ = 8, unit_ = 1, steps_ = 1, batch_ = 1;
  std::string words_;  // what the unit is made of
};

}  // namespace

void check_generations(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) Generations(scene, part, out).run();
}

}  // namespace qplan
