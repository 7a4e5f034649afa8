// torchtune's YAML, and the command that starts its recipes.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kFull =
    "output_dir: runs/x\n"
    "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  max_seq_len: 4096\n"
    "dataset:\n  _component_: torchtune.datasets.alpaca_cleaned_dataset\n  packed: True\n"
    "model:\n  _component_: torchtune.models.llama3.llama3_8b\n"
    "batch_size: 2\nepochs: 1\n"
    "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 2e-5\n  fused: True\n"
    "loss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n"
    "gradient_accumulation_steps: 4\ncompile: False\noptimizer_in_bwd: False\ndevice: cuda\n"
    "enable_activation_checkpointing: True\nenable_activation_offloading: False\ndtype: bf16\n";

const std::string kAdapters =
    "model:\n  _component_: torchtune.models.llama3.qlora_llama3_8b\n"
    "  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']\n  apply_lora_to_mlp: True\n"
    "  lora_rank: 16\n  lora_alpha: 32\n";

const std::string kModel = "model:\n  _component_: torchtune.models.llama3.llama3_8b\n";

Checked ask_tune(const std::string& from = "", const std::string& to = "",
                 const std::string& more = "") {
  const std::string text = from.empty() ? kFull : with_words(kFull, from, to);
  return ask_text("job.yaml", text + more, "llama3-8b", 8);
}

std::string model_named(const std::string& builder) {
  const std::vector<ConfigText> texts{
      {"job.yaml", with_words(kFull, "torchtune.models.llama3.llama3_8b", builder)}};
  return model_id_of_files(read_job_files(texts));
}

TEST_SUITE("torchtune's YAML") {
  TEST_CASE("is FSDP2 with one format for weights, gradients and states") {
    const Checked checked = ask_tune();
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.framework == Framework::fsdp2);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.dp == 8);
    CHECK(plan.zero == 3);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.global_batch_size == 64);
    CHECK(plan.seq_len == 4096);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.main_params_dtype == DType::bf16);
    CHECK(plan.moment_dtype == DType::bf16);
    CHECK(plan.grad_dtype == DType::bf16);
    CHECK(checked.takes_less);  // its loss works in chunks
  }

  TEST_CASE("builders of adapters make them, and qlora's freeze 4 bits") {
    const Checked checked = ask_tune(kModel, kAdapters);
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    const std::string plan = to_string(checked.plan);
    CHECK(checked.plan.lora_rank == 16);
    CHECK_MESSAGE(plan.find("lora_targets=q_proj+v_proj+o_proj+gate_proj+up_proj+down_proj") !=
                      std::string::npos,
                  plan);
    CHECK_MESSAGE(plan.find("frozen=nf4-double") != std::string::npos, plan);
  }

  TEST_CASE("degrees are its own") {
    const Checked checked = ask_tune(
        "device: cuda\n",
        "device: cuda\ntensor_parallel_dim: 2\ndata_parallel_replicate_dim: 2\n"
        "tensor_parallel_plan:\n  _component_: torchtune.models.llama3.base_llama_tp_plan\n"
        "fsdp_cpu_offload: True\n");
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK(checked.plan.tp == 2);
    CHECK(checked.plan.dp == 4);
    CHECK(checked.plan.fsdp_shard == 2);
    CHECK(checked.plan.offload.params);
  }

  TEST_CASE("the builder names the model") {
    CHECK(model_named("torchtune.models.qwen3.lora_qwen3_0_6b_instruct") == "qwen3-0.6b");
    CHECK(model_named("torchtune.models.llama3.qlora_llama3_8b") == "llama3-8b");
    CHECK(model_named("torchtune.models.mistral.mistral_7b") == "mistral-7b");  // no built-in one
  }

  TEST_CASE("what its recipes refuse is found at its line") {
    struct Row {
      std::string from, to, rule;
      Severity severity = Severity::error;
    };
    const std::vector<Row> rows{
        {"dtype: bf16", "dtype: fp16", "refused_value"},
        {"optimizer_in_bwd: False", "optimizer_in_bwd: True", "options_exclude"},
        {"enable_activation_checkpointing: True\nenable_activation_offloading: False",
         "enable_activation_checkpointing: False\nenable_activation_offloading: True",
         "option_needs"},
        {"device: cuda", "device: cuda\ntensor_parallel_dim: 2", "option_needs"},
        {"device: cuda", "enable_fp8_training: True\ncontext_parallel_dim: 2", "options_exclude"},
        {"batch_size: 2", "batch_size: two", "refused_value"},
        {"batch_size: 2", "batch_sizee: 2", "unknown_option"},
        {"gradient_accumulation_steps: 4", "grad_accumulation_steps: 4", "unknown_option",
         Severity::warning},
        {"device: cuda", "device: cuda\ndata_parallel_replicate_dim: 3", "world_size"},
        {kModel, with_words(kAdapters, "output_proj", "o_proj"), "unknown_target",
         Severity::warning},
        {kModel, with_words(kAdapters, "lora_rank", "lora_rnk"), "unknown_option"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.to);
      const Checked checked = ask_tune(row.from, row.to);
      const Finding* const found = find(checked, row.rule);
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK(found->severity == row.severity);
    }
    // A name that another key refers to is somebody's own.
    const Checked own = ask_tune("output_dir: runs/x", "run_name: y\noutput_dir: runs/${run_name}");
    CHECK_MESSAGE(find(own, "unknown_option") == nullptr, findings_text(own));
  }

  TEST_CASE("`tune run` says the GPUs, and words on top of the file") {
    const std::vector<ConfigText> texts{
        {"run.sh",
         "tune run --nproc_per_node 4 full_finetune_distributed --config job.yaml "
         "batch_size=4\n"},
        {"job.yaml", kFull}};
    const Checked checked = ask_texts(texts, "llama3-8b", 4);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK(checked.plan.dp == 4);
    CHECK(checked.plan.micro_batch_size == 4);
    const Checked alone = ask_text(
        "run.sh", "tune run full_finetune_single_device --config llama3/8B_full\n", "llama3-8b", 1);
    REQUIRE(find(alone, "nothing_to_check") != nullptr);
    CHECK(find(alone, "nothing_to_check")->instead == "give 8B_full.yaml too");
  }

  TEST_CASE("a configuration that trains nothing, or by answers, is said to be so") {
    const Checked checked = ask_text(
        "eval.yaml", "model:\n  _component_: torchtune.models.llama3.llama3_8b\nbatch_size: 8\n",
        "llama3-8b", 8);
    REQUIRE(find(checked, "unknown_file") != nullptr);
    CHECK(find(checked, "unknown_file")->message.find("torchtune") != std::string::npos);
  }
}

}  // namespace
}  // namespace qplan
