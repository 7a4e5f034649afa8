// Blocks of ds_config.json and of accelerate's yaml whose names were misspelt, or stand twice.

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/fix.h"
#include "planner/frameworks/readers/formats.h"
#include "tests/complaint.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kModel = "qwen3-4b";

Checked ask(const std::string& name, const std::string& text) {
  return ask_text(name, text, kModel, 8);
}

std::string fixed(const std::string& name, const std::string& text) {
  return fixed_text(name, text, kModel, 8);
}

const std::string kDeepspeed =
    "{\n  \"train_micro_batch_size_per_gpu\": 1,\n  \"gradient_accumulation_steps\": 8,\n"
    "  \"zero_optimization\": {\n    \"stage\": 3,\n    \"overlap_comm\": true,\n"
    "    \"offload_optimizer\": {\n      \"device\": \"cpu\",\n      \"pin_memory\": true\n    }\n"
    "  },\n"
    "  \"optimizer\": {\n    \"type\": \"AdamW\",\n    \"params\": {\n      \"lr\": 1e-4\n    }\n"
    "  },\n"
    "  \"scheduler\": {\n    \"type\": \"WarmupLR\",\n    \"params\": {\n"
    "      \"warmup_num_steps\": 10\n    }\n  },\n"
    "  \"activation_checkpointing\": {\n    \"partition_activations\": true,\n"
    "    \"cpu_checkpointing\": false\n  },\n"
    "  \"bf16\": {\n    \"enabled\": true\n  }\n}\n";

const std::string kFsdp =
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
    "  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_reshard_after_forward: true\nmixed_precision: bf16\nnum_machines: 1\n"
    "num_processes: 8\n";
const std::string kAccelerate =
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n"
    "  zero_stage: 3\n  zero3_init_flag: true\n  offload_optimizer_device: cpu\n"
    "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n";

struct Slip {
  std::string name, text, real, written;
};
const std::vector<Slip> kSlips{
    {"ds_config.json", kDeepspeed, "zero_optimization", "zero_optmization"},
    {"ds_config.json", kDeepspeed, "zero_optimization", "zero_optimisation"},
    {"ds_config.json", kDeepspeed, "optimizer\": {\n    \"type", "optimzer\": {\n    \"type"},
    {"ds_config.json", kDeepspeed, "scheduler", "schedular"},
    {"ds_config.json", kDeepspeed, "activation_checkpointing", "activation_checkpoint"},
    {"ds_config.json", kDeepspeed, "offload_optimizer", "offload_optimzer"},
    {"accelerate.yaml", kFsdp, "fsdp_config:", "fsdp_confg:"},
    {"accelerate.yaml", kAccelerate, "deepspeed_config:", "deepspeed_conf:"},
};

}  // namespace

TEST_SUITE("blocks of keys") {
  TEST_CASE("a slip in the name of a block is one finding, and mended") {
    for (const Slip& slip : kSlips) {
      CAPTURE(slip.written);
      REQUIRE(ask(slip.name, slip.text).count(Severity::error) == 0);
      const std::string text = with_words(slip.text, slip.real, slip.written);
      const Checked checked = ask(slip.name, text);
      CHECK_MESSAGE(checked.count(Severity::error) == 1, findings_text(checked));
      CHECK_MESSAGE(checked.count(Severity::warning) == 0, findings_text(checked));
      const Finding* const found = find(checked, "unknown_option");
      REQUIRE(found != nullptr);
      const auto line =
          1 + std::count(text.begin(),
                         text.begin() + static_cast<std::ptrdiff_t>(text.find(slip.written)), '\n');
      CHECK(found->place.line == line);
      CHECK(found->instead.find("did you mean") == 0);
      CHECK(fixed(slip.name, text) == slip.text);
    }
  }

  TEST_CASE("a plan that such a block decides is judged as it is meant, and is not certain") {
    const Checked checked =
        ask("ds_config.json", with_words(kDeepspeed, "zero_optimization", "zero_optmization"));
    CHECK(checked.plan == ask("ds_config.json", kDeepspeed).plan);
    REQUIRE(checked.undecided.size() == 1);
    CHECK(checked.undecided.front() == "zero_optmization");
    CHECK(ask("ds_config.json", kDeepspeed).undecided.empty());
    CHECK(ask("accelerate.yaml", with_words(kAccelerate, "deepspeed_config", "deepspeed_conf"))
              .undecided.size() == 1);
    // What is wrong whatever the block says stands.
    const Checked batch =
        ask("ds_config.json",
            with_words(with_words(kDeepspeed, "zero_optim", "zero_optm"), "\"gradient_acc",
                       "\"train_batch_size\": 65,\n  "
                       "\"gradient_acc"));
    CHECK(find(batch, "batch_arithmetic") != nullptr);
  }

  TEST_CASE("a block that nobody knows is one finding, whatever stands in it") {
    const Checked checked =
        ask("ds_config.json", with_words(kDeepspeed, "\"bf16\"",
                                         "\"wandering\": {\n    \"a\": 1,\n    \"b\": 2\n  },\n"
                                         "  \"bf16\""));
    CHECK(checked.findings.size() == 1);
    REQUIRE(find(checked, "unknown_option") != nullptr);
    CHECK(find(checked, "unknown_option")->message.find("wandering: ") == 0);
    // Beside the real one it is no slip.
    const Checked both =
        ask("ds_config.json", with_words(kDeepspeed, "\"bf16\"",
                                         "\"zero_optmization\": {\n    \"stage\": 2\n  },\n"
                                         "  \"bf16\""));
    CHECK(both.plan.zero == 3);
    CHECK(both.count(Severity::error) == 1);
    // Digits are no slips: a block that was put aside.
    const Checked aside =
        ask("ds_config.json", with_words(kDeepspeed, "zero_optimization", "zero_optimization2"));
    CHECK(aside.plan.zero == 0);
    CHECK(aside.count(Severity::error) == 1);
  }

  TEST_CASE("DeepSpeed refuses a key that stands twice, and of two blocks the last one counts") {
    const std::string twice = with_words(
        kDeepspeed, "\"bf16\"", "\"zero_optimization\": {\n    \"stage\": 1\n  },\n  \"bf16\"");
    const Checked checked = ask("ds_config.json", twice);
    const Finding* const found = find(checked, "said_twice");
    REQUIRE(found != nullptr);
    CHECK(found->severity == Severity::error);
    CHECK(found->place.line == 4);
    CHECK(found->message.find("zero_optimization stands twice") == 0);
    CHECK(checked.count(Severity::error) == 1);
    CHECK(checked.plan.zero == 1);
    CHECK(checked.plan.offload.optimizer == 0);
    const Checked scalar =
        ask("ds_config.json",
            with_words(kDeepspeed, "\"bf16\"", "\"gradient_accumulation_steps\": 8,\n  \"bf16\""));
    REQUIRE(find(scalar, "said_twice") != nullptr);
    CHECK(find(scalar, "said_twice")->severity == Severity::error);
    // Python's own reader, which a Trainer asks, takes the last one.
    const Checked trainer =
        ask_texts({{"ds_config.json", twice},
                   {"train.sh",
                    "torchrun --nproc-per-node 8 run_clm.py --deepspeed ds_config.json "
                    "--model_name_or_path m --dataset_name d --output_dir o "
                    "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --bf16 "
                    "--learning_rate 1e-4 --block_size 4096\n"}},
                  kModel, 8);
    REQUIRE(find(trainer, "said_twice") != nullptr);
    CHECK(find(trainer, "said_twice")->severity == Severity::warning);
    CHECK(trainer.plan.zero == 1);
  }

  TEST_CASE("LLaMA-Factory refuses a key that stands twice, and PyYAML takes the last") {
    const std::string yaml =
        "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "dataset: d\ntemplate: qwen3\ncutoff_len: 2048\noutput_dir: o\n"
        "per_device_train_batch_size: 1\nbf16: true\ncutoff_len: 2048\n";
    const Checked checked = ask("train.yaml", yaml);
    REQUIRE(find(checked, "said_twice") != nullptr);
    CHECK(find(checked, "said_twice")->severity == Severity::error);
    const Checked accelerate =
        ask("accelerate.yaml", kAccelerate + "deepspeed_config:\n  zero_stage: 2\n");
    REQUIRE(find(accelerate, "said_twice") != nullptr);
    CHECK(find(accelerate, "said_twice")->severity == Severity::warning);
    CHECK(accelerate.plan.zero == 2);
    CHECK(accelerate.plan.offload.optimizer == 0);
  }

  TEST_CASE("what stands in place of a merged key is no key that stands twice") {
    const std::string yaml =
        "x: &x\n  per_device_train_batch_size: 4\n  fsdp: {a: 1, b: 2}\n  bf16: false\n"
        "y: &y\n  bf16: true\n  c: 3\n"
        "z:\n  <<: [*y, *x]\n  per_device_train_batch_size: 1\n  fsdp: {a: 5}\n";
    const Settings settings = read_yaml_settings(yaml, "a.yaml").settings;
    const auto number = [&](const std::string& key) {
      return std::count_if(settings.begin(), settings.end(),
                           [&](const Setting& s) { return s.key == key; });
    };
    for (const std::string key : {"z.per_device_train_batch_size", "z.fsdp.a", "z.bf16", "z.c"}) {
      CAPTURE(key);
      CHECK(number(key) == 1);
    }
    CHECK(number("z.fsdp.b") == 0);  // of the block that is not read
    CHECK(settings.find("z.per_device_train_batch_size")->value == 1);
    CHECK(settings.find("z.fsdp.a")->value == 5);
    CHECK(settings.find("z.bf16")->value == true);  // of several the first counts
    CHECK(settings.find("z.c")->value == 3);
  }

  TEST_CASE("what is nested too deep is refused before it is loaded, brackets too") {
    std::string text = "distributed_type: ";
    text.append(100'000, '[');
    CHECK(complaint_of([&] { read_yaml_settings(text, "a.yaml"); }) ==
          "a.yaml:1: values are nested deeper than 64");
    std::string maps = "a: ";
    for (int i = 0; i < 70; ++i) maps += "{a: ";
    maps += "1" + std::string(70, '}');
    CHECK(complaint_of([&] { read_yaml_settings(maps, "a.yaml"); }) ==
          "a.yaml:1: values are nested deeper than 64");
    std::string fine = "a: " + std::string(60, '[') + "1" + std::string(60, ']');
    CHECK(read_yaml_settings(fine, "a.yaml").settings.has("a"));
  }

  TEST_CASE("a number that is out of the range of numbers is said to be that") {
    CHECK(complaint_of([] { read_json_settings("{\"a\": 1e400}", "a.json"); }) ==
          "a.json:1: this is not JSON: 1e400 is out of the range of numbers");
  }
}

TEST_SUITE("ds_config.json") {
  TEST_CASE("accelerate's yaml says nothing beside deepspeed_config_file that the file says") {
    const std::string yaml =
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n"
        "  deepspeed_config_file: ds_config.json\n  zero3_init_flag: true\n"
        "num_machines: 1\nnum_processes: 8\n";
    const auto both = [&](const std::string& text) {
      return ask_texts({{"accelerate.yaml", text}, {"ds_config.json", kDeepspeed}}, kModel, 8);
    };
    CHECK_MESSAGE(both(yaml).findings.empty(), findings_text(both(yaml)));
    for (const std::string key :
         {"gradient_accumulation_steps: 8", "gradient_clipping: 1.0", "zero_stage: 3",
          "offload_optimizer_device: cpu", "offload_param_device: none",
          "offload_param_nvme_path: /x", "offload_optimizer_nvme_path: /x",
          "zero3_save_16bit_model: true"}) {
      CAPTURE(key);
      const Checked checked = both(with_words(yaml, "  zero3_init", "  " + key + "\n  zero3_init"));
      const Finding* const found = find(checked, "options_exclude");
      REQUIRE(found != nullptr);
      CHECK(found->severity == Severity::error);
      CHECK(found->place.line == 5);
    }
    for (const std::string word : {"bf16", "'no'"}) {
      const Checked checked = both(yaml + "mixed_precision: " + word + "\n");
      REQUIRE(find(checked, "options_exclude") != nullptr);
    }
    // What the file says too is left out; what it does not say is for its owner to decide.
    const ModelSpec model = load_model(kModel);
    const Json config = model_config(kModel);
    const auto judge = [&](std::span<const ConfigText> texts) {
      return check_cited(texts, question_of(model, config, 8));
    };
    const auto mended = [&](const std::string& text) {
      const std::vector<ConfigText> files{{"accelerate.yaml", text},
                                          {"ds_config.json", kDeepspeed}};
      return fix(files, judge).files[0].text;
    };
    CHECK(mended(with_words(yaml, "  zero3_init", "  zero_stage: 3\n  zero3_init")) == yaml);
    const std::string other = with_words(yaml, "  zero3_init", "  zero_stage: 2\n  zero3_init");
    CHECK(mended(other) == other);
  }

  TEST_CASE("the old word for offloading offloads, and is told") {
    const std::string block =
        "\"offload_optimizer\": {\n      \"device\": \"cpu\",\n      \"pin_memory\": true\n    }";
    const std::string old = with_words(kDeepspeed, block, "\"cpu_offload\": true");
    const Checked checked = ask("ds_config.json", old);
    CHECK(checked.plan == ask("ds_config.json", kDeepspeed).plan);
    CHECK(checked.plan.offload.optimizer == 1);
    REQUIRE(find(checked, "old_offload") != nullptr);
    CHECK(find(checked, "old_offload")->severity == Severity::note);
    CHECK(fixed("ds_config.json", old).find("\"offload_optimizer\": {\"device\": \"cpu\"}") !=
          std::string::npos);
    const Checked params =
        ask("ds_config.json", with_words(kDeepspeed, block, "\"cpu_offload_param\": true"));
    CHECK(params.plan.offload.params);
    CHECK(find(ask("ds_config.json", with_words(kDeepspeed, block, "\"cpu_offload\": false")),
               "old_offload") == nullptr);
  }

  TEST_CASE("amp excludes ZeRO, and which of two precisions is meant is not guessed") {
    const std::string amp = with_words(kDeepspeed, "\"bf16\": {\n    \"enabled\": true",
                                       "\"amp\": {\n    \"enabled\": true");
    REQUIRE(find(ask("ds_config.json", amp), "amp_with_zero") != nullptr);
    const std::string both =
        with_words(kDeepspeed, "\"bf16\"", "\"fp16\": {\n    \"enabled\": true\n  },\n  \"bf16\"");
    REQUIRE(find(ask("ds_config.json", both), "two_precisions") != nullptr);
    CHECK(fixed("ds_config.json", both) == both);
  }
}

}  // namespace qplan
