#pragma once
// The runs of Hugging Face transformers that tests/data/transformers/make_reference.py made.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/io/weights.h"
#include "executor/math/optimizer.h"
#include "models/json.h"

namespace qplan {

// Every token goes to all experts: no choice of experts hangs on a rounding.
ModelSpec with_all_experts(ModelSpec model);

class ReferenceRun {
 public:
  // All of them: "llama", "qwen3", ...
  static std::vector<std::string> names();

  explicit ReferenceRun(const std::string& name);

  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] WeightSource weights() const;
  [[nodiscard]] std::string weights_file() const { return folder_ + "/model.safetensors"; }
  [[nodiscard]] static std::string tokens_file();
  [[nodiscard]] std::int64_t steps() const { return 3; }
  [[nodiscard]] std::int64_t seq_len() const;
  [[nodiscard]] std::int64_t global_batch_size() const;
  // global_batch_size sequences of seq_len + 1 ids.
  [[nodiscard]] std::vector<std::int32_t> batch(std::int64_t step) const;
  [[nodiscard]] math::AdamWSettings adamw() const;
  [[nodiscard]] double clip_grad() const;

  [[nodiscard]] double loss(std::int64_t step) const;       // mean cross-entropy
  [[nodiscard]] double grad_norm(std::int64_t step) const;  // before clipping
  // Largest relative L2 difference of a parameter's gradient in the first step; gradients in the
  // order of model_parameters().
  [[nodiscard]] double worst_gradient(const std::vector<std::vector<float>>& gradients) const;

  // The first step of with_all_experts(model()): its loss in fp32, and how far in bf16 the loss
  // (relative) and gradients (relative L2 of each of the checkpoint's tensors) are from fp32's.
  struct Bf16Errors {
    double loss = 0, worst_gradient = 0, mean_gradient = 0;
  };
  [[nodiscard]] double loss_with_all_experts() const;
  [[nodiscard]] Bf16Errors bf16_errors() const;
  // The same gradients' errors, both in the order of model_parameters().
  [[nodiscard]] Bf16Errors errors(const std::vector<std::vector<float>>& rounded,
                                  const std::vector<std::vector<float>>& exact) const;
  // Losses of many steps over the batches again and again ("fp32" or "bf16"); empty: not kept.
  [[nodiscard]] std::vector<double> curve(const std::string& precision) const;

 private:
  Json reference_, own_;
  std::string folder_;
  ModelSpec model_;
};

}  // namespace qplan
