#include "planner/runs/effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "models/error.h"
#include "models/plan/plan_text.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

using OfModel = std::function<void(ModelSpec&, const Found&)>;
using OfRun = std::function<void(RunInputs&, const Found&)>;

// ---- of the model ----

OfModel mtp_layers(std::string_view value) {
  const std::int64_t count = parse_count("mtp_layers", value, 0, 16);
  return [count](ModelSpec& m, const Found&) { m.num_mtp_layers = static_cast<int>(count); };
}

OfModel mtp_passes(std::string_view value) {
  const std::int64_t count = parse_count("mtp_passes", value, 1, 16);
  return [count](ModelSpec& m, const Found&) {
    if (m.num_mtp_layers > 0) m.mtp_passes = count;
  };
}

OfModel dense_layers(std::string_view) {
  return [](ModelSpec& m, const Found& found) {
    if (!m.moe) return;
    std::size_t dense = 0;
    std::from_chars(found.rest.data(), found.rest.data() + found.rest.size(), dense);
    for (std::size_t i = 0; i < m.layers.size(); ++i) m.layers[i].moe = i >= dense;
  };
}

// ---- of the run ----

OfRun recipe(std::string_view value) {
  return [kind = from_word<RecipeKind>(value)](RunInputs& in, const Found&) { in.recipe = kind; };
}

OfRun month(std::string_view value) {
  return [month = parse_month(value)](RunInputs& in, const Found&) { in.month = month; };
}

OfRun documents(std::string_view value) {
  const std::int64_t tokens = parse_count("documents", value, 1, 1 << 20);
  return [tokens](RunInputs& in, const Found&) {
    in.plan.document_len = std::min(tokens, in.plan.seq_len);
  };
}

OfRun fabric(std::string_view value) {
  return [kind = from_word<Fabric>(value)](RunInputs& in, const Found&) {
    if (in.network) in.network->fabric = kind;
  };
}

OfRun nvlinks(std::string_view value) {
  const auto links = static_cast<int>(parse_count("nvlinks", value, 1, 64));
  return [links](RunInputs& in, const Found&) {
    if (in.network) in.network->nvlinks = links;
  };
}

OfRun fused_adam(std::string_view) {
  return [](RunInputs& in, const Found&) { in.fused_adam = true; };
}

OfRun every_2nd_layer(std::string_view) {
  return [](RunInputs& in, const Found&) {
    const std::int64_t stages = std::int64_t{in.plan.pp} * in.plan.vpp;
    const std::int64_t layers = std::max<std::int64_t>(1, in.model.num_layers / stages / 2);
    in.plan.recompute = {
        .kind = RecomputeKind::full, .modules = {}, .layers = static_cast<int>(layers)};
  };
}

// "transformer_engine:attn+moe_router"; whole layers where no module is named. Graphs of dense MLPs
// alone hold next to nothing of an MoE layer.
void set_graphs(std::string_view modules, const ModelSpec& model, ParallelPlan& plan) {
  const auto names = [modules](std::string_view name) {
    return modules.find(name) != std::string_view::npos;
  };
  const bool mamba = names("mamba") && model.mamba;
  const bool some = names("mlp") || names("mamba");
  plan.cuda_graph = names("attn") || names("moe_router") || mamba || !some;
  plan.cuda_graph_scope = CudaGraphScope::full;
  if (!plan.cuda_graph || names("full_iteration")) return;
  const bool router = names("moe_router") && !names("attn");
  plan.cuda_graph_scope = router ? CudaGraphScope::router : CudaGraphScope::layer;
  if (mamba && !names("attn") && !router) plan.cuda_graph_scope = CudaGraphScope::mamba;
}

OfRun graphs(std::string_view) {
  return [](RunInputs& in, const Found& found) { set_graphs(found.text, in.model, in.plan); };
}

OfRun megatron_layout(std::string_view) {
  return [](RunInputs& in, const Found& found) {
    in.plan.pipeline_layout = parse_megatron_layout(found.rest);
  };
}

OfRun fill_from_front(std::string_view) {
  return [](RunInputs& in, const Found&) { in.fills_from_front = true; };
}

OfRun memory_of(std::string_view value) {
  return
      [stage = from_word<MemoryOf>(value)](RunInputs& in, const Found&) { in.memory_of = stage; };
}

OfRun nothing(std::string_view) {
  return [](RunInputs&, const Found&) {};
}

// "+tp-ep" of overlap: the one word of a plan that is a set.
OfRun overlap(std::string_view signs_and_words) {
  std::vector<std::pair<bool, OverlapKind>> changes;
  for (std::string_view rest = signs_and_words; !rest.empty();) {
    const std::size_t end = std::min(rest.find_first_of("+-", 1), rest.size());
    changes.emplace_back(rest.front() == '+', from_word<OverlapKind>(rest.substr(1, end - 1)));
    rest.remove_prefix(end);
  }
  return [changes](RunInputs& in, const Found&) {
    for (const auto& [add, kind] : changes) {
      add ? in.plan.overlap.add(kind) : in.plan.overlap.remove(kind);
    }
  };
}

// ---- the words ----

enum class Value : std::uint8_t { none, needed };

template <class Change>
struct Named {
  std::string_view name;
  Value value;
  Change (*make)(std::string_view value);
};

constexpr auto kOfModel = std::to_array<Named<OfModel>>({
    {"mtp_layers", Value::needed, mtp_layers},
    {"mtp_passes", Value::needed, mtp_passes},
    {"dense_layers", Value::none, dense_layers},
});

constexpr auto kOfRun = std::to_array<Named<OfRun>>({
    {"recipe", Value::needed, recipe},
    {"month", Value::needed, month},
    {"documents", Value::needed, documents},
    {"fabric", Value::needed, fabric},
    {"nvlinks", Value::needed, nvlinks},
    {"every_2nd_layer", Value::none, every_2nd_layer},
    {"fused_adam", Value::none, fused_adam},
    {"graphs", Value::none, graphs},
    {"megatron_layout", Value::none, megatron_layout},
    {"fill_from_front", Value::none, fill_from_front},
    {"memory_of", Value::needed, memory_of},
    {"nothing", Value::none, nothing},
});

// Whether the word is one of these; adds what it changes.
template <class Table, class Changes>
bool read_named(const Table& table, std::string_view word, Changes& changes) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  for (const auto& named : table) {
    if (named.name != name) continue;
    const bool given = equals != std::string_view::npos;
    if (given != (named.value == Value::needed)) {
      throw Error(fmt::format("effect '{}' {} a value", word, given ? "takes no" : "needs"));
    }
    changes.push_back(named.make(given ? word.substr(equals + 1) : std::string_view()));
    return true;
  }
  return false;
}

}  // namespace

Effect::Effect(std::string_view words) {
  for (const auto word : split(words, ' ')) read_word(word);
  static_cast<void>(parse_plan(plan_words_));  // throws for what is no word of a plan
}

void Effect::read_word(std::string_view word) {
  constexpr std::string_view kOverlap = "overlap=";
  if (word.empty()) throw Error("an effect is empty");
  if (word.starts_with("overlap=+") || word.starts_with("overlap=-")) {
    of_run_.push_back(overlap(word.substr(kOverlap.size())));
  } else if (!read_named(kOfModel, word, of_model_) && !read_named(kOfRun, word, of_run_)) {
    plan_words_.append(plan_words_.empty() ? "" : " ").append(word);
  }
}

void Effect::on_model(ModelSpec& model, const Found& found) const {
  for (const auto& change : of_model_) change(model, found);
}

void Effect::on_run(RunInputs& in, const Found& found) const {
  in.plan = parse_plan(plan_words_, in.plan);
  for (const auto& change : of_run_) change(in, found);
}

}  // namespace qplan
