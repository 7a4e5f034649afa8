#include "planner/frameworks/megatron/swift.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/megatron.h"

namespace qplan {
namespace {

// Names that are not Megatron's with '_' for '-'.
constexpr auto kNames = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"--num-virtual-stages-per-pipeline-rank", "--virtual_pipeline_model_parallel_size"},
    {"--microbatch-group-size-per-virtual-pipeline-stage", "--microbatch_group_size_per_vp_stage"},
    {"--no-gradient-accumulation-fusion", "--gradient_accumulation_fusion"},
    {"--moe-flex-dispatcher-backend", "--moe_enable_deepep"},
    {"--seq-length", "--max_length"},
    {"--log-interval", "--logging_steps"},
    {"--save-interval", "--save_steps"},
    {"--eval-interval", "--eval_steps"},
});

// What says no to a word that ms-swift says yes to unasked.
constexpr auto kDenials = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"--recompute-granularity", "none"}, {"--attention-backend", "auto"}});

std::string argument_of(std::string_view flag) {
  for (const auto& [theirs, name] : kNames) {
    if (theirs == flag) return std::string(name);
  }
  std::string name(flag);
  std::replace(name.begin() + 2, name.end(), '-', '_');
  return name;
}

std::string flag_of(std::string_view argument) {
  for (const auto& [flag, name] : kNames) {
    if (name == argument) return std::string(flag);
  }
  std::string flag(argument);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

const KnownOption* known(std::string_view argument) {
  return known_options("ms_swift_megatron").find(argument);
}

bool is_switch(std::string_view flag) {
  const KnownOption* const option = known_options("megatron").find(flag);
  return option != nullptr && option->arity == "0";
}

class Translator {
 public:
  Translator(const Settings& arguments, const Place& place) : in_(arguments), place_(place) {}

  TrainerJob make() {
    for (const Setting& setting : in_) translate(setting);
    for (const std::string& name : known_options("ms_swift_megatron").names()) {
      if (name.find('-', 2) == std::string::npos) take_unsaid(name);
    }
    settle_formats();
    settle_batch();
    make_adapters();
    assume();
    return std::move(job_);
  }

 private:
  void add(std::string flag, Json value, std::string_view said_by = "") {
    const Setting* const found = said_by.empty() ? nullptr : in_.find(said_by);
    job_.megatron.add(
        {std::move(flag), std::move(value), found != nullptr ? found->place : place_});
  }

  [[nodiscard]] bool on(std::string_view argument) const { return is_switched_on(in_, argument); }
  [[nodiscard]] bool orthogonalises() const {
    return word_of(in_, "--optimizer").find("muon") != std::string::npos;
  }
  [[nodiscard]] bool off(std::string_view argument) const {
    return in_.has(argument) && !on(argument);
  }

  void translate(const Setting& setting) {
    const std::string flag = flag_of(setting.key);
    const std::string value = text_of(setting.value);
    if (flag == "--no-gradient-accumulation-fusion") {
      if (off(setting.key)) add(flag, true, setting.key);
    } else if (flag == "--moe-flex-dispatcher-backend") {
      if (on(setting.key)) add(flag, "deepep", setting.key);
    } else if (flag == "--bf16" || flag == "--fp16" || flag == "--seq-length") {
      return;  // they follow from several
    } else if (flag == "--use-distributed-optimizer" && orthogonalises()) {
      return;  // switched off beside muon (_check_muon)
    } else if (known_options("megatron").find(flag) != nullptr && denial_of(flag) != value) {
      Setting translated = setting;
      translated.key = flag;
      if (is_switch(flag)) {
        if (setting.resolved && !on(setting.key)) return;
        translated.value = true;
      }
      // FlashAttention's releases are one library.
      if (flag == "--attention-backend" && value.starts_with("flash")) translated.value = "flash";
      job_.megatron.add(std::move(translated));
    }
  }

  static std::string_view denial_of(std::string_view flag) {
    for (const auto& [denied, word] : kDenials) {
      if (denied == flag) return word;
    }
    return "";
  }

  // A default that is not Megatron's own.
  void take_unsaid(const std::string& argument) {
    const std::string flag = flag_of(argument);
    const KnownOption* const ours = known(argument);
    const KnownOption* const theirs = known_options("megatron").find(flag);
    if (ours == nullptr || theirs == nullptr || in_.has(argument)) return;
    if (ours->otherwise.empty() || ours->otherwise == theirs->otherwise) return;
    if (flag.starts_with("--no-") || flag == "--moe-flex-dispatcher-backend") return;
    if (flag == "--use-distributed-optimizer" && orthogonalises()) return;
    if (!is_switch(flag)) {
      add(flag, ours->otherwise);
    } else if (ours->otherwise == "True") {
      add(flag, true);
    }
  }

  // Formats are the checkpoint's unless said (_init_mixed_precision, _map_dtype).
  void settle_formats() {
    const std::string stored = word_of(in_, "--torch_dtype", "bfloat16");
    const bool half = in_.has("--fp16") ? on("--fp16") : stored != "bfloat16" && !on("--bf16");
    const bool bf16 = !half && !off("--bf16");
    if (half) add("--fp16", true, "--fp16");
    if (bf16) add("--bf16", true, "--bf16");
    const bool wide = word_of(in_, "--main_grads_dtype", "fp32") == "fp32";
    if (bf16 && wide) add("--accumulate-allreduce-grads-in-fp32", true);
    if (bf16 && !wide) add("--grad-reduce-in-bf16", true, "--main_grads_dtype");
    // The model's configuration says its dropout, which is none.
    add("--attention-dropout", 0);
    add("--hidden-dropout", 0);
  }

  void settle_batch() {
    const bool packs = in_.has("--packing_length") && on("--packing");
    const std::string_view key = packs ? "--packing_length" : "--max_length";
    if (const Setting* const length = in_.find(key)) {
      Setting setting = *length;
      setting.key = "--seq-length";
      job_.megatron.add(std::move(setting));
    }
    if (!on("--packing")) {
      job_.shorter = true;
      job_.assumed.push_back(fmt::format(
          "every sequence has {}{}, the most: without packing one has its own tokens alone",
          key.substr(2), in_.has(key) ? " " + word_of(in_, key) : std::string()));
    }
    const std::string way = word_of(in_, "--rlhf_type");
    if (way == "dpo" || way == "rm") {
      job_.own_script.add({"pairs", true, in_.find("--rlhf_type")->place});
    }
  }

  void make_adapters() {
    const std::string tuner = word_of(in_, "--tuner_type", "full");
    if (!tuner.starts_with("lora")) return;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kWords{
        {{"--lora_rank", "peft.dim"},
         {"--lora_alpha", "peft.alpha"},
         {"--lora_dropout", "peft.dropout"}}};
    for (const auto& [argument, key] : kWords) {
      if (const Setting* const said = in_.find(argument)) {
        Setting setting = *said;
        setting.key = key;
        job_.megatron.add(std::move(setting));
      } else {
        add(std::string(key), known(argument)->otherwise);
      }
    }
    Json modules = Json::array();
    const Setting* const said = in_.find("--target_modules");
    for (const std::string& name :
         said == nullptr ? std::vector<std::string>{"all-linear"} : list_of(said->value)) {
      if (name == "all-linear") {
        for (const std::string& all : adaptable_modules()) modules.push_back(all);
      } else {
        // PEFT takes the end of a name for a pattern (tuners_utils.py, check_target_module_exists).
        modules.push_back(name.find('.') == std::string::npos ? name : "*." + name);
      }
    }
    add("peft.target_modules", std::move(modules), "--target_modules");
    if (tuner == "lora_llm") {
      job_.assumed.emplace_back(
          "adapters alone: lora_llm trains the whole vision tower beside them, which no plan says");
    }
  }

  void assume() {
    const std::string way = word_of(in_, "--rlhf_type");
    if (way == "grpo" || way == "gkd") {
      job_.assumed.push_back(fmt::format("training alone: {}'s generation is not counted", way));
    }
    for (const std::string_view key : {"--freeze_llm", "--freeze_parameters",
                                       "--freeze_parameters_regex", "--freeze_parameters_ratio"}) {
      const std::string value = word_of(in_, key);
      if (value.empty() || value == "false" || value == "0") continue;
      job_.assumed.push_back(fmt::format(
          "every weight is trained: {} leaves some out, which no plan can say", key.substr(2)));
      job_.takes_less = true;
    }
    if (way == "rm" || word_of(in_, "--task_type", "causal_lm") != "causal_lm") {
      job_.assumed.emplace_back("a head as large as the vocabulary: this task has a small one");
      job_.takes_less = true;
    }
    if (in_.has("--megatron_extra_kwargs")) {
      job_.assumed.emplace_back("nothing of megatron_extra_kwargs, which is not read");
    }
  }

  const Settings& in_;
  const Place& place_;
  TrainerJob job_;
};

bool is_half(const Subject& s) {
  return s.plan.precision == Precision::fp16;
}

// Models whose weights ms-swift hands to Megatron (its docs/source_en/Instruction/
// Supported-models-and-datasets.md, "Support Megatron").
bool converts(const ModelSpec& model) {
  constexpr std::array<std::string_view, 12> kFamilies{
      "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss",   "kimi_k2", "llama",
      "minimax_m2",  "nemotron_h",  "qwen2",    "qwen2_moe", "qwen3",   "qwen3_moe"};
  const bool next =
      model.architecture.starts_with("qwen3_next") || model.architecture.starts_with("qwen3_5");
  return next ||
         std::find(kFamilies.begin(), kFamilies.end(), model.architecture) != kFamilies.end();
}

std::string no_word(std::string_view what, std::string_view instead) {
  return fmt::format("ms-swift's Megatron form has no argument for {}; {}", what, instead);
}

constexpr auto kSwiftLimits = std::to_array<Limit>({
    {"swift_megatron_dora", [](const Subject& s) { return s.plan.dora; },
     [](const Subject&) {
       return std::string("`megatron sft` has no DoRA; leave dora out, or use megatron-bridge");
     }},
    {"swift_model", [](const Subject& s) { return !converts(s.model); },
     [](const Subject& s) {
       return fmt::format("ms-swift has no way to hand weights of {} to Megatron; use megatron",
                          s.model.architecture);
     },
     Asks::model},
    {"swift_graphs", [](const Subject& s) { return s.plan.cuda_graph; },
     [](const Subject&) {
       return no_word("CUDA graphs", "leave cuda_graph out, or use megatron");
     }},
    {"swift_determinism", [](const Subject& s) { return s.plan.deterministic; },
     [](const Subject&) {
       return no_word("a fixed order of sums", "leave deterministic out, or use megatron");
     }},
    {"swift_activations", [](const Subject& s) { return s.plan.offload.activation_layers != 0; },
     [](const Subject&) {
       return no_word("activations on the host", "leave them out of offload, or use megatron");
     }},
    {"swift_instances", [](const Subject& s) { return s.plan.fsdp_shard > 0; },
     [](const Subject&) {
       return no_word("copies of sharded states", "leave fsdp_shard out, or use megatron");
     }},
    {"swift_dispatcher",
     [](const Subject& s) {
       return s.model.moe && s.plan.moe_dispatcher == MoeDispatcher::hybridep;
     },
     [](const Subject&) { return no_word("HybridEP", "use moe_dispatcher=deepep, or megatron"); }},
    {"swift_overlap", [](const Subject& s) { return s.plan.overlap.has(OverlapKind::ep); },
     [](const Subject&) {
       return no_word("experts' exchanges beside compute",
                      "leave ep out of overlap, or use "
                      "megatron");
     }},
    {"swift_gradients",
     [](const Subject& s) {
       return s.plan.grad_dtype == DType::bf16 && !is_half(s) && !megatron_precision_aware(s);
     },
     [](const Subject&) {
       return std::string(
           "ms-swift sums gradients in fp32 beside weights in bf16, unless the precision-aware "
           "optimizer takes them otherwise (main_grads_dtype); use grad_dtype=fp32");
     }},
    {"swift_optimizer",
     [](const Subject& s) { return s.plan.optimizer == OptimizerKind::muon && s.plan.zero > 0; },
     [](const Subject&) {
       return std::string(
           "ms-swift switches Megatron's distributed optimizer off beside muon; use zero 0");
     }},
    // swift/megatron/arguments/megatron_args.py, _check_muon, at 3602360a.
    {"swift_muon_overlap",
     [](const Subject& s) {
       const auto& o = s.plan.overlap;
       return s.plan.optimizer == OptimizerKind::muon &&
              (o.has(OverlapKind::grad) || o.has(OverlapKind::param));
     },
     [](const Subject&) {
       return std::string(
           "ms-swift's muon goes without overlap_grad_reduce and overlap_param_gather; leave grad "
           "and param out of overlap");
     }},
    {"swift_precision_weights",
     [](const Subject& s) {
       return s.plan.precision == Precision::mxfp8 && s.plan.fp8_param_gather;
     },
     [](const Subject&) {
       return no_word(
           "the buffer that weights of mxfp8 are gathered in (--reuse-grad-buf-for-"
           "mxfp8-param-ag)",
           "use fp8_param_gather=off");
     }},
    {"swift_hybrid_stages", splits_hybrid,
     [](const Subject&) {
       return no_word("stages of a model with Mamba-2 layers", "use vpp 1 without pipeline_layout");
     }},
    {"swift_adapters_exchange", [](const Subject& s) { return s.plan.lora_a2a; },
     [](const Subject&) {
       return no_word("adapters' exchange (lora_a2a)",
                      "leave lora_a2a out, or use megatron-bridge");
     }},
    {"swift_adapters_in_part",
     [](const Subject& s) { return !bridge_says_targets(s.model, s.plan.lora()); },
     [](const Subject&) {
       return std::string(
           "adapters on Megatron's modules are of q, k and v together or of none of them, so of "
           "gate and up, and of an MLP's two layers in all experts; use lora_targets with all of "
           "these, or all-linear");
     }},
});

}  // namespace

std::string swift_argument(std::string_view flag) {
  return argument_of(flag);
}

TrainerJob job_of_swift_megatron(const Settings& arguments, const Place& place) {
  return Translator(arguments, place).make();
}

std::string swift_spelled(const std::string& sentence) {
  std::string text;
  for (std::size_t at = 0; at < sentence.size();) {
    const bool begins = sentence.compare(at, 2, "--") == 0 &&
                        (at == 0 || sentence[at - 1] == ' ' || sentence[at - 1] == '(');
    if (!begins) {
      text += sentence[at++];
      continue;
    }
    std::size_t end = sentence.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at);
    if (end == std::string::npos) end = sentence.size();
    const std::string flag = sentence.substr(at, end - at), name = argument_of(flag);
    text += known(name) != nullptr ? name : flag;
    at = end;
  }
  return text;
}

std::span<const Limit> swift_megatron_limits() {
  return kSwiftLimits;
}

std::vector<WrittenOption> swift_megatron_arguments(const Subject& s) {
  const auto flags = written(megatron_options(), s);
  std::vector<WrittenOption> result;
  for (const auto& [flag, value] : flags) {
    if (flag == "--grad-reduce-in-bf16") continue;  // main_grads_dtype says it
    Json said = value.is_boolean() ? Json("true") : value;
    if (flag == "--no-gradient-accumulation-fusion") said = "false";
    if (flag == "--moe-flex-dispatcher-backend") said = "true";
    result.push_back({argument_of(flag), std::move(said)});
  }
  for (const Option& option : megatron_options()) {
    const std::string argument = argument_of(option.key);
    const KnownOption* const ours = known(argument);
    const bool said = std::any_of(flags.begin(), flags.end(),
                                  [&](const WrittenOption& o) { return o.key == option.key; });
    if (ours == nullptr || said || option.key.starts_with("--no-")) continue;
    if (ours->otherwise == "True") result.push_back({argument, "false"});
    for (const auto& [flag, word] : kDenials) {
      if (flag == option.key) result.push_back({argument, std::string(word)});
    }
  }
  if (s.model.num_mtp_layers > 0) result.push_back({"--mtp_num_layers", s.model.num_mtp_layers});
  if (s.plan.lora_rank == 0) {
    result.push_back({"--tuner_type", "full"});
    return result;
  }
  Json modules = Json::array();
  for (const Json& pattern : target_modules(s)) {
    const std::string name = pattern.get<std::string>();
    modules.push_back(name.starts_with("*.") ? name.substr(2) : name);
  }
  result.insert(result.end(), {{"--tuner_type", "lora"},
                               {"--lora_rank", s.plan.lora_rank},
                               {"--lora_alpha", s.plan.lora_alpha},
                               {"--lora_dropout", s.plan.lora_dropout},
                               {"--target_modules", std::move(modules)}});
  return result;
}

}  // namespace qplan
