#include "planner/frameworks/check_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "planner/search/search.h"

namespace qplan {
namespace {

// Whether Megatron runs what rule interleaved_microbatches rejects: groups other than pp must leave
// no remainder, or one of pp and more (schedules.py,
// forward_backward_pipelining_with_interleaving).
bool runs_in_groups(const Draft& draft) {
  if (!draft.microbatch_group) return false;
  const std::int64_t group = *draft.microbatch_group, all = draft.plan.num_microbatches();
  const std::int64_t rest = all % group;
  return group >= draft.plan.pp && group <= all && (rest == 0 || rest >= draft.plan.pp);
}

}  // namespace

void check_rules(const Scene& scene, Findings& out) {
  const CheckQuestion& q = scene.question;
  const RecipeKind recipe = scene.draft.recipe;
  // Those that make answers beside them train nothing.
  ClusterLimits limits = q.limits;
  if (limits.gpus > 0) limits.gpus = scene.trainers();
  for (Infeasible& reason : why_infeasible(q.model, scene.draft.plan, recipe_of(recipe), limits)) {
    Place place;
    std::size_t first = std::string::npos;
    for (const auto& [word, said] : scene.said) {
      const std::size_t at = (" " + reason.message + " ").find(" " + word + " ");
      if (at < first) {
        first = at;
        place = said;
      }
    }
    if (place.file.empty() && !scene.files.parts.empty()) place = scene.files.parts.front().place;
    if (place.line == 0 && place.file.empty()) place = {scene.files.texts.front().name, 0};
    // One arithmetic, said by the finding that knows the accumulation.
    const bool known = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
      return f.rule == "batch_arithmetic" && reason.rule == "batch_divisibility";
    });
    if (reason.rule == "interleaved_microbatches" && runs_in_groups(scene.draft)) {
      out.push_back({Severity::warning, std::string(reason.rule), place,
                     fmt::format("Megatron runs {} microbatches in groups of {}, which is not "
                                 "predicted: here groups have pp {}",
                                 scene.draft.plan.num_microbatches(), *scene.draft.microbatch_group,
                                 scene.draft.plan.pp),
                     "", fmt::format("rule of {}: {}", to_word(recipe), reason.source)});
      continue;
    }
    // Of layers that NeMo AutoModel has and the recipe that stands in for it has not; NeMo-RL
    // trains by it, too.
    const bool of_nemo =
        scene.files.find(Dialect::automodel) != nullptr ||
        (scene.files.find(Dialect::nemo_rl) != nullptr && recipe == RecipeKind::fsdp2_compile);
    const bool stands_in = of_nemo && (reason.rule.find("_available") != std::string_view::npos ||
                                       reason.rule.starts_with("delta_net"));
    if (stands_in) {
      out.push_back({Severity::note, std::string(reason.rule), place,
                     fmt::format("not predicted: {}", reason.message), "",
                     fmt::format("rule of {}: {}", to_word(recipe), reason.source)});
    } else if (!known) {
      out.push_back({Severity::error, std::string(reason.rule), place, reason.message, "",
                     fmt::format("rule of {}: {}", to_word(recipe), reason.source)});
    }
  }
}

bool check_size(const Scene& scene, Findings& out) {
  const std::int64_t sequences = scene.draft.plan.global_batch_size;
  if (sequences <= kMostSequences) return true;
  auto said = scene.said.find("global_batch_size");
  if (said == scene.said.end()) said = scene.said.find("micro_batch_size");
  const Place place = said == scene.said.end() ? scene.files.parts.front().place : said->second;
  out.push_back({Severity::error, "batch_size", place,
                 fmt::format("a global batch of {} sequences is more than is simulated; use at "
                             "most {}",
                             sequences, kMostSequences),
                 "", ""});
  return false;
}

}  // namespace qplan
