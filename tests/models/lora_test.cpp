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

TEST_CASE("frozen weights have neither gradients nor an optimizer's states") {
  const ModelSpec model = load_model("llama3-8b");
  const std::int64_t weights = 218'112'000;  // a layer's
  const std::int64_t adapters = 41'943'040 / 32;
  for (const RecipeKind kind : {RecipeKind::megatron, RecipeKind::fsdp2, RecipeKind::deepspeed}) {
    const Block block = layer(model, kind, "gbs1 seq1024 zero0 lora16");
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
