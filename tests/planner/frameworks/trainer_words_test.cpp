// Words of a Trainer's that transformers wants others beside, or takes no such value of: each by
// itself in a job that runs, and what is near to it and taken.

#include <doctest/doctest.h>

#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/frameworks/fix.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

struct TrainerRow {
  std::string words, rule;  // rule empty: neither an error nor a warning
};

std::string command_of(const std::string& words) {
  return "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen3-8B --output_dir o "
         "--bf16 True --per_device_train_batch_size 1 --gradient_checkpointing True "
         "--learning_rate 2e-5 --fsdp \"full_shard auto_wrap\" --model_max_length 2048 " +
         words + "\n";
}

Checked ask_command(const std::string& words) {
  return ask_texts({{"run.sh", command_of(words)}}, "qwen3-8b", 8);
}

std::string program_of(const std::string& loading, const std::string& arguments,
                       const std::string& more = "") {
  return "import torch\n"
         "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
         "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B'" +
         loading + ")\n" +
         "args = TrainingArguments(output_dir='o', bf16=True, per_device_train_batch_size=1, "
         "fsdp='full_shard auto_wrap', gradient_checkpointing=True, max_steps=9" +
         arguments + ")\n" + more +
         "Trainer(model=model, args=args, train_dataset=data, eval_dataset=data).train()\n";
}

Checked ask_trainer(const std::string& loading, const std::string& arguments,
                    const std::string& more = "",
                    const std::string& start = "torchrun --nproc_per_node 8 train.py\n") {
  return ask_texts({{"run.sh", start}, {"train.py", program_of(loading, arguments, more)}},
                   "qwen3-8b", 8);
}

void check_row(const TrainerRow& row, const Checked& checked) {
  CAPTURE(row.words);
  CAPTURE(findings_text(checked));
  if (!row.rule.empty()) {
    CHECK(find(checked, row.rule) != nullptr);
    return;
  }
  CHECK_FALSE(checked.has(Severity::error));
  CHECK_FALSE(checked.has(Severity::warning));
}

TEST_SUITE("a Trainer's words") {
  TEST_CASE("the older name of eval_strategy says what the newer one says") {
    const std::vector<TrainerRow> rows{
        {"--load_best_model_at_end True", "option_needs"},
        {"--load_best_model_at_end True --evaluation_strategy no", "option_needs"},
        {"--load_best_model_at_end True --evaluation_strategy epoch", "option_needs"},
        {"--load_best_model_at_end True --evaluation_strategy steps", ""},
        {"--load_best_model_at_end True --evaluation_strategy epoch --save_strategy epoch", ""}};
    for (const TrainerRow& row : rows) check_row(row, ask_command(row.words));
    check_row({"python", ""},
              ask_trainer("", ", evaluation_strategy='steps', load_best_model_at_end=True"));
    check_row({"python", "option_needs"},
              ask_trainer("", ", evaluation_strategy='no', load_best_model_at_end=True"));
  }

  TEST_CASE("schedules and low-rank optimizers have what they need") {
    const std::vector<TrainerRow> rows{
        {"--lr_scheduler_type cosine_with_min_lr", "option_needs"},
        {"--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 1e-6}'", ""},
        {"--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"cycles\": 1}'",
         "option_needs"},
        {"--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs $KWARGS", ""},
        {"--lr_scheduler_type warmup_stable_decay", "option_needs"},
        {"--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs "
         "'{\"num_decay_steps\": 100}'",
         ""},
        {"--lr_scheduler_type cosine", ""},
        {"--optim galore_adamw", "option_needs"},
        {"--optim apollo_adamw", "option_needs"},
        {"--optim galore_adamw --optim_target_modules all-linear", ""},
        {"--optim galore_adamw_layerwise --optim_target_modules all-linear", "options_exclude"}};
    for (const TrainerRow& row : rows) check_row(row, ask_command(row.words));
    check_row({"python", "option_needs"},
              ask_trainer("", ", lr_scheduler_type='cosine_with_min_lr'"));
    check_row({"python", ""}, ask_trainer("",
                                          ", lr_scheduler_type='cosine_with_min_lr', "
                                          "lr_scheduler_kwargs={'min_lr_rate': 0.1}"));
    const std::string yaml =
        "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: x\noutput_dir: o\nmax_length: 1024\n"
        "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs:\n  min_lr_rate: 0.1\n";
    const auto ask_yaml = [](const std::string& text) {
      return ask_texts(
          {{"run.sh", "trl sft --config sft.yaml --num_processes 8\n"}, {"sft.yaml", text}},
          "qwen3-8b", 8);
    };
    CHECK(find(ask_yaml(yaml), "option_needs") == nullptr);
    CHECK(find(ask_yaml(with_words(yaml, "min_lr_rate", "cycles")), "option_needs") != nullptr);
    check_row({"set later", ""}, ask_trainer("", ", lr_scheduler_type='cosine_with_min_lr'",
                                             "args.lr_scheduler_kwargs = {'min_lr_rate': 0.1}\n"));
  }

  TEST_CASE("kernels of attention go by transformers' names") {
    for (const std::string name : {"flash_attn_2", "flash_attention2", "fa2", "flash", "spda",
                                   "flex_attn", "Flash_Attention_2"}) {
      CAPTURE(name);
      const Checked checked = ask_trainer(", attn_implementation='" + name + "'", "");
      REQUIRE_MESSAGE(find(checked, "refused_value") != nullptr, findings_text(checked));
    }
    for (const std::string name :
         {"flash_attention_2", "flash_attention_4", "sdpa", "eager", "flex_attention",
          "kernels-community/flash-attn2", "paged|eager", "sage", "ring_kernels"}) {
      check_row({name, ""}, ask_trainer(", attn_implementation='" + name + "'", ""));
    }
    const std::string keywords =
        "kw = {'attn_implementation': 'flash_attn_2', 'use_cache': False}\n";
    check_row({keywords, "refused_value"}, ask_trainer("", "", keywords));
    check_row({"a dictionary", ""},
              ask_trainer("", "", "kw = {'attn_implementation': 'sdpa', 'use_cache': False}\n"));
    const Checked checked = ask_trainer(", attn_implementation=\"flash_attn_2\"", "");
    REQUIRE(find(checked, "refused_value")->fix.size() == 1);
    CHECK(find(checked, "refused_value")->fix.front().text == "\"flash_attention_2\"");
    // A program's own argument may have words of its own.
    check_row({"own", ""}, ask_command("--attn_implementation flash_2"));
    const std::string yaml =
        "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: x\noutput_dir: o\npacking: true\n"
        "max_length: 1024\nattn_implementation: flash_attn_2\n";
    const Checked trl =
        ask_texts({{"run.sh", "trl sft --config sft.yaml --num_processes 8\n"}, {"sft.yaml", yaml}},
                  "qwen3-8b", 8);
    REQUIRE_MESSAGE(find(trl, "refused_value") != nullptr, findings_text(trl));
    CHECK(find(trl, "refused_value")->fix.front().text == "flash_attention_2");
  }

  TEST_CASE("a model that is spread over GPUs is trained by one process") {
    check_row({"auto", "options_exclude"}, ask_trainer(", device_map='auto'", ""));
    check_row({"a GPU", ""}, ask_trainer(", device_map='cuda'", ""));
    check_row({"a rank's", ""}, ask_trainer(", device_map={'': 0}", ""));
    const Checked alone = ask_trainer(", device_map='auto'", "", "", "python train.py\n");
    CHECK(find(alone, "options_exclude") == nullptr);
    // Of two models one may only be asked.
    const Checked two = ask_trainer(
        ", device_map='auto'", "", "ref = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')\n");
    CHECK(find(two, "options_exclude") == nullptr);
  }

  TEST_CASE("one value is one word, and a beginning is of one name") {
    const auto fsdp = [](const std::string& value) {
      return ask_texts({{"run.sh", with_words(command_of(""), "\"full_shard auto_wrap\"", value)}},
                       "qwen3-8b", 8);
    };
    check_row({"unquoted", "stray_word"}, fsdp("full_shard auto_wrap"));
    check_row({"quoted", ""}, fsdp("'full_shard auto_wrap'"));
    check_row({"a word", "stray_word"}, ask_command("--lr_scheduler_type cosine linear"));
    check_row({"reporters", ""}, ask_command("--report_to wandb tensorboard"));
    check_row({"more of a run's", ""}, ask_command("--seed 1 $MORE"));
    check_row({"own", ""}, ask_command("--data_files a b c"));
    const auto trl = [](const std::string& more) {
      return ask_texts({{"run.sh",
                         "trl sft --model_name_or_path Qwen/Qwen3-8B --dataset_name x "
                         "--output_dir o --num_processes 8 " +
                             more + "\n"}},
                       "qwen3-8b", 8);
    };
    CHECK(find(trl("--lr_scheduler_type cosine linear"), "stray_word") != nullptr);
    CHECK(find(trl("--lora_target_modules q_proj v_proj"), "stray_word") == nullptr);
    const Checked begun = ask_command("--lr_scheduler cosine --gradient_accumulation 2");
    check_row({"of one name", ""}, begun);
    check_row({"of one name", ""}, ask_command("--lr_scheduler_typ cosine"));
    const Checked two = ask_texts({{"run.sh", with_words(command_of(""), "--gradient_checkpointing",
                                                         "--gradient_checkpoint")}},
                                  "qwen3-8b", 8);
    REQUIRE_MESSAGE(find(two, "unknown_option") != nullptr, findings_text(two));
    CHECK(find(two, "unknown_option")->message.find("argparse stops") != std::string::npos);
  }

  TEST_CASE("the file that fsdp_config names is read for its class and what it recomputes") {
    const auto ask_json = [](const std::string& json, const std::string& more = "") {
      const std::string words = command_of("--fsdp_config fsdp.json " + more);
      return ask_texts(
          {{"run.sh",
            more.empty() ? with_words(words, "--gradient_checkpointing True", "") : words},
           {"fsdp.json", json}},
          "qwen3-8b", 8);
    };
    const std::string own = "{\"transformer_layer_cls_to_wrap\": [\"Qwen3DecoderLayer\"]}";
    const Checked fine = ask_json(own);
    CHECK_FALSE_MESSAGE(find(fine, "unknown_file"), findings_text(fine));
    CHECK(find(fine, "wrap_class") == nullptr);
    CHECK(find(ask_json(with_words(own, "Qwen3", "Llama")), "wrap_class") != nullptr);
    const std::string twice = "{\"fsdp_activation_checkpointing\": true}";
    CHECK(find(ask_json(twice), "recompute_twice") == nullptr);
    CHECK(find(ask_json(twice, "--seed 1"), "recompute_twice") != nullptr);
    CHECK(find(ask_json("{\"mine\": 1}"), "unknown_option") != nullptr);
  }

  TEST_CASE("FSDP wraps no layers of another model") {
    for (const std::string layer : {"OPTDecoderLayer", "GPT2Block", "LlamaDecoderLayer"}) {
      check_row({layer, "wrap_class"},
                ask_command("--fsdp_transformer_layer_cls_to_wrap " + layer));
    }
    check_row({"its own", ""},
              ask_command("--fsdp_transformer_layer_cls_to_wrap Qwen3DecoderLayer"));
    check_row({"a program's", ""}, ask_command("--fsdp_transformer_layer_cls_to_wrap MyLayer"));
  }
}

TEST_SUITE("--fix") {
  TEST_CASE("leaves what the program or its release may take") {
    const std::string yaml =
        "model_name_or_path: meta-llama/Llama-3.1-8B\ntorch_dtype: bfloat16\nbf16: true\n"
        "dataset_name: x\noutput_dir: o\nlearning_rate: 1.0e-06\nmax_prompt_length: 512\n"
        "max_completion_length: 1024\nnum_generations: 8\nper_device_train_batch_size: 8\n"
        "use_vllm: true\nreward_funcs:\n- accuracy\ngradient_accumulation_steps: 4\n";
    CHECK(fixed_text("config.yaml", yaml, "llama3-8b", 8) == yaml);
    // What no release takes is corrected.
    const std::string slip = with_words(yaml, "num_generations", "num_generation");
    CHECK(fixed_text("config.yaml", slip, "llama3-8b", 8) == yaml);
  }
}

}  // namespace
}  // namespace qplan
