// What one framework's blocks do and another's do not; torch's are in torch_blocks_test.cpp.

#include "tests/models/framework_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

using namespace qplan;
using namespace qplan::test;

TEST_CASE("the second bias and the clamp of gpt-oss are passes of their own under Megatron") {
  const ModelSpec oss = load_model("gpt-oss-20b");
  const auto passes = [&](const ModelSpec& model, RecipeKind recipe) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.ep = 8;
    const Block block = build_block(model, recipe_of(recipe), s);
    std::int64_t found = 0;
    for (const OpList* ops : {&block.forward, &block.backward}) {
      for (const Op& op : *ops) {
        const auto* r = std::get_if<Rowwise>(&op.work);
        if (r == nullptr) continue;
        const bool bias =
            r->kind == RowwiseKind::expert_bias || r->kind == RowwiseKind::expert_bias_backward;
        if (bias) CHECK(r->groups == 4);  // 32 experts on 8 ranks
        found += bias || r->kind == RowwiseKind::clamp || r->kind == RowwiseKind::clamp_backward;
      }
    }
    return found;
  };
  CHECK(passes(oss, RecipeKind::megatron) == 4);
  CHECK(passes(oss, RecipeKind::qplan) == 0);
  CHECK(passes(load_model("qwen3-30b-a3b"), RecipeKind::megatron) == 0);
}

TEST_CASE("the launching thread waits in gpt-oss's activation under Megatron, recomputed as well") {
  const auto waits = [](const char* name, RecipeKind recipe, bool recomputed) {
    const ModelSpec model = load_model(name);
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.ep = 8;
    if (recomputed) {
      s.recompute = RecomputeKind::selective;
      s.recompute_modules.add(RecomputeModule::moe_act);
    }
    const Block block = build_block(model, recipe_of(recipe), s);
    const auto count = [](const OpList& ops) {
      return std::count_if(ops.begin(), ops.end(),
                           [](const Op& op) { return op.stream == Stream::host; });
    };
    return std::pair{count(block.forward), count(block.backward)};
  };
  using Waits = std::pair<std::ptrdiff_t, std::ptrdiff_t>;
  CHECK(waits("gpt-oss-20b", RecipeKind::megatron, false) == Waits{1, 0});
  CHECK(waits("gpt-oss-20b", RecipeKind::megatron, true) == Waits{1, 1});
  CHECK(waits("gpt-oss-20b", RecipeKind::qplan, false) == Waits{0, 0});
  CHECK(waits("qwen3-30b-a3b", RecipeKind::megatron, true) == Waits{0, 0});
}

TEST_CASE("HybridEP's ranks learn of all choices right before forward's first exchange") {
  const ModelSpec model = load_model("gpt-oss-20b");
  BlockShape s = shape_of(model, BlockKind::decoder);
  const auto gathers = [&](MoeDispatcher dispatcher, int ep) {
    s.dispatcher = dispatcher;
    s.ep = ep;
    const Block block = build_block(model, recipe_of(RecipeKind::megatron), s);
    std::vector<double> bytes;
    for (const OpList* ops : {&block.forward, &block.backward}) {
      for (std::size_t i = 0; i < ops->size(); ++i) {
        const auto* c = std::get_if<Collective>(&(*ops)[i].work);
        if (c == nullptr || c->kind != CollectiveKind::all_gather || c->axis != Axis::ep) continue;
        bytes.push_back(c->bytes.value());
        // One piece of communication, also where two microbatches are merged.
        REQUIRE(i + 1 < ops->size());
        const auto* next = std::get_if<Collective>(&(*ops)[i + 1].work);
        REQUIRE(next != nullptr);
        CHECK(next->expert_parallel_library);
      }
    }
    return bytes;
  };
  CHECK(gathers(MoeDispatcher::hybridep, 8) == std::vector<double>{8 * 512 * 32});
  CHECK(gathers(MoeDispatcher::hybridep, 1).empty());
  CHECK(gathers(MoeDispatcher::deepep, 8).empty());
}

TEST_CASE("Megatron's alltoall sends the rows' probabilities apart, and their gradients back") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  BlockShape s = shape_of(model, BlockKind::decoder);
  s.ep = 8;
  const auto exchanges = [&](RecipeKind recipe, MoeDispatcher dispatcher) {
    s.dispatcher = dispatcher;
    const Block block = build_block(model, recipe_of(recipe), s);
    std::vector<std::vector<double>> bytes;
    for (const OpList* ops : {&block.forward, &block.backward}) {
      bytes.emplace_back();
      for (const Op& op : *ops) {
        const auto* c = std::get_if<Collective>(&op.work);
        if (c != nullptr && c->kind == CollectiveKind::all_to_all) {
          bytes.back().push_back(c->bytes.value());
        }
      }
    }
    return bytes;
  };
  const double numbers = 512 * 8 * 4;                                        // fp32
  const double rows = 512 * 8 * static_cast<double>(model.hidden_size) * 2;  // bf16
  using Bytes2 = std::vector<std::vector<double>>;
  CHECK(exchanges(RecipeKind::megatron, MoeDispatcher::alltoall) ==
        Bytes2{{rows, numbers, rows}, {rows, rows, numbers}});
  CHECK(exchanges(RecipeKind::qplan, MoeDispatcher::alltoall) ==
        Bytes2{{rows, rows}, {rows, rows}});
  CHECK(exchanges(RecipeKind::megatron, MoeDispatcher::deepep)[0].size() == 2);
}

TEST_CASE(
    "DeepSeek's trainer sends rows to experts in fp8, back in 16 bits, to half of the groups") {
  const ModelSpec model = load_model("deepseek-v3");
  BlockShape s = shape_of(model, BlockKind::decoder);
  s.layer.moe = true;
  s.ep = 64;
  s.dispatcher = MoeDispatcher::deepep;
  s.precision = Precision::fp8;
  const auto exchanges = [&](RecipeKind recipe) {
    const Block block = build_block(model, recipe_of(recipe), s);
    std::vector<Collective> found;
    for (const OpList* ops : {&block.forward, &block.backward}) {
      for (const Op& op : *ops) {
        const auto* c = std::get_if<Collective>(&op.work);
        if (c != nullptr && c->expert_parallel_library) found.push_back(*c);
      }
    }
    return found;
  };
  const auto narrow = exchanges(RecipeKind::dualpipe), wide = exchanges(RecipeKind::megatron);
  REQUIRE(narrow.size() == 4);
  REQUIRE(wide.size() == 4);
  // There and back, in both passes: what goes there is narrow.
  for (const std::size_t there : {0U, 2U}) {
    CHECK(narrow[there].bytes / wide[there].bytes == doctest::Approx((1 + 4.0 / 128) / 2));
    CHECK(narrow[there + 1].bytes == wide[there + 1].bytes);
    CHECK(wide[there].groups == 8);
    CHECK(wide[there].groups_of_token == 4);
  }
  // 8 experts of 4 groups' 32 ranks, 4 on each: 7.4 of them.
  CHECK(wide[0].rank_share * 64 == doctest::Approx(7.36).epsilon(0.01));
}

TEST_CASE("rotation with YaRN's factor is torch's under Megatron, but in latent attention") {
  const auto unfused = [](std::string_view name, RecipeKind recipe) {
    const ModelSpec model = load_model(std::string(name));
    return count_rowwise(model, recipe, shape_of(model, BlockKind::decoder), [](const Rowwise& r) {
      return !r.fused && (r.kind == RowwiseKind::rope || r.kind == RowwiseKind::rope_backward);
    });
  };
  CHECK(unfused("gpt-oss-120b", RecipeKind::megatron) == 2);
  CHECK(unfused("gpt-oss-120b", RecipeKind::qplan) == 0);
  CHECK(unfused("llama3-8b", RecipeKind::megatron) == 0);
  CHECK(unfused("deepseek-v3", RecipeKind::megatron) == 0);
}

TEST_CASE("fused experts have no passes for biases and clamps; their rows are paged out and in") {
  const ModelSpec oss = load_model("gpt-oss-20b");
  BlockShape s = shape_of(oss, BlockKind::decoder);
  s.ep = 8;
  s.precision = Precision::mxfp8;
  s.dispatcher = MoeDispatcher::hybridep;
  const auto passes = [&] {
    return count_rowwise(oss, RecipeKind::megatron, s, [](const Rowwise& r) {
      return r.kind == RowwiseKind::expert_bias || r.kind == RowwiseKind::expert_bias_backward ||
             r.kind == RowwiseKind::clamp || r.kind == RowwiseKind::clamp_backward;
    });
  };
  const auto copies = [&] {
    return count_rowwise(oss, RecipeKind::megatron, s,
                         [](const Rowwise& r) { return r.kind == RowwiseKind::copy; });
  };
  CHECK(passes() == 4);
  const std::int64_t unpaged = copies();
  s.fused_experts = true;
  CHECK(passes() == 0);
  CHECK(copies() == unpaged + 2 * 3);  // input, first product, activation
}

TEST_CASE("operands are read for their maxima under tensorwise scaling alone") {
  const ModelSpec qwen = load_model("qwen3-30b-a3b");
  BlockShape s = shape_of(qwen, BlockKind::decoder);
  s.ep = 16;
  constexpr std::int64_t kDense = 1, kExperts = 8;  // 128 experts on 16 ranks
  const auto maxima = [&](const Recipe& recipe, Precision precision, std::int64_t groups) {
    s.precision = precision;
    return count_rowwise(qwen, recipe, s, [&](const Rowwise& r) {
      return r.kind == RowwiseKind::amax && r.groups == groups;
    });
  };
  // Two products of attention, two of the experts: an operand forward, a gradient backward each.
  const Recipe& today = recipe_of(RecipeKind::megatron);
  CHECK(maxima(today, Precision::fp8, kDense) == 4);
  CHECK(maxima(today, Precision::fp8, kExperts) == 4);
  const Recipe nemo = recipe_of_month(RecipeKind::megatron, 202507);  // by delayed scaling
  for (const std::int64_t groups : {kDense, kExperts}) {
    CHECK(maxima(today, Precision::mxfp8, groups) == 0);
    CHECK(maxima(today, Precision::bf16, groups) == 0);
    CHECK(maxima(nemo, Precision::fp8, groups) == 0);
  }
}

TEST_CASE("DeepSpeed's BF16_Optimizer keeps a microbatch's gradients and widens them") {
  const ModelSpec model = load_model("megatron-22b");
  BlockShape s = shape_of(model, BlockKind::decoder);
  s.zero = 1;
  s.dense_shard = 8;
  const auto summed = [&](DType sum, Precision precision) {
    s.grad_dtype = sum;
    s.precision = precision;
    const Block block = build_block(model, recipe_of(RecipeKind::megatron_deepspeed), s);
    const auto is_sum = [&block](SlotId id) {
      return block.slots[static_cast<std::size_t>(id)].name == "gradients";
    };
    double bytes = 0;
    for (const Op& op : block.backward) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      const bool adds = r != nullptr && r->kind != RowwiseKind::layer_norm_backward;
      if (adds && std::ranges::any_of(op.writes, is_sum)) bytes += memory_traffic(*r).value();
    }
    double kept = 0;
    for (const Slot& slot : block.slots) {
      if (slot.storage == Storage::gradient) kept += slot.bytes().value();
    }
    return std::pair{bytes, kept};
  };
  const double h = 6144, weights = 12 * h * h;
  const auto all = static_cast<double>(rank_parameters(model, s).total());
  CHECK(summed(DType::fp32, Precision::bf16) == std::pair{18 * weights, 6 * all});
  CHECK(summed(DType::bf16, Precision::fp16) == std::pair{6 * weights, 2 * all});
}

TEST_CASE("gradients of experts are added up by a kernel where those of other weights are") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const auto sums = [&](RecipeKind recipe, DType sum) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.ep = 8;
    s.grad_dtype = sum;
    const std::int64_t experts = 16 * 3 * 2048 * 768;  // a rank's: gate, up and down
    std::int64_t added = 0;
    for (const Op& op : build_block(model, recipe_of(recipe), s).backward) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      const bool sums_up = r != nullptr && (r->kind == RowwiseKind::accumulate ||
                                            (r->kind == RowwiseKind::add && r->rows > s.seq_len));
      if (sums_up) added += r->rows * r->cols;
    }
    return added >= experts;
  };
  CHECK(sums(RecipeKind::deepspeed, DType::fp32));
  CHECK(sums(RecipeKind::deepspeed, DType::bf16));
  CHECK(!sums(RecipeKind::megatron, DType::fp32));
}

TEST_CASE("an input's gradient is reduced beside its layer's weight gradient, or behind it") {
  const ModelSpec model = load_model("megatron-22b");
  BlockShape s = shape_of(model, BlockKind::decoder);
  s.tp = 8;
  const auto waits = [&](RecipeKind recipe, bool sequence_parallel) {
    s.sequence_parallel = sequence_parallel;
    const Block block = build_block(model, recipe_of(recipe), s);
    return std::ranges::count_if(block.backward, [](const Op& op) {
      return op.role == Role::weight_gradient && op.after.has(Stream::model_comm);
    });
  };
  CHECK(waits(RecipeKind::megatron_deepspeed, false) == 2);  // qkv and fc1
  CHECK(waits(RecipeKind::megatron, false) == 0);
  CHECK(waits(RecipeKind::megatron_deepspeed, true) == waits(RecipeKind::megatron, true));
}

TEST_CASE("norms over all heads together are summed over tensor-parallel ranks, and cut by heads") {
  const ModelSpec model = load_model("minimax-m2");
  const auto sums = [](const OpList& ops) {
    return std::ranges::count_if(ops, [](const Op& op) {
      const auto* c = std::get_if<Collective>(&op.work);
      return c != nullptr && c->kind == CollectiveKind::all_reduce && c->bytes.value() == 512 * 8;
    });
  };
  for (const RecipeKind recipe : {RecipeKind::megatron, RecipeKind::fsdp2}) {
    CAPTURE(to_word(recipe));
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.sequence_parallel = true;
    CHECK(sums(build_block(model, recipe_of(recipe), s).forward) == 0);
    s.tp = 4;
    const Block block = build_block(model, recipe_of(recipe), s);
    CHECK(sums(block.forward) == 1);
    CHECK(sums(block.backward) == 1);
    for (const PackedParameter& p : block.parameters) {
      if (p.whole.role == ParameterRole::q_norm) CHECK(p.elements() == 48 * 128 / 4);
      if (p.whole.role == ParameterRole::k_norm) CHECK(p.elements() == 8 * 128 / 4);
    }
  }
}

TEST_CASE("a context-parallel ring copies its halves, and merges outputs and gradients") {
  const ModelSpec llama = load_model("llama3-70b");
  constexpr std::int64_t kTokens = 512;
  const auto moved = [&](int cp, OpList Block::*pass) {
    BlockShape s = shape_of(llama, BlockKind::decoder);
    s.seq_len = kTokens * cp;
    s.cp = cp;
    const Block block = build_block(llama, recipe_of(RecipeKind::megatron), s);
    double bytes = 0;
    for (const Op& op : block.*pass) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      if (r == nullptr) continue;
      const bool merges = r->kind == RowwiseKind::copy || r->kind == RowwiseKind::scale ||
                          r->kind == RowwiseKind::add;
      if (merges) bytes += memory_traffic(*r).value();
    }
    return bytes;
  };
  const double q = kTokens * 64 * 128, kv = kTokens * 2 * 8 * 128;
  for (const int cp : {2, 4}) {
    CAPTURE(cp);
    const double others = cp - 1;
    CHECK(moved(cp, &Block::forward) - moved(1, &Block::forward) ==
          doctest::Approx(4 * kv + 4 * q + others * (2 * kv + 6 * q)));
    CHECK(moved(cp, &Block::backward) - moved(1, &Block::backward) ==
          doctest::Approx(8 * kv + 4 * q + others * (5 * kv + 6 * q)));
  }
}

TEST_CASE("what no weight's gradient reads apart is cast to fp8 once") {
  const ModelSpec model = load_model("llama3-8b");
  const auto casts = [&](const char* words, bool turns_fp8) {
    const ParallelPlan plan = parse_plan(words);
    const Recipe& recipe = recipe_of(RecipeKind::megatron);
    BlockShape s = base_shape(model, plan, recipe, 1, turns_fp8);
    s.kind = BlockKind::decoder;
    s.layer = model.layers.back();
    const auto of = [&](RowwiseKind kind) {
      return count_rowwise(model, recipe, s, [&](const Rowwise& r) { return r.kind == kind; });
    };
    return std::pair{of(RowwiseKind::cast), of(RowwiseKind::quantize)};
  };
  using Casts = std::pair<std::int64_t, std::int64_t>;
  // Inputs of qkv, attention's output, gate and up, and down, and the gradients of what they give.
  CHECK(casts("precision=fp8", true) == Casts{8, 0});     // Hopper turns them for its products
  CHECK(casts("precision=fp8", false) == Casts{0, 8});    // Blackwell does not
  CHECK(casts("precision=mxfp8", false) == Casts{8, 0});  // blocks lie along one side
  CHECK(casts("precision=fp8 lora16", true) == Casts{0, 8});
  // Attention's operands have no weight: queries, keys and values, and the gradient of its result.
  CHECK(casts("precision=fp8 fp8_dot_product_attention", true) == Casts{8, 4});
}
