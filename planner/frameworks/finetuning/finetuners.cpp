#include "planner/frameworks/finetuning/finetuners.h"

#include <algorithm>

#include "planner/frameworks/megatron/swift.h"
#include "planner/frameworks/pretraining/titan_toml.h"

namespace qplan {
namespace {

constexpr std::array<FineTuner, 9> kFineTuners{
    {{Dialect::llama_factory, job_of_llama_factory, {"model_name_or_path"}},
     {Dialect::axolotl, job_of_axolotl, {"base_model"}},
     {Dialect::automodel,
      job_of_automodel,
      {"model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path",
       "model.config"}},
     {Dialect::torchtune, job_of_torchtune, {}},  // a builder names the model
     {Dialect::openrlhf,
      job_of_openrlhf,
      {"--model.model_name_or_path", "--actor.model_name_or_path", "--pretrain"}},
     {Dialect::trl, job_of_trl, {"--model_name_or_path", "--model"}},
     {Dialect::ms_swift, job_of_swift, {"--model"}},
     {Dialect::ms_swift_megatron, job_of_swift_megatron, {"--model"}},
     {Dialect::torchtitan_toml, job_of_titan_toml, {}}}};  // a flavor names the model

}  // namespace

const FineTuner* finetuner_of(Dialect dialect) {
  const auto* const found =
      std::find_if(kFineTuners.begin(), kFineTuners.end(),
                   [&](const FineTuner& known) { return known.dialect == dialect; });
  return found == kFineTuners.end() ? nullptr : found;
}

}  // namespace qplan
