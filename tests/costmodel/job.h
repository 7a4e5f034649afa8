#pragma once
// A built-in model on a built-in machine, to be asked for prices.

#include <string>

#include "costmodel/evaluate.h"
#include "tests/costmodel/machine.h"

namespace qplan {

struct Job {
  ModelSpec model;
  HardwareProfile hardware;
  CostModel cost;

  explicit Job(const std::string& name, const std::string& machine = "h100-sxm",
               RecipeKind recipe = RecipeKind::megatron)
      : model(load_model(name)),
        hardware(load_hardware(machine)),
        cost(model, recipe_of(recipe), hardware, {}) {}

  [[nodiscard]] double seconds(const std::string& line) const {
    return cost.step_time(parse_plan(line)).value();
  }
  [[nodiscard]] const StageMemory worst(const std::string& line) const {
    return cost.memory(parse_plan(line)).worst_stage();
  }
};

}  // namespace qplan
