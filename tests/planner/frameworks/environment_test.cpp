// The environment that a job's files set: a script's, a YAML's of Megatron's tests, and Ray's.

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

Checked ask_yaml(const std::string& variables, const std::string& arguments = "") {
  return ask_text("model_config.yaml",
                  "ENV_VARS:\n" + variables +
                      "MODEL_ARGS:\n  --num-layers: 36\n  --hidden-size: 4096\n"
                      "  --micro-batch-size: 1\n  --global-batch-size: 64\n" +
                      arguments,
                  "qwen3-8b", 8);
}

const std::string kTp2 = "  --tensor-model-parallel-size: 2\n";
const std::string kDeterministic = "  --deterministic-mode: true\n";

}  // namespace

TEST_SUITE("the environment of a job") {
  TEST_CASE("a YAML's hardware queues are held against tensor parallelism, as a script's are") {
    const Checked many = ask_yaml("  CUDA_DEVICE_MAX_CONNECTIONS: 8\n", kTp2);
    REQUIRE(find(many, "queues") != nullptr);
    CHECK(find(many, "queues")->severity == Severity::error);
    CHECK(find(many, "queues")->place.line == 2);
    CHECK(find(ask_yaml("  CUDA_DEVICE_MAX_CONNECTIONS: 1\n", kTp2), "queues") == nullptr);
    CHECK(find(ask_yaml("  CUDA_DEVICE_MAX_CONNECTIONS: 8\n"), "queues") == nullptr);
    // What starts it may set them.
    CHECK(find(ask_yaml("  NCCL_DEBUG: INFO\n", kTp2), "queues") == nullptr);
    // Megatron only advises beside torch's FSDP.
    CHECK(find(ask_yaml("  CUDA_DEVICE_MAX_CONNECTIONS: 8\n", kTp2 + "  --use-torch-fsdp2: true\n"),
               "queues") == nullptr);
  }

  TEST_CASE("deterministic runs refuse values of libraries' variables") {
    for (const std::string bad :
         {"NCCL_ALGO: NVLS", "NCCL_ALGO: Ring,Tree", "NVTE_ALLOW_NONDETERMINISTIC_ALGO: 1",
          "CUBLAS_WORKSPACE_CONFIG: \":0:0\""}) {
      CAPTURE(bad);
      const Checked refused = ask_yaml("  " + bad + "\n", kDeterministic);
      REQUIRE(find(refused, "deterministic_environment") != nullptr);
      CHECK(find(refused, "deterministic_environment")->place.line == 2);
      CHECK(find(ask_yaml("  " + bad + "\n"), "deterministic_environment") == nullptr);
    }
    for (const std::string good :
         {"NCCL_ALGO: Ring", "NCCL_ALGO: ^NVLS", "NCCL_ALGO: Ring,CollnetChain",
          "NVTE_ALLOW_NONDETERMINISTIC_ALGO: 0", "CUBLAS_WORKSPACE_CONFIG: :4096:8",
          "NCCL_DEBUG: INFO"}) {
      CAPTURE(good);
      CHECK(find(ask_yaml("  " + good + "\n", kDeterministic), "deterministic_environment") ==
            nullptr);
    }
    const auto script = [](const std::string& value) {
      return ask_text("train.sh",
                      "export NCCL_ALGO=" + value +
                          "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 "
                          "--micro-batch-size 1 --deterministic-mode\n",
                      "qwen3-8b", 8);
    };
    CHECK(find(script("NVLS"), "deterministic_environment") != nullptr);
    CHECK(find(script("Ring"), "deterministic_environment") == nullptr);
    CHECK(find(script("$ALGO"), "deterministic_environment") == nullptr);
  }

  TEST_CASE("what Ray is handed for its workers is read") {
    const auto slime = [](const std::string& queues) {
      return ask_text("run.sh",
                      "RUNTIME_ENV_JSON=\"{\n  \\\"env_vars\\\": {\n    "
                      "\\\"CUDA_DEVICE_MAX_CONNECTIONS\\\": \\\"" +
                          queues +
                          "\\\",\n    \\\"NCCL_NVLS_ENABLE\\\": \\\"${HAS_NVLINK}\\\"\n  }\n}\"\n"
                          "ray job submit --address=\"http://127.0.0.1:8265\" \\\n"
                          "  --runtime-env-json=\"${RUNTIME_ENV_JSON}\" -- python3 train.py \\\n"
                          "  --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate "
                          "--n-samples-per-prompt 8 --rollout-batch-size 8 --global-batch-size 64 "
                          "--tensor-model-parallel-size 4\n",
                      "qwen3-8b", 8);
    };
    REQUIRE(find(slime("8"), "queues") != nullptr);
    CHECK(find(slime("1"), "queues") == nullptr);
    CHECK(find(slime("${QUEUES}"), "queues") == nullptr);
    CHECK(find(slime("1"), "runtime_environment") == nullptr);
    CHECK(find(slime("1"), "missing_dashes") == nullptr);
  }

  TEST_CASE("what Ray refuses of its own command is told") {
    const auto ask = [](const std::string& json, const std::string& dashes) {
      return ask_text("run.sh",
                      "ray job submit --runtime-env-json='" + json + "' " + dashes +
                          "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 "
                          "--colocate --n-samples-per-prompt 8 --rollout-batch-size 8 "
                          "--global-batch-size 64\n",
                      "qwen3-8b", 8);
    };
    const std::string right = "{\"env_vars\": {\"A\": \"1\"}}";
    CHECK(find(ask(right, "-- "), "runtime_environment") == nullptr);
    CHECK(find(ask("{\"env_vars\": {\"A\": 1}}", "-- "), "runtime_environment") != nullptr);
    CHECK(find(ask("{\"env_vars\": {\"A\" \"1\"}}", "-- "), "runtime_environment") != nullptr);
    CHECK(find(ask("{\"env_vars\": {\"A\": $B}}", "-- "), "runtime_environment") == nullptr);
    CHECK(find(ask(right, "-- "), "missing_dashes") == nullptr);
    CHECK(find(ask(right, ""), "missing_dashes") != nullptr);
  }
}

TEST_SUITE("misspelt variables of a shell") {
  Checked ask_script(const std::string& sets, const std::string& uses) {
    return ask_text(
        "train.sh",
        sets + "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 " + uses + "\n",
        "qwen3-8b", 8);
  }

  TEST_CASE("are told where what is meant is set and never used") {
    const Checked slip = ask_script("TP_SIZE=2\nMBS=1", "--tensor-model-parallel-size $TP_SIZ");
    REQUIRE(find(slip, "misspelt_variable") != nullptr);
    CHECK(find(slip, "misspelt_variable")->severity == Severity::error);
    CHECK(find(slip, "misspelt_variable")->place.line == 3);
    CHECK(find(slip, "misspelt_variable")->message ==
          "nothing sets $TP_SIZ, and TP_SIZE is set and never used");
    for (const auto& [sets, uses] : std::vector<std::pair<std::string, std::string>>{
             {"MOE_ARGS=(\n --num-experts 8\n)", "${MOE_ARG[@]}"},
             {"PERF_ARGS=(--bf16)", "${PERFORMANCE_ARGS[@]}"},
             {"NUM_GPU=8", "--seed ${NUM_GPUS}"},
             {"export SEQ_LNE=8", "--seq-length $SEQ_LEN"},
             {"train_iters=8", "--train-iters $TRAIN_ITERS"}}) {
      CAPTURE(uses);
      CHECK(find(ask_script(sets, uses), "misspelt_variable") != nullptr);
    }
  }

  TEST_CASE("are none where the environment may be meant, or another word") {
    for (const auto& [sets, uses] : std::vector<std::pair<std::string, std::string>>{
             {"TP_SIZE=2", "--seed $TP_SIZE --tensor-model-parallel-size $TP_SIZ"},  // used as well
             {"PP_SIZE=2", "--tensor-model-parallel-size $TP_SIZE"},
             {"DATA_1=a", "--data-path $DATA_2"},
             {"NNODES=$NNODE", ""},
             {"TP_SIZE=2", "--tensor-model-parallel-size ${TP_SIZ:-1}"},
             {"TP_SIZE=2\nTP_SIZ=1", "--tensor-model-parallel-size $TP_SIZ"},
             {"if [ -z \"$TP_SIZ\" ]; then echo no; fi\nTP_SIZE=2", "--seed $TP_SIZ"},
             {"read TP_SIZ\nTP_SIZE=2", "--seed $TP_SIZ"},
             {"MASTER_ADDRS=a", "--seed $MASTER_ADDR"},
             {"source env.sh\nTP_SIZE=2", "--seed $TP_SIZ"},
             {"# $TP_SIZ\nTP_SIZE=2", ""},
             {"LRS=2", "--seed $LR"}}) {
      CAPTURE(sets);
      CAPTURE(uses);
      CHECK(find(ask_script(sets, uses), "misspelt_variable") == nullptr);
    }
  }
}

}  // namespace qplan
