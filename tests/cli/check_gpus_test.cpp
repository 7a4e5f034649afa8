// How many GPUs a job has, by what starts it.

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "cli/files_plan.h"
#include "tests/cli/run.h"

namespace qplan {
namespace {

TEST_CASE("launchers say how many GPUs a job has, each in its own way") {
  const auto counted = [](const std::string& script) {
    return gpus_of_files({{"train.sh", script + "\n"}}).value_or(0);
  };
  const std::string train = " pretrain_gpt.py --num-layers 36 --micro-batch-size 1";
  const std::string python = " python" + train;
  struct Started {
    std::string script;
    std::int64_t gpus;
  };
  for (const auto& [script, gpus] : std::vector<Started>{
           {"torchrun --nproc_per_node=8" + train, 8},  // one node, torchrun's own default
           {"torchrun --standalone --nproc_per_node=8" + train, 8},
           {"python -m torch.distributed.launch --nproc_per_node=8" + train, 8},
           {"torchrun --nproc_per_node=8 --nnodes $N" + train, 0},
           {"torchrun --nproc_per_node=8 --nnodes 1:4" + train, 0},
           {"torchrun" + train, 0},
           {"srun torchrun --nproc_per_node 8 --nnodes 4" + train, 32},
           {"srun -N 4 torchrun --nproc_per_node 8 --nnodes 4" + train, 32},
           {"srun --ntasks-per-node=1 torchrun --nproc_per_node 8 --nnodes 4" + train, 32},
           {"#SBATCH --nodes=4\nsrun nsys profile torchrun --nproc_per_node 8 --nnodes 4" + train,
            32},
           {"#SBATCH --nodes=3\n#SBATCH --gpus-per-node=8\n"
            "srun torchrun --nproc_per_node 6 --nnodes 3" +
                train,
            18},
           {"#SBATCH --nodes=3\n#SBATCH --gpus-per-node=8\n"
            "srun bash -c 'torchrun --nproc_per_node 6 --nnodes 3" +
                train + "'",
            18},
           {"#SBATCH --nodes=3\ntorchrun --nproc_per_node 8 --nnodes ${SLURM_NNODES:-2}" + train,
            24},
           {"#SBATCH -N 3\ntorchrun --nproc_per_node 8 --nnodes $SLURM_JOB_NUM_NODES" + train, 24},
           {"#SBATCH --nodes=3 --gpus-per-node=8\n"
            "torchrun --nproc_per_node gpu --nnodes $SLURM_NNODES" +
                train,
            24},
           {"#SBATCH --nodes=3 --gpus-per-node=4\nsrun bash -c 'NODE_RANK=$SLURM_NODEID torchrun "
            "--nproc_per_node $SLURM_GPUS_PER_NODE --nnodes $SLURM_NNODES" +
                train + "'",
            12},
           {"srun -N 2 --ntasks-per-node=8" + python, 16},
           {"srun -N 2 --ntasks-per-node 8" + python, 16},
           {"srun -N 2 --gpus-per-node h100:8" + python, 16},
           {"#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=8\nsrun" + python, 8},
           {"#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8\nsrun" + python, 16},
           {"#SBATCH --ntasks=16\nsrun" + python, 16},
           {"srun -n 16" + python, 16},
           {"srun -N2 -n16" + python, 16},
           {"#SBATCH -N3\ntorchrun --nproc_per_node 8 --nnodes $SLURM_NNODES" + train, 24},
           {"mpirun -np 16" + python, 16},
           {"mpiexec -n 16" + python, 16},
           {"mpirun -np 2 torchrun --nnodes 2 --nproc_per_node 8" + train, 16},
           {"mpirun -np 2 bash -c 'torchrun --nnodes 2 --nproc_per_node $G" + train + "'", 0},
           {"accelerate launch --num_processes 8 train.py --model_name_or_path m", 8},
           {"accelerate launch --num_processes 16 --num_machines 2 train.py --x m", 16},
           {"srun accelerate launch --num-processes 16 --num_machines 2 train.py --x m", 16},
           {"deepspeed --include localhost:0,1,2,3 train.py --deepspeed ds.json", 4},
           {"deepspeed -i a:0,1@b:0,1 train.py --deepspeed ds.json", 4},
           {"FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train x.yaml", 16},
           {"export NPROC_PER_NODE=8\nllamafactory-cli train x.yaml", 8},
           {"axolotl train x.yaml --launcher torchrun -- --nproc_per_node=8 --nnodes=2", 16},
           {"axolotl train x.yaml -- --num_processes=8", 8},
           {"trl sft --model_name_or_path m --num_processes 8", 8}}) {
    CAPTURE(script);
    CHECK(counted(script) == gpus);
  }
  CHECK(gpus_of_files({{"a.yaml",
                        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
                        "num_processes: 8\nnum_machines: 1\n"}}) == 8);
  CHECK(gpus_of_files({{"a.yaml",
                        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
                        "deepspeed_config:\n  zero_stage: 3\nnum_processes: 16\n"}}) == 16);
}

TEST_CASE("a launcher that emit wrote says the GPUs by itself") {
  struct Emitted {
    std::string framework, plan;
  };
  const std::string job = "predict --model qwen3-8b --gpus 16 --seq-len 4096 --recompute full ";
  for (const auto& [framework, plan] :
       std::vector<Emitted>{{"fsdp2", "--framework fsdp2 --zero 3"},
                            {"trl", "--framework fsdp2 --zero 3"},
                            {"trl", "--framework ddp --zero 0 --lora-rank 8"},
                            {"deepspeed", "--framework deepspeed --zero 3"},
                            {"megatron", "--framework megatron --tp 2 --zero 1"}}) {
    CAPTURE(framework + plan);
    const TemporaryFolder folder;
    const std::string file = folder.file("plan.json"), out = folder.file("out");
    const Ran made = run(job + plan + " -o " + file);
    REQUIRE_MESSAGE(made.code == 0, (made.out + made.err));
    const Ran emitted = run("emit " + file + " --framework " + framework + " --out " + out);
    REQUIRE_MESSAGE(emitted.code == 0, (emitted.out + emitted.err));
    const Ran ran = run("check " + out + "/train.sh --model qwen3-8b --no-best");
    CHECK_MESSAGE(ran.code == 0, (ran.out + ran.err));
    CHECK(ran.says("16 GPUs, as the files start them"));
  }
}

TEST_CASE("files that are not read are said to be so, without model and GPUs") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("job.yaml"))
      << "model:\n  model_path: x\ndata:\n  train_path: y\ntrain:\n  micro_batch_size: 1\n";
  std::ofstream(folder.file("run.sh"))
      << "deepspeed --module trainers.cli.train_sft --train.batch_size 256\n";
  const Ran yaml = run("check " + folder.file("job.yaml"));
  CHECK(yaml.code == 1);
  CHECK_MESSAGE(yaml.says("a configuration of VeOmni"), (yaml.out + yaml.err));
  CHECK_FALSE(yaml.says("gpus_unsaid"));
  const Ran script = run("check " + folder.file("run.sh"));
  CHECK(script.code == 1);
  CHECK_MESSAGE(script.says("trainers.cli.train_sft"), (script.out + script.err));
  CHECK(run("check --each --skip-unknown " + folder.file("job.yaml")).code == 0);
}

}  // namespace
}  // namespace qplan
