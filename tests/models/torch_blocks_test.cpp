// What blocks of torch and its FSDPs do and others do not.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

TEST_CASE("torch's gated modules multiply by each projection, and add up its input's gradients") {
  struct Work {
    std::int64_t products = 0, adds = 0;
    double flops = 0;
  };
  // Before torchtitan made one layer of queries, keys and values.
  constexpr int kThreeLayers = 202603;
  const auto of = [](RecipeKind kind) {
    const bool titan = kind == RecipeKind::fsdp2_compile;
    return titan ? recipe_of_month(kind, kThreeLayers) : recipe_of(kind);
  };
  const auto work = [&](const ModelSpec& model, RecipeKind kind, int tp) {
    const Recipe recipe = of(kind);
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.tp = tp;
    s.zero = 3;  // gradients are reduced, not added up
    const Block block = build_block(model, recipe, s);
    Work done;
    for (const OpList* ops : {&block.forward, &block.backward}) {
      for (const Op& op : *ops) {
        if (!std::holds_alternative<Gemm>(op.work)) continue;
        ++done.products;
        done.flops += flops(op.work).value();
      }
    }
    done.adds = count_rowwise(model, recipe, s,
                              [](const Rowwise& r) { return r.kind == RowwiseKind::add; });
    return done;
  };
  const ModelSpec llama = load_model("llama3-8b");
  const Work packed = work(llama, RecipeKind::megatron, 1);
  CHECK(packed.products == 12);
  for (const RecipeKind recipe :
       {RecipeKind::deepspeed, RecipeKind::fsdp1, RecipeKind::fsdp2, RecipeKind::fsdp2_compile}) {
    CAPTURE(to_word(recipe));
    const Work apart = work(llama, recipe, 1);
    CHECK(apart.products == 21);  // q, k, v, out, gate, up, down: three passes each
    const bool compiled = recipe == RecipeKind::fsdp2_compile;
    CHECK(apart.adds == packed.adds + (compiled ? 0 : 3));  // ... in the norms' backward
    CHECK(apart.flops == packed.flops);
  }
  // Reduced over tp before the norms, they are added up in a pass of their own.
  CHECK(work(llama, RecipeKind::fsdp2_compile, 2).adds == packed.adds + 2);
  CHECK(work(llama, RecipeKind::fsdp2, 2).adds == packed.adds + 3);
  // More ranks than key-value heads share the columns of a packed product.
  CHECK(work(llama, RecipeKind::fsdp2, 16).products == 15);
  // Modules of GELU models pack theirs (GPT-2's, MPT's).
  const ModelSpec gpt = load_model("gpt3-175b");
  CHECK(work(gpt, RecipeKind::fsdp1, 1).products == 12);
}

TEST_CASE("a pipeline of torchtitan gathers once a step, whatever its ZeRO stage") {
  const ModelSpec model = load_model("llama3-8b");
  ParallelPlan plan;
  plan.dp = 4;
  plan.zero = 3;
  plan.global_batch_size = 16;
  const auto stage = [&](RecipeKind recipe) {
    return base_shape(model, plan, recipe_of(recipe), 1).zero;
  };
  CHECK(stage(RecipeKind::fsdp2_compile) == 3);
  plan.pp = 2;
  CHECK(stage(RecipeKind::fsdp2_compile) == 1);
  CHECK(stage(RecipeKind::megatron_fsdp) == 3);
}

TEST_CASE("FSDP1 puts a layer's gradients together and divides them before the reduction") {
  const ModelSpec model = load_model("llama3-8b");
  const auto passes = [&](RecipeKind recipe, int ranks) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.zero = 3;
    s.dense_shard = ranks;
    const std::int64_t all = rank_parameters(model, s).total();
    const Block block = build_block(model, recipe_of(recipe), s);
    const auto over_all = [all](const Op& op) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      return r != nullptr && r->cols == all && op.role != Role::copy_gathered &&
             (r->kind == RowwiseKind::copy || r->kind == RowwiseKind::scale);
    };
    return std::count_if(block.backward.begin(), block.backward.end(), over_all);
  };
  CHECK(passes(RecipeKind::fsdp1, 8) == 2);
  CHECK(passes(RecipeKind::fsdp1, 1) == 0);
  CHECK(passes(RecipeKind::fsdp2, 8) == 0);
}

TEST_CASE("FSDP2 narrows its shards and puts them side by side ahead of every gather") {
  const ModelSpec model = load_model("llama3-8b");
  const auto copied = [&](RecipeKind recipe, DType main_params) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.zero = 3;
    s.dense_shard = 8;
    s.main_params_dtype = main_params;
    s.next = rank_parameters(model, s);
    double bytes = 0;
    for (const Op& op : build_block(model, recipe_of(recipe), s).forward) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      if (r != nullptr && op.stream == Stream::gather_comm) bytes += memory_traffic(*r).value();
    }
    return bytes;
  };
  const BlockShape layer = shape_of(model, BlockKind::decoder);
  const double shard = static_cast<double>(rank_parameters(model, layer).total()) / 8;
  CHECK(copied(RecipeKind::fsdp2, DType::fp32) == doctest::Approx((6 + 4) * shard));
  CHECK(copied(RecipeKind::fsdp2_compile, DType::fp32) == doctest::Approx((6 + 4) * shard));
  CHECK(copied(RecipeKind::fsdp2, DType::bf16) == doctest::Approx(4 * shard));
  CHECK(copied(RecipeKind::fsdp1, DType::fp32) == 0);
}

TEST_CASE("FSDP1 reduces in the plan's format, and keeps shards in fp32 whichever that is") {
  const ModelSpec model = load_model("llama3-8b");
  struct Of {
    double reduced;
    DType kept;
  };
  const auto gradients = [&](DType dtype) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.zero = 3;
    s.dense_shard = 8;
    s.grad_dtype = dtype;
    const Block block = build_block(model, recipe_of(RecipeKind::fsdp1), s);
    Of of{0, DType::int64};
    for (const Op& op : block.backward) {
      const auto* c = std::get_if<Collective>(&op.work);
      if (c != nullptr && c->kind == CollectiveKind::reduce_scatter) of.reduced = c->bytes.value();
    }
    for (const Slot& slot : block.slots) {
      if (slot.storage == Storage::gradient) of.kept = slot.dtype;
    }
    return of;
  };
  const Of half = gradients(DType::bf16), whole = gradients(DType::fp32);
  CHECK(whole.reduced == 2 * half.reduced);
  CHECK(half.kept == DType::fp32);
  CHECK(whole.kept == DType::fp32);
  CHECK(recipe_of(RecipeKind::fsdp1).defaults.grad_dtype == DType::bf16);
}

TEST_CASE("weights that are loaded in 16 bits are sharded so, with their gradients and moments") {
  const ModelSpec model = load_model("llama3-8b");
  const auto bytes = [&](RecipeKind recipe, DType weights, DType grads) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.zero = 3;
    s.dense_shard = 8;
    s.grad_dtype = grads;
    s.main_params_dtype = s.moment_dtype = weights;
    const Block block = build_block(model, recipe_of(recipe), s);
    double sum = 0, shard = 0;
    for (const Slot& slot : block.slots) {
      const bool state = slot.storage == Storage::weight || slot.storage == Storage::optimizer ||
                         slot.storage == Storage::gradient ||
                         slot.storage == Storage::fresh_gradient;
      if (slot.storage == Storage::weight) shard += static_cast<double>(slot.elements());
      if (!state) continue;
      sum += static_cast<double>(slot.elements()) * size_of(slot.dtype);
    }
    return sum / shard;  // a parameter of the shard
  };
  for (const RecipeKind recipe : {RecipeKind::fsdp1, RecipeKind::fsdp2}) {
    for (const DType grads : {DType::bf16, DType::fp32}) {
      CHECK(bytes(recipe, DType::bf16, grads) == doctest::Approx(2 + 2 + 4));
      CHECK(bytes(recipe, DType::fp32, DType::fp32) == doctest::Approx(4 + 4 + 8));
    }
  }
  // Megatron's are master weights beside those that products read.
  CHECK(bytes(RecipeKind::megatron_fsdp, DType::bf16, DType::fp32) >
        bytes(RecipeKind::fsdp2, DType::bf16, DType::fp32));
}

TEST_CASE("torchao casts weights in each microbatch, and by kernels of their own") {
  const ModelSpec model = load_model("llama3-8b");
  const auto casts = [&](RecipeKind recipe, Precision precision) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.precision = precision;
    const Block block = build_block(model, recipe_of(recipe), s);
    std::pair<std::int64_t, std::int64_t> found;  // kernels, weights' elements
    for (const Op& op : block.forward) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      if (r == nullptr || r->kind != RowwiseKind::cast) continue;
      found.first += kernel_count(*r);
      if (r->rows != s.seq_len) found.second += r->rows * r->cols;
    }
    return found;
  };
  // Inputs of qkv, attention's output, gate and up, and down; q, k, v, o, gate, up, down.
  const std::int64_t h = 4096, weights = h * (h + 2 * 1024 + h + 3 * 14336);
  CHECK(casts(RecipeKind::megatron, Precision::fp8) == std::pair{4L, 0L});
  // Queries, keys and values are one layer.
  CHECK(casts(RecipeKind::fsdp2_compile, Precision::fp8) == std::pair{4 * 3 + 5 * 3L, weights});
  CHECK(casts(RecipeKind::fsdp2_compile, Precision::bf16) == std::pair{0L, 0L});
}

TEST_CASE("torch copies what it gathers along the sequence of a batch, and what it reduces") {
  const ModelSpec model = load_model("llama3-8b");
  BlockShape s = shape_of(model, BlockKind::decoder);
  s.tp = 8;
  s.sequence_parallel = true;
  const auto copies = [&](RecipeKind recipe, std::int64_t sequences) {
    s.micro_batch_size = sequences;
    return count_rowwise(model, recipe, s, [&](const Rowwise& r) {
      return r.kind == RowwiseKind::copy && r.rows == sequences * s.seq_len &&
             r.cols == model.hidden_size;
    });
  };
  // Two gathers and two reductions forward, as many backward.
  CHECK(copies(RecipeKind::fsdp2_compile, 2) == 8);
  CHECK(copies(RecipeKind::fsdp2, 2) == 8);
  CHECK(copies(RecipeKind::fsdp2_compile, 1) == 0);
  CHECK(copies(RecipeKind::megatron, 2) == 0);
  s.overlap.add(OverlapKind::tp);
  CHECK(copies(RecipeKind::fsdp2_compile, 2) == 0);
}

TEST_CASE("eager norms of queries and keys keep fp32 copies, eager rotation keeps none") {
  const auto copies = [](const char* name, RecipeKind recipe) {
    const ModelSpec model = load_model(name);
    const Block block = build_block(model, recipe_of(recipe), shape_of(model, BlockKind::decoder));
    std::int64_t elements = 0;
    for (const Slot& slot : block.slots) {
      const bool attention = slot.shape[1] != model.hidden_size && slot.dtype == DType::fp32;
      if (attention && slot.name.find("norm") != std::string_view::npos) {
        elements += slot.elements();
      }
    }
    return elements;
  };
  CHECK(copies("qwen3-8b", RecipeKind::fsdp2) == 512 * (32 + 8) * 128);
  CHECK(copies("llama3-8b", RecipeKind::fsdp2) == 0);
  CHECK(copies("qwen3-8b", RecipeKind::fsdp2_compile) == 0);
}

TEST_CASE("loss_parallel holds one fp32 array of logits more than a whole vocabulary's loss") {
  const ModelSpec model = load_model("llama3-70b");
  const auto bytes_a_logit = [&](int tp) {
    BlockShape s = shape_of(model, BlockKind::head);
    s.tp = tp;
    const Block block = build_block(model, recipe_of_month(RecipeKind::fsdp2_compile, 202412), s);
    double bytes = 0, logits = 0;
    for (const Slot& slot : block.slots) {
      if (slot.name == "logits") logits = slot.bytes().value() / 2;
      if (slot.name.find("logits") != std::string_view::npos) bytes += slot.bytes().value();
    }
    return bytes / logits;
  };
  CHECK(bytes_a_logit(1) == doctest::Approx(14).epsilon(0.01));
  CHECK(bytes_a_logit(8) == doctest::Approx(16).epsilon(0.01));
}

TEST_CASE(
    "transformers 5 clears rows behind the last expert's, and makes copies of what it clears") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const auto passes = [&](const Recipe& recipe, int ep) {
    BlockShape s = shape_of(model, BlockKind::decoder);
    s.ep = ep;
    const std::int64_t rows = s.seq_len * model.moe->top_k;
    const auto of = [&](RowwiseKind kind) {
      return count_rowwise(model, recipe, s,
                           [&](const Rowwise& r) { return r.kind == kind && r.rows == rows; });
    };
    return std::pair{of(RowwiseKind::copy), of(RowwiseKind::masked_fill)};
  };
  using Passes = std::pair<std::int64_t, std::int64_t>;
  // Forward both products' results, in place what the first reads; backward the gradients of all.
  constexpr int kRelease5_17 = 202609;
  CHECK(passes(recipe_of_month(RecipeKind::fsdp2, kRelease5_17), 1) == Passes{5, 6});
  CHECK(passes(recipe_of_month(RecipeKind::fsdp2, kRelease5_17), 8) == Passes{0, 0});
  CHECK(passes(recipe_of(RecipeKind::fsdp2), 1) == Passes{0, 0});  // since 5.20
  CHECK(passes(recipe_of(RecipeKind::megatron), 1) == Passes{0, 0});
  constexpr int kTransformers4 = 202512;
  CHECK(passes(recipe_of_month(RecipeKind::ddp, kTransformers4), 1) == Passes{0, 0});
}
