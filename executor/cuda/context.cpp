// Attention over sequences that several ranks hold parts of (context parallelism).
//
// A rank has two chunks of each sequence, an early and a late one (positions_of). Of the keys of a
// rank before it all its queries see the early chunk; those of a rank behind it are seen by its
// late queries alone. So every part is a rectangle without a mask, and its result is merged with
// what the others gave. Keys and values (or their gradients) that travel together lie one after the
// other: all keys, then all values.

#include <tuple>
#include <utility>

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

constexpr std::int64_t kAlignment = 256;

// What of this rank's queries and of another rank's keys belongs together.
struct KeyPart {
  Attention work;
  std::int64_t first_query = 0;
};

std::int64_t local_rows(const CudaRank& rank) {
  return rank.job.plan.seq_len / rank.job.plan.cp;
}

KeyPart part_of(const CudaRank& rank, const Attention& whole, std::int64_t source) {
  const std::int64_t local = local_rows(rank), chunk = local / 2;
  KeyPart part{.work = whole};
  part.work.q_len = part.work.kv_len = local;
  if (source < rank.at.cp) part.work.kv_len = chunk;
  if (source > rank.at.cp) {
    part.work.q_len = chunk;
    part.first_query = local - chunk;
  }
  return part;
}

// The rank whose keys a part of an attention reads.
std::int64_t source_of(const CudaRank& rank, const Command& c) {
  QPLAN_CHECK(c.op->pieces > 1, "attention over keys of all ranks runs in parts");
  const int ranks = rank.job.plan.cp;
  return (rank.at.cp + ranks - c.op->piece) % ranks;
}

// Parts of the scratch, one after the other.
class Scratch {
 public:
  explicit Scratch(void* memory) : at_(static_cast<std::byte*>(memory)) {}
  template <class T>
  T* take(std::int64_t count) {
    void* const mine = at_;
    at_ += bytes_of<T>(count);
    return static_cast<T*>(mine);
  }
  void* rest() const { return at_; }
  template <class T>
  static std::int64_t bytes_of(std::int64_t count) {
    const auto bytes = count * static_cast<std::int64_t>(sizeof(T));
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  std::byte* at_;
};

// Numbers of each operand of a part.
struct Sizes {
  std::int64_t q, k, v, out, sums;
  explicit Sizes(const Attention& w)
      : q(w.batch * w.q_len * w.heads * w.head_dim),
        k(w.batch * w.kv_len * w.kv_heads * w.head_dim),
        v(w.batch * w.kv_len * w.kv_heads * w.v_head_dim),
        out(w.batch * w.q_len * w.heads * w.v_head_dim),
        sums(w.batch * w.q_len * w.heads) {}
};

using kernels::bf16;

// What a rank's queries work with, and one rank's keys and values.
struct Queries {
  bf16 *q = nullptr, *out = nullptr, *dout = nullptr, *dq = nullptr;
  float* log_sum = nullptr;
};
struct Keys {
  bf16 *k = nullptr, *v = nullptr, *dk = nullptr, *dv = nullptr;
};

// Keys of the source-th rank, `rows` of them, in a slot of those of all or of nobody else: {all
// keys, all values}.
std::pair<bf16*, bf16*> keys_in(const Tensor& slot, const Attention& whole, std::int64_t rows,
                                std::int64_t source) {
  const std::int64_t k_width = whole.kv_heads * whole.head_dim,
                     v_width = whole.kv_heads * whole.v_head_dim;
  const std::int64_t all_rows = slot.elements() / (k_width + v_width);
  const std::int64_t row = all_rows > rows ? source * rows : 0;
  bf16* const first = bf16_of(slot);
  return {first + row * k_width, first + all_rows * k_width + row * v_width};
}

AttentionRows stored_rows(const CudaRank& rank) {
  return {local_rows(rank), local_rows(rank)};
}

kernels::RowPart rows_of(const CudaRank& rank, const KeyPart& part) {
  return {part.work.batch, local_rows(rank), part.first_query, part.work.q_len};
}

void forward_part(CudaRank& rank, const KeyPart& part, const Queries& own, const Keys& keys,
                  cudaStream_t stream) {
  const Attention& w = part.work;
  const Sizes n(w);
  Scratch scratch(rank.scratch());
  const kernels::AttentionPart result{scratch.take<bf16>(n.out), scratch.take<float>(n.sums)};
  const AttentionOperands o{.q = own.q + part.first_query * w.heads * w.head_dim,
                            .k = keys.k,
                            .v = keys.v,
                            .out = result.out,
                            .log_sum_exp = result.log_sum};
  rank.attention.run(w, o, scratch.rest(), stream, stored_rows(rank));
  kernels::merge_attention({own.out, own.log_sum}, result, rows_of(rank, part), w.heads,
                           w.v_head_dim, stream);
}

// With sums over all keys, gradients of each part are what they are in the whole.
void backward_part(CudaRank& rank, const KeyPart& part, const Queries& own, const Keys& keys,
                   cudaStream_t stream) {
  const Attention& w = part.work;
  const Sizes n(w);
  const kernels::RowPart rows = rows_of(rank, part);
  Scratch scratch(rank.scratch());
  AttentionOperands o{.q = own.q + part.first_query * w.heads * w.head_dim,
                      .k = keys.k,
                      .v = keys.v,
                      .out = own.out + part.first_query * w.heads * w.v_head_dim,
                      .dout = own.dout + part.first_query * w.heads * w.v_head_dim};
  float* const sums = scratch.take<float>(n.sums);
  const auto line = static_cast<std::size_t>(w.q_len * 4);
  check(cudaMemcpy2DAsync(
      sums, line, own.log_sum + part.first_query, static_cast<std::size_t>(rows.rows * 4), line,
      static_cast<std::size_t>(w.batch * w.heads), cudaMemcpyDeviceToDevice, stream));
  bf16* const dq = scratch.take<bf16>(n.q);
  bf16* const dk = scratch.take<bf16>(n.k);
  bf16* const dv = scratch.take<bf16>(n.v);
  o.log_sum_exp = sums;
  o.dq = dq;
  o.dk = dk;
  o.dv = dv;
  rank.attention.run(w, o, scratch.rest(), stream, stored_rows(rank));
  kernels::add_rows(own.dq, dq, rows, w.heads * w.head_dim, stream);
  const kernels::RowPart keys_seen{w.batch, rows.rows, 0, w.kv_len};
  kernels::add_rows(keys.dk, dk, keys_seen, w.kv_heads * w.head_dim, stream);
  kernels::add_rows(keys.dv, dv, keys_seen, w.kv_heads * w.v_head_dim, stream);
}

}  // namespace

std::int64_t prepare_part_attention(CudaRank& rank, const Command& c, const Attention& work) {
  const KeyPart part = part_of(rank, work, source_of(rank, c));
  const Sizes n(part.work);
  const std::int64_t bytes = rank.attention.prepare(part.work, stored_rows(rank));
  if (part.work.pass == Pass::forward) {
    return bytes + Scratch::bytes_of<float>(n.sums) + Scratch::bytes_of<bf16>(n.out);
  }
  return bytes + Scratch::bytes_of<float>(n.sums) + Scratch::bytes_of<bf16>(n.q) +
         Scratch::bytes_of<bf16>(n.k) + Scratch::bytes_of<bf16>(n.v);
}

// {q, k|v} -> {out, lse}; {q, k|v, out, lse, dout} -> {dq, dk|dv}: keys of another rank, that a
// ring or a gather brought, added to what the parts before gave.
void launch_part_attention(CudaRank& rank, const Command& c, const Attention& work,
                           cudaStream_t stream) {
  const bool forward = work.pass == Pass::forward;
  const std::int64_t rows = work.batch * local_rows(rank), source = source_of(rank, c);
  const auto numbers = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  Queries own{.q = numbers(c.reads[0])};
  own.out = numbers(forward ? c.writes[0] : c.reads[2]);
  own.log_sum = float_of(rank.tensor(c, forward ? c.writes[1] : c.reads[3]));
  const KeyPart part = part_of(rank, work, source);
  Keys keys;
  std::tie(keys.k, keys.v) = keys_in(rank.tensor(c, c.reads[1]), work, rows, source);
  if (forward) return forward_part(rank, part, own, keys, stream);
  own.dout = numbers(c.reads[4]);
  own.dq = numbers(c.writes[0]);
  const Tensor gradients = rank.tensor(c, c.writes[1]);
  std::tie(keys.dk, keys.dv) = keys_in(gradients, work, rows, source);
  // The second part is the first with other ranks' keys.
  if (c.op->piece == 1) {
    check(cudaMemsetAsync(gradients.data, 0, static_cast<std::size_t>(gradients.bytes()), stream));
  }
  backward_part(rank, part, own, keys, stream);
}

// Between what is exchanged and {q, k, v}, {out} or their gradients: with all heads of this rank's
// positions (dispatch, combine), or with its heads of all positions (group_rows, ungroup_rows).
void launch_shares(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const Role role = c.op->role;
  const bool by_heads = role == Role::group_rows || role == Role::ungroup_rows;
  const bool leaving = role == Role::dispatch || role == Role::ungroup_rows;
  const ParallelPlan& p = rank.job.plan;
  kernels::HeadShares shares{.ranks = p.cp,
                             .local = local_rows(rank),
                             .rows = p.micro_batch_size * local_rows(rank),
                             .by_heads = by_heads};
  const Operands& operands = leaving ? c.reads : c.writes;
  QPLAN_CHECK(operands.count <= kernels::HeadShares::kMost, "q, k and v are exchanged together");
  for (const Operand& operand : operands) {
    const Tensor own = rank.tensor(c, operand);
    shares.operand[shares.count] = bf16_of(own);
    shares.share[shares.count++] = own.cols / (by_heads ? 1 : p.cp);
  }
  bf16* const buffer = bf16_of(rank.tensor(c, leaving ? c.writes[0] : c.reads[0]));
  leaving ? kernels::gather_shares(buffer, shares, stream)
          : kernels::spread_shares(buffer, shares, stream);
}

}  // namespace qplan
