#pragma once
// Every kernel of ours: what no library does at full speed. Pointers are to device memory, arrays
// are row-major and dense unless a stride says otherwise, activations are bf16 and all arithmetic
// is fp32. A launcher returns before its kernel has run; errors of a launch are the next
// cudaGetLastError's. No kernel adds floats with atomics; where blocks add up the rows that they
// happened to draw, sums change from run to run by rounding, unless a fixed order is asked for.
//
// Rows and columns: unless noted, columns are a multiple of 8 (16-byte accesses) and slots begin at
// multiples of 16 bytes. C++17, so that nvcc's front end needs no newer one.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/scratch.h"

namespace qplan::kernels {

using bf16 = __nv_bfloat16;

// Which rows a block adds up where it leaves sums over rows: those that it draws, so that blocks
// without a multiprocessor hold nobody up, or the same in every run.
enum class RowOrder { drawn, fixed };

// ---- norms ----

// Rows that lie side by side: `heads` of them in each line of `stride` elements, `step` apart (0:
// one behind the other). heads 1 and stride cols: a dense matrix.
struct Lines {
  std::int64_t heads = 1, stride = 0, step = 0;
};

// y = x / sqrt(mean(x^2) + eps) * (centre + w), row by row; w: (cols) bf16; cols <= 16384.
void rms_norm(bf16* y, Lines y_lines, const bf16* x, Lines x_lines, const bf16* w,
              std::int64_t rows, std::int64_t cols, float eps, cudaStream_t stream,
              float centre = 0);
// With r = 1/sqrt(mean(x^2) + eps), n = x r, g = dy (centre + w): dx = r (g - n mean(g n)) (+
// residual), dw += sum over rows of dy n. dw: (cols) fp32, or null: not wanted; residual: as dx, or
// null.
struct NormBackward {
  bf16* dx = nullptr;
  float* dw = nullptr;
  const bf16 *x = nullptr, *dy = nullptr, *w = nullptr, *residual = nullptr;
  Lines dx_lines, x_lines, dy_lines;
  float centre = 0;
};
void rms_norm_backward(const NormBackward& operands, std::int64_t rows, std::int64_t cols,
                       float eps, float* scratch, cudaStream_t stream,
                       RowOrder order = RowOrder::drawn);

// LayerNorm's scale is centre + weight (Megatron's layer_norm_1p: 1); weight, bias: (cols) bf16.
struct LayerNormWeights {
  const bf16 *weight = nullptr, *bias = nullptr;
  float centre = 0;
};
// y = (x - mean) / sqrt(variance + eps) * (centre + weight) + bias, row by row; cols <= 16384.
void layer_norm(bf16* y, const bf16* x, const LayerNormWeights& weights, std::int64_t rows,
                std::int64_t cols, float eps, cudaStream_t stream);
// With r = 1/sqrt(variance + eps), n = (x - mean) r, g = dy (centre + weight): dx = r (g - mean(g)
// - n mean(g n)) (+ residual), dw += sum over rows of dy n, db += sum over rows of dy. dw, db:
// (cols) fp32, or both null: not wanted; residual: as dx, or null.
struct LayerNormBackward {
  bf16* dx = nullptr;
  float *dw = nullptr, *db = nullptr;
  const bf16 *x = nullptr, *dy = nullptr, *residual = nullptr;
  LayerNormWeights p;
};
void layer_norm_backward(const LayerNormBackward& operands, std::int64_t rows, std::int64_t cols,
                         float eps, float* scratch, cudaStream_t stream,
                         RowOrder order = RowOrder::drawn);

// ---- rotary embedding ----

// Heads of queries, keys and values packed in one row, {q|k|v}, and apart. v null: the packed row
// is {q|k}.
struct PackedHeads {
  bf16 *packed = nullptr, *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t rows = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
};
// The first `turned` numbers of each head of q and k turn by their row's angles (pairs i and
// i + turned/2, or `neighbours` 2i and 2i + 1), a multiple of 16; 0: heads are copied as they are.
// angles: (positions, turned/2) of (cos, sin); position: one for each row.
struct Rotation {
  std::int64_t turned = 0;
  const float2* angles = nullptr;
  const std::int32_t* position = nullptr;
  bool neighbours = false;
};
// What each row's queries are multiplied by: factors[position[row]]; factors null: 1.
struct QueryFactors {
  const float* factors = nullptr;
  const std::int32_t* position = nullptr;
};
void split_heads(const PackedHeads& heads, const Rotation& rotation, cudaStream_t stream,
                 const QueryFactors& queries = {});
// The same backwards: gradients into the packed row, turned the other way.
void pack_heads(const PackedHeads& heads, const Rotation& rotation, cudaStream_t stream,
                const QueryFactors& queries = {});

// packed {q|k} = each head of q and k / sqrt(mean of its squares + eps), without weights; v null.
// head_dim <= 256.
void norm_heads(const PackedHeads& heads, float eps, cudaStream_t stream);
// dpacked {q|k|v} from dnormed, the gradient of {q|k}; q, k: what norm_heads read; v: its gradient,
// which is copied; packed is not read. With r = 1/sqrt(mean(x^2) + eps), n = x r:
// dx = r (dy - n mean(dy n)).
void norm_heads_backward(bf16* dpacked, const bf16* dnormed, const PackedHeads& heads, float eps,
                         cudaStream_t stream);

// With a norm of each head of q and k before they turn, halves with halves; weights: (head_dim);
// head_dim <= 256.
struct HeadNorms {
  const bf16 *q = nullptr, *k = nullptr;
  float eps = 0;
};
void split_normed_heads(const PackedHeads& heads, const Rotation& rotation, const HeadNorms& norms,
                        cudaStream_t stream);
// packed: what split_normed_heads read; q, k, v: gradients of what it wrote; dpacked: as packed.
// dq_norm, dk_norm: (head_dim) fp32, added to.
void pack_normed_heads(bf16* dpacked, float* dq_norm, float* dk_norm, const PackedHeads& heads,
                       const Rotation& rotation, const HeadNorms& norms, float* scratch,
                       cudaStream_t stream, RowOrder order = RowOrder::drawn);

// Latent attention (arXiv 2405.04434): a head's query and key have `plain` numbers and then
// `turned` ones, whose neighbours turn together, its value `value`. All multiples of 8. A row of
// the latent has `latent` numbers and then the rotary key of all heads.
struct LatentHeads {
  std::int64_t rows = 0, heads = 0, plain = 0, turned = 0, value = 0;
  std::int64_t latent = 0, latent_stride = 0;
};
void turn_latent_queries(bf16* to, const bf16* from, const LatentHeads& heads,
                         const Rotation& rotation, bool back, cudaStream_t stream);
// up: {plain key, value} of each head. Backward leaves the latent's own columns as they are.
void expand_latent(bf16* k, bf16* v, const bf16* up, const bf16* latent, const LatentHeads& heads,
                   const Rotation& rotation, cudaStream_t stream);
void expand_latent_backward(bf16* dup, bf16* dlatent, const bf16* dk, const bf16* dv,
                            const LatentHeads& heads, const Rotation& rotation,
                            cudaStream_t stream);

// ---- attention over some keys at a time ----

// Rows first .. first + count - 1 of each of `batch` sequences of `rows` rows.
struct RowPart {
  std::int64_t batch = 1, rows = 0, first = 0, count = 0;
};
// What queries get from keys: out (batch, rows, heads, dim) and the logarithm of the sum of
// exponentials of their scores, (batch, heads, rows).
struct AttentionPart {
  bf16* out = nullptr;
  float* log_sum = nullptr;
};
// `whole`'s rows, over some keys, become those over more: `part` has `count` rows of each sequence,
// over the others.
void merge_attention(const AttentionPart& whole, const AttentionPart& part, const RowPart& where,
                     std::int64_t heads, std::int64_t dim, cudaStream_t stream);
// to's rows += part's, (batch, count, cols).
void add_rows(bf16* to, const bf16* part, const RowPart& where, std::int64_t cols,
              cudaStream_t stream);

// Heads that `ranks` ranks exchange for sequence. What one has for (or from) each other lies in one
// buffer, (ranks, operands, rows, share): of its `rows` = (sequences, local) rows. Operands have a
// share of each rank's in their columns, (rows, ranks * share); or `by_heads` one share, of whole
// sequences, (sequences, ranks * local, share): of rank r the r-th chunk of 2 * ranks and the r-th
// from the end (zig-zag). Shares are multiples of 8.
struct HeadShares {
  static constexpr int kMost = 3;
  std::int64_t ranks = 1, local = 0, rows = 0;
  bool by_heads = false;
  int count = 0;
  bf16* operand[kMost] = {};
  std::int64_t share[kMost] = {};
};
void gather_shares(bf16* buffer, const HeadShares& shares, cudaStream_t stream);
void spread_shares(const bf16* buffer, const HeadShares& shares, cudaStream_t stream);

// Attention's rows.
struct HeadRows {
  std::int64_t batch = 1, rows = 0, heads = 0, dim = 0;  // rows: of each sequence
};
// A learned logit a head that takes its share of the softmax and has no value (gpt-oss); sinks:
// (heads). `whole`, over all keys, becomes what it is beside them.
void apply_sinks(const AttentionPart& whole, const bf16* sinks, const HeadRows& rows,
                 cudaStream_t stream);
// dsinks -= the sum over rows of exp(sink - log_sum) (dout . out), `whole` as apply_sinks left it.
void sinks_gradient(float* dsinks, const AttentionPart& whole, const bf16* dout, const bf16* sinks,
                    const HeadRows& rows, float* scratch, cudaStream_t stream);

// ---- activations ----

// f(gate, up) of rows {gate | up}: silu(gate) up, and gpt-oss's with limits; f(x) of plain rows:
// GELU's tanh form and the square of ReLU (executor/math/activation.h).
enum class Activation { swiglu, swiglu_clamped, gelu_tanh, relu2 };
// y[rows, width] = scale[row] f; scale null: 1.
void activate(Activation kind, bf16* y, const bf16* x, const float* scale, std::int64_t rows,
              std::int64_t width, cudaStream_t stream);
// dx as x; with a scale, dscale[row] = sum over columns of dy f.
void activate_backward(Activation kind, bf16* dx, float* dscale, const bf16* x, const bf16* dy,
                       const float* scale, std::int64_t rows, std::int64_t width,
                       cudaStream_t stream);

// ---- gates ----

// y = x sigmoid(gates), number by number, or row by row, gates (rows); and the gradients of both.
void gate(bf16* y, const bf16* x, const bf16* gates, std::int64_t n, cudaStream_t stream);
void gate_backward(bf16* dx, bf16* dgates, const bf16* dy, const bf16* x, const bf16* gates,
                   std::int64_t n, cudaStream_t stream);
void gate_rows(bf16* y, const bf16* x, const bf16* gates, std::int64_t rows, std::int64_t cols,
               cudaStream_t stream);
void gate_rows_backward(bf16* dx, bf16* dgates, const bf16* dy, const bf16* x, const bf16* gates,
                        std::int64_t rows, std::int64_t cols, cudaStream_t stream);
// y = x, of rows that lie in lines.
void copy_lines(bf16* y, Lines y_lines, const bf16* x, Lines x_lines, std::int64_t rows,
                std::int64_t cols, cudaStream_t stream);

// ---- biases ----

// y[r, :] += bias, of fp32 rows (cuBLASLt adds those of bf16 rows itself).
void add_bias(float* y, const bf16* bias, std::int64_t rows, std::int64_t cols,
              cudaStream_t stream);
// dbias += the sum over rows of dy.
void bias_gradient(float* dbias, const bf16* dy, std::int64_t rows, std::int64_t cols,
                   float* scratch, cudaStream_t stream);
void bias_gradient(float* dbias, const float* dy, std::int64_t rows, std::int64_t cols,
                   float* scratch, cudaStream_t stream);

// ---- sums and copies of any length ----

// y = a + b (+ c), c null: two of them.
void add(bf16* y, const bf16* a, const bf16* b, const bf16* c, std::int64_t n, cudaStream_t stream);
// to += from; to = from.
void accumulate(float* to, const float* from, std::int64_t n, cudaStream_t stream);
void narrow(bf16* to, const float* from, std::int64_t n, cudaStream_t stream);
// sum[0] += the sum of squares of x.
void sum_of_squares(double* sum, const float* x, std::int64_t n, double* scratch,
                    cudaStream_t stream);
void sum_of_squares(double* sum, const bf16* x, std::int64_t n, double* scratch,
                    cudaStream_t stream);

// ---- fp8 ----

enum class Fp8 : std::uint8_t { e4m3, e5m2 };
// executor/math/quantize.h on the device. scale[0] = the power of two for x; n: a multiple of 8.
void quantization_scale(float* scale, const bf16* x, std::int64_t n, cudaStream_t stream);
// y = x / scale[0] times the format's power of two, rounded to it; n: a multiple of 16.
void quantize(void* y, const bf16* x, const float* scale, Fp8 format, std::int64_t n,
              cudaStream_t stream);
// The same into y (cols, rows) from x (rows, cols), and bytes as they are; both multiples of 16.
void quantize_transposed(void* y, const bf16* x, const float* scale, Fp8 format, std::int64_t rows,
                         std::int64_t cols, cudaStream_t stream);
void transpose_bytes(void* y, const void* x, std::int64_t rows, std::int64_t cols,
                     cudaStream_t stream);

// ---- embedding ----

// A vector for each position, (positions, cols); position: one for each row. table null: none.
struct LearnedPositions {
  const bf16* table = nullptr;
  const std::int32_t* position = nullptr;
};
// y[i, :] = table[ids[i] - first_row, :], 0 where ids[i] is another rank's, plus the position's;
// kept[i] = ids[i].
void embed(bf16* y, std::int64_t* kept, const bf16* table, std::int64_t first_row,
           std::int64_t table_rows, const std::int32_t* ids, const LearnedPositions& positions,
           std::int64_t n, std::int64_t cols, cudaStream_t stream);
// dtable[ids[i] - first_row, :] += dy[i, :], a row's in the order of tokens. scratch: kTokenScratch
// bytes a token and kSortScratch.
inline constexpr std::int64_t kTokenScratch = 24, kSortScratch = 2 << 20;
[[nodiscard]] cudaError_t embed_backward(float* dtable, const bf16* dy, std::int64_t first_row,
                                         std::int64_t table_rows, const std::int64_t* ids,
                                         std::int64_t n, std::int64_t cols, void* scratch,
                                         cudaStream_t stream);
// dtable[position[i], :] += dy[i, :].
[[nodiscard]] cudaError_t positions_backward(float* dtable, const bf16* dy,
                                             const std::int32_t* position, std::int64_t table_rows,
                                             std::int64_t n, std::int64_t cols, void* scratch,
                                             cudaStream_t stream);

// ---- loss ----

// This rank's columns are words first .. first + cols - 1 of a vocabulary of `words`; what lies
// behind it is padding, which has no probability.
struct VocabularyShard {
  std::int64_t first = 0, words = 0;
};
// log_sum[t] = log of the sum of exponentials of row t's own columns; loss[t] = minus the target's
// logit, 0 where it is another rank's. `whole`: nobody else has columns, and loss[t] += log_sum[t].
// A target below 0: nothing is predicted, the loss is 0 and has no gradient. Neither holds logits
// in fp32.
void cross_entropy(float* loss, float* log_sum, const bf16* logits, VocabularyShard shard,
                   const std::int32_t* targets, bool whole, std::int64_t rows, std::int64_t cols,
                   cudaStream_t stream);
// dlogits = scale (exp(logit - log_sum[t]) - [column is the target]).
void cross_entropy_backward(bf16* dlogits, const bf16* logits, const float* log_sum,
                            VocabularyShard shard, const std::int32_t* targets, float scale,
                            std::int64_t rows, std::int64_t cols, cudaStream_t stream);
// Between ranks' sums: log_sum = exp(log_sum - maximum); then, of the ranks' sums, log_sum =
// maximum + log(log_sum) and loss += log_sum, which is 0 without a target.
void loss_rescale(float* log_sum, const float* maximum, std::int64_t n, cudaStream_t stream);
void loss_finish(float* loss, float* log_sum, const float* maximum, const std::int32_t* targets,
                 std::int64_t n, cudaStream_t stream);
// total[0] += the sum of n losses.
void add_losses(double* total, const float* loss, std::int64_t n, cudaStream_t stream);

// ---- experts ----

// Softmax over `experts` (at most 512) or each one's sigmoid; the top_k best (equal ones by index),
// their scores scaled to sum to 1 if `normed`, and then by `scale`. They are chosen by scores plus
// a correction (null: none), out of the `best_groups` of `groups` (at most 32) whose best expert is
// best; with sigmoids, whose two best are.
struct Router {
  std::int64_t experts = 0, top_k = 0;
  bool normed = true;
  float scale = 1;
  bool sigmoid = false;
  int groups = 1, best_groups = 1;
  const bf16* correction = nullptr;
};
// Which rows of a microbatch are one sequence: row t of these is row first + t of all.
struct Sequences {
  std::int64_t first = 0, length = 1;
};
// Routing whatever the scores say, to every expert equally often: expert j of the token at
// `position` of sequence s is ((s seq_len + position) top_k + j) mod experts. The first row of all
// is of sequence first_sequence, -1: not forced; positions: of each row of all.
struct ForcedRouting {
  std::int64_t first_sequence = -1, seq_len = 1;
  const std::int32_t* positions = nullptr;
};
// scores (tokens, experts) of logits; row_map (tokens, 2 top_k): each token's experts, then the
// place of each copy once all are sorted by expert and token; counts (experts): copies each expert
// gets; visits (sequences, experts), or null: by sequence. scratch: experts numbers for each 16
// tokens, or fewer whose copies are 512, rounded up.
void route(float* scores, std::int32_t* row_map, std::int32_t* counts, std::int32_t* visits,
           const float* logits, const Router& router, Sequences sequences,
           std::int64_t num_sequences, const ForcedRouting& forced, std::int64_t tokens,
           std::int32_t* scratch, cudaStream_t stream);
// dlogits from the gradients of the weights (tokens, top_k); with visits, plus `balance` times that
// of the sequence's balance loss, sum over experts of visits times mean score.
void route_backward(float* dlogits, const float* scores, const float* dweights,
                    const std::int32_t* row_map, const std::int32_t* visits, float balance,
                    const Router& router, Sequences sequences, std::int64_t tokens,
                    cudaStream_t stream);
// y[place of copy (t, j), :] = x[t, :], weights[place] = the weight of that choice (null: not).
void sort_tokens(bf16* y, float* weights, const bf16* x, const std::int32_t* row_map,
                 const float* scores, const Router& router, std::int64_t tokens, std::int64_t cols,
                 cudaStream_t stream);
// y[t, :] = the sum of x[place, :] over t's copies; by_choice[t, j] = numbers[place] (null: not).
void sum_copies(bf16* y, float* by_choice, const bf16* x, const std::int32_t* row_map,
                const float* numbers, std::int64_t top_k, std::int64_t tokens, std::int64_t cols,
                cudaStream_t stream);

// y[r, :] = numbers[r] x[r, :].
void scale_rows(bf16* y, const bf16* x, const float* numbers, std::int64_t rows, std::int64_t cols,
                cudaStream_t stream);
// dx[r, :] = numbers[r] dy[r, :]; dnumbers[r] = dy[r, :] . x[r, :].
void scale_rows_backward(bf16* dx, float* dnumbers, const bf16* dy, const bf16* x,
                         const float* numbers, std::int64_t rows, std::int64_t cols,
                         cudaStream_t stream);

// Rows that arrived lie by source, then expert; grouped they lie by expert, then source. counts
// (ranks, experts): of all; this rank's are `local` of the `experts`, from first_expert on.
struct Arrivals {
  const std::int32_t* counts = nullptr;
  std::int64_t ranks = 1, experts = 0, first_expert = 0, local = 0;  // ranks * local <= 1024
};
// to = from in the other order, and the number of each row (null: none); `group` false: back.
void group_rows(bf16* to, float* to_numbers, const bf16* from, const float* from_numbers,
                const Arrivals& arrivals, bool group, std::int64_t rows, std::int64_t cols,
                cudaStream_t stream);

// ---- products of experts ----

// Rows of several groups, one group after the other: group i has the sum over `sources` of
// rows[source * source_stride + i], as the device knows it. Of several shares each lies so, its
// counts share_stride behind the ones before, its first row share_rows behind. Groups times shares
// are at most kMostRowGroups. Biases' functions take one share.
inline constexpr int kMostRowGroups = 1024;
struct RowGroups {
  const std::int32_t* rows = nullptr;
  int count = 0, sources = 1, source_stride = 0;
  int shares = 1, share_stride = 0;
  std::int64_t share_rows = 0;
};
// Group i's weights (out, in) begin `stride` numbers behind group i - 1's.
struct GroupedWeights {
  const bf16* data = nullptr;
  std::int64_t out = 0, in = 0, stride = 0;
};
struct GroupedGradients {
  float* data = nullptr;
  std::int64_t out = 0, in = 0, stride = 0;
};
// Whether the current device has what the three below need: Hopper's matrix units, and code for
// them. At most 64 of their launches may run at once.
bool has_grouped_products();
// y[r, :out] = x[r, :in] w^T and dx[r, :in] = dy[r, :out] w of the row's group; rows behind the
// last group's of a share are left as they are. `rows`: that x and y have room for, all shares.
void grouped_forward(bf16* y, const bf16* x, const GroupedWeights& w, const RowGroups& groups,
                     std::int64_t rows, cudaStream_t stream);
void grouped_input_gradient(bf16* dx, const bf16* dy, const GroupedWeights& w,
                            const RowGroups& groups, std::int64_t rows, cudaStream_t stream);
// dw += dy^T x over the rows of each group.
void grouped_weight_gradient(const GroupedGradients& dw, const bf16* dy, const bf16* x,
                             const RowGroups& groups, std::int64_t rows, cudaStream_t stream);

// ---- biases of experts ----

// Of (rows, bias.out), with room for `rows`; a bias is a weight with in 1. Each row's bias is
// scaled (null: not). y += the bias of the row's group.
void add_group_bias(bf16* y, const float* scale, const GroupedWeights& bias,
                    const RowGroups& groups, std::int64_t rows, cudaStream_t stream);
// dbias += scale dy over the rows of each group.
void group_bias_gradient(const GroupedGradients& dbias, const bf16* dy, const float* scale,
                         const RowGroups& groups, cudaStream_t stream);
// dscale[r] += dy[r, :] . the bias of the row's group.
void group_bias_scale_gradient(float* dscale, const bf16* dy, const GroupedWeights& bias,
                               const RowGroups& groups, std::int64_t rows, cudaStream_t stream);

// ---- seeded weights ----

// A part (any rows, `cols` columns) of parameter `parameter`, a matrix of whole_cols columns, that
// begins at first_row, first_col.
struct SeededPart {
  std::uint64_t seed = 0;
  std::uint32_t parameter = 0;
  float centre = 0;
  std::int64_t cols = 1, whole_cols = 1, first_row = 0, first_col = 0;
};
// Elements begin .. begin + n - 1 of the part: what executor/io/weights.h's seeded_weights gives,
// to the last bit of double precision. One of the two may be null.
void draw_weights(float* main, bf16* working, const SeededPart& part, std::int64_t begin,
                  std::int64_t n, cudaStream_t stream);

// ---- optimizer ----

// One step of torch.optim.AdamW. The gradient is scaled by min(1, clip / (sqrt(squares[0]) + 1e-6))
// first, clip 0: not; correction is 1 - beta^step.
struct AdamW {
  float lr, beta1, beta2, epsilon, weight_decay, correction1, correction2, clip;
  const double* squares;
};
void adamw(bf16* working, float* main, float* moment1, float* moment2, const float* gradient,
           std::int64_t n, const AdamW& settings, cudaStream_t stream);
// The same where weight decay is for some neighbours and not for others: run i of the elements
// ends before ends[i], and bit i of `decayed` says whether its weights decay.
struct AdamWRuns {
  static constexpr int kMost = 32;
  std::int64_t ends[kMost] = {};
  unsigned decayed = 0;
  int count = 0;
};
void adamw(bf16* working, float* main, float* moment1, float* moment2, const float* gradient,
           const AdamWRuns& runs, const AdamW& settings, cudaStream_t stream);

}  // namespace qplan::kernels
