// Files that are no configuration, or a broken one.

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/check.h"
#include "tests/complaint.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

TEST_SUITE("bad input") {
  std::string complaint(const std::string& name, const std::string& text) {
    return complaint_of([&] { ask_text(name, text); });
  }

  TEST_CASE("files that cannot be read are refused in one sentence") {
    CHECK(complaint("ds.json", "{\"train_batch_size\": 8,").find("cut off") != std::string::npos);
    CHECK(complaint("ds.json", std::string("\x7f"
                                           "ELF\0\0",
                                           6))
              .find("not a text file") != std::string::npos);
    CHECK(complaint("plan.json", "{\"plan\": {\"tp\": 1}, \"fingerprint\": \"x\"}")
              .find("qplan predict") != std::string::npos);
    CHECK(complaint("a.yaml", "a: {b: 1").find("a.yaml:1") != std::string::npos);
  }

  TEST_CASE("a batch that is too large to be simulated is said where it stands") {
    const Checked said =
        ask_text("args.txt", "--micro-batch-size 1\\\n --global-batch-size 2097152");
    REQUIRE(find(said, "batch_size") != nullptr);
    CHECK(find(said, "batch_size")->place.line == 2);
    CHECK_FALSE(said.says_plan);
    const Checked product = ask_text("ds.json",
                                     "{\"train_micro_batch_size_per_gpu\": 1024,\n"
                                     "\"gradient_accumulation_steps\": 1024}");
    REQUIRE(find(product, "batch_size") != nullptr);
    CHECK(find(product, "batch_size")->place.line == 1);
    CHECK(find(ask_text("args.txt", "--micro-batch-size 1 --global-batch-size 1048576"),
               "batch_size") == nullptr);
  }

  TEST_CASE("a byte-order mark before JSON is a finding, and the file is read") {
    const std::string text = "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 4}";
    const Checked checked = ask_text("ds.json", "\xef\xbb\xbf" + text);
    const Finding* const found = find(checked, "json_byte_order_mark");
    REQUIRE(found != nullptr);
    CHECK(found->severity == Severity::warning);
    CHECK(found->place.line == 1);
    REQUIRE(found->fix.size() == 1);
    CHECK(found->fix[0].begin == 0);
    CHECK(found->fix[0].end == 3);
    CHECK(find(ask_text("ds.json", text), "json_byte_order_mark") == nullptr);
    CHECK(complaint("ds.json", text + "\xef\xbb\xbf").find("follows the end") != std::string::npos);
  }

  TEST_CASE("a number of PyYAML's has no bare exponent, of OmegaConf's it may") {
    const std::string trl = "model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-5\n";
    const Checked text = ask_text("sft.yaml", trl + "max_length: 2e3\n", "qwen3-8b", 8);
    REQUIRE(find(text, "refused_value") != nullptr);
    CHECK(find(text, "refused_value")->place.line == 4);
    CHECK(text.count(Severity::error) == 1);
    const std::string factory =
        "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "template: qwen3\ndataset: d\noutput_dir: o\nlearning_rate: 1e-5\n";
    const Checked number = ask_text("lf.yaml", factory + "cutoff_len: 2e3\n", "qwen3-8b", 8);
    CHECK_MESSAGE(find(number, "refused_value") == nullptr, findings_text(number));
    CHECK(number.plan.seq_len == 2000);
  }

  TEST_CASE("accelerate stops at a name that it does not know, and ignores one within a section") {
    const auto says = [](const std::string& lines) {
      const Checked checked = ask_text(
          "a.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n" + lines);
      const Finding* const found = find(checked, "unknown_option");
      return found == nullptr ? std::string() : found->message;
    };
    CHECK(says("other: 1\n").find("stops") != std::string::npos);
    CHECK(says("other:\n  within: 1\n").find("stops") != std::string::npos);
    CHECK(says("fsdp_config:\n  other: 1\n").find("ignores it silently") != std::string::npos);
  }

  TEST_CASE("accelerate's names are known where it starts DeepSpeed, too") {
    const std::string head = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n";
    const auto says = [&](const std::string& lines) {
      const Checked checked = ask_text("ds.yaml", head + lines, "llama3-8b", 8);
      const Finding* const found = find(checked, "unknown_option");
      return found == nullptr ? std::string() : found->message + "; " + found->instead;
    };
    const std::string block = "deepspeed_config:\n";
    CHECK(says("num_procesess: 8\n").find("stops; did you mean num_processes?") !=
          std::string::npos);
    CHECK(says("deepspede_config:\n  zero_stage: 3\n").find("stops") != std::string::npos);
    CHECK(says(block + "  zero_stgae: 3\n").find("did you mean deepspeed_config.zero_stage?") !=
          std::string::npos);
    CHECK(says(block + "  offload_optimzer_device: cpu\n").find("ignores it silently") !=
          std::string::npos);
    CHECK(says("parallelism_config:\n  parallelism_config_sps_ize: 2\n")
              .find("parallelism_config_sp_size") != std::string::npos);
    const std::string right = block +
                              "  zero_stage: 3\n  zero3_init_flag: true\n"
                              "  deepspeed_multinode_launcher: standard\nmixed_precision: bf16\n";
    CHECK(says(right).empty());
    const Checked whole = ask_text("ds.yaml", head + right, "llama3-8b", 8);
    CHECK_MESSAGE(whole.findings.empty(), findings_text(whole));
    CHECK(whole.plan.zero == 3);
    // A key of DeepSpeed's own is handed on by nobody.
    const Checked own =
        ask_text("ds.yaml", head + block + "  zero_stage: 3\n  communication_data_type: fp32\n",
                 "llama3-8b", 8);
    REQUIRE(find(own, "unknown_option") != nullptr);
    CHECK(find(own, "unknown_option")->severity == Severity::warning);
    // Its plug-in's own stage.
    CHECK(ask_text("ds.yaml", head + "mixed_precision: bf16\n", "llama3-8b", 8).plan.zero == 2);
    CHECK(says("mixed_precision: bf17\n").empty());  // a value, not a name
  }

  TEST_CASE("what slime cannot count is said with its name and where it stands") {
    const Checked checked =
        ask_text("train.sh",
                 "python3 train.py --actor-num-nodes 1 --rollout-batch-size 32 \\\n"
                 " --use-dynamic-batch-size \\\n --max-tokens-per-gpu abc\n",
                 "qwen3-8b", 8);
    const Finding* const found = find(checked, "bad_value");
    REQUIRE(found != nullptr);
    CHECK(found->message == "--max-tokens-per-gpu must be a whole number, not 'abc'");
    CHECK(found->place.line == 3);
    CHECK(find(checked, "refused_value") == nullptr);
  }

  TEST_CASE("how accelerate is to run a model is not called the model's") {
    const std::string common = "compute_environment: LOCAL_MACHINE\ndistributed_type: ";
    const Checked other = ask_text("a.yaml", common + "FSDP2\n");
    CHECK(find(other, "other_model") == nullptr);
    REQUIRE(find(other, "refused_value") != nullptr);
    CHECK(find(other, "refused_value")->message.starts_with("distributed_type is FSDP2, and must"));
    const Checked missing = ask_text("a.yaml", common + "FSDP\nfsdp_config:\n  fsdp_version: 2\n");
    REQUIRE(find(missing, "missing_option") != nullptr);
    CHECK(find(missing, "missing_option")->message.find("is taken, not TRANSFORMER_BASED_WRAP") !=
          std::string::npos);
  }

  TEST_CASE("true is a value in Python and in a YAML, and a flag without one on a command line") {
    const auto refused = [](const std::string& name, const std::string& text) {
      const Checked checked = ask_text(name, text, "qwen3-8b", 8);
      const Finding* const found = find(checked, "refused_value");
      return found == nullptr ? std::string() : found->message;
    };
    const std::string call =
        "args = TrainingArguments(per_device_train_batch_size=1, hub_private_repo=True, ";
    CHECK(refused("train.py", call + "greater_is_better=True, report_to='none')\n").empty());
    CHECK(refused("train.py", call + "eval_strategy=True)\n").find("one of no, ") !=
          std::string::npos);
    const std::string yaml = "model_name_or_path: m\ndataset_name: d\nmax_length: 4096\n";
    CHECK(refused("sft.yaml", yaml + "greater_is_better: true\n").empty());
    CHECK(refused("sft.yaml", yaml + "save_steps: true\n").find("whole number") !=
          std::string::npos);
    CHECK(refused("train.sh", "trl sft --model_name_or_path m --greater_is_better --bf16\n") ==
          "--greater_is_better is true, and must be followed by a value");
  }

  TEST_CASE("files of no known kind are findings") {
    CHECK(find(ask_text("x.json", "{\"a\": 1}"), "unknown_file") != nullptr);
    CHECK(find(ask_text("config.json", "{\"architectures\": [\"X\"], \"model_type\": \"qwen3\"}"),
               "model_config") != nullptr);
    CHECK(find(ask_text("x.sh", "echo hello\n"), "unknown_file") != nullptr);
    CHECK(find(ask_text("empty", ""), "empty_file") != nullptr);
    CHECK(find(ask_text("x.py", "print(1)\n"), "nothing_to_check") != nullptr);
  }

  TEST_CASE("YAML that is no framework's of these is said to be none") {
    for (const std::string text :
         {"model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nper_device_train_batch_size: 1\n",
          "modules:\n  pre_trainer:\n    framework: megatron\n    overrides:\n"
          "      tensor_model_parallel_size: 2\n"}) {
      const Checked checked = ask_text("train.yaml", text);
      REQUIRE(find(checked, "unknown_file") != nullptr);
      CHECK(find(checked, "unknown_option") == nullptr);
    }
  }

  TEST_CASE("a launcher is found behind a profiler") {
    const Checked checked = ask_text(
        "train.sh",
        "if [ \"$PROFILE\" = 1 ]; then CMD=(nsys profile -o x); fi\nA=(\"--fp8-format hybrid\")\n"
        "\"${CMD[@]}\" torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2 ${A[@]}\n");
    const Checked module =
        ask_text("train.sh",
                 "python -m torch.distributed.launch --nproc_per_node 8 --nnodes 4 pretrain_gpt.py "
                 "--micro-batch-size 2\n");
    CHECK(find(module, "unknown_option") == nullptr);
    CHECK(find(module, "launched_world") != nullptr);  // 32 processes for 64 GPUs
    CHECK(checked.plan.micro_batch_size == 2);
    CHECK(checked.plan.precision == Precision::fp8);
    CHECK(ask_text("train.sh", "P=()\n\"${P[@]}\" torchrun pretrain_gpt.py --micro-batch-size 2\n")
              .plan.micro_batch_size == 2);
    CHECK(ask_text("train.sh", "uv run torchrun pretrain_gpt.py --micro-batch-size 2\n")
              .plan.micro_batch_size == 2);
    CHECK(find(checked, "unknown_option") == nullptr);
  }

  TEST_CASE("nodes that the environment says are not held against the job") {
    const auto launched = [](const std::string& nodes, const std::string& tp) {
      return ask_text("train.sh", "NNODES=" + nodes +
                                      "\nD=(--nproc_per_node 8 --nnodes $NNODES --node_rank "
                                      "${RANK:-0})\ntorchrun ${D[@]} pretrain_gpt.py "
                                      "--micro-batch-size 2 --tensor-model-parallel-size " +
                                      tp + "\n");
    };
    for (const std::string nodes : {"${SLURM_NNODES:-\"1\"}", "${SLURM_NNODES:-1}"}) {
      const Checked open = launched(nodes, "16");
      CHECK(find(open, "launched_world") == nullptr);
      CHECK(find(open, "launched_degrees") == nullptr);
      REQUIRE(find(open, "nodes_by_environment") != nullptr);
      CHECK(find(open, "nodes_by_environment")->instead == "let it say 8");  // of 64 GPUs
    }
    CHECK(find(launched("1", "16"), "launched_world") != nullptr);
    CHECK(find(launched("1", "16"), "launched_degrees") != nullptr);
    CHECK(find(launched("8", "16"), "launched_world") == nullptr);
    CHECK(find(launched("8", "16"), "one_node_rank") == nullptr);
  }

  TEST_CASE("a rank that is written out is noted where there are several nodes") {
    const auto ranked = [](const std::string& rank) {
      return ask_text("train.sh", "torchrun --nproc_per_node 8 --nnodes 8 --node_rank " + rank +
                                      " pretrain_gpt.py --micro-batch-size 2\n");
    };
    CHECK(find(ranked("0"), "one_node_rank") != nullptr);
    CHECK(find(ranked("${RANK:-0}"), "one_node_rank") == nullptr);
    CHECK(find(ranked("$RANK"), "one_node_rank") == nullptr);
  }

  TEST_CASE("what slime's patch adds to Megatron's arguments is known in slime's scripts alone") {
    const Checked slime =
        ask_text("run.sh",
                 "python3 train.py --actor-num-nodes 8 --actor-num-gpus-per-node 8 "
                 "--tensor-model-parallel-size 2 --use-gated-attention\n");
    CHECK(slime.framework == Framework::slime);
    CHECK(find(slime, "unknown_option") == nullptr);
    // What its reset_arg() adds, too.
    CHECK(known_options("slime").find("--custom-config-path") != nullptr);
    CHECK(known_options("slime").find("--freeze-indexer") != nullptr);
    CHECK(find(ask_text("train.sh",
                        "torchrun pretrain_gpt.py --micro-batch-size 2 --use-gated-attention\n"),
               "unknown_option") != nullptr);
  }

  TEST_CASE("ms-swift's commands that train nothing are named") {
    const Checked checked = ask_text(
        "infer.sh", "NPROC_PER_NODE=8 \\\nmegatron export \\\n  --tensor_model_parallel_size 8\n");
    REQUIRE(find(checked, "unknown_file") != nullptr);
    CHECK(find(checked, "unknown_file")->message.find("ms-swift") != std::string::npos);
    CHECK(find(checked, "unknown_file")->place.line == 2);
  }

  TEST_CASE("values of other types are findings, not crashes") {
    for (const std::string value :
         {"-1", "1.5", "\"three\"", "[1]", "{}", "null", "1e300", "99999999999999999999", "true"}) {
      CAPTURE(value);
      const std::string text = "{\"train_batch_size\": " + value +
                               ", \"train_micro_batch_size_per_gpu\": " + value +
                               ", \"zero_optimization\": {\"stage\": " + value +
                               ", \"offload_optimizer\": {\"device\": " + value +
                               "}}, \"sequence_parallel_size\": " + value + "}";
      CHECK_NOTHROW(ask_text("ds.json", text));
    }
    for (const std::string value : {"0", "-4", "x", "1e3", "", "99999999999", "2 3"}) {
      CAPTURE(value);
      CHECK_NOTHROW(ask_text("args.txt", "--num-layers 48 --tensor-model-parallel-size " + value +
                                             " --pipeline-model-parallel-size " + value +
                                             " --micro-batch-size " + value + " --seq-length " +
                                             value + " --num-experts " + value +
                                             " --max-position-embeddings " + value +
                                             " --pipeline-model-parallel-layout " + value));
    }
  }

  TEST_CASE("blocks of ds_config.json that are none are found, and a batch that nobody says") {
    const auto finds = [](const std::string& text, const std::string& rule) {
      CAPTURE(text);
      return find(ask_text("ds.json", text), rule) != nullptr;
    };
    const std::string none = "block_is_no_object", batch = "\"train_batch_size\": 64, ";
    for (const std::string block :
         {"\"zero_optimization\": [1]", "\"zero_optimization\": null", "\"bf16\": true",
          "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": \"cpu\"}"}) {
      CHECK(finds("{" + batch + block + "}", none));
    }
    for (const std::string block :
         {"\"zero_optimization\": {}", "\"zero_optimization\": true",
          "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": null}"}) {
      CHECK_FALSE(finds("{" + batch + block + "}", none));
    }
    CHECK(finds("{\"zero_optimization\": {\"stage\": 3}}", "batch_left_open"));
    CHECK(finds("{\"gradient_accumulation_steps\": 4}", "only_accumulation"));
    CHECK_FALSE(finds("{" + batch + "\"bf16\": {\"enabled\": true}}", "batch_left_open"));
  }

  TEST_CASE("a script of one's own may take arguments that Megatron-LM does not") {
    const auto unknown = [](const std::string& script) {
      const Checked checked =
          ask_text("train.sh", "torchrun " + script + " --micro-batch-size 1 --train-mode sft\n");
      const Finding* const found = find(checked, "unknown_option");
      REQUIRE(found != nullptr);
      return found->severity;
    };
    CHECK(unknown("pretrain_gpt.py") == Severity::warning);
    CHECK(unknown("pretrain_qwen.py") == Severity::note);
  }

  TEST_CASE("an argument that each of two branches gives is said once") {
    const Checked checked = ask_text(
        "train.sh",
        "A=(--micro-batch-size 1)\nif [ -f x ]; then\n A+=(--tokenizer-type NullTokenizer)\nelse\n"
        " A+=(--tokenizer-type HuggingFaceTokenizer)\nfi\ntorchrun pretrain_gpt.py ${A[@]}\n");
    CHECK(find(checked, "said_twice") == nullptr);
  }

  TEST_CASE(
      "scripts that share a name are told apart by their folders, and one started is read once") {
    const std::vector<ConfigText> texts{
        {"job/model/a.sh", "MODEL_ARGS=(--num-layers $LAYERS)\n"},
        {"job/train/a.sh", "TRAIN_ARGS=(--micro-batch-size 2 --global-batch-size 64)\n"},
        {"job/start.sh", "export LAYERS=48\nsbatch --nodes=8 job/run.sh 4\n"},
        {"job/run.sh",
         "source model/a.sh\nsource train/a.sh\ntorchrun --nproc_per_node 8 --nnodes 8 "
         "pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAIN_ARGS[@]} "
         "--tensor-model-parallel-size $1\n"}};
    const Checked checked = check_cited(
        texts, question_of(load_model("qwen3-30b-a3b"), model_config("qwen3-30b-a3b"), 64));
    CHECK(find(checked, "not_resolved") == nullptr);
    CHECK(find(checked, "model_not_described") == nullptr);
    CHECK(checked.plan.tp == 4);
    CHECK(checked.plan.micro_batch_size == 2);
  }

  TEST_CASE("corrections stand where they belong: outside quotes, and within here-documents") {
    const auto fixed = [](const std::string& text, std::string_view rule) {
      const Checked checked = ask_text("train.sh", text, "llama3-8b", 8);
      std::vector<Edit> edits;
      for (const Finding& f : checked.findings) {
        if (f.rule == rule) edits.insert(edits.end(), f.fix.begin(), f.fix.end());
      }
      return with_edits(text, "train.sh", edits);
    };
    const std::string head = "torchrun pretrain_gpt.py --split '9,1' --lr \"1\" --seed 1 --bf16 ";
    CHECK(fixed(head + "--recompute-granularity full\n", "recompute_method")
              .find("full --recompute-method uniform --recompute-num-layers 1\n") !=
          std::string::npos);
    // Another letter is a slip, another word is not.
    const std::string slips = "--num-layer 32 --use-gpu --swigul --micro_batch_size 1\n";
    CHECK(fixed(head + slips, "unknown_option") ==
          head + "--num-layers 32 --use-gpu --swiglu --micro-batch-size 1\n");
    const std::string json = "{\n \"train_batch_size\": 8, # all\n \"zero_optimzation\": {}}\n";
    const std::string script = "STAGE=1\ncat > ds.json <<'EOF'\n" + json + "EOF\ndeepspeed t.py\n";
    CHECK(fixed(script, "unknown_option").find("8, # all\n \"zero_optimization\": {}}") !=
          std::string::npos);
    CHECK(fixed(script, "json_remark").find("8,\n \"zero") != std::string::npos);
    // Where the document was expanded, none.
    std::string open = script;
    open.replace(open.find("'EOF'"), 5, "EOF");
    open.replace(open.find("8, "), 1, "$STAGE");
    CHECK(fixed(open, "unknown_option") == open);
    CHECK(fixed(open, "json_remark") == open);
  }

  TEST_CASE("a job is read through every shell that hands it on") {
    const std::string path = std::string(QPLAN_TEST_DATA) + "/configs/slurm_nested/job.sbatch";
    const Checked checked = ask_text("job.sbatch", read_text_file(path), "llama3-8b", 32);
    CAPTURE(findings_text(checked));
    CHECK(checked.framework == Framework::megatron);
    CHECK(checked.plan.tp == 4);
    CHECK(checked.plan.zero == 1);
    CHECK(checked.plan.global_batch_size == 32);
    CHECK(find(checked, "not_resolved") == nullptr);
    CHECK(find(checked, "no_precision") == nullptr);
    CHECK(find(checked, "queues") == nullptr);
    CHECK(find(checked, "launched_world") == nullptr);
    const Checked more = ask_text("job.sbatch", read_text_file(path), "llama3-8b", 64);
    REQUIRE(find(more, "launched_world") != nullptr);
    CHECK(find(more, "launched_world")->message.find("4 x 8 = 32") != std::string::npos);
  }

  TEST_CASE("arguments that are no words of torchtitan's are passed over") {
    const Checked checked = ask_text(
        "run.sh", "torchrun torchtitan/train.py -=1 -x --training.steps 3\n", "qwen3-32b", 8);
    CHECK(checked.framework == Framework::torchtitan);
  }

  TEST_CASE("files with bytes changed at random are read or refused, never worse") {
    std::mt19937 random(5);
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    static constexpr std::string_view kBytes = "\"'{}[]()$\\#:,=-*&|<>;\n\t 019aE.";
    const ModelSpec model = load_model("qwen3-30b-a3b");
    const Json config = model_config("qwen3-30b-a3b");
    for (const std::string path :
         {"megatron_yaml_and_deepspeed/deepspeed_config.json",
          "megatron_yaml_and_deepspeed/megatron_config.yaml", "megatron_deepspeed/ds_config.json",
          "megatron_deepspeed/train.sh", "fsdp_qwen3_vl/train.py", "slime_qwen3_30b_a3b/run.sh",
          "fsdp_qwen3_32b/launch.sh", "slurm_nested/job.sbatch"}) {
      const std::string text = read_text_file(std::string(QPLAN_TEST_DATA) + "/configs/" + path);
      for (int round = 0; round < test_rounds(200); ++round) {
        std::string changed = text;
        for (std::size_t edits = 1 + below(6); edits > 0; --edits) {
          const std::size_t at = below(changed.size());
          switch (below(3)) {
            case 0:
              changed[at] = kBytes[below(kBytes.size())];
              break;
            case 1:
              changed.insert(at, 1, kBytes[below(kBytes.size())]);
              break;
            default:
              changed.erase(at, 1 + below(20));
              break;
          }
        }
        CAPTURE(path);
        CAPTURE(round);
        const std::vector<ConfigText> texts{{path, changed}};
        try {
          const Checked checked = check(texts, question_of(model, config, 64));
          for (const Finding& f : checked.findings) with_edits(changed, path, f.fix);
        } catch (const Error& error) {
          CHECK_FALSE(std::string(error.what()).empty());
        }
      }
    }
  }

  TEST_CASE("prose beside a job's files is no mistake") {
    const Checked checked = ask_text("README.md", "# How to start\n\nrun train.sh\n");
    REQUIRE(find(checked, "prose") != nullptr);
    CHECK(find(checked, "unknown_file") == nullptr);
  }

  TEST_CASE("any prefix of a real script is read without harm") {
    const std::string path = std::string(QPLAN_TEST_DATA) + "/configs/slime_qwen3_30b_a3b/";
    const std::string text = read_text_file(path + "run.sh");
    for (std::size_t end = 0; end < text.size(); end += 37) {
      CHECK_NOTHROW(ask_text("run.sh", text.substr(0, end)));
    }
  }
}

}  // namespace
}  // namespace qplan
