// slime's scripts: the step around Megatron's plan, and what it hands to its engines.

#include <doctest/doctest.h>

#include <string>

#include "planner/frameworks/check.h"
#include "planner/rl/rl_step.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

TEST_SUITE("slime") {
  TEST_CASE("its rollout side is a step, colocated or apart") {
    const auto step_of = [](const std::string& more) {
      const std::string script =
          "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 "
          "--tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8 "
          "--expert-tensor-parallel-size 1 --use-dynamic-batch-size --max-tokens-per-gpu 20480 "
          "--rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 128 "
          "--rollout-max-response-len 8192 --rollout-num-gpus-per-engine 8 "
          "--sglang-mem-fraction-static 0.7 " +
          more + "\n";
      return ask_texts({{"run.sh", script}}, "qwen3-30b-a3b", 8).step;
    };
    const auto together = step_of(
        "--colocate --sglang-enable-dp-attention --sglang-dp-size 8 --sglang-ep-size 8 "
        "--sglang-ep-num-redundant-experts 16 --use-kl-loss --kl-loss-coef 0.001");
    REQUIRE(together.has_value());
    CHECK(together->job.prompts == 32);
    CHECK(together->job.samples == 8);
    CHECK(together->job.train_batch == 128);
    CHECK(together->job.prompt_len == 512);
    CHECK(together->job.response.max == 8192);
    CHECK(together->job.reference);
    CHECK(together->job.colocated());
    CHECK(to_string(together->layout) ==
          to_string(parse_rollout_layout("tp1 dp8 ep8 redundant16 share0.7 running64")));
    const auto apart = step_of("--rollout-num-gpus 16 --balance-data");
    REQUIRE(apart.has_value());
    CHECK(apart->job.rollout_gpus == 16);
    CHECK(apart->layout.tp == 8);
    CHECK(apart->job.balanced);
    CHECK_FALSE(apart->job.reference);
    CHECK_FALSE(step_of("").has_value());  // nobody says who makes answers
    CHECK_FALSE(step_of("--colocate --loss-type sft_loss").has_value());
  }
}

TEST_SUITE("what slime hands to its engines") {
  TEST_CASE("a rollout's prompts have no default") {
    const std::string job =
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate "
        "--n-samples-per-prompt 8 --global-batch-size 64 ";
    CHECK(find(ask_text("run.sh", job + "\n"), "option_needs") != nullptr);
    for (const std::string rest : {"--rollout-batch-size 8", "${ROLLOUT_ARGS[@]}"}) {
      CAPTURE(rest);
      CHECK(find(ask_text("run.sh", job + rest + "\n"), "option_needs") == nullptr);
    }
  }

  TEST_CASE("engines divide the job's GPUs, whoever counts them") {
    const auto ask_engines = [](const std::string& each, const std::string& actor) {
      return ask_texts({{"run.sh",
                         "NUM_GPUS=$(nvidia-smi -L | wc -l)\npython3 train.py "
                         "--actor-num-nodes 1 --actor-num-gpus-per-node " +
                             actor +
                             " --colocate --rollout-batch-size 8 "
                             "--n-samples-per-prompt 8 --global-batch-size 64 "
                             "--rollout-num-gpus-per-engine " +
                             each + "\n"}},
                       "qwen3-30b-a3b", 8);
    };
    for (const std::string actor : {"8", "${NUM_GPUS}"}) {
      CAPTURE(actor);
      CHECK(find(ask_engines("3", actor), "engines_divide") != nullptr);
      CHECK(find(ask_engines("4", actor), "engines_divide") == nullptr);
    }
    // An actor that does not fill the job's GPUs is one finding.
    const Checked larger = ask_engines("16", "16");
    CHECK(find(larger, "actor_gpus") != nullptr);
    CHECK(find(larger, "engines_divide") == nullptr);
  }

  TEST_CASE("sglang's arguments are spelled as sglang has them, and have what they need") {
    const std::string job =
        "python3 train.py --num-layers 48 --hidden-size 2048 --actor-num-nodes 1 "
        "--actor-num-gpus-per-node 8 --colocate --rollout-batch-size 8 --num-rollout 10 "
        "--n-samples-per-prompt 8 --global-batch-size 64 --rollout-num-gpus-per-engine 8 ";
    const auto ask_words = [&](const std::string& more) {
      return ask_text("run.sh", job + more + "\n", "qwen3-30b-a3b", 8);
    };
    const Checked slip = ask_words("--sglang-mem-fracton-static 0.7");
    REQUIRE_MESSAGE(find(slip, "unknown_option") != nullptr, findings_text(slip));
    CHECK(find(slip, "unknown_option")->instead == "did you mean --sglang-mem-fraction-static?");
    for (const std::string fine :
         {"--sglang-mem-fraction-static 0.7", "--sglang-cuda-graph-bs 1 2 4",
          "--sglang-server-concurrency 64", "--sglang-something-of-tomorrow 3"}) {
      CAPTURE(fine);
      CHECK(find(ask_words(fine), "unknown_option") == nullptr);
    }
    const std::string needs = "option_needs";
    CHECK(find(ask_words("--sglang-dp-size 4"), needs) != nullptr);
    CHECK(find(ask_words("--sglang-dp-size 4 --sglang-enable-dp-attention"), needs) == nullptr);
    CHECK(find(ask_words("--sglang-dp-size 1"), needs) == nullptr);
    CHECK(find(ask_words("--use-kl-loss --kl-loss-coef 0.1"), needs) != nullptr);
    CHECK(find(ask_words("--use-kl-loss --kl-loss-coef 0.1 --ref-load x"), needs) == nullptr);
    CHECK(find(ask_words("--kl-coef 0.1"), needs) != nullptr);
    CHECK(find(ask_words("--kl-coef 0.00"), needs) == nullptr);
  }

  TEST_CASE("experts, redundant ones too, lie evenly on an engine's ranks") {
    const auto ask = [](const std::string& arguments) {
      const Checked checked =
          ask_text("run.sh",
                   "ray job submit -- python3 train.py --rollout-batch-size 32 " + arguments + "\n",
                   "qwen3-30b-a3b", 48);
      const Finding* const found = find(checked, "redundant_experts");
      return found == nullptr ? std::string() : found->message;
    };
    const std::string engine = "--rollout-num-gpus-per-engine 24 ";
    CHECK(ask(engine + "--sglang-ep-size 24 --sglang-ep-num-redundant-experts 16").empty());
    CHECK(ask(engine + "--sglang-ep-num-redundant-experts 16").empty());
    CHECK(ask(engine + "--sglang-ep-size 8").empty());
    CHECK(ask(engine).empty());
    for (const std::string wrong :
         {"--sglang-ep-size 24", "--sglang-expert-parallel-size 24",
          "--sglang-ep-size 24 --sglang-ep-num-redundant-experts 8",
          "--sglang-ep-num-redundant-experts 8", "--sglang-enable-ep-moe"}) {
      CAPTURE(wrong);
      CHECK(ask(engine + wrong).find("16 redundant ones would do") != std::string::npos);
    }
  }

  TEST_CASE("GPUs that do not fit the job are named, both numbers") {
    const Checked checked =
        ask_text("run.sh",
                 "ray job submit -- python3 train.py --rollout-batch-size 32 --colocate "
                 "--actor-num-nodes 1 --actor-num-gpus-per-node 8\n",
                 "qwen3-30b-a3b", 16);
    REQUIRE(find(checked, "actor_gpus") != nullptr);
    CHECK(find(checked, "actor_gpus")->message.find("1 x 8 = 8, of 16 GPUs") != std::string::npos);
  }
}

}  // namespace
}  // namespace qplan
