// Training programs that shard by themselves: FSDP's, fully_shard's and DDP's calls, and torch's
// calls beside them.

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

// On one node's GPUs unless said.
Checked ask_program(const std::string& text, std::int64_t gpus = 8) {
  return ask_text("train.py", text, "qwen3-8b", gpus);
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
    const Checked accelerate = ask_texts(
        {{"train.py", "model = M.from_pretrained(name, torch_dtype=torch.bfloat16)\n"},
         {"a.yaml",
          "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"}},
        "qwen3-8b", 8);
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
    return ask_texts({{"run.sh", "torchrun --nproc_per_node 8 train.py\n"},
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
                           lines}},
                     "qwen3-8b", 8);
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
