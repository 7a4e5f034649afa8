// Whatever a search shows for a framework of reinforcement learning can be written, and is read
// back as the same plan and the same engines, with nothing to find.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "planner/frameworks/written_plans.h"
#include "planner/search/default_batch.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

constexpr std::array<Framework, 3> kOfAnswers{Framework::slime, Framework::verl,
                                              Framework::nemo_rl};
// Few of them are whole nodes of eight.
const std::vector<std::int64_t> kGpus{6, 8, 12, 20, 24, 40, 96};

struct Drawn {
  std::string name;
  ModelSpec model;
  Json config;
  Framework framework;
  std::int64_t gpus;
};

class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}

  Drawn next() {
    static const std::vector<std::string> models{
        "qwen3-0.6b",  "qwen3-8b",   "llama3-8b",     "llama2-13b", "qwen3-30b-a3b",
        "gpt-oss-20b", "glm4.5-air", "qwen2.5-vl-7b", "olmo2-32b",  "mixtral-8x7b"};
    for (;;) {
      Drawn drawn;
      drawn.name = random_.pick(models);
      drawn.model = load_model(drawn.name);
      drawn.framework = random_.pick(std::vector<Framework>(kOfAnswers.begin(), kOfAnswers.end()));
      drawn.gpus = random_.pick(kGpus);
      if (!has_files_of(drawn.framework, drawn.model)) continue;
      drawn.config = model_config(drawn.name);
      return drawn;
    }
  }

  RlJob job() {
    RlJob job;
    job.algorithm = random_.pick<Algorithm>({Algorithm::grpo, Algorithm::grpo, Algorithm::ppo});
    job.prompts = random_.pick<std::int64_t>({24, 48, 60, 96, 128});
    job.samples = random_.pick<std::int64_t>({4, 6, 8, 16});
    job.response.max = random_.pick<std::int64_t>({1024, 4096, 8192});
    job.response.mean = static_cast<double>(job.response.max) / 2;
    job.reference = random_.coin(0.7);
    job.staleness = random_.coin(0.3) ? 1 : 0;
    if (random_.coin(0.2)) job.train_batch = job.answers() / 2;
    return job;
  }

  RandomPlans& random() { return random_; }

 private:
  RandomPlans random_;
};

Checked read_back(const Drawn& d, const Subject& subject, std::int64_t gpus) {
  const ClusterLimits limits{subject.plan.world(), 90};
  for (const Infeasible& reason : why_inexpressible(d.framework, subject, limits)) {
    FAIL_CHECK(reason.message);
  }
  const auto files = emit(d.framework, subject, {"a remark"});
  Checked checked = check_cited(texts_of(files), question_of(d.model, d.config, gpus));
  const bool clean = !checked.has(Severity::error) && !checked.has(Severity::warning);
  CHECK_MESSAGE(clean, findings_text(checked) << files.back().text);
  const RecipeKind recipe = subject.recipe;
  CHECK(to_string(canonical(checked.plan, d.model, recipe)) ==
        to_string(canonical(subject.plan, d.model, recipe)));
  return checked;
}

TEST_CASE("every step that a search shows is written, and read back as it is") {
  Draws draws(11);
  const HardwareProfile hardware = load_hardware("h200-sxm");
  int shown = 0, apart = 0;
  for (int round = 0; round < test_rounds(24); ++round) {
    const Drawn d = draws.next();
    const RlJob job = draws.job();
    const RecipeKind recipe = recipe_for(
        d.framework, draws.random().coin(0.25) ? RecipeKind::fsdp2 : RecipeKind::megatron);
    CAPTURE(d.name);
    CAPTURE(to_word(d.framework));
    CAPTURE(to_word(recipe));
    CAPTURE(d.gpus);
    CAPTURE(rl_step_json({job, {}}).dump());
    const CostModel cost(d.model, recipe_of(recipe), hardware, {});
    SearchSpace space;
    space.gpus = d.gpus;
    space.job.seq_len = job.prompt_len + job.response.max;
    RlSearchOptions options;
    options.search.top = 3;
    options.search.threads = 2;
    const RlSearchResult found =
        search_rl_written(cost, job, space, options, d.framework, d.config);
    for (const RlPlan& plan : found.plans) {
      RlStep step{job, plan.layout};
      step.job.rollout_gpus = plan.rollout_gpus;
      const Subject subject{d.model, d.config, plan.plan, recipe, 8, &step, &cost};
      CAPTURE(to_string(plan.plan));
      const Checked checked = read_back(d, subject, d.gpus);
      REQUIRE(checked.step.has_value());
      CHECK(to_string(checked.step->layout) == to_string(plan.layout));
      CHECK(checked.step->job.rollout_gpus == plan.rollout_gpus);
      CHECK(checked.step->job.staleness == job.staleness);
      CHECK(checked.plan.world() + checked.engines == d.gpus);
      ++shown;
      apart += plan.rollout_gpus > 0 ? 1 : 0;
    }
  }
  CHECK(shown > 20);
  CHECK(apart > 3);
}

TEST_CASE("every plan that a search shows by itself is written, and read back as it is") {
  Draws draws(12);
  const HardwareProfile hardware = load_hardware("h200-sxm");
  int shown = 0;
  for (int round = 0; round < test_rounds(12); ++round) {
    const Drawn d = draws.next();
    const RecipeKind recipe = recipe_for(d.framework, RecipeKind::megatron);
    CAPTURE(d.name);
    CAPTURE(to_word(d.framework));
    CAPTURE(d.gpus);
    const CostModel cost(d.model, recipe_of(recipe), hardware, {});
    SearchSpace space;
    space.gpus = static_cast<int>(d.gpus);
    space.job.seq_len = 4096;
    space.job.global_batch_size = default_global_batch_size(d.gpus, space.job.seq_len);
    SearchOptions options;
    options.top = 2;
    options.threads = 2;
    const SearchResult found = search_written(cost, space, options, d.framework, d.config);
    for (const RankedPlan& ranked : found.plans) {
      const Subject subject{d.model, d.config, ranked.plan, recipe, 8, nullptr, &cost};
      CAPTURE(to_string(ranked.plan));
      read_back(d, subject, d.gpus);
      ++shown;
    }
  }
  CHECK(shown > 8);
}

TEST_CASE("where layouts of stages cannot be said, others of the same GPUs are offered") {
  // 12 GPUs: batches that 12 or 6 ranks divide are looked at, too.
  const ModelSpec model = load_model("llama3-8b");
  const Json config = model_config("llama3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  RlJob job;
  job.prompts = 48;
  job.response.max = 4096;
  job.response.mean = 2048;
  SearchSpace space;
  space.gpus = 12;
  space.job.seq_len = 4608;
  RlSearchOptions options;
  options.search.top = 3;
  for (const Framework framework : {Framework::nemo_rl, Framework::verl}) {
    const RlSearchResult found = search_rl_offered(cost, job, space, options, framework, config);
    REQUIRE_FALSE(found.plans.empty());
    for (const RlPlan& plan : found.plans) CHECK(plan.plan.pipeline_layout.empty());
  }
  // Of one that cannot be written the nearest has the batch that its answers make.
  RlStep step{job, parse_rollout_layout("tp4")};
  const ParallelPlan plan =
      parse_plan("tp1 pp3 dp4 zero1 mbs1 gbs220 seq4608 layout=11+12+9 overlap=grad+param");
  const Subject subject{model, config, plan, RecipeKind::megatron, 8, &step, &cost};
  ParallelPlan nearest;
  REQUIRE(nearest_expressible(Framework::nemo_rl, subject, {12, 90}, nearest));
  CHECK(nearest.global_batch_size == packing_of(job, model, nearest).sequences);
}

TEST_CASE("where nothing else can be said, short sequences are divided after all") {
  // 24 GPUs, 64 layers and 256 answers: three stages or ranks divide none of them.
  const ModelSpec model = load_model("qwen3-32b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  RlJob job;
  job.prompts = 32;
  job.response.max = 1024;
  job.response.mean = 512;
  SearchSpace space;
  space.gpus = 24;
  space.job.seq_len = 1536;
  RlSearchOptions options;
  options.search.top = 1;
  const RlSearchResult found =
      search_rl_offered(cost, job, space, options, Framework::verl, model_config("qwen3-32b"));
  REQUIRE_FALSE(found.plans.empty());
  CHECK(found.plans.front().plan.pipeline_layout.empty());
  CHECK(found.plans.front().plan.cp % 3 == 0);
}

// Values of a word besides the plan's: of a switch, and of a list of kinds.
template <class Row, class Visit>
void each_other_value(const Row& row, const ParallelPlan& plan, const Visit& visit) {
  using Value = typename Row::Value;
  ParallelPlan changed = plan;
  if constexpr (std::is_same_v<Value, bool>) {
    changed.*row.member = !(plan.*row.member);
    visit(changed);
  } else if constexpr (requires { Words<Value>::table; }) {
    for (const auto& [value, word] : Words<Value>::table) {
      if (value == plan.*row.member || !(row.takes.empty() || row.takes.has(value))) continue;
      changed.*row.member = value;
      visit(changed);
    }
  }
}

TEST_CASE("no word of a plan is lost in the files of a step") {
  const ModelSpec model = load_model("qwen3-8b");
  const Json config = model_config("qwen3-8b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const ClusterLimits limits = limits_of(hardware, 8);
  int written = 0, refused = 0;
  for (const auto& [recipe, line] :
       {std::pair{RecipeKind::megatron, "dp8 zero1 mbs1 gbs512 seq4096"},
        std::pair{RecipeKind::fsdp2, "dp8 zero3 mbs1 gbs512 seq4096 recompute=full"},
        std::pair{RecipeKind::fsdp2, "dp8 zero3 mbs1 gbs512 seq4096 recompute=full lora16"}}) {
    const CostModel cost(model, recipe_of(recipe), hardware, {});
    const ParallelPlan said = parse_plan(line);
    const ParallelPlan usual = defaults_beside(said, model, recipe_of(recipe));
    const ParallelPlan plan = parse_plan(line, usual);
    for (const Framework framework : kOfAnswers) {
      if (recipe_for(framework, recipe) != recipe) continue;
      const auto round_trip = [&](const ParallelPlan& changed) {
        const Subject subject{model, config, changed, recipe, 8, nullptr, &cost};
        const bool can_be = broken_rule(model, changed, recipe_of(recipe), limits).empty();
        if (!can_be || !why_inexpressible(framework, subject, limits).empty()) {
          ++refused;
          return;
        }
        ++written;
        CAPTURE(to_word(framework));
        CAPTURE(to_string(changed));
        const auto files = emit(framework, subject, {});
        const ParallelPlan read = check(texts_of(files), question_of(model, config, 8)).plan;
        CHECK(to_string(canonical(read, model, recipe)) ==
              to_string(canonical(changed, model, recipe)));
      };
      round_trip(plan);
      for_each_word([&](const auto& row) { each_other_value(row, plan, round_trip); });
      ParallelPlan dropped = plan;
      dropped.lora_dropout = 0.1;
      if (plan.lora_rank > 0) round_trip(dropped);
    }
  }
  CHECK(written > 20);
  CHECK(refused > 20);
}

TEST_CASE("a step of another kind is refused, and says so") {
  const ModelSpec model = load_model("qwen3-8b");
  const Json config = model_config("qwen3-8b");
  const ParallelPlan plan = parse_plan("tp2 pp1 dp4 zero1 mbs1 gbs64 seq4608");
  const auto refused = [&](Framework framework, const std::string& rule, const RlStep& step) {
    const Subject subject{model, config, plan, RecipeKind::megatron, 8, &step};
    const auto ids = refusals(framework, subject, {8, 90});
    return std::find(ids.begin(), ids.end(), rule) != ids.end();
  };
  RlStep step;
  step.job.algorithm = Algorithm::dpo;
  for (const Framework framework : kOfAnswers) CHECK(refused(framework, "rl_algorithm", step));
  step = {};
  step.job.rollout_gpus = 8;
  CHECK(refused(Framework::verl, "verl_apart", step));
  CHECK_FALSE(refused(Framework::slime, "slime_step", step));
  step.job.staleness = 1;
  CHECK_FALSE(refused(Framework::verl, "verl_apart", step));
  step.job.epochs = 2;
  CHECK(refused(Framework::slime, "slime_step", step));
  CHECK(refused(Framework::nemo_rl, "nemo_rl_epochs", step));
  step = {};
  step.job.prompts = 45;
  step.job.samples = 2;
  CHECK(refused(Framework::nemo_rl, "nemo_rl_batch", step));
  CHECK(refused(Framework::verl, "verl_batch", step));
}

}  // namespace
}  // namespace qplan
