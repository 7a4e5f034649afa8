#include "executor/checkpoint.h"

#include <algorithm>

namespace qplan {
namespace {

// Elements of a parameter, and where they begin in the rank's shard of a block's states; they
// follow each other there.
struct OwnRuns {
  int instance = 0;
  ElementRuns runs;
  std::int64_t shard = 0;
};

// Joins the next run of a parameter to those that it continues: as a run more, or longer.
bool join(OwnRuns& last, const OwnRuns& next) {
  ElementRuns& r = last.runs;
  const ElementRuns& n = next.runs;
  if (r.index != n.index || last.shard + r.elements() != next.shard) return false;
  if (r.times == 1 && r.begin + r.count == n.begin) {
    r.count += n.count;
    r.stride = r.count;
    return true;
  }
  const std::int64_t stride = r.times == 1 ? n.begin - r.begin : r.stride;
  if (n.count != r.count || stride <= r.count || n.begin != r.begin + r.times * stride) {
    return false;
  }
  r.stride = stride;
  ++r.times;
  return true;
}

// Those elements of a matrix of the packed weights that a run of the states holds.
void add_runs(int instance, const ParameterPiece& matrix, std::int64_t width, const StateRun& state,
              std::vector<OwnRuns>& all) {
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::int64_t local = matrix.local + row * matrix.cols;
    const std::int64_t begin = std::max(local, state.packed);
    const std::int64_t count = std::min(local + matrix.cols, state.packed + state.count) - begin;
    if (count <= 0) continue;
    const std::int64_t first = (matrix.first_row + row) * width + matrix.first_col + begin - local;
    const OwnRuns next{
        instance, {matrix.index, first, count, count, 1}, state.shard + begin - state.packed};
    if (all.empty() || !join(all.back(), next)) all.push_back(next);
  }
}

// Calls visit(runs, packed parameter) over everything in the rank's shard of a block.
template <class Visit>
void each_own(const Rank& rank, const ParameterIndex& index, int instance, Visit visit) {
  if (!rank.holds_states(instance)) return;
  const ShardPlace place{rank.at.tp, rank.expert_at.etp, rank.expert_at.ep};
  const auto& parameters = rank.block(instance).parameters;
  const ModelPart part = model_part(rank.shape(instance).kind);
  const std::int64_t layer = rank.commands.instances[static_cast<std::size_t>(instance)].layer;
  const std::vector<StateRun> shard = rank.state_runs(instance);
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    const PackedParameter& p = parameters[number];
    std::vector<OwnRuns> own;
    for (const ParameterPiece& matrix : pieces_of(index, part, layer, p, place)) {
      for (const StateRun& state : shard) {
        if (state.parameter == number) add_runs(instance, matrix, p.whole.cols, state, own);
      }
    }
    for (const OwnRuns& runs : own) visit(runs, p);
  }
}

const Tensor& array_of(const OptimizerState& state, StateKind kind) {
  return kind == StateKind::main      ? state.main_params
         : kind == StateKind::moment1 ? state.moment1
                                      : state.moment2;
}

// Elements [first, first + count) of one of a block's state arrays: the part on the host, then the
// one in the rank's arena. Calls visit(tensor, offset among the elements, how it is accessed).
template <class Visit>
void each_part(Rank& rank, int instance, StateKind kind, std::int64_t first, std::int64_t count,
               const ArrayAccess& arrays, Visit visit) {
  const std::int64_t on_host = rank.offloaded(instance);
  const std::int64_t host = std::clamp<std::int64_t>(on_host - first, 0, count);
  if (host > 0) {
    visit(array_of(rank.host_state(instance), kind).part(first, 1, host), std::int64_t{0},
          host_arrays());
  }
  if (host < count) {
    const std::int64_t begin = first + host - on_host;
    visit(array_of(rank.device_state(instance), kind).part(begin, 1, count - host), host, arrays);
  }
}

std::span<float> part_of(std::span<float> values, std::int64_t first, std::int64_t count) {
  return values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

std::vector<SavedState> saved_states(Rank& rank, const ParameterIndex& index,
                                     const ArrayAccess& arrays) {
  std::vector<SavedState> saved;
  const auto add = [&](const OwnRuns& own, const PackedParameter& p) {
    if (!rank.is_first_holder(own.instance, p)) return;
    for (const auto& [kind, word] : Words<StateKind>::table) {
      const DType dtype = array_of(rank.device_state(own.instance), kind).dtype;
      const auto values = [&rank, arrays, own, kind = kind](std::int64_t first,
                                                            std::span<float> out) {
        each_part(rank, own.instance, kind, own.shard + first, std::ssize(out), arrays,
                  [&](const Tensor& from, std::int64_t offset, const ArrayAccess& access) {
                    access.read(from, part_of(out, offset, from.elements()));
                  });
      };
      saved.push_back({kind, own.runs, dtype, values});
    }
  };
  for (int i = 0; i < std::ssize(rank.commands.instances); ++i) each_own(rank, index, i, add);
  return saved;
}

void load_moments(Rank& rank, const ParameterIndex& index, int instance,
                  const Checkpoint& checkpoint, const ArrayAccess& arrays) {
  each_own(rank, index, instance, [&](const OwnRuns& own, const PackedParameter&) {
    const ElementRuns& runs = own.runs;
    std::vector<float> values(static_cast<std::size_t>(runs.elements()));
    for (const StateKind kind : {StateKind::moment1, StateKind::moment2}) {
      for (std::int64_t t = 0; t < runs.times; ++t) {
        checkpoint.read(kind, runs.index, runs.begin + t * runs.stride,
                        part_of(values, t * runs.count, runs.count));
      }
      each_part(rank, instance, kind, own.shard, runs.elements(), arrays,
                [&](const Tensor& to, std::int64_t offset, const ArrayAccess& access) {
                  access.write(part_of(values, offset, to.elements()), to);
                });
    }
  });
}

}  // namespace qplan
