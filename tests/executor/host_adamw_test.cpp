#include "executor/host_adamw.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "executor/math/rounding.h"

using namespace qplan;

// fp32 against double: a step of lr 1e-3 on weights of 0.02 is off by a rounding of either.
TEST_CASE("AdamW in vectors steps as the reference does, and makes the working copy") {
  constexpr std::size_t kParams = 1003;  // no whole number of vectors
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> main(kParams), moment1(kParams), moment2(kParams), gradient(kParams);
  for (float& x : main) x = 0.02F * normal(generator);
  std::vector<float> main_r = main, moment1_r = moment1, moment2_r = moment2;
  std::vector<std::uint16_t> working(kParams);
  const math::AdamWSettings settings{.weight_decay = 0.1};
  for (int step = 1; step <= 3; ++step) {
    for (float& x : gradient) x = 1e-3F * normal(generator);
    host_adamw(
        settings, step, 0.7,
        {gradient.data(), main.data(), moment1.data(), moment2.data(), working.data(), kParams});
    math::adamw(settings, step, gradient, 0.7, main_r, moment1_r, moment2_r);
  }
  float most = 0, drift = 0;
  int wrong = 0;
  for (std::size_t i = 0; i < kParams; ++i) {
    most = std::max(most, std::abs(main[i] - main_r[i]));
    drift = std::max(drift, std::abs(moment1[i] - moment1_r[i]));
    wrong += working[i] != math::to_bf16(main[i]);
  }
  CHECK(most < 5e-8F);
  CHECK(drift < 1e-10F);  // of 3e-4
  CHECK(wrong == 0);
}

TEST_CASE("AdamW on any number of threads steps every run as one thread steps it alone") {
  // Some that many threads share, and more of them than one thread gets.
  const std::vector<std::size_t> lengths = {200'000, 0, 1, 7, 300'001, 64, 64, 64, 65'536};
  std::size_t all = 0;
  for (const std::size_t n : lengths) all += n;
  std::mt19937 generator(2);
  std::normal_distribution<float> normal;
  struct Arrays {
    std::vector<float> gradient, main, moment1, moment2;
    std::vector<std::uint16_t> working;
  };
  Arrays first{std::vector<float>(all), std::vector<float>(all), std::vector<float>(all, 0.1F),
               std::vector<float>(all, 0.2F), std::vector<std::uint16_t>(all)};
  for (float& x : first.gradient) x = normal(generator);
  for (float& x : first.main) x = normal(generator);
  const auto runs_of = [&](Arrays& a) {
    std::vector<HostAdamW> runs;
    std::size_t at = 0;
    for (const std::size_t n : lengths) {
      runs.push_back({a.gradient.data() + at, a.main.data() + at, a.moment1.data() + at,
                      a.moment2.data() + at, a.working.data() + at, n, n % 2 == 0});
      at += n;
    }
    return runs;
  };
  const math::AdamWSettings settings{.lr = 0.1, .weight_decay = 0.1};
  Arrays expected = first;
  for (HostAdamW run : runs_of(expected)) {
    math::AdamWSettings own = settings;
    if (!run.decayed) own.weight_decay = 0;
    run.decayed = true;
    host_adamw(own, 1, 0.5, run);
  }
  for (const std::int64_t threads : {1, 2, 5, 64}) {
    CAPTURE(threads);
    Arrays stepped = first;
    host_adamw(settings, 1, 0.5, runs_of(stepped), threads);
    CHECK(stepped.main == expected.main);
    CHECK(stepped.moment1 == expected.moment1);
    CHECK(stepped.moment2 == expected.moment2);
    CHECK(stepped.working == expected.working);
  }
}
