// FPDT: what of a layer is there at once, and what goes to the host and comes back.

#include <doctest/doctest.h>

#include "costmodel/evaluate.h"
#include "models/plan/parallel_plan.h"
#include "tests/models/framework_blocks.h"

using namespace qplan;
using namespace qplan::test;

namespace {

constexpr std::int64_t kTokens = 4096;

Block layer_of(const ModelSpec& model, const std::string& words) {
  const Recipe& recipe = recipe_of(RecipeKind::megatron_deepspeed);
  const ParallelPlan plan = parse_plan("cp4 cp_comm=a2a gbs1 seq4096 zero3 " + words);
  BlockShape s = base_shape(model, plan, recipe, 1);
  s.kind = BlockKind::decoder;
  s.layer = model.layers.back();
  return build_block(model, recipe, s);
}

template <class Work, class Of>
double sum_over(const OpList& ops, Of of) {
  double sum = 0;
  for (const Op& op : ops) {
    if (const auto* work = std::get_if<Work>(&op.work)) sum += of(*work);
  }
  return sum;
}

double products(const OpList& ops) {
  return sum_over<Gemm>(ops, [](const Gemm& g) { return flops(g).value(); });
}
double scores(const OpList& ops) {
  return sum_over<Attention>(ops, [](const Attention& a) { return flops(a).value(); });
}
double moved(const OpList& ops, bool to_host) {
  return sum_over<HostCopy>(
      ops, [&](const HostCopy& c) { return c.to_host == to_host ? c.bytes.value() : 0; });
}

}  // namespace

TEST_CASE("chunks of a sequence do the work of the whole, and the MLP's first product twice") {
  const ModelSpec model = load_model("megatron-22b");
  const Block whole = layer_of(model, ""), chunked = layer_of(model, "fpdt_chunk=1024");
  CHECK(products(chunked.forward) == doctest::Approx(products(whole.forward)).epsilon(1e-12));
  const double up = 2.0 * kTokens / 4 * static_cast<double>(model.hidden_size) *
                    static_cast<double>(model.intermediate_size);
  CHECK(products(chunked.backward) ==
        doctest::Approx(products(whole.backward) + up).epsilon(1e-12));
  // Of 4 chunks 4 diagonals, which count half, and 6 wholes are the half of the 16 that the fork's
  // written-out attention multiplies; kernels that keep no scores make them again in backward.
  const double forward = scores(chunked.forward);
  CHECK(forward == doctest::Approx(scores(whole.forward) / 2).epsilon(1e-12));
  CHECK(scores(chunked.backward) == doctest::Approx(2.5 * forward).epsilon(1e-12));
}

TEST_CASE("what waits between chunks leaves once, and keys come again for all later queries") {
  const ModelSpec model = load_model("megatron-22b");
  const Block chunked = layer_of(model, "fpdt_chunk=1024");
  const double rows = kTokens / 4.0, h = static_cast<double>(model.hidden_size);
  const double heads = static_cast<double>(model.num_attention_heads);
  // Of a rank: the normed input, queries, keys, values and outputs in 16 bits, and a number a head.
  CHECK(moved(chunked.forward, true) == doctest::Approx(rows * (5 * 2 * h + 4 * heads)));
  // The third chunk's queries bring two chunks of keys and values, the fourth's three.
  CHECK(moved(chunked.forward, false) == doctest::Approx(rows / 4 * (2 + 3) * 2 * 2 * h));
  CHECK(moved(layer_of(model, "").forward, true) == 0);
}

TEST_CASE("a layer in chunks holds less of a long sequence, on the device") {
  const ModelSpec model = load_model("megatron-22b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron_deepspeed), hardware, {});
  const auto memory = [&](const std::string& words) {
    return cost.memory(parse_plan("dp8 cp4 cp_comm=a2a gbs8 seq2048 zero3 " + words));
  };
  const auto whole = memory(""), chunked = memory("fpdt_chunk=256");
  CHECK(chunked.worst_stage().activations < whole.worst_stage().activations * 0.6);
  CHECK(chunked.host_per_node.value() > 0);
  // Recomputation drops what forward brought there, but for the layer that runs.
  const auto again = memory("fpdt_chunk=256 recompute=full");
  CHECK(again.host_per_node < chunked.host_per_node * 0.1);
  CHECK(again.host_per_node.value() > 0);
}
