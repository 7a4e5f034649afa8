#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string_view>

#include "costmodel/fold/replay.h"
#include "tests/properties/random_plans.h"

using namespace qplan;

namespace {

void check_fold(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
                const ParallelPlan& plan) {
  const std::string text = to_string(plan);
  if (std::getenv("QPLAN_TRACE")) MESSAGE(model.name, " ", to_word(recipe.kind), " ", text);
  CAPTURE(model.name);
  CAPTURE(to_word(recipe.kind));
  CAPTURE(text);
  const CostModel cost(model, recipe, hardware, {});
  const Replay flat = replay(cost, plan);
  const MemoryEstimate memory = cost.memory(plan);
  const double folded = cost.step_time(plan).value();
  CHECK(std::abs(folded / flat.step_time.value() - 1) < 1e-9);
  REQUIRE(memory.stages.size() == flat.peak.size());
  for (std::size_t r = 0; r < flat.peak.size(); ++r) {
    CAPTURE(r);
    CHECK(memory.stages[r].peak.value() == flat.peak[r].value());
  }
  const StepBound bound = cost.lower_bound(plan), least = cost.own_work_bound(plan);
  CHECK(bound.step.value() <= folded * (1 + 1e-12));
  CHECK(least.step <= bound.step);
  CHECK(least.evened <= bound.evened);
}

}  // namespace

TEST_CASE("a fold gives the replay's answer, in time to 1e-9 and in memory to the byte") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const std::vector<RecipeKind> recipes = {RecipeKind::megatron,
                                           RecipeKind::megatron_deepspeed,
                                           RecipeKind::deepspeed,
                                           RecipeKind::fsdp2,
                                           RecipeKind::fsdp2_compile,
                                           RecipeKind::qplan,
                                           RecipeKind::nanotron,
                                           RecipeKind::megatron_fsdp,
                                           RecipeKind::megatron_legacy,
                                           RecipeKind::fsdp1,
                                           RecipeKind::ddp};
  const std::vector<std::string> models = {"tiny",
                                           "tiny-moe",
                                           "tiny-mla",
                                           "gpt-oss-20b",
                                           "qwen3-vl-30b-a3b",
                                           "megatron-22b",
                                           "tiny-vl",
                                           "deepseek-v3",
                                           "qwen3.5-9b",
                                           "qwen3-next-80b-a3b",
                                           "nemotron-h-8b",
                                           "nemotron-3-super-120b-a12b",
                                           "llama4-scout-17b-16e",
                                           "llama4-maverick-17b-128e"};
  RandomPlans random(7);
  const int rounds = test_rounds(120);
  for (const std::string& name : models) {
    ModelSpec model = load_model(name);
    for (LayerKind& layer : model.layers) {
      if (layer.chunk > 0) layer.chunk = 192;  // of sequences as short as these
    }
    for (int i = 0; i < rounds; ++i) {
      const Recipe& recipe = recipe_of(recipes[static_cast<std::size_t>(i) % recipes.size()]);
      // Some models cannot run under some recipes at all; megatron takes every one.
      const bool hybrid = model.delta_net || model.mamba;
      const bool plain = !model.moe && !model.mla && !model.qk_norm && !hybrid;
      // Hybrids run in Hugging Face's modules, too, and not in our executor; Llama 4's experts in
      // neither.
      const bool scales = model.moe && model.moe->scales_inputs;
      const Recipe& used =
          plain ? recipe
                : recipe_of(i % 3 == 1   ? RecipeKind::megatron
                            : i % 3 == 2 ? RecipeKind::megatron_fsdp
                            : scales     ? RecipeKind::fsdp2_compile
                            : !hybrid    ? (i % 2 == 0 ? RecipeKind::qplan : RecipeKind::dualpipe)
                            : i % 2 == 0 ? RecipeKind::fsdp2
                                         : RecipeKind::deepspeed);
      const ParallelPlan plan = random.next(model, used);
      check_fold(model, used, hardware, plan);
    }
  }
}

TEST_CASE("dualpipe folds as it replays, from its shortest step to long ones") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::qplan);
  RandomPlans random(23);
  const int rounds = test_rounds(40);
  for (const char* name : {"tiny", "tiny-moe", "mixtral-8x7b", "llama3-8b"}) {
    const ModelSpec model = load_model(name);
    for (int i = 0; i < rounds;) {
      ParallelPlan plan = random.next(model, recipe);
      plan.schedule = ScheduleKind::dualpipe;
      plan.vpp = 1;
      plan.zero = std::min(plan.zero, 1);
      plan.overlap.remove(OverlapKind::ep);
      plan.pp = random.pick<int>({2, 4, 8});
      plan.global_batch_size =
          plan.micro_batch_size * plan.dp *
          random.pick<std::int64_t>({2 * plan.pp, 2 * plan.pp + 2, 6 * plan.pp, 160});
      if (!broken_rule(model, plan, recipe, {plan.world(), 90}).empty()) continue;
      check_fold(model, recipe, hardware, plan);
      ++i;
    }
  }
}

TEST_CASE("sequences in chunks that wait on the host fold as they replay") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::megatron_deepspeed);
  const ModelSpec model = load_model("megatron-22b");
  RandomPlans random(29);
  for (int i = 0; i < test_rounds(40);) {
    ParallelPlan plan = random.next(model, recipe);
    plan.tp = plan.pp = 1;
    plan.sequence_parallel = false;
    plan.pipeline_layout.clear();
    plan.cp = random.pick<int>({1, 2, 4});
    plan.cp_comm = CpComm::a2a;
    plan.fpdt_chunk = plan.seq_len / random.pick<std::int64_t>({1, 2, 4, 8});
    if (!broken_rule(model, plan, recipe, {plan.world(), 90}).empty()) continue;
    check_fold(model, recipe, hardware, plan);
    ++i;
  }
}

TEST_CASE("plans are drawn in every word of the table") {
  std::map<std::string_view, int> drawn;  // how often a word was not at its default
  for_each_word([&](const auto& word) { drawn[word.key] = 0; });
  const ParallelPlan defaults;
  RandomPlans random(5);
  constexpr int kDraws = 900;  // fewer, where rounds are cut, need not meet every word
  const int draws = test_rounds(kDraws);
  for (const char* name : {"megatron-22b", "tiny-moe", "nemotron-h-8b"}) {
    const ModelSpec model = load_model(name);
    for (const auto& [kind, word] : Words<RecipeKind>::table) {
      if (!can_be_drawn(model, kind)) continue;
      for (int i = 0; i < draws; ++i) {
        const ParallelPlan plan = random.next(model, recipe_of(kind));
        for_each_word([&](const auto& w) {
          if (plan.*w.member != defaults.*w.member) ++drawn[w.key];
        });
      }
    }
  }
  for (const auto& [key, times] : drawn) {
    CAPTURE(key);
    if (draws >= kDraws) CHECK(times > 0);
  }
}

// A search changes one word after the other and folds anew only what the change touches.
TEST_CASE("plans sifted one word after the other hold what a replay of each holds") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  RandomPlans random(31);
  const int rounds = test_rounds(60);
  for (const char* name : {"megatron-22b", "tiny", "tiny-moe"}) {
    const ModelSpec model = load_model(name);
    for (const auto& [kind, word] : Words<RecipeKind>::table) {
      if (!can_be_drawn(model, kind)) continue;
      const Recipe& recipe = recipe_of(kind);
      const CostModel cost(model, recipe, hardware, {});
      PlanSifter sifter(cost);
      ParallelPlan plan = random.next(model, recipe);
      for (int i = 0; i < rounds; ++i) {
        const ParallelPlan changed = random.with_a_word_changed(model, recipe, plan);
        if (!broken_rule(model, changed, recipe, {changed.world(), 90}).empty()) continue;
        const std::string before = to_string(plan), after = to_string(changed);
        CAPTURE(model.name);
        CAPTURE(to_word(kind));
        CAPTURE(before);
        CAPTURE(after);
        sifter.check(plan);
        const PlanSifter::Check sifted = sifter.check(changed);
        const Replay flat = replay(cost, changed);
        const MemoryEstimate memory = cost.memory(changed);
        CHECK(sifted.device_peak == memory.worst_stage().device);
        for (std::size_t r = 0; r < flat.peak.size(); ++r) {
          CHECK(memory.stages[r].peak.value() == flat.peak[r].value());
        }
        plan = i % 8 == 7 ? random.next(model, recipe) : changed;
      }
    }
  }
}
