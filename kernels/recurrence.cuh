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

  // stage(first, count) fills shared memory with the tokens first .. first + count - 1 that are
  // walked, step(i, row) takes the i-th of them, whose row that is.
  template <class Stage, class Step>
  __device__ void each(Stage stage, Step step) {
    for (int first = 0; first < length_; first += kStaged) {
      const int count = length_ - first < kStaged ? length_ - first : kStaged;
      first_ = first;
      count_ = count;
      __syncthreads();
      stage();
      __syncthreads();
      for (int i = 0; i < count; ++i) step(i, row(i));
    }
  }

  // The row of the i-th staged token.
  __device__ std::int64_t row(int i) const {
    return begin_ + (back_ ? length_ - 1 - first_ - i : first_ + i);
  }
  __device__ bool is_last(std::int64_t row) const { return row + 1 == begin_ + length_; }

  // Columns first .. of the staged tokens' rows of x, `stride` numbers each: `cols` of them that
  // are there, zeros behind; times what by(row) says.
  template <int Width, class T, class By>
  __device__ void take(float (&to)[kStaged][Width], const T* x, std::int64_t stride,
                       std::int64_t first, std::int64_t cols, By by) const {
    constexpr int kUnits = Width / kVector;
#pragma unroll 4
    for (int unit = threadIdx.x; unit < kStaged * kUnits; unit += kWalkThreads) {
      const int i = unit / kUnits, c = unit % kUnits * kVector;
      if (i >= count_) break;
      Vector v = {};
      if (c < cols) {
        v = load(x + row(i) * stride + first + c);
        const float scale = by(row(i));
#pragma unroll
        for (int j = 0; j < kVector; ++j) v.x[j] *= scale;
      }
      auto* place = reinterpret_cast<float4*>(&to[i][c]);
      place[0] = {v.x[0], v.x[1], v.x[2], v.x[3]};
      place[1] = {v.x[4], v.x[5], v.x[6], v.x[7]};
    }
  }
  template <int Width, class T>
  __device__ void take(float (&to)[kStaged][Width], const T* x, std::int64_t stride,
                       std::int64_t first, std::int64_t cols) const {
    take(to, x, stride, first, cols, [](std::int64_t) { return 1.0F; });
  }
  // A number for each staged token.
  template <class Number>
  __device__ void take_numbers(float (&to)[kStaged], Number number) const {
    const int i = threadIdx.x;
    if (i < count_) to[i] = number(row(i));
  }

 private:
  std::int64_t begin_;
  int length_, first_ = 0, count_ = 0;
  bool back_;
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
