// What the ranks of a context-parallel group send each other. Keys and values that travel together
// lie one after the other (cuda_context.cpp), so nothing is packed on the way.

#include "executor/cuda_ops.h"
#include "models/error.h"

namespace qplan {
namespace {

std::size_t elements_of(const Tensor& t) {
  return static_cast<std::size_t>(t.elements());
}

// Runs of rows of one operand that two ranks exchange: a chunk of each sequence.
struct Chunks {
  std::int64_t sequences, seq_len, local, chunk;
  int ranks;
  // The h-th chunk (of two) that rank r has of sequence b: its first row among its own rows, and
  // among those of whole sequences.
  [[nodiscard]] std::int64_t own_row(std::int64_t b, int h) const { return b * local + h * chunk; }
  [[nodiscard]] std::int64_t whole_row(std::int64_t b, int h, int r) const {
    return b * seq_len + (h == 0 ? r : 2 * ranks - 1 - r) * chunk;
  }
};

Chunks chunks_of(const ParallelPlan& p) {
  const std::int64_t local = p.seq_len / p.cp;
  return {p.micro_batch_size, p.seq_len, local, local / 2, p.cp};
}

// Columns of an operand to or from the place of one rank's share in the exchange buffer.
void copy_share(const Tensor& operand, std::byte* share, std::int64_t ranks, std::int64_t r,
                bool to, cudaStream_t stream) {
  const auto width = static_cast<std::size_t>(operand.cols / ranks * 2);
  const auto pitch = static_cast<std::size_t>(operand.cols * 2);
  std::byte* const columns = operand.data + static_cast<std::size_t>(r) * width;
  check(cudaMemcpy2DAsync(to ? share : columns, to ? width : pitch, to ? columns : share,
                          to ? pitch : width, width, static_cast<std::size_t>(operand.rows),
                          cudaMemcpyDeviceToDevice, stream));
}

// Heads for sequence: some operands with all heads of a rank's positions, and one slot that holds
// for each of them, one after the other, the own heads of all positions.
void exchange_heads(CudaRank& rank, const Command& c, ncclComm_t group, cudaStream_t stream) {
  const bool to_heads = c.op->role == Role::dispatch;
  const Operands& narrow = to_heads ? c.reads : c.writes;
  const Tensor wide = rank.tensor(c, to_heads ? c.writes[0] : c.reads[0]);
  const Chunks chunks = chunks_of(rank.job.plan);
  const int ranks = chunks.ranks;
  const auto visit_shares = [&](auto visit) {
    std::int64_t plane = 0, buffer = 0;  // elements
    for (const Operand& operand : narrow) {
      const Tensor own = rank.tensor(c, operand);
      const std::int64_t share = own.cols / ranks;
      for (int r = 0; r < ranks; ++r) {
        visit(own, share, r, plane, rank.exchange_buffer() + 2 * buffer);
        buffer += own.rows * share;
      }
      plane += own.rows * ranks * share;
    }
  };
  const auto copy_shares = [&] {
    visit_shares([&](const Tensor& own, std::int64_t, int r, std::int64_t, std::byte* buffer) {
      copy_share(own, buffer, ranks, r, to_heads, stream);
    });
  };
  if (to_heads) copy_shares();
  check(ncclGroupStart());
  visit_shares([&](const Tensor&, std::int64_t share, int r, std::int64_t plane,
                   std::byte* buffer) {
    const auto count = static_cast<std::size_t>(chunks.chunk * share);
    for (std::int64_t b = 0; b < chunks.sequences; ++b) {
      for (const int h : {0, 1}) {
        std::byte* const narrow_rows = buffer + 2 * chunks.own_row(b, h) * share;
        // To heads: my rows leave, r's arrive at their positions; back: r's rows leave.
        std::byte* const wide_rows =
            wide.part(plane + chunks.whole_row(b, h, r) * share, 1, 1).data;
        check(ncclSend(to_heads ? narrow_rows : wide_rows, count, ncclBfloat16, r, group, stream));
        check(ncclRecv(to_heads ? wide_rows : narrow_rows, count, ncclBfloat16, r, group, stream));
      }
    }
  });
  check(ncclGroupEnd());
  if (!to_heads) copy_shares();
}

}  // namespace

void exchange_context(CudaRank& rank, const Command& c, const Collective& work, ncclComm_t group,
                      cudaStream_t stream) {
  if (work.kind == CollectiveKind::all_to_all) return exchange_heads(rank, c, group, stream);
  const bool gathers = work.kind == CollectiveKind::all_gather;
  QPLAN_CHECK(gathers || work.kind == CollectiveKind::reduce_scatter,
              "context parallelism gathers, reduces and exchanges");
  const Tensor whole = rank.tensor(c, gathers ? c.writes[0] : c.reads[0]);
  std::int64_t first = 0;
  for (const Operand& operand : gathers ? c.reads : c.writes) {
    const Tensor own = rank.tensor(c, operand);
    std::byte* const all = whole.part(first, 1, 1).data;
    if (gathers) {
      check(ncclAllGather(own.data, all, elements_of(own), ncclBfloat16, group, stream));
    } else {
      check(
          ncclReduceScatter(all, own.data, elements_of(own), ncclBfloat16, ncclSum, group, stream));
    }
    first += own.elements() * rank.job.plan.cp;
  }
}

// A step of a ring: to the next rank, from the one before.
void launch_ring(CudaRank& rank, NcclWorld& world, const Command& c, cudaStream_t stream) {
  ncclComm_t group = world.group(Axis::cp, c.op->stream);
  const int ranks = rank.job.plan.cp, own = rank.at.cp;
  const Tensor arriving = rank.tensor(c, c.writes[0]);
  std::int64_t first = 0;
  check(ncclGroupStart());
  for (const Operand& operand : c.reads) {
    const Tensor leaving = rank.tensor(c, operand);
    check(ncclSend(leaving.data, elements_of(leaving), ncclBfloat16, (own + 1) % ranks, group,
                   stream));
    check(ncclRecv(arriving.part(first, 1, 1).data, elements_of(leaving), ncclBfloat16,
                   (own + ranks - 1) % ranks, group, stream));
    first += leaving.elements();
  }
  check(ncclGroupEnd());
}

}  // namespace qplan
