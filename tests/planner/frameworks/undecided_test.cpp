// What is not known of a job, and what is not said because of it: values that only a run can tell,
// values that are refused, names with a slip, and words that may be arguments.

#include "planner/frameworks/undecided.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/frameworks/fix.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

// A right job of 32 GPUs. `degrees` are its first words.
std::string megatron(const std::string& degrees, const std::string& before = "") {
  return "#!/bin/bash\n" + before +
         "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \\\n  " + degrees +
         " \\\n"
         "  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 \\\n"
         "  --ffn-hidden-size 14336 --seq-length 4096 --max-position-embeddings 8192 \\\n"
         "  --micro-batch-size 1 --global-batch-size 64 --swiglu --normalization RMSNorm \\\n"
         "  --position-embedding-type rope --disable-bias-linear --bf16 --rotary-base 500000 \\\n"
         "  --untie-embeddings-and-output-weights --train-iters 100 --lr 1e-4 \\\n"
         "  --hidden-dropout 0 --attention-dropout 0 --tokenizer-type NullTokenizer \\\n"
         "  --vocab-size 128256 --use-rope-scaling --mock-data\n";
}

const std::string kRest = " --group-query-attention --use-distributed-optimizer";

Checked checked(const std::vector<ConfigText>& files, std::int64_t gpus = 32,
                const std::string& name = "llama3-8b") {
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  return check(files, question_of(model, config, gpus));
}

std::vector<ConfigText> fixed(const std::vector<ConfigText>& files, std::int64_t gpus = 32,
                              const std::string& name = "llama3-8b") {
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  const Judge judge = [&](std::span<const ConfigText> texts) {
    return check(texts, question_of(model, config, gpus));
  };
  return fix(files, judge).files;
}

// Errors and warnings.
std::vector<std::string> faults(const Checked& checked) {
  std::vector<std::string> rules;
  for (const Finding& f : checked.findings) {
    if (f.severity != Severity::note) rules.push_back(f.rule);
  }
  return rules;
}

std::vector<std::string> errors(const Checked& checked) {
  std::vector<std::string> rules;
  for (const Finding& f : checked.findings) {
    if (f.severity == Severity::error) rules.push_back(f.rule);
  }
  return rules;
}

using Rules = std::vector<std::string>;

TEST_SUITE("what is not known of a job") {
  TEST_CASE("the job that the others are made of is right") {
    const Checked right = checked({{"train.sh", megatron("--tensor-model-parallel-size 4 "
                                                         "--pipeline-model-parallel-size 2 "
                                                         "--sequence-parallel" +
                                                         kRest)}});
    CAPTURE(findings_text(right));
    CHECK(errors(right).empty());
  }

  TEST_CASE("degrees of the environment are judged by no default, and nothing is taken out") {
    for (const std::string tp : {"$TP", "${TP}", "$1", "$(nproc)", "`cat tp`", "${1:?tp}"}) {
      const std::vector<ConfigText> files{
          {"train.sh", megatron("--tensor-model-parallel-size " + tp +
                                " --pipeline-model-parallel-size $PP "
                                "--num-layers-per-virtual-pipeline-stage 4 --sequence-parallel" +
                                kRest)}};
      const Checked job = checked(files);
      CAPTURE(tp);
      CAPTURE(findings_text(job));
      CHECK(errors(job).empty());
      CHECK(fixed(files).front().text == files.front().text);
      CHECK(std::find(job.undecided.begin(), job.undecided.end(), "--tensor-model-parallel-size") !=
            job.undecided.end());
    }
  }

  TEST_CASE("an option of one branch is given perhaps, and one whose value is unknown certainly") {
    const std::string intervals = " --save-interval 100 --save-retain-interval 250";
    const auto ask = [&](const std::string& before, const std::string& words) {
      return checked({{"train.sh", megatron("--tensor-model-parallel-size 4 --sequence-parallel" +
                                                kRest + intervals + words,
                                            before)}});
    };
    CHECK(find(ask("", " --save ${ROOT}/out"), "option_needs") != nullptr);
    const std::string branch = "if [ -n \"$ROOT\" ]; then\n  SAVE=\"--save $ROOT\"\nfi\n";
    CHECK(find(ask(branch, " $SAVE"), "option_needs") == nullptr);
    CHECK(find(ask("", ""), "option_needs") == nullptr);
    const std::string yaml =
        "MODEL_ARGS:\n  --num-layers: 32\n  --hidden-size: 4096\n  --micro-batch-size: 1\n"
        "  --save: ${CHECKPOINT_SAVE_PATH}\n  --save-interval: 100\n  --save-retain-interval: ";
    CHECK(find(checked({{"model_config.yaml", yaml + "250\n"}}), "option_needs") != nullptr);
    CHECK(find(checked({{"model_config.yaml", yaml + "300\n"}}), "option_needs") == nullptr);
  }

  TEST_CASE("what is wrong whatever the environment says is said, and corrected") {
    const std::vector<ConfigText> files{
        {"train.sh",
         megatron("--tensor-model-parallel-size $TP --sequence-paralel --num-layers 31" + kRest)}};
    const Checked job = checked(files);
    CAPTURE(findings_text(job));
    const Rules found = errors(job);
    CHECK(std::find(found.begin(), found.end(), "unknown_option") != found.end());
    CHECK(fixed(files).front().text.find("--sequence-parallel ") != std::string::npos);
    // 3 divides neither the heads nor the GPUs, and nothing unknown can mend it
    const Checked odd = checked({{"train.sh", megatron("--context-parallel-size 3 "
                                                       "--pipeline-model-parallel-size $PP" +
                                                       kRest)}});
    CAPTURE(findings_text(odd));
    CHECK_FALSE(errors(odd).empty());
  }

  TEST_CASE("a value that is refused is one error, and its neighbours stay") {
    for (const std::string tp : {"4k", "4,", "4O", "2.5", "-2", "four", "''"}) {
      const std::vector<ConfigText> files{
          {"train.sh", megatron("--tensor-model-parallel-size $TP "
                                "--pipeline-model-parallel-size 2 --sequence-parallel" +
                                    kRest,
                                "TP=" + tp + "\n")}};
      const Checked job = checked(files);
      CAPTURE(tp);
      CAPTURE(findings_text(job));
      CHECK(errors(job).size() == 1);
      const std::string text = fixed(files).front().text;
      CHECK(text.find("--sequence-parallel") != std::string::npos);
    }
  }

  TEST_CASE("a value that is refused is said beside one of the same line that is not known") {
    const Checked job = checked({{"train.sh", megatron("--tensor-model-parallel-size 4k "
                                                       "--pipeline-model-parallel-size $PP" +
                                                       kRest)}});
    CAPTURE(findings_text(job));
    CHECK(errors(job) == Rules{"bad_value"});
  }

  TEST_CASE("an option whose name has a slip may be what the others need") {
    const std::vector<ConfigText> files{
        {"train.sh", megatron("--tensor-modl-paralel-sise 4 --sequence-parallel" + kRest)}};
    const Checked job = checked(files);
    CAPTURE(findings_text(job));
    CHECK(errors(job) == Rules{"unknown_option"});
    CHECK(fixed(files).front().text.find("--sequence-parallel") != std::string::npos);
  }

  TEST_CASE("of a branch that may be taken nothing is asked for, nor taken out") {
    const std::vector<ConfigText> files{
        {"train.sh",
         "if [ \"$SIZE\" = A37B ]; then\n"
         "MOE=\" --moe-token-dispatcher-type alltoall --moe-shared-expert-overlap\"\nfi\n"
         "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py $MOE "
         "--tensor-model-parallel-size 1 --micro-batch-size 1 --seq-length 4096 "
         "--max-position-embeddings 4096 --bf16 --use-distributed-optimizer "
         "--expert-model-parallel-size 8\n"}};
    const Checked job = checked(files, 32, "qwen2-57b-a14b");
    CAPTURE(findings_text(job));
    const Rules found = faults(job);
    CHECK(std::find(found.begin(), found.end(), "shared_overlap") == found.end());
    CHECK(fixed(files, 32, "qwen2-57b-a14b").front().text == files.front().text);
  }

  TEST_CASE("words that may be arguments may be the ones that are missing") {
    const std::vector<ConfigText> files{
        {"train.sh", megatron("--tensor-model-parallel-size 2 --sequence-parallel $GQA $DISTOPT "
                              "--overlap-grad-reduce --overlap-param-gather")}};
    const Checked job = checked(files);
    CAPTURE(findings_text(job));
    CHECK(errors(job).empty());
    CHECK(fixed(files).front().text == files.front().text);
    // which is said
    CHECK(findings_text(job).find("may say otherwise") != std::string::npos);
    // and where no such word stands, they are
    const Checked bare =
        checked({{"train.sh", megatron("--tensor-model-parallel-size 2 --sequence-parallel "
                                       "--overlap-grad-reduce --overlap-param-gather")}});
    CHECK_FALSE(errors(bare).empty());
  }

  TEST_CASE("a YAML's, a JSON's and Python's values are unknown as a shell's are") {
    const std::string z3 =
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1, "
        "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {STAGE"
        "\"stage3_prefetch_bucket_size\": 50000000, \"overlap_comm\": true}}";
    for (const std::string stage : {"", "\"stage\": -3, ", "\"stage\": \"three\", "}) {
      const std::vector<ConfigText> files{{"ds_config.json", with_words(z3, "STAGE", stage)}};
      CAPTURE(stage);
      const Checked job = checked(files, 8);
      CAPTURE(findings_text(job));
      CHECK(fixed(files, 8).front().text.find("stage3_prefetch_bucket_size") != std::string::npos);
    }
  }

  TEST_CASE("a switch, and a value behind a word that may be an option, are not judged either") {
    for (const std::string words : {"--tensor-model-parallel-size 2 $SP --num-experts-unheard 4",
                                    "--ckpt-format torch $X /a"}) {
      const Checked job = checked({{"train.sh", megatron(words + kRest)}});
      CAPTURE(findings_text(job));
      for (const Finding& f : job.findings) CHECK(f.rule != "stray_word");
    }
    // experts under tensor parallelism need sequence parallelism, which $SP may say
    const std::string experts =
        "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py $SP --micro-batch-size 1 "
        "--tensor-model-parallel-size 2 --seq-length 4096 --max-position-embeddings 4096 --bf16 "
        "--use-distributed-optimizer --expert-model-parallel-size 8 "
        "--moe-token-dispatcher-type alltoall\n";
    const Checked open = checked({{"train.sh", experts}}, 32, "qwen2-57b-a14b");
    CAPTURE(findings_text(open));
    CHECK(errors(open).empty());
    const Checked bare =
        checked({{"train.sh", with_words(experts, "$SP ", "")}}, 32, "qwen2-57b-a14b");
    CHECK(errors(bare) == Rules{"moe_needs_sequence_parallel"});
  }

  TEST_CASE("of other frameworks' words, whichever file says them") {
    struct Job {
      std::string name, text, kept, model;
    };
    const std::vector<Job> jobs{
        // ms-swift: refused, and of the environment
        {"swift.sh",
         "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --dataset x "
         "--tensor_model_parallel_size 2O --sequence_parallel true --expert_model_parallel_size 4 "
         "--micro_batch_size 1 --global_batch_size 16 --max_length 2048\n",
         "--sequence_parallel true", "qwen3-30b-a3b"},
        {"swift.sh",
         "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --dataset x "
         "--tensor_model_parallel_size $TP --sequence_parallel true --expert_model_parallel_size 4 "
         "--micro_batch_size 1 --global_batch_size 16 --max_length 2048\n",
         "--sequence_parallel true", "qwen3-30b-a3b"},
        // Megatron's YAML
        {"model_config.yaml",
         "MODEL_ARGS:\n  --tensor-model-parallel-size: 2k\n  --sequence-parallel: true\n"
         "  --num-layers: 32\n  --hidden-size: 4096\n  --num-attention-heads: 32\n"
         "  --micro-batch-size: 1\n  --global-batch-size: 64\n  --seq-length: 4096\n"
         "  --max-position-embeddings: 8192\n",
         "--sequence-parallel: true", "llama3-8b"},
        // Megatron-Bridge's Python
        {"pretrain.py",
         "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
         "import os\ncfg = llama3_8b_pretrain_config()\n"
         "cfg.model.tensor_model_parallel_size = int(os.environ[\"TP\"])\n"
         "cfg.model.sequence_parallel = True\n"
         "cfg.model.pipeline_model_parallel_size = int(os.environ[\"PP\"])\n"
         "cfg.model.virtual_pipeline_model_parallel_size = 2\n",
         "sequence_parallel = True", "llama3-8b"},
        // verl's overrides
        {"run.sh",
         "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=megatron "
         "actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_batch_size=64 "
         "actor_rollout_ref.actor.ppo_mini_batch_size=64 "
         "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
         "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP "
         "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=$PP "
         "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=2 "
         "trainer.n_gpus_per_node=8 trainer.nnodes=4\n",
         "virtual_pipeline_model_parallel_size=2", "qwen3-8b"},
    };
    for (const Job& job : jobs) {
      const std::vector<ConfigText> files{{job.name, job.text}};
      const Checked found = checked(files, 32, job.model);
      CAPTURE(job.text);
      CAPTURE(findings_text(found));
      for (const Finding& f : found.findings) {
        CHECK(f.message.find("virtual ones") == std::string::npos);
        CHECK(f.rule.find("sequence_parallel") == std::string::npos);
      }
      CHECK(fixed(files, 32, job.model).front().text.find(job.kept) != std::string::npos);
    }
  }

  TEST_CASE("a switch that a command turns off is not given") {
    const std::string command =
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --dataset x --torch_dtype float32 "
        "--bf16 true --fp16 SWITCH --max_length 2048 --per_device_train_batch_size 1\n";
    const Checked off =
        checked({{"train.sh", with_words(command, "SWITCH", "false")}}, 8, "qwen3-8b");
    CAPTURE(findings_text(off));
    CHECK(findings_text(off).find("options_exclude") == std::string::npos);
  }
}

TEST_SUITE("dashes") {
  TEST_CASE("one error, the two dashes, and the rest as if they stood there") {
    struct Slip {
      std::string written, right;
    };
    for (const auto& [written, right] :
         {Slip{"\xE2\x80\x94sequence-parallel", "--sequence-parallel"},
          Slip{"\xE2\x80\x93sequence-parallel", "--sequence-parallel"},
          Slip{"-sequence-parallel", "--sequence-parallel"},
          Slip{"-\xE2\x80\x94sequence-parallel", "--sequence-parallel"},
          Slip{"-ckpt-format torch", "--ckpt-format torch"}}) {
      const std::string degrees = "--tensor-model-parallel-size 2 ";
      const std::vector<ConfigText> files{{"train.sh", megatron(degrees + written + kRest)}};
      const Checked job = checked(files);
      CAPTURE(written);
      CAPTURE(findings_text(job));
      CHECK(errors(job) == Rules{"dashes"});
      CHECK(fixed(files).front().text == megatron(degrees + right + kRest));
    }
  }

  TEST_CASE("words of one dash that are right stay") {
    for (const std::string start :
         {"mpirun -np 32 -bind-to none python pretrain_gpt.py", "python -u pretrain_gpt.py",
          "srun -N 4 -l python -m torch.distributed.run --nnodes 4 pretrain_gpt.py"}) {
      const std::string text =
          with_words(megatron("--tensor-model-parallel-size 2" + kRest),
                     "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py", start);
      const Checked job = checked({{"train.sh", text}});
      CAPTURE(findings_text(job));
      const Rules found = errors(job);
      CHECK(std::find(found.begin(), found.end(), "dashes") == found.end());
    }
  }
}

TEST_SUITE("blanks at an equals sign") {
  TEST_CASE("no assignment: an error, mended, and the rest by the value that was meant") {
    struct Slip {
      std::string written, right;
    };
    for (const auto& [written, right] :
         {Slip{"TP = 4\n", "TP=4\n"}, Slip{"TP =4\n", "TP=4\n"}, Slip{"TP= 4\n", "TP=4\n"},
          Slip{"export TP = 4\n", "export TP=4\n"},
          Slip{"TP = \"4\"  # of 8\n", "TP=\"4\"  # of 8\n"}}) {
      const std::string words = "--tensor-model-parallel-size $TP --sequence-parallel" + kRest;
      const std::vector<ConfigText> files{{"train.sh", megatron(words, written)}};
      const Checked job = checked(files);
      CAPTURE(written);
      CAPTURE(findings_text(job));
      CHECK(errors(job) == Rules{"blanks_at_equals"});
      CHECK(job.plan.tp == 4);
      CHECK(fixed(files).front().text == megatron(words, right));
    }
  }

  TEST_CASE("of an array and of several words") {
    const std::string words = "${ARGS[@]} $MORE" + kRest;
    const std::string written =
        "ARGS = (\n  --tensor-model-parallel-size 4\n)\nMORE = --sequence-parallel --bf16\n";
    const std::string right =
        "ARGS=(\n  --tensor-model-parallel-size 4\n)\nMORE=\"--sequence-parallel --bf16\"\n";
    const std::vector<ConfigText> files{{"train.sh", megatron(words, written)}};
    const Checked job = checked(files);
    CAPTURE(findings_text(job));
    CHECK(errors(job) == Rules{"blanks_at_equals", "blanks_at_equals"});
    CHECK(job.plan.tp == 4);
    CHECK(fixed(files).front().text == megatron(words, right));
  }

  TEST_CASE("commands with an equals sign are commands") {
    const std::string before =
        "echo = 4\nexpr a = b\n[ a = b ] && echo\nCUDA_HOME= bash -c true\nIFS= read -r X\n"
        "if [[ $A == b ]]; then :; fi\n((N = 4))\nlet N = 4\n";
    const Checked job =
        checked({{"train.sh", megatron("--tensor-model-parallel-size 2" + kRest, before)}});
    CAPTURE(findings_text(job));
    const Rules found = errors(job);
    CHECK(std::find(found.begin(), found.end(), "blanks_at_equals") == found.end());
  }
}

}  // namespace
}  // namespace qplan
