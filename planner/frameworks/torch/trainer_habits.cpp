#include "planner/frameworks/torch/trainer_habits.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/ascii.h"
#include "models/text.h"

namespace qplan {
namespace {

bool mentions(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// {"use_reentrant": false}, dict(use_reentrant=False): the truth behind a word; none: another, or
// not there.
std::optional<bool> truth_behind(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    std::size_t end = at + word.size();
    if ((at > 0 && is_name(text[at - 1])) || (end < text.size() && is_name(text[end]))) {
      continue;
    }
    while (end < text.size() && mentions("\"'\\ :=", text.substr(end, 1))) ++end;
    const std::string value = lower_case(text.substr(end, 5));
    if (value.starts_with("true")) return true;
    if (value == "false") return false;
  }
  return std::nullopt;
}

// The same of a file, close behind the name of a block that no remark takes away: of YAML's blocks,
// whose readers keep no keys for an argument, and of programs.
std::optional<SaidWithin> said_behind(const ConfigText& file, std::string_view block,
                                      std::string_view word) {
  constexpr std::size_t kNear = 160;  // bytes: of few keys
  const std::string_view text = file.text;
  for (std::size_t at = text.find(block); at != std::string_view::npos;
       at = text.find(block, at + 1)) {
    const std::size_t begin = text.rfind('\n', at) + 1;  // npos + 1: the first line
    if (mentions(text.substr(begin, at - begin), "#")) continue;
    if (const auto truth = truth_behind(text.substr(at, kNear), word)) {
      return SaidWithin{*truth, {file.name, line_of(text, at)}};
    }
  }
  return std::nullopt;
}

// transformers 5.23 names the block anew, and reads both names.
constexpr std::array<std::string_view, 2> kCheckpointBlocks{"gradient_checkpointing_kwargs",
                                                            "activation_checkpointing_kwargs"};

bool is_said_on(const Settings& settings, std::string_view key) {
  const Setting* const found = settings.find(key);
  if (found == nullptr || !found->resolved || found->value.is_null()) return false;
  const std::string text = lower_case(text_of(found->value));
  return !text.empty() && text != "false" && text != "no" && text != "none" && text != "0";
}

class Habits {
 public:
  Habits(const JobFiles& files, Draft& draft) : files_(files), draft_(draft) {
    for (const ConfigPart& part : files.parts) {
      if (!part.derived && trains_by_trainer(part.dialect) && trainer_ == nullptr) trainer_ = &part;
    }
  }

  // Whether recomputed layers run once more whole.
  [[nodiscard]] std::optional<SaidWithin> reentrant() const {
    if (!kHuggingFace.has(draft_.recipe) || by_accelerate()) return std::nullopt;
    for (const ConfigPart& part : files_.parts) {
      if (part.derived) continue;
      for (const std::string_view block : kCheckpointBlocks) {
        if (const auto said = said_within(part.settings, block, "use_reentrant")) {
          return SaidWithin{said->value || forced(), said->place};
        }
      }
    }
    if (const auto said = reentrant_of_texts()) {
      return SaidWithin{said->value || forced(), said->place};
    }
    if (const ConfigPart* const part = files_.find(Dialect::openrlhf)) {
      for (const Setting& setting : part->settings) {  // whose name has two forms
        if (mentions(setting.key, "reentrant")) return SaidWithin{true, setting.place};
      }
    }
    if (trainer_ == nullptr || draft_.plan.recompute.kind != RecomputeKind::full) {
      return std::nullopt;
    }
    return SaidWithin{reentrant_unasked(), trainer_->place};
  }

  // Whether what recomputation begins with lies on the host between forward and backward: by
  // transformers from 5.17 on (modeling_utils.py, gradient_checkpointing_enable), by TRL's and
  // axolotl's trainers, torchtune, and Unsloth's checkpoints in LLaMA-Factory.
  [[nodiscard]] std::optional<SaidWithin> checkpoints_on_host() const {
    if (draft_.plan.recompute.kind != RecomputeKind::full) return std::nullopt;
    if (!by_accelerate()) {
      for (const ConfigPart& part : files_.parts) {
        if (part.derived) continue;
        for (const std::string_view block : kCheckpointBlocks) {
          if (const auto said = said_within(part.settings, block, "offload")) return said;
        }
      }
      for (const ConfigText& file : files_.texts) {
        if (auto said = said_behind(file, "checkpointing_kwargs", "offload")) return said;
      }
    }
    for (const ConfigPart& part : files_.parts) {
      if (part.derived) continue;
      for (const std::string_view key : {"activation_offloading", "--activation_offloading",
                                         "enable_activation_offloading", "use_unsloth_gc"}) {
        if (is_said_on(part.settings, key)) {
          return SaidWithin{true, part.settings.find(key)->place};
        }
      }
      const Setting* const word = part.settings.find("gradient_checkpointing");  // axolotl's
      if (word != nullptr && lower_case(text_of(word->value)).starts_with("offload")) {
        return SaidWithin{true, word->place};
      }
    }
    return std::nullopt;
  }

  // Whether adapters are fp32 beside narrower weights.
  [[nodiscard]] bool has_wide_adapters() const {
    const RecipeSet has_choice = set_of(RecipeKind::ddp, RecipeKind::fsdp1);
    if (draft_.plan.lora_rank == 0 || !has_choice.has(draft_.recipe)) return false;
    if (is_of(Dialect::axolotl)) return has_wide_adapters_of_axolotl(trainer_->settings);
    if (is_of(Dialect::trl)) return !is_quantized();
    if (is_of(Dialect::ms_swift)) {  // 3602360a, swift/tuners/peft.py:158
      const Setting* const said = trainer_->settings.find("--lora_dtype");
      return said == nullptr || said->value.is_null() || text_of(said->value) == "float32" ||
             text_of(said->value) == "None";
    }
    // Programs: of TRL's trainers, or PEFT alone.
    const bool trl = std::any_of(files_.texts.begin(), files_.texts.end(), [](const auto& file) {
      return mentions(file.text, "from trl") || mentions(file.text, "import trl");
    });
    const bool told = std::any_of(files_.texts.begin(), files_.texts.end(), [](const auto& file) {
      return truth_behind(file.text, "autocast_adapter_dtype") == false;
    });
    return !told && !(trl && is_quantized());
  }

  // Whether every microbatch of several is reduced; nothing: the recipe has no choice, or no
  // Trainer runs it.
  [[nodiscard]] std::optional<SaidWithin> reduces_each() const {
    if (!kTorch.has(draft_.recipe)) return std::nullopt;
    for (const ConfigPart& part : files_.parts) {
      if (part.derived) continue;
      if (const auto said = said_within(part.settings, "accelerator_config", "sync_each_batch")) {
        return said;
      }
    }
    for (const ConfigText& file : files_.texts) {
      for (const std::string_view block : {"accelerator_config", "GradientAccumulationPlugin"}) {
        if (auto said = said_behind(file, block, "sync_each_batch")) return said;
      }
    }
    if (const ConfigPart* const part = files_.find(Dialect::automodel)) {
      return reduces_each_of_automodel(*part);
    }
    const ConfigPart* const waits = trainer_ != nullptr ? trainer_ : own_loop();
    // Of one rank a shard, as DDP of narrow weights is judged, sums are whole anyway.
    const bool shards = draft_.plan.fsdp_shard != 1;
    if (waits == nullptr || !shards || draft_.plan.num_microbatches() <= 1) return std::nullopt;
    return SaidWithin{false, waits->place};
  }

 private:
  static bool trains_by_trainer(Dialect dialect) {
    return dialect == Dialect::llama_factory || dialect == Dialect::axolotl ||
           dialect == Dialect::ms_swift || dialect == Dialect::trl || dialect == Dialect::trainer;
  }

  // accelerate's own checkpoints are not reentrant (16cb6eb8, src/accelerate/accelerator.py:1976).
  [[nodiscard]] bool by_accelerate() const {
    return std::any_of(files_.parts.begin(), files_.parts.end(), [](const ConfigPart& part) {
      return part.dialect == Dialect::accelerate &&
             is_said_on(part.settings, "fsdp_config.fsdp_activation_checkpointing");
    });
  }

  // TRL f2cd5771, trl/trainer/sft_trainer.py:1116, whatever its file says.
  [[nodiscard]] bool forced() const {
    const ParallelPlan& plan = draft_.plan;
    return is_of(Dialect::trl) && plan.lora_rank > 0 && plan.zero == 3 &&
           draft_.recipe == RecipeKind::deepspeed && plan.recompute.kind == RecomputeKind::full;
  }

  [[nodiscard]] bool is_of(Dialect dialect) const {
    return trainer_ != nullptr && trainer_->dialect == dialect;
  }

  // transformers' own are not (5.23.0, src/transformers/modeling_utils.py:3149).
  [[nodiscard]] bool reentrant_unasked() const {
    if (is_of(Dialect::axolotl)) return reentrant_of_axolotl(trainer_->settings);
    if (is_of(Dialect::llama_factory)) return reentrant_of_llama_factory(trainer_->settings);
    if (is_of(Dialect::ms_swift)) {
      // 3602360a, swift/trainers/mixin.py:910: of DDP's several processes alone not.
      return draft_.recipe != RecipeKind::ddp || draft_.plan.dp <= 1;
    }
    return forced();
  }

  // 067b021c, src/axolotl/loaders/adapter.py:368; core/builders/rl.py:331 makes all of a model
  // under FSDP one format.
  [[nodiscard]] bool has_wide_adapters_of_axolotl(const Settings& s) const {
    constexpr std::string_view kKey = "peft_autocast_adapter_dtype";
    if (s.has(kKey)) return is_said_on(s, kKey);
    return !(is_said_on(s, "rl") && draft_.recipe == RecipeKind::fsdp1);
  }

  // 067b021c, src/axolotl/utils/config/__init__.py:377, and core/builders/base.py:608 of what it
  // leaves alone.
  static bool reentrant_of_axolotl(const Settings& s) {
    const bool others = s.has("unfrozen_parameters") || is_said_on(s, "rl") ||
                        s.has_section("gradient_checkpointing_kwargs.") ||
                        is_said_on(s, "activation_offloading") ||
                        is_said_on(s, "selective_checkpointing");
    const Setting* const model = s.find("base_model");
    const bool gemma = model != nullptr && mentions(lower_case(text_of(model->value)), "gemma-4");
    return !others && !gemma && is_said_on(s, "gradient_checkpointing");
  }

  // ff6d4d12, src/llamafactory/hparams/model_args.py:149, and
  // src/llamafactory/model/model_utils/checkpointing.py:181 under FSDP2.
  [[nodiscard]] bool reentrant_of_llama_factory(const Settings& s) const {
    if (draft_.recipe == RecipeKind::fsdp2 || is_said_on(s, "use_kt")) return false;
    return !s.has("use_reentrant_gc") || is_said_on(s, "use_reentrant_gc");
  }

  // Blocks of YAML, and calls of a program of one's own.
  [[nodiscard]] std::optional<SaidWithin> reentrant_of_texts() const {
    constexpr std::string_view kWord = "use_reentrant";
    for (const ConfigText& file : files_.texts) {
      if (auto said = said_behind(file, "checkpointing_kwargs", kWord)) return said;
    }
    for (const PythonText& text : files_.python) {
      for (const PythonCall& call : text.calls) {
        for (const PythonArgument& a : call.arguments) {
          const auto said = a.name == kWord ? truth_behind(a.name + "=" + a.text, kWord)
                                            : truth_behind(a.text, kWord);
          if (said) return SaidWithin{*said, a.place};
        }
      }
    }
    return std::nullopt;
  }

  // bitsandbytes' or GPTQ's, whose adapters TRL makes bf16 (sft_trainer.py:1127).
  [[nodiscard]] bool is_quantized() const {
    return draft_.plan.frozen_weights != FrozenFormat::computed &&
           draft_.plan.frozen_weights != FrozenFormat::fp32;
  }

  // NeMo AutoModel 36044ad3, nemo_automodel/components/distributed/config.py (FSDP2Config); stages
  // reduce by themselves.
  [[nodiscard]] std::optional<SaidWithin> reduces_each_of_automodel(const ConfigPart& part) const {
    for (const std::string_view block : {"distributed", "fsdp"}) {
      if (const auto said = said_within(part.settings, block, "defer_fsdp_grad_sync")) {
        return SaidWithin{!said->value, said->place};
      }
    }
    if (draft_.plan.pp > 1 || draft_.plan.num_microbatches() <= 1) return std::nullopt;
    return SaidWithin{false, part.place};
  }

  // A loop that holds reductions back itself.
  [[nodiscard]] const ConfigPart* own_loop() const {
    const auto text_holds = [&](const ConfigPart& part) {
      return std::any_of(files_.texts.begin(), files_.texts.end(), [&](const ConfigText& file) {
        return file.name == part.place.file && (mentions(file.text, ".no_sync(") ||
                                                mentions(file.text, "accelerator.accumulate(") ||
                                                mentions(file.text, "set_requires_gradient_sync("));
      });
    };
    const auto found =
        std::find_if(files_.parts.begin(), files_.parts.end(), [&](const ConfigPart& part) {
          return part.dialect == Dialect::own_script && !part.derived && text_holds(part);
        });
    return found == files_.parts.end() ? nullptr : &*found;
  }

  const JobFiles& files_;
  Draft& draft_;
  const ConfigPart* trainer_ = nullptr;
};

}  // namespace

std::optional<SaidWithin> said_within(const Settings& settings, std::string_view block,
                                      std::string_view word) {
  for (const Setting& setting : settings) {
    std::string_view key = setting.key;
    if (key.starts_with("--")) key.remove_prefix(2);
    if (!key.starts_with(block)) continue;
    key.remove_prefix(block.size());
    if (key.empty()) {
      const std::string text =
          setting.value.is_object() ? setting.value.dump() : text_of(setting.value);
      if (const auto truth = truth_behind(text, word)) return SaidWithin{*truth, setting.place};
    } else if (key.starts_with('.') && key.ends_with("." + std::string(word)) && setting.resolved) {
      const std::string text = lower_case(text_of(setting.value));
      if (text == "true" || text == "false") return SaidWithin{text == "true", setting.place};
    }
  }
  return std::nullopt;
}

void settle_trainer_habits(const JobFiles& files, Draft& draft,
                           std::map<std::string, Place, std::less<>>& said) {
  const Habits habits(files, draft);
  if (const auto reentrant = habits.reentrant()) {
    draft.plan.use_reentrant = reentrant->value;
    said.emplace("use_reentrant", reentrant->place);
  }
  if (const auto host = habits.checkpoints_on_host(); host && host->value) {
    draft.plan.offload.activation_layers = -1;
    said.emplace("offload", host->place);
  }
  if (habits.has_wide_adapters()) draft.plan.lora_dtype = AdapterFormat::fp32;
  if (const auto each = habits.reduces_each()) {
    draft.plan.sync_each_batch = each->value;
    said.emplace("sync_each_batch", each->place);
  }
}

}  // namespace qplan
