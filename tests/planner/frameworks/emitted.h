#pragma once
// Jobs as emit() takes them, and what it wrote, for tests.

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/emit.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan::emitted {

struct Job {
  ModelSpec model;
  Json config;
  ParallelPlan plan;
  RecipeKind recipe;
  [[nodiscard]] Subject subject() const { return {model, config, plan, recipe, 8}; }
};

inline Job job(const std::string& model, const std::string& plan, Framework framework) {
  return {load_model(model), model_config(model), parse_plan(plan),
          recipe_for(framework, RecipeKind::megatron)};
}

inline std::string file(const std::vector<EmittedFile>& files, const std::string& name) {
  for (const EmittedFile& f : files) {
    if (f.name == name) return f.text;
  }
  FAIL("no file " << name);
  return "";
}

inline bool has_text(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline constexpr std::string_view kMoePlan =
    "tp4 pp2 dp8 ep8 etp1 zero1 mbs1 gbs64 seq4096 1f1b sp overlap=grad+param";

}  // namespace qplan::emitted
