// Adapters beside frozen weights: how many parameters they are, what of a block they leave out.

#include <doctest/doctest.h>

#include <algorithm>

#include "models/parameters.h"
#include "models/plan/parallel_plan.h"
#include "models/program/liveness.h"
#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

namespace {

std::int64_t adapter_parameters(const ModelSpec& model, const Lora& lora) {
  std::int64_t sum = 0;
  for (const ModelParameter& p : model_parameters(model, lora)) {
    if (p.parameter.adapter != Adapter::none) sum += p.parameter.elements();
  }
  return sum;
}

Block layer(const ModelSpec& model, RecipeKind kind, const std::string& words) {
  const Recipe& recipe = recipe_of(kind);
  BlockShape s = base_shape(model, parse_plan(words), recipe, 1);
  s.kind = BlockKind::decoder;
  s.layer = model.layers.back();
  return build_block(model, recipe, s);
}

}  // namespace

TEST_CASE("adapters have as many parameters as PEFT's") {
  // PEFT's print_trainable_parameters() of Llama-3 8B, rank 16: 41,943,040 on all linear layers,
  // 6,815,744 on q_proj and v_proj.
  const ModelSpec llama = load_model("llama3-8b");
  CHECK(adapter_parameters(llama, {16, {}}) == 41'943'040);
  CHECK(adapter_parameters(llama, {16, set_of(LoraTarget::q_proj, LoraTarget::v_proj)}) ==
        6'815'744);
  CHECK(adapter_parameters(llama, {}) == 0);
  // Routed experts only where they are named.
  const ModelSpec moe = load_model("qwen3-30b-a3b");
  const std::int64_t experts = adapter_parameters(moe, {8, set_of(LoraTarget::experts)});
  CHECK(experts == 48LL * 128 * 3 * 8 * (2048 + 768));
  CHECK(adapter_parameters(moe, {8, {}}) == 48LL * 8 * (2 * (2048 + 4096) + 2 * (2048 + 512)));
}

TEST_CASE("Megatron-Bridge's adapters are one a layer of Megatron's") {
  // LoRA() of Megatron-Bridge (dim 32 beside linear_qkv, linear_proj, linear_fc1, linear_fc2). Its
  // ParallelLinearAdapter has linear_in (dim, in_features) and linear_out (out_features, dim) of
  // the whole Megatron layer (get_adapter_attributes_from_linear), so of Llama-3 8B, a layer:
  //   linear_qkv   4096 in, (32 + 2 x 8) heads x 128 = 6144 out:  32 x 10240 =   327,680
  //   linear_proj  4096 in, 4096 out:                             32 x  8192 =   262,144
  //   linear_fc1   4096 in, gate and up: 2 x 14336 = 28672 out:   32 x 32768 = 1,048,576
  //   linear_fc2   14336 in, 4096 out:                            32 x 18432 =   589,824
  // 2,228,224 together, and 71,303,168 in 32 layers; PEFT's seven are 83,886,080.
  const ModelSpec llama = load_model("llama3-8b");
  CHECK(adapter_parameters(llama, {.rank = 32, .targets = {}, .parallel = true}) == 71'303'168);
  CHECK(adapter_parameters(llama, {.rank = 32, .targets = {}}) == 83'886'080);
  // CanonicalLoRA's, where not all of a layer is meant.
  const LoraTargets two = set_of(LoraTarget::q_proj, LoraTarget::v_proj);
  CHECK(adapter_parameters(llama, {.rank = 16, .targets = two, .parallel = true}) == 6'815'744);
  // Beside routed experts one adapter a rank of ep, linear_fc1 (2048 in, 2 x 768 out) and
  // linear_fc2.
  const ModelSpec moe = load_model("qwen3-30b-a3b");
  const Lora experts{
      .rank = 8, .targets = set_of(LoraTarget::experts), .parallel = true, .expert_copies = 4};
  CHECK(adapter_parameters(moe, experts) == 48LL * 4 * 8 * (2048 + 2 * 768 + 768 + 2048));
}

TEST_CASE("a rank of tp holds its share of both of a parallel adapter's matrices") {
  const ModelSpec model = load_model("llama3-8b");
  const Block block = layer(model, RecipeKind::megatron, "tp4 dp1 gbs1 seq1024 sp zero0 lora32");
  const double adapters = 2'228'224.0 / 4;
  const double weights = (218'112'000 - 2 * 4096) / 4.0 + 2 * 4096;  // the norms are whole
  const PersistentBytes bytes = persistent_bytes(block);
  CHECK(bytes.weights.value() == doctest::Approx(2 * (weights + adapters)).epsilon(1e-5));
  CHECK(bytes.optimizer.value() == doctest::Approx(12 * adapters).epsilon(1e-3));
}

namespace {

// Bytes of tensor-parallel collectives of an array so many columns wide.
std::int64_t over_tp(const OpList& ops, CollectiveKind kind, double bytes) {
  return std::count_if(ops.begin(), ops.end(), [&](const Op& op) {
    const auto* const c = std::get_if<Collective>(&op.work);
    return c != nullptr && c->axis == Axis::tp && c->kind == kind && c->bytes.value() == bytes;
  });
}

}  // namespace

TEST_CASE("what a parallel adapter gathers and sums over tp") {
  const ModelSpec model = load_model("llama3-8b");
  const double inner = 1024.0 * 32 * 2, hidden = 1024.0 * 4096 * 2;
  using enum CollectiveKind;
  const std::string job = "tp4 dp1 gbs1 seq1024 lora32 zero0 lora_targets=";
  for (const char* sp : {"", " sp"}) {
    CAPTURE(sp);
    const bool splits = *sp != '\0';
    const auto count = [&](const std::string& targets, bool forward, CollectiveKind kind,
                           double bytes) {
      const Block with = layer(model, RecipeKind::megatron, job + targets + sp);
      return over_tp(forward ? with.forward : with.backward, kind, bytes);
    };
    // Column-parallel: A's shares are gathered; backward their gradients are summed, and, without
    // sequence parallelism, the input's gradient beside the layer's own.
    const std::string qkv = "q_proj+k_proj+v_proj", none = "o_proj";
    CHECK(count(qkv, true, all_gather, inner) == 1);
    CHECK(count(qkv, false, all_reduce, inner) == 1);
    CHECK(count(qkv, true, all_reduce, inner) == 0);
    CHECK(count(qkv, false, all_reduce, hidden) == (splits ? 0 : 3));
    // Row-parallel: A's partial sums are summed, B's shares gathered over all tokens.
    CHECK(count(none, true, all_reduce, inner) == 1);
    CHECK(count(none, false, all_reduce, inner) == 1);
    CHECK(count(none, true, all_gather, hidden) == (splits ? 3 : 1));
    // Frozen weights gather no input again: backward has the gradients of both sums, and the
    // adapter's own.
    CHECK(count(none, false, all_gather, hidden) == (splits ? 3 : 0));
  }
}

TEST_CASE("frozen weights have neither gradients nor an optimizer's states") {
  const ModelSpec model = load_model("llama3-8b");
  const double weights = 218'112'000;  // a layer's
  for (const RecipeKind kind : {RecipeKind::megatron, RecipeKind::fsdp2, RecipeKind::deepspeed}) {
    const Block block = layer(model, kind, "gbs1 seq1024 zero0 lora16");
    // PEFT's, and Megatron-Bridge's, half of what dim 32 has.
    const double adapters = kind == RecipeKind::megatron ? 2'228'224.0 / 2 : 41'943'040.0 / 32;
    const PersistentBytes bytes = persistent_bytes(block);
    CHECK(bytes.weights.value() == doctest::Approx(2.0 * (weights + adapters)).epsilon(1e-5));
    CHECK(bytes.optimizer.value() == doctest::Approx(12.0 * adapters).epsilon(1e-3));
    CHECK(bytes.gradients.value() < 7.0 * adapters);
  }
}

TEST_CASE("backward makes the gradients of adapters, and of weights none") {
  const ModelSpec model = load_model("llama3-8b");
  for (const RecipeKind kind : {RecipeKind::megatron, RecipeKind::fsdp2, RecipeKind::qplan}) {
    const Block block = layer(model, kind, "gbs1 seq1024 lora16 lora_targets=o_proj");
    std::vector<Gemm> gradients;
    for (const Op& op : block.backward) {
      if (op.role == Role::weight_gradient) gradients.push_back(std::get<Gemm>(op.work));
    }
    REQUIRE(gradients.size() == 2);
    CHECK(gradients[0].m == 4096);  // dB (out, rank), then dA (rank, in)
    CHECK(gradients[0].n == 16);
    CHECK(gradients[1].m == 16);
    CHECK(gradients[1].n == 4096);
  }
}

TEST_CASE("an input that only a frozen weight's gradient would read is not kept") {
  const ModelSpec model = load_model("llama3-8b");
  const auto kept = [&](const std::string& words) {
    const Block block = layer(model, RecipeKind::qplan, "gbs1 seq1024 " + words);
    const auto live = liveness(block, {&block.forward, &block.backward});
    Bytes bytes;
    std::vector<bool> held(block.slots.size(), false);
    for (const LiveEvent& e : live.front()) held[static_cast<std::size_t>(e.slot)] = e.allocate;
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (held[i] && block.slots[i].storage == Storage::local) bytes += block.slots[i].bytes();
    }
    return bytes.value();
  };
  const double all = kept("lora8"), none = kept("lora8 lora_targets=o_proj");
  // The two normed inputs of 4096 columns and SwiGLU's result of 14336, less a little for adapters.
  CHECK(all - none == doctest::Approx(1024.0 * 2 * (2 * 4096 + 14336)).epsilon(0.02));
}

TEST_CASE("DoRA has a magnitude more for each row of its weights") {
  // A layer of Llama-3 8B has 4096 + 2 x 1024 + 4096 + 2 x 14336 + 4096 = 43,008 outputs.
  const ModelSpec llama = load_model("llama3-8b");
  const Lora dora{.rank = 16, .targets = {}, .magnitudes = true};
  CHECK(adapter_parameters(llama, dora) == 41'943'040 + 32 * 43'008);
  // Megatron-Bridge's are of the same rows: one array a layer of its own.
  const Lora parallel{.rank = 32, .targets = {}, .parallel = true, .magnitudes = true};
  CHECK(adapter_parameters(llama, parallel) == 71'303'168 + 32 * 43'008);
}

namespace {

// The model of docs/evidence/archive/peft-memory-2026-11-26.json.
ModelSpec small_llama() {
  ModelSpec m = load_model("tiny");
  m.hidden_size = 256;
  m.intermediate_size = 704;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 1;
  m.head_dim = 64;
  return m;
}

struct ForwardBytes {
  double kept = 0, above = 0;  // from forward to backward; the peak of forward beside that
};

ForwardBytes forward_bytes(const std::string& words) {
  const Block block = layer(small_llama(), RecipeKind::ddp, "mbs1 gbs1 seq128 zero0 " + words);
  const auto live = liveness(block, {&block.forward, &block.backward});
  ForwardBytes bytes;
  double held = 0, peak = 0;
  for (const LiveEvent& e : live.front()) {
    const Slot& slot = block.slots[static_cast<std::size_t>(e.slot)];
    if (is_persistent(slot.storage)) continue;
    held += e.allocate ? slot.bytes().value() : -slot.bytes().value();
    peak = std::max(peak, held);
  }
  return {held, peak - held};
}

}  // namespace

// What PEFT's kinds of adapters keep more than plain ones, and how much more they hold for a
// moment, as torch allocated it (scripts/peft_memory.py --hidden 256 --intermediate 704 --seq 128).
// The bytes that are kept differ by vectors of the 2304 outputs alone: three of 16 bits in PEFT,
// norms in fp32 here. What is held for a moment is the identity of the 704 inputs of down_proj, B
// A, B A scaled and the merged weight.
TEST_CASE("DoRA and adapters in fp32 keep for backward what PEFT's do, to some vectors") {
  const ForwardBytes lora = forward_bytes("lora16");
  const ForwardBytes dora = forward_bytes("lora16 dora");
  const ForwardBytes wide = forward_bytes("lora16 lora_dtype=fp32");
  const ForwardBytes wide_dora = forward_bytes("lora16 dora lora_dtype=fp32");
  const ForwardBytes dropped = forward_bytes("lora16 lora_dropout=0.1");
  const ForwardBytes dropped_dora = forward_bytes("lora16 dora lora_dropout=0.1");
  const double vectors = 3 * 2304 * 2;
  CHECK(std::abs(dora.kept - lora.kept - (2503224 - 1309752)) < vectors);
  CHECK(std::abs(wide.kept - lora.kept - (1717304 - 1309752)) < vectors);
  CHECK(std::abs(wide_dora.kept - wide.kept - (2924600 - 1717304)) < 2 * vectors);
  CHECK(std::abs(dropped_dora.kept - dropped.kept - (3338808 - 2145336)) < vectors);
  MESSAGE("above what is kept: lora ", lora.above, " of 328704, dora ", dora.above,
          " of 2156022, both in fp32 ", wide.above, " of 934912, ", wide_dora.above,
          " of 4382710, dora with dropout ", dropped_dora.above, " of 2401782");
  CHECK(dora.above == doctest::Approx(2156022).epsilon(0.15));
  CHECK(wide_dora.above == doctest::Approx(4382710).epsilon(0.15));
}

TEST_CASE("dropout sends DoRA through a layer's own product once more, forward and backward") {
  const ModelSpec model = load_model("llama3-8b");
  const auto products = [&](const std::string& words) {
    const Block block =
        layer(model, RecipeKind::ddp, "gbs1 seq1024 zero0 lora16 lora_targets=o_proj " + words);
    const auto square = [](const Op& op) {
      const auto* const p = std::get_if<Gemm>(&op.work);
      return p != nullptr && p->m == 1024 && p->n == 4096 && p->k == 4096;
    };
    return std::pair(std::count_if(block.forward.begin(), block.forward.end(), square),
                     std::count_if(block.backward.begin(), block.backward.end(), square));
  };
  // q_proj's are as large.
  CHECK(products("dora") == products(""));
  CHECK(products("dora lora_dropout=0.1").first == products("").first + 1);
  CHECK(products("dora lora_dropout=0.1").second == products("").second + 1);
}

TEST_CASE("Megatron-Bridge's DoRA gathers what ranks share of an adapter, and merges it") {
  const ModelSpec model = load_model("llama3-8b");
  const std::string job = "tp4 dp1 gbs1 seq1024 lora32 zero0 lora_targets=";
  const auto merged = [&](const std::string& targets) {
    const Block block = layer(model, RecipeKind::megatron, job + targets + " dora");
    std::vector<Gemm> products;
    for (const Op& op : block.forward) {
      if (op.role == Role::merge_adapter) products.push_back(std::get<Gemm>(op.work));
    }
    return products;
  };
  const auto gathers = [&](const std::string& targets, double bytes) {
    const Block with = layer(model, RecipeKind::megatron, job + targets + " dora");
    return over_tp(with.forward, CollectiveKind::all_gather, bytes);
  };
  const auto qkv = merged("q_proj+k_proj+v_proj"), out = merged("o_proj");
  REQUIRE(qkv.size() == 1);
  CHECK(qkv[0] == Gemm{.m = 6144 / 4, .n = 4096, .k = 32});
  REQUIRE(out.size() == 1);
  CHECK(out[0] == Gemm{.m = 4096, .n = 4096 / 4, .k = 32});
  // A beside a column-parallel layer, B beside a row-parallel one.
  CHECK(gathers("q_proj+k_proj+v_proj", 4096.0 * 32 * 2) == 1);
  CHECK(gathers("o_proj", 4096.0 * 32 * 2) == 1);
}

TEST_CASE(
    "embedding and head trained beside adapters have states, and PEFT keeps their originals") {
  const ModelSpec model = load_model("llama3-8b");
  const double table = 128'256.0 * 4096;
  const auto bytes = [&](RecipeKind kind, BlockKind block, const std::string& words) {
    const Recipe& recipe = recipe_of(kind);
    BlockShape s = base_shape(model, parse_plan("gbs1 seq1024 zero0 lora16 " + words), recipe, 1);
    s.kind = block;
    return persistent_bytes(build_block(model, recipe, s));
  };
  for (const BlockKind block : {BlockKind::embedding, BlockKind::head}) {
    const PersistentBytes frozen = bytes(RecipeKind::ddp, block, "");
    const PersistentBytes trained = bytes(RecipeKind::ddp, block, "lora_embeddings");
    const PersistentBytes ours = bytes(RecipeKind::qplan, block, "lora_embeddings");
    CHECK(frozen.optimizer.value() == 0);
    CHECK(frozen.weights.value() == doctest::Approx(2 * table).epsilon(1e-3));
    CHECK(trained.weights.value() == doctest::Approx(4 * table).epsilon(1e-3));
    CHECK(ours.weights.value() == doctest::Approx(2 * table).epsilon(1e-3));
    CHECK(trained.optimizer.value() == doctest::Approx(12 * table).epsilon(1e-3));
    CHECK(ours.gradients.value() == doctest::Approx(4 * table).epsilon(1e-3));
  }
}

TEST_CASE("adapters in fp32 are their own master copy") {
  const ModelSpec model = load_model("llama3-8b");
  const double adapters = 41'943'040.0 / 32;
  const PersistentBytes narrow =
      persistent_bytes(layer(model, RecipeKind::ddp, "gbs1 seq1024 zero0 lora16"));
  const PersistentBytes wide =
      persistent_bytes(layer(model, RecipeKind::ddp, "gbs1 seq1024 zero0 lora16 lora_dtype=fp32"));
  CHECK(wide.weights.value() - narrow.weights.value() ==
        doctest::Approx(2 * adapters).epsilon(1e-3));
  CHECK(wide.optimizer.value() == doctest::Approx(8 * adapters).epsilon(1e-3));
  CHECK(wide.gradients.value() == doctest::Approx(4 * adapters).epsilon(1e-3));
}
