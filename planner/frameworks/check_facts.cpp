// Option by option: is it the model's, and is a default taken that nobody wants?

#include <fmt/format.h>

#include <algorithm>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

bool describes_model(const ConfigPart& part) {
  return part.dialect == Dialect::accelerate || part.dialect == Dialect::nanotron ||
         part.settings.has("--num-layers") || part.settings.has("--hidden-size");
}

// slime trains what is trained already: balance and lengths are its own affair. Gated DeltaNet
// comes with a plug-in that reads the checkpoint's config (slime_plugins/models/qwen3_next.py).
bool judged(const ConfigPart& part, const Fact& fact, const Subject& subject) {
  if (part.derived) return false;
  // The pattern counts them, whatever the number (Megatron-LM d98e8a64,
  // megatron/training/arguments.py:787).
  const bool counted =
      part.settings.has("--hybrid-layer-pattern") || part.settings.has("--hybrid-override-pattern");
  if (fact.key == "--num-layers" && counted) return false;
  if (fact.judged != nullptr && !fact.judged(subject)) return false;
  if (part.dialect == Dialect::megatron_yaml) return part.settings.has(fact.key);
  if (fact.key.starts_with("fsdp_config.") && distributed_type_of(part.settings).meant != "FSDP") {
    return false;
  }
  if (part.dialect != Dialect::slime) return true;
  const bool mixers =
      fact.key.starts_with("--linear-") || fact.key == "--experimental-attention-variant";
  if (mixers && part.settings.has("--spec")) return false;
  return fact.key != "--moe-aux-loss-coeff" && fact.key != "--mtp-num-layers" &&
         fact.key != "--rope-scaling-factor" && fact.key != "--use-rope-scaling";
}

std::string argument(std::string_view key, const Json& value) {
  if (value.is_boolean()) return std::string(key);
  return fmt::format("{} {}", key, text_of(value));
}

// A note is worth knowing, and another choice than the usual one may be meant: it stays.
Correction unless_note(const Fact& fact, Correction correction) {
  if (fact.severity != Severity::note) return correction;
  Correction none;
  none.why_not = "it may be meant";
  return none;
}

void check_fact(const Scene& scene, const ConfigPart& part, const Fact& fact,
                const Subject& subject, Findings& out) {
  if (!judged(part, fact, subject)) return;
  const Json wanted = fact.write(subject);
  const Setting* given = part.settings.find(fact.key);
  // Its older name, which is taken still.
  if (given == nullptr && fact.key == "--hybrid-layer-pattern") {
    given = part.settings.find("--hybrid-override-pattern");
  }
  if (given != nullptr && !given->resolved) return;
  // The old way to say rope.
  const bool rope = part.settings.has("--use-rotary-position-embeddings");
  if (rope && given == nullptr && fact.key == "--position-embedding-type") return;
  const auto same = fact.same != nullptr ? fact.same : same_value;
  const Place place = given != nullptr ? given->place : part.place;
  // accelerate's yaml says how to run a model, not what it is.
  const bool of_model = part.dialect != Dialect::accelerate;
  if (given == nullptr) {
    const Json taken = fact.computed != nullptr ? fact.computed(subject)
                       : fact.otherwise.empty() ? Json(nullptr)
                                                : Json(std::string(fact.otherwise));
    const bool nothing_wanted = wanted.is_null() || (wanted.is_boolean() && !wanted.get<bool>());
    if (nothing_wanted || (!taken.is_null() && same(taken, wanted))) return;
    const std::string instead = argument(fact.key, wanted);
    out.push_back(
        {fact.severity, "missing_option", place,
         taken.is_null() || wanted.is_boolean()
             ? fmt::format("{} is missing: {}", fact.key, fact.why)
             : fmt::format("{} is missing and {} is taken, {} {}: {}", fact.key, text_of(taken),
                           of_model ? "where the model has" : "not", text_of(wanted), fact.why),
         fmt::format("add {}", instead), "", unless_note(fact, added(scene, part, instead))});
    return;
  }
  if (wanted.is_null()) {
    const bool off = given->value.is_boolean() && !given->value.get<bool>();
    const bool harmless =
        off || (!fact.otherwise.empty() && same(given->value, Json(std::string(fact.otherwise))));
    if (harmless) return;
    out.push_back({fact.severity, "other_model", place,
                   fmt::format("{} does not belong to {}: {}",
                               given->value.is_boolean() ? std::string(fact.key)
                                                         : argument(fact.key, given->value),
                               subject.model.name, fact.why),
                   fmt::format("leave {} out", fact.key), "",
                   unless_note(fact, removed(scene, part, *given))});
    return;
  }
  bool equal = false;
  try {
    equal = same(given->value, wanted);
  } catch (const Error&) {
    return;  // said as a refused value
  }
  if (equal) return;
  out.push_back({fact.severity, "other_model", place,
                 fmt::format("{} is {}, {} {}: {}", fact.key, text_of(given->value),
                             of_model ? "and " + subject.model.name + " has" : "not",
                             text_of(wanted), fact.why),
                 fmt::format("write {}", argument(fact.key, wanted)), "",
                 unless_note(fact, with_value(scene, *given, text_of(wanted)))});
}

// Whether a file names a checkpoint or a tokenizer of Llama 3.0 ("meta-llama/Meta-Llama-3-8B"),
// whose positions nothing scales: the built-in models of its sizes are 3.1's.
bool names_llama_3_0(const ConfigPart& part) {
  constexpr std::array<std::string_view, 4> kNaming{"--tokenizer-model", "--load",
                                                    "--pretrained-checkpoint", "--vocab-file"};
  return std::any_of(kNaming.begin(), kNaming.end(), [&](std::string_view key) {
    const Setting* const said = part.settings.find(key);
    if (said == nullptr) return false;
    const std::string name = lower_case(text_of(said->value));
    constexpr std::string_view kThree = "llama-3-";
    const std::size_t at = name.find(kThree);
    return at != std::string::npos && at + kThree.size() < name.size() &&
           is_digit(name[at + kThree.size()]);
  });
}

bool scales_positions(const Fact& fact) {
  return fact.key == "--use-rope-scaling" || fact.key == "--rope-scaling-factor";
}

}  // namespace

void check_facts(const Scene& scene, Findings& out) {
  if (scene.question.model_of_files) return;
  const Subject subject{scene.question.model, scene.question.config, scene.draft.plan,
                        scene.draft.recipe, scene.question.gpus_per_node};
  for (const ConfigPart& part : scene.files.parts) {
    if (part.derived || has_names_alone(part)) continue;
    if (!describes_model(part) && part.dialect != Dialect::megatron_yaml) {
      if (takes_megatrons(part.dialect)) {
        out.push_back({Severity::note, "model_not_described", part.place,
                       fmt::format("the arguments do not describe the model, so that nothing of it "
                                   "is compared with {}",
                                   subject.model.name),
                       "give the file that does too", ""});
      }
      continue;
    }
    const bool unscaled = names_llama_3_0(part);
    for (const Fact& fact : facts_of(part.dialect)) {
      if (unscaled && scales_positions(fact) && !part.settings.has(fact.key)) continue;
      check_fact(scene, part, fact, subject, out);
    }
  }
}

}  // namespace qplan
