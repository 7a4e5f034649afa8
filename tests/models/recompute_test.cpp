#include "models/program/recompute.h"

#include <doctest/doctest.h>

#include <numeric>

#include "costmodel/fold/block_cost.h"
#include "models/program/blocks.h"

using namespace qplan;

namespace {

// One decoder layer on one rank, 512 tokens.
BlockShape shape_of(const ModelSpec& model, RecomputeKind kind,
                    std::initializer_list<RecomputeModule> modules = {}) {
  BlockShape s;
  s.layer = model.layers.back();
  s.seq_len = 512;
  s.recompute = kind;
  for (const RecomputeModule m : modules) s.recompute_modules.add(m);
  return s;
}

// Bytes a token of one layer leaves behind for backward, its input included and output not.
double kept_per_token(const ModelSpec& model, RecipeKind recipe, const BlockShape& s) {
  const BlockMemory memory =
      memory_of(build_block(model, recipe_of(recipe), s), BackwardForm::whole);
  const auto tokens = static_cast<double>(s.seq_len);
  return memory.forward.net.value() / tokens;
}

double freed(const ModelSpec& model, RecomputeModule module,
             RecipeKind recipe = RecipeKind::qplan) {
  return kept_per_token(model, recipe, shape_of(model, RecomputeKind::none)) -
         kept_per_token(model, recipe, shape_of(model, RecomputeKind::selective, {module}));
}

double sum(const OpList& ops, Flops (*count)(const Work&)) {
  return std::accumulate(ops.begin(), ops.end(), 0.0, [count](double total, const Op& op) {
    return total + count(op.work).value();
  });
}

double model_flops_of(const Block& block) {
  return sum(block.forward, model_flops) + sum(block.backward, model_flops);
}

}  // namespace

TEST_CASE("full recomputation keeps only the layer's input") {
  for (const char* name : {"llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "megatron-22b"}) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    const BlockShape s = shape_of(model, RecomputeKind::full);
    // The input was there before; what forward adds is its output, the next layer's input: 2h.
    CHECK(kept_per_token(model, RecipeKind::qplan, s) ==
          static_cast<double>(2 * model.hidden_size));
  }
}

TEST_CASE("a reentrant checkpoint runs the whole forward once more: 4/3 of the model's FLOPs") {
  for (const char* name : {"llama3-8b", "qwen3-30b-a3b", "deepseek-v3"}) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    const Recipe& recipe = recipe_of(RecipeKind::megatron);
    const Block none = build_block(model, recipe, shape_of(model, RecomputeKind::none));
    const Block full = build_block(model, recipe, shape_of(model, RecomputeKind::full));
    CHECK(model_flops_of(full) / model_flops_of(none) == doctest::Approx(4.0 / 3).epsilon(1e-12));
    CHECK(sum(full.backward, flops) - sum(none.backward, flops) ==
          doctest::Approx(sum(none.forward, flops)).epsilon(1e-12));
  }
}

TEST_CASE("what backward does not read is not recomputed: the last product of a layer") {
  const ModelSpec model = load_model("llama3-8b");
  const double down = 2.0 * 512 * static_cast<double>(model.hidden_size * model.intermediate_size);
  for (const RecipeKind kind :
       {RecipeKind::qplan, RecipeKind::fsdp1, RecipeKind::fsdp2, RecipeKind::fsdp2_compile}) {
    CAPTURE(to_word(kind));
    const Recipe& recipe = recipe_of(kind);
    const Block none = build_block(model, recipe, shape_of(model, RecomputeKind::none));
    const Block full = build_block(model, recipe, shape_of(model, RecomputeKind::full));
    CHECK(sum(full.backward, flops) - sum(none.backward, flops) ==
          doctest::Approx(sum(none.forward, flops) - down).epsilon(1e-12));
  }
}

TEST_CASE(
    "nor are the messages behind it: the last reduction over tp, the return of experts' rows") {
  const auto again = [](const char* name, CollectiveKind kind, Axis axis) {
    const ModelSpec model = load_model(name);
    BlockShape s = shape_of(model, RecomputeKind::full);
    (axis == Axis::tp ? s.tp : s.ep) = 2;
    const Block block = build_block(model, recipe_of(RecipeKind::qplan), s);
    const auto of_kind = [&](const Op& op) {
      const auto* c = std::get_if<Collective>(&op.work);
      return c != nullptr && c->kind == kind && c->axis == axis;
    };
    const auto once = std::count_if(block.forward.begin(), block.forward.end(), of_kind);
    const auto twice = std::count_if(block.backward.begin(), block.backward.end(),
                                     [&](const Op& op) { return op.recomputed && of_kind(op); });
    return std::pair(once, twice);
  };
  CHECK(again("llama3-8b", CollectiveKind::all_reduce, Axis::tp) == std::pair(2L, 1L));
  CHECK(again("qwen3-30b-a3b", CollectiveKind::all_to_all, Axis::ep) == std::pair(2L, 1L));
}

TEST_CASE("ops that run again say so, and none does without recomputation") {
  const ModelSpec model = load_model("llama3-8b");
  const auto again = [&](RecomputeKind kind) {
    const Block block = build_block(model, recipe_of(RecipeKind::qplan), shape_of(model, kind));
    return std::count_if(block.backward.begin(), block.backward.end(),
                         [](const Op& op) { return op.recomputed; });
  };
  CHECK(again(RecomputeKind::none) == 0);
  CHECK(again(RecomputeKind::full) > 0);
}

// Bytes freed a token and layer: docs/reference/physics.md 5.4 (Megatron-LM's recompute modules).
TEST_CASE("recomputing the core of fused attention frees only the log-sum-exp") {
  const ModelSpec m = load_model("llama3-8b");
  CHECK(freed(m, RecomputeModule::core_attn) == 4 * m.num_attention_heads);
}

TEST_CASE(
    "recomputing the core of Megatron's fused attention keeps queries and keys as they came") {
  const ModelSpec m = load_model("llama3-8b");
  const std::int64_t turned =
      2 * (m.num_attention_heads + m.num_key_value_heads) * (m.hidden_size / m.num_attention_heads);
  CHECK(freed(m, RecomputeModule::core_attn, RecipeKind::megatron) ==
        static_cast<double>(4 * m.num_attention_heads - turned));
  // Normed ones are kept anyway.
  const ModelSpec normed = load_model("qwen3-8b");
  CHECK(freed(normed, RecomputeModule::core_attn, RecipeKind::megatron) ==
        4 * normed.num_attention_heads);
}

TEST_CASE("recomputing the core of unfused attention frees the scores: 5 a s bytes") {
  const ModelSpec m = load_model("megatron-22b");
  const auto scores = static_cast<double>(5 * m.num_attention_heads * 512);
  const auto lse = static_cast<double>(4 * m.num_attention_heads);
  CHECK(freed(m, RecomputeModule::core_attn, RecipeKind::megatron_legacy) == scores + lse);
}

TEST_CASE("recomputing both norms of a dense layer frees 4h") {
  const ModelSpec m = load_model("llama3-8b");
  CHECK(freed(m, RecomputeModule::layernorm) == 4 * m.hidden_size);
}

TEST_CASE("recomputing the MLP frees 6f") {
  const ModelSpec m = load_model("llama3-8b");
  CHECK(freed(m, RecomputeModule::mlp) == 6 * m.intermediate_size);
}

TEST_CASE("recomputing Megatron's MLP frees its norm's output with it, once") {
  const ModelSpec m = load_model("llama3-8b");
  const auto both = static_cast<double>(6 * m.intermediate_size + 2 * m.hidden_size);
  CHECK(freed(m, RecomputeModule::mlp, RecipeKind::megatron) == both);
}

TEST_CASE("recomputing Megatron's norms frees those before experts and latent attention alone") {
  const auto norms = [](const char* name) {
    const ModelSpec m = load_model(name);
    return freed(m, RecomputeModule::layernorm, RecipeKind::megatron) /
           static_cast<double>(2 * m.hidden_size);
  };
  CHECK(norms("llama3-8b") == 0);
  CHECK(norms("qwen3-30b-a3b") == 1);
  CHECK(norms("deepseek-v3") == 2);
}

TEST_CASE("recomputing Megatron's expert activation frees 2f and their probabilities, k times") {
  const ModelSpec m = load_model("qwen3-30b-a3b");
  const MoeSpec& moe = *m.moe;
  CHECK(freed(m, RecomputeModule::moe_act, RecipeKind::megatron) ==
        moe.top_k * (2 * moe.moe_intermediate_size + 8));
}

TEST_CASE(
    "recomputing Megatron's whole expert layer frees k(2h + 6f + 8) and the router's results") {
  const ModelSpec m = load_model("qwen3-30b-a3b");
  const MoeSpec& moe = *m.moe;
  const auto experts = moe.top_k * (2 * m.hidden_size + 6 * moe.moe_intermediate_size + 8);
  const auto router = 4 * moe.num_experts + 8 * moe.top_k;
  CHECK(freed(m, RecomputeModule::moe, RecipeKind::megatron) ==
        static_cast<double>(experts + router));
}

TEST_CASE("recomputing MLA's up projections frees q, k and v") {
  const ModelSpec m = load_model("deepseek-v3");
  const MlaSpec& a = *m.mla;
  const auto qk = 4 * m.num_attention_heads * (a.qk_nope_head_dim + a.qk_rope_head_dim);
  const auto v = 2 * m.num_attention_heads * a.v_head_dim;
  CHECK(freed(m, RecomputeModule::mla_up_proj) == static_cast<double>(qk + v));
}

TEST_CASE("a module that the layer does not have frees nothing") {
  CHECK(freed(load_model("llama3-8b"), RecomputeModule::moe) == 0);
  CHECK(freed(load_model("qwen3-30b-a3b"), RecomputeModule::mlp) == 0);
}

// torchtitan's layer, its products in order: qkv, o, gate, up, down. The odd ones are kept.
TEST_CASE("recomputation by operators keeps attention and every second product") {
  const ModelSpec m = load_model("llama3-8b");
  BlockShape s = shape_of(m, RecomputeKind::selective);
  s.recomputes_operators = true;
  const std::int64_t q = m.num_attention_heads * m.head_dim,
                     kv = m.num_key_value_heads * m.head_dim;
  // the layer's output, q, k, v, attention's output and its log-sum-exp, gate
  CHECK(kept_per_token(m, RecipeKind::fsdp2_compile, s) ==
        static_cast<double>(2 * m.hidden_size + 2 * q + 4 * kv + 2 * q + 4 * m.num_attention_heads +
                            2 * m.intermediate_size));
  const Block block = build_block(m, recipe_of(RecipeKind::fsdp2_compile), s);
  double again = 0;
  for (const Op& op : block.backward) {
    if (op.recomputed) again += flops(op.work).value();
  }
  // o and up; attention is kept
  const double a_column = static_cast<double>(2 * s.seq_len * m.hidden_size);
  CHECK(again == a_column * static_cast<double>(q + m.intermediate_size));
  // Until April 2026 q, k and v were three, of which k was the second.
  const Block three = build_block(m, recipe_of_month(RecipeKind::fsdp2_compile, 202603), s);
  again = 0;
  for (const Op& op : three.backward) {
    if (op.recomputed) again += flops(op.work).value();
  }
  CHECK(again == a_column * static_cast<double>(kv + q + m.intermediate_size));
}

TEST_CASE(
    "a sharded layer's parameters are copied out of their buffer, and not again for what is "
    "recomputed") {
  const ModelSpec m = load_model("llama3-8b");
  const auto copies = [&](RecipeKind recipe, RecomputeKind kind) {
    BlockShape s = shape_of(m, kind);
    s.zero = 3;
    s.dense_shard = 8;
    const Block block = build_block(m, recipe_of(recipe), s);
    const auto is_copy = [](const Op& op) { return op.role == Role::copy_gathered; };
    return std::count_if(block.forward.begin(), block.forward.end(), is_copy) +
           std::count_if(block.backward.begin(), block.backward.end(), is_copy);
  };
  CHECK(copies(RecipeKind::fsdp2, RecomputeKind::none) == 2);
  CHECK(copies(RecipeKind::fsdp2_compile, RecomputeKind::full) == 2);
  CHECK(copies(RecipeKind::fsdp1, RecomputeKind::none) == 0);
}
