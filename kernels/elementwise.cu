// Sums, copies, squares and the optimizer: one pass over arrays of any length.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kSumBlocks = 1056;  // of a sum over an array: eight a multiprocessor

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>(ceil_div(threads, kThreads));
}

__device__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(bf16* y, const bf16* a, const bf16* b, const bf16* c, std::int64_t n) {
  const std::int64_t i = thread_index() * kVector;
  if (i >= n) return;
  Vector sum = load(a + i);
  const Vector other = load(b + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum.x[j] += other.x[j];
  if (c != nullptr) {
    const Vector third = load(c + i);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum.x[j] += third.x[j];
  }
  store(y + i, sum);
}

__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(float* to, const float* from, std::int64_t n) {
  const std::int64_t i = thread_index();
  if (i < n) to[i] += from[i];
}

__global__ void __launch_bounds__(kThreads)
    narrow_kernel(bf16* to, const float* from, std::int64_t n) {
  const std::int64_t i = thread_index();
  if (i < n) to[i] = __float2bfloat16_rn(from[i]);
}

// parts[block] = the sum of squares over a grid's stride; eight loads of a thread are under way.
template <class T>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(double* parts, const T* x, std::int64_t n) {
  constexpr int kLoads = 8;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  double sum = 0;
  for (std::int64_t i = thread_index(); i < n; i += kLoads * stride) {
    float few = 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const std::int64_t at = i + j * stride;
      const auto value = at < n ? static_cast<float>(x[at]) : 0.0F;
      few += value * value;
    }
    sum += static_cast<double>(few);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    total_kernel(double* total, const T* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) sum += static_cast<double>(x[i]);
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) total[0] += sum;
}

template <class T>
void squares(double* sum, const T* x, std::int64_t n, double* scratch, cudaStream_t stream) {
  const unsigned wanted = blocks_for(n);
  const unsigned blocks = wanted < kSumBlocks ? wanted : kSumBlocks;
  squares_kernel<<<blocks, kThreads, 0, stream>>>(scratch, x, n);
  total_kernel<<<1, kThreads, 0, stream>>>(sum, scratch, blocks);
}

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(bf16* working, float* main, float* moment1, float* moment2, const float* gradient,
                 std::int64_t n, AdamW s) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  float scale = 1;
  if (s.clip > 0) scale = fminf(1, s.clip / (static_cast<float>(sqrt(s.squares[0])) + 1e-6F));
  const float g = gradient[i] * scale;
  const float m = s.beta1 * moment1[i] + (1 - s.beta1) * g;
  const float v = s.beta2 * moment2[i] + (1 - s.beta2) * g * g;
  const float step = m / s.correction1 / (sqrtf(v / s.correction2) + s.epsilon);
  const float p = main[i] * (1 - s.lr * s.weight_decay) - s.lr * step;
  moment1[i] = m;
  moment2[i] = v;
  main[i] = p;
  working[i] = __float2bfloat16_rn(p);
}

}  // namespace

void add(bf16* y, const bf16* a, const bf16* b, const bf16* c, std::int64_t n,
         cudaStream_t stream) {
  add_kernel<<<blocks_for(ceil_div(n, kVector)), kThreads, 0, stream>>>(y, a, b, c, n);
}

void accumulate(float* to, const float* from, std::int64_t n, cudaStream_t stream) {
  accumulate_kernel<<<blocks_for(n), kThreads, 0, stream>>>(to, from, n);
}

void narrow(bf16* to, const float* from, std::int64_t n, cudaStream_t stream) {
  narrow_kernel<<<blocks_for(n), kThreads, 0, stream>>>(to, from, n);
}

void sum_of_squares(double* sum, const float* x, std::int64_t n, double* scratch,
                    cudaStream_t stream) {
  squares(sum, x, n, scratch, stream);
}

void sum_of_squares(double* sum, const bf16* x, std::int64_t n, double* scratch,
                    cudaStream_t stream) {
  squares(sum, x, n, scratch, stream);
}

void add_losses(double* total, const float* loss, std::int64_t n, cudaStream_t stream) {
  total_kernel<<<1, kThreads, 0, stream>>>(total, loss, n);
}

void adamw(bf16* working, float* main, float* moment1, float* moment2, const float* gradient,
           std::int64_t n, const AdamW& settings, cudaStream_t stream) {
  adamw_kernel<<<blocks_for(n), kThreads, 0, stream>>>(working, main, moment1, moment2, gradient, n,
                                                       settings);
}

}  // namespace qplan::kernels
