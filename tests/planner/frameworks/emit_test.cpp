#include "planner/frameworks/emit.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/error.h"
#include "models/plan/words.h"
#include "planner/frameworks/readers/arguments.h"
#include "tests/planner/frameworks/jobs.h"
#include "tests/properties/random_plans.h"

namespace qplan {
namespace {

struct Job {
  ModelSpec model;
  Json config;
  ParallelPlan plan;
  RecipeKind recipe;
  [[nodiscard]] Subject subject() const { return {model, config, plan, recipe, 8}; }
};

Job job(const std::string& model, const std::string& plan, Framework framework) {
  return {load_model(model), model_config(model), parse_plan(plan),
          recipe_for(framework, RecipeKind::megatron)};
}

std::string file(const std::vector<EmittedFile>& files, const std::string& name) {
  for (const EmittedFile& f : files) {
    if (f.name == name) return f.text;
  }
  FAIL("no file " << name);
  return "";
}

bool has_text(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr std::string_view kMoePlan =
    "tp4 pp2 dp8 ep8 etp1 zero1 mbs1 gbs64 seq4096 1f1b sp overlap=grad+param";

TEST_CASE("Megatron's arguments say every default that nobody wants") {
  const Job j = job("qwen3-30b-a3b", std::string(kMoePlan), Framework::megatron);
  const auto files = emit(Framework::megatron, j.subject(), {"remark one"});
  const std::string args = file(files, "args.sh");
  for (const std::string flag :
       {"--attention-dropout 0.0", "--hidden-dropout 0.0", "--group-query-attention",
        "--kv-channels 128", "--ffn-hidden-size 6144", "--normalization RMSNorm",
        "--norm-epsilon 1e-06", "--position-embedding-type rope", "--rotary-base 1000000",
        "--disable-bias-linear", "--moe-token-dispatcher-type alltoall",
        "--expert-tensor-parallel-size 1", "--make-vocab-size-divisible-by 128",
        "--moe-aux-loss-coeff 0.001", "--accumulate-allreduce-grads-in-fp32", "--qk-layernorm",
        "--untie-embeddings-and-output-weights", "--sequence-parallel"}) {
    CAPTURE(flag);
    CHECK(has_text(args, "  " + flag + "\n"));
  }
  CHECK_FALSE(has_text(
      args, "--moe-router-pre-softmax"));  // Qwen3's probabilities sum to 1 after the choice
  for (const EmittedFile& f : files) CHECK(has_text(f.text, "# remark one"));
  CHECK(has_text(file(files, "train.sh"), "--nproc-per-node 8 --nnodes 8"));
  CHECK(has_text(file(files, "train.sh"), "CUDA_DEVICE_MAX_CONNECTIONS=1"));
  CHECK(has_text(file(files, "train.sbatch"), "#SBATCH --nodes=8"));
  // A model's name is its folder's, and may hold anything.
  Job odd = j;
  odd.model.name = "my 'model' $(x)";
  const auto named = emit(Framework::megatron, odd.subject(), {"a\nb"});
  CHECK(has_text(file(named, "train.sbatch"), "# a b\n#SBATCH --job-name=my--model----x-\n"));
}

TEST_CASE("Megatron keeps fp8 weights alone where it can") {
  const auto says_so = [](const std::string& words) {
    const Job j = job("qwen3-8b", "tp2 dp4 gbs8 seq4096 " + words, Framework::megatron);
    const auto files = emit(Framework::megatron, j.subject(), {});
    return has_text(file(files, "args.sh"), "--fp8-param-gather");
  };
  CHECK(says_so("zero1 precision=fp8"));
  CHECK_FALSE(says_so("zero0 precision=fp8"));  // without a distributed optimizer it is refused
  CHECK_FALSE(says_so("zero1 precision=bf16"));
  CHECK_FALSE(says_so("zero1 precision=fp8 fp8_param_gather=false"));
}

TEST_CASE("attention in fp8 is Megatron-Bridge's to say, and no flag of Megatron-LM's") {
  const Job j =
      job("qwen3-8b", "tp2 dp4 zero1 gbs8 seq4096 sp precision=fp8 fp8_dot_product_attention",
          Framework::megatron_bridge);
  const auto files = emit(Framework::megatron_bridge, j.subject(), {"r"});
  CHECK(std::any_of(files.begin(), files.end(), [](const EmittedFile& f) {
    return has_text(f.text, "cfg.mixed_precision.fp8_dot_product_attention = True");
  }));
  CHECK(check(texts_of(files), question_of(j.model, j.config, 8)).plan.fp8_dot_product_attention);
  CHECK(broken_limit(Framework::megatron_bridge, j.subject()).empty());
  CHECK(broken_limit(Framework::megatron, j.subject()) == "flags_fp8_attention");
}

TEST_CASE("how fp8 keeps weights is written and read, and off in a script that does not say") {
  for (const Precision precision : {Precision::fp8, Precision::mxfp8}) {
    for (const bool kept : {true, false}) {
      for (const Framework framework :
           {Framework::megatron, Framework::megatron_bridge, Framework::slime}) {
        const std::string words =
            fmt::format("tp2 dp4 zero1 gbs8 seq4096 sp precision={} fp8_param_gather={}",
                        to_word(precision), kept);
        CAPTURE(words);
        const Job j = job("qwen3-8b", words, framework);
        const auto files = emit(framework, j.subject(), {"r"});
        const auto anywhere = [&](const std::string& text) {
          return std::any_of(files.begin(), files.end(),
                             [&](const EmittedFile& f) { return has_text(f.text, text); });
        };
        const bool bridge = framework == Framework::megatron_bridge;
        const bool blocks = precision == Precision::mxfp8;
        CHECK(anywhere("--fp8-param-gather") == (kept && !bridge));
        CHECK(anywhere("--reuse-grad-buf-for-mxfp8-param-ag") == (kept && blocks && !bridge));
        CHECK(anywhere("cfg.mixed_precision.fp8_param_gather = False") == (!kept && bridge));
        const auto answer = check(texts_of(files), question_of(j.model, j.config, 8));
        CHECK(answer.plan.precision == precision);
        CHECK(answer.plan.fp8_param_gather == kept);
      }
    }
  }
}

TEST_CASE(
    "deterministic mode comes with the environment that it asks for, and without the fused loss") {
  const auto plan = [](const std::string& words) {
    return "tp2 dp4 zero1 gbs8 seq4096 sp overlap=grad+param" + words;
  };
  for (const Framework framework :
       {Framework::megatron, Framework::megatron_bridge, Framework::slime}) {
    const Job j = job("qwen3-8b", plan(" deterministic=true"), framework);
    const Job other = job("qwen3-8b", plan(""), framework);
    const auto files = emit(framework, j.subject(), {"r"});
    const auto others = emit(framework, other.subject(), {"r"});
    const auto anywhere = [](const std::vector<EmittedFile>& in, const std::string& words) {
      return std::any_of(in.begin(), in.end(),
                         [&](const EmittedFile& f) { return has_text(f.text, words); });
    };
    const char* const flag = framework == Framework::megatron_bridge
                                 ? "cfg.model.deterministic_mode = True"
                                 : "--deterministic-mode";
    CHECK(anywhere(files, flag));
    CHECK_FALSE(anywhere(others, flag));
    for (const char* name :
         {"NCCL_ALGO", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"}) {
      CAPTURE(name);
      CHECK(anywhere(files, name));
      CHECK_FALSE(anywhere(others, name));
    }
    CHECK_FALSE(anywhere(files, "--cross-entropy-loss-fusion"));
    CHECK(check(texts_of(files), question_of(j.model, j.config, 8)).plan == j.plan);
  }
}

TEST_CASE("a plan's loss is written, and read back as the plan's") {
  struct Case {
    Framework framework;
    const char *words, *written;
  };
  for (const Case& c : std::initializer_list<Case>{
           {Framework::megatron, "", "--cross-entropy-fusion-impl native"},
           {Framework::megatron, " loss=native", "--cross-entropy-fusion-impl native"},
           {Framework::megatron, " loss=unfused", ""},
           {Framework::megatron_bridge, "", "cfg.model.cross_entropy_fusion_impl = \"native\""},
           {Framework::megatron_bridge, " loss=te", "cfg.model.cross_entropy_fusion_impl = \"te\""},
           {Framework::megatron_bridge, " loss=unfused",
            "cfg.model.cross_entropy_loss_fusion = False"},
           {Framework::slime, "", ""},
           {Framework::torchtitan, " loss=compiled", "loss=CrossEntropyLoss.Config("},
           {Framework::torchtitan, "", "loss=ChunkedLossWrapper.Config("}}) {
    const bool titan = c.framework == Framework::torchtitan;
    const std::string head = titan ? "tp2 dp4 zero3" : "tp2 dp4 zero1";
    const Job j =
        job("qwen3-8b", head + " gbs8 seq4096 sp overlap=grad+param" + c.words, c.framework);
    CAPTURE(j.plan.loss);
    CAPTURE(c.words);
    const auto files = emit(c.framework, j.subject(), {"r"});
    std::string all;
    for (const EmittedFile& f : files) all += f.text;
    CHECK(has_text(all, c.written));
    if (std::string_view(c.written).empty()) CHECK_FALSE(has_text(all, "cross-entropy"));
    const ParallelPlan read = check(texts_of(files), question_of(j.model, j.config, 8)).plan;
    CHECK(canonical(read, j.model, recipe_for(c.framework, RecipeKind::megatron)) ==
          canonical(j.plan, j.model, recipe_for(c.framework, RecipeKind::megatron)));
    CHECK(read.loss ==
          (std::string_view(c.words) == " loss=native" ? LossKind::by_framework : j.plan.loss));
  }
}

TEST_CASE("a loss that a framework refuses is not written for it") {
  for (const auto& [framework, words, rule] :
       std::initializer_list<std::tuple<Framework, const char*, const char*>>{
           {Framework::megatron, "loss=te", "loss_of_te"},
           {Framework::slime, "loss=unfused", "slime_loss"}}) {
    const Job j = job("qwen3-8b", std::string("tp2 dp4 zero1 gbs8 seq4096 sp ") + words, framework);
    const ClusterLimits limits{8, 90};
    const auto reasons = why_inexpressible(framework, j.subject(), limits);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons.front().rule == rule);
    ParallelPlan nearest;
    REQUIRE(nearest_expressible(framework, j.subject(), limits, nearest));
    CHECK(nearest.loss == LossKind::by_framework);
  }
}

TEST_CASE("permute fusion is written and read, and off in a script that does not name it") {
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    const std::string words = fmt::format("{} moe_permute_fusion={}", kMoePlan, fused);
    for (const Framework framework :
         {Framework::megatron, Framework::megatron_bridge, Framework::slime}) {
      const Job j = job("qwen3-30b-a3b", words, framework);
      const auto files = emit(framework, j.subject(), {"r"});
      const auto anywhere = [&](const std::string& text) {
        return std::any_of(files.begin(), files.end(),
                           [&](const EmittedFile& f) { return has_text(f.text, text); });
      };
      const bool bridge = framework == Framework::megatron_bridge;
      CHECK(anywhere("--moe-permute-fusion") == (fused && !bridge));
      CHECK(anywhere("cfg.model.moe_permute_fusion = True") == (fused && bridge));
      CHECK(anywhere("cfg.model.moe_permute_fusion = False") == (!fused && bridge));
      CHECK(check(texts_of(files), question_of(j.model, j.config, 64)).plan.moe_permute_fusion ==
            fused);
    }
  }
  // Nothing of it in a dense model's job.
  const Job dense = job("qwen3-8b", "tp2 dp4 zero1 gbs8 seq4096", Framework::megatron_bridge);
  for (const EmittedFile& f : emit(Framework::megatron_bridge, dense.subject(), {"r"})) {
    CHECK_FALSE(has_text(f.text, "permute_fusion"));
  }
}

TEST_CASE("Megatron's scripts choose attention's library, and drop unless they say 0") {
  const Job j =
      job("qwen3-8b", "tp2 dp4 zero1 gbs8 seq4096 sp attention_backend=flash", Framework::megatron);
  auto texts = texts_of(emit(Framework::megatron, j.subject(), {}));
  const auto read = [&] { return check(texts, question_of(j.model, j.config, 8)).plan; };
  CHECK(read().attention_backend == AttentionBackend::flash);
  CHECK_FALSE(read().dropout);
  for (ConfigText& text : texts) {
    const std::string flag = "--hidden-dropout 0.0";
    if (const auto at = text.text.find(flag); at != std::string::npos) {
      text.text.replace(at, flag.size(), "--hidden-dropout 0.1");
    }
  }
  CHECK(read().dropout);
  const Job drops = job("qwen3-8b", "tp2 dp4 zero1 gbs8 seq4096 sp dropout", Framework::megatron);
  CHECK_FALSE(why_inexpressible(Framework::megatron, drops.subject(), {8, 90}).empty());
  const Job bridge = job("qwen3-8b", "tp2 dp4 zero1 gbs8 seq4096 sp attention_backend=flash",
                         Framework::megatron_bridge);
  CHECK_FALSE(why_inexpressible(Framework::megatron_bridge, bridge.subject(), {8, 90}).empty());
}

TEST_CASE("which copies beyond a capacity are dropped is written and read") {
  for (const char* policy : {"probs", "position"}) {
    const Job j = job("qwen3-30b-a3b", fmt::format("{} capacity=1.25 drop={}", kMoePlan, policy),
                      Framework::megatron);
    const auto files = emit(Framework::megatron, j.subject(), {});
    CHECK(has_text(file(files, "args.sh"), fmt::format("--moe-token-drop-policy {}", policy)));
    CHECK(check(texts_of(files), question_of(j.model, j.config, 64)).plan == j.plan);
  }
}

TEST_CASE("torchtitan's loss is written in chunks where they divide a micro-batch's tokens") {
  const auto config = [](const std::string& plan) {
    const Job j = job("llama3-8b", plan, Framework::torchtitan);
    return file(emit(Framework::torchtitan, j.subject(), {}), "qplan_config.py");
  };
  const std::string even = config("tp1 pp1 dp8 zero3 mbs1 gbs64 seq4096 overlap=grad+param");
  CHECK(has_text(even, "loss=ChunkedLossWrapper.Config(\n"));
  CHECK(has_text(even, "import ChunkedLossWrapper, CrossEntropyLoss\n"));
  const std::string odd = config("tp1 pp1 dp8 zero3 mbs1 gbs64 seq4100 overlap=grad+param");
  CHECK(has_text(odd, "loss=CrossEntropyLoss.Config(\n"));
  CHECK_FALSE(has_text(odd, "ChunkedLossWrapper"));
}

TEST_CASE("DeepSeek-V3's latent attention, groups and layers") {
  const Job j =
      job("deepseek-v3", "tp2 pp1 dp128 ep64 etp1 zero1 mbs1 gbs256 seq4096 sp overlap=grad+param",
          Framework::megatron);
  const std::string args = file(emit(Framework::megatron, j.subject(), {}), "args.sh");
  for (const std::string flag :
       {"--multi-latent-attention", "--q-lora-rank 1536", "--kv-lora-rank 512", "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64", "--v-head-dim 128", "--rotary-scaling-factor 40", "--mscale 1",
        "--moe-layer-freq '([0]*3+[1]*58)'", "--moe-shared-expert-intermediate-size 2048",
        "--moe-router-score-function sigmoid", "--moe-router-enable-expert-bias",
        "--moe-router-num-groups 8", "--moe-router-group-topk 4",
        "--moe-router-topk-scaling-factor 2.5", "--mtp-num-layers 1"}) {
    CAPTURE(flag);
    CHECK(has_text(args, "  " + flag));
  }
  CHECK_FALSE(has_text(args, "--group-query-attention"));
}

TEST_CASE("Gated DeltaNet's layers, heads and gates are written for Megatron and read back") {
  const std::string plan =
      "tp2 pp2 dp4 ep8 etp1 zero1 mbs1 gbs64 seq4096 1f1b sp overlap=grad+param";
  const Job j = job("qwen3-next-80b-a3b", plan, Framework::megatron);
  const auto files = emit(Framework::megatron, j.subject(), {"r"});
  std::string args = file(files, "args.sh");
  for (const std::string flag :
       {"--experimental-attention-variant gated_delta_net", "--linear-attention-freq 4",
        "--linear-conv-kernel-dim 4", "--linear-key-head-dim 128", "--linear-value-head-dim 128",
        "--linear-num-key-heads 16", "--linear-num-value-heads 32", "--attention-output-gate",
        "--apply-layernorm-1p", "--qk-layernorm", "--rotary-percent 0.25", "--rotary-base 10000000",
        "--moe-shared-expert-gate"}) {
    CAPTURE(flag);
    CHECK(has_text(args, "  " + flag + "\n"));
  }
  CHECK_FALSE(has_text(args, "--mtp-num-layers"));
  CHECK_FALSE(has_text(
      file(emit(Framework::megatron,
                job("qwen3-8b", "tp2 dp4 gbs8 seq4096", Framework::megatron).subject(), {}),
           "args.sh"),
      "--linear-"));
  // Other spellings of the same layers, and one of others.
  const auto findings = [&](const std::string& from, const std::string& to) {
    std::string changed = args;
    const auto at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    return findings_text(ask_text("args.sh", changed, "qwen3-next-80b-a3b", 16));
  };
  CHECK(findings("gated_delta_net", "gdn").empty());
  CHECK(findings("freq 4", "freq '([1]*3+[0]*1)*12'").empty());
  CHECK(has_text(findings("freq 4", "freq 3"), "--linear-attention-freq"));
  CHECK(
      has_text(findings("  --attention-output-gate\n", ""), "--attention-output-gate is missing"));
}

TEST_CASE("layers of one mixer are written for Megatron as a pattern with bars, and read back") {
  const std::string plan =
      "tp1 pp2 dp8 ep8 etp1 zero1 mbs1 gbs64 seq4096 interleaved vpp2 layout=30+20+20+18 "
      "overlap=grad+param cuda_graph cuda_graph_scope=layer";
  const Job j = job("nemotron-3-super-120b-a12b", plan, Framework::megatron);
  const auto files = emit(Framework::megatron, j.subject(), {"r"});
  CHECK(has_text(file(files, "train.sh"), "pretrain_hybrid.py"));
  const std::string args = file(files, "args.sh");
  const std::string pattern =
      "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEM|EMEMEM*EMEMEMEMEM*EM|EMEMEMEM*EMEMEMEMEM*|"
      "EMEMEMEM*EMEMEMEME/*E";
  for (const std::string& flag :
       {"--hybrid-layer-pattern '" + pattern + "'", std::string("--num-layers 88"),
        std::string("--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"),
        std::string("--mamba-num-heads 128"), std::string("--mamba-head-dim 64"),
        std::string("--mamba-num-groups 8"), std::string("--mamba-state-dim 128"),
        std::string("--mtp-num-layers 1"), std::string("--moe-latent-size 1024"),
        std::string("--use-fused-weighted-squared-relu"), std::string("--squared-relu"),
        std::string("--position-embedding-type none"),
        std::string("--cuda-graph-modules attn mamba moe_router moe_preprocess")}) {
    CAPTURE(flag);
    CHECK(has_text(args, "  " + flag + "\n"));
  }
  for (const char* flag :
       {"--pipeline-model-parallel-layout", "--num-virtual-stages", "--moe-layer-freq"}) {
    CHECK_FALSE(has_text(args, flag));
  }
  const auto findings = [&](const std::string& from, const std::string& to) {
    return findings_text(
        ask_text("args.sh", with_words(args, from, to), "nemotron-3-super-120b-a12b", 16));
  };
  CHECK(findings(pattern, pattern).empty());
  CHECK(findings("--hybrid-layer-pattern", "--hybrid-override-pattern").empty());
  CHECK(has_text(findings("'MEME", "'MEEM"), "--hybrid-layer-pattern is MEEM"));
  CHECK(has_text(findings("  --mamba-num-heads 128\n", ""), "--mamba-num-heads is missing"));
  CHECK(has_text(findings("--moe-latent-size 1024", "--moe-latent-size 512"), "--moe-latent-size"));
}

TEST_CASE("Megatron-Bridge's recipe of a hybrid gets the plan's multi-token prediction") {
  const std::string plan = "tp1 pp4 dp8 ep8 etp1 zero1 mbs1 gbs64 seq4096 1f1b overlap=grad+param";
  const Job j = job("qwen3-next-80b-a3b", plan, Framework::megatron_bridge);
  const std::string text =
      file(emit(Framework::megatron_bridge, j.subject(), {"r"}), "pretrain.py");
  CHECK(has_text(text, "recipes.qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config()"));
  CHECK(has_text(text, "cfg.model.mtp_num_layers = None\n"));
}

TEST_CASE("ds_config.json is strict JSON whose batch multiplies") {
  const Job j = job("llama3-8b",
                    "tp1 pp1 dp16 zero3 mbs2 gbs64 seq4096 recompute=full "
                    "offload=optimizer,params grad_dtype=bf16 overlap=grad",
                    Framework::deepspeed);
  const auto files = emit(Framework::deepspeed, j.subject(), {"remark"});
  const Json config = parse_json(file(files, "ds_config.json"), "ds_config.json");
  CHECK(config["train_batch_size"] == 64);
  CHECK(config["train_micro_batch_size_per_gpu"] == 2);
  CHECK(config["gradient_accumulation_steps"] == 2);
  CHECK(config["zero_optimization"]["stage"] == 3);
  CHECK(config["zero_optimization"]["offload_param"]["device"] == "cpu");
  CHECK(config["bf16"]["enabled"] == true);
  CHECK(has_text(file(files, "README.md"), "remark"));
  CHECK(has_text(file(files, "train.sh"), "--gradient_checkpointing"));
}

TEST_CASE(
    "a plan that a framework cannot say is refused with the reason and the nearest that it can") {
  struct Row {
    Framework framework;
    std::string model, plan, rule, nearest;
  };
  for (const Row& row : {
           Row{Framework::slime, "qwen3-30b-a3b",
               "tp1 pp2 dp4 ep4 zero1 mbs1 gbs64 seq4096 moe_dispatcher=deepep", "slime_dispatcher",
               "tp1 pp2 dp4 ep4 etp1 zero1 mbs1 gbs64 seq4096 1f1b"},
           Row{Framework::deepspeed, "llama3-8b",
               "tp1 pp2 dp4 zero1 mbs1 gbs64 seq4096 grad_dtype=bf16 overlap=grad",
               "no_pipeline_of_modules",
               "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096 grad_dtype=bf16 overlap=grad"},
           Row{Framework::fsdp2, "llama3-8b",
               "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096 overlap=grad+param", "zero_below_two",
               "tp1 pp1 dp8 zero3 mbs1 gbs64 seq4096 overlap=grad+param"},
           Row{Framework::megatron, "llama3-8b", "tp1 pp2 dp4 zero1 mbs1 gbs64 seq4096 zb-h1",
               "schedule_available", "tp1 pp2 dp4 zero1 mbs1 gbs64 seq4096 1f1b"},
           Row{Framework::megatron, "llama3-8b",
               "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096 moment_dtype=bf16",
               "precision_aware_master_weights", "tp1 pp1 dp8 zero1 mbs1 gbs64 seq4096"},
           Row{Framework::torchtitan, "qwen3-30b-a3b",
               "tp1 pp1 dp8 ep8 etp1 zero3 fsdp_shard=4 mbs1 gbs64 seq4096 overlap=grad+param",
               "experts_within_shards",
               "tp1 pp1 dp8 ep8 etp1 zero3 mbs1 gbs64 seq4096 overlap=grad+param"},
       }) {
    CAPTURE(row.plan);
    const Job j = job(row.model, row.plan, row.framework);
    const ClusterLimits limits{j.plan.world(), 90};
    const auto reasons = why_inexpressible(row.framework, j.subject(), limits);
    bool found = false;
    for (const Infeasible& reason : reasons) found = found || reason.rule == row.rule;
    CHECK(found);
    ParallelPlan nearest;
    REQUIRE(nearest_expressible(row.framework, j.subject(), limits, nearest));
    CHECK(parse_plan(row.nearest) == nearest);
  }
}

TEST_CASE("the files of a recipe are those of the first framework that has the model") {
  const auto files = [](RecipeKind recipe, const std::string& model) {
    return files_of(recipe, load_model(model));
  };
  CHECK(files(RecipeKind::megatron, "qwen3-8b") == Framework::megatron);
  CHECK(files(RecipeKind::megatron, "qwen3-vl-30b-a3b") == Framework::megatron_bridge);
  CHECK(files(RecipeKind::megatron, "minimax-m2") == Framework::megatron_bridge);
  CHECK(files(RecipeKind::megatron, "llama4-scout-17b-16e") == Framework::megatron);  // nobody's
  CHECK_FALSE(has_files_of(Framework::megatron, load_model("llama4-scout-17b-16e")));
  CHECK(files(RecipeKind::fsdp2_compile, "gpt-oss-120b") == Framework::torchtitan);
  CHECK(files(RecipeKind::nanotron, "llama3-8b") == std::nullopt);
}

TEST_CASE("gpt-oss's attention and experts are Megatron's flags") {
  const Job j = job("gpt-oss-20b", "tp1 pp1 dp8 ep8 zero1 mbs1 gbs8 seq4096", Framework::megatron);
  const auto files = emit(Framework::megatron, j.subject(), {});
  const std::string args = file(files, "args.sh");
  for (const std::string flag :
       {"--softmax-type learnable", "--window-size 127,0", "--window-attn-skip-freq 2",
        "--quick-geglu", "--glu-linear-offset 1", "--activation-func-clamp-value 7",
        "--position-embedding-type yarn", "--rotary-scaling-factor 32",
        "--yarn-original-max-position-embeddings 4096", "--yarn-beta-fast 32", "--yarn-beta-slow 1",
        "--no-yarn-correction-range-round-to-int"}) {
    CAPTURE(flag);
    CHECK(has_text(args, "  " + flag + "\n"));
  }
  CHECK_FALSE(has_text(args, "--swiglu"));
  CHECK_FALSE(has_text(args, "--use-rope-scaling"));
  CHECK_FALSE(has_text(args, "--disable-bias-linear"));
  // Another window is another model.
  std::vector<ConfigText> texts = texts_of(files);
  for (ConfigText& text : texts) {
    if (text.name == "args.sh") text.text = with_words(text.text, "127,0", "(128,0)");
  }
  const Checked checked = check(texts, question_of(j.model, j.config, 8));
  CHECK(find(checked, "other_model") != nullptr);
}

TEST_CASE("Megatron-Bridge trains towers whole, and models of its own without a recipe") {
  const Job sees = job("qwen3-vl-30b-a3b", "tp1 pp2 dp8 ep8 zero1 mbs1 gbs64 seq4096",
                       Framework::megatron_bridge);
  const auto files = emit(Framework::megatron_bridge, sees.subject(), {});
  const std::string program = file(files, "pretrain.py");
  CHECK(has_text(program, "megatron.bridge.models.qwen_vl.qwen3_vl_step import forward_step"));
  CHECK(has_text(program, "    cfg.model.freeze_language_model = False\n"));
  CHECK(check(texts_of(files), question_of(sees.model, sees.config, 16)).plan == sees.plan);
  // Taps of the tower belong to layers of the first stage.
  const Job deep = job("qwen3-vl-30b-a3b", "tp1 pp24 dp8 ep8 zero1 mbs1 gbs192 seq4096",
                       Framework::megatron_bridge);
  CHECK(broken_limit(Framework::megatron_bridge, deep.subject()) == "bridge_deepstack");
  const Job other =
      job("minimax-m2", "tp1 pp2 dp8 ep8 zero1 mbs1 gbs64 seq4096", Framework::megatron_bridge);
  const auto written = emit(Framework::megatron_bridge, other.subject(), {});
  CHECK(has_text(file(written, "pretrain.py"), "import AutoBridge, recipes\n"));
  CHECK(has_text(file(written, "pretrain.py"), "\"MiniMaxAI/MiniMax-M2\""));
  CHECK(check(texts_of(written), question_of(other.model, other.config, 16)).plan == other.plan);
}

TEST_CASE("offloaded activations come with the variable that Megatron asks for") {
  for (const Framework framework :
       {Framework::megatron, Framework::megatron_bridge, Framework::slime}) {
    const auto anywhere = [&](const std::string& words) {
      const Job j = job("qwen3-8b", "tp2 dp4 zero1 gbs8 seq4096 sp" + words, framework);
      const auto files = emit(framework, j.subject(), {});
      return std::any_of(files.begin(), files.end(), [](const EmittedFile& f) {
        return has_text(f.text, "NVTE_CPU_OFFLOAD_V1");
      });
    };
    CHECK(anywhere(" offload=activations"));
    CHECK_FALSE(anywhere(""));
  }
}

TEST_CASE("nothing of experts is moved that is recomputed with them") {
  const auto moves = [](const std::string& recompute) {
    const Job j =
        job("qwen3-30b-a3b",
            fmt::format("{} offload=activations recompute=selective:{}", kMoePlan, recompute),
            Framework::megatron);
    return has_text(file(emit(Framework::megatron, j.subject(), {}), "args.sh"), "expert_fc1");
  };
  CHECK(moves("layernorm"));
  CHECK_FALSE(moves("moe"));
}

TEST_CASE("Megatron-DeepSpeed drops nothing that the plan does not, and runs fp8 by its library") {
  const Job plain =
      job("gpt3-175b", "tp8 pp1 dp8 zero3 mbs1 gbs64 seq2048", Framework::megatron_deepspeed);
  const std::string script =
      file(emit(Framework::megatron_deepspeed, plain.subject(), {}), "train.sh");
  CHECK(has_text(script, "--attention-dropout 0.0\n"));
  CHECK(has_text(script, "--hidden-dropout 0.0\n"));
  CHECK_FALSE(has_text(script, "--transformer-impl"));
  const Job fp8 = job("gpt3-175b", "tp8 pp1 dp8 zero3 mbs1 gbs64 seq2048 precision=fp8",
                      Framework::megatron_deepspeed);
  CHECK(has_text(file(emit(Framework::megatron_deepspeed, fp8.subject(), {}), "train.sh"),
                 "--transformer-impl transformer_engine\n"));
}

TEST_CASE("what files cannot say of a model stands at their top") {
  const std::string plan = "tp8 pp1 dp8 ep8 zero1 mbs1 gbs64 seq4096 sp";
  for (const Framework framework : {Framework::megatron, Framework::slime}) {
    const Job kimi = job("kimi-k2", plan, framework);
    for (const EmittedFile& f : emit(framework, kimi.subject(), {})) {
      CHECK(has_text(f.text,
                     "no flag for beta_fast of latent attention's YaRN, which is 1 in kimi-k2"));
    }
    const Job deepseek = job("deepseek-v3", plan, framework);
    CHECK(left_unsaid(framework, deepseek.subject()).empty());
  }
  const Job titan =
      job("deepseek-v3", "tp1 pp4 dp16 ep16 zero2 mbs1 gbs64 seq4096 1f1b overlap=grad+param",
          Framework::torchtitan);
  const auto files = emit(Framework::torchtitan, titan.subject(), {});
  CHECK(has_text(file(files, "qplan_config.py"), "# not trained: the layer that predicts"));
  CHECK(has_text(file(files, "qplan_config.py"), "model_registry(\"671B\""));
}

TEST_CASE("models that a framework cannot build are refused whatever the plan") {
  const auto refuses = [](Framework framework, const std::string& model) {
    const Job j = job(model, "tp1 pp1 dp8 zero1 mbs1 gbs64 seq1024", framework);
    ParallelPlan nearest;
    const ClusterLimits limits{8, 90};
    return !why_inexpressible(framework, j.subject(), limits).empty() &&
           !nearest_expressible(framework, j.subject(), limits, nearest);
  };
  CHECK(refuses(Framework::megatron_deepspeed, "qwen3-30b-a3b"));
  CHECK(refuses(Framework::megatron, "minimax-m2"));        // norms over all heads
  CHECK(refuses(Framework::megatron, "qwen3-vl-30b-a3b"));  // a vision tower
  CHECK_FALSE(refuses(Framework::megatron_bridge, "qwen3-vl-30b-a3b"));
  CHECK_FALSE(refuses(Framework::megatron, "gpt-oss-20b"));
  CHECK(refuses(Framework::slime, "gpt-oss-20b"));  // no conversion of its weights
  CHECK(refuses(Framework::torchtitan, "minimax-m2"));
  CHECK(refuses(Framework::torchtitan, "qwen3-next-80b-a3b"));
  CHECK(refuses(Framework::torchtitan, "qwen3.5-9b"));
  CHECK(refuses(Framework::slime, "qwen3.5-35b-a3b"));
  CHECK(refuses(Framework::megatron_deepspeed, "qwen3.5-9b"));
  CHECK(refuses(Framework::torchtitan, "mixtral-8x7b"));
  CHECK(refuses(Framework::megatron_bridge, "gpt-1.3t"));
}

TEST_CASE(
    "DeepSpeed's Trainer is told how sequences are split, and no batch that it would refuse") {
  const auto files_of_plan = [](const std::string& plan) {
    const Job j = job("qwen3-8b", plan, Framework::deepspeed);
    return emit(Framework::deepspeed, j.subject(), {"r"});
  };
  const std::string rest = " zero2 mbs1 gbs32 seq8192 grad_dtype=bf16 overlap=grad";
  const auto whole = files_of_plan("dp16" + rest);
  CHECK(has_text(file(whole, "ds_config.json"), "\"train_batch_size\": 32"));
  CHECK_FALSE(has_text(file(whole, "train.sh"), "PARALLELISM_CONFIG"));
  // The Trainer compares train_batch_size with micro-batch x accumulation x all ranks: 1 x 16 x 16.
  const auto split = files_of_plan("dp2 cp8 cp_comm=a2a" + rest);
  CHECK_FALSE(has_text(file(split, "ds_config.json"), "\"train_batch_size\""));
  CHECK(has_text(file(split, "ds_config.json"), "\"gradient_accumulation_steps\": 16"));
  const std::string script = file(split, "train.sh");
  CHECK(has_text(script, "export PARALLELISM_CONFIG_SP_SIZE=8\n"));
  CHECK(has_text(script, "export PARALLELISM_CONFIG_DP_REPLICATE_SIZE=2\n"));
  CHECK(has_text(script, "> .deepspeed_env\n"));  // two nodes
  const auto node = files_of_plan("dp1 cp8 cp_comm=a2a" + rest);
  CHECK_FALSE(has_text(file(node, "train.sh"), ".deepspeed_env"));
}

TEST_CASE("an optimizer on the host copies behind compute, by Megatron and by Bridge") {
  const std::string plan = "tp4 pp2 dp2 zero1 mbs1 gbs64 seq4096 1f1b sp overlap=grad+param";
  for (const bool offload : {true, false}) {
    CAPTURE(offload);
    const std::string line = plan + (offload ? " offload=optimizer" : "");
    const Job bridge = job("llama3-8b", line, Framework::megatron_bridge);
    CHECK(has_text(file(emit(Framework::megatron_bridge, bridge.subject(), {"r"}), "pretrain.py"),
                   "cfg.optimizer.overlap_cpu_optimizer_d2h_h2d = True\n") == offload);
    const Job megatron = job("llama3-8b", line, Framework::megatron);
    CHECK(has_text(file(emit(Framework::megatron, megatron.subject(), {"r"}), "args.sh"),
                   "--overlap-cpu-optimizer-d2h-h2d\n") == offload);
  }
}

TEST_CASE("emitting is the same twice") {
  for (const auto& [framework, word] : Words<Framework>::table) {
    CAPTURE(word);
    Job j = job("llama3-8b", "tp1 pp1 dp16 zero1 mbs1 gbs64 seq4096", framework);
    ParallelPlan nearest;
    const ClusterLimits limits{16, 90};
    if (!why_inexpressible(framework, j.subject(), limits).empty()) {
      if (!nearest_expressible(framework, j.subject(), limits, nearest)) continue;
      j.plan = nearest;
    }
    const auto once = emit(framework, j.subject(), {"r"}),
               again = emit(framework, j.subject(), {"r"});
    REQUIRE(once.size() == again.size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      CHECK(once[i].name == again[i].name);
      CHECK(once[i].text == again[i].text);
    }
  }
}

TEST_CASE("the nearest plan changes nothing that might have stayed") {
  RandomPlans random(11);
  int refused = 0, changed = 0;
  for (const auto& [framework, word] : Words<Framework>::table) {
    for (int i = 0; i < test_rounds(40); ++i) {
      const std::string name = i % 2 == 0 ? "llama3-8b" : "qwen3-30b-a3b";
      Job j = job(name, "tp1", framework);
      j.plan = random.next(j.model, recipe_of(RecipeKind::megatron));
      const ClusterLimits limits{j.plan.world(), 90};
      if (why_inexpressible(framework, j.subject(), limits).empty()) continue;
      ParallelPlan nearest;
      if (!nearest_expressible(framework, j.subject(), limits, nearest)) continue;
      ++refused;
      CAPTURE(word);
      CAPTURE(to_string(j.plan));
      CAPTURE(to_string(nearest));
      CHECK(nearest.world() == j.plan.world());
      const auto is_refused = [&](const ParallelPlan& plan) {
        Job other = j;
        other.plan = plan;
        return !refusals(framework, other.subject(), limits).empty();
      };
      CHECK_FALSE(is_refused(nearest));
      // A degree takes dp and the stages along.
      for_each_word([&](const auto& row) {
        using P = ParallelPlan;
        const bool together =
            is_any_of(row.member, &P::tp, &P::pp, &P::dp, &P::cp, &P::ep, &P::etp, &P::schedule,
                      &P::vpp, &P::pipeline_layout, &P::sequence_parallel);
        if (together || nearest.*row.member == j.plan.*row.member) return;
        CAPTURE(row.key);
        ++changed;
        ParallelPlan back = nearest;
        back.*row.member = j.plan.*row.member;
        CHECK(is_refused(back));
      });
    }
  }
  CHECK(refused > 50);
  CHECK(changed > 50);
}

TEST_CASE("of plans as near, the one that fits is offered, and else the nearest of all") {
  const Job j = job("gpt-217b", "tp8 pp16 dp2 zero1 mbs1 gbs1024 seq4096 recompute=full 1f1b",
                    Framework::megatron_deepspeed);
  const ClusterLimits limits{256, 80};
  const auto nearest = [&](const PlanFits& fits) {
    ParallelPlan plan;
    REQUIRE(nearest_expressible(Framework::megatron_deepspeed, j.subject(), limits, plan, fits));
    return plan;
  };
  CHECK(nearest({}).pp == 8);
  CHECK(nearest([](const ParallelPlan& plan) { return plan.pp < 8; }).pp == 4);
  CHECK(nearest([](const ParallelPlan&) { return false; }).pp == 8);
}

}  // namespace
}  // namespace qplan
