// RMSNorm of each head, times the SiLU of a gate that lies in what the layer's projection made. A
// few threads share a head, eight numbers each.

#include "kernels/projected.cuh"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

// A head of a token, as far as a thread has it.
struct Head {
  std::int64_t row, column;  // of all heads; of the head
  bool inside;
  __device__ const bf16* gate(const GatedNorm& n) const {
    const std::int64_t heads = n.columns.heads, first = row % heads * n.columns.value_dim;
    return n.projected + row / heads * n.columns.stride + gate_column(n.columns, first + column);
  }
};

template <int Row, int Threads>
__global__ void __launch_bounds__(Threads) gated_norm_kernel(bf16* y, GatedNorm n) {
  const std::int64_t dim = n.columns.value_dim;
  Head head{std::int64_t{blockIdx.x} * (Threads / Row) + threadIdx.x / Row,
            threadIdx.x % Row * kVector, false};
  head.inside = head.row < n.rows * n.columns.heads && head.column < dim;
  Vector x = {}, gate = {}, weight = {};
  if (head.inside) {
    x = load(n.x + head.row * dim + head.column);
    gate = load(head.gate(n));
    weight = load(n.w + head.column);
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) squares += x.x[j] * x.x[j];
  const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(dim) + n.eps);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x.x[j] *= scale * weight.x[j] * gate.x[j] * sigmoid(gate.x[j]);
  }
  if (head.inside) store(y + head.row * dim + head.column, x);
}

// A block walks heads a grid apart and leaves its sum of the weight's gradient in parts[block, :].
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    gated_norm_backward_kernel(bf16* dx, bf16* dgate, const bf16* dy, float* parts, GatedNorm n) {
  constexpr int kHeads = Threads / Row;
  const std::int64_t dim = n.columns.value_dim, all = n.rows * n.columns.heads;
  Head head{0, threadIdx.x % Row * kVector, false};
  const Vector weight = head.column < dim ? load(n.w + head.column) : Vector{};
  Vector sums = {};
  // Heads share a warp: all threads take as many turns.
  for (std::int64_t first = std::int64_t{blockIdx.x} * kHeads; first < all;
       first += std::int64_t{gridDim.x} * kHeads) {
    head.row = first + threadIdx.x / Row;
    head.inside = head.row < all && head.column < dim;
    const std::int64_t at = head.row * dim + head.column;
    Vector x = {}, gate = {}, d = {};
    if (head.inside) {
      x = load(n.x + at);
      gate = load(head.gate(n));
      d = load(dy + at);
    }
    float squares = 0, product = 0;
    Vector by_norm;  // the gradient of the normed row
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      by_norm.x[j] = d.x[j] * gate.x[j] * sigmoid(gate.x[j]);
      squares += x.x[j] * x.x[j];
      product += by_norm.x[j] * weight.x[j] * x.x[j];
    }
    const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(dim) + n.eps);
    const float mean = row_sum<Row>(product) * scale / static_cast<float>(dim);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float normed = x.x[j] * scale, s = sigmoid(gate.x[j]);
      sums.x[j] += by_norm.x[j] * normed;
      x.x[j] = scale * (by_norm.x[j] * weight.x[j] - normed * mean);
      gate.x[j] = d.x[j] * normed * weight.x[j] * s * (1 + gate.x[j] * (1 - s));
    }
    if (!head.inside) continue;
    store(dx + at, x);
    store(dgate + at, gate);
  }
  __shared__ float shared[kHeads][Row * kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) shared[threadIdx.x / Row][head.column + j] = sums.x[j];
  __syncthreads();
  for (int c = threadIdx.x; c < dim; c += Threads) {
    float sum = 0;
    for (int i = 0; i < kHeads; ++i) sum += shared[i][c];
    parts[blockIdx.x * dim + c] = sum;
  }
}

}  // namespace

void gated_norm(bf16* y, const GatedNorm& norm, cudaStream_t stream) {
  with_head_shape(norm.columns.value_dim, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks =
        static_cast<unsigned>(ceil_div(norm.rows * norm.columns.heads, S::kThreads / S::kRow));
    gated_norm_kernel<S::kRow, S::kThreads><<<blocks, S::kThreads, 0, stream>>>(y, norm);
  });
}

void gated_norm_backward(bf16* dx, bf16* dgate, float* dw, const bf16* dy, const GatedNorm& norm,
                         float* scratch, cudaStream_t stream) {
  with_head_shape(norm.columns.value_dim, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t wanted = ceil_div(norm.rows * norm.columns.heads, S::kThreads / S::kRow * 4);
    const std::int64_t most = kBackwardThreads / S::kThreads;
    const std::int64_t blocks = wanted < most ? wanted : most, dim = norm.columns.value_dim;
    gated_norm_backward_kernel<S::kRow, S::kThreads>
        <<<static_cast<unsigned>(blocks), S::kThreads, 0, stream>>>(dx, dgate, dy, scratch, norm);
    if (dw != nullptr) add_parts(dw, scratch, blocks, dim, dim, stream);
  });
}

}  // namespace qplan::kernels
