// What the search proposes for our own recipe runs, and computes what one rank computes.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/search/enumerate.h"
#include "tests/properties/executed.h"

using namespace qplan;

namespace {

using P = ParallelPlan;

// Sizes that divide nothing else: layers over stages, experts over copies of tokens.
ModelSpec odd_model() {
  ModelSpec m = load_model("tiny-moe");
  m.name = "tiny-moe, odd";
  m.num_layers = 5;
  m.layers.resize(5, m.layers.back());
  m.layers[0].moe = false;
  m.moe->num_experts = 12;
  m.moe->top_k = 5;
  return m;
}

template <class E>
std::vector<E> values_of() {
  std::vector<E> values;
  for (const auto& [value, word] : Words<E>::table) values.push_back(value);
  return values;
}

// A search as somebody may ask for it: each word is left open or fixed, the words that the search
// leaves alone unless asked (schedules, replicated states, dispatchers, dtypes) as well.
class RandomSpaces {
 public:
  explicit RandomSpaces(unsigned seed) : random_(seed) {}

  SearchSpace next(const ModelSpec& model) {
    RandomPlans& r = random_;
    SearchSpace s;
    s.gpus = r.pick<std::int64_t>({1, 2, 4, 4, 8, 8});
    s.job.global_batch_size = r.pick<std::int64_t>({8, 8, 16});
    s.job.seq_len = r.pick<std::int64_t>({16, 16, 24, 32});
    s.job.precision = r.coin(0.8) ? Precision::fp32 : Precision::bf16;
    s.job.routing = r.coin(0.5) ? Routing::natural : Routing::forced;
    if (model.moe && r.coin(0.15)) {
      s.job.moe_capacity_factor = r.pick<double>({0.5, 1, 1.5});
      s.job.moe_token_drop_policy = r.pick(values_of<TokenDropPolicy>());
    }
    s[&P::cp] = {1, 2, 4};  // far below the lengths from which the search tries it by itself
    maybe(0.2, s[&P::cp], std::vector<int>{1, 2, 4});
    maybe(0.2, s[&P::tp], std::vector<int>{1, 2, 4, 8});
    maybe(0.2, s[&P::pp], std::vector<int>{2, 4});
    maybe(0.3, s[&P::zero], std::vector<int>{0, 1, 2, 3});
    maybe(0.2, s[&P::fsdp_shard], std::vector<int>{1, 2, 4});
    maybe(0.5, s[&P::schedule], values_of<ScheduleKind>());
    maybe(0.3, s[&P::sequence_parallel], std::vector<bool>{false, true});
    maybe(0.2, s[&P::moe_dispatcher], values_of<MoeDispatcher>());
    maybe(0.2, s[&P::grad_dtype], std::vector<DType>{DType::fp32, DType::bf16, DType::fp16});
    maybe(0.2, s[&P::main_params_dtype], std::vector<DType>{DType::fp32, DType::bf16});
    maybe(0.2, s[&P::moment_dtype], std::vector<DType>{DType::fp32, DType::bf16, DType::fp16});
    maybe(0.2, s[&P::cuda_graph], std::vector<bool>{false, true});
    maybe(0.2, s[&P::compile], std::vector<bool>{false, true});
    maybe(0.1, s[&P::deterministic], std::vector<bool>{true});
    maybe(0.1, s[&P::loss], values_of<LossKind>());
    if (r.coin(0.3)) s[&P::offload] = {{.optimizer = r.pick<double>({0, 0.3, 1})}};
    if (r.coin(0.4)) {
      s[&P::overlap] = {{}};
      for (const OverlapKind kind : values_of<OverlapKind>()) {
        if (r.coin(0.5)) s[&P::overlap].front().add(kind);
      }
    }
    if (r.coin(0.3)) {
      Recompute some{.kind = RecomputeKind::selective, .modules = {}, .layers = 0};
      for (const RecomputeModule module : values_of<RecomputeModule>()) {
        if (r.coin(0.3)) some.modules.add(module);
      }
      s[&P::recompute] = {some};
    }
    return s;
  }

  // Any plan that the rules leave of those the search would look at with some degrees of tp, cp, pp
  // and dp; absent: of none.
  std::optional<ParallelPlan> pick(const ModelSpec& model, const SearchSpace& space) {
    const Recipe& recipe = recipe_of(RecipeKind::qplan);
    static const HardwareProfile hardware = load_hardware("h100-sxm");
    const ClusterLimits limits{space.gpus, hardware.gpu.compute_capability};
    const std::vector<Skeleton> degrees = skeletons(model, recipe, hardware, space);
    if (degrees.empty()) return std::nullopt;
    std::vector<ParallelPlan> feasible;
    each_plan(model, recipe, hardware, space, random_.pick(degrees), [&](const ParallelPlan& plan) {
      if (broken_rule(model, plan, recipe, limits).empty()) feasible.push_back(plan);
    });
    if (feasible.empty()) return std::nullopt;
    seen_ += std::ssize(feasible);
    return random_.pick(feasible);
  }
  [[nodiscard]] std::int64_t seen() const { return seen_; }

 private:
  template <class T>
  void maybe(double chance, std::vector<T>& word, const std::vector<T>& values) {
    if (random_.coin(chance)) word = {random_.pick(values)};
  }
  RandomPlans random_;
  std::int64_t seen_ = 0;
};

// One rank with the same tokens at once where experts take a share of those.
ParallelPlan reference_of(const ParallelPlan& plan) {
  ParallelPlan one = alone(plan);
  one.grad_dtype = plan.grad_dtype;
  one.moment_dtype = plan.moment_dtype;
  return one;
}

// Relative, of the loss and of the gradients' norm.
std::pair<double, double> bounds(const ModelSpec& model, const ParallelPlan& plan) {
  const bool exact = plan.precision == Precision::fp32;
  if (exact && plan.grad_dtype == DType::fp32) return {1e-5, 1e-5};
  // Gradients are rounded after each microbatch, to 2^-8: as often as there are microbatches.
  if (exact) return {1e-5, 0x1p-5};
  return {0x1p-9, model.moe ? 0.1 : 0x1p-5};  // executed_test.cpp
}

}  // namespace

TEST_CASE("whatever the search would look at for our own recipe, runs, and computes the same") {
  std::vector<ModelSpec> models = tiny_models();
  models.push_back(smaller(odd_model()));
  RandomSpaces spaces(21);
  const int rounds = test_rounds(300);
  for (int i = 0; i < rounds; ++i) {
    const ModelSpec& model = models[static_cast<std::size_t>(i) % models.size()];
    std::optional<ParallelPlan> plan;
    while (!plan) plan = spaces.pick(model, spaces.next(model));
    CAPTURE(model.name);
    const std::string line = to_string(*plan);
    CAPTURE(line);
    // Capacity is of what a rank has at once: only where tp and cp leave sequences whole is that
    // what one rank has.
    const bool same_drops = plan->moe_capacity_factor == 0 || plan->cp * plan->tp == 1;
    RunOptions options = five_steps(model);
    options.steps = 2;
    options.keep_gradients = false;
    options.shuffle = 5;
    RunResult many;
    CHECK_NOTHROW(many = run(model, *plan, kFacts, options));
    REQUIRE(many.loss.size() == 2);
    const ParallelPlan reference = reference_of(*plan);
    const RunResult& one = result_of(model, reference);
    const auto [loss, norm] = bounds(model, *plan);
    CHECK(many.in_program_order);
    check_memory(model, *plan, many);
    if (!same_drops) continue;
    CHECK(std::abs(many.loss[0] / one.loss[0] - 1) < loss);
    CHECK(std::abs(many.grad_norm[0] / one.grad_norm[0] - 1) < norm);
    CHECK(std::abs(many.loss[1] / one.loss[1] - 1) < 10 * loss);
  }
  MESSAGE(rounds << " plans, of " << spaces.seen() << " that the rules left");
}
