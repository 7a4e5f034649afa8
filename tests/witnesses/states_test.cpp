// Bytes of weights, gradients and optimizer state a parameter: docs/reference/physics.md 5.1,
// docs/reference/frameworks.md 2.2.
#include "tests/witnesses/witness.h"

using namespace qplan;

namespace {

double bytes_per_parameter(const char* line, RecipeKind recipe, bool turns_fp8 = true) {
  const ModelSpec model = load_model("llama3-8b");
  const ParallelPlan plan = parse_plan(line);
  BlockShape s = base_shape(model, plan, recipe_of(recipe), 1, turns_fp8);
  s.layer = model.layers.front();
  const PersistentBytes held = persistent_bytes(build_states(model, recipe_of(recipe), s));
  return held.total().value() / static_cast<double>(rank_parameters(model, s).total());
}

double megatron(const char* line) {
  return bytes_per_parameter(line, RecipeKind::megatron);
}

// Megatron-LM's report_theoretical_memory (d98e8a6), weights and optimizer of the most loaded GPU
// (docs/reference/frameworks.md 8).
struct Theoretical {
  const char* model;
  const char* line;
  double gib;
};

double theoretical_error(const Theoretical& row) {
  const WitnessJob job(load_model(row.model), "h100-sxm", RecipeKind::megatron);
  Bytes most;
  for (const StageMemory& s : job.cost.memory(parse_plan(row.line)).stages) {
    most = std::max(most, s.weights + s.gradients + s.optimizer);
  }
  return witness(fmt::format("theoretical states {} {}", row.model, row.line), row.gib,
                 in_gib(most), "GiB");
}

}  // namespace

TEST_CASE("witness: Megatron without a distributed optimizer holds 18 bytes a parameter") {
  CHECK(megatron("dp4 zero0 gbs8") == doctest::Approx(18).epsilon(1e-5));
}

TEST_CASE("witness: with a distributed optimizer 6 + 12/d") {
  for (const int d : {2, 8, 64}) {
    const std::string line = fmt::format("dp{} zero1 gbs{}", d, d);
    CHECK(megatron(line.c_str()) == doctest::Approx(6 + 12.0 / d).epsilon(1e-5));
  }
}

TEST_CASE("witness: context-parallel ranks share the optimizer too") {
  CHECK(megatron("dp4 cp2 zero1 gbs8") == doctest::Approx(6 + 12.0 / 8).epsilon(1e-5));
}

TEST_CASE("witness: bf16 gradients and a two-byte main remainder hold 4 + 10/d") {
  CHECK(megatron("dp8 zero1 gbs8 grad_dtype=bf16 main_params_dtype=bf16") ==
        doctest::Approx(4 + 10.0 / 8).epsilon(1e-5));
}

TEST_CASE("witness: and with bf16 moments 4 + 6/d") {
  CHECK(megatron("dp8 zero1 gbs8 grad_dtype=bf16 main_params_dtype=bf16 moment_dtype=bf16") ==
        doctest::Approx(4 + 6.0 / 8).epsilon(1e-5));
}

TEST_CASE(
    "witness: fp8 parameters hold a byte less than bf16's, unless a transposed copy joins them") {
  const char* line = "dp8 zero1 gbs8 grad_dtype=bf16 precision=fp8";
  CHECK(megatron(line) == doctest::Approx(4 + 12.0 / 8).epsilon(1e-5));
  // All but two norms of 4096 are linear layers' weights.
  CHECK(bytes_per_parameter(line, RecipeKind::megatron, false) ==
        doctest::Approx(3 + 12.0 / 8).epsilon(1e-4));
  CHECK(bytes_per_parameter(line, RecipeKind::megatron_deepspeed, false) ==
        doctest::Approx(4 + 12.0 / 8).epsilon(1e-5));
  const char* mxfp8 = "dp8 zero1 gbs8 grad_dtype=bf16 precision=mxfp8";
  CHECK(bytes_per_parameter(mxfp8, RecipeKind::megatron, false) ==
        doctest::Approx(4 + 12.0 / 8).epsilon(1e-5));
}

// Transformer Engine's get_weight_workspace (module/base.py, v2.12) caches the cast weight, in rows
// and, for the input's gradient, turned (Hopper) or in blocks along the other side (MXFP8).
TEST_CASE("witness: beside weights of 16 bits fp8 holds copies of them, a byte each") {
  const auto held = [](const char* words, bool turns_fp8) {
    return bytes_per_parameter(fmt::format("dp8 gbs8 {}", words).c_str(), RecipeKind::megatron,
                               turns_fp8);
  };
  const double whole = 4 + 12.0 / 8;
  const char* tensorwise = "zero1 grad_dtype=bf16 precision=fp8 fp8_param_gather=false";
  CHECK(held(tensorwise, true) == doctest::Approx(whole + 2).epsilon(1e-4));
  CHECK(held(tensorwise, false) == doctest::Approx(whole + 1).epsilon(1e-4));
  const char* blocks = "zero1 grad_dtype=bf16 precision=mxfp8 fp8_param_gather=false";
  CHECK(held(blocks, false) == doctest::Approx(whole + 2).epsilon(1e-4));
  // Megatron keeps weights in fp8 alone with a distributed optimizer on the GPU only.
  CHECK(held("zero0 precision=fp8", true) == doctest::Approx(18 + 2).epsilon(1e-4));
  CHECK(held("zero1 precision=fp8 offload=optimizer:1", true) ==
        doctest::Approx(6 + 2).epsilon(1e-4));
}

TEST_CASE("a plan's memory has the copies of weights that fp8 keeps beside them") {
  const WitnessJob job(load_model("llama3-70b"), "h100-sxm", RecipeKind::megatron);
  const auto weights = [&](const char* words) {
    const std::string line = fmt::format("tp4 pp4 dp4 zero1 gbs16 sp precision=fp8 {}", words);
    return in_gib(job.cost.memory(parse_plan(line)).stages[1].weights);
  };
  CHECK(weights("fp8_param_gather=false") == doctest::Approx(2 * weights("")).epsilon(1e-3));
}

TEST_CASE("fp8 weights take half the memory on a GPU that multiplies them as they lie") {
  const auto weights = [](const char* hardware, const char* precision) {
    const WitnessJob job(load_model("llama3-70b"), hardware, RecipeKind::megatron);
    const ParallelPlan plan =
        parse_plan(fmt::format("tp4 pp4 dp4 zero1 gbs16 sp precision={}", precision));
    return in_gib(job.cost.memory(plan).stages[1].weights);
  };
  CHECK(weights("h100-sxm", "fp8") == doctest::Approx(weights("h100-sxm", "bf16")));
  CHECK(weights("gb200", "fp8") == doctest::Approx(weights("gb200", "bf16") / 2).epsilon(1e-3));
}

TEST_CASE("witness: fp16 holds 20 bytes, or 4 + 16/d") {
  CHECK(megatron("dp8 zero0 gbs8 precision=fp16") == doctest::Approx(20).epsilon(1e-5));
  CHECK(megatron("dp8 zero1 gbs8 precision=fp16") == doctest::Approx(4 + 16.0 / 8).epsilon(1e-5));
}

// docs/reference/physics.md 5.3: 12P/N, and 4P/N more if gradients accumulate.
TEST_CASE("nanotron's gradients are in DDP's buckets once more where ranks share them") {
  const auto nanotron = [](const char* line) {
    return bytes_per_parameter(line, RecipeKind::nanotron);
  };
  CHECK(nanotron("zero0 gbs8") == doctest::Approx(18).epsilon(1e-5));
  CHECK(nanotron("dp4 zero0 gbs8") == doctest::Approx(20).epsilon(1e-5));
  CHECK(nanotron("dp4 zero1 gbs8") == doctest::Approx(8 + 12.0 / 4).epsilon(1e-5));
}

TEST_CASE("witness: FSDP2 holds fp32 parameters and moments, and gradients if they accumulate") {
  for (const int n : {8, 64}) {
    const auto held = [n](int microbatches) {
      const std::string line = fmt::format("dp{} zero3 gbs{}", n, n * microbatches);
      return bytes_per_parameter(line.c_str(), RecipeKind::fsdp2);
    };
    CHECK(held(1) == doctest::Approx(12.0 / n).epsilon(1e-5));
    CHECK(held(2) == doctest::Approx(16.0 / n).epsilon(1e-5));
  }
}

TEST_CASE("witness: an offloaded optimizer leaves 6 bytes") {
  CHECK(megatron("dp8 zero1 gbs8 offload=optimizer:1") == doctest::Approx(6).epsilon(1e-5));
  CHECK(megatron("dp8 zero1 gbs8 offload=optimizer:0.5") ==
        doctest::Approx(6 + 6.0 / 8).epsilon(1e-5));
}

TEST_CASE("witness: Megatron's own theoretical weights and optimizer, stages of equal layers") {
  for (const Theoretical& row :
       {Theoretical{"qwen3-30b-a3b", "tp4 ep8 etp1 dp2 zero1 gbs8 sp", 65.16},
        Theoretical{"qwen3-30b-a3b", "ep16 dp16 zero1 gbs16", 40.06},
        Theoretical{"qwen3-32b", "tp8 pp2 dp1 zero1 gbs16 sp", 34.34},
        Theoretical{"mixtral-8x7b", "pp4 ep8 dp8 zero1 gbs32", 26.89}}) {
    CHECK(std::abs(theoretical_error(row)) < 0.001);
  }
}

// Where layers do not divide, Megatron's estimate gives each stage the same fraction of them and
// adds the embedding (Qwen3-235B: 94/8 layers and the embedding are its 19.50 GiB, by hand); we
// take the real split, whose first stage holds fewer layers. With cp its estimate shards over dp
// alone, Megatron itself and we over dp*cp. DeepSeek's rows we could not reproduce by hand: 12% and
// 22%.
TEST_CASE("witness: Megatron's theoretical states lie above ours where its formula is coarse") {
  for (const Theoretical& row :
       {Theoretical{"qwen3-235b-a22b", "tp2 pp8 vpp4 interleaved ep32 dp16 zero1 gbs512 sp", 19.50},
        Theoretical{"qwen3-235b-a22b", "tp4 pp16 cp2 ep8 dp2 zero1 gbs32 sp", 22.77},
        Theoretical{"qwen3-235b-a22b", "tp4 pp4 cp2 ep16 dp2 zero1 gbs32 sp", 66.05},
        Theoretical{"deepseek-v3", "tp2 pp8 ep64 dp64 zero1 gbs512 sp", 25.13},
        Theoretical{"deepseek-v3", "pp16 ep16 dp16 zero1 gbs256", 67.92}}) {
    const double error = theoretical_error(row);
    CHECK(error < 0);
    CHECK(error > -0.25);
  }
}
