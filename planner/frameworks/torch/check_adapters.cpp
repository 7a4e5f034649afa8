#include "planner/frameworks/torch/check_adapters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {
namespace {

using enum Severity;

// Models whose modules are named as Llama's, and no others (transformers 5.23.0, models/*/). Of
// experts PEFT renames what is asked for, and a tower has names of its own.
bool is_named_as_llama(std::string_view architecture) {
  constexpr std::array<std::string_view, 8> kAlike{"gemma3_text", "llama", "mistral", "olmo2",
                                                   "olmo3",       "qwen2", "qwen3",   "seed_oss"};
  return std::find(kAlike.begin(), kAlike.end(), architecture) != kAlike.end();
}

// Linear layers and embeddings, heads of other tasks, and what holds them, which PEFT refuses by
// another sentence.
constexpr std::array<std::string_view, 28> kModules{"q_proj",
                                                    "k_proj",
                                                    "v_proj",
                                                    "o_proj",
                                                    "gate_proj",
                                                    "up_proj",
                                                    "down_proj",
                                                    "embed_tokens",
                                                    "lm_head",
                                                    "score",
                                                    "classifier",
                                                    "qa_outputs",
                                                    "v_head",
                                                    "summary",
                                                    "model",
                                                    "layers",
                                                    "self_attn",
                                                    "mlp",
                                                    "norm",
                                                    "q_norm",
                                                    "k_norm",
                                                    "input_layernorm",
                                                    "post_attention_layernorm",
                                                    "pre_feedforward_layernorm",
                                                    "post_feedforward_layernorm",
                                                    "rotary_emb",
                                                    "act_fn",
                                                    "base_layer"};

// A name, or the end of a path, and nothing that a pattern has; a number is a layer's.
bool is_absent(const std::string& target) {
  const bool name = !target.empty() && std::all_of(target.begin(), target.end(),
                                                   [](char c) { return is_name(c) || c == '.'; });
  const std::string last = target.substr(target.rfind('.') + 1);  // npos + 1: all of it
  return name && !last.empty() && !is_digit(last.front()) &&
         std::find(kModules.begin(), kModules.end(), last) == kModules.end();
}

// The linear layer that a name is a slip of ("v_prj"); empty: it is none, as of another model's
// ("c_proj").
std::string slipped_layer(const std::string& target) {
  constexpr std::array<std::string_view, 7> kLayers{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                    "gate_proj", "up_proj", "down_proj"};
  if (!is_absent(target)) return "";
  const std::string last = target.substr(target.rfind('.') + 1);
  constexpr std::string_view kEnd = "_proj";
  const bool other = last.ends_with(kEnd) && last.size() == kEnd.size() + 1;
  std::string meant;
  for (const std::string_view layer : kLayers) {
    if (other || !is_slip(last, layer)) continue;
    if (!meant.empty()) return "";
    meant = layer;
  }
  return meant;
}

// The same of words that are written out ("query_proj").
std::string meant_layer(const std::string& target) {
  constexpr auto kWritten = std::to_array<std::array<std::string_view, 2>>(
      {{"query_proj", "q_proj"}, {"key_proj", "k_proj"}, {"value_proj", "v_proj"}});
  for (const auto& [written, real] : kWritten) {
    if (target == written) return std::string(real);
  }
  return slipped_layer(target);
}

// One of several that is written wrong: PEFT adapts the others, and says nothing.
void check_slips(const Scene& scene, const Setting& targets, const std::vector<std::string>& names,
                 Findings& out) {
  for (const std::string& name : names) {
    const std::string meant = meant_layer(name);
    if (meant.empty() || std::find(names.begin(), names.end(), meant) != names.end()) continue;
    // Of a list over lines, the item's.
    const std::string& text = scene.text_of(targets.place.file);
    Place place = targets.place;
    if (targets.text.end > targets.text.begin && targets.text.end <= text.size()) {
      const std::size_t at = text.find(name, targets.text.begin);
      if (at < targets.text.end) place.line = line_of(text, at);
    }
    out.push_back(
        {warning,
         "unknown_target",
         place,
         fmt::format("{} has no module named {}: PEFT adapts the others, and says nothing",
                     scene.question.model.name, shown(name)),
         fmt::format("did you mean {}?", meant),
         "PEFT 5d602fdb, src/peft/tuners/tuners_utils.py:1039",
         {}});
  }
}

// Parameters may be adapted beside modules, and then no module needs to be.
bool adapts_parameters(const Scene& scene) {
  return std::any_of(
      scene.files.parts.begin(), scene.files.parts.end(), [](const ConfigPart& part) {
        return std::any_of(part.settings.begin(), part.settings.end(), [](const Setting& setting) {
          return setting.key.find("target_parameters") != std::string::npos &&
                 !setting.value.empty();
        });
      });
}

void check_rank(const Setting& rank, Findings& out) {
  try {
    if (!rank.resolved || number_of(rank.value) > 0) return;
  } catch (const Error&) {
    return;  // what is no number is said elsewhere
  }
  out.push_back(
      {error,
       "adapter_rank",
       rank.place,
       fmt::format("adapters of rank {} hold nothing, and PEFT stops", text_of(rank.value)),
       "a rank above 0, or no adapters",
       "PEFT 5d602fdb, src/peft/tuners/lora/layer.py:240",
       {}});
}

}  // namespace

void check_targets(const Scene& scene, const Setting& targets, Severity severity, Findings& out) {
  const ModelSpec& model = scene.question.model;
  if (!targets.resolved || !targets.value.is_array() || targets.value.empty() ||
      !is_named_as_llama(model.architecture) || adapts_parameters(scene)) {
    return;
  }
  const std::vector<std::string> names = list_of(targets.value);
  if (!std::all_of(names.begin(), names.end(), is_absent)) {
    return check_slips(scene, targets, names, out);
  }
  out.push_back({severity,
                 "unknown_target",
                 targets.place,
                 fmt::format("{} has no module named {}: PEFT finds nothing to adapt, and stops",
                             model.name, shown(fmt::format("{}", fmt::join(names, " or ")))),
                 "all-linear, or of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
                 "PEFT 5d602fdb, src/peft/tuners/tuners_utils.py:1039",
                 {}});
}

void check_adapters(const Scene& scene, Findings& out) {
  // NeMo AutoModel's adapters are its own, and no names of modules stop it.
  if (scene.files.find(Dialect::automodel) != nullptr) return;
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::own_script || !part.settings.has("lora")) continue;
    if (const Setting* const rank = part.settings.find("lora.r")) check_rank(*rank, out);
    if (const Setting* const said = part.settings.find("lora.target_modules")) {
      check_targets(scene, *said, part.derived ? error : warning, out);
    }
  }
}

}  // namespace qplan
