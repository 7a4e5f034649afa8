// What fine-tuners refuse of their own YAML and arguments (the tables of traps beside this file),
// and what follows from several of their keys and the model.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "models/text.h"
#include "planner/frameworks/finetuning/trap.h"
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

bool is_swift(Dialect dialect) {
  return dialect == kSwift || dialect == kSwiftMegatron;
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
  const bool swift = is_swift(c.part.dialect);
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

// AutoModel's recipes ask for the blocks that they know, and look at no other.
void check_blocks(const ConfigPart& part, Findings& out) {
  for (const SectionSlip& slip :
       slipped_sections(part.settings, known_options(option_list_of(part.dialect)))) {
    // Of blocks whose keys are known the keys are held against their classes.
    if (slip.written.find('.') != std::string::npos) continue;
    out.push_back({Severity::error, "unknown_option", slip.first->place,
                   fmt::format("{}: no recipe of NeMo AutoModel has a block of that name, and all "
                               "that stands in it is ignored silently",
                               slip.written),
                   fmt::format("did you mean {}?", slip.real),
                   "qplan: planner/frameworks/options/automodel.tsv, the blocks of its recipes"});
  }
}

}  // namespace

void check_finetuning(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    const auto traps = traps_of(part.dialect);
    if (traps.empty()) continue;
    const Case c{scene, part};
    for (const FineTuningTrap& trap : traps) {
      if (!part.settings.has(trap.at) || !trap.springs(c)) continue;
      out.push_back({trap.severity, std::string(trap.rule), part.settings.find(trap.at)->place,
                     std::string(trap.message), std::string(trap.instead),
                     std::string(trap.source)});
    }
    if (part.dialect == kNemo) check_blocks(part, out);
    if (part.dialect == kNemo) continue;
    if (part.dialect == kTrl) {
      check_length(c, "--max_length", out);
      continue;
    }
    check_length(c,
                 part.dialect == kFactory ? "cutoff_len"
                 : is_swift(part.dialect) ? "--max_length"
                                          : "sequence_len",
                 out);
    check_reference(c, out);
  }
}

}  // namespace qplan
