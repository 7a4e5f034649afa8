// What frameworks have words for of Llama 4's layers, and what each refuses.
#include <doctest/doctest.h>

#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

constexpr const char* kMaverick = "llama4-maverick-17b-128e";
constexpr const char* kScout = "llama4-scout-17b-16e";

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string arguments(const std::string& model_name, const std::string& words) {
  const ModelSpec model = load_model(model_name);
  const Json config = model_config(model_name);
  const ParallelPlan plan = parse_plan(words);
  const Subject subject{model, config, plan, RecipeKind::megatron, 8};
  for (const EmittedFile& file : emit(Framework::megatron, subject, {})) {
    if (file.name == "args.sh") return file.text;
  }
  return "";
}

// The rules by which this cannot be written.
std::string refusals(Framework framework, const std::string& model_name, const std::string& words) {
  const ModelSpec model = load_model(model_name);
  const Json config = model_config(model_name);
  const ParallelPlan plan = parse_plan(words);
  const Subject subject{model, config, plan, recipe_for(framework, RecipeKind::megatron), 8};
  std::string rules;
  for (const Infeasible& reason : why_inexpressible(framework, subject, {plan.world(), 90})) {
    CHECK(reason.message.size() > 20);
    rules += (rules.empty() ? "" : " ") + std::string(reason.rule);
  }
  return rules;
}

constexpr const char* kPlan =
    "tp2 pp2 dp4 ep8 etp1 zero1 mbs1 gbs64 seq8192 1f1b sp overlap=grad+param";

}  // namespace

TEST_SUITE("Llama 4 in frameworks' words") {
  TEST_CASE("Maverick is written for Megatron, and read back") {
    const std::string args = arguments(kMaverick, kPlan);
    for (const char* flag :
         {"--num-experts 128", "--moe-layer-freq '([0]*1+[1]*1)*24'", "--no-rope-freq 4",
          "--rotary-interleaved", "--rotary-base 500000", "--ffn-hidden-size 16384",
          "--moe-ffn-hidden-size 8192", "--moe-shared-expert-intermediate-size 8192",
          "--moe-router-topk 1", "--moe-router-score-function sigmoid",
          "--moe-apply-probs-on-input", "--vocab-size 202048"}) {
      CAPTURE(flag);
      CHECK(says(args, std::string("  ") + flag));
    }
    for (const char* flag : {"--qk-l2-norm", "--qk-layernorm", "--use-rope-scaling"}) {
      CHECK_FALSE(says(args, flag));
    }
    const auto findings = [&](const std::string& from, const std::string& to) {
      return findings_text(ask_text("args.sh", with_words(args, from, to), kMaverick, 16));
    };
    CHECK(findings("--bf16", "--bf16").empty());
    CHECK(findings("freq 4", "freq '([0]*3+[1]*1)*12'").empty());
    CHECK(says(findings("freq 4", "freq 2"), "--no-rope-freq is 2"));
    CHECK(says(findings("  --no-rope-freq 4\n", ""), "--no-rope-freq is missing"));
    CHECK(says(findings("  --moe-apply-probs-on-input\n", ""),
               "--moe-apply-probs-on-input is missing: what experts make is weighted"));
    CHECK(says(findings("  --rotary-interleaved\n", "  --rotary-interleaved --qk-l2-norm\n"),
               "--qk-l2-norm does not belong"));
    CHECK(says(findings("([0]*1+[1]*1)*24", "([1]*1+[0]*1)*24"), "--moe-layer-freq is"));
  }

  TEST_CASE("flags of Llama 4 are called strange to other models") {
    const std::string args =
        arguments("qwen3-30b-a3b", "tp1 dp8 ep8 etp1 zero1 mbs1 gbs64 seq4096 overlap=grad+param");
    for (const char* flag : {"--no-rope-freq 4", "--rotary-interleaved", "--qk-l2-norm",
                             "--moe-apply-probs-on-input"}) {
      CAPTURE(flag);
      CHECK_FALSE(says(args, flag));
      std::string changed = args;
      const std::string before = "  --bf16\n";
      const auto at = changed.find(before);
      REQUIRE(at != std::string::npos);
      changed.insert(at, std::string("  ") + flag + "\n");
      CHECK(says(findings_text(ask_text("args.sh", changed, "qwen3-30b-a3b", 8)),
                 std::string(flag) + " does not belong to qwen3-30b-a3b"));
    }
  }

  TEST_CASE("what Megatron-LM has no flag for is refused") {
    CHECK(refusals(Framework::megatron, kMaverick, kPlan).empty());
    CHECK(refusals(Framework::megatron, kMaverick,
                   "tp2 pp2 dp4 ep8 etp1 zero1 mbs1 gbs64 seq16384 1f1b sp overlap=grad+param") ==
          "chunked_attention temperature_by_position");
    CHECK(refusals(Framework::megatron, kScout, kPlan) == "partly_normed_queries");
  }

  TEST_CASE("frameworks without a Llama 4 of their own say so") {
    CHECK(says(refusals(Framework::megatron_bridge, kMaverick, kPlan), "bridge_recipe"));
    CHECK(says(refusals(Framework::torchtitan, kMaverick,
                        "tp1 dp8 ep8 etp1 zero3 mbs1 gbs64 seq8192 overlap=grad+param"),
               "torchtitan_model"));
    const std::string sharded = "tp1 dp8 zero3 mbs1 gbs64 seq8192 overlap=grad+param";
    CHECK(says(refusals(Framework::fsdp2, kMaverick, sharded), "every_expert"));
    CHECK(says(refusals(Framework::deepspeed, kMaverick, sharded), "every_expert"));
    CHECK(says(refusals(Framework::megatron_deepspeed, kMaverick, "tp2 dp4 zero1 mbs1 gbs64"),
               "model_available"));
  }
}

}  // namespace qplan
