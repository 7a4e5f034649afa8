#include "planner/frameworks/torch/check_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/ascii.h"
#include "models/error.h"
#include "models/parameters.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/trainer_fsdp.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/torch/library_calls.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/torch/torch_calls.h"
#include "planner/frameworks/torch/trainer_words.h"

namespace qplan {
namespace {

using enum Severity;

// Words between commas, blanks, quotes or brackets.
std::vector<std::string> names_within(std::string_view text) {
  std::vector<std::string> names(1);
  for (const char c : text) {
    const bool apart = std::string_view(", \t\n\"'[]{}()").find(c) != std::string_view::npos;
    if (!apart) {
      names.back() += c;
    } else if (!names.back().empty()) {
      names.emplace_back();
    }
  }
  if (names.back().empty()) names.pop_back();
  return names;
}

// ---- the class that FSDP wraps ----

// Another model's class, or a slip of this one's: of others a model may have one.
void check_class(const Scene& scene, const std::string& name, const Place& place, Findings& out) {
  const ModelSpec& model = scene.question.model;
  const std::vector<std::string> own = names_within(decoder_layer_class(model.architecture));
  if (own.empty() || std::find(own.begin(), own.end(), name) != own.end()) return;
  // Or its begin alone: "LlamaDecoder".
  const bool slip = std::any_of(own.begin(), own.end(), [&](const std::string& real) {
    return is_slip(name, real) || (name.size() > 5 && real.starts_with(name));
  });
  if (!slip && !is_decoder_layer_class(name)) return;
  // accelerate's yaml was compared with the model already, where the model was named.
  const bool said = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
    return f.rule == "other_model" && f.place.file == place.file && f.place.line == place.line;
  });
  if (said) return;
  out.push_back(
      {error,
       "wrap_class",
       place,
       fmt::format("{} has no layers of class {}, which FSDP is to wrap: accelerate stops",
                   model.name, shown(name)),
       own.front(),
       "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:2078",
       {}});
}

void check_classes(const Scene& scene, const Setting* said, Findings& out) {
  if (said == nullptr || !said->resolved || said->value.is_null()) return;
  for (const std::string& names : list_of(said->value)) {
    for (const std::string& name : names_within(names)) check_class(scene, name, said->place, out);
  }
}

bool has_text(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// ---- activations recomputed by both ----

// Where the Trainer recomputes; by TRL's default the file as a whole.
struct TrainersWord {
  bool on = false, said = false;
  Place place{};
};

TrainersWord trainers_recomputation(const Scene& scene) {
  for (const ConfigPart& part : scene.files.parts) {
    const bool trl = part.dialect == Dialect::trl;
    if (part.dialect != Dialect::trainer && !trl) continue;
    bool open = false;
    for (const std::string_view key : {"--gradient_checkpointing", "--activation_checkpointing"}) {
      const Setting* const said = part.settings.find(key);
      if (said == nullptr) continue;
      open = true;
      if (said->resolved && is_switched_on(part.settings, key)) return {true, true, said->place};
    }
    if (trl && part.script == "trl" && !open) return {true, false, part.place};
  }
  return {};
}

void check_recomputation(const Scene& scene, const Place& place, Findings& out) {
  const TrainersWord trainer = trainers_recomputation(scene);
  if (!trainer.on) return;
  out.push_back({error,
                 "recompute_twice",
                 trainer.said ? trainer.place : place,
                 fmt::format("FSDP's activation_checkpointing and the Trainer's "
                             "gradient_checkpointing{} are both on, and transformers stops",
                             trainer.said ? "" : ", which TRL has on unless it is told otherwise,"),
                 "gradient_checkpointing: false",
                 "transformers 5.23.0, src/transformers/trainer.py:879",
                 {}});
}

// ---- gradients of several microbatches ----

bool is_trainers(const ConfigPart& part) {
  const Dialect d = part.dialect;
  return d == Dialect::trainer || d == Dialect::trl || d == Dialect::ms_swift ||
         d == Dialect::llama_factory || d == Dialect::axolotl;
}

// A Trainer reduces with the last of them alone, and FSDP keeps the sums whole until then.
void check_accumulation(const Scene& scene, const Place& place, Findings& out) {
  const ParallelPlan& p = scene.draft.plan;
  const auto& parts = scene.files.parts;
  if (p.sync_each_batch || p.zero < 2 || p.lora_rank > 0 || p.dp <= 1) return;
  if (p.num_microbatches() <= 1 || std::none_of(parts.begin(), parts.end(), is_trainers)) return;
  for (const ConfigPart& part : parts) {
    if (has_text(scene.text_of(part.place.file), "sync_each_batch")) return;
  }
  const double numbers = static_cast<double>(count_parameters(scene.question.model).total()) / p.tp;
  const Bytes whole(numbers * size_of(p.grad_dtype));
  out.push_back(
      {note,
       "whole_gradients",
       place,
       fmt::format("a Trainer that accumulates {} microbatches keeps gradients whole "
                   "until the last under FSDP: {:.1f} GiB a GPU, which are counted below",
                   p.num_microbatches(), whole / gib(1)),
       "accelerator_config {\"gradient_accumulation_kwargs\": {\"sync_each_batch\": true}} "
       "reduces each",
       "accelerate 16cb6eb8, src/accelerate/accelerator.py:1289; transformers 5.23.0, "
       "src/transformers/trainer.py:1898",
       {}});
}

void check_fsdp(const Scene& scene, const ConfigPart& part, Findings& out) {
  const Settings& s = part.settings;
  if (distributed_type_of(s).meant != "FSDP") return;
  check_accumulation(scene, part.place, out);
  if (has_text(word_of(s, "fsdp_config.fsdp_auto_wrap_policy"), "transformer")) {
    check_classes(scene, s.find("fsdp_config.fsdp_transformer_layer_cls_to_wrap"), out);
  }
  if (is_switched_on(s, "fsdp_config.fsdp_activation_checkpointing")) {
    check_recomputation(scene, s.find("fsdp_config.fsdp_activation_checkpointing")->place, out);
  }
  const Setting* const form = s.find("fsdp_config.fsdp_state_dict_type");
  if (form != nullptr && form->resolved && is_fsdp2(s) &&
      word_of(s, form->key) == "local_state_dict") {
    out.push_back({error, "refused_value", form->place,
                   "FSDP2 does not save LOCAL_STATE_DICT, and accelerate stops",
                   "SHARDED_STATE_DICT or FULL_STATE_DICT",
                   "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:2052",
                   with_value(scene, *form, "SHARDED_STATE_DICT")});
  }
}

// ---- a Trainer's arguments ----

// --fsdp "full_shard auto_wrap", each a word of FSDPOption.
void check_words_of_fsdp(const Setting& fsdp, Findings& out) {
  constexpr std::array<std::string_view, 12> kWords{
      "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2",
      "offload",    "auto_wrap",     "true",     "false",        "1",
      "0",          "none"};
  if (!fsdp.resolved) return;
  for (const std::string& list : list_of(fsdp.value)) {
    for (const std::string& word : names_within(list)) {
      const std::string plain = lower_case(word);
      if (std::find(kWords.begin(), kWords.end(), plain) != kWords.end()) continue;
      out.push_back({error,
                     "refused_value",
                     fsdp.place,
                     fmt::format("fsdp has no option {}, and transformers stops", shown(word)),
                     "full_shard or shard_grad_op, auto_wrap, offload",
                     "transformers 5.23.0, src/transformers/training_args.py:2938",
                     {}});
    }
  }
}

// Weights of 4 or 8 bits that a Trainer is given, with no word of adapters in the program.
void check_quantized(const Scene& scene, const ConfigPart& trainer, Findings& out) {
  const std::string text = lower_case(scene.text_of(trainer.place.file));
  for (const std::string_view other : {"peft", "adapter", "lora", "unsloth"}) {
    if (has_text(text, other)) return;
  }
  for (const ConfigPart& part : scene.files.parts) {
    const Setting* const frozen = part.settings.find("frozen");
    const bool same = part.dialect == Dialect::own_script && !part.derived &&
                      part.place.file == trainer.place.file;
    if (!same || frozen == nullptr) continue;
    out.push_back({error,
                   "quantized_full",
                   frozen->place,
                   "weights of 4 or 8 bits cannot be trained: the Trainer stops without adapters "
                   "beside them",
                   "peft_config=LoraConfig(...), or no quantization_config",
                   "transformers 5.23.0, src/transformers/trainer_utils.py:131",
                   {}});
  }
}

// What took their place; empty: nothing does.
struct DroppedName {
  std::string_view name, heir;
};

constexpr auto kDropped = std::to_array<DroppedName>({
    {"evaluation_strategy", "eval_strategy"},
    {"warmup_ratio", "warmup_steps, which takes a share below 1"},
    {"no_cuda", "use_cpu"},
    {"per_gpu_train_batch_size", "per_device_train_batch_size"},
    {"per_gpu_eval_batch_size", "per_device_eval_batch_size"},
    {"group_by_length", "train_sampling_strategy group_by_length"},
    {"push_to_hub_model_id", "hub_model_id"},
    {"push_to_hub_token", "hub_token"},
    {"fp16_backend", ""},
    {"half_precision_backend", ""},
    {"overwrite_output_dir", ""},
    {"save_safetensors", ""},
    {"logging_dir", ""},
    {"jit_mode_eval", ""},
    {"use_ipex", ""},
    {"include_inputs_for_metrics", ""},
});

// Fields that older releases had (options/trainer.tsv): a note, for the job may have one of those.
void check_dropped(const ConfigPart& part, Findings& out) {
  for (const Setting& setting : part.settings) {
    const auto* const dropped = std::find_if(
        kDropped.begin(), kDropped.end(),
        [&](const DroppedName& known) { return setting.key == fmt::format("--{}", known.name); });
    if (dropped == kDropped.end()) continue;
    out.push_back({note,
                   "dropped_option",
                   setting.place,
                   fmt::format("{} is gone from transformers 5.23, which stops at it; older "
                               "releases take it",
                               dropped->name),
                   dropped->heir.empty() ? "leave it out" : std::string(dropped->heir),
                   "transformers 5.23.0, src/transformers/training_args.py",
                   {}});
  }
}

// What stands in the file of --fsdp_config, of which transformers asks for the keys that it knows.
void check_fsdp_file(const Scene& scene, const ConfigPart& part, Findings& out) {
  constexpr std::string_view kFields =
      "transformers 5.23.0, src/transformers/training_args.py:2775";
  const std::vector<std::string>& known = fsdp_keys_of_trainer();
  const Setting* first = nullptr;
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with(kTrainersFsdp)) continue;
    if (first == nullptr) first = &setting;
    const std::string name = setting.key.substr(kTrainersFsdp.size());
    const std::string own = without_fsdp(name.substr(0, name.find('.')));
    if (std::find(known.begin(), known.end(), own) != known.end()) continue;
    const std::string near = nearest_name(own, known);
    const bool slip = !near.empty() && is_slip(own, near);
    Finding finding{slip ? error : warning,
                    "unknown_option",
                    setting.place,
                    fmt::format("{}: transformers asks for no such key of fsdp_config and ignores "
                                "it silently",
                                shown(name)),
                    slip ? fmt::format("did you mean {}?", near) : "leave it out",
                    std::string(kFields),
                    {}};
    const bool alone = own == name;
    if (slip && alone) finding.fix = with_key(scene, part, setting, "fsdp_config." + near);
    out.push_back(std::move(finding));
  }
  if (first == nullptr || !accelerate_of_trainer(part.settings).empty()) return;
  const Setting* const fsdp = part.settings.find("--fsdp");
  if (fsdp != nullptr && !fsdp->resolved) return;
  const Setting* const file = part.settings.find("--fsdp_config");
  out.push_back({warning,
                 "option_needs",
                 file != nullptr ? file->place : first->place,
                 "--fsdp_config means nothing where --fsdp is off: every GPU holds all states",
                 "--fsdp \"full_shard auto_wrap\"",
                 std::string(kFields),
                 {}});
}

void check_arguments(const Scene& scene, const ConfigPart& part, Findings& out) {
  if (!part.derived) check_dropped(part, out);
  if (const Setting* const fsdp = part.settings.find("--fsdp")) check_words_of_fsdp(*fsdp, out);
  check_classes(scene, part.settings.find("--fsdp_transformer_layer_cls_to_wrap"), out);
  if (!part.derived && part.place.file.ends_with(".py")) check_quantized(scene, part, out);
}

// ---- calls of a program ----

bool is_open(const PythonCall& call) {
  return std::any_of(call.arguments.begin(), call.arguments.end(),
                     [](const PythonArgument& a) { return a.text.starts_with('*'); });
}

// fsdp_config={"transformer_layer_cls_to_wrap": ["..."], "activation_checkpointing": True}
void check_fsdp_keyword(const Scene& scene, const PythonCall& call, Findings& out) {
  const PythonArgument* const config = call.find("fsdp_config");
  if (config == nullptr || !config->text.starts_with('{')) return;
  const auto behind = [&](std::string_view key) {
    std::size_t at = config->text.find(fmt::format("{}\"", key));
    if (at == std::string::npos) at = config->text.find(fmt::format("{}'", key));
    if (at == std::string::npos) return std::string();
    std::size_t begin = at + key.size() + 1;
    while (begin < config->text.size() && has_text(" :\n", config->text.substr(begin, 1))) ++begin;
    const bool list = begin < config->text.size() && config->text[begin] == '[';
    const std::size_t end = config->text.find_first_of(list ? "]" : ",}", begin);
    return config->text.substr(begin, end - begin);
  };
  const std::string classes = behind("transformer_layer_cls_to_wrap");
  const bool quoted = classes.find_first_of("\"'") != std::string::npos;
  for (const std::string& name : quoted ? names_within(classes) : std::vector<std::string>{}) {
    check_class(scene, name, config->place, out);
  }
  const PythonArgument* const trainer = call.find("gradient_checkpointing");
  if (trainer != nullptr && trainer->text == "True" && call.find("fsdp") != nullptr &&
      behind("activation_checkpointing") == "True") {
    check_recomputation(scene, config->place, out);
  }
}

// Trainer(...) without what it is told to evaluate on.
void check_evaluation(const PythonText& text, const PythonCall& call, const std::string& program,
                      Findings& out) {
  const PythonArgument* strategy = call.find("eval_strategy");
  if (strategy == nullptr) strategy = call.find("evaluation_strategy");  // of older releases
  if (strategy == nullptr || !strategy->resolved || !strategy->value.is_string() ||
      strategy->value == "no") {
    return;
  }
  const PythonCall* trainer = nullptr;
  for (const PythonCall& other : text.calls) {
    const std::string callee = callee_of(other);
    const bool first = callee == "Trainer" && trainer == nullptr;
    if (callee.ends_with("Trainer") && !first) return;  // of several any may be given the data
    if (first) trainer = &other;
  }
  if (trainer == nullptr || !is_taken_from(program, "Trainer", "transformers")) return;
  const bool plain = std::all_of(trainer->arguments.begin(), trainer->arguments.end(),
                                 [](const PythonArgument& a) { return !a.name.empty(); });
  if (!plain || trainer->find("eval_dataset") != nullptr) return;
  out.push_back({error,
                 "option_needs",
                 strategy->place,
                 fmt::format("{} {} needs an eval_dataset, which Trainer(...) is not given: it "
                             "stops",
                             strategy->name, strategy->value.get<std::string>()),
                 fmt::format("eval_dataset=, or {}=\"no\"", strategy->name),
                 "transformers 5.23.0, src/transformers/trainer.py:682",
                 {}});
}

}  // namespace

void check_training(const Scene& scene, Findings& out) {
  const bool of_nemo = scene.files.find(Dialect::automodel) != nullptr ||
                       scene.files.find(Dialect::torchtune) != nullptr;
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::accelerate && !of_nemo) check_fsdp(scene, part, out);
    if (part.dialect == Dialect::trainer) check_arguments(scene, part, out);
    const bool reads = part.dialect == Dialect::trainer || part.dialect == Dialect::trl;
    if (reads && !part.derived) check_fsdp_file(scene, part, out);
  }
  check_trainer_words(scene, out);
  check_torch_calls(scene, out);
  check_library_calls(scene, out);
  for (const PythonText& text : scene.files.python) {
    for (const PythonCall& call : text.calls) {
      if (is_open(call)) continue;
      const std::string& program = scene.text_of(call.place.file);
      const std::string_view library = library_of_arguments(program, call);
      if (library.empty()) continue;
      Findings more;
      check_keywords(call, library, out, more);
      check_fsdp_keyword(scene, call, more);
      if (library == "transformers") check_evaluation(text, call, program, more);
      out.insert(out.end(), more.begin(), more.end());
    }
  }
}

}  // namespace qplan
