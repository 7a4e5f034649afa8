// What a program's --deepspeed and --fsdp_config name, and where they name nothing.

#include <doctest/doctest.h>

#include <string>

#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kArguments =
    " --model_name_or_path m --per_device_train_batch_size 2 --output_dir o";

const std::string kZeroYaml =
    "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero3_init_flag: true\n  zero_stage: "
    "3\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n";

Checked ask_command(const std::string& script, const std::string& arguments) {
  return ask_text("train.sh", "deepspeed --num_gpus 8 " + script + kArguments + arguments + "\n",
                  "llama2-7b", 8);
}

}  // namespace

TEST_SUITE("files of a Trainer") {
  TEST_CASE("a bare --deepspeed is the switch of DeepSpeed's own parser, and no Trainer's path") {
    const Checked own = ask_command("main.py", " --zero_stage 3 --deepspeed");
    CHECK_MESSAGE(!own.has(Severity::error), findings_text(own));
    REQUIRE(find(own, "config_missing") != nullptr);
    CHECK_FALSE(own.says_plan);  // what the program configures is not known
    CHECK(find(ask_command("main.py", " --deepspeed --seed 1"), "refused_value") == nullptr);
    const Checked named = ask_command("main.py", " --deepspeed --deepspeed_config ds.json");
    REQUIRE(find(named, "config_missing") != nullptr);
    CHECK(find(named, "config_missing")->message.starts_with("--deepspeed_config names ds.json"));
    // transformers' parser wants the file.
    CHECK(find(ask_command("run_clm.py", " --deepspeed"), "refused_value") != nullptr);
    CHECK(find(ask_command("train.py", " --bf16 True --deepspeed"), "refused_value") != nullptr);
    CHECK(find(ask_command("train.py", " --save_strategy no --deepspeed"), "refused_value") !=
          nullptr);
  }

  TEST_CASE("a Trainer's ds_config.json is not accelerate's yaml by another name") {
    const std::string yaml =
        "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nbf16: true\ndeepspeed: "
        "zero3.json\n";
    const Checked checked =
        ask_texts({{"sft.yaml", yaml}, {"zero3.yaml", kZeroYaml}}, "llama2-7b", 8);
    CHECK(find(checked, "other_file_name") == nullptr);
    REQUIRE(find(checked, "config_missing") != nullptr);
    CHECK(find(checked, "config_missing")->instead == "give zero3.json too");
  }

  TEST_CASE("of several ds_config.json the one that is named is no other's name") {
    const std::string zero = "{\"train_batch_size\": 16, \"zero_optimization\": {\"stage\": ";
    const std::string start = "deepspeed --num_gpus 8 x.py" + kArguments + " --deepspeed ";
    const auto ask = [&](const std::string& name, bool both) {
      std::vector<ConfigText> texts{{"train.sh", start + name + "\n"}, {"z1.json", zero + "1}}"}};
      if (both) texts.push_back({"z2.json", zero + "1}}"});
      return ask_texts(texts, "llama2-7b", 8);
    };
    CHECK(find(ask("configs/z2.json", true), "other_file_name") == nullptr);
    CHECK(find(ask("configs/z2.json", true), "config_missing") == nullptr);
    CHECK(find(ask("z3.json", true), "config_missing") != nullptr);
    CHECK(find(ask("z2.json", false), "other_file_name") != nullptr);
  }

  TEST_CASE("the file of --fsdp_config is read with the Trainer's --fsdp") {
    const std::string start = "torchrun --nproc_per_node 8 train.py" + kArguments + " --bf16 True";
    const auto ask = [&](const std::string& arguments, const std::string& json) {
      return ask_texts({{"train.sh", start + arguments + "\n"}, {"fsdp.json", json}}, "llama2-7b",
                       8);
    };
    const std::string words = " --fsdp \"full_shard auto_wrap\" --fsdp_config fsdp.json";
    const std::string recompute = "{\"activation_checkpointing\": true}";
    const Checked plain =
        ask(words, "{\"transformer_layer_cls_to_wrap\": [\"LlamaDecoderLayer\"]}");
    CHECK_MESSAGE(plain.findings.empty(), findings_text(plain));
    CHECK(plain.recipe == RecipeKind::fsdp1);
    CHECK(plain.plan.recompute.kind == RecomputeKind::none);
    CHECK(ask(words, recompute).plan.recompute.kind == RecomputeKind::full);
    CHECK(find(ask(words + " --gradient_checkpointing True", recompute), "recompute_twice") !=
          nullptr);
    CHECK(find(ask(words, "{\"fsdp_transformer_layer_cls_to_wrap\": \"Qwen2DecoderLayer\"}"),
               "wrap_class") != nullptr);
    const Checked second = ask(" --fsdp --fsdp_config fsdp.json",
                               "{\"version\": 2, \"reshard_after_forward\": false}");
    CHECK(second.recipe == RecipeKind::fsdp2);
    CHECK(second.plan.zero == 2);
    // Names that nobody asks for.
    REQUIRE(find(ask(words, "{\"activation_checkpoint\": true}"), "unknown_option") != nullptr);
    const Checked slip = ask(words, "{\"use_orig_param\": true}");
    REQUIRE(find(slip, "unknown_option") != nullptr);
    CHECK(find(slip, "unknown_option")->instead == "did you mean use_orig_params?");
    // Nothing reads it.
    REQUIRE(find(ask(" --fsdp_config fsdp.json", recompute), "option_needs") != nullptr);
    CHECK(find(ask("", recompute), "unknown_file") != nullptr);
  }

  TEST_CASE("the file of --fsdp_config that nobody gave is missing") {
    const std::string start = "torchrun --nproc_per_node 8 train.py" + kArguments +
                              " --fsdp \"full_shard auto_wrap\" --fsdp_config ";
    const Checked missing = ask_text("train.sh", start + "fsdp.json\n", "llama2-7b", 8);
    REQUIRE(find(missing, "config_missing") != nullptr);
    CHECK(find(missing, "config_missing")->message.starts_with("--fsdp_config names fsdp.json"));
    CHECK(find(ask_text("train.sh", start + "'{\"version\": 1}'\n", "llama2-7b", 8),
               "config_missing") == nullptr);
    // Nor what stands in a program.
    const std::string program =
        "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments(\n"
        "    output_dir='o', per_device_train_batch_size=2, fsdp='full_shard auto_wrap',\n"
        "    fsdp_config={'activation_checkpointing': True})\n";
    CHECK(find(ask_text("train.py", program, "llama2-7b", 8), "config_missing") == nullptr);
    CHECK(ask_text("train.py", program, "llama2-7b", 8).plan.recompute.kind == RecomputeKind::full);
    const std::string off = with_words(program, "True", "False");
    CHECK(ask_text("train.py", off, "llama2-7b", 8).plan.recompute.kind == RecomputeKind::none);
    const std::string slip = with_words(program, "activation_checkpointing'", "use_orig_param'");
    CHECK(find(ask_text("train.py", slip, "llama2-7b", 8), "unknown_option") != nullptr);
    const std::string open = with_words(program, "True", "args.recompute");
    CHECK(find(ask_text("train.py", open, "llama2-7b", 8), "unknown_option") == nullptr);
  }

  TEST_CASE("TRL's arguments name the file as a Trainer's do") {
    const std::string yaml =
        "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nbf16: true\nfsdp: full_shard "
        "auto_wrap\nfsdp_config: fsdp.json\ngradient_checkpointing: false\n";
    const auto ask = [&](const std::string& json) {
      return ask_texts({{"sft.yaml", yaml}, {"fsdp.json", json}}, "llama2-7b", 8);
    };
    CHECK(ask("{\"activation_checkpointing\": true}").plan.recompute.kind == RecomputeKind::full);
    const Checked plain = ask("{\"activation_checkpointing\": false}");
    CHECK(plain.plan.recompute.kind == RecomputeKind::none);
    CHECK_MESSAGE(!plain.has(Severity::error), findings_text(plain));
    CHECK(find(ask("{\"use_orig_param\": true}"), "unknown_option") != nullptr);
  }
}

}  // namespace qplan
