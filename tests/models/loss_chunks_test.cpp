// Head and loss in parts of the tokens, as torchtitan runs them.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <variant>

#include "framework_blocks.h"
#include "models/program/liveness.h"
#include "models/program/loss.h"

namespace qplan::test {
namespace {

struct HeadWork {
  double flops = 0, loss_elements = 0;
  std::int64_t products = 0, added = 0, begun = 0;
};

HeadWork work_of(const Block& block) {
  HeadWork done;
  for (const OpList* ops : {&block.forward, &block.backward}) {
    for (const Op& op : *ops) {
      if (std::holds_alternative<Gemm>(op.work)) {
        ++done.products;
        done.flops += flops(op.work).value();
      }
      const auto* r = std::get_if<Rowwise>(&op.work);
      if (r == nullptr) continue;
      const bool of_table = r->rows > 100'000;
      done.added += of_table && r->kind == RowwiseKind::accumulate;
      done.begun += of_table && r->kind == RowwiseKind::cast;
      if (r->kind == RowwiseKind::cross_entropy) {
        done.loss_elements += static_cast<double>(r->rows) * static_cast<double>(r->cols);
      }
    }
  }
  return done;
}

BlockShape sharded_head(const ModelSpec& model) {
  BlockShape s = shape_of(model, BlockKind::head);
  s.seq_len = 8192;
  s.zero = 3;
  s.dense_shard = 8;
  s.grad_dtype = DType::fp32;
  return s;
}

// Torchtitan before chunks, with a loss that was compiled already.
Recipe in_one_piece() {
  return recipe_of_month(RecipeKind::fsdp2_compile, 202504);
}

}  // namespace

TEST_CASE("a head in chunks does the work of a whole one, and adds up the table's gradients") {
  const ModelSpec model = load_model("llama3-8b");
  const BlockShape s = sharded_head(model);
  const HeadWork whole = work_of(build_block(model, in_one_piece(), s));
  const HeadWork chunks = work_of(build_block(model, recipe_of(RecipeKind::fsdp2_compile), s));
  CHECK(whole.products == 3);
  CHECK(chunks.products == 8 * 3);
  CHECK(chunks.flops == doctest::Approx(whole.flops));
  CHECK(chunks.loss_elements == whole.loss_elements);
  CHECK(chunks.loss_elements == 8192.0 * 128'256);
  // The first is made fp32 where it stands, the others are added to it; a whole one is made fp32
  // on its way into the reduction, in one array with the norm's.
  CHECK(chunks.begun == 1);
  CHECK(chunks.added == 7);
  CHECK(whole.added == 0);
}

TEST_CASE("an eighth of the logits is there at once") {
  const ModelSpec model = load_model("llama3-8b");
  const BlockShape s = sharded_head(model);
  const auto logits = [&](const Recipe& recipe) {
    double most = 0;
    for (const Slot& slot : build_block(model, recipe, s).slots) {
      if (slot.name == "logits") most = std::max(most, slot.bytes().value());
    }
    return most;
  };
  CHECK(logits(in_one_piece()) == 8192.0 * 128'256 * 2);
  CHECK(logits(recipe_of(RecipeKind::fsdp2_compile)) == 8192.0 * 128'256 * 2 / 8);
}

TEST_CASE("a head stays whole where chunks do not divide the tokens, and with token prediction") {
  const ModelSpec llama = load_model("llama3-8b"), deepseek = load_model("deepseek-v3");
  const auto chunks = [](const ModelSpec& model, const Recipe& recipe, std::int64_t tokens) {
    return loss_parts(model, traits_of(recipe.kernels.loss, recipe), tokens).count;
  };
  const Recipe& titan = recipe_of(RecipeKind::fsdp2_compile);
  CHECK(chunks(llama, titan, 4096) == 8);
  CHECK(chunks(llama, titan, 4100) == 1);
  CHECK(chunks(deepseek, titan, 4096) == (deepseek.num_mtp_layers > 0 ? 1 : 8));
  CHECK(chunks(llama, recipe_of(RecipeKind::fsdp2), 4096) == 1);
  CHECK(chunks(llama, recipe_of_month(RecipeKind::fsdp2_compile, 202604), 4096) == 1);
  CHECK(chunks(llama, recipe_of_month(RecipeKind::fsdp2_compile, 202605), 4096) == 8);
}

TEST_CASE("since April 2026 queries, keys and values are one product in torchtitan") {
  const ModelSpec model = load_model("llama3-8b");
  const auto products = [&](const Recipe& recipe) {
    const Block block = build_block(model, recipe, shape_of(model, BlockKind::decoder));
    return std::ranges::count_if(
        block.forward, [](const Op& op) { return std::holds_alternative<Gemm>(op.work); });
  };
  CHECK(products(recipe_of_month(RecipeKind::fsdp2_compile, 202603)) ==
        7);                                                    // q, k, v, out, gate, up, down
  CHECK(products(recipe_of(RecipeKind::fsdp2_compile)) == 5);  // qkv, out, gate, up, down
}

}  // namespace qplan::test
