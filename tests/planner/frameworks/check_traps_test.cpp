// One mistake at a time in a list of arguments that is right.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "planner/frameworks/check.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {
namespace {

TEST_SUITE("traps") {
  const std::string kModel =
      "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 "
      "--kv-channels 128 --group-query-attention --num-query-groups 4 --qk-layernorm "
      "--untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 1000000 "
      "--normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear "
      "--attention-dropout 0.0 --hidden-dropout 0.0 --num-experts 128 --moe-router-topk 8 "
      "--moe-ffn-hidden-size 768 --moe-aux-loss-coeff 0.001 --moe-grouped-gemm --bf16 "
      "--moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 1 "
      "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 "
      "--max-position-embeddings 40960 --use-distributed-optimizer ";

  std::string without(std::string text, const std::string& part) {
    const std::size_t at = text.find(part);
    REQUIRE(at != std::string::npos);
    return text.erase(at, part.size());
  }

  TEST_CASE("every mistake in the tables cites what a reader can open") {
    const std::vector<TrapInfo> traps = trap_infos();
    CHECK(traps.size() > 60);
    for (const TrapInfo& trap : traps) {
      CAPTURE(trap.rule);
      CAPTURE(trap.source);
      CHECK(is_source(std::string(trap.source)));
    }
  }

  TEST_CASE("a rule of plans is said with who enforces it, and by which recipe") {
    const Checked checked =
        ask_text("args.txt", without(kModel, "--num-layers 48 ") +
                                 "--num-layers 48 --pipeline-model-parallel-size 5 ");
    const Finding* const f = find(checked, "layers_per_stage");
    REQUIRE(f != nullptr);
    CHECK(f->source ==
          "rule of megatron: " + source_of_rule("layers_per_stage", RecipeKind::megatron));
  }

  TEST_CASE("a precision that the GPU lacks is said at the option that asks for it") {
    const Checked checked =
        ask_text("args.txt", kModel + "\n--fp8-format e4m3\n--fp8-recipe mxfp8\n");
    const Finding* const f = find(checked, "precision_gpu");
    REQUIRE(f != nullptr);
    CHECK(f->place.line == 3);
    CHECK(f->message ==
          "precision mxfp8 needs compute capability 10.0, and the GPU has compute capability 9.0; "
          "use fp8 by another recipe, or bf16");
  }

  TEST_CASE("the old models are gone, and no other option is meant") {
    const Checked checked = ask_text("train.sh", "torchrun --nproc_per_node 16 pretrain_gpt.py " +
                                                     kModel + "--use-legacy-models\n");
    const Finding* const f = find(checked, "unknown_option");
    REQUIRE(f != nullptr);
    CHECK(f->instead.starts_with("leave it out"));
  }

  TEST_CASE("more processes than visible devices are told") {
    const auto start = [&](const std::string& environment) {
      return ask_text("train.sh",
                      environment + "torchrun --nproc_per_node 8 pretrain_gpt.py " + kModel + "\n");
    };
    CHECK(find(start("CUDA_VISIBLE_DEVICES=0,1 "), "visible_devices") != nullptr);
    CHECK(find(start("export CUDA_VISIBLE_DEVICES=4\n"), "visible_devices") != nullptr);
    for (const char* const fine :
         {"CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 ", "export CUDA_VISIBLE_DEVICES=$DEVICES\n",
          "CUDA_VISIBLE_DEVICES=GPU-1a ", "[ -n \"$X\" ] && export CUDA_VISIBLE_DEVICES=0\n"}) {
      CAPTURE(fine);
      CHECK(find(start(fine), "visible_devices") == nullptr);
    }
  }

  TEST_CASE("fp16 is warned of by what says that the model is bf16's") {
    const std::string half = without(kModel, "--bf16 ") + "--fp16\n";
    const Checked named = ask_text("args.txt", half);
    REQUIRE(find(named, "fp16_of_bf16_model") != nullptr);
    CHECK(find(named, "fp16_of_bf16_model")->source.find("config.json") != std::string::npos);
    const ModelSpec model = load_model("qwen3-30b-a3b");
    const Json config;
    CheckQuestion question = question_of(model, config, 16);
    question.model_of_files = true;
    const std::vector<ConfigText> texts{{"args.txt", half}};
    const Checked read = check(texts, question);
    REQUIRE(find(read, "fp16_of_bf16_model") != nullptr);
    CHECK(find(read, "fp16_of_bf16_model")->source.find("config.json") == std::string::npos);
  }

  TEST_CASE("arguments of pretrain_gpt.py and of slime's patch are known") {
    const Checked checked = ask_text("train.sh", "torchrun pretrain_gpt.py " + kModel +
                                                     "--export-te-mcore-model --export-kd-cfg k\n");
    CHECK(find(checked, "unknown_option") == nullptr);
    const Checked slime =
        ask_text("train.sh", "python train.py " + kModel +
                                 "--actor-num-nodes 1 --actor-num-gpus-per-node 8 "
                                 "--post-self-attn-layernorm --post-mlp-layernorm\n");
    CHECK(slime.framework == Framework::slime);
    CHECK_MESSAGE(find(slime, "unknown_option") == nullptr, findings_text(slime));
  }

  TEST_CASE("another program's YAML is not Megatron's") {
    const Checked checked =
        ask_text("job.yaml",
                 "runtime_args:\n  run: x\nmodels:\n  policy:\n    hidden_size: 2048\n"
                 "    tensor_model_parallel_size: 2\n");
    CHECK(findings_text(checked).find("ChatLearn") != std::string::npos);
    CHECK(find(checked, "unknown_option") == nullptr);
  }

  TEST_CASE("the whole list of arguments is clean") {
    const Checked checked = ask_text("args.txt", kModel);
    CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
  }

  TEST_CASE("a default that nobody wants is found where its flag is left out") {
    for (const std::string part :
         {"--group-query-attention ", "--kv-channels 128 ", "--normalization RMSNorm ",
          "--position-embedding-type rope ", "--disable-bias-linear ", "--attention-dropout 0.0 ",
          "--hidden-dropout 0.0 ", "--qk-layernorm ", "--swiglu ", "--rotary-base 1000000 ",
          "--untie-embeddings-and-output-weights ", "--moe-aux-loss-coeff 0.001 ",
          "--moe-grouped-gemm ", "--moe-router-topk 8 ", "--moe-ffn-hidden-size 768 ",
          "--num-experts 128 "}) {
      CAPTURE(part);
      const Checked checked = ask_text("args.txt", without(kModel, part));
      REQUIRE(find(checked, "missing_option") != nullptr);
      const Finding& f = *find(checked, "missing_option");
      CHECK(f.message.starts_with(part.substr(0, part.find(' '))));
      if (f.severity == Severity::note) {  // it may be meant
        CHECK(f.fix.empty());
        CHECK_FALSE(f.fix.why_not.empty());
        continue;
      }
      CHECK_FALSE(f.fix.empty());
      // the correction makes it clean
      const std::string fixed = with_edits(without(kModel, part), "args.txt", f.fix);
      CHECK(find(ask_text("args.txt", fixed), "missing_option") == nullptr);
    }
    CHECK(find(ask_text("args.txt", without(kModel, "--moe-token-dispatcher-type alltoall ")),
               "dispatcher_default") != nullptr);
  }

  TEST_CASE("groups of microbatches that Megatron runs are no error, and are not predicted") {
    // 96 sequences over dp 16 are 6 microbatches on 4 stages.
    std::string text = without(kModel, "--global-batch-size 64 ") +
                       "--global-batch-size 96 --pipeline-model-parallel-size 4 "
                       "--num-virtual-stages-per-pipeline-rank 2 ";
    const auto severity = [&](const std::string& more) {
      const Checked checked = ask_text("args.txt", text + more);
      CAPTURE(findings_text(checked));
      const Finding* const f = find(checked, "interleaved_microbatches");
      REQUIRE(f != nullptr);
      return f->severity;
    };
    const std::string group = "--microbatch-group-size-per-virtual-pipeline-stage ";
    CHECK(severity("") == Severity::error);
    CHECK(severity(group + "6") == Severity::warning);
    CHECK(severity(group + "5") == Severity::error);  // leaves 1, fewer than the stages
    CHECK(severity(group + "3") == Severity::error);
  }

  TEST_CASE("combinations that Megatron refuses") {
    const auto finds = [&](const std::string& more, const std::string& rule) {
      CAPTURE(more);
      const Checked checked = ask_text("args.txt", kModel + more);
      CAPTURE(findings_text(checked));
      CHECK(find(checked, rule) != nullptr);
    };
    finds("--recompute-granularity full", "recompute_method");
    finds("--recompute-granularity selective --recompute-method uniform", "recompute_selective");
    finds("--fp16", "two_precisions");
    finds("--exp-avg-dtype bf16", "states_need_precision_aware");
    finds("--optimizer-cpu-offload", "offload_needs_precision_aware");
    finds("--overlap-param-gather", "overlap_param");
    finds("--cross-entropy-fusion-impl te", "fusion_of_te");
    finds("--deterministic-mode --cross-entropy-loss-fusion", "deterministic_loss");
    finds("--checkpoint-activations", "removed_argument");
    finds("--moe-expert-capacity-factor 1.2", "capacity_drops_tokens");
    finds("--num-layers 47", "said_twice");
    finds("--tensor-model-parallel-size 2", "moe_needs_sequence_parallel");
    finds("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 5",
          "layers_per_stage");
    finds(
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 "
        "--num-virtual-stages-per-pipeline-rank 6",
        "virtual_stages_twice");
    finds("--rotary-base 1e6", "refused_value");
    finds("--normalization rmsnorm", "refused_value");
    finds("--tensor-model-paralel-size 2", "unknown_option");
    finds("--context-parallel-size 3", "sequence_split");
    finds("--max-position-embeddings 2048", "positions");
    finds("--use-megatron-fsdp", "fsdp_checkpoint");
    finds("--delay-wgrad-compute", "delayed_weights");
    finds("--recompute-granularity selective --recompute-num-layers 2", "recompute_selective");
    finds("--ckpt-format torch_dcp", "checkpoint_of_fsdp");
    finds("--use-precision-aware-optimizer --optimizer sgd", "precision_aware_adam");
    finds("--num-distributed-optimizer-instances 3", "optimizer_instances");
    finds("--context-parallel-size 2 --cp-comm-type p2p a2a p2p", "cp_comm_of_layers");
    finds("--pipeline-model-parallel-size 4 --use-tp-pp-dp-mapping --expert-model-parallel-size 8",
          "mapping_of_experts");
    finds("--moe-router-group-topk 2", "router_groups");
    finds("--moe-router-num-groups 5 --moe-router-group-topk 2", "router_groups");
    finds("--moe-router-enable-expert-bias", "expert_bias_of_scores");
    finds("--moe-expert-capacity-factor 1.2 --moe-router-load-balancing-type sinkhorn",
          "capacity_of_balancing");
    finds("--moe-router-load-balancing-type aux_loss seq_aux_loss", "weights_of_balancing");
    finds("--moe-pad-expert-input-to-capacity", "padding_without_capacity");
    CHECK(find(ask_text("args.txt", without(kModel, "--moe-grouped-gemm ") +
                                        "--recompute-granularity selective "
                                        "--recompute-modules moe_act"),
               "recompute_of_grouped") != nullptr);
  }

  TEST_CASE("recomputing norms that are parts of products frees nothing, which is said") {
    const std::string text =
        "--num-layers 32 --micro-batch-size 1 --recompute-granularity selective "
        "--recompute-modules mlp layernorm ";
    const auto said = [](const std::string& script, const std::string& model) {
      const Checked checked = ask_text("args.txt", script, model, 8);
      CAPTURE(findings_text(checked));
      const Finding* const f = find(checked, "recompute_no_norm");
      return f != nullptr && f->severity == Severity::warning;
    };
    CHECK(said(text, "llama3-8b"));
    CHECK_FALSE(said(text + "--transformer-impl local", "llama3-8b"));
    CHECK_FALSE(said(text, "qwen3-30b-a3b"));
  }

  TEST_CASE("recomputing attention that keeps no scores frees nothing, which is said") {
    const auto said = [](const std::string& script, const std::string& model, int capability = 90) {
      const ModelSpec spec = load_model(model);
      const Json config = model_config(model);
      CheckQuestion question = question_of(spec, config, 8);
      question.limits.compute_capability = capability;
      const std::vector<ConfigText> texts{{"train.sh", script}};
      const Checked checked = check(texts, question);
      CAPTURE(findings_text(checked));
      const Finding* const f = find(checked, "recompute_fused_attention");
      if (f != nullptr) CHECK(f->severity == Severity::warning);
      return f == nullptr ? std::string() : f->message;
    };
    const std::string head =
        "torchrun pretrain_gpt.py --num-layers 32 --micro-batch-size 1 --bf16 ";
    const std::string text = head + "--recompute-activations ";
    // Measured: 1224.8 MB a layer of 8192 tokens, 1142.0 without (issue3-fourteenth-round.md).
    CHECK(said(text, "llama3-8b").find("a layer 7% more in all") != std::string::npos);
    // Queries and keys before their norms are kept in any case.
    CHECK(said(text, "qwen3-30b-a3b").find("next to nothing") != std::string::npos);
    CHECK(said(text, "deepseek-v3").find("next to nothing") != std::string::npos);
    // What it tells one to do instead is what it lets one do.
    const auto advice = [&](const std::string& more) {
      const Checked checked = ask_text("job.sh", text + more + "\n", "mixtral-8x7b", 8);
      const Finding* const f = find(checked, "recompute_fused_attention");
      return f == nullptr ? std::string() : f->instead;
    };
    CHECK(advice("--moe-grouped-gemm").find("moe_act") != std::string::npos);
    CHECK(advice("").find("moe_act") == std::string::npos);
    CHECK(advice("--moe-grouped-gemm --fp8-format hybrid").find("moe_act") == std::string::npos);
    const std::string selective = head + "--recompute-granularity selective ";
    CHECK_FALSE(said(selective, "llama3-8b").empty());
    CHECK_FALSE(said(selective + "--recompute-modules mlp core_attn", "llama3-8b").empty());
    CHECK(said(selective + "--recompute-modules mlp", "llama3-8b").empty());
    CHECK(said(head + "--recompute-granularity full --recompute-method uniform "
                      "--recompute-num-layers 1",
               "llama3-8b")
              .empty());
    // Where scores are kept, it frees them.
    CHECK(said(text + "--transformer-impl local", "llama3-8b").empty());
    CHECK(said(text + "--attention-backend unfused", "llama3-8b").empty());
    CHECK(said(text, "llama3-8b", 70).empty());
    CHECK(said("export NVTE_FLASH_ATTN=0\nexport NVTE_FUSED_ATTN=0\n" + text, "llama3-8b").empty());
    CHECK_FALSE(said("export NVTE_FLASH_ATTN=0\n" + text, "llama3-8b").empty());
  }

  TEST_CASE("layers that Megatron does not lay over the stages") {
    // 48 layers on four stages.
    const std::string four = kModel + "--pipeline-model-parallel-size 4 ";
    const auto finds = [&](const std::string& more, const std::string& rule) {
      CAPTURE(more);
      const Checked checked = ask_text("args.txt", four + more);
      CAPTURE(findings_text(checked));
      CHECK(find(checked, rule) != nullptr);
    };
    const auto clean = [&](const std::string& text) {
      CAPTURE(text);
      const Checked checked = ask_text("args.txt", text);
      CHECK_MESSAGE(checked.findings.empty(), findings_text(checked));
    };
    clean(four);
    finds("--account-for-embedding-in-pipeline-split", "counted_parts");
    finds("--account-for-loss-in-pipeline-split", "counted_parts");
    finds("--decoder-first-pipeline-num-layers 7", "counted_stages");
    finds("--decoder-first-pipeline-num-layers 60", "counted_stages");
    finds("--decoder-last-pipeline-num-layers 9 --num-virtual-stages-per-pipeline-rank 2",
          "counted_stages");
    // What does not divide is no layout of rounded or negative stages either.
    for (const std::string more : {"--decoder-first-pipeline-num-layers 60",
                                   "--decoder-last-pipeline-num-layers 9 "
                                   "--num-virtual-stages-per-pipeline-rank 2"}) {
      CAPTURE(more);
      CHECK(ask_text("args.txt", four + more).plan.pipeline_layout.empty());
    }
    clean(four + "--decoder-first-pipeline-num-layers 9");
    finds("--decoder-first-pipeline-num-layers 12 --account-for-loss-in-pipeline-split",
          "counts_and_parts");
    finds("--num-layers-per-virtual-pipeline-stage 5", "virtual_layers");
    finds("--num-layers-per-virtual-pipeline-stage 3 --decoder-first-pipeline-num-layers 12",
          "virtual_layers");
    clean(four + "--num-layers-per-virtual-pipeline-stage 3");
    finds("--pipeline-model-parallel-layout \"t*12|Et*12|t*12|t*12L\"", "layout_ends");
    finds("--overlap-grad-reduce --overlap-param-gather --overlap-param-gather-with-optimizer-step",
          "gather_with_step");
    CHECK(find(ask_text("args.txt", kModel + "--num-layers-per-virtual-pipeline-stage 24"),
               "virtual_stages_of_few") != nullptr);
    const std::string two = kModel + "--pipeline-model-parallel-size 2 ";
    CHECK(find(ask_text("args.txt", two + "--num-virtual-stages-per-pipeline-rank 3 "
                                          "--no-overlap-p2p-communication"),
               "virtual_stages_of_few") != nullptr);
    // Where first and last stage are all there is, their counts are the layout.
    const Checked both = ask_text("args.txt", two +
                                                  "--decoder-first-pipeline-num-layers 25 "
                                                  "--decoder-last-pipeline-num-layers 23");
    CHECK_MESSAGE(both.findings.empty(), findings_text(both));
    CHECK(both.plan.pipeline_layout == std::vector<int>{25, 23});
    // Embedding and loss count as layers of the first and the last chunk.
    const Checked parts = ask_text("args.txt",
                                   kModel +
                                       "--pipeline-model-parallel-size 5 "
                                       "--num-virtual-stages-per-pipeline-rank 2 "
                                       "--account-for-embedding-in-pipeline-split "
                                       "--account-for-loss-in-pipeline-split",
                                   "qwen3-30b-a3b", 40);
    CHECK(find(parts, "counted_parts") == nullptr);
    CHECK(parts.plan.pipeline_layout == std::vector<int>{4, 5, 5, 5, 5, 5, 5, 5, 5, 4});
  }

  TEST_CASE("the nearest known name is offered, and a slip corrected") {
    const std::string text = kModel + "--tensor-model-paralel-size 1";
    const Checked checked = ask_text("args.txt", text);
    const Finding& f = *find(checked, "unknown_option");
    CHECK(f.instead == "did you mean --tensor-model-parallel-size?");
    const std::string fixed = with_edits(text, "args.txt", f.fix);
    CHECK(fixed.ends_with("--tensor-model-parallel-size 1"));
  }

  TEST_CASE("files that contradict each other") {
    const ModelSpec model = load_model("llama2-7b");
    const Json config = model_config("llama2-7b");
    const std::vector<ConfigText> texts{
        {"ds_config.json",
         "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, "
         "\"gradient_accumulation_steps\": 4, \"zero_optimization\": {\"stage\": 1}, "
         "\"bf16\": {\"enabled\": true}}"},
        {"train.sh",
         "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds_config.json "
         "--zero-stage 2 --no-pipeline-parallel --tensor-model-parallel-size 1 --bf16 "
         "--micro-batch-size 1 --global-batch-size 64 --seq-length 2048\n"}};
    const Checked checked = check(texts, question_of(model, config, 8));
    int contradictions = 0;
    for (const Finding& f : checked.findings) contradictions += f.rule == "contradiction" ? 1 : 0;
    CHECK_MESSAGE(contradictions == 2, findings_text(checked));  // zero and micro_batch_size
  }

  TEST_CASE("ZeRO-2 in Megatron-DeepSpeed needs --no-pipeline-parallel") {
    const Checked checked =
        ask_text("train.sh",
                 "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --zero-stage 2 --bf16 "
                 "--tensor-model-parallel-size 1 --micro-batch-size 1 --global-batch-size 64\n",
                 "llama2-7b", 8);
    CHECK(find(checked, "pipeline_module") != nullptr);
  }

  TEST_CASE("a comment beside DeepSpeed's keys is none of them, in a section it is refused") {
    const auto config = [](const std::string& more) {
      return ask_text("ds_config.json",
                      "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 1," + more +
                          "\"bf16\": {\"enabled\": true}}\n",
                      "qwen3-8b", 8);
    };
    const std::string beside = "\"_comment\": {\"why\": 1},";
    const std::string inside = "\"zero_optimization\": {\"stage\": 3, \"_comment\": 1},";
    CHECK(find(config(beside), "unknown_option") == nullptr);
    CHECK(find(config(inside), "unknown_option") != nullptr);
    CHECK(find(config("\"comment\": 1,"), "unknown_option") != nullptr);
  }

  TEST_CASE("torchtitan's loss over whole micro-batches takes more memory than in parts") {
    const auto config = [](const std::string& loss) {
      return ask_text("config.py",
                      "def f():\n  return Trainer.Config(\n    loss=" + loss +
                          ",\n    training=TrainingConfig(max_context_length=8192,\n"
                          "      num_tokens_per_microbatch_per_dp_rank=16384,\n"
                          "      num_tokens_per_train_step=1048576),\n"
                          "    parallelism=ParallelismConfig(tensor_parallel_degree=2))\n",
                      "llama3-8b", 8);
    };
    const Checked whole = config("CrossEntropyLoss.Config(global_vocab_size=128256)");
    REQUIRE(find(whole, "whole_loss") != nullptr);
    CHECK(whole.plan.loss == LossKind::compiled);
    // 16384 x 64128 x 4 bytes but an eighth: 3.42 GiB.
    CHECK(find(whole, "whole_loss")->message.find("3.4 GiB") != std::string::npos);
    CHECK(find(whole, "whole_loss")->place.line == 3);
    CHECK(find(config("ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config())"),
               "whole_loss") == nullptr);
  }

  TEST_CASE("a torchtitan function of an old version") {
    const Checked checked =
        ask_text("config.py",
                 "def f():\n  return Trainer.Config(\n"
                 "    training=TrainingConfig(local_batch_size=2, seq_len=4096),\n"
                 "    parallelism=ParallelismConfig(tensor_parallel_degree=2))\n",
                 "qwen3-32b", 8);
    REQUIRE(find(checked, "unknown_option") != nullptr);
    CHECK(find(checked, "unknown_option")->instead.find("num_tokens_per_microbatch_per_dp_rank") !=
          std::string::npos);
    CHECK(checked.plan.tp == 2);
    CHECK(checked.plan.dp == 4);
  }
}

}  // namespace
}  // namespace qplan
