#pragma once
// What kernels share that take a sequence in chunks of 64 tokens: tiles of bf16 in shared memory,
// products of such tiles on tensor cores, and the decays between a chunk's tokens.
//
// The state S of a head decays and grows from token to token. Between chunks it goes from one to
// the next; within a chunk a token reads the state that the chunk began with, and of each token
// before it what that added, by products of all its tokens at once.

#include <cuda_runtime_api.h>

#include "kernels/recurrent.h"
#include "kernels/tensor_cores.cuh"

namespace qplan::kernels {

inline constexpr int kChunk = kChunkTokens, kChunkThreads = 256,
                     kChunkWarps = kChunkThreads / kWarp;

// The block's dynamic shared memory.
template <class T>
__device__ inline T& shared_memory() {
#ifdef QPLAN_EMULATED
  static T shared;
  return shared;
#else
  extern __shared__ __align__(16) unsigned char bytes[];
  return *reinterpret_cast<T*>(bytes);
#endif
}
template <class Shared, class Kernel>
std::size_t shared_bytes(Kernel kernel) {
  cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                       cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  return sizeof(Shared);
}

// Rows are 16 bytes longer than their numbers: eight neighbouring ones lie in different banks.
template <int Rows, int Cols>
struct alignas(16) Tile {
  static constexpr int kRows = Rows, kCols = Cols, kStride = Cols + kVector;
  bf16 x[Rows][kStride];

  __device__ float at(int row, int col) const { return static_cast<float>(x[row][col]); }
  __device__ void put(int row, int col, float first, float second) {
    *reinterpret_cast<__nv_bfloat162*>(&x[row][col]) = __floats2bfloat162_rn(first, second);
  }
  __device__ float2 two(int row, int col) const {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x[row][col]));
  }
};

// A matrix in memory, of which `rows` x `cols` numbers are there. Columns come by eights.
struct Rectangle {
  const bf16* x;
  std::int64_t stride, rows, cols;
};

// A tile on its way from memory: asked for first, put into shared memory when it is needed.
template <int Rows, int Cols>
struct Coming {
  static constexpr int kUnits = Cols / kVector;  // of a row
  static constexpr int kOwn = Rows * kUnits / kChunkThreads;
  static_assert(kOwn * kChunkThreads == Rows * kUnits, "threads have as much of a tile each");
  uint4 bits[kOwn];

  __device__ static int row(int n) { return (n * kChunkThreads + threadIdx.x) / kUnits; }
  __device__ static int col(int n) { return (n * kChunkThreads + threadIdx.x) % kUnits * kVector; }
  __device__ void fetch(const Rectangle& from) {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const bool inside = row(n) < from.rows && col(n) < from.cols;
      bits[n] = inside ? load_bits(from.x + row(n) * from.stride + col(n)) : uint4{};
    }
  }
  __device__ void put(Tile<Rows, Cols>& to) const {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) *reinterpret_cast<uint4*>(&to.x[row(n)][col(n)]) = bits[n];
  }
  // Each row times a number of its own, of row(n) the n-th.
  __device__ void put(Tile<Rows, Cols>& to, const float (&weights)[kOwn]) const {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      Vector v = numbers_of(bits[n]);
#pragma unroll
      for (float& x : v.x) x *= weights[n];
      store(&to.x[row(n)][col(n)], v);
    }
  }
};
template <int Rows, int Cols>
__device__ Coming<Rows, Cols> coming(const Tile<Rows, Cols>&, const Rectangle& from) {
  Coming<Rows, Cols> tile;
  tile.fetch(from);
  return tile;
}

// A tile as the operand of a product, as it lies or transposed.
template <bool Transposed, int Rows, int Cols>
struct Operand {
  static constexpr bool kTransposed = Transposed;
  static constexpr int kRows = Transposed ? Cols : Rows, kCols = Transposed ? Rows : Cols;
  const Tile<Rows, Cols>& tile;

  // Four matrices of 8 x 8 numbers from (row, col) of the operand on, as a left operand's lane
  // wants them: below each other first; as a right one's: likewise, with rows contracted.
  __device__ void left(std::uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % kWarp;
    if constexpr (Transposed) {
      load_matrices<true>(r, &tile.x[col + lane % 8 + lane / 16 * 8][row + lane / 8 % 2 * 8]);
    } else {
      load_matrices<false>(r, &tile.x[row + lane % 16][col + lane / 16 * 8]);
    }
  }
  __device__ void right(std::uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % kWarp;
    if constexpr (Transposed) {
      load_matrices<false>(r, &tile.x[col + lane % 8 + lane / 16 * 8][row + lane / 8 % 2 * 8]);
    } else {
      load_matrices<true>(r, &tile.x[row + lane % 16][col + lane / 16 * 8]);
    }
  }
};
template <int Rows, int Cols>
__device__ Operand<false, Rows, Cols> plain(const Tile<Rows, Cols>& tile) {
  return {tile};
}
template <int Rows, int Cols>
__device__ Operand<true, Rows, Cols> transposed(const Tile<Rows, Cols>& tile) {
  return {tile};
}

// A block's product, Rows x Cols numbers in fp32: each warp has 16 rows, and all columns or half of
// them.
template <int Rows, int Cols>
struct Product {
  static constexpr int kStrips = Rows / 16, kParts = kChunkWarps / kStrips;
  static constexpr int kWidth = Cols / kParts, kTiles = kWidth / 8;
  static_assert(kStrips * kParts == kChunkWarps && kTiles % 2 == 0, "warps share a product");
  float x[kTiles][4] = {};

  __device__ static int warp() { return threadIdx.x / kWarp; }
  __device__ static int strip() { return warp() % kStrips; }
  __device__ static int part() { return warp() / kStrips; }
  __device__ static int row(int half) { return strip() * 16 + half * 8 + threadIdx.x % kWarp / 4; }
  __device__ static int col(int tile) { return part() * kWidth + tile * 8 + threadIdx.x % 4 * 2; }

  template <class Left, class Right>
  __device__ void add(const Left& left, const Right& right) {
    static_assert(Left::kRows == Rows && Right::kCols == Cols && Left::kCols == Right::kRows);
#pragma unroll
    for (int k = 0; k < Left::kCols; k += 16) {
      std::uint32_t a[4], b[4];
      left.left(a, strip() * 16, k);
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        right.right(b, k, part() * kWidth + t * 8);
        multiply_add(x[t], a, b[0], b[1]);
        multiply_add(x[t + 1], a, b[2], b[3]);
      }
    }
  }
  // Calls visit(row, column, number, the number right of it).
  template <class Visit>
  __device__ void each(Visit visit) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        visit(row(half), col(t), x[t][2 * half], x[t][2 * half + 1]);
      }
    }
  }
  __device__ void add(const Product& other) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) x[t][k] += other.x[t][k];
    }
  }
  __device__ void subtract_from(const Product& other) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) x[t][k] = other.x[t][k] - x[t][k];
    }
  }
  __device__ void scale(float by) {
#pragma unroll
    for (auto& tile : x) {
#pragma unroll
      for (float& number : tile) number *= by;
    }
  }
  template <class Scale>
  __device__ void scale_rows(Scale by) {
    const float above = by(row(0)), below = by(row(1));
    each([&](int r, int, float& first, float& second) {
      const float own = r == row(0) ? above : below;
      first *= own;
      second *= own;
    });
  }
  __device__ void put(Tile<Rows, Cols>& to) {
    each([&](int r, int c, float first, float second) { to.put(r, c, first, second); });
  }
  // From memory, what of it is there.
  __device__ void read(const bf16* from, std::int64_t stride, std::int64_t rows,
                       std::int64_t cols) {
    each([&](int r, int c, float& first, float& second) {
      float2 two{0, 0};
      if (r < rows && c < cols) {
        two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from + r * stride + c));
      }
      first = two.x;
      second = two.y;
    });
  }
  // Into memory, what of it is there: eight neighbours a thread, where it has as many tiles.
  __device__ void write(bf16* to, std::int64_t stride, std::int64_t rows, std::int64_t cols) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bf16* const begin = to + row(half) * stride;
      if constexpr (kTiles % 4 == 0) {
#pragma unroll
        for (int t = 0; t < kTiles; t += 4) {
          std::uint32_t v[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] = pair_of(x[t + i][2 * half], x[t + i][2 * half + 1]);
          transpose_quad(v);
          const int c = part() * kWidth + (t + static_cast<int>(threadIdx.x) % 4) * 8;
          if (row(half) >= rows || c >= cols) continue;
          *reinterpret_cast<uint4*>(begin + c) = uint4{v[0], v[1], v[2], v[3]};
        }
      } else {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (row(half) >= rows || col(t) >= cols) continue;
          *reinterpret_cast<std::uint32_t*>(begin + col(t)) =
              pair_of(x[t][2 * half], x[t][2 * half + 1]);
        }
      }
    }
  }
};

// A number for each row of a product, in parts: of the warps that share the row. Only whole warps
// call it; the sum is there after the next barrier.
template <int Parts>
struct RowSums {
  float x[Parts][kChunk];
  // of(half): a thread's own part.
  template <class Product, class Of>
  __device__ void put(Of of) {
    static_assert(Product::kParts == Parts);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = of(half);
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      if (threadIdx.x % 4 == 0) x[Product::part()][Product::row(half)] = sum;
    }
  }
  __device__ float operator[](int row) const {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < Parts; ++part) sum += x[part][row];
    return sum;
  }
};
// Likewise for each column of a product of a chunk with itself.
struct ColumnSums {
  using Pairs = Product<kChunk, kChunk>;
  float x[Pairs::kStrips][kChunk];
  // A thread's own part of its columns col(t) + i.
  __device__ void put(const float (&own)[Pairs::kTiles][2]) {
#pragma unroll
    for (int t = 0; t < Pairs::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = own[t][i];
#pragma unroll
        for (int step = 4; step < kWarp; step *= 2) {
          sum += __shfl_xor_sync(0xffffffffU, sum, step);
        }
        if (threadIdx.x % kWarp < 4) x[Pairs::strip()][Pairs::col(t) + i] = sum;
      }
    }
  }
  __device__ float operator[](int col) const {
    float sum = 0;
#pragma unroll
    for (const auto& strip : x) sum += strip[col];
    return sum;
  }
};

// Of a chunk and head: the sum of the decays' logarithms from the chunk's first token to each, that
// one's included, and the strength with which a token adds to the state. Behind a sequence's end
// nothing decays, and nothing is added. And what is left: of the chunk's first state at a token, of
// what a token added at the chunk's end, and that times its strength.
struct alignas(16) ChunkGates {
  float decay[kChunk], strength[kChunk];
  float since_begin[kChunk], to_end[kChunk], added[kChunk];

  // of(token, decay, strength) says what they are. By a warp.
  template <class Of>
  __device__ void fill(Of of) {
    const int lane = threadIdx.x % kWarp;
    float before = 0;
#pragma unroll
    for (int first = 0; first < kChunk; first += kWarp) {
      float own = 0, strong = 0;
      of(first + lane, own, strong);
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffU, own, step);
        if (lane >= step) own += other;
      }
      decay[first + lane] = before + own;
      strength[first + lane] = strong;
      since_begin[first + lane] = __expf(before + own);
      before += __shfl_sync(0xffffffffU, own, kWarp - 1);
    }
#pragma unroll
    for (int t = lane; t < kChunk; t += kWarp) {
      to_end[t] = __expf(before - decay[t]);
      added[t] = to_end[t] * strength[t];
    }
  }
  // What is left of what a token added at a later one, and of the first state at the end.
  __device__ float from_to(int token, int later) const {
    return __expf(decay[later] - decay[token]);
  }
  __device__ float whole() const {
    return since_begin[kChunk - 1];
  }
};
struct ComingGates {
  static constexpr int kUnits = sizeof(ChunkGates) / sizeof(uint4);
  uint4 bits{};
  __device__ void fetch(const ChunkGates& from) {
    if (threadIdx.x < kUnits) bits = reinterpret_cast<const uint4*>(&from)[threadIdx.x];
  }
  __device__ void put(ChunkGates& to) const {
    if (threadIdx.x < kUnits) reinterpret_cast<uint4*>(&to)[threadIdx.x] = bits;
  }
};
__device__ inline ComingGates coming(const ChunkGates& from) {
  ComingGates gates;
  gates.fetch(from);
  return gates;
}

// x[t] becomes the sum of x[t'] over t' >= t, and of `behind`. By the first warp.
__device__ inline void sum_from_behind(float (&x)[kChunk], float behind) {
#pragma unroll
  for (int first = kChunk - kWarp; first >= 0; first -= kWarp) {
    const int t = first + kWarp - 1 - static_cast<int>(threadIdx.x);
    float sum = x[t];
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const float other = __shfl_up_sync(0xffffffffU, sum, step);
      if (threadIdx.x >= step) sum += other;
    }
    x[t] = behind + sum;
    behind += __shfl_sync(0xffffffffU, sum, kWarp - 1);
  }
}

// One chunk of a sequence.
struct ChunkPlace {
  std::int64_t index = 0;  // of all sequences' chunks
  std::int64_t row = 0;    // its first
  std::int64_t rows = 0;   // that are there
};
__host__ __device__ inline std::int64_t chunks_of(std::int64_t length) {
  return (length + kChunk - 1) / kChunk;
}
__device__ inline ChunkPlace chunk_at(std::int64_t sequence, std::int64_t chunk,
                                      std::int64_t length) {
  const std::int64_t first = chunk * kChunk, left = length - first;
  return {sequence * chunks_of(length) + chunk, sequence * length + first,
          left < kChunk ? left : kChunk};
}
__device__ inline ChunkPlace chunk_at(std::int64_t index, std::int64_t length) {
  const std::int64_t chunks = chunks_of(length);
  return chunk_at(index / chunks, index % chunks, length);
}

// Calls launch(a head's width, made 64 or 128) with it as a constant.
template <int Width>
struct HeadWidth {
  static constexpr int kWidth = Width;
};
template <class Launch>
void with_width(std::int64_t cols, Launch launch) {
  if (cols <= 64) return launch(HeadWidth<64>{});
  launch(HeadWidth<128>{});
}

}  // namespace qplan::kernels
