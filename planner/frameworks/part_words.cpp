#include "planner/frameworks/part_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/megatron/bridge_program.h"

namespace qplan {
namespace {

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

}  // namespace

void read_part(const ConfigPart& part, Draft& draft,
               std::map<std::string, Place, std::less<>>& said, Findings& out) {
  if (has_names_alone(part)) return;
  for (const Option& option : options_of(part.dialect)) {
    const Setting* const setting = part.settings.find(option.key);
    if (setting == nullptr || is_auto(*setting)) continue;
    if (part.dialect == Dialect::ds_config && setting->value.is_null()) continue;
    // "assumed" says what makes it.
    if (!setting->resolved && text_of(setting->value) == kElsewhere) continue;
    if (!setting->resolved && text_of(setting->value) == kByRecipe) {
      out.push_back({Severity::note, "not_resolved", setting->place,
                     fmt::format("{} is what the recipe's own code makes it, which is not followed",
                                 setting->key),
                     "set it in the program", ""});
      continue;
    }
    if (!setting->resolved) {
      out.push_back({Severity::note, "not_resolved", setting->place,
                     fmt::format("{} is {}, which only a run can tell", setting->key,
                                 shown(text_of(setting->value))),
                     "write the value, or check the command that the script makes of it", ""});
      continue;
    }
    try {
      const Precision before = draft.plan.precision;
      option.read(draft, setting->value);
      if (!option.word.empty()) said.emplace(option.word, setting->place);
      // Of --bf16, --fp8-format and --fp8-recipe the last one that made it another.
      if (draft.plan.precision != before) said.insert_or_assign("precision", setting->place);
    } catch (const Error& error) {
      out.push_back(bad_value(*setting, error.what()));
    }
  }
}

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

}  // namespace qplan
