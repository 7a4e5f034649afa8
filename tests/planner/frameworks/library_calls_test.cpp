// Calls of transformers', TRL's, PEFT's and torch's in a training program, and the dictionary that
// it gives DeepSpeed: each mistake by itself in a program that runs.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kTrl =
    "import torch\n"
    "from peft import LoraConfig\n"
    "from transformers import AutoModelForCausalLM\n"
    "from trl import SFTConfig, SFTTrainer\n"
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B', dtype=torch.bfloat16)\n"
    "peft_config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, bias='none',\n"
    "                         task_type='CAUSAL_LM', target_modules=['q_proj', 'v_proj'])\n"
    "args = SFTConfig(output_dir='o', per_device_train_batch_size=1, learning_rate=2e-4,\n"
    "                 max_length=2048, packing=True, bf16=True, report_to='none')\n"
    "SFTTrainer(model=model, args=args, train_dataset=data, peft_config=peft_config).train()\n";

const std::string kGrpo =
    "from trl import GRPOConfig, GRPOTrainer\n"
    "args = GRPOConfig(output_dir='o', per_device_train_batch_size=4, num_generations=8,\n"
    "                  max_completion_length=512, loss_type='dapo', beta=0.0,\n"
    "                  reward_weights=[1.0, 0.5], bf16=True)\n"
    "GRPOTrainer(model='Qwen/Qwen3-0.6B', reward_funcs=[accuracy, format_reward], args=args,\n"
    "            train_dataset=data).train()\n";

const std::string kShards =
    "import functools\n"
    "import torch\n"
    "import torch.distributed as dist\n"
    "from torch.distributed.device_mesh import init_device_mesh\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n"
    "dist.init_process_group('nccl')\n"
    "mesh = init_device_mesh('cuda', (8,))\n"
    "policy = functools.partial(transformer_auto_wrap_policy,\n"
    "                           transformer_layer_cls={Qwen3DecoderLayer})\n"
    "model = FSDP(model, auto_wrap_policy=policy)\n"
    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95))\n";

const std::string kDeepSpeed =
    "import deepspeed\n"
    "ds_config = {\n"
    "    'train_batch_size': 64,  # of all ranks\n"
    "    \"train_micro_batch_size_per_gpu\": 2,\n"
    "    \"gradient_accumulation_steps\": 4,\n"
    "    \"gradient_clipping\": 1.0,\n"
    "    \"bf16\": {\"enabled\": True},\n"
    "    \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": args.lr, \"betas\": (0.9, "
    "0.95)}},\n"
    "    \"zero_optimization\": {\n"
    "        \"stage\": 3,\n"
    "        \"overlap_comm\": True,\n"
    "    },\n"
    "}\n"
    "model.gradient_checkpointing_enable()\n"
    "engine, *_ = deepspeed.initialize(model=model, config=ds_config)\n";

struct Mistake {
  std::string was, is, rule;
  int line;
  std::string repaired;  // what --fix makes of `is`; empty: it leaves it
  Severity severity = Severity::error;
};

Checked ask_library(const std::string& text) {
  return ask_texts({{"train.py", text}}, "qwen3-0.6b", 8);
}

void check_mistakes(const std::string& program, const std::vector<Mistake>& mistakes) {
  const Checked clean = ask_library(program);
  CAPTURE(findings_text(clean));
  CHECK_FALSE(clean.has(Severity::error));
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.is);
    const std::string text = with_words(program, mistake.was, mistake.is);
    const Checked checked = ask_library(text);
    CAPTURE(findings_text(checked));
    const bool found =
        std::any_of(checked.findings.begin(), checked.findings.end(), [&](const Finding& f) {
          return f.rule == mistake.rule && f.place.line == mistake.line &&
                 f.severity == mistake.severity;
        });
    CHECK(found);
    const std::string fixed = fixed_text("train.py", text, "qwen3-0.6b", 8);
    CHECK(fixed ==
          (mistake.repaired.empty() ? text : with_words(text, mistake.is, mistake.repaired)));
  }
}

TEST_SUITE("calls of libraries in a program") {
  TEST_CASE("fields of TRL's classes, and PEFT's") {
    check_mistakes(
        kTrl,
        {{"max_length=2048", "max_lenght=2048", "unknown_option", 9, "max_length=2048"},
         {"per_device_train_batch_size=1", "per_device_train_batch_sizes=1", "unknown_option", 8,
          "per_device_train_batch_size=1"},
         {"packing=True", "packing=True, sequence_lenth=5", "unknown_option", 9, ""},
         {"max_length=2048", "max_seq_length=2048", "dropped_option", 9, "", Severity::note},
         {"learning_rate=2e-4", "learning_rate='2e-4'", "bad_value", 8, "learning_rate=2e-4"},
         {"packing=True", "packing=True, packing_strategy='bdf'", "refused_value", 9, ""},
         {"r=16", "rank=16", "unknown_option", 6, "r=16"},
         {"lora_dropout", "lora_drop_out", "unknown_option", 6, "lora_dropout"},
         {"bias='none'", "bias='no'", "refused_value", 6, "bias='none'"},
         {"'CAUSAL_LM'", "'CASUAL_LM'", "refused_value", 7, "'CAUSAL_LM'"},
         {"dtype=torch.bfloat16", "dtype='bf16'", "refused_value", 5, "dtype='bfloat16'"},
         {"dtype=torch.bfloat16", "dtype=torch.bf16", "undefined_name", 5, "dtype=torch.bfloat16"},
         {"bf16=True", "bf16='False'", "bad_value", 9, "bf16=False"},
         {"peft_config=peft_config)", "peft_configs=peft_config)", "unknown_option", 10,
          "peft_config=peft_config)"},
         {"bf16=True", "bf16=true", "undefined_name", 9, "bf16=True"},
         {"data, peft", "data, tokenizer=tokenizer, peft", "dropped_option", 10, "",
          Severity::note}});
  }

  TEST_CASE("words of GRPO, and a weight for each reward") {
    check_mistakes(kGrpo, {{"'dapo'", "'dappo'", "refused_value", 3, "'dapo'"},
                           {"beta=0.0", "beta='0.0'", "bad_value", 3, "beta=0.0"},
                           {"max_completion_length", "max_completion_len", "unknown_option", 3,
                            "max_completion_length"},
                           {"[1.0, 0.5]", "[1.0]", "option_needs", 4, ""},
                           {"[1.0, 0.5]", "[1.0, 0.5, 2]", "option_needs", 4, ""}});
    // What is not a list of its own may be of any length.
    for (const char* const rewards : {"rewards", "[*more, accuracy]", "[f for f in all]"}) {
      CAPTURE(rewards);
      const Checked checked = ask_library(with_words(kGrpo, "[accuracy, format_reward]", rewards));
      CHECK(find(checked, "option_needs") == nullptr);
    }
    // Experiments have classes of the same names.
    const Checked own = ask_library(
        with_words(with_words(kGrpo, "from trl import", "from trl.experimental.gspo_token import"),
                   "'dapo'", "'other'"));
    CAPTURE(findings_text(own));
    CHECK_FALSE(own.has(Severity::warning));
  }

  TEST_CASE("words of torch's calls") {
    check_mistakes(
        kShards,
        {{"'nccl'", "'ncl'", "refused_value", 7, "'nccl'"},
         {"lr=1e-5", "lr='1e-5'", "bad_value", 12, "lr=1e-5"},
         {"lr=1e-5", "lr=1e-5x", "python_syntax", 12, ""},
         {"(model, auto_wrap_policy", "(model, wrap_policy", "unknown_option", 11,
          "(model, auto_wrap_policy"},
         {"auto_wrap_policy=policy",
          "auto_wrap_policy=policy, sharding_strategy=ShardingStrategy.X", "undefined_name", 11,
          ""},
         {"mesh = init_device_mesh", "mesh = init_device_meshs", "undefined_name", 8, ""},
         {"'cuda'", "'gpu'", "refused_value", 8, "'cuda'"},
         {"betas=(0.9, 0.95)", "betas=0.9", "refused_value", 12, ""},
         {"lr=1e-5", "learning_rate=1e-5", "unknown_option", 12, "lr=1e-5"},
         {"{Qwen3DecoderLayer}", "Qwen3DecoderLayer", "refused_value", 10, "{Qwen3DecoderLayer}"},
         {"{Qwen3DecoderLayer}", "{LlamaDecoderLayer}", "wrap_class", 10, ""}});
  }

  TEST_CASE("names that only look like Python's") {
    // In texts, remarks, keywords and of a variable they are no mistakes.
    for (const std::string& line : std::vector<std::string>{
             "x = \"true\"", "f(true=1)", "x = {'a': 'null'}  # null", "true = True\nx = [true]",
             "import true\nx = [true]", "x = '''\n[true]'''"}) {
      CAPTURE(line);
      const Checked checked = ask_library(kTrl + line + "\n");
      CHECK(find(checked, "undefined_name") == nullptr);
    }
  }
}

TEST_SUITE("a dictionary in place of ds_config.json") {
  TEST_CASE("is judged as one, key by key") {
    check_mistakes(
        kDeepSpeed,
        {{"'train_batch_size': 64", "'train_batch_size': 60", "batch_arithmetic", 3, ""},
         {"\"stage\": 3", "\"stage\": 5", "bad_value", 10, ""},
         {"zero_optimization", "zero_optimisation", "unknown_option", 9, "zero_optimization"},
         {"overlap_comm", "overlap_com", "unknown_option", 11, "overlap_comm"},
         {"\"lr\": args.lr", "\"learning_rate\": 1e-5", "unknown_parameter", 8, "\"lr\": 1e-5"},
         {"clipping\": 1.0", "clipping\": \"1.0\"", "quoted_number", 6, "clipping\": 1.0"},
         {"{\"enabled\": True}", "{\"enabled\": True}, 'fp16': {'enabled': True}", "two_precisions",
          7, ""}});
  }

  TEST_CASE("what is taken out leaves the lines around it") {
    const std::string text = with_words(with_words(kDeepSpeed, "\"stage\": 3", "\"stage\": 2"),
                                        "        \"overlap_comm\": True,\n",
                                        "        \"stage3_prefetch_bucket_size\": 5e7,\n");
    CHECK(fixed_text("train.py", text, "qwen3-0.6b", 8) ==
          with_words(text, "        \"stage3_prefetch_bucket_size\": 5e7,\n", ""));
  }

  TEST_CASE("wherever it is handed on") {
    const std::string dictionary = "{'train_batch_size': 8, 'zero_optimization': {'stage': 7}}";
    for (const std::string& text :
         {"import deepspeed\ndeepspeed.initialize(config=" + dictionary + ")\n",
          "from transformers import TrainingArguments\nd = " + dictionary +
              "\nargs = TrainingArguments(output_dir='o', deepspeed=d)\n",
          "d = " + dictionary + "\nHfDeepSpeedConfig(d)\n"}) {
      CAPTURE(text);
      CHECK(find(ask_library(text), "bad_value") != nullptr);
    }
    // One that nobody is given, or that is set otherwise behind it, is none.
    for (const std::string& text :
         {"import deepspeed\nd = " + dictionary + "\n",
          "import deepspeed\nd = " + dictionary + "\nd = load()\ndeepspeed.initialize(config=d)\n",
          "import deepspeed\nd = " + dictionary +
              "\nd['zero_optimization']['stage'] = 3\ndeepspeed.initialize(config=d)\n"}) {
      CAPTURE(text);
      CHECK(find(ask_library(text), "bad_value") == nullptr);
    }
  }

  TEST_CASE("what is no literal is not known before it runs") {
    const Checked checked = ask_library(
        "import deepspeed\n"
        "c = {'train_batch_size': 2 * n, 'train_micro_batch_size_per_gpu': f(1, {}), 'bf16': "
        "{'enabled': x == 'a,b'}, 'zero_optimization': {'stage': args.stage, "
        "'reduce_bucket_size': int(5e8)}}\n"
        "deepspeed.initialize(config=c)\n");
    CAPTURE(findings_text(checked));
    CHECK(checked.framework == Framework::deepspeed);
    CHECK_FALSE(checked.has(Severity::error));
  }
}

}  // namespace
}  // namespace qplan
