// Adapters beside frozen weights: what they compute is what the merged weights compute, and what
// they learn follows from the gradient that those would have.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "executor/math/gemm.h"
#include "tests/properties/executed.h"

using namespace qplan;

namespace {

// Rows x cols of a parameter, copied out of where a source keeps it.
std::vector<float> numbers_of(const WeightSource& source, const ModelParameter& p) {
  std::vector<float> numbers(static_cast<std::size_t>(p.parameter.elements()));
  source(p, 0, 0, math::Matrix(numbers, p.parameter.rows, p.parameter.cols));
  return numbers;
}

struct Adapted {
  const ModelParameter* a = nullptr;
  const ModelParameter* b = nullptr;
};

// The adapters beside one weight; null where it has none.
Adapted adapters_beside(const std::vector<ModelParameter>& all, const ModelParameter& weight) {
  Adapted found;
  for (const ModelParameter& p : all) {
    const bool same = p.part == weight.part && p.layer == weight.layer && p.copy == weight.copy &&
                      p.parameter.role == weight.parameter.role && !weight.parameter.bias;
    if (same && p.parameter.adapter == Adapter::lora_a) found.a = &p;
    if (same && p.parameter.adapter == Adapter::lora_b) found.b = &p;
  }
  return found;
}

math::ConstMatrix view(const std::vector<float>& numbers, const Parameter& p) {
  return {numbers, p.rows, p.cols};
}
math::Matrix view(std::vector<float>& numbers, const Parameter& p) {
  return {numbers, p.rows, p.cols};
}

// W + scale B A for every weight that has adapters.
WeightSource merged(const ModelSpec& model, const ParallelPlan& plan, const WeightSource& source) {
  const float scale = static_cast<float>(plan.lora_alpha) / static_cast<float>(plan.lora_rank);
  const auto all = model_parameters(model, plan.lora());
  return [=](const ModelParameter& weight, std::int64_t row, std::int64_t col, math::Matrix out) {
    std::vector<float> whole = numbers_of(source, weight);
    const Adapted adapters = adapters_beside(all, weight);
    if (adapters.a != nullptr) {
      const std::vector<float> a = numbers_of(source, *adapters.a);
      const std::vector<float> b = numbers_of(source, *adapters.b);
      math::multiply(view(b, adapters.b->parameter), math::Op::plain,
                     view(a, adapters.a->parameter), math::Op::plain, view(whole, weight.parameter),
                     true, scale);
    }
    for (std::int64_t r = 0; r < out.rows; ++r) {
      for (std::int64_t c = 0; c < out.cols; ++c) {
        out.at(r, c) = whole[static_cast<std::size_t>((row + r) * weight.parameter.cols + col + c)];
      }
    }
  };
}

void check_merged(const std::string& name, const std::string& line) {
  CAPTURE(name);
  CAPTURE(line);
  const ModelSpec model = load_model(name);
  const ParallelPlan plan = plan_of(line);
  RunOptions options = five_steps(model);
  options.steps = 1;
  const WeightSource source = options.weights;
  const RunResult adapted = run(model, plan, kFacts, options);

  ParallelPlan full = plan;
  full.lora_rank = 0;
  full.lora_targets = {};
  options.weights = merged(model, plan, source);
  const RunResult trained = run(model, full, kFacts, options);
  CHECK(adapted.loss[0] == doctest::Approx(trained.loss[0]).epsilon(1e-6));

  const float scale = static_cast<float>(plan.lora_alpha) / static_cast<float>(plan.lora_rank);
  const auto all = model_parameters(model, plan.lora());
  int compared = 0;
  for (const ModelParameter& weight : model_parameters(model)) {
    const Adapted adapters = adapters_beside(all, weight);
    const auto gradient = [&](const ModelParameter& p) -> const std::vector<float>& {
      return adapted.gradients[static_cast<std::size_t>(p.index)];
    };
    // A frozen weight has no gradient.
    CHECK(std::ranges::all_of(gradient(weight), [](float g) { return g == 0; }));
    if (adapters.a == nullptr) continue;
    const Parameter& a = adapters.a->parameter;
    const Parameter& b = adapters.b->parameter;
    const auto& dweight = trained.gradients[static_cast<std::size_t>(weight.index)];
    const std::vector<float> a_numbers = numbers_of(source, *adapters.a);
    const std::vector<float> b_numbers = numbers_of(source, *adapters.b);
    std::vector<float> da(a_numbers.size()), db(b_numbers.size());
    math::multiply(view(b_numbers, b), math::Op::transposed, view(dweight, weight.parameter),
                   math::Op::plain, view(da, a), false, scale);
    math::multiply(view(dweight, weight.parameter), math::Op::plain, view(a_numbers, a),
                   math::Op::transposed, view(db, b), false, scale);
    CAPTURE(std::string(to_word(weight.parameter.role)));
    CAPTURE(weight.layer);
    CHECK(distance(gradient(*adapters.a), da) < 1e-4);
    CHECK(distance(gradient(*adapters.b), db) < 1e-4);
    ++compared;
  }
  CHECK(compared > 0);
}

}  // namespace

TEST_CASE("adapters compute what merged weights do, and learn what follows from their gradient") {
  check_merged("tiny", "gbs2 seq16 lora4");
  check_merged("tiny", "gbs2 seq16 lora2 lora_alpha=8 lora_targets=q_proj+v_proj");
  check_merged("tiny", "gbs2 seq16 lora2 lora_targets=down_proj+k_proj recompute=full");
  check_merged("tiny-moe", "gbs2 seq16 lora2 lora_targets=experts+o_proj");
  check_merged("tiny-moe", "gbs2 seq16 lora2");
}

TEST_CASE("a plan with adapters computes what one rank does, on every axis") {
  const ModelSpec model = load_model("tiny");
  for (const char* line :
       {"dp2 gbs4 seq16 lora2", "dp2 zero1 gbs4 seq16 lora2", "dp2 zero2 gbs4 seq16 lora2",
        "dp2 zero3 gbs4 seq16 lora2", "dp3 zero3 gbs6 seq16 lora2 recompute=full",
        "tp2 gbs2 seq16 lora4", "tp4 gbs2 seq16 sp lora2", "tp2 dp2 zero3 gbs4 seq16 sp lora2",
        "tp2 gbs2 seq16 sp lora2 lora_targets=v_proj+o_proj+down_proj", "cp2 gbs2 seq16 lora2",
        "pp2 gbs4 seq16 1f1b lora2", "pp2 gbs8 seq16 zbv vpp2 lora2",
        "pp2 gbs8 seq16 dualpipe lora2", "pp2 dp2 zero3 gbs8 seq16 1f1b lora2",
        "dp2 zero1 gbs4 seq16 lora2 offload=optimizer"}) {
    check_against_one_rank(model, plan_of(line));
  }
  for (const char* line :
       {"tp2 gbs2 seq16 lora4 dora", "tp4 gbs2 seq16 sp lora2 dora",
        "dp2 zero3 gbs4 seq16 lora2 dora recompute=full", "cp2 gbs2 seq16 lora2 dora",
        "pp2 gbs8 seq16 zbv vpp2 lora2 dora",
        "tp2 dp2 zero2 gbs4 seq16 lora2 dora lora_targets=v_proj+o_proj+down_proj",
        "tp2 gbs2 seq16 sp lora2 lora_embeddings", "dp2 zero3 gbs4 seq16 lora2 lora_embeddings",
        "pp2 dp2 zero1 gbs8 seq16 1f1b lora2 lora_embeddings dora",
        "dp2 zero1 gbs4 seq16 lora2 lora_embeddings offload=optimizer"}) {
    check_against_one_rank(model, plan_of(line));
  }
  // A tied table is trained on both ends.
  const ModelSpec tied = tied_model();
  for (const char* line :
       {"dp2 zero1 gbs4 seq16 lora2 lora_embeddings", "pp2 gbs4 seq16 1f1b lora2 lora_embeddings",
        "pp2 dp2 zero3 gbs8 seq16 1f1b lora2 lora_embeddings",
        "tp2 gbs2 seq16 sp lora2 lora_embeddings"}) {
    check_against_one_rank(tied, plan_of(line));
  }
  const ModelSpec experts = load_model("tiny-moe");
  for (const char* line : {"dp2 ep2 gbs4 seq16 lora2 lora_targets=experts",
                           "dp2 ep2 zero3 gbs4 seq16 lora2 lora_targets=experts+q_proj",
                           "tp2 ep2 etp1 gbs2 seq16 sp lora2 lora_targets=experts+v_proj"}) {
    check_against_one_rank(experts, plan_of(line));
  }
}
