#include "planner/frameworks/check_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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

// Where verl's and NeMo-RL's files say a word of the trainer's plan.
std::map<std::string_view, Place> said_of_trainer(const Scene& scene) {
  constexpr auto kNames = std::to_array<std::pair<std::string_view, std::string_view>>({
      {".tensor_parallel_size", "tp"},
      {".tensor_model_parallel_size", "tp"},
      {".context_parallel_size", "cp"},
      {".ulysses_sequence_parallel_size", "cp"},
      {".pipeline_model_parallel_size", "pp"},
      {".expert_model_parallel_size", "ep"},
      {".train_global_batch_size", "global_batch_size"},
      {".ppo_mini_batch_size", "global_batch_size"},
      {".train_micro_batch_size", "micro_batch_size"},
      {".ppo_micro_batch_size_per_gpu", "micro_batch_size"},
  });
  const std::string_view not_run =
      scene.draft.recipe == RecipeKind::megatron ? "policy.dtensor_cfg." : "policy.megatron_cfg.";
  std::map<std::string_view, Place> places;
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::verl && part.dialect != Dialect::nemo_rl) continue;
    for (const Setting& setting : part.settings) {
      const bool trains =
          setting.key.starts_with("actor_rollout_ref.actor.") ||
          (setting.key.starts_with("policy.") && !setting.key.starts_with("policy.generation.") &&
           !setting.key.starts_with(not_run));
      for (const auto& [name, word] : kNames) {
        if (trains && setting.key.ends_with(name)) places[word] = setting.place;
      }
    }
  }
  return places;
}

// Where the word was said that a sentence names first; nowhere: it names none that was.
Place place_of(const Scene& scene, const std::string& sentence) {
  // Words that sentences spell out.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSpelledOut{
      {{" global batch ", "global_batch_size"},
       {" microbatches of ", "micro_batch_size"},
       {" micro-batch ", "micro_batch_size"},
       {" microbatches, ", "global_batch_size"}}};
  const std::string text = " " + sentence + " ";
  Place place;
  std::size_t first = std::string::npos;
  const auto take = [&](std::string_view spelled, const Place& said) {
    const std::size_t at = text.find(spelled);
    if (at >= first || said.line == 0) return;
    first = at;
    place = said;
  };
  std::map<std::string_view, Place> places = said_of_trainer(scene);
  for (const auto& [word, said] : scene.said) places[word] = said;
  for (const auto& [word, said] : places) take(fmt::format(" {} ", word), said);
  for (const auto& [spelled, word] : kSpelledOut) {
    const auto said = places.find(word);
    if (said != places.end()) take(spelled, said->second);
  }
  return place;
}

// Whether a rule says what is not predicted here, and no framework refuses.
bool is_not_modelled(const Scene& scene, const Infeasible& reason) {
  if (reason.source.starts_with("qplan:") ||
      reason.source.find("not modelled") != std::string_view::npos) {
    return true;
  }
  // The fork makes experts of its own kind (DeepSpeed's MoE), as its arguments describe them.
  const CheckQuestion& q = scene.question;
  return q.model_of_files && q.model.moe && scene.draft.recipe == RecipeKind::megatron_deepspeed &&
         (reason.rule == "model_available" || reason.rule.starts_with("expert_"));
}

}  // namespace

void check_rules(const Scene& scene, Findings& out) {
  const CheckQuestion& q = scene.question;
  const RecipeKind recipe = scene.draft.recipe;
  // Those that make answers beside them train nothing.
  ClusterLimits limits = q.limits;
  if (limits.gpus > 0) limits.gpus = scene.trainers();
  for (Infeasible& reason : why_infeasible(q.model, scene.draft.plan, recipe_of(recipe), limits)) {
    Place place = place_of(scene, reason.message);
    if (place.file.empty() && !scene.files.parts.empty()) place = scene.files.parts.front().place;
    if (place.line == 0 && place.file.empty()) place = {scene.files.texts.front().name, 0};
    // One arithmetic, said by the finding that knows the accumulation.
    const bool known = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
      return f.rule == "batch_arithmetic" && reason.rule == "batch_divisibility";
    });
    // The same product, by the names of the file.
    const bool told = std::any_of(out.begin(), out.end(), [&](const Finding& f) {
      return f.rule == "mesh_product" && reason.rule == "world_size";
    });
    if (told) continue;
    // A rank is said, and no module has any of the names beside it: so the finding of the names.
    const bool no_target = std::any_of(out.begin(), out.end(),
                                       [](const Finding& f) { return f.rule == "unknown_target"; });
    if (reason.rule == "lora_words_need_rank" && no_target) continue;
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
    // torchtune's modules of experts are its own.
    const bool of_tune =
        reason.rule == "every_expert" && scene.files.find(Dialect::torchtune) != nullptr;
    if (stands_in || of_tune || is_not_modelled(scene, reason)) {
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
