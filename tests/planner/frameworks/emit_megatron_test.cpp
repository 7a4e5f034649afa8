// What is written for Megatron-LM and Megatron-Bridge, and read back.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "tests/planner/frameworks/emitted.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

using namespace emitted;

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
  // One queue would put experts' exchanges behind each other.
  Job hidden = j;
  hidden.plan.overlap.add(OverlapKind::ep);
  CHECK(has_text(file(emit(Framework::megatron, hidden.subject(), {}), "train.sh"),
                 "CUDA_DEVICE_MAX_CONNECTIONS=32"));
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
  // The pattern counts the layers: its number is not needed, and another one is ignored.
  CHECK(findings("  --num-layers 88\n", "").empty());
  CHECK(has_text(findings("--num-layers 88", "--num-layers 24"), "--num-layers is ignored"));
  CHECK_FALSE(has_text(findings("--num-layers 88", "--num-layers 24"), "other_model"));
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

}  // namespace
}  // namespace qplan
