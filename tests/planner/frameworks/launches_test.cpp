// What starts a job: whether it starts the processes that the job has, on the nodes that it gets.

#include <doctest/doctest.h>

#include <string>

#include "tests/planner/frameworks/fixed.h"
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

  TEST_CASE("tasks are the processes of a shell that starts Python itself") {
    const auto ask = [&](const std::string& tasks) {
      return ask_text("job.sh",
                      "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=" +
                          tasks + "\nCMD=\"python" + kTrain + "\"\nsrun bash -c \"$CMD\"\n",
                      "qwen3-8b", 16);
    };
    CHECK(find(ask("8"), "launched_world") == nullptr);
    REQUIRE(find(ask("1"), "launched_world") != nullptr);
    CHECK(find(ask("1"), "launched_world")->place.line == 5);
  }

  TEST_CASE("options of the interpreter may stand before a launcher's module") {
    for (const std::string python :
         {"python", "python -u", "python3.11 -u -X dev", "python3 -W ignore"}) {
      CAPTURE(python);
      const std::string text =
          "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\nLAUNCHER=\"" +
          python + " -m torch.distributed.run --nnodes 2 --nproc_per_node 8\"\nCMD=\"" + kTrain +
          "\"\nsrun bash -c \"$LAUNCHER --node_rank \\$SLURM_PROCID $CMD\"\n";
      const Checked right = ask_text("job.sh", text, "qwen3-8b", 16);
      CHECK_MESSAGE(find(right, "launched_world") == nullptr, findings_text(right));
      const Checked wrong = ask_text("job.sh", text, "qwen3-8b", 8);
      CHECK_MESSAGE(find(wrong, "launched_world") != nullptr, findings_text(wrong));
    }
  }

  TEST_CASE("verl's program asks Ray for its workers, whatever starts it") {
    const std::string verl =
        " python3 -m verl.trainer.main_ppo data.train_batch_size=256 "
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm "
        "trainer.n_gpus_per_node=8 trainer.nnodes=2\n";
    const Checked checked = ask_text(
        "job.sh", "#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\nsrun --nodes=1 --ntasks=1" + verl,
        "qwen3-8b", 16);
    CHECK_MESSAGE(find(checked, "launched_world") == nullptr, findings_text(checked));
    CHECK(find(checked, "launched_degrees") == nullptr);
    const Checked slip =
        ask_text("job.sh", "python3 -m verl.trainer.main_pop a.b=1\n", "qwen3-8b", 8);
    CHECK(find(slip, "unknown_module") != nullptr);
  }

  TEST_CASE("a launcher's options by another launcher's names are told, and mended") {
    const auto text = [&](const std::string& launcher) { return launcher + kTrain + "\n"; };
    const std::string wrong = text("torchrun --num_gpus 8 --num_nodes 1");
    CHECK(find(ask_text("train.sh", wrong, "qwen3-8b", 8), "unknown_option") != nullptr);
    CHECK(fixed_text("train.sh", wrong, "qwen3-8b", 8)
              .starts_with("torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py"));
    CHECK(find(ask_text("train.sh", text("deepspeed --nproc_per_node 8"), "qwen3-8b", 8),
               "unknown_option") != nullptr);
    // Any program may stand behind this.
    const Checked shell = ask_text(
        "train.sh", "torchrun --nproc-per-node 8 --no-python bash run.sh\n", "qwen3-8b", 8);
    CHECK(find(shell, "launches_shell") == nullptr);
  }

  TEST_CASE("Slurm's lines: names that sbatch has not, and those below the first command") {
    const auto ask = [&](const std::string& above) {
      return ask_text("job.sh",
                      above + "srun torchrun --nproc_per_node 8 --nnodes 2" + kTrain + "\n",
                      "qwen3-8b", 16);
    };
    const Checked slip = ask("#SBATCH --nodes=2\n#SBATCH --exlusive\n");
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->place.line == 2);
    CHECK(find(ask("#SBATCH --nodes=2 # --exlusive\n#SBATCH --environment=a\n"),
               "unknown_option") == nullptr);
    CHECK(find(ask("set -x\n#SBATCH --nodes=4\n"), "late_directive") != nullptr);
    CHECK(find(ask("set -x\n#SBATCH --nodes=4\n"), "allocated_nodes") == nullptr);
    CHECK(find(ask("#!/bin/bash\n\n# a remark\n#SBATCH --nodes=2\n"), "late_directive") == nullptr);
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

  const std::string kZero = "{\"train_batch_size\": 16, \"bf16\": {\"enabled\": true}}";
  Checked ask_deepspeed(const std::string& start) {
    const std::string job = " x.py --deepspeed ds.json --model_name_or_path m\n";
    return ask_texts({{"train.sh", start + job}, {"ds.json", kZero}}, "llama3-8b", 4);
  }

  TEST_CASE("DeepSpeed starts on the devices that its environment lists, where nothing else does") {
    CHECK(find(ask_deepspeed("CUDA_VISIBLE_DEVICES=4,5,6,7 deepspeed"), "launched_world") ==
          nullptr);
    const Checked fewer = ask_deepspeed("CUDA_VISIBLE_DEVICES=0,1 deepspeed");
    REQUIRE(find(fewer, "launched_world") != nullptr);
    CHECK(find(fewer, "launched_world")->message ==
          "deepspeed starts 2 processes, not the job's 4");
    // A hostfile, or a list that is none of numbers, says nothing of this.
    CHECK(find(ask_deepspeed("CUDA_VISIBLE_DEVICES=0,1 deepspeed --hostfile h"),
               "launched_world") == nullptr);
    CHECK(find(ask_deepspeed("CUDA_VISIBLE_DEVICES=$GPUS deepspeed"), "launched_world") == nullptr);
  }

  TEST_CASE("devices that DeepSpeed ignores beside a filter are told where it starts on others") {
    const Checked counted = ask_deepspeed("CUDA_VISIBLE_DEVICES=4,5,6,7 deepspeed --num_gpus 4");
    REQUIRE(find(counted, "visible_devices") != nullptr);
    CHECK(find(counted, "visible_devices")->severity == Severity::warning);
    CHECK(find(counted, "visible_devices")->message ==
          "deepspeed ignores CUDA_VISIBLE_DEVICES=4,5,6,7 beside --num_gpus: it starts on devices "
          "0,1,2,3");
    CHECK(find(counted, "visible_devices")->instead == "--include localhost:4,5,6,7");
    CHECK(find(ask_deepspeed("CUDA_VISIBLE_DEVICES=0,1 deepspeed -i localhost:2,3,4,5"),
               "visible_devices") != nullptr);
    for (const std::string same :
         {"CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --num_gpus 4",
          "CUDA_VISIBLE_DEVICES=4,5,6,7 deepspeed -i localhost:4,5,6,7",
          "CUDA_VISIBLE_DEVICES=4,5 deepspeed --hostfile h --num_gpus 4"}) {
      CAPTURE(same);
      CHECK(find(ask_deepspeed(same), "visible_devices") == nullptr);
    }
  }

  TEST_CASE("DeepSpeed's launcher takes one way to name a part of the GPUs") {
    for (const std::string two :
         {"deepspeed --num_gpus 4 --include localhost:0,1", "deepspeed --num_nodes 1 -e a:0",
          "deepspeed -i localhost:0,1 --exclude localhost:2"}) {
      CAPTURE(two);
      REQUIRE(find(ask_deepspeed(two), "options_exclude") != nullptr);
      CHECK(find(ask_deepspeed(two), "options_exclude")->severity == Severity::error);
    }
    for (const std::string one : {"deepspeed --num_gpus 4", "deepspeed -i localhost:0,1,2,3",
                                  "deepspeed --num_gpus 4 --include $HOSTS"}) {
      CAPTURE(one);
      CHECK(find(ask_deepspeed(one), "options_exclude") == nullptr);
    }
  }

  TEST_CASE("more processes on a node than GPUs that Slurm gives there are an error") {
    const auto ask = [&](const std::string& batch, const std::string& start) {
      return ask_text("job.sh", "#SBATCH --nodes=2\n" + batch + start + kTrain + "\n", "qwen3-8b",
                      16);
    };
    const std::string eight = "srun torchrun --nnodes 2 --nproc_per_node 8";
    for (const std::string few :
         {"#SBATCH --gres=gpu:4\n", "#SBATCH --gres=gpu:h100:4\n", "#SBATCH --gpus-per-node=4\n",
          "#SBATCH --gpus=8\n", "#SBATCH -G 8\n"}) {
      CAPTURE(few);
      REQUIRE(find(ask(few, eight), "allocated_gpus") != nullptr);
      CHECK(find(ask(few, eight), "allocated_gpus")->message ==
            "torchrun starts 8 processes on a node, and Slurm gives the job 4 GPUs of each");
    }
    CHECK(find(ask("#SBATCH --gres=gpu:4\n",
                   "srun accelerate launch --num_machines 2 "
                   "--num_processes 16"),
               "allocated_gpus") != nullptr);
    const Checked one =
        ask("#SBATCH --gres=gpu:4\n", "srun accelerate launch --num_machines 2 --num_processes 4");
    REQUIRE(find(one, "allocated_gpus") != nullptr);
    CHECK(find(one, "allocated_gpus")->severity == Severity::warning);
    CHECK(find(one, "allocated_gpus")->instead == "8 processes: all nodes' are counted");
    CHECK(find(ask("#SBATCH --gres=gpu:4\n",
                   "srun accelerate launch --num_machines 2 --num_processes 8"),
               "allocated_gpus") == nullptr);
    for (const std::string enough : {"#SBATCH --gres=gpu:8\n", "#SBATCH --gres=lscratch:4\n",
                                     "#SBATCH --gpus=16\n", "##SBATCH --gres=gpu:4\n"}) {
      CAPTURE(enough);
      CHECK(find(ask(enough, eight), "allocated_gpus") == nullptr);
    }
    CHECK(find(ask("#SBATCH --gres=gpu:4\n",
                   "srun --gres=gpu:8 torchrun --nnodes 2 "
                   "--nproc_per_node 8"),
               "allocated_gpus") == nullptr);
  }

  TEST_CASE("a launcher that each of a node's tasks starts is an error") {
    const auto ask = [&](const std::string& batch, const std::string& start) {
      return ask_text("job.sh", "#SBATCH --nodes=2\n" + batch + start + kTrain + "\n", "qwen3-8b",
                      16);
    };
    const std::string torch = "torchrun --nnodes 2 --nproc_per_node 8";
    for (const std::string many :
         {"#SBATCH --ntasks-per-node=8\nsrun ", "#SBATCH --ntasks=16\nsrun ",
          "srun --ntasks-per-node=8 ", "srun -n 16 "}) {
      CAPTURE(many);
      const Checked checked = ask("", many + torch);
      REQUIRE(find(checked, "launcher_of_each_task") != nullptr);
      CHECK(find(checked, "launcher_of_each_task")->message ==
            "srun starts 8 tasks on a node, and each of them starts torchrun with 8 processes: 64 "
            "on a node");
    }
    for (const std::string& one :
         {"#SBATCH --ntasks-per-node=1\nsrun " + torch, "#SBATCH --ntasks=2\nsrun " + torch,
          "#SBATCH --ntasks-per-node=8\nsrun --ntasks-per-node=1 " + torch,
          "#SBATCH --ntasks-per-node=8\nsrun -n 2 " + torch,
          "#SBATCH --ntasks-per-node=8\n" + torch,
          std::string(
              "#SBATCH --ntasks-per-node=8\nsrun torchrun --nnodes 16 --nproc_per_node 1")}) {
      CAPTURE(one);
      CHECK(find(ask("", one), "launcher_of_each_task") == nullptr);
    }
  }

  TEST_CASE("options of MPI's and Slurm's have one dash, and those of what they start have two") {
    for (const std::string start :
         {"mpirun -np 16 -hostfile h -x A=b -bind-to none python", "mpiexec -hostfile h python3",
          "mpirun -np 2 -hostfile h torchrun --nproc_per_node 8"}) {
      CAPTURE(start);
      CHECK(find(ask_text("train.sh", start + kTrain + "\n", "qwen3-8b", 16), "dashes") == nullptr);
      const std::string slip = start + kTrain + " -global-batch-size 64\n";
      CHECK(find(ask_text("train.sh", slip, "qwen3-8b", 16), "dashes") != nullptr);
    }
    CHECK(find(ask_text("train.sh", "torchrun -nproc_per_node 8" + kTrain + "\n", "qwen3-8b", 8),
               "dashes") != nullptr);
    // En dashes are nobody's.
    CHECK(find(ask_text("train.sh", "mpirun \xE2\x80\x93np 16 python" + kTrain + "\n", "qwen3-8b",
                        16),
               "dashes") != nullptr);
  }
}

}  // namespace
}  // namespace qplan
