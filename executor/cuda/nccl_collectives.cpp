// Collectives of this rank's groups, and messages between stages.

#include <algorithm>

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::fp16:
      return ncclFloat16;
    case DType::int32:
      return ncclInt32;
    case DType::int64:
      return ncclInt64;
    case DType::fp8:
    case DType::fp8_e5m2:
      return ncclUint8;  // gathered, never added
    case DType::fp4:
    case DType::boolean:
      break;
  }
  QPLAN_CHECK(false, "collectives move numbers that NCCL can add");
}

std::size_t count_of(const Tensor& t) {
  return static_cast<std::size_t>(t.elements());
}

// One after the other, in the order of the group: of equal sections at once, of others (where ranks
// do not divide the whole) each from its holder.
void gather_sections(const Tensor& own, const Tensor& whole, std::int64_t size, ncclComm_t group,
                     cudaStream_t stream) {
  int ranks = 0;
  check(ncclCommCount(group, &ranks));
  if (whole.elements() == size * ranks) {
    check(ncclAllGather(own.data, whole.data, count_of(own), nccl_type(own.dtype), group, stream));
    return;
  }
  check(ncclGroupStart());
  for (int r = 0; r < ranks; ++r) {
    const std::int64_t begin = std::min(r * size, whole.elements());
    const Tensor section = whole.part(begin, 1, std::min(size, whole.elements() - begin));
    check(ncclBroadcast(own.data, section.data, count_of(section), nccl_type(own.dtype), r, group,
                        stream));
  }
  check(ncclGroupEnd());
}

// The reverse: a rank's own section of the sum, in place or elsewhere.
void reduce_sections(const Tensor& own, const Tensor& whole, std::int64_t size, ncclComm_t group,
                     cudaStream_t stream) {
  int ranks = 0, self = 0;
  check(ncclCommCount(group, &ranks));
  check(ncclCommUserRank(group, &self));
  if (whole.elements() == size * ranks) {
    check(ncclReduceScatter(whole.data, own.data, count_of(own), nccl_type(own.dtype), ncclSum,
                            group, stream));
    return;
  }
  check(ncclGroupStart());
  for (int r = 0; r < ranks; ++r) {
    const std::int64_t begin = std::min(r * size, whole.elements());
    const Tensor section = whole.part(begin, 1, std::min(size, whole.elements() - begin));
    check(ncclReduce(section.data, r == self ? own.data : section.data, count_of(section),
                     nccl_type(own.dtype), ncclSum, r, group, stream));
  }
  check(ncclGroupEnd());
}

void sum_to_all(const Tensor& from, const Tensor& to, ncclComm_t group, cudaStream_t stream) {
  check(
      ncclAllReduce(from.data, to.data, count_of(to), nccl_type(to.dtype), ncclSum, group, stream));
}

// One section of `whole` from this rank's shard.
void place_shard(const CudaRank& rank, const Command& c, bool expert, const Tensor& whole,
                 cudaStream_t stream) {
  const bool frozen = moves_frozen(rank, c);
  const int instance = neighbour(rank, c);
  const StateShard shard = rank.shard(instance, frozen);
  const Tensor held = rank.held(instance, frozen ? Storage::frozen : Storage::weight);
  copy(shard_part(held, shard, expert), packed_part(whole, expert ? shard.expert : shard.dense),
       stream);
}

// Gradients that several tensor-parallel ranks make parts of, or the two holders of an embedding.
void reduce_shared(CudaRank& rank, const Command& c, ncclComm_t group, cudaStream_t stream) {
  const Tensor mine = shared_gradient(rank, c);
  if (mine.elements() > 0) sum_to_all(mine, mine, group, stream);
}

// Operands of the same rows: rows, and perhaps a number with each.
void gather_or_scatter(CudaRank& rank, const Command& c, CollectiveKind kind, ncclComm_t group,
                       cudaStream_t stream) {
  check(ncclGroupStart());
  for (std::size_t i = 0; i < c.writes.count; ++i) {
    const Tensor from = rank.tensor(c, c.reads[i]), to = rank.tensor(c, c.writes[i]);
    const ncclDataType_t type = nccl_type(from.dtype);
    if (kind == CollectiveKind::all_gather) {
      check(ncclAllGather(from.data, to.data, count_of(from), type, group, stream));
    } else {
      check(ncclReduceScatter(from.data, to.data, count_of(to), type, ncclSum, group, stream));
    }
  }
  check(ncclGroupEnd());
}

bool moves_parameters(const CudaRank& rank, const Command& c) {
  return writes(rank, c, Storage::weight) || writes(rank, c, Storage::wire, Flow::weights);
}

// The step's edge: everybody learns the loss and the norm of all gradients.
void sum_of_step(CudaRank& rank, ncclComm_t group, cudaStream_t stream) {
  if (group == nullptr) return;
  check(ncclAllReduce(rank.sums(), rank.sums(), CudaRank::kSums, ncclFloat64, ncclSum, group,
                      stream));
}

}  // namespace

// Either the updated parameters of a sharded optimizer, in place, or a neighbour's parameters into
// a whole copy.
void gather_parameters(CudaRank& rank, const Command& c, const Collective& work, ncclComm_t group,
                       cudaStream_t stream) {
  const bool expert = work.axis == Axis::edp;
  const bool ahead = writes(rank, c, Storage::wire, Flow::weights);
  const int instance = ahead ? neighbour(rank, c) : c.instance;
  const Tensor whole = rank.tensor(c, c.writes[0]);
  const bool frozen = moves_frozen(rank, c);
  const StateShard shard = rank.shard(instance, frozen);
  const StateShard::Section& s = expert ? shard.expert : shard.dense;
  const Storage storage = frozen ? Storage::frozen : Storage::weight;
  const Tensor own =
      ahead ? shard_part(rank.held(instance, storage), shard, expert) : packed_part(whole, s);
  gather_sections(own, whole.part(s.first, 1, s.total), s.size, group, stream);
}

void copy_parameters(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const Tensor whole = rank.tensor(c, c.writes[0]);
  for (const bool expert : {false, true}) {
    if (unshared(rank, c, expert)) place_shard(rank, c, expert, whole, stream);
  }
}

// Of one microbatch into what is kept, or of the step in place.
void reduce_gradients(CudaRank& rank, const Command& c, const Collective& work, ncclComm_t group,
                      cudaStream_t stream) {
  const Role role = c.op->role;
  if (role == Role::replicated_gradients || role == Role::tied_gradients) {
    return reduce_shared(rank, c, group, stream);
  }
  const bool expert = work.axis == Axis::edp;
  const StateShard shard = rank.shard(c.instance);
  const StateShard::Section& s = expert ? shard.expert : shard.dense;
  const Tensor packed = rank.tensor(c, c.reads[0]), own = reduced_gradients(rank, c, expert);
  if (work.kind == CollectiveKind::all_reduce) {
    const bool fresh = reads_flow(rank, c, Flow::gradients);
    sum_to_all(fresh ? packed_part(packed, s) : own, own, group, stream);
  } else {
    reduce_sections(own, packed.part(s.first, 1, s.total), s.size, group, stream);
  }
}

void keep_gradients(CudaRank& rank, const Command& c, cudaStream_t stream) {
  for (const bool expert : {false, true}) {
    if (const auto sum = kept_sum(rank, c, expert)) {
      kernels::accumulate(float_of(sum->to), float_of(sum->from), sum->to.elements(), stream);
    }
  }
}

void launch_join(CudaRank& rank, const Command& c, cudaStream_t stream) {
  if (!writes(rank, c, Storage::wire, Flow::weights)) return;
  const Tensor whole = rank.tensor(c, c.writes[0]);
  for (const bool expert : {false, true}) place_shard(rank, c, expert, whole, stream);
}

void launch_collective(CudaRank& rank, NcclWorld& world, const Command& c, cudaStream_t stream) {
  const auto& work = std::get<Collective>(c.op->work);
  ncclComm_t group = world.group(work.axis, c.op->stream);
  if (c.writes.count == 0) return sum_of_step(rank, group, stream);
  QPLAN_CHECK(group != nullptr, "a collective of one rank is not in the program");
  if (writes(rank, c, Storage::gradient)) return reduce_gradients(rank, c, work, group, stream);
  if (moves_parameters(rank, c)) return gather_parameters(rank, c, work, group, stream);
  if (work.axis == Axis::cp && c.op->role != Role::sequence_balance) {
    return exchange_context(rank, c, work, group, stream);
  }
  const Tensor from = rank.tensor(c, c.reads[0]);
  const ncclDataType_t type = nccl_type(from.dtype);
  switch (work.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      gather_or_scatter(rank, c, work.kind, group, stream);
      if (c.op->role == Role::expert_counts) {
        rank.bring_counts(c, rank.tensor(c, c.writes[0]), stream);
      }
      return;
    case CollectiveKind::all_reduce:
      check(ncclAllReduce(from.data, from.data, count_of(from), type,
                          c.op->role == Role::maximum ? ncclMax : ncclSum, group, stream));
      return;
    case CollectiveKind::all_to_all:
      return exchange_rows(rank, c, group, stream);
    case CollectiveKind::broadcast:
      break;
  }
  QPLAN_CHECK(false, "plans with such collectives are refused before they run");
}

void launch_message(CudaRank& rank, NcclWorld& world, const Command& c, cudaStream_t stream) {
  const int own = rank.commands.rank;
  const bool sends = c.kind == CommandKind::send;
  const bool backward = c.action.kind != ActionKind::forward;
  ncclComm_t edge = world.edge({sends ? own : c.peer, sends ? c.peer : own, backward});
  const auto bytes = static_cast<std::size_t>(c.bytes);
  if (sends) {
    check(ncclSend(rank.memory(c.buffer), bytes, ncclInt8, 1, edge, stream));
  } else {
    check(ncclRecv(rank.memory(c.buffer), bytes, ncclInt8, 0, edge, stream));
  }
}

}  // namespace qplan
