// Attention that was computed over some keys at a time: results put together. Learned sinks are
// keys without a value.

#include "kernels/kernels.h"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

// log(exp(a) + exp(b)).
__device__ float log_add(float a, float b) {
  const float larger = fmaxf(a, b);
  return larger + log1pf(expf(fminf(a, b) - larger));
}

// A thread weights eight numbers of one head.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(bf16* out, const float* log_sum, const bf16* part, const float* part_log_sum,
                 RowPart where, std::int64_t heads, std::int64_t dim) {
  const std::int64_t units = dim / kVector, i = thread_index();
  const std::int64_t unit = i % units, head = i / units % heads;
  const std::int64_t row = i / units / heads % where.count, b = i / units / heads / where.count;
  if (b >= where.batch) return;
  const std::int64_t whole_row = where.first + row;
  const float before = log_sum[(b * heads + head) * where.rows + whole_row];
  const float other = part_log_sum[(b * heads + head) * where.count + row];
  const float after = log_add(before, other);
  const float keep = expf(before - after), gain = expf(other - after);
  bf16* to = out + ((b * where.rows + whole_row) * heads + head) * dim + unit * kVector;
  Vector y = load(to);
  const Vector x = load(part + ((b * where.count + row) * heads + head) * dim + unit * kVector);
#pragma unroll
  for (int j = 0; j < kVector; ++j) y.x[j] = keep * y.x[j] + gain * x.x[j];
  store(to, y);
}

__global__ void __launch_bounds__(kThreads)
    merge_sums_kernel(float* log_sum, const float* part, RowPart where, std::int64_t heads) {
  const std::int64_t i = thread_index();
  const std::int64_t row = i % where.count, line = i / where.count;
  if (line >= where.batch * heads) return;
  float& whole = log_sum[line * where.rows + where.first + row];
  whole = log_add(whole, part[i]);
}

// A thread has eight numbers of one head.
__global__ void __launch_bounds__(kThreads)
    sinks_kernel(bf16* out, const float* log_sum, const bf16* sinks, HeadRows n) {
  const std::int64_t units = n.dim / kVector, i = thread_index();
  const std::int64_t head = i / units % n.heads, row = i / units / n.heads % n.rows;
  const std::int64_t b = i / units / n.heads / n.rows;
  if (b >= n.batch) return;
  const float before = log_sum[(b * n.heads + head) * n.rows + row];
  const float keep = expf(before - log_add(before, static_cast<float>(sinks[head])));
  Vector y = load(out + i * kVector);
#pragma unroll
  for (int j = 0; j < kVector; ++j) y.x[j] *= keep;
  store(out + i * kVector, y);
}

__global__ void __launch_bounds__(kThreads)
    sink_sums_kernel(float* log_sum, const bf16* sinks, HeadRows n) {
  const std::int64_t i = thread_index();
  if (i >= n.batch * n.heads * n.rows) return;
  log_sum[i] = log_add(log_sum[i], static_cast<float>(sinks[i / n.rows % n.heads]));
}

// parts[blockIdx.y, head] = minus the sum over a share of the head's numbers.
__global__ void __launch_bounds__(kThreads)
    sinks_gradient_kernel(float* parts, AttentionPart whole, const bf16* dout, const bf16* sinks,
                          HeadRows n) {
  const std::int64_t head = blockIdx.x, units = n.dim / kVector;
  const auto sink = static_cast<float>(sinks[head]);
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads;
  float sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
       i < n.batch * n.rows * units; i += step) {
    const std::int64_t line = i / units, b = line / n.rows, row = line % n.rows;
    const float share = expf(sink - whole.log_sum[(b * n.heads + head) * n.rows + row]);
    const std::int64_t at = (line * n.heads + head) * n.dim + i % units * kVector;
    const Vector y = load(whole.out + at), d = load(dout + at);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum -= share * y.x[j] * d.x[j];
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.y * n.heads + head] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_rows_kernel(bf16* to, const bf16* part, RowPart where, std::int64_t cols) {
  const std::int64_t units = cols / kVector, i = thread_index();
  const std::int64_t unit = i % units, row = i / units % where.count, b = i / units / where.count;
  if (b >= where.batch) return;
  bf16* sum = to + (b * where.rows + where.first + row) * cols + unit * kVector;
  Vector y = load(sum);
  const Vector x = load(part + i * kVector);
#pragma unroll
  for (int j = 0; j < kVector; ++j) y.x[j] += x.x[j];
  store(sum, y);
}

// An operand's shares, in units of eight numbers: what an index would find in HeadShares is picked
// on the host, or the parameters would go through local memory.
struct Shares {
  uint4* operand = nullptr;
  unsigned units = 0, before = 0;  // of a row, of this operand and of those before it
  unsigned first_block = 0;
};
struct SharesOfRows {
  unsigned ranks = 1, local = 1, rows = 1, units = 1;  // units: of a row, all operands together
};

// Where a row of another rank's lies in whole sequences.
__device__ unsigned row_in_sequences(unsigned row, unsigned rank, SharesOfRows n) {
  const unsigned sequence = row / n.local, place = row % n.local, chunk = n.local / 2;
  const unsigned which = place < chunk ? rank : 2 * n.ranks - 1 - rank;
  return sequence * n.ranks * n.local + which * chunk + place % chunk;
}

// A thread moves eight numbers of its block's operand. `Gathers`: into the buffer.
template <bool Gathers, bool ByHeads>
__global__ void __launch_bounds__(kThreads)
    shares_kernel(uint4* buffer, Shares first, Shares second, Shares third, SharesOfRows n) {
  const Shares s = blockIdx.x >= third.first_block    ? third
                   : blockIdx.x >= second.first_block ? second
                                                      : first;
  const unsigned i = (blockIdx.x - s.first_block) * kThreads + threadIdx.x;
  const unsigned unit = i % s.units, line = i / s.units;
  const unsigned row = line % n.rows, rank = line / n.rows;
  if (rank >= n.ranks) return;
  uint4* const there = buffer + std::int64_t{rank} * n.rows * n.units +
                       std::int64_t{n.rows} * s.before + std::int64_t{row} * s.units + unit;
  const unsigned place = ByHeads ? row_in_sequences(row, rank, n) : row * n.ranks + rank;
  uint4* const here = s.operand + std::int64_t{place} * s.units + unit;
  if (Gathers) {
    *there = *here;
  } else {
    *here = *there;
  }
}

template <bool Gathers>
void move_shares(uint4* buffer, const HeadShares& s, cudaStream_t stream) {
  Shares own[HeadShares::kMost];
  SharesOfRows n{static_cast<unsigned>(s.ranks), static_cast<unsigned>(s.local),
                 static_cast<unsigned>(s.rows), 0};
  unsigned blocks = 0;
  for (int k = 0; k < HeadShares::kMost; ++k) {
    const auto units = static_cast<unsigned>(k < s.count ? s.share[k] / kVector : 0);
    own[k] = {reinterpret_cast<uint4*>(s.operand[k]), units, n.units, blocks};
    n.units += units;
    blocks += blocks_for(s.ranks * s.rows * units);
  }
  if (s.by_heads) {
    shares_kernel<Gathers, true>
        <<<blocks, kThreads, 0, stream>>>(buffer, own[0], own[1], own[2], n);
  } else {
    shares_kernel<Gathers, false>
        <<<blocks, kThreads, 0, stream>>>(buffer, own[0], own[1], own[2], n);
  }
}

}  // namespace

void gather_shares(bf16* buffer, const HeadShares& shares, cudaStream_t stream) {
  move_shares<true>(reinterpret_cast<uint4*>(buffer), shares, stream);
}

void spread_shares(const bf16* buffer, const HeadShares& shares, cudaStream_t stream) {
  move_shares<false>(reinterpret_cast<uint4*>(const_cast<bf16*>(buffer)), shares, stream);
}

void merge_attention(const AttentionPart& whole, const AttentionPart& part, const RowPart& where,
                     std::int64_t heads, std::int64_t dim, cudaStream_t stream) {
  const std::int64_t lines = where.batch * where.count * heads;
  merge_kernel<<<blocks_for(lines * dim / kVector), kThreads, 0, stream>>>(
      whole.out, whole.log_sum, part.out, part.log_sum, where, heads, dim);
  merge_sums_kernel<<<blocks_for(lines), kThreads, 0, stream>>>(whole.log_sum, part.log_sum, where,
                                                                heads);
}

void add_rows(bf16* to, const bf16* part, const RowPart& where, std::int64_t cols,
              cudaStream_t stream) {
  const std::int64_t threads = where.batch * where.count * cols / kVector;
  add_rows_kernel<<<blocks_for(threads), kThreads, 0, stream>>>(to, part, where, cols);
}

void apply_sinks(const AttentionPart& whole, const bf16* sinks, const HeadRows& n,
                 cudaStream_t stream) {
  const std::int64_t lines = n.batch * n.rows * n.heads;
  sinks_kernel<<<blocks_for(lines * n.dim / kVector), kThreads, 0, stream>>>(
      whole.out, whole.log_sum, sinks, n);
  sink_sums_kernel<<<blocks_for(lines), kThreads, 0, stream>>>(whole.log_sum, sinks, n);
}

void sinks_gradient(float* dsinks, const AttentionPart& whole, const bf16* dout, const bf16* sinks,
                    const HeadRows& n, float* scratch, cudaStream_t stream) {
  constexpr std::int64_t kBlocks = 1056;  // eight a multiprocessor
  const std::int64_t wanted = ceil_div(n.batch * n.rows * n.dim / kVector, kThreads);
  const std::int64_t most = ceil_div(kBlocks, n.heads);
  const std::int64_t parts = wanted < most ? wanted : most;
  const dim3 grid(static_cast<unsigned>(n.heads), static_cast<unsigned>(parts));
  sinks_gradient_kernel<<<grid, kThreads, 0, stream>>>(scratch, whole, dout, sinks, n);
  add_parts(dsinks, scratch, parts, n.heads, n.heads, stream);
}

}  // namespace qplan::kernels
