// TRL's YAML with accelerate's beside it, as `emit` writes them.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "planner/rl/rl_step.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const ModelSpec& model() {
  static const ModelSpec kModel = load_model("llama3-8b");
  return kModel;
}
const Json& config() {
  static const Json kConfig = model_config("llama3-8b");
  return kConfig;
}

Subject subject_of(const ParallelPlan& plan, RecipeKind recipe, const RlStep* step = nullptr) {
  return {model(), config(), plan, recipe, 8, step};
}

Checked ask(const std::vector<ConfigText>& texts, std::int64_t gpus = 8) {
  return check_cited(texts, question_of(model(), config(), gpus));
}

std::string text_of_file(const std::vector<EmittedFile>& files, const std::string& name) {
  for (const EmittedFile& file : files) {
    if (file.name == name) return file.text;
  }
  return "";
}

}  // namespace

TEST_SUITE("TRL's files") {
  TEST_CASE("of DDP hold adapters beside weights of 4 bits, and come back") {
    const ParallelPlan plan = parse_plan(
        "dp8 gbs64 mbs2 seq4096 zero0 overlap=grad grad_dtype=bf16 recompute=full lora16 "
        "lora_alpha=32 lora_dropout=0.05 frozen=nf4-double");
    const Subject subject = subject_of(plan, RecipeKind::ddp);
    REQUIRE(why_inexpressible(Framework::trl, subject, {8, 90}).empty());
    const auto files = emit(Framework::trl, subject, {});
    CHECK(text_of_file(files, "accelerate.yaml").empty());
    CHECK(text_of_file(files, "train.yaml").find("load_in_4bit: true") != std::string::npos);
    const Checked checked = ask(texts_of(files));
    CHECK(checked.findings.size() == 1);
    CHECK_MESSAGE(find(checked, "replicated") != nullptr, findings_text(checked));  // a note
    CHECK(checked.framework == Framework::trl);
    CHECK(checked.recipe == RecipeKind::ddp);
    CHECK(to_string(checked.plan) == to_string(plan));
  }

  TEST_CASE("of DeepSpeed name its file, without which there is no plan") {
    const ParallelPlan plan =
        parse_plan("dp8 gbs64 mbs2 seq4096 zero3 overlap=grad grad_dtype=bf16");
    auto files = texts_of(emit(Framework::trl, subject_of(plan, RecipeKind::deepspeed), {}));
    const Checked whole = ask(files);
    CHECK_MESSAGE(whole.findings.empty(), findings_text(whole));
    CHECK(whole.recipe == RecipeKind::deepspeed);
    CHECK(whole.plan == plan);
    std::erase_if(files, [](const ConfigText& file) { return file.name == "ds_config.json"; });
    const Checked lacking = ask(files);
    CHECK(find(lacking, "config_missing") != nullptr);
    CHECK_FALSE(lacking.says_plan);
  }

  TEST_CASE("name a configuration that TRL brings itself") {
    const std::string yaml =
        "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nmax_length: 4096\n"
        "per_device_train_batch_size: 1\nuse_peft: true\n";
    for (const std::string name : {"zero2", "zero3"}) {
      const Checked checked =
          ask({{"sft.yaml", yaml},
               {"train.sh", "trl sft --config sft.yaml --accelerate_config " + name + "\n"}});
      CHECK_MESSAGE(find(checked, "other_file_name") == nullptr, findings_text(checked));
      CHECK(checked.plan.zero == name.back() - '0');
    }
    // A file of its own has a name.
    const Checked other =
        ask({{"sft.yaml", yaml + "deepspeed: zero.json\n"},
             {"ds.json", "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}}"}});
    CHECK(find(other, "other_file_name") != nullptr);
  }

  TEST_CASE("of pairs train dpo, whose samples are two sequences") {
    const ParallelPlan plan = parse_plan("dp8 gbs64 mbs4 seq2048 zero3 overlap=grad+param");
    RlStep step;
    step.job.algorithm = Algorithm::dpo;
    const auto files = emit(Framework::trl, subject_of(plan, RecipeKind::fsdp2, &step), {});
    CHECK(text_of_file(files, "train.sh").find("trl dpo --config") != std::string::npos);
    const Checked checked = ask(texts_of(files));
    CHECK_FALSE(checked.has(Severity::error));
    CHECK(checked.plan == plan);
    ParallelPlan odd = plan;
    odd.micro_batch_size = 1;
    CHECK(broken_limit(Framework::trl, subject_of(odd, RecipeKind::fsdp2, &step)) == "trl_pairs");
    step.job.algorithm = Algorithm::grpo;
    CHECK(broken_limit(Framework::trl, subject_of(plan, RecipeKind::fsdp2, &step)) ==
          "trl_generates");
  }

  TEST_CASE("are those of adapters under DDP and DeepSpeed where nobody names others") {
    const ParallelPlan plan = parse_plan("dp8 gbs64 seq4096 zero0 lora16");
    CHECK(files_of(RecipeKind::ddp, model(), plan) == Framework::trl);
  }

  TEST_CASE("nobody writes what his files have no word for") {
    ParallelPlan plan = parse_plan("dp8 gbs64 seq4096 zero3 overlap=grad+param lora16");
    plan.frozen_weights = FrozenFormat::nf4;
    for (const Framework other : {Framework::ms_swift, Framework::automodel}) {
      CHECK(!broken_limit(other, subject_of(plan, RecipeKind::fsdp2)).empty());
    }
    CHECK(broken_limit(Framework::trl, subject_of(plan, RecipeKind::fsdp2)).empty());
    plan.module_kernels = ModuleKernels::all;
    CHECK(broken_limit(Framework::trl, subject_of(plan, RecipeKind::fsdp2)) ==
          "kernels_of_modules");
  }
}

}  // namespace qplan
