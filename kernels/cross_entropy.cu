// Cross-entropy of rows of bf16 logits: one block a row, each logit read once.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kRowThreads = 512;
constexpr int kSmallThreads = 256;
constexpr float kLog2E = 1.44269504F;

// Columns that are words.
__device__ std::int64_t words_of(VocabularyShard shard, std::int64_t cols) {
  const std::int64_t words = shard.words - shard.first;
  return words < 0 ? 0 : words < cols ? words : cols;
}

// A maximum and the sum of exponentials relative to it. Without numbers: -infinity and 0.
struct LogSum {
  float maximum = -INFINITY, sum = 0;
};

__device__ LogSum merge(LogSum a, LogSum b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {};
  return {maximum, a.sum * __expf(a.maximum - maximum) + b.sum * __expf(b.maximum - maximum)};
}

// Of vectors that end before `words`, or at it, without a look at each number; -infinity behind.
__device__ Vector load_words(const bf16* x, std::int64_t c, std::int64_t words) {
  Vector v;
  if (c + kVector <= words) return load(x + c);
  if (c < words) v = load(x + c);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (c + j >= words) v.x[j] = -INFINITY;
  }
  return v;
}

// e^(x - shift), as 2 to the power of one sum of products.
__device__ float exp_behind(float x, float scaled_shift) {
  return exp2_fast(fmaf(x, kLog2E, -scaled_shift));
}

__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_kernel(float* loss, float* log_sum, const bf16* logits, VocabularyShard shard,
                         const std::int32_t* targets, bool whole, std::int64_t cols) {
  const std::int64_t row = blockIdx.x, words = words_of(shard, cols);
  const bf16* x = logits + row * cols;
  LogSum own;
  // Several reads under way, one merge for all of them.
  constexpr int kReads = 4;
  for (std::int64_t first = threadIdx.x * kVector; first < words;
       first += kReads * kRowThreads * kVector) {
    Vector v[kReads];
    LogSum part;
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      v[i] = load_words(x, first + std::int64_t{i} * kRowThreads * kVector, words);
    }
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) part.maximum = fmaxf(part.maximum, v[i].x[j]);
    }
    // Where there is no number: 0 and not -infinity, from which -infinity is no number.
    const float shift = part.maximum == -INFINITY ? 0 : part.maximum * kLog2E;
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) part.sum += exp_behind(v[i].x[j], shift);
    }
    own = merge(own, part);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    own = merge(own, {__shfl_xor_sync(0xffffffffU, own.maximum, step),
                      __shfl_xor_sync(0xffffffffU, own.sum, step)});
  }
  __shared__ LogSum warps[kRowThreads / kWarp];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < kRowThreads / kWarp; ++i) own = merge(own, warps[i]);
  const float log = own.sum > 0 ? own.maximum + logf(own.sum) : own.maximum;
  const bool predicts = targets[row] >= 0;
  const std::int64_t target = targets[row] - shard.first;
  float result = target >= 0 && target < words ? -__bfloat162float(x[target]) : 0;
  if (whole && predicts) result += log;
  loss[row] = result;
  log_sum[row] = log;
}

__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_backward_kernel(bf16* dlogits, const bf16* logits, const float* log_sum,
                                  VocabularyShard shard, const std::int32_t* targets, float scale,
                                  std::int64_t cols) {
  const std::int64_t row = blockIdx.x, words = words_of(shard, cols);
  if (targets[row] < 0) scale = 0;
  const std::int64_t target = targets[row] - shard.first;
  const float shift = log_sum[row] * kLog2E;
  for (std::int64_t c = threadIdx.x * kVector; c < cols; c += kRowThreads * kVector) {
    Vector v = load_words(logits + row * cols, c, words);
#pragma unroll
    for (int j = 0; j < kVector; ++j) v.x[j] = scale * exp_behind(v.x[j], shift);
    if (target >= c && target < c + kVector && target < words) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) v.x[j] -= c + j == target ? scale : 0;
    }
    store(dlogits + row * cols + c, v);
  }
}

__global__ void rescale_kernel(float* log_sum, const float* maximum, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSmallThreads + threadIdx.x;
  if (i < n) log_sum[i] = expf(log_sum[i] - maximum[i]);
}

__global__ void finish_kernel(float* loss, float* log_sum, const float* maximum,
                              const std::int32_t* targets, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSmallThreads + threadIdx.x;
  if (i >= n) return;
  log_sum[i] = maximum[i] + logf(log_sum[i]);
  loss[i] = targets[i] < 0 ? 0 : loss[i] + log_sum[i];
}

unsigned small_blocks(std::int64_t n) {
  return static_cast<unsigned>(ceil_div(n, kSmallThreads));
}

}  // namespace

void cross_entropy(float* loss, float* log_sum, const bf16* logits, VocabularyShard shard,
                   const std::int32_t* targets, bool whole, std::int64_t rows, std::int64_t cols,
                   cudaStream_t stream) {
  cross_entropy_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
      loss, log_sum, logits, shard, targets, whole, cols);
}

void cross_entropy_backward(bf16* dlogits, const bf16* logits, const float* log_sum,
                            VocabularyShard shard, const std::int32_t* targets, float scale,
                            std::int64_t rows, std::int64_t cols, cudaStream_t stream) {
  cross_entropy_backward_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
      dlogits, logits, log_sum, shard, targets, scale, cols);
}

void loss_rescale(float* log_sum, const float* maximum, std::int64_t n, cudaStream_t stream) {
  rescale_kernel<<<small_blocks(n), kSmallThreads, 0, stream>>>(log_sum, maximum, n);
}

void loss_finish(float* loss, float* log_sum, const float* maximum, const std::int32_t* targets,
                 std::int64_t n, cudaStream_t stream) {
  finish_kernel<<<small_blocks(n), kSmallThreads, 0, stream>>>(loss, log_sum, maximum, targets, n);
}

}  // namespace qplan::kernels
