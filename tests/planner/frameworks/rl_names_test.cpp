// Names and words of verl's command lines and NeMo-RL's YAML: slips, lost line breaks, recipes,
// numbers that no batch has.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/fix.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kVerl =
    "python3 -m verl.trainer.main_ppo \\\n"
    "    algorithm.adv_estimator=grpo \\\n"
    "    data.train_batch_size=256 \\\n"
    "    data.max_prompt_length=512 \\\n"
    "    data.max_response_length=1024 \\\n"
    "    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\\n"
    "    actor_rollout_ref.actor.strategy=fsdp2 \\\n"
    "    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\\n"
    "    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\\n"
    "    actor_rollout_ref.rollout.name=vllm \\\n"
    "    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\\n"
    "    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \\\n"
    "    actor_rollout_ref.rollout.n=8 \\\n"
    "    trainer.n_gpus_per_node=8 \\\n"
    "    trainer.nnodes=1\n";

const std::string kNemo =
    "grpo:\n"
    "  num_prompts_per_step: 64\n"
    "  num_generations_per_prompt: 16\n"
    "policy:\n"
    "  model_name: Qwen/Qwen3-8B\n"
    "  train_global_batch_size: 512\n"
    "  train_micro_batch_size: 4\n"
    "  max_total_sequence_length: 2048\n"
    "  dtensor_cfg:\n"
    "    enabled: true\n"
    "    tensor_parallel_size: 2\n"
    "    context_parallel_size: 1\n"
    "  generation:\n"
    "    backend: vllm\n"
    "    vllm_cfg:\n"
    "      tensor_parallel_size: 2\n"
    "cluster:\n"
    "  gpus_per_node: 8\n"
    "  num_nodes: 2\n";

struct Asked {
  ModelSpec model = load_model("qwen3-8b");
  Json config = model_config("qwen3-8b");
  std::int64_t gpus = 8;
  Checked operator()(std::span<const ConfigText> files) const {
    return check_cited(files, question_of(model, config, gpus));
  }
};

Checked ask(const std::string& name, const std::string& text, std::int64_t gpus = 8) {
  Asked asked;
  asked.gpus = gpus;
  const std::vector<ConfigText> files{{name, text}};
  return asked(files);
}

// What --fix makes of it.
std::string fixed(const std::string& name, const std::string& text, std::int64_t gpus = 8) {
  Asked asked;
  asked.gpus = gpus;
  const std::vector<ConfigText> files{{name, text}};
  return fix(files, std::cref(asked)).files.front().text;
}

}  // namespace

TEST_SUITE("names of verl and NeMo-RL") {
  TEST_CASE("a slip of verl's is one name that was meant, and is mended in its place") {
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"trainer.nnodes", "trainer.nnode"},
             {"trainer.n_gpus_per_node", "trainer.n_gpu_per_node"},
             {"actor.ppo_mini_batch_size", "actor.ppo_mini_bacth_size"},
             {"actor_rollout_ref.rollout.n=", "actor_rololut_ref.rollout.n="},
             {"rollout.tensor_model_parallel_size", "rollout.tensor_model_paralel_size"},
             {"rollout.tensor_model_parallel_size", "rollout.tensor_parallel_size"},
             {"data.max_response_length", "dtaa.max_response_length"},
             {"strategy=fsdp2", "strategy=FSDP2"},
             {"name=vllm", "name=vLLM"}}) {
      CAPTURE(to);
      CHECK(fixed("run.sh", with_words(kVerl, from, to)) == kVerl);
    }
    // Of keys that are added, the section's name; both names of one key.
    const std::string added =
        with_words(kVerl, "    trainer.nnodes",
                   "    +actor_rollout_ref.model.override_config.attention_dropout=0 \\\n"
                   "    trainer.nnodes");
    CHECK(fixed("run.sh", with_words(added, "override_config", "overide_config")) == added);
    CHECK(fixed("run.sh", with_words(with_words(kVerl, "rollout.n=", "rololut.n="),
                                     "data.max_prompt_length", "dtaa.max_promt_length")) == kVerl);
    // Another word is none: nobody knows what was meant.
    const std::string other =
        with_words(kVerl, "rollout.tensor_model_parallel_size", "rollout.tensor_ways");
    CHECK(fixed("run.sh", other) == other);
  }

  TEST_CASE("Megatron's section needs its configuration, and its weights a folder") {
    const std::string job = with_words(
        kVerl, "    trainer.nnodes",
        "    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\\n    trainer.nnodes");
    const std::string plain =
        with_words(job, "    actor_rollout_ref.actor.strategy=fsdp2 \\\n", "");
    const auto ask = [](const std::string& text) {
      return ask_text("run.sh", text, "qwen3-8b", 8);
    };
    REQUIRE(find(ask(plain), "config_name") != nullptr);
    CHECK(find(ask(plain), "config_name")->place.line == 14);
    const auto named = [&](const std::string& flag) {
      return with_words(plain, "main_ppo \\\n", "main_ppo " + flag + " \\\n");
    };
    const std::string right = named("--config-name=ppo_megatron_trainer.yaml");
    CHECK(find(ask(right), "config_name") == nullptr);
    CHECK(find(ask(named("--config-name=ppo_trainer")), "config_name") != nullptr);
    CHECK(find(ask(named("model_engine=megatron")), "config_name") == nullptr);
    CHECK(find(ask(right), "option_needs") == nullptr);
    const std::string saved =
        "    actor_rollout_ref.actor.megatron.use_dist_checkpointing=True \\\n";
    const std::string at = "    trainer.nnodes";
    CHECK(find(ask(with_words(right, at, saved + at)), "option_needs") != nullptr);
    CHECK(find(ask(with_words(
                   right, at,
                   saved + "    actor_rollout_ref.actor.megatron.dist_checkpointing_path=/w \\\n" +
                       at)),
               "option_needs") == nullptr);
  }

  TEST_CASE("a slip of NeMo-RL's, of a key, a section, or an override, is mended") {
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"num_prompts_per_step", "num_prompts_per_steps"},
             {"num_generations_per_prompt", "num_generation_per_prompt"},
             {"num_nodes", "num_node"},
             {"context_parallel_size", "contxt_parallel_size"},
             {"dtensor_cfg", "dtensr_cfg"},
             {"cluster:", "clusetr:"}}) {
      CAPTURE(to);
      CHECK(fixed("x.yaml", with_words(kNemo, from, to), 16) == kNemo);
    }
    const std::string script = "python examples/run_grpo.py --config x.yaml cluster.num_nodes=2\n";
    const std::vector<ConfigText> files{{"run.sh", with_words(script, "num_nodes", "num_node")},
                                        {"x.yaml", kNemo}};
    Asked asked;
    asked.gpus = 16;
    CHECK(fix(files, std::cref(asked)).files.front().text == script);
  }

  TEST_CASE("a line of overrides below a command lacks a backslash above it") {
    const std::string lost = with_words(kVerl, "n=8 \\\n", "n=8\n");
    const Checked checked = ask("run.sh", lost);
    REQUIRE(find(checked, "missing_continuation") != nullptr);
    CHECK(checked.step->job.samples == 8);
    CHECK(fixed("run.sh", lost) == kVerl);
    const std::string first = with_words(kVerl, "main_ppo \\\n", "main_ppo\n");
    CHECK(fixed("run.sh", first) == kVerl);
    // A remark takes the backslash with it.
    const std::string remark = with_words(kVerl, "n=8 \\\n", "n=8 # answers \\\n");
    REQUIRE(find(ask("run.sh", remark), "missing_continuation") != nullptr);
    const std::string mended = fixed("run.sh", remark);
    CHECK(find(ask("run.sh", mended), "missing_continuation") == nullptr);
    CHECK(mended.find("answers") != std::string::npos);
    CHECK(ask("run.sh", kVerl + "\nRUN.x=3\n").findings.size() ==
          ask("run.sh", kVerl).findings.size());
  }

  TEST_CASE("a recipe's keys are verl's and its own, or a note says that they are not checked") {
    const std::string dapo = with_words(kVerl, "verl.trainer.main_ppo", "recipe.dapo.main_dapo");
    const std::string own =
        with_words(dapo, "data.max_prompt_length",
                   "data.gen_batch_size=512 \\\n    algorithm.filter_groups.enable=True \\\n    "
                   "reward_model.overlong_buffer.len=512 \\\n    data.max_prompt_length");
    CHECK_MESSAGE(find(ask("run.sh", own), "unknown_option") == nullptr,
                  findings_text(ask("run.sh", own)));
    const Checked slip = ask("run.sh", with_words(own, "data.max_prompt", "dtaa.max_prompt"));
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "keys_unchecked") == nullptr);
    const Checked other =
        ask("run.sh", with_words(kVerl, "verl.trainer.main_ppo", "recipe.prime.main_prime"));
    REQUIRE(find(other, "keys_unchecked") != nullptr);
    CHECK(find(other, "keys_unchecked")->severity == Severity::note);
  }

  TEST_CASE("counts that a batch is cut by are 1 or more") {
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"train_batch_size=256", "train_batch_size=-256"},
             {"rollout.n=8", "rollout.n=-8"},
             {"ppo_mini_batch_size=64", "ppo_mini_batch_size=0"},
             {"ppo_micro_batch_size_per_gpu=4", "ppo_micro_batch_size_per_gpu=-4"}}) {
      CAPTURE(to);
      CHECK(find(ask("run.sh", with_words(kVerl, from, to)), "refused_value") != nullptr);
    }
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"num_prompts_per_step: 64", "num_prompts_per_step: -64"},
             {"train_micro_batch_size: 4", "train_micro_batch_size: 0"},
             {"num_nodes: 2", "num_nodes: -2"}}) {
      CAPTURE(to);
      CHECK(find(ask("x.yaml", with_words(kNemo, from, to), 16), "refused_value") != nullptr);
    }
    const std::string never = with_words(kVerl, "trainer.nnodes",
                                         "trainer.test_freq=False \\\n    "
                                         "trainer.nnodes");
    CHECK(find(ask("run.sh", never), "refused_value") == nullptr);
  }

  TEST_CASE("GPUs of their own for answers: the job's are both sides' together") {
    std::string text = with_words(kVerl, "verl.trainer.main_ppo",
                                  "verl.experimental.one_step_off_policy.main_ppo");
    text = with_words(text, "trainer.n_gpus_per_node=8",
                      "trainer.n_gpus_per_node=6 \\\n    rollout.nnodes=1 \\\n    "
                      "rollout.n_gpus_per_node=2");
    const Checked whole = ask("run.sh", text, 8);
    CHECK(find(whole, "launched_world") == nullptr);
    CHECK(find(whole, "rollout_divisibility") == nullptr);
    CHECK(whole.engines == 2);
    CHECK(whole.plan.world() == 6);
    // Of another number one finding says it, in the files' own numbers.
    const Checked other = ask("run.sh", text, 6);
    CHECK(find(other, "launched_world") != nullptr);
    CHECK(find(other, "rollout_divisibility") == nullptr);
    const Checked three = ask(
        "run.sh", with_words(text, "rollout.n_gpus_per_node=2", "rollout.n_gpus_per_node=3"), 9);
    CHECK(find(three, "rollout_divisibility") != nullptr);
  }

  TEST_CASE("NeMo-RL's GPUs for answers leave some to train") {
    const auto apart = [](const std::string& nodes, const std::string& gpus) {
      std::string text = with_words(kNemo, "    backend: vllm\n",
                                    "    backend: vllm\n    colocated:\n      enabled: false\n"
                                    "      resources:\n        num_nodes: " +
                                        nodes + "\n        gpus_per_node: " + gpus + "\n");
      return text;
    };
    CHECK(find(ask("x.yaml", apart("1", "8"), 16), "no_trainers") == nullptr);
    CHECK(find(ask("x.yaml", apart("1", "8"), 16), "engine_nodes") == nullptr);
    CHECK(find(ask("x.yaml", apart("2", "8"), 16), "no_trainers") != nullptr);
    CHECK(find(ask("x.yaml", apart("1", "4"), 16), "engine_nodes") != nullptr);
    const auto one = [&](const std::string& nodes, const std::string& gpus) {
      return ask("x.yaml", with_words(apart(nodes, gpus), "num_nodes: 2\n", "num_nodes: 1\n"), 8);
    };
    CHECK(find(one("null", "4"), "no_trainers") == nullptr);
    CHECK(find(one("null", "8"), "no_trainers") != nullptr);
  }

  TEST_CASE("words that verl looks up go by its names") {
    const auto with = [](const std::string& from, const std::string& to) {
      return ask("run.sh", with_words(kVerl, from, to));
    };
    const std::string estimator = "adv_estimator=grpo", end = "    trainer.nnodes";
    for (const std::string word : {"GRPO", "gpro", "reinforce_plus_pus"}) {
      CAPTURE(word);
      const Checked checked = with(estimator, "adv_estimator=" + word);
      REQUIRE(find(checked, "refused_value") != nullptr);
      CHECK(find(checked, "refused_value")->severity == Severity::error);
    }
    // One that a program registers is none of them.
    const Checked own = with(estimator, "adv_estimator=my_own_way");
    REQUIRE(find(own, "refused_value") != nullptr);
    CHECK(find(own, "refused_value")->severity == Severity::warning);
    const auto with_kl = [&](const std::string& word) {
      return with(end, "    actor_rollout_ref.actor.kl_loss_type=" + word + " \\\n" + end);
    };
    CHECK(find(with_kl("lowvar_kl"), "refused_value") != nullptr);
    for (const std::string word : {"low_var_kl", "k3", "k3+", "kl"}) {
      CHECK(find(with_kl(word), "refused_value") == nullptr);
    }
  }

  TEST_CASE("a group of one answer has nothing to be compared with") {
    const auto with_n = [](const std::string& n, const std::string& estimator) {
      const std::string text = with_words(kVerl, "    actor_rollout_ref.rollout.n=8 \\\n", n);
      return ask("run.sh", with_words(text, "adv_estimator=grpo", "adv_estimator=" + estimator));
    };
    const std::string one = "    actor_rollout_ref.rollout.n=1 \\\n";
    REQUIRE(find(with_n("", "grpo"), "generation_batch") != nullptr);
    CHECK(find(with_n("", "grpo"), "generation_batch")->severity == Severity::warning);
    CHECK(find(with_n(one, "rloo"), "generation_batch") != nullptr);
    CHECK(find(with_n("", "gae"), "generation_batch") == nullptr);
    CHECK(find(with_n("    actor_rollout_ref.rollout.n=$N \\\n", "grpo"), "generation_batch") ==
          nullptr);
    CHECK(find(ask("run.sh", kVerl), "generation_batch") == nullptr);
  }

  TEST_CASE("a configuration of verl's that is not given leaves no plan") {
    const std::string text =
        with_words(with_words(kVerl, "main_ppo", "main_ppo --config-name=mine"),
                   "    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\\n", "");
    const Checked checked = ask("run.sh", text);
    REQUIRE(find(checked, "config_missing") != nullptr);
    CHECK(checked.findings.size() == 1);  // it may say the micro-batch
    CHECK_FALSE(checked.says_plan);
    const Checked own = ask("run.sh", with_words(text, "=mine", "=ppo_trainer.yaml"));
    CHECK(find(own, "config_missing") == nullptr);
    CHECK(find(own, "micro_batch_unsaid") != nullptr);
    const std::vector<ConfigText> both{{"run.sh", text},
                                       {"mine.yaml",
                                        "actor_rollout_ref:\n  actor:\n    fsdp_config:\n"
                                        "      param_offload: true\n    "
                                        "ppo_micro_batch_size_per_gpu: 4\n"}};
    Asked asked;
    CHECK(find(asked(both), "config_missing") == nullptr);
  }

  TEST_CASE("NeMo-RL's engines go by its names") {
    CHECK(find(ask("x.yaml", with_words(kNemo, "backend: vllm", "backend: vllm0"), 16),
               "refused_value") != nullptr);
    for (const std::string name : {"sglang", "megatron", "dynamo"}) {
      CHECK(find(ask("x.yaml", with_words(kNemo, "backend: vllm", "backend: " + name), 16),
                 "refused_value") == nullptr);
    }
  }
}

}  // namespace qplan
