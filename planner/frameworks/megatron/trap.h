#pragma once
// What a check of Megatron's arguments looks at, and how one mistake is told. Private to check().

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "planner/frameworks/scene.h"

namespace qplan {

// One job's arguments.
struct MegatronCase {
  const Scene& scene;
  const ConfigPart& part;
  [[nodiscard]] const Setting* find(std::string_view key) const { return part.settings.find(key); }
  [[nodiscard]] bool has(std::string_view key) const { return part.settings.has(key); }
  // In any file of the job, or in a recipe that none shows: for what one array of arguments may
  // leave to another.
  [[nodiscard]] bool may_be_said(std::string_view key) const {
    return part.dialect == Dialect::bridge ||
           std::any_of(scene.files.parts.begin(), scene.files.parts.end(),
                       [key](const ConfigPart& p) { return p.settings.has(key); });
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Setting* const found = find(key);
    return found == nullptr || !found->resolved ? "" : text_of(found->value);
  }
  [[nodiscard]] bool is(std::string_view key, std::string_view value) const {
    return text(key) == value;
  }
  // Megatron's fp8 where nothing else is said.
  [[nodiscard]] bool delayed_scaling() const {
    return has("--fp8-format") && (!has("--fp8-recipe") || is("--fp8-recipe", "delayed"));
  }
  [[nodiscard]] const ParallelPlan& plan() const { return scene.draft.plan; }
  [[nodiscard]] const ModelSpec& model() const { return scene.question.model; }
  [[nodiscard]] bool slime() const { return part.dialect == Dialect::slime; }
};

struct MegatronTrap {
  std::string_view rule;
  Severity severity;
  std::string_view at;  // the flag to point at
  bool (*springs)(const MegatronCase&);
  std::string_view message, instead, source;
  std::string_view add{};  // arguments that correct it; for --fix
  bool drop = false;       // the flag at fault goes; for --fix
  // Numbers behind the message: "2 x 8 = 16, not 8".
  std::string (*numbers)(const MegatronCase&) = nullptr;
};

// How layers are laid over stages.
std::span<const MegatronTrap> megatron_pipeline_traps();
// Experts, and the groups of ranks that they talk in.
std::span<const MegatronTrap> megatron_expert_traps();
// Heads, experts and batches whose numbers do not go together; and sizes that none is of.
std::span<const MegatronTrap> megatron_shape_traps();
void check_shape_sizes(const MegatronCase& c, Findings& out);
// slime's GPUs and batches.
std::span<const MegatronTrap> slime_traps();
// Attention that is recomputed although its kernels keep no scores.
void check_core_attention(const MegatronCase& c, Findings& out);

}  // namespace qplan
