// Products of experts: one launch for all of them. Blocks stay and draw tiles of 128 x 256 numbers,
// so that those which wait for a multiprocessor (a collective has it) leave theirs to others; one
// warp brings operands by the copy engine, four stages ahead, two warpgroups multiply (wgmma,
// sm_90a). How many rows an expert has is read on the device.

#include <cuda.h>

#include "kernels/device.cuh"
#include "kernels/draw.cuh"
#include "kernels/hopper.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kTileM = 128, kTileN = 256, kTileK = 64;
constexpr int kStages = 4;
constexpr int kWarpgroup = 128, kConsumers = 2 * kWarpgroup, kBlock = 3 * kWarpgroup;
static_assert(kTileM * kTileN / kConsumers == kAccumulators, "a warpgroup has 64 x 256 numbers");
// The copy engine's 128-byte swizzle: boxes are 64 numbers wide.
constexpr int kBox = 64;
constexpr int kBoxBytes = kBox * kTileK * 2;
constexpr int kBytesA = kTileM * kTileK * 2, kBytesB = kTileN * kTileK * 2;

enum class Product { forward, input_gradient, weight_gradient };

struct Shape {
  RowGroups groups;
  int n = 0, k = 0;  // of a group: rows x n x k; of weight gradients m x n, over rows
  int m = 0;
  std::int64_t out_stride = 0, group_stride = 0;  // numbers between rows, and between groups
};

struct Shared {
  alignas(1024) unsigned char a[kStages][kBytesA];
  alignas(1024) unsigned char b[kStages][kBytesB];
  alignas(8) std::uint64_t full[kStages], empty[kStages];
  std::uint64_t drawn[2], read[2];  // barriers of the two tiles below
  int tile[2];
  // By group, and within it by share of the rows.
  int first_row[kMostRowGroups], rows[kMostRowGroups];
  int first_tile[kMostRowGroups + 1];  // ... and the number of all; of weight gradients by group
  int order[kMostRowGroups];           // of weight gradients: groups, those with most rows first
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

// ---- which tiles there are ----

[[maybe_unused]] __device__ constexpr int tiles_of(int size, int tile) {
  return (size + tile - 1) / tile;
}

// Of all shares.
[[maybe_unused]] __device__ inline int rows_of(const Shared& shared, const RowGroups& g,
                                               int group) {
  int rows = 0;
  for (int share = 0; share < g.shares; ++share) rows += shared.rows[group * g.shares + share];
  return rows;
}

// The sum of `mine` over the lanes up to this one. All of the warp call it.
[[maybe_unused]] __device__ inline int sum_to_lane(int mine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffU, mine, step);
    if (lane >= step) mine += before;
  }
  return mine;
}

// By one warp, as are the tiles behind it.
[[maybe_unused]] __device__ void find_rows(Shared& shared, const RowGroups& g) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int share = 0; share < g.shares; ++share) {
    const std::int32_t* counts = g.rows + static_cast<std::int64_t>(share) * g.share_stride;
    int before = share * static_cast<int>(g.share_rows);
    for (int first = 0; first < g.count; first += kWarp) {
      const int group = first + lane;
      int rows = 0;
      for (int source = 0; source < g.sources && group < g.count; ++source) {
        rows += counts[source * g.source_stride + group];
      }
      const int to = sum_to_lane(rows);
      if (group < g.count) {
        shared.first_row[group * g.shares + share] = before + to - rows;
        shared.rows[group * g.shares + share] = rows;
      }
      before += __shfl_sync(0xffffffffU, to, kWarp - 1);
    }
  }
}

// Weight gradients have as many tiles in each group that has rows; of others a group's shares have
// tiles of their own.
template <Product P>
__device__ void find_tiles(Shared& shared, const Shape& shape) {
  constexpr bool wgrad = P == Product::weight_gradient;
  const RowGroups& g = shape.groups;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int tiles_n = tiles_of(shape.n, kTileN), tiles_m = tiles_of(shape.m, kTileM);
  const int parts = wgrad ? g.count : g.count * g.shares;
  int before = 0;
  for (int first = 0; first < parts; first += kWarp) {
    const int part = first + lane;
    int tiles = 0;
    if (part < parts && wgrad) {
      tiles = rows_of(shared, g, part) > 0 ? tiles_m * tiles_n : 0;
    } else if (part < parts) {
      tiles = tiles_of(shared.rows[part], kTileM) * tiles_n;
    }
    const int to = sum_to_lane(tiles);
    if (part < parts) shared.first_tile[part] = before + to - tiles;
    before += __shfl_sync(0xffffffffU, to, kWarp - 1);
  }
  if (lane == 0) shared.first_tile[parts] = before;
}

// By the whole block. A tile of a weight gradient takes as long as its group has rows: blocks have
// as much to do as each other when they take turns from the longest to the shortest.
[[maybe_unused]] __device__ void order_groups(Shared& shared, const RowGroups& g) {
  for (int group = static_cast<int>(threadIdx.x); group < g.count; group += kBlock) {
    const int rows = rows_of(shared, g, group);
    int place = 0;
    for (int other = 0; other < g.count; ++other) {
      const int others = rows_of(shared, g, other);
      place += others > rows || (others == rows && other < group) ? 1 : 0;
    }
    shared.order[place] = group;
  }
}

struct Tile {
  int part = 0;      // its group's share of the rows, by group; of weight gradients the group
  int m = 0, n = 0;  // its first row and column: of all rows, or of the group's weight gradient
};

// Tiles go in bands of so many rows of tiles, column by column: those that an H100's or H200's 132
// blocks have at once are 16 x 8, which reads as much of either operand. Row by row they would read
// 132 tiles of one for each of the other, and memory takes power from the products.
constexpr int kBand = 16;

// The index-th of all tiles, of which a block draws rising ones; false: there are no more.
template <Product P>
__device__ bool find_tile(const Shared& shared, const Shape& shape, int index, Tile& tile) {
  constexpr bool wgrad = P == Product::weight_gradient;
  const RowGroups& g = shape.groups;
  if (index >= shared.first_tile[wgrad ? g.count : g.count * g.shares]) return false;
  const int tiles_n = tiles_of(shape.n, kTileN);
  int tiles_m = tiles_of(shape.m, kTileM), first = 0, within = 0;
  if constexpr (wgrad) {
    tile.part = shared.order[index / (tiles_m * tiles_n)];
    within = index % (tiles_m * tiles_n);
  } else {
    while (shared.first_tile[tile.part + 1] <= index) ++tile.part;
    within = index - shared.first_tile[tile.part];
    tiles_m = tiles_of(shared.rows[tile.part], kTileM);
    first = shared.first_row[tile.part];
  }
  const int band = within / (kBand * tiles_n) * kBand, in_band = within % (kBand * tiles_n);
  const int height = min(kBand, tiles_m - band);
  tile.m = first + (band + in_band % height) * kTileM;
  tile.n = in_band / height * kTileN;
  return true;
}

// What a tile contracts, in as many pieces as a weight gradient's group has shares.
struct Contracted {
  int begin = 0, count = 0;
};
template <Product P>
__device__ constexpr int pieces_of(const Shape& shape) {
  return P == Product::weight_gradient ? shape.groups.shares : 1;
}
template <Product P>
__device__ Contracted contracted(const Shared& shared, const Shape& shape, const Tile& tile,
                                 int piece) {
  if constexpr (P == Product::weight_gradient) {
    const int part = tile.part * shape.groups.shares + piece;
    return {shared.first_row[part], shared.rows[part]};
  } else {
    return {0, shape.k};
  }
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
    if (!find_tile<P>(shared, shape, index, tile)) return end_drawing(draw);
    index = draw_next(draw);  // arrives while this one's operands do
    for (int piece = 0; piece < pieces_of<P>(shape); ++piece) {
      const Contracted all = contracted<P>(shared, shape, tile, piece);
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

// Four neighbouring numbers are added where memory's cache is: nobody waits. Each number is added
// to by one thread, so the result does not depend on order.
__device__ inline void add_four(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}

[[maybe_unused]] __device__ void add_weights(float* out, const Shape& shape, const Tile& tile,
                                             int row, const float (&d)[kAccumulators]) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const bool odd = quad & 1;
  float* group = out + static_cast<std::int64_t>(tile.part) * shape.group_stride;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    float* to = group + static_cast<std::int64_t>(r) * shape.out_stride;
    // Of 2 times 8 columns, a pair of threads trades so that each has four neighbours of one.
#pragma unroll
    for (int j = 0; j < kTileN / 8; j += 2) {
      const int even_at = 4 * j + 2 * h, odd_at = even_at + 4;
      const float x = __shfl_xor_sync(0xffffffffU, odd ? d[even_at] : d[odd_at], 1);
      const float y = __shfl_xor_sync(0xffffffffU, odd ? d[even_at + 1] : d[odd_at + 1], 1);
      const int column = tile.n + 8 * (j + (odd ? 1 : 0)) + 4 * (quad / 2);
      if (r >= shape.m || column >= shape.n) continue;
      if (odd) {
        add_four(to + column, x, y, d[odd_at], d[odd_at + 1]);
      } else {
        add_four(to + column, d[even_at], d[even_at + 1], x, y);
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
  for (int turn = 0; find_tile<P>(shared, shape, take_over(shared, turn), tile); ++turn) {
    bool first = true;
    for (int piece = 0; piece < pieces_of<P>(shape); ++piece) {
      const Contracted all = contracted<P>(shared, shape, tile, piece);
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
      add_weights(static_cast<float*>(out), shape, tile, tile.m + row, d);
    } else {
      write_rows(static_cast<bf16*>(out), shape, tile, tile.m + row,
                 shared.first_row[tile.part] + shared.rows[tile.part], d);
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
    find_rows(shared, shape.groups);
    __syncwarp();
    find_tiles<P>(shared, shape);
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
    order_groups(shared, shape.groups);
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
