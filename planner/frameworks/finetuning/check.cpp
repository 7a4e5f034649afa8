// What fine-tuners refuse of their own YAML and arguments (the tables of traps beside this file),
// and what follows from several of their keys and the model.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/trap.h"
#include "planner/frameworks/rl/omega_checks.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;

constexpr auto kFactory = Dialect::llama_factory;
constexpr auto kSwift = Dialect::ms_swift;
constexpr auto kSwiftMegatron = Dialect::ms_swift_megatron;
constexpr auto kTrl = Dialect::trl;
constexpr auto kNemo = Dialect::automodel;

std::span<const FineTuningTrap> traps_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::llama_factory:
      return llama_factory_traps();
    case Dialect::axolotl:
      return axolotl_traps();
    case Dialect::ms_swift:
      return swift_traps();
    case Dialect::ms_swift_megatron:
      return swift_megatron_traps();
    case Dialect::trl:
      return trl_traps();
    case Dialect::automodel:
      return automodel_traps();
    case Dialect::torchtune:
      return torchtune_traps();
    case Dialect::torchtitan_toml:
      return titan_toml_traps();
    case Dialect::nanotron:
      return nanotron_traps();
    case Dialect::openrlhf:  // of two spellings each: check_openrlhf()
    case Dialect::megatron:
    case Dialect::megatron_yaml:
    case Dialect::bridge:
    case Dialect::slime:
    case Dialect::megatron_deepspeed:
    case Dialect::ds_config:
    case Dialect::trainer:
    case Dialect::accelerate:
    case Dialect::torchtitan:
    case Dialect::own_script:
    case Dialect::verl:
    case Dialect::nemo_rl:
      break;
  }
  return {};
}

// Longer than the model's positions, where its checkpoint is the model that was asked for.
void check_length(const Case& c, std::string_view key, Findings& out) {
  const Setting* const length = c.part.settings.find(key);
  const std::int64_t most = c.scene.question.model.max_position_embeddings;
  if (length == nullptr || most == 0 || c.scene.question.model_of_files || c.has("rope_scaling") ||
      c.has("--rope_scaling"))
    return;
  if (c.figure(key, 0) <= static_cast<double>(most)) return;
  out.push_back({warning, "long_sequences", length->place,
                 fmt::format("{} is {}, and the model was made for {} positions", key,
                             text_of(length->value), most),
                 fmt::format("{}: {}", key, most), "arithmetic: max_position_embeddings"});
}

// A model that stands beside the one that is trained, to be compared with. Of adapters it is the
// same model without them.
void check_reference(const Case& c, Findings& out) {
  const bool factory = c.part.dialect == kFactory;
  const bool swift = is_of_swift(c.part.dialect);
  const std::string_view key = factory ? "stage" : swift ? "--rlhf_type" : "rl";
  const std::string way = c.word(key);
  const std::string loss = c.word("pref_loss", "sigmoid");
  const bool compares =
      factory ? (way == "dpo" && loss != "orpo" && loss != "simpo") || way == "kto" || way == "ppo"
              : way == "dpo" || way == "ipo" || way == "kto" || way == "grpo" || way == "ppo";
  const bool whole = factory ? is_full(c)
                     : swift
                         ? c.is("--tuner_type", "full", c.part.dialect == kSwift ? "lora" : "full")
                         : !c.has("adapter");
  if (swift && way == "grpo" && c.figure("--beta", 0.04) == 0) return;
  if (!compares || (!whole && !c.has("ref_model"))) return;
  const std::int64_t all = count_parameters(c.scene.question.model).total();
  const bool shards = c.zero3() || c.fsdp();
  const ParallelPlan& plan = c.scene.draft.plan;
  const std::int64_t ranks = c.part.dialect == kSwiftMegatron
                                 ? std::int64_t{plan.tp} * plan.pp * plan.ep
                             : shards ? std::max<std::int64_t>(1, c.scene.question.limits.gpus)
                                      : 1;
  out.push_back(
      {note, "reference_model", c.part.settings.find(key)->place,
       fmt::format("{} holds a second model to compare with, {} in 16 bits on every GPU, which is "
                   "not counted below, nor is its forward",
                   way,
                   human_bytes(Bytes(2.0 * static_cast<double>(all) / static_cast<double>(ranks)))),
       factory ? "finetuning_type: lora compares with the model without its adapters"
       : swift ? "--tuner_type lora compares with the model without its adapters"
               : "adapter: lora compares with the model without its adapters",
       fmt::format("{}; arithmetic: 2 bytes a parameter",
                   factory ? "LLaMA-Factory ff6d4d12, src/llamafactory/train/trainer_utils.py"
                   : swift ? "ms-swift 3602360a, swift/arguments/rlhf_args.py (ref_model)"
                           : "axolotl 067b021c, src/axolotl/core/builders/rl.py")});
}

// axolotl's mesh, whose degrees multiply to the job's GPUs where what is not said is filled as it
// fills it.
class AxolotlMesh {
 public:
  explicit AxolotlMesh(const Case& c)
      : c_(c), world_(c.scene.question.limits.gpus), rest_(world_) {}

  void check(Findings& out) {
    constexpr std::array<std::string_view, 5> kKeys{"expert_parallel_size", "tensor_parallel_size",
                                                    "context_parallel_size", "dp_replicate_size",
                                                    "dp_shard_size"};
    const Setting* first = nullptr;
    for (const std::string_view key : kKeys) {
      const Setting* const said = c_.part.settings.find(key);
      if (said == nullptr || c_.figure(key, 1) <= 1) continue;
      if (!said->resolved) return;
      if (first == nullptr) first = said;
    }
    if (first == nullptr || world_ <= 1) return;
    if (world_ % degree("expert_parallel_size") != 0) {
      return say(out, first,
                 fmt::format("expert_parallel_size {} does not divide the job's {} GPUs",
                             degree("expert_parallel_size"), world_),
                 "utils/distributed.py:337");
    }
    const std::int64_t product = fill();
    if (product == world_) return;
    say(out, first,
        fmt::format("axolotl makes a mesh of {} ranks of {}, and the job has {} GPUs: it stops",
                    product, fmt::join(names_, " x "), world_),
        "utils/distributed.py:359");
  }

 private:
  [[nodiscard]] std::int64_t degree(std::string_view key) const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(c_.figure(key, 1)));
  }

  void take(std::string_view key, std::int64_t size) {
    product_ *= size;
    names_.push_back(fmt::format("{} {}", key, size));
    rest_ /= size;
  }

  // The product of the degrees, as _get_parallel_config_kwargs takes them one after another.
  std::int64_t fill() {
    for (const std::string_view key :
         {"expert_parallel_size", "tensor_parallel_size", "context_parallel_size"}) {
      if (degree(key) > 1) take(key, degree(key));
    }
    const std::int64_t copies = degree("dp_replicate_size"), shards = degree("dp_shard_size");
    const bool shards_said = c_.has("dp_shard_size");
    const bool fsdp = c_.on("fsdp") || c_.part.settings.has_section("fsdp_config.");
    if (!shards_said && copies <= 1 && rest_ > 1) take("dp_shard_size", rest_);
    if (copies > 1) take("dp_replicate_size", copies);
    if (rest_ > 1 && shards > 1) {
      take("dp_shard_size", shards);
      if (rest_ > 1 && copies <= 1) take("dp_replicate_size", rest_);
    }
    if (rest_ > 1 && shards <= 1 && fsdp) take("dp_shard_size", rest_);
    return product_;
  }

  static void say(Findings& out, const Setting* at, std::string message, std::string_view line) {
    out.push_back({error,
                   "mesh_product",
                   at->place,
                   std::move(message),
                   "degrees whose product divides the GPUs",
                   fmt::format("axolotl 067b021c, src/axolotl/{}; accelerate 16cb6eb8, "
                               "src/accelerate/parallelism_config.py:372",
                               line),
                   {}});
  }

  const Case& c_;
  std::int64_t world_, rest_, product_ = 1;
  std::vector<std::string> names_;
};

// What an entry of axolotl's datasets may say, of all kinds (schemas/datasets.py).
constexpr std::string_view kFieldsOfDatasets =
    "path split type input_transform shards shards_idx preprocess_shards conversation "
    "chat_template chat_template_jinja data_files input_format name ds_type field "
    "field_human field_model field_messages field_tools field_thinking "
    "template_thinking_key message_field_role message_field_content "
    "message_property_mappings message_field_training message_field_training_detail "
    "split_thinking logprobs_field temperature roles_to_train train_on_eos train_on_eot "
    "roles drop_system_message trust_remote_code revision text_column skip field_chosen "
    "field_rejected step_separator max_completion_length train_on_last_step_only length "
    "sequence_length min_input_id max_input_id seed";

// "datasets.0.paht": pydantic passes it over.
void check_fields_of_datasets(const ConfigPart& part, Findings& out) {
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < kFieldsOfDatasets.size();) {
    const std::size_t end = std::min(kFieldsOfDatasets.find(' ', at), kFieldsOfDatasets.size());
    fields.emplace_back(kFieldsOfDatasets.substr(at, end - at));
    at = end + 1;
  }
  for (const Setting& setting : part.settings) {
    const bool of_datasets =
        setting.key.starts_with("datasets.") || setting.key.starts_with("test_datasets.");
    const std::size_t entry = setting.key.find('.');
    const std::size_t dot = of_datasets ? setting.key.find('.', entry + 1) : std::string::npos;
    if (dot == std::string::npos || !is_digit(setting.key[entry + 1])) continue;
    const std::string name = setting.key.substr(dot + 1);
    if (name.find('.') != std::string::npos ||
        std::find(fields.begin(), fields.end(), name) != fields.end()) {
      continue;
    }
    const std::string near = nearest_name(name, fields);
    const std::string real = setting.key.substr(0, dot + 1) + near;
    if (near.empty() || !is_slip(name, near) || part.settings.has(real)) continue;
    Correction fix;
    if (setting.name.end > setting.name.begin) {
      fix = Correction{{setting.place.file, setting.name.begin, setting.name.end, near}};
      fix.renames = true;
    }
    out.push_back({error, "unknown_option", setting.place,
                   fmt::format("{}: axolotl knows no such key of a dataset and ignores it silently",
                               setting.key),
                   fmt::format("did you mean {}?", near),
                   "axolotl 067b021c, src/axolotl/utils/schemas/datasets.py", std::move(fix)});
  }
}

// axolotl's datasets are a list: "datasets: - path: x".
void check_lists(const ConfigPart& part, Findings& out) {
  for (const std::string_view key : {"datasets", "test_datasets", "pretraining_dataset"}) {
    const std::string section = fmt::format("{}.", key);
    for (const Setting& setting : part.settings) {
      const bool keys = setting.key.starts_with(section) && setting.key.size() > section.size() &&
                        !is_digit(setting.key[section.size()]);
      if (!keys || key == "pretraining_dataset") continue;
      out.push_back(
          {error,
           "refused_value",
           setting.place,
           fmt::format("{} is a block of keys, and must be a list of them: axolotl stops", key),
           fmt::format("a dash before the first key of each: - {}: ...",
                       setting.key.substr(section.size())),
           "axolotl 067b021c, src/axolotl/utils/schemas/config.py:339",
           {}});
      break;
    }
  }
}

// A block of axolotl's whose name is a slip: nobody reads what stands in it.
void check_blocks_of_axolotl(const Scene& scene, const ConfigPart& part, Findings& out) {
  const OptionList& list = known_options("axolotl");
  const std::array<const OptionList*, 1> lists{&list};
  std::string told;
  for (const Setting& setting : part.settings) {
    const std::size_t dot = setting.key.find('.');
    const std::string block = setting.key.substr(0, dot);
    if (dot == std::string::npos || block == told || list.find(block) != nullptr) continue;
    const std::string meant = certain_name(block, lists);
    if (meant.empty() || part.settings.has_section(meant + ".")) continue;
    told = block;
    const SectionSlip slip{&setting, block, meant};
    Correction fix = renamed_section(scene, slip);
    const Place place =
        fix.empty()
            ? setting.place
            : Place{fix.front().file, line_of(scene.text_of(fix.front().file), fix.front().begin)};
    out.push_back({error, "unknown_option", place,
                   fmt::format("{}: axolotl knows no such block, and all that stands in it is "
                               "ignored silently",
                               block),
                   fmt::format("did you mean {}?", meant),
                   "qplan: planner/frameworks/options/axolotl.tsv, the fields of its configuration",
                   std::move(fix)});
  }
}

// Where a block's name stands, that a correction renames.
Place place_of_block(const Scene& scene, const SectionSlip& slip, const Correction& fix) {
  if (fix.empty()) return slip.first->place;
  return {fix.front().file, line_of(scene.text_of(fix.front().file), fix.front().begin)};
}

// AutoModel's recipes ask for the blocks that they know, and look at no other.
void check_blocks(const Scene& scene, const ConfigPart& part, Findings& out) {
  for (const SectionSlip& slip :
       slipped_sections(part.settings, known_options(option_list_of(part.dialect)))) {
    // Of blocks whose keys are known the keys are held against their classes.
    if (slip.written.find('.') != std::string::npos) continue;
    Correction fix = renamed_section(scene, slip);
    const Place place = place_of_block(scene, slip, fix);
    out.push_back({Severity::error, "unknown_option", place,
                   fmt::format("{}: no recipe of NeMo AutoModel has a block of that name, and all "
                               "that stands in it is ignored silently",
                               slip.written),
                   fmt::format("did you mean {}?", slip.real),
                   "qplan: planner/frameworks/options/automodel.tsv, the blocks of its recipes",
                   std::move(fix)});
  }
}

// Keys of those blocks whose classes are any: slips of what its own recipes have there.
void check_keys_of_nemo(const Scene& scene, const ConfigPart& part, Findings& out) {
  constexpr std::array<std::string_view, 4> kByClass{"distributed.", "peft.", "step_scheduler.",
                                                     "ci."};
  const OptionList& list = known_options("automodel");
  for (const Setting& setting : part.settings) {
    const std::size_t dot = setting.key.rfind('.');
    const bool by_class =
        std::any_of(kByClass.begin(), kByClass.end(),
                    [&](std::string_view block) { return setting.key.starts_with(block); });
    if (dot == std::string::npos || by_class || list.find(setting.key) != nullptr) continue;
    const std::string near = slip_of_key(setting.key, list);
    // In the same block, of which the file has not both.
    if (near.rfind('.') != dot || near.substr(0, dot) != setting.key.substr(0, dot) ||
        part.settings.has(near) || part.settings.has_section(near + ".")) {
      continue;
    }
    out.push_back({error, "unknown_option", setting.place,
                   fmt::format("{} is a key that no recipe of NeMo AutoModel has", setting.key),
                   fmt::format("did you mean {}?", near),
                   "qplan: planner/frameworks/options/automodel.tsv, the keys of its recipes",
                   certain_key(setting.key, list) == near ? with_key(scene, part, setting, near)
                                                          : Correction{}});
  }
}

}  // namespace

void check_finetuning(const Scene& scene, Findings& out) {
  check_words_of_trl(scene, out);
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect == Dialect::openrlhf) check_openrlhf(scene, part, out);
    const auto traps = traps_of(part.dialect);
    if (traps.empty()) continue;
    const Case c{scene, part};
    for (const FineTuningTrap& trap : traps) {
      if (!part.settings.has(trap.at) || !trap.springs(c)) continue;
      out.push_back(
          {trap.severity, std::string(trap.rule), part.settings.find(trap.at)->place,
           std::string(trap.message), std::string(trap.instead), std::string(trap.source),
           trap.rule == "refused_value" ? meant_choice(scene, part, trap.at) : Correction{}});
    }
    check_words_of_keys(scene, part, out);
    if (part.dialect == Dialect::axolotl) {
      check_lists(part, out);
      check_fields_of_datasets(part, out);
      check_blocks_of_axolotl(scene, part, out);
    }
    if (part.dialect == kNemo) {
      check_blocks(scene, part, out);
      check_keys_of_nemo(scene, part, out);
    }
    if (part.dialect == kNemo) continue;
    if (part.dialect == Dialect::torchtune) {
      check_length(c, "tokenizer.max_seq_len", out);
      continue;
    }
    if (part.dialect == kTrl) {
      check_length(c, "--max_length", out);
      continue;
    }
    check_length(c,
                 part.dialect == kFactory    ? "cutoff_len"
                 : is_of_swift(part.dialect) ? "--max_length"
                                             : "sequence_len",
                 out);
    check_reference(c, out);
    if (part.dialect == Dialect::axolotl) AxolotlMesh(c).check(out);
  }
}

}  // namespace qplan
