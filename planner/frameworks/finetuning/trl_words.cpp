// Words that TRL looks up when it starts, and lists of its that go together. Its classes take any
// text for them.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/edit_distance.h"
#include "models/text.h"
#include "planner/frameworks/finetuning/trap.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

struct WordsOfTrl {
  std::string_view key;
  std::string_view verb;  // of which they are; empty: of all
  std::string_view words;
  std::string_view source;
};

// Of the command a trap of its own (trl_traps.cpp).
constexpr WordsOfTrl kPackingOfTrl{"--packing_strategy", "", "bfd,bfd_split,wrapped,bfd-requeue",
                                   "trl/trainer/sft_config.py:238"};

constexpr auto kWordsOfTrl = std::to_array<WordsOfTrl>({
    {"--vllm_mode", "", "colocate,server", "trl/generation/vllm_generation.py:372"},
    {"--loss_type", "grpo", "grpo,bnpo,dr_grpo,dapo,cispo,sapo,luspo,vespo",
     "trl/trainer/grpo_trainer.py:3109"},
    {"--loss_type", "sft", "nll,chunked_nll,dft", "trl/trainer/sft_trainer.py:1288"},
    {"--loss_type", "dpo",
     "sigmoid,hinge,ipo,exo_pair,nca_pair,robust,bco_pair,sppo_hard,aot,aot_unpaired,apo_zero,"
     "apo_down,discopop,sft,sigmoid_norm",
     "trl/trainer/dpo_trainer.py:1560"},
    {"--loss_type", "kto", "kto,apo_zero_unpaired", "trl/trainer/kto_trainer.py:1561"},
    {"--scale_rewards", "", "group,batch,none,true,false", "trl/trainer/grpo_trainer.py:2702"},
    {"--dtype", "", "auto,bfloat16,float16,float32", "trl/trainer/utils.py:1147"},
    {"--torch_dtype", "", "auto,bfloat16,float16,float32", "trl/trainer/utils.py:1147"},
    {"--bnb_4bit_quant_type", "", "nf4,fp4", "trl/trainer/model_config.py:150"},
    {"--importance_sampling_level", "", "token,sequence", "trl/trainer/grpo_trainer.py:891"},
});

// The verb of a part; empty: a program of one's own, which may be any's.
std::string verb_of_part(const ConfigPart& part) {
  const Setting* const verb = part.settings.find("verb");
  return verb == nullptr ? "" : text_of(verb->value);
}

bool is_near_word(const std::string& word, const std::vector<std::string>& real) {
  return std::any_of(real.begin(), real.end(), [&](const std::string& r) {
    return edit_distance(word, r) <= (r.size() > 4 && word.size() > 4 ? 2 : 1);
  });
}

void check_word(const Scene& scene, const ConfigPart& part, const WordsOfTrl& row, Findings& out) {
  const Setting* const said = part.settings.find(row.key);
  if (said == nullptr || !said->resolved || said->value.is_null() || said->value.is_boolean()) {
    return;
  }
  if (!row.verb.empty() && row.verb != verb_of_part(part)) return;
  const std::vector<std::string> real = words_at_commas(row.words);
  for (const std::string& written : list_of(said->value)) {
    const std::string word = lower_case(written);
    const bool known = row.key == "--scale_rewards"
                           ? std::find(real.begin(), real.end(), word) != real.end()
                           : std::find(real.begin(), real.end(), written) != real.end();
    if (known) continue;
    const std::string meant = certain_choice(written, real);
    const bool slip = !meant.empty() || is_near_word(word, real);
    // What is no slip a later release may have, or a program of one's own.
    if (!slip && part.script != "trl" && part.dialect != Dialect::trainer) continue;
    const bool one = !said->value.is_array();
    out.push_back(
        {slip ? error : warning, "refused_value", said->place,
         fmt::format("{} is {}, and {} {}", row.key, shown(written),
                     slip ? "must be one of" : "TRL f2cd5771 takes one of", fmt::join(real, ", ")),
         "", fmt::format("TRL f2cd5771, {}", row.source),
         meant.empty() || !one ? Correction{} : with_value(scene, *said, meant)});
    return;
  }
}

// A weight for each function and model that rewards.
void check_weights(const ConfigPart& part, Findings& out) {
  const Setting* const weights = part.settings.find("--reward_weights");
  const Setting* const functions = part.settings.find("--reward_funcs");
  const Setting* const environment = part.settings.find("--use_gym_env");
  if (weights == nullptr || functions == nullptr || !weights->resolved || !functions->resolved ||
      weights->value.is_null() || functions->value.is_null() || environment != nullptr) {
    return;
  }
  const bool trl = part.dialect == Dialect::trl;
  const Setting* const models =
      part.settings.find(trl ? "--reward_model_name_or_path" : "--reward_model");
  if (models != nullptr && !models->resolved) return;
  const std::size_t counted = list_of(weights->value).size();
  const std::size_t rewards =
      list_of(functions->value).size() + (models == nullptr ? 0 : list_of(models->value).size());
  if (counted == rewards) return;
  out.push_back({error,
                 "option_needs",
                 weights->place,
                 fmt::format("{} reward_weights for {} that reward: it stops", counted, rewards),
                 fmt::format("{} numbers, or no reward_weights", rewards),
                 trl ? "TRL f2cd5771, trl/trainer/grpo_trainer.py:529"
                     : "ms-swift 3602360a, swift/rlhf_trainers/utils.py:2219",
                 {}});
}

}  // namespace

void check_words_of_trl(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.derived) continue;
    const bool trl = part.dialect == Dialect::trl;
    // GRPOConfig(...) of a program is read as a Trainer's arguments.
    const bool keywords = part.dialect == Dialect::trainer && part.settings.has("verb");
    if (keywords) check_word(scene, part, kPackingOfTrl, out);
    if (trl || keywords) {
      for (const WordsOfTrl& row : kWordsOfTrl) check_word(scene, part, row, out);
    }
    if (trl || is_of_swift(part.dialect)) check_weights(part, out);
  }
}

}  // namespace qplan
