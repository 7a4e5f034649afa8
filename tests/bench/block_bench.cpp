// How long does a block take to build, to price and to fold? And how fast is the replay?
#include <benchmark/benchmark.h>

#include "costmodel/fold/block_cost.h"
#include "costmodel/fold/replay.h"

namespace qplan {
namespace {

struct Layer {
  ModelSpec model = load_model("qwen3-30b-a3b");
  HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::megatron);
  ParallelPlan plan = parse_plan("tp2 ep8 dp8 zero1 gbs16 seq4096 sp");
  RankGrid grid{plan, 8};
  BlockShape shape = base_shape(model, plan, recipe, 1);
  CostContext context{&hardware, &grid, &recipe, std::nullopt};

  Layer() { shape.layer = model.layers.front(); }
};

void build(benchmark::State& state) {
  const Layer layer;
  for (auto _ : state) {
    benchmark::DoNotOptimize(build_block(layer.model, layer.recipe, layer.shape).forward.data());
  }
}
BENCHMARK(build)->Unit(benchmark::kMicrosecond);

void price_and_fold(benchmark::State& state) {
  const Layer layer;
  const Block block = build_block(layer.model, layer.recipe, layer.shape);
  for (auto _ : state) {
    for (const Part part : {Part::forward, Part::backward}) {
      const PricedPart priced = price_part(block, part, layer.context);
      benchmark::DoNotOptimize(delay_of(priced.ops, priced.durations).data());
    }
  }
}
BENCHMARK(price_and_fold)->Unit(benchmark::kMicrosecond);

void memory_fold(benchmark::State& state) {
  const Layer layer;
  const Block block = build_block(layer.model, layer.recipe, layer.shape);
  for (auto _ : state)
    benchmark::DoNotOptimize(memory_of(block, BackwardForm::whole).forward.net.value());
}
BENCHMARK(memory_fold)->Unit(benchmark::kMicrosecond);

void multiply_delays(benchmark::State& state) {
  const Layer layer;
  const Block block = build_block(layer.model, layer.recipe, layer.shape);
  const PricedPart priced = price_part(block, Part::forward, layer.context);
  const StreamDelay delay = delay_of(priced.ops, priced.durations);
  for (auto _ : state) {
    const StreamDelay product = then(delay, delay);
    benchmark::DoNotOptimize(product.data());
  }
}
BENCHMARK(multiply_delays)->Unit(benchmark::kNanosecond);

void replayed(benchmark::State& state) {
  const Layer layer;
  const CostModel cost(layer.model, layer.recipe, layer.hardware, {});
  const ParallelPlan plan = parse_plan("tp2 pp4 ep8 dp8 zero1 gbs128 seq4096 sp");
  double ops = 0;
  for (auto _ : state) ops += static_cast<double>(replay(cost, plan).ops);
  state.counters["ops/s"] = benchmark::Counter(ops, benchmark::Counter::kIsRate);
}
BENCHMARK(replayed)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace qplan
