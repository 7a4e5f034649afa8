#include "planner/frameworks/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "models/program/fp8_parameters.h"
#include "models/program/loss.h"
#include "models/text.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/openrlhf.h"
#include "planner/frameworks/finetuning/prime_rl.h"
#include "planner/frameworks/job_framework.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/optimizer_names.h"
#include "planner/frameworks/part_words.h"
#include "planner/frameworks/pretraining/nanotron.h"
#include "planner/frameworks/readers/own_script.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/torch/trainer_habits.h"
#include "planner/frameworks/unsaid.h"
#include "planner/search/default_batch.h"

namespace qplan {
namespace {

// Whose configuration says what a step of reinforcement learning is.
bool is_rl(Framework framework) {
  return framework == Framework::verl || framework == Framework::nemo_rl;
}

// Whose implementation trains, which those say themselves.
RecipeKind trainer_of(Framework framework, const JobFiles& files) {
  if (framework == Framework::verl) return recipe_of_verl(files.find(Dialect::verl)->settings);
  if (framework == Framework::nemo_rl) {
    return recipe_of_nemo_rl(files.find(Dialect::nemo_rl)->settings);
  }
  return recipe_for(framework, RecipeKind::megatron);
}

class Reading {
 public:
  Reading(const JobFiles& files, const CheckQuestion& question, Framework framework)
      : reading_{{files, question, {}, {}}, {}}, scene_(reading_.scene), framework_(framework) {
    scene_.draft.recipe = trainer_of(framework, files);
    scene_.draft.plan = plan_unsaid(framework, question.model, scene_.draft.recipe);
    // Of Megatron-Bridge's recipes that qplan knows 16 of 20 say te, and all are fused.
    if (framework == Framework::megatron_bridge) {
      scene_.draft.fuses_loss = true;
      scene_.draft.fused_loss = LossKind::te;
    }
  }

  PlanReading read(Findings& out) {
    const Draft unsaid = scene_.draft;
    read_words(out);
    if (is_rl(framework_)) read_rl_words(out);
    read_adapters(out);
    check_contradictions(scene_, unsaid, out);
    fill_from_question();
    settle();
    set_data_parallel();
    set_batch(out);
    settle_trainer_habits(scene_.files, scene_.draft, scene_.said);
    pack_answers();
    read_optimizer_of_program();
    settle_optimizer();
    for (std::string& sentence : scene_.draft.assumed) {
      reading_.assumed.push_back(std::move(sentence));
    }
    count_pairs();
    const auto& sentences = scene_.files.assumed;
    reading_.assumed.insert(reading_.assumed.end(), sentences.begin(), sentences.end());
    return std::move(reading_);
  }

 private:
  [[nodiscard]] bool is_said(std::string_view word) const {
    return scene_.said.find(word) != scene_.said.end();
  }

  void read_words(Findings& out) {
    for (const ConfigPart& part : scene_.files.parts) {
      read_part(part, scene_.draft, scene_.said, out);
      if (part.dialect == Dialect::own_script) {
        read_recompute(scene_.draft, part.settings);
        note_recompute(part.settings, out);
        if (const Setting* const said = part.settings.find("recompute")) {
          scene_.said.emplace("recompute", said->place);
        }
      }
      if (part.dialect != Dialect::slime) continue;
      read_slime(part.settings, scene_.draft, out);
    }
  }

  // The job's own words, and those of its trainer as Megatron's flags.
  void read_rl_words(Findings& out) {
    for (const ConfigPart& part : scene_.files.parts) {
      const bool verl = part.dialect == Dialect::verl;
      if (!verl && part.dialect != Dialect::nemo_rl) continue;
      scene_.said.emplace("seq_len", part.place);  // the job's own
      const ConfigPart flags{.dialect = Dialect::megatron,
                             .settings = verl ? megatron_flags_of_verl(part.settings)
                                              : megatron_flags_of_nemo_rl(part.settings),
                             .place = part.place,
                             .script = {}};
      read_part(flags, scene_.draft, scene_.said, out);
    }
  }

  void fill_from_question() {
    ParallelPlan& plan = scene_.draft.plan;
    const CheckQuestion& q = scene_.question;
    if (q.seq_len && !is_said("seq_len")) {
      plan.seq_len = *q.seq_len;
    } else if (!is_said("seq_len") && framework_ != Framework::torchtitan) {
      const bool tokens = is_said("micro_batch_size") || framework_ != Framework::slime;
      if (tokens) {
        plan.seq_len = default_seq_len(q.model);
        reading_.length_unsaid = true;
        reading_.assumed.push_back(fmt::format(
            "sequences of {} tokens: the files do not say; --seq-len does", plan.seq_len));
      }
    }
    if (q.micro_batch_size && !is_said("micro_batch_size")) {
      plan.micro_batch_size = *q.micro_batch_size;
    }
    if (q.global_batch_size && !is_said("global_batch_size")) {
      plan.global_batch_size = *q.global_batch_size;
    }
  }

  void settle() {
    const ModelSpec& model = scene_.question.model;
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    const std::int64_t gpus = scene_.question.limits.gpus;
    switch (framework_) {
      case Framework::ms_swift:
      case Framework::megatron:
      case Framework::megatron_bridge:
      case Framework::slime:
        settle_core();
        break;
      case Framework::megatron_deepspeed:
        count_ends_as_layers();
        settle_megatron(draft, model);
        if (plan.zero >= 2 && plan.pp == 1) plan.schedule = ScheduleKind::one_f_one_b;
        break;
      case Framework::deepspeed:
        scene_.engines = gpus_beside_policy(scene_.files, gpus);
        break;
      case Framework::automodel:
      case Framework::trl:
      case Framework::fsdp2:
        settle_shards();
        break;
      case Framework::verl:
      case Framework::nemo_rl:
        settle_rl();
        break;
      case Framework::nanotron:
        settle_nanotron(draft);
        break;
      case Framework::torchtitan:
        settle_torchtitan(draft, model, settings_of(Dialect::torchtitan), gpus);
        settle_stored_formats();
        break;
    }
    if (const ConfigPart* const part = scene_.files.find(Dialect::ds_config)) {
      settle_deepspeed(draft, part->settings);
    }
    const bool splits_experts =
        framework_ == Framework::megatron || framework_ == Framework::megatron_bridge ||
        framework_ == Framework::slime || framework_ == Framework::megatron_deepspeed ||
        draft.recipe == RecipeKind::megatron;
    if (!model.moe || !splits_experts) plan.etp = 1;
  }

  // BigScience's fork says by which modules DeepSpeed cuts the model: with "embedding" among them
  // the table and the head count as a layer each, so that 70 layers fill 12 stages.
  void count_ends_as_layers() {
    const Settings settings = settings_of(Dialect::megatron_deepspeed);
    const Setting* const method = settings.find("--pp-partition-method");
    if (method == nullptr || !method->resolved) return;
    const std::string by = lower_case(text_of(method->value));
    const bool both = by.starts_with("type:") && by.find("transformer") != std::string::npos &&
                      by.find("embed") != std::string::npos;
    scene_.draft.counts_embedding = scene_.draft.counts_loss = both;
  }

  // Megatron-Core's, by whoever calls it.
  void settle_core() {
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    settle_megatron(draft, scene_.question.model);
    settle_adapters(draft, scene_.question.model);
    if (!may_keep_fp8_parameters(plan, recipe_of(draft.recipe))) plan.fp8_param_gather = true;
    if (framework_ != Framework::slime) {
      plan.loss = loss_word(draft.fuses_loss ? draft.fused_loss : LossKind::unfused,
                            plan.deterministic, recipe_of(draft.recipe));
    } else {
      const ConfigPart* const part = scene_.files.find(Dialect::slime);
      const Settings settings = settings_of(Dialect::slime);
      scene_.step =
          step_of_slime(settings, part == nullptr ? "" : part->script, plan, reading_.assumed);
      scene_.engines = engines_of_slime(settings, scene_.question.limits.gpus);
    }
  }

  // FSDP's, by accelerate's yaml, a program of one's own, or a Trainer.
  void settle_shards() {
    Draft& draft = scene_.draft;
    const CheckQuestion& q = scene_.question;
    const std::int64_t gpus = q.limits.gpus;
    if (const ConfigPart* const part = scene_.files.find(Dialect::accelerate)) {
      settle_accelerate(draft, part->settings, gpus, q.gpus_per_node);
      settle_stored_formats();
      scene_.said.emplace("zero", part->place);
    } else if (wraps_model(scene_.files)) {
      settle_own_script(draft, settings_of(Dialect::own_script), q.config, gpus, q.gpus_per_node);
      assume_of_script();
    } else if (!is_launched_by_accelerate() && !says_parallelism()) {
      settle_trainer(draft, settings_of(Dialect::trainer), settings_of(Dialect::own_script),
                     q.config, q.gpus_per_node);
      scene_.said.emplace("zero", scene_.files.find(Dialect::trainer)->place);
    }
  }

  void settle_rl() {
    Draft& draft = scene_.draft;
    const ModelSpec& model = scene_.question.model;
    const std::int64_t gpus = scene_.question.limits.gpus;
    RlReading reading =
        framework_ == Framework::verl
            ? settle_verl(draft, scene_.files.find(Dialect::verl)->settings, model, gpus)
            : settle_nemo_rl(draft, scene_.files.find(Dialect::nemo_rl)->settings, model, gpus);
    scene_.step = std::move(reading.step);
    scene_.rl_gpus = reading.gpus;
    if (scene_.step) scene_.engines = scene_.step->job.rollout_gpus;
    reading_.takes_less = reading.takes_less;
    reading_.assumed.insert(reading_.assumed.end(), reading.assumed.begin(), reading.assumed.end());
  }

  // States of NeMo AutoModel, of torchtune, of torchtitan's TOML and of prime-rl are as wide as the
  // weights are stored.
  void settle_stored_formats() {
    if (scene_.files.find(Dialect::automodel) == nullptr &&
        scene_.files.find(Dialect::torchtune) == nullptr &&
        scene_.files.find(Dialect::torchtitan_toml) == nullptr &&
        !settings_of(Dialect::torchtitan).has(kPrimeRlModel)) {
      return;
    }
    const Settings own = settings_of(Dialect::own_script);
    settle_formats(scene_.draft, own, weights_of_script(own, scene_.question.config));
  }

  [[nodiscard]] Settings settings_of(Dialect dialect) const {
    Settings all;
    for (const ConfigPart& part : scene_.files.parts) {
      if (part.dialect == dialect) all.append(part.settings);
    }
    return all;
  }

  void read_adapters(Findings& out) {
    const Settings own = settings_of(Dialect::own_script);
    const Setting* const said = own.find("lora");
    if (said == nullptr) return;
    try {
      const auto sentences = read_lora(scene_.draft, own);
      reading_.assumed.insert(reading_.assumed.end(), sentences.begin(), sentences.end());
      for (const auto& [key, word] : {std::pair{"lora.r", "lora_rank"},
                                      {"lora.lora_alpha", "lora_alpha"},
                                      {"lora.lora_dropout", "lora_dropout"}}) {
        if (const Setting* const own_key = own.find(key)) {
          scene_.said.emplace(word, own_key->place);
        }
      }
      scene_.said.emplace("lora_rank", said->place);
    } catch (const Error& error) {
      // What a fine-tuner's own arguments say is held against its own list of them.
      const auto& parts = scene_.files.parts;
      const bool own_call = std::any_of(parts.begin(), parts.end(), [](const ConfigPart& part) {
        return part.dialect == Dialect::own_script && !part.derived;
      });
      if (!own_call) return;
      out.push_back({Severity::error, "bad_value", said->place,
                     fmt::format("LoraConfig's {}", error.what()), "", ""});
    }
  }

  void read_optimizer_of_program() {
    const Settings own = settings_of(Dialect::own_script);
    if (const Setting* const hook = own.find("compression")) {
      const std::string name = text_of(hook->value);
      scene_.draft.assumed.push_back(fmt::format(
          "gradients that are reduced whole: what {} sends of them is not modelled{}", shown(name),
          name == "PowerSGD" ? ", nor the errors that it keeps, as large as the gradients" : ""));
    }
    const Setting* const said = own.find("optimizer");
    if (said == nullptr) return;
    read_optimizer(scene_.draft, said->value);
  }

  // What runs, and is not modelled with these states, is judged as Adam. (What Megatron refuses is
  // found as such.)
  void settle_optimizer() {
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    const bool known = recipe_of(draft.recipe).can.optimizers.has(plan.optimizer);
    const bool on_host = plan.optimizer != OptimizerKind::adam && plan.offload.optimizer > 0 &&
                         !kMegatronCore.has(draft.recipe);
    const bool at_reductions = plan.optimizer == OptimizerKind::muon && plan.zero == 3 &&
                               draft.recipe == RecipeKind::deepspeed;
    if (known && !on_host && !at_reductions) {
      // Of weights in 16 bits a momentum is, too; these have formats of their own.
      const bool own = plan.optimizer == OptimizerKind::adam8bit ||
                       plan.optimizer == OptimizerKind::adafactor ||
                       plan.optimizer == OptimizerKind::muon;
      if (own) plan.moment_dtype = DType::fp32;
      return;
    }
    draft.assumed.push_back(fmt::format(
        "Adam's two moments and step in place of {}'s, which {} is not modelled under {}",
        to_word(plan.optimizer),
        on_host         ? "on the host"
        : at_reductions ? "at ZeRO-3"
                        : "with its states",
        to_word(draft.recipe)));
    plan.optimizer = OptimizerKind::adam;
    draft.takes_less = true;
  }

  // A sample of preferences is two sequences of one batch: the answer chosen and the one rejected.
  void count_pairs() {
    if (!settings_of(Dialect::own_script).has("pairs")) return;
    ParallelPlan& plan = scene_.draft.plan;
    plan.micro_batch_size *= 2;
    plan.global_batch_size *= 2;
    reading_.assumed.push_back(
        fmt::format("a micro-batch of {} sequences: each of its {} samples is an answer chosen and "
                    "one rejected",
                    plan.micro_batch_size, plan.micro_batch_size / 2));
  }

  // Its configuration may lie in a place of its own, which nobody gave.
  [[nodiscard]] bool is_launched_by_accelerate() const {
    const auto& launches = scene_.files.launches;
    return std::any_of(launches.begin(), launches.end(),
                       [](const Launch& launch) { return launch.program == "accelerate"; });
  }

  // TrainingArguments(parallelism_config=...): a mesh of accelerate's.
  [[nodiscard]] bool says_parallelism() const {
    return settings_of(Dialect::trainer).has("--parallelism_config");
  }

  // What the plan of a program that wraps its model takes from nowhere.
  void assume_of_script() {
    const Settings own = settings_of(Dialect::own_script);
    if (is_one_unit(own)) {
      reading_.assumed.emplace_back(
          "every layer is a unit of its own: the program makes one unit of the whole model, which "
          "no plan can say");
    }
    if (own.has("tensor_parallel")) {
      reading_.assumed.emplace_back(
          "no tensor parallelism: parallelize_module splits modules here, which is not read");
    }
    if (own.has("loads") && !own.has("weights")) {
      reading_.assumed.emplace_back(
          "weights in fp32: the program does not say; transformers 5 loads them as the checkpoint "
          "has them, 4 in fp32; torch_dtype says it");
    }
  }

  // Data parallelism is what the other degrees leave of the GPUs.
  void set_data_parallel() {
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    const std::int64_t others = std::int64_t{plan.tp} * plan.cp * plan.pp;
    const bool of_mesh =
        plan.dp > 0 && (framework_ == Framework::fsdp2 || framework_ == Framework::torchtitan ||
                        framework_ == Framework::nanotron || is_rl(framework_));
    if (!of_mesh) {
      const std::int64_t rest = scene_.trainers() / std::max<std::int64_t>(1, others);
      plan.dp = static_cast<int>(std::max<std::int64_t>(1, rest));
    }
    const bool megatron = scene_.draft.recipe == RecipeKind::megatron;
    if (megatron && draft.shard_groups && *draft.shard_groups > 1) {
      plan.fsdp_shard = std::max(1, plan.dp * plan.cp / *draft.shard_groups);
    }
  }

  void set_batch(Findings& out) {
    try {
      read_batch_of_program();
    } catch (const Error&) {
      // What is no number is refused by the list of its own keys.
    }
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    const std::int64_t accumulation = draft.accumulation.value_or(0);
    const bool total = is_said("global_batch_size") || plan.global_batch_size > 0;
    const bool micro = is_said("micro_batch_size") || scene_.question.micro_batch_size;
    const std::int64_t per_step = std::max<std::int64_t>(1, accumulation) * plan.dp;
    if (total && !micro && accumulation > 0) {
      // DeepSpeed divides, and asserts afterwards (config.py:925).
      plan.micro_batch_size = std::max<std::int64_t>(1, plan.global_batch_size / per_step);
    } else if (!total && (micro || accumulation > 0)) {
      plan.global_batch_size = plan.micro_batch_size * per_step;
    } else if (!total) {
      assume_batch();
    }
    const std::int64_t product = plan.micro_batch_size * per_step;
    if (!total || accumulation == 0 || product == plan.global_batch_size) return;
    const bool titan = framework_ == Framework::torchtitan;
    if (titan) return;
    const auto place = scene_.said.find("global_batch_size");
    out.push_back(
        {Severity::error, "batch_arithmetic", place == scene_.said.end() ? Place{} : place->second,
         fmt::format("{} sequences a step are not micro-batch {} x accumulation {} x "
                     "data-parallel {} = {}",
                     plan.global_batch_size, plan.micro_batch_size, accumulation, plan.dp, product),
         accumulation_advice(plan), "DeepSpeed edaa7221, deepspeed/runtime/config.py:937"});
  }

  // slime packs the answers of an optimizer step, whose number its global batch is; where a script
  // says how long sequences are, it is of so many of them.
  void pack_answers() {
    if (framework_ != Framework::slime || !scene_.step) return;
    const Settings settings = settings_of(Dialect::slime);
    if (!settings.has("--use-dynamic-batch-size") || settings.has("--seq-length")) return;
    ParallelPlan& plan = scene_.draft.plan;
    plan.global_batch_size = packing_of(scene_.step->job, scene_.question.model, plan).sequences;
  }

  void read_batch_of_program() {
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    const Settings own = settings_of(Dialect::own_script);
    if (const Setting* const all = own.find("global_batch")) {
      plan.global_batch_size = whole_of(all->value, 1, std::int64_t{1} << 30);
      scene_.said.emplace("global_batch_size", all->place);
    }
    if (const Setting* const of = own.find("steps_of")) {
      const std::int64_t ranks = std::max<std::int64_t>(1, scene_.question.limits.gpus);
      const std::int64_t each = plan.micro_batch_size * ranks;
      draft.accumulation = ceil_div(whole_of(of->value), each);
    }
  }

  // A Trainer fills the batch from its arguments, slime from its rollouts; Megatron takes one
  // microbatch.
  void assume_batch() {
    ParallelPlan& plan = scene_.draft.plan;
    plan.global_batch_size = plan.micro_batch_size * plan.dp;
    if (framework_ == Framework::megatron) {
      reading_.assumed.push_back(
          fmt::format("a global batch of {} sequences, one microbatch a rank: the files do not "
                      "say; --global-batch-size does",
                      plan.global_batch_size));
    }
    if (framework_ == Framework::deepspeed || framework_ == Framework::fsdp2 ||
        framework_ == Framework::slime) {
      plan.global_batch_size = default_global_batch_size(scene_.question.limits.gpus, plan.seq_len);
      reading_.assumed.push_back(
          fmt::format("a global batch of {} sequences: the files do not say; "
                      "--global-batch-size does",
                      plan.global_batch_size));
    }
  }

  static std::string accumulation_advice(const ParallelPlan& plan) {
    const std::int64_t each = plan.micro_batch_size * plan.dp;
    if (plan.global_batch_size % each == 0) {
      return fmt::format("gradient_accumulation_steps {}", plan.global_batch_size / each);
    }
    return fmt::format("a train_batch_size that is a multiple of {}", each);
  }

  PlanReading reading_;
  Scene& scene_;  // of it
  Framework framework_;
};

}  // namespace

PlanReading read_plan(const JobFiles& files, const CheckQuestion& question, Framework framework,
                      Findings& out) {
  return Reading(files, question, framework).read(out);
}

}  // namespace qplan
