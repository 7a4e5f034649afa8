#include "planner/rules/feasible.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "models/plan/words.h"
#include "planner/rules/precision.h"
#include "tests/planner/rules/broken_plans.h"
#include "tests/planner/sources.h"

using namespace qplan;

TEST_CASE("every rule has a plan that breaks it, and says so in a sentence with the numbers") {
  std::set<std::string_view> shown;
  for (const Broken& example : broken_plans()) {
    CAPTURE(example.rule);
    const auto reasons =
        why_infeasible(example.model, plan_of(example), recipe(example.kind), example.limits);
    const auto reason = std::ranges::find(reasons, example.rule, &Infeasible::rule);
    REQUIRE(reason != reasons.end());
    CHECK(reason->message.size() > 20);
    CHECK(reason->message.back() != '.');
    CHECK(reason->message.find('?') == std::string::npos);  // an enumerator without a word
    shown.insert(example.rule);
  }
  // Switches that not every framework has: whoever lacks one refuses it.
  for_each_word([&](const auto& word) {
    if constexpr (std::is_same_v<typename std::decay_t<decltype(word)>::Value, bool>) {
      if (word.said_by.rule.empty()) return;
      ParallelPlan plan;
      plan.*word.member = !(plan.*word.member);
      for (const auto& [kind, name] : Words<RecipeKind>::table) {
        CAPTURE(word.key);
        CAPTURE(name);
        const auto reasons = why_infeasible(llama3_70b(), plan, recipe(kind), {});
        const auto reason = std::ranges::find(reasons, word.said_by.rule, &Infeasible::rule);
        CHECK((reason == reasons.end()) == word.said_by.recipes.has(kind));
      }
      shown.insert(word.said_by.rule);
    }
  });
  for (const RuleInfo& rule : feasibility_rules()) {
    CAPTURE(rule.id);
    CHECK(shown.contains(rule.id));
    CHECK_FALSE(rule.recipes.empty());
  }
}

TEST_CASE("every rule cites what a reader can open, or says that it is arithmetic or ours") {
  for (const RuleInfo& rule : feasibility_rules()) {
    CAPTURE(rule.id);
    CAPTURE(rule.source);
    CHECK(is_source(std::string(rule.source)));
  }
  for (const char* id : {"", "M80, M81", "D04", "3B, 4.1", "1.2", "Q7", "arguments.py:928",
                         "Megatron-LM, megatron/training/arguments.py:928",
                         "Megatron-LM d98e8a64, M08", "DeepSpeed edaa7221, config.py:937; D04"}) {
    CAPTURE(id);
    CHECK_FALSE(is_source(id));
  }
}

TEST_CASE("of a rule's sources those of the plan's own framework are shown, where it has one") {
  const auto shown = [](std::string_view rule, RecipeKind kind) {
    return source_of_rule(rule, kind);
  };
  CHECK(shown("expert_world", RecipeKind::megatron).starts_with("Megatron-LM "));
  CHECK(shown("expert_world", RecipeKind::deepspeed).starts_with("DeepSpeed "));
  CHECK(shown("expert_world", RecipeKind::fsdp2_compile).starts_with("torchtitan "));
  for (const RecipeKind kind :
       {RecipeKind::megatron, RecipeKind::deepspeed, RecipeKind::fsdp2_compile}) {
    CHECK(shown("expert_world", kind).find("; ") == std::string::npos);
  }
  // nanotron says nothing of it: all who do are named.
  const std::string all = shown("expert_world", RecipeKind::nanotron);
  CHECK(all.find("Megatron-LM ") < all.find("torchtitan "));
  CHECK(shown("out_of_memory", RecipeKind::megatron).empty());
  for (const RuleInfo& rule : feasibility_rules()) {
    for (const auto& [kind, word] : Words<RecipeKind>::table) {
      if (rule.recipes.has(kind)) CHECK(is_source(shown(rule.id, kind)));
    }
  }
}

TEST_CASE("rule ids are unique") {
  std::set<std::string_view> ids;
  for (const RuleInfo& rule : feasibility_rules()) CHECK(ids.insert(rule.id).second);
}

TEST_CASE("most broken plans break one rule alone") {
  // So that a rejection is counted under its own name. The rest break a second rule by necessity.
  const std::set<std::string_view> in_company = {
      "attention_heads", "key_value_heads",     "key_value_heads_split", "mlp_split",
      "pipeline_depth",  "shared_expert_split", "schedule_microbatches"};
  for (const Broken& example : broken_plans()) {
    if (in_company.contains(example.rule)) continue;
    CAPTURE(example.rule);
    const auto reasons =
        why_infeasible(example.model, plan_of(example), recipe(example.kind), example.limits);
    for (const Infeasible& reason : reasons) CHECK(reason.rule == example.rule);
  }
}

TEST_CASE("our executor's words are feasible, one at a time and together") {
  const Recipe ours = recipe(RecipeKind::qplan);
  const ModelSpec model = llama3_70b();
  for (const auto* line :
       {"tp2 sp", "pp2 gpipe gbs2", "pp2 1f1b gbs2", "pp2 interleaved vpp2 gbs2", "pp2 zb-h1 gbs2",
        "pp2 zbv vpp2 gbs2", "pp2 dualpipe gbs4", "pp4 dp2 dualpipe zero1 gbs16", "cp2",
        "cp2 cp_comm=all_gather", "cp2 cp_comm=a2a", "dp2 zero1 gbs2", "dp2 zero2 gbs2",
        "dp2 zero3 gbs2", "recompute=full", "recompute=selective:mlp+layernorm",
        "zero1 offload=optimizer:0.5", "tp2 sp pp2 cp2 dp2 zero3 gbs4 interleaved vpp2"}) {
    CAPTURE(line);
    CHECK(broken_rule(model, parse_plan(line), ours, {}) == "");
  }
  CHECK(broken_rule(qwen3_30b(), parse_plan("tp2 sp dp2 ep2 etp2 gbs2"), ours, {}) == "");
}

TEST_CASE("attention and loss of Hugging Face's modules are chosen whoever shards them") {
  const ModelSpec model = llama3_70b();
  for (const RecipeKind kind :
       {RecipeKind::ddp, RecipeKind::deepspeed, RecipeKind::fsdp1, RecipeKind::fsdp2}) {
    CAPTURE(to_word(kind));
    const std::string zero = kind == RecipeKind::ddp ? "dp8 zero0 gbs8 " : "dp8 zero3 gbs8 ";
    for (const char* words :
         {"attention_backend=flash", "attention_backend=fused", "loss=narrow", "loss=compiled"}) {
      CAPTURE(words);
      CHECK(broken_rule(model, parse_plan(zero + words), recipe(kind), {}) == "");
    }
  }
}

TEST_CASE("what dualpipe asks for is said in one sentence each") {
  const auto complaint = [](std::string_view line) {
    const auto reasons =
        why_infeasible(qwen3_30b(), parse_plan(line), recipe(RecipeKind::qplan), {});
    return reasons.size() == 1 ? reasons[0].message : fmt::format("{} reasons", reasons.size());
  };
  CHECK(complaint("pp3 dualpipe gbs6") ==
        "dualpipe feeds both ends of the pipeline alike, so pp and the number of microbatches must "
        "be even, not 3 and 6");
  CHECK(complaint("pp4 dualpipe gbs9") ==
        "dualpipe feeds both ends of the pipeline alike, so pp and the number of microbatches must "
        "be even, not 4 and 9");
  CHECK(complaint("pp4 dualpipe gbs6") ==
        "schedule dualpipe on pp 4 needs at least 8 microbatches, not 6");
  CHECK(complaint("pp4 dualpipe vpp2 gbs8") ==
        "schedule dualpipe needs vpp 1 (a rank's second stage is a copy of another rank's), not "
        "vpp 2");
  CHECK(complaint("pp4 dp2 dualpipe zero3 gbs16") ==
        "schedule dualpipe delays weight gradients, which zero 3 would have to reduce twice; use "
        "zero 0 or 1");
  CHECK(complaint("pp4 dp4 ep4 dualpipe gbs32 overlap=ep") ==
        "overlap ep needs another schedule: dualpipe always overlaps");
  CHECK(complaint("pp32 dualpipe gbs64") ==
        "48 layers do not divide evenly into pp 32 x vpp 1 = 32 stages; give a pipeline_layout");
}

TEST_CASE("an unknown machine is not held against a plan") {
  const auto megatron = recipe(RecipeKind::megatron);
  CHECK(broken_rule(llama3_70b(), parse_plan("precision=nvfp4"), megatron, {}) == "");
  CHECK(broken_rule(llama3_70b(), parse_plan("precision=nvfp4"), megatron, {0, 90}) ==
        "precision_gpu");
}

TEST_CASE("a GPU is named as its maker names it") {
  CHECK(rules::capability_wanted(90, Precision::mxfp8) == "compute capability 10.0");
  CHECK(rules::capability_wanted(94, Precision::mxfp8) == "gfx950");
  CHECK(rules::capability_wanted(120, Precision::mxfp8) == "compute capability 10.0 to 11.9");
  CHECK(rules::capability_wanted(95, Precision::nvfp4) == "NVIDIA's compute capability 10.0");
  CHECK(rules::named_capability(94) == "gfx942");
}

TEST_CASE("the search's answer is the first of the people's answers") {
  std::mt19937 engine(11);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(engine);
  };
  const auto word = [&]<class E>(E) {
    const auto& table = Words<E>::table;
    return table[static_cast<std::size_t>(pick(0, static_cast<int>(table.size()) - 1))].first;
  };
  const std::vector<ModelSpec> models = {llama3_70b(), qwen3_30b(), deepseek_v3(),
                                         gpt_oss(),    qwen3_vl(),  gpt2()};
  const std::vector<RuleInfo> rules = feasibility_rules();
  int feasible = 0;
  for (int i = 0; i < 20000; ++i) {
    ParallelPlan plan;
    plan.tp = 1 << pick(0, 3);
    plan.pp = 1 << pick(0, 3);
    plan.cp = pick(0, 2) == 0 ? 1 << pick(0, 2) : 1;
    plan.dp = pick(0, 9) == 0 ? pick(0, 9) : 1 << pick(0, 4);
    plan.ep = pick(0, 2) == 0 ? 1 << pick(0, 4) : 1;
    plan.etp = pick(0, 4) == 0 ? 2 : 1;
    plan.zero = pick(0, 3);
    plan.vpp = pick(0, 3) == 0 ? 2 : 1;
    plan.micro_batch_size = 1 << pick(0, 2);
    plan.global_batch_size = 1 << pick(4, 9);
    plan.sequence_parallel = plan.tp > 1 && pick(0, 4) != 0;
    if (pick(0, 3) == 0) plan.schedule = word(ScheduleKind{});
    if (pick(0, 3) == 0) plan.cp_comm = word(CpComm{});
    if (pick(0, 5) == 0) plan.precision = word(Precision{});
    if (pick(0, 5) == 0) plan.moe_dispatcher = word(MoeDispatcher{});
    if (pick(0, 5) == 0) plan.overlap.add(word(OverlapKind{}));
    if (pick(0, 5) == 0) plan.offload.optimizer = 1;
    if (pick(0, 5) == 0) plan.recompute.kind = RecomputeKind::full;
    const auto kind = word(RecipeKind{});
    const ModelSpec& model = models[static_cast<std::size_t>(pick(0, 5))];
    const ClusterLimits limits{pick(0, 1) == 0 ? 0 : plan.world(), pick(0, 1) == 0 ? 0 : 90};

    CAPTURE(to_string(plan));
    const auto first = broken_rule(model, plan, recipe(kind), limits);
    const auto all = why_infeasible(model, plan, recipe(kind), limits);
    if (all.empty()) {
      ++feasible;
      CHECK(first == "");
    } else {
      CHECK(first == all.front().rule);
    }
    for (const Infeasible& reason : all) {
      const auto rule = std::ranges::find(rules, reason.rule, &RuleInfo::id);
      REQUIRE(rule != rules.end());
      CHECK(rule->recipes.has(kind));
    }
  }
  CHECK(feasible > 200);  // the property was asked of both kinds of plan
}
