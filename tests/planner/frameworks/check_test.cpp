#include "planner/frameworks/check.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

struct Asked {
  std::string folder, model;
  std::int64_t gpus;
  std::vector<std::string> files;
};

Checked ask(const Asked& asked) {
  const ModelSpec model = load_model(asked.model);
  const Json config = model_config(asked.model);
  std::vector<ConfigText> texts;
  for (const std::string& name : asked.files) {
    const std::string path = std::string(QPLAN_TEST_DATA) + "/configs/" + asked.folder + "/" + name;
    texts.push_back({name, read_text_file(path)});
  }
  return check_cited(texts, question_of(model, config, asked.gpus));
}

struct Expected {
  std::string file;
  int line;
  std::string rule;
};

// Exactly these errors and warnings, in any order: what is right is left alone.
void finds_exactly(const Checked& checked, std::vector<Expected> expected) {
  CAPTURE(findings_text(checked));
  for (const Finding& f : checked.findings) {
    if (f.severity == Severity::note) continue;
    const auto found = std::find_if(expected.begin(), expected.end(), [&](const Expected& e) {
      return e.rule == f.rule && e.file == f.place.file && e.line == f.place.line;
    });
    CHECK_MESSAGE(found != expected.end(), to_string(f.place)
                                               << " [" << f.rule << "] " << f.message);
    if (found != expected.end()) expected.erase(found);
  }
  for (const Expected& e : expected)
    FAIL_CHECK("not found: " << e.file << ":" << e.line << " " << e.rule);
}

TEST_SUITE("configurations that articles show") {
  TEST_CASE("Qwen3-30B-A3B by a Megatron yaml, ds_config.json and the deepspeed launcher") {
    finds_exactly(ask({"megatron_yaml_and_deepspeed",
                       "qwen3-30b-a3b",
                       64,
                       {"megatron_config.yaml", "deepspeed_config.json", "train.sh"}}),
                  {{"megatron_config.yaml", 2, "unknown_option"},   // type
                   {"megatron_config.yaml", 6, "unknown_option"},   // head_size
                   {"megatron_config.yaml", 9, "unknown_option"},   // experts_per_tok
                   {"megatron_config.yaml", 10, "unknown_option"},  // expert_capacity_factor
                   {"megatron_config.yaml", 11, "unknown_option"},  // router_aux_loss_coef
                   {"megatron_config.yaml", 16, "expert_world"},    // etp 4 x ep 16 on 16 ranks
                   {"megatron_config.yaml", 16, "expert_tensor_default"},
                   {"megatron_config.yaml", 16, "expert_parallel_available"},
                   {"megatron_config.yaml", 17, "unknown_option"},  // the split rank
                   {"megatron_config.yaml", 20, "batch_arithmetic"},
                   {"megatron_config.yaml", 25, "unknown_option"},  // warmup_steps
                   {"megatron_config.yaml", 0, "yaml_is_not_read"},
                   {"megatron_config.yaml", 0, "expert_tensor_available"},
                   {"megatron_config.yaml", 0, "model_available"},
                   {"deepspeed_config.json", 13, "zero_with_pipeline"},
                   {"deepspeed_config.json", 23, "prefetch_bucket"},
                   {"deepspeed_config.json", 27, "fp16_of_bf16_model"},
                   {"deepspeed_config.json", 29, "loss_scale_power"},
                   {"train.sh", 8, "no_hostfile"},
                   {"train.sh", 11, "other_file_name"},
                   {"train.sh", 12, "no_such_file_argument"}});
  }

  TEST_CASE("the same for the 256 GPUs of its tables: the launcher starts 64") {
    const Checked checked = ask({"megatron_yaml_and_deepspeed",
                                 "qwen3-30b-a3b",
                                 256,
                                 {"megatron_config.yaml", "deepspeed_config.json", "train.sh"}});
    REQUIRE(find(checked, "launched_world") != nullptr);
    CHECK(find(checked, "launched_world")->message.find("64") != std::string::npos);
    CHECK(find(checked, "batch_arithmetic") == nullptr);  // 8 x 16 x dp 16 is 2048
    CHECK(checked.plan.dp == 16);
    CHECK(checked.plan.ep == 16);
    CHECK(checked.plan.zero == 3);
  }

  TEST_CASE("Megatron-DeepSpeed with ZeRO-3, a pipeline and sequence parallelism") {
    finds_exactly(ask({"megatron_deepspeed", "gpt-1.3t", 32, {"ds_config.json", "train.sh"}}),
                  {{"ds_config.json", 2, "json_remark"},
                   {"ds_config.json", 2, "batch_arithmetic"},
                   {"ds_config.json", 12, "zero_with_pipeline"},
                   {"ds_config.json", 26, "unknown_option"},
                   {"ds_config.json", 27, "unknown_option"},
                   {"ds_config.json", 34, "communication_type"},
                   {"train.sh", 7, "broken_continuation"},
                   {"train.sh", 7, "launched_world"},
                   {"train.sh", 7, "launched_degrees"},
                   {"train.sh", 7, "world_size_exported"},
                   {"train.sh", 14, "unknown_option"},  // --context-parallel-size
                   {"train.sh", 15, "other_model"},     // 120 layers
                   {"train.sh", 16, "other_model"},     // hidden 12288: 217 B, not 1.3 T
                   {"train.sh", 17, "other_model"},
                   {"train.sh", 18, "learned_positions"},
                   {"train.sh", 30, "unknown_option"}});  // --save-dir
  }

  TEST_CASE("its advice: flags of other programs, and versions") {
    finds_exactly(ask({"megatron_deepspeed", "gpt-217b", 16, {"tips.sh", "hostfile"}}),
                  {{"tips.sh", 8, "learned_positions"},
                   {"tips.sh", 10, "unknown_option"},  // --fp8-format
                   {"tips.sh", 11, "fpdt_whole_chunks"},
                   {"tips.sh", 11, "fpdt_alone"},
                   {"tips.sh", 12, "unknown_option"},    // --offload_optimizer
                   {"tips.sh", 12, "unknown_option"},    // --offload_param
                   {"tips.sh", 13, "unknown_option"}});  // --nccl-timeout
    finds_exactly(ask({"megatron_deepspeed", "gpt-1.3t", 32, {"setup.sh"}}),
                  {{"setup.sh", 6, "deepspeed_version"}, {"setup.sh", 7, "package_name"}});
    finds_exactly(ask({"megatron_deepspeed", "gpt-1.3t", 16, {"launch.sh", "hostfile"}}),
                  {{"launch.sh", 2, "launches_shell"}});
  }

  TEST_CASE("the model of its 120 layers is the zoo's gpt-217b") {
    const Checked checked =
        ask({"megatron_deepspeed", "gpt-217b", 32, {"ds_config.json", "train.sh"}});
    CHECK(find(checked, "other_model") == nullptr);
  }

  TEST_CASE("FSDP of Qwen3-32B without a wrap policy") {
    finds_exactly(ask({"fsdp_qwen3_32b", "qwen3-32b", 16, {"train_qwen3_32b.py", "launch.sh"}}),
                  {{"train_qwen3_32b.py", 6, "narrow_weights"},
                   {"train_qwen3_32b.py", 13, "no_wrap_policy"},
                   {"train_qwen3_32b.py", 17, "reduce_dtype"}});
    finds_exactly(ask({"fsdp_qwen3_32b", "qwen3-32b", 16, {"train_wrapped.py"}}),
                  {{"train_wrapped.py", 6, "wrap_by_size"}});
  }

  TEST_CASE("FSDP of Qwen3-VL: ranks, classes and enums") {
    const Checked checked =
        ask({"fsdp_qwen3_vl", "qwen3-vl-30b-a3b", 32, {"train.py", "launch.sh"}});
    finds_exactly(checked, {{"train.py", 12, "local_rank_as_rank"},
                            {"train.py", 20, "model_class"},
                            {"train.py", 30, "sharding_strategy"},
                            {"train.py", 34, "no_wrap_policy"}});
    CHECK(checked.plan.zero == 2);  // what SHARD_GRAD_OP is
    CHECK(checked.plan.offload.params);
  }

  TEST_CASE("slime's page: one flag is gone, the plan is right") {
    const Checked checked = ask({"slime_qwen3_30b_a3b", "qwen3-30b-a3b", 8, {"run.sh"}});
    finds_exactly(checked, {{"run.sh", 17, "unknown_option"}});
    CHECK(find(checked, "unknown_option")->instead.find("--sglang-ep-size") != std::string::npos);
    CHECK(checked.plan.tp == 4);
    CHECK(checked.plan.ep == 8);
    CHECK(checked.plan.etp == 1);
    CHECK(checked.plan.offload.optimizer == 1);
    finds_exactly(ask({"slime_qwen3_30b_a3b", "qwen3-30b-a3b", 24, {"sglang_24.sh"}}),
                  {{"sglang_24.sh", 4, "unknown_option"}});
  }
}

TEST_SUITE("frameworks' own examples raise no alarm") {
  // Read from checkouts, which are not ours to keep; without one the case is not listed.
  TEST_CASE("slime's scripts" * doctest::skip(std::getenv("SLIME_DIR") == nullptr)) {
    const std::string scripts = std::string(std::getenv("SLIME_DIR")) + "/scripts/";
    for (const auto& [name, model, gpus] :
         {std::tuple("30B-A3B", "qwen3-30b-a3b", 8), std::tuple("235B-A22B", "qwen3-235b-a22b", 64),
          std::tuple("32B", "qwen3-32b", 8)}) {
      const std::string script = std::string("qwen3-") + name + ".sh";
      const std::vector<ConfigText> texts{
          {"run-" + script, read_text_file(scripts + "run-" + script)},
          {script, read_text_file(scripts + "models/" + script)}};
      const Checked checked =
          check_cited(texts, question_of(load_model(model), model_config(model), gpus));
      CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
      CHECK(checked.framework == Framework::slime);
    }
  }

  TEST_CASE("Megatron's GPT-3, but that it starts one node of sixteen" *
            doctest::skip(std::getenv("MEGATRON_LM_DIR") == nullptr)) {
    const std::string script = "train_gpt3_175b_distributed.sh";
    const std::string text =
        read_text_file(std::string(std::getenv("MEGATRON_LM_DIR")) + "/examples/gpt3/" + script);
    finds_exactly(ask_text(script, text, "gpt3-175b", 128),
                  {{script, 77, "launched_world"}, {script, 77, "launched_degrees"}});
  }

  TEST_CASE("ds_config.json with Hugging Face's auto") {
    const Checked checked = ask_text("ds.json", R"({
      "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000},
      "bf16": {"enabled": "auto"},
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
      "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
        "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto"},
      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"})");
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(checked.plan.zero == 3);
    CHECK(checked.plan.offload.optimizer == 1);
  }

  TEST_CASE("accelerate's FSDP template") {
    const Checked checked = ask_text("fsdp.yaml", R"(
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 8
num_processes: 64
)");
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.plan.dp == 64);
  }

  TEST_CASE("accelerate's DDP holds all states on every GPU, and nothing of FSDP is asked of it") {
    const Checked checked = ask_text("ddp.yaml", R"(
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 8
num_processes: 64
)");
    CHECK_MESSAGE(find(checked, "missing_option") == nullptr, findings_text(checked));
    CHECK(find(checked, "other_model") == nullptr);
    REQUIRE(find(checked, "replicated") != nullptr);
    CHECK(find(checked, "replicated")->severity == Severity::note);
    CHECK(checked.plan.dp == 64);
    CHECK(checked.recipe == RecipeKind::ddp);
    CHECK(checked.plan.zero == 0);
  }

  TEST_CASE("FSDP1's strategies are plans of their own") {
    const auto plan_of = [](const std::string& strategy, const std::string& version) {
      return ask_text("fsdp.yaml",
                      "distributed_type: FSDP\nfsdp_config:\n"
                      "  fsdp_sharding_strategy: " +
                          strategy + "\n  fsdp_version: " + version + "\n")
          .plan;
    };
    CHECK(plan_of("FULL_SHARD", "1").zero == 3);
    CHECK(plan_of("SHARD_GRAD_OP", "1").zero == 2);
    CHECK(plan_of("2", "1").zero == 2);
    CHECK(plan_of("NO_SHARD", "1").fsdp_shard == 1);
    CHECK(plan_of("HYBRID_SHARD", "1").fsdp_shard == 8);
    CHECK(plan_of("SHARD_GRAD_OP", "2").zero == 3);  // FSDP2 does not read it
  }

  TEST_CASE("FSDP1 does not read how FSDP2 reshards") {
    const auto ask = [](const std::string& lines) {
      return ask_text("fsdp.yaml",
                      "distributed_type: FSDP\nfsdp_config:\n"
                      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n" +
                          lines,
                      "llama3-8b", 8);
    };
    const Checked whole = ask("  fsdp_version: 1\n  fsdp_reshard_after_forward: FULL_SHARD\n");
    CHECK_MESSAGE(find(whole, "bad_value") == nullptr, findings_text(whole));
    CHECK(find(whole, "reshard_of_fsdp2") == nullptr);
    CHECK(whole.plan.zero == 3);
    // A strategy, or false, that is not taken.
    for (const std::string other : {"SHARD_GRAD_OP", "false"}) {
      const Checked unread = ask("  fsdp_reshard_after_forward: " + other + "\n");
      REQUIRE(find(unread, "reshard_of_fsdp2") != nullptr);
      CHECK(find(unread, "reshard_of_fsdp2")->severity == Severity::warning);
      CHECK(unread.plan.zero == 3);
    }
    const Checked agreed = ask(
        "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_reshard_after_forward: SHARD_GRAD_OP\n");
    CHECK(find(agreed, "reshard_of_fsdp2") == nullptr);
    CHECK(agreed.plan.zero == 2);
    const Checked second = ask("  fsdp_version: 2\n  fsdp_reshard_after_forward: FULL_SHARD\n");
    CHECK(find(second, "reshard_is_boolean") != nullptr);
    CHECK(second.count(Severity::error) == 1);  // said once
  }

  TEST_CASE("accelerate's NO is one process on one GPU") {
    for (const std::string word : {"'NO'", "NO"}) {  // false to YAML
      const std::string text =
          "compute_environment: LOCAL_MACHINE\ndistributed_type: " + word + "\nnum_processes: 1\n";
      const Checked alone = ask_text("one.yaml", text, "qwen3-8b", 1);
      CHECK_MESSAGE(find(alone, "other_model") == nullptr, findings_text(alone));
      CHECK(find(alone, "missing_option") == nullptr);
      CHECK(find(alone, "replicated") == nullptr);
      CHECK(alone.recipe == RecipeKind::ddp);
      CHECK(alone.plan.zero == 0);
      const Checked several = ask_text("one.yaml", text, "qwen3-8b", 8);
      REQUIRE(find(several, "launched_world") != nullptr);
      CHECK(find(several, "launched_world")->place.line == 2);
    }
    CHECK(find(ask_text("a.yaml", "compute_environment: LOCAL_MACHINE\n", "qwen3-8b", 1),
               "missing_option") != nullptr);
  }

  TEST_CASE("accelerate's arguments say what its yaml does") {
    const auto ask = [](const std::string& words) {
      return ask_text("train.sh",
                      "accelerate launch " + words +
                          " --num_processes 8 --mixed_precision bf16 train.py "
                          "--model_name_or_path m --per_device_train_batch_size 2\n",
                      "llama3-8b", 8);
    };
    const std::string wrap = " --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP";
    const Checked kept =
        ask("--use_fsdp --fsdp_version 2 --fsdp-reshard-after-forward false" + wrap);
    CHECK_MESSAGE(kept.findings.empty(), findings_text(kept));
    CHECK(kept.framework == Framework::fsdp2);
    CHECK(kept.plan.zero == 2);
    CHECK(ask("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP" + wrap).plan.zero == 2);
    CHECK(find(ask("--use_fsdp --fsdp_version 2"), "missing_option") != nullptr);  // one unit
    CHECK(find(ask("--multi_gpu"), "replicated") != nullptr);
    const Checked zero = ask("--use_deepspeed --zero_stage 2 --offload_optimizer_device cpu");
    CHECK_MESSAGE(zero.findings.empty(), findings_text(zero));
    CHECK(zero.framework == Framework::deepspeed);
    CHECK(zero.plan.zero == 2);
    CHECK(zero.plan.offload.optimizer == 1);
    // What a file says that is not there is not made up.
    const Checked absent = ask("--config_file fsdp.yaml");
    CHECK(find(absent, "config_missing") != nullptr);
    CHECK_FALSE(absent.says_plan);
  }

  TEST_CASE("a hostfile's GPUs are the job's") {
    const std::vector<ConfigText> texts{
        {"train.sh", "deepspeed --hostfile hosts train.py --deepspeed ds.json\n"},
        {"hosts", "a slots=8\nb slots=8\n"},
        {"ds.json", "{\"train_batch_size\": 16, \"bf16\": {\"enabled\": true}}"}};
    const ModelSpec model = load_model("llama3-8b");
    const Json config = model_config("llama3-8b");
    CHECK(find(check(texts, question_of(model, config, 16)), "launched_world") == nullptr);
    const Checked fewer = check(texts, question_of(model, config, 8));
    REQUIRE(find(fewer, "launched_world") != nullptr);
    CHECK(find(fewer, "launched_world")->message.find("16 GPUs, not the job's 8") !=
          std::string::npos);
    for (const std::string some : {"-i a:0,1,2,3,4,5,6,7", "--include a", "-e b", "--exclude b"}) {
      std::vector<ConfigText> chosen = texts;
      chosen[0].text.insert(chosen[0].text.find("--hostfile"), some + " ");
      CHECK(find(check(chosen, question_of(model, config, 8)), "launched_world") == nullptr);
    }
  }

  TEST_CASE("Slurm's other resources are no GPUs") {
    const std::string job =
        "\nsrun bash -c 'torchrun --nproc_per_node 8 pretrain_gpt.py "
        "--num-layers 36 --micro-batch-size 1'\n";
    for (const std::string gres :
         {"gpu:8,lscratch:100", "lscratch:100,gpu:h100:8", "gpu:8(S:0-1)", "gpu:8"}) {
      CAPTURE(gres);
      const Checked checked = ask_text("job.sh", "#SBATCH --gres=" + gres + job, "qwen3-8b", 8);
      CHECK(find(checked, "launched_world") == nullptr);
      CHECK(checked.says_plan);
    }
  }

  TEST_CASE("accelerate's DeepSpeed template") {
    const Checked checked = ask_text("deepspeed.yaml", R"(
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 1
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
)",
                                     "qwen3-8b", 8);
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(checked.plan.zero == 3);
    CHECK(checked.plan.offload == Offload{});
  }

  TEST_CASE("Megatron's functional tests say arguments in yaml") {
    const Checked checked = ask_text("model_config.yaml", R"(
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --pipeline-model-parallel-size: 2
  --expert-model-parallel-size: 8
  --expert-tensor-parallel-size: 1
  --use-distributed-optimizer: true
  --no-ckpt-fully-parallel-save: false
  --bf16: true
  --recompute-granularity: selective
  --recompute-modules: "[layernorm moe_act]"
  --hierarchical-context-parallel-sizes: 1 1
  --moe-grouped-gemm: true
  --tokenizer-type: ${TOKENIZER_TYPE}
)");
    CHECK(checked.framework == Framework::megatron);
    CHECK(to_string(checked.plan.recompute) == "selective:layernorm+moe_act");
    CHECK(checked.plan.tp == 2);
    CHECK(checked.plan.ep == 8);
    CHECK_FALSE(checked.has(Severity::error));
  }

  TEST_CASE("arguments in yaml are whose flags they are") {
    const Checked checked = ask_text("model_config.yaml", R"(
MODEL_ARGS:
  --tensor-model-parallel-size: 2
  --zero-stage: 1
  --no-pipeline-parallel: true
)",
                                     "llama3-8b", 8);
    CHECK(checked.framework == Framework::megatron_deepspeed);
    CHECK(checked.plan.tp == 2);
    CHECK(checked.plan.zero == 1);
  }
}

}  // namespace
}  // namespace qplan
