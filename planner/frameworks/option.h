#pragma once
// How a plan and a model are spelled by a framework: one table a framework, used by the writer
// (emit) and by the reader (check), so that what is written is what is read.

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"
#include "planner/frameworks/setting.h"

namespace qplan {

struct RlStep;
class CostModel;

// What is written down.
struct Subject {
  const ModelSpec& model;
  const Json& config;  // the model's Hugging Face config, for numbers that no shape needs
  const ParallelPlan& plan;
  RecipeKind recipe = RecipeKind::megatron;
  int gpus_per_node = 8;
  // Of a plan that is one part of a step (planner/rl/rl_step.h): the rest; null: it is all.
  const RlStep* step = nullptr;
  // Of the machine, which engines that make answers are sized for; null: they are a node's.
  const CostModel* cost = nullptr;
};

// A plan while its words are still being read. What several settings say together waits here.
struct Draft {
  ParallelPlan plan;
  RecipeKind recipe = RecipeKind::megatron;
  std::optional<std::int64_t> accumulation;     // microbatches between two updates
  std::optional<int> layers_per_virtual_stage;  // Megatron
  std::optional<int> first_stage_layers, last_stage_layers;
  std::optional<int> microbatch_group;  // that one chunk runs in a row; pp unless said
  bool counts_embedding = false, counts_loss = false;  // as a layer of its stage
  std::optional<int> shard_groups;                     // copies of the sharded states
  std::optional<int> etp;
  bool expert_tensor_follows = true;  // etp is tp unless said
  bool precision_aware = false;
  // Megatron: whether its loss is fused, and which is then.
  bool fuses_loss = false;
  LossKind fused_loss = LossKind::native;
  std::optional<bool> attention_dropout, hidden_dropout;
  std::optional<std::int64_t> train_tokens, microbatch_tokens;  // torchtitan
  std::vector<std::string> assumed;  // in sentences: what it is read as where no plan says it,
  bool takes_less = false;           // and whether it takes less memory than that
  std::vector<std::string> adapted_modules;  // Megatron-Bridge: patterns, which the model explains
};

// A word of the plan. `write` gives null for what is left out; `read` throws Error.
struct Option {
  std::string_view key;
  std::string_view word;  // the plan's, as plan files spell it
  Json (*write)(const Subject&);
  void (*read)(Draft&, const Json&);
};

// What follows from the model, or is settled: written, and compared when read.
struct Fact {
  std::string_view key;
  Json (*write)(const Subject&);  // null: left out
  std::string_view otherwise;     // what the framework takes where it is left out; empty: nothing
  Severity severity = Severity::error;  // of another value
  std::string_view why{};               // what another value does
  // Where a constant or plain comparison does not do: what is taken where it is left out; whether
  // two values are one; whether other values are judged at all.
  Json (*computed)(const Subject&) = nullptr;
  bool (*same)(const Json&, const Json&) = nullptr;
  bool (*judged)(const Subject&) = nullptr;
};

// What a limit looks at: the plan; of it, what a search is asked with (sequences, precision); or
// the model alone: whatever the plan, no files of it are written.
enum class Asks : std::uint8_t { plan, job, model };

// A plan that the rules accept and this framework's files have no word for.
struct Limit {
  std::string_view rule;
  bool (*broken)(const Subject&);
  std::string (*message)(const Subject&);
  Asks asks = Asks::plan;
};

// Whether a model with Mamba-2 layers is cut elsewhere than evenly among whole stages: Megatron
// takes that in the layers' pattern alone.
inline bool splits_hybrid(const Subject& s) {
  return s.model.mamba && (s.plan.vpp > 1 || !s.plan.pipeline_layout.empty());
}

// ---- what rows are made of ----

template <auto Member>
Json plan_value(const Subject& s) {
  return s.plan.*Member;
}

template <auto Member>
void set_degree(Draft& draft, const Json& value) {
  draft.plan.*Member = degree_of(value);
}

// Sequences and tokens.
template <auto Member>
void set_count(Draft& draft, const Json& value) {
  draft.plan.*Member = whole_of(value, 1, std::int64_t{1} << 30);
}

inline Json if_true(bool condition) {
  return condition ? Json(true) : Json(nullptr);
}

template <class T>
Json if_true(bool condition, T value) {
  return condition ? Json(value) : Json(nullptr);
}

// ---- the options that a framework's own parser knows (options/*.tsv) ----

struct KnownOption {
  std::vector<std::string> spellings;
  std::string arity;  // "0", "1", "3", "+", "*", "?"
  std::string type, otherwise;
  std::vector<std::string> choices;
  double low = -INFINITY, high = INFINITY;  // of numbers: "int[0:3]", "float[0:]"
  bool never_null = false;                  // "int!"
};

class OptionList {
 public:
  OptionList(std::string_view name, std::string_view tsv);
  [[nodiscard]] const KnownOption* find(std::string_view spelling) const;
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<KnownOption> options_;
  std::vector<std::string> names_;  // sorted
  std::vector<std::size_t> index_;  // of names_ in options_
};

// "megatron", "megatron_deepspeed", "slime", "deepspeed", "accelerate", "torchtitan", "trainer",
// "run_clm", "bridge_recipes", "bridge_fields", "torchtitan_names",
// "accelerate_launch", "deepspeed_launch", "torchrun", "llama_factory", "axolotl",
// "ms_swift", "ms_swift_megatron", "automodel", "trl", "sglang", "verl", "verl_megatron",
// "nemo_rl", "hydra", "torchtitan_toml", "torchtitan_toml_older".
const OptionList& known_options(std::string_view name);

}  // namespace qplan
