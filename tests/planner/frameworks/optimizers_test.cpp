// Every optimizer in every framework's files: written and read back, or refused with what instead.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/plan/words.h"
#include "planner/frameworks/optimizer_names.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

using Kinds = EnumSet<OptimizerKind>;

ParallelPlan plan_for(Framework framework, OptimizerKind kind, int zero) {
  ParallelPlan plan = parse_plan("dp8 gbs64 seq4096");
  plan.zero = zero;
  plan.optimizer = kind;
  const Recipe& recipe = recipe_of(recipe_for(framework, RecipeKind::megatron));
  if (zero > 0) plan.overlap = recipe.defaults.overlap;
  plan.grad_dtype = recipe.defaults.grad_dtype;
  plan.compile = recipe.defaults.compile;
  if (framework == Framework::torchtitan) plan.cuda_graph = false;
  return plan;
}

// Which optimizers its files say, at any of these ZeRO stages.
Kinds said_by(Framework framework) {
  const std::string name = "llama3-8b";
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  Kinds said;
  for (const auto& [kind, word] : Words<OptimizerKind>::table) {
    for (const int zero : {0, 1, 2, 3}) {
      const RecipeKind recipe = recipe_for(framework, RecipeKind::megatron);
      const ParallelPlan plan = canonical(plan_for(framework, kind, zero), model, recipe);
      CAPTURE(std::string(to_word(framework)));
      CAPTURE(to_string(plan));
      const Subject subject{model, config, plan, recipe, 8};
      const auto reasons = why_inexpressible(framework, subject, {8, 90});
      if (!reasons.empty()) {
        for (const Infeasible& reason : reasons) {
          const bool instead = reason.message.find("use ") != std::string::npos ||
                               reason.message.find("leave ") != std::string::npos;
          if (reason.rule.find("optimizer") != std::string::npos) CHECK(instead);
        }
        continue;
      }
      said.add(kind);
      const auto files = emit(framework, subject, {});
      const Checked checked = check(texts_of(files), question_of(model, config, 8));
      CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
      CHECK(to_string(checked.plan) == to_string(plan));
    }
  }
  return said;
}

TEST_CASE("what a framework's files say of optimizers is what the framework has") {
  using enum OptimizerKind;
  CHECK(said_by(Framework::megatron) == set_of(adam, sgd, muon));
  CHECK(said_by(Framework::slime) == set_of(adam, sgd, muon));
  CHECK(said_by(Framework::megatron_bridge) == set_of(adam, sgd, muon));
  CHECK(said_by(Framework::deepspeed) == set_of(adam, adam8bit, sgd, muon, lion));
  CHECK(said_by(Framework::fsdp2) == set_of(adam, adam8bit));
  CHECK(said_by(Framework::torchtitan) == set_of(adam));
  CHECK(said_by(Framework::automodel) == set_of(adam));
  CHECK(said_by(Framework::trl) == set_of(adam, adam8bit));
  CHECK(said_by(Framework::ms_swift) == set_of(adam, sgd, muon));
}

TEST_CASE("ms-swift's muon is written without the overlaps that ms-swift refuses beside it") {
  const std::string name = "llama3-8b";
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  const auto refused = [&](const std::string& line) {
    const ParallelPlan plan = canonical(parse_plan(line), model, RecipeKind::megatron);
    const Subject subject{model, config, plan, RecipeKind::megatron, 8};
    const auto reasons = refusals(Framework::ms_swift, subject, {8, 90});
    return std::find(reasons.begin(), reasons.end(), "swift_muon_overlap") != reasons.end();
  };
  CHECK(refused("dp8 zero0 gbs64 seq4096 optimizer=muon overlap=grad"));
  CHECK_FALSE(refused("dp8 zero0 gbs64 seq4096 optimizer=muon overlap=none"));
  CHECK_FALSE(refused("dp8 zero0 gbs64 seq4096 overlap=grad"));
}

TEST_CASE("an emit's nearest plan keeps the optimizer, which belongs to the job") {
  const std::string name = "llama3-8b";
  const ModelSpec model = load_model(name);
  const Json config = model_config(name);
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (!is_written(framework)) continue;
    for (const auto& [kind, optimizer] : Words<OptimizerKind>::table) {
      CAPTURE(std::string(word));
      CAPTURE(std::string(optimizer));
      ParallelPlan plan = plan_for(framework, kind, 0);
      plan.moe_token_drop_policy = TokenDropPolicy::position;  // something to change
      const Subject subject{model, config, plan, recipe_for(framework, RecipeKind::megatron), 8};
      ParallelPlan nearest;
      if (!nearest_expressible(framework, subject, {8, 90}, nearest)) continue;
      CHECK(nearest.optimizer == kind);
    }
  }
}

// Names of a Trainer's --optim (transformers 5, training_args.py), of DeepSpeed and of classes.
TEST_CASE("names of optimizers are read, and what is no plan word is said") {
  using enum OptimizerKind;
  const std::map<std::string, OptimizerKind> names{{"adamw_torch", adam},
                                                   {"adamw_torch_fused", adam},
                                                   {"paged_adamw_32bit", adam},
                                                   {"AdamW", adam},
                                                   {"FusedAdam", adam},
                                                   {"adamw_bnb_8bit", adam8bit},
                                                   {"adamw_8bit", adam8bit},
                                                   {"paged_adamw_8bit", adam8bit},
                                                   {"adamw_torch_8bit", adam8bit},
                                                   {"PagedAdamW8bit", adam8bit},
                                                   {"adafactor", adafactor},
                                                   {"Adafactor", adafactor},
                                                   {"lion_32bit", lion},
                                                   {"Lion", lion},
                                                   {"Muon", muon},
                                                   {std::string(kSgdWithMomentum), sgd}};
  for (const auto& [name, kind] : names) {
    CAPTURE(name);
    const NamedOptimizer found = optimizer_named(name);
    CHECK(found.kind == kind);
    CHECK(found.assumed.empty());
    CHECK_FALSE(found.takes_less);
  }
  for (const std::string name : {"galore_adamw", "ademamix_8bit", "grokadamw", "lomo", "rmsprop",
                                 "schedule_free_adamw", "LAMB", "apollo_adamw"}) {
    CAPTURE(name);
    CHECK(optimizer_named(name).kind == adam);
    CHECK(optimizer_named(name).assumed.find(name) != std::string::npos);
    CHECK(optimizer_named(name).takes_less);
  }
  CHECK(optimizer_named("sgd").takes_less);
}

TEST_CASE("an optimizer that is not modelled where it is asked for is judged as Adam, and said") {
  const auto ask = [](const std::string& type, int stage, const std::string& more = "") {
    return ask_text("ds_config.json",
                    "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
                    " \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"" +
                        type + "\", \"params\": {\"lr\": 1e-4" + more +
                        "}}, \"zero_optimization\": {\"stage\": " + std::to_string(stage) + "}}",
                    "llama3-8b", 8);
  };
  const auto says = [](const Checked& checked, const std::string& what) {
    return std::any_of(
        checked.assumed.begin(), checked.assumed.end(),
        [&](const std::string& sentence) { return sentence.find(what) != std::string::npos; });
  };
  CHECK(ask("Lion", 2).plan.optimizer == OptimizerKind::lion);
  CHECK(ask("Muon", 2).plan.optimizer == OptimizerKind::muon);
  CHECK(ask("SGD", 1, ", \"momentum\": 0.9").plan.optimizer == OptimizerKind::sgd);
  CHECK_FALSE(ask("SGD", 1, ", \"momentum\": 0.9").takes_less);
  CHECK(ask("SGD", 1).takes_less);
  const Checked muon = ask("Muon", 3);
  CHECK(muon.plan.optimizer == OptimizerKind::adam);
  CHECK(says(muon, "at ZeRO-3"));
  const Checked factored = ask("Adafactor", 2);
  CHECK(factored.plan.optimizer == OptimizerKind::adam);
  CHECK(says(factored, "adafactor"));
  CHECK(says(ask("LAMB", 1), "LAMB"));
}

TEST_CASE("a program's optimizer is the plan's") {
  const auto ask = [](const std::string& line, const std::string& format = "float32") {
    return ask_text("train.py",
                    "import torch\nfrom transformers import AutoModelForCausalLM\n"
                    "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                    "m = AutoModelForCausalLM.from_pretrained('x', torch_dtype=torch." +
                        format + ")\nm = DDP(m)\n" + line + "\n",
                    "qwen3-0.6b", 8);
  };
  // Whatever format the weights are trained in.
  for (const std::string line :
       {"o = bnb.optim.AdamW8bit(m.parameters())", "o = Adafactor(m.parameters())",
        "o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)",
        "o = bnb.optim.Lion(m.parameters())", "o = torch.optim.Muon(m.parameters())"}) {
    for (const std::string format : {"float32", "bfloat16"}) {
      CAPTURE(line);
      CAPTURE(format);
      const Checked checked = ask(line, format);
      CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
      CHECK(checked.says_plan);
    }
  }
  using enum OptimizerKind;
  CHECK(ask("o = torch.optim.AdamW(m.parameters())").plan.optimizer == adam);
  CHECK(ask("o = bnb.optim.AdamW8bit(m.parameters())").plan.optimizer == adam8bit);
  CHECK(ask("o = Adafactor(m.parameters())").plan.optimizer == adafactor);
  const Checked plain = ask("o = torch.optim.SGD(m.parameters(), lr=0.1)");
  CHECK(plain.plan.optimizer == sgd);
  CHECK(plain.takes_less);
  CHECK_FALSE(ask("o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)").takes_less);
}

TEST_CASE("compressed gradients are said to be left out") {
  const auto says = [](const Checked& checked, const std::string& what) {
    return std::any_of(
        checked.assumed.begin(), checked.assumed.end(),
        [&](const std::string& sentence) { return sentence.find(what) != std::string::npos; });
  };
  const auto ask = [](const std::string& line) {
    return ask_text("train.py",
                    "from transformers import AutoModelForCausalLM\n"
                    "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                    "m = AutoModelForCausalLM.from_pretrained('x', torch_dtype=torch.float32)\n"
                    "m = DDP(m)\n" +
                        line + "\n",
                    "qwen3-0.6b", 8);
  };
  CHECK(says(ask("m.register_comm_hook(state, powerSGD.powerSGD_hook)"), "PowerSGD"));
  CHECK(says(ask("m.register_comm_hook(None, default_hooks.fp16_compress_hook)"), "fp16_compress"));
  CHECK_FALSE(says(ask(""), "reduced whole"));
  for (const std::string type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    const NamedOptimizer found = optimizer_named(type);
    CHECK(found.assumed.find(type) != std::string::npos);
    CHECK_FALSE(found.takes_less);  // it keeps more
  }
}

TEST_CASE("FPDT is a word of the plan, of layers that it can run") {
  const auto job = [](const std::string& more, const std::string& model = "gpt3-175b") {
    return ask_text("train.sh",
                    "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --no-pipeline-parallel "
                    "--zero-stage 1 --ds-sequence-parallel-size 8 --seq-length 2048 "
                    "--micro-batch-size 1 --global-batch-size 1 --bf16 " +
                        more + "\n",
                    model, 8);
  };
  const std::string fpdt = "--ds-sequence-parallel-fpdt ";
  CHECK(job("").plan.fpdt_chunk == 0);
  CHECK(job(fpdt).plan.fpdt_chunk == 65536);  // of 2048 tokens: its data loader stops
  CHECK(find(job(fpdt), "fpdt_whole_chunks")->severity == Severity::error);
  const Checked fine = job(fpdt +
                           "--ds-sequence-parallel-fpdt-chunk-size 1024 "
                           "--ds-sequence-parallel-fpdt-offloading --use-flash-attn-v2");
  CHECK(fine.plan.fpdt_chunk == 1024);
  CHECK(find(fine, "fpdt_whole_chunks") == nullptr);
  CHECK(fine.assumed.size() + 1 ==
        job(fpdt + "--ds-sequence-parallel-fpdt-chunk-size 1024").assumed.size());
  // DeepSpeed's tutorial of Ulysses-Offload keeps checkpoints on the host beside it.
  const std::string host = " --deepspeed-activation-checkpointing --checkpoint-in-cpu";
  CHECK(job("--checkpoint-activations" + host).plan.offload.activation_layers == -1);
  CHECK(job(host).plan.offload.activation_layers == 0);  // nothing is recomputed
  CHECK(job("--checkpoint-activations").plan.offload.activation_layers == 0);
  const Checked llama = job(fpdt + "--ds-sequence-parallel-fpdt-chunk-size 1024", "llama2-7b");
  CHECK(find(llama, "fpdt_layers") != nullptr);
}

}  // namespace
}  // namespace qplan
