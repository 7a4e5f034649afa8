#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/cli/run.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

std::string config(const std::string& path) {
  return std::string(QPLAN_TEST_DATA) + "/configs/" + path;
}

// Of the job that docs/examples emits for slime.
std::string example(const std::string& name) {
  return std::string(QPLAN_TEST_DATA) + "/../../docs/examples/slime-qwen3-30b-a3b/slime-8/" + name;
}

TEST_CASE("check exits 1 with errors, prints places, and the best plan beside the job's") {
  const Ran ran =
      run("check " + config("megatron_yaml_and_deepspeed/deepspeed_config.json") + " " +
          config("megatron_yaml_and_deepspeed/train.sh") + " --model qwen3-30b-a3b --gpus 64");
  CHECK(ran.code == 1);
  CHECK(ran.says("train.sh:11: error: --deepspeed_config"));
  CHECK(ran.says("instead: --deepspeed_config deepspeed_config.json"));
  CHECK(ran.says("this job"));
  CHECK(ran.says("best      "));
}

TEST_CASE("check exits 0 for a clean job and says how fast it is") {
  const Ran ran = run("check " + example("run.sh") + " " + example("model.sh") +
                      " --model qwen3-30b-a3b --gpus 8 --json");
  CHECK(ran.code == 0);
  const Json json = ran.json();
  CHECK(json["framework"] == "slime");
  CHECK(json["errors"] == 0);
  // The plan fills the device; an engine asleep beside it has 2 GiB more.
  for (const Json& finding : json["findings"]) CHECK(finding["rule"] == "step_memory");
  CHECK(json["this_job"]["plan"]["ep"] == 8);
  CHECK(json["this_job"]["feasible"] == true);
  CHECK(json["best"]["feasible"] == true);
  CHECK(json["best"]["tokens_per_s"] >= json["this_job"]["tokens_per_s"]);
}

TEST_CASE("slime's job is told of a plan that slime runs") {
  const std::string job =
      std::string(QPLAN_TEST_DATA) + "/../../docs/examples/" + "slime-qwen3-30b-a3b/slime-64/";
  const Ran ran =
      run("check " + job + "run.sh " + job + "model.sh --model qwen3-30b-a3b --gpus 64 --json");
  const Json best = ran.json()["best"]["plan"];
  CHECK(best["moe_dispatcher"] == "alltoall");
  CHECK(best["zero"] == 1);
  // Megatron-LM alone is faster by another exchange of tokens.
  const Ran searched = run("search --model qwen3-30b-a3b --gpus 64 --top 1 --json");
  CHECK(searched.json()["plans"][0]["plan"]["moe_dispatcher"] == "deepep");
}

TEST_CASE("a job that is the best plan already is told so") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("fsdp.yaml"))
      << "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
         "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_reshard_after_forward: true\n"
         "mixed_precision: bf16\nnum_processes: 16\n";
  const Ran ran = run("check " + folder.file("fsdp.yaml") + " --model qwen2.5-14b --gpus 16");
  CHECK(ran.code == 0);
  CHECK(ran.says("best      the same: no plan that was found is faster"));
}

TEST_CASE("--fix writes all of its copies or none, and minds no file that it leaves alone") {
  const TemporaryFolder folder;
  const std::string bad = "--num-layers 36 --micro-batch-size 1 --recompute-granularity full\n";
  for (const std::string name : {"a", "b"}) {
    fs::create_directories(folder.file(name));
    std::ofstream(folder.file(name + "/args.txt")) << bad;
  }
  std::ofstream(folder.file("hosts")) << "worker-1 slots=8\n";
  fs::create_directories(folder.file("fixed"));
  std::ofstream(folder.file("fixed/hosts")) << "mine\n";
  const std::string line = "check " + folder.file("a/args.txt") + " " + folder.file("hosts");
  const std::string rest = " --model qwen3-8b --gpus 8 --fix " + folder.file("fixed");
  const Ran two = run(line + " " + folder.file("b/args.txt") + rest);
  CHECK(two.code == 2);
  CHECK(two.says("two files with corrections are called args.txt"));
  CHECK_FALSE(fs::exists(folder.file("fixed/args.txt")));
  CHECK(run(line + rest).says("corrected copy: " + folder.file("fixed/args.txt")));
  CHECK(read_text_file(folder.file("fixed/hosts")) == "mine\n");
}

TEST_CASE("--fix leaves alone what a variable or arithmetic holds elsewhere") {
  const TemporaryFolder folder;
  const std::string start = "torchrun --nproc_per_node 8 pretrain_gpt.py ";
  const std::string unneeded = "--num-layers-per-virtual-pipeline-stage ";
  const std::string rest = " --num-layers 36 --hidden-size 4096 --micro-batch-size 1";
  const std::string inner = start + unneeded + "$Z" + rest + "\n";
  for (const auto& [text, kept] : std::vector<std::pair<std::string, std::string>>{
           {"bash -c '" + start + unneeded + "$1" + rest + "' _ 2\n", "' _ 2\n"},
           {"cat > inner.sh <<'EOF'\n" + inner + "EOF\nexport Z=2\nbash inner.sh\n",
            "\nEOF\nexport Z=2\nbash inner.sh\n"},
           {"N=1\n" + start + unneeded + "$((N*2))" + rest + "\n", unneeded + "$((N*2)) "},
           {"N=3\nM=6\n" + start + "--num-layers $N$M --hidden-size 4096 --micro-batch-size 1\n",
            "--num-layers $N$M --hidden-size 4096 "}}) {
    CAPTURE(text);
    std::ofstream(folder.file("job.sh")) << text;
    const Ran ran = run("check " + folder.file("job.sh") + " --model qwen3-8b --gpus 8 --fix " +
                        folder.file("fixed"));
    CHECK(ran.says("corrected copy"));
    const std::string fixed = read_text_file(folder.file("fixed/job.sh"));
    CHECK(fixed.find(kept) != std::string::npos);
    CHECK(fixed.find("--swiglu") != std::string::npos);
    CHECK(fixed.size() > text.size());
    fs::remove_all(folder.file("fixed"));
  }
}

TEST_CASE("a launcher without what it starts is told the name of that") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("train.sbatch"))
      << "bash setup.sh\nsrun bash -c 'exec bash \"$DIR/train.sh\"'\n";
  const Ran ran = run("check " + folder.file("train.sbatch") + " --model qwen3-8b --gpus 8");
  CHECK(ran.code == 1);
  CHECK(ran.says(
      "train.sbatch:2: error: no file says how the job is spread over GPUs: train.sh is "));
  CHECK(ran.says("give train.sh too"));
  std::ofstream(folder.file("start.sh")) << "bash train.sh\n";
  const Ran alone = run("check " + folder.file("start.sh") + " --model qwen3-8b --gpus 8");
  CHECK(alone.says("start.sh:1: error: train.sh is started here"));
}

TEST_CASE("configurations that a script names are read beside it, or said to be missing") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("train.sbatch"))
      << "#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n"
         "srun bash -c 'deepspeed --no_ssh --num_nodes 2 --num_gpus 8 train.py "
         "--model_name_or_path m --per_device_train_batch_size 1 --deepspeed conf/ds.json'\n";
  const std::string line = "check " + folder.file("train.sbatch") + " --model qwen3-8b --gpus ";
  const Ran missing = run(line + "16");
  CHECK(missing.says("--deepspeed names conf/ds.json, which is not among the files given"));
  CHECK(missing.says("[config_missing]"));
  fs::create_directories(folder.file("conf"));
  std::ofstream(folder.file("conf/ds.json"))
      << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,)"
         R"( "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})";
  const Ran found = run(line + "16 --json");
  CHECK_FALSE(found.says("config_missing"));
  CHECK(found.json()["framework"] == "deepspeed");
  CHECK(found.json()["this_job"]["plan"]["zero"] == 3);
  // The job's GPUs are those that the launcher in srun's shell starts on.
  CHECK_FALSE(found.says("launched_world"));
  CHECK(run(line + "32").says("deepspeed starts 2 x 8 = 16 processes, not the job's 32"));
}

TEST_CASE("a job that does not fit is an error") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("ds.json"))
      << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
             "zero_optimization": {"stage": 0}, "bf16": {"enabled": true}})";
  const Ran ran =
      run("check " + folder.file("ds.json") + " --model qwen3-32b --gpus 8 --seq-len 4096 --json");
  CHECK(ran.code == 1);
  CHECK(ran.json()["findings"][0]["rule"] == "out_of_memory");
}

TEST_CASE(
    "what may just fit, or has shorter sequences, is a warning; states that do not fit are none") {
  const TemporaryFolder folder;
  const std::string file = folder.file("job.yaml");
  const auto severity = [&](const std::string& keys) {
    std::ofstream(file) << "base_model: meta-llama/Meta-Llama-3-8B\ndatasets:\n  - path: d\n"
                           "optimizer: adamw_torch\nbf16: true\ngradient_checkpointing: true\n"
                        << keys;
    const Json found = run("check " + file + " --gpus 1 --no-best --json").json()["findings"];
    REQUIRE(!found.empty());
    CHECK(found[0]["rule"] == "out_of_memory");
    return found[0]["severity"].get<std::string>();
  };
  const std::string lora = "adapter: lora\nlora_r: 16\nlora_target_linear: true\n";
  CHECK(severity(lora + "sequence_len: 8192\nmicro_batch_size: 16\n") == "warning");
  CHECK(severity(lora + "sequence_len: 8192\nmicro_batch_size: 16\nsample_packing: true\n") ==
        "error");
  const auto of_program = [&](const std::string& script) {
    std::ofstream(folder.file("run.sh"))
        << "python " << script << " --model_name_or_path m --output_dir o --bf16 "
        << "--per_device_train_batch_size 16 --max_length 8192 --block_size 8192\n";
    return run("check " + folder.file("run.sh") + " --model qwen3-0.6b --gpus 1 --no-best --json")
        .json()["findings"][0];
  };
  CHECK(of_program("own.py")["rule"] == "out_of_memory");
  CHECK(of_program("own.py")["severity"] == "warning");
  CHECK(of_program("run_clm.py")["severity"] == "error");
  const std::string whole = "sequence_len: 1024\nmicro_batch_size: 1\n";
  CHECK(severity(whole + "deepspeed:\n  zero_optimization:\n    stage: 0\n") == "error");
}

TEST_CASE("--fix writes corrected copies and leaves the files alone") {
  const TemporaryFolder folder;
  const std::string args = folder.file("args.txt");
  const std::string text =
      "--num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32\n"
      "--kv-channels 128 --num-query-groups 8 --qk-layernorm "
      "--untie-embeddings-and-output-weights\n"
      "--position-embedding-type rope --rotary-base 1e6 --normalization RMSNorm --norm-epsilon "
      "1e-6\n"
      "--swiglu --disable-bias-linear --hidden-dropout 0.0 --bf16 --micro-batch-sise 1\n"
      "--global-batch-size 64 --seq-length 4096 --max-position-embeddings 40960 "
      "--use-distributed-optimizer\n";
  // Lines of a list are commands of a script, unless a backslash continues them.
  std::string joined = text;
  for (char& c : joined) c = c == '\n' ? ' ' : c;
  std::ofstream(args) << joined;
  const std::string question = " --model qwen3-8b --gpus 8 --hardware h200-sxm";
  const Ran before = run("check " + args + question + " --fix " + folder.file("fixed"));
  CHECK(before.code == 1);
  CHECK(before.says("corrected copy: " + folder.file("fixed/args.txt")));
  CHECK(read_text_file(args) == joined);
  const Ran after = run("check " + folder.file("fixed/args.txt") + question + " --json");
  CAPTURE(after.out);
  CHECK(after.code == 0);
  CHECK(after.json()["errors"] == 0);
  CHECK(after.json()["warnings"] == 0);
}

TEST_CASE("what check cannot use it says in a sentence") {
  CHECK(run("check").says("check needs files"));
  CHECK(run("check x.json --model qwen3-8b").code == 2);
  CHECK(run("check /nowhere.json --model qwen3-8b --gpus 8").code == 2);
  const TemporaryFolder folder;
  const std::string big = folder.file("big.json");
  std::ofstream(big) << "{";
  fs::resize_file(big, 100 << 20);
  const Ran ran = run("check " + big + " --model qwen3-8b --gpus 8");
  CHECK(ran.code == 2);
  CHECK(ran.says("8 MiB"));
}

TEST_CASE("what is wrong is shown though nobody counts the GPUs, and counted once it is mended") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("x.yaml")) << "grpo:\n  num_prompts_per_steps: 64\n"
                                          "  num_generations_per_prompt: 16\n"
                                          "policy:\n  model_name: Qwen/Qwen3-8B\n"
                                          "  train_global_batch_size: 512\n"
                                          "  dtensor_cfg:\n    enabled: true\n"
                                          "cluster:\n  gpus_per_node: 8\n  num_node: 2\n";
  const std::string file = folder.file("x.yaml");
  const Ran ran = run("check " + file + " --no-best --fix " + folder.file("fixed"));
  CHECK(ran.code == 1);
  CHECK(ran.says("[gpus_unsaid]"));
  CHECK(ran.says("did you mean cluster.num_nodes?"));
  CHECK(ran.says("did you mean grpo.num_prompts_per_step?"));
  CHECK_FALSE(ran.says("data-parallel"));  // what follows from their number
  const Ran again = run("check " + folder.file("fixed/x.yaml") + " --no-best");
  CHECK_FALSE(again.says("[gpus_unsaid]"));
  CHECK(again.says("16 GPUs, as the files start them"));
  // Where nothing else is wrong, too; of one of many jobs that is a note.
  std::ofstream(folder.file("y.json")) << "{\"train_micro_batch_size_per_gpu\": 1}\n";
  const std::string asks = "check " + folder.file("y.json") + " --model qwen3-8b";
  const Ran asked = run(asks);
  CHECK(asked.code == 1);
  CHECK(asked.says("[gpus_unsaid]"));
  CHECK(asked.says("--gpus COUNT"));
  const Ran of_many = run(asks + " --each --skip-unknown");
  CHECK(of_many.code == 0);
  CHECK(of_many.says("[not_judged]"));
}

TEST_CASE("faults of a script are shown though they hide its model, and all of it once mended") {
  const TemporaryFolder folder;
  const std::string behind =
      "num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
      "--global-batch-size 8 --tensor-model-parallel-size 2 --bf16\n";
  const std::string launch = "torchrun --nnodes 1 --nproc-per-node 4 pretrain_gpt.py ";
  const std::string file = folder.file("train.sh");
  std::ofstream(file) << launch << "--num-layers 2 --hiden-size 64 --" << behind;
  const Ran ran = run("check " + file + " --no-best --fix " + folder.file("fixed"));
  CHECK(ran.code == 1);
  CHECK(ran.says("[model_unsaid]"));
  CHECK(ran.says("did you mean --hidden-size?"));
  const Ran again = run("check " + folder.file("fixed/train.sh") + " --no-best");
  CHECK_FALSE(again.says("[model_unsaid]"));
  CHECK(again.says("the-scripts-own"));
  // Where nothing else is wrong it is asked for.
  std::ofstream(folder.file("y.sh")) << launch << "--micro-batch-size 1\n";
  CHECK(run("check " + folder.file("y.sh") + " --no-best").code == 2);
}

TEST_CASE("what is no number of GPUs is a finding at its place") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("run.sh"))
      << "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B \\\n"
         "  trainer.n_gpus_per_node=8 trainer.nnodes=one\n";
  const Ran verl = run("check " + folder.file("run.sh") + " --no-best");
  CHECK(verl.code == 1);
  CHECK(verl.says("run.sh:2: error: trainer.nnodes is one, and must be a whole number"));
  std::ofstream(folder.file("x.yaml"))
      << "grpo:\n  num_prompts_per_step: 64\npolicy:\n  model_name: Qwen/Qwen3-8B\n"
         "cluster:\n  gpus_per_node: eight\n  num_nodes: 1\n";
  const Ran nemo = run("check " + folder.file("x.yaml") + " --no-best");
  CHECK(nemo.code == 1);
  CHECK(nemo.says("x.yaml:6: error: cluster.gpus_per_node is eight, and must be a whole number"));
}

TEST_CASE("GPUs that make answers are the job's, too") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("run.sh"))
      << "python3 -m verl.experimental.one_step_off_policy.main_ppo \\\n"
         "  actor_rollout_ref.model.path=Qwen/Qwen3-0.6B algorithm.adv_estimator=grpo \\\n"
         "  rollout.nnodes=1 rollout.n_gpus_per_node=2 \\\n"
         "  trainer.nnodes=1 trainer.n_gpus_per_node=6\n";
  const Ran ran = run("check " + folder.file("run.sh") + " --no-best");
  CHECK(ran.says("8 GPUs, as the files start them"));
  CHECK_FALSE(ran.says("[launched_world]"));
}

TEST_CASE("scripts that a script reads or starts are found beside it") {
  const std::string question = " --model qwen3-30b-a3b --gpus 8 --json";
  const Ran both = run("check " + example("run.sh") + " " + example("model.sh") + question);
  const Ran one = run("check " + example("run.sh") + question);
  CHECK(one.code == both.code);
  CHECK(one.json() == both.json());

  // Through a folder, one script after the other; not what lies elsewhere.
  const TemporaryFolder folder;
  fs::create_directories(folder.file("models"));
  std::ofstream(folder.file("models/args.sh")) << "MODEL_ARGS=(--num-layers 36 --bf16)\n";
  std::ofstream(folder.file("run.sh"))
      << "source \"${DIR}/models/args.sh\"\nsource /etc/profile\nsource none.sh\n"
         "torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]}\n";
  std::ofstream(folder.file("job.sbatch")) << "srun bash run.sh\n";
  const Ran ran = run("check " + folder.file("job.sbatch") + " --model qwen3-8b --gpus 8 --json");
  const Json answer = ran.json();
  std::string missing;
  for (const Json& finding : answer["findings"]) {
    if (finding["rule"] == "sourced_file_missing") {
      missing += finding["message"].get<std::string>() + "|";
    }
  }
  CHECK(missing ==
        "profile is read here and is not among the files given|"
        "none.sh is read here and is not among the files given|");
  CHECK_FALSE(ran.says("nothing here starts a training job"));

  // The folder by the way that shells have to ask for it.
  std::ofstream(folder.file("start.sh"))
      << "HERE=\"$(cd -- \"$(dirname -- \"${BASH_SOURCE[0]}\")\" &>/dev/null && pwd)\"\n"
         "source \"${HERE}/models/args.sh\"\n"
         "torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]}\n";
  const Ran asked = run("check " + folder.file("start.sh") + " --model qwen3-8b --gpus 8");
  CHECK_FALSE(asked.says("sourced_file_missing"));
}

TEST_CASE("a script that states every shape needs no --model") {
  const TemporaryFolder folder;
  const std::string shapes =
      "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
      "--group-query-attention --num-query-groups 8 --swiglu --position-embedding-type rope "
      "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
      "--attention-dropout 0 --hidden-dropout 0 --max-position-embeddings 8192 ";
  const std::string rest =
      "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 "
      "--use-distributed-optimizer --tensor-model-parallel-size 2 ";
  const std::string start =
      "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc_per_node 8 "
      "--nnodes 1 pretrain_gpt.py ";
  std::ofstream(folder.file("train.sh")) << start << shapes << rest << "\n";
  std::ofstream(folder.file("wrong.sh")) << start << shapes << rest << "--fp8-param-gather\n";
  std::ofstream(folder.file("bare.sh")) << start << rest << "\n";
  const Ran clean = run("check " + folder.file("train.sh") + " --gpus 8 --no-best");
  CHECK(clean.says("a vocabulary of 128256 tokens"));
  CHECK_FALSE(clean.says("error:"));
  CHECK_FALSE(clean.says("best "));
  CHECK(run("check " + folder.file("wrong.sh") + " --gpus 8 --no-best").says("[option_needs]"));
  const Ran bare = run("check " + folder.file("bare.sh") + " --gpus 8");
  CHECK(bare.code == 2);
  CHECK(bare.says("--model is missing"));
}

TEST_CASE(
    "a script whose shapes are refused is judged, and a block that is misspelt decides nothing") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("train.sh"))
      << "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nnodes 1 --nproc_per_node 8 "
         "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 30 "
         "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 64 "
         "--global-batch-size 512 --bf16 --lr 1e-4 --train-iters 100\n";
  const Ran shapes = run("check " + folder.file("train.sh") + " --gpus 8 --no-best --json");
  CHECK(shapes.code == 1);
  std::map<std::string, std::string> severity;
  const Json of_shapes = shapes.json();
  for (const Json& finding : of_shapes["findings"]) {
    severity[finding["rule"]] = finding["severity"];
  }
  CHECK(severity["shapes_refused"] == "error");
  CHECK(severity["out_of_memory"] == "note");
  std::ofstream(folder.file("ds.json"))
      << R"({"train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 1,
             "zero_optmization": {"stage": 3}, "bf16": {"enabled": true}})";
  const Ran block =
      run("check " + folder.file("ds.json") + " --model qwen3-32b --gpus 8 --no-best --json");
  CHECK(block.code == 1);
  const Json of_block = block.json();
  CHECK(of_block["errors"] == 1);
  for (const Json& finding : of_block["findings"]) {
    if (finding["rule"] == "out_of_memory") CHECK(finding["severity"] == "note");
  }
}

TEST_CASE("a rule's finding says who enforces it") {
  const Ran ran = run("check " + config("megatron_deepspeed/ds_config.json") + " " +
                      config("megatron_deepspeed/train.sh") + " --model gpt-1.3t --gpus 32");
  CHECK(ran.says("source:  rule of megatron-deepspeed: DeepSpeed edaa7221, deepspeed/"));
}

TEST_CASE("check's JSON is the same twice") {
  const std::string line = "check " + config("megatron_deepspeed/ds_config.json") + " " +
                           config("megatron_deepspeed/train.sh") +
                           " --model gpt-217b --gpus 512 --json";
  CHECK(run(line).out == run(line).out);
}

TEST_CASE("of a step that makes its answers check says a better one for the same GPUs") {
  const std::string line = "check " + config("rl/verl_grpo.sh") + " --model qwen3-8b --gpus 16 ";
  const Json json = run(line + "--json").json();
  REQUIRE(json["step"].is_object());
  const Json& best = json["best_step"];
  REQUIRE(best.is_object());
  CHECK(best["fits"] == true);
  if (json["step"]["fits"] == true) {
    CHECK(best["step_time_s"].get<double>() <= json["step"]["step_time_s"].get<double>());
  }
  CHECK(best["prompts"] == json["step"]["prompts"]);
  CHECK(best["rollout"]["gpus"] == json["step"]["rollout"]["gpus"]);
  CHECK(json["best"]["plan"]["global_batch_size"] == best["packed_sequences"]);
  const Json alone = run(line + "--no-best --json").json();
  CHECK(alone["best_step"].is_null());
  CHECK(alone["step"] == json["step"]);
  CHECK(run(line).says("best      "));
}

TEST_CASE("a job that leaves its batch to its rollouts is judged with the tokens of any other") {
  const Ran ran = run("check " + config("slime_qwen3_30b_a3b/run.sh") +
                      " --model qwen3-30b-a3b --gpus 8 --hardware h800 --no-best --json");
  const Json json = ran.json();
  REQUIRE(json["framework"] == "slime");
  const Json& plan = json["this_job"]["plan"];
  const std::int64_t tokens =
      plan["global_batch_size"].get<std::int64_t>() * plan["seq_len"].get<std::int64_t>();
  CHECK(tokens > 2'000'000);
  CHECK(json["assumed"].dump().find("a global batch of 1024 sequences") != std::string::npos);
}

TEST_CASE("a step's own training and the best one's are priced alike") {
  const Json json =
      run("check " + config("rl/verl_grpo.sh") + " --model qwen3-30b-a3b --gpus 16 --json").json();
  REQUIRE(json["best"].is_object());
  for (const char* word : {"routing", "document_len"}) {
    CAPTURE(word);
    CHECK(json["this_job"]["plan"][word] == json["best"]["plan"][word]);
  }
  CHECK(json["this_job"]["plan"]["routing"] == "natural");
  CHECK(json["this_job"]["plan"]["global_batch_size"] == json["step"]["packed_sequences"]);
}

TEST_CASE("an empty file is said to be empty") {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("empty.sh"), "");
  const Ran ran = run("check " + folder.file("empty.sh"));
  CHECK(ran.code == 2);
  CHECK(ran.says("empty.sh is empty"));
}

TEST_CASE("check finds what a script names by a path from where it is started") {
  const TemporaryFolder folder;
  fs::create_directories(fs::path(folder.path()) / "train");
  fs::create_directories(fs::path(folder.path()) / "scripts");
  std::ofstream(folder.file("scripts/zero3.json"))
      << "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1, \"bf16\": "
         "{\"enabled\": true}, \"zero_optimization\": {\"stage\": 3}}";
  const auto ask = [&](const std::string& path) {
    std::ofstream(folder.file("train/run.sh"))
        << "deepspeed --num_gpus 8 x.py --deepspeed " << path
        << " --bf16 True --output_dir o --per_device_train_batch_size 1\n";
    return run("check " + (folder.file("train/run.sh")) + " --model llama3-8b --no-best");
  };
  const Ran found = ask("scripts/zero3.json");
  CHECK(found.says("dp8 zero3"));
  CHECK_FALSE(found.says("config_missing"));
  // A name alone is no path from there.
  CHECK(ask("zero3.json").says("config_missing"));
  CHECK(ask("other/zero3.json").says("config_missing"));
}

}  // namespace
}  // namespace qplan
