#include "executor/cuda/attention_cudnn.h"

#include <cmath>
#include <limits>

#include "models/error.h"

namespace qplan {
namespace {

constexpr cudnnDataType_t kHalf = CUDNN_DATA_BFLOAT16;
constexpr std::int64_t kAlignment = 256;

std::int64_t round_up(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Heads side by side in rows, as the program has them; a sequence's rows are the first of `stored`.
CudnnShape rows_of_heads(std::int64_t batch, std::int64_t heads, std::int64_t len, std::int64_t dim,
                         std::int64_t stored) {
  return {{batch, heads, len, dim}, {stored * heads * dim, dim, heads * dim, 1}};
}
CudnnShape rows_of_heads(std::int64_t batch, std::int64_t heads, std::int64_t len,
                         std::int64_t dim) {
  return rows_of_heads(batch, heads, len, dim, len);
}

CudnnShape transposed(CudnnShape s) {
  std::swap(s.dims[2], s.dims[3]);
  std::swap(s.strides[2], s.strides[3]);
  return s;
}

CudnnShape dense(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t cols) {
  return {{batch, heads, rows, cols}, {heads * rows * cols, rows * cols, cols, 1}};
}

}  // namespace

// cuDNN recognises attention by its pattern of operations; these are the patterns that its own
// front end writes (NVIDIA/cudnn-frontend, scaled_dot_product_flash_attention.h).
struct CudnnAttention::Prepared {
  TensorId q = 0, k = 0, v = 0, out = 0, log_sum_exp = 0;
  TensorId dout = 0, dq = 0, dk = 0, dv = 0;
  TensorId dot = 0, dq_sum = 0;  // backward's own: rows' sums of dout out; dq in fp32, or none
  std::int64_t dot_bytes = 0, dq_sum_bytes = 0;
  CudnnPlan plan;

  Prepared(cudnnHandle_t handle, const Attention& work, AttentionRows stored, double stretch)
      : w_(work),
        score_scale_(stretch / std::sqrt(static_cast<double>(work.head_dim))),
        q_rows_(stored.q > 0 ? stored.q : work.q_len),
        kv_rows_(stored.kv > 0 ? stored.kv : work.kv_len),
        scores_(dense(work.batch, work.heads, work.q_len, work.kv_len)) {
    q = graph_.memory(rows_of_heads(w_.batch, w_.heads, w_.q_len, w_.head_dim, q_rows_), kHalf);
    const CudnnShape keys = rows_of_heads(w_.batch, w_.kv_heads, w_.kv_len, w_.head_dim, kv_rows_);
    const CudnnShape values =
        rows_of_heads(w_.batch, w_.kv_heads, w_.kv_len, w_.v_head_dim, kv_rows_);
    k = graph_.memory(transposed(keys), kHalf);
    const bool forward = w_.pass == Pass::forward;
    v = graph_.memory(forward ? values : transposed(values), kHalf);
    out = graph_.memory(
        rows_of_heads(w_.batch, w_.heads, w_.q_len, w_.v_head_dim, forward ? w_.q_len : q_rows_),
        kHalf);
    log_sum_exp = graph_.memory(dense(w_.batch, w_.heads, w_.q_len, 1), CUDNN_DATA_FLOAT);
    forward ? build_forward() : build_backward();
    plan = graph_.plan(handle);
  }

  [[nodiscard]] std::int64_t scratch_bytes() const {
    return round_up(plan.workspace_bytes()) + round_up(dot_bytes) + round_up(dq_sum_bytes);
  }

 private:
  TensorId scaled_scores() {
    const TensorId product = graph_.inner(scores_), scaled = graph_.inner(scores_);
    graph_.matmul(q, k, product);
    scale_ = graph_.number(static_cast<float>(score_scale_));
    graph_.pointwise(CUDNN_POINTWISE_MUL, product, scale_, 0, scaled);
    return scaled;
  }

  // -infinity where the key is behind the query, or the window's length or more before it.
  TensorId masked(TensorId scores) {
    const auto select = [&](bool from_window) {
      const TensorId row = graph_.inner(scores_, CUDNN_DATA_INT32);
      const TensorId col = graph_.inner(scores_, CUDNN_DATA_INT32);
      const TensorId visible = graph_.inner(scores_, CUDNN_DATA_BOOLEAN);
      const TensorId result = graph_.inner(scores_);
      graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, 0, 0, row, CUDNN_DATA_INT32, 2);
      graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, 0, 0, col, CUDNN_DATA_INT32, 3);
      if (from_window) {
        const TensorId reach = graph_.inner(scores_);
        graph_.pointwise(CUDNN_POINTWISE_ADD, col, graph_.number(static_cast<float>(w_.window)), 0,
                         reach);
        graph_.pointwise(CUDNN_POINTWISE_CMP_GT, reach, row, 0, visible, CUDNN_DATA_BOOLEAN);
      } else {
        graph_.pointwise(CUDNN_POINTWISE_CMP_GE, row, col, 0, visible, CUDNN_DATA_BOOLEAN);
      }
      const TensorId hidden = graph_.number(-std::numeric_limits<float>::infinity());
      graph_.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, hidden, visible, result);
      scores = result;
    };
    if (w_.causal) select(false);
    if (w_.window > 0 && w_.window < w_.kv_len) select(true);
    return scores;
  }

  void build_forward() {
    const CudnnShape one_a_row = dense(w_.batch, w_.heads, w_.q_len, 1);
    const TensorId scores = masked(scaled_scores());
    const TensorId maximum = graph_.inner(one_a_row), sum = graph_.inner(one_a_row);
    const TensorId log = graph_.inner(one_a_row);
    const TensorId shifted = graph_.inner(scores_), exponential = graph_.inner(scores_);
    const TensorId probability = graph_.inner(scores_, kHalf);
    graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, maximum);
    graph_.pointwise(CUDNN_POINTWISE_SUB, scores, maximum, 0, shifted);
    graph_.pointwise(CUDNN_POINTWISE_EXP, shifted, 0, 0, exponential);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, exponential, sum);
    graph_.pointwise(CUDNN_POINTWISE_LOG, sum, 0, 0, log);
    graph_.pointwise(CUDNN_POINTWISE_ADD, maximum, log, 0, log_sum_exp);
    graph_.pointwise(CUDNN_POINTWISE_DIV, exponential, sum, 0, probability);
    graph_.matmul(probability, v, out);
  }

  void build_backward() {
    const CudnnShape keys = rows_of_heads(w_.batch, w_.kv_heads, w_.kv_len, w_.head_dim);
    const CudnnShape values = rows_of_heads(w_.batch, w_.kv_heads, w_.kv_len, w_.v_head_dim);
    const CudnnShape queries = rows_of_heads(w_.batch, w_.heads, w_.q_len, w_.head_dim);
    const CudnnShape one_a_row = dense(w_.batch, w_.heads, w_.q_len, 1);
    CudnnShape flipped = transposed(scores_);
    dout =
        graph_.memory(rows_of_heads(w_.batch, w_.heads, w_.q_len, w_.v_head_dim, q_rows_), kHalf);
    dq = graph_.memory(queries, kHalf);
    dk = graph_.memory(keys, kHalf);
    dv = graph_.memory(values, kHalf);
    dot = graph_.memory(one_a_row, CUDNN_DATA_FLOAT);
    dot_bytes = w_.batch * w_.heads * w_.q_len * 4;
    if (!w_.deterministic) {
      dq_sum = graph_.memory(dense(w_.batch, w_.heads, w_.q_len, w_.head_dim), CUDNN_DATA_FLOAT);
      dq_sum_bytes = w_.batch * w_.heads * w_.q_len * w_.head_dim * 4;
    }

    // dot = rows' sums of dout out.
    const TensorId products =
        graph_.inner({{w_.batch, w_.heads, w_.q_len, w_.v_head_dim},
                      {w_.heads * w_.q_len * w_.v_head_dim, w_.q_len * w_.v_head_dim,
                       w_.heads * w_.v_head_dim, 1}});
    const TensorId row_sums = graph_.inner(one_a_row);
    graph_.pointwise(CUDNN_POINTWISE_MUL, dout, out, 0, products);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, products, row_sums);
    graph_.pointwise(CUDNN_POINTWISE_MUL, row_sums, graph_.number(1), 0, dot);

    // p = exp(scores - log-sum-exp); dv = p^T dout.
    const TensorId scaled = scaled_scores(), shifted = graph_.inner(scores_);
    graph_.pointwise(CUDNN_POINTWISE_SUB, scaled, log_sum_exp, 0, shifted);
    const TensorId hidden = masked(shifted), p = graph_.inner(scores_);
    graph_.pointwise(CUDNN_POINTWISE_EXP, hidden, 0, 0, p);
    const TensorId p_flipped = graph_.inner(flipped, kHalf);
    graph_.reshape(p, p_flipped);
    product_by_head(p_flipped, dout, dv, w_.v_head_dim);

    // ds = p (dout v^T - dot) scale; dk = ds^T q; dq = ds k.
    const TensorId dp = graph_.inner(scores_), centred = graph_.inner(scores_);
    const TensorId weighted = graph_.inner(scores_), ds = graph_.inner(scores_);
    graph_.matmul(dout, v, dp);
    graph_.pointwise(CUDNN_POINTWISE_SUB, dp, dot, 0, centred);
    graph_.pointwise(CUDNN_POINTWISE_MUL, centred, p, 0, weighted);
    graph_.pointwise(CUDNN_POINTWISE_MUL, weighted, scale_, 0, ds);
    const TensorId ds_flipped = graph_.inner(flipped, kHalf);
    graph_.reshape(ds, ds_flipped);
    product_by_head(ds_flipped, q, dk, w_.head_dim);
    const TensorId k_rows =
        graph_.inner(rows_of_heads(w_.batch, w_.kv_heads, w_.kv_len, w_.head_dim, kv_rows_), kHalf);
    graph_.reshape(k, k_rows);
    // Blocks of keys add to a sum in memory as they come; without one cuDNN stores ds and
    // multiplies it on its own, in a fixed order.
    if (w_.deterministic) return graph_.matmul(ds, k_rows, dq);
    graph_.matmul(ds, k_rows, dq_sum);
    graph_.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sum, 0, 0, dq);
  }

  // A product for each query head; where heads share keys and values, summed over those that do.
  void product_by_head(TensorId a, TensorId b, TensorId c, std::int64_t dim) {
    if (w_.heads == w_.kv_heads) return graph_.matmul(a, b, c);
    const TensorId by_head = graph_.inner(dense(w_.batch, w_.heads, w_.kv_len, dim), kHalf);
    graph_.matmul(a, b, by_head);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, by_head, c);
  }

  Attention w_;
  double score_scale_;
  std::int64_t q_rows_, kv_rows_;
  CudnnShape scores_;
  CudnnGraph graph_;
  TensorId scale_ = 0;
};

CudnnAttention::CudnnAttention(double stretch) : handle_(make_cudnn()), stretch_(stretch) {}
CudnnAttention::~CudnnAttention() = default;

CudnnAttention::Prepared& CudnnAttention::prepared(const Attention& work, AttentionRows stored) {
  std::unique_ptr<Prepared>& p = prepared_[{hash_of(Work(work)), stored.q, stored.kv}];
  if (p == nullptr) p = std::make_unique<Prepared>(handle_.get(), work, stored, stretch_);
  return *p;
}

std::int64_t CudnnAttention::prepare(const Attention& work, AttentionRows stored) {
  return prepared(work, stored).scratch_bytes();
}

void CudnnAttention::run(const Attention& work, const AttentionOperands& o, void* scratch,
                         cudaStream_t stream, AttentionRows stored) {
  const Prepared& p = prepared(work, stored);
  check(cudnnSetStream(handle_.get(), stream));
  std::vector<std::pair<TensorId, void*>> tensors{
      {p.q, o.q}, {p.k, o.k}, {p.v, o.v}, {p.out, o.out}, {p.log_sum_exp, o.log_sum_exp}};
  auto* free = static_cast<std::byte*>(scratch);
  void* workspace = free;
  free += round_up(p.plan.workspace_bytes());
  if (work.pass == Pass::backward) {
    void* dot = free;
    void* dq_sum = free + round_up(p.dot_bytes);
    for (const auto& tensor :
         {std::pair{p.dout, o.dout}, std::pair{p.dq, o.dq}, std::pair{p.dk, o.dk},
          std::pair{p.dv, o.dv}, std::pair{p.dot, dot}}) {
      tensors.push_back(tensor);
    }
    if (p.dq_sum != 0) tensors.emplace_back(p.dq_sum, dq_sum);
  }
  p.plan.execute(handle_.get(), tensors, workspace);
}

}  // namespace qplan
