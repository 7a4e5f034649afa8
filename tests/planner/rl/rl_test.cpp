#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "models/csv.h"
#include "models/program/recipe.h"
#include "planner/rl/rl_job.h"
#include "planner/rl/rl_search.h"
#include "tests/costmodel/machine.h"

using namespace qplan;

namespace {

RlJob grpo() {
  RlJob job;
  job.prompts = 64;
  job.samples = 8;
  job.prompt_len = 200;
  job.response = {.mean = 700, .max = 2000};
  return job;
}

CostModel cost_of(const ModelSpec& model, std::string_view hardware = "h100-sxm") {
  return {model, recipe_of(RecipeKind::megatron), machine(hardware), JobFacts{}};
}

}  // namespace

TEST_CASE("packed answers fit, and every rank has whole micro-batches of them") {
  const ModelSpec model = load_model("llama3-8b");
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    RlJob job = grpo();
    job.prompts = draw(1, 300);
    job.samples = draw(1, 16);
    job.prompt_len = draw(0, 500);
    job.response.max = draw(1, 8000);
    job.response.mean = std::max(
        1.0, static_cast<double>(job.response.max) * static_cast<double>(draw(1, 10)) / 10);
    job.packed = draw(0, 3) > 0;
    ParallelPlan plan;
    plan.dp = static_cast<int>(draw(1, 64));
    plan.tp = static_cast<int>(draw(1, 3));
    plan.micro_batch_size = draw(1, 4);
    plan.seq_len = (job.prompt_len + job.response.max) * draw(1, 3);
    const Packing packing = packing_of(job, model, plan);
    CAPTURE(to_string(plan));
    CAPTURE(job.answers());
    CHECK(packing.sequences % (plan.dp * plan.micro_batch_size) == 0);
    CHECK(packing.filled <= plan.seq_len);
    CHECK(packing.imbalance == 1);
    // Nothing is lost: what the sequences hold is the answers' tokens, or more (rounding up).
    double tokens = 0;
    for (const std::int64_t n : job.response.quantiles(job.answers())) {
      tokens += static_cast<double>(n + job.prompt_len);
    }
    const double held =
        static_cast<double>(packing.sequences) * static_cast<double>(packing.filled);
    CHECK(held >= tokens * 0.9);
    if (!job.packed) CHECK(packing.sequences >= job.answers());
  }
}

TEST_CASE("answers dealt out unweighed cost the more the more ranks wait for the busiest") {
  const ModelSpec model = load_model("llama3-8b");
  RlJob job = grpo();
  job.balanced = false;
  job.response = {.mean = 8000, .max = 32000};
  ParallelPlan plan;
  plan.seq_len = 32768;
  double before = 0;
  for (const int dp : {1, 4, 16, 64}) {
    plan.dp = dp;
    const double imbalance = packing_of(job, model, plan).imbalance;
    CHECK(imbalance > before);
    before = imbalance;
  }
  CHECK(before < 1.5);
}

TEST_CASE("a step's phases follow one another, or run at once where answers may be older") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  const ParallelPlan plan = parse_plan("tp2 dp4 zero1 sp mbs1 seq4096 recompute=full");
  const RolloutLayout layout = parse_rollout_layout("tp1 share0.6");
  RlJob job = grpo();
  const RlEstimate together = evaluate_rl(cost, job, plan, layout, 8);
  REQUIRE(!together.phases.empty());
  Seconds now;
  for (const RlPhase& phase : together.phases) {
    CHECK(phase.begin.value() == doctest::Approx(now.value()));
    now = phase.end;
  }
  CHECK(together.step_time.value() == doctest::Approx(now.value()));
  CHECK(together.fits);
  CHECK(together.host_per_node.value() > 0);

  job.rollout_gpus = 8;
  const RlEstimate in_turn = evaluate_rl(cost, job, plan, layout, 16);
  job.staleness = 1;
  const RlEstimate at_once = evaluate_rl(cost, job, plan, layout, 16);
  CHECK(at_once.step_time < in_turn.step_time);
  Seconds longest;
  for (const RlPhase& phase : at_once.phases) longest = std::max(longest, phase.end);
  CHECK(at_once.step_time.value() == doctest::Approx(longest.value()));
}

// What a phase takes of a device.
double device_of(const RlEstimate& estimate, std::string_view name) {
  for (const RlPhase& phase : estimate.phases) {
    if (phase.name == name) return phase.device.value();
  }
  return 0;
}

TEST_CASE("unpadded micro-batches by number need what their answers have, and more as they grow") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  const ParallelPlan plan = parse_plan("tp2 dp4 zero1 sp mbs16 seq2200 recompute=full");
  RlJob job = grpo();
  job.by_number = true;
  const RlEstimate mean = evaluate_rl(cost, job, plan, {}, 8);
  CHECK(mean.packing.sequences == job.answers());
  CHECK(mean.packing.filled >= 900);
  CHECK(mean.packing.filled < 1200);
  CHECK(mean.longest_tokens == 16 * 2200);
  const double update = device_of(mean, "update");
  CHECK(mean.longest.value() > update);
  job.response.mean = 1800;
  const RlEstimate more = evaluate_rl(cost, job, plan, {}, 8);
  CHECK(device_of(more, "update") > update);
  CHECK(more.longest.value() == doctest::Approx(mean.longest.value()));
  // Of one answer each the longest comes for sure.
  const ParallelPlan single = parse_plan("tp2 dp4 zero1 sp mbs1 seq2200 recompute=full");
  const RlEstimate alone = evaluate_rl(cost, job, single, {}, 8);
  CHECK(alone.longest.value() == doctest::Approx(device_of(alone, "update")).epsilon(0.01));
}

TEST_CASE("log-probabilities hold their micro-batch's logits") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  const ParallelPlan plan = parse_plan("tp2 dp4 zero1 sp mbs1 seq4096 recompute=full");
  RlJob job = grpo();
  job.logit_bytes = 8;
  const auto scored = [&](std::int64_t tokens) {
    job.pass_tokens = tokens;
    return device_of(evaluate_rl(cost, job, plan, {}, 8), "log-probabilities");
  };
  CHECK(scored(32768) - scored(16384) == doctest::Approx(16384.0 * 128256 / 2 * 8));
  job.pass_tokens = 262144;
  const RlEstimate full = evaluate_rl(cost, job, plan, {}, 8);
  CHECK_FALSE(full.fits);
  CAPTURE(full.misfit);
  CHECK(full.misfit.find("262144 tokens of a micro-batch x 64128 logits x 8.00 bytes") !=
        std::string::npos);
}

TEST_CASE("a policy with adapters is its own reference, and its host holds no other") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  RlJob job = grpo();
  const auto held = [&](const std::string& more) {
    const ParallelPlan plan = parse_plan("tp2 dp4 zero1 sp mbs1 seq4096 recompute=full" + more);
    job.reference = true;
    const double with = evaluate_rl(cost, job, plan, {}, 8).host_per_node.value();
    job.reference = false;
    return with - evaluate_rl(cost, job, plan, {}, 8).host_per_node.value();
  };
  CHECK(held("") > 0);
  CHECK(held(" lora16") == 0);
}

TEST_CASE("what an algorithm does not do takes no time") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  const ParallelPlan plan = parse_plan("tp2 dp4 zero1 sp mbs1 seq4096 recompute=full");
  const auto names = [&](const RlJob& job) {
    std::vector<std::string> list;
    for (const RlPhase& phase : evaluate_rl(cost, job, plan, {}, 8).phases) {
      list.push_back(phase.name);
    }
    return list;
  };
  RlJob job = grpo();
  job.offload_trainer = false;
  job.sleep_level = 2;
  using List = std::vector<std::string>;
  CHECK(names(job) == List{"refit", "rollout", "log-probabilities", "reference", "update"});
  job.reference = false;
  CHECK(names(job) == List{"refit", "rollout", "log-probabilities", "update"});
  job.algorithm = Algorithm::ppo;
  CHECK(names(job) ==
        List{"refit", "rollout", "log-probabilities", "values", "update", "critic's update"});
  job.algorithm = Algorithm::dpo;
  job.reference = true;
  CHECK(names(job) == List{"reference", "update"});
  job.algorithm = Algorithm::sft;
  CHECK(names(job) == List{"update"});
}

TEST_CASE("forwards alone take as long as each stage's, one microbatch behind the other") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  const auto time = [&](const std::string& line) { return cost.forward_time(parse_plan(line)); };
  const double one = time("dp1 tp8 sp mbs1 gbs1").value(),
               many = time("dp1 tp8 sp mbs1 gbs9").value();
  // Beside what a step costs the launching thread once.
  CHECK(many - one ==
        doctest::Approx(8 * (time("dp1 tp8 sp mbs1 gbs2").value() - one)).epsilon(0.02));
  for (const std::string line : {"tp2 pp4 dp1 sp mbs1 gbs16", "pp8 dp1 mbs1 gbs8 recompute=full",
                                 "tp2 pp2 vpp4 dp2 sp mbs1 gbs16 interleaved"}) {
    CAPTURE(line);
    const ParallelPlan plan = parse_plan(line);
    const double forward = cost.forward_time(plan).value(), step = cost.step_time(plan).value();
    CHECK(forward < 0.5 * step);
    CHECK(forward > 0.2 * step);
  }
}

TEST_CASE("a step that cannot be is refused in words") {
  const ModelSpec model = load_model("llama3-8b");
  const ParallelPlan plan = parse_plan("dp8 mbs1 seq4096");
  const auto said = [&](const RlJob& job, const char* layout, const char* word) {
    for (const std::string& fault : rl_faults(job, model, plan, parse_rollout_layout(layout), 8)) {
      if (fault.find(word) != std::string::npos) return true;
    }
    return false;
  };
  RlJob job = grpo();
  CHECK(rl_faults(job, model, plan, {}, 8).empty());
  CHECK(said(job, "tp16", "whole number of engines"));
  CHECK(said(job, "tp3", "heads"));
  job.train_batch = 100;
  CHECK(said(job, "tp1", "no whole number of optimizer steps"));
  job.train_batch = 1024;
  CHECK(said(job, "tp1", "a rollout makes 512"));
  job = grpo();
  job.response.max = 8192;
  CHECK(said(job, "tp1", "--seq-len 8392"));
  job = grpo();
  job.staleness = 1;
  CHECK(said(job, "tp1", "--rollout-gpus"));
  job.rollout_gpus = 8;
  CHECK(said(job, "tp1", "none is left to train"));
}

TEST_CASE(
    "a search's steps all fit, none of what it priced is faster, and it keeps to what is said") {
  const ModelSpec model = load_model("llama3-8b");
  const CostModel cost = cost_of(model);
  RlJob job = grpo();
  SearchSpace space;
  space.gpus = 16;
  space.job.seq_len = 4096;
  RlSearchOptions options;
  options.search.top = 5;
  options.search.threads = 1;
  const RlSearchResult all = search_rl(cost, job, space, options);
  REQUIRE(!all.plans.empty());
  CHECK(all.splits == 2);  // the same GPUs, or a node for either side
  for (std::size_t i = 0; i < all.plans.size(); ++i) {
    const RlPlan& found = all.plans[i];
    RlJob split = job;
    split.rollout_gpus = found.rollout_gpus;
    CHECK(found.estimate.fits);
    CHECK(rl_faults(split, model, found.plan, found.layout, 16).empty());
    CHECK(found.plan.world() + found.rollout_gpus == 16);
    if (i > 0) CHECK(found.estimate.step_time >= all.plans[i - 1].estimate.step_time);
  }
  job.rollout_gpus = 8;
  options.layouts = {parse_rollout_layout("tp2 share0.7")};
  const RlSearchResult one = search_rl(cost, job, space, options);
  REQUIRE(!one.plans.empty());
  CHECK(one.splits == 1);
  for (const RlPlan& found : one.plans) {
    CHECK(found.layout == options.layouts.front());
    CHECK(found.plan.world() == 8);
    CHECK(found.estimate.step_time >= all.plans.front().estimate.step_time);
  }
}

// The critic's states, a sleeping engine and what stays while answers are made are no part of the
// training plan that is searched: the fastest dozen plans by themselves may all be too large.
TEST_CASE("of a step's plans none that somebody names is faster than what is found") {
  struct Question {
    std::string model;
    int gpus, longest;
    Algorithm algorithm;
    bool older, stays;
  };
  for (const Question& q : {Question{"qwen3-8b", 16, 4096, Algorithm::ppo, true, false},
                            Question{"qwen3-8b", 16, 4096, Algorithm::ppo, false, true},
                            Question{"llama3-8b", 16, 8192, Algorithm::dpo, false, false}}) {
    CAPTURE(q.model);
    const ModelSpec model = load_model(q.model);
    const CostModel cost = cost_of(model);
    RlJob job = grpo();
    job.algorithm = q.algorithm;
    job.response = {.mean = q.longest / 2.0, .max = q.longest};
    job.staleness = q.older ? 1 : 0;
    job.offload_trainer = !q.stays;
    SearchSpace space;
    space.gpus = q.gpus;
    space.job.seq_len = q.longest + 512;
    RlSearchOptions options;
    options.search.top = 1;
    const RlSearchResult all = search_rl(cost, job, space, options);
    REQUIRE(!all.plans.empty());
    for (const int tp : {1, 2, 4}) {
      SearchSpace named = space;
      named[&ParallelPlan::tp] = {tp};
      const RlSearchResult some = search_rl(cost, job, named, options);
      CAPTURE(tp);
      if (some.plans.empty()) continue;
      CHECK(all.plans.front().estimate.step_time <= some.plans.front().estimate.step_time);
    }
  }
}

TEST_CASE("a critic that stays is there while answers are made, and while others are scored") {
  const ModelSpec model = load_model("qwen3-8b");
  const CostModel cost = cost_of(model);
  const ParallelPlan plan = parse_plan("tp2 pp4 dp2 zero1 mbs2 seq4608");
  const RolloutLayout layout = parse_rollout_layout("tp4 share0.6");
  RlJob job = grpo();
  job.offload_trainer = false;
  const RlEstimate alone = evaluate_rl(cost, job, plan, layout, 16);
  job.algorithm = Algorithm::ppo;
  const RlEstimate with = evaluate_rl(cost, job, plan, layout, 16);
  const double critic = device_of(with, "update") - device_of(alone, "update");
  CHECK(Bytes(critic) > gib(5));
  for (const std::string_view phase : {"rollout", "refit", "log-probabilities"}) {
    CAPTURE(phase);
    CHECK(device_of(with, phase) - device_of(alone, phase) == doctest::Approx(critic));
  }
}

// docs/evidence/rl.md has the table (scripts/rl_accuracy.py).
TEST_CASE("published GRPO steps are within a tenth in the median") {
  const CsvTable rows = read_csv_file(QPLAN_TEST_DATA "/runs/rl_steps.csv");
  std::vector<double> errors;
  for (const CsvTable::Row& row : rows.rows) {
    const auto cell = [&](std::string_view name) {
      const auto at = std::find(rows.columns.begin(), rows.columns.end(), name);
      return row.cells[static_cast<std::size_t>(at - rows.columns.begin())];
    };
    const auto whole = [&](std::string_view name) { return std::stoll(cell(name)); };
    const ModelSpec model = load_model(cell("model"));
    const CostModel cost = cost_of(model, cell("hardware"));
    RlJob job;
    job.prompts = whole("prompts");
    job.samples = whole("samples");
    job.train_batch = whole("train_batch");
    job.prompt_len = whole("prompt_len");
    job.response = {.mean = std::stod(cell("response_len")), .max = whole("max_response_len")};
    job.rollout_gpus = whole("rollout_gpus");
    job.staleness = whole("staleness");
    ParallelPlan plan = parse_plan(cell("plan"));
    plan.zero = 1;
    plan.overlap = recipe_of(RecipeKind::megatron).defaults.overlap;
    const RolloutLayout layout = parse_rollout_layout(cell("rollout"));
    CAPTURE(cell("model"));
    CHECK(rl_faults(job, model, plan, layout, whole("gpus")).empty());
    const RlEstimate estimate = evaluate_rl(cost, job, plan, layout, whole("gpus"));
    errors.push_back(std::abs(estimate.step_time.value() / std::stod(cell("step_time_s")) - 1));
  }
  REQUIRE(errors.size() == 23);
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 0.10);
  CHECK(errors.back() < 0.35);
}
