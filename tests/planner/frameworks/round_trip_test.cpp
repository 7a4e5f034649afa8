#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "models/error.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

constexpr int kPlans = 500;

// Random plans that this framework can write, over the zoo: what the rules accept, taken to the
// nearest plan that its files express, with words that RandomPlans leaves alone.
class Expressible {
 public:
  Expressible(Framework framework, unsigned seed) : framework_(framework), random_(seed) {
    for (const std::string& name : model_names()) {
      if (name.starts_with("gpt-")) continue;  // gpt3-175b is of their kind
      models_.push_back({load_model(name), model_config(name)});
    }
  }

  struct Model {
    ModelSpec spec;
    Json config;
  };
  struct Case {
    const Model& model;
    ParallelPlan plan;
    RecipeKind recipe;
  };

  Case next() {
    for (;;) {
      const Model& model = models_[random_.pick(indices())];
      const RecipeKind of_plan =
          random_.coin(0.2) ? RecipeKind::megatron_fsdp : RecipeKind::megatron;
      const RecipeKind recipe = recipe_for(framework_, of_plan);
      if (hopeless(model, recipe)) continue;
      ParallelPlan plan = vary(random_any(model.spec));
      plan = canonical(plan, model.spec);
      const Subject subject{model.spec, model.config, plan, recipe, 8};
      const ClusterLimits limits{plan.world(), 90};
      ParallelPlan nearest = plan;
      if (!why_inexpressible(framework_, subject, limits).empty() &&
          !nearest_expressible(framework_, subject, limits, nearest)) {
        continue;
      }
      nearest = canonical(nearest, model.spec);
      const Subject again{model.spec, model.config, nearest, recipe, 8};
      if (!why_inexpressible(framework_, again, limits).empty()) continue;
      return {model, nearest, recipe};
    }
  }

 private:
  std::vector<std::size_t> indices() const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < models_.size(); ++i) all.push_back(i);
    return all;
  }

  // Models that no plan of this framework can have; asked once each.
  bool hopeless(const Model& model, RecipeKind recipe) {
    const auto key = std::make_pair(model.spec.name, recipe);
    if (hopeful_.count(key) != 0) return false;
    if (hopeless_.count(key) != 0) return true;
    ParallelPlan plan, nearest;
    plan.dp = 8;
    plan.global_batch_size = 8;
    plan.seq_len = 1024;
    const Subject subject{model.spec, model.config, plan, recipe, 8};
    const ClusterLimits limits{8, 90};
    const bool fine = why_inexpressible(framework_, subject, limits).empty() ||
                      nearest_expressible(framework_, subject, limits, nearest);
    (fine ? hopeful_ : hopeless_).insert(key);
    return !fine;
  }

  // Megatron's rules allow most of what any framework does.
  ParallelPlan random_any(const ModelSpec& model) {
    return random_.next(model, recipe_of(RecipeKind::megatron));
  }

  ParallelPlan vary(ParallelPlan p) {
    if (random_.coin(0.3)) {
      p.main_params_dtype = DType::bf16;
      p.moment_dtype = random_.pick<DType>({DType::fp32, DType::bf16, DType::fp8});
    }
    if (random_.coin(0.3)) p.zero = random_.pick<int>({1, 2, 3});
    if (random_.coin(0.2) && p.dp % 2 == 0) p.fsdp_shard = p.dp * p.cp / 2;
    if (random_.coin(0.2)) p.precision = random_.pick<Precision>({Precision::fp8, Precision::fp16});
    if (random_.coin(0.3)) p.compile = true;
    if (random_.coin(0.2)) p.overlap = p.overlap.add(OverlapKind::grad).add(OverlapKind::param);
    if (random_.coin(0.1)) p.offload = {1.0, true, 0, false};
    return p;
  }

  Framework framework_;
  RandomPlans random_;
  std::vector<Model> models_;
  std::set<std::pair<std::string, RecipeKind>> hopeful_, hopeless_;
};

void round_trips(Framework framework, unsigned seed) {
  Expressible plans(framework, seed);
  std::set<std::string> models, different;
  for (int round = 0; round < test_rounds(kPlans); ++round) {
    const auto [model, plan, recipe] = plans.next();
    CAPTURE(model.spec.name);
    CAPTURE(to_string(plan));
    models.insert(model.spec.name);
    different.insert(model.spec.name + to_string(plan));
    const Subject subject{model.spec, model.config, plan, recipe, 8};
    const auto files = emit(framework, subject, {"a remark"});
    const Checked checked =
        check(texts_of(files), question_of(model.spec, model.config, plan.world()));
    // A plan in fp16 is what the person asked for, and still unwise for what was trained in bf16.
    const bool half = plan.precision == Precision::fp16;
    const bool clean = std::all_of(
        checked.findings.begin(), checked.findings.end(),
        [&](const Finding& f) { return half && f.rule == "fp16_of_bf16_model"; });
    CHECK_MESSAGE(clean, findings_text(checked));
    REQUIRE(checked.framework);
    CHECK(checked.framework == framework);
    CHECK(checked.recipe == recipe);
    CHECK(to_string(checked.plan) == to_string(plan));
    CHECK(checked.plan == plan);
    if (checked.plan != plan || !clean) {
      for (const auto& file : files) MESSAGE(file.name << "\n" << file.text);
      return;  // one is enough to read
    }
  }
  if (test_rounds(kPlans) == kPlans) CHECK(different.size() > kPlans / 4);
}

TEST_SUITE("what emit writes, check reads back as the same plan with no findings") {
  TEST_CASE("megatron") { round_trips(Framework::megatron, 1); }
  TEST_CASE("megatron-bridge") { round_trips(Framework::megatron_bridge, 2); }
  TEST_CASE("deepspeed") { round_trips(Framework::deepspeed, 3); }
  TEST_CASE("megatron-deepspeed") { round_trips(Framework::megatron_deepspeed, 4); }
  TEST_CASE("fsdp2") { round_trips(Framework::fsdp2, 5); }
  TEST_CASE("torchtitan") { round_trips(Framework::torchtitan, 6); }
  TEST_CASE("slime") { round_trips(Framework::slime, 7); }
}

}  // namespace
}  // namespace qplan
