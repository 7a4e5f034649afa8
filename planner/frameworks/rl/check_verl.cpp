// What verl, Hydra and the engines refuse of verl's configuration, with the arithmetic.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/rl/omega_checks.h"
#include "planner/frameworks/rl/open_sizes.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/rl/verl_keys.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/torch/check_adapters.h"

namespace qplan {
namespace {

using namespace verl;
using enum Severity;

constexpr std::string_view kValidate = "verl b178a3cd, verl/utils/config.py (validate_config)";
constexpr std::string_view kActorConfig = "verl b178a3cd, verl/workers/config/actor.py";
constexpr std::string_view kShardWorker = "verl b178a3cd, verl/workers/fsdp_workers.py:244";
constexpr std::string_view kMegatronWorker = "verl b178a3cd, verl/workers/megatron_workers.py:354";
constexpr std::string_view kMakeBatches = "verl b178a3cd, verl/utils/seqlen_balancing.py:382";
constexpr std::string_view kRolloutConfig = "verl b178a3cd, verl/workers/config/rollout.py";
constexpr std::string_view kEngines = "verl b178a3cd, verl/workers/fsdp_workers.py:626";

class VerlCheck {
 public:
  VerlCheck(const Scene& scene, const ConfigPart& part, Findings& out)
      : scene_(scene),
        part_(part),
        out_(out),
        c_(part.settings, defaults_of(part.settings)),
        megatron_(is_megatron(part.settings)),
        n_(c_, megatron_, scene.question.limits.gpus) {}

  void run() {
    check_verl_keys(scene_, part_, out_);
    check_values();
    note_open_sizes(part_, out_);
    if (lacks_parent(out_)) return;
    check_world();
    if (is_sft(part_.settings)) return check_sft();
    check_modes();
    check_answers();
    check_groups();
    check_batches();
    for (const Knob& knob : knobs()) {
      check_micro_batch(knob);
      check_tokens(knob);
    }
    check_split();
    check_engines();
    check_adapters_of_model();
  }

 private:
  // Where micro-batches are chosen: four of them, each by sequences or by tokens.
  struct Knob {
    std::string section;
    std::string_view name, tokens, dynamic;
    bool used;
  };

  [[nodiscard]] std::vector<Knob> knobs() const {
    const bool reference = scene_.step && scene_.step->job.reference;
    const bool critic = scene_.step && scene_.step->job.algorithm == Algorithm::ppo;
    const bool old = scene_.step && scene_.step->job.old_logprobs;
    return {{std::string(kActor), "ppo_micro_batch_size", "ppo_max_token_len_per_gpu",
             "use_dynamic_bsz", true},
            {std::string(kRollout), "log_prob_micro_batch_size", "log_prob_max_token_len_per_gpu",
             "log_prob_use_dynamic_bsz", old},
            {std::string(kRef), "log_prob_micro_batch_size", "log_prob_max_token_len_per_gpu",
             "log_prob_use_dynamic_bsz", reference},
            {"critic.", "ppo_micro_batch_size", "ppo_max_token_len_per_gpu", "use_dynamic_bsz",
             critic}};
  }

  [[nodiscard]] Place place_of(std::initializer_list<std::string> keys) const {
    for (const std::string& name : keys) {
      if (const Setting* const found = c_.said(name)) return found->place;
    }
    return part_.place;
  }

  // What only a run can tell is never judged.
  [[nodiscard]] bool is_open(std::initializer_list<std::string> keys) const {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const std::string& name) { return c_.is_open(name); });
  }

  void find(Severity severity, std::string_view rule, Place place, std::string message,
            std::string instead, std::string_view source, Correction fix = {}) {
    out_.push_back({severity, std::string(rule), std::move(place), std::move(message),
                    std::move(instead), std::string(source), std::move(fix)});
  }

  // ---- values and words ----

  void check_values() {
    if (is_verl_program(program_of(part_.settings))) {
      check_hydra_flags(scene_, part_, out_);
      check_stray_words(part_, kHydra, out_);
    }
    const OptionList* const list = defaults_of(part_.settings);
    if (list == nullptr) return;
    check_omega_values(
        scene_, part_, *list, has_listed_keys(part_.settings) && !is_recipe(part_.settings),
        "verl b178a3cd",
        fmt::format("qplan: planner/frameworks/options/{}.tsv, the types of verl b178a3cd's "
                    "configurations",
                    megatron_ ? "verl_megatron" : "verl"),
        out_);
  }

  // ---- GPUs and batches ----

  void check_world() {
    const std::int64_t gpus = scene_.question.limits.gpus, said = scene_.rl_gpus;
    if (said <= 0 || said == gpus || gpus <= 0) return;
    find(error, "launched_world", place_of({"trainer.nnodes", "trainer.n_gpus_per_node"}),
         fmt::format("verl takes {} GPUs ({} nodes of {}{}), not the job's {}", said,
                     c_.whole("trainer.nnodes", 1), c_.whole("trainer.n_gpus_per_node", 8),
                     n_.rollout_gpus > 0 ? ", and those that make answers" : "", gpus),
         fmt::format("trainer.nnodes and trainer.n_gpus_per_node for {} GPUs in all", gpus),
         "verl b178a3cd, verl/trainer/main_ppo.py (init_resource_pool_mgr)");
  }

  void check_sft() {
    if (is_open({"data.train_batch_size"})) return;
    const std::int64_t batch = c_.whole("data.train_batch_size", 256), dp = n_.dp();
    const std::int64_t micro = scene_.draft.plan.micro_batch_size;
    if (batch % dp != 0) {
      find(error, "batch_arithmetic", place_of({"data.train_batch_size"}),
           fmt::format("data.train_batch_size {} is no multiple of the {} data-parallel ranks",
                       batch, dp),
           fmt::format("{}", ceil_div(batch, dp) * dp),
           "verl b178a3cd, verl/trainer/fsdp_sft_trainer.py:149");
    } else if (batch / dp % micro != 0 && !c_.on(key(kActor, "use_dynamic_bsz"), false)) {
      find(error, "batch_arithmetic",
           place_of({key(kActor, "ppo_micro_batch_size_per_gpu"), "data.train_batch_size"}),
           fmt::format("{} sequences of each of {} ranks are no multiple of the micro-batch of {}",
                       batch / dp, dp, micro),
           "a micro-batch that divides them",
           "verl b178a3cd, verl/trainer/fsdp_sft_trainer.py:155");
    }
  }

  // Logits are divided by the temperature, and prompts cut by a word that is asserted.
  void check_answers() {
    const std::string temperature = key(kRollout, "temperature");
    if (!is_open({temperature}) && c_.said(temperature) != nullptr &&
        c_.figure(temperature, 1) <= 0) {
      find(error, "refused_value", place_of({temperature}),
           fmt::format("{} is {}: logits are divided by it, and probabilities become NaN",
                       temperature, c_.word(temperature)),
           fmt::format("{}=1.0; answers to validate have val_kwargs.temperature", temperature),
           "verl b178a3cd, verl/workers/actor/dp_actor.py:259");
    }
    const std::string cut = c_.word("data.truncation");
    constexpr std::array<std::string_view, 4> kCuts{"left", "right", "middle", "error"};
    if (is_open({"data.truncation"}) || c_.said("data.truncation") == nullptr ||
        std::find(kCuts.begin(), kCuts.end(), cut) != kCuts.end()) {
      return;
    }
    find(error, "refused_value", place_of({"data.truncation"}),
         fmt::format("data.truncation is {}, and must be one of left, right, middle, error", cut),
         "data.truncation=error", "verl b178a3cd, verl/utils/torch_functional.py:528");
  }

  void check_modes() {
    if (c_.word(key(kRollout, "mode")) == "sync") {
      find(error, "rollout_mode", place_of({key(kRollout, "mode")}),
           "rollout.mode sync is gone: verl raises an error", "leave it out", kRolloutConfig);
    }
    const bool unnamed = c_.said(key(kRollout, "name")) == nullptr;
    if (unnamed && has_listed_keys(part_.settings)) {
      find(warning, "rollout_engine", part_.place,
           "actor_rollout_ref.rollout.name is not said, and the configuration has none",
           "actor_rollout_ref.rollout.name=vllm", kRolloutConfig);
    }
  }

  // What compares answers to one prompt has none to compare with where there is one: it takes 0 for
  // their mean and 1 for their deviation.
  void check_groups() {
    constexpr std::array<std::string_view, 5> kComparing{"grpo", "grpo_vectorized", "rloo",
                                                         "rloo_vectorized", "opo"};
    const std::string estimator = "algorithm.adv_estimator", n = key(kRollout, "n");
    const std::string name = c_.word(estimator);
    if (std::find(kComparing.begin(), kComparing.end(), name) == kComparing.end()) return;
    if (!has_listed_keys(part_.settings) || is_recipe(part_.settings) || is_open({estimator, n}))
      return;
    if (c_.whole(n, 1) != 1) return;
    find(warning, "generation_batch", place_of({n, estimator}),
         fmt::format("{} compares the answers to a prompt, and {} is 1{}: each has nothing to be "
                     "compared with",
                     name, n, c_.said(n) == nullptr ? ", which nobody says otherwise" : ""),
         fmt::format("{}=8", n), "verl b178a3cd, verl/trainer/ppo/core_algos.py:314");
  }

  void check_batches() {
    const std::string mini_key = key(kActor, "ppo_mini_batch_size");
    const std::string n_key = key(kRollout, "n");
    if (is_open({"data.train_batch_size", mini_key, n_key})) return;
    const bool dynamic = c_.on(key(kActor, "use_dynamic_bsz"));
    // One that takes batches by sequences of its own has none here (fully asynchronous); what is
    // less than the code takes is said of its value.
    if (c_.whole("data.train_batch_size", 1024) < 1 || c_.whole(mini_key, 256) < 1 ||
        c_.whole(n_key, 1) < 1) {
      return;
    }
    const Place place = place_of({mini_key, "data.train_batch_size"});
    const std::int64_t answers = n_.prompts * n_.samples, dp = n_.dp();
    const std::int64_t mini = n_.mini * n_.samples;
    if (n_.prompts < n_.mini) {
      find(dynamic ? warning : error, "batch_arithmetic", place,
           fmt::format("a step has {} prompts (data.train_batch_size), fewer than the {} of one "
                       "optimizer step (ppo_mini_batch_size)",
                       n_.prompts, n_.mini),
           fmt::format("ppo_mini_batch_size {} or less", n_.prompts), kActorConfig);
      return;
    }
    if (n_.prompts % n_.mini != 0) {
      find(megatron_ ? error : warning, "batch_arithmetic", place,
           fmt::format("{} prompts of a step are no whole number of optimizer steps of {} "
                       "(ppo_mini_batch_size): the last one is of {}",
                       n_.prompts, n_.mini, n_.prompts % n_.mini),
           "a ppo_mini_batch_size that divides data.train_batch_size",
           "verl b178a3cd, verl/protocol.py:827");
    }
    if (!dynamic && megatron_ && n_.trainers() % n_.split != 0) return;  // check_split says it
    const std::int64_t micro =
        std::max<std::int64_t>(1, c_.whole(key(kActor, "ppo_micro_batch_size_per_gpu"), 1));
    const std::int64_t least = megatron_ ? dp * micro : n_.trainers();
    if (!dynamic && answers % least != 0) {
      find(error, "batch_arithmetic", place_of({"data.train_batch_size"}),
           fmt::format("{} answers ({} prompts x n {}) are no multiple of {}", answers, n_.prompts,
                       n_.samples,
                       megatron_
                           ? fmt::format("data-parallel {} x micro-batch {} = {}", dp, micro, least)
                           : fmt::format("the {} GPUs that train", least)),
           fmt::format("data.train_batch_size x n a multiple of {}", least), kValidate);
    } else if (answers % dp != 0) {
      find(error, "batch_arithmetic", place_of({"data.train_batch_size"}),
           fmt::format("{} answers ({} prompts x n {}) do not divide among {} data-parallel ranks",
                       answers, n_.prompts, n_.samples, dp),
           fmt::format("data.train_batch_size x n a multiple of {}", dp),
           "verl b178a3cd, verl/protocol.py:885");
    }
    const std::string_view source = megatron_ ? kMegatronWorker : kShardWorker;
    if (mini < dp) {
      find(
          error, "batch_arithmetic", place,
          fmt::format("an optimizer step of {} answers (ppo_mini_batch_size {} x n {}) leaves none "
                      "for each of {} data-parallel ranks",
                      mini, n_.mini, n_.samples, dp),
          fmt::format("ppo_mini_batch_size x n of {} or more", dp), source);
      return;
    }
    if (mini % dp != 0) {
      find(warning, "batch_arithmetic", place,
           fmt::format("an optimizer step of {} answers (ppo_mini_batch_size {} x n {}) is no "
                       "multiple of {} data-parallel ranks: each takes {}, and the steps are of {}",
                       mini, n_.mini, n_.samples, dp, mini / dp, mini / dp * dp),
           fmt::format("ppo_mini_batch_size x n a multiple of {}", dp), source);
    }
    const bool by_sequences = !dynamic &&
                              c_.said(key(kActor, "ppo_micro_batch_size_per_gpu")) != nullptr &&
                              !is_open({key(kActor, "ppo_micro_batch_size_per_gpu")});
    if (by_sequences && mini / dp % micro != 0) {
      find(error, "batch_arithmetic", place_of({key(kActor, "ppo_micro_batch_size_per_gpu")}),
           fmt::format("{} answers of an optimizer step on each rank (ppo_mini_batch_size {} x n "
                       "{} / data-parallel {}) are no multiple of ppo_micro_batch_size_per_gpu {}",
                       mini / dp, n_.mini, n_.samples, dp, micro),
           fmt::format("ppo_micro_batch_size_per_gpu {}", largest_divisor(mini / dp, micro)),
           source);
    }
  }

  static std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
    for (std::int64_t d = std::min(of, most); d > 1; --d) {
      if (of % d == 0) return d;
    }
    return 1;
  }

  void check_micro_batch(const Knob& knob) {
    if (!knob.used || c_.on(knob.section + std::string(knob.dynamic))) return;
    // Of four, all but the critic's wait for the actor's switch (validate_config).
    if (c_.on(key(kActor, "use_dynamic_bsz"))) return;
    const std::string old = knob.section + std::string(knob.name), each = old + "_per_gpu";
    if (is_open({old, each, knob.section + std::string(knob.dynamic)})) return;
    const bool has_old = !c_.value(old).is_null(), has_each = !c_.value(each).is_null();
    if (has_old && has_each && c_.said(each) != nullptr) {
      find(error, "micro_batch_twice", place_of({old}),
           fmt::format("{} and {} exclude each other", old, each), fmt::format("{} alone", each),
           kValidate);
    } else if (!has_old && !has_each) {
      // A command may say on top of a YAML what it leaves open.
      const bool alone = program_of(part_.settings).empty() && scene_.files.launches.empty();
      find(alone ? warning : error, "micro_batch_unsaid", part_.place,
           fmt::format("{} is not said{}, and verl asks for it where {}{} is off", each,
                       alone ? " here" : "", knob.section, knob.dynamic),
           fmt::format("{}=1, or {}use_dynamic_bsz=True", each, kActor), kValidate);
    }
  }

  void check_tokens(const Knob& knob) {
    const std::string tokens = knob.section + std::string(knob.tokens);
    const std::string dynamic = knob.section + std::string(knob.dynamic);
    if (!knob.used || !c_.on(dynamic)) return;
    if (is_open({tokens, "data.max_prompt_length", "data.max_response_length"})) return;
    const std::int64_t most = c_.whole(tokens, 0);
    const std::int64_t all = most * n_.parts;
    if (most <= 0 || all >= n_.longest) return;
    const std::string_view parts = megatron_ ? "context parallelism" : "Ulysses";
    find(error, "micro_batch_tokens", place_of({tokens, dynamic}),
         fmt::format(
             "a micro-batch of {} tokens ({}{}) holds no sequence of {} (max_prompt_length + "
             "max_response_length): verl asserts it",
             all, tokens, n_.parts > 1 ? fmt::format(" x {} {}", parts, n_.parts) : "", n_.longest),
         fmt::format("{}={}", tokens, ceil_div(n_.longest, n_.parts)), kMakeBatches);
  }

  // ---- adapters ----

  // PEFT's, of transformers' modules; Megatron's have other names.
  void check_adapters_of_model() {
    const Setting* const said = c_.said(key(kModel, "target_modules"));
    if (said == nullptr || megatron_ || c_.whole(key(kModel, "lora_rank"), 0) <= 0) return;
    Setting targets = *said;
    targets.value = c_.value(said->key);
    check_targets(scene_, targets, error, out_);
  }

  // ---- degrees ----

  void check_split() {
    if (megatron_) {
      if (n_.trainers() % n_.split != 0) {
        find(error, "world_divisibility",
             place_of({key(kActor, "megatron.tensor_model_parallel_size")}),
             fmt::format("{} GPUs that train are no multiple of tp x pp x cp = {}", n_.trainers(),
                         n_.split),
             "degrees whose product divides them", kValidate);
      }
      return;
    }
    if (n_.parts == 1) return;
    const std::string ulysses = key(kActor, "ulysses_sequence_parallel_size");
    const std::int64_t heads = scene_.question.model.num_attention_heads;
    if (heads % n_.parts != 0) {
      find(error, "ulysses_heads", place_of({ulysses}),
           fmt::format("{} heads do not divide among {} ranks of Ulysses", heads, n_.parts),
           "a degree that divides the heads",
           "verl b178a3cd, verl/utils/ulysses.py (validate_ulysses_config)");
    }
    if (!c_.on(key(kModel, "use_remove_padding"), true)) {
      find(error, "ulysses_padding", place_of({ulysses}),
           "Ulysses needs use_remove_padding: verl raises an error",
           "actor_rollout_ref.model.use_remove_padding=True", kActorConfig);
    }
    if (n_.trainers() % n_.parts != 0) {
      find(error, "world_divisibility", place_of({ulysses}),
           fmt::format("{} GPUs that train are no multiple of {} ranks of Ulysses", n_.trainers(),
                       n_.parts),
           "a degree that divides them", kShardWorker);
    }
  }

  void check_engines() {
    if (!scene_.step) return;
    const RolloutLayout& layout = scene_.step->layout;
    // Of GPUs of their own as many as the files say: that they are not the job's is said above.
    const std::int64_t own = c_.whole("rollout.nnodes", 1) * c_.whole("rollout.n_gpus_per_node", 8);
    const std::int64_t on = n_.rollout_gpus > 0 ? own : n_.gpus;
    const std::int64_t each = layout.gpus();
    const std::string tp = key(kRollout, "tensor_model_parallel_size");
    if (on % each != 0 && !is_open({tp, key(kRollout, "data_parallel_size")})) {
      find(error, "rollout_divisibility", place_of({tp}),
           fmt::format("{} GPUs that make answers are no whole number of engines of {} ({})", on,
                       each, to_string(layout)),
           "a rollout.tensor_model_parallel_size that divides them", kEngines);
    }
    if (layout.ep > 1 && layout.ep != layout.tp * layout.dp) {
      find(error, "rollout_experts", place_of({key(kRollout, "expert_parallel_size")}),
           fmt::format("an engine's expert_parallel_size is tensor x data parallel = {}, not {}",
                       layout.tp * layout.dp, layout.ep),
           fmt::format("expert_parallel_size={}", layout.tp * layout.dp), kRolloutConfig);
    }
    const std::int64_t heads = scene_.question.model.num_attention_heads;
    if (heads % layout.tp != 0 && on % each == 0) {
      find(error, "rollout_heads", place_of({tp}),
           fmt::format("{} heads do not divide among {} ranks of an engine", heads, layout.tp),
           "a rollout.tensor_model_parallel_size that divides the heads",
           "qplan: vLLM and SGLang refuse it (verify_with_parallel_config)");
    }
    check_engine_tokens(layout);
  }

  void check_engine_tokens(const RolloutLayout& layout) {
    const std::string batched = key(kRollout, "max_num_batched_tokens");
    const std::string most = key(kRollout, "max_model_len");
    if (is_open({batched, most, "data.max_prompt_length", "data.max_response_length"})) return;
    const std::int64_t at_once = c_.whole(batched, 8192), length = c_.whole(most, n_.longest);
    if (length < n_.longest) {
      find(warning, "rollout_length", place_of({most}),
           fmt::format("engines of max_model_len {} cut sequences of {} (max_prompt_length + "
                       "max_response_length)",
                       length, n_.longest),
           fmt::format("{}={}", most, n_.longest),
           "verl b178a3cd, verl/workers/rollout/vllm_rollout/vllm_async_server.py:113");
    }
    const bool vllm = c_.word(key(kRollout, "name"), "vllm") == "vllm";
    if (!vllm) return;
    if (!c_.on(key(kRollout, "enable_chunked_prefill"), true) && at_once < length) {
      find(
          error, "rollout_prefill", place_of({batched, key(kRollout, "enable_chunked_prefill")}),
          fmt::format("without enable_chunked_prefill vLLM wants max_num_batched_tokens of a whole "
                      "sequence, {}, not {}",
                      length, at_once),
          fmt::format("{}={}", batched, length),
          "qplan: vLLM's SchedulerConfig raises an error (vllm/config/scheduler.py)");
    }
    if (at_once < layout.max_running) {
      find(error, "rollout_prefill", place_of({batched, key(kRollout, "max_num_seqs")}),
           fmt::format("vLLM wants max_num_batched_tokens of max_num_seqs {} or more, not {}",
                       layout.max_running, at_once),
           fmt::format("{}={}", batched, layout.max_running),
           "qplan: vLLM's SchedulerConfig raises an error (vllm/config/scheduler.py)");
    }
  }

  const Scene& scene_;
  const ConfigPart& part_;
  Findings& out_;
  OmegaConfig c_;
  bool megatron_;
  Numbers n_;
};

}  // namespace

void check_verl(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::verl) VerlCheck(scene, part, out).run();
  }
}

}  // namespace qplan
