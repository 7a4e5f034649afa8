// OpenRLHF's commands: the DeepSpeed job that they ask for, and what its programs stop at.

#include "planner/frameworks/finetuning/openrlhf.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kSft =
    "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft \\\n"
    "  --model.model_name_or_path meta-llama/Meta-Llama-3-8B \\\n"
    "  --train.batch_size 256 --train.micro_batch_size 2 --data.max_len 4096 \\\n"
    "  --ds.zero_stage 3 --model.gradient_checkpointing_enable --ds.packing_samples \\\n";
const std::string kOlder =
    "read -r -d '' training_commands <<EOF\n"
    "openrlhf.cli.train_dpo \\\n"
    "  --pretrain meta-llama/Meta-Llama-3-8B --train_batch_size 64 \\\n"
    "  --micro_train_batch_size 1 --zero_stage 2 --bf16 --max_len 2048 --adam_offload \\\n"
    "  --gradient_checkpointing --gradient_checkpointing_use_reentrant \\\n"
    "  --learning_rate 5e-7 --apply_chat_template --flash_attn\n"
    "EOF\n"
    "deepspeed --num_gpus 8 --module $training_commands\n";
const std::string kPpo =
    "ray job submit --address=\"http://127.0.0.1:8265\" -- python3 -m openrlhf.cli.train_ppo_ray "
    "\\\n"
    "  --actor.num_nodes 1 --actor.num_gpus_per_node 4 --ref.num_nodes 1 \\\n"
    "  --ref.num_gpus_per_node 4 --train.colocate_actor_ref --vllm.num_engines 2 \\\n"
    "  --vllm.tensor_parallel_size 2 --actor.model_name_or_path meta-llama/Meta-Llama-3-8B \\\n"
    "  --reward.remote_url http://x --algo.advantage.estimator reinforce_baseline \\\n"
    "  --rollout.n_samples_per_prompt 8 --rollout.batch_size 128 --train.batch_size 1024 \\\n"
    "  --train.micro_batch_size 2 --data.max_len 8192 --ds.zero_stage 3 \\\n"
    "  --actor.gradient_checkpointing_enable --ds.packing_samples ";

Checked ask(const std::string& script, std::int64_t gpus = 8) {
  return ask_text("run.sh", script, "llama3-8b", gpus);
}

std::string rule_of(const std::string& script, std::int64_t gpus = 8) {
  for (const Finding& found : ask(script, gpus).findings) {
    if (found.severity == Severity::error) return found.rule + ": " + found.message;
  }
  return "";
}

}  // namespace

TEST_SUITE("OpenRLHF's commands") {
  TEST_CASE("say what stands on the GPUs that train and is not counted") {
    const auto with = [](const std::string& words) { return ask(kPpo + words + "\n"); };
    const auto said = [](const Checked& checked, const std::string& part) {
      return std::any_of(checked.assumed.begin(), checked.assumed.end(),
                         [&](const auto& a) { return a.find(part) != std::string::npos; });
    };
    // Its reference beside it: 8.03B parameters in 16 bits, sharded by ZeRO-3 over 4 GPUs.
    const Checked reference = with("");
    const Finding* const beside = find(reference, "reference_model");
    REQUIRE_MESSAGE(beside != nullptr, findings_text(reference));
    CHECK(beside->severity == Severity::note);
    CHECK(beside->message.find("3.74 GiB") != std::string::npos);
    CHECK(said(reference, "on these GPUs stand also the reference"));
    CHECK(find(with("--ref.offload"), "reference_model") == nullptr);
    CHECK(find(with("--algo.kl.init_coef 0"), "reference_model") == nullptr);
    CHECK(find(reference, "vllm_share") == nullptr);
    // All on the same: engines that keep their memory, and a critic.
    const std::string all = "--train.colocate_all --critic.model_name_or_path x ";
    const Checked awake = with(all);
    REQUIRE_MESSAGE(find(awake, "vllm_share") != nullptr, findings_text(awake));
    CHECK(find(awake, "vllm_share")->severity == Severity::warning);
    CHECK(find(awake, "critic_model") != nullptr);
    CHECK(said(awake, "the reference, vLLM's engines, the critic"));
    const Checked asleep = with(all + "--vllm.enable_sleep --vllm.gpu_memory_utilization 0.6");
    CHECK(find(asleep, "vllm_share")->severity == Severity::note);
    CHECK(find(with("--train.colocate_all --train.async_enable"), "vllm_share") == nullptr);
    // DPO's, whole on each GPU below ZeRO-3.
    const Checked dpo = ask(kOlder);
    REQUIRE_MESSAGE(find(dpo, "reference_model") != nullptr, findings_text(dpo));
    CHECK(find(dpo, "reference_model")->message.find("15.0 GiB") != std::string::npos);
  }

  TEST_CASE("of fine-tuning are a job of DeepSpeed's") {
    const Checked checked = ask(kSft + "  --ds.lora.rank 16 --ds.lora.alpha 32\n");
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    CHECK_FALSE_MESSAGE(checked.has(Severity::warning), findings_text(checked));
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(checked.recipe == RecipeKind::deepspeed);
    CHECK(checked.says_plan);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.zero == 3);
    CHECK(plan.dp == 8);
    CHECK(plan.global_batch_size == 256);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.seq_len == 4096);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK_FALSE(plan.use_reentrant);
    CHECK(plan.lora_rank == 16);
    CHECK(plan.lora_alpha == 32);
    CHECK(plan.lora_targets.empty());  // all-linear
    CHECK(ask(kSft + "\n").plan.lora_rank == 0);
    CHECK(model_id_of_files(read_job_files(std::vector<ConfigText>{{"run.sh", kSft + "\n"}})) ==
          "meta-llama/Meta-Llama-3-8B");
  }

  TEST_CASE("by names of older releases are read, and told to be those") {
    const Checked checked = ask(kOlder);
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    const Finding* const names = find(checked, "dropped_option");
    REQUIRE(names != nullptr);
    CHECK(names->severity == Severity::note);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.zero == 2);
    CHECK(plan.offload.optimizer == 1);
    CHECK(plan.use_reentrant);
    CHECK(plan.global_batch_size == 128);  // pairs
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.seq_len == 2048);
    const Checked mixed = ask(kSft + "  --zero_stage 3\n");
    const Finding* const flat = find(mixed, "unknown_option");
    REQUIRE_MESSAGE(flat != nullptr, findings_text(mixed));
    CHECK(flat->instead == "write --ds.zero_stage");
    CHECK(flat->place.line == 5);
  }

  TEST_CASE("of several programs in a script the first is judged") {
    const Checked checked = ask(
        kSft + "\n" + "deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --zero_stage 2\n");
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    REQUIRE(find(checked, "several_configurations") != nullptr);
    CHECK(checked.plan.zero == 3);
  }

  TEST_CASE("of answers are the policy's training, on the actor's GPUs") {
    const Checked checked = ask(kPpo + "\n");
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    CHECK(checked.plan.dp == 4);
    CHECK(checked.engines == 4);
    CHECK(checked.plan.global_batch_size == 1024);
    CHECK(checked.plan.seq_len == 8192);
    CHECK(checked.plan.recompute.kind == RecomputeKind::full);
    const auto gpus = [](const std::string& more) {
      const JobFiles files =
          read_job_files(std::vector<ConfigText>{{"run.sh", kPpo + more + "\n"}});
      return gpus_of_openrlhf(*files.find(Dialect::openrlhf));
    };
    CHECK(gpus("") == 8);                                 // 4 actor, 2 x 2 engines
    CHECK(gpus("--algo.advantage.estimator gae") == 16);  // and a critic's 8
    CHECK(gpus("--train.colocate_all") == 4);
    CHECK(gpus("--train.colocate_all --train.async_enable") == 8);
    CHECK(gpus("--actor.num_nodes $NODES") == std::nullopt);
  }

  TEST_CASE("what the programs stop at") {
    struct Case {
      std::string script, rule;
    };
    for (const auto& [script, rule] : std::vector<Case>{
             {kSft + "  --ds.ring_attn_size 2\n", ""},
             {"deepspeed --module openrlhf.cli.train_sft --ring_attn_size 2\n", "option_needs"},
             {kSft + "  --data.multiturn\n", "option_needs"},
             {kSft + "  --data.multiturn --data.apply_chat_template\n", ""},
             {kSft + "  --ds.load_in_4bit --ds.lora.rank 8 --ds.param_dtype fp16\n",
              "options_exclude"},
             {kSft + "  --ds.param_dtype fp32\n", "refused_value"},
             {kSft + "  --train.batchsize 8\n", "unknown_option"},
             {kSft + "  --own.argument 8\n", ""},
             {kPpo + "--rollout.n_samples_per_prompt 1\n", "group_of_one"},
             {kPpo + "--train.colocate_all --vllm.num_engines 1\n", "engines_divide"},
             {kPpo + "--ref.num_gpus_per_node 2\n", "options_exclude"},
             {kPpo + "--ref.num_gpus_per_node 2 --algo.kl.init_coef 0\n", ""},
             {kPpo + "--vllm.num_engines 0\n", "option_needs"},
             {kPpo + "--train.partial_rollout_enable\n", "option_needs"},
             {kPpo + "--rollout.batch_size 4 --rollout.micro_batch_size 16\n", "rollout_batches"},
             {kPpo + "--algo.dynamic_filtering_enable\n", ""}}) {
      CAPTURE(script);
      const std::string found = rule_of(script);
      CHECK_MESSAGE(found.substr(0, found.find(':')) == rule, found);
    }
  }

  TEST_CASE("are told by their programs") {
    CHECK(openrlhf_verb_of("openrlhf.cli.train_sft") == "sft");
    CHECK(openrlhf_verb_of("./openrlhf/cli/train_ppo_ray.py") == "ppo_ray");
    CHECK(openrlhf_verb_of("openrlhf.cli.serve_rm").empty());
    CHECK(openrlhf_verb_of("train_sft.py").empty());
    CHECK(dotted_name("--zero_stage") == "--ds.zero_stage");
    CHECK(dotted_name("--max_norm") == "--max_norm");
  }
}

}  // namespace qplan
