// LLaMA-Factory's and axolotl's YAML: the job that they ask for, and what both refuse.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/json.h"
#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

std::string text_of_fixture(const std::string& name) {
  return read_text_file(std::string(QPLAN_TEST_DATA) + "/configs/finetuning/" + name);
}

Checked ask(const std::vector<ConfigText>& texts, const std::string& model_name = "llama3-8b",
            std::int64_t gpus = 8) {
  return ask_texts(texts, model_name, gpus);
}

// One of the fixtures, with more keys.
Checked ask_factory(const std::string& more = "", const std::string& from = "",
                    const std::string& to = "") {
  const std::string text = text_of_fixture("factory_lora.yaml") + more;
  return ask({{"job.yaml", from.empty() ? text : with_words(text, from, to)}});
}

Checked ask_axolotl(const std::string& more = "", const std::string& from = "",
                    const std::string& to = "") {
  const std::string text = text_of_fixture("axolotl_qlora_fsdp.yaml") + more;
  return ask({{"job.yml", from.empty() ? text : with_words(text, from, to)}}, "llama3-70b");
}

TEST_SUITE("LLaMA-Factory's YAML") {
  TEST_CASE("is a Trainer's job with adapters") {
    const Checked checked = ask_factory();
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    CHECK_FALSE_MESSAGE(checked.has(Severity::warning), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::ddp);
    CHECK(checked.says_plan);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.lora_rank == 16);
    CHECK(plan.lora_alpha == 32);  // twice the rank where nobody says
    CHECK(plan.lora_dropout == 0.05);
    CHECK(plan.lora_targets == LoraTargets{}.add(LoraTarget::q_proj).add(LoraTarget::v_proj));
    CHECK(plan.frozen_weights == FrozenFormat::nf4_double);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.seq_len == 4096);
    CHECK(plan.micro_batch_size == 2);
    CHECK(plan.global_batch_size == 64);
  }

  TEST_CASE("says DoRA, and what is trained beside adapters") {
    const ParallelPlan plan =
        ask_factory("use_dora: true\nadditional_target: embed_tokens,lm_head\n").plan;
    CHECK(plan.dora);
    CHECK(plan.lora_embeddings);
    CHECK(!ask_factory().plan.dora);
    const Checked one = ask_factory("additional_target: embed_tokens\n");
    CHECK(!one.plan.lora_embeddings);
    CHECK(std::any_of(one.assumed.begin(), one.assumed.end(), [](const std::string& sentence) {
      return sentence.find("embed_tokens is left frozen") != std::string::npos;
    }));
  }

  TEST_CASE("is read with what its command says on top") {
    const std::string yaml = text_of_fixture("factory_lora.yaml");
    const Checked checked = ask({{"run.sh",
                                  "FORCE_TORCHRUN=1 llamafactory-cli train job.yaml "
                                  "lora_rank=64 disable_gradient_checkpointing=true\n"},
                                 {"job.yaml", yaml}});
    CHECK(checked.plan.lora_rank == 64);
    CHECK(checked.plan.recompute.kind == RecomputeKind::none);
    const Checked arguments =
        ask({{"run.sh",
              "llamafactory-cli train --stage sft --do_train true "
              "--model_name_or_path m --finetuning_type lora --dataset d "
              "--lora_rank 4 --per_device_train_batch_size 2 --bf16 true\n"}});
    CHECK(arguments.plan.lora_rank == 4);
    CHECK(arguments.plan.micro_batch_size == 2);
    const Checked missing = ask({{"run.sh", "llamafactory-cli train job.yaml\n"}});
    REQUIRE(find(missing, "nothing_to_check") != nullptr);
    CHECK(find(missing, "nothing_to_check")->instead == "give job.yaml too");
  }

  TEST_CASE("names its ds_config.json, whose ZeRO it is; pairs and a reference are told") {
    const std::string yaml = text_of_fixture("factory_full_dpo.yaml");
    const Checked checked =
        ask({{"job.yaml", yaml}, {"ds_z3.json", text_of_fixture("ds_z3.json")}}, "qwen3-8b");
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    CHECK(checked.framework == Framework::deepspeed);
    CHECK(checked.plan.zero == 3);
    CHECK(checked.plan.lora_rank == 0);
    CHECK(checked.plan.micro_batch_size == 2);
    CHECK(checked.plan.global_batch_size == 128);
    REQUIRE(find(checked, "reference_model") != nullptr);
    // 8.19e9 parameters of 2 bytes over 8 GPUs.
    CHECK(find(checked, "reference_model")->message.find("1.91 GiB") != std::string::npos);
    const Checked alone = ask({{"job.yaml", yaml}}, "qwen3-8b");
    CHECK(find(alone, "config_missing") != nullptr);
    CHECK_FALSE(alone.says_plan);
    const std::string wanted = "\"bf16\": {\"enabled\": \"auto\"}";
    const Checked half = ask({{"job.yaml", yaml},
                              {"ds_z3.json", with_words(text_of_fixture("ds_z3.json"), wanted,
                                                        "\"gradient_accumulation_steps\": 4")}},
                             "qwen3-8b");
    CHECK(half.has(Severity::error));
  }

  TEST_CASE("what its own validation refuses") {
    const auto rule = [](const std::string& id, const Checked& checked) {
      CAPTURE(id);
      CHECK_MESSAGE(find(checked, id) != nullptr, findings_text(checked));
    };
    rule("quantized_full", ask_factory("", "finetuning_type: lora", "finetuning_type: full"));
    rule("quantized_bits", ask_factory("", "quantization_bit: 4", "quantization_bit: 3"));
    rule("packing_stage", ask_factory("neat_packing: true\n", "stage: sft", "stage: dpo"));
    rule("projected_optimizer", ask_factory("use_galore: true\n"));
    rule("options_exclude", ask_factory("val_size: 0.1\neval_dataset: d\n"));
    rule("option_needs", ask_factory("", "dataset: alpaca_en_demo\n", ""));
    rule("no_mixed_precision", ask_factory("", "bf16: true\n", ""));
    rule("long_sequences", ask_factory("", "cutoff_len: 4096", "cutoff_len: 200000"));
    const Checked shards =
        ask({{"job.yaml", with_words(text_of_fixture("factory_lora.yaml"), "quantization_bit: 4",
                                     "quantization_bit: 8\ndeepspeed: ds_z3.json")},
             {"ds_z3.json", text_of_fixture("ds_z3.json")}});
    rule("quantized_shards", shards);
  }

  TEST_CASE("names and types are its parser's, a Trainer's among them") {
    const Checked slip = ask_factory("lora_rnak: 8\n");
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->instead == "did you mean lora_rank?");
    CHECK(find(slip, "unknown_option")->place.line == 23);
    const Checked other = ask_factory("lora_r: 8\n");
    REQUIRE(find(other, "unknown_option") != nullptr);
    CHECK(find(other, "unknown_option")->instead == "write lora_rank");
    CHECK(find(ask_factory("lr_scheduler_type: cosine\nddp_timeout: 1800\n"), "unknown_option") ==
          nullptr);
    CHECK(find(ask_factory("save_steps: 500\nresume_from_checkpoint: null\n"), "refused_value") ==
          nullptr);
    CHECK(find(ask_factory("preprocessing_num_workers: many\n"), "refused_value") != nullptr);
    const Checked trainer =
        ask_factory("gradient_acumulation_steps: 2\n", "gradient_accumulation_steps",
                    "logging_first_step: true\n#");
    REQUIRE(find(trainer, "unknown_option") != nullptr);
    CHECK(find(trainer, "unknown_option")->instead == "did you mean gradient_accumulation_steps?");
    REQUIRE(find(trainer, "unknown_option")->fix.size() == 1);
    CHECK(find(trainer, "unknown_option")->fix[0].text == "gradient_accumulation_steps");
  }

  TEST_CASE("a value that nobody takes is said once") {
    const auto errors = [](const Checked& checked) {
      return std::count_if(checked.findings.begin(), checked.findings.end(), [](const Finding& f) {
        return f.rule == "bad_value" || f.rule == "refused_value";
      });
    };
    const std::string batch = "per_device_train_batch_size: ";
    CHECK(errors(ask_factory("", batch + "2", batch + "1.5")) == 1);
    const auto swift = [&](const std::string& command) {
      return errors(ask({{"train.sh", "NPROC_PER_NODE=8 " + command + "\n"}}));
    };
    CHECK(swift("megatron sft --model m --tensor_model_parallel_size 2 --micro_batch_size 1 "
                "--global_batch_size 16 --recompute_granularity ful") == 1);
    const Checked rank = ask({{"train.sh",
                               "NPROC_PER_NODE=8 swift sft --model m --tuner_type lora \\\n"
                               " --per_device_train_batch_size 1 --lora_rank 8x\n"}});
    CHECK(errors(rank) == 1);
    REQUIRE(find(rank, "refused_value") != nullptr);
    CHECK(find(rank, "refused_value")->message.find("--lora_rank is 8x") == 0);
    CHECK(find(rank, "refused_value")->place.line == 2);
  }

  TEST_CASE("a correction keeps the separators that are written") {
    const Checked slip = ask({{"train.sh",
                               "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path m "
                               "--per_device_train_batch_size 1 --saev_steps 100\n"}});
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->instead == "did you mean --save_steps?");
  }

  TEST_CASE("a file that exports or chats trains nothing") {
    const Checked checked = ask({{"chat.yaml", "model_name_or_path: m\ntemplate: qwen3\n"}});
    CHECK_FALSE(checked.says_plan);
    CHECK(checked.has(Severity::error));
  }
}

TEST_SUITE("axolotl's YAML") {
  TEST_CASE("says DoRA, and what is trained beside adapters") {
    const ParallelPlan plan =
        ask_axolotl("peft_use_dora: true\nlora_modules_to_save:\n  - embed_tokens\n  - lm_head\n")
            .plan;
    CHECK(plan.dora);
    CHECK(plan.lora_embeddings);
  }

  TEST_CASE("is a Trainer's job, whose FSDP is accelerate's") {
    const Checked checked = ask_axolotl();
    CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::fsdp2);
    CHECK(checked.says_plan);
    const ParallelPlan& plan = checked.plan;
    CHECK(plan.lora_rank == 8);
    CHECK(plan.lora_alpha == 16);
    CHECK(plan.lora_targets.empty());
    CHECK(plan.frozen_weights == FrozenFormat::nf4_double);
    CHECK(plan.recompute.kind == RecomputeKind::full);
    CHECK(plan.seq_len == 2048);
    CHECK(plan.zero == 3);
    CHECK(plan.global_batch_size == 32);
  }

  TEST_CASE("without FSDP and DeepSpeed it is DDP, and an optimizer's bits are the plan's") {
    const std::string text = text_of_fixture("axolotl_qlora_fsdp.yaml");
    const std::string whole = text.substr(0, text.find("fsdp_version"));
    const auto with_optimizer = [&](const std::string& name) {
      return ask({{"job.yml", with_words(whole, "adamw_torch", name)}});
    };
    CHECK(with_optimizer("adamw_torch").recipe == RecipeKind::ddp);
    CHECK(with_optimizer("adamw_torch").plan.optimizer == OptimizerKind::adam);
    CHECK(with_optimizer("paged_adamw_8bit").plan.optimizer == OptimizerKind::adam8bit);
    CHECK(with_optimizer("adafactor").plan.optimizer == OptimizerKind::adafactor);
    CHECK(with_optimizer("sgd").plan.optimizer == OptimizerKind::sgd);
    CHECK_FALSE(with_optimizer("adamw_torch").takes_less);
    CHECK_FALSE(with_optimizer("paged_adamw_8bit").takes_less);
    CHECK(with_optimizer("lion_8bit").takes_less);
    CHECK(with_optimizer("galore_adamw").takes_less);
  }

  TEST_CASE("what its own validation refuses") {
    const auto rule = [](const std::string& id, const Checked& checked) {
      CAPTURE(id);
      CHECK_MESSAGE(find(checked, id) != nullptr, findings_text(checked));
    };
    rule("quantized_full", ask_axolotl("", "adapter: qlora\n", ""));
    rule("quantized_bits", ask_axolotl("", "load_in_4bit: true\n", ""));
    rule("packing_stage", ask_axolotl("rl: dpo\n"));
    rule("batch_left_open", ask_axolotl("", "micro_batch_size: 1\n", ""));
    rule("options_exclude", ask_axolotl("batch_size: 8\n"));
    rule("options_exclude", ask_axolotl("attn_implementation: sdpa\nflash_attention: true\n"));
    rule("refused_value", ask_axolotl("", "adamw_torch", "adamw_tourch"));
    rule("narrow_optimizer", ask_axolotl("", "adamw_torch", "adamw_8bit"));
    // Not refused, and not what one of them says.
    const Checked twice = ask_axolotl("flash_attention: true\nxformers_attention: true\n");
    REQUIRE(find(twice, "options_exclude") != nullptr);
    CHECK(find(twice, "options_exclude")->severity == Severity::warning);
    const Checked formats = ask_axolotl("fp16: true\n", "bf16: auto", "bf16: true");
    REQUIRE(find(formats, "two_precisions") != nullptr);
    CHECK(find(formats, "two_precisions")->severity == Severity::warning);
    rule("option_needs",
         ask_axolotl("activation_offloading: true\n", "gradient_checkpointing: true\n", ""));
  }

  TEST_CASE("a pattern of modules is the layers that it names") {
    const auto targets_of = [](const std::string& pattern) {
      return ask_axolotl("lora_target_modules: '" + pattern + "'\n", "lora_target_linear: true\n",
                         "")
          .plan.lora_targets;
    };
    CHECK(targets_of("model.layers.[\\d]+.(mlp|self_attn).(up|q)_proj") ==
          LoraTargets{}.add(LoraTarget::up_proj).add(LoraTarget::q_proj));
    CHECK(targets_of(".*v_proj") == LoraTargets{}.add(LoraTarget::v_proj));
  }

  TEST_CASE("a key that is a slip fails the job's purpose, another is only not read") {
    const Checked slip = ask_axolotl("context_parapllel_size: 2\n");
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->instead == "did you mean context_parallel_size?");
    const Checked other = ask_axolotl("gptq_groupsize: 128\n");
    REQUIRE(find(other, "unknown_option") != nullptr);
    CHECK(find(other, "unknown_option")->severity == Severity::warning);
    CHECK(find(ask_axolotl("liger_rope: true\n"), "unknown_option") == nullptr);
    CHECK(find(ask_axolotl("micro_batchsize: 2\n"), "unknown_option") != nullptr);
  }

  TEST_CASE("FSDP's keys are known with their older beginning, and no others are") {
    const auto said = [](const std::string& key, const std::string& value) {
      const Checked checked =
          ask_axolotl("", "fsdp_config:\n", "fsdp_config:\n  " + key + ": " + value + "\n");
      const Finding* const found = find(checked, "unknown_option");
      return found == nullptr ? std::string() : found->message + "; " + found->instead;
    };
    CHECK(said("fsdp_use_orig_params", "true").empty());
    CHECK(said("fsdp_offload_prams", "true").find("did you mean fsdp_config.fsdp_offload_params") !=
          std::string::npos);
    CHECK(said("fsdp_reshard_after_fwd", "false").find("ignores it silently") != std::string::npos);
    CHECK(said("fsdp_limit_all_gathers", "true").empty());  // FSDP1's default
    CHECK(said("fsdp_limit_all_gathers", "false").find("ignores it silently") != std::string::npos);
    const Checked value =
        ask_axolotl("", "fsdp_config:\n", "fsdp_config:\n  fsdp_use_orig_params: mostly\n");
    CHECK(find(value, "refused_value") != nullptr);
  }
}

TEST_SUITE("axolotl's mesh and words") {
  Checked ask_mesh(const std::string& degrees, std::int64_t gpus, bool shards = true) {
    // Weights of 4 bits are not split over tp.
    const std::string text = with_words(with_words(text_of_fixture("axolotl_qlora_fsdp.yaml"),
                                                   "load_in_4bit: true\n", ""),
                                        "qlora", "lora") +
                             degrees;
    const std::string alone = text.substr(0, text.find("fsdp_version")) + degrees;
    return ask({{"job.yml", shards ? text : alone}}, "llama3-70b", gpus);
  }

  TEST_CASE("degrees that are not said are filled, and expert parallelism takes part") {
    for (const auto& [degrees, gpus] :
         {std::pair{"tensor_parallel_size: 2\n", 8},
          {"dp_shard_size: 4\n", 8},
          {"dp_shard_size: 2\nexpert_parallel_size: 2\n", 4},
          {"expert_parallel_size: 4\n", 4},
          {"dp_replicate_size: 2\ndp_shard_size: 2\nexpert_parallel_size: 2\n", 8}}) {
      CAPTURE(degrees);
      const Checked checked = ask_mesh(degrees, gpus);
      CHECK_FALSE_MESSAGE(checked.has(Severity::error), findings_text(checked));
      CHECK(checked.plan.dp * checked.plan.tp * checked.plan.cp == gpus);
    }
    CHECK(ask_mesh("dp_shard_size: 4\n", 8).plan.fsdp_shard == 4);
    CHECK(ask_mesh("dp_shard_size: 2\nexpert_parallel_size: 2\n", 4).takes_less);
    for (const auto& [degrees, gpus] :
         {std::pair{"dp_shard_size: 2\nexpert_parallel_size: 3\n", 4},
          {"tensor_parallel_size: 2\ndp_replicate_size: 2\ndp_shard_size: 4\n", 8},
          {"dp_shard_size: 16\n", 8}}) {
      CAPTURE(degrees);
      CHECK(find(ask_mesh(degrees, gpus), "mesh_product") != nullptr);
    }
    for (const auto& [degrees, wrong] : {std::pair{"context_parallel_size: 3\n", true},
                                         {"context_parallel_size: 16\n", true},
                                         {"context_parallel_size: 2\n", false}}) {
      CAPTURE(degrees);
      CHECK((find(ask_mesh(degrees, 8, false), "mesh_product") != nullptr) == wrong);
    }
  }

  TEST_CASE("schedules, kernels and adapters are what it and transformers take") {
    CHECK(find(ask_axolotl("lr_scheduler: cosin\n"), "refused_value") != nullptr);
    for (const std::string name : {"cosine", "one_cycle", "rex", "constant_with_warmup"}) {
      CHECK(find(ask_axolotl("lr_scheduler: " + name + "\n"), "refused_value") == nullptr);
    }
    const Checked later = ask_axolotl("lr_scheduler: zigzag\n");
    REQUIRE(find(later, "refused_value") != nullptr);
    CHECK(find(later, "refused_value")->severity == Severity::warning);
    CHECK(find(ask_axolotl("attn_implementation: flash_attn_2\n"), "refused_value") != nullptr);
    for (const std::string name : {"flash_attention_2", "xformers", "kernels-community/x"}) {
      CHECK(find(ask_axolotl("attn_implementation: " + name + "\n"), "refused_value") == nullptr);
    }
    for (const std::string key :
         {"lora_r: 8\n", "lora_alpha: 16\n", "lora_target_linear: true\n"}) {
      CAPTURE(key);
      CHECK(find(ask_axolotl("", key, ""), "option_needs") != nullptr);
      CHECK(find(ask_axolotl("lora_model_dir: ./x\n", key, ""), "option_needs") == nullptr);
    }
    CHECK(find(ask_axolotl("lora_target_modules:\n  - q_proj\n", "lora_target_linear: true\n", ""),
               "option_needs") == nullptr);
  }
}

TEST_SUITE("checkpoints by name") {
  TEST_CASE("are of the size of a built-in model, or of none") {
    CHECK(built_in_of_id("meta-llama/Meta-Llama-3-8B-Instruct") == "llama3-8b");
    CHECK(built_in_of_id("NousResearch/Llama-2-7b-hf") == "llama2-7b");
    CHECK(built_in_of_id("Qwen/Qwen3-4B-Instruct-2507") == "qwen3-4b");
    CHECK(built_in_of_id("unsloth/Qwen3-8B-unsloth-bnb-4bit") == "qwen3-8b");
    CHECK(built_in_of_id("mistralai/Mistral-7B-v0.1").empty());
    CHECK(built_in_of_id("meta-llama/Llama-3.2-1B").empty());
  }
}

}  // namespace
}  // namespace qplan
