#include "costmodel/fold/block_cost.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "costmodel/evaluate.h"
#include "costmodel/fold/attention_choice.h"
#include "costmodel/fold/pace.h"
#include "costmodel/fold/replay.h"
#include "tests/costmodel/machine.h"

using namespace qplan;

namespace {

constexpr Slowdown kBeside{.compute = 1.2, .comm = 1.5};

Op compute_op(StreamSet after = {}) {
  return {.work = Gemm{.m = 64, .n = 64, .k = 64}, .stream = Stream::compute, .after = after};
}

Op comm_op(StreamSet after = only(Stream::compute)) {
  return {.work = Collective{CollectiveKind::all_gather, Axis::tp, Bytes(1024)},
          .stream = Stream::model_comm,
          .after = after};
}

std::vector<Duration> stretched(const OpList& ops, std::vector<double> seconds) {
  std::vector<Duration> durations;
  for (const double s : seconds) durations.push_back({Seconds(s), Seconds(0)});
  stretch(ops, durations, std::vector<Slowdown>(ops.size(), kBeside));
  return durations;
}

struct Priced {
  ModelSpec model = load_model("llama3-8b");
  HardwareProfile hardware = load_hardware("h100-sxm");
  ParallelPlan plan = parse_plan("tp8 gbs8 seq4096 sp");
  RankGrid grid{plan, 8};
  CostContext context{&hardware, &grid, &recipe_of(RecipeKind::megatron), std::nullopt};
  Block block = build_block(model, *context.recipe, layer());

  [[nodiscard]] BlockShape layer() const {
    BlockShape s = base_shape(model, plan, *context.recipe, 1);
    s.layer = model.layers.front();
    return s;
  }
};

double compute_clock(const OpList& ops, const std::vector<Duration>& durations) {
  return apply(delay_of(ops, durations), clocks_at_zero())(index(Stream::compute))
      .seconds()
      .value();
}

}  // namespace

TEST_CASE("a grouped product is priced by the experts that have rows") {
  Priced p;
  const Op op{.work = GroupedGemm{.groups = 128, .rows = 32768, .n = 1536, .k = 2048}};
  Op fewer = op;
  std::get<GroupedGemm>(fewer.work).groups = 32;
  const Seconds even = price_of(op, p.context).time;
  const Seconds of_fewer = price_of(fewer, p.context).time;
  p.context.active_experts = 0.25;
  CHECK(price_of(op, p.context).time.value() == of_fewer.value());
  CHECK(of_fewer < even);
  const JobFacts facts{.active_experts = 0.25};
  CHECK(routed_share(parse_plan("gbs8 seq64 routing=natural"), facts) == 0.25);
  CHECK(routed_share(parse_plan("gbs8 seq64"), facts) == 1);  // tokens are dealt out
}

TEST_CASE("products wait for the slowest of many GPUs, memory-bound kernels do not") {
  Priced p;
  const SpeedSpread& spread = p.hardware.gpu.speed_spread;
  CHECK(slowest_of(8, spread) == 1);
  CHECK(slowest_of(1, spread) == doctest::Approx(1 - 0.015 * 1.424));  // anyone of eight
  // Measured on one or two GPUs, a profile knows the slowest of so many; of 8 draws the largest is
  // expected 1.42 sigmas up, of two 0.56 (Harter's table).
  CHECK(slowest_of(1, {.sigma = 0.015, .measured_ranks = 1}) == 1);
  CHECK(slowest_of(2, {.sigma = 0.015, .measured_ranks = 1}) == doctest::Approx(1.00846));
  CHECK(slowest_of(8, {.sigma = 0.015, .measured_ranks = 2}) ==
        doctest::Approx(1 + 0.015 * (1.42 - 0.564)).epsilon(0.002));
  // The largest of 512 normal draws is expected 3.04 sigmas up, of 8 draws 1.42: 1.5% each.
  CHECK(slowest_of(512, spread) == doctest::Approx(1 + 0.015 * (3.04 - 1.42)).epsilon(0.002));
  const ParallelPlan wide = parse_plan("tp8 dp64 gbs64 seq4096 sp");
  const RankGrid many(wide, 8);
  CostContext of_many = p.context;
  of_many.grid = &many;
  const Op copy{.work = Rowwise{.kind = RowwiseKind::copy, .rows = 4096, .cols = 4096}};
  CHECK(price_of(compute_op(), of_many).time.value() ==
        doctest::Approx(price_of(compute_op(), p.context).time.value() * slowest_of(512, spread)));
  CHECK(price_of(copy, of_many).time.value() == price_of(copy, p.context).time.value());
}

TEST_CASE("ranks that meet in every layer wait for each other, the longer the more they are") {
  const auto grid_of = [](const char* plan) { return RankGrid(parse_plan(plan), 8); };
  CHECK(meeting_ranks(grid_of("dp8 zero3 gbs64 seq4096")) == 1);
  CHECK(meeting_ranks(grid_of("tp2 cp2 dp2 gbs64 seq4096 sp")) == 4);
  CHECK(meeting_ranks(grid_of("tp2 dp4 ep8 etp1 gbs64 seq4096 sp")) == 8);
  CHECK(meeting_ranks(grid_of("pp2 dp4 ep4 gbs64 seq4096")) == 8);
  // Of two that meet the slower one waits for 1%: of four, whose largest of normal draws is 1.029
  // and not 0.564 deviations up, 1.82%.
  const SpeedSpread spread{.sigma = 0, .measured_ranks = 2, .waited_share = 0.01};
  CHECK(pace_of(grid_of("dp8 gbs64 seq4096"), spread) == 1);
  CHECK(pace_of(grid_of("tp2 dp4 gbs64 seq4096 sp"), spread) == doctest::Approx(1.01));
  CHECK(pace_of(grid_of("tp2 pp2 gbs64 seq4096 sp"), spread) ==
        doctest::Approx(1 + 0.01 * 1.029 / 0.564));
  // One GPU met nobody, and says nothing of it.
  CHECK(pace_of(grid_of("tp2 gbs64 seq4096 sp"), {.measured_ranks = 1, .waited_share = 0.01}) == 1);
}

TEST_CASE("compute alone is not stretched") {
  const auto durations = stretched({compute_op(), compute_op()}, {3, 4});
  CHECK(durations[0].time.value() == 3);
  CHECK(durations[1].time.value() == 4);
}

TEST_CASE("a collective that compute waits for shares the machine with nobody") {
  const OpList ops = {compute_op(), comm_op(), compute_op(only(Stream::model_comm))};
  const auto durations = stretched(ops, {3, 2, 4});
  CHECK(durations[0].time.value() == 3);
  CHECK(durations[1].time.value() == 2);
  CHECK(durations[2].time.value() == 4);
}

TEST_CASE("compute and a collective that run beside each other slow each other by the factors") {
  // compute 1, then a collective of 2 beside compute of 4, then a wait.
  const OpList ops = {compute_op(), comm_op(), compute_op(), compute_op(only(Stream::model_comm))};
  const auto durations = stretched(ops, {1, 2, 4, 1});
  CHECK(durations[0].time.value() == doctest::Approx(1));
  CHECK(durations[1].time.value() == doctest::Approx(2 * 1.5));
  CHECK(durations[2].time.value() == doctest::Approx(3 + (4 - 3 / 1.2)));  // then alone
  CHECK(durations[3].time.value() == 1);
}

// Rates, not shares of what either takes alone: a faster neighbour never makes a step slower.
TEST_CASE("what ends first leaves the other alone") {
  for (double collective = 1; collective < 9; collective += 0.37) {
    const OpList ops = {comm_op(), compute_op(), compute_op(only(Stream::model_comm))};
    const auto durations = stretched(ops, {collective, 4, 1});
    // 4 of compute take 4.8 beside a longer collective, of which 3.2 get done in them.
    const bool longer = collective > 3.2;
    CAPTURE(collective);
    CHECK(durations[0].time.value() ==
          doctest::Approx(longer ? 4.8 + (collective - 3.2) : collective * 1.5));
    CHECK(durations[1].time.value() ==
          doctest::Approx(longer ? 4.8 : collective * 1.5 + (4 - collective * 1.5 / 1.2)));
  }
}

TEST_CASE("a collective nobody waits for reaches into the next repetition") {
  // 2 of compute, 2 of communication that runs beside the next copies' compute: 1.6 of it get done
  // beside each 2.4 of compute, and the rest behind the last.
  const auto durations = stretched({compute_op(), comm_op()}, {2, 2});
  CHECK(durations[0].time.value() == doctest::Approx(2 * 1.2));
  CHECK(durations[1].time.value() == doctest::Approx(2.4 + 0.4).epsilon(0.05));
}

TEST_CASE("each op belongs to one kind of cost") {
  CHECK(cost_of(compute_op(), Part::forward) == Cost::compute);
  CHECK(cost_of(compute_op(), Part::update) == Cost::optimizer);
  CHECK(cost_of(comm_op(), Part::forward) == Cost::tp);
  Op again = compute_op();
  again.recomputed = true;
  CHECK(cost_of(again, Part::backward) == Cost::recompute);
  const auto axis = [](Axis a) {
    return cost_of({.work = Collective{CollectiveKind::all_to_all, a, Bytes(1)}}, Part::forward);
  };
  CHECK(axis(Axis::cp) == Cost::cp);
  CHECK(axis(Axis::ep) == Cost::ep);
  CHECK(axis(Axis::etp) == Cost::tp);
  CHECK(axis(Axis::dp_cp) == Cost::dp);
  CHECK(axis(Axis::edp) == Cost::dp);
  CHECK(cost_of({.work = HostCopy{}}, Part::update) == Cost::offload);
}

TEST_CASE("hooks of ZeRO take the launching thread, of trained parameters and of modules") {
  const Recipe& deepspeed = recipe_of(RecipeKind::deepspeed);
  const Seconds gradient = deepspeed.host.gradient_hook, module = deepspeed.host.module_hook;
  Op product = compute_op();
  CHECK(hook_time(product, deepspeed, 3) == Seconds(0));  // of no parameter
  product.parameter = 0;
  CHECK(hook_time(product, deepspeed, 0) == Seconds(0));
  CHECK(hook_time(product, deepspeed, 2) == Seconds(0));
  CHECK(hook_time(product, deepspeed, 3) == module);
  product.role = Role::weight_gradient;
  CHECK(hook_time(product, deepspeed, 2) == gradient);
  CHECK(hook_time(product, deepspeed, 3) == gradient);
  Op norm{.work = Rowwise{.kind = RowwiseKind::rms_norm_backward}};
  norm.parameter = 1;
  norm.writes.add(1);
  CHECK(hook_time(norm, deepspeed, 2) == Seconds(0));  // a frozen one
  norm.writes.add(2);
  CHECK(hook_time(norm, deepspeed, 2) == gradient);
  CHECK(hook_time(norm, deepspeed, 3) == gradient + module);
  CHECK(hook_time(norm, recipe_of(RecipeKind::megatron), 1) == Seconds(0));
}

TEST_CASE("waits launch nothing, unfused work several kernels, experts one each") {
  const Recipe& eager = recipe_of(RecipeKind::fsdp2);
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  CHECK(launch_time({.work = Join{}}, eager) == Seconds(0));
  CHECK(launch_time(compute_op(), eager) == eager.host.launch);
  CHECK(launch_time(comm_op(), eager) == eager.host.collective_launch);
  CHECK(launch_time({.work = Rowwise{.kind = RowwiseKind::swiglu, .fused = true}}, eager) ==
        eager.host.launch);
  CHECK(launch_time({.work = Rowwise{.kind = RowwiseKind::swiglu, .fused = false}}, eager) >
        eager.host.launch);
  const Op experts{.work = GroupedGemm{.groups = 16, .rows = 4096, .n = 64, .k = 64}};
  CHECK(launch_time(experts, eager) == eager.host.launch);
  CHECK(launch_time(experts, megatron) ==
        megatron.host.launch + megatron.host.expert.product * 16.0);
  Op cast{.work = Rowwise{.kind = RowwiseKind::cast, .rows = 4096, .cols = 64}};
  CHECK(launch_time(cast, eager) == eager.host.launch);
  CHECK(launch_time(cast, megatron) == *megatron.host.cast_launch);
  CHECK(launch_time({.work = Rowwise{.kind = RowwiseKind::amax}}, megatron) ==
        *megatron.host.cast_launch);
  std::get<Rowwise>(cast.work).groups = 16;
  CHECK(launch_time(cast, megatron) == megatron.host.launch + megatron.host.expert.cast * 16.0);
  // Its scale takes launches of its own, also expert by expert.
  Op maximum{.work = Rowwise{.kind = RowwiseKind::amax, .groups = 16}};
  CHECK(launch_time(maximum, megatron) == megatron.host.expert.scale * 16.0);
  CHECK(megatron.host.expert.scale > Seconds(0));
  // Softmax is one kernel of six, or five of ten (cast, scale, mask, softmax, cast).
  Attention scores{.batch = 1, .heads = 4, .q_len = 64, .kv_len = 64};
  scores.kernel = AttentionKernel::unfused;
  CHECK(launch_time({.work = scores}, eager) == eager.host.launch * 6.0);
  scores.heads = 2;
  CHECK(launch_time({.work = scores}, eager) == eager.host.launch * 10.0);
}

TEST_CASE("a module's first kernel takes its launch, its further ones less") {
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  const Seconds further = *megatron.host.further_launch;
  Op product = compute_op();
  CHECK(launch_time(product, megatron) == megatron.host.launch);
  product.piece = 1;
  product.pieces = 4;
  CHECK(launch_time(product, megatron) == further);
  Op message = comm_op();
  CHECK(launch_time(message, megatron) == megatron.host.collective_launch);
  message.piece = 2;
  CHECK(launch_time(message, megatron) == further);
  // Steps of a ring of attention come from Python.
  Op ring{.work = Attention{.batch = 1, .heads = 4, .q_len = 64, .kv_len = 64}};
  ring.piece = 1;
  CHECK(launch_time(ring, megatron) == megatron.host.launch + further);
  CHECK(launch_time({.work = Update{}}, megatron) == further);
  // Muon goes from matrix to matrix.
  CHECK(launch_time({.work = Muon{.rows = 8, .cols = 8, .matrices = 2}}, megatron) ==
        further * (2.0 * (15 + 7)));
  CHECK(launch_time({.work = Rowwise{.kind = RowwiseKind::zero_fill}}, megatron) == further);
  // A hook of a parameter is no module, nor is a copy.
  CHECK(launch_time({.work = Rowwise{.kind = RowwiseKind::copy}}, megatron) == further);
  CHECK(launch_time({.work = Rowwise{.kind = RowwiseKind::accumulate}}, megatron) == further);
  // A recipe that launches kernel by kernel has one figure for all.
  const Recipe& eager = recipe_of(RecipeKind::fsdp2);
  CHECK(launch_time(product, eager) == eager.host.launch);
  CHECK(launch_time(message, eager) == eager.host.collective_launch);
}

TEST_CASE("a slower host launches later") {
  Priced p;
  const OpList ops{compute_op()};
  const auto launch = [&] { return price_ops(ops, p.context).durations.front().launch; };
  const Seconds xeon = launch();
  HardwareProfile grace = *p.context.hardware;
  grace.host.launch_factor = 1.5;
  p.context.hardware = &grace;
  CHECK(launch().value() == doctest::Approx(1.5 * xeon.value()));
  CHECK(machine("gb200").host.launch_factor > machine("b200").host.launch_factor);
}

TEST_CASE("Transformer Engine takes FlashAttention where cuDNN's attention cannot be had") {
  const auto takes = [](const char* line, const char* gpu, RecipeKind kind) {
    const ParallelPlan runs = plan_on(machine(gpu), parse_plan(line), recipe_of(kind));
    return runs.attention_backend == AttentionBackend::flash;
  };
  CHECK(takes("tp1", "a100-80gb-sxm", RecipeKind::megatron));
  CHECK_FALSE(takes("tp1 attention_backend=fused", "a100-80gb-sxm", RecipeKind::megatron));
  CHECK_FALSE(takes("tp1 deterministic dropout", "h100-sxm", RecipeKind::megatron));
  CHECK(takes("tp1 deterministic dropout", "gb200", RecipeKind::megatron));
  CHECK_FALSE(takes("tp1 deterministic", "gb200", RecipeKind::megatron));
  CHECK_FALSE(takes("tp1 dropout", "gb200", RecipeKind::megatron));
}

TEST_CASE("torch takes cuDNN's attention on compute capability 9.0 and 10.0 alone") {
  const auto takes = [](const char* line, const char* gpu, RecipeKind kind) {
    return plan_on(machine(gpu), parse_plan(line), recipe_of(kind)).attention_backend;
  };
  for (const RecipeKind kind : {RecipeKind::fsdp2, RecipeKind::ddp, RecipeKind::deepspeed}) {
    CAPTURE(to_word(kind));
    CHECK(takes("tp1", "a100-80gb-sxm", kind) == AttentionBackend::flash);
    CHECK(takes("tp1", "h200-sxm", kind) == AttentionBackend::automatic);
    CHECK(takes("tp1", "b200", kind) == AttentionBackend::automatic);
    CHECK(takes("tp1", "b300", kind) == AttentionBackend::flash);
    CHECK(takes("tp1 attention_backend=fused", "b300", kind) == AttentionBackend::fused);
  }
  // Megatron's choice is Transformer Engine's, torchtitan's a kernel of its own.
  CHECK(takes("tp1", "b300", RecipeKind::megatron) == AttentionBackend::automatic);
  CHECK(takes("tp1", "b300", RecipeKind::fsdp2_compile) == AttentionBackend::automatic);
}

TEST_CASE("what FlashAttention returns is turned and stays twice, of several sequences") {
  const auto kept = [](const char* backend, const char* batch) {
    const ModelSpec model = load_model("llama3-8b");
    const Recipe& recipe = recipe_of(RecipeKind::megatron);
    const CostModel cost(model, recipe, machine("a100-80gb-sxm"), JobFacts{});
    const std::string line = std::string("dp8 zero1 gbs16 seq4096 ") + batch + backend;
    return cost.memory(parse_plan(line)).stages.front().activations.value();
  };
  CHECK(kept("", "mbs1") == kept(" attention_backend=fused", "mbs1"));
  // 32 layers, 2 sequences of 4096 tokens, 32 heads of 128 in 16 bits.
  const double apart = kept("", "mbs2") - kept(" attention_backend=fused", "mbs2");
  CHECK(apart == doctest::Approx(32. * 2 * 4096 * 4096 * 2).epsilon(0.03));
}

TEST_CASE("a traced step is as long as a predicted one, whichever attention runs") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), machine("a100-80gb-sxm"), {});
  const ParallelPlan plan = parse_plan("tp4 dp2 zero1 mbs2 gbs8 seq4096 sp");
  CHECK(replay(cost, plan).step_time.value() ==
        doctest::Approx(cost.step_time(plan).value()).epsilon(1e-6));
}

TEST_CASE("graphs of layers leave the routed experts' launches to the host") {
  CHECK_FALSE(graphs_of(parse_plan("tp1")).has_value());
  CHECK(graphs_of(parse_plan("tp1 cuda_graph")) == CudaGraphScope::full);
  CHECK(graphs_of(parse_plan("tp1 cuda_graph cuda_graph_scope=layer")) == CudaGraphScope::layer);
  // Attention, router, experts, and what belongs to no layer.
  const Work product = GroupedGemm{.groups = 4, .rows = 64, .n = 64, .k = 64};
  OpList ops{compute_op(), compute_op(), Op{.work = product}, compute_op()};
  ops[0].layer_module = LayerModule::attention;
  ops[1].layer_module = LayerModule::router;
  ops[2].layer_module = LayerModule::experts;
  Priced p;
  const Seconds one = p.context.recipe->host.launch;
  const Seconds experts = launch_time(ops[2], *p.context.recipe);
  const auto launches = [&](std::optional<CudaGraphScope> graphs) {
    p.context.graphs = graphs;
    std::vector<Seconds> times;
    for (const Duration& d : price_ops(ops, p.context).durations) times.push_back(d.launch);
    return times;
  };
  using Times = std::vector<Seconds>;
  const Seconds none(0);
  CHECK(launches(std::nullopt) == Times{one, one, experts, one});
  CHECK(launches(CudaGraphScope::router) == Times{one, none, experts, one});
  CHECK(launches(CudaGraphScope::layer) == Times{none, none, experts, one});
  CHECK(launches(CudaGraphScope::mamba) == Times{one, one, experts, one});
  ops[0].layer_module = LayerModule::mamba;
  CHECK(launches(CudaGraphScope::mamba) == Times{none, one, experts, one});
  CHECK(launches(CudaGraphScope::full) == Times{none, none, none, none});
}

TEST_CASE("beside compute a ring around several nodes is no faster than NVLink lets it be") {
  Priced p;
  const Contention& contention = p.hardware.contention;
  const auto beside = [&](Bytes bytes, const char* layout) {
    p.grid = RankGrid(parse_plan(layout), 8);
    Op op = comm_op();
    op.work = Collective{CollectiveKind::all_gather, Axis::dp_cp, bytes};
    const Seconds alone = price_of(op, p.context).time;
    const Slowdown slowdown = slowdown_of(op, alone, p.context);
    CHECK(slowdown.compute == (p.grid.shape(Axis::dp_cp).nodes > 1 ? contention.network.compute
                                                                   : contention.nvlink.compute));
    return std::pair{alone * slowdown.comm, slowdown.comm};
  };
  const Bytes layer(1e9);
  const auto inside = beside(layer, "tp1 dp8 gbs8");
  CHECK(inside.second == contention.nvlink.comm);
  for (const char* wide : {"tp1 dp16 gbs16", "tp1 dp64 gbs64"}) {
    CHECK(beside(layer, wide).first > inside.first);
  }
  // One rank a node: the ring passes no NVLink. A short message: neither link's rate is what
  // counts.
  CHECK(beside(layer, "tp8 dp8 gbs8").second == contention.network.comm);
  CHECK(beside(Bytes(1024), "tp1 dp16 gbs16").second == contention.network.comm);
}

TEST_CASE(
    "gathers in pieces are copy engines' and take little of products, which take nothing of them") {
  Priced p;
  Op op = comm_op();
  op.work = Collective{CollectiveKind::all_gather, Axis::tp, Bytes(1e8)};
  p.grid = RankGrid(parse_plan("tp8 gbs8"), 8);
  const auto beside = [&] { return slowdown_of(op, Seconds(1e-3), p.context); };
  const auto compute = [&] { return beside().compute; };
  CHECK(compute() == p.hardware.contention.nvlink.compute);
  op.pieces = 4;
  CHECK(compute() > 1);
  CHECK(compute() < 1.05);
  CHECK(beside().comm == 1);
  std::get<Collective>(op.work).kind = CollectiveKind::reduce_scatter;
  CHECK(compute() == p.hardware.contention.nvlink.compute);
}

TEST_CASE("a priced layer takes at least the sum of its compute, and free work shortens it") {
  const Priced p;
  for (const Part part : {Part::forward, Part::backward}) {
    const PricedPart priced = price_part(p.block, part, p.context);
    double compute = 0;
    for (std::size_t i = 0; i < priced.ops.size(); ++i) {
      if (priced.ops[i].stream == Stream::compute) compute += priced.durations[i].time.value();
    }
    const double all = compute_clock(priced.ops, priced.durations);
    CHECK(all >= compute);
    double before = all;
    FreeWork free;
    for (const Cost cost : {Cost::tp, Cost::host, Cost::compute}) {
      const double now = compute_clock(priced.ops, without(priced, part, free.add(cost)));
      CHECK(now <= before);
      before = now;
    }
    CHECK(before == 0);
  }
}

TEST_CASE("exposed tensor-parallel collectives cost what they take") {
  const Priced p;
  const PricedPart priced = price_part(p.block, Part::forward, p.context);
  double collectives = 0;
  for (std::size_t i = 0; i < priced.ops.size(); ++i) {
    if (priced.ops[i].stream == Stream::model_comm) collectives += priced.durations[i].time.value();
  }
  const FreeWork no_host = FreeWork{}.add(Cost::host);
  FreeWork neither = no_host;
  neither.add(Cost::tp);
  const double with = compute_clock(priced.ops, without(priced, Part::forward, no_host));
  const double none = compute_clock(priced.ops, without(priced, Part::forward, neither));
  CHECK(with - none == doctest::Approx(collectives).epsilon(1e-9));
}

TEST_CASE("a CUDA graph takes the launches away") {
  Priced p;
  p.context.graphs = CudaGraphScope::full;
  for (const Duration& d : price_part(p.block, Part::forward, p.context).durations) {
    CHECK(d.launch.value() == 0);
  }
}

TEST_CASE("kernels in a CUDA graph follow each other sooner, our optimizer's are launched") {
  Priced p;
  p.hardware.gpu.graph_gain = microseconds(1);
  p.context.recipe = &recipe_of(RecipeKind::qplan);
  const Op norm{.work = Rowwise{.kind = RowwiseKind::rms_norm, .rows = 4096, .cols = 4096}};
  const Op tiny{.work = Rowwise{.kind = RowwiseKind::rms_norm, .rows = 1, .cols = 8}};
  const Op update{.work = Update{.params = 1 << 20}};
  const auto seconds = [&](const Op& op) { return price_of(op, p.context).time.value(); };
  const double launched = seconds(norm), alone = seconds(tiny), stepped = seconds(update);
  const PricedPart outside = price_ops({norm, update}, p.context);
  p.context.graphs = CudaGraphScope::full;
  CHECK(launched - seconds(norm) == doctest::Approx(1e-6));
  CHECK(seconds(tiny) == doctest::Approx(std::max(alone / 2, alone - 1e-6)));
  CHECK(seconds(update) == stepped);
  const PricedPart inside = price_ops({norm, update}, p.context);
  CHECK(inside.durations[0].launch.value() == 0);
  CHECK(inside.durations[1].launch == outside.durations[1].launch);
}

TEST_CASE("a block's memory has a transient above what it keeps") {
  const Priced p;
  const BlockMemory memory = memory_of(p.block, BackwardForm::whole);
  CHECK(memory.forward.net > Bytes(0));
  CHECK(memory.forward.peak > memory.forward.net);
  CHECK(memory.backward.peak > Bytes(0));
}

TEST_CASE("a schedule that runs both forms of backward sees what each alone would see") {
  const Priced p;
  const BlockMemory whole = memory_of(p.block, BackwardForm::whole);
  const BlockMemory halves = memory_of(p.block, BackwardForm::split);
  const BlockMemory both = memory_of(p.block, BackwardForm::both);
  CHECK(both.forward.net == halves.forward.net);
  CHECK(both.forward.peak == halves.forward.peak);
  CHECK(both.forward.peak == whole.forward.peak);
  CHECK(both.backward.peak == whole.backward.peak);
  CHECK(both.backward_input.peak == halves.backward_input.peak);
  CHECK(both.backward_weight.net == halves.backward_weight.net);
}

TEST_CASE("backward in two halves frees the same, and holds more in between") {
  const Priced p;
  const BlockMemory whole = memory_of(p.block, BackwardForm::whole),
                    halves = memory_of(p.block, BackwardForm::split);
  CHECK(halves.forward.net == whole.forward.net);
  CHECK((halves.backward_input.net + halves.backward_weight.net) == whole.backward.net);
  CHECK(halves.backward_weight.net < Bytes(0));  // what W needs is freed by W
}
