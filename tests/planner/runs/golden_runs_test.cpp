#include "planner/runs/golden_runs.h"

#include <doctest/doctest.h>

#include <fstream>

#include "models/error.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/runs/predict_runs.h"
#include "tests/temporary_folder.h"

namespace qplan {
namespace {

// Hand-written: a small model on 8 H100; what it measured is invented.
const std::string kGolden = QPLAN_TEST_DATA "/golden";
const std::string kCase = kGolden + "/functional_tests/test_cases/gpt/small_tp2_pp2/";

TEST_CASE("golden values are a run of the arguments beside them") {
  const MeasuredRun run = read_golden_run(kCase + "golden_values_dev_dgx_h100.json");
  CHECK(run.unpriced == "");
  REQUIRE(run.inputs);
  CHECK(run.id == "golden-small_tp2_pp2/dev_dgx_h100");
  CHECK(run.hardware == "h100-sxm");
  CHECK(run.inputs->gpus == 8);  // the recipe's
  CHECK(to_string(run.inputs->plan) ==
        "tp2 pp2 dp2 zero1 mbs2 gbs16 seq1024 1f1b sp attention_backend=unfused dropout "
        "loss=unfused");
  // The last half of the steps, in the order of their numbers: 0.25, 0.25 and step 10's 0.5.
  CHECK(run.step_time->value() == 0.25);
  CHECK(run.unsteady);
  CHECK(*run.memory == gib(3));
  CHECK(run.inputs->memory_of == MemoryOf::last_stage);
  const ModelSpec& model = run.inputs->model;
  CHECK(model.vocab_size == 50432);  // 50257 in multiples of 2 x 128
  CHECK(model.mlp == MlpKind::gelu);
  CHECK(model.position == PositionEmbedding::rope);
  CHECK_FALSE(model.mlp_bias);
}

TEST_CASE("a platform that the recipe does not run makes a golden file one of grade C") {
  CHECK(read_golden_run(kCase + "golden_values_dev_dgx_h100.json").grade == "A");
  CHECK(read_golden_run(kCase + "golden_values_dev_dgx_a100.json").grade == "C");
  CHECK(golden_files_below(kGolden).size() == 2);
}

TEST_CASE("the last stage's memory is what golden values are held against") {
  const MeasuredRun run = read_golden_run(kCase + "golden_values_dev_dgx_h100.json");
  const RunPrediction prediction = predict_runs({run}, 1).front();
  REQUIRE(prediction.estimate);
  // The stage with logits and loss has more than the first, which holds one microbatch more.
  const auto& stages = prediction.estimate->memory.stages;
  REQUIRE(stages.size() == 2);
  CHECK(stages[1].peak.value() != stages[0].peak.value());
}

// A test of its own beside no recipe.
MeasuredRun run_with(const std::string& arguments, std::optional<std::int64_t> gpus,
                     const std::string& name = "golden_values_dev_dgx_h100.json") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("model_config.yaml")) << "MODEL_ARGS:\n" << arguments;
  std::ofstream(folder.file(name)) << R"({"lm loss": {"values": {}}})";
  return read_golden_run(folder.file(name), gpus);
}

const std::string kSizes =
    "  --num-layers: 4\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --bf16: true\n"
    "  --micro-batch-size: 1\n  --global-batch-size: 8\n  --seq-length: 1024\n"
    "  --max-position-embeddings: 1024\n";

TEST_CASE("what no argument says of a golden run is said") {
  const std::string whole = kSizes + "  --vocab-size: 1000\n";
  CHECK(run_with(whole, 8).unpriced == "");
  CHECK(run_with(whole, {}).unpriced == "the GPUs are not stated: no recipe lists the test");
  CHECK(run_with(kSizes, 8).unpriced ==
        "the vocabulary is not stated: the tokenizer decides; --vocab-size says it");
  CHECK(run_with(whole, 8, "golden_values_lts.json").unpriced.starts_with("the machine is not"));
  CHECK(run_with(whole + "  --encoder-num-layers: 4\n", 8).unpriced ==
        "an encoder beside a decoder is not modelled");
}

TEST_CASE("golden runs of experts, latent attention and patterns are models of their own") {
  const std::string whole = kSizes + "  --vocab-size: 1000\n";
  const MeasuredRun experts =
      run_with(whole +
                   "  --num-experts: 8\n  --moe-router-topk: 2\n  --expert-model-parallel-size: 2\n"
                   "  --moe-layer-freq: ([0]*1+[1]*3)\n  --moe-grouped-gemm: true\n",
               8);
  REQUIRE(experts.inputs);
  CHECK(experts.inputs->model.moe->num_experts == 8);
  CHECK(experts.inputs->model.moe->expert_bias);
  CHECK_FALSE(experts.inputs->model.layers[0].moe);
  CHECK(experts.inputs->model.layers[3].moe);
  CHECK_FALSE(experts.inputs->single_experts);
  CHECK(run_with(whole + "  --num-experts: 8\n", 8).inputs->single_experts);

  const MeasuredRun latent =
      run_with(whole +
                   "  --multi-latent-attention: true\n  --kv-lora-rank: 64\n  --qk-head-dim: 16\n"
                   "  --qk-pos-emb-head-dim: 8\n  --v-head-dim: 16\n",
               8);
  REQUIRE(latent.inputs);
  CHECK(latent.inputs->model.mla->kv_lora_rank == 64);
  CHECK(latent.inputs->model.mla->q_lora_rank == 0);

  const MeasuredRun hybrid =
      run_with(whole + "  --hybrid-layer-pattern: M-M*\n  --mamba-head-dim: 32\n", 8);
  REQUIRE(hybrid.inputs);
  CHECK(hybrid.inputs->model.mamba->num_heads == 32);
  CHECK(hybrid.inputs->model.layers[1].dense_mlp());
  CHECK(hybrid.inputs->model.layers[3].mixer == Mixer::attention);
}

TEST_CASE("experts one by one are launched one by one") {
  const std::string experts =
      kSizes + "  --vocab-size: 1000\n  --num-experts: 8\n  --moe-router-topk: 2\n";
  const auto host = [](const MeasuredRun& run) {
    return predict_runs({run}, 1).front().estimate->time.host.value();
  };
  const MeasuredRun grouped = run_with(experts + "  --moe-grouped-gemm: true\n", 8);
  // 4 layers, 6 products of 8 experts: 150 us each for 20 us each and 150 once.
  CHECK(host(run_with(experts, 8)) - host(grouped) > 0.8 * 4 * 6 * (8 * 130e-6 - 150e-6));
}

TEST_CASE("layers of torch alone keep their probabilities") {
  const std::string whole = kSizes + "  --vocab-size: 1000\n";
  const auto peak = [](const MeasuredRun& run) {
    return predict_runs({run}, 1).front().estimate->memory.stages.back().peak.value();
  };
  const MeasuredRun engine = run_with(whole, 8);
  const MeasuredRun local = run_with(whole + "  --transformer-impl: local\n", 8);
  CHECK(local.inputs->torch_layers);
  // 4 layers of 8 x 1024 x 1024 scores, 5 bytes each.
  CHECK(peak(local) - peak(engine) > 100e6);
}

TEST_CASE("golden steps that hardly differ are steady") {
  const TemporaryFolder folder;
  const std::string path = folder.file("golden_values_dev_dgx_h100.json");
  std::ofstream(path) << R"({"lm loss": {"values": {}}, "iteration-time": {"values": {)"
                      << R"("1": 9, "2": 1, "3": 1, "4": 1.02, "5": 1.05, "6": 1.02}}})";
  const MeasuredRun run = read_golden_run(path);
  CHECK(run.step_time->value() == 1.02);
  CHECK_FALSE(run.unsteady);
}

TEST_CASE("a golden file without losses is not priced, and any other is no golden file") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("golden_values_dev_dgx_h100.json")) << "{}";
  std::ofstream(folder.file("other.json")) << "{}";
  const MeasuredRun run = read_golden_run(folder.file("golden_values_dev_dgx_h100.json"));
  CHECK_FALSE(run.inputs);
  CHECK(run.unpriced.starts_with("no training: "));
  CHECK_THROWS_AS(read_golden_run(folder.file("other.json")), Error);
}

}  // namespace
}  // namespace qplan
