// What one framework's blocks do and another's do not.

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
