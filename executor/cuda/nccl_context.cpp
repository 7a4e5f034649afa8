// What the ranks of a context-parallel group send each other. Keys and values that travel together
// lie one after the other (cuda_context.cpp); heads that are exchanged for sequence, by rank.

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

std::size_t elements_of(const Tensor& t) {
  return static_cast<std::size_t>(t.elements());
}

// Heads for sequence: of what a rank sends, a part to each rank of the group.
void exchange_shares(const Tensor& leaving, const Tensor& arriving, std::int64_t ranks,
                     ncclComm_t group, cudaStream_t stream) {
  const std::int64_t part = leaving.elements() / ranks;
  const auto count = static_cast<std::size_t>(part);
  check(ncclGroupStart());
  for (int r = 0; r < ranks; ++r) {
    check(ncclSend(leaving.part(r * part, 1, 1).data, count, ncclBfloat16, r, group, stream));
    check(ncclRecv(arriving.part(r * part, 1, 1).data, count, ncclBfloat16, r, group, stream));
  }
  check(ncclGroupEnd());
}

}  // namespace

void exchange_context(CudaRank& rank, const Command& c, const Collective& work, ncclComm_t group,
                      cudaStream_t stream) {
  if (work.kind == CollectiveKind::all_to_all) {
    return exchange_shares(rank.tensor(c, c.reads[0]), rank.tensor(c, c.writes[0]),
                           rank.job.plan.cp, group, stream);
  }
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
