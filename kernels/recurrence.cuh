#pragma once
// What kernels share that walk along a sequence with a state: a block has 32 rows of one head's
// state, in registers, four threads a row; tokens pass in order, or in the reverse of it, some at a
// time through shared memory. Nobody waits for another block: rows of a state need no others.

#include "kernels/projected.cuh"

namespace qplan::kernels {

inline constexpr int kStateRows = 32, kLanes = 4, kWalkThreads = kStateRows * kLanes;
inline constexpr int kStaged = 16;  // tokens in shared memory at once

// What tokens bring: vectors as long as the state's rows, a number for each of the block's rows, a
// number for all.
template <int Own, int Vectors>
struct alignas(16) Staged {
  float vectors[Vectors][kStaged][kLanes * Own];
  float rows[2][kStaged][kStateRows];
  float numbers[2][kStaged];
};

// A thread's part of its row: numbers 4 (i * kLanes + lane) .. + 3 of it for each i, so that four
// threads read 64 neighbouring bytes of a vector.
template <int Own>
struct StateRow {
  float x[Own] = {};

  __device__ static const float4& part(const float* vector, int i) {
    return reinterpret_cast<const float4*>(vector)[i * kLanes + threadIdx.x % kLanes];
  }
  __device__ void scale(float by) {
#pragma unroll
    for (int i = 0; i < Own; ++i) x[i] *= by;
  }
  // x += by * vector.
  __device__ void add(float by, const float* vector) {
#pragma unroll
    for (int i = 0; i < Own / 4; ++i) {
      const float4 v = part(vector, i);
      x[4 * i] += by * v.x;
      x[4 * i + 1] += by * v.y;
      x[4 * i + 2] += by * v.z;
      x[4 * i + 3] += by * v.w;
    }
  }
  // The whole row times a vector, for each of its threads. All threads take part.
  __device__ float dot(const float* vector) const {
    float4 sum{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < Own / 4; ++i) {
      const float4 v = part(vector, i);
      sum.x += x[4 * i] * v.x;
      sum.y += x[4 * i + 1] * v.y;
      sum.z += x[4 * i + 2] * v.z;
      sum.w += x[4 * i + 3] * v.w;
    }
    float all = (sum.x + sum.y) + (sum.z + sum.w);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffU, all, step);
    return all;
  }
};

// One head's way along one sequence, whose rows begin at `begin`.
class Walk {
 public:
  __device__ Walk(std::int64_t begin, std::int64_t length, bool back)
      : begin_(begin), length_(static_cast<int>(length)), back_(back) {}

  // fetch() reads the tokens that come into registers, put() brings them to shared memory, step(i,
  // row) takes the i-th of them, whose row that is. The next ones are on their way meanwhile.
  template <class Fetch, class Put, class Step>
  __device__ void each(Fetch fetch, Put put, Step step) {
    fetch();
    while (coming_ < length_) {
      const int first = coming_;
      __syncthreads();
      put();
      __syncthreads();
      coming_ = first + kStaged;
      if (coming_ < length_) fetch();
      for (int i = 0; i < kStaged && first + i < length_; ++i) step(i, row_of(first + i));
    }
  }

  // Of the i-th token that comes.
  __device__ bool comes(int i) const { return i < kStaged && coming_ + i < length_; }
  __device__ std::int64_t row(int i) const { return row_of(coming_ + i); }
  __device__ bool is_last(std::int64_t row) const { return row + 1 == begin_ + length_; }

 private:
  __device__ std::int64_t row_of(int token) const {
    return begin_ + (back_ ? length_ - 1 - token : token);
  }
  std::int64_t begin_;
  int length_, coming_ = 0;
  bool back_;
};

// Columns first .. of rows of x, `stride` numbers each, on their way into shared memory: `cols` of
// them that are there, zeros behind.
template <class T>
struct RowsOf {
  const T* x;
  std::int64_t stride, first, cols;
};
template <class T, int Width>
struct Coming {
  static constexpr int kUnits = Width / kVector;  // of a token
  static constexpr int kOwn = (kStaged * kUnits + kWalkThreads - 1) / kWalkThreads;
  static constexpr int kBits = sizeof(T) * kVector / sizeof(uint4);
  uint4 bits[kOwn][kBits];

  __device__ static int token(int n) { return (n * kWalkThreads + threadIdx.x) / kUnits; }
  __device__ static int column(int n) {
    return (n * kWalkThreads + threadIdx.x) % kUnits * kVector;
  }
  __device__ void fetch(const Walk& walk, const RowsOf<T>& from) {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int i = token(n), c = column(n);
      const bool inside = walk.comes(i) && c < from.cols;
      const T* const place = from.x + (inside ? walk.row(i) * from.stride + from.first + c : 0);
#pragma unroll
      for (int j = 0; j < kBits; ++j) {
        bits[n][j] = inside ? reinterpret_cast<const uint4*>(place)[j] : uint4{};
      }
    }
  }
  __device__ void put(float (&to)[kStaged][Width]) const {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int i = token(n), c = column(n);
      if (i >= kStaged) continue;
      auto* const place = reinterpret_cast<float4*>(&to[i][c]);
      if constexpr (kBits == 1) {
        const Vector v = numbers_of(bits[n][0]);
        place[0] = {v.x[0], v.x[1], v.x[2], v.x[3]};
        place[1] = {v.x[4], v.x[5], v.x[6], v.x[7]};
      } else {
        const auto* const numbers = reinterpret_cast<const float4*>(bits[n]);
        place[0] = numbers[0];
        place[1] = numbers[1];
      }
    }
  }
};

// A number for each token that comes, of one thread each.
struct ComingNumber {
  float number = 0;
  template <class Number>
  __device__ void fetch(const Walk& walk, Number of) {
    if (walk.comes(threadIdx.x)) number = of(walk.row(threadIdx.x));
  }
  template <class Value>
  __device__ void put(float (&to)[kStaged], Value value) const {
    if (threadIdx.x < kStaged) to[threadIdx.x] = value(number);
  }
};

// The block's row that a thread has a part of, and whether it speaks for the row.
__device__ inline int state_row() {
  return threadIdx.x / kLanes;
}
__device__ inline bool speaks() {
  return threadIdx.x % kLanes == 0;
}

// Calls launch(numbers that a thread holds of a state's row) as a constant.
template <int Own>
struct StateWidth {
  static constexpr int kOwn = Own;
};
template <class Launch>
void with_state_width(std::int64_t cols, Launch launch) {
  if (cols <= 8 * kLanes) return launch(StateWidth<8>{});
  if (cols <= 16 * kLanes) return launch(StateWidth<16>{});
  launch(StateWidth<32>{});
}
inline unsigned state_slices(std::int64_t rows) {
  return static_cast<unsigned>(ceil_div(rows, kStateRows));
}

// x[t] becomes the sum of x[t'] over t' >= t of its sequence; x: (batch * length, heads). The
// gradients of a decay's logarithm follow from what a state's readings and additions have given.
void sum_from_behind(float* x, Rows rows, std::int64_t heads, cudaStream_t stream);

}  // namespace qplan::kernels
