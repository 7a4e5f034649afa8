// TRL's YAML with accelerate's beside it, as `emit` writes them.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/rl/rl_step.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const ModelSpec& model() {
  static const ModelSpec kModel = load_model("llama3-8b");
  return kModel;
}
const Json& config() {
  static const Json kConfig = model_config("llama3-8b");
  return kConfig;
}

Subject subject_of(const ParallelPlan& plan, RecipeKind recipe, const RlStep* step = nullptr) {
  return {model(), config(), plan, recipe, 8, step};
}

Checked ask(const std::vector<ConfigText>& texts, std::int64_t gpus = 8) {
  return check_cited(texts, question_of(model(), config(), gpus));
}

std::string text_of_file(const std::vector<EmittedFile>& files, const std::string& name) {
  for (const EmittedFile& file : files) {
    if (file.name == name) return file.text;
  }
  return "";
}

}  // namespace

TEST_SUITE("TRL's files") {
  TEST_CASE("of DDP hold adapters beside weights of 4 bits, and come back") {
    const ParallelPlan plan = parse_plan(
        "dp8 gbs64 mbs2 seq4096 zero0 overlap=grad grad_dtype=bf16 recompute=full lora16 "
        "lora_alpha=32 lora_dropout=0.05 frozen=nf4-double");
    const Subject subject = subject_of(plan, RecipeKind::ddp);
    REQUIRE(why_inexpressible(Framework::trl, subject, {8, 90}).empty());
    const auto files = emit(Framework::trl, subject, {});
    CHECK(text_of_file(files, "accelerate.yaml").empty());
    CHECK(text_of_file(files, "train.yaml").find("load_in_4bit: true") != std::string::npos);
    const Checked checked = ask(texts_of(files));
    CHECK(checked.findings.size() == 1);
    CHECK_MESSAGE(find(checked, "replicated") != nullptr, findings_text(checked));  // a note
    CHECK(checked.framework == Framework::trl);
    CHECK(checked.recipe == RecipeKind::ddp);
    CHECK(to_string(checked.plan) == to_string(plan));
  }

  TEST_CASE("of DeepSpeed name its file, without which there is no plan") {
    const ParallelPlan plan =
        parse_plan("dp8 gbs64 mbs2 seq4096 zero3 overlap=grad grad_dtype=bf16");
    auto files = texts_of(emit(Framework::trl, subject_of(plan, RecipeKind::deepspeed), {}));
    const Checked whole = ask(files);
    CHECK_MESSAGE(whole.findings.empty(), findings_text(whole));
    CHECK(whole.recipe == RecipeKind::deepspeed);
    CHECK(whole.plan == plan);
    std::erase_if(files, [](const ConfigText& file) { return file.name == "ds_config.json"; });
    const Checked lacking = ask(files);
    CHECK(find(lacking, "config_missing") != nullptr);
    CHECK_FALSE(lacking.says_plan);
  }

  TEST_CASE("sequences longer than the model's positions are told") {
    const std::string yaml = "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nmax_length: ";
    CHECK(find(ask({{"sft.yaml", yaml + "1000000\n"}}), "long_sequences") != nullptr);
    CHECK(find(ask({{"sft.yaml", yaml + "4096\n"}}), "long_sequences") == nullptr);
  }

  TEST_CASE("name a configuration that TRL brings itself") {
    const std::string yaml =
        "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nmax_length: 4096\n"
        "per_device_train_batch_size: 1\nuse_peft: true\n";
    for (const std::string name : {"zero2", "zero3"}) {
      const Checked checked =
          ask({{"sft.yaml", yaml},
               {"train.sh", "trl sft --config sft.yaml --accelerate_config " + name + "\n"}});
      CHECK_MESSAGE(find(checked, "other_file_name") == nullptr, findings_text(checked));
      CHECK(checked.plan.zero == name.back() - '0');
    }
    // A file of its own has a name.
    const Checked other =
        ask({{"sft.yaml", yaml + "deepspeed: zero.json\n"},
             {"ds.json", "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}}"}});
    CHECK(find(other, "other_file_name") != nullptr);
  }

  TEST_CASE("of its own scripts are TRL's, whoever starts them") {
    const std::string accelerate =
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n"
        "  zero_stage: 3\n  zero3_init_flag: true\nmixed_precision: bf16\nnum_machines: 1\n"
        "num_processes: 8\n";
    const std::string arguments =
        " --model_name_or_path Qwen/Qwen3-8B --dataset_name d --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 8 --max_length 4096 --packing --bf16 "
        "--attn_implementation flash_attention_2";
    const auto files = [&](const std::string& script, const std::string& more) {
      return std::vector<ConfigText>{{"ds3.yaml", accelerate},
                                     {"train.sh", "accelerate launch --config_file ds3.yaml " +
                                                      script + arguments + more + "\n"}};
    };
    for (const std::string script :
         {"sft.py", "trl/scripts/sft.py", "-m trl.scripts.sft", "examples/scripts/sft.py"}) {
      CAPTURE(script);
      CHECK(model_id_of_files(read_job_files(files(script, ""))) == "Qwen/Qwen3-8B");
      const Checked checked = ask(files(script, ""));
      CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
      CHECK(checked.framework == Framework::trl);
      CHECK(checked.plan.zero == 3);
      CHECK(checked.plan.seq_len == 4096);
      CHECK(checked.plan.recompute.kind == RecomputeKind::full);  // SFTConfig's default
      const Checked slip = ask(files(script, " --max_lenght 4096"));
      REQUIRE(find(slip, "unknown_option") != nullptr);
      CHECK(find(slip, "unknown_option")->severity == Severity::error);
      const Checked old = ask(files(script, " --max_seq_length 4096"));
      REQUIRE(find(old, "unknown_option") != nullptr);
      CHECK(find(old, "unknown_option")->severity == Severity::error);
      CHECK(find(old, "unknown_option")->instead == "write --max_length");
    }
    CHECK(ask(files("dpo.py", "")).plan.micro_batch_size == 4);  // two sequences a pair
    // A program of one's own that has none of TRL's words is a Trainer's.
    const Checked own = ask({{"train.sh",
                              "torchrun --nproc-per-node 8 sft.py --model_name_or_path m "
                              "--per_device_train_batch_size 1 --bf16 --learning_rate 1e-4\n"}});
    CHECK(own.framework != Framework::trl);
  }

  TEST_CASE("are refused with words that its classes refuse") {
    const auto asked = [&](const std::string& more) {
      return ask({{"train.sh", "trl sft --model_name_or_path m --dataset_name d " + more + "\n"}});
    };
    REQUIRE(find(asked("--use_peft --load_in_4bit --load_in_8bit"), "options_exclude") != nullptr);
    CHECK(find(asked("--use_peft --load_in_4bit"), "options_exclude") == nullptr);
    CHECK(find(asked("--packing --packing_strategy bdf"), "refused_value") != nullptr);
    CHECK(find(asked("--packing --packing_strategy wrapped"), "refused_value") == nullptr);
    CHECK(find(asked("--attn_implementation sdap"), "refused_value") != nullptr);
    for (const std::string kernels :
         {"sdpa", "flash_attention_4", "kernels-community/flash-attn2", "flex_attention"}) {
      CHECK(find(asked("--attn_implementation " + kernels), "refused_value") == nullptr);
    }
  }

  TEST_CASE("of pairs train dpo, whose samples are two sequences") {
    const ParallelPlan plan = parse_plan("dp8 gbs64 mbs4 seq2048 zero3 overlap=grad+param");
    RlStep step;
    step.job.algorithm = Algorithm::dpo;
    const auto files = emit(Framework::trl, subject_of(plan, RecipeKind::fsdp2, &step), {});
    CHECK(text_of_file(files, "train.sh").find("trl dpo --config") != std::string::npos);
    const Checked checked = ask(texts_of(files));
    CHECK_FALSE(checked.has(Severity::error));
    CHECK(checked.plan == plan);
    ParallelPlan odd = plan;
    odd.micro_batch_size = 1;
    CHECK(broken_limit(Framework::trl, subject_of(odd, RecipeKind::fsdp2, &step)) == "trl_pairs");
    step.job.algorithm = Algorithm::grpo;
    CHECK(broken_limit(Framework::trl, subject_of(plan, RecipeKind::fsdp2, &step)) ==
          "trl_generates");
  }

  TEST_CASE("are those of adapters under DDP and DeepSpeed where nobody names others") {
    const ParallelPlan plan = parse_plan("dp8 gbs64 seq4096 zero0 lora16");
    CHECK(files_of(RecipeKind::ddp, model(), plan) == Framework::trl);
  }

  TEST_CASE("nobody writes what his files have no word for") {
    ParallelPlan plan = parse_plan("dp8 gbs64 seq4096 zero3 overlap=grad+param lora16");
    plan.frozen_weights = FrozenFormat::nf4;
    for (const Framework other : {Framework::ms_swift, Framework::automodel}) {
      CHECK(!broken_limit(other, subject_of(plan, RecipeKind::fsdp2)).empty());
    }
    CHECK(broken_limit(Framework::trl, subject_of(plan, RecipeKind::fsdp2)).empty());
    plan.module_kernels = ModuleKernels::all;
    CHECK(broken_limit(Framework::trl, subject_of(plan, RecipeKind::fsdp2)) ==
          "kernels_of_modules");
  }

  TEST_CASE("hold words that it looks up, and lists that go together") {
    const std::string grpo =
        "model_name_or_path: meta-llama/Llama-3.1-8B\ndataset_name: x\noutput_dir: o\n"
        "bf16: true\nnum_generations: 8\nper_device_train_batch_size: 8\n";
    const std::string sft =
        "model_name_or_path: meta-llama/Llama-3.1-8B\ndataset_name: x\noutput_dir: o\n"
        "max_length: 1024\npacking: true\nattn_implementation: flash_attention_2\n";
    struct Row {
      std::string verb, keys, rule;
      Severity severity = Severity::error;
    };
    const std::vector<Row> rows{
        {"grpo", "use_vllm: true\nvllm_mode: colocated\n", "refused_value"},
        {"grpo", "use_vllm: true\nvllm_mode: server\n", ""},
        {"grpo", "loss_type: dr-grpo\n", "refused_value"},
        {"grpo", "loss_type: dr_grpo\n", ""},
        {"grpo", "loss_type: nll\n", "refused_value", Severity::warning},  // of another command
        {"sft", "loss_type: nll\n", ""},
        {"grpo", "scale_rewards: groups\n", "refused_value"},
        {"grpo", "scale_rewards: batch\n", ""},
        {"grpo", "scale_rewards: false\n", ""},
        {"sft", "dtype: bf16\n", "refused_value"},
        {"sft", "dtype: bfloat16\n", ""},
        {"grpo", "reward_funcs: [a, b]\nreward_weights: [1.0]\n", "option_needs"},
        {"grpo", "reward_funcs: [a, b]\nreward_weights: [1.0, 0.5]\n", ""},
        {"grpo", "reward_funcs: [a]\nreward_model_name_or_path: m\nreward_weights: [1, 2]\n", ""},
        {"grpo", "use_vllm: true\nvllm_tensor_parallel_size: 3\n", "rollout_divisibility"},
        {"grpo", "use_vllm: true\nvllm_tensor_parallel_size: 4\n", ""},
        {"grpo", "use_vllm: true\nvllm_mode: server\nvllm_tensor_parallel_size: 3\n", ""},
        {"grpo", "use_vllm: true\nvllm_gpu_memory_utilization: 30\n", "refused_value"},
        {"sft", "use_liger: true\n", "unknown_option"},
        {"sft", "use_liger_kernel: true\n", ""},
        {"sft", "evaluation_strategy: steps\n", "unknown_option"}};
    const std::vector<std::string> rules{"refused_value", "option_needs", "rollout_divisibility",
                                         "unknown_option"};
    for (const Row& row : rows) {
      CAPTURE(row.keys);
      const Checked checked =
          ask({{"run.sh", "trl " + row.verb + " --config job.yaml --num_processes 8\n"},
               {"job.yaml", (row.verb == "sft" ? sft : grpo) + row.keys}});
      CAPTURE(findings_text(checked));
      if (!row.rule.empty()) {
        REQUIRE(find(checked, row.rule) != nullptr);
        CHECK(find(checked, row.rule)->severity == row.severity);
        continue;
      }
      for (const std::string& rule : rules) CHECK(find(checked, rule) == nullptr);
    }
    // A command's beginning of one name is that name.
    const Checked begun = ask({{"run.sh",
                                "trl sft --model_name_or_path meta-llama/Llama-3.1-8B "
                                "--dataset_name x --output_dir o --use_liger "
                                "--num_processes 8\n"}});
    CHECK_MESSAGE(find(begun, "unknown_option") == nullptr, findings_text(begun));
    const Checked share =
        ask({{"run.sh", "trl grpo --config job.yaml --num_processes 8\n"},
             {"job.yaml", grpo + "use_vllm: true\nvllm_gpu_memory_utilization: 30\n"}});
    CHECK(find(share, "vllm_share") == nullptr);
    CHECK(find(share, "refused_value")->instead == "0.3 for 30 percent");
  }
}

}  // namespace qplan
