// ms-swift's scripts and YAML: `megatron sft` in Megatron's words, `swift sft` in a Trainer's.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

Checked ask(const std::vector<ConfigText>& texts, const std::string& model_name = "qwen3-30b-a3b",
            std::int64_t gpus = 8) {
  return ask_texts(texts, model_name, gpus);
}

const std::string kMegatron =
    "NPROC_PER_NODE=8 \\\nmegatron sft \\\n  --model Qwen/Qwen3-30B-A3B \\\n  --dataset d \\\n"
    "  --tensor_model_parallel_size 2 \\\n  --expert_model_parallel_size 4 \\\n"
    "  --sequence_parallel true \\\n  --micro_batch_size 2 \\\n  --packing true \\\n"
    "  --max_length 4096 \\\n";

Checked ask_megatron(const std::string& more = "") {
  return ask({{"train.sh", kMegatron + more + "  --lr 1e-5\n"}});
}

TEST_SUITE("ms-swift's Megatron form") {
  TEST_CASE("words that are none of its choices are told") {
    const Checked tuner = ask_megatron("  --tuner_type fulll \\\n");
    REQUIRE(find(tuner, "refused_value") != nullptr);
    CHECK(find(tuner, "refused_value")->message.find("one of lora, full, lora_llm") !=
          std::string::npos);
    CHECK(find(ask_megatron("  --attention_backend flsh \\\n"), "refused_value") != nullptr);
    CHECK(find(ask_megatron("  --attention_backend flash_3 \\\n"), "refused_value") == nullptr);
    const std::string sft = "swift sft --model Qwen/Qwen3-8B --dataset d --tuner_type ";
    CHECK(find(ask({{"t.sh", sft + "lorra\n"}}, "qwen3-8b"), "refused_value") != nullptr);
    for (const char* known : {"lora", "full", "adalora"}) {
      CHECK(find(ask({{"t.sh", sft + known + "\n"}}, "qwen3-8b"), "refused_value") == nullptr);
    }
  }

  TEST_CASE("adapters of no module are told once, by their names") {
    const Checked checked = ask_megatron(
        "  --tuner_type lora \\\n  --lora_rank 8 \\\n  --target_modules query_key_value \\\n");
    CHECK(find(checked, "unknown_target") != nullptr);
    CHECK(find(checked, "lora_words_need_rank") == nullptr);
  }

  TEST_CASE("is read as Megatron's flags, with what it takes unasked") {
    const Checked checked = ask_megatron();
    CHECK(checked.framework == Framework::ms_swift);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::megatron);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.tp == 2);
    CHECK(plan.ep == 4);
    CHECK(plan.etp == 1);  // Megatron-LM's own would be tp
    CHECK(plan.dp == 4);
    CHECK(plan.zero == 1);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.global_batch_size == 16);
    CHECK(plan.seq_len == 4096);
    CHECK(plan.grad_dtype == DType::fp32);
    CHECK(plan.recompute.kind == RecomputeKind::selective);
    CHECK(plan.attention_backend == AttentionBackend::flash);
    CHECK(plan.moe_dispatcher == MoeDispatcher::alltoall);
    CHECK_FALSE(plan.moe_permute_fusion);
    CHECK_FALSE(plan.dropout);
    CHECK(plan.lora_rank == 0);
  }

  TEST_CASE("says no to what it takes unasked") {
    const Checked checked = ask_megatron(
        "--use_distributed_optimizer false --recompute_granularity none --attention_backend auto "
        "--gradient_accumulation_fusion false ");
    CHECK(checked.plan.zero == 0);
    CHECK(checked.plan.recompute.kind == RecomputeKind::none);
    CHECK(checked.plan.attention_backend == AttentionBackend::automatic);
    CHECK_FALSE(checked.plan.gradient_accumulation_fusion);
  }

  TEST_CASE("has adapters of all linear layers, experts' among them") {
    const Checked checked = ask_megatron("--tuner_type lora ");
    CHECK(checked.plan.lora_rank == 8);
    CHECK(checked.plan.lora_alpha == 32);
    CHECK(checked.plan.lora_dropout == 0.05);
    CHECK(checked.plan.lora_targets.has(LoraTarget::experts));
    const Checked some =
        ask_megatron("--tuner_type lora --lora_rank 64 --target_modules linear_qkv linear_proj ");
    CHECK(some.plan.lora_rank == 64);
    CHECK(some.plan.lora_targets.empty());  // all linear layers but experts'
    const Checked one = ask_megatron("--tuner_type lora --target_modules linear_proj ");
    CHECK(one.plan.lora_targets == set_of(LoraTarget::o_proj));
  }

  TEST_CASE("findings of Megatron's are told by its names") {
    const Checked checked = ask_megatron("--tensor_model_parallel_sise 4 ");
    const Finding* const slip = find(checked, "unknown_option");
    REQUIRE(slip != nullptr);
    CHECK(slip->instead.find("--tensor_model_parallel_size") != std::string::npos);
    for (const Finding& finding : ask_megatron("--moe_expert_capacity_factor 0.5 ").findings) {
      CHECK(finding.message.find("--moe-") == std::string::npos);
    }
  }

  TEST_CASE("what ms-swift refuses") {
    struct Wrong {
      std::string more, rule;
    };
    const std::vector<Wrong> all{
        {"--recompute_method uniform", "recompute_method"},
        {"--group_by_length true", "options_exclude"},
        {"--decoder_first_pipeline_num_layers 2", "uneven_stages"},
        {"--decoder_last_pipeline_num_layers 2", "uneven_stages"},
        {"--async_save true --save_total_limit 3", "options_exclude"},
        {"--save_total_limit 1", "option_needs"},
        {"--tuner_type lora_llm", "option_needs"},
        {"--tuner_type lora --bridge_backend megatron-bridge", "option_needs"},
        {"--freeze_parameters_ratio 0.5 --pipeline_model_parallel_size 2", "options_exclude"},
        {"--tp_comm_overlap true --sequence_parallel false", "option_needs"},
        {"--use_megatron_fsdp true --optimizer muon", "option_needs"},
        {"--use_megatron_fsdp true", "queues_of_fsdp"},
        {"--optimizer muon --overlap_grad_reduce true", "options_exclude"},
        {"--rlhf_type grpo --num_iterations 2", "option_needs"},
        {"--rlhf_type grpo --use_vllm false", "option_needs"},
        {"--rlhf_type grpo --truncation_strategy right", "option_needs"},
        {"--rlhf_type gkd --teacher_model_server http://t", "option_needs"},
        {"--rlhf_type grpo --num_generations 6", "generation_batch"},
        {"--rlhf_type grpo --num_generations 8 --global_batch_size 32", "generation_batch"},
        {"--global_batch_size 12", "batch_divisibility"},
        {"--tuner_type lora --target_modules q_proj v_proj", "unknown_target"},
    };
    for (const Wrong& wrong : all) {
      CAPTURE(wrong.more);
      const Checked checked = ask_megatron(wrong.more + " ");
      CHECK_MESSAGE(find(checked, wrong.rule) != nullptr, findings_text(checked));
    }
    CHECK(find(ask_megatron("--rlhf_type grpo --num_generations 8 --global_batch_size 64 "),
               "generation_batch") == nullptr);
  }

  TEST_CASE("counts pairs of answers, and leaves generation to others") {
    const Checked dpo = ask({{"dpo.sh", with_words(kMegatron, "sft", "rlhf") +
                                            "  --rlhf_type dpo --global_batch_size 16\n"}});
    CHECK(dpo.plan.micro_batch_size == 4);
    CHECK(dpo.plan.global_batch_size == 32);
  }

  TEST_CASE("is read of YAML, with the command's arguments on top") {
    const std::string yaml =
        "model: Qwen/Qwen3-30B-A3B\ndataset:\n  - a\n  - b\ntuner_type: lora\nlora_rank: 32\n"
        "expert_model_parallel_size: 8\nmicro_batch_size: 1\nglobal_batch_size: 32\n"
        "max_length: 2048\nENV:\n  NPROC_PER_NODE: 8\n";
    const Checked alone = ask({{"sft.yaml", yaml}});
    CHECK(alone.framework == Framework::ms_swift);
    CHECK(alone.plan.ep == 8);
    CHECK(alone.plan.global_batch_size == 32);
    CHECK(alone.plan.lora_rank == 32);
    const Checked both =
        ask({{"run.sh", "megatron sft sft.yaml --global_batch_size 64\n"}, {"sft.yaml", yaml}});
    CHECK(both.plan.global_batch_size == 64);
    CHECK_MESSAGE(find(both, "unknown_option") == nullptr, findings_text(both));
  }
}

TEST_SUITE("ms-swift's plain form") {
  const std::string kPlain =
      "NPROC_PER_NODE=8 swift sft --model meta-llama/Meta-Llama-3-8B-Instruct --dataset d "
      "--max_length 4096 --packing true --attn_impl flash_attn ";

  TEST_CASE("is a Trainer's job with adapters beside weights in bf16") {
    const Checked checked = ask({{"train.sh", kPlain + "\n"}}, "llama3-8b");
    CHECK(checked.framework == Framework::ms_swift);
    CHECK_MESSAGE(!checked.has(Severity::error), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::ddp);
    CHECK(checked.plan.lora_rank == 8);
    CHECK(checked.plan.recompute.kind == RecomputeKind::full);
    CHECK(checked.plan.global_batch_size == 16);  // two steps of one sequence on 8 ranks
  }

  TEST_CASE("takes its own configurations of DeepSpeed and FSDP2 by name") {
    const Checked zero = ask({{"train.sh", kPlain + "--tuner_type full --deepspeed zero3 "
                                                    "--gradient_accumulation_steps 2\n"}},
                             "llama3-8b");
    CHECK_MESSAGE(!zero.has(Severity::error), findings_text(zero));
    CHECK(zero.recipe == RecipeKind::deepspeed);
    CHECK(zero.plan.zero == 3);
    CHECK(zero.plan.global_batch_size == 16);
    const Checked host =
        ask({{"train.sh", kPlain + "--tuner_type full --deepspeed zero2_offload\n"}}, "llama3-8b");
    CHECK(host.plan.zero == 2);
    CHECK(host.plan.offload.optimizer == 1);
    const Checked fsdp = ask({{"train.sh", kPlain + "--fsdp fsdp2\n"}}, "llama3-8b");
    CHECK_MESSAGE(!fsdp.has(Severity::error), findings_text(fsdp));
    CHECK(fsdp.recipe == RecipeKind::fsdp2);
    CHECK(fsdp.plan.zero == 3);
  }

  TEST_CASE("what ms-swift refuses") {
    struct Wrong {
      std::string more, rule;
    };
    const std::vector<Wrong> all{
        {"--attn_impl sdpa", "packing_attention"},
        {"--lazy_tokenize true", "options_exclude"},
        {"--fsdp fsdp2 --deepspeed zero2", "options_exclude"},
        {"--fsdp fsdp2 --save_only_model true", "options_exclude"},
        {"--deepspeed_autotp_size 2", "option_needs"},
        {"--deepspeed_autotp_size 2 --deepspeed zero3", "option_needs"},
        {"--quant_method bnb", "option_needs"},
        {"--quant_method bnb --quant_bits 3", "quantized_bits"},
        {"--quant_bits 4", "option_needs"},
        {"--warmup_ratio 0.1 --warmup_steps 10", "options_exclude"},
        {"--warmup_ratio 1", "option_needs"},
        {"--rlhf_type grpo --use_vllm true", "option_needs"},
        {"--rlhf_type dpo --ref_model m", "options_exclude"},
        {"--rlhf_type grpo --num_generations 7", "generation_batch"},
        {"--rlhf_type grpo --generation_batch_size 20", "generation_batch"},
    };
    for (const Wrong& wrong : all) {
      CAPTURE(wrong.more);
      const Checked checked = ask({{"train.sh", kPlain + wrong.more + "\n"}}, "llama3-8b");
      CHECK_MESSAGE(find(checked, wrong.rule) != nullptr, findings_text(checked));
    }
  }

  TEST_CASE("vLLM beside training takes most of a GPU unless it sleeps") {
    const Checked awake =
        ask({{"train.sh", kPlain + "--rlhf_type grpo --use_vllm true --vllm_mode colocate\n"}},
            "llama3-8b");
    REQUIRE(find(awake, "vllm_share") != nullptr);
    CHECK(find(awake, "vllm_share")->severity == Severity::warning);
  }

  TEST_CASE("vLLM's engines divide the GPUs, and every reward has its weight") {
    const std::string beside =
        kPlain + "--rlhf_type grpo --use_vllm true --vllm_mode colocate --sleep_level 1 ";
    const auto ask_plain = [&](const std::string& more) {
      return ask({{"train.sh", beside + more + "\n"}}, "llama3-8b");
    };
    CHECK(find(ask_plain("--vllm_tensor_parallel_size 3"), "rollout_divisibility") != nullptr);
    CHECK(find(ask_plain("--vllm_tensor_parallel_size 4"), "rollout_divisibility") == nullptr);
    const std::string two = "--reward_funcs accuracy format --reward_weights ";
    CHECK(find(ask_plain(two + "1.0"), "option_needs") != nullptr);
    CHECK(find(ask_plain("--attn_impl flash_attn_2"), "refused_value") != nullptr);
    CHECK(find(ask_plain("--attn_impl flash_attn"), "refused_value") == nullptr);
    CHECK(find(ask_plain(two + "1.0 0.5"), "option_needs") == nullptr);
    CHECK(find(ask_plain("--reward_model m " + two + "1.0 0.5 2"), "option_needs") == nullptr);
  }

  TEST_CASE("GRPO's batch of answers is whole groups, with the arithmetic") {
    const Checked wrong = ask({{"train.sh", kPlain + "--rlhf_type grpo --num_generations 6 "
                                                     "--per_device_train_batch_size 2 "
                                                     "--gradient_accumulation_steps 4\n"}},
                              "llama3-8b");
    const Finding* const batch = find(wrong, "generation_batch");
    REQUIRE(batch != nullptr);
    CHECK(batch->message ==
          "a batch of 64 answers = per_device_train_batch_size 2 x 8 GPUs x 4 steps is no whole "
          "number of groups of num_generations 6");
    const Checked right = ask({{"train.sh", kPlain + "--rlhf_type grpo --num_generations 8 "
                                                     "--per_device_train_batch_size 2\n"}},
                              "llama3-8b");
    CHECK(find(right, "generation_batch") == nullptr);
  }

  TEST_CASE("weights of 4 bits") {
    const Checked checked =
        ask({{"train.sh", kPlain + "--quant_method bnb --quant_bits 4\n"}}, "llama3-8b");
    CHECK(checked.plan.frozen_weights == FrozenFormat::nf4_double);
  }
}

}  // namespace
}  // namespace qplan
