// What a training program of one's own makes of a plan.

#include "planner/frameworks/readers/own_script.h"

#include <string_view>

#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

bool names(const Setting* setting, std::string_view word) {
  return setting != nullptr && text_of(setting->value).find(word) != std::string::npos;
}

void read_fsdp(const Settings& s, Draft& draft) {
  draft.recipe = RecipeKind::fsdp1;
  draft.plan.zero = 3;
  draft.plan.overlap = recipe_of(RecipeKind::fsdp1).defaults.overlap;
  if (names(s.find("FSDP.sharding_strategy"), "SHARD_GRAD_OP")) draft.plan.zero = 2;
  if (const Setting* const offload = s.find("FSDP.cpu_offload")) {
    const bool on = names(offload, "True");
    draft.plan.offload.params = on;
    draft.plan.offload.optimizer = on ? 1 : 0;
  }
}

void read_recompute(Draft& draft, const Settings& own_script) {
  const Setting* const said = own_script.find("recompute");
  if (said == nullptr || !said->resolved) return;
  if (said->value.is_string()) {
    draft.plan.recompute = {RecomputeKind::selective, {}, 0};
  } else if (truth_of(said->value)) {
    draft.plan.recompute = {RecomputeKind::full, {}, 0};
  }
}

}  // namespace

void read_own_script(Draft& draft, const Settings& own_script) {
  if (wraps_model(own_script)) read_fsdp(own_script, draft);
  read_recompute(draft, own_script);
}

}  // namespace qplan
