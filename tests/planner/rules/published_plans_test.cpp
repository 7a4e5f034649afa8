// Plans that others publish and run are none that the rules refuse.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/json.h"
#include "models/model_spec.h"
#include "models/program/recipe.h"
#include "planner/rules/feasible.h"

using namespace qplan;

namespace {

struct Published {
  std::string what, model, plan;
  std::int64_t gpus;
  RecipeKind kind = RecipeKind::megatron;
};

// Stages of `even` layers, but `first` and `last`: accounting for embedding and head.
std::string layout(int first, int even, int middle_stages, int last) {
  std::string text = " layout=" + std::to_string(first);
  for (int i = 0; i < middle_stages; ++i) text += "+" + std::to_string(even);
  return text + "+" + std::to_string(last);
}

// BLOOM-176B's shapes (bigscience/bloom, config.json) in GPT-2's layers.
ModelSpec bloom() {
  return read_model(parse_json(R"({"model_type": "gpt2", "n_embd": 14336, "n_layer": 70,
      "n_head": 112, "vocab_size": 250880, "n_positions": 2048})",
                               "bloom.json"),
                    "bloom.json");
}

}  // namespace

TEST_CASE("published plans are feasible") {
  // Megatron-Bridge's recipes and performance scripts, slime's scripts.
  const std::vector<Published> plans = {
      {"30B pretrain, 8 H100", "qwen3-30b-a3b",
       "tp4 pp2 dp1 ep4 etp1 zero1 mbs1 gbs512 sp recompute=full", 8},
      {"30B, 16 H100", "qwen3-30b-a3b",
       "tp1 pp1 dp16 ep16 etp1 zero1 mbs1 gbs1024 grad_dtype=bf16 moment_dtype=bf16 "
       "moe_dispatcher=hybridep",
       16},
      {"30B fp8, 16 H100", "qwen3-30b-a3b",
       "tp1 pp2 dp8 ep8 etp1 zero1 mbs2 gbs512 interleaved vpp24 precision=fp8", 16},
      {"32B, 16 H100", "qwen3-32b", "tp8 pp2 dp1 zero1 mbs1 gbs64 sp recompute=full", 16},
      {"235B perf, 256 H100", "qwen3-235b-a22b",
       "tp2 pp8 dp16 ep32 etp1 zero1 mbs1 gbs2048 interleaved vpp4 sp precision=fp8" +
           layout(2, 3, 30, 2),
       256},
      {"235B pretrain, 256 H100", "qwen3-235b-a22b",
       "tp4 pp16 cp2 dp2 ep8 etp1 zero1 mbs1 gbs2048 sp" + layout(5, 6, 14, 5), 256},
      {"235B SFT, 64 GPUs", "qwen3-235b-a22b",
       "tp4 pp16 dp1 ep4 etp1 zero1 mbs1 gbs128 sp" + layout(5, 6, 14, 5), 64},
      {"235B slime, 64 GPUs", "qwen3-235b-a22b",
       "tp4 pp4 cp2 dp2 ep16 etp1 zero1 mbs1 gbs256 seq8192 sp recompute=full "
       "layout=24+24+24+22",
       64},
      {"30B slime, 8 GPUs", "qwen3-30b-a3b",
       "tp4 dp2 ep8 etp1 zero1 mbs1 gbs256 sp recompute=full offload=optimizer", 8},
      // Et*3|(tt|)*29,m|L: the last two stages hold the MTP layer and the loss.
      {"DeepSeek-V3, 1024 H100", "deepseek-v3",
       "tp2 pp8 dp64 ep64 etp1 zero1 mbs1 gbs8192 interleaved vpp4 sp "
       "recompute=selective:mla_up_proj+mlp" +
           layout(3, 2, 29, 0) + "+0",
       1024},
      {"Llama 3 70B, 64 H100", "llama3-70b",
       "tp4 pp4 cp2 dp2 zero1 mbs1 gbs128 seq8192 interleaved vpp5 sp", 64},
      {"Llama 3.1 405B, 1024 H100", "llama3-405b",
       "tp8 pp8 cp2 dp8 zero1 mbs1 gbs512 seq8192 interleaved vpp8 sp" + layout(1, 2, 62, 1), 1024},
      {"Mixtral, 32 GPUs", "mixtral-8x7b", "tp1 pp4 dp8 ep8 etp1 zero1 mbs1 gbs256", 32},
      {"torchtitan 405B, 512 GPUs", "llama3-405b",
       "tp8 pp8 cp1 dp8 zero3 mbs1 gbs256 seq8192 interleaved vpp2 sp compile", 512,
       RecipeKind::fsdp2_compile},
      {"DeepSpeed ZeRO-3", "llama3-70b", "dp16 zero3 gbs64 offload=optimizer,params", 16,
       RecipeKind::deepspeed},
      {"BLOOM style", "bloom", "tp4 pp12 dp8 zero1 mbs2 gbs2048 seq2048 recompute=full", 384,
       RecipeKind::megatron_deepspeed},
  };
  for (const Published& known : plans) {
    CAPTURE(known.what);
    const ModelSpec model = known.model == "bloom" ? bloom() : load_model(known.model);
    const ParallelPlan plan = parse_plan(known.plan);
    const ClusterLimits limits{known.gpus, 90};
    const auto reasons = why_infeasible(model, plan, recipe_of(known.kind), limits);
    for (const Infeasible& reason : reasons) FAIL_CHECK(reason.rule, ": ", reason.message);
    CHECK(broken_rule(model, plan, recipe_of(known.kind), limits).empty());
  }
}

TEST_CASE("key-value heads fewer than tp are repeated, not refused") {
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  const ModelSpec model = load_model("qwen3-235b-a22b");
  CHECK(broken_rule(model, parse_plan("tp8 sp"), megatron, {}) == "");
  CHECK(broken_rule(model, parse_plan("tp16 sp"), megatron, {}) == "");
}
