// Compiled with -O3 -fno-math-errno (CMakeLists.txt): square roots of vectors. 30 bytes move a
// parameter, so that the host's memory is the limit.
#include "executor/host_adamw.h"

#include <cmath>
#include <cstring>

// Which of them runs the loader decides, before the thread sanitizer is there.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define QPLAN_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define QPLAN_VECTORS
#endif

namespace qplan {
namespace {

struct Factors {
  float beta1, beta2, epsilon, lr, kept, scale, correction1, correction2;
};

// To the nearest, ties to even; a number that is none may become infinite, which the loss shows.
inline std::uint16_t bf16_bits(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

QPLAN_VECTORS void step_all(Factors f, std::size_t n, const float* __restrict__ gradient,
                            float* __restrict__ main, float* __restrict__ moment1,
                            float* __restrict__ moment2, std::uint16_t* __restrict__ working) {
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * f.scale;
    const float m = f.beta1 * moment1[i] + (1 - f.beta1) * g;
    const float v = f.beta2 * moment2[i] + (1 - f.beta2) * g * g;
    const float step = m / f.correction1 / (std::sqrt(v / f.correction2) + f.epsilon);
    const float p = main[i] * f.kept - f.lr * step;
    moment1[i] = m;
    moment2[i] = v;
    main[i] = p;
    working[i] = bf16_bits(p);
  }
}

}  // namespace

void host_adamw(const math::AdamWSettings& s, std::int64_t step, double scale, const HostAdamW& a) {
  const auto t = static_cast<double>(step);
  const Factors factors{.beta1 = static_cast<float>(s.beta1),
                        .beta2 = static_cast<float>(s.beta2),
                        .epsilon = static_cast<float>(s.epsilon),
                        .lr = static_cast<float>(s.lr),
                        .kept = static_cast<float>(1 - s.lr * s.weight_decay),
                        .scale = static_cast<float>(scale),
                        .correction1 = static_cast<float>(1 - std::pow(s.beta1, t)),
                        .correction2 = static_cast<float>(1 - std::pow(s.beta2, t))};
  step_all(factors, a.n, a.gradient, a.main, a.moment1, a.moment2, a.working);
}

}  // namespace qplan
