// Training programs of one's own: what they ask of torch and transformers.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

// Of several files, on one node's GPUs unless said.
Checked ask(const std::vector<ConfigText>& texts, std::int64_t gpus = 8,
            const std::string& model_name = "qwen3-8b") {
  return ask_texts(texts, model_name, gpus);
}

Checked ask_program(const std::string& text, std::int64_t gpus = 8) {
  return ask_text("train.py", text, "qwen3-8b", gpus);
}

const std::string kWrap =
    "model = FSDP(model, auto_wrap_policy=policy, mixed_precision=MixedPrecision(\n"
    "    param_dtype=torch.bfloat16, reduce_dtype=torch.float32))\n";

TEST_SUITE("activations that a program recomputes") {
  // Each by itself makes every layer be computed again.
  const std::vector<std::string> kWays{
      "model.gradient_checkpointing_enable()\n",
      "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': "
      "False})\n",
      "apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=is_layer)\n",
      "for i, layer in enumerate(model.layers):\n    model.layers[i] = checkpoint_wrapper(layer)\n",
      "args = TrainingArguments(output_dir='o', gradient_checkpointing=True)\n",
      "args = trl.SFTConfig(output_dir='o', gradient_checkpointing=True)\n",
      "model.config.gradient_checkpointing = True\n",
      "model = AutoModelForCausalLM.from_pretrained(name, gradient_checkpointing=True)\n",
      "from torch.utils.checkpoint import checkpoint\nx = checkpoint(layer, x)\n",
      "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)\n",
      "plugin = FullyShardedDataParallelPlugin(activation_checkpointing=True)\n"};

  TEST_CASE("wherever it stands, and in whichever file") {
    for (const std::string& way : kWays) {
      CAPTURE(way);
      for (const std::string& text : {way + kWrap, kWrap + way}) {
        const Checked checked = ask_program(text);
        CHECK(checked.plan.recompute.kind == RecomputeKind::full);
        CHECK_MESSAGE(find(checked, "not_resolved") == nullptr, findings_text(checked));
      }
      const Checked apart = ask({{"model.py", way}, {"train.py", kWrap}});
      CHECK(apart.plan.recompute.kind == RecomputeKind::full);
      const std::string config = "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}}";
      const Checked deepspeed = ask({{"train.py", way}, {"ds.json", config}});
      CHECK(deepspeed.framework == Framework::deepspeed);
      CHECK(deepspeed.plan.recompute.kind == RecomputeKind::full);
    }
  }

  TEST_CASE("what is switched off, only defined, or another's checkpoint is none") {
    for (const std::string text :
         {"model.gradient_checkpointing_enable()\nmodel.gradient_checkpointing_disable()\n",
          "args = TrainingArguments(output_dir='o', gradient_checkpointing=False)\n",
          "model.config.gradient_checkpointing = False\n",
          "def checkpoint_wrapper(layer):\n    return layer\n", "saver.checkpoint(model)\n",
          "# model.gradient_checkpointing_enable()\n",
          "note = 'model.gradient_checkpointing_enable()'\n"}) {
      CAPTURE(text);
      CHECK(ask_program(text + kWrap).plan.recompute.kind == RecomputeKind::none);
    }
  }

  TEST_CASE("torch's selective checkpoints choose operators") {
    const Checked checked = ask_program(
        "from torch.utils.checkpoint import create_selective_checkpoint_contexts\n"
        "layer = checkpoint_wrapper(layer, context_fn=chosen)\n" +
        kWrap);
    CHECK(checked.plan.recompute.kind == RecomputeKind::selective);
  }

  TEST_CASE("what only a run can tell is said to be so") {
    const Checked guarded =
        ask_program("if args.save_memory:\n    model.gradient_checkpointing_enable()\n" + kWrap);
    CHECK(guarded.plan.recompute.kind == RecomputeKind::full);
    REQUIRE(find(guarded, "not_resolved") != nullptr);
    CHECK(find(guarded, "not_resolved")->message.find("where args.save_memory holds") !=
          std::string::npos);
    const Checked passed =
        ask_program("model = build(gradient_checkpointing=args.save_memory)\n" + kWrap);
    CHECK(passed.plan.recompute.kind == RecomputeKind::none);
    REQUIRE(find(passed, "not_resolved") != nullptr);
    CHECK(find(passed, "not_resolved")->place.line == 1);
    const Checked main = ask_program(
        "if __name__ == '__main__':\n    model.gradient_checkpointing_enable()\n" + kWrap);
    CHECK(find(main, "not_resolved") == nullptr);
  }
}

TEST_SUITE("a Trainer's arguments in Python") {
  TEST_CASE("are those of its command line") {
    const Checked checked = ask({{"train.py",
                                  "args = TrainingArguments(output_dir='o', bf16=True,\n"
                                  "    per_device_train_batch_size=2, max_grad_norm=0.5,\n"
                                  "    gradient_accumulation_steps=4, deepspeed='ds.json')\n"},
                                 {"ds.json",
                                  "{\"zero_optimization\": {\"stage\": 3}, \"bf16\": {\"enabled\": "
                                  "true}, \"gradient_clipping\": 1.0}"}});
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(checked.plan.micro_batch_size == 2);
    CHECK(checked.plan.global_batch_size == 64);
    REQUIRE(find(checked, "trainer_mismatch") != nullptr);
    CHECK(find(checked, "trainer_mismatch")->place.line == 2);
  }
}

TEST_SUITE("a Trainer that no accelerate configuration tells how to shard") {
  TEST_CASE("does as its argument fsdp says, and else shards nothing") {
    const auto plan_of = [](const std::string& more, const std::string& launcher) {
      return ask(
          {{"train.sh", launcher + " train.py\n"},
           {"train.py", "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1" +
                            more + ")\n"}},
          16);
    };
    const std::string torchrun = "torchrun --nnodes 2 --nproc_per_node 8";
    const Checked copies = plan_of("", torchrun);
    CHECK(copies.recipe == RecipeKind::ddp);
    CHECK(copies.plan.zero == 0);
    CHECK(copies.says_plan);
    REQUIRE(find(copies, "replicated") != nullptr);
    CHECK(find(copies, "replicated")->message.find("nothing shards") != std::string::npos);
    const Checked whole = plan_of(", fsdp='full_shard auto_wrap'", torchrun);
    CHECK(whole.plan.zero == 3);
    CHECK(whole.plan.fsdp_shard == 0);
    CHECK(find(whole, "replicated") == nullptr);
    CHECK(plan_of(", fsdp='shard_grad_op offload'", torchrun).plan.zero == 2);
    CHECK(plan_of(", fsdp='shard_grad_op offload'", torchrun).plan.offload.params);
    CHECK(plan_of(", fsdp='hybrid_shard auto_wrap'", torchrun).plan.fsdp_shard == 8);
    CHECK(plan_of(", fsdp=''", torchrun).recipe == RecipeKind::ddp);
    // The same by arguments of its command line.
    const Checked line =
        ask({{"train.sh", torchrun + " train.py --model_name_or_path m --bf16 True "
                                     "--per_device_train_batch_size 1 "
                                     "--fsdp \"full_shard auto_wrap\"\n"}},
            16);
    CHECK(line.plan.zero == 3);
    CHECK(line.plan.fsdp_shard == 0);
    CHECK(find(plan_of(", parallelism_config=mesh", torchrun), "replicated") == nullptr);
    // Its words of the same name as torchtitan's are accelerate's.
    CHECK(find(ask_program("from accelerate import ParallelismConfig\n"
                           "mesh = ParallelismConfig(dp_shard_size=8, tp_size=2)\n"
                           "model = DDP(model)\n"),
               "unknown_option") == nullptr);
    // accelerate has a configuration of its own somewhere.
    CHECK(find(plan_of("", "accelerate launch --num_processes 16"), "replicated") == nullptr);
  }

  TEST_CASE("of a field that is none, Python stops: a beginning alone is none either") {
    for (const std::string written :
         {"gradient_accumulation_step", "per_device_train_batch", "gradient_checkpointin"}) {
      CAPTURE(written);
      const Checked checked = ask_program(
          "model = FSDP(model, auto_wrap_policy=p)\nargs = TrainingArguments(output_dir='o', " +
          written + "=8)\n");
      const Finding* const found = find(checked, "unknown_option");
      REQUIRE(found != nullptr);
      CHECK(found->severity == Severity::error);
      CHECK(found->message.find(written) == 0);
      CHECK(found->message.find("Python stops") != std::string::npos);
    }
    for (const std::string known : {"gradient_accumulation_steps=8", "packing=True", "seed=1",
                                    "max_length=4096", "my_own_field=3"}) {
      CAPTURE(known);
      CHECK(find(ask_program("model = FSDP(model, auto_wrap_policy=p)\n"
                             "args = SFTConfig(output_dir='o', " +
                             known + ")\n"),
                 "unknown_option") == nullptr);
    }
  }

  TEST_CASE("by a DeepSpeed configuration that only a run can tell is not judged") {
    const Checked checked = ask_program(
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1, "
        "deepspeed=options.config)\n");
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(find(checked, "config_missing") != nullptr);
    CHECK_FALSE(checked.says_plan);
  }
}

TEST_SUITE("adapters beside frozen weights") {
  TEST_CASE("weights of 4 or 8 bits beside adapters are the plan's frozen weights") {
    const auto plan_of = [](const std::string& quantised) {
      return ask_program(
                 quantised +
                 "model = AutoModelForCausalLM.from_pretrained(name, dtype='bfloat16', "
                 "quantization_config=q)\n"
                 "model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.05))\n"
                 "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1)\n")
          .plan;
    };
    CHECK(plan_of("q = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n")
              .frozen_weights == FrozenFormat::nf4);
    CHECK(plan_of("q = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)\n")
              .frozen_weights == FrozenFormat::nf4_double);
    CHECK(plan_of("q = BitsAndBytesConfig(load_in_8bit=True)\n").frozen_weights ==
          FrozenFormat::int8);
    CHECK(plan_of("q = GPTQConfig(bits=4)\n").frozen_weights == FrozenFormat::int4);
    CHECK(plan_of("q = BitsAndBytesConfig(load_in_4bit=False)\n").frozen_weights ==
          FrozenFormat::computed);
    CHECK(plan_of("").lora_dropout == 0.05);
    CHECK(plan_of("").zero == 0);
  }

  TEST_CASE("what peft makes fp32 is counted where it is called") {
    const std::string job =
        "model = get_peft_model(model, LoraConfig(r=8))\n"
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=2)\n";
    CHECK(find(ask_program(job), "fp32_residual") == nullptr);
    const Checked checked = ask_program("model = prepare_model_for_kbit_training(model)\n" + job);
    REQUIRE(find(checked, "fp32_residual") != nullptr);
    // 2 bytes x 2 sequences of 4096 x 4096 wide x 36 layers.
    CHECK(checked.plan.seq_len == 4096);
    CHECK(find(checked, "fp32_residual")->message.find("2.25 GiB") != std::string::npos);
  }

  TEST_CASE("peft's LoraConfig is a plan of its own, whoever shards") {
    const std::string load =
        "model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)\n";
    const std::string lora =
        "config = LoraConfig(r=16, lora_alpha=64, target_modules=['q_proj', 'o_proj'])\n"
        "model = get_peft_model(model, config)\n";
    const Checked checked = ask_program(load + lora + "model = FSDP(model, auto_wrap_policy=p)\n");
    CHECK(checked.plan.lora_rank == 16);
    CHECK(checked.plan.lora_alpha == 64);
    CHECK(checked.plan.lora_targets ==
          LoraTargets{}.add(LoraTarget::q_proj).add(LoraTarget::o_proj));
    // Adapters are in fp32 beside frozen weights in bf16.
    CHECK(checked.plan.moment_dtype == DType::fp32);
    CHECK(find(checked, "narrow_weights") == nullptr);
    CHECK_FALSE(checked.has(Severity::error));
    const Checked deepspeed =
        ask({{"train.py", lora},
             {"ds.json", "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}}"}});
    CHECK(deepspeed.plan.lora_rank == 16);
    const Checked trl = ask_program(
        "peft = LoraConfig(target_modules='all-linear', r=32)\n"
        "args = SFTConfig(output_dir='o', per_device_train_batch_size=1)\n"
        "trainer = SFTTrainer(model=model, args=args, peft_config=peft)\n");
    CHECK(trl.plan.lora_rank == 32);
    CHECK(trl.plan.lora_targets.empty());
  }

  TEST_CASE("what it does not say is peft's default, and said to be; unused, it is nothing") {
    const Checked bare = ask_program(
        "model = get_peft_model(model, LoraConfig())\nmodel = FSDP(model, auto_wrap_policy=p)\n");
    CHECK(bare.plan.lora_rank == 8);
    CHECK(bare.plan.lora_targets == LoraTargets{}.add(LoraTarget::q_proj).add(LoraTarget::v_proj));
    CHECK(bare.assumed.size() >= 3);
    const Checked unused =
        ask_program("config = LoraConfig(r=16)\nmodel = FSDP(model, auto_wrap_policy=p)\n");
    CHECK(unused.plan.lora_rank == 0);
  }
}

}  // namespace
}  // namespace qplan
