// Packed sequences: attention stays within documents, everything else is as before.

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "models/plan/parallel_plan.h"
#include "models/plan/plan_text.h"
#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

namespace {

// Pairs that attention scores in packed sequences over those in whole ones. Op by op nothing else
// may differ, nor may memory.
double share_of_pairs(const ModelSpec& model, RecipeKind recipe, const BlockShape& whole,
                      std::int64_t documents) {
  BlockShape packed = whole;
  packed.documents = documents;
  const Block a = build_block(model, recipe_of(recipe), whole);
  const Block b = build_block(model, recipe_of(recipe), packed);
  CHECK(std::equal(a.slots.begin(), a.slots.end(), b.slots.begin(), b.slots.end(),
                   [](const Slot& x, const Slot& y) { return x.bytes() == y.bytes(); }));
  double before = 0, after = 0;
  const auto pairs_of = [](const Attention& work) {
    return static_cast<double>(work.batch * work.heads) * score_pairs(work);
  };
  for (const auto& [old_ops, new_ops] :
       {std::pair{&a.forward, &b.forward}, std::pair{&a.backward, &b.backward}}) {
    REQUIRE(old_ops->size() == new_ops->size());
    for (std::size_t i = 0; i < old_ops->size(); ++i) {
      const auto* old_work = std::get_if<Attention>(&(*old_ops)[i].work);
      if (old_work == nullptr) {
        CHECK((*old_ops)[i].work == (*new_ops)[i].work);
        continue;
      }
      const auto& new_work = std::get<Attention>((*new_ops)[i].work);
      CHECK(new_work.batch == documents * old_work->batch);
      CHECK(new_work.batch * new_work.q_len == old_work->batch * old_work->q_len);
      before += pairs_of(*old_work);
      after += pairs_of(new_work);
    }
  }
  return after / before;
}

}  // namespace

TEST_CASE("n documents in a sequence score an nth of its pairs, and change nothing else") {
  const ModelSpec llama = load_model("llama3-8b");
  BlockShape s = shape_of(llama, BlockKind::decoder);
  s.micro_batch_size = 2;
  for (const RecipeKind recipe : {RecipeKind::megatron, RecipeKind::fsdp2, RecipeKind::nanotron}) {
    CAPTURE(to_word(recipe));
    CHECK(share_of_pairs(llama, recipe, s, 8) == doctest::Approx(1.0 / 8));
  }
  s.cp = 4;
  for (const auto& [comm, word] : Words<CpComm>::table) {
    CAPTURE(word);
    s.cp_comm = comm;
    CHECK(share_of_pairs(llama, RecipeKind::megatron, s, 8) == doctest::Approx(1.0 / 8));
  }
}

TEST_CASE("a plan's documents are as many as a sequence holds, but where scores are written out") {
  const ModelSpec llama = load_model("llama3-8b");
  const auto documents = [&](const char* line, RecipeKind recipe = RecipeKind::megatron) {
    return base_shape(llama, parse_plan(line), recipe_of(recipe), 1).documents;
  };
  CHECK(documents("seq4096") == 1);
  CHECK(documents("seq4096 doc512") == 8);
  CHECK(documents("seq4096 doc1500") == 3);
  CHECK(documents("seq4096 doc3000") == 1);
  CHECK(documents("seq4096 doc1") == 4096);
  CHECK(documents("cp4 seq4096 doc1") == 1024);  // a rank has at least a token of each
  CHECK(documents("seq4096 doc512", RecipeKind::megatron_legacy) == 1);
}
