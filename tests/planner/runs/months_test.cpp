// Published runs have what their framework had when they ran.

#include <doctest/doctest.h>

#include "planner/runs/predict_runs.h"
#include "tests/planner/runs/rows.h"

namespace qplan {

TEST_CASE(
    "torchtitan's benchmarks are of the month that their page names, and its loss with them") {
  const auto month = [](const char* page, const char* framework, const char* recipe) {
    return read({{"source_path_or_table", page}, {"framework", framework}, {"recipe", recipe}})
        .inputs->month;
  };
  CHECK(month("benchmarks/llama3_h100_202412_torchtitan.md T1", "torchtitan", "fsdp2_compile") ==
        202412);
  CHECK(month("benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md", "torchtitan (FSDP2)",
              "fsdp2_compile") == 202506);
  // A page without one is taken for the first, no page for a run of today.
  CHECK(month("docs/performance.md@613bfd0cf", "torchtitan", "fsdp2_compile") == 202412);
  CHECK(month("README 20261301", "torchtitan", "fsdp2_compile") == 202412);
  CHECK(month("benchmarks/llama3_h100_202506.md", "TRL", "fsdp2_compile") == 202412);
  CHECK(month("", "torchtitan", "fsdp2_compile") == 0);
  // Any other program on FSDP or Hugging Face's modules is of the month that its name says.
  CHECK(month("benchmarks/baselines/a.json", "prime-rl (FSDP2) 2026-01", "fsdp2_compile") ==
        202601);
  CHECK(month("README.md", "TRL 2024-11", "fsdp1") == 202411);
  CHECK(month("benchmarks/llama3_h100_202412.md", "torchtitan", "megatron") == 0);

  constexpr auto titan = RecipeKind::fsdp2_compile;
  CHECK(recipe_of_month(titan, 202503).kernels.loss == LossKind::eager);
  for (const int early : {202504, 202604}) {
    CHECK(recipe_of_month(titan, early).kernels.loss == LossKind::compiled);
  }
  for (const int late : {0, 202605}) {
    CHECK(recipe_of_month(titan, late).kernels.loss == LossKind::chunked);
  }
  CHECK(recipe_of_month(titan, 202606).kernels.attention == AttentionKernel::flash2);
  for (const int late : {0, 202607}) {
    CHECK(recipe_of_month(titan, late).kernels.attention == AttentionKernel::flex);
  }
}

TEST_CASE("torch prefers cuDNN's attention from 2.11 on") {
  using enum RecipeKind;
  for (const RecipeKind kind : {ddp, deepspeed, fsdp2}) {
    CAPTURE(to_word(kind));
    CHECK(recipe_of_month(kind, 202603).kernels.attention == AttentionKernel::flash2);
    for (const int late : {0, 202604}) {
      CHECK(recipe_of_month(kind, late).kernels.attention == AttentionKernel::fused);
    }
  }
}

TEST_CASE("published runs of Megatron-Core have the loss and the month of their framework") {
  const auto run = [](const char* framework, const char* page = "", const char* flags = "") {
    return *read({{"framework", framework},
                  {"source_path_or_table", page},
                  {"other_flags", flags},
                  {"recipe", "megatron"}})
                .inputs;
  };
  using enum LossKind;
  const auto loss = [&](const char* framework, const char* page = "", const char* flags = "") {
    return run(framework, page, flags).plan.loss;
  };
  CHECK(loss("Megatron-Bridge (NeMo 26.04.01)") == te);
  CHECK(loss("Megatron-Core") == te);
  CHECK(loss("NeMo 24.07") == unfused);
  CHECK(loss("NeMo 25.02") == by_framework);
  CHECK(loss("NeMo", "README @commit 25.07 (blob 336ffc3a) deepseek-v3") == te);
  CHECK(loss("NeMo", "README @commit 25.05 (blob 3197c34d) llama3.1") == by_framework);
  CHECK(loss("NeMo", "README @commit 741c886 (blob 343563a1) llama3.1") == by_framework);
  CHECK(loss("Megatron-LM") == by_framework);
  CHECK(loss("Megatron-LM 23e00ed + TE 2.11", "", "CE fusion") == te);
  CHECK(run("Megatron-Bridge (NeMo 26.04.01)").month == 202604);
  CHECK(run("NeMo 24.07").month == 202407);
  CHECK(run("Megatron-LM 23e00ed + TE 2.11").month == 202608);
  CHECK(run("").month == 0);

  constexpr auto megatron = RecipeKind::megatron;
  CHECK(recipe_of_month(megatron, 202406).kernels.loss == unfused);
  CHECK(recipe_of_month(megatron, 202407).kernels.loss == native);
  CHECK(recipe_of_month(megatron, 202608).keeps.te_loss_in_place);
  for (const int late : {0, 202609}) {
    CHECK_FALSE(recipe_of_month(megatron, late).keeps.te_loss_in_place);
  }
}

TEST_CASE(
    "NeMo with Apex's optimizer has 2 bytes of master weights, and bf16 moments if it tunes") {
  const auto plan = [](const char* framework, const char* notes, const char* precision = "fp8") {
    return read({{"framework", framework},
                 {"recipe", "megatron"},
                 {"zero", "1"},
                 {"precision_words", precision},
                 {"notes", notes}})
        .inputs->plan;
  };
  const ParallelPlan trained = plan("NeMo 24.07", "");
  CHECK(trained.main_params_dtype == DType::bf16);
  CHECK(trained.moment_dtype == DType::fp32);
  CHECK_FALSE(trained.fp8_param_gather);
  CHECK(plan("NeMo 24.07", "", "bf16").fp8_param_gather);
  const ParallelPlan tuned = plan("NeMo 24.07", "SFT packed 4096");
  CHECK(tuned.main_params_dtype == DType::bf16);
  CHECK(tuned.moment_dtype == DType::bf16);
  CHECK(tuned.fp8_param_gather);
  // Later ones have Megatron's, and so has Megatron-Bridge.
  for (const char* later : {"NeMo 25.02", "NeMo", "Megatron-Bridge (NeMo 26.04.01)"}) {
    const ParallelPlan p = plan(later, "SFT packed 4096");
    CHECK(p.main_params_dtype == DType::fp32);
    CHECK(p.moment_dtype == DType::fp32);
    CHECK(p.fp8_param_gather);
  }
}

TEST_CASE("MLPerf's Llama 3.1 8B takes attention in fp8 where a sequence is one GPU's") {
  const auto fp8 = [](const char* framework, const char* cp, const char* precision) {
    return read({{"framework", framework},
                 {"recipe", "megatron"},
                 {"tp", "1"},
                 {"cp", cp},
                 {"precision_words", precision}})
        .inputs->plan.fp8_dot_product_attention;
  };
  CHECK(fp8("NeMo MLPerf v5.1", "1", "fp8"));
  CHECK(fp8("NeMo MLPerf v5.1", "1", "nvfp4"));
  CHECK_FALSE(fp8("NeMo MLPerf v5.1", "2", "fp8"));
  CHECK_FALSE(fp8("NeMo MLPerf v5.1", "1", "bf16"));
  CHECK_FALSE(fp8("NeMo MLPerf v5.0", "1", "fp8"));
}

TEST_CASE("Megatron-Bridge's experts take attention in fp8 from release 26.06 on, on racks of 72") {
  const auto fp8 = [](const char* framework, const char* hardware, const char* ffn) {
    return read({{"framework", framework},
                 {"recipe", "megatron"},
                 {"hardware", hardware},
                 {"precision_words", "mxfp8"},
                 {"experts", ffn[0] == 0 ? "" : "8"},
                 {"topk", ffn[0] == 0 ? "" : "2"},
                 {"moe_ffn", ffn}})
        .inputs->plan.fp8_dot_product_attention;
  };
  CHECK(fp8("Megatron-Bridge (NeMo 26.06)", "gb300", "512"));
  CHECK_FALSE(fp8("Megatron-Bridge (NeMo 26.04)", "gb300", "512"));
  CHECK_FALSE(fp8("Megatron-Bridge (NeMo 26.06)", "b200", "512"));
  CHECK_FALSE(fp8("Megatron-Bridge (NeMo 26.06)", "gb300", ""));
}

TEST_CASE("Pai-Megatron-Patch sorts tokens by torch's kernels unless a row says otherwise") {
  const auto fuses = [](const char* framework, const char* flags) {
    return read({{"framework", framework}, {"recipe", "megatron"}, {"other_flags", flags}})
        .inputs->plan.moe_permute_fusion;
  };
  CHECK_FALSE(fuses("Pai-Megatron-Patch 2b201af (25.04 image)", ""));
  CHECK(fuses("Pai-Megatron-Patch", "permute fusion"));
  CHECK(fuses("Megatron-Bridge (NeMo 26.06)", ""));
  CHECK_FALSE(fuses("Megatron-Core", "no permute fusion"));
}

TEST_CASE("Composer's runs with PURE recompute whole layers, as torch before 2.1 did") {
  const auto run = [](const char* words) {
    return read({{"recipe", "fsdp1"},
                 {"zero_or_fsdp", words},
                 {"mlp", "gelu"},
                 {"layers", "32"},
                 {"hidden", "4096"},
                 {"heads", "32"},
                 {"ffn", "16384"},
                 {"micro_batch", "8"},
                 {"recompute_words", "full"}});
  };
  const MeasuredRun early = run("FSDP FULL_SHARD mp=PURE");
  MeasuredRun later = run("FSDP FULL_SHARD");
  CHECK(early.inputs->month == 202305);
  CHECK(later.inputs->month == 0);
  // Its tables that say DEFAULT are of 2023, too.
  CHECK(run("FSDP FULL_SHARD mp=DEFAULT").inputs->month == 202311);
  later.inputs->month = 202311;
  CHECK_FALSE(recipe_of_month(RecipeKind::fsdp1, 0).keeps.recomputes_dead_ops);
  CHECK(recipe_of_month(RecipeKind::fsdp1, 202309).keeps.recomputes_dead_ops);
  CHECK_FALSE(recipe_of_month(RecipeKind::fsdp1, 202310).keeps.recomputes_dead_ops);
  // A layer without gates ends in a product of a third of its FLOPs, and forward is a quarter.
  CHECK(early.inputs->plan == later.inputs->plan);
  const auto step = [](const MeasuredRun& r) {
    const RunPrediction p = predict_runs({r}, 1).front();
    REQUIRE(p.estimate);
    return p.estimate->step_time;
  };
  const double longer = step(early) / step(later);
  CHECK(longer > 1.03);
  CHECK(longer < 1.09);
}

}  // namespace qplan
