// What calibration measures (calibrate.h); what it makes of the times is in calibrate.cpp.

#include <array>
#include <utility>

#include "costmodel/profiles/calibrate.h"
#include "costmodel/profiles/calibration_grid.h"

namespace qplan {
namespace {

constexpr std::int64_t kVocabularyWidth = 131072;
// The largest that are worth their time: 0.05 s on an H100.
constexpr double kMostFlops = 4e13;

// Rows and columns that memory-bound kinds are measured with: small, as wide as one head or a
// narrow model, and as large as a layer of Qwen3-8B.
using Sizes = std::array<std::pair<std::int64_t, std::int64_t>, 4>;
constexpr Sizes kLayer{{{2048, 1024}, {4096, 2048}, {4096, 4096}, {16384, 4096}}};
constexpr Sizes kVocabulary{{{1024, 32768}, {2048, 65536}, {4096, 65536}, {16384, 65536}}};
constexpr Sizes kGradients{{{1024, 1024}, {1024, 4096}, {4096, 16384}, {16384, 16384}}};
constexpr Sizes kCopies{{{4096, 2048}, {16384, 2048}, {32768, 2048}, {65536, 2048}}};
constexpr Sizes kExperts{{{1024, 128}, {2048, 128}, {4096, 128}, {16384, 128}}};
// Of heads, with norms: (q + 2 kv) of them, and backward (3 q + 5 kv) / 2 (measure.cpp).
constexpr Sizes kHeads{{{2048, 768}, {4096, 1536}, {4096, 6144}, {16384, 6144}}};
constexpr Sizes kHeadsBackward{{{2048, 1088}, {4096, 2176}, {4096, 8704}, {16384, 8704}}};
constexpr std::pair<RowwiseKind, Sizes> kMemoryBound[] = {
    {RowwiseKind::rms_norm, kLayer},
    {RowwiseKind::rms_norm_backward, kLayer},
    {RowwiseKind::layer_norm, kLayer},
    {RowwiseKind::layer_norm_backward, kLayer},
    {RowwiseKind::swiglu, kLayer},
    {RowwiseKind::swiglu_backward, kLayer},
    {RowwiseKind::gelu, kLayer},
    {RowwiseKind::gelu_backward, kLayer},
    {RowwiseKind::embedding, kLayer},
    {RowwiseKind::embedding_backward, kLayer},
    {RowwiseKind::rope, kHeads},
    {RowwiseKind::rope_backward, kHeadsBackward},
    {RowwiseKind::add, kLayer},
    {RowwiseKind::copy, kLayer},
    {RowwiseKind::amax, kLayer},
    {RowwiseKind::quantize, kLayer},
    {RowwiseKind::cross_entropy, kVocabulary},
    {RowwiseKind::cross_entropy_backward, kVocabulary},
    {RowwiseKind::sum_of_squares, kGradients},
    {RowwiseKind::zero_fill, kGradients},
    {RowwiseKind::permute, kCopies},
    {RowwiseKind::unpermute, kCopies},
    {RowwiseKind::group_rows, kCopies},
    {RowwiseKind::scale_rows, kCopies},
    {RowwiseKind::scale_rows_backward, kCopies},
    {RowwiseKind::router, kExperts},
    {RowwiseKind::router_backward, kExperts}};
constexpr CollectiveKind kCollectives[] = {CollectiveKind::all_reduce, CollectiveKind::all_gather,
                                           CollectiveKind::reduce_scatter,
                                           CollectiveKind::all_to_all};
constexpr double kSmallestMessage = 32 << 10, kLargestMessage = 512 << 20;
constexpr double kLargestRingStep = 32 << 20;  // keys and values of 8192 tokens, 8 heads of 128

}  // namespace

std::vector<Work> warm_works() {
  std::vector<Work> works;
  const auto in_all_formats = [&](Gemm product) {
    for (const DType format : kFormats) {
      product.dtype = format;
      works.emplace_back(product);
    }
  };
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{2048, 16384, 4096},
                                {4096, 4096, 4096},
                                {4096, 8192, 4096},
                                {8192, 4096, 16384},
                                {8192, 16384, 4096},
                                {8192, 8192, 8192},
                                {16384, 4096, 4096}}) {
    in_all_formats({.m = m, .n = n, .k = k});
  }
  // Of shapes that are measured without sums, too: layers of 4096 wide models and a vocabulary,
  // with 2048 to 8192 tokens.
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{4096, 4096, 2048},
                                {8192, 4096, 2048},
                                {16384, 4096, 2048},
                                {4096, 16384, 2048},
                                {32768, 4096, 2048},
                                {4096, 4096, 4096},
                                {16384, 4096, 4096},
                                {4096, 16384, 4096},
                                {8192, 4096, 8192},
                                {16384, 4096, 8192}}) {
    in_all_formats({.m = m, .n = n, .k = k, .accumulate_fp32 = true});
  }
  return works;
}

std::vector<Work> calibration_works() {
  std::vector<Work> works;
  for (const std::int64_t m : kRows) {
    for (const std::int64_t n : kWidths) {
      for (const std::int64_t k : kDepths) {
        for (const DType format : kFormats) {
          const Gemm work{.m = m, .n = n, .k = k, .dtype = format};
          const bool wanted = format == DType::bf16 || n != kVocabularyWidth;
          if (wanted && flops(Work(work)).value() <= kMostFlops) works.emplace_back(work);
        }
      }
    }
  }
  for (const auto& [batch, heads, len, dim] : {std::array<std::int64_t, 4>{1, 32, 2048, 128},
                                               {1, 32, 4096, 128},
                                               {1, 32, 8192, 128},
                                               {2, 32, 4096, 128},
                                               {1, 16, 2048, 128},
                                               {1, 16, 4096, 128},
                                               {4, 16, 4096, 128},
                                               {1, 32, 4096, 64}}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      works.emplace_back(Attention{.batch = batch,
                                   .heads = heads,
                                   .kv_heads = 8,
                                   .q_len = len,
                                   .kv_len = len,
                                   .head_dim = dim,
                                   .v_head_dim = dim,
                                   .pass = pass});
    }
  }
  // Experts of Qwen3-30B-A3B, all of them and an eighth, for half a sequence of 4096 tokens, one
  // and four.
  for (const std::int64_t groups : {16, 128}) {
    for (const std::int64_t rows : {16384, 32768, 131072}) {
      for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1536, 2048}, {2048, 768}}) {
        for (const bool gradient : {false, true}) {
          works.emplace_back(GroupedGemm{.groups = groups,
                                         .rows = rows,
                                         .n = n,
                                         .k = k,
                                         .weight_gradient = gradient,
                                         .accumulate_fp32 = gradient});
        }
      }
    }
  }
  for (const auto& [kind, sizes] : kMemoryBound) {
    for (const auto& [rows, cols] : sizes) {
      const bool gradients = kind == RowwiseKind::sum_of_squares || kind == RowwiseKind::zero_fill;
      const DType dtype = gradients ? DType::fp32 : DType::bf16;
      works.emplace_back(Rowwise{.kind = kind, .rows = rows, .cols = cols, .dtype = dtype});
    }
  }
  works.emplace_back(Update{.params = 1 << 27});
  for (const RowwiseKind kind : {RowwiseKind::rms_norm, RowwiseKind::rms_norm_backward}) {
    works.emplace_back(Rowwise{.kind = kind, .rows = 131072, .cols = 128});  // heads
  }
  return works;
}

std::vector<Work> collective_works() {
  std::vector<Work> works;
  for (const CollectiveKind kind : kCollectives) {
    for (double bytes = kSmallestMessage; bytes <= kLargestMessage; bytes *= 4) {
      works.emplace_back(Collective{kind, Axis::world, Bytes(bytes)});
    }
  }
  for (double bytes = kSmallestMessage; bytes <= kLargestRingStep; bytes *= 4) {
    works.emplace_back(SendRecv{Axis::world, Bytes(bytes)});
  }
  return works;
}

std::vector<int> collective_groups(int ranks) {
  std::vector<int> groups;
  for (int size = 2; size < ranks; size *= 2) {
    if (ranks % size == 0) groups.push_back(size);
  }
  if (ranks > 1) groups.push_back(ranks);
  return groups;
}

}  // namespace qplan
