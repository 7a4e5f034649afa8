#include "models/program/blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <variant>

#include "models/program/step_program.h"

using namespace qplan;

namespace {

const Recipe& plain() {
  return recipe_of(RecipeKind::qplan);
}

BlockShape shape_for(const ModelSpec& model, BlockKind kind, std::int64_t tokens = 512) {
  BlockShape s;
  s.kind = kind;
  s.layer = model.layers.back();
  s.seq_len = tokens;
  return s;
}

template <class... Kinds>
double flops_of(const OpList& ops) {
  double sum = 0;
  for (const Op& op : ops) {
    if ((std::holds_alternative<Kinds>(op.work) || ...)) sum += flops(op.work).value();
  }
  return sum;
}

// FLOPs of one decoder layer's forward, a token.
double forward_per_token(const ModelSpec& model, std::int64_t seq_len) {
  BlockShape s = shape_for(model, BlockKind::decoder, seq_len);
  double sum = 0;
  for (const Op& op : build_block(model, plain(), s).forward) sum += model_flops(op.work).value();
  return sum / static_cast<double>(seq_len);
}

std::int64_t padded(std::int64_t vocabulary, int tp) {
  const std::int64_t unit = std::int64_t{128} * tp;
  return (vocabulary + unit - 1) / unit * unit;
}

// Parameters of one decoder layer on one rank.
RankParameters layer_on_rank(const ModelSpec& model, LayerKind layer, int tp, int etp, int ep) {
  BlockShape s;
  s.layer = layer;
  s.tp = tp;
  s.etp = etp;
  s.ep = ep;
  return rank_parameters(model, s);
}

}  // namespace

TEST_CASE("backward products take twice the FLOPs of forward products, in every kind of block") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    std::vector<BlockKind> kinds = {BlockKind::decoder, BlockKind::head};
    if (model.num_mtp_layers > 0) kinds.push_back(BlockKind::mtp);
    if (model.vision) kinds.push_back(BlockKind::merger);
    for (const BlockKind kind : kinds) {
      BlockShape s = shape_for(model, kind);
      s.images = 2;
      s.patches = 256;
      const Block block = build_block(model, plain(), s);
      const double forward = flops_of<Gemm, GroupedGemm>(block.forward);
      CHECK(forward > 0);
      // An indexer's input is detached: its three projections have gradients of weights alone.
      double detached = 0;
      if (model.indexer && kind != BlockKind::head) {
        const IndexerSpec& i = *model.indexer;
        const std::int64_t weights = i.num_heads * i.head_dim * model.mla->q_lora_rank +
                                     (i.head_dim + i.num_heads) * model.hidden_size;
        detached = 2 * static_cast<double>(weights * s.micro_batch_size * s.seq_len);
      }
      CHECK(flops_of<Gemm, GroupedGemm>(block.backward) == 2 * forward - detached);
    }
  }
}

// Megatron's --mtp-use-repeated-layer (megatron/core/transformer/multi_token_prediction.py at
// d98e8a64): each pass has a loss of its own.
TEST_CASE("a layer of prediction that is applied twice works twice, with the same parameters") {
  const ModelSpec once = load_model("nemotron-3-super-120b-a12b");
  ModelSpec twice = once;
  twice.mtp_passes = 2;
  const auto flops = [](const ModelSpec& model, BlockKind kind) {
    const Block block = build_block(model, plain(), shape_for(model, kind));
    return flops_of<Gemm, GroupedGemm, Attention>(block.forward) +
           flops_of<Gemm, GroupedGemm, Attention>(block.backward);
  };
  CHECK(flops(twice, BlockKind::mtp) == 2 * flops(once, BlockKind::mtp));
  CHECK(flops(twice, BlockKind::head) == 1.5 * flops(once, BlockKind::head));
  CHECK(count_parameters(twice).total() == count_parameters(once).total());
}

TEST_CASE("pixels need no gradient: the patch embedding's backward is its weight's alone") {
  const ModelSpec model = load_model("qwen3-vl-30b-a3b");
  BlockShape s = shape_for(model, BlockKind::patchify);
  s.images = 1;
  s.patches = 1024;
  const Block block = build_block(model, plain(), s);
  CHECK(flops_of<Gemm>(block.backward) == flops_of<Gemm>(block.forward));
}

TEST_CASE("fused attention's backward executes 2.5 times the forward") {
  const Block block = build_block(load_model("llama3-8b"), plain(),
                                  shape_for(load_model("llama3-8b"), BlockKind::decoder));
  CHECK(flops_of<Attention>(block.backward) == 2.5 * flops_of<Attention>(block.forward));
}

// docs/reference/physics.md 2, per token and layer.
TEST_CASE("a dense layer's forward is qkv, output, core and three MLP products") {
  for (const char* name : {"llama3-8b", "llama3-70b", "qwen3-32b", "llama3-405b"}) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    const std::int64_t h = m.hidden_size, d = m.head_dim, nh = m.num_attention_heads,
                       nkv = m.num_key_value_heads, s = 4096;
    const std::int64_t expected =
        2 * h * d * (nh + 2 * nkv) + 2 * nh * d * h + 2 * nh * d * s + 6 * h * m.intermediate_size;
    CHECK(forward_per_token(m, s) == static_cast<double>(expected));
  }
}

TEST_CASE("a GELU layer has two MLP products") {
  const ModelSpec m = load_model("megatron-22b");
  const std::int64_t h = m.hidden_size, s = 2048;
  // Megatron's 24 s h^2 + 2 s^2 h (causal): 6h^2 + 2h^2 + 16h^2 + 2hs a token.
  CHECK(forward_per_token(m, s) == static_cast<double>(24 * h * h + 2 * h * s));
}

TEST_CASE("an expert layer computes its router and k experts a token") {
  for (const char* name : {"qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b"}) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    const std::int64_t h = m.hidden_size, d = m.head_dim, nh = m.num_attention_heads,
                       nkv = m.num_key_value_heads, s = 4096;
    const std::int64_t attention = 2 * h * d * (nh + 2 * nkv) + 2 * nh * d * h + 2 * nh * d * s;
    const std::int64_t experts =
        2 * h * m.moe->num_experts + 6 * h * m.moe->moe_intermediate_size * m.moe->top_k;
    CHECK(forward_per_token(m, s) == static_cast<double>(attention + experts));
  }
}

TEST_CASE("latent attention projects down, up, and attends with its own widths") {
  const ModelSpec m = load_model("deepseek-v3");
  const MlaSpec& a = *m.mla;
  const std::int64_t h = m.hidden_size, nh = m.num_attention_heads, s = 4096;
  const std::int64_t dn = a.qk_nope_head_dim, dr = a.qk_rope_head_dim, dv = a.v_head_dim;
  const std::int64_t projections =
      2 * (h * a.q_lora_rank + a.q_lora_rank * nh * (dn + dr) + h * (a.kv_lora_rank + dr) +
           a.kv_lora_rank * nh * (dn + dv) + nh * dv * h);
  const std::int64_t core = nh * (dn + dr + dv) * s;
  const std::int64_t experts = 2 * h * m.moe->num_experts +
                               6 * h * m.moe->moe_intermediate_size * m.moe->top_k +
                               6 * h * m.moe->shared_expert_intermediate_size;
  CHECK(forward_per_token(m, s) == static_cast<double>(projections + core + experts));
}

TEST_CASE("the head is one product over the padded vocabulary") {
  for (const char* name : {"llama3-8b", "qwen3-30b-a3b", "megatron-22b"}) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    const Block head = build_block(m, plain(), shape_for(m, BlockKind::head, 100));
    CHECK(flops_of<Gemm>(head.forward) ==
          static_cast<double>(2 * 100 * m.hidden_size * padded(m.vocab_size, 1)));
  }
}

TEST_CASE("tensor parallelism divides a dense layer's FLOPs evenly") {
  const ModelSpec m = load_model("llama3-70b");
  BlockShape s = shape_for(m, BlockKind::decoder);
  const double whole = flops_of<Gemm, Attention>(build_block(m, plain(), s).forward);
  for (const int tp : {2, 4, 8}) {
    s.tp = tp;
    s.sequence_parallel = true;
    CHECK(flops_of<Gemm, Attention>(build_block(m, plain(), s).forward) * tp == whole);
  }
}

TEST_CASE("a whole model on one rank holds its published parameters and the padded vocabulary") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    ParallelPlan plan;
    plan.seq_len = 512;
    const BlockShape base = base_shape(m, plan, plain(), 1);
    std::int64_t held = 0;
    for (const StageRuns& runs : stage_list(m, plan, plain(), base, {}).distinct) {
      for (const Run& run : runs) {
        if (!shares_embedding(m, run.shape)) {
          held += rank_parameters(m, run.shape).total() * run.count;
        }
      }
    }
    const ParameterCount count = count_parameters(m);
    const std::int64_t padding =
        (padded(m.vocab_size, 1) - m.vocab_size) * m.hidden_size * (m.tie_word_embeddings ? 1 : 2);
    CHECK(held == count.total() + count.mtp + padding);
  }
}

TEST_CASE("tied embeddings are held twice as soon as there are two stages") {
  const ModelSpec m = load_model("qwen3-0.6b");
  REQUIRE(m.tie_word_embeddings);
  BlockShape s = shape_for(m, BlockKind::head);
  const std::int64_t norm = m.hidden_size;
  CHECK(rank_parameters(m, s).total() == norm);
  s.embedding_table = EmbeddingTable::copied;
  CHECK(rank_parameters(m, s).total() == norm + padded(m.vocab_size, 1) * m.hidden_size);
}

TEST_CASE("ranks of a tensor group hold a layer between them, norms and router once each") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    for (const LayerKind layer : {m.layers.front(), m.layers.back()}) {
      const std::int64_t whole = layer_on_rank(m, layer, 1, 1, 1).dense;
      const std::int64_t half = layer_on_rank(m, layer, 2, 1, 1).dense;
      const std::int64_t replicated = 2 * half - whole;
      CHECK(replicated > 0);
      CHECK(replicated < whole / 4);
      const std::int64_t quarter = layer_on_rank(m, layer, 4, 1, 1).dense;
      CHECK(4 * quarter == whole + 3 * replicated);
    }
  }
}

TEST_CASE("a dense layer replicates exactly its norms over the tensor group") {
  const ModelSpec llama = load_model("llama3-8b"), qwen = load_model("qwen3-8b");
  const auto replicated = [](const ModelSpec& m) {
    return 2 * layer_on_rank(m, m.layers[0], 2, 1, 1).dense -
           layer_on_rank(m, m.layers[0], 1, 1, 1).dense;
  };
  CHECK(replicated(llama) == 2 * llama.hidden_size);
  CHECK(replicated(qwen) == 2 * qwen.hidden_size + 2 * qwen.head_dim);
}

TEST_CASE("expert groups hold all experts between them") {
  for (const char* name : {"qwen3-30b-a3b", "deepseek-v3", "mixtral-8x7b", "qwen2-57b-a14b"}) {
    CAPTURE(name);
    const ModelSpec m = load_model(name);
    const LayerKind layer = m.layers.back();
    const std::int64_t whole = layer_on_rank(m, layer, 1, 1, 1).expert;
    for (const int ep : {1, 2, 4, 8}) {
      for (const int etp : {1, 2, 4}) {
        CHECK(layer_on_rank(m, layer, 1, etp, ep).expert * etp * ep == whole);
      }
    }
    CHECK(layer_on_rank(m, layer, 1, 1, 1).total() == layer_parameters(m, layer));
  }
}

TEST_CASE("the vocabulary is padded to a multiple of 128 tp") {
  ModelSpec m = load_model("llama3-8b");
  m.vocab_size = 1000;
  BlockShape s = shape_for(m, BlockKind::embedding);
  CHECK(rank_parameters(m, s).dense == 1024 * m.hidden_size);
  s.tp = 4;
  CHECK(rank_parameters(m, s).dense * 4 == 1024 * m.hidden_size);
  s.tp = 3;
  CHECK(rank_parameters(m, s).dense * 3 == 1152 * m.hidden_size);
}

TEST_CASE("stage ends and the step's edge hold no parameters") {
  const ModelSpec m = load_model("llama3-8b");
  for (const BlockKind kind :
       {BlockKind::stage_entry, BlockKind::stage_exit, BlockKind::step_edge}) {
    CHECK(rank_parameters(m, shape_for(m, kind)).total() == 0);
  }
}

TEST_CASE("parameters are gathered layer by layer under ZeRO-3, and under FSDP from ZeRO-2") {
  CHECK(gathers_parameters(recipe_of(RecipeKind::deepspeed), 3));
  CHECK_FALSE(gathers_parameters(recipe_of(RecipeKind::deepspeed), 2));
  CHECK(gathers_parameters(recipe_of(RecipeKind::fsdp2), 2));
  CHECK_FALSE(gathers_parameters(recipe_of(RecipeKind::megatron), 1));
}

TEST_CASE("experts that no rank shares are copied beside their layer's gather") {
  const ModelSpec model = load_model("mixtral-8x7b");
  const auto copied = [&](RecipeKind recipe, int expert_shard) {
    BlockShape s = shape_for(model, BlockKind::decoder);
    s.ep = 2;
    s.zero = 3;
    s.dense_shard = 2;
    s.expert_shard = expert_shard;
    s.next = rank_parameters(model, s);
    double numbers = 0;
    for (const Op& op : build_block(model, recipe_of(recipe), s).forward) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      if (r == nullptr || op.stream != Stream::gather_comm) continue;
      CHECK(r->kind == RowwiseKind::copy);
      numbers += static_cast<double>(r->cols);
    }
    return numbers;
  };
  // Half of eight experts, of three matrices of 4096 by 14336.
  CHECK(copied(RecipeKind::qplan, 1) == 4. * 3 * 4096 * 14336);
  CHECK(copied(RecipeKind::qplan, 2) == 0);
  CHECK(copied(RecipeKind::deepspeed, 1) == 0);  // which leaves them where they are
}

TEST_CASE("below ZeRO-2 forward and backward do not depend on where states live") {
  const ModelSpec m = load_model("qwen3-30b-a3b");
  BlockShape a = shape_for(m, BlockKind::decoder);
  a.zero = 1;
  a.dense_shard = 64;
  a.expert_shard = 8;
  a.optimizer_offload = 0.5;
  BlockShape b = shape_for(m, BlockKind::decoder);
  CHECK(compute_shape(a) == compute_shape(b));
  const Block x = build_block(m, recipe_of(RecipeKind::megatron), a);
  const Block y = build_block(m, recipe_of(RecipeKind::megatron), b);
  REQUIRE(x.forward.size() == y.forward.size());
  REQUIRE(x.backward.size() == y.backward.size());
  for (std::size_t i = 0; i < x.backward.size(); ++i) {
    CHECK(x.backward[i].work == y.backward[i].work);
  }
}

TEST_CASE("a block of states has the full block's states and once-a-step work") {
  const ModelSpec m = load_model("qwen3-30b-a3b");
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    BlockShape s = shape_for(m, BlockKind::decoder);
    s.zero = zero;
    s.dense_shard = zero == 0 ? 1 : 8;
    s.expert_shard = zero == 0 ? 1 : 4;
    s.dense_replicas = zero == 0 ? 8 : 1;
    s.expert_replicas = zero == 0 ? 4 : 1;
    const Recipe& recipe = recipe_of(RecipeKind::megatron);
    const Block whole = build_block(m, recipe, s), states = build_states(m, recipe, s);
    CHECK(persistent_bytes(whole).total().value() == persistent_bytes(states).total().value());
    CHECK(whole.gather.size() == states.gather.size());
    CHECK(whole.reduce.size() == states.reduce.size());
    CHECK(whole.update.size() == states.update.size());
  }
}

TEST_CASE("different shapes have different hashes, nearly always") {
  const ModelSpec m = load_model("qwen3-30b-a3b");
  std::vector<std::uint64_t> hashes;
  for (const int tp : {1, 2, 4, 8}) {
    for (const int cp : {1, 2, 4}) {
      for (const int zero : {0, 1, 2, 3}) {
        for (const std::int64_t mbs : {1, 2, 4}) {
          for (const int ep : {1, 2, 8}) {
            BlockShape s = shape_for(m, BlockKind::decoder);
            s.tp = tp;
            s.cp = cp;
            s.zero = zero;
            s.micro_batch_size = mbs;
            s.ep = ep;
            hashes.push_back(hash_of(s));
          }
        }
      }
    }
  }
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
}

TEST_CASE("tokens dealt out in turn go to the ranks of neighbouring experts") {
  const ModelSpec qwen = load_model("qwen3-30b-a3b");  // 8 of 128 experts
  const auto exchange = [&](int ep, bool in_turn) {
    BlockShape s = shape_for(qwen, BlockKind::decoder);
    s.ep = ep;
    s.dispatcher = MoeDispatcher::deepep;
    s.moe_in_turn = in_turn;
    const Block block = build_block(qwen, recipe_of(RecipeKind::megatron_fsdp), s);
    const auto found = std::find_if(block.forward.begin(), block.forward.end(), [](const Op& op) {
      return std::holds_alternative<Collective>(op.work);
    });
    REQUIRE(found != block.forward.end());
    return std::get<Collective>(found->work);
  };
  const double row = 2.0 * 512 * static_cast<double>(qwen.hidden_size);
  CHECK(exchange(8, true).bytes.value() == doctest::Approx(1 * row));   // 16 experts a rank
  CHECK(exchange(32, true).bytes.value() == doctest::Approx(2 * row));  // 4 experts a rank
  CHECK(exchange(8, false).bytes.value() == doctest::Approx(5.34 * row).epsilon(0.001));
  CHECK(exchange(32, true).neighbours);
}
