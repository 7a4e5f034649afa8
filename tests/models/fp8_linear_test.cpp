// What our executor's program says of linear layers in fp8: every product of fp8 numbers reads what
// another op cast, and what is cast is multiplied.

#include <doctest/doctest.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "models/program/blocks.h"
#include "models/program/step_program.h"

using namespace qplan;

namespace {

Block layer_of(const char* name, Precision precision, int tp = 1) {
  const ModelSpec model = load_model(name);
  ParallelPlan plan;
  plan.precision = precision;
  plan.tp = tp;
  plan.sequence_parallel = tp > 1;
  plan.seq_len = 1024;
  const Recipe& recipe = recipe_of(RecipeKind::qplan);
  BlockShape s = base_shape(model, plan, recipe, 1);
  s.layer = model.layers.back();
  return build_block(model, recipe, s);
}

std::vector<Op> all_ops(const Block& block) {
  std::vector<Op> ops = block.forward;
  ops.insert(ops.end(), block.backward.begin(), block.backward.end());
  return ops;
}

const Rowwise* rowwise(const Op& op, RowwiseKind kind) {
  const auto* work = std::get_if<Rowwise>(&op.work);
  return work != nullptr && work->kind == kind ? work : nullptr;
}

std::ptrdiff_t count(const Block& block, RowwiseKind kind) {
  const std::vector<Op> ops = all_ops(block);
  return std::count_if(ops.begin(), ops.end(),
                       [&](const Op& op) { return rowwise(op, kind) != nullptr; });
}

}  // namespace

TEST_CASE("fp8 products read an e4m3 operand, another that may be a gradient, and both scales") {
  for (const char* name : {"qwen3-8b", "qwen3-30b-a3b", "deepseek-v3"}) {
    CAPTURE(name);
    for (const int tp : {1, 2}) {
      const Block block = layer_of(name, Precision::fp8, tp);
      std::vector<bool> written(block.slots.size(), false);
      int products = 0;
      for (const Op& op : all_ops(block)) {
        const auto* product = std::get_if<Gemm>(&op.work);
        const bool narrow = product != nullptr && product->dtype == DType::fp8;
        for (const SlotId id : op.reads) {
          const Slot& slot = block.slots[static_cast<std::size_t>(id)];
          const bool fp8 = slot.dtype == DType::fp8 || slot.dtype == DType::fp8_e5m2;
          if (fp8) CHECK(written[static_cast<std::size_t>(id)]);
        }
        for (const SlotId id : op.writes) written[static_cast<std::size_t>(id)] = true;
        if (!narrow) continue;
        ++products;
        const auto slot = [&](int i) {
          return block.slots[static_cast<std::size_t>(op.reads.ids[static_cast<std::size_t>(i)])];
        };
        REQUIRE(op.reads.count == 4);
        // Contracted sides lie in rows.
        CHECK(slot(0).shape[0] == product->m);
        CHECK(slot(1).shape[0] == product->n);
        CHECK(slot(0).shape[1] == product->k);
        CHECK(slot(1).shape[1] == product->k);
        CHECK(slot(0).dtype == (op.role == Role::plain ? DType::fp8 : DType::fp8_e5m2));
        CHECK(slot(1).dtype == DType::fp8);
        CHECK(slot(2).dtype == DType::fp32);
        CHECK(slot(3).elements() == 1);
      }
      // Of a dense layer four times three; latent attention's projections and experts are in bf16.
      const bool dense = std::string_view(name) == "qwen3-8b";
      CHECK(products == (dense ? 12 : std::string_view(name) == "deepseek-v3" ? 3 : 6));
    }
  }
}

TEST_CASE("every array that becomes fp8 has one scale, and is cast once for each way it is read") {
  const Block block = layer_of("qwen3-8b", Precision::fp8);
  // Four inputs, four gradients and four weights.
  CHECK(count(block, RowwiseKind::amax) == 12);
  // Each of them; in backward weights, and attention's output that is kept in bf16, transposed.
  CHECK(count(block, RowwiseKind::quantize) == 17);
  CHECK(count(layer_of("qwen3-8b", Precision::bf16), RowwiseKind::quantize) == 0);
}

TEST_CASE("ranks that gather a sequence in fp8 share its scale") {
  const Block block = layer_of("qwen3-8b", Precision::fp8, 2);
  int gathers = 0, maxima = 0;
  for (const Op& op : all_ops(block)) {
    const auto* work = std::get_if<Collective>(&op.work);
    if (work == nullptr) continue;
    if (work->kind == CollectiveKind::all_reduce && op.role == Role::maximum) ++maxima;
    const Slot& slot = block.slots[static_cast<std::size_t>(op.reads.ids[0])];
    if (work->kind == CollectiveKind::all_gather && slot.dtype != DType::bf16) ++gathers;
  }
  CHECK(maxima == 4);   // both parts' inputs and output gradients
  CHECK(gathers == 6);  // inputs are gathered again in backward
}
