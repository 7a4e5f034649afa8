#pragma once
// Between the parameters of a model and what one rank holds of them.

#include <cstdint>
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

// A matrix of a packed parameter, and where it is in the model's: rows and columns from (first_row,
// first_col) on of parameter `index` of model_parameters(). Padding rows of the vocabulary are left
// out: they are 0 and stay 0.
struct ParameterPiece {
  std::int64_t local = 0;  // elements from the begin of the block's packed weights, row-major
  std::int64_t rows = 0, cols = 0;
  std::int64_t index = 0, first_row = 0, first_col = 0;
};

// Finds the model's parameters by what they are.
class ParameterIndex {
 public:
  explicit ParameterIndex(const ModelSpec& model, const Lora& lora = {});
  // The one of the same role, bias or not, of an adapter or not.
  [[nodiscard]] std::int64_t find(ModelPart part, std::int64_t layer, const Parameter& parameter,
                                  std::int64_t copy) const;
  [[nodiscard]] const std::vector<ModelParameter>& all() const { return all_; }

 private:
  std::vector<ModelParameter> all_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> by_key_;  // sorted
};

// One piece for each copy (expert) that the rank holds, or for each part of what is stacked in it.
std::vector<ParameterPiece> pieces_of(const ParameterIndex& parameters, ModelPart part,
                                      std::int64_t layer, const PackedParameter& packed,
                                      const ShardPlace& place);

}  // namespace qplan
