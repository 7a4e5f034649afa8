#include "planner/runs/kernel_trace.h"

#include <doctest/doctest.h>

#include "costmodel/fold/replay.h"
#include "models/error.h"
#include "models/model_spec.h"
#include "models/plan/plan_text.h"

using namespace qplan;

namespace {

double busy(const KernelTotals& totals, KernelKind kind) {
  return totals.busy[static_cast<std::size_t>(kind)].value();
}
double alone(const KernelTotals& totals, KernelKind kind) {
  return totals.alone[static_cast<std::size_t>(kind)].value();
}

std::string event(const std::string& category, const std::string& name, int from, int long_for) {
  return R"({"ph": "X", "cat": ")" + category + R"(", "name": ")" + name +
         R"(", "pid": 0, "tid": 7, "ts": )" + std::to_string(from) + R"(, "dur": )" +
         std::to_string(long_for) + R"(, "args": {"stream": 7}})";
}

// Two steps of 100 us: products 40, attention 20, a collective of 30 of which 10 lie beside
// attention, a norm of 10 and a copy of 5 to the host, which begins where the norm ends.
std::string kineto(bool marked = true) {
  std::string events =
      R"({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}})";
  for (int step = 0; step < 2; ++step) {
    const int at = 1000 + 100 * step;
    const auto add = [&](const char* category, const char* name, int from, int long_for) {
      events += ", " + event(category, name, at + from, long_for);
    };
    if (marked) add("user_annotation", step == 0 ? "ProfilerStep#5" : "ProfilerStep#6", 0, 100);
    add("cpu_op", "aten::mm", 0, 3);
    add("kernel", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", 0, 40);
    add("kernel", "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128> >", 40, 20);
    add("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 50, 30);
    add("kernel", "triton_red_fused__to_copy_mm_mul_0", 80, 10);
    add("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 90, 5);
  }
  return R"({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, )"
         R"("traceEvents": [)" +
         events + "]}";
}

}  // namespace

TEST_CASE("a profiler's trace is a step by kind of kernel, and the kinds add up to it") {
  const std::string text = kineto();
  REQUIRE(is_kernel_trace(text));
  const KernelTrace trace = read_kernel_trace(text, "t.json");
  CHECK(trace.steps == 2);
  CHECK(trace.kernels == 10);
  CHECK(trace.rank == 3);
  CHECK(trace.world == 8);
  CHECK(trace.mean.step.value() == doctest::Approx(100e-6));
  CHECK(busy(trace.mean, KernelKind::product) == doctest::Approx(40e-6));
  CHECK(busy(trace.mean, KernelKind::attention) == doctest::Approx(20e-6));
  CHECK(busy(trace.mean, KernelKind::communication) == doctest::Approx(30e-6));
  CHECK(alone(trace.mean, KernelKind::communication) == doctest::Approx(20e-6));
  CHECK(busy(trace.mean, KernelKind::other) == doctest::Approx(10e-6));
  CHECK(busy(trace.mean, KernelKind::copy) == doctest::Approx(5e-6));
  CHECK(trace.mean.idle().value() == doctest::Approx(5e-6));
}

TEST_CASE("a trace that marks no step is read once somebody says how many there are") {
  const std::string text = kineto(false);
  CHECK_THROWS_WITH_AS(read_kernel_trace(text, "t.json"), doctest::Contains("--trace-steps"),
                       Error);
  const KernelTrace trace = read_kernel_trace(text, "t.json", 2);
  // From the first kernel to the last one's end.
  CHECK(trace.mean.step.value() == doctest::Approx(97.5e-6));
  CHECK(busy(trace.mean, KernelKind::product) == doctest::Approx(40e-6));
}

TEST_CASE("Nsight Systems' table of a GPU's kernels says the same") {
  const std::string text =
      "Processing [run.sqlite] with [cuda_gpu_trace.py]...\n\n"
      "Start (ns),Duration (ns),CorrId,Bytes (MB),Device,Strm,Name\n"
      "1000,40000,1,,NVIDIA H200 (0),7,\"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n, x\"\n"
      "2000,90000,1,,NVIDIA H200 (1),7,another GPU's\n"
      "41000,20000,2,,NVIDIA H200 (0),7,cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma\n"
      "61000,10000,3,,NVIDIA H200 (0),7,[CUDA memcpy Device-to-Host]\n"
      "71000,30000,3,,NVIDIA H200 (0),7,[CUDA memset]\n";
  REQUIRE(is_kernel_trace(text));
  const KernelTrace trace = read_kernel_trace(text, "t.csv", 1);
  CHECK(trace.kernels == 4);
  CHECK(busy(trace.mean, KernelKind::product) == doctest::Approx(40e-6));
  CHECK(busy(trace.mean, KernelKind::attention) == doctest::Approx(20e-6));
  CHECK(busy(trace.mean, KernelKind::copy) == doctest::Approx(10e-6));
  CHECK(busy(trace.mean, KernelKind::other) == doctest::Approx(30e-6));
  CHECK(trace.mean.idle().value() == doctest::Approx(0));
}

TEST_CASE("what is no trace, or none of a GPU, is refused in one sentence") {
  CHECK_FALSE(is_kernel_trace("{\"log_history\": []}"));
  CHECK_FALSE(is_kernel_trace(" iteration 1/ 20 | elapsed time per iteration (ms): 9.0 |"));
  const std::string text = kineto();
  CHECK_THROWS_WITH_AS(read_kernel_trace(text.substr(0, text.size() / 2), "t.json"),
                       doctest::Contains("t.json"), Error);
  const std::string none = R"({"traceEvents": [)" + event("cpu_op", "aten::mm", 0, 1) + "]}";
  CHECK_THROWS_WITH_AS(read_kernel_trace(none, "t.json"), doctest::Contains("no kernel"), Error);
  CHECK_THROWS_WITH_AS(read_kernel_trace("Start (ns),Duration (ns),Name\n1,x,gemm\n", "t.csv", 1),
                       doctest::Contains("Device"), Error);
  CHECK_THROWS_WITH_AS(
      read_kernel_trace("Start (ns),Duration (ns),Device,Name\n1,x,a,gemm\n", "t.csv", 1),
      doctest::Contains("t.csv:2"), Error);
}

TEST_CASE("kernels are told apart by name") {
  CHECK(kind_of_kernel("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>") ==
        KernelKind::attention);
  CHECK(kind_of_kernel("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>") ==
        KernelKind::product);
  CHECK(kind_of_kernel("triton_poi_fused__scaled_dot_product_flash_attention_backward_3") ==
        KernelKind::other);
  CHECK(kind_of_kernel("triton_tem_fused_flex_attention_1") == KernelKind::attention);
  CHECK(kind_of_kernel("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>") ==
        KernelKind::communication);
  CHECK(kind_of_kernel("void at::native::vectorized_elementwise_kernel<4, ...>") ==
        KernelKind::other);
  CHECK(kind_of_kernel("Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64") ==
        KernelKind::product);
}

TEST_CASE("a predicted step has the same kinds, which add up to it") {
  const ModelSpec model = load_model("tiny");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  for (const char* line :
       {"gbs2 seq16", "tp2 pp2 dp2 zero1 gbs8 seq32 sp", "dp4 zero3 gbs8 seq32"}) {
    CAPTURE(line);
    const ParallelPlan plan = parse_plan(line);
    const CostModel cost(model, recipe_of(RecipeKind::qplan), hardware, {});
    const Trace step = trace_step(cost, plan, TraceGrain::op);
    for (int rank = 0; rank < plan.pp; ++rank) {
      const KernelTotals totals = predicted_kernels(step, rank);
      CHECK(totals.step.value() == doctest::Approx(step.end.value()));
      CHECK(busy(totals, KernelKind::product) > 0);
      CHECK(busy(totals, KernelKind::attention) > 0);
      CHECK((busy(totals, KernelKind::communication) > 0) == (plan.world() > 1));
      CHECK(totals.idle().value() > -1e-12);
    }
  }
}
