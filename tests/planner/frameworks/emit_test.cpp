#include "planner/frameworks/emit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "models/error.h"
#include "models/plan/words.h"
#include "tests/planner/frameworks/emitted.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

using namespace emitted;

TEST_CASE(
    "deterministic mode comes with the environment that it asks for, and without the fused loss") {
  const auto plan = [](const std::string& words) {
    return "tp2 dp4 zero1 gbs8 seq4096 sp overlap=grad+param" + words;
  };
  for (const Framework framework :
       {Framework::megatron, Framework::megatron_bridge, Framework::slime}) {
    const Job j = job("qwen3-8b", plan(" deterministic=true"), framework);
    const Job other = job("qwen3-8b", plan(""), framework);
    const auto files = emit(framework, j.subject(), {"r"});
    const auto others = emit(framework, other.subject(), {"r"});
    const auto anywhere = [](const std::vector<EmittedFile>& in, const std::string& words) {
      return std::any_of(in.begin(), in.end(),
                         [&](const EmittedFile& f) { return has_text(f.text, words); });
    };
    const char* const flag = framework == Framework::megatron_bridge
                                 ? "cfg.model.deterministic_mode = True"
                                 : "--deterministic-mode";
    CHECK(anywhere(files, flag));
    CHECK_FALSE(anywhere(others, flag));
    for (const char* name :
         {"NCCL_ALGO", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"}) {
      CAPTURE(name);
      CHECK(anywhere(files, name));
      CHECK_FALSE(anywhere(others, name));
    }
    CHECK_FALSE(anywhere(files, "--cross-entropy-loss-fusion"));
    CHECK(check(texts_of(files), question_of(j.model, j.config, 8)).plan == j.plan);
  }
}

TEST_CASE("a plan's loss is written, and read back as the plan's") {
  struct Case {
    Framework framework;
    const char *words, *written;
  };
  for (const Case& c : std::initializer_list<Case>{
           {Framework::megatron, "", "--cross-entropy-fusion-impl native"},
           {Framework::megatron, " loss=native", "--cross-entropy-fusion-impl native"},
           {Framework::megatron, " loss=unfused", ""},
           {Framework::megatron_bridge, "", "cfg.model.cross_entropy_fusion_impl = \"native\""},
           {Framework::megatron_bridge, " loss=te", "cfg.model.cross_entropy_fusion_impl = \"te\""},
           {Framework::megatron_bridge, " loss=unfused",
            "cfg.model.cross_entropy_loss_fusion = False"},
           {Framework::slime, "", ""},
           {Framework::torchtitan, " loss=compiled", "loss=CrossEntropyLoss.Config("},
           {Framework::torchtitan, "", "loss=ChunkedLossWrapper.Config("}}) {
    const bool titan = c.framework == Framework::torchtitan;
    const std::string head = titan ? "tp2 dp4 zero3" : "tp2 dp4 zero1";
    const Job j =
        job("qwen3-8b", head + " gbs8 seq4096 sp overlap=grad+param" + c.words, c.framework);
    CAPTURE(j.plan.loss);
    CAPTURE(c.words);
    const auto files = emit(c.framework, j.subject(), {"r"});
    std::string all;
    for (const EmittedFile& f : files) all += f.text;
    CHECK(has_text(all, c.written));
    if (std::string_view(c.written).empty()) CHECK_FALSE(has_text(all, "cross-entropy"));
    const ParallelPlan read = check(texts_of(files), question_of(j.model, j.config, 8)).plan;
    CHECK(canonical(read, j.model, recipe_for(c.framework, RecipeKind::megatron)) ==
          canonical(j.plan, j.model, recipe_for(c.framework, RecipeKind::megatron)));
    CHECK(read.loss ==
          (std::string_view(c.words) == " loss=native" ? LossKind::by_framework : j.plan.loss));
  }
}

TEST_CASE("a loss that a framework refuses is not written for it") {
  for (const auto& [framework, words, rule] :
       std::initializer_list<std::tuple<Framework, const char*, const char*>>{
           {Framework::megatron, "loss=te", "loss_of_te"},
           {Framework::slime, "loss=unfused", "slime_loss"}}) {
    const Job j = job("qwen3-8b", std::string("tp2 dp4 zero1 gbs8 seq4096 sp ") + words, framework);
    const ClusterLimits limits{8, 90};
    const auto reasons = why_inexpressible(framework, j.subject(), limits);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons.front().rule == rule);
    ParallelPlan nearest;
    REQUIRE(nearest_expressible(framework, j.subject(), limits, nearest));
    CHECK(nearest.loss == LossKind::by_framework);
  }
}

TEST_CASE("what no file of FSDP says is not written for it") {
  for (const auto& [framework, words, rule] :
       std::initializer_list<std::tuple<Framework, const char*, const char*>>{
           {Framework::torchtitan, "loss=eager", "loss_of_torchtitan"},
           {Framework::torchtitan, "attention_backend=fused", "attention_of_files"},
           {Framework::fsdp2, "attention_backend=flash", "attention_of_files"},
           {Framework::torchtitan, "sync_each_batch=false", "sync_of_files"},
           {Framework::fsdp2, "recompute=full use_reentrant", "reentrant_of_files"},
           {Framework::trl, "recompute=full use_reentrant", "reentrant_of_files"}}) {
    CAPTURE(words);
    const Job j = job(
        "qwen3-8b", std::string("dp8 zero3 gbs16 seq4096 overlap=grad+param ") + words, framework);
    const ClusterLimits limits{8, 90};
    const auto reasons = why_inexpressible(framework, j.subject(), limits);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons.front().rule == rule);
    ParallelPlan nearest;
    REQUIRE(nearest_expressible(framework, j.subject(), limits, nearest));
    CHECK(nearest.sync_each_batch);
    CHECK_FALSE(nearest.use_reentrant);
    CHECK(nearest.attention_backend == AttentionBackend::automatic);
    CHECK(nearest.loss == LossKind::by_framework);
  }
}

TEST_CASE("nor what no file of DeepSpeed says") {
  const std::string line = "dp8 zero3 gbs16 seq4096 overlap=grad attention_backend=flash";
  const Job j = job("qwen3-8b", line, Framework::deepspeed);
  const ClusterLimits limits{8, 90};
  const auto reasons = why_inexpressible(Framework::deepspeed, j.subject(), limits);
  REQUIRE(reasons.size() == 1);
  CHECK(reasons.front().rule == "attention_of_files");
  ParallelPlan nearest;
  REQUIRE(nearest_expressible(Framework::deepspeed, j.subject(), limits, nearest));
  CHECK(nearest.attention_backend == AttentionBackend::automatic);
}

TEST_CASE("torchtitan's loss is written in chunks where they divide a micro-batch's tokens") {
  const auto config = [](const std::string& plan) {
    const Job j = job("llama3-8b", plan, Framework::torchtitan);
    return file(emit(Framework::torchtitan, j.subject(), {}), "qplan_config.py");
  };
  const std::string even = config("tp1 pp1 dp8 zero3 mbs1 gbs64 seq4096 overlap=grad+param");
  CHECK(has_text(even, "loss=ChunkedLossWrapper.Config(\n"));
  CHECK(has_text(even, "import ChunkedLossWrapper, CrossEntropyLoss\n"));
  const std::string odd = config("tp1 pp1 dp8 zero3 mbs1 gbs64 seq4100 overlap=grad+param");
  CHECK(has_text(odd, "loss=CrossEntropyLoss.Config(\n"));
  CHECK_FALSE(has_text(odd, "ChunkedLossWrapper"));
}

TEST_CASE("ds_config.json is strict JSON whose batch multiplies") {
  const Job j = job("llama3-8b",
                    "tp1 pp1 dp16 zero3 mbs2 gbs64 seq4096 recompute=full "
                    "offload=optimizer,params grad_dtype=bf16 overlap=grad",
                    Framework::deepspeed);
  const auto files = emit(Framework::deepspeed, j.subject(), {"remark"});
  const Json config = parse_json(file(files, "ds_config.json"), "ds_config.json");
  CHECK(config["train_batch_size"] == 64);
  CHECK(config["train_micro_batch_size_per_gpu"] == 2);
  CHECK(config["gradient_accumulation_steps"] == 2);
  CHECK(config["zero_optimization"]["stage"] == 3);
  CHECK(config["zero_optimization"]["offload_param"]["device"] == "cpu");
  CHECK(config["bf16"]["enabled"] == true);
  CHECK(has_text(file(files, "README.md"), "remark"));
  CHECK(has_text(file(files, "train.sh"), "--gradient_checkpointing"));
}

TEST_CASE(
    "a plan that a framework cannot say is refused with the reason and the nearest that it can") {
  struct Row {
    Framework framework;
    std::string model, plan, rule, nearest;
  };
  for (const Row& row : {
           Row{Framework::slime, "qwen3-30b-a3b",
               "tp1 pp2 dp4 ep4 zero1 mbs1 gbs64 seq4096 moe_dispatcher=deepep", "slime_dispatcher",
               "tp1 pp2 dp4 ep4 etp1 zero1 mbs1 gbs64 seq4096 1f1b"},
           Row{Framework::deepspeed, "llama3-8b",
               "tp1 pp2 dp4 zero1 mbs1 gbs64 seq4096 grad_dtype=bf16 overlap=grad",
               "no_pipeline_of_modules",
               "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096 grad_dtype=bf16 overlap=grad"},
           Row{Framework::fsdp2, "llama3-8b",
               "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096 overlap=grad+param", "zero_below_two",
               "tp1 pp1 dp8 zero3 mbs1 gbs64 seq4096 overlap=grad+param"},
           Row{Framework::megatron, "llama3-8b", "tp1 pp2 dp4 zero1 mbs1 gbs64 seq4096 zb-h1",
               "schedule_available", "tp1 pp2 dp4 zero1 mbs1 gbs64 seq4096 1f1b"},
           Row{Framework::megatron, "llama3-8b",
               "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096 moment_dtype=bf16",
               "precision_aware_master_weights", "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096"},
           Row{Framework::torchtitan, "qwen3-30b-a3b",
               "tp1 pp1 dp8 ep8 etp1 zero3 fsdp_shard=4 mbs1 gbs64 seq4096 overlap=grad+param",
               "experts_within_shards",
               "tp1 pp1 dp8 ep8 etp1 zero3 mbs1 gbs64 seq4096 overlap=grad+param"},
       }) {
    CAPTURE(row.plan);
    const Job j = job(row.model, row.plan, row.framework);
    const ClusterLimits limits{j.plan.world(), 90};
    const auto reasons = why_inexpressible(row.framework, j.subject(), limits);
    bool found = false;
    for (const Infeasible& reason : reasons) found = found || reason.rule == row.rule;
    CHECK(found);
    ParallelPlan nearest;
    REQUIRE(nearest_expressible(row.framework, j.subject(), limits, nearest));
    CHECK(parse_plan(row.nearest) == nearest);
  }
}

TEST_CASE("the files of a recipe are those of the first framework that has the model") {
  const auto files = [](RecipeKind recipe, const std::string& model) {
    return files_of(recipe, load_model(model));
  };
  CHECK(files(RecipeKind::megatron, "qwen3-8b") == Framework::megatron);
  CHECK(files(RecipeKind::megatron, "qwen3-vl-30b-a3b") == Framework::megatron_bridge);
  CHECK(files(RecipeKind::megatron, "minimax-m2") == Framework::megatron_bridge);
  CHECK(files(RecipeKind::megatron, "llama4-scout-17b-16e") == Framework::megatron);  // nobody's
  CHECK_FALSE(has_files_of(Framework::megatron, load_model("llama4-scout-17b-16e")));
  CHECK(files(RecipeKind::fsdp2_compile, "gpt-oss-120b") == Framework::torchtitan);
  CHECK(files(RecipeKind::nanotron, "llama3-8b") == std::nullopt);
}

TEST_CASE("Megatron-DeepSpeed drops nothing that the plan does not, and runs fp8 by its library") {
  const Job plain =
      job("gpt3-175b", "tp8 pp1 dp8 zero3 mbs1 gbs64 seq2048", Framework::megatron_deepspeed);
  const std::string script =
      file(emit(Framework::megatron_deepspeed, plain.subject(), {}), "train.sh");
  CHECK(has_text(script, "--attention-dropout 0.0\n"));
  CHECK(has_text(script, "--hidden-dropout 0.0\n"));
  CHECK_FALSE(has_text(script, "--transformer-impl"));
  const Job fp8 = job("gpt3-175b", "tp8 pp1 dp8 zero3 mbs1 gbs64 seq2048 precision=fp8",
                      Framework::megatron_deepspeed);
  CHECK(has_text(file(emit(Framework::megatron_deepspeed, fp8.subject(), {}), "train.sh"),
                 "--transformer-impl transformer_engine\n"));
}

TEST_CASE("what files cannot say of a model stands at their top") {
  const std::string plan = "tp8 pp1 dp8 ep8 zero1 mbs1 gbs64 seq4096 sp";
  for (const Framework framework : {Framework::megatron, Framework::slime}) {
    const Job kimi = job("kimi-k2", plan, framework);
    for (const EmittedFile& f : emit(framework, kimi.subject(), {})) {
      CHECK(has_text(f.text,
                     "no flag for beta_fast of latent attention's YaRN, which is 1 in kimi-k2"));
    }
    const Job deepseek = job("deepseek-v3", plan, framework);
    CHECK(left_unsaid(framework, deepseek.subject()).empty());
  }
  const Job titan =
      job("deepseek-v3", "tp1 pp4 dp16 ep16 zero2 mbs1 gbs64 seq4096 1f1b overlap=grad+param",
          Framework::torchtitan);
  const auto files = emit(Framework::torchtitan, titan.subject(), {});
  CHECK(has_text(file(files, "qplan_config.py"), "# not trained: the layer that predicts"));
  CHECK(has_text(file(files, "qplan_config.py"), "model_registry(\"671B\""));
}

TEST_CASE("models that a framework cannot build are refused whatever the plan") {
  const auto refuses = [](Framework framework, const std::string& model) {
    const Job j = job(model, "tp1 pp1 dp8 zero1 mbs1 gbs64 seq1024", framework);
    ParallelPlan nearest;
    const ClusterLimits limits{8, 90};
    return !why_inexpressible(framework, j.subject(), limits).empty() &&
           !nearest_expressible(framework, j.subject(), limits, nearest);
  };
  CHECK(refuses(Framework::megatron_deepspeed, "qwen3-30b-a3b"));
  CHECK(refuses(Framework::megatron, "minimax-m2"));        // norms over all heads
  CHECK(refuses(Framework::megatron, "qwen3-vl-30b-a3b"));  // a vision tower
  CHECK_FALSE(refuses(Framework::megatron_bridge, "qwen3-vl-30b-a3b"));
  CHECK_FALSE(refuses(Framework::megatron, "gpt-oss-20b"));
  CHECK(refuses(Framework::slime, "gpt-oss-20b"));  // no conversion of its weights
  CHECK(refuses(Framework::torchtitan, "minimax-m2"));
  CHECK(refuses(Framework::torchtitan, "qwen3-next-80b-a3b"));
  CHECK(refuses(Framework::torchtitan, "qwen3.5-9b"));
  CHECK(refuses(Framework::slime, "qwen3.5-35b-a3b"));
  CHECK(refuses(Framework::megatron_deepspeed, "qwen3.5-9b"));
  CHECK(refuses(Framework::torchtitan, "mixtral-8x7b"));
  CHECK(refuses(Framework::megatron_bridge, "gpt-1.3t"));
}

TEST_CASE(
    "DeepSpeed's Trainer is told how sequences are split, and no batch that it would refuse") {
  const auto files_of_plan = [](const std::string& plan) {
    const Job j = job("qwen3-8b", plan, Framework::deepspeed);
    return emit(Framework::deepspeed, j.subject(), {"r"});
  };
  const std::string rest = " zero2 mbs1 gbs32 seq8192 grad_dtype=bf16 overlap=grad";
  const auto whole = files_of_plan("dp16" + rest);
  CHECK(has_text(file(whole, "ds_config.json"), "\"train_batch_size\": 32"));
  CHECK_FALSE(has_text(file(whole, "train.sh"), "PARALLELISM_CONFIG"));
  // The Trainer compares train_batch_size with micro-batch x accumulation x all ranks: 1 x 16 x 16.
  const auto split = files_of_plan("dp2 cp8 cp_comm=a2a" + rest);
  CHECK_FALSE(has_text(file(split, "ds_config.json"), "\"train_batch_size\""));
  CHECK(has_text(file(split, "ds_config.json"), "\"gradient_accumulation_steps\": 16"));
  const std::string script = file(split, "train.sh");
  CHECK(has_text(script, "export PARALLELISM_CONFIG_SP_SIZE=8\n"));
  CHECK(has_text(script, "export PARALLELISM_CONFIG_DP_REPLICATE_SIZE=2\n"));
  CHECK(has_text(script, "> .deepspeed_env\n"));  // two nodes
  const auto node = files_of_plan("dp1 cp8 cp_comm=a2a" + rest);
  CHECK_FALSE(has_text(file(node, "train.sh"), ".deepspeed_env"));
}

TEST_CASE("emitting is the same twice") {
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    CAPTURE(word);
    Job j = job("llama3-8b", "tp1 pp1 dp16 zero1 mbs1 gbs64 seq4096", framework);
    ParallelPlan nearest;
    const ClusterLimits limits{16, 90};
    if (!why_inexpressible(framework, j.subject(), limits).empty()) {
      if (!nearest_expressible(framework, j.subject(), limits, nearest)) continue;
      j.plan = nearest;
    }
    const auto once = emit(framework, j.subject(), {"r"}),
               again = emit(framework, j.subject(), {"r"});
    REQUIRE(once.size() == again.size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      CHECK(once[i].name == again[i].name);
      CHECK(once[i].text == again[i].text);
    }
  }
}

TEST_CASE("the nearest plan changes nothing that might have stayed") {
  RandomPlans random(11);
  int refused = 0, changed = 0;
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    for (int i = 0; i < test_rounds(40); ++i) {
      const std::string name = i % 2 == 0 ? "llama3-8b" : "qwen3-30b-a3b";
      Job j = job(name, "tp1", framework);
      j.plan = random.next(j.model, recipe_of(RecipeKind::megatron));
      const ClusterLimits limits{j.plan.world(), 90};
      if (why_inexpressible(framework, j.subject(), limits).empty()) continue;
      ParallelPlan nearest;
      if (!nearest_expressible(framework, j.subject(), limits, nearest)) continue;
      ++refused;
      CAPTURE(word);
      CAPTURE(to_string(j.plan));
      CAPTURE(to_string(nearest));
      CHECK(nearest.world() == j.plan.world());
      const auto is_refused = [&](const ParallelPlan& plan) {
        Job other = j;
        other.plan = plan;
        return !refusals(framework, other.subject(), limits).empty();
      };
      CHECK_FALSE(is_refused(nearest));
      // A degree takes dp and the stages along.
      for_each_word([&](const auto& row) {
        using P = ParallelPlan;
        const bool together =
            is_any_of(row.member, &P::tp, &P::pp, &P::dp, &P::cp, &P::ep, &P::etp, &P::schedule,
                      &P::vpp, &P::pipeline_layout, &P::sequence_parallel);
        if (together || nearest.*row.member == j.plan.*row.member) return;
        CAPTURE(row.key);
        ++changed;
        ParallelPlan back = nearest;
        back.*row.member = j.plan.*row.member;
        CHECK(is_refused(back));
      });
    }
  }
  CHECK(refused > 50);
  CHECK(changed > 50);
}

TEST_CASE("of plans as near, the one that fits is offered, and else the nearest of all") {
  const Job j = job("gpt-217b", "tp8 pp16 dp2 zero1 mbs1 gbs1024 seq4096 recompute=full 1f1b",
                    Framework::megatron_deepspeed);
  const ClusterLimits limits{256, 80};
  const auto nearest = [&](const PlanFits& fits) {
    ParallelPlan plan;
    REQUIRE(nearest_expressible(Framework::megatron_deepspeed, j.subject(), limits, plan, fits));
    return plan;
  };
  CHECK(nearest({}).pp == 8);
  CHECK(nearest([](const ParallelPlan& plan) { return plan.pp < 8; }).pp == 4);
  CHECK(nearest([](const ParallelPlan&) { return false; }).pp == 8);
}

}  // namespace
}  // namespace qplan
