#pragma once
// A model's training step in one straight line: no program, no plan, no ranks, only executor/math.
// What the interpreter is compared with, and what is compared with Hugging Face transformers.

#include <cstdint>
#include <span>
#include <vector>

#include "executor/io/weights.h"
#include "models/parameters.h"
#include "tests/executor/plain/part.h"

namespace qplan {

class PlainModel {
 public:
  PlainModel(const ModelSpec& model, const WeightSource& weights, plain::Capacity capacity = {});

  // Mean cross-entropy over sequences of seq_len + 1 ids each; gradients() become its gradients.
  double step(std::span<const std::int32_t> ids, std::int64_t seq_len);

  // Of the last step's multi-token prediction: mean cross-entropy over the tokens that have one.
  // mtp_loss_weight times its gradients is part of gradients().
  [[nodiscard]] double mtp_loss() const { return mtp_loss_; }

  [[nodiscard]] const std::vector<ModelParameter>& parameters() const { return parameters_; }
  // Row-major numbers of each parameter, in the order of parameters().
  [[nodiscard]] std::vector<std::vector<float>>& weights() { return weights_; }
  [[nodiscard]] const std::vector<std::vector<float>>& gradients() const { return gradients_; }

 private:
  ModelSpec model_;
  std::vector<ModelParameter> parameters_;
  std::vector<std::vector<float>> weights_, gradients_;
  plain::Capacity capacity_;
  double mtp_loss_ = 0;
};

}  // namespace qplan
