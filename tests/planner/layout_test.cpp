#include "planner/layout.h"

#include <doctest/doctest.h>

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

}  // namespace
}  // namespace qplan
