// LoRA in Megatron-Bridge's Python: what is written, what is read, what is found.

#include <doctest/doctest.h>

#include <algorithm>

#include "models/error.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

const std::string kDense = "tp2 dp4 zero1 mbs1 gbs32 seq4096 sp lora16";
const std::string kExperts = "tp1 dp8 ep8 zero1 mbs1 gbs32 seq4096 lora16";

std::string program_of(const std::string& model, const std::string& words) {
  const ModelSpec spec = load_model(model);
  const Json config = model_config(model);
  const ParallelPlan plan = parse_plan(words);
  const Subject subject{spec, config, plan, RecipeKind::megatron, 8};
  REQUIRE(why_inexpressible(Framework::megatron_bridge, subject, {8, 90}).empty());
  return emit(Framework::megatron_bridge, subject, {"r"}).front().text;
}

std::vector<std::string> why_not(Framework framework, const std::string& model,
                                 const std::string& words) {
  const ModelSpec spec = load_model(model);
  const Json config = model_config(model);
  const ParallelPlan plan = parse_plan(words);
  const Subject subject{spec, config, plan, recipe_for(framework, RecipeKind::megatron), 8};
  std::vector<std::string> rules;
  for (const Infeasible& reason : why_inexpressible(framework, subject, {8, 90})) {
    rules.emplace_back(reason.rule);
  }
  return rules;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The program with another value of cfg.peft, checked.
Checked with_adapters(const std::string& model, const std::string& words,
                      const std::string& adapters) {
  std::string text = program_of(model, words);
  const std::size_t begin = text.find("cfg.peft = ") + std::string("cfg.peft = ").size();
  const std::size_t end = text.find("    cfg.checkpoint.pretrained", begin);
  text.replace(begin, end - begin, adapters + '\n');
  return ask_text("finetune.py", text, model, 8);
}

LoraTargets targets_read(const std::string& model, const std::string& words,
                         const std::string& list) {
  return with_adapters(model, words, "LoRA(target_modules=" + list + ", dim=16)").plan.lora_targets;
}

TEST_CASE("a plan with adapters is a program that finetunes") {
  const std::string text = program_of("llama3-8b", kDense + " lora_alpha=64 lora_dropout=0.1");
  for (const char* part :
       {"from megatron.bridge.peft.lora import LoRA\n", "finetune(config(), forward_step)",
        "target_modules=[\"linear_qkv\", \"linear_proj\", \"linear_fc1\", \"linear_fc2\"],",
        "dim=16,", "alpha=64,", "dropout=0.1,", "cfg.checkpoint.pretrained_checkpoint = "}) {
    CAPTURE(part);
    CHECK(has(text, part));
  }
  const std::string trains = program_of("llama3-8b", "tp2 dp4 zero1 mbs1 gbs32 seq4096 sp");
  CHECK_FALSE(has(trains, "peft"));
  CHECK(has(trains, "pretrain(config(), forward_step)"));
}

TEST_CASE("a name of a module reaches all of its name, and a pattern those that are meant") {
  const auto list = [](const std::string& model, const std::string& words) {
    const std::string text = program_of(model, words);
    const std::size_t begin = text.find("target_modules=");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  // Every MLP of Qwen3-30B is one of experts, which all-linear leaves out.
  CHECK(list("qwen3-30b-a3b", kExperts) == R"(target_modules=["linear_qkv", "linear_proj"],)");
  CHECK(list("qwen3-30b-a3b", kExperts + " lora_targets=experts") ==
        R"(target_modules=["linear_fc1", "linear_fc2"],)");
  // GLM-4.5 Air has a dense layer, shared experts and routed ones.
  const std::string air = "tp1 dp8 ep8 zero1 mbs1 gbs32 seq4096 lora16 lora_targets=";
  CHECK(list("glm4.5-air", air + "down_proj") ==
        R"(target_modules=["*.mlp.linear_fc2", "*.mlp.shared_experts.linear_fc2"],)");
  CHECK(list("glm4.5-air", air + "experts") ==
        R"(target_modules=["*.mlp.experts.linear_fc1", "*.mlp.experts.linear_fc2"],)");
  CHECK(list("glm4.5-air", air + "down_proj+experts") ==
        "target_modules=[\"linear_fc2\", \"*.mlp.experts.linear_fc1\"],");
  // The towers of models that see have modules of the same names.
  CHECK(list("qwen3-vl-30b-a3b", kExperts) ==
        R"(target_modules=["*language_model.*.linear_qkv", "*language_model.*.linear_proj"],)");
  CHECK(list("moonlight-16b-a3b", kExperts + " lora_targets=q_proj+kv_a_proj+kv_b_proj+o_proj") ==
        "target_modules=[\"linear_q_proj\", \"linear_kv_down_proj\", \"linear_kv_up_proj\", "
        "\"linear_proj\"],");
}

TEST_CASE("who has no words for adapters refuses them, and the first that has is asked") {
  const auto refuses = [](Framework framework, const std::string& model, const std::string& words,
                          const std::string& rule) {
    const auto rules = why_not(framework, model, words);
    return std::count(rules.begin(), rules.end(), rule) == 1;
  };
  const std::string sharded = "tp1 dp8 zero2 mbs1 gbs32 seq4096 lora16";
  CHECK(refuses(Framework::megatron, "llama3-8b", kDense, "megatron_adapters"));
  CHECK(refuses(Framework::slime, "qwen3-8b", kDense, "megatron_adapters"));
  CHECK(refuses(Framework::megatron_deepspeed, "llama3-8b", kDense, "megatron_adapters"));
  CHECK(refuses(Framework::torchtitan, "llama3-8b", sharded, "torchtitan_adapters"));
  CHECK(refuses(Framework::deepspeed, "llama3-8b", sharded, "script_adapters"));
  CHECK(refuses(Framework::fsdp2, "llama3-8b", sharded, "script_adapters"));
  // CanonicalLoRA would call adapters that it did not make.
  CHECK(why_not(Framework::megatron_bridge, "llama3-8b", kDense).empty());
  CHECK(refuses(Framework::megatron_bridge, "llama3-8b", kDense + " lora_targets=q_proj+v_proj",
                "bridge_adapters_in_part"));
  const ModelSpec model = load_model("llama3-8b");
  CHECK(files_of(RecipeKind::megatron, model, parse_plan(kDense)) == Framework::megatron_bridge);
  CHECK(files_of(RecipeKind::megatron, model) == Framework::megatron);
}

TEST_CASE("what LoRA(...) leaves out is the class's own, or its recipe's") {
  const ParallelPlan plan = with_adapters("llama3-8b", kDense, "LoRA()").plan;
  CHECK(plan.lora_rank == 32);
  CHECK(plan.lora_alpha == 32);
  CHECK(plan.lora_dropout == 0);
  CHECK(plan.lora_targets.empty());
  const auto of_recipe = [](const std::string& model, const std::string& call) {
    return ask_text("job.py",
                    "from megatron.bridge import recipes\ncfg = recipes." + call +
                        "\ncfg.checkpoint.pretrained_checkpoint = \"/x\"\n"
                        "cfg.model.tensor_model_parallel_size = 1\n",
                    model, 8)
        .plan;
  };
  CHECK(of_recipe("llama3-8b", "llama31_8b_peft_1gpu_h100_bf16_config()").lora_rank == 8);
  CHECK(of_recipe("llama3-8b", "llama31_8b_pretrain_2gpu_h100_bf16_config()").lora_rank == 0);
  const ParallelPlan large =
      of_recipe("llama3-405b", "llama31_405b_peft_32gpu_h100_bf16_config(peft_scheme=\"lora\")");
  CHECK(large.lora_rank == 16);
  CHECK(large.lora_targets == set_of(LoraTarget::q_proj, LoraTarget::k_proj, LoraTarget::v_proj));
  CHECK(with_adapters("llama3-8b", kDense, "LoRA(dim=8)\n    cfg.peft.dim = 4").plan.lora_rank ==
        4);
  CHECK(with_adapters("llama3-8b", kDense, "LoRA(dim=8)\n    cfg.peft = None").plan.lora_rank == 0);
}

TEST_CASE("patterns are understood where they name a module of every layer") {
  using enum LoraTarget;
  const LoraTargets qkv = set_of(q_proj, k_proj, v_proj);
  CHECK(targets_read("llama3-8b", kDense, R"(["linear_qkv"])") == qkv);
  CHECK(targets_read("llama3-8b", kDense, R"(["*linear_qkv"])") == qkv);
  CHECK(targets_read("llama3-8b", kDense, R"(["*.self_attention.linear_qkv"])") == qkv);
  CHECK(targets_read("llama3-8b", kDense, R"(["decoder.layers.*.mlp.linear_fc2"])") ==
        set_of(down_proj));
  CHECK(targets_read("llama3-8b", kDense, R"(["*linear*"])").empty());
  CHECK(targets_read("qwen3-30b-a3b", kExperts, R"(["*.experts.linear_*"])") == set_of(experts));
  // Of layers alone, or of one of experts' two: no plan says so.
  const Checked some = with_adapters(
      "llama3-8b", kDense, R"(LoRA(target_modules=["*.layers.0.*.linear_qkv", "linear_proj"]))");
  CHECK(some.plan.lora_targets == set_of(o_proj));
  CHECK(find(some, "adapters_of_some_layers") != nullptr);
  const Checked half = with_adapters("qwen3-30b-a3b", kExperts,
                                     R"(LoRA(target_modules=["linear_qkv", "linear_fc1"]))");
  CHECK(half.plan.lora_targets == qkv);
  CHECK(find(half, "adapters_of_some_layers") != nullptr);
}

TEST_CASE("targets that name nothing are found, and what the class would stop at") {
  const auto finding = [](const std::string& adapters, const std::string& rule) {
    const Checked checked = with_adapters("llama3-8b", kDense, adapters);
    const Finding* const found = find(checked, rule);
    return found == nullptr ? Finding{} : *found;
  };
  const Finding slip = finding(R"(LoRA(target_modules=["linear_qvk"]))", "unknown_target");
  CHECK(slip.severity == Severity::error);
  CHECK(slip.instead == "did you mean linear_qkv?");
  CHECK(slip.place.line > 0);
  CHECK(has(finding(R"(LoRA(target_modules=["q_proj"]))", "unknown_target").instead, "linear_qkv"));
  CHECK(finding(R"(LoRA(target_modules=["linear_q"]))", "unknown_target").instead == "linear_qkv");
  CHECK(finding(R"(LoRA(target_modules=["linear_qkv", "in_proj"]))", "absent_target").severity ==
        Severity::note);
  CHECK(finding(R"(CanonicalLoRA(target_modules=["linear_q", "linear_v"]))", "canonical_part")
            .severity == Severity::error);
  CHECK(finding(R"(CanonicalLoRA(target_modules=["linear_qkv"]))", "canonical_target").severity ==
        Severity::error);
  CHECK(finding("CanonicalLoRA()", "canonical_as_lora").severity == Severity::note);
  CHECK(with_adapters("llama3-8b", kDense, "CanonicalLoRA()").plan.lora_targets.empty());
  CHECK(finding("DoRA(dropout=0.1)", "dora_dropout").severity == Severity::note);
  const Checked dora = with_adapters("llama3-8b", kDense, "DoRA(dropout=0.1)");
  CHECK(dora.plan.dora);
  CHECK(dora.plan.lora_alpha == 64);
  CHECK(dora.plan.lora_dropout == 0);
  CHECK(!with_adapters("llama3-8b", kDense, "LoRA()").plan.dora);
  // Nothing to say of what is written.
  const Checked clean = with_adapters("llama3-8b", kDense, "LoRA(dim=16)");
  CHECK_MESSAGE(clean.findings.empty(), findings_text(clean));
  std::string text = program_of("llama3-8b", kDense);
  const std::string loads = "    cfg.checkpoint.pretrained_checkpoint";
  text.erase(text.find(loads), text.find('\n', text.find(loads)) - text.find(loads) + 1);
  CHECK(find(ask_text("finetune.py", text, "llama3-8b", 8), "peft_without_weights") != nullptr);
}

TEST_CASE("adapters come back from the files as they went in") {
  for (const auto& [model, words] : std::initializer_list<std::pair<const char*, std::string>>{
           {"llama3-8b", kDense + " lora_alpha=64 lora_dropout=0.05"},
           {"llama3-8b", kDense + " lora_targets=q_proj+k_proj+v_proj+down_proj"},
           {"llama3-8b", kDense + " dora lora_alpha=64"},
           {"qwen3-30b-a3b", kExperts},
           {"qwen3-30b-a3b", kExperts + " lora_targets=experts+o_proj"},
           {"glm4.5-air", kExperts + " lora_targets=down_proj+experts+o_proj"},
           {"glm4.5-air", kExperts + " lora_targets=gate_proj+up_proj+o_proj"},
           {"moonlight-16b-a3b", kExperts + " lora_targets=q_proj+kv_b_proj"},
           {"nemotron-3-nano-30b-a3b", kExperts + " lora_targets=in_proj+out_proj+experts"},
           {"qwen3-next-80b-a3b", kExperts}}) {
    CAPTURE(model);
    CAPTURE(words);
    const ModelSpec spec = load_model(model);
    const Json config = model_config(model);
    const ParallelPlan plan = canonical(parse_plan(words), spec, RecipeKind::megatron);
    const Subject subject{spec, config, plan, RecipeKind::megatron, 8};
    const auto reasons = why_inexpressible(Framework::megatron_bridge, subject, {8, 90});
    REQUIRE_MESSAGE(reasons.empty(), reasons.front().message);
    const Checked checked = check(texts_of(emit(Framework::megatron_bridge, subject, {"r"})),
                                  question_of(spec, config, 8));
    CHECK(checked.findings.empty());
    CHECK(to_string(checked.plan) == to_string(plan));
    CHECK(checked.plan.lora_alpha == plan.lora_alpha);
    CHECK(checked.plan.lora_dropout == plan.lora_dropout);
    CHECK(checked.plan.lora_targets == plan.lora_targets);
    CHECK(checked.plan.dora == plan.dora);
  }
}

}  // namespace
}  // namespace qplan
