#include "planner/frameworks/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "models/error.h"
#include "models/program/fp8_parameters.h"
#include "models/program/loss.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/swift.h"
#include "planner/frameworks/optimizer_names.h"
#include "planner/frameworks/readers/own_script.h"
#include "planner/frameworks/relations.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/unsaid.h"
#include "planner/search/default_batch.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

// Whether one of the job's programs wraps its model itself.
bool wraps_model(const JobFiles& files) {
  return std::any_of(files.parts.begin(), files.parts.end(), [](const ConfigPart& part) {
    return part.dialect == Dialect::own_script && !wrapper_of(part.settings).empty();
  });
}

std::optional<Framework> framework_of(const JobFiles& files) {
  const auto has = [&](Dialect dialect) { return files.find(dialect) != nullptr; };
  if (has(Dialect::verl)) return Framework::verl;
  if (has(Dialect::nemo_rl)) return Framework::nemo_rl;
  if (has(Dialect::slime)) return Framework::slime;
  const bool megatron = has(Dialect::megatron) || has(Dialect::megatron_yaml);
  if (has(Dialect::megatron_deepspeed) || (has(Dialect::ds_config) && megatron)) {
    return Framework::megatron_deepspeed;
  }
  if (has(Dialect::bridge)) return Framework::megatron_bridge;
  if (has(Dialect::torchtitan)) return Framework::torchtitan;
  if (megatron) return Framework::megatron;
  if (has(Dialect::ds_config)) return Framework::deepspeed;
  if (has(Dialect::accelerate) || wraps_model(files)) return Framework::fsdp2;
  if (has(Dialect::trainer)) {
    const ConfigPart* const part = files.find(Dialect::trainer);
    if (part->settings.has("--deepspeed")) return Framework::deepspeed;
    if (part->settings.has("--per_device_train_batch_size") || part->settings.has("--fsdp")) {
      return Framework::fsdp2;
    }
  }
  return std::nullopt;
}

// Who hands the job to another framework's code, by whose words it is read.
std::optional<Framework> named_by(const JobFiles& files) {
  const bool swift =
      files.find(Dialect::ms_swift) != nullptr || files.find(Dialect::ms_swift_megatron) != nullptr;
  if (files.find(Dialect::automodel) != nullptr) return Framework::automodel;
  if (files.find(Dialect::trl) != nullptr) return Framework::trl;
  return swift ? std::optional(Framework::ms_swift) : std::nullopt;
}

// ---- reading ----

Finding bad_value(const Setting& setting, const std::string& sentence) {
  return {Severity::error,
          "bad_value",
          setting.place,
          fmt::format("{} {}", setting.key, sentence),
          "",
          ""};
}

bool is_auto(const Setting& setting) {
  return setting.value.is_string() && setting.value.get_ref<const std::string&>() == "auto";
}

// What this part says, read on top of the draft; which words is added to `said`.
void read_part(const ConfigPart& part, Draft& draft,
               std::map<std::string, Place, std::less<>>& said, Findings& out) {
  if (has_names_alone(part)) return;
  for (const Option& option : options_of(part.dialect)) {
    const Setting* const setting = part.settings.find(option.key);
    if (setting == nullptr || is_auto(*setting)) continue;
    if (part.dialect == Dialect::ds_config && setting->value.is_null()) continue;
    if (!setting->resolved) {
      out.push_back({Severity::note, "not_resolved", setting->place,
                     fmt::format("{} is {}, which only a run can tell", setting->key,
                                 shown(text_of(setting->value))),
                     "write the value, or check the command that the script makes of it", ""});
      continue;
    }
    try {
      option.read(draft, setting->value);
      if (!option.word.empty()) said.emplace(option.word, setting->place);
    } catch (const Error& error) {
      out.push_back(bad_value(*setting, error.what()));
    }
  }
}

// Two files that say the same word otherwise.
void check_contradictions(const Scene& scene, const Draft& unsaid, Findings& out) {
  struct Said {
    Json words;
    std::map<std::string, Place, std::less<>> places;
    Dialect dialect;
  };
  std::vector<Said> all;
  for (const ConfigPart& part : scene.files.parts) {
    Draft draft = unsaid;
    Said said{nullptr, {}, part.dialect};
    Findings ignored;
    read_part(part, draft, said.places, ignored);
    if (draft.plan.dp == 0) draft.plan.dp = 1;
    said.words = plan_to_json(draft.plan);
    all.push_back(std::move(said));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      for (const auto& [word, place] : all[j].places) {
        const auto before = all[i].places.find(word);
        if (before == all[i].places.end() || !all[i].words.contains(word)) continue;
        const Json &x = all[i].words[word], &y = all[j].words[word];
        // Offload, recompute and overlap are sums of what both say.
        if (x == y || word == "offload" || word == "overlap" || word == "recompute") continue;
        // Weights in bf16 and products in fp8 go together.
        if (word == "precision" && x != "fp16" && y != "fp16") continue;
        out.push_back({Severity::error, "contradiction", place,
                       fmt::format("{} is {} here and {} in {}", word, text_of(y), text_of(x),
                                   to_string(before->second)),
                       "make them agree", ""});
      }
    }
  }
}

// Whether activations are recomputed, where a program says so in a way that only a run can tell.
void note_recompute(const Settings& own_script, Findings& out) {
  const Setting* const said = own_script.find("recompute");
  if (said == nullptr) return;
  const Setting* const condition = own_script.find("recompute.if");
  const bool on = !said->value.is_boolean() || said->value.get<bool>();
  if (!said->resolved) {
    out.push_back({Severity::note, "not_resolved", said->place,
                   fmt::format("whether activations are recomputed is {}, which only a run can "
                               "tell; it is judged as if they were not",
                               shown(text_of(said->value))),
                   "write True or False", ""});
  } else if (condition != nullptr && condition->place.line == said->place.line && on) {
    out.push_back({Severity::note, "not_resolved", said->place,
                   fmt::format("activations are recomputed where {} holds, which only a run can "
                               "tell; it is judged as if it did",
                               shown(text_of(condition->value))),
                   "", ""});
  }
}

// Megatron's flags under keys of yaml ("parallel.tensor_model_parallel_size").
Settings as_flags(const Settings& keys) {
  Settings flags;
  for (Setting setting : keys) {
    const std::size_t dot = setting.key.rfind('.');
    setting.key = "--" + setting.key.substr(dot == std::string::npos ? 0 : dot + 1);
    std::replace(setting.key.begin(), setting.key.end(), '_', '-');
    flags.add(std::move(setting));
  }
  return flags;
}

// Of slime's batches of varying sequences: tokens a GPU may hold.
void read_slime(const Settings& settings, Draft& draft, Findings& out) {
  const auto number = [&](std::string_view key, std::int64_t otherwise) {
    const Setting* const found = settings.find(key);
    if (found == nullptr || !found->resolved) return otherwise;
    try {
      return whole_of(found->value, 1, 1 << 30);
    } catch (const Error& error) {
      out.push_back(bad_value(*found, error.what()));
      return otherwise;
    }
  };
  if (draft.plan.global_batch_size == 0 && settings.has("--rollout-batch-size")) {
    draft.plan.global_batch_size = number("--rollout-batch-size", 1) *
                                   number("--n-samples-per-prompt", 1) /
                                   number("--num-steps-per-rollout", 1);
  }
  if (!settings.has("--use-dynamic-batch-size")) return;
  const std::int64_t tokens = number("--max-tokens-per-gpu", 0) * draft.plan.cp;
  if (tokens == 0) return;
  const Setting* const length = settings.find("--seq-length");
  if (length == nullptr) draft.plan.seq_len = std::min<std::int64_t>(tokens, 1 << 20);
  draft.plan.micro_batch_size = std::max<std::int64_t>(1, tokens / draft.plan.seq_len);
}

// ---- what follows from several words ----

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
      : scene_{files, question, {}, {}}, framework_(framework) {
    scene_.draft.recipe = trainer_of(framework, files);
    scene_.draft.plan = plan_unsaid(framework, question.model, scene_.draft.recipe);
    // Of Megatron-Bridge's recipes that qplan knows 16 of 20 say te, and all are fused.
    if (framework == Framework::megatron_bridge) {
      scene_.draft.fuses_loss = true;
      scene_.draft.fused_loss = LossKind::te;
    }
  }

  void read(Findings& out) {
    const Draft unsaid = scene_.draft;
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
    if (is_rl(framework_)) {
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
    read_adapters(out);
    check_contradictions(scene_, unsaid, out);
    fill_from_question();
    settle();
    set_data_parallel();
    set_batch(out);
    read_optimizer_of_program();
    settle_optimizer();
    for (std::string& sentence : scene_.draft.assumed) assumed.push_back(std::move(sentence));
    count_pairs();
    const auto& sentences = scene_.files.assumed;
    assumed.insert(assumed.end(), sentences.begin(), sentences.end());
  }

  Scene& scene() { return scene_; }
  std::vector<std::string> assumed;
  bool takes_less = false;
  bool length_unsaid = false;

 private:
  [[nodiscard]] bool is_said(std::string_view word) const {
    return scene_.said.find(word) != scene_.said.end();
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
        length_unsaid = true;
        assumed.push_back(fmt::format(
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
        settle_megatron(draft, model);
        settle_adapters(draft, model);
        if (!may_keep_fp8_parameters(plan, recipe_of(draft.recipe))) plan.fp8_param_gather = true;
        if (framework_ != Framework::slime) {
          plan.loss = loss_word(draft.fuses_loss ? draft.fused_loss : LossKind::unfused,
                                plan.deterministic, recipe_of(draft.recipe));
        } else {
          const ConfigPart* const part = scene_.files.find(Dialect::slime);
          scene_.step = step_of_slime(settings_of(Dialect::slime),
                                      part == nullptr ? "" : part->script, plan, assumed);
        }
        break;
      case Framework::megatron_deepspeed:
        settle_megatron(draft, model);
        if (plan.zero >= 2 && plan.pp == 1) plan.schedule = ScheduleKind::one_f_one_b;
        break;
      case Framework::deepspeed:
        break;
      case Framework::automodel:
      case Framework::trl:
      case Framework::fsdp2:
        if (const ConfigPart* const part = scene_.files.find(Dialect::accelerate)) {
          settle_accelerate(draft, part->settings, gpus, scene_.question.gpus_per_node);
          settle_formats_of_nemo();
          scene_.said.emplace("zero", part->place);
        } else if (wraps_model(scene_.files)) {
          settle_own_script(draft, settings_of(Dialect::own_script), scene_.question.config, gpus,
                            scene_.question.gpus_per_node);
          assume_of_script();
        } else if (!is_launched_by_accelerate() && !says_parallelism()) {
          settle_trainer(draft, settings_of(Dialect::trainer), settings_of(Dialect::own_script),
                         scene_.question.config, scene_.question.gpus_per_node);
          scene_.said.emplace("zero", scene_.files.find(Dialect::trainer)->place);
        }
        break;
      case Framework::verl:
      case Framework::nemo_rl: {
        RlReading reading =
            framework_ == Framework::verl
                ? settle_verl(draft, scene_.files.find(Dialect::verl)->settings, model, gpus)
                : settle_nemo_rl(draft, scene_.files.find(Dialect::nemo_rl)->settings, model, gpus);
        scene_.step = std::move(reading.step);
        scene_.rl_gpus = reading.gpus;
        takes_less = reading.takes_less;
        assumed.insert(assumed.end(), reading.assumed.begin(), reading.assumed.end());
        break;
      }
      case Framework::torchtitan:
        settle_torchtitan(draft, model, settings_of(Dialect::torchtitan), gpus);
        settle_formats_of_nemo();
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

  // NeMo AutoModel's states are as wide as the weights are stored.
  void settle_formats_of_nemo() {
    if (scene_.files.find(Dialect::automodel) == nullptr) return;
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
      assumed.insert(assumed.end(), sentences.begin(), sentences.end());
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
    assumed.push_back(
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
      assumed.emplace_back(
          "every layer is a unit of its own: the program makes one unit of the whole model, which "
          "no plan can say");
    }
    if (own.has("tensor_parallel")) {
      assumed.emplace_back(
          "no tensor parallelism: parallelize_module splits modules here, which is not read");
    }
    if (own.has("loads") && !own.has("weights")) {
      assumed.emplace_back(
          "weights in fp32: the program does not say; transformers 5 loads them as the checkpoint "
          "has them, 4 in fp32; torch_dtype says it");
    }
  }

  // Data parallelism is what the other degrees leave of the GPUs.
  void set_data_parallel() {
    Draft& draft = scene_.draft;
    ParallelPlan& plan = draft.plan;
    const std::int64_t others = std::int64_t{plan.tp} * plan.cp * plan.pp;
    const bool of_mesh = plan.dp > 0 && (framework_ == Framework::fsdp2 ||
                                         framework_ == Framework::torchtitan || is_rl(framework_));
    if (!of_mesh) {
      const std::int64_t rest = scene_.question.limits.gpus / std::max<std::int64_t>(1, others);
      plan.dp = static_cast<int>(std::max<std::int64_t>(1, rest));
    }
    const bool megatron = scene_.draft.recipe == RecipeKind::megatron;
    if (megatron && draft.shard_groups && *draft.shard_groups > 1) {
      plan.fsdp_shard = std::max(1, plan.dp * plan.cp / *draft.shard_groups);
    }
  }

  void set_batch(Findings& out) {
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
      draft.accumulation = (whole_of(of->value) + each - 1) / each;
    }
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
      // A Trainer fills the batch from its arguments, slime from its rollouts; Megatron takes one
      // microbatch.
      plan.global_batch_size = plan.micro_batch_size * plan.dp;
      if (framework_ == Framework::megatron) {
        assumed.push_back(
            fmt::format("a global batch of {} sequences, one microbatch a rank: the files do not "
                        "say; --global-batch-size does",
                        plan.global_batch_size));
      }
      if (framework_ == Framework::deepspeed || framework_ == Framework::fsdp2 ||
          framework_ == Framework::slime) {
        plan.global_batch_size =
            default_global_batch_size(scene_.question.limits.gpus, plan.seq_len);
        assumed.push_back(
            fmt::format("a global batch of {} sequences: the files do not say; "
                        "--global-batch-size does",
                        plan.global_batch_size));
      }
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

  static std::string accumulation_advice(const ParallelPlan& plan) {
    const std::int64_t each = plan.micro_batch_size * plan.dp;
    if (plan.global_batch_size % each == 0) {
      return fmt::format("gradient_accumulation_steps {}", plan.global_batch_size / each);
    }
    return fmt::format("a train_batch_size that is a multiple of {}", each);
  }

  Scene scene_;
  Framework framework_;
};

// Whether Megatron runs what rule interleaved_microbatches rejects: groups other than pp must leave
// no remainder, or one of pp and more (schedules.py,
// forward_backward_pipelining_with_interleaving).
bool runs_in_groups(const Draft& draft) {
  if (!draft.microbatch_group) return false;
  const std::int64_t group = *draft.microbatch_group, all = draft.plan.num_microbatches();
  const std::int64_t rest = all % group;
  return group >= draft.plan.pp && group <= all && (rest == 0 || rest >= draft.plan.pp);
}

// The rules that reject plans explain configurations too. They stand where the first word was said
// that their message names.
void check_rules(const Scene& scene, Findings& out) {
  const CheckQuestion& q = scene.question;
  const RecipeKind recipe = scene.draft.recipe;
  // Those that make answers beside them train nothing.
  ClusterLimits limits = q.limits;
  const bool beside = scene.files.find(Dialect::slime) != nullptr;  // the job's own GPUs
  if (scene.step && limits.gpus > 0 && !beside) limits.gpus -= scene.step->job.rollout_gpus;
  for (Infeasible& reason : why_infeasible(q.model, scene.draft.plan, recipe_of(recipe), limits)) {
    Place place;
    std::size_t first = std::string::npos;
    for (const auto& [word, said] : scene.said) {
      const std::size_t at = (" " + reason.message + " ").find(" " + word + " ");
      if (at < first) {
        first = at;
        place = said;
      }
    }
    if (place.file.empty() && !scene.files.parts.empty()) place = scene.files.parts.front().place;
    if (place.line == 0 && place.file.empty()) place = {scene.files.texts.front().name, 0};
    // One arithmetic, said by the finding that knows the accumulation.
    const bool known = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
      return f.rule == "batch_arithmetic" && reason.rule == "batch_divisibility";
    });
    if (reason.rule == "interleaved_microbatches" && runs_in_groups(scene.draft)) {
      out.push_back({Severity::warning, std::string(reason.rule), place,
                     fmt::format("Megatron runs {} microbatches in groups of {}, which is not "
                                 "predicted: here groups have pp {}",
                                 scene.draft.plan.num_microbatches(), *scene.draft.microbatch_group,
                                 scene.draft.plan.pp),
                     "", fmt::format("rule of {}: {}", to_word(recipe), reason.source)});
      continue;
    }
    // Of layers that NeMo AutoModel has and the recipe that stands in for it has not; NeMo-RL
    // trains by it, too.
    const bool of_nemo =
        scene.files.find(Dialect::automodel) != nullptr ||
        (scene.files.find(Dialect::nemo_rl) != nullptr && recipe == RecipeKind::fsdp2_compile);
    const bool stands_in = of_nemo && (reason.rule.find("_available") != std::string_view::npos ||
                                       reason.rule.starts_with("delta_net"));
    if (stands_in) {
      out.push_back({Severity::note, std::string(reason.rule), place,
                     fmt::format("not predicted: {}", reason.message), "",
                     fmt::format("rule of {}: {}", to_word(recipe), reason.source)});
    } else if (!known) {
      out.push_back({Severity::error, std::string(reason.rule), place, reason.message, "",
                     fmt::format("rule of {}: {}", to_word(recipe), reason.source)});
    }
  }
}

// Whether the step is small enough to be simulated.
bool check_size(const Scene& scene, Findings& out) {
  const std::int64_t sequences = scene.draft.plan.global_batch_size;
  if (sequences <= kMostSequences) return true;
  auto said = scene.said.find("global_batch_size");
  if (said == scene.said.end()) said = scene.said.find("micro_batch_size");
  const Place place = said == scene.said.end() ? scene.files.parts.front().place : said->second;
  out.push_back({Severity::error, "batch_size", place,
                 fmt::format("a global batch of {} sequences is more than is simulated; use at "
                             "most {}",
                             sequences, kMostSequences),
                 "", ""});
  return false;
}

// Whether the file is missing that says how states are sharded: without it there is no plan.
bool lacks_config(const Checked& checked, Framework framework) {
  const bool says_it = framework == Framework::deepspeed || framework == Framework::fsdp2;
  return says_it && std::any_of(checked.findings.begin(), checked.findings.end(),
                                [](const Finding& f) { return f.rule == "config_missing"; });
}

Finding nothing_to_check(const JobFiles& job) {
  Finding finding{Severity::error,
                  "nothing_to_check",
                  {job.texts.front().name, 0},
                  "no file says how the job is spread over GPUs",
                  "give the launch script with its arguments",
                  ""};
  if (job.missing.empty()) return finding;
  const ShellWord& script = job.missing.back();  // what comes before it prepares
  const std::string name = shown(base_name(script.text));
  finding.place = script.place;
  finding.message += fmt::format(": {} is started here and is not among the files given", name);
  finding.instead = fmt::format("give {} too", name);
  return finding;
}

// Of ms-swift's arguments what Megatron-Core refuses holds, and what Megatron-LM's own script does
// not, which is not run.
void check_megatron_of(const Scene& scene, Findings& out) {
  const std::size_t before = out.size();
  check_megatron(scene, out);
  if (scene.files.find(Dialect::ms_swift_megatron) == nullptr) return;
  const auto begin = out.begin() + static_cast<std::ptrdiff_t>(before);
  const auto of_script = [](const Finding& f) {
    return f.severity == Severity::error &&
           f.source.find("megatron/training/") != std::string::npos;
  };
  out.erase(std::remove_if(begin, out.end(), of_script), out.end());
}

// Findings in the words that the files have. Corrections in others than these are none.
void respell(const JobFiles& files, Findings& out) {
  if (files.find(Dialect::ms_swift_megatron) == nullptr) return;
  for (Finding& finding : out) {
    finding.message = swift_spelled(finding.message);
    finding.instead = swift_spelled(finding.instead);
    const bool words = std::any_of(finding.fix.begin(), finding.fix.end(), [](const Edit& edit) {
      return edit.text.find("--") != std::string::npos && swift_spelled(edit.text) != edit.text;
    });
    if (words) finding.fix.clear();
  }
}

void sort_findings(Findings& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.severity, a.place.file, a.place.line) <
           std::tie(b.severity, b.place.file, b.place.line);
  });
  const auto same = [](const Finding& a, const Finding& b) {
    return a.rule == b.rule && a.message == b.message && a.place.file == b.place.file &&
           a.place.line == b.place.line;
  };
  findings.erase(std::unique(findings.begin(), findings.end(), same), findings.end());
}

// Whether a Trainer's program has samples of their own lengths, the longest as long as is said:
// run_clm.py cuts all text into blocks, and others where they are told to pack.
bool pads_samples(const JobFiles& files) {
  return std::any_of(files.parts.begin(), files.parts.end(), [](const ConfigPart& part) {
    return part.dialect == Dialect::trainer && !part.derived && !part.script.empty() &&
           base_name(part.script) != "run_clm.py" && !is_switched_on(part.settings, "--packing");
  });
}

}  // namespace

std::vector<TrapInfo> trap_infos() {
  std::vector<TrapInfo> infos;
  list_megatron_traps(infos);
  list_deepspeed_traps(infos);
  return infos;
}

std::int64_t Checked::count(Severity severity) const {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& f) { return f.severity == severity; });
}

Checked check(std::span<const ConfigText> files, const CheckQuestion& question) {
  JobFiles job = read_job_files(files);
  for (ConfigPart& part : job.parts) {
    if (part.dialect != Dialect::megatron_yaml) continue;
    part.settings.append(as_flags(part.settings));
  }
  Checked checked;
  checked.findings = job.findings;
  const auto framework = framework_of(job);
  checked.framework = framework ? named_by(job).value_or(*framework) : framework;
  if (!framework) {
    const Scene scene{job, question, {}, {}};
    check_torch(scene, checked.findings);
    check_finetuning(scene, checked.findings);
    check_generations(scene, checked.findings);
    check_python(scene, checked.findings);
    check_launch(scene, checked.findings);
    if (!checked.has(Severity::error)) {
      checked.findings.push_back(nothing_to_check(job));
    }
    sort_findings(checked.findings);
    return checked;
  }
  Reading reading(job, question, *framework);
  reading.read(checked.findings);
  Scene& scene = reading.scene();
  check_options(scene, checked.findings);
  check_relations(scene, checked.findings);
  check_facts(scene, checked.findings);
  check_megatron_of(scene, checked.findings);
  check_bridge_adapters(scene, checked.findings);
  check_deepspeed(scene, checked.findings);
  check_trainer(scene, checked.findings);
  check_torch(scene, checked.findings);
  check_finetuning(scene, checked.findings);
  check_verl(scene, checked.findings);
  check_nemo_rl(scene, checked.findings);
  check_generations(scene, checked.findings);
  check_python(scene, checked.findings);
  check_launch(scene, checked.findings);
  respell(job, checked.findings);
  const bool whole = !lacks_config(checked, *framework);
  checked.says_plan = whole && (!scene.said.empty() || wraps_model(job));
  if (checked.says_plan) {
    check_rules(scene, checked.findings);
    checked.says_plan = check_size(scene, checked.findings);
  }
  sort_findings(checked.findings);
  checked.recipe = scene.draft.recipe;
  checked.plan = scene.draft.plan;
  checked.assumed = reading.assumed;
  checked.takes_less = job.takes_less || reading.takes_less || scene.draft.takes_less;
  checked.shorter = job.shorter || reading.length_unsaid || pads_samples(job);
  checked.step = std::move(scene.step);
  return checked;
}

}  // namespace qplan
