#include "executor/states.h"

#include <algorithm>

namespace qplan {
std::vector<ParameterPiece> pieces_of(const Rank& rank, const ParameterIndex& index, int instance) {
  const BlockInstance& at = rank.commands.instances[static_cast<std::size_t>(instance)];
  const ModelPart part = model_part(rank.shape(instance).kind);
  const ShardPlace place{rank.at.tp, rank.expert_at.etp, rank.expert_at.ep};
  std::vector<ParameterPiece> all;
  for (const PackedParameter& p : rank.block(instance).parameters) {
    const auto pieces = pieces_of(index, part, at.layer, p, place);
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

ModelTensors empty_tensors(const ParameterIndex& index) {
  ModelTensors tensors;
  for (const ModelParameter& p : index.all()) {
    tensors.emplace_back(static_cast<std::size_t>(p.parameter.elements()), 0.0F);
  }
  return tensors;
}

std::vector<float> packed_weights(const Rank& rank, const ParameterIndex& index, int instance,
                                  const WeightSource& weights_of) {
  std::vector<float> packed(
      static_cast<std::size_t>(sum_of(rank.block(instance).parameters).total()));
  for (const ParameterPiece& piece : pieces_of(rank, index, instance)) {
    weights_of(index.all()[static_cast<std::size_t>(piece.index)], piece.first_row, piece.first_col,
               {packed.data() + piece.local, piece.rows, piece.cols, piece.cols});
  }
  return packed;
}

std::vector<float> shard_of(const Rank& rank, int instance, std::span<const float> packed) {
  std::vector<float> shard(static_cast<std::size_t>(rank.shard(instance).size()));
  for (const StateRun& run : rank.state_runs(instance)) {
    std::copy_n(packed.begin() + run.packed, run.count, shard.begin() + run.shard);
  }
  return shard;
}

void put_shard(const Rank& rank, const ParameterIndex& index, int instance,
               std::span<const float> shard, ModelTensors& tensors) {
  std::vector<float> packed(
      static_cast<std::size_t>(sum_of(rank.block(instance).parameters).total()));
  std::vector<bool> known(packed.size(), false);
  for (const StateRun& run : rank.state_runs(instance)) {
    std::copy_n(shard.begin() + run.shard, run.count, packed.begin() + run.packed);
    std::fill_n(known.begin() + run.packed, run.count, true);
  }
  for (const ParameterPiece& piece : pieces_of(rank, index, instance)) {
    const auto whole = static_cast<std::size_t>(piece.index);
    const std::int64_t width = index.all()[whole].parameter.cols;
    for (std::int64_t k = 0; k < piece.rows * piece.cols; ++k) {
      const auto local = static_cast<std::size_t>(piece.local + k);
      const std::int64_t row = piece.first_row + k / piece.cols;
      const std::int64_t place = row * width + piece.first_col + k % piece.cols;
      if (known[local]) tensors[whole][static_cast<std::size_t>(place)] = packed[local];
    }
  }
}

}  // namespace qplan
