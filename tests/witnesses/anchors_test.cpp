// Whole training steps that somebody measured and published (docs/reference/physics.md 9). Each
// case prints what it predicts and the error; the tolerance is what the error must stay below. No
// comment repeats a result: it would be wrong with the next change.
#include "tests/witnesses/witness.h"

using namespace qplan;

namespace {

double seconds(const WitnessJob& job, const std::string& line) {
  return job.cost.step_time(parse_plan(line)).value();
}

double tokens_per_s_per_gpu(const WitnessJob& job, const std::string& line) {
  const ParallelPlan plan = parse_plan(line);
  return static_cast<double>(plan.global_batch_size * plan.seq_len) /
         job.cost.step_time(plan).value() / static_cast<double>(plan.world());
}

// Korthikanti et al. 2022 (arXiv 2205.05198), table 5: A100 80 GB, 2048 tokens, tensor and sequence
// parallel 8; 3 chunks interleaved for 175B and 530B.
struct PaperRun {
  const char* model;
  const char* plan;
  double selective, full;
};
constexpr PaperRun kPaper[] = {
    {"megatron-22b", "tp8 mbs4 gbs4 seq2048", 1.10, 1.42},
    {"megatron-175b", "tp8 pp8 vpp3 interleaved mbs1 gbs64 seq2048", 13.75, 18.13},
    {"megatron-530b", "tp8 pp35 vpp3 interleaved mbs1 gbs280 seq2048", 37.83, 49.05},
    {"megatron-1t", "tp8 pp64 mbs1 gbs512 seq2048", 71.49, 94.42}};

double paper_error(const PaperRun& run, bool selective) {
  const WitnessJob job(load_model(run.model), "a100-80gb-sxm", RecipeKind::megatron_legacy);
  // "full": recomputation without sequence parallelism, the paper's baseline.
  const std::string words = selective ? " sp recompute=selective" : " recompute=full";
  return witness(
      fmt::format("Megatron-SP paper {} {}", run.model, selective ? "selective" : "full"),
      selective ? run.selective : run.full, seconds(job, run.plan + words), "s");
}

// Megatron-Bridge (067f987): 16 H100, 1024 sequences of 4096, EP16, no recomputation, forced
// balance, bf16 gradients and a 2-byte main remainder (4 + 10/d).
const std::string kQwen30b =
    "ep16 dp16 zero1 mbs1 gbs1024 seq4096 grad_dtype=bf16 main_params_dtype=bf16 "
    "overlap=grad+param ";

double qwen30b_error(const char* what, double measured, const char* words) {
  const WitnessJob job(load_model("qwen3-30b-a3b"), "h100-sxm", RecipeKind::megatron);
  return witness(fmt::format("Qwen3-30B-A3B 16xH100, {}", what), measured,
                 seconds(job, kQwen30b + words), "s");
}

// Our own runs on 8 H200: FSDP2, Hugging Face modules, torch 2.11, bf16
// (docs/reference/physics.md 9.3).
struct LocalRun {
  const char* name;
  const char* model;
  RecipeKind recipe;
  const char* plan;
  double tokens_per_s, gib;
};
const std::vector<LocalRun> kLocal = {
    {"Qwen3-0.6B mbs4 4k", "qwen3-0.6b", RecipeKind::fsdp2, "dp8 zero3 mbs4 gbs32 seq4096", 43253,
     64.18},
    {"Qwen3-8B mbs1 4k", "qwen3-8b", RecipeKind::fsdp2, "dp8 zero3 mbs1 gbs8 seq4096", 6910, 49.32},
    {"Qwen3-8B mbs1 4k compile", "qwen3-8b", RecipeKind::fsdp2_compile,
     "dp8 zero3 mbs1 gbs8 seq4096 compile", 8579, 38.63},
    {"Qwen3-8B mbs1 4k ZeRO-2", "qwen3-8b", RecipeKind::fsdp2, "dp8 zero2 mbs1 gbs8 seq4096", 7224,
     64.58},
    {"Qwen3-8B mbs2 4k full AC", "qwen3-8b", RecipeKind::fsdp2,
     "dp8 zero3 mbs2 gbs16 seq4096 recompute=full", 6446, 30.24},
    {"Qwen3-8B mbs2 4k full AC acc4", "qwen3-8b", RecipeKind::fsdp2,
     "dp8 zero3 mbs2 gbs64 seq4096 recompute=full", 6451, 34.05},
    {"Qwen3-8B mbs1 32k full AC", "qwen3-8b", RecipeKind::fsdp2,
     "dp8 zero3 mbs1 gbs8 seq32768 recompute=full", 4722, 86.44},
    {"Qwen3-32B mbs1 4k full AC", "qwen3-32b", RecipeKind::fsdp2,
     "dp8 zero3 mbs1 gbs8 seq4096 recompute=full", 1564, 71.25}};

// FSDP2 gathers ahead and reduces behind, whatever the plan's line leaves out; attention is
// cuDNN's.
std::string overlapped(const LocalRun& run) {
  return std::string(run.plan) + " overlap=grad+param attention_backend=fused";
}

// Modules were transformers 4's, as torchtitan's loss was then; attention PyTorch 2.11's.
constexpr int kEagerLoss = 202412;

double throughput_error(const LocalRun& run) {
  const WitnessJob job(load_model(run.model), "h200-sxm", run.recipe, kEagerLoss);
  return witness(std::string("8xH200 FSDP2 ") + run.name, run.tokens_per_s,
                 tokens_per_s_per_gpu(job, overlapped(run)), "tok/s/GPU");
}

}  // namespace

// Within 4%, full recomputation within 5%; the A100's sustained rate was read off four publishers'
// runs, these among them.
TEST_CASE("witness: Megatron's selective recomputation, 22B to 1T on A100") {
  for (const PaperRun& run : kPaper) CHECK(std::abs(paper_error(run, true)) < 0.07);
}

TEST_CASE("witness: Megatron's full recomputation, 22B to 1T on A100") {
  for (const PaperRun& run : kPaper) CHECK(std::abs(paper_error(run, false)) < 0.15);
}

// Not independent: the share of a NIC that NCCL's all-to-all reaches was set from the
// difference between this row and the next (collective_price.cpp).
TEST_CASE("witness: Qwen3-30B-A3B with NCCL all-to-all") {
  CHECK(std::abs(qwen30b_error("NCCL a2a", 41.25, "moe_dispatcher=alltoall")) < 0.10);
}

// Not independent: that network and NVLink follow each other was read off this row and
// the last (collective_price.cpp).
TEST_CASE("witness: Qwen3-30B-A3B with HybridEP, no overlap") {
  CHECK(std::abs(qwen30b_error("HybridEP", 24.71, "moe_dispatcher=hybridep")) < 0.05);
}

// Measured with the overlap of experts' messages and a tuned dispatcher at once.
TEST_CASE("witness: Qwen3-30B-A3B with HybridEP, overlapped and tuned") {
  const std::string words = "overlap=grad+param+ep moe_dispatcher=hybridep cuda_graph";
  const WitnessJob job(load_model("qwen3-30b-a3b"), "h100-sxm", RecipeKind::megatron);
  std::string line = kQwen30b;
  line.erase(line.find("overlap="));
  CHECK(std::abs(witness("Qwen3-30B-A3B 16xH100, tuned", 20.147, seconds(job, line + words), "s")) <
        0.10);
}

// Dispatcher buffers (2.5 GiB) and graph pools (3 GiB) are assumed (docs/reference/physics.md 5.5).
TEST_CASE("witness: Qwen3-30B-A3B's memory") {
  const WitnessJob job(load_model("qwen3-30b-a3b"), "h100-sxm", RecipeKind::megatron);
  const Bytes peak = job.cost.memory(parse_plan(kQwen30b + "moe_dispatcher=hybridep cuda_graph"))
                         .worst_stage()
                         .peak;
  CHECK(std::abs(witness("Qwen3-30B-A3B 16xH100, allocated", 62.17, in_gib(peak), "GiB")) < 0.08);
}

// Llama 3 paper (arXiv 2407.21783, table 4): TP8 PP16, 43% at 8192 GPUs; chunks and overlap are our
// choice. Stragglers, 3% to 10% at this size (docs/reference/physics.md 8), are not in a
// step.
TEST_CASE("witness: Llama-3 405B runs at 38-43% of the peak") {
  const WitnessJob job(load_model("llama3-405b"), "h100-sxm", RecipeKind::megatron);
  const Estimate e = job.cost.evaluate(parse_plan(
      "tp8 pp16 vpp8 interleaved dp64 zero1 mbs1 gbs2048 seq8192 sp overlap=grad+param"));
  CHECK(std::abs(witness("Llama-3 405B 8192xH100, 8k, MFU", 43, e.mfu * 100, "%")) < 0.15);
}

TEST_CASE("witness: FSDP2 on 8 H200, throughput of 8B and 32B") {
  for (std::size_t i = 1; i < kLocal.size(); ++i) {
    CHECK(std::abs(throughput_error(kLocal[i])) < 0.08);
  }
}

// Small layers and a vocabulary of 152 thousand: most of its time is eager, memory-bound kernels.
TEST_CASE("witness: FSDP2 on 8 H200, throughput of 0.6B") {
  CHECK(std::abs(throughput_error(kLocal.front())) < 0.05);
}

// What is left of 32B: Hugging Face's embedding and head are one FSDP
// unit, gathered and with whole gradients to the end of backward; ours are two
// (docs/reference/physics.md 5.3, P2).
TEST_CASE("witness: FSDP2 on 8 H200, allocated memory") {
  for (const LocalRun& run : kLocal) {
    const WitnessJob job(load_model(run.model), "h200-sxm", run.recipe, kEagerLoss);
    const Bytes peak = job.cost.memory(parse_plan(overlapped(run))).worst_stage().peak;
    CHECK(std::abs(witness(std::string("8xH200 FSDP2 ") + run.name + ", allocated", run.gib,
                           in_gib(peak), "GiB")) < 0.08);
  }
}
