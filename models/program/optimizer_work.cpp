// An optimizer's step: bytes that it moves and keeps, kernels, and Muon's products.

#include <algorithm>
#include <cmath>

#include "models/program/work.h"

namespace qplan {

Bytes memory_traffic(const Update& w) {
  const double params = as_double(w.params);
  // In and out of the flat array, into fp32, and read there.
  const double flat = w.flattens ? 3 * size_of(w.grad) + 2 * size_of(DType::fp32) : 0;
  const Bytes once =
      Bytes(params * (size_of(w.grad) + 2 * size_of(w.main_params) + size_of(w.working) + flat)) +
      2 * state_bytes(w);
  if (w.optimizer == OptimizerKind::adafactor) {
    // Passes of transformers' Adafactor (optimization.py) over fp32 numbers beside the gradient and
    // the weight itself: a gradient in fp32, its square and that plus epsilon (5 words), means of
    // rows and of columns (2), their product, times the gradient (4), its mean square and the
    // scaling by it (3), by the learning rate (2), minus, and the weight's own mean square (3).
    constexpr double kWords = 5 + 2 + 4 + 3 + 2 + 3;
    return once + Bytes(params * kWords * size_of(DType::fp32));
  }
  // torch.optim.AdamW(foreach=True) walks the lists for decay, lerp, mul, addcmul, sqrt, div, add
  // and addcdiv: 2.7 times the fused kernel's time in fp32 (H200,
  // docs/evidence/archive/issue3-h200.json). Of other optimizers assumed.
  constexpr double kForeach = 2.7;
  return once * (w.fused ? 1 : kForeach);
}

// Gradient and momentum in, momentum and what is orthogonalised out; that in again, its norm and
// the division by it; what the iterations give onto master weight and working copy.
Bytes memory_traffic(const Muon& w) {
  const double own = size_of(w.grad) + 2 * size_of(w.moments) + 2 * size_of(w.main_params) +
                     size_of(w.working) + 2 * size_of(DType::fp32);
  const double whole = 3 * size_of(DType::fp32) + 2 * size_of(DType::bf16);
  return Bytes(as_double(w.params) * own +
               as_double(w.rows) * as_double(w.cols) * w.matrices * whole);
}

// A fused step (torch's _fused_adamw_, DeepSpeed's CPUAdam in csrc/adam/cpu_adam_impl.cpp, our own)
// reads the gradient and reads and writes weight and moments. torch's loop over tensors, which is
// its default on a CPU (_single_tensor_adamw in torch/optim/adam.py), takes eight operations: decay
// (the weight in and out), lerp (a moment in and out, the gradient), mul and addcmul (2 and 2, the
// gradient), a root, its quotient and its sum with epsilon (2 each) and addcdiv (the weight in and
// out, 2 of moments' size).
Bytes memory_traffic(const HostAdam& w) {
  const double main = size_of(w.main_params), moment = size_of(w.moments), grad = size_of(w.grad);
  const double step = w.fused ? grad + 2 * main + 4 * moment : 2 * grad + 4 * main + 14 * moment;
  const double copy =
      w.working == w.main_params ? 0 : size_of(w.working) + (w.casts_apart ? main : 0);
  return Bytes(as_double(w.params) * (step + copy + w.clipping * grad));
}

Bytes state_bytes(const HostAdam& w) {
  return Bytes(as_double(w.params) * (size_of(w.main_params) + 2 * size_of(w.moments)));
}

Bytes state_bytes(const Update& w) {
  const double params = as_double(w.params), moments = params * size_of(w.moments);
  switch (w.optimizer) {
    case OptimizerKind::adam:
      return Bytes(2 * moments);
    case OptimizerKind::adam8bit:
      // A byte each, and an fp32 scale for each 256 (bitsandbytes' blockwise states, block size
      // 256 since 0.45).
      return Bytes(2 * (params + std::ceil(params / 256) * size_of(DType::fp32)));
    case OptimizerKind::adafactor:
      return Bytes(as_double(w.factors) * size_of(DType::fp32));
    case OptimizerKind::sgd:
    case OptimizerKind::muon:
    case OptimizerKind::lion:
      return Bytes(moments);
  }
  return {};
}

Bytes state_bytes(const Muon& w) {
  return Bytes(as_double(w.params) * size_of(w.moments));
}

// Adafactor's torch operations on one tensor: 20 (transformers, optimization.py).
double kernel_count(const Update& w) {
  constexpr double kAdafactor = 20;
  return as_double(w.tensors) * (w.optimizer == OptimizerKind::adafactor ? kAdafactor : 1);
}

// Of each matrix its iterations' products, and decay, two interpolations, norm, division, cast and
// addition.
double kernel_count(const Muon& w) {
  return w.matrices * (3 * kNewtonSchulzSteps + 7);
}

std::array<Gemm, 3> newton_schulz_products(const Muon& w) {
  const std::int64_t small = std::min(w.rows, w.cols), large = std::max(w.rows, w.cols);
  return {Gemm{.m = small, .n = small, .k = large}, Gemm{.m = small, .n = small, .k = small},
          Gemm{.m = small, .n = large, .k = small}};
}

Bytes newton_schulz_bytes(const Muon& w) {
  const double small = as_double(std::min(w.rows, w.cols));
  const double large = as_double(std::max(w.rows, w.cols));
  return Bytes(size_of(DType::bf16) * (2 * small * large + 2 * small * small));
}

}  // namespace qplan
