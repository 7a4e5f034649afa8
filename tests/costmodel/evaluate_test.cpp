#include "costmodel/evaluate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <thread>

#include "costmodel/fold/replay.h"
#include "costmodel/measured.h"
#include "tests/costmodel/job.h"
#include "tests/costmodel/machine.h"

using namespace qplan;

TEST_CASE("the parts of the step time sum to it") {
  const Job job("llama3-8b");
  for (const char* line :
       {"tp2 pp2 dp2 zero1 gbs16 sp overlap=grad+param", "dp8 zero1 gbs16", "pp4 dp2 gbs32 gpipe",
        "tp2 cp2 dp2 zero1 gbs16 sp recompute=full", "pp2 vpp2 interleaved dp4 zero1 gbs32"}) {
    CAPTURE(line);
    const Estimate e = job.cost.evaluate(parse_plan(line));
    CHECK(e.time.total().value() == doctest::Approx(e.step_time.value()).epsilon(1e-9));
    CHECK(e.step_time.value() == job.cost.step_time(parse_plan(line)).value());
    for (const Seconds part :
         {e.time.compute, e.time.recompute, e.time.tp, e.time.cp, e.time.ep, e.time.pp_bubble,
          e.time.pp_p2p, e.time.dp, e.time.optimizer, e.time.offload, e.time.host}) {
      CHECK(part.value() >= -1e-9 * e.step_time.value());
    }
  }
}

TEST_CASE("parallelism that is not used costs nothing") {
  const Estimate e = Job("llama3-8b").cost.evaluate(parse_plan("dp8 zero1 gbs16"));
  CHECK(e.time.tp.value() == 0);
  CHECK(e.time.cp.value() == 0);
  CHECK(e.time.ep.value() == 0);
  CHECK(e.time.pp_p2p.value() == 0);
  CHECK(e.time.recompute.value() == 0);
  CHECK(e.time.offload.value() == 0);
}

TEST_CASE("the parts of a stage's memory sum to its peak") {
  const Job job("llama3-8b");
  const Job fsdp("llama3-8b", "h100-sxm", RecipeKind::fsdp2);
  struct Case {
    const Job& asked;
    const char* line;
  };
  for (const Case& c : {Case{job, "tp2 pp2 dp2 zero1 gbs16 sp"}, Case{job, "dp8 zero1 gbs16"},
                        Case{fsdp, "dp8 zero3 gbs8"}}) {
    for (const StageMemory& s : c.asked.cost.memory(parse_plan(c.line)).stages) {
      const Bytes sum = s.weights + s.gradients + s.optimizer + s.activations + s.buffers;
      CHECK(sum == s.peak);
      CHECK(s.reserved > s.peak);
      CHECK(s.device > s.reserved);
    }
  }
}

TEST_CASE("the worst stage is the one that needs most") {
  const MemoryEstimate memory = Job("llama3-70b").cost.memory(parse_plan("tp4 pp4 gbs16 sp"));
  CHECK(memory.stages.size() == 4);
  for (const StageMemory& s : memory.stages) CHECK(s.device <= memory.worst_stage().device);
}

TEST_CASE("throughput, FLOPs and utilisation say the same thing") {
  const Job job("llama3-8b");
  const ParallelPlan plan = parse_plan("tp2 dp4 zero1 gbs16 seq4096 sp");
  const Estimate e = job.cost.evaluate(plan);
  CHECK(e.tokens_per_s * e.step_time.value() == doctest::Approx(16 * 4096));
  CHECK(e.tokens_per_s_per_gpu * 8 == doctest::Approx(e.tokens_per_s));
  const double flops = step_model_flops(job.model, 4096, 16).value();
  CHECK(e.model_tflops_per_gpu * 1e12 * 8 * e.step_time.value() == doctest::Approx(flops));
  CHECK(e.mfu == doctest::Approx(e.model_tflops_per_gpu / 989).epsilon(0.01));
}

TEST_CASE("an estimate of experts that drop tokens is less sure than one of dropless ones") {
  const auto width = [](const char* line) {
    const Estimate e = Job("qwen3-30b-a3b").cost.evaluate(parse_plan(line));
    return (e.step_time_high - e.step_time_low) / e.step_time;
  };
  const char* const dropless = "dp8 ep8 zero1 gbs64 seq4096";
  const char* const dropping = "dp8 ep8 zero1 gbs64 seq4096 capacity=1";
  CHECK(width(dropping) > 1.5 * width(dropless));
}

TEST_CASE("an estimate is less sure where launches, a free router or a new GPU have their say") {
  const auto width = [](const Job& job, const char* line) {
    const Estimate e = job.cost.evaluate(parse_plan(line));
    return (e.step_time_high - e.step_time_low) / e.step_time;
  };
  const Job dense("qwen3-0.6b");
  CHECK(width(dense, "dp8 zero1 gbs64 mbs1 seq512") >
        2 * width(dense, "dp8 zero1 gbs64 mbs1 seq512 cuda_graph"));
  const Job experts("qwen3-30b-a3b");
  CHECK(width(experts, "dp8 ep8 zero1 gbs64 seq4096 cuda_graph routing=natural") >
        1.3 * width(experts, "dp8 ep8 zero1 gbs64 seq4096 cuda_graph"));
  CHECK(find_measured_on(RecipeKind::megatron, machine("h800").gpu.name, false) != nullptr);
  CHECK(find_measured_on(RecipeKind::fsdp2_compile, machine("h800").gpu.name, false) == nullptr);
  CHECK(find_measured_on(RecipeKind::megatron, "a GPU", false) == nullptr);
  CHECK(find_measured_on(RecipeKind::megatron, machine("h800").gpu.name, true) == nullptr);
  // Our own executor calibrates where it runs.
  Job known("llama3-8b", "h100-sxm", RecipeKind::fsdp1);
  HardwareProfile renamed = machine("h100-sxm");
  renamed.gpu.name = "a GPU";
  const auto on_renamed = [&](RecipeKind kind) {
    const CostModel cost(known.model, recipe_of(kind), renamed, JobFacts{});
    const Estimate e = cost.evaluate(parse_plan("dp8 zero3 gbs8"));
    return (e.step_time_high - e.step_time_low) / e.step_time;
  };
  CHECK(on_renamed(RecipeKind::fsdp1) > 1.2 * width(known, "dp8 zero3 gbs8"));
  const Job own("llama3-8b", "h100-sxm", RecipeKind::qplan);
  CHECK(on_renamed(RecipeKind::qplan) == doctest::Approx(width(own, "dp8 zero3 gbs8")));
}

TEST_CASE("the stated interval holds the estimate, and the price shares sum to one") {
  const Estimate e = Job("qwen3-30b-a3b").cost.evaluate(parse_plan("ep8 dp8 zero1 gbs16"));
  CHECK(e.step_time_low < e.step_time);
  CHECK(e.step_time < e.step_time_high);
  CHECK(e.peak_low < e.memory.worst_stage().peak);
  CHECK(e.priced_from.table + e.priced_from.formula + e.priced_from.assumed ==
        doctest::Approx(1.0));
}

TEST_CASE("twice the batch takes nearly twice as long, never longer") {
  const Job job("llama3-8b");
  const double once = job.seconds("tp2 dp4 zero1 gbs64 sp");
  const double twice = job.seconds("tp2 dp4 zero1 gbs128 sp");
  CHECK(twice > 1.8 * once);
  CHECK(twice <= 2 * once);
}

TEST_CASE("full recomputation trades time for memory") {
  const Job job("llama3-8b");
  const std::string plain = "tp2 dp4 zero1 gbs16 sp";
  CHECK(job.seconds(plain + " recompute=full") > 1.2 * job.seconds(plain));
  CHECK(job.seconds(plain + " recompute=full") < 1.4 * job.seconds(plain));
  CHECK(job.worst(plain + " recompute=full").activations < job.worst(plain).activations);
}

TEST_CASE("each ZeRO stage needs less memory than the one before") {
  const Job job("llama3-8b", "h200-sxm", RecipeKind::qplan);
  Bytes before(1e15);
  for (const char* zero : {"zero0", "zero1", "zero2", "zero3"}) {
    const StageMemory s = job.worst(std::string("dp8 gbs8 ") + zero);
    const Bytes states = s.weights + s.gradients + s.optimizer;
    CHECK(states < before);
    before = states;
  }
}

TEST_CASE("gathered parameters are buffers, not activations") {
  // Of Llama-3 8B a layer has 218 million parameters, of 2 bytes where products read them, and the
  // next layer's come meanwhile; the embedding's and the head's are 525 million.
  const Job job("llama3-8b", "h200-sxm", RecipeKind::fsdp2);
  const StageMemory sharded = job.worst("dp8 zero3 gbs8 seq4096");
  CHECK(sharded.buffers.value() >= 2 * 218e6);
  CHECK(sharded.buffers.value() < 2 * (2 * 525e6 + 218e6));
  // What is whole all the time is no buffer.
  const Job replicated("llama3-8b", "h200-sxm", RecipeKind::qplan);
  CHECK(replicated.worst("dp8 gbs8 seq4096").buffers.value() < 2 * 218e6);
}

// Qwen3-8B of 8 layers, trained whole in 16 bits by transformers 5 on an H100: 8.03 bytes a
// parameter by torch's own counting (docs/evidence/lora.md). (transformers 4's AdamW had 10.00,
// whatever the batch: tests/data/runs/finetuning.csv holds those.)
TEST_CASE("full training in 16 bits peaks at its states and gradients, 8 bytes a parameter") {
  const Job job("llama3-8b", "a100-80gb-sxm", RecipeKind::ddp);
  const std::string words =
      " seq4096 recompute=full loss=liger main_params_dtype=bf16 moment_dtype=bf16 grad_dtype=bf16";
  const double parameters = 8030261248;
  const StageMemory memory = job.worst("mbs1 gbs1" + words);
  CHECK(memory.peak.value() == doctest::Approx(8 * parameters).epsilon(0.005));
  // Activations are more: then the peak is theirs, and gradients are not there yet.
  const StageMemory many = job.worst("mbs32 gbs32" + words);
  CHECK(many.activations.value() > 4 * parameters);
  CHECK(many.gradients.value() < 2 * parameters);
}

// When the first gradient reduction of a rank begins, and when its last backward ends.
TEST_CASE("behind the first rank Megatron reduces when a stage's last backward is done") {
  const auto reduced_early = [](const Job& job, int rank) {
    const Trace trace = trace_step(
        job.cost, parse_plan("pp4 dp8 zero1 gbs64 seq4096 overlap=grad+param"), TraceGrain::op);
    Seconds reduction = trace.end, backward;
    for (const TraceEvent& e : trace.events) {
      if (e.rank != rank) continue;
      if (e.stream == Stream::reduce_comm) reduction = std::min(reduction, e.begin);
      const bool computes = e.stream == Stream::compute && e.category == "backward";
      if (computes) backward = std::max(backward, e.end);
    }
    CHECK(reduction < trace.end);
    return reduction < backward;
  };
  const Job megatron("llama3-8b"), ours("llama3-8b", "h100-sxm", RecipeKind::qplan);
  CHECK(reduced_early(megatron, 0));
  CHECK(reduced_early(ours, 0));
  for (int rank = 1; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK_FALSE(reduced_early(megatron, rank));
    CHECK(reduced_early(ours, rank));
  }
}

TEST_CASE("without accumulation FSDP's gradients come with backward, with it they stay") {
  const Job job("llama3-8b", "h200-sxm", RecipeKind::fsdp2);
  // fp32 shards of 8.03 billion parameters on 8 ranks.
  const double all = 4 * 8.03e9 / 8;
  // The peak is at the loss, where backward has made nothing yet ...
  const StageMemory once = job.worst("dp8 zero3 mbs2 gbs16 seq4096 recompute=full");
  CHECK(once.gradients.value() < 0.01 * all);
  const StageMemory twice = job.worst("dp8 zero3 mbs2 gbs32 seq4096 recompute=full");
  CHECK(twice.gradients.value() == doctest::Approx(all).epsilon(0.01));
  CHECK(twice.peak.value() - once.peak.value() == doctest::Approx(all).epsilon(0.01));
  // ... or at the end of backward, where almost all of them are there: one short sequence.
  const StageMemory late = job.worst("dp8 zero3 gbs8 seq256 recompute=full");
  CHECK(late.gradients.value() > 0.8 * all);
  CHECK(late.gradients.value() <= 1.001 * all);
  // Megatron-FSDP keeps its buffer.
  const Job megatron("llama3-8b", "h200-sxm", RecipeKind::megatron_fsdp);
  CHECK(megatron.worst("dp8 zero3 mbs2 gbs16 seq4096 recompute=full").gradients.value() ==
        doctest::Approx(all).epsilon(0.01));
}

TEST_CASE("on one rank FSDP's gradients are there at the update all the same") {
  const Job job("llama3-8b", "b200", RecipeKind::fsdp2);
  const MemoryEstimate memory = job.cost.memory(parse_plan("zero3 gbs1 seq256 recompute=full"));
  CHECK(memory.worst_stage().peak > Bytes(15.9 * 8.03e9));  // fp32: 4 + 4 + 8 bytes a parameter
}

TEST_CASE("overlapped reductions and gathers never make a step slower than 25%, and help here") {
  const Job job("llama3-8b");
  CHECK(job.seconds("dp8 zero1 gbs8 overlap=grad+param") < job.seconds("dp8 zero1 gbs8"));
}

TEST_CASE("interleaving shortens the bubble") {
  const Job job("llama3-70b");
  const Estimate plain = job.cost.evaluate(parse_plan("tp8 pp4 gbs16 sp"));
  const Estimate woven = job.cost.evaluate(parse_plan("tp8 pp4 vpp4 interleaved gbs16 sp"));
  CHECK(woven.time.pp_bubble < 0.5 * plain.time.pp_bubble);
}

TEST_CASE("dualpipe holds weights and gradients twice, and shards the optimizer over both copies") {
  const Job job("llama3-8b", "h100-sxm", RecipeKind::qplan);
  const auto sum = [&](const char* line, Bytes StageMemory::*part) {
    Bytes total;
    for (const StageMemory& stage : job.cost.memory(parse_plan(line)).stages) total += stage.*part;
    return total.value();
  };
  const char *once = "pp4 dp2 zero1 gbs32", *twice = "pp4 dp2 zero1 gbs32 dualpipe";
  CHECK(sum(twice, &StageMemory::weights) == 2 * sum(once, &StageMemory::weights));
  CHECK(sum(twice, &StageMemory::gradients) == 2 * sum(once, &StageMemory::gradients));
  CHECK(sum(twice, &StageMemory::optimizer) ==
        doctest::Approx(sum(once, &StageMemory::optimizer)).epsilon(1e-6));  // slots round up
  CHECK(sum("pp4 dp2 zero0 gbs32 dualpipe", &StageMemory::optimizer) ==
        2 * sum("pp4 dp2 zero0 gbs32", &StageMemory::optimizer));
}

TEST_CASE("dualpipe's rank r needs what rank pp - 1 - r needs") {
  const Job job("qwen3-30b-a3b", "h100-sxm", RecipeKind::qplan);
  const auto stages = job.cost.memory(parse_plan("pp6 dp4 ep4 etp1 zero1 gbs48 dualpipe")).stages;
  for (std::size_t r = 0; r < 3; ++r) CHECK(stages[r].peak == stages[5 - r].peak);
}

TEST_CASE("the parts of dualpipe's step sum to it, and its bubble is smaller than 1F1B's") {
  const Job job("qwen3-30b-a3b", "h100-sxm", RecipeKind::qplan);
  const char* line = "pp4 dp8 ep8 etp1 zero1 gbs128 overlap=grad+param";
  const Estimate plain = job.cost.evaluate(parse_plan(line));
  const Estimate both = job.cost.evaluate(parse_plan(std::string(line) + " dualpipe"));
  CHECK(both.time.total().value() == doctest::Approx(both.step_time.value()).epsilon(1e-9));
  CHECK(both.time.pp_bubble < plain.time.pp_bubble);
  CHECK(both.time.ep < plain.time.ep);  // exchanges hide behind the pair's other half
  CHECK(both.step_time < plain.step_time);
}

TEST_CASE("the lower bound is below the step time and most of it") {
  const Job job("llama3-70b");
  for (const char* line : {"tp8 pp4 gbs64 sp", "tp8 pp4 vpp4 interleaved gbs64 sp",
                           "tp4 pp8 gbs64 sp zb-h1", "tp8 pp4 dp2 zero1 gbs64 sp gpipe"}) {
    CAPTURE(line);
    const double bound = job.cost.lower_bound(parse_plan(line)).step.value();
    CHECK(bound <= job.seconds(line));
    CHECK(bound > 0.5 * job.seconds(line));
  }
}

TEST_CASE("a plan fits exactly when its worst stage does once its caches have given way") {
  const ModelSpec model = load_model("llama3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::megatron);
  const ParallelPlan plan = parse_plan("tp2 dp4 zero1 gbs16 sp");
  const CostModel roomy(model, recipe, hardware, {});
  CHECK(roomy.fits(roomy.memory(plan)));
  // Where there is no room at all, nothing is cached.
  const CostModel full(model, recipe, hardware, {}, Bytes(1));
  const Bytes needed = full.memory(plan).worst_stage().device;
  CHECK(needed < roomy.memory(plan).worst_stage().device);
  const CostModel exact(model, recipe, hardware, {}, needed);
  CHECK(exact.fits(exact.memory(plan)));
  CHECK(exact.memory(plan).worst_stage().device == needed);
  const CostModel tight(model, recipe, hardware, {}, needed - Bytes(1));
  CHECK_FALSE(tight.fits(tight.memory(plan)));
}

TEST_CASE("a sifter answers as the cost model does, in any order of plans") {
  const Job job("qwen3-30b-a3b");
  PlanSifter sifter(job.cost);
  for (const char* line :
       {"ep8 dp8 zero1 gbs16", "ep8 dp8 zero0 gbs16", "ep8 dp8 zero1 gbs16 offload=optimizer:0.5",
        "tp2 ep4 dp4 zero1 gbs16 sp", "ep8 dp8 zero1 gbs16", "pp2 ep4 dp4 zero1 gbs16"}) {
    CAPTURE(line);
    const ParallelPlan plan = parse_plan(line);
    const MemoryEstimate memory = job.cost.memory(plan);
    const PlanSifter::Check check = sifter.check(plan);
    CHECK(check.device_peak == memory.worst_stage().device);
    CHECK(check.fits == job.cost.fits(memory));
    CHECK(sifter.own_work_bound(plan).step == job.cost.own_work_bound(plan).step);
  }
}

TEST_CASE("what is remembered of one plan's buffers and work serves others to the byte") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  for (const RecipeKind kind : {RecipeKind::megatron_fsdp, RecipeKind::fsdp2, RecipeKind::qplan}) {
    const CostModel shared(model, recipe_of(kind), hardware, {});
    PlanSifter sifter(shared);
    for (const char* line :
         {"dp16 zero3 gbs32", "dp16 zero3 gbs32 fsdp_shard=8", "dp16 zero3 gbs16 fsdp_shard=8",
          "dp16 zero3 gbs16", "dp16 ep16 zero3 gbs32", "dp32 ep16 zero3 gbs32",
          "dp32 ep16 zero2 gbs64", "dp32 ep16 zero2 gbs32", "dp1 zero3 gbs32"}) {
      const ParallelPlan plan = parse_plan(line);
      CAPTURE(to_word(kind));
      CAPTURE(line);
      const CostModel fresh(model, recipe_of(kind), hardware, {});
      CHECK(sifter.check(plan).device_peak == fresh.memory(plan).worst_stage().device);
      CHECK(sifter.own_work_bound(plan).step == fresh.own_work_bound(plan).step);
      CHECK(shared.lower_bound(plan).step == fresh.lower_bound(plan).step);
    }
  }
}

TEST_CASE("the bound of a plan's own work is most of its bound") {
  const Job job("llama3-70b");
  for (const char* line : {"tp8 pp4 gbs64 sp", "tp4 pp8 gbs64 sp zb-h1", "tp8 dp8 zero1 gbs64"}) {
    CAPTURE(line);
    const ParallelPlan plan = parse_plan(line);
    const Seconds bound = job.cost.lower_bound(plan).step;
    CHECK(job.cost.own_work_bound(plan).step <= bound);
    CHECK(job.cost.own_work_bound(plan).step > bound * 0.9);
  }
}

TEST_CASE("a bound leaves nothing behind that another plan's price would take") {
  // nanotron's tensor-parallel collectives are slower beside a pipeline that leaves the node.
  const ModelSpec model = load_model("llama3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::nanotron);
  const ParallelPlan crossing = parse_plan("tp2 pp2 dp4 zero1 gbs16 sp");
  const ParallelPlan inside = parse_plan("tp2 dp8 zero1 gbs16 sp");
  const CostModel fresh(model, recipe, hardware, {}), asked(model, recipe, hardware, {});
  CHECK(asked.lower_bound(crossing).step < asked.step_time(crossing));
  CHECK(asked.step_time(inside) == fresh.step_time(inside));
}

TEST_CASE("nanotron's messages stall where rings lie over more than two nodes") {
  const ModelSpec model = load_model("llama3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const auto stall = [&](RecipeKind kind, const char* line) {
    const CostModel cost(model, recipe_of(kind), hardware, {});
    const ParallelPlan plan = parse_plan(line);
    return pipeline_links(cost, plan, RankGrid(plan, 8)).stall;
  };
  CHECK(stall(RecipeKind::nanotron, "tp32 pp2 gbs16 sp") ==
        recipe_of(RecipeKind::nanotron).host.ring->stalled_message);
  CHECK(stall(RecipeKind::nanotron, "tp16 pp2 gbs16 sp") == Seconds(0));
  CHECK(stall(RecipeKind::nanotron, "tp32 dp2 gbs16 sp") == Seconds(0));
  CHECK(stall(RecipeKind::megatron, "tp32 pp2 gbs16 sp") == Seconds(0));
}

TEST_CASE("answers do not depend on how many threads ask, or in which order") {
  const std::vector<std::string> lines = {"tp2 pp2 dp2 zero1 gbs16 sp", "dp8 zero1 gbs16",
                                          "pp4 dp2 gbs32 gpipe", "tp4 pp2 gbs16 sp zb-h1"};
  const Job alone("llama3-8b"), together("llama3-8b");
  std::vector<double> expected, got(lines.size());
  for (const std::string& line : lines) expected.push_back(alone.seconds(line));
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = lines.size(); i-- > 0;) {
      threads.emplace_back([&, i] { got[i] = together.seconds(lines[i]); });
    }
  }
  CHECK(got == expected);
}

TEST_CASE("a busier expert rank makes natural routing slower and larger than forced") {
  const Job job("qwen3-30b-a3b");
  const std::string line = "ep8 dp8 zero1 gbs16";
  CHECK(job.seconds(line + " routing=natural") > job.seconds(line + " routing=forced"));
  CHECK(job.worst(line + " routing=natural").activations >
        job.worst(line + " routing=forced").activations);
}

// One microbatch: every layer's activations go out before the first of them comes back.
TEST_CASE("dropless experts leave more room than dense models") {
  CHECK(memory_share(load_model("llama3-8b")) == 0.95);
  CHECK(memory_share(load_model("qwen3-30b-a3b")) == 0.92);
}

TEST_CASE("what cuBLAS works in is torch's and Transformer Engine's, by generation and order") {
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  const auto workspaces = [&](const char* model, const char* hardware, const char* line) {
    return framework_reserves(load_model(model), parse_plan(line), megatron, machine(hardware))
               .front()
               .bytes /
           mib(1);
  };
  CHECK(workspaces("llama3-8b", "h100-sxm", "dp8 gbs8") == 2 * 32 + 32);
  CHECK(workspaces("llama3-8b", "a100-80gb-sxm", "dp8 gbs8") == 2 * 8.125 + 4);
  CHECK(workspaces("llama3-8b", "a100-80gb-sxm", "dp8 gbs8 deterministic") == 2 * 32 + 4);
  CHECK(workspaces("qwen3-30b-a3b", "h100-sxm", "dp8 ep8 gbs8") == 2 * 32 + 5 * 32);
  Recipe local = megatron;
  local.memory.engine_layers = false;
  CHECK(framework_reserves(load_model("llama3-8b"), parse_plan("dp8 gbs8"), local,
                           machine("h100-sxm"))
            .front()
            .bytes == mib(128));
}

TEST_CASE("CUDA graphs of the router alone hold little, in a pipeline as elsewhere") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  const auto pools = [&](const char* line) {
    Bytes sum;
    for (const NamedReserve& r :
         framework_reserves(model, parse_plan(line), megatron, machine("h100-sxm"))) {
      if (r.name == "CUDA graph pools") sum += r.bytes;
    }
    return sum.value() / gib(1).value();
  };
  CHECK(pools("pp2 dp2 gbs8 cuda_graph cuda_graph_scope=layer") == 10);
  CHECK(pools("pp2 dp2 gbs8 cuda_graph cuda_graph_scope=router") == 3);
  CHECK(pools("dp4 gbs8 cuda_graph cuda_graph_scope=router") == 3);
}

TEST_CASE("DeepEP's buffers are those that it hints at, outside torch's memory") {
  const ModelSpec model = load_model("deepseek-v3");
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  const auto more = [&](const char* line) {
    const ParallelPlan plan = parse_plan(line);
    ParallelPlan plain = plan;
    plain.moe_dispatcher = MoeDispatcher::alltoall;
    const HardwareProfile& h = machine("h100-sxm");
    CHECK(framework_reserves(model, plan, megatron, h).size() == 1);  // products' workspaces
    return (outside_bytes(model, plan, megatron, h) - outside_bytes(model, plain, megatron, h))
        .value();
  };
  constexpr double kRow = 2 * 7168 + 2056, kWorkspace = 32 << 20;
  CHECK(more("dp8 ep8 gbs8 moe_dispatcher=deepep") == 10 * 8 * 256 * kRow + kWorkspace);
  CHECK(more("dp64 ep64 gbs64 moe_dispatcher=deepep") ==
        10 * (8 * 288 + 2 * 8 * 128) * kRow + kWorkspace);
  CHECK(more("dp8 gbs8 moe_dispatcher=deepep") == 0);
}

TEST_CASE("communicators are counted for the groups that have members") {
  CHECK(communicator_count(parse_plan("gbs1")) == 1);
  CHECK(communicator_count(parse_plan("dp8 gbs8")) == 2 + 1);  // world, dp and, the same, edp
  CHECK(communicator_count(parse_plan("tp2 pp2 dp2 gbs8")) == 1 + 1 + 1 + 1 + 2);
}

// ---- clusters of several kinds of GPUs ----
