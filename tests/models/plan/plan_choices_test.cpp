// What a plan chooses for Megatron's layers: who sorts tokens, who computes attention, and dropout.

#include <doctest/doctest.h>

#include <algorithm>
#include <variant>

#include "models/plan/parallel_plan.h"
#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

namespace {

BlockShape layer_of(const ModelSpec& model, const std::string& words) {
  const Recipe& recipe = recipe_of(RecipeKind::megatron);
  BlockShape s = base_shape(model, parse_plan(words), recipe, 1);
  s.kind = BlockKind::decoder;
  s.layer = model.layers.back();
  return s;
}

}  // namespace

TEST_CASE("without permute fusion torch's own kernels sort tokens, but for HybridEP's") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const auto by_torch = [&](const std::string& words) {
    const BlockShape s = layer_of(model, "dp8 ep8 etp1 gbs8 seq1024 " + words);
    return count_rowwise(model, RecipeKind::megatron, s, [](const Rowwise& r) {
      return !r.fused && (r.kind == RowwiseKind::permute || r.kind == RowwiseKind::unpermute ||
                          r.kind == RowwiseKind::group_rows);
    });
  };
  CHECK(by_torch("") == 0);
  // Sorted, grouped, grouped back and summed, there and back.
  CHECK(by_torch("moe_permute_fusion=false") == 8);
  CHECK(by_torch("moe_permute_fusion=false moe_dispatcher=deepep") == 4);
  CHECK(by_torch("moe_permute_fusion=false moe_dispatcher=hybridep") == 0);
}

TEST_CASE("a plan's attention backend stands for the recipe's") {
  const ModelSpec model = load_model("llama3-8b");
  const auto kernel = [&](const std::string& words) {
    const BlockShape s = layer_of(model, "dp8 gbs8 seq1024 " + words);
    AttentionKernel found = AttentionKernel::unfused;
    for (const Op& op : build_block(model, recipe_of(RecipeKind::megatron), s).backward) {
      if (const auto* a = std::get_if<Attention>(&op.work)) found = a->kernel;
    }
    return found;
  };
  CHECK(kernel("") == AttentionKernel::fused);
  CHECK(kernel("attention_backend=flash") == AttentionKernel::flash2);
  CHECK(kernel("attention_backend=fused") == AttentionKernel::fused);
  CHECK(kernel("attention_backend=unfused") == AttentionKernel::unfused);
}

TEST_CASE("plans of torch's trainers choose attention, too, and leave it to the recipe unasked") {
  const ModelSpec model = load_model("llama3-8b");
  const auto kernel = [&](RecipeKind kind, const std::string& words) {
    const Recipe& recipe = recipe_of(kind);
    const std::string zero = kind == RecipeKind::ddp ? "zero0" : "zero3";
    const ParallelPlan plan = parse_plan("dp8 " + zero + " gbs8 seq1024 " + words);
    BlockShape s = base_shape(model, plan, recipe, 1);
    s.kind = BlockKind::decoder;
    s.layer = model.layers.back();
    std::vector<AttentionKernel> found;
    for (const Op& op : build_block(model, recipe, s).forward) {
      if (const auto* a = std::get_if<Attention>(&op.work)) found.push_back(a->kernel);
    }
    REQUIRE(found.size() == 1);
    return found.front();
  };
  for (const RecipeKind kind : {RecipeKind::fsdp1, RecipeKind::fsdp2, RecipeKind::fsdp2_compile,
                                RecipeKind::ddp, RecipeKind::deepspeed}) {
    CAPTURE(to_word(kind));
    CHECK(kernel(kind, "") == recipe_of(kind).kernels.attention);
    CHECK(kernel(kind, "attention_backend=fused") == AttentionKernel::fused);
    CHECK(kernel(kind, "attention_backend=flash") == AttentionKernel::flash2);
  }
}

// q, k and v of a layer, 4096 + 2 x 1024 columns; with heads exchanged over cp they travel so, too.
TEST_CASE("attention in fp8 keeps its operands in one byte, and a ring sends them so") {
  const ModelSpec model = load_model("llama3-8b");
  const Recipe& recipe = recipe_of(RecipeKind::megatron);
  const auto block = [&](const std::string& words) {
    return build_block(model, recipe, layer_of(model, "gbs8 seq1024 precision=fp8 " + words));
  };
  const auto operands = [&](const std::string& words) {
    double bytes = 0;
    const Block b = block("dp8 " + words);
    for (const Op& op : b.backward) {
      const auto* a = std::get_if<Attention>(&op.work);
      if (a == nullptr) continue;
      CHECK((a->kernel == AttentionKernel::fused_fp8) == !words.empty());
      for (const SlotId slot : op.reads) {
        const Slot& read = b.slots[static_cast<std::size_t>(slot)];
        if (read.name.starts_with("q") || read.name.starts_with("k") ||
            read.name.starts_with("v")) {
          bytes += read.bytes().value();
        }
      }
    }
    return bytes;
  };
  CHECK(operands("") == 1024.0 * (4096 + 2 * 1024) * 2);
  CHECK(operands("fp8_dot_product_attention") == 1024.0 * (4096 + 2 * 1024));
  const auto sent = [&](const std::string& words) {
    double bytes = 0;
    for (const Op& op : block("cp2 dp4 " + words).forward) {
      if (const auto* c = std::get_if<SendRecv>(&op.work)) bytes += c->bytes.value();
      if (const auto* c = std::get_if<Collective>(&op.work)) bytes += c->bytes.value();
    }
    return bytes;
  };
  CHECK(sent("fp8_dot_product_attention") == sent("") / 2);
  CHECK(sent("cp_comm=all_gather fp8_dot_product_attention") == sent("cp_comm=all_gather") / 2);
  CHECK(sent("cp_comm=a2a fp8_dot_product_attention") < sent("cp_comm=a2a"));
}

TEST_CASE("dropout keeps a byte of mask for each number added to the residual") {
  for (const char* name : {"llama3-8b", "qwen3-30b-a3b"}) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    const auto layer = [&](const std::string& words) {
      return build_block(model, recipe_of(RecipeKind::megatron),
                         layer_of(model, "dp8 gbs16 mbs2 seq1024 " + words));
    };
    const auto masks = [](const Block& block) {
      double bytes = 0;
      for (const Slot& slot : block.slots) {
        if (slot.name.find("dropout mask") != std::string_view::npos) bytes += slot.bytes().value();
      }
      return bytes;
    };
    CHECK(masks(layer("")) == 0);
    CHECK(masks(layer("dropout")) == 2.0 * 2 * 1024 * static_cast<double>(model.hidden_size));
    const Block dropped = layer("dropout");
    CHECK(dropped.backward.size() == layer("").backward.size() + 2);
    for (const Op& op : dropped.forward) {
      if (const auto* a = std::get_if<Attention>(&op.work)) CHECK(a->dropout);
    }
  }
}

TEST_CASE("without gradient fusion a kernel adds each weight gradient, and no dummies are held") {
  const ModelSpec model = load_model("llama3-8b");
  const auto layer = [&](const std::string& words) {
    return build_block(model, recipe_of(RecipeKind::megatron),
                       layer_of(model, "dp8 gbs16 seq1024 " + words));
  };
  const auto added = [](const Block& block) {
    return std::count_if(block.backward.begin(), block.backward.end(), [](const Op& op) {
      const auto* r = std::get_if<Rowwise>(&op.work);
      return r != nullptr && r->kind == RowwiseKind::accumulate;
    });
  };
  const auto dummies = [](const Block& block) {
    return std::count_if(block.slots.begin(), block.slots.end(),
                         [](const Slot& slot) { return slot.name == "dummy weight gradient"; });
  };
  const Block fused = layer(""), apart = layer("gradient_accumulation_fusion=false");
  CHECK(added(fused) == 0);
  CHECK(added(apart) == 4);  // queries, keys and values; output; gate and up; down
  CHECK(dummies(fused) == 4);
  CHECK(dummies(apart) == 0);
}

TEST_CASE("FSDP that adds gradients up whole reduces them once a step, and keeps them until then") {
  const ModelSpec model = load_model("llama3-8b");
  const auto layer = [&](RecipeKind kind, const std::string& words) {
    const Recipe& recipe = recipe_of(kind);
    BlockShape s = base_shape(model, parse_plan("dp8 zero3 seq1024 " + words), recipe, 1);
    s.kind = BlockKind::decoder;
    s.layer = model.layers.back();
    return build_block(model, recipe, s);
  };
  const auto reductions = [](const std::vector<Op>& ops) {
    return std::count_if(ops.begin(), ops.end(), [](const Op& op) {
      const auto* c = std::get_if<Collective>(&op.work);
      return c != nullptr && c->kind == CollectiveKind::reduce_scatter;
    });
  };
  const auto kept = [](const Block& block) {
    double bytes = 0;
    for (const Slot& slot : block.slots) {
      if (slot.storage == Storage::gradient) bytes += slot.bytes().value();
    }
    return bytes;
  };
  const auto numbers = static_cast<double>(layer_parameters(model, model.layers.back()));
  for (const auto& [kind, width] :
       {std::pair{RecipeKind::fsdp1, 2.0}, std::pair{RecipeKind::fsdp2, 4.0},
        std::pair{RecipeKind::fsdp2_compile, 4.0}}) {
    CAPTURE(to_word(kind));
    const Block each = layer(kind, "gbs32"), last = layer(kind, "gbs32 sync_each_batch=false");
    CHECK(reductions(each.backward) == 1);
    CHECK(reductions(each.reduce) == 0);
    CHECK(reductions(last.backward) == 0);
    CHECK(reductions(last.reduce) == 1);
    // FSDP2 adds up in the format that it reduces in, FSDP1 in that of autograd's gradients.
    CHECK(kept(last) == doctest::Approx(numbers * width).epsilon(0.001));
    CHECK(kept(each) == doctest::Approx(numbers * 4 / 8).epsilon(0.001));
    // Of one microbatch there is nothing to add up.
    const Block alone = layer(kind, "gbs8 sync_each_batch=false"), plain = layer(kind, "gbs8");
    CHECK(alone.backward.size() == plain.backward.size());
    CHECK(kept(alone) == kept(plain));
  }
}
