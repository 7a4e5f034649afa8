// Sums, copies, squares and the optimizer: one pass over arrays of any length.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kSumBlocks = 1056;  // of a sum over an array: eight a multiprocessor

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

// Four at once.
__global__ void __launch_bounds__(kThreads)
    accumulate_fours_kernel(float4* to, const float4* from, std::int64_t n) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  const float4 a = to[i], b = from[i];
  to[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
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

// One number of each array, in place.
__device__ void step_adamw(bf16& working, float& main, float& moment1, float& moment2,
                           float gradient, float scale, float decay, const AdamW& s) {
  const float g = gradient * scale;
  moment1 = s.beta1 * moment1 + (1 - s.beta1) * g;
  moment2 = s.beta2 * moment2 + (1 - s.beta2) * g * g;
  const float step = moment1 / s.correction1 / (sqrtf(moment2 / s.correction2) + s.epsilon);
  main = main * (1 - s.lr * decay) - s.lr * step;
  working = __float2bfloat16_rn(main);
}

// The weight decay of element i, which is in run `run` or one behind it.
__device__ float decay_of(const AdamWRuns& runs, const AdamW& s, std::int64_t i, int& run) {
  while (i >= runs.ends[run]) ++run;
  return (runs.decayed >> run & 1) != 0 ? s.weight_decay : 0;
}

// A thread has `Width` neighbours: four where all arrays are aligned for it.
template <int Width>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(bf16* working, float* main, float* moment1, float* moment2, const float* gradient,
                 const __grid_constant__ AdamWRuns runs, AdamW s) {
  const std::int64_t i = thread_index() * Width, n = runs.ends[runs.count - 1];
  if (i >= n) return;
  float scale = 1;
  if (s.clip > 0) scale = fminf(1, s.clip / (static_cast<float>(sqrt(s.squares[0])) + 1e-6F));
  int run = 0;
  if (Width == 4 && i + Width <= n) {
    float4 p = *reinterpret_cast<const float4*>(main + i);
    float4 m = *reinterpret_cast<const float4*>(moment1 + i);
    float4 v = *reinterpret_cast<const float4*>(moment2 + i);
    const float4 g = *reinterpret_cast<const float4*>(gradient + i);
    // Looked up while the numbers come, and before the four steps, which go on beside each other.
    const float decay = decay_of(runs, s, i, run);
    if (i + Width <= runs.ends[run]) {
      alignas(8) bf16 w[4];
      step_adamw(w[0], p.x, m.x, v.x, g.x, scale, decay, s);
      step_adamw(w[1], p.y, m.y, v.y, g.y, scale, decay, s);
      step_adamw(w[2], p.z, m.z, v.z, g.z, scale, decay, s);
      step_adamw(w[3], p.w, m.w, v.w, g.w, scale, decay, s);
      *reinterpret_cast<float4*>(main + i) = p;
      *reinterpret_cast<float4*>(moment1 + i) = m;
      *reinterpret_cast<float4*>(moment2 + i) = v;
      *reinterpret_cast<uint2*>(working + i) = *reinterpret_cast<const uint2*>(w);
      return;
    }
  }
  for (std::int64_t j = i; j < i + Width && j < n; ++j) {
    step_adamw(working[j], main[j], moment1[j], moment2[j], gradient[j], scale,
               decay_of(runs, s, j, run), s);
  }
}

bool aligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

}  // namespace

void add(bf16* y, const bf16* a, const bf16* b, const bf16* c, std::int64_t n,
         cudaStream_t stream) {
  add_kernel<<<blocks_for(ceil_div(n, kVector)), kThreads, 0, stream>>>(y, a, b, c, n);
}

void accumulate(float* to, const float* from, std::int64_t n, cudaStream_t stream) {
  // Shards begin anywhere.
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(float4) == 0 &&
                       reinterpret_cast<std::uintptr_t>(from) % sizeof(float4) == 0;
  const std::int64_t fours = aligned ? n / 4 : 0, rest = n - 4 * fours;
  if (fours > 0) {
    accumulate_fours_kernel<<<blocks_for(fours), kThreads, 0, stream>>>(
        reinterpret_cast<float4*>(to), reinterpret_cast<const float4*>(from), fours);
  }
  if (rest > 0) {
    accumulate_kernel<<<blocks_for(rest), kThreads, 0, stream>>>(to + 4 * fours, from + 4 * fours,
                                                                 rest);
  }
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
  AdamWRuns all;
  all.ends[0] = n;
  all.decayed = 1;
  all.count = 1;
  adamw(working, main, moment1, moment2, gradient, all, settings, stream);
}

void adamw(bf16* working, float* main, float* moment1, float* moment2, const float* gradient,
           const AdamWRuns& runs, const AdamW& settings, cudaStream_t stream) {
  const std::int64_t n = runs.ends[runs.count - 1];
  const bool wide = aligned(working, 8) && aligned(main, 16) && aligned(moment1, 16) &&
                    aligned(moment2, 16) && aligned(gradient, 16);
  const std::int64_t threads = wide ? ceil_div(n, 4) : n;
  (wide ? adamw_kernel<4> : adamw_kernel<1>)<<<blocks_for(threads), kThreads, 0, stream>>>(
      working, main, moment1, moment2, gradient, runs, settings);
}

}  // namespace qplan::kernels
