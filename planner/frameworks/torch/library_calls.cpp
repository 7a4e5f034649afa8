#include "planner/frameworks/torch/library_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/aliases.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/spelled_values.h"
#include "planner/frameworks/torch/absent_names.h"
#include "planner/frameworks/torch/reward_counts.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

using enum Severity;

bool says(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::vector<std::string> split_at_blanks(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// The sign that a text stands in.
std::string in_quotes_of(const PythonArgument& written, const std::string& value) {
  const char quote = written.text.starts_with('\'') ? '\'' : '"';
  return quote + value + quote;
}

Correction in_place_of(const PythonArgument& a, Span span, const std::string& text) {
  return Correction{{a.place.file, span.begin, span.end, text}};
}

Correction renamed(const PythonArgument& a, const std::string& name) {
  Correction correction = in_place_of(a, a.name_span, name);
  correction.renames = true;
  return correction;
}

// ---- keywords of configuration classes ----

// Classes of TRL's arguments, but for those of its experiments, whose fields are not listed.
bool is_arguments_of_trl(std::string_view name) {
  constexpr std::array<std::string_view, 6> kClasses{"SFTConfig", "GRPOConfig", "DPOConfig",
                                                     "KTOConfig", "RLOOConfig", "RewardConfig"};
  return std::find(kClasses.begin(), kClasses.end(), name) != kClasses.end();
}

// Fields that older releases had (0.8 to 0.29), and none of the present ones.
bool is_of_older_trl(std::string_view name) {
  constexpr std::string_view kOlder =
      " max_seq_length max_prompt_length num_of_sequences chars_per_token dataset_batch_size "
      "use_liger generate_during_eval is_encoder_decoder label_pad_token_id padding_value "
      "truncation_mode force_use_ref_model model_adapter_name ref_adapter_name reference_free "
      "rpo_alpha ref_model_init_kwargs use_num_logits_to_keep use_logits_to_keep tools vllm_device "
      "vllm_dtype vllm_max_model_len vllm_guided_decoding_regex ds3_gather_for_generation "
      "shuffle_dataset wandb_log_unique_prompts mask_truncated_completions cache_implementation "
      "use_transformers_paged disable_dropout eval_packing neftune_noise_alpha torch_dtype "
      "max_target_length precompute_ref_batch_size loss_type_weights base_model_attribute_name "
      "desirable_weight undesirable_weight label_smoothing f_divergence_type num_iterations "
      "max_completion_length top_k top_p min_p repetition_penalty epsilon delta beta use_vllm "
      "evaluation_strategy remove_unused_columns pad_token eos_token pad_to_multiple_of ";
  return kOlder.find(" " + std::string(name) + " ") != std::string_view::npos;
}

bool is_said_of(const Findings& before, const PythonArgument& a) {
  return std::any_of(before.begin(), before.end(), [&](const Finding& f) {
    return f.rule == "unknown_option" && f.place.file == a.place.file &&
           f.place.line == a.place.line && f.message.starts_with(a.name + ":");
  });
}

// Of TRL's classes: a slip is an error, and what another release may have a warning; a name of an
// older one is a note, as a Trainer's own are.
void refuse_keyword_of_trl(const PythonCall& call, const PythonArgument& a, Findings& out) {
  const std::array<const OptionList*, 2> lists{&known_options("trl"), &known_options("trainer")};
  const std::string flag = "--" + a.name;
  Finding finding{warning,
                  "unknown_option",
                  a.place,
                  fmt::format("{}: {} of TRL f2cd5771 has no such field, and Python stops",
                              shown(a.name), callee_of(call)),
                  "leave it out",
                  "qplan: planner/frameworks/options/trl.tsv, the fields of its classes",
                  {}};
  const Alias* const alias = alias_of(Dialect::trl, flag);
  const std::string meant = certain_name(flag, lists);
  if (is_of_older_trl(a.name)) {
    finding.severity = note;
    finding.rule = "dropped_option";
    finding.message = fmt::format(
        "{} is gone from {} of TRL f2cd5771, where Python stops at it; "
        "older releases take it",
        a.name, callee_of(call));
    if (alias != nullptr) {
      finding.instead = alias->real.empty() ? fmt::format("leave it out{}", alias->remark)
                                            : std::string(alias->real.substr(2));
    }
  } else if (alias != nullptr && !alias->real.empty()) {
    finding.severity = error;
    finding.instead = fmt::format("did you mean {}?", alias->real.substr(2));
  } else if (!meant.empty()) {
    std::string name = meant.substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    finding.severity = error;
    finding.instead = fmt::format("did you mean {}?", name);
    if (call.find(name) == nullptr) finding.fix = renamed(a, name);
  } else {
    finding.severity = error;  // of none of its releases
  }
  out.push_back(std::move(finding));
}

// ---- PEFT's ----

constexpr std::string_view kFieldsOfLora =
    "r target_modules exclude_modules lora_alpha lora_dropout fan_in_fan_out bias use_rslora "
    "modules_to_save init_lora_weights layers_to_transform layers_pattern rank_pattern "
    "alpha_pattern megatron_config megatron_core trainable_token_indices loftq_config eva_config "
    "corda_config lora_ga_config use_dora velora_config alora_invocation_tokens use_qalora "
    "qalora_group_size monteclora_config layer_replication runtime_config lora_bias "
    "target_parameters use_bdlora arrow_config kasa_config ensure_weight_tying task_type peft_type "
    "auto_mapping peft_version base_model_name_or_path revision inference_mode";

// What other tools call them.
constexpr auto kOthersOfLora =
    std::to_array<std::array<std::string_view, 2>>({{"rank", "r"},
                                                    {"lora_r", "r"},
                                                    {"lora_rank", "r"},
                                                    {"alpha", "lora_alpha"},
                                                    {"dropout", "lora_dropout"},
                                                    {"lora_target_modules", "target_modules"},
                                                    {"lora_target", "target_modules"},
                                                    {"targets", "target_modules"},
                                                    {"target_module", "target_modules"},
                                                    {"lora_modules_to_save", "modules_to_save"}});

void check_keywords_of_lora(const PythonCall& call, Findings& out) {
  const std::vector<std::string> fields = split_at_blanks(kFieldsOfLora);
  for (const PythonArgument& a : call.arguments) {
    if (a.name.empty() || std::find(fields.begin(), fields.end(), a.name) != fields.end()) continue;
    const auto* const other = std::find_if(kOthersOfLora.begin(), kOthersOfLora.end(),
                                           [&](const auto& row) { return row[0] == a.name; });
    std::string meant(other == kOthersOfLora.end() ? std::string_view() : (*other)[1]);
    if (meant.empty()) {
      const std::string near = nearest_name(a.name, fields);
      const std::size_t most = a.name.size() >= 8 ? 2 : 1;
      if (!near.empty() && edit_distance(a.name, near) <= most) meant = near;
    }
    Finding finding{meant.empty() ? warning : error,
                    "unknown_option",
                    a.place,
                    fmt::format("LoraConfig takes no {}, and Python stops{}", shown(a.name),
                                meant.empty() ? " unless the release that runs has it" : ""),
                    meant.empty() ? "leave it out" : fmt::format("did you mean {}?", meant),
                    "PEFT 0.21.2, src/peft/tuners/lora/config.py",
                    {}};
    if (!meant.empty() && call.find(meant) == nullptr) finding.fix = renamed(a, meant);
    out.push_back(std::move(finding));
  }
}

// ---- words that a call takes ----

struct WordsOfCall {
  std::string_view callee, package, keyword;
  std::size_t at;  // where it stands without its keyword
  std::string_view words;
  std::string_view meant;  // "gpu:cuda", what people write in their place
  bool all;                // whether no release takes others: else a slip alone is one
  std::string_view source;
};

constexpr auto kWordsOfCalls = std::to_array<WordsOfCall>({
    {"LoraConfig", "peft", "bias", 99, "none all lora_only", "no:none", true,
     "PEFT 0.21.2, src/peft/tuners/tuners_utils.py:539"},
    {"LoraConfig", "peft", "task_type", 99,
     "SEQ_CLS SEQ_2_SEQ_LM CAUSAL_LM TOKEN_CLS QUESTION_ANS FEATURE_EXTRACTION", "", true,
     "PEFT 0.21.2, src/peft/config.py:97"},
    {"init_device_mesh", "torch", "device_type", 0, "cuda cpu xpu npu hpu mps meta xla musa mlu",
     "gpu:cuda", false, "PyTorch 2.11, torch/distributed/device_mesh.py"},
    {"init_process_group", "torch", "backend", 0, "nccl gloo mpi ucc xccl hccl ccl cncl mccl", "",
     false, "PyTorch 2.11, torch/distributed/distributed_c10d.py"},
    {"BitsAndBytesConfig", "transformers", "bnb_4bit_quant_type", 99, "nf4 fp4", "", true,
     "qplan: bitsandbytes raises an error at others (quantize_4bit)"},
});

std::string meant_word(const WordsOfCall& row, const std::string& word,
                       const std::vector<std::string>& words) {
  for (const std::string& pair : split_at_blanks(row.meant)) {
    const std::size_t colon = pair.find(':');
    if (pair.substr(0, colon) == word) return pair.substr(colon + 1);
  }
  std::string certain = certain_choice(word, words);
  if (!certain.empty()) return certain;
  const std::string near = nearest_name(word, words);
  const std::size_t most = word.size() >= 6 ? 2 : 1;
  return !near.empty() && edit_distance(word, near) <= most ? near : "";
}

void check_words_of_call(const PythonCall& call, const WordsOfCall& row, Findings& out) {
  const PythonArgument* said = call.find(row.keyword);
  if (said == nullptr && row.at < call.arguments.size() && call.arguments[row.at].name.empty()) {
    said = &call.arguments[row.at];
  }
  if (said == nullptr || !said->resolved || !said->value.is_string()) return;
  const auto word = said->value.get<std::string>();
  const std::vector<std::string> words = split_at_blanks(row.words);
  if (std::find(words.begin(), words.end(), word) != words.end()) return;
  const std::string meant = meant_word(row, word, words);
  if (meant.empty() && !row.all) return;
  const bool plain = said->text.size() == word.size() + 2;
  out.push_back(
      {error, "refused_value", said->place,
       fmt::format("{} of {} is {}, and must be {}{}", row.keyword, row.callee, shown(word),
                   row.all ? "one of " : "a word that it has: ", fmt::join(words, ", ")),
       meant.empty() ? "" : fmt::format("did you mean {}?", meant), std::string(row.source),
       meant.empty() || !plain ? Correction{}
                               : in_place_of(*said, said->span, in_quotes_of(*said, meant))});
}

// Adam's two, and not one number.
void check_betas(const PythonCall& call, Findings& out) {
  const PythonArgument* const betas = call.find("betas");
  if (betas == nullptr || !betas->resolved || !betas->value.is_number()) return;
  out.push_back({error,
                 "refused_value",
                 betas->place,
                 fmt::format("betas is the number {}, and {} wants two of them: it stops",
                             betas->text, callee_of(call)),
                 "betas=(0.9, 0.95), say",
                 "PyTorch 2.11, torch/optim/adamw.py",
                 {}});
}

// AdamW(lr="2e-5"): torch compares it with numbers.
void check_numbers_of_optimizer(const PythonCall& call, Findings& out) {
  for (const std::string_view keyword : {"lr", "eps", "weight_decay", "momentum"}) {
    const PythonArgument* const said = call.find(keyword);
    if (said == nullptr || !said->resolved || !said->value.is_string()) continue;
    const auto text = said->value.get<std::string>();
    const bool number = is_number(text);
    out.push_back({error, "bad_value", said->place,
                   fmt::format("{} of {} is the text \"{}\", which torch compares with numbers: "
                               "Python stops",
                               keyword, callee_of(call), text),
                   number ? fmt::format("{}={}", keyword, text) : "a number",
                   "PyTorch 2.11, torch/optim/adamw.py (0.0 <= lr)",
                   number ? in_place_of(*said, said->span, text) : Correction{}});
  }
}

// from_pretrained(dtype="bf16"): a name of torch's, or "auto".
void check_format_of_weights(const PythonCall& call, Findings& out) {
  if (callee_of(call) != "from_pretrained") return;
  for (const std::string_view keyword : {"dtype", "torch_dtype"}) {
    const PythonArgument* const said = call.find(keyword);
    if (said == nullptr || !said->resolved || !said->value.is_string()) continue;
    const auto word = said->value.get<std::string>();
    const std::string real = word == "bf16"   ? "bfloat16"
                             : word == "fp16" ? "float16"
                             : word == "fp32" ? "float32"
                                              : "";
    if (real.empty()) continue;
    out.push_back({error, "refused_value", said->place,
                   fmt::format("{} is {}, which is no name of torch's: transformers stops", keyword,
                               shown(word)),
                   real, "transformers 5.24.0, src/transformers/modeling_utils.py:850",
                   in_place_of(*said, said->span, in_quotes_of(*said, real))});
  }
}

// Layers of another model, of which this one has none.
void check_class_of_other(const Scene& scene, const PythonArgument& said, Findings& out) {
  const std::string_view text = said.text;
  const std::string_view own = decoder_layer_class(scene.question.model.architecture);
  if (!text.starts_with('{') || !text.ends_with('}') || own.empty()) return;
  const std::string name(text.substr(1, text.size() - 2));
  if (name.find_first_of(", *\n") != std::string::npos || says(own, name) ||
      !is_decoder_layer_class(name)) {
    return;
  }
  out.push_back({error,
                 "wrap_class",
                 said.place,
                 fmt::format("{} has no layers of class {}: the policy wraps none of them, and the "
                             "whole model is one unit",
                             scene.question.model.name, shown(name)),
                 std::string(own),
                 "PyTorch 2.11, torch/distributed/fsdp/wrap.py (transformer_auto_wrap_policy)",
                 {}});
}

// transformer_auto_wrap_policy's classes are a set.
void check_wrapped_classes(const Scene& scene, const PythonCall& call, Findings& out) {
  const PythonArgument* const said = call.find("transformer_layer_cls");
  if (said == nullptr || said->text.empty()) return;
  check_class_of_other(scene, *said, out);
  const bool one = said->text.ends_with("Layer") || said->text.ends_with("Block");
  if (!one || !std::all_of(said->text.begin(), said->text.end(), is_name)) return;
  out.push_back({error, "refused_value", said->place,
                 fmt::format("transformer_layer_cls is the class {}, and torch makes a tuple of a "
                             "set of them: Python stops",
                             shown(said->text)),
                 fmt::format("transformer_layer_cls={{{}}}", said->text),
                 "PyTorch 2.11, torch/distributed/fsdp/wrap.py (transformer_auto_wrap_policy)",
                 in_place_of(*said, said->span, "{" + said->text + "}")});
}

// SFTTrainer(tokenizer=...), and what is a field of its configuration since 0.13.
void check_trainers_keywords(const PythonCall& call, Findings& out) {
  constexpr auto kGone = std::to_array<std::array<std::string_view, 2>>(
      {{"tokenizer", "processing_class"},
       {"max_seq_length", "max_length of its SFTConfig"},
       {"dataset_text_field", "dataset_text_field of its SFTConfig"},
       {"packing", "packing of its SFTConfig"}});
  for (const PythonArgument& a : call.arguments) {
    for (const auto& [name, heir] : kGone) {
      if (a.name != name) continue;
      out.push_back(
          {note,
           "dropped_option",
           a.place,
           fmt::format("{} takes no {} any more, and Python stops; older releases take it",
                       callee_of(call), name),
           std::string(heir),
           "TRL f2cd5771, trl/trainer/sft_trainer.py (SFTTrainer)",
           {}});
    }
  }
}

// Slips of what every Trainer takes.
void check_slips_of_trainer(const PythonCall& call, Findings& out) {
  const std::vector<std::string> known = split_at_blanks(
      "model args data_collator train_dataset eval_dataset processing_class model_init "
      "compute_loss_func compute_metrics callbacks optimizers optimizer_cls_and_kwargs "
      "preprocess_logits_for_metrics peft_config formatting_func reward_funcs "
      "reward_processing_classes ref_model tokenizer quantization_config rollout_func");
  for (const PythonArgument& a : call.arguments) {
    if (a.name.empty() || std::find(known.begin(), known.end(), a.name) != known.end()) continue;
    const std::string near = nearest_name(a.name, known);
    if (near.empty() || !is_slip(a.name, near) || call.find(near) != nullptr) continue;
    out.push_back({error, "unknown_option", a.place,
                   fmt::format("{} takes no {}, and Python stops", callee_of(call), shown(a.name)),
                   fmt::format("did you mean {}?", near),
                   "transformers 5.23.0, src/transformers/trainer.py (Trainer)", renamed(a, near)});
  }
}

}  // namespace

bool is_taken_from(const std::string& program, std::string_view name, std::string_view package) {
  if (says(program, fmt::format("class {}", name)) || says(program, fmt::format("def {}(", name))) {
    return false;
  }
  for (const PythonImport& import : python_imports(program)) {
    const bool here =
        std::find(import.names.begin(), import.names.end(), name) != import.names.end();
    // Experiments of TRL's have classes of the same names.
    if (here && import.module.find(".experimental") != std::string::npos) return false;
    if (here)
      return import.module == package || import.module.starts_with(fmt::format("{}.", package));
  }
  return says(program, fmt::format("{}.{}", package, name));
}

std::string_view library_of_arguments(const std::string& program, const PythonCall& call) {
  const std::string callee = callee_of(call);
  if (callee == "TrainingArguments") {
    return is_taken_from(program, callee, "transformers") ? "transformers" : "";
  }
  return is_arguments_of_trl(callee) && is_taken_from(program, callee, "trl") ? "trl" : "";
}

void check_keywords(const PythonCall& call, std::string_view library, const Findings& before,
                    Findings& out) {
  const OptionList &trainers = known_options("trainer"), &trls = known_options("trl");
  for (const PythonArgument& a : call.arguments) {
    if (a.name.empty()) continue;
    const std::string flag = "--" + a.name;
    const KnownOption* field = trainers.find(flag);
    if (field == nullptr && library == "trl") field = trls.find(flag);
    const bool said = is_said_of(before, a);
    if (field == nullptr && !said && library == "trl") refuse_keyword_of_trl(call, a, out);
    if (field == nullptr && !said && library != "trl") {
      out.push_back(
          {error,
           "unknown_option",
           a.place,
           fmt::format("{}: TrainingArguments has no such field, and Python stops", shown(a.name)),
           "leave it out",
           "transformers 5.23.0, src/transformers/training_args.py",
           {}});
    }
    if (field != nullptr && field->type == "bool" && a.resolved && a.value.is_string()) {
      const std::string word = lower_case(a.value.get<std::string>());
      if (word == "true" || word == "false") {
        out.push_back(
            {word == "false" ? error : warning, "bad_value", a.place,
             fmt::format("{} is the text {}, which Python takes for true", a.name, a.text),
             word == "true" ? "True" : "False",
             "transformers 5.23.0, src/transformers/training_args.py (a dataclass)",
             in_place_of(a, a.span, word == "true" ? "True" : "False")});
      }
    }
    const bool number =
        field != nullptr && (field->type.starts_with("int") || field->type.starts_with("float"));
    if (!number || !a.resolved || !a.value.is_string()) continue;
    try {
      const std::string text = a.value.get<std::string>();
      static_cast<void>(number_of(Json(text)));
      out.push_back({error,
                     "bad_value",
                     a.place,
                     fmt::format("{} is the text \"{}\": {} makes no number of it, "
                                 "and what compares it with one stops",
                                 a.name, text, callee_of(call)),
                     fmt::format("{}={}", a.name, text),
                     "transformers 5.23.0, src/transformers/training_args.py (a dataclass)",
                     {{a.place.file, a.span.begin, a.span.end, text}}});
    } catch (const Error&) {
      continue;  // no number: said as a refused value
    }
  }
}

void check_library_calls(const Scene& scene, Findings& out) {
  for (const PythonText& text : scene.files.python) {
    if (text.calls.empty()) continue;
    const std::string& program = scene.text_of(text.calls.front().place.file);
    for (const PythonCall& call : text.calls) {
      const std::string callee = callee_of(call);
      if (callee == "LoraConfig" && is_taken_from(program, callee, "peft")) {
        check_keywords_of_lora(call, out);
      }
      for (const WordsOfCall& row : kWordsOfCalls) {
        if (callee != row.callee) continue;
        const bool whole = call.callee != callee && says(program, row.package);
        if (whole || is_taken_from(program, callee, row.package)) {
          check_words_of_call(call, row, out);
        }
      }
      if ((callee == "SFTTrainer" || callee == "DPOTrainer" || callee == "GRPOTrainer") &&
          is_taken_from(program, callee, "trl")) {
        check_trainers_keywords(call, out);
        check_slips_of_trainer(call, out);
      }
      if (callee == "Trainer" && is_taken_from(program, callee, "transformers")) {
        check_slips_of_trainer(call, out);
      }
      if (call.callee.starts_with("torch.optim.")) check_numbers_of_optimizer(call, out);
      if (callee.starts_with("Adam") && call.callee.find("torch") == 0) check_betas(call, out);
      if (says(program, "transformers")) check_format_of_weights(call, out);
      if (says(program, "transformer_auto_wrap_policy")) check_wrapped_classes(scene, call, out);
    }
    if (says(program, "GRPOTrainer")) check_reward_counts(text, out);
  }
  check_absent_names(scene, out);
}

}  // namespace qplan
