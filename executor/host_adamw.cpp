// Compiled with -O3 -fno-math-errno (CMakeLists.txt): square roots of vectors. 30 bytes move a
// parameter, so that the host's memory is the limit.
#include "executor/host_adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

// Which of them runs the loader decides, before the thread sanitizer is there.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define QPLAN_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define QPLAN_VECTORS
#endif

namespace qplan {
namespace {

// Elements that are worth a thread: starting one takes as long as a step of some 10,000.
constexpr std::size_t kShare = 1 << 16;

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

HostAdamW part(const HostAdamW& all, std::size_t from, std::size_t to) {
  return {all.gradient + from, all.main + from, all.moment1 + from, all.moment2 + from,
          all.working + from,  to - from,       all.decayed};
}

}  // namespace

void host_adamw(const math::AdamWSettings& s, std::int64_t step, double scale, const HostAdamW& a) {
  const auto t = static_cast<double>(step);
  const Factors factors{.beta1 = static_cast<float>(s.beta1),
                        .beta2 = static_cast<float>(s.beta2),
                        .epsilon = static_cast<float>(s.epsilon),
                        .lr = static_cast<float>(s.lr),
                        .kept = static_cast<float>(1 - s.lr * (a.decayed ? s.weight_decay : 0)),
                        .scale = static_cast<float>(scale),
                        .correction1 = static_cast<float>(1 - std::pow(s.beta1, t)),
                        .correction2 = static_cast<float>(1 - std::pow(s.beta2, t))};
  step_all(factors, a.n, a.gradient, a.main, a.moment1, a.moment2, a.working);
}

void host_adamw(const math::AdamWSettings& settings, std::int64_t step, double scale,
                std::span<const HostAdamW> runs, std::int64_t threads) {
  std::size_t all = 0;
  for (const HostAdamW& run : runs) all += run.n;
  const std::size_t shares =
      std::clamp<std::size_t>(all / kShare, 1, static_cast<std::size_t>(threads));
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < shares; ++i) {
    workers.emplace_back([=, &settings, begin = all * i / shares, end = all * (i + 1) / shares] {
      std::size_t first = 0;  // of the run, among all elements
      for (const HostAdamW& run : runs) {
        const std::size_t from = std::clamp(begin, first, first + run.n) - first;
        const std::size_t to = std::clamp(end, first, first + run.n) - first;
        if (from < to) host_adamw(settings, step, scale, part(run, from, to));
        first += run.n;
      }
    });
  }
}

}  // namespace qplan
