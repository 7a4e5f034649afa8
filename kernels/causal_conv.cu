// A convolution of each channel over its last four tokens, and SiLU. A thread has eight channels of
// some tokens, one after the other, and the last few in registers.

#include "kernels/projected.cuh"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

constexpr int kTaps = static_cast<int>(kConvTaps);
constexpr int kConvThreads = 64;          // of a block: so many times eight channels
constexpr std::int64_t kConvTokens = 64;  // of a thread

// Weights of eight channels, and what they see.
struct Taps {
  Vector weight[kTaps], bias = {};
};
__device__ Taps taps_of(const Convolution& conv, std::int64_t channel) {
  Taps taps;
#pragma unroll
  for (int i = 0; i < kVector * kTaps; i += kVector) {  // (channel, tap): two channels a vector
    const Vector v = load(conv.weight + channel * kTaps + i);
#pragma unroll
    for (int j = 0; j < kVector; ++j) taps.weight[(i + j) % kTaps].x[(i + j) / kTaps] = v.x[j];
  }
  if (conv.bias != nullptr) taps.bias = load(conv.bias + channel);
  return taps;
}

// The oldest token leaves, the next one comes.
__device__ void move_on(Vector (&window)[kTaps], const Vector& next) {
#pragma unroll
  for (int i = 0; i + 1 < kTaps; ++i) window[i] = window[i + 1];
  window[kTaps - 1] = next;
}

__device__ Vector sums_of(const Taps& taps, const Vector (&window)[kTaps]) {
  Vector sum = taps.bias;
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum.x[j] += taps.weight[i].x[j] * window[i].x[j];
  }
  return sum;
}

// The tokens of a sequence that a block takes: blockIdx.y counts pieces of all sequences.
struct Piece {
  std::int64_t begin, first, last;  // the sequence's first row; tokens of it
};
__host__ __device__ std::int64_t pieces_of_sequence(const Rows& rows) {
  return (rows.length + kConvTokens - 1) / kConvTokens;
}
__host__ __device__ std::int64_t pieces_of(const Rows& rows) {
  return rows.batch * pieces_of_sequence(rows);
}
__device__ Piece piece_of(const Rows& rows, std::int64_t piece) {
  const std::int64_t pieces = pieces_of_sequence(rows);
  const std::int64_t first = piece % pieces * kConvTokens;
  const std::int64_t last = first + kConvTokens;
  return {piece / pieces * rows.length, first, last < rows.length ? last : rows.length};
}

__global__ void __launch_bounds__(kConvThreads) causal_conv_kernel(bf16* y, Convolution conv) {
  const std::int64_t channel = (std::int64_t{blockIdx.x} * kConvThreads + threadIdx.x) * kVector;
  if (channel >= conv.channels) return;
  const Taps taps = taps_of(conv, channel);
  const Piece piece = piece_of(conv.rows, blockIdx.y);
  const bf16* const x =
      conv.x + piece.begin * conv.columns.stride + channel_column(conv.columns, channel);
  const auto at = [&](std::int64_t t) {
    return t < 0 ? Vector{} : load(x + t * conv.columns.stride);
  };
  Vector window[kTaps] = {};
  for (std::int64_t t = piece.first - kTaps + 1; t < piece.first; ++t) move_on(window, at(t));
#pragma unroll 4
  for (std::int64_t t = piece.first; t < piece.last; ++t) {
    move_on(window, at(t));
    Vector sum = sums_of(taps, window);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum.x[j] *= sigmoid(sum.x[j]);
    store(y + (piece.begin + t) * conv.channels + channel, sum);
  }
}

// A token's input gets gradients of the sums of itself and of the three tokens behind it. Sums over
// tokens of the weights' gradients, and the bias's, in parts[blockIdx.y, :]: (channel, tap), then
// (channel).
__global__ void __launch_bounds__(kConvThreads)
    causal_conv_backward_kernel(bf16* dx, std::int64_t dx_stride, const bf16* dy, float* parts,
                                Convolution conv) {
  const std::int64_t channel = (std::int64_t{blockIdx.x} * kConvThreads + threadIdx.x) * kVector;
  if (channel >= conv.channels) return;
  const Taps taps = taps_of(conv, channel);
  const bf16* const column = conv.x + channel_column(conv.columns, channel);
  Vector of_weight[kTaps] = {}, of_bias = {};
  for (std::int64_t p = blockIdx.y; p < pieces_of(conv.rows); p += gridDim.y) {
    const Piece piece = piece_of(conv.rows, p);
    const auto at = [&](std::int64_t t) {
      return t < 0 ? Vector{} : load(column + (piece.begin + t) * conv.columns.stride);
    };
    Vector window[kTaps] = {}, gradients[kTaps] = {};  // of tokens t - 3 .. t, and of their sums
    for (std::int64_t t = piece.first - kTaps + 1; t < piece.first; ++t) move_on(window, at(t));
    for (std::int64_t t = piece.first; t < piece.last + kTaps - 1; ++t) {
      Vector d = {};
      if (t < conv.rows.length) {
        move_on(window, at(t));
        d = load(dy + (piece.begin + t) * conv.channels + channel);
        const Vector sum = sums_of(taps, window);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float s = sigmoid(sum.x[j]);
          d.x[j] *= s * (1 + sum.x[j] * (1 - s));
        }
      }
      move_on(gradients, d);
      if (t < piece.last) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) of_weight[i].x[j] += d.x[j] * window[i].x[j];
        }
#pragma unroll
        for (int j = 0; j < kVector; ++j) of_bias.x[j] += d.x[j];
      }
      const std::int64_t of = t - kTaps + 1;  // whose last reader was t
      if (of < piece.first) continue;
      Vector out = {};
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          out.x[j] += taps.weight[kTaps - 1 - i].x[j] * gradients[i].x[j];
        }
      }
      store(dx + (piece.begin + of) * dx_stride + channel, out);
    }
  }
  float* const own = parts + blockIdx.y * conv.channels * (kTaps + 1);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) own[(channel + j) * kTaps + i] = of_weight[i].x[j];
    own[conv.channels * kTaps + channel + j] = of_bias.x[j];
  }
}

unsigned blocks_of(const Convolution& conv) {
  return static_cast<unsigned>(ceil_div(conv.channels, kConvThreads * kVector));
}

}  // namespace

void causal_conv(bf16* y, const Convolution& conv, cudaStream_t stream) {
  const dim3 grid(blocks_of(conv), static_cast<unsigned>(pieces_of(conv.rows)));
  causal_conv_kernel<<<grid, kConvThreads, 0, stream>>>(y, conv);
}

void causal_conv_backward(bf16* dx, std::int64_t dx_stride, float* dweight, float* dbias,
                          const bf16* dy, const Convolution& conv, float* scratch,
                          cudaStream_t stream) {
  // Two blocks a multiprocessor of an H100 for each 512 channels, as the scratch has room.
  const std::int64_t width = conv.channels * (kTaps + 1);
  const std::int64_t room = kScratchBytes / 4 / width, most = room < 256 ? room : 256;
  const std::int64_t wanted = pieces_of(conv.rows), parts = wanted < most ? wanted : most;
  const dim3 grid(blocks_of(conv), static_cast<unsigned>(parts));
  causal_conv_backward_kernel<<<grid, kConvThreads, 0, stream>>>(dx, dx_stride, dy, scratch, conv);
  if (dweight != nullptr) {
    add_parts(dweight, scratch, parts, conv.channels * kTaps, width, stream);
  }
  if (dbias != nullptr) {
    add_parts(dbias, scratch + conv.channels * kTaps, parts, conv.channels, width, stream);
  }
}

}  // namespace qplan::kernels
