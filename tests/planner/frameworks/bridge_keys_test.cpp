// Megatron-Bridge's configuration by YAML and by words of a command, without a program.

#include "planner/frameworks/megatron/bridge_keys.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/fix.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kOverrides =
    "model:\n  seq_length: 4096\n  tensor_model_parallel_size: 4\n  sequence_parallel: true\n"
    "train:\n  global_batch_size: 64\n  micro_batch_size: 2\n  train_iters: 100\n"
    "optimizer:\n  lr: 0.0001\n  min_lr: 1e-5\ndataset:\n  seq_length: 4096\n"
    "ddp:\n  use_distributed_optimizer: true\n";
const std::string kRecipe =
    "run:\n  data: x\nrecipe:\n"
    "  _target_: megatron.bridge.recipes.llama.llama3_8b_pretrain_config\n"
    "data:\n  path: x\ndataset:\n  packed_dir: x\ntrain:\n  global_batch_size: 256\n"
    "model:\n  context_parallel_size: 1\n  tensor_model_parallel_size: 2\n";
// What a run writes of itself, cut short.
const std::string kWhole =
    "_target_: megatron.bridge.training.config.ConfigContainer\ncomm_overlap: null\n"
    "dataset:\n  _target_: megatron.bridge.training.config.GPTDatasetConfig\n"
    "  sequence_length: 4096\n  of_another_release: 1\n"
    "ddp:\n  overlap_grad_reduce: true\n  overlap_param_gather: true\n"
    "  use_distributed_optimizer: true\n"
    "mixed_precision:\n  bf16: true\n  fp8: null\n  grad_reduce_in_fp32: false\n"
    "  params_dtype:\n    _call_: false\n    _target_: torch.bfloat16\n"
    "model:\n  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3ModelProvider\n"
    "  activation_func:\n    _call_: false\n    _target_: torch.nn.functional.silu\n"
    "  add_bias_linear: false\n  context_parallel_size: 1\n  ffn_hidden_size: 12288\n"
    "  gated_linear_unit: true\n  hidden_size: 4096\n  kv_channels: 128\n"
    "  moe_token_dispatcher_type: allgather\n  normalization: RMSNorm\n"
    "  num_attention_heads: 32\n  num_layers: 36\n  num_moe_experts: null\n"
    "  num_query_groups: 8\n  pipeline_model_parallel_size: 2\n  position_embedding_type: rope\n"
    "  qk_layernorm: true\n  recompute_granularity: null\n  recompute_modules:\n  - core_attn\n"
    "  seq_length: 4096\n  sequence_parallel: true\n  share_embeddings_and_output_weights: false\n"
    "  tensor_model_parallel_size: 2\n  virtual_pipeline_model_parallel_size: null\n"
    "  vocab_size: 151936\n"
    "optimizer:\n  exp_avg_dtype:\n    _call_: false\n    _target_: torch.bfloat16\n"
    "  exp_avg_sq_dtype:\n    _call_: false\n    _target_: torch.bfloat16\n"
    "  optimizer: adam\n  use_precision_aware_optimizer: true\n"
    "peft: null\ntrain:\n  global_batch_size: 128\n  micro_batch_size: 1\n  train_iters: 10\n";
const std::string kCommand =
    "torchrun --nproc-per-node 8 --nnodes 2 scripts/training/run_recipe.py \\\n"
    "  --recipe llama3_8b_pretrain_config --mode pretrain -tp 4 -mb 2 --seq_length 4096 \\\n"
    "  train.global_batch_size=128 model.sequence_parallel=True model.context_parallel_size=1\n";

Checked ask(const std::string& name, const std::string& text, std::int64_t gpus = 16) {
  return ask_text(name, text, "llama3-8b", gpus);
}

bool assumes(const Checked& checked, const std::string& part) {
  return std::any_of(checked.assumed.begin(), checked.assumed.end(), [&](const auto& sentence) {
    return sentence.find(part) != std::string::npos;
  });
}

std::string rules(const Checked& checked) {
  std::string all;
  for (const Finding& found : checked.findings) {
    if (found.severity != Severity::note) all += found.rule + " ";
  }
  return all;
}

TEST_SUITE("Megatron-Bridge without a program") {
  TEST_CASE("a YAML on top of a recipe is judged by what it says") {
    const Checked yaml = ask("over.yaml", kOverrides);
    CHECK_MESSAGE(rules(yaml).empty(), findings_text(yaml));
    CHECK(yaml.framework == Framework::megatron_bridge);
    CHECK(yaml.says_plan);
    CHECK(yaml.plan.tp == 4);
    CHECK(yaml.plan.sequence_parallel);
    CHECK(yaml.plan.zero == 1);
    CHECK(yaml.plan.micro_batch_size == 2);
    CHECK(yaml.plan.global_batch_size == 64);
    CHECK(yaml.takes_less);
    CHECK(assumes(yaml, "comes from elsewhere"));
    // scripts/performance of its first releases put a name around all.
    std::string wrapped = "ConfigContainer:\n";
    for (const char c : "  " + kOverrides) {
      wrapped += c;
      if (c == '\n') wrapped += "  ";
    }
    CHECK(ask("over.yaml", wrapped.substr(0, wrapped.size() - 2)).plan.tp == 4);
  }

  TEST_CASE("what is wrong with a YAML is found at its line, in its own words") {
    struct Fault {
      std::string from, to, rule;
      int line;
    };
    const std::vector<Fault> faults{
        {"  tensor_model_parallel_size: 4", "  tensor_model_paralel_size: 4", "unknown_option", 3},
        {"optimizer:", "optimzer:", "unknown_option", 9},
        {"  global_batch_size: 64", "  global_batch_size: 63", "batch_divisibility", 6},
        {"  micro_batch_size: 2", "  micro_batch_size: \"2\"", "refused_value", 7},
        {"  min_lr: 1e-5", "  min_lr: 1e-3", "option_needs", 11},
        {"dataset:\n  seq_length: 4096", "dataset:\n  seq_length: 8192", "two_lengths", 13},
    };
    for (const Fault& fault : faults) {
      CAPTURE(fault.to);
      const Checked checked = ask("over.yaml", with_words(kOverrides, fault.from, fault.to));
      const Finding* const found = find(checked, fault.rule);
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK(found->place.line == fault.line);
      CHECK(found->message.find("cfg.") == std::string::npos);
      CHECK(found->instead.find("cfg.") == std::string::npos);
    }
  }

  TEST_CASE("a recipe that a YAML names counts below it, and its program's sections are its own") {
    const Checked yaml = ask("job.yaml", kRecipe);
    CHECK_MESSAGE(rules(yaml).empty(), findings_text(yaml));
    CHECK(yaml.plan.tp == 2);
    CHECK(yaml.plan.cp == 1);          // the recipe has 2
    CHECK(yaml.plan.seq_len == 8192);  // the recipe's
    CHECK(yaml.plan.global_batch_size == 256);
    CHECK_FALSE(yaml.takes_less);
    const std::vector<ConfigText> files{{"job.yaml", kRecipe}};
    CHECK(model_id_of_files(read_job_files(files)) == "llama3-8b");
  }

  TEST_CASE("what a run wrote of itself is the whole job, its model included") {
    const std::vector<ConfigText> files{{"run_config.yaml", kWhole}};
    const auto model = model_of_files(read_job_files(files));
    REQUIRE(model.has_value());
    CHECK(model->config["num_hidden_layers"] == 36);
    CHECK(model->config["model_type"] == "qwen3");
    CHECK(model->config["vocab_size"] == 151936);
    const Checked run = ask_text("run_config.yaml", kWhole, "qwen3-8b", 16);
    CHECK_MESSAGE(rules(run).empty(), findings_text(run));
    CHECK(run.plan.tp == 2);
    CHECK(run.plan.pp == 2);
    CHECK(run.plan.zero == 1);
    CHECK(run.plan.grad_dtype == DType::bf16);
    CHECK(run.plan.moment_dtype == DType::bf16);
    CHECK(run.plan.overlap.has(OverlapKind::grad));
    CHECK(run.plan.overlap.has(OverlapKind::param));
    CHECK_FALSE(run.takes_less);
    CHECK(ask_text("run_config.yaml", with_words(kWhole, "  fp8: null", "  fp8: hybrid"),
                   "qwen3-8b", 16)
              .plan.precision == Precision::fp8);
    // Beside weights that were converted no section trains.
    const std::string converted = with_words(
        kWhole, "train:\n  global_batch_size: 128\n  micro_batch_size: 1\n  train_iters: 10\n",
        "train: null\n");
    CHECK(find(ask("run_config.yaml", converted), "unknown_file") != nullptr);
  }

  TEST_CASE("words of a command stand on top of the recipe that they name") {
    const Checked words = ask("run.sh", kCommand);
    CHECK_MESSAGE(rules(words).empty(), findings_text(words));
    CHECK(words.plan.tp == 4);
    CHECK(words.plan.cp == 1);
    CHECK(words.plan.micro_batch_size == 2);
    CHECK(words.plan.global_batch_size == 128);
    CHECK(words.plan.seq_len == 4096);  // the runner hands it to the model, too
    CHECK(words.plan.zero == 1);
    const Checked stem = ask(
        "run.sh", with_words(kCommand, "--recipe llama3_8b_pretrain_config", "--model llama3_8b"));
    CHECK(stem.plan.tp == 4);
    CHECK_FALSE(stem.takes_less);
    // Of those that the runner has and these words alone, the last counts.
    const Checked twice = ask("run.sh", with_words(kCommand, "model.context_parallel_size=1",
                                                   "model.tensor_model_parallel_size=2"));
    CHECK(twice.plan.tp == 2);
    CHECK(find(ask("run.sh",
                   with_words(kCommand, "llama3_8b_pretrain_config", "llama3_8b_pretrian_config")),
               "unknown_recipe") != nullptr);
    const Checked slip = ask("run.sh", with_words(kCommand, "model.sequence_parallel=True",
                                                  "model.sequnce_parallel=True"));
    const Finding* const found = find(slip, "unknown_option");
    REQUIRE_MESSAGE(found != nullptr, findings_text(slip));
    CHECK(found->message.find("Hydra stops") != std::string::npos);
    CHECK_FALSE(found->fix.empty());
    for (const auto& [from, to, rule] :
         {std::array<std::string, 3>{"-tp 4", "--tensor-model-parallel-size 4", "unknown_option"},
          {"-tp 4", "--tensor_model_paralel_size 4", "unknown_option"},
          {"--mode pretrain", "--mode pretran", "refused_value"},
          {"--mode pretrain", "--mode lora", "options_exclude"}}) {
      CAPTURE(to);
      const Checked refused = ask("run.sh", with_words(kCommand, from, to));
      const Finding* const why = find(refused, rule);
      REQUIRE_MESSAGE(why != nullptr, findings_text(refused));
      if (rule == "unknown_option") {
        CHECK(why->message.find(to.substr(0, to.find(' '))) != std::string::npos);
      }
    }
    // Another program's words are none of Bridge's.
    const Checked nemo = ask("run.sh",
                             "torchrun --nproc-per-node 8 pretrain.py trainer.devices=8 "
                             "model.tensor_model_parallel_size=2\n");
    CHECK(nemo.framework != Framework::megatron_bridge);
  }

  TEST_CASE("a program, the YAML that its command names and the words are one job") {
    const std::string program =
        "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
        "from megatron.bridge.training.utils.omegaconf_utils import "
        "process_config_with_overrides\n"
        "cfg = llama3_8b_pretrain_config()\n"
        "cfg = process_config_with_overrides(cfg, args.config_file, cli)\n";
    const std::string command =
        "torchrun --nproc-per-node 8 --nnodes 2 job.py --config-file conf/over.yaml "
        "model.tensor_model_parallel_size=8\n";
    const Checked job = ask_texts(
        {{"job.py", program}, {"over.yaml", kOverrides}, {"run.sh", command}}, "llama3-8b", 16);
    CHECK_MESSAGE(!job.has(Severity::error), findings_text(job));
    CHECK(job.plan.tp == 8);                // the command's
    CHECK(job.plan.micro_batch_size == 2);  // the YAML's
    CHECK(job.plan.cp == 2);                // the recipe's
    CHECK_FALSE(assumes(job, "nothing on top of the program"));
    const Checked missing = ask_texts({{"job.py", program}, {"run.sh", command}}, "llama3-8b", 16);
    CHECK(find(missing, "config_missing") != nullptr);
    CHECK(missing.takes_less);
  }
}

}  // namespace
}  // namespace qplan
