// accelerate's yaml: what starts the job, however its type is written, and names without "fsdp_".

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/frameworks/fix.h"
#include "planner/frameworks/option.h"
#include "tests/planner/frameworks/fixed.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kModel = "qwen3-4b";

Checked ask(const std::string& text) {
  return ask_text("accelerate.yaml", text, kModel, 8);
}

std::string fixed(const std::string& text, const std::string& name = "accelerate.yaml") {
  return fixed_text(name, text, kModel, 8);
}

const std::string kHead = "compute_environment: LOCAL_MACHINE\n";
const std::string kTail = "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n";
const std::string kDeepspeed =
    "deepspeed_config:\n  zero3_init_flag: true\n  zero_stage: 3\n  offload_param_device: none\n";
const std::string kFsdp =
    "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_reshard_after_forward: true\n";

std::string typed(const std::string& type, const std::string& section = "") {
  return kHead + section + "distributed_type: " + type + "\n" + kTail;
}

}  // namespace

TEST_SUITE("accelerate's yaml") {
  TEST_CASE("a slip of its type is mended to the type that is meant, whichever that is") {
    const auto& types = known_options("accelerate").find("distributed_type")->choices;
    CHECK(fixed(typed("DEEPSPED", kDeepspeed)) == typed("DEEPSPEED", kDeepspeed));
    CHECK(fixed(typed("DEEPSPEED,", kDeepspeed)) == typed("DEEPSPEED", kDeepspeed));
    CHECK(fixed(typed("deepspeed", kDeepspeed)) == typed("DEEPSPEED", kDeepspeed));
    CHECK(fixed(typed("MULTIGPU")) == typed("MULTI_GPU"));
    CHECK(fixed(typed("multi-gpu")) == typed("MULTI_GPU"));
    CHECK(fixed(typed("FDSP", kFsdp)) == typed("FSDP", kFsdp));
    CHECK(fixed(typed("FSDP2", kFsdp)) == typed("FSDP", kFsdp));
    // A letter more, a letter less, two in each other's place: the same type or none.
    for (const std::string type : {"DEEPSPEED", "FSDP", "MULTI_GPU"}) {
      const std::string section = type == "FSDP" ? kFsdp : type == "DEEPSPEED" ? kDeepspeed : "";
      for (std::size_t at = 0; at < type.size(); ++at) {
        for (std::string slip : {type, type, type}) {
          const std::size_t way = at % 3;
          if (way == 0) slip.erase(at, 1);
          if (way == 1) slip.insert(at, 1, 'X');
          if (way == 2) std::swap(slip[at], slip[at - 1]);
          if (std::find(types.begin(), types.end(), slip) != types.end()) continue;
          CAPTURE(slip);
          const std::string mended = fixed(typed(slip, section));
          CHECK((mended == typed(type, section) || mended == typed(slip, section)));
          CHECK((section.empty() || mended == typed(type, section)));
        }
      }
    }
  }

  TEST_CASE("the sections say what is meant where the word does not, and no plan is made up") {
    CHECK(fixed(typed("ZERO3", kDeepspeed)) == typed("DEEPSPEED", kDeepspeed));
    CHECK(fixed(typed("DDP", kFsdp)) == typed("FSDP", kFsdp));
    // A word of one and the section of another, both sections, or neither.
    for (const std::string& text : {typed("FSPD", kDeepspeed), typed("SHARDED", kDeepspeed + kFsdp),
                                    typed("DDP"), typed("MULTI_PU")}) {
      CAPTURE(text);
      CHECK(fixed(text) == text);
      const Checked open = ask(text);
      CHECK_FALSE(open.says_plan);
      REQUIRE(find(open, "refused_value") != nullptr);
      CHECK(find(open, "refused_value")->message.find("DEEPSPEED, FSDP") != std::string::npos);
      CHECK_MESSAGE(open.count(Severity::error) == 1, findings_text(open));
    }
    CHECK(ask(typed("DEEPSPED", kDeepspeed)).framework == Framework::deepspeed);
    CHECK(ask(typed("DEEPSPED", kDeepspeed)).plan.zero == 3);
    CHECK(ask(typed("MULTIGPU")).recipe == RecipeKind::ddp);
  }

  TEST_CASE("a strategy that torch's FSDP1 has not is refused") {
    const auto sharded = [](const std::string& strategy, const std::string& more = "") {
      return typed("FSDP", "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n" +
                               more + "  fsdp_sharding_strategy: " + strategy + "\n");
    };
    CHECK(find(ask(sharded("FULL")), "refused_value") != nullptr);
    CHECK(find(ask(sharded("6")), "refused_value") != nullptr);
    CHECK(fixed(sharded("FULL_SHRD")) == sharded("FULL_SHARD"));
    for (const std::string fine :
         {"FULL_SHARD", "full_shard", "2", "HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2", "null"}) {
      CAPTURE(fine);
      CHECK(find(ask(sharded(fine)), "refused_value") == nullptr);
    }
    // FSDP2 does not read it.
    CHECK(find(ask(sharded("FULL", "  fsdp_version: 2\n")), "refused_value") == nullptr);
  }

  TEST_CASE("what follows a mended type is added, and no version that its words are not of") {
    const std::string words =
        "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_forward_prefetch: true\n";
    const std::string mended = fixed(typed("FSDP2", words));
    CHECK(mended.find("distributed_type: FSDP\n") != std::string::npos);
    CHECK(mended.find("fsdp_auto_wrap_policy") != std::string::npos);
    CHECK(mended.find("fsdp_version") == std::string::npos);
    CHECK(find(ask(mended), "old_sharding_strategy") == nullptr);
    CHECK(fixed(mended) == mended);
  }

  TEST_CASE("a slip of the name is mended, and nothing is added beside it") {
    const std::string slipped = kHead + kDeepspeed + "distributed_ytpe: DEEPSPEED\n" + kTail;
    CHECK(fixed(slipped) == typed("DEEPSPEED", kDeepspeed));
    const Checked checked = ask(slipped);
    CHECK(find(checked, "missing_option") == nullptr);
    CHECK_MESSAGE(checked.count(Severity::error) == 1, findings_text(checked));
    CHECK(checked.plan.zero == 3);
  }

  TEST_CASE("a type that nobody says is added where the sections tell, and else left open") {
    CHECK(fixed(kHead + kDeepspeed + kTail).find("distributed_type: DEEPSPEED\n") !=
          std::string::npos);
    CHECK(fixed(kHead + kFsdp + kTail).find("distributed_type: FSDP\n") != std::string::npos);
    CHECK(fixed(kHead + kTail) == kHead + kTail);
    const Checked open = ask(kHead + kTail);
    REQUIRE(find(open, "missing_option") != nullptr);
    CHECK_FALSE(open.says_plan);
    // Within a section by two spaces, which is its last line or not.
    const std::string within = kHead + kDeepspeed + "  distributed_type: DEEPSPEED\n" + kTail;
    CHECK(fixed(within) == typed("DEEPSPEED", kDeepspeed));
    const std::string before = kHead + "deepspeed_config:\n  distributed_type: DEEPSPEED\n" +
                               kDeepspeed.substr(kDeepspeed.find('\n') + 1) + kTail;
    CHECK(fixed(before) == before);
    CHECK(find(ask(before), "missing_option") != nullptr);
  }

  TEST_CASE("types that are not judged here are no FSDP") {
    for (const std::string type : {"MEGATRON_LM", "XLA", "MULTI_CPU", "MULTI_NPU"}) {
      CAPTURE(type);
      CHECK(fixed(typed(type)) == typed(type));
      REQUIRE(find(ask(typed(type)), "unknown_file") != nullptr);
      CHECK_FALSE(ask(typed(type)).says_plan);
    }
  }

  TEST_CASE("names of fsdp_config may stand without their beginning") {
    const auto bare = [](const std::string& more) {
      return typed("FSDP",
                   "fsdp_config:\n  version: 2\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                   "  transformer_layer_cls_to_wrap: Qwen3DecoderLayer\n" +
                       more);
    };
    const Checked checked = ask(bare("  reshard_after_forward: false\n"));
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    CHECK(checked.recipe == RecipeKind::fsdp2);
    CHECK(checked.plan.zero == 2);
    // A slip is mended as it is written.
    CHECK(fixed(bare("  reshard_after_forwrad: true\n")) ==
          bare("  reshard_after_forward: true\n"));
    const Checked ignored = ask(bare("  fsdp_ignored_modules: lm_head\n"));
    CHECK_MESSAGE(ignored.findings.empty(), findings_text(ignored));
  }

  TEST_CASE("a refused value is told with accelerate's own words") {
    const std::string text = with_words(typed("FSDP", kFsdp), "bf16", "bfloat16");
    const Checked checked = ask(text);
    const Finding* const found = find(checked, "bad_value");
    REQUIRE(found != nullptr);
    CHECK(found->message == "mixed_precision is bfloat16, and must be one of no, fp16, bf16, fp8");
    CHECK(fixed(text) == typed("FSDP", kFsdp));
  }

  TEST_CASE("keys of older files are known") {
    const Checked checked = ask(typed("FSDP", kFsdp) + "dynamo_backend: 'NO'\nfp16: false\n");
    CHECK_MESSAGE(find(checked, "unknown_option") == nullptr, findings_text(checked));
  }
}

namespace {

const std::string kFactory =
    "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\n"
    "finetuning_type: lora\ndataset: identity\ntemplate: llama3\ncutoff_len: 2048\n"
    "output_dir: saves/x\nbf16: true\n";
const std::string kTrl =
    "model_name_or_path: Qwen/Qwen3-4B\ndataset_name: trl-lib/Capybara\noutput_dir: out\n"
    "max_length: 4096\nbf16: true\n";

}  // namespace

TEST_SUITE("a YAML's keys that are fields") {
  TEST_CASE("no dash is in any, whatever the command line has") {
    for (const std::string& head : {kFactory, kTrl}) {
      for (const auto& [written, right] : std::vector<std::pair<std::string, std::string>>{
               {"per-device-train-batch-size: 2", "per_device_train_batch_size: 2"},
               {"per_device__train_batch_size: 2   # keep",
                "per_device_train_batch_size: 2   # keep"},
               {"reportto: none", "report_to: none"},
               {"gradient-accumulation-steps: 4", "gradient_accumulation_steps: 4"},
               {"learning-rate: 1.0e-5", "learning_rate: 1.0e-5"}}) {
        CAPTURE(written);
        const std::string text = head + written + "\n";
        const Checked checked = ask_text("train.yaml", text, "llama3-8b", 8);
        REQUIRE_MESSAGE(find(checked, "unknown_option") != nullptr, findings_text(checked));
        CHECK(find(checked, "unknown_option")->place.line ==
              1 + std::count(head.begin(), head.end(), '\n'));
        CHECK(fixed(text, "train.yaml") == head + right + "\n");
      }
    }
  }

  TEST_CASE("nor in a block's") {
    for (const std::string& head : {kFactory, kTrl}) {
      const std::string block = "gradient-checkpointing-kwargs:\n  use_reentrant: false\n";
      const Checked checked = ask_text("train.yaml", head + block, "llama3-8b", 8);
      const Finding* const found = find(checked, "unknown_option");
      REQUIRE_MESSAGE(found != nullptr, findings_text(checked));
      CHECK(found->severity == Severity::error);
      CHECK(found->instead.find("gradient_checkpointing_kwargs") != std::string::npos);
    }
  }

  TEST_CASE("every field of a Trainer that is written with dashes is told") {
    for (const std::string& name : known_options("trainer").names()) {
      const std::size_t dash = name.find('-', 2);
      if (!name.starts_with("--") || dash == std::string::npos) continue;
      CAPTURE(name);
      const std::string line = name.substr(2) + ": 1\n";
      CHECK(find(ask_text("a.yaml", kFactory + line, "llama3-8b", 8), "unknown_option") != nullptr);
    }
  }

  TEST_CASE("on a command line, and where keys go back to one, either sign is right") {
    const Checked shell = ask_text(
        "train.sh",
        "trl sft --model-name-or-path Qwen/Qwen3-4B --dataset-name x --output-dir o "
        "--per-device-train-batch-size 2 --max-length 4096 --gradient_accumulation_steps 4\n",
        "qwen3-4b", 8);
    CHECK_MESSAGE(find(shell, "unknown_option") == nullptr, findings_text(shell));
    CHECK(shell.plan.micro_batch_size == 2);
    const Checked swift = ask_text("sft.yaml",
                                   "model: Qwen/Qwen3-4B\ndataset: x\ntuner-type: full\n"
                                   "per-device-train-batch-size: 2\nmax-length: 4096\n",
                                   "qwen3-4b", 8);
    CHECK_MESSAGE(find(swift, "unknown_option") == nullptr, findings_text(swift));
    CHECK(swift.plan.micro_batch_size == 2);
  }

  TEST_CASE("TRL's tell by their class what a YAML without a command trains by") {
    const auto pairs = [&](const std::string& lines) {
      const Checked checked = ask_text("a.yaml", kTrl + lines, "qwen3-4b", 8);
      return checked.plan.micro_batch_size;
    };
    const std::string batch = "per_device_train_batch_size: 2\n";
    CHECK(pairs(batch) == 2);
    CHECK(pairs(batch + "beta: 0.05\nloss_type: apo_zero\n") == 4);  // two sequences a pair
    CHECK(pairs(batch + "beta: 0.1\n") == 4);
    CHECK(pairs(batch + "loss_type: nll\n") == 2);
    CHECK(pairs(batch + "desirable_weight: 1.0\nbeta: 0.1\n") == 2);
    CHECK(pairs(batch + "center_rewards_coefficient: 0.01\n") == 4);
    CHECK(pairs(batch + "num_generations: 8\nbeta: 0.0\n") == 2);
    // A command says it.
    const std::vector<ConfigText> files{
        {"train.sh", "accelerate launch scripts/orpo.py --config a.yaml\n"},
        {"a.yaml", kTrl + batch + "beta: 0.1\n"}};
    const ModelSpec model = load_model("qwen3-4b");
    const Checked orpo = check_cited(files, question_of(model, model_config("qwen3-4b"), 8));
    CHECK(orpo.plan.micro_batch_size == 4);
    CHECK_MESSAGE(find(orpo, "said_twice") == nullptr, findings_text(orpo));
  }
}

TEST_SUITE("what accelerate's launcher makes of its file") {
  TEST_CASE("counts of machines, processes and devices that do not go together are told") {
    const auto counts = [](const std::string& lines, const std::string& type = "FSDP",
                           const std::string& section = kFsdp) {
      return ask(kHead + section + "distributed_type: " + type + "\nmixed_precision: bf16\n" +
                 lines);
    };
    const Checked uneven = counts("num_machines: 3\nnum_processes: 8\nmain_process_ip: a\n");
    REQUIRE(find(uneven, "uneven_machines") != nullptr);
    CHECK(find(uneven, "uneven_machines")->message ==
          "8 processes do not fall on 3 machines alike: accelerate starts 2 on each, 6 in all");
    const Checked even = counts("num_machines: 2\nnum_processes: 8\nmain_process_ip: a\n");
    CHECK(find(even, "uneven_machines") == nullptr);
    CHECK(find(even, "no_main_process_ip") == nullptr);

    const Checked few = counts("num_machines: 1\nnum_processes: 8\ngpu_ids: 0,1\n");
    REQUIRE(find(few, "visible_devices") != nullptr);
    CHECK(find(few, "visible_devices")->place.line == 10);
    for (const std::string ids : {"all", "0,1,2,3,4,5,6,7", "null"}) {
      CHECK(find(counts("num_machines: 1\nnum_processes: 8\ngpu_ids: " + ids + "\n"),
                 "visible_devices") == nullptr);
    }

    // What the command may say is asked where there is one.
    const std::string two = "num_machines: 2\nnum_processes: 8\n";
    CHECK(find(counts(two), "no_main_process_ip") == nullptr);
    const std::string yaml =
        kHead + kFsdp + "distributed_type: FSDP\nmixed_precision: bf16\n" + two;
    const auto launch = [&](const std::string& words) {
      return ask_texts(
          {{"a.yaml", yaml},
           {"run.sh", "accelerate launch --config_file a.yaml " + words + " t.py --a b\n"}},
          kModel, 8);
    };
    REQUIRE(find(launch(""), "no_main_process_ip") != nullptr);
    CHECK(find(launch(""), "no_main_process_ip")->severity == Severity::error);
    CHECK(find(launch("--main_process_ip $A"), "no_main_process_ip") == nullptr);
    CHECK(find(launch("--num_machines 1"), "no_main_process_ip") == nullptr);
    const std::string hosts = kHead + kDeepspeed + "distributed_type: DEEPSPEED\n" + two;
    CHECK(find(ask_texts({{"a.yaml", hosts},
                          {"run.sh", "accelerate launch --config_file a.yaml t.py --a b\n"}},
                         kModel, 8),
               "no_main_process_ip") == nullptr);
  }

  TEST_CASE("the smallest unit of SIZE_BASED_WRAP is digits, and the processor nobody's choice") {
    const auto sized = [](const std::string& size, const std::string& policy = "SIZE_BASED_WRAP") {
      return kHead + "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: " + policy +
             "\n  fsdp_min_num_params: " + size + "\ndistributed_type: FSDP\n" + kTail;
    };
    for (const std::string text : {"1e8", "1.0e+8", "a"}) {
      CAPTURE(text);
      REQUIRE(find(ask(sized(text)), "refused_value") != nullptr);
    }
    CHECK(fixed(sized("1e8")) == sized("100000000"));
    CHECK(find(ask(sized("100000000")), "refused_value") == nullptr);
    CHECK(find(ask(sized("1e8", "NO_WRAP")), "refused_value") == nullptr);
    CHECK(find(ask(typed("FSDP", kFsdp) + "use_cpu: true\n"), "cpu_of_other_types") != nullptr);
    CHECK(find(ask(typed("FSDP", kFsdp) + "use_cpu: false\n"), "cpu_of_other_types") == nullptr);
  }

  TEST_CASE("its file is read as JSON, too") {
    const std::string json =
        "{\"compute_environment\": \"LOCAL_MACHINE\", \"distributed_type\": \"FSDP\", "
        "\"fsdp_config\": {\"fsdp_version\": 2, \"fsdp_auto_wrap_policy\": "
        "\"TRANSFORMER_BASED_WRAP\"}, \"mixed_precision\": \"bf16\", \"num_machines\": 1, "
        "\"num_processes\": 4}";
    const Checked checked =
        ask_texts({{"fsdp2.json", json},
                   {"run.sh", "accelerate launch --config_file fsdp2.json t.py --a b\n"}},
                  kModel, 8);
    CHECK_MESSAGE(find(checked, "no_processes") == nullptr, findings_text(checked));
    REQUIRE(find(checked, "launched_world") != nullptr);
    CHECK(find(checked, "launched_world")->place.file == "fsdp2.json");
  }
}

}  // namespace qplan
