// What starts a job: whether it starts the processes that the job has, on the nodes that it gets.

#include <doctest/doctest.h>

#include <string>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

TEST_SUITE("launches") {
  const std::string kTrain = " pretrain_gpt.py --num-layers 36 --micro-batch-size 1";

  TEST_CASE("what starts in Slurm's shells counts the processes, and not Slurm's GPUs") {
    const std::string batch = "#SBATCH --nodes=3\n#SBATCH --gpus-per-node=8\n";
    for (const std::string& start :
         {"srun torchrun --nproc_per_node 6 --nnodes 3" + kTrain,
          "srun bash -c 'torchrun --nproc_per_node 6 --nnodes 3" + kTrain + "'"}) {
      CAPTURE(start);
      const Checked right = ask_text("job.sh", batch + start + "\n", "qwen3-8b", 18);
      CHECK_MESSAGE(find(right, "launched_world") == nullptr, findings_text(right));
      CHECK(find(right, "allocated_nodes") == nullptr);
      const Checked wrong = ask_text("job.sh", batch + start + "\n", "qwen3-8b", 24);
      REQUIRE(find(wrong, "launched_world") != nullptr);
      CHECK(find(wrong, "launched_world")->message ==
            "torchrun starts 3 x 6 = 18 processes, not the job's 24");
    }
  }

  TEST_CASE("processes that are counted over all nodes are the job's GPUs") {
    const Checked wrong =
        ask_text("train.sh", "mpirun -np 16 python" + kTrain + "\n", "qwen3-8b", 8);
    REQUIRE(find(wrong, "launched_world") != nullptr);
    CHECK(find(wrong, "launched_world")->message == "mpirun starts 16 processes, not the job's 8");
    CHECK(find(ask_text("train.sh", "mpirun -np 16 python" + kTrain + "\n", "qwen3-8b", 16),
               "launched_world") == nullptr);
  }

  TEST_CASE("DeepSpeed starts a process on each GPU that it is told to include") {
    const std::string job = " train.py --deepspeed ds.json --model_name_or_path m\n";
    const auto ask = [&](const std::string& which) {
      return ask_texts({{"train.sh", "deepspeed " + which + job},
                        {"ds.json", "{\"train_batch_size\": 16, \"bf16\": {\"enabled\": true}}"}},
                       "llama3-8b", 8);
    };
    CHECK(find(ask("-i localhost:0,1,2,3"), "launched_world") != nullptr);
    CHECK(find(ask("--include a:0,1,2,3@b:0,1,2,3"), "launched_world") == nullptr);
  }

  TEST_CASE("nodes that a launcher counts otherwise than Slurm gives are a finding") {
    const auto ask = [](const std::string& start, std::int64_t gpus) {
      return ask_text("job.sh", "#SBATCH --nodes=3\n" + start + kTrain + "\n", "qwen3-8b", gpus);
    };
    const Checked fewer = ask("srun torchrun --nproc_per_node 8 --nnodes 2", 16);
    REQUIRE(find(fewer, "allocated_nodes") != nullptr);
    CHECK(find(fewer, "allocated_nodes")->severity == Severity::warning);
    CHECK(find(fewer, "allocated_nodes")->message ==
          "--nnodes says 2 nodes, and Slurm gives the job 3: the others have no part in it");
    CHECK(find(fewer, "allocated_nodes")->instead == "--nnodes $SLURM_NNODES");
    const Checked more = ask("srun torchrun --nproc_per_node 8 --nnodes 4", 32);
    REQUIRE(find(more, "allocated_nodes") != nullptr);
    CHECK(find(more, "allocated_nodes")->severity == Severity::error);
    const Checked alone = ask("srun torchrun --nproc_per_node 8", 8);
    REQUIRE(find(alone, "allocated_nodes") != nullptr);
    CHECK(find(alone, "allocated_nodes")->message.starts_with("without --nnodes torchrun"));
    for (const std::string start :
         {"srun torchrun --nproc_per_node 8 --nnodes 3",
          "srun torchrun --nproc_per_node 8 --nnodes ${SLURM_NNODES:-2}"}) {
      CHECK(find(ask(start, 24), "allocated_nodes") == nullptr);
      CHECK(find(ask(start, 24), "launched_world") == nullptr);
    }
    const std::string accelerate = "srun accelerate launch --num_processes 16 ";
    CHECK(find(ask(accelerate + "--num_machines 2", 16), "allocated_nodes") != nullptr);
    CHECK(find(ask(accelerate + "--num_machines $N", 16), "allocated_nodes") == nullptr);
    CHECK(find(ask(accelerate + "--config_file x.yaml", 16), "allocated_nodes") == nullptr);
    // Some of the nodes, by srun's own word.
    CHECK(find(ask("srun -N 2 torchrun --nproc_per_node 8 --nnodes 2", 16), "allocated_nodes") ==
          nullptr);
  }

  TEST_CASE("torchrun's one node is not held against a job whose environment may say more") {
    const Checked open =
        ask_text("train.sh", "torchrun --nproc_per_node 8" + kTrain + "\n", "qwen3-8b", 64);
    CHECK(find(open, "launched_world") == nullptr);
    REQUIRE(find(open, "nodes_by_environment") != nullptr);
    CHECK(find(open, "nodes_by_environment")->instead == "--nnodes 8");
  }
}

}  // namespace
}  // namespace qplan
