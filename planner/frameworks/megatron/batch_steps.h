#pragma once
// --step-batch-size-schedule "0:384 200B:768": the batch from so many tokens on (Megatron-LM
// d98e8a64, megatron/core/num_microbatches_calculator.py:502, _parse_schedule).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qplan::megatron {

inline constexpr std::string_view kBatchSteps = "--step-batch-size-schedule";

struct BatchStep {
  double from = 0;  // tokens
  std::int64_t batch = 0;
};

// In order of their tokens. Throws Error for what Megatron refuses.
std::vector<BatchStep> batch_steps(const std::string& schedule);

}  // namespace qplan::megatron
