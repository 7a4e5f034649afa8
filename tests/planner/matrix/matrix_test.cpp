// Every built-in model, in every framework's files, on 16 to 1024 GPUs: what a search finds best is
// written, and read back as the same plan without a complaint. What is refused stands with its
// reason in docs/reference/emit.md, which these tests make:
//   QPLAN_WRITE_TABLE=1 matrix_test
// Without it each framework takes a third of the models on 1024 GPUs, every model four frameworks.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "models/json.h"
#include "planner/frameworks/written_plans.h"
#include "planner/search/default_batch.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/planner/frameworks/kept_jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

const std::string kPage = QPLAN_TEST_DATA "/../../docs/reference/emit.md";

// Models by what became of them, in the order of their names.
using Outcomes = std::map<std::string, std::vector<std::string>>;

std::string listed(const Outcomes& outcomes) {
  std::string text;
  for (const auto& [what, models] : outcomes) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "<br>", what, fmt::join(models, ", "));
  }
  return text.empty() ? "none" : text;
}

// ---- the page: text between "<!-- NAME -->" and "<!-- end NAME -->" is made here ----

bool writes_table() {
  return std::getenv("QPLAN_WRITE_TABLE") != nullptr;
}

void holds_table(const std::string& name, const std::string& table) {
  const std::string begin = fmt::format("<!-- {} -->\n", name);
  const std::string end = fmt::format("<!-- end {} -->", name);
  std::string page = read_text_file(kPage);
  const std::size_t from = page.find(begin), to = page.find(end);
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  const std::size_t start = from + begin.size();
  if (writes_table()) {
    write_file_atomically(kPage, page.replace(start, to - start, table));
    return;
  }
  INFO("docs/reference/emit.md has another table; QPLAN_WRITE_TABLE=1 matrix_test writes it anew");
  CHECK(page.substr(start, to - start) == table);
}

// ---- models that files cannot name, whatever the plan ----

// The first sentence of why, as the program says it.
std::optional<std::string> why_no_files(Framework framework, const ModelSpec& model,
                                        const Json& config) {
  const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
  const ParallelPlan plan = default_plan(model, recipe_of(recipe), 16, 1024, 1024);
  const Subject subject{model, config, plan, recipe};
  // What the rules say of the model comes first; of 16 ranks of their own the rest is fine.
  for (const Infeasible& reason : why_infeasible(model, plan, recipe_of(recipe), {16, 90})) {
    return std::string(reason.rule);
  }
  if (has_files_of(framework, model)) return std::nullopt;
  const auto reasons = why_inexpressible(framework, subject, {16, 90});
  REQUIRE_FALSE(reasons.empty());
  return std::string(reasons.front().rule);
}

std::string message_of(Framework framework, const ModelSpec& model, const Json& config,
                       const std::string& rule) {
  const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
  const ParallelPlan plan = default_plan(model, recipe_of(recipe), 16, 1024, 1024);
  const Subject subject{model, config, plan, recipe};
  for (const Infeasible& reason : why_inexpressible(framework, subject, {16, 90})) {
    if (reason.rule == rule) return reason.message;
  }
  return "";
}

TEST_CASE("which built-in models a framework's files cannot name, the page says with the reason") {
  std::string table = "| framework | refuses | reason, of the first |\n|---|---|---|\n";
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    Outcomes refused;
    std::map<std::string, std::string> messages;
    for (const std::string& name : model_names()) {
      const ModelSpec model = load_model(name);
      const Json config = model_config(name);
      const auto rule = why_no_files(framework, model, config);
      if (!rule) continue;
      refused[*rule].push_back(name);
      messages.try_emplace(*rule, message_of(framework, model, config, *rule));
    }
    for (const auto& [rule, models] : refused) {
      table += fmt::format("| {} | {} | `{}`: {} |\n", word, fmt::join(models, ", "), rule,
                           messages[rule]);
    }
    if (refused.empty()) table += fmt::format("| {} | none | |\n", word);
  }
  holds_table("models", table);
}

// ---- the matrix ----

struct Best {
  std::optional<ParallelPlan> plan;
  std::string why_none;
};

Best best_plan(Framework framework, const ModelSpec& model, const Json& config,
               const HardwareProfile& hardware, std::int64_t gpus) {
  const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
  const CostModel cost(model, recipe_of(recipe), hardware, {});
  SearchSpace space;
  space.gpus = gpus;
  space.job.seq_len = std::min<std::int64_t>(4096, model.max_position_embeddings);
  space.job.global_batch_size = default_global_batch_size(gpus, space.job.seq_len);
  SearchOptions options;
  options.top = 1;
  const SearchResult result = search_written(cost, space, options, framework, config);
  if (!result.plans.empty()) return {result.plans.front().plan, ""};
  if (result.out_of_memory > 0) return {std::nullopt, "nothing fits"};
  // Every plan is refused: by what the plainest of them breaks.
  const ParallelPlan plain =
      default_plan(model, recipe_of(recipe), gpus, space.job.global_batch_size, space.job.seq_len);
  const Subject subject{model, config, plain, recipe, hardware.link.gpus_per_node};
  const auto reasons = why_inexpressible(framework, subject, {gpus, 90});
  const bool known = !reasons.empty();
  return {std::nullopt, known ? fmt::format("`{}`", reasons.front().rule) : "every plan refused"};
}

// Empty: written, read back as the same plan, and nothing said about it.
std::string complaint(Framework framework, const ModelSpec& model, const Json& config,
                      const ParallelPlan& plan, int gpus_per_node) {
  const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
  const Subject subject{model, config, plan, recipe, gpus_per_node};
  const ClusterLimits limits{plan.world(), 90};
  for (const Infeasible& reason : why_inexpressible(framework, subject, limits)) {
    return "refused: " + reason.message;
  }
  const auto files = emit(framework, subject, {"a remark"});
  static std::int64_t number = 0;
  keep(std::string(to_word(framework)), 1000 * plan.world() + number++, files, plan, model.name);
  const Checked checked = check(texts_of(files), question_of(model, config, plan.world()));
  const bool clean =
      std::none_of(checked.findings.begin(), checked.findings.end(),
                   [](const Finding& finding) { return finding.severity != Severity::note; });
  if (!clean) return findings_text(checked);
  if (checked.framework != framework) return "read as another framework's";
  const ParallelPlan wanted = canonical(plan, model, recipe);
  const ParallelPlan read = canonical(checked.plan, model, recipe);
  return read == wanted ? "" : fmt::format("read back as {}", to_string(checked.plan));
}

// Plans found for Megatron-LM by model. Megatron-Bridge's files and slime's say no more of what a
// search proposes than Megatron-LM's, so that a plan which they can say is their best as well.
using Known = std::map<std::string, ParallelPlan>;

Best known_or_best(const Known& known, Framework framework, const ModelSpec& model,
                   const Json& config, const HardwareProfile& hardware, std::int64_t gpus) {
  const auto found = known.find(model.name);
  if (found != known.end() && recipe_for(framework, RecipeKind::megatron) == RecipeKind::megatron) {
    const Subject subject{model, config, found->second, RecipeKind::megatron,
                          hardware.link.gpus_per_node};
    if (why_inexpressible(framework, subject, {gpus, 90}).empty()) return {found->second, ""};
  }
  return best_plan(framework, model, config, hardware, gpus);
}

// Each framework takes one of so many models.
void matrix(std::int64_t gpus, std::size_t one_of) {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const std::vector<std::string> names = model_names();
  Known known;
  std::string table = "| framework | written, read back clean | not written |\n|---|---|---|\n";
  std::size_t turn = 0;
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    int written = 0;
    Outcomes none;
    for (std::size_t i = turn++ % one_of; i < names.size(); i += one_of) {
      const std::string& name = names[i];
      const ModelSpec model = load_model(name);
      const Json config = model_config(name);
      if (why_no_files(framework, model, config)) continue;
      const Best best = known_or_best(known, framework, model, config, hardware, gpus);
      if (!best.plan) {
        none[best.why_none].push_back(name);
        continue;
      }
      CAPTURE(name);
      CAPTURE(word);
      CAPTURE(to_string(*best.plan));
      const std::string problem =
          complaint(framework, model, config, *best.plan, hardware.link.gpus_per_node);
      CHECK(problem == "");
      ++written;
      if (framework == Framework::megatron) known.emplace(name, *best.plan);
    }
    table += fmt::format("| {} | {} | {} |\n", word, written, listed(none));
  }
  if (one_of == 1) holds_table(fmt::format("{} GPUs", gpus), table);
}

// Where rounds are cut (sanitizers), the small cluster alone: a search of it takes a tenth.
bool is_cut() {
  return test_rounds(1000) < 1000;
}

TEST_CASE("the best plan of every model on 16 GPUs is written and read back clean") {
  matrix(16, 1);
}

TEST_CASE("the best plan of every model on 64 GPUs is written and read back clean" *
          doctest::skip(is_cut())) {
  matrix(64, 1);
}

TEST_CASE("the best plan of every model on 1024 GPUs is written and read back clean" *
          doctest::skip(is_cut())) {
  matrix(1024, writes_table() ? 1 : 3);
}

}  // namespace
}  // namespace qplan
