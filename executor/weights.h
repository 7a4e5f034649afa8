#pragma once
// Between the parameters of a model and what one rank holds of them.

#include <cstdint>
#include <functional>
#include <vector>

#include "models/model_spec.h"
#include "models/parameters.h"
#include "models/program/rank_program.h"
#include "models/program/step_program.h"

namespace qplan {

// A rank's place in the groups that split parameters.
struct ShardPlace {
  int tp = 0, etp = 0, ep = 0;
};

// `count` neighbouring elements of a packed parameter and of the model's: place `local` in the
// block's packed weights, place `global` in parameter `index` of model_parameters(), row-major.
// Index -1: padding, which is 0 and stays 0.
struct ParameterRun {
  std::int64_t local = 0, count = 0;
  std::int64_t index = 0, global = 0;
};

// Finds the model's parameters by what they are.
class ParameterIndex {
 public:
  explicit ParameterIndex(const ModelSpec& model);
  [[nodiscard]] std::int64_t find(ModelPart part, std::int64_t layer, ParameterRole role, bool bias,
                                  std::int64_t copy) const;
  [[nodiscard]] const std::vector<ModelParameter>& all() const { return all_; }

 private:
  std::vector<ModelParameter> all_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> by_key_;  // sorted
};

// Every element of a packed parameter of a block, in runs.
void for_each_run(const ParameterIndex& parameters, ModelPart part, std::int64_t layer,
                  const PackedParameter& packed, const ShardPlace& place,
                  const std::function<void(const ParameterRun&)>& visit);

}  // namespace qplan
