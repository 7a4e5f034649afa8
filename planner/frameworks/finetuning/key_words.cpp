// Words that a key of NeMo AutoModel's or axolotl's takes, with what was plainly meant by another.

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

struct WordsOfKey {
  Dialect dialect;
  std::string_view key;
  std::string_view prefix;  // of the values that are judged; empty: of all
  std::string_view words;
  Severity severity;  // of a slip; of what is none a warning, for a later release may have it
  std::string_view fate;
  std::string_view source;
};

constexpr std::string_view kBackends =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/models/common/utils.py:328";

constexpr auto kWordsOfKeys = std::to_array<WordsOfKey>({
    {Dialect::automodel, "lr_scheduler.lr_decay_style", "",
     "constant,inverse-square-root,linear,cosine,WSD", error, "AutoModel stops at others",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/optim/scheduler.py:244"},
    {Dialect::automodel, "model.backend.attn", "", "te,sdpa,flex,eager,tilelang,cudnn,magi,torch",
     error, "AutoModel stops at others",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/attention/utils.py:118"},
    {Dialect::automodel, "model.backend.linear", "", "torch,te,quack", error,
     "AutoModel knows no others", kBackends},
    {Dialect::automodel, "model.backend.rms_norm", "", "torch,torch_fp32,te,quack", error,
     "AutoModel knows no others", kBackends},
    {Dialect::automodel, "model.backend.experts", "", "torch,te,gmm,torch_mm,torch_mm_mxfp8", error,
     "AutoModel knows no others", kBackends},
    {Dialect::automodel, "optimizer._target_", "torch.optim.",
     "torch.optim.Adam,torch.optim.AdamW,torch.optim.SGD,torch.optim.Adagrad,torch.optim.Adadelta,"
     "torch.optim.Adamax,torch.optim.NAdam,torch.optim.RAdam,torch.optim.RMSprop,torch.optim.ASGD,"
     "torch.optim.Rprop,torch.optim.Adafactor,torch.optim.LBFGS,torch.optim.SparseAdam,"
     "torch.optim.Muon",
     error, "torch has no others", "PyTorch 2.11, torch/optim/__init__.py"},
    {Dialect::automodel, "peft._target_", "nemo_automodel.components._peft.lora.",
     "nemo_automodel.components._peft.lora.PeftConfig", error, "the module has no others",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/_peft/lora.py"},
    {Dialect::automodel, "dist_env.backend", "", "nccl,gloo,mpi,ucc,cuda:nccl,cpu:gloo", error,
     "torch has no others", "PyTorch 2.11, torch/distributed/distributed_c10d.py"},
    {Dialect::axolotl, "adapter", "", "lora,qlora,llama-adapter", error,
     "axolotl has these, and those of plugins",
     "axolotl 067b021c, src/axolotl/utils/schemas/peft.py:41"},
    {Dialect::automodel, "recipe", "TrainFinetune",
     "TrainFinetuneRecipeForNextTokenPrediction,TrainFinetuneRecipeForSequenceClassification",
     error, "AutoModel stops at others", "NeMo-AutoModel 36044ad3, nemo_automodel/cli/utils.py"},
});

}  // namespace

void check_words_of_keys(const Scene& scene, const ConfigPart& part, Findings& out) {
  for (const WordsOfKey& row : kWordsOfKeys) {
    const Setting* const said = part.dialect == row.dialect ? part.settings.find(row.key) : nullptr;
    if (said == nullptr || !said->resolved || !said->value.is_string()) continue;
    const std::string word = text_of(said->value);
    if (!word.starts_with(row.prefix) || word.find('$') != std::string::npos) continue;
    const std::vector<std::string> words = words_at_commas(row.words);
    if (std::find(words.begin(), words.end(), word) != words.end()) continue;
    const std::string meant = certain_choice(word, words);
    const std::string near = nearest_name(word, words);
    // A plugin may have its own.
    const bool own = row.key == "adapter" || row.key == "dist_env.backend";
    if (own && meant.empty() && (near.empty() || edit_distance(word, near) > 1)) continue;
    const bool slip =
        !meant.empty() || (!near.empty() && edit_distance(word, near) <= 2 && word.size() >= 4);
    out.push_back({slip ? row.severity : warning, "refused_value", said->place,
                   fmt::format("{} is {}, and {}", row.key, shown(word), row.fate),
                   meant.empty() ? fmt::format("one of {}", fmt::join(words, ", "))
                                 : fmt::format("did you mean {}?", meant),
                   std::string(row.source),
                   meant.empty() ? Correction{} : with_value(scene, *said, meant)});
  }
}

Correction meant_choice(const Scene& scene, const ConfigPart& part, std::string_view key) {
  std::string_view list;
  if (key == "optimizer") list = "--optim";
  if (key == "lr_scheduler") list = "--lr_scheduler_type";
  const Setting* const said = part.settings.find(key);
  if (list.empty() || said == nullptr || !said->value.is_string()) return {};
  const KnownOption* const known = known_options("trainer").find(list);
  if (known == nullptr) return {};
  const std::string meant = certain_choice(text_of(said->value), known->choices);
  return meant.empty() ? Correction{} : with_value(scene, *said, meant);
}

}  // namespace qplan
