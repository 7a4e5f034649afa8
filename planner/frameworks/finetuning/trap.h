#pragma once
// What a check of a fine-tuner's own keys looks at, and how one mistake is told. Private to
// check().

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/plan/plan_text.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/scene.h"

namespace qplan {

// One file's keys, or one command's arguments.
struct FineTuningCase {
  const Scene& scene;
  const ConfigPart& part;
  [[nodiscard]] bool has(std::string_view key) const { return part.settings.has(key); }
  [[nodiscard]] bool on(std::string_view key) const { return is_switched_on(part.settings, key); }
  [[nodiscard]] std::string word(std::string_view key, std::string_view otherwise = "") const {
    return word_of(part.settings, key, otherwise);
  }
  [[nodiscard]] double figure(std::string_view key, double otherwise) const {
    return figure_of(part.settings, key, otherwise);
  }
  [[nodiscard]] bool is(std::string_view key, std::string_view value,
                        std::string_view otherwise = "") const {
    return word(key, otherwise) == value;
  }
  // ZeRO-3 of a ds_config.json, or FSDP.
  [[nodiscard]] bool zero3() const {
    return scene.files.find(Dialect::ds_config) != nullptr && scene.draft.plan.zero == 3;
  }
  [[nodiscard]] bool fsdp() const {
    const ConfigPart* const yaml = scene.files.find(Dialect::accelerate);
    const Setting* const type = yaml == nullptr ? nullptr : yaml->settings.find("distributed_type");
    const bool by_yaml = type != nullptr && text_of(type->value) == "FSDP";
    return by_yaml || (part.dialect == Dialect::llama_factory && on("fsdp"));
  }
  // Of several GPUs.
  [[nodiscard]] bool distributed() const { return scene.question.limits.gpus > 1; }
};

// Whether LLaMA-Factory trains whole weights.
bool is_full(const FineTuningCase& c);

struct FineTuningTrap {
  std::string_view rule;
  Severity severity;
  std::string_view at;  // the key whose line is shown; nothing springs where it is not said
  bool (*springs)(const FineTuningCase&);
  std::string_view message, instead, source;
};

std::span<const FineTuningTrap> llama_factory_traps();
std::span<const FineTuningTrap> axolotl_traps();
std::span<const FineTuningTrap> swift_traps();           // of `swift sft`
std::span<const FineTuningTrap> swift_megatron_traps();  // of `megatron sft`
std::span<const FineTuningTrap> trl_traps();
std::span<const FineTuningTrap> automodel_traps();
std::span<const FineTuningTrap> torchtune_traps();
std::span<const FineTuningTrap> nanotron_traps();
std::span<const FineTuningTrap> titan_toml_traps();  // torchtitan's TOML (pretraining/)

// What OpenRLHF's programs refuse of their arguments, whichever names these have.
void check_openrlhf(const Scene& scene, const ConfigPart& part, Findings& out);
// Words that keys of NeMo AutoModel's take.
void check_words_of_keys(const Scene& scene, const ConfigPart& part, Findings& out);
// Of a key whose word was refused: the word of transformers' that was plainly meant.
Correction meant_choice(const Scene& scene, const ConfigPart& part, std::string_view key);
// Words that TRL looks up, and its lists that go together.
void check_words_of_trl(const Scene& scene, Findings& out);

constexpr bool is_of_swift(Dialect dialect) {
  return dialect == Dialect::ms_swift || dialect == Dialect::ms_swift_megatron;
}

// "a,b" of a table's cell.
inline std::vector<std::string> words_at_commas(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ',');
  return {words.begin(), words.end()};
}

}  // namespace qplan
