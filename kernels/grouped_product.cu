// Products of experts: one launch for all of them. Blocks stay and draw tiles of 128 x 256 numbers,
// so that those which wait for a multiprocessor (a collective has it) leave theirs to others; one
// warp brings operands by the copy engine, four stages ahead, two warpgroups multiply (wgmma,
// sm_90a). How many rows an expert has is read on the device.

#include <cuda.h>

#include "kernels/device.cuh"
#include "kernels/draw.cuh"
#include "kernels/grouped_tiles.cuh"
#include "kernels/hopper.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kStages = 4;
static_assert(kTileM * kTileN / kConsumers == kAccumulators, "a warpgroup has 64 x 256 numbers");
// The copy engine's 128-byte swizzle: boxes are 64 numbers wide.
constexpr int kBox = 64;
constexpr int kBoxBytes = kBox * kTileK * 2;
constexpr int kBytesA = kTileM * kTileK * 2, kBytesB = kTileN * kTileK * 2;

struct Shared {
  alignas(1024) unsigned char a[kStages][kBytesA];
  alignas(1024) unsigned char b[kStages][kBytesB];
  alignas(8) std::uint64_t full[kStages], empty[kStages];
  std::uint64_t drawn[2], read[2];  // barriers of the two tiles below
  int tile[2];
  TileLists lists;
};

// A matrix in shared memory under the 128-byte swizzle. Contracted numbers side by side: groups of
// 8 rows lie 1024 bytes apart. Otherwise: 8 contracted rows are 1024 bytes, the next 64 columns a
// box.
[[maybe_unused]] __device__ inline std::uint64_t matrix_at(const void* p, bool transposed) {
  const std::uint64_t address = (address_of(p) & 0x3FFFF) >> 4;
  const std::uint64_t leading = transposed ? kBoxBytes >> 4 : 1, stride = 1024 >> 4;
  return address | leading << 16 | stride << 32 | std::uint64_t{1} << 62;
}
// Bytes to the next 16 contracted numbers.
[[maybe_unused]] __device__ constexpr int step_bytes(bool transposed) {
  return transposed ? 16 * kBox * 2 : 16 * 2;
}

// The turn-th tile that the block has drawn, from that thread to those that multiply.
[[maybe_unused]] __device__ inline void hand_over(Shared& shared, int turn, int index) {
  wait(shared.read[turn % 2], turn / 2 % 2 ^ 1);
  shared.tile[turn % 2] = index;
  arrive(shared.drawn[turn % 2]);
}
[[maybe_unused]] __device__ inline int take_over(Shared& shared, int turn) {
  wait(shared.drawn[turn % 2], turn / 2 % 2);
  const int index = shared.tile[turn % 2];
  arrive(shared.read[turn % 2]);
  return index;
}

// ---- the two roles ----

template <Product P>
__device__ void bring_operands(Shared& shared, const Shape& shape, const CUtensorMap& a_map,
                               const CUtensorMap& b_map, Draw& draw) {
  Tile tile;
  int stage = 0;
  unsigned parity = 1;  // all stages begin empty
  int index = draw_next(draw);
  for (int turn = 0;; ++turn) {
    hand_over(shared, turn, index);
    if (!find_tile<P>(shared.lists, shape, index, tile)) return end_drawing(draw);
    index = draw_next(draw);  // arrives while this one's operands do
    for (int piece = 0; piece < pieces_of<P>(shape); ++piece) {
      const Contracted all = contracted<P>(shared.lists, shape, tile, piece);
      for (int k = all.begin; k < all.begin + all.count; k += kTileK) {
        wait(shared.empty[stage], parity);
        std::uint64_t& full = shared.full[stage];
        arrive_expecting(full, kBytesA + kBytesB);
        if constexpr (P == Product::weight_gradient) {
          for (int i = 0; i < kTileM / kBox; ++i) {
            bring(shared.a[stage] + i * kBoxBytes, a_map, full, tile.m + i * kBox, k, 0);
          }
        } else {
          bring(shared.a[stage], a_map, full, k, tile.m, 0);
        }
        const int group = P == Product::weight_gradient ? 0 : tile.part / shape.groups.shares;
        if constexpr (P == Product::forward) {
          bring(shared.b[stage], b_map, full, k, tile.n, group);
        } else {
          for (int i = 0; i < kTileN / kBox; ++i) {
            bring(shared.b[stage] + i * kBoxBytes, b_map, full, tile.n + i * kBox, k, group);
          }
        }
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
  }
}

// Rows behind a group's last are another's: they count as zero.
[[maybe_unused]] __device__ void clear_rows(Shared& shared, int stage, int rows) {
  const int consumer = static_cast<int>(threadIdx.x) - kWarpgroup;
  constexpr int kVectors = kBox * 2 / 16;  // of a row in a box
  constexpr int kBoxes = (kTileM + kTileN) / kBox;
  const int per_box = (kTileK - rows) * kVectors;
  for (int i = consumer; i < kBoxes * per_box; i += kConsumers) {
    const int box = i / per_box, at = i % per_box;
    unsigned char* begin = box < kTileM / kBox
                               ? shared.a[stage] + box * kBoxBytes
                               : shared.b[stage] + (box - kTileM / kBox) * kBoxBytes;
    reinterpret_cast<uint4*>(begin + rows * kBox * 2)[at] = uint4{};
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Accumulator 4 j + 2 h + i is row lane / 4 + 8 h of its warp's 16, column 8 j + 2 (lane % 4) + i.
[[maybe_unused]] __device__ void write_rows(bf16* out, const Shape& shape, const Tile& tile,
                                            int row, int last_row,
                                            const float (&d)[kAccumulators]) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    bf16* to = out + static_cast<std::int64_t>(r) * shape.out_stride;
#pragma unroll
    for (int j = 0; j < kTileN / 8; j += 4) {
      std::uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = pair_of(d[4 * (j + i) + 2 * h], d[4 * (j + i) + 2 * h + 1]);
      }
      transpose_quad(v);
      const int column = tile.n + 8 * (j + quad);
      if (r < last_row && column < shape.n) {
        *reinterpret_cast<uint4*>(to + column) = uint4{v[0], v[1], v[2], v[3]};
      }
    }
  }
}

// A tile that contracts few rows waits for memory: for the sums that it adds to. They are sent for
// before it multiplies (kFetched), and where hardly anything is multiplied, read and written here
// (kRead), which takes less of the cache than adding there. On an H200 128 rows took 1.5 times as
// long, 64 rows 1.6 and 512 rows 1.1 times; of 768 and more the products are what takes time, and
// fetching costs them 1 to 4% (docs/evidence/archive/executor-draws-2026-11-30.md).
constexpr int kFetched = 512, kRead = 256;

[[maybe_unused]] __device__ void fetch_weights(const float* out, const Shape& shape,
                                               const Tile& tile) {
  constexpr int kLine = 128 / sizeof(float), kLines = kTileN / kLine;
  const float* group = out + static_cast<std::int64_t>(tile.part) * shape.group_stride;
  for (int i = static_cast<int>(threadIdx.x) - kWarpgroup; i < kTileM * kLines; i += kConsumers) {
    const int row = tile.m + i / kLines, column = tile.n + i % kLines * kLine;
    if (row >= shape.m || column >= shape.n) continue;
    const float* at = group + static_cast<std::int64_t>(row) * shape.out_stride + column;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// Four neighbouring numbers are added where memory's cache is: nobody waits. Each number is added
// to by one thread, so the result does not depend on order.
__device__ inline void add_four(float* to, const float4& v) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

// `Reads`: by this thread, not by the cache.
template <bool Reads>
__device__ void add_weights(float* out, const Shape& shape, const Tile& tile, int row,
                            const float (&d)[kAccumulators]) {
  constexpr int kAtOnce = 8;  // reads
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const bool odd = quad & 1;
  float* group = out + static_cast<std::int64_t>(tile.part) * shape.group_stride;
  // Of 2 times 8 columns, from the j-th 8 on, a pair of threads trades so that each has four
  // neighbours of one.
  const auto column_of = [&](int j) { return tile.n + 8 * (j + (odd ? 1 : 0)) + 4 * (quad / 2); };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    float* to = group + static_cast<std::int64_t>(r) * shape.out_stride;
    const auto inside = [&](int j) { return r < shape.m && column_of(j) < shape.n; };
#pragma unroll
    for (int first = 0; first < kTileN / 8; first += 2 * kAtOnce) {
      float4 sums[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = first + 2 * i;
        if (Reads && inside(j)) sums[i] = __ldcg(reinterpret_cast<float4*>(to + column_of(j)));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = first + 2 * i, even_at = 4 * j + 2 * h, odd_at = even_at + 4;
        const float x = __shfl_xor_sync(0xffffffffU, odd ? d[even_at] : d[odd_at], 1);
        const float y = __shfl_xor_sync(0xffffffffU, odd ? d[even_at + 1] : d[odd_at + 1], 1);
        if (!inside(j)) continue;
        const float4 v =
            odd ? float4{x, y, d[odd_at], d[odd_at + 1]} : float4{d[even_at], d[even_at + 1], x, y};
        if constexpr (Reads) {
          const float4& was = sums[i];
          __stcg(reinterpret_cast<float4*>(to + column_of(j)),
                 float4{was.x + v.x, was.y + v.y, was.z + v.z, was.w + v.w});
        } else {
          add_four(to + column_of(j), v);
        }
      }
    }
  }
}

template <Product P>
__device__ void multiply_tiles(Shared& shared, const Shape& shape, void* out) {
  constexpr bool kTransposeA = P == Product::weight_gradient, kTransposeB = P != Product::forward;
  const int consumer = static_cast<int>(threadIdx.x) - kWarpgroup;
  const int warpgroup = consumer / kWarpgroup;
  const int row = consumer / kWarp * 16 + consumer % kWarp / 4;  // of the tile
  Tile tile;
  int stage = 0, released = 0;
  unsigned parity = 0;
  float d[kAccumulators];
  for (int turn = 0; find_tile<P>(shared.lists, shape, take_over(shared, turn), tile); ++turn) {
    bool first = true;
    int rows = 0;
    if constexpr (P == Product::weight_gradient) {
      rows = rows_of(shared.lists, shape.groups, tile.part);
      if (rows <= kFetched) fetch_weights(static_cast<float*>(out), shape, tile);
    }
    for (int piece = 0; piece < pieces_of<P>(shape); ++piece) {
      const Contracted all = contracted<P>(shared.lists, shape, tile, piece);
      for (int done = 0; done < all.count; done += kTileK) {
        wait(shared.full[stage], parity);
        if constexpr (P == Product::weight_gradient) {
          const int left = all.count - done;
          if (left < kTileK) clear_rows(shared, stage, left);
        }
        // A warpgroup's 64 rows begin 8 KiB behind the other's, whichever way they lie.
        const std::uint64_t a = matrix_at(shared.a[stage] + warpgroup * kBoxBytes, kTransposeA);
        const std::uint64_t b = matrix_at(shared.b[stage], kTransposeB);
        hold(d);
        fence_products();
#pragma unroll
        for (int i = 0; i < kTileK / 16; ++i) {
          multiply_add<kTransposeA, kTransposeB>(d, a + (i * step_bytes(kTransposeA) >> 4),
                                                 b + (i * step_bytes(kTransposeB) >> 4),
                                                 first && i == 0);
        }
        commit_products();
        hold(d);
        if (!first) {  // the stage before has been read
          await_products<1>();
          arrive(shared.empty[released]);
          released = (released + 1) % kStages;
        }
        first = false;
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
    await_products<0>();
    hold(d);
    arrive(shared.empty[released]);
    released = (released + 1) % kStages;
    if constexpr (P == Product::weight_gradient) {
      float* sums = static_cast<float*>(out);
      if (rows <= kRead) {
        add_weights<true>(sums, shape, tile, tile.m + row, d);
      } else {
        add_weights<false>(sums, shape, tile, tile.m + row, d);
      }
    } else {
      write_rows(static_cast<bf16*>(out), shape, tile, tile.m + row,
                 shared.lists.first_row[tile.part] + shared.lists.rows[tile.part], d);
    }
  }
}

// In the code that this GPU runs. Of another architecture, or compiled by the driver from an older
// one's, the kernel below is empty.
__device__ bool built_for_hopper =
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    true;
#else
    false;
#endif

template <Product P>
__global__ void __launch_bounds__(kBlock, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap a_map,
                   const __grid_constant__ CUtensorMap b_map, void* out, const Shape shape,
                   const int which_draw) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory + (1024 - address_of(memory) % 1024) % 1024);
  if (threadIdx.x < kWarp) {
    find_rows(shared.lists, shape.groups);
    __syncwarp();
    find_tiles<P>(shared.lists, shape);
  } else if (threadIdx.x == kWarp) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(shared.full[i], 1);
      init_barrier(shared.empty[i], kConsumers);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared.drawn[i], 1);
      init_barrier(shared.read[i], kConsumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if constexpr (P == Product::weight_gradient) {
    order_groups(shared.lists, shape.groups);
    __syncthreads();
  }
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) bring_operands<P>(shared, shape, a_map, b_map, draws[which_draw]);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_tiles<P>(shared, shape, out);
  }
#endif
}

// ---- launching ----

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess) {
      return Encode{nullptr};
    }
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

// copies x rows x cols numbers, brought in boxes of box_rows x 64.
CUtensorMap map_of(const bf16* data, std::int64_t rows, std::int64_t cols, std::int64_t copies,
                   std::int64_t copy_stride, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(copies)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(2 * cols),
                                 static_cast<cuuint64_t>(2 * copy_stride)};
  const cuuint32_t box[3] = {kBox, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(data), sizes, strides, box,
            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

template <Product P>
void launch(const CUtensorMap& a, const CUtensorMap& b, void* out, const Shape& shape,
            cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared) + 1024;
  static const int blocks = [] {
    cudaFuncSetAttribute(grouped_kernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  grouped_kernel<P>
      <<<static_cast<unsigned>(blocks), kBlock, kBytes, stream>>>(a, b, out, shape, new_draw());
}

}  // namespace

bool has_grouped_products() {
  static const bool has = [] {
    bool built = false;
    return cudaMemcpyFromSymbol(&built, built_for_hopper, sizeof(built)) == cudaSuccess && built &&
           encoder() != nullptr;
  }();
  return has;
}

void grouped_forward(bf16* y, const bf16* x, const GroupedWeights& w, const RowGroups& groups,
                     std::int64_t rows, cudaStream_t stream) {
  const Shape shape{groups, static_cast<int>(w.out), static_cast<int>(w.in), 0, w.out, 0};
  launch<Product::forward>(map_of(x, rows, w.in, 1, rows * w.in, kTileM),
                           map_of(w.data, w.out, w.in, groups.count, w.stride, kTileN), y, shape,
                           stream);
}

void grouped_input_gradient(bf16* dx, const bf16* dy, const GroupedWeights& w,
                            const RowGroups& groups, std::int64_t rows, cudaStream_t stream) {
  const Shape shape{groups, static_cast<int>(w.in), static_cast<int>(w.out), 0, w.in, 0};
  launch<Product::input_gradient>(map_of(dy, rows, w.out, 1, rows * w.out, kTileM),
                                  map_of(w.data, w.out, w.in, groups.count, w.stride, kTileK), dx,
                                  shape, stream);
}

void grouped_weight_gradient(const GroupedGradients& dw, const bf16* dy, const bf16* x,
                             const RowGroups& groups, std::int64_t rows, cudaStream_t stream) {
  const Shape shape{groups, static_cast<int>(dw.in), 0, static_cast<int>(dw.out), dw.in, dw.stride};
  launch<Product::weight_gradient>(map_of(dy, rows, dw.out, 1, rows * dw.out, kTileK),
                                   map_of(x, rows, dw.in, 1, rows * dw.in, kTileK), dw.data, shape,
                                   stream);
}

}  // namespace qplan::kernels
