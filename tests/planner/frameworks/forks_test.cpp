// Jobs of Megatron's forks: their own arguments are no faults.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kJob =
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 4096 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 2 --bf16 --train-iters 10 --lr 1e-4 --vocab-size 128256 "
    "--position-embedding-type rope --rotary-base 500000 --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights ";

Checked ask_job(const std::string& more, const std::string& from = "", const std::string& to = "") {
  const std::string text = from.empty() ? kJob : with_words(kJob, from, to);
  return ask_text("run.sh", "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" + text + more + "\n",
                  "llama3-8b", 8);
}

TEST_SUITE("Megatron's forks") {
  TEST_CASE("are told by two of their own arguments, which are one note") {
    const Checked checked =
        ask_job("--use-fused-rmsnorm --reuse-fp32-param --swap-optimizer --noop-layers 30,31");
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    const Finding* const found = find(checked, "fork_options");
    REQUIRE(found != nullptr);
    CHECK(found->severity == Severity::note);
    CHECK_MESSAGE(found->message.starts_with("--use-fused-rmsnorm, --reuse-fp32-param, "
                                             "--swap-optimizer, --noop-layers: arguments of "
                                             "MindSpeed-LLM"),
                  found->message);
    CHECK(find(checked, "unknown_option") == nullptr);
    CHECK(checked.takes_less);
    CHECK(checked.plan.tp == 2);
  }

  TEST_CASE("one alone may be made up, and names that others have tell none") {
    for (const std::string made_up :
         {"--use-fused-rmsnorm", "--num-experts-per-tok 8 --moe-intermediate-size 768",
          "--epochs 3 --model-name-or-path x"}) {
      CAPTURE(made_up);
      const Checked checked = ask_job(made_up);
      CHECK(find(checked, "fork_options") == nullptr);
      REQUIRE_MESSAGE(find(checked, "unknown_option") != nullptr, findings_text(checked));
      CHECK(find(checked, "unknown_option")->severity != Severity::note);
    }
  }

  TEST_CASE("may have other choices, and names that no list has") {
    const std::string fork = "--use-fused-rmsnorm --reuse-fp32-param ";
    const Checked choice = ask_job(fork + "--tokenizer-type PretrainedFromHF");
    REQUIRE(find(choice, "refused_value") != nullptr);
    CHECK(find(choice, "refused_value")->severity == Severity::note);
    const Checked name = ask_job(fork + "--something-of-its-own 3");
    REQUIRE(find(name, "unknown_option") != nullptr);
    CHECK(find(name, "unknown_option")->severity == Severity::warning);
    CHECK(find(name, "unknown_option")->fix.empty());
    const Checked slip = ask_job(fork + "--train-itres 10", "--train-iters 10", "");
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->severity == Severity::error);
    CHECK_FALSE(find(slip, "unknown_option")->fix.empty());
    // Without a fork's words both are errors.
    const Checked own = ask_job("--tokenizer-type PretrainedFromHF --something-of-its-own 3");
    CHECK(find(own, "refused_value")->severity == Severity::error);
    CHECK(find(own, "unknown_option")->severity == Severity::error);
  }

  TEST_CASE("are held to what Megatron-Core refuses") {
    const Checked checked =
        ask_job("--use-fused-rmsnorm --reuse-fp32-param", "--tensor-model-parallel-size 2",
                "--tensor-model-parallel-size 3");
    CHECK_MESSAGE(checked.has(Severity::error), findings_text(checked));
  }

  TEST_CASE("of BigScience's the table and the head fill stages as layers do") {
    const auto layout = [](const std::string& method) {
      const std::string text =
          "torchrun --nnodes 7 --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 "
          "--global-batch-size 64 --seq-length 2048 --pipeline-model-parallel-size 7 --bf16 "
          "--deepspeed --deepspeed_config ds_config.json --zero-stage 0 --pp-partition-method " +
          method + " --sync-tp-duplicated-parameters\n";
      const Checked checked =
          ask_texts({{"run.sh", text},
                     {"ds_config.json",
                      "{\"train_micro_batch_size_per_gpu\": 1, \"train_batch_size\": 64, "
                      "\"zero_optimization\": {\"stage\": 0}, \"bf16\": {\"enabled\": true}}"}},
                    "gpt3-175b", 56);
      CHECK(find(checked, "fork_options") != nullptr);
      return checked.plan.pipeline_layout;
    };
    // Of 96 layers and both ends 14 each.
    CHECK(layout("'type:transformer|embedding'") == std::vector<int>{13, 14, 14, 14, 14, 14, 13});
    CHECK(layout("type:transformer").empty());
  }

  TEST_CASE("words of an example that are to be replaced are no fault of a job") {
    const Checked checked = ask_text(
        "run.sh", "CKPT=\"your model save ckpt path\"\n" + kJob + "--save $CKPT\n", "llama3-8b", 8);
    CHECK(find(checked, "stray_word") == nullptr);
    REQUIRE(find(checked, "placeholder") != nullptr);
    CHECK(find(checked, "placeholder")->severity == Severity::note);
    const Checked stray = ask_job("--save /a b c");
    CHECK(find(stray, "stray_word") != nullptr);
  }
}

}  // namespace
}  // namespace qplan
