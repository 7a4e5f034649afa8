// Weights from a seed, on the device: Philox4x32-10 (Salmon et al., SC'11), then Box and Muller.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr std::uint32_t kWeightsStream = 1;  // executor/io/philox.h's RandomStream::weights
constexpr double kDeviation = 0.02, kTwoPi = 6.283185307179586;

__device__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t a = 0xD2511F53U, b = 0xCD9E8D57U;
    counter = {__umulhi(b, counter.z) ^ counter.y ^ key.x, b * counter.z,
               __umulhi(a, counter.x) ^ counter.w ^ key.y, a * counter.x};
    key.x += 0x9E3779B9U;
    key.y += 0xBB67AE85U;
  }
  return counter;
}

__global__ void __launch_bounds__(kThreads)
    draw_kernel(float* main, bf16* working, SeededPart p, std::int64_t begin, std::int64_t n) {
  const std::int64_t i = thread_index();
  if (i >= n) return;
  const std::int64_t at = begin + i;
  const std::int64_t element =
      (p.first_row + at / p.cols) * p.whole_cols + p.first_col + at % p.cols;
  const auto index = static_cast<std::uint64_t>(element);
  const uint4 block =
      philox({static_cast<std::uint32_t>(index / 4), static_cast<std::uint32_t>(index / 4 >> 32),
              p.parameter, kWeightsStream},
             {static_cast<std::uint32_t>(p.seed), static_cast<std::uint32_t>(p.seed >> 32)});
  const bool second = index % 4 >= 2;
  const double u = ((second ? block.z : block.x) + 0.5) * 0x1p-32;
  const double v = ((second ? block.w : block.y) + 0.5) * 0x1p-32;
  const double radius = sqrt(-2 * log(u)), angle = kTwoPi * v;
  const double normal = radius * (index % 2 == 0 ? cos(angle) : sin(angle));
  const float weight = p.centre + static_cast<float>(kDeviation * normal);
  if (main != nullptr) main[i] = weight;
  if (working != nullptr) working[i] = __float2bfloat16_rn(weight);
}

}  // namespace

void draw_weights(float* main, bf16* working, const SeededPart& part, std::int64_t begin,
                  std::int64_t n, cudaStream_t stream) {
  if (n <= 0) return;
  draw_kernel<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, stream>>>(
      main, working, part, begin, n);
}

}  // namespace qplan::kernels
