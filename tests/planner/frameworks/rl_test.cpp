// verl's scripts: the plan, the job and the engines that they ask for, and what goes wrong with
// them. Of verl and NeMo-RL that what is written is read back.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/json.h"
#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/frameworks/rl/omega_config.h"
#include "planner/rl/rl_step.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/planner/frameworks/rl_jobs.h"

namespace qplan {
namespace {

Checked ask_shards(const std::string& from = "", const std::string& to = "",
                   std::int64_t gpus = 16) {
  const std::string text = rl_fixture("verl_grpo.sh");
  return ask_texts({{"run.sh", from.empty() ? text : with_words(text, from, to)}}, "qwen3-8b",
                   gpus);
}

Checked ask_megatron(const std::string& from = "", const std::string& to = "") {
  const std::string text = rl_fixture("verl_megatron.sh");
  return ask_texts({{"run.sh", from.empty() ? text : with_words(text, from, to)}}, "qwen3-30b-a3b",
                   32);
}

}  // namespace

TEST_SUITE("OmegaConf") {
  TEST_CASE("follows references, its own defaults among them, and ends in circles") {
    Settings said;
    const auto say = [&](const std::string& key, const std::string& value) {
      said.add({key, hydra_value(value), {}, {}, {}, true});
    };
    say("a.b", "3");
    say("a.c", "${.b}");
    say("x", "${oc.select:missing,${a.c}}");
    say("y", "${mul:${a.b}, 4}");
    say("z", "${z}");
    const OmegaConfig c(said, &known_options("verl"));
    CHECK(c.whole("x", 0) == 3);
    CHECK(c.whole("y", 0) == 12);
    CHECK(c.value("z").is_null());
    CHECK(c.whole("critic.ppo_mini_batch_size", 0) == 256);      // "${oc.select:actor...,256}"
    CHECK(c.value("actor_rollout_ref.rollout.name").is_null());  // "???"
  }

  TEST_CASE("values are Hydra's") {
    CHECK(hydra_value("True") == true);
    CHECK(hydra_value("null").is_null());
    CHECK(hydra_value("1e-6") == 1e-6);
    CHECK(hydra_value("'4'") == "4");
    CHECK(hydra_value("[a, 2]") == Json::array({"a", 2}));
  }
}

TEST_SUITE("verl") {
  TEST_CASE("a script of FSDP is a plan, a job and engines") {
    const Checked checked = ask_shards();
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.framework == Framework::verl);
    CHECK(checked.recipe == RecipeKind::fsdp2);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.dp == 8);
    CHECK(plan.cp == 2);
    CHECK(plan.zero == 3);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.seq_len == 16384);  // 8192 tokens on each of two ranks
    CHECK(plan.micro_batch_size == 1);
    REQUIRE(checked.step.has_value());
    const RlJob& job = checked.step->job;
    CHECK(job.algorithm == Algorithm::grpo);
    CHECK(job.prompts == 256);
    CHECK(job.samples == 8);
    CHECK(job.prompt_len == 1024);
    CHECK(job.response.max == 3072);
    CHECK(job.train_batch == 512);
    CHECK(job.reference);
    CHECK(job.packed);
    CHECK(job.offload_trainer);
    CHECK(job.colocated());
    CHECK(checked.step->layout.tp == 2);
    CHECK(checked.step->layout.memory_share == 0.6);
    CHECK_FALSE(job.weights_stay);
    CHECK_FALSE(job.moments_stay);
    // Each may make room by itself.
    const Checked moments = ask_shards("param_offload=True", "param_offload=False");
    CHECK(moments.step->job.weights_stay);
    CHECK_FALSE(moments.step->job.moments_stay);
    const Checked weights = ask_shards("optimizer_offload=True", "optimizer_offload=False");
    CHECK(weights.step->job.offload_trainer);
    CHECK(weights.step->job.moments_stay);
  }

  TEST_CASE("a script of Megatron has its degrees, defaults and words of its classes") {
    const Checked checked = ask_megatron();
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::megatron);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.tp == 4);
    CHECK(plan.pp == 2);
    CHECK(plan.dp == 4);
    CHECK(plan.ep == 8);
    CHECK(plan.etp == 1);
    CHECK(plan.zero == 1);
    CHECK(plan.sequence_parallel);
    CHECK(plan.moe_permute_fusion);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.grad_dtype == DType::fp32);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.seq_len == 8192);
    CHECK(plan.global_batch_size == 1024);
  }

  TEST_CASE("its passes over the vocabulary are its own") {
    const auto job_of = [](const std::string& more) {
      return ask_shards("rollout.n=8", "rollout.n=8 " + more).step.value().job;
    };
    const RlJob plain = job_of("");
    CHECK(plain.loss == LossKind::compiled);
    CHECK(plain.logit_bytes == 2);
    CHECK(plain.pass_tokens == 8192);  // the actor's, which log-probabilities follow
    CHECK_FALSE(plain.by_number);
    CHECK(job_of("actor_rollout_ref.actor.entropy_coeff=0.001").loss == LossKind::unfused);
    const RlJob fused = job_of("actor_rollout_ref.model.use_fused_kernels=True");
    CHECK(fused.loss == LossKind::liger);
    CHECK(fused.logit_bytes == 0);
    CHECK(job_of("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=20000").pass_tokens ==
          20000);
    const RlJob megatron = ask_megatron().step.value().job;
    CHECK(megatron.by_number);
    CHECK(megatron.loss == LossKind::by_framework);
    CHECK(megatron.logit_bytes == 8);
    CHECK(megatron.pass_tokens == 2 * (2048 + 3072));
  }

  TEST_CASE("the checkpoint names the model, behind a variable, too") {
    const std::vector<ConfigText> texts{{"run.sh", rl_fixture("verl_grpo.sh")}};
    CHECK(built_in_of_id(model_id_of_files(read_job_files(texts))) == "qwen3-8b");
  }

  TEST_CASE("keys that nobody has are found, and those that a + may add are not") {
    has_rule("unknown_option", ask_shards("rollout.n=8", "rollout.nn=8"), "rollout.nn");
    has_rule("unknown_option", ask_shards("ppo_mini_batch_size", "ppo_mini_batchsize"));
    has_rule("key_is_there", ask_shards("data.train_batch_size", "+data.train_batch_size"));
    CHECK(find(ask_shards("trainer.nnodes=2",
                          "trainer.nnodes=2 "
                          "+actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4"),
               "unknown_option") == nullptr);
    // Another program may have keys of its own.
    CHECK(find(ask_shards("main_ppo \\\n", "main_ppo --config-name=mine mine.key=1 \\\n"),
               "unknown_option") == nullptr);
  }

  TEST_CASE("values are held against the types, ranges and words of its classes") {
    const auto refused = [](const std::string& from, const std::string& to,
                            const std::string& words) {
      CAPTURE(to);
      has_rule("refused_value", ask_shards(from, to), words);
    };
    refused("rollout.n=8", "rollout.n=abc", "a whole number");
    refused("rollout.n=8", "rollout.n=2.5", "a whole number");
    refused("strategy=fsdp2", "strategy=fsdp3", "fsdp, fsdp2, megatron");
    refused("rollout.name=vllm", "rollout.name=vlm", "vllm, sglang, trtllm");
    refused("fsdp_config.param_offload=True", "fsdp_config.param_offload=ture", "true or false");
    refused("gpu_memory_utilization=0.6", "gpu_memory_utilization=1.7", "from 0 to 1");
    refused("train_batch_size=256", "train_batch_size=many", "a whole number");
    refused("trainer.nnodes=2", "trainer.nnodes=0", "at least 1");
    refused("rollout.n=8", "rollout.n=8 trainer.critic_warmup=ten", "a number");
    has_rule("refused_value",
             ask_megatron("actor.megatron.tensor_model_parallel_size=$TP",
                          "actor.megatron.tensor_model_parallel_size=abc"),
             "tensor_model_parallel_size is abc");
    // A number of another kind, a reference, what a run tells, and what counts for nothing.
    for (const char* const fine :
         {"rollout.n=8 actor_rollout_ref.actor.clip_ratio=1", "rollout.n=8.0",
          "rollout.n=${oc.select:mine,8}", "rollout.n=$N",
          "rollout.n=x actor_rollout_ref.rollout.n=8",
          "rollout.n=8 actor_rollout_ref.rollout.val_kwargs.temperature=1e-1",
          "rollout.n=8 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=null"}) {
      CAPTURE(fine);
      CHECK(find(ask_shards("rollout.n=8", fine), "refused_value") == nullptr);
    }
    // A word that is none of its own nor written for one may be a later release's (verl 1dda039b,
    // verl/workers/config/engine.py:304).
    const Checked later = ask_shards("strategy=fsdp2", "strategy=fsdp_turbo");
    REQUIRE(find(later, "refused_value") != nullptr);
    CHECK(find(later, "refused_value")->severity == Severity::warning);
    for (const char* const slip : {"strategy=fsdp3", "strategy=FSPD2", "strategy=2"}) {
      CAPTURE(slip);
      const Checked checked = ask_shards("strategy=fsdp2", slip);
      REQUIRE(find(checked, "refused_value") != nullptr);
      CHECK(find(checked, "refused_value")->severity == Severity::error);
    }
    // Words of its own another program may have; a count is one all the same.
    CHECK(find(ask_shards("verl.trainer.main_ppo \\\n",
                          "recipe.dapo.main_dapo \\\n  "
                          "actor_rollout_ref.actor.loss_agg_mode=mine \\\n"),
               "refused_value") == nullptr);
  }

  TEST_CASE("no plan is made of a size that a branch of the script decides") {
    const std::string branch = "N=8\nif [ \"$(hostname)\" = a ]; then N=16; fi\n";
    const Checked open = ask_texts({{"run.sh", branch + with_words(rl_fixture("verl_grpo.sh"),
                                                                   "rollout.n=8", "rollout.n=$N")}},
                                   "qwen3-8b", 16);
    const Finding* const f = find(open, "branches_decide");
    REQUIRE(f != nullptr);
    CHECK(f->message.find("rollout.n is 16 in one branch") != std::string::npos);
    CHECK_FALSE(open.says_plan);
    const Checked unset = ask_shards("rollout.n=8", "rollout.n=$N");
    CHECK(find(unset, "branches_decide") == nullptr);
    CHECK(unset.says_plan);
  }

  TEST_CASE("words and flags that Hydra refuses are found") {
    has_rule("stray_word",
             ask_shards("trainer.nnodes=2", "trainer.nnodes=2 trainer.total_epochs 15"),
             "trainer.total_epochs");
    has_rule("stray_word",
             ask_shards("trainer.nnodes=2", "trainer.nnodes=2 trainer.total_epochs = 15"),
             "trainer.total_epochs = 15");
    for (const char* const flag : {"--cofnig-name=ppo_trainer.yaml", "--confign-ame ppo_trainer",
                                   "--cnofig-path=config", "-x"}) {
      CAPTURE(flag);
      has_rule("unknown_option",
               ask_shards("main_ppo \\\n", "main_ppo " + std::string(flag) + " \\\n"),
               "Hydra has no such flag");
    }
    for (const char* const fine :
         {"--config-name=ppo_trainer", "--config-name ppo_trainer", "-cn ppo_trainer",
          "--config-n ppo_trainer", "--multirun", "~trainer.logger"}) {
      CAPTURE(fine);
      const Checked checked =
          ask_shards("main_ppo \\\n", "main_ppo " + std::string(fine) + " \\\n");
      CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
      CHECK(checked.step->job.samples == 8);
    }
    // A flag that takes no value takes none of the overrides; a short name is the long one.
    CHECK(ask_shards("main_ppo \\\n", "main_ppo -cn ppo_megatron_trainer \\\n").recipe ==
          RecipeKind::fsdp2);  // which a strategy that is said goes before
    CHECK(ask_megatron("--config-name='ppo_megatron_trainer.yaml'", "-cn ppo_megatron_trainer")
              .recipe == RecipeKind::megatron);
  }

  TEST_CASE("a section that was misspelt is named") {
    has_rule("unknown_option",
             ask_shards("actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rolout.n=8"), "rolout");
    const Finding found =
        *find(ask_shards("actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rolout.n=8"),
              "unknown_option");
    CHECK(found.instead.find("actor_rollout_ref.rollout.n?") != std::string::npos);
  }

  TEST_CASE("the arithmetic of batches is verl's") {
    has_rule("batch_arithmetic", ask_shards("train_batch_size=256", "train_batch_size=32"),
             "fewer than the 64");
    has_rule("batch_arithmetic", ask_shards("ppo_mini_batch_size=64", "ppo_mini_batch_size=60"),
             "no whole number");
    has_rule("batch_arithmetic",
             ask_megatron("ppo_micro_batch_size_per_gpu=2", "ppo_micro_batch_size_per_gpu=3"),
             "micro-batch 3 = 12");
    has_rule("micro_batch_unsaid",
             ask_megatron("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 ", ""));
    has_rule("micro_batch_twice",
             ask_megatron("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
                          "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 "
                          "actor_rollout_ref.rollout.log_prob_micro_batch_size=8"));
    has_rule("micro_batch_tokens",
             ask_shards("$((2 * (prompt + answer)))", "$(((prompt + answer) / 4))"), "x Ulysses 2");
  }

  TEST_CASE("engines and degrees have to divide the GPUs") {
    has_rule("rollout_divisibility",
             ask_shards("tensor_model_parallel_size=2", "tensor_model_parallel_size=3"));
    has_rule("rollout_heads", ask_shards("tensor_model_parallel_size=2",
                                         "tensor_model_parallel_size=2 "
                                         "actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
                                         "actor_rollout_ref.rollout.tensor_model_parallel_size=64",
                                         64));
    has_rule("rollout_experts", ask_megatron("rollout.tensor_model_parallel_size=4",
                                             "rollout.tensor_model_parallel_size=4 "
                                             "actor_rollout_ref.rollout.expert_parallel_size=8"));
    has_rule("rollout_prefill",
             ask_shards("rollout.n=8", "rollout.n=8 actor_rollout_ref.rollout.max_num_seqs=16384"));
    has_rule("rollout_prefill",
             ask_megatron("rollout.n=8",
                          "rollout.n=8 actor_rollout_ref.rollout.enable_chunked_prefill=False "
                          "actor_rollout_ref.rollout.max_num_batched_tokens=4096"));
    has_rule("ulysses_heads",
             ask_shards("ulysses_sequence_parallel_size=2", "ulysses_sequence_parallel_size=3"));
    has_rule(
        "ulysses_padding",
        ask_shards("rollout.n=8", "rollout.n=8 actor_rollout_ref.model.use_remove_padding=False"));
    has_rule("world_divisibility", ask_megatron("TP:-4", "TP:-3"));
    has_rule("launched_world", ask_shards("nnodes=2", "nnodes=4"), "32 GPUs");
  }

  TEST_CASE("GPUs that make answers alone train nothing") {
    const Checked checked = ask_shards(
        "trainer.nnodes=2", "trainer.nnodes=1 rollout.nnodes=1 rollout.n_gpus_per_node=8");
    REQUIRE(checked.step.has_value());
    CHECK(checked.step->job.rollout_gpus == 8);
    CHECK(checked.step->job.staleness == 1);
    CHECK(checked.plan.dp == 4);
    CHECK(find(checked, "launched_world") == nullptr);
  }

  TEST_CASE("supervised fine-tuning is a plan alone") {
    const Checked checked = ask_texts(
        {{"sft.sh",
          "torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer "
          "data.train_batch_size=64 data.micro_batch_size_per_gpu=4 data.max_length=2048 "
          "model.partial_pretrain=Qwen/Qwen3-8B ulysses_sequence_parallel_size=2 "
          "use_remove_padding=true\n"}},
        "qwen3-8b", 8);
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK_FALSE(checked.step.has_value());
    CHECK(checked.plan.dp == 4);
    CHECK(checked.plan.cp == 2);
    CHECK(checked.plan.micro_batch_size == 4);
    CHECK(checked.plan.global_batch_size == 64);
    CHECK(checked.plan.seq_len == 2048);
  }

  TEST_CASE("its generation trains nothing") {
    has_rule(
        "unknown_file",
        ask_text("gen.sh",
                 "python3 -m verl.trainer.main_generation data.path=x rollout.temperature=1\n"));
  }
}

TEST_SUITE("steps") {
  TEST_CASE("a step comes back from JSON") {
    RlStep step;
    step.job.prompts = 48;
    step.job.train_batch = 96;
    step.job.rollout_gpus = 8;
    step.job.staleness = 1;
    step.job.reference = false;
    step.job.response = {.mean = 900, .max = 3000, .spread = 0.4, .stated = {}};
    step.layout = {.tp = 2, .dp = 4, .ep = 8, .memory_share = 0.7, .max_running = 64};
    const RlStep again = rl_step_from_json(rl_step_json(step), "step");
    CHECK(rl_step_json(again) == rl_step_json(step));
    CHECK(again.layout == step.layout);
    CHECK(again.job.rollout_gpus == 8);
    Json wrong = rl_step_json(step);
    wrong["prompts"] = 0;
    CHECK_THROWS_AS(rl_step_from_json(wrong, "step"), Error);
  }

  TEST_CASE("what is written of a step is read back, and nothing is found") {
    for (const Framework framework : {Framework::verl, Framework::nemo_rl}) {
      for (const RecipeKind recipe : {RecipeKind::megatron, RecipeKind::fsdp2}) {
        for (const std::int64_t apart : {0, 8}) {
          const ModelSpec model = load_model("qwen3-8b");
          const Json config = model_config("qwen3-8b");
          const bool megatron = recipe == RecipeKind::megatron;
          RlStep step;
          step.job.prompts = 64;
          step.job.samples = 16;
          step.job.train_batch = 256;
          step.job.prompt_len = 512;
          step.job.response.max = 3584;
          step.job.response.mean = 1792;
          step.job.rollout_gpus = apart;
          step.job.staleness = apart > 0 ? 1 : 0;
          step.layout = {.tp = 2, .memory_share = 0.6, .max_running = 128};
          ParallelPlan plan = parse_plan(
              megatron ? "tp2 pp1 dp8 zero1 mbs1 gbs64 seq8192 recompute=full sequence_parallel"
                       : "tp1 pp1 dp16 zero3 mbs1 gbs64 seq8192 recompute=full overlap=grad+param");
          plan = update_plan(step.job, model, plan);
          plan.routing = ParallelPlan{}.routing;
          const Subject subject{model, config, plan, recipe, 8, &step};
          CAPTURE(to_word(framework));
          CAPTURE(to_word(recipe));
          CAPTURE(apart);
          const ClusterLimits limits{plan.world(), 90};
          for (const Infeasible& reason : why_inexpressible(framework, subject, limits)) {
            FAIL_CHECK(reason.message);
          }
          const auto files = emit(framework, subject, {"a remark"});
          const Checked checked =
              check_cited(texts_of(files), question_of(model, config, plan.world() + apart));
          CHECK_MESSAGE(checked.findings.empty(), findings_text(checked) << files.front().text);
          CHECK(to_string(checked.plan) == to_string(plan));
          REQUIRE(checked.step.has_value());
          // Lengths are the longest's there, and half of it.
          CHECK(rl_step_json(*checked.step) == rl_step_json(step));
        }
      }
    }
  }
}

}  // namespace qplan
