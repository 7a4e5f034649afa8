// Training FLOPs a token by Megatron's convention: 3 x forward, causal halved, head included.
// Megatron-Bridge's published tokens/s and TFLOP/s agree with these to 0.5%
// (docs/reference/physics.md 2.2).
#include "tests/witnesses/witness.h"

using namespace qplan;

TEST_CASE("witness: model FLOPs a token are those that published tokens/s and TFLOP/s imply") {
  struct Row {
    const char* model;
    std::int64_t seq_len;
    double gigaflops;
  };
  const std::vector<Row> table = {
      {"qwen3-32b", 4096, 204.8},        {"qwen3-32b", 8192, 217.7},
      {"qwen3-32b", 32768, 295.0},       {"qwen3-32b", 131072, 604.2},
      {"qwen3-30b-a3b", 4096, 23.08},    {"qwen3-30b-a3b", 8192, 27.91},
      {"qwen3-30b-a3b", 32768, 56.90},   {"qwen3-30b-a3b", 131072, 172.9},
      {"qwen3-235b-a22b", 4096, 148.33}, {"qwen3-235b-a22b", 8192, 167.26},
      {"qwen3-235b-a22b", 32768, 280.8}, {"qwen3-235b-a22b", 131072, 735.0},
      {"llama3-8b", 4096, 48.25},        {"llama3-8b", 8192, 51.47},
      {"llama3-8b", 131072, 148},        {"llama3-70b", 4096, 433.1},
      {"llama3-70b", 8192, 449.2},       {"llama3-70b", 131072, 932},
      {"llama3-405b", 4096, 2473},       {"llama3-405b", 8192, 2524},
      {"llama3-405b", 131072, 4046},     {"mixtral-8x7b", 4096, 79.7},
      {"mixtral-8x7b", 8192, 82.9},      {"mixtral-8x22b", 4096, 242.2},
      {"mixtral-8x22b", 8192, 250.7},    {"deepseek-v3", 4096, 250.45},
      {"deepseek-v3", 8192, 281.15},     {"deepseek-v3", 32768, 465.4},
      {"deepseek-v3", 131072, 1202}};
  for (const Row& row : table) {
    const double ours = step_model_flops(load_model(row.model), row.seq_len, 1).value() /
                        static_cast<double>(row.seq_len) / 1e9;
    CHECK(std::abs(witness(fmt::format("FLOPs/token {} @{}", row.model, row.seq_len), row.gigaflops,
                           ours, "GFLOP")) < 0.005);
  }
}

TEST_CASE("witness: GPT-3's FLOPs a token at 2k are 1047 linear and 14.5 attention GF") {
  const double ours = step_model_flops(load_model("megatron-175b"), 2048, 1).value() / 2048 / 1e9;
  CHECK(std::abs(witness("FLOPs/token gpt3-175b @2048", 1047 + 14.5, ours, "GFLOP")) < 0.005);
}

TEST_CASE("witness: published tokens/s times our FLOPs are the published TFLOP/s") {
  struct Row {
    const char* model;
    std::int64_t seq_len;
    double tokens_per_s, tflops;
  };
  // Megatron-Bridge performance summaries (067f987), per GPU. Rounded as published.
  const std::vector<Row> table = {
      {"qwen3-30b-a3b", 4096, 8826, 203}, {"qwen3-235b-a22b", 4096, 1686, 250},
      {"llama3-405b", 8192, 326, 822},    {"llama3-8b", 8192, 14451, 744},
      {"llama3-70b", 8192, 1602, 719},    {"deepseek-v3", 4096, 3848, 961}};
  for (const Row& row : table) {
    const double flops = step_model_flops(load_model(row.model), row.seq_len, 1).value() /
                         static_cast<double>(row.seq_len);
    CHECK(std::abs(witness(std::string("TFLOP/s of tokens/s, ") + row.model, row.tflops,
                           row.tokens_per_s * flops / 1e12, "TFLOP/s")) < 0.01);
  }
}

TEST_CASE("FLOPs of a step grow with the sequences, not with the plan") {
  const ModelSpec model = load_model("llama3-8b");
  CHECK(step_model_flops(model, 4096, 8).value() == 8 * step_model_flops(model, 4096, 1).value());
}
