#include "executor/cpu_checkpoint.h"

#include <algorithm>

namespace qplan {
namespace {

// A piece, and where its elements begin in the rank's shard of a block's states; they follow each
// other there.
struct OwnPiece {
  int instance = 0;
  ParameterPiece piece;
  std::int64_t shard = 0;
};

// Joins the next run of a parameter to a piece that it continues: as a run more, or longer.
bool join(OwnPiece& last, const OwnPiece& next) {
  ParameterPiece& p = last.piece;
  const ParameterPiece& n = next.piece;
  const bool follows = p.index == n.index && last.instance == next.instance &&
                       last.shard + p.elements() == next.shard;
  if (!follows) return false;
  if (p.times == 1 && p.begin + p.count == n.begin) {
    p.count += n.count;
    p.stride = p.count;
    return true;
  }
  const std::int64_t stride = p.times == 1 ? n.begin - p.begin : p.stride;
  if (n.count != p.count || stride <= p.count || n.begin != p.begin + p.times * stride) {
    return false;
  }
  p.stride = stride;
  ++p.times;
  return true;
}

// Of the packed parameter number `number` of an instance, those elements that are in the shard.
std::vector<OwnPiece> pieces_of(const CpuRank& rank, const ParameterIndex& index, int instance,
                                std::size_t number, const std::vector<StateRun>& shard) {
  std::vector<OwnPiece> pieces;
  const ShardPlace place{rank.at.tp, rank.expert_at.etp, rank.expert_at.ep};
  const std::int64_t layer = rank.commands.instances[static_cast<std::size_t>(instance)].layer;
  for_each_run(index, model_part(rank.shape(instance).kind), layer,
               rank.block(instance).parameters[number], place, [&](const ParameterRun& run) {
                 if (run.index < 0) return;
                 for (const StateRun& state : shard) {
                   if (state.parameter != number) continue;
                   const std::int64_t begin = std::max(run.local, state.packed);
                   const std::int64_t end =
                       std::min(run.local + run.count, state.packed + state.count);
                   if (begin >= end) continue;
                   const std::int64_t count = end - begin;
                   const OwnPiece next{instance,
                                       {run.index, run.global + begin - run.local, count, count, 1},
                                       state.shard + begin - state.packed};
                   if (pieces.empty() || !join(pieces.back(), next)) pieces.push_back(next);
                 }
               });
  return pieces;
}

// Calls visit(piece, packed parameter) over everything in the rank's shards.
template <class Visit>
void each_piece(const CpuRank& rank, const ParameterIndex& index, Visit visit) {
  for (int i = 0; i < static_cast<int>(rank.commands.instances.size()); ++i) {
    const auto& parameters = rank.block(i).parameters;
    if (parameters.empty()) continue;
    const std::vector<StateRun> shard = rank.state_runs(i);
    for (std::size_t number = 0; number < parameters.size(); ++number) {
      for (const OwnPiece& piece : pieces_of(rank, index, i, number, shard)) {
        visit(piece, parameters[number]);
      }
    }
  }
}

const Tensor& array_of(const OptimizerState& state, StateKind kind) {
  return kind == StateKind::main      ? state.main_params
         : kind == StateKind::moment1 ? state.moment1
                                      : state.moment2;
}

// Elements [first, first + count) of one of a block's state arrays: the part on the host, then the
// one on the device. Calls visit(tensor, offset among the elements).
template <class Visit>
void each_part(CpuRank& rank, int instance, StateKind kind, std::int64_t first, std::int64_t count,
               Visit visit) {
  const std::int64_t on_host = rank.offloaded(instance);
  const std::int64_t host = std::clamp<std::int64_t>(on_host - first, 0, count);
  if (host > 0) {
    visit(array_of(rank.host_state(instance), kind).part(first, 1, host), std::int64_t{0});
  }
  if (host < count) {
    const std::int64_t begin = first + host - on_host;
    visit(array_of(rank.device_state(instance), kind).part(begin, 1, count - host), host);
  }
}

std::span<float> part_of(std::span<float> values, std::int64_t first, std::int64_t count) {
  return values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

std::vector<SavedPiece> saved_pieces(CpuRank& rank, const ParameterIndex& index) {
  std::vector<SavedPiece> saved;
  each_piece(rank, index, [&](const OwnPiece& own, const PackedParameter& p) {
    if (!rank.is_first_holder(own.instance, p)) return;
    for (const auto& [kind, word] : Words<StateKind>::table) {
      const DType dtype = array_of(rank.device_state(own.instance), kind).dtype;
      saved.push_back({kind, own.piece, dtype, [&rank, own, kind = kind](auto first, auto out) {
                         each_part(rank, own.instance, kind, own.shard + first, std::ssize(out),
                                   [&](const Tensor& from, std::int64_t offset) {
                                     math::decode(from.dtype, from.span(),
                                                  part_of(out, offset, from.elements()));
                                   });
                       }});
    }
  });
  return saved;
}

void load_moments(CpuRank& rank, const ParameterIndex& index, const Checkpoint& checkpoint) {
  each_piece(rank, index, [&](const OwnPiece& own, const PackedParameter&) {
    std::vector<float> values(static_cast<std::size_t>(own.piece.elements()));
    for (const StateKind kind : {StateKind::moment1, StateKind::moment2}) {
      for (std::int64_t t = 0; t < own.piece.times; ++t) {
        checkpoint.read(kind, own.piece.index, own.piece.begin + t * own.piece.stride,
                        part_of(values, t * own.piece.count, own.piece.count));
      }
      each_part(rank, own.instance, kind, own.shard, own.piece.elements(),
                [&](const Tensor& to, std::int64_t offset) {
                  math::encode(to.dtype, part_of(values, offset, to.elements()), to.span());
                });
    }
  });
}

}  // namespace qplan
