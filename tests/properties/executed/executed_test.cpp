// Every plan computes what one rank computes, in the memory that was predicted for it.

#include "tests/properties/executed.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using namespace qplan;

namespace {

void check_against_one_rank(const ModelSpec& model, const std::string& line) {
  check_against_one_rank(model, plan_of(line));
}

}  // namespace

TEST_CASE("a dense model trains on one rank") {
  const ModelSpec model = load_model("tiny");
  RunOptions options = five_steps(model);
  const TokenSource tokens = seeded_tokens(1, model.vocab_size);
  options.tokens = [&](std::int64_t sequence, std::span<std::int32_t> ids) {
    tokens(sequence % 4, ids);  // the same batch every step
  };
  const RunResult result = run(model, plan_of("gbs4 seq16"), kFacts, options);
  CHECK(result.loss.front() == doctest::Approx(std::log(256.0)).epsilon(0.02));
  CHECK(result.loss.back() < result.loss.front() - 0.1);
  CHECK(result.in_program_order);
}

TEST_CASE("data parallelism with every ZeRO stage computes what one rank does") {
  const ModelSpec model = load_model("tiny");
  for (const char* line : {"dp2 gbs4 seq16", "dp2 zero1 gbs8 seq16", "dp4 zero2 mbs2 gbs16 seq16",
                           "dp2 zero3 gbs8 seq16", "dp3 zero3 mbs2 gbs12 seq16",
                           "dp4 zero1 fsdp_shard=2 gbs8 seq16"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("tensor parallelism computes what one rank does, with and without sequence parallelism") {
  const ModelSpec model = load_model("tiny");
  for (const char* line :
       {"tp2 gbs2 seq16", "tp2 gbs4 mbs2 seq16 sp", "tp8 gbs2 seq16", "tp8 gbs2 seq16 sp",
        "tp2 dp2 zero1 gbs4 seq16 sp", "tp2 dp2 zero2 gbs4 seq16 sp", "tp4 dp2 zero3 gbs8 seq16",
        "tp2 dp2 zero3 gbs8 seq16 sp overlap=tp+grad", "tp4 gbs2 seq16 sp overlap=tp"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("pipelines compute what one rank does, whatever the schedule") {
  const ModelSpec model = load_model("tiny");
  for (const char* line :
       {"pp2 gbs4 seq16 1f1b", "pp4 gbs8 seq16 gpipe", "pp2 gbs4 seq16 interleaved vpp2",
        "pp4 gbs8 seq16 zb-h1", "pp2 gbs8 seq16 zbv vpp2", "pp2 gbs8 seq16 dualpipe",
        "pp4 gbs16 seq16 dualpipe", "pp2 dp2 zero3 gbs8 seq16 1f1b",
        "pp2 dp2 tp2 zero1 gbs8 seq16 zb-h1 sp", "pp2 dp2 zero1 gbs16 seq16 dualpipe",
        "pp2 dp2 zero2 gbs8 seq16 interleaved vpp2",
        "pp2 cp4 gbs8 seq16 zb-h1 cp_comm=a2a recompute=selective"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("recomputation computes what keeping does") {
  const ModelSpec model = load_model("tiny");
  for (const char* line :
       {"gbs2 seq16 recompute=full", "gbs2 seq16 recompute=selective",
        "tp2 gbs2 seq16 sp recompute=selective:core_attn+layernorm+mlp",
        "tp2 pp2 gbs4 seq16 sp recompute=full:1", "dp2 zero3 gbs4 seq16 recompute=full"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("experts compute what one rank does, wherever they live") {
  const ModelSpec model = load_model("tiny-moe");
  for (const char* line :
       {"dp2 gbs4 seq16", "dp2 ep2 gbs4 seq16", "dp4 ep4 zero1 gbs8 seq16",
        "tp2 ep2 gbs2 seq16 sp etp1", "tp2 dp2 ep2 etp2 gbs4 seq16 sp",
        "tp2 dp2 ep1 etp2 zero2 gbs4 seq16 sp", "dp4 ep2 zero3 gbs8 seq16",
        "pp2 dp2 ep2 gbs8 seq16 recompute=full", "dp8 ep8 gbs8 seq16",
        "tp2 dp2 ep4 etp1 zero1 gbs4 seq16 sp recompute=selective:moe_act+moe"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE(
    "context parallelism computes what one rank does, by ring, gather and exchange of heads") {
  const ModelSpec model = load_model("tiny");
  for (const char* line :
       {"cp2 gbs2 seq16 cp_comm=all_gather", "cp2 gbs4 mbs2 seq16 cp_comm=a2a", "cp2 gbs2 seq16",
        "cp4 gbs4 mbs2 seq32", "cp2 tp2 dp2 zero2 gbs4 seq32 sp",
        "cp4 gbs2 seq32 cp_comm=a2a recompute=full",
        "cp2 pp2 gbs4 seq16 cp_comm=all_gather zb-h1"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("latent attention, groups of experts and shared experts compute what one rank does") {
  const ModelSpec model = load_model("tiny-mla");
  for (const char* line :
       {"gbs2 mbs2 seq16", "tp2 gbs2 seq16 sp", "dp2 ep2 zero1 gbs4 seq16",
        "tp4 dp2 ep4 zero3 gbs4 seq16 sp", "pp2 tp2 ep2 gbs4 seq16 sp recompute=full",
        "tp2 gbs2 seq16 sp recompute=selective:mla_up_proj+shared_experts", "cp2 gbs2 seq16"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("a vision tower's tokens and deepstack compute what one rank does") {
  const ModelSpec model = load_model("tiny-vl");
  for (const char* line : {"gbs4 mbs2 seq16",
                           "gbs2 seq64",
                           "gbs2 mbs2 seq32 recompute=full",
                           "gbs2 seq16 recompute=selective:layernorm+mlp+core_attn",
                           "dp2 zero1 gbs4 seq16",
                           "dp2 zero2 gbs4 seq16",
                           "dp2 ep2 zero3 gbs8 seq16",
                           "dp4 zero1 fsdp_shard=2 gbs8 seq16",
                           "tp2 ep2 etp1 gbs4 mbs2 seq16 sp",
                           "tp4 gbs2 seq16 sp",
                           "tp2 dp2 zero3 gbs8 mbs2 seq32 sp overlap=tp+grad",
                           "pp2 gbs4 seq16 1f1b",
                           "pp2 gbs8 seq16 gpipe recompute=full",
                           "pp2 gbs8 seq16 zb-h1",
                           "pp2 gbs8 seq16 dualpipe",
                           "tp2 pp2 dp2 ep2 zero1 gbs8 seq16 sp",
                           "tp2 pp2 ep2 etp1 gbs8 mbs2 seq16 sp zb-h1",
                           "cp2 gbs4 mbs2 seq16",
                           "cp2 ep2 gbs4 seq32 cp_comm=all_gather recompute=full",
                           "tp2 cp2 dp2 ep2 etp1 zero2 gbs8 mbs2 seq32 sp cp_comm=a2a",
                           "cp4 pp2 gbs8 seq32 zb-h1"}) {
    check_against_one_rank(model, line);
  }
  // Experts want sequence parallelism; a dense model does without.
  for (const char* line :
       {"tp2 gbs4 mbs2 seq16", "tp4 pp2 gbs4 seq16 zb-h1", "tp2 dp2 zero3 gbs4 seq32"}) {
    check_against_one_rank(dense_vision_model(), line);
  }
}

TEST_CASE("a tied embedding has one gradient, however its uses and its shards are spread") {
  for (const ModelSpec& model : {tied_model(), tied_gpt_model()}) {
    for (const char* line :
         {"gbs2 seq16", "dp2 zero2 gbs4 seq16", "dp3 zero3 gbs6 seq16", "pp2 gbs4 seq16 1f1b",
          "pp2 dp2 zero1 gbs8 seq16 overlap=grad", "pp2 dp2 zero2 gbs8 seq16 gpipe overlap=grad",
          "pp2 dp3 zero3 gbs12 seq16 interleaved vpp2", "tp2 pp2 dp2 zero3 gbs8 seq16 1f1b sp",
          "tp2 pp2 dp2 zero1 gbs8 seq16 zb-h1 sp", "tp2 dp2 zero2 gbs4 seq16 sp",
          "pp2 dp2 zero1 gbs8 seq16 zbv vpp2 overlap=grad+param",
          "pp2 gbs4 seq16 zbv vpp2 overlap=grad", "pp4 gbs16 seq16 dualpipe overlap=grad",
          "pp2 dp2 zero1 gbs16 seq16 dualpipe overlap=grad+param",
          "pp2 dp4 zero3 fsdp_shard=2 gbs8 seq16 1f1b"}) {
      check_against_one_rank(model, line);
    }
  }
}

TEST_CASE("experts of limited capacity take and drop the same tokens, wherever they live") {
  // Capacity is of what one rank has at once (Megatron's): the same tokens there, the same drops.
  // What does not change them: ep, etp, pp, dp, ZeRO, schedule, recomputation.
  for (const ModelSpec& model : {balanced_model(), load_model("tiny-mla")}) {
    const ParallelPlan dropless = plan_of("gbs8 mbs2 seq16");
    ParallelPlan dropping = dropless;
    dropping.moe_capacity_factor = 1;
    CHECK(result_of(model, dropless).loss[0] != result_of(model, dropping).loss[0]);
    for (const char* line :
         {"dp2 gbs8 mbs2 seq16 capacity=1", "dp4 ep4 zero1 gbs8 mbs2 seq16 capacity=1",
          "pp2 dp2 ep2 zero2 gbs8 mbs2 seq16 capacity=0.5 gpipe",
          "pp2 dp2 ep2 gbs8 mbs2 seq16 capacity=1.25 zb-h1 recompute=selective:moe_act+moe",
          "dp4 ep2 etp2 zero3 gbs8 mbs2 seq16 capacity=0.75 recompute=full",
          "pp2 dp2 ep2 gbs16 mbs2 seq16 dualpipe capacity=1"}) {
      check_against_one_rank(model, line);
    }
  }
  const ModelSpec model = load_model("tiny-moe");
  for (const char* line :
       {"tp2 ep2 gbs8 seq16 sp capacity=1", "tp2 dp2 ep4 zero1 gbs8 seq16 sp capacity=1",
        "tp2 pp2 dp2 ep2 etp2 zero1 gbs8 seq16 sp capacity=1"}) {
    check_against(model, plan_of("tp2 gbs8 seq16 sp capacity=1"), plan_of(line));
  }
  for (const char* line :
       {"cp2 ep2 gbs8 seq16 capacity=1", "cp2 dp2 ep4 zero3 gbs8 seq16 capacity=1",
        "cp2 pp2 dp2 ep2 gbs8 seq16 cp_comm=a2a capacity=1"}) {
    check_against(model, plan_of("cp2 gbs8 seq16 capacity=1"), plan_of(line));
  }
}

TEST_CASE("multi-token prediction computes what one rank does, wherever its table is") {
  const ModelSpec model = predicting_model();
  for (const char* line :
       {"gbs4 mbs2 seq16", "dp2 zero3 gbs4 seq16", "tp2 gbs2 seq16 sp", "pp2 gbs4 seq16 1f1b",
        "pp2 dp2 ep2 zero2 gbs8 seq16 gpipe overlap=grad",
        "tp2 pp2 dp2 ep2 zero1 gbs8 seq16 sp zb-h1", "cp2 dp2 zero3 gbs4 seq16",
        "pp2 dp2 zero3 gbs8 seq16 interleaved vpp2", "pp2 gbs4 seq16 zbv vpp2 overlap=grad",
        "pp2 dp2 zero1 gbs8 seq16 dualpipe", "pp4 gbs8 seq16 recompute=full",
        "tp2 dp2 ep4 etp1 zero1 gbs4 seq16 sp recompute=selective:moe_act+mla_up_proj"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("attention in chunks and experts that read scaled tokens compute what one rank does") {
  const ModelSpec model = chunked_model();
  for (const char* line :
       {"gbs4 mbs2 seq32", "gbs2 mbs2 seq16 recompute=full", "dp2 zero3 gbs4 seq32",
        "tp2 sp ep2 etp1 gbs2 seq32", "tp2 sp dp2 ep2 etp2 zero1 gbs4 seq32", "tp8 sp gbs2 seq32",
        "pp4 gbs4 seq32 1f1b", "pp2 dp2 ep2 zero1 gbs8 seq32 zb-h1",
        "cp2 gbs4 mbs2 seq32 cp_comm=a2a", "tp2 sp cp2 gbs2 seq32 cp_comm=a2a",
        "cp2 gbs2 seq32 cp_comm=a2a recompute=selective:core_attn+moe_act"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("Gated DeltaNet computes what one rank does, wherever its heads are") {
  ModelSpec apart = delta_net_model();  // Qwen3.5's projections
  apart.name += ", projected apart";
  apart.delta_net->packed_projections = false;
  for (const ModelSpec& model : {delta_net_model(), apart}) {
    for (const char* line :
         {"gbs4 mbs2 seq16", "gbs2 seq16 recompute=full",
          "gbs2 seq16 recompute=selective:gdn_norm_out+layernorm", "dp2 zero3 gbs4 seq16",
          "tp2 sp ep2 etp1 gbs2 seq16", "tp4 sp dp2 zero2 gbs4 seq16", "pp4 gbs4 seq16 1f1b",
          "tp2 pp2 dp2 ep2 zero1 gbs8 seq16 sp zb-h1", "dp2 zero1 gbs4 seq16 lora2",
          "tp2 sp gbs4 seq16 lora2 lora_targets=in_proj+out_proj", "cp2 gbs4 mbs2 seq16",
          "cp2 tp2 sp gbs2 seq32 cp_comm=a2a recompute=full",
          "cp4 gbs2 seq32 cp_comm=all_gather"}) {
      check_against_one_rank(model, line);
    }
  }
}

TEST_CASE("Mamba-2 and layers of one part compute what one rank does, wherever their heads are") {
  const ModelSpec model = mamba_model();
  for (const char* line :
       {"gbs4 mbs2 seq16", "gbs2 seq16 recompute=full", "gbs2 seq16 recompute=selective:layernorm",
        "dp2 zero3 gbs4 seq16", "tp2 sp ep2 etp1 gbs2 mbs2 seq16", "tp4 sp dp2 zero2 gbs4 seq16",
        "pp4 gbs4 seq16 1f1b", "tp2 pp2 dp2 ep2 zero1 gbs8 seq16 sp zb-h1",
        "dp2 zero1 gbs4 seq16 lora2", "tp2 sp gbs4 seq16 lora2 lora_targets=in_proj+out_proj",
        "cp2 gbs4 mbs2 seq16", "cp2 tp2 sp gbs2 seq32 cp_comm=a2a recompute=full",
        "cp4 gbs2 seq32 cp_comm=all_gather"}) {
    check_against_one_rank(model, line);
  }
}

TEST_CASE("other optimizers step as on one rank, and train") {
  for (const char* name : {"tiny", "tiny-moe"}) {
    const ModelSpec model = load_model(name);
    const bool experts = model.moe.has_value();
    for (const std::string optimizer : {"sgd", "muon", "adafactor"}) {
      for (const std::string& line :
           {std::string("dp2 gbs4 seq16 optimizer="), std::string("pp2 gbs4 seq16 1f1b optimizer="),
            std::string(experts ? "dp2 ep2 etp1 gbs4 seq16 optimizer="
                                : "cp2 gbs2 seq16 optimizer=")}) {
        check_against_one_rank(model, line + optimizer);
      }
    }
    for (const char* line :
         {"dp2 zero1 gbs4 seq16 optimizer=sgd", "tp2 gbs2 seq16 sp optimizer=sgd",
          "dp2 zero3 gbs4 seq16 optimizer=sgd"}) {
      check_against_one_rank(model, line);
    }
  }
  const ModelSpec model = load_model("tiny");
  for (const char* line : {"optimizer=sgd", "optimizer=muon", "optimizer=adafactor"}) {
    CAPTURE(line);
    RunOptions options = five_steps(model);
    options.optimizer.adamw.lr = std::string_view(line) == "optimizer=sgd" ? 0.1 : 3e-3;
    const TokenSource tokens = seeded_tokens(1, model.vocab_size);
    options.tokens = [&](std::int64_t sequence, std::span<std::int32_t> ids) {
      tokens(sequence % 4, ids);  // the same batch every step
    };
    const RunResult result =
        run(model, plan_of("gbs4 seq16 " + std::string(line)), kFacts, options);
    CHECK(result.loss.back() < result.loss.front() - 0.05);
  }
}

TEST_CASE("a checkpoint is refused where it would not hold the optimizer's states") {
  const ModelSpec model = load_model("tiny");
  RunOptions options = five_steps(model);
  options.save = "never-written";
  CHECK_THROWS_AS(run(model, plan_of("gbs4 seq16 optimizer=muon"), kFacts, options), Error);
}

TEST_CASE("an optimizer on the host computes what one on the device does") {
  const ModelSpec model = load_model("tiny");
  for (const char* line :
       {"gbs2 seq16 offload=optimizer:0.5", "dp2 zero1 gbs2 seq16 offload=optimizer",
        "dp2 zero3 gbs2 seq16 offload=optimizer:0.25"}) {
    check_against_one_rank(model, line);
  }
  // Of an odd number of elements a half is not the half of the bytes: those of the device once
  // reached 6 bytes into the next slot.
  check_against_one_rank(smaller(biased_model()),
                         "cp4 dp3 zero1 gbs24 seq32 cp_comm=all_gather offload=optimizer:0.5");
}

namespace {

// All parameters' gradients as one vector.
double whole_distance(const ModelTensors& a, const ModelTensors& b) {
  std::vector<float> all_a, all_b;
  for (std::size_t i = 0; i < a.size(); ++i) {
    all_a.insert(all_a.end(), a[i].begin(), a[i].end());
    all_b.insert(all_b.end(), b[i].begin(), b[i].end());
  }
  return distance(all_a, all_b);
}

}  // namespace

// Plans round at different places: partial sums of tensor-parallel ranks, merged parts of a ring,
// gradients of microbatches. Each rounding is by up to 2^-8, and a gradient has gone through some
// tens of them, so two plans' gradients are a few round-offs apart, as either is from fp32's
// (transformers_test.cpp). A token whose choice of experts hangs on a rounding changes sides: of 16
// tokens or more one or two, with all their part of the experts' gradients.
TEST_CASE("in bf16 any plan of a tiny model computes what one rank does, to bf16's accuracy") {
  const std::vector<ModelSpec> models = {load_model("tiny"), load_model("tiny-moe"),
                                         load_model("tiny-mla"), dense_vision_model()};
  TinyPlans plans(12);
  const int rounds = test_rounds(40);
  for (int i = 0; i < rounds; ++i) {
    const ModelSpec& model = models[static_cast<std::size_t>(i) % models.size()];
    ParallelPlan plan = plans.next(model);
    plan.precision = Precision::bf16;
    CAPTURE(model.name);
    const std::string line = to_string(plan);
    CAPTURE(line);
    const ParallelPlan one_rank = alone(plan);
    const RunResult& one = result_of(model, one_rank);
    const RunResult many = run(model, plan, kFacts, five_steps(model));
    const double apart = whole_distance(many.gradients, one.gradients);
    CHECK(std::abs(many.loss[0] / one.loss[0] - 1) < 0x1p-9);
    CHECK(apart < (model.moe ? 0.2 : 0x1p-5));
    for (std::size_t step = 0; step < one.loss.size(); ++step) {
      CHECK(std::abs(many.loss[step] / one.loss[step] - 1) < 0x1p-8);
    }
    check_memory(model, plan, many);
  }
}

// fp8 rounds products' operands to 2^-4 (gradients' to 2^-3) instead of 2^-9. A number is rounded
// alike on whatever rank it is, for scales are powers of two; but one that differs in its last bit
// of bf16, behind a sum over ranks, may go to the next of fp8.
TEST_CASE("in fp8 any plan of a tiny model computes what one rank does, to fp8's accuracy") {
  const std::vector<ModelSpec> models = {load_model("tiny"), load_model("tiny-moe"),
                                         load_model("tiny-mla")};
  TinyPlans plans(13);
  const int rounds = test_rounds(16);
  for (int i = 0; i < rounds; ++i) {
    const ModelSpec& model = models[static_cast<std::size_t>(i) % models.size()];
    ParallelPlan plan;
    do {
      plan = plans.next(model);
      plan.precision = Precision::fp8;
      plan.seq_len = 64;  // a rank's tokens come in multiples of 16
    } while (!broken_rule(model, plan, recipe_of(RecipeKind::qplan), {plan.world(), 90}).empty());
    CAPTURE(model.name);
    const std::string line = to_string(plan);
    CAPTURE(line);
    const RunResult& one = result_of(model, alone(plan));
    RunOptions options = five_steps(model);
    options.shuffle = 5;
    const RunResult many = run(model, plan, kFacts, options);
    CHECK(many.in_program_order);
    CHECK(std::abs(many.loss[0] / one.loss[0] - 1) < 0x1p-9);
    const double apart = whole_distance(many.gradients, one.gradients);
    CHECK(apart < (model.moe ? 0.2 : 0x1p-3));
    for (std::size_t step = 0; step < one.loss.size(); ++step) {
      CHECK(std::abs(many.loss[step] / one.loss[step] - 1) < 0x1p-8);
    }
    check_memory(model, plan, many);
  }
}

// Of 256 tokens, so that roundings average out.
TEST_CASE("in fp8 a tiny model trains as in bf16") {
  for (const char* name : {"tiny", "tiny-moe"}) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    RunOptions options = five_steps(model);
    options.steps = 20;
    options.tokens = [all = options.tokens](std::int64_t sequence, auto ids) {
      all(sequence % 4, ids);  // the same batch in every step, or there is nothing to learn
    };
    const auto train = [&](const char* precision) {
      return run(model, plan_of("gbs4 seq64 precision=" + std::string(precision)), kFacts, options);
    };
    const RunResult wide = train("bf16"), narrow = train("fp8");
    CHECK(wide.loss.back() < wide.loss.front() - 1);
    for (std::size_t step = 0; step < wide.loss.size(); ++step) {
      CHECK(std::abs(narrow.loss[step] / wide.loss[step] - 1) < 0.01);
    }
    const double apart = whole_distance(narrow.gradients, wide.gradients);
    CHECK(apart > 0x1p-9);  // it is another precision
    CHECK(apart < 0.25);
  }
}

TEST_CASE("any plan of a tiny model computes what one rank does, in the memory predicted for it") {
  const std::vector<ModelSpec> models = tiny_models();
  TinyPlans plans(11);
  const int rounds = test_rounds(300);
  for (int i = 0; i < rounds; ++i) {
    const ModelSpec& model = models[static_cast<std::size_t>(i) % models.size()];
    check_against_one_rank(model, plans.next(model));
  }
}
