// Activations of rows: SwiGLU of [gate | up] and its relatives, GELU, squared ReLU.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// f(gate, up) and its derivatives; plain activations take their input as `gate`.
struct Value {
  float f, by_gate, by_up;
};

struct Swiglu {
  static constexpr bool kGated = true;
  __device__ static Value of(float gate, float up) {
    const float s = sigmoid(gate), silu = gate * s;
    return {silu * up, up * s * (1 + gate * (1 - s)), silu};
  }
};

// GptOssExperts of transformers; torch.clamp passes the gradient on at the limit itself.
struct ClampedSwiglu {
  static constexpr bool kGated = true;
  static constexpr float kLimit = 7, kAlpha = 1.702F;
  __device__ static Value of(float gate, float up) {
    const float g = fminf(gate, kLimit), u = fminf(fmaxf(up, -kLimit), kLimit) + 1;
    const float s = sigmoid(kAlpha * g);
    const float through_gate = gate <= kLimit ? 1 : 0, through_up = fabsf(up) <= kLimit ? 1 : 0;
    return {g * s * u, through_gate * s * (1 + kAlpha * g * (1 - s)) * u, through_up * g * s};
  }
};

// GELU's tanh form (arXiv 1606.08415, section 2). tanh(z) = 2 sigmoid(2 z) - 1.
struct GeluTanh {
  static constexpr bool kGated = false;
  static constexpr float kSqrt2OverPi = 0.7978845608F, kCubic = 0.044715F;
  __device__ static Value of(float x, float) {
    const float t = 2 * sigmoid(2 * kSqrt2OverPi * (x + kCubic * x * x * x)) - 1;
    const float inner = kSqrt2OverPi * (1 + 3 * kCubic * x * x);
    return {0.5F * x * (1 + t), 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * inner, 0};
  }
};

struct SquaredRelu {
  static constexpr bool kGated = false;
  __device__ static Value of(float x, float) {
    const float positive = fmaxf(x, 0);
    return {positive * positive, 2 * positive, 0};
  }
};

// Numbers of an input's row.
template <class F>
__device__ std::int64_t stride_of(std::int64_t width) {
  return F::kGated ? 2 * width : width;
}

template <class F>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(bf16* y, const bf16* x, const float* scale, std::int64_t rows,
                    std::int64_t width) {
  const std::int64_t i = thread_index() * kVector;
  const std::int64_t row = i / width, c = i % width;
  if (row >= rows) return;
  const bf16* from = x + row * stride_of<F>(width) + c;
  Vector gate = load(from), up = {};
  if (F::kGated) up = load(from + width);
  const float by = scale != nullptr ? scale[row] : 1;
#pragma unroll
  for (int j = 0; j < kVector; ++j) gate.x[j] = by * F::of(gate.x[j], up.x[j]).f;
  store(y + i, gate);
}

// Gradients of one vector; returns its part of the scale's gradient.
template <class F>
__device__ float backward(bf16* dx, const bf16* x, const bf16* dy, float scale,
                          std::int64_t width) {
  Vector gate = load(x), up = {};
  if (F::kGated) up = load(x + width);
  const Vector out = load(dy);
  float dscale = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const Value v = F::of(gate.x[j], up.x[j]);
    const float g = out.x[j] * scale;
    dscale += out.x[j] * v.f;
    gate.x[j] = g * v.by_gate;
    up.x[j] = g * v.by_up;
  }
  store(dx, gate);
  if (F::kGated) store(dx + width, up);
  return dscale;
}

template <class F>
__global__ void __launch_bounds__(kThreads)
    activate_backward_kernel(bf16* dx, const bf16* x, const bf16* dy, std::int64_t rows,
                             std::int64_t width) {
  const std::int64_t i = thread_index() * kVector;
  const std::int64_t row = i / width, c = i % width;
  if (row >= rows) return;
  const std::int64_t at = row * stride_of<F>(width) + c;
  backward<F>(dx + at, x + at, dy + i, 1, width);
}

// One warp a row, for the sum over its columns: experts' rows are short.
template <class F>
__global__ void __launch_bounds__(kThreads)
    scaled_backward_kernel(bf16* dx, float* dscale, const bf16* x, const bf16* dy,
                           const float* scale, std::int64_t rows, std::int64_t width) {
  const std::int64_t row = thread_index() / kWarp;
  if (row >= rows) return;
  const float by = scale[row];
  float sum = 0;
#pragma unroll 2
  for (std::int64_t c = threadIdx.x % kWarp * kVector; c < width; c += kWarp * kVector) {
    const std::int64_t at = row * stride_of<F>(width) + c;
    sum += backward<F>(dx + at, x + at, dy + row * width + c, by, width);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dscale[row] = sum;
}

// Calls launch(f) with the activation as a type.
template <class Launch>
void with_activation(Activation kind, Launch launch) {
  switch (kind) {
    case Activation::swiglu:
      return launch(Swiglu{});
    case Activation::swiglu_clamped:
      return launch(ClampedSwiglu{});
    case Activation::gelu_tanh:
      return launch(GeluTanh{});
    case Activation::relu2:
      return launch(SquaredRelu{});
  }
}

}  // namespace

void activate(Activation kind, bf16* y, const bf16* x, const float* scale, std::int64_t rows,
              std::int64_t width, cudaStream_t stream) {
  const auto blocks = blocks_for(rows * width / kVector);
  with_activation(kind, [&](auto f) {
    activate_kernel<decltype(f)><<<blocks, kThreads, 0, stream>>>(y, x, scale, rows, width);
  });
}

void activate_backward(Activation kind, bf16* dx, float* dscale, const bf16* x, const bf16* dy,
                       const float* scale, std::int64_t rows, std::int64_t width,
                       cudaStream_t stream) {
  with_activation(kind, [&](auto f) {
    using F = decltype(f);
    if (scale == nullptr) {
      const auto blocks = blocks_for(rows * width / kVector);
      activate_backward_kernel<F><<<blocks, kThreads, 0, stream>>>(dx, x, dy, rows, width);
    } else {
      const auto blocks = blocks_for(rows * kWarp);
      scaled_backward_kernel<F>
          <<<blocks, kThreads, 0, stream>>>(dx, dscale, x, dy, scale, rows, width);
    }
  });
}

}  // namespace qplan::kernels
