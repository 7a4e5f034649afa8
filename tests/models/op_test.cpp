#include "models/program/op.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

using namespace qplan;

namespace {

constexpr Attention kCausal{
    .batch = 2, .heads = 8, .kv_heads = 2, .q_len = 1024, .kv_len = 1024, .head_dim = 128};

double of(const Work& work) {
  return flops(work).value();
}

Attention backward(Attention a) {
  a.pass = Pass::backward;
  return a;
}

}  // namespace

TEST_CASE("a matrix product has two FLOPs for each multiply-add") {
  CHECK(of(Gemm{.m = 2, .n = 3, .k = 5, .batch = 7}) == 2 * 2 * 3 * 5 * 7);
  CHECK(of(GroupedGemm{.groups = 4, .rows = 64, .n = 3, .k = 5}) == 2 * 64 * 3 * 5);
  CHECK(of(GroupedGemm{.groups = 4, .rows = 64, .n = 3, .k = 5, .weight_gradient = true}) ==
        2 * 64 * 3 * 5);
}

TEST_CASE("causal attention counts the lower triangle: 2 b nh s^2 d") {
  CHECK(of(kCausal) == 2.0 * 2 * 8 * 1024 * 1024 * 128);
  Attention full = kCausal;
  full.causal = false;
  CHECK(of(full) == 2 * of(kCausal));
}

TEST_CASE("attention backward executes 2.5 times the forward and counts 2 times in MFU") {
  CHECK(of(backward(kCausal)) == 2.5 * of(kCausal));
  CHECK(model_flops(backward(kCausal)).value() == 2 * of(kCausal));
  CHECK(model_flops(kCausal).value() == of(kCausal));
}

TEST_CASE("a sliding window scores s w (1 - w/2s) pairs") {
  Attention a = kCausal;
  a.window = 256;
  CHECK(score_pairs(a) == 1024 * 256 * (1 - 256.0 / 2048));
  a.window = 4096;
  CHECK(score_pairs(a) == 1024 * 1024 / 2);
}

TEST_CASE("windows and offsets agree with counting pairs one by one") {
  for (const std::int64_t q : {64, 100, 300}) {
    for (const std::int64_t kv : {300, 450}) {
      for (const std::int64_t window : {0, 50, 200, 310, 1000}) {
        CAPTURE(q);
        CAPTURE(kv);
        CAPTURE(window);
        double counted = 0;
        for (std::int64_t position = kv - q; position < kv; ++position) {
          for (std::int64_t key = 0; key <= position; ++key) {
            const double share = key == position ? 0.5 : 1;  // the diagonal counts half
            if (window == 0 || position - key < window) counted += share;
          }
        }
        const Attention a{.batch = 1,
                          .heads = 1,
                          .kv_heads = 1,
                          .q_len = q,
                          .kv_len = kv,
                          .head_dim = 64,
                          .window = window};
        // A window's far end is a diagonal too, so the sums differ by at most half a key a query.
        CHECK(score_pairs(a) == doctest::Approx(counted).epsilon(0.5 / 50));
      }
    }
  }
}

TEST_CASE("latent attention counts both head dimensions") {
  Attention a = kCausal;
  a.head_dim = 192;
  a.v_head_dim = 128;
  CHECK(of(a) == 1.25 * of(kCausal));
}

TEST_CASE("written-out scores compute the full square but count the triangle in MFU") {
  Attention a = kCausal;
  a.kernel = AttentionKernel::unfused;
  CHECK(of(a) == 2 * of(kCausal));
  CHECK(model_flops(a) == model_flops(kCausal));
}

TEST_CASE("memory-bound work moves the published bytes and has no FLOPs") {
  // bf16 bytes per token: RMSNorm 4h, residual 6h, SwiGLU 6f and 10f, RoPE 4, permute 4h (SimuMax);
  // an expert's bias is torch's kernels and as long as a copy of 38
  struct Row {
    RowwiseKind kind;
    double bytes;
  };
  for (const auto& [kind, bytes] :
       {Row{RowwiseKind::rms_norm, 4}, Row{RowwiseKind::add, 6}, Row{RowwiseKind::swiglu, 6},
        Row{RowwiseKind::swiglu_backward, 10}, Row{RowwiseKind::rope, 4},
        Row{RowwiseKind::permute, 4}, Row{RowwiseKind::group_rows, 4}, Row{RowwiseKind::cast, 4},
        Row{RowwiseKind::sum_of_squares, 2}, Row{RowwiseKind::expert_bias, 38},
        Row{RowwiseKind::scale_rows, 4}, Row{RowwiseKind::scale_rows_backward, 6},
        Row{RowwiseKind::clamp, 16}, Row{RowwiseKind::clamp_backward, 30},
        Row{RowwiseKind::amax, 2}, Row{RowwiseKind::quantize, 3}, Row{RowwiseKind::chunk_cat, 4},
        Row{RowwiseKind::masked_fill, 4}}) {
    CAPTURE(to_word(kind));
    const Rowwise work{.kind = kind, .rows = 10, .cols = 100};
    CHECK(memory_traffic(work).value() == 1000 * bytes);
    CHECK(of(work) == 0);
  }
}

TEST_CASE("an unfused kind never moves fewer bytes nor launches fewer kernels") {
  for (const auto& [kind, name] : Words<RowwiseKind>::table) {
    CAPTURE(name);
    const Rowwise fused{.kind = kind, .rows = 8, .cols = 8};
    Rowwise unfused = fused;
    unfused.fused = false;
    CHECK(memory_traffic(fused).value() > 0);
    CHECK(memory_traffic(unfused) >= memory_traffic(fused));
    CHECK(kernel_count(unfused) >= kernel_count(fused));
  }
}

TEST_CASE("fused AdamW moves 30 bytes a parameter, 28 with bf16 gradients") {
  CHECK(memory_traffic(Update{.params = 1}).value() == 30);
  CHECK(memory_traffic(Update{.params = 1, .grad = DType::bf16}).value() == 28);
  CHECK(memory_traffic(Update{.params = 1, .fused = false}).value() == doctest::Approx(81));
}

TEST_CASE("an update moves its states twice, beside gradient, master and working copy") {
  for (const auto& [kind, word] : Words<OptimizerKind>::table) {
    CAPTURE(std::string(word));
    const Update work{.params = 1 << 20, .optimizer = kind, .factors = 2048};
    const double beside = memory_traffic(work).value() - 2 * state_bytes(work).value();
    // Adafactor's passes over whole arrays come on top.
    const double passes = kind == OptimizerKind::adafactor ? 19 * 4 : 0;
    CHECK(beside == doctest::Approx((14 + passes) * (1 << 20)));
    CHECK(kernel_count(work) >= 1);
  }
}

TEST_CASE("works print as a person would write them") {
  CHECK(to_string(Gemm{.m = 4096, .n = 8192, .k = 2048}) == "gemm 4096x8192x2048 bf16");
  CHECK(to_string(Gemm{.m = 4, .n = 8, .k = 2, .batch = 3, .accumulate_fp32 = true}) ==
        "gemm 3 x 4x8x2 bf16 +fp32");
  CHECK(to_string(kCausal) == "attention b2 h8/2 q1024 kv1024 d128 causal");
  CHECK(to_string(Collective{.kind = CollectiveKind::all_gather, .bytes = mib(64)}) ==
        "all_gather tp 64.0 MiB");
  CHECK(kind_name(Rowwise{.kind = RowwiseKind::rms_norm}) == "rms_norm");
  CHECK(kind_name(Collective{.kind = CollectiveKind::reduce_scatter, .bytes = Bytes(1)}) ==
        "reduce_scatter");
  CHECK(kind_name(Join{}) == "join");
}

TEST_CASE("works that differ in one field differ in hash") {
  const std::vector<Work> works{
      Gemm{.m = 1, .n = 2, .k = 3},
      Gemm{.m = 2, .n = 1, .k = 3},
      Gemm{.m = 1, .n = 2, .k = 3, .dtype = DType::fp8},
      Gemm{.m = 1, .n = 2, .k = 3, .accumulate_fp32 = true},
      GroupedGemm{.groups = 1, .rows = 2, .n = 3},
      GroupedGemm{.groups = 1, .rows = 2, .n = 3, .weight_gradient = true},
      kCausal,
      backward(kCausal),
      Rowwise{.rows = 1, .cols = 2},
      Rowwise{.rows = 2, .cols = 1},
      Rowwise{.rows = 1, .cols = 2, .fused = false},
      Collective{.bytes = Bytes(1)},
      Collective{.bytes = Bytes(1), .expert_parallel_library = true},
      Collective{.axis = Axis::ep, .bytes = Bytes(1)},
      SendRecv{.bytes = Bytes(1)},
      Update{.params = 1},
      Update{.params = 1, .optimizer = OptimizerKind::lion},
      Update{.params = 1, .optimizer = OptimizerKind::adafactor, .factors = 3},
      Muon{.rows = 1, .cols = 2},
      Muon{.rows = 2, .cols = 1},
      HostCopy{.bytes = Bytes(1)},
      HostCopy{.bytes = Bytes(1), .to_host = false},
      HostAdam{.params = 1},
      HostAdam{.params = 1, .nvme = true},
      Join{},
      GatedDeltaRule{.batch = 1, .seq_len = 2},
      GatedDeltaRule{.batch = 2, .seq_len = 1},
      GatedDeltaRule{.batch = 1, .seq_len = 2, .pass = Pass::backward},
      StateSpaceScan{.batch = 1, .seq_len = 2},
      StateSpaceScan{.batch = 1, .seq_len = 2, .gated = true},
      StateSpaceScan{.batch = 1, .seq_len = 2, .pass = Pass::backward}};
  std::set<std::uint64_t> hashes;
  for (const Work& work : works) hashes.insert(hash_of(work));
  CHECK(hashes.size() == works.size());
  CHECK(hash_of(works[0]) == hash_of(Gemm{.m = 1, .n = 2, .k = 3}));
}

TEST_CASE("a slot list keeps its order") {
  SlotList list;
  for (SlotId id = 0; id < 8; ++id) list.add(static_cast<SlotId>(id * 3));
  CHECK(list.count == 8);
  SlotId expected = 0;
  for (const SlotId id : list) {
    CHECK(id == expected);
    expected = static_cast<SlotId>(expected + 3);
  }
}
