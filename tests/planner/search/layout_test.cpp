#include "planner/search/layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "models/error.h"

namespace qplan {
namespace {

using Layers = std::vector<int>;

ModelSpec decoder(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t vocab) {
  ModelSpec m;
  m.num_layers = layers;
  m.hidden_size = hidden;
  m.intermediate_size = ffn;
  m.vocab_size = vocab;
  m.layers.resize(static_cast<std::size_t>(layers));
  return m;
}

ParallelPlan pipeline(int pp) {
  ParallelPlan plan;
  plan.pp = pp;
  return plan;
}

TEST_CASE("nanotron gives the stage of a large output projection fewer layers") {
  // A layer costs 4 h^2 + 3 h x 4h = 16 h^2 with h = 2048, and 131072 words 64 h^2: four layers.
  const ModelSpec m = decoder(16, 2048, 8192, 131072);
  CHECK(framework_layout(m, pipeline(2), RecipeKind::nanotron) == Layers{11, 5});
  CHECK(framework_layout(m, pipeline(4), RecipeKind::nanotron) == Layers{6, 5, 5, 0});
  CHECK(framework_layout(m, pipeline(8), RecipeKind::nanotron) == Layers{3, 3, 2, 3, 2, 3, 0, 0});
  CHECK(framework_layout(m, pipeline(32), RecipeKind::nanotron).empty());
}

TEST_CASE("the others place layers evenly, and count embedding and loss where that fails") {
  const ModelSpec m = decoder(126, 1024, 4096, 32000);
  CHECK(framework_layout(m, pipeline(6), RecipeKind::megatron).empty());
  CHECK(framework_layout(m, pipeline(8), RecipeKind::megatron) ==
        Layers{15, 16, 16, 16, 16, 16, 16, 15});
  ParallelPlan chunks = pipeline(16);
  chunks.vpp = 8;
  chunks.schedule = ScheduleKind::interleaved;
  // 126 layers, embedding and loss fill 128 stages: the first and the last hold no layer.
  const Layers layout = framework_layout(m, chunks, RecipeKind::megatron);
  REQUIRE(layout.size() == 128);
  CHECK(layout.front() == 0);
  CHECK(layout.back() == 0);
  CHECK(std::accumulate(layout.begin(), layout.end(), 0) == 126);
}

TEST_CASE("Megatron's layout strings repeat letters and groups") {
  CHECK(parse_megatron_layout("Et*4|(tttt|)*2tmL") == Layers{4, 4, 4, 1});
  CHECK(parse_megatron_layout("Et*3|(tt|)*3,m|L") == Layers{3, 2, 2, 2, 0, 0});
  CHECK(parse_megatron_layout("EttL") == Layers{2});
  for (const char* wrong : {"Ex", "E(t", "Et)", "t*", "t*99999999", "((t*9999)*9999)*9999"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_megatron_layout(wrong), Error);
  }
}

// The least that the busiest rank can have to do, by trying all splits of `layers` over the ranks.
double least_possible(std::int64_t layers, std::size_t from, std::size_t ranks, EndWork ends) {
  const auto work = [&](std::int64_t n) {
    return static_cast<double>(n) + (from == 0 ? ends.first : 0) +
           (from + 1 == ranks ? ends.last : 0);
  };
  if (from + 1 == ranks) return work(layers);
  double best = 1e9;
  for (std::int64_t n = from == 0 ? 0 : 1; n <= layers; ++n) {
    best = std::min(best, std::max(work(n), least_possible(layers - n, from + 1, ranks, ends)));
  }
  return best;
}

TEST_CASE("a balanced layout leaves the busiest rank as little to do as any layout") {
  for (int layers = 4; layers <= 13; ++layers) {
    for (int pp = 2; pp <= 4; ++pp) {
      for (const EndWork& ends : {EndWork{0, 0}, {0.1, 2.2}, {0.4, 0.7}, {1.5, 5.5}}) {
        CAPTURE(layers);
        CAPTURE(pp);
        CAPTURE(ends.last);
        const Layers layout = balanced_layout(layers, pipeline(pp), ends);
        REQUIRE(layout.size() == static_cast<std::size_t>(pp));
        CHECK(std::accumulate(layout.begin(), layout.end(), 0) == layers);
        double busiest = 0;
        for (std::size_t i = 0; i < layout.size(); ++i) {
          busiest = std::max(busiest, layout[i] + (i == 0 ? ends.first : 0) +
                                          (i + 1 == layout.size() ? ends.last : 0));
          CHECK((layout[i] > 0 || i == 0 || i + 1 == layout.size()));
        }
        CHECK(busiest ==
              doctest::Approx(least_possible(layers, 0, static_cast<std::size_t>(pp), ends)));
      }
    }
  }
}

TEST_CASE("chunks of the head's rank give their layers away, its last chunk first") {
  ParallelPlan plan = pipeline(4);
  plan.schedule = ScheduleKind::interleaved;
  plan.vpp = 4;
  // 50.2 layers' work on 4 ranks; the head's counts 2.2 on the last chunk.
  CHECK(balanced_layout(48, plan, {0, 2.2}) ==
        Layers{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 1});
  CHECK(balanced_layout(13, plan, {0, 2.2}).empty());
}

}  // namespace
}  // namespace qplan
