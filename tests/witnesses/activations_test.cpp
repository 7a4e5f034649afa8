// Bytes that one token of one layer leaves for backward: docs/reference/physics.md 5.2
// (Megatron-Core with fused attention, checked against SimuMax's B200 runs) and Korthikanti et al.
// 2022 (arXiv 2205.05198).
#include "costmodel/fold/block_cost.h"
#include "tests/models/layer_blocks.h"
#include "tests/witnesses/witness.h"

using namespace qplan;

namespace {

BlockShape layer_of(const ModelSpec& model, std::int64_t seq_len, int tp = 1, bool sp = false) {
  BlockShape s = layer_shape(model.layers.back(), tp);
  s.seq_len = seq_len;
  s.sequence_parallel = sp;
  return s;
}

double korthikanti(const ModelSpec& m, std::int64_t s) {
  return static_cast<double>(34 * m.hidden_size + 5 * m.num_attention_heads * s);
}

}  // namespace

TEST_CASE("witness: activation bytes a token and layer are those of the published table") {
  const std::vector<std::pair<std::string, double>> table = {
      {"llama3-8b", 139392},   {"llama3-70b", 274688},    {"llama3-405b", 520704},
      {"qwen3-32b", 250112},   {"qwen3-30b-a3b", 114368}, {"qwen3-235b-a22b", 225088},
      {"mixtral-8x7b", 241840}};
  for (const auto& [name, bytes] : table) {
    const ModelSpec model = load_model(name);
    const double ours = kept_per_token(model, RecipeKind::megatron, layer_of(model, 4096));
    const double error = witness("activations/token/layer " + name, bytes, ours, "B");
    // Experts: we also keep the row map, 8 bytes for each of the k copies.
    CHECK(std::abs(error) < (model.moe ? 0.001 : 1e-12));
  }
}

// Transformer Engine v2.12: of what a linear layer reads a quantised copy is kept, for the weight's
// gradient alone: turned or in blocks along the other side (_Linear.forward, update_usage), under
// sequence parallelism this rank's share of it, in rows where those alone are gathered
// (Float8Tensor). Norms keep their input, attention its queries, keys, values and output as they
// are, and the output projection that output in place of a copy (set_save_original_input in
// Megatron-LM's attention.py, from Transformer Engine 2.6 on); SwiGLU keeps both its halves
// (activation_func_fp8_input_store is off). A copy is 1 byte a number, in NVFP4 a half.
TEST_CASE("witness: activation bytes a token and layer in fp8, by Transformer Engine's code") {
  for (const auto& [name, tp] : {std::pair{"llama3-8b", 1}, {"llama3-70b", 4}}) {
    const ModelSpec model = load_model(name);
    const auto h = static_cast<double>(model.hidden_size);
    const auto f = static_cast<double>(model.intermediate_size);
    const auto q = static_cast<double>(model.num_attention_heads * model.head_dim);
    const auto kv = static_cast<double>(model.num_key_value_heads * model.head_dim);
    for (const Precision precision : {Precision::fp8, Precision::mxfp8, Precision::nvfp4}) {
      BlockShape s = layer_of(model, 4096, tp, tp > 1);
      s.precision = precision;
      const double copy = precision == Precision::nvfp4 ? 0.5 : 1;
      const double log_sum_exp = 4.0 * static_cast<double>(model.num_attention_heads);
      const double norms = 2 * (2 + copy) * h, attention = 2 * (q + 2 * kv + q) + log_sum_exp;
      const double mlp = 2 * 2 * f + copy * f;
      const double kept = (norms + attention + mlp) / tp;
      const double ours = kept_per_token(model, RecipeKind::megatron, s);
      CHECK(std::abs(witness(fmt::format("activations/token/layer {} {}", name, to_word(precision)),
                             kept, ours, "B")) < 1e-12);
    }
  }
  // Experts: their rows and what SwiGLU makes of them; the norm's output stays for the router.
  const ModelSpec model = load_model("qwen3-30b-a3b");
  BlockShape s = layer_of(model, 4096);
  s.precision = Precision::mxfp8;
  const double kept = 114368 - 2048 - 8 * (2048 + 768);
  CHECK(std::abs(witness("activations/token/layer qwen3-30b-a3b mxfp8", kept,
                         kept_per_token(model, RecipeKind::megatron, s), "B")) < 0.001);
}

TEST_CASE("a shared expert keeps both halves of its SwiGLU and what its second product reads") {
  ModelSpec model = load_model("qwen3-30b-a3b");
  const auto kept = [&](std::int64_t shared, Precision precision) {
    model.moe->shared_expert_intermediate_size = shared;
    BlockShape s = layer_of(model, 4096);
    s.precision = precision;
    return kept_per_token(model, RecipeKind::megatron, s);
  };
  const auto added = [&](Precision p) { return kept(2048, p) - kept(0, p); };
  CHECK(added(Precision::bf16) == (4 + 2) * 2048);
  CHECK(added(Precision::mxfp8) == (4 + 1) * 2048);
}

TEST_CASE("witness: sequence parallelism divides all of a layer's activations by tp") {
  for (const char* name : {"llama3-70b", "qwen3-32b"}) {
    const ModelSpec model = load_model(name);
    const double whole = kept_per_token(model, RecipeKind::megatron, layer_of(model, 4096));
    for (const int tp : {2, 4, 8}) {
      const double share =
          kept_per_token(model, RecipeKind::megatron, layer_of(model, 4096, tp, true));
      CHECK(share * tp == whole);
    }
  }
}

TEST_CASE("witness: without sequence parallelism 8h of them stay whole") {
  const ModelSpec model = load_model("llama3-70b");
  const auto whole_part = static_cast<double>(8 * model.hidden_size);
  const double at_one = kept_per_token(model, RecipeKind::megatron, layer_of(model, 4096));
  const double at_eight =
      kept_per_token(model, RecipeKind::megatron, layer_of(model, 4096, 8, false));
  CHECK(at_eight == whole_part + (at_one - whole_part) / 8);
}

TEST_CASE("witness: Megatron of 2022 keeps 34h + 5as bytes a token and layer") {
  for (const char* name : {"megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"}) {
    const ModelSpec model = load_model(name);
    const double ours = kept_per_token(model, RecipeKind::megatron_legacy, layer_of(model, 2048));
    const double error =
        witness(std::string("34h + 5as ") + name, korthikanti(model, 2048), ours, "B");
    // Ours adds the log-sum-exp, 4a: 0.03%.
    CHECK(std::abs(error) < 0.001);
  }
}

TEST_CASE("witness: tensor parallelism keeps 10h + 24h/t + 5as/t, with sequence parallelism 1/t") {
  const ModelSpec model = load_model("megatron-22b");
  const auto h = static_cast<double>(model.hidden_size);
  const auto scores = static_cast<double>(5 * model.num_attention_heads * 2048);
  const double plain =
      kept_per_token(model, RecipeKind::megatron_legacy, layer_of(model, 2048, 8, false));
  CHECK(std::abs(witness("10h + 24h/t + 5as/t", 10 * h + 24 * h / 8 + scores / 8, plain, "B")) <
        0.001);
  const double sequence =
      kept_per_token(model, RecipeKind::megatron_legacy, layer_of(model, 2048, 8, true));
  CHECK(std::abs(witness("(34h + 5as)/t", korthikanti(model, 2048) / 8, sequence, "B")) < 0.001);
}

TEST_CASE("witness: selective recomputation of 2022 leaves 34h") {
  const ModelSpec model = load_model("megatron-22b");
  BlockShape s = layer_of(model, 2048);
  s.recompute = RecomputeKind::selective;
  s.recompute_modules = recipe_of(RecipeKind::megatron_legacy).keeps.selective;
  CHECK(std::abs(witness("34h, selective", static_cast<double>(34 * model.hidden_size),
                         kept_per_token(model, RecipeKind::megatron_legacy, s), "B")) < 0.001);
}

TEST_CASE("witness: full recomputation of 2022 leaves 2h") {
  const ModelSpec model = load_model("megatron-22b");
  BlockShape s = layer_of(model, 2048);
  s.recompute = RecomputeKind::full;
  CHECK(kept_per_token(model, RecipeKind::megatron_legacy, s) ==
        static_cast<double>(2 * model.hidden_size));
}
