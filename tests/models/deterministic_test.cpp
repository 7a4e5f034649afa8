#include "models/program/deterministic.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

TEST_CASE("Megatron's deterministic mode writes the loss out and fills what kernels will write") {
  const ModelSpec llama = load_model("llama3-8b");
  const auto in_mode = [](BlockShape s) {
    s.deterministic = true;
    return s;
  };
  const BlockShape head = shape_of(llama, BlockKind::head);
  const auto eager_loss = [](const Rowwise& r) {
    return !r.fused &&
           (r.kind == RowwiseKind::cross_entropy || r.kind == RowwiseKind::cross_entropy_backward);
  };
  CHECK(count_rowwise(llama, RecipeKind::megatron, head, eager_loss) == 0);
  CHECK(count_rowwise(llama, RecipeKind::megatron, in_mode(head), eager_loss) == 2);
  CHECK(count_rowwise(llama, RecipeKind::qplan, in_mode(head), eager_loss) == 0);

  const BlockShape layer = shape_of(llama, BlockKind::decoder);
  const Block plain = build_block(llama, recipe_of(RecipeKind::megatron), layer);
  const Block filled = build_block(llama, recipe_of(RecipeKind::megatron), in_mode(layer));
  // Forward: two norms, four products, attention and its log-sum-exp.
  CHECK(filled.forward.size() == plain.forward.size() + 8);
  // Each fill comes right before the op that writes its array, and nothing has written it before.
  for (const OpList* ops : {&filled.forward, &filled.backward}) {
    for (std::size_t i = 0; i < ops->size(); ++i) {
      const auto* fill = std::get_if<Rowwise>(&(*ops)[i].work);
      if (fill == nullptr || fill->kind != RowwiseKind::zero_fill) continue;
      const SlotId slot = *(*ops)[i].writes.begin();
      const auto writes = [slot](const Op& op) {
        return std::count(op.writes.begin(), op.writes.end(), slot) > 0;
      };
      const auto at = ops->begin() + static_cast<std::ptrdiff_t>(i);
      CHECK(std::none_of(ops->begin(), at, writes));
      CHECK(std::count_if(at, ops->end(), writes) >= 2);
    }
  }
  const Block own = build_block(llama, recipe_of(RecipeKind::qplan), in_mode(layer));
  CHECK(own.forward.size() ==
        build_block(llama, recipe_of(RecipeKind::qplan), layer).forward.size());
}

TEST_CASE("attention's backward alone runs in another order in deterministic mode") {
  const ModelSpec llama = load_model("llama3-8b");
  BlockShape s = shape_of(llama, BlockKind::decoder);
  s.deterministic = true;
  const Block block = build_block(llama, recipe_of(RecipeKind::qplan), s);
  for (const OpList* ops : {&block.forward, &block.backward}) {
    for (const Op& op : *ops) {
      if (const auto* a = std::get_if<Attention>(&op.work)) {
        CHECK(a->deterministic == (a->pass == Pass::backward));
      }
    }
  }
}
