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
  return ask({{"train.py", text}}, gpus);
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

const std::string kPolicy =
    "mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)\n";

TEST_SUITE("programs that shard by themselves") {
  TEST_CASE("FSDP's strategies, by any of its names and in any place of its signature") {
    const auto plan_of = [](const std::string& call) { return ask_program(call, 32).plan; };
    CHECK(plan_of("m = FSDP(m, auto_wrap_policy=p)\n").zero == 3);
    CHECK(plan_of("m = FSDP(m, None, ShardingStrategy.SHARD_GRAD_OP)\n").zero == 2);
    CHECK(plan_of("from torch.distributed.fsdp import FullyShardedDataParallel as Shard\n"
                  "m = Shard(m, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n")
              .zero == 2);
    CHECK(plan_of("s = ShardingStrategy.HYBRID_SHARD\nm = FSDP(m, sharding_strategy=s)\n")
              .fsdp_shard == 8);
    const ParallelPlan mesh = plan_of(
        "mesh = init_device_mesh('cuda', (8, 4))\n"
        "m = FSDP(m, sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, device_mesh=mesh)\n");
    CHECK(mesh.fsdp_shard == 4);
    CHECK(mesh.zero == 2);
    CHECK(plan_of("m = FSDP(m, sharding_strategy=ShardingStrategy.NO_SHARD)\n").fsdp_shard == 1);
  }

  TEST_CASE("a strategy that is text is none, and one that a name holds may be") {
    for (const std::string strategy : {"'FULL_SHARD'", "\"SHARD_GRAD_OP\"", "1"}) {
      CHECK(
          find(ask_program("m = FSDP(m, auto_wrap_policy=p, sharding_strategy=" + strategy + ")\n"),
               "sharding_strategy") != nullptr);
    }
    for (const std::string strategy :
         {"args.strategy", "strategy", "pick(name)", "ShardingStrategy[args.name]",
          "torch.distributed.fsdp.ShardingStrategy.FULL_SHARD"}) {
      CHECK(
          find(ask_program("m = FSDP(m, auto_wrap_policy=p, sharding_strategy=" + strategy + ")\n"),
               "sharding_strategy") == nullptr);
    }
  }

  TEST_CASE("gradients are reduced as MixedPrecision says, and else in the products' format") {
    const auto grads = [](const std::string& more) {
      return ask_program(
                 "m = FSDP(m, auto_wrap_policy=p, mixed_precision=MixedPrecision(\n"
                 "    param_dtype=torch.bfloat16" +
                 more + "))\n")
          .plan.grad_dtype;
    };
    CHECK(grads("") == DType::bf16);
    CHECK(grads(", reduce_dtype=torch.bfloat16") == DType::bf16);
    CHECK(grads(", reduce_dtype=torch.float32") == DType::fp32);
  }

  TEST_CASE("fully_shard in a loop over layers is FSDP2") {
    const std::string loop =
        "mesh = init_device_mesh('cuda', (4, 8), mesh_dim_names=('replicate', 'shard'))\n" +
        kPolicy +
        "for layer in model.layers:\n"
        "    fully_shard(layer, mesh=mesh, mp_policy=mp)\n"
        "fully_shard(model, mesh=mesh, mp_policy=mp)\n";
    const Checked checked = ask_program(loop, 32);
    CHECK(checked.framework == Framework::fsdp2);
    CHECK(checked.recipe == RecipeKind::fsdp2);
    CHECK(checked.says_plan);
    CHECK(checked.plan.dp == 32);
    CHECK(checked.plan.fsdp_shard == 8);
    CHECK(checked.plan.zero == 3);
    CHECK(checked.plan.grad_dtype == DType::fp32);
    CHECK(checked.plan.offload == Offload{});
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    const Checked kept =
        ask_program(with_words(loop, "mp_policy=mp)", "reshard_after_forward=False)"), 32);
    CHECK(kept.plan.zero == 2);
    // The root stays gathered anyway.
    CHECK(ask_program(with_words(loop, "(model, ", "(model, reshard_after_forward=False, "), 32)
              .plan.zero == 3);
    const Checked host = ask_program(
        with_words(loop, "(layer, ", "(layer, offload_policy=CPUOffloadPolicy(), "), 32);
    CHECK(host.plan.offload.params);
    CHECK(host.plan.offload.optimizer == 1);
    // Of one dimension, and of sizes that only a run can tell.
    for (const std::string mesh : {"(32,)", "(world_size // 8, ranks)"}) {
      CHECK(ask_program(with_words(loop, "(4, 8)", mesh), 32).plan.fsdp_shard == 0);
    }
    CHECK(ask_program(with_words(loop, "(4, 8)", "(world_size // 8, 8)"), 32).plan.fsdp_shard == 8);
  }

  TEST_CASE("a model that is one unit is said to be, with what it takes") {
    for (const std::string call :
         {"model = FSDP(model)\n", "model = FSDP(model, auto_wrap_policy=None)\n",
          "kw = {\n    \"cpu_offload\": None,\n}\nmodel = FSDP(model, **kw)\n",
          "fully_shard(model)\n"}) {
      CAPTURE(call);
      const Checked checked = ask_program(call);
      const Finding* const found = find(checked, "no_wrap_policy");
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK(found->message.find("15.3 GiB of weights") != std::string::npos);   // 8.19e9 x 2
      CHECK(found->message.find("of one layer it is 3") != std::string::npos);  // 193e6 x 2, in MiB
      CHECK(std::any_of(checked.assumed.begin(), checked.assumed.end(), [](const auto& sentence) {
        return sentence.find("a unit of its own") != std::string::npos;
      }));
    }
    for (const std::string call :
         {"model = FSDP(model, auto_wrap_policy=policy)\n",
          "model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)\n",
          "kw = dict(auto_wrap_policy=policy)\nmodel = FSDP(model, **kw)\n",
          "model = FSDP(model, **kw)\n",  // which another file has
          "for i, layer in enumerate(layers):\n    layers[i] = FSDP(layer)\nmodel = FSDP(model)\n",
          "layers = [FSDP(layer) for layer in layers]\nmodel = FSDP(model)\n",
          "with enable_wrap(wrapper_cls=FSDP):\n    layer = wrap(layer)\nmodel = FSDP(model)\n",
          "for layer in model.layers:\n    fully_shard(layer)\nfully_shard(model)\n"}) {
      CAPTURE(call);
      CHECK(find(ask_program(call), "no_wrap_policy") == nullptr);
    }
  }

  TEST_CASE("weights that are loaded in 16 bits stay so, with all that Adam keeps") {
    const std::string wrap = kPolicy + "model = FSDP(model, auto_wrap_policy=p)\n";
    for (const std::string load :
         {"model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)\n",
          "model = AutoModelForCausalLM.from_pretrained(name, dtype=\"bfloat16\")\n",
          "model = AutoModelForCausalLM.from_pretrained(name, torch_dtype='auto')\n",
          "kind = torch.bfloat16\nmodel = LlamaForCausalLM.from_pretrained(name, dtype=kind)\n",
          "model = build().cuda()\nmodel.to(torch.bfloat16)\n", "model = model.bfloat16()\n",
          "torch.set_default_dtype(torch.bfloat16)\n"}) {
      CAPTURE(load);
      const Checked checked = ask_program(load + wrap);
      CHECK(checked.plan.main_params_dtype == DType::bf16);
      CHECK(checked.plan.moment_dtype == DType::bf16);
      REQUIRE(find(checked, "narrow_weights") != nullptr);
      CHECK(find(checked, "narrow_weights")->severity == Severity::warning);
    }
    for (const std::string load :
         {"model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float32)\n",
          "model = AutoModelForCausalLM.from_pretrained(name)\n",
          "tokenizer = AutoTokenizer.from_pretrained(name, torch_dtype=torch.bfloat16)\n",
          "batch = batch.to(torch.bfloat16)\n",
          "model = M.from_pretrained(name, dtype=torch.bfloat16 if a else torch.float32)\n"}) {
      CAPTURE(load);
      const Checked checked = ask_program(load + wrap);
      CHECK(checked.plan.main_params_dtype == DType::fp32);
      CHECK(find(checked, "narrow_weights") == nullptr);
    }
    // accelerate makes them fp32 itself.
    const Checked accelerate =
        ask({{"train.py", "model = M.from_pretrained(name, torch_dtype=torch.bfloat16)\n"},
             {"a.yaml",
              "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"}});
    CHECK(accelerate.plan.main_params_dtype == DType::fp32);
    CHECK(find(accelerate, "narrow_weights") == nullptr);
  }

  TEST_CASE("DistributedDataParallel shards nothing") {
    for (const std::string call :
         {"model = DDP(model, device_ids=[rank])\n",
          "model = torch.nn.parallel.DistributedDataParallel(model)\n",
          "from torch.nn.parallel import DistributedDataParallel as Copies\n"
          "model = Copies(model)\n"}) {
      CAPTURE(call);
      const Checked checked = ask_program(call, 16);
      CHECK(checked.framework == Framework::fsdp2);
      CHECK(checked.recipe == RecipeKind::ddp);
      CHECK(checked.says_plan);
      CHECK(checked.plan.dp == 16);
      CHECK(checked.plan.zero == 0);
      REQUIRE(find(checked, "replicated") != nullptr);
      CHECK(find(checked, "replicated")->message.find("30.5 GiB") != std::string::npos);
      CHECK_FALSE(checked.has(Severity::error));
    }
    const Checked views = ask_program("model = DDP(model, gradient_as_bucket_view=True)\n");
    REQUIRE(find(views, "replicated") != nullptr);
    CHECK(find(views, "replicated")->message.find("buckets") == std::string::npos);
    // Of two ways in one program, the one that shards.
    CHECK(ask_program("if shard:\n    model = FSDP(model, auto_wrap_policy=p)\n"
                      "else:\n    model = DDP(model)\n")
              .plan.fsdp_shard == 0);
  }

  TEST_CASE("accelerate's first FSDP is priced as FSDP1") {
    const auto of_version = [](const std::string& lines) {
      return ask_text("a.yaml",
                      "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n"
                      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n" +
                          lines,
                      "qwen3-8b", 16);
    };
    CHECK(of_version("  fsdp_version: 1\n").recipe == RecipeKind::fsdp1);
    CHECK(of_version("").recipe == RecipeKind::fsdp1);  // the default
    CHECK(of_version("  fsdp_version: 2\n").recipe == RecipeKind::fsdp2);
    const Checked first = of_version("  fsdp_version: 1\n");
    CHECK(first.plan.grad_dtype == recipe_of(RecipeKind::fsdp1).defaults.grad_dtype);
    CHECK(first.plan.zero == 3);
    CHECK_FALSE(first.has(Severity::error));
  }
}

TEST_SUITE("calls of torch's") {
  struct CallRow {
    std::string lines, rule;  // rule empty: neither an error nor a warning of these
  };

  Checked ask_calls(const std::string& lines, const std::string& imports = "") {
    return ask({{"run.sh", "torchrun --nproc_per_node 8 train.py\n"},
                {"train.py",
                 "import torch\nimport functools\n"
                 "from torch.distributed.device_mesh import init_device_mesh\n"
                 "from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy, "
                 "CPUOffloadPolicy\n"
                 "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, "
                 "ShardingStrategy, MixedPrecision, CPUOffload\n"
                 "from transformers import AutoModelForCausalLM\n" +
                     imports +
                     "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B', "
                     "torch_dtype=torch.float32)\n"
                     "model.gradient_checkpointing_enable()\n" +
                     lines}});
  }

  void check_calls(const std::vector<CallRow>& rows) {
    const std::vector<std::string> rules{"unknown_option", "refused_value", "mesh_product",
                                         "optimizer_before_shards"};
    for (const CallRow& row : rows) {
      CAPTURE(row.lines);
      const Checked checked = ask_calls(row.lines);
      CAPTURE(findings_text(checked));
      for (const std::string& rule : rules)
        CHECK((find(checked, rule) != nullptr) == (rule == row.rule));
    }
  }

  const std::string kShards =
      "for layer in model.model.layers:\n    fully_shard(layer)\nfully_shard(model)\n";

  TEST_CASE("have the keywords that they take") {
    check_calls(
        {{kShards + "o = torch.optim.AdamW(model.parameters(), learning_rate=1e-5)\n",
          "unknown_option"},
         {kShards + "o = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)\n", ""},
         {"mp = MixedPrecisionPolicy(params_dtype=torch.bfloat16)\n" + kShards, "unknown_option"},
         {"mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16)\n" + kShards, ""},
         {"fully_shard(model.model.layers[0], mixed_precision=mp)\n" + kShards, "unknown_option"},
         {"fully_shard(model.model.layers[0], mp_policy=mp)\n" + kShards, ""}});
    const Checked later =
        ask_calls("fully_shard(model.model.layers[0], of_tomorrow=1)\n" + kShards);
    CHECK(find(later, "unknown_option") == nullptr);
    // Another's of that name.
    const Checked own = ask_calls(kShards + "o = AdamW(model.parameters(), learning_rate=1e-5)\n",
                                  "from mine import AdamW\n");
    CHECK_MESSAGE(find(own, "unknown_option") == nullptr, findings_text(own));
  }

  TEST_CASE("have values of their types") {
    const auto wrap = [](const std::string& more) {
      return "model = FSDP(model, auto_wrap_policy=policy, " + more + ")\n";
    };
    check_calls(
        {{wrap("cpu_offload=True"), "refused_value"},
         {wrap("cpu_offload=CPUOffload(offload_params=True)"), ""},
         {wrap("cpu_offload=None"), ""},
         {wrap("mixed_precision='bf16'"), "refused_value"},
         {wrap("mixed_precision=mp"), ""},
         {wrap("sharding_strategy=ShardingStrategy.FULL_SHARDED"), "refused_value"},
         {wrap("sharding_strategy=ShardingStrategy.HYBRID_SHARD"), ""},
         {"fully_shard(model.model.layers[0], mp_policy='bf16')\n" + kShards, "refused_value"}});
  }

  TEST_CASE("make meshes of the job's processes, a name for each dimension") {
    const auto mesh = [&](const std::string& arguments) {
      return "mesh = init_device_mesh('cuda', " + arguments + ")\n" + kShards;
    };
    check_calls({{mesh("(16,), mesh_dim_names=('dp',)"), "mesh_product"},
                 {mesh("(8,), mesh_dim_names=('dp',)"), ""},
                 {mesh("(2, 4), mesh_dim_names=('dp', 'tp')"), ""},
                 {mesh("(4,), mesh_dim_names=('dp',)"), ""},
                 {mesh("(2, 4), mesh_dim_names=('dp',)"), "refused_value"},
                 {mesh("(n // 2, 2), mesh_dim_names=('dp', 'tp')"), ""},
                 {mesh("(8,)") + mesh("(16,)"), ""}});
  }

  TEST_CASE("make the optimizer of what is sharded") {
    const std::string made = "o = torch.optim.AdamW(model.parameters(), lr=1e-5)\n";
    check_calls(
        {{made + kShards, "optimizer_before_shards"},
         {kShards + made, ""},
         {made + kShards + made, ""},
         {made + "model = FSDP(model, auto_wrap_policy=policy)\n", "optimizer_before_shards"},
         {made + "model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True)\n", ""},
         {"if alone:\n    " + made + "else:\n    fully_shard(model)\n", ""},
         {"def make(model):\n    " + made +
              "    return o\n\ndef shard(model):\n"
              "    fully_shard(model)\n",
          ""},
         {"other = torch.optim.AdamW(critic.parameters(), lr=1e-5)\n" + kShards, ""}});
  }
}

}  // namespace
}  // namespace qplan
