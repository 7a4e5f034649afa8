#include "executor/gpu_limits.h"

#include <doctest/doctest.h>

using namespace qplan;

namespace {

std::string said_of(const char* model, const char* plan) {
  return unexecuted_on_gpu(load_model(model), parse_plan(plan)).value_or("executed");
}

}  // namespace

TEST_CASE("GPUs execute models with biases, sinks, windows, LayerNorm and learned positions") {
  for (const char* model : {"gpt-oss-20b", "gpt-oss-120b", "gpt3-175b", "nemotron4-15b",
                            "qwen2.5-14b", "qwen3-8b", "moonlight-16b-a3b"}) {
    CAPTURE(model);
    CHECK(said_of(model, "tp8 sp gbs8 seq2048") == "executed");
  }
  CHECK(said_of("gpt-oss-20b", "cp2 cp_comm=a2a ep2 gbs8 seq2048") == "executed");
}

TEST_CASE("GPUs execute Llama 4, its chunks on ranks that have whole sequences") {
  for (const char* model : {"llama4-scout-17b-16e", "llama4-maverick-17b-128e"}) {
    CAPTURE(model);
    for (const char* line :
         {"tp8 sp gbs8 seq8192", "pp4 dp2 ep8 zero1 recompute=full gbs8 seq32768",
          "cp2 cp_comm=a2a gbs8 seq20000", "cp4 gbs8 seq8192"}) {
      CAPTURE(line);
      CHECK(said_of(model, line) == "executed");
    }
    CHECK(said_of(model, "cp2 gbs8 seq16384") ==
          "the cuda backend does not execute attention in chunks over parts of sequences yet; use "
          "cp_comm a2a");
  }
}

TEST_CASE("norms with weights are refused where neighbouring numbers turn") {
  ModelSpec model = load_model("qwen3-8b");
  model.rotary_interleaved = true;
  CHECK(unexecuted_on_gpu(model, parse_plan("gbs8 seq2048")) ==
        "the cuda backend does not execute norms with weights of heads whose neighbouring numbers "
        "turn yet; use --backend cpu");
  model.qk_norm = false;
  CHECK_FALSE(unexecuted_on_gpu(model, parse_plan("gbs8 seq2048")));
}

TEST_CASE("GPUs execute Gated DeltaNet and Mamba-2, whole sequences and heads of some widths") {
  CHECK(said_of("qwen3-next-80b-a3b", "tp2 sp dp8 ep16 gbs8 seq2048") == "executed");
  CHECK(said_of("nemotron-h-8b", "tp8 sp gbs8 seq2048") == "executed");
  CHECK(said_of("nemotron-3-nano-30b-a3b", "tp2 sp dp4 ep8 gbs8 seq2048") == "executed");
  CHECK(said_of("qwen3-next-80b-a3b", "cp2 gbs8 seq2048") ==
        "the cuda backend does not execute Gated DeltaNet and Mamba-2 over parts of sequences yet; "
        "use cp 1");
  ModelSpec model = load_model("qwen3-next-80b-a3b");
  const ParallelPlan plan = parse_plan("gbs8 seq2048");
  model.delta_net->conv_kernel = 3;
  CHECK(unexecuted_on_gpu(model, plan) ==
        "the cuda backend does not execute convolutions of other than 4 tokens yet; use --backend "
        "cpu");
  model.delta_net->conv_kernel = 4;
  model.delta_net->value_head_dim = 136;
  CHECK(unexecuted_on_gpu(model, plan) ==
        "the cuda backend does not execute states of heads above 128 numbers or of no multiple of "
        "8 yet; use --backend cpu");
  CHECK(said_of("nemotron-3-nano-30b-a3b", "tp16 sp gbs16 seq2048") ==
        "the cuda backend does not execute value heads that are no multiple of 4, or Mamba-2's of "
        "8, a rank yet; use a smaller tp");
}

TEST_CASE("ranks go through one queue where compute waits for messages of layers, not of stages") {
  for (const char* line :
       {"tp2 sp gbs8 seq64", "cp2 dp2 zero1 overlap=grad gbs8 seq64", "dp2 zero3 gbs8 seq64",
        "dp2 zero2 overlap=grad+param gbs8 seq64", "dp2 zero1 gbs8 seq64"}) {
    CHECK(takes_one_queue(parse_plan(line)));
  }
  for (const char* line :
       {"gbs8 seq64", "pp2 gbs8 seq64", "tp2 pp2 gbs8 seq64",
        "dp2 zero1 gbs8 seq64 offload=optimizer:0.5", "dp2 zero1 overlap=grad+param gbs8 seq64"}) {
    CHECK_FALSE(takes_one_queue(parse_plan(line)));
  }
}

TEST_CASE("a micro-batch whose tokens the scratch memory cannot sort is refused") {
  const ModelSpec model = load_model("qwen3-0.6b");
  CHECK_FALSE(unexecuted_on_gpu(model, parse_plan("mbs1322 gbs1322 seq2048")));
  CHECK(unexecuted_on_gpu(model, parse_plan("mbs1323 gbs1323 seq2048")) ==
        "the cuda backend does not execute micro-batches of more than 2,708,821 tokens a rank yet; "
        "use a smaller one");
}

TEST_CASE("what GPUs do not execute is said with what instead") {
  CHECK(
      said_of("gpt-oss-20b", "cp2 cp_comm=all_gather gbs8 seq2048") ==
      "the cuda backend does not execute sliding windows and learned sinks over parts of sequences "
      "yet; use cp_comm a2a");
  CHECK(said_of("gpt-oss-20b", "tp16 gbs8 seq2048") ==
        "the cuda backend does not execute learned sinks of heads that are no multiple of 8 a rank "
        "yet; use a smaller tp");
  CHECK(said_of("nemotron4-340b", "tp8 sp gbs8 seq2048") ==
        "the cuda backend does not execute hidden sizes above 16384 yet; use --backend cpu");
}
