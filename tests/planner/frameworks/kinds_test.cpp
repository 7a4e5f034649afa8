// Files of plans whose stages lie on GPUs of two kinds.

#include <doctest/doctest.h>

#include <algorithm>

#include "costmodel/evaluate.h"
#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/emitted.h"

using namespace qplan;
using emitted::file;
using emitted::has_text;

namespace {

struct Mixed {
  ModelSpec model = load_model("llama3-70b");
  Json config = model_config("llama3-70b");
  std::vector<GpuKind> kinds;
  HardwareProfile whole;
  CostModel cost;

  explicit Mixed(std::vector<GpuKind> of)
      : kinds(std::move(of)),
        whole(as_one_machine(kinds)),
        cost(model, recipe_of(RecipeKind::megatron), whole, kinds, {}) {}
  [[nodiscard]] Subject subject(const ParallelPlan& plan) const {
    return {model, config, plan, RecipeKind::megatron, whole.link.gpus_per_node, nullptr, &cost};
  }
  [[nodiscard]] std::vector<Infeasible> refused(Framework framework, const char* line) const {
    const ParallelPlan plan = parse_plan(line);
    return why_inexpressible(framework, subject(plan),
                             limits_of(whole, plan.world(), cost.kinds()));
  }
};

Mixed hopper_and_ampere(std::int64_t hopper = 64, std::int64_t ampere = 64) {
  return Mixed({{load_hardware("h100-sxm"), hopper}, {load_hardware("a100-80gb-sxm"), ampere}});
}

constexpr const char* kUneven = "tp4 pp4 dp8 zero1 gbs64 layout=29+30+11+10 sp";

}  // namespace

TEST_CASE("nodes are named in the order of the kinds that the stages lie on") {
  const Mixed mixed = hopper_and_ampere();
  const ParallelPlan plan = parse_plan(kUneven);
  REQUIRE(mixed.refused(Framework::megatron, kUneven).empty());
  const auto files = emit(Framework::megatron, mixed.subject(plan), {});
  CHECK(has_text(file(files, "args.sh"), "--pipeline-model-parallel-layout"));
  for (const char* name : {"args.sh", "train.sh", "train.sbatch"}) {
    CHECK(has_text(file(files, name),
                   "# node ranks 0 to 7 are of h100-sxm (pipeline ranks 0 to 1), 8 to 15 of "
                   "a100-80gb-sxm (2 to 3)"));
  }
  const std::string hosts = file(files, "hosts.txt");
  CHECK(std::count(hosts.begin(), hosts.end(), '\n') == 16);
  CHECK(hosts.find("h100-sxm-node-7\na100-80gb-sxm-node-0\n") != std::string::npos);
  const std::string batch = file(files, "train.sbatch");
  CHECK(has_text(batch, "srun --distribution=arbitrary"));
  CHECK(has_text(batch, "NODE_RANK=$SLURM_PROCID"));
  CHECK(has_text(batch, "MASTER_ADDR=$(head -n 1 hosts.txt)"));
}

TEST_CASE("torchrun ranks the nodes as it is told") {
  const Mixed mixed = hopper_and_ampere();
  const ParallelPlan plan =
      parse_plan("tp4 pp4 dp8 zero2 gbs64 layout=29+30+11+10 sp overlap=grad+param compile");
  Subject subject{mixed.model, mixed.config, plan, RecipeKind::fsdp2_compile, 8};
  const auto launch = [&] { return file(emit(Framework::torchtitan, subject, {}), "train.sh"); };
  CHECK(has_text(launch(), "--rdzv-backend c10d"));
  subject.cost = &mixed.cost;
  CHECK_FALSE(has_text(launch(), "rdzv"));
  CHECK(has_text(launch(), "--node-rank \"${NODE_RANK:-0}\""));
  CHECK(has_text(launch(), "--master-addr"));
}

TEST_CASE("what check reads from a cluster of two kinds is the plan that was emitted") {
  const Mixed mixed = hopper_and_ampere();
  for (const Framework framework :
       {Framework::megatron, Framework::megatron_bridge, Framework::ms_swift}) {
    for (const char* line :
         {kUneven, "tp4 pp4 dp8 zero1 gbs64 interleaved vpp2 layout=14+15+6+5+15+15+5+5 sp",
          "tp8 pp2 dp8 zero1 gbs64 layout=58+22 sp"}) {
      CAPTURE(to_word(framework));
      CAPTURE(line);
      const ParallelPlan plan = parse_plan(line);
      REQUIRE(mixed.refused(framework, line).empty());
      std::vector<ConfigText> texts;
      for (const EmittedFile& f : emit(framework, mixed.subject(plan), {})) {
        texts.push_back({f.name, f.text});
      }
      const CheckQuestion question{
          mixed.model, mixed.config, limits_of(mixed.whole, 128, mixed.cost.kinds()), 8, {}, {},
          {}};
      const Checked checked = check(texts, question);
      CHECK(to_string(checked.plan) == to_string(plan));
      CHECK(std::none_of(checked.findings.begin(), checked.findings.end(), [](const Finding& f) {
        return f.severity == Severity::error || f.severity == Severity::warning;
      }));
    }
  }
}

TEST_CASE("a cluster of one kind has no list of hosts") {
  const emitted::Job job = emitted::job("llama3-70b", kUneven, Framework::megatron);
  for (const EmittedFile& f : emit(Framework::megatron, job.subject(), {})) {
    CHECK(f.name != "hosts.txt");
    CHECK_FALSE(has_text(f.text, "node ranks"));
  }
}

TEST_CASE("whoever cannot say which nodes come first refuses two kinds in a sentence") {
  const Mixed mixed = hopper_and_ampere();
  for (const Framework framework : {Framework::slime, Framework::verl, Framework::nemo_rl}) {
    CAPTURE(to_word(framework));
    const auto reasons = mixed.refused(framework, "tp4 pp4 dp8 zero1 gbs64 sp");
    REQUIRE_FALSE(reasons.empty());
    CHECK(has_text(reasons.back().message, "ranks nodes by their addresses"));
  }
  // Stages of unequal layers, which DeepSpeed's pipeline has not.
  const auto reasons = mixed.refused(Framework::megatron_deepspeed, kUneven);
  CHECK(std::any_of(reasons.begin(), reasons.end(), [](const Infeasible& reason) {
    return has_text(reason.message, "leave pipeline_layout out");
  }));
}

TEST_CASE("kinds whose nodes one script cannot start are refused") {
  const char* line = "tp4 pp2 dp1 gbs8 sp";
  CHECK(has_text(hopper_and_ampere(4, 4).refused(Framework::megatron, line).back().message,
                 "4 GPUs of h100-sxm do not fill nodes of 8"));
  const Mixed racks({{load_hardware("h100-sxm"), 64}, {load_hardware("gb200"), 64}});
  CHECK(has_text(racks.refused(Framework::megatron, kUneven).back().message,
                 "nodes of h100-sxm have 8 GPUs and those of gb200"));
}
