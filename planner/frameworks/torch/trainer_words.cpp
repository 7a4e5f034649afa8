#include "planner/frameworks/torch/trainer_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "models/ascii.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/option_names.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

constexpr std::string_view kKernelSource =
    "transformers 5.23.0, src/transformers/modeling_utils.py:1848";

std::string letters_of(std::string_view text) {
  std::string letters;
  for (const char c : lower_case(text)) {
    if (c >= 'a' && c <= 'z') letters += c;
  }
  return letters;
}

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// ---- what a part says of a Trainer, under whatever sign ----

class TrainerWords {
 public:
  explicit TrainerWords(const ConfigPart& part)
      : part_(part),
        dashes_(part.dialect == Dialect::trainer || part.dialect == Dialect::trl ||
                part.dialect == Dialect::ms_swift) {}

  static bool reads(const ConfigPart& part) {
    if (part.derived) return false;
    const Dialect d = part.dialect;
    return d == Dialect::trainer || d == Dialect::trl || d == Dialect::ms_swift ||
           d == Dialect::llama_factory || d == Dialect::axolotl;
  }

  // axolotl has names of its own for two.
  [[nodiscard]] std::string name(std::string_view field) const {
    if (part_.dialect == Dialect::axolotl && field == "lr_scheduler_type") return "lr_scheduler";
    if (part_.dialect == Dialect::axolotl && field == "optim") return "optimizer";
    return (dashes_ ? "--" : "") + std::string(field);
  }
  [[nodiscard]] const Setting* find(std::string_view field) const {
    return part_.settings.find(name(field));
  }
  // The value as it is known before anything runs; null: none.
  [[nodiscard]] const Setting* known(std::string_view field) const {
    const Setting* const found = find(field);
    return found != nullptr && found->resolved && found->value.is_string() ? found : nullptr;
  }
  // Said, and known only when it runs.
  [[nodiscard]] bool is_open(std::string_view field) const {
    const Setting* const found = find(field);
    return found != nullptr && !found->resolved;
  }

 private:
  const ConfigPart& part_;
  bool dashes_;
};

// Whether a block of keys, a dictionary or a text in JSON of this name says one of these words, in
// any of the files.
bool says_within(const Scene& scene, std::string_view block,
                 std::initializer_list<std::string_view> words) {
  constexpr std::size_t kBlock = 400;  // bytes: of few keys
  const auto is_letter = [](char c) { return c == '_' || is_digit(c) || std::isalpha(c) != 0; };
  for (const ConfigText& file : scene.files.texts) {
    const std::string_view text = file.text;
    for (std::size_t at = text.find(block); at != std::string_view::npos;
         at = text.find(block, at + 1)) {
      const std::string_view near = text.substr(at, kBlock);
      for (const std::string_view word : words) {
        for (std::size_t w = near.find(word); w != std::string_view::npos;
             w = near.find(word, w + 1)) {
          if (w > 0 && !is_letter(near[w - 1])) return true;  // no end of "cosine_with_min_lr"
        }
      }
    }
  }
  return false;
}

// A program may fill in what its files do not say: by **keywords, or after the call.
bool may_add(const Scene& scene, std::string_view field) {
  return std::any_of(
      scene.files.python.begin(), scene.files.python.end(), [&](const PythonText& text) {
        return std::any_of(text.calls.begin(), text.calls.end(),
                           [](const PythonCall& call) {
                             const std::string callee = callee_of(call);
                             const bool arguments = callee.ends_with("TrainingArguments") ||
                                                    callee.ends_with("Config");
                             return arguments &&
                                    std::any_of(call.arguments.begin(), call.arguments.end(),
                                                [](const PythonArgument& a) {
                                                  return a.text.starts_with("**");
                                                });
                           }) ||
               std::any_of(text.assignments.begin(), text.assignments.end(),
                           [&](const PythonAssignment& a) { return a.target.ends_with(field); });
      });
}

void needs(const Setting& at, std::string message, std::string instead, std::string source,
           Findings& out) {
  out.push_back({error,
                 "option_needs",
                 at.place,
                 std::move(message),
                 std::move(instead),
                 std::move(source),
                 {}});
}

void check_schedule(const Scene& scene, const TrainerWords& words, Findings& out) {
  const Setting* const type = words.known("lr_scheduler_type");
  constexpr std::string_view kKeywords = "lr_scheduler_kwargs";
  if (type == nullptr || words.is_open(kKeywords) || may_add(scene, kKeywords)) return;
  const std::string name = lower_case(text_of(type->value));
  if (name == "cosine_with_min_lr" || name == "cosine_warmup_with_min_lr") {
    if (says_within(scene, kKeywords, {"min_lr"})) return;
    return needs(*type,
                 fmt::format("{} {} needs min_lr or min_lr_rate in lr_scheduler_kwargs, and "
                             "transformers stops",
                             words.name("lr_scheduler_type"), name),
                 "lr_scheduler_kwargs with min_lr_rate, 0.1 for instance",
                 "transformers 5.23.0, src/transformers/optimization.py:377", out);
  }
  if (name != "warmup_stable_decay" || says_within(scene, kKeywords, {"num_decay_steps"})) return;
  needs(*type,
        fmt::format("{} {} needs num_decay_steps in lr_scheduler_kwargs, and transformers stops",
                    words.name("lr_scheduler_type"), name),
        "lr_scheduler_kwargs with num_decay_steps, and the schedule's other steps",
        "transformers 5.23.0, src/transformers/optimization.py:511", out);
}

// Processes of one job, each with a GPU of its own.
bool is_of_several_processes(const Scene& scene) {
  if (scene.question.limits.gpus <= 1) return false;
  return std::any_of(
      scene.files.launches.begin(), scene.files.launches.end(), [](const Launch& launch) {
        const bool spreads = launch.program == "torchrun" || launch.program == "deepspeed" ||
                             launch.program == "accelerate";
        return spreads && launch.world().value_or(2) > 1;
      });
}

void check_low_rank(const Scene& scene, const TrainerWords& words, Findings& out) {
  const Setting* const optim = words.known("optim");
  if (optim == nullptr) return;
  const std::string name = lower_case(text_of(optim->value));
  if (!name.starts_with("galore_") && !name.starts_with("apollo_adamw")) return;
  if (words.find("optim_target_modules") == nullptr && !may_add(scene, "optim_target_modules")) {
    needs(*optim,
          fmt::format("{} {} needs optim_target_modules, and transformers stops",
                      words.name("optim"), name),
          "optim_target_modules all-linear",
          "transformers 5.23.0, src/transformers/trainer_optimizer.py:122", out);
  }
  if (!name.ends_with("layerwise") || !is_of_several_processes(scene)) return;
  out.push_back({error,
                 "options_exclude",
                 optim->place,
                 fmt::format("{} {} runs in one process, and transformers stops in several",
                             words.name("optim"), name),
                 name.substr(0, name.size() - std::string_view("_layerwise").size()),
                 "transformers 5.23.0, src/transformers/trainer_optimizer.py:117",
                 {}});
}

// ---- kernels of attention ----

std::string kernels_sentence(std::string_view key, const std::string& name) {
  return fmt::format(
      "{} is {}, and must be one of eager, sdpa, flash_attention_2, "
      "flash_attention_3, flex_attention, or a kernel of a hub (owner/name)",
      key, shown(name));
}

std::string kernels_instead(const std::string& name) {
  const std::string meant = meant_kernels(name);
  return meant.empty() ? "flash_attention_2, or another of them" : meant;
}

// Of TRL's words: a program of one's own may have its own for them. axolotl's are checked in its
// table.
void check_kernels(const Scene& scene, const ConfigPart& part, const TrainerWords& words,
                   Findings& out) {
  if (part.dialect != Dialect::trl) return;
  const Setting* const said = words.known("attn_implementation");
  if (said == nullptr) return;
  const std::string name = text_of(said->value);
  if (kernel_name_of(name) != KernelName::meant) return;
  const std::string meant = meant_kernels(name);
  out.push_back({error, "refused_value", said->place,
                 kernels_sentence(words.name("attn_implementation"), name), kernels_instead(name),
                 std::string(kKernelSource),
                 meant.empty() ? Correction{} : with_value(scene, *said, meant)});
}

bool loads_model(const PythonCall& call) {
  const std::string callee = callee_of(call);
  if (callee != "from_pretrained" && callee != "from_config") return false;
  const std::string owner = call.callee.substr(0, call.callee.size() - callee.size());
  return holds(owner, "Model") || holds(owner, "ForCausalLM") ||
         holds(owner, "ForConditionalGeneration");
}

// The sign that a text stands in.
std::string quoted_as(const PythonArgument& written, const std::string& value) {
  const char quote = written.text.starts_with('\'') ? '\'' : '"';
  return quote + value + quote;
}

void check_kernels_of_program(const PythonCall& call, Findings& out) {
  const std::string callee = callee_of(call);
  if (!loads_model(call) && callee != "dict" && callee != "ModelConfig") return;
  const PythonArgument* const said = call.find("attn_implementation");
  if (said == nullptr || !said->resolved || !said->value.is_string()) return;
  const auto name = said->value.get<std::string>();
  if (kernel_name_of(name) != KernelName::meant) return;
  const std::string meant = meant_kernels(name);
  const bool plain = said->text.size() == name.size() + 2;
  out.push_back({error, "refused_value", said->place, kernels_sentence("attn_implementation", name),
                 kernels_instead(name), std::string(kKernelSource),
                 meant.empty() || !plain ? Correction{}
                                         : Correction{{said->place.file, said->span.begin,
                                                       said->span.end, quoted_as(*said, meant)}}});
}

// {"attn_implementation": "flash_attn_2"}, which is handed on as keywords.
void check_kernels_of_dictionaries(const ConfigText& program, Findings& out) {
  constexpr std::string_view kKey = "attn_implementation";
  const std::string_view text = program.text;
  const auto skip = [&](std::size_t at) {
    return std::min(text.find_first_not_of(" \t\n", at), text.size());
  };
  for (std::size_t at = text.find(kKey); at != std::string_view::npos;
       at = text.find(kKey, at + 1)) {
    const std::size_t key_end = at + kKey.size();
    const char quote = at == 0 ? ' ' : text[at - 1];
    const bool key =
        (quote == '"' || quote == '\'') && key_end < text.size() && text[key_end] == quote;
    const std::size_t colon = key ? skip(key_end + 1) : text.size();
    if (colon >= text.size() || text[colon] != ':') continue;
    const std::size_t value = skip(colon + 1);
    if (value >= text.size() || (text[value] != '"' && text[value] != '\'')) continue;
    const std::size_t end = text.find(text[value], value + 1);
    if (end == std::string_view::npos) continue;
    const std::string name(text.substr(value + 1, end - value - 1));
    if (kernel_name_of(name) != KernelName::meant) continue;
    const std::string meant = meant_kernels(name);
    out.push_back(
        {error,
         "refused_value",
         {program.name, line_of(text, at)},
         kernels_sentence(kKey, name),
         kernels_instead(name),
         std::string(kKernelSource),
         meant.empty() ? Correction{} : Correction{{program.name, value + 1, end, meant}}});
  }
}

// ---- device_map ----

// The only model that a program loads, spread over all GPUs that each of several processes sees.
void check_device_map(const Scene& scene, const PythonText& text, Findings& out) {
  if (!is_of_several_processes(scene)) return;
  const PythonCall* loaded = nullptr;
  bool trains = false;
  for (const PythonCall& call : text.calls) {
    const std::string callee = callee_of(call);
    trains = trains || callee.ends_with("Trainer") || call.callee == "accelerator.prepare";
    if (!loads_model(call)) continue;
    if (loaded != nullptr) return;  // which of them is trained is not known
    loaded = &call;
  }
  if (loaded == nullptr || !trains) return;
  const PythonArgument* const map = loaded->find("device_map");
  if (map == nullptr || !map->resolved || !map->value.is_string()) return;
  const auto way = map->value.get<std::string>();
  if (way != "auto" && way != "balanced" && way != "balanced_low_0" && way != "sequential") return;
  // Of a branch that is not taken in several processes.
  const std::string& program = scene.text_of(loaded->place.file);
  if (holds(program, "ACCELERATE_BYPASS_DEVICE_MAP") || holds(program, "CUDA_VISIBLE_DEVICES")) {
    return;
  }
  out.push_back(
      {error,
       "options_exclude",
       map->place,
       fmt::format("device_map \"{}\" spreads the model over all GPUs that a process sees, and "
                   "accelerate trains no such model in several processes: it stops",
                   way),
       "leave device_map out, or start one process",
       "accelerate 16cb6eb8, src/accelerate/accelerator.py:1478; transformers 5.23.0, "
       "src/transformers/integrations/accelerate.py:137",
       {}});
}

// ---- words and beginnings that the parser refuses ----

// Whether most of what a command says is a Trainer's, so that transformers' parser reads it, and
// the program, if it is given, does not ask for what is left.
bool is_parsed_by_transformers(const Scene& scene, const ConfigPart& part) {
  constexpr int kMany = 5;
  if (part.dialect != Dialect::trainer || part.derived) return false;
  const auto known = std::count_if(
      part.settings.begin(), part.settings.end(),
      [](const Setting& s) { return known_options("trainer").find(s.key) != nullptr; });
  const bool asks =
      std::any_of(scene.files.texts.begin(), scene.files.texts.end(), [](const ConfigText& file) {
        return holds(file.text, "return_remaining_strings") || holds(file.text, "parse_known_args");
      });
  return known >= kMany && !asks;
}

// Of a command of TRL's or ms-swift's, or of a program that transformers parses.
void check_stray_words_of_trainer(const ConfigPart& part, Findings& out) {
  if (base_name(part.script) == "run_clm.py") return;  // said of its values
  for (const Setting& setting : part.settings) {
    const KnownOption* const known = part.dialect == Dialect::trainer
                                         ? known_options("trainer").find(setting.key)
                                         : known_option(part, setting.key);
    // Older releases take several reporters.
    const bool one = known != nullptr && (known->arity == "1" || known->arity == "?") &&
                     known->spellings.front() != "--report_to";
    if (!one || setting.extra.empty() || setting.syntax != Syntax::words) continue;
    const bool of_fsdp = setting.key == "--fsdp";
    out.push_back(
        {error,
         "stray_word",
         setting.place,
         fmt::format("{} takes one value, and {} behind it is an argument that nobody "
                     "knows: transformers' parser stops",
                     setting.key, shown(setting.extra)),
         of_fsdp ? fmt::format("--fsdp \"{} {}\", in quotes", text_of(setting.value), setting.extra)
                 : "leave it out, or put both in quotes",
         "transformers 5.23.0, src/transformers/hf_argparser.py:355",
         {}});
  }
}

// "--tensor-model-parallel-size" among a Trainer's words.
void check_words_of_megatron(const ConfigPart& part, Findings& out) {
  const OptionList &trainer = known_options("trainer"), &megatron = known_options("megatron");
  for (const Setting& setting : part.settings) {
    const bool degree = setting.key.ends_with("-parallel-size");
    if (!degree || trainer.find(setting.key) != nullptr || megatron.find(setting.key) == nullptr) {
      continue;
    }
    out.push_back(
        {warning,
         "unknown_option",
         setting.place,
         fmt::format("{} is Megatron-LM's, and a Trainer has no such argument: its parser "
                     "stops unless the program adds it",
                     setting.key),
         "leave it out",
         "transformers 5.23.0, src/transformers/hf_argparser.py:355",
         {}});
  }
}

// A beginning of several names, which argparse refuses: of one name and longer ones, or but for an
// ending ("--gradient_checkpoint"). What is shorter may be an argument of the program's own.
void check_beginnings(const Scene& scene, const ConfigPart& part, Findings& out) {
  constexpr std::size_t kLong = 12, kEnding = 4;
  for (const Setting& setting : part.settings) {
    const std::string& key = setting.key;
    const OptionList& trainer = known_options("trainer");
    if (key.size() < kLong || setting.syntax != Syntax::words || trainer.find(key) != nullptr ||
        known_options("run_clm").find(key) != nullptr) {
      continue;
    }
    std::vector<std::string> names;
    for (const std::string& name : trainer.names()) {
      if (name.starts_with(key)) names.push_back(name);
    }
    if (names.size() < 2) continue;
    const std::string& shortest = *std::min_element(
        names.begin(), names.end(),
        [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
    const bool all = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(shortest);
    });
    if (!all || shortest.size() - key.size() > kEnding) continue;
    out.push_back(
        {error, "unknown_option", setting.place,
         fmt::format("{} begins {}, and Python's argparse stops", key, fmt::join(names, " and ")),
         fmt::format("did you mean {}?", shortest), "Python 3, Lib/argparse.py (ambiguous option)",
         with_key(scene, part, setting, shortest)});
  }
}

}  // namespace

KernelName kernel_name_of(std::string_view name) {
  constexpr std::array<std::string_view, 4> kKnown{"eager", "sdpa", "flex_attention", "auto"};
  constexpr std::array<std::string_view, 9> kMeant{"flashattention", "flashattn", "flash", "fa",
                                                   "flexattention",  "flexattn",  "flex",  "sdp",
                                                   "fattn"};
  if (name.empty() || name.find_first_of("/|$") != std::string_view::npos) return KernelName::known;
  constexpr std::string_view kFlash = "flash_attention_";
  const bool flash =
      name.starts_with(kFlash) && name.size() == kFlash.size() + 1 && is_digit(name.back());
  if (flash || std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) {
    return KernelName::known;
  }
  const std::string letters = letters_of(name);
  const bool meant = std::find(kMeant.begin(), kMeant.end(), letters) != kMeant.end() ||
                     is_slip(letters, "flashattention") || is_slip(letters, "flexattention") ||
                     is_slip(letters, "sdpa") || is_slip(letters, "eager");
  return meant ? KernelName::meant : KernelName::other;
}

std::string meant_kernels(std::string_view name) {
  if (kernel_name_of(name) != KernelName::meant) return "";
  const std::string letters = letters_of(name);
  if (is_slip(letters, "sdpa")) return "sdpa";
  if (is_slip(letters, "eager")) return "eager";
  if (letters.starts_with("flex") || is_slip(letters, "flexattention")) return "flex_attention";
  const char version = name.back();
  return version >= '2' && version <= '4' ? fmt::format("flash_attention_{}", version) : "";
}

void check_trainer_words(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (!TrainerWords::reads(part)) continue;
    const TrainerWords words(part);
    check_schedule(scene, words, out);
    check_low_rank(scene, words, out);
    check_kernels(scene, part, words, out);
    const bool command =
        part.dialect == Dialect::ms_swift || (part.dialect == Dialect::trl && part.script == "trl");
    if (command) check_stray_words_of_trainer(part, out);
    if (!is_parsed_by_transformers(scene, part)) continue;
    check_stray_words_of_trainer(part, out);
    check_words_of_megatron(part, out);
    check_beginnings(scene, part, out);
  }
  for (const ConfigText& file : scene.files.texts) {
    const bool program = file_kind_of(file) == FileKind::python;
    if (program && holds(file.text, "transformers")) check_kernels_of_dictionaries(file, out);
  }
  for (const PythonText& text : scene.files.python) {
    for (const PythonCall& call : text.calls) check_kernels_of_program(call, out);
    check_device_map(scene, text, out);
  }
}

}  // namespace qplan
