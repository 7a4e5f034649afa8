// Megatron-Bridge's programs as a whole: what a recipe sets by itself, what stands on top of it,
// and how Python says it.

#include "planner/frameworks/megatron/bridge_program.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

TEST_SUITE("Megatron-Bridge's programs") {
  const std::string kImport =
      "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
      "from megatron.bridge.training.pretrain import pretrain\n";

  Checked ask_program(const std::string& text, std::int64_t gpus = 16,
                      const std::string& model = "llama3-8b") {
    return ask_text("job.py", kImport + text, model, gpus);
  }

  // On top of Llama 3's recipe.
  Checked ask_set(const std::string& lines, std::int64_t gpus = 16) {
    return ask_program("cfg = llama3_8b_pretrain_config()\n" + lines + "pretrain(cfg)\n", gpus);
  }

  bool assumes(const Checked& checked, const std::string& part) {
    return std::any_of(checked.assumed.begin(), checked.assumed.end(), [&](const auto& sentence) {
      return sentence.find(part) != std::string::npos;
    });
  }

  TEST_CASE("what a recipe sets by itself is the job's") {
    // recipes/llama/h100/llama3.py, llama3_8b_pretrain_2gpu_h100_bf16_config
    const Checked plain = ask_set("");
    CHECK_MESSAGE(plain.findings.empty(), findings_text(plain));
    CHECK(plain.says_plan);
    CHECK(plain.plan.cp == 2);
    CHECK(plain.plan.zero == 1);
    CHECK(plain.plan.overlap.has(OverlapKind::grad));
    CHECK(plain.plan.overlap.has(OverlapKind::param));
    CHECK(plain.plan.seq_len == 8192);
    CHECK(plain.plan.global_batch_size == 512);
    CHECK(plain.plan.micro_batch_size == 1);
    CHECK_FALSE(plain.takes_less);
    // Two below another: recipes/qwen/h100/qwen3_moe.py.
    const Checked moe =
        ask_text("job.py",
                 "from megatron.bridge.recipes.qwen import qwen3_30b_a3b_pretrain_config\n"
                 "cfg = qwen3_30b_a3b_pretrain_config()\n",
                 "qwen3-30b-a3b", 16);
    CHECK_MESSAGE(!moe.has(Severity::error), findings_text(moe));
    CHECK(moe.plan.ep == 16);
    CHECK(moe.plan.etp == 1);
    CHECK(moe.plan.tp == 1);
    CHECK(moe.plan.grad_dtype == DType::bf16);
    CHECK(moe.plan.global_batch_size == 1024);
  }

  TEST_CASE("what a program sets counts before its recipe, and None and False take it away") {
    const Checked set = ask_set(
        "cfg.model.context_parallel_size = 1\ncfg.ddp.use_distributed_optimizer = False\n"
        "cfg.ddp.overlap_param_gather = False\ncfg.train.global_batch_size = 64\n");
    CHECK(set.plan.cp == 1);
    // The recipe's optimizer switches it on for both (training/config.py:2101).
    CHECK(set.plan.zero == 1);
    CHECK(ask_set("cfg.ddp.use_distributed_optimizer = False\n"
                  "cfg.ddp.overlap_param_gather = False\n"
                  "cfg.optimizer.use_distributed_optimizer = False\n")
              .plan.zero == 0);
    CHECK_FALSE(set.plan.overlap.has(OverlapKind::param));
    CHECK(set.plan.overlap.has(OverlapKind::grad));
    CHECK(set.plan.global_batch_size == 64);
    const Checked twice = ask_set(
        "cfg.model.recompute_granularity = \"full\"\ncfg.model.recompute_method = \"uniform\"\n"
        "cfg.model.recompute_num_layers = 1\ncfg.model.recompute_granularity = None\n"
        "cfg.model.recompute_method = None\ncfg.model.recompute_num_layers = None\n");
    CHECK(twice.plan.recompute == ParallelPlan{}.recompute);
    // A section that is set whole has nothing of the recipe's.
    const Checked whole = ask_set(
        "from megatron.core.distributed import DistributedDataParallelConfig\n"
        "cfg.ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)\n");
    CHECK(whole.plan.zero == 1);
    CHECK_FALSE(whole.plan.overlap.has(OverlapKind::grad));
    // training/comm_overlap.py: it overlaps, whatever ddp says.
    const Checked overlaps = ask_set(
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n"
        "cfg.ddp.overlap_grad_reduce = False\n"
        "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)\n");
    CHECK(overlaps.plan.overlap.has(OverlapKind::grad));
  }

  TEST_CASE("several targets of one assignment, aliases and variables are followed") {
    const std::vector<std::string> idioms{
        "cfg.model.tensor_model_parallel_size, cfg.model.pipeline_model_parallel_size = 4, 2\n",
        "(cfg.model.tensor_model_parallel_size, cfg.model.pipeline_model_parallel_size) = (4, 2)\n",
        "m = cfg.model\nm.tensor_model_parallel_size = 4\nm.pipeline_model_parallel_size = 2\n",
        "TP, PP = 4, 2\ncfg.model.tensor_model_parallel_size = TP\n"
        "cfg.model.pipeline_model_parallel_size = PP\n",
        "setattr(cfg.model, \"tensor_model_parallel_size\", 4)\n"
        "setattr(cfg.model, \"pipeline_model_parallel_size\", 2)\n",
        "PP = 2\nTP = 2 * PP\nm = cfg.model\nm.tensor_model_parallel_size = TP\n"
        "m.pipeline_model_parallel_size = PP\n",
    };
    for (const std::string& lines : idioms) {
      CAPTURE(lines);
      const Checked said = ask_set(lines);
      CHECK(said.plan.tp == 4);
      CHECK(said.plan.pp == 2);
    }
    const Checked same = ask_set("cfg.model.seq_length = cfg.dataset.seq_length = 16384\n");
    CHECK_MESSAGE(find(same, "two_lengths") == nullptr, findings_text(same));
    CHECK(same.plan.seq_len == 16384);
    // A variable that is set again is known only to a run.
    const Checked open =
        ask_set("TP = 4\nif big:\n    TP = 8\ncfg.model.tensor_model_parallel_size = TP\n");
    CHECK(std::find(open.undecided.begin(), open.undecided.end(),
                    "cfg.model.tensor_model_parallel_size") != open.undecided.end());
  }

  TEST_CASE("two lengths that differ stop a job, and either alone is the sequence's") {
    for (const std::string field :
         {"model.seq_length", "dataset.seq_length", "dataset.sequence_length"}) {
      const Checked one = ask_set("cfg." + field + " = 4096\n");
      CHECK(one.plan.seq_len == 4096);
      const Finding* const found = find(one, "two_lengths");  // the recipe's other one is 8192
      REQUIRE(found != nullptr);
      CHECK(found->severity == Severity::error);
      CHECK(found->place.line == 4);
      const bool model = field == "model.seq_length";
      CHECK(found->instead ==
            (model ? "cfg.dataset.seq_length = 4096" : "cfg.model.seq_length = 4096"));
    }
    const Checked both = ask_set("cfg.model.seq_length = 4096\ncfg.dataset.seq_length = 4096\n");
    CHECK(find(both, "two_lengths") == nullptr);
  }

  TEST_CASE("arguments that a recipe's function does not take are told, and judged as meant") {
    const Checked said = ask_program(
        "cfg = llama3_8b_pretrain_config(tensor_model_parallel_size=2, train_iters=10)\n");
    CHECK(said.plan.tp == 2);
    REQUIRE(find(said, "recipe_argument") != nullptr);
    CHECK(find(said, "recipe_argument")->instead == "cfg.model.tensor_model_parallel_size = 2");
    CHECK(std::count_if(said.findings.begin(), said.findings.end(),
                        [](const Finding& f) { return f.rule == "recipe_argument"; }) == 2);
    const Checked scheme =
        ask_text("job.py",
                 "from megatron.bridge.recipes.llama import llama3_8b_peft_config\n"
                 "cfg = llama3_8b_peft_config(peft_scheme=\"lora\")\n",
                 "llama3-8b", 8);
    CHECK(find(scheme, "recipe_argument") == nullptr);
  }

  TEST_CASE("where a configuration comes from elsewhere, what it holds is not made up") {
    const Checked given = ask_program(
        "def configure(cfg):\n    cfg.model.tensor_model_parallel_size = 2\n    return cfg\n");
    CHECK(given.takes_less);
    CHECK(assumes(given, "comes from elsewhere"));
    const Checked two = ask_program(
        "from megatron.bridge.recipes.llama import llama31_8b_pretrain_config\n"
        "cfg = llama3_8b_pretrain_config() if old else llama31_8b_pretrain_config()\n"
        "cfg.model.tensor_model_parallel_size = 2\n");
    CHECK(assumes(two, "only a run can tell which counts"));
    const Checked made = ask_set("cfg.ddp = make_ddp()\n");
    CHECK(assumes(made, "what cfg.ddp holds, which make_ddp() makes"));
    const Checked handed =
        ask_set("def split(m):\n    m.tensor_model_parallel_size = 2\n\nsplit(cfg.model)\n");
    CHECK(assumes(handed, "m is not seen to be a part of the configuration"));
    const Checked looped = ask_set("for k, v in words.items():\n    setattr(cfg.model, k, v)\n");
    CHECK(assumes(looped, "what setattr() sets of cfg.model"));
    // No error hangs on it: with the distributed optimizer these states are right.
    const Checked states = ask_program(
        "def narrow(cfg):\n    cfg.optimizer.use_precision_aware_optimizer = True\n"
        "    cfg.optimizer.exp_avg_dtype = torch.bfloat16\n");
    CHECK_MESSAGE(!states.has(Severity::error), findings_text(states));
    const Checked plain = ask_set(
        "from megatron.core.distributed import DistributedDataParallelConfig\n"
        "cfg.ddp = DistributedDataParallelConfig()\n"
        "cfg.optimizer.use_distributed_optimizer = False\n"
        "cfg.optimizer.use_precision_aware_optimizer = True\n"
        "cfg.optimizer.exp_avg_dtype = torch.bfloat16\n");
    CHECK(plain.has(Severity::error));
    // Sections in variables of their own.
    const Checked parts = ask_program(
        "from megatron.bridge.training.config import ConfigContainer\n"
        "model_cfg = LlamaModelProvider(tensor_model_parallel_size=2)\n"
        "model_cfg.pipeline_model_parallel_size = 2\n"
        "ddp_cfg = DistributedDataParallelConfig(use_distributed_optimizer=True)\n"
        "cfg = ConfigContainer(model=model_cfg, ddp=ddp_cfg)\n");
    CHECK(parts.plan.tp == 2);
    CHECK(parts.plan.pp == 2);
    CHECK(parts.plan.zero == 1);
    CHECK_FALSE(parts.takes_less);
    // One that is written out says all of it.
    const Checked built = ask_program(
        "from megatron.bridge.training.config import ConfigContainer\n"
        "cfg = ConfigContainer(model=LlamaModelProvider(tensor_model_parallel_size=2),\n"
        "    train=TrainingConfig(global_batch_size=64, micro_batch_size=2),\n"
        "    ddp=DistributedDataParallelConfig(use_distributed_optimizer=True))\n");
    CHECK(built.plan.tp == 2);
    CHECK(built.plan.micro_batch_size == 2);
    CHECK(built.plan.zero == 1);
    CHECK_FALSE(built.takes_less);
  }

  TEST_CASE("a Python file is told fields, and no arguments of a command line") {
    const Checked wrong = ask_set(
        "cfg.model.sequence_parallel = True\ncfg.model.tensor_model_parallel_size = 3\n"
        "cfg.model.recompute_granularity = \"full\"\ncfg.train.global_batch_size = 63\n"
        "cfg.ddp.use_distributed_optimizer = False\ncfg.model.pipeline_model_parallel_size = 5\n");
    CHECK(wrong.has(Severity::error));
    for (const Finding& f : wrong.findings) {
      CAPTURE(f.message + "; " + f.instead);
      CHECK(f.message.find("--") == std::string::npos);
      CHECK(f.instead.find("--") == std::string::npos);
    }
    REQUIRE(find(wrong, "recompute_method") != nullptr);
    CHECK(find(wrong, "recompute_method")->instead ==
          "add cfg.model.recompute_method = \"uniform\"; cfg.model.recompute_num_layers = 1");
  }

  TEST_CASE("stages that a recipe's code lays out are not judged as stages of one length") {
    const std::string text =
        "from megatron.bridge.recipes.deepseek import deepseek_v3_pretrain_config\n"
        "cfg = deepseek_v3_pretrain_config()\n";
    const Checked recipe = ask_text("job.py", text, "deepseek-v3", 1024);  // 61 layers, 16 stages
    CHECK_MESSAGE(!recipe.has(Severity::error), findings_text(recipe));
    CHECK_FALSE(recipe.says_plan);
    REQUIRE(find(recipe, "not_resolved") != nullptr);
    CHECK(find(recipe, "not_resolved")->message.find("the recipe's own code") != std::string::npos);
    const Checked even = ask_text(
        "job.py", text + "cfg.model.pipeline_model_parallel_layout = None\n", "deepseek-v3", 1024);
    CHECK(find(even, "layers_per_stage") != nullptr);
  }

  TEST_CASE("every recipe is known by what it sets, or is one of the few that are not followed") {
    int open = 0;
    for (const std::string& name : known_options("bridge_recipes").names()) {
      CAPTURE(name);
      const PythonText text = read_python("cfg = " + name + "()\n", "job.py");
      const BridgeProgram program = bridge_program(text);
      open += program.open.empty() ? 0 : 1;
      CHECK(program.open.empty() == !program.fields.empty());
      for (const PythonAssignment& field : program.fields) {
        CHECK(field.value.place.line == 1);
        CHECK(!field.value.text.empty());
      }
    }
    CHECK(open == 7);
  }

  TEST_CASE("sections and recipes go by the names of this framework") {
    for (const auto& [line, meant] :
         {std::pair{"cfg.optim.lr = 3e-4\n", "optimizer"}, {"cfg.trainer.x = 1\n", "train"}}) {
      CAPTURE(line);
      const Checked checked = ask_set("cfg.train.train_iters = 10\n" + std::string(line));
      REQUIRE_MESSAGE(find(checked, "unknown_option") != nullptr, findings_text(checked));
      CHECK(find(checked, "unknown_option")->severity == Severity::error);
      CHECK(find(checked, "unknown_option")->instead == fmt::format("did you mean {}?", meant));
    }
    const Checked later = ask_set("cfg.train.train_iters = 10\ncfg.tomorrow.x = 1\n");
    REQUIRE(find(later, "unknown_option") != nullptr);
    CHECK(find(later, "unknown_option")->severity == Severity::warning);
    const Checked own = ask_set("cfg.train.train_iters = 10\ncfg.mine = Mine()\ncfg.mine.x = 1\n");
    CHECK_MESSAGE(find(own, "unknown_option") == nullptr, findings_text(own));
    const auto ask_recipe = [](const std::string& name, const std::string& module) {
      return ask_text("job.py",
                      "from megatron.bridge.recipes." + module + " import " + name +
                          "\ncfg = " + name + "()\ncfg.train.train_iters = 10\n",
                      "llama3-8b", 16);
    };
    for (const std::string name :
         {"llama3_8B_pretrain_config", "llama3_8b_pretrain", "llama3_8b_pretrian_config"}) {
      CAPTURE(name);
      CHECK(find(ask_recipe(name, "llama"), "unknown_recipe") != nullptr);
    }
    for (const std::string name : {"llama3_8b_pretrain_config", "llama9_8b_pretrain_config",
                                   "pretrain_config", "default_squad_config"}) {
      CAPTURE(name);
      CHECK(find(ask_recipe(name, "llama"), "unknown_recipe") == nullptr);
    }
  }
}

}  // namespace
}  // namespace qplan
