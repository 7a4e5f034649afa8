#include "executor/states.h"

#include <algorithm>

namespace qplan {

const ArrayAccess& host_arrays() {
  static const ArrayAccess access{
      [](const Tensor& from, std::span<float> out) { math::decode(from.dtype, from.span(), out); },
      [](std::span<const float> values, const Tensor& to) {
        math::encode(to.dtype, values, to.span());
      }};
  return access;
}

std::vector<ParameterPiece> pieces_of(const Rank& rank, const ParameterIndex& index, int instance,
                                      bool frozen) {
  const BlockInstance& at = rank.commands.instances[static_cast<std::size_t>(instance)];
  const ModelPart part = model_part(rank.shape(instance).kind);
  const ShardPlace place{rank.at.tp, rank.expert_at.etp, rank.expert_at.ep};
  std::vector<ParameterPiece> all;
  for (const PackedParameter& p : rank.block(instance).parameters) {
    if (p.frozen != frozen) continue;
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

namespace {

std::size_t packed_size(const Rank& rank, int instance, bool frozen) {
  const RankParameters all = sum_of(rank.block(instance).parameters);
  return static_cast<std::size_t>((frozen ? all.frozen() : all).total());
}

// A block's packed parameters on this rank.
std::vector<float> packed_weights(const Rank& rank, const ParameterIndex& index, int instance,
                                  bool frozen, const WeightSource& weights_of) {
  std::vector<float> packed(packed_size(rank, instance, frozen));
  for (const ParameterPiece& piece : pieces_of(rank, index, instance, frozen)) {
    weights_of(index.all()[static_cast<std::size_t>(piece.index)], piece.first_row, piece.first_col,
               {packed.data() + piece.local, piece.rows, piece.cols, piece.cols});
  }
  return packed;
}

// The elements of this rank's shard out of the packed ones.
std::vector<float> shard_of(const Rank& rank, int instance, bool frozen,
                            std::span<const float> packed) {
  std::vector<float> shard(static_cast<std::size_t>(rank.shard(instance, frozen).size()));
  for (const StateRun& run : rank.state_runs(instance, frozen)) {
    std::copy_n(packed.begin() + run.packed, run.count, shard.begin() + run.shard);
  }
  return shard;
}

// A shard's numbers into the whole model's.
void put_shard(const Rank& rank, const ParameterIndex& index, int instance, bool frozen,
               std::span<const float> shard, ModelTensors& tensors) {
  std::vector<float> packed(packed_size(rank, instance, frozen));
  std::vector<bool> known(packed.size(), false);
  for (const StateRun& run : rank.state_runs(instance, frozen)) {
    std::copy_n(shard.begin() + run.shard, run.count, packed.begin() + run.packed);
    std::fill_n(known.begin() + run.packed, run.count, true);
  }
  for (const ParameterPiece& piece : pieces_of(rank, index, instance, frozen)) {
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

std::vector<float> numbers_of(const Tensor& from, const ArrayAccess& access) {
  std::vector<float> numbers(static_cast<std::size_t>(from.elements()));
  access.read(from, numbers);
  return numbers;
}

// Main parameters of a shard: those on the host, then those in the arena.
std::vector<float> main_params(Rank& rank, int instance, const ArrayAccess& arrays) {
  std::vector<float> shard;
  if (rank.offloaded(instance) > 0) {
    shard = numbers_of(rank.host_state(instance).main_params, host_arrays());
  }
  const std::vector<float> rest = numbers_of(rank.device_state(instance).main_params, arrays);
  shard.insert(shard.end(), rest.begin(), rest.end());
  return shard;
}

}  // namespace

void load_weights(Rank& rank, const ParameterIndex& index, int instance,
                  const WeightSource& weights_of, const ArrayAccess& arrays) {
  if (!rank.holds_states(instance)) return;
  const bool sharded = rank.shape(instance).zero == 3;
  if (const Tensor frozen = rank.held(instance, Storage::frozen); frozen.data != nullptr) {
    const std::vector<float> packed = packed_weights(rank, index, instance, true, weights_of);
    arrays.write(sharded ? shard_of(rank, instance, true, packed) : packed, frozen);
  }
  if (rank.held(instance, Storage::weight).data == nullptr) return;
  const std::vector<float> packed = packed_weights(rank, index, instance, false, weights_of);
  const std::vector<float> shard = shard_of(rank, instance, false, packed);
  const auto host = static_cast<std::size_t>(rank.offloaded(instance));
  arrays.write(sharded ? shard : packed, rank.held(instance, Storage::weight));
  arrays.write(std::span(shard).subspan(host), rank.device_state(instance).main_params);
  if (host > 0) {
    host_arrays().write(std::span(shard).first(host), rank.host_state(instance).main_params);
  }
}

void collect(Rank& rank, const ParameterIndex& index, Collected what, const ArrayAccess& arrays,
             ModelTensors& tensors) {
  for (int i = 0; i < std::ssize(rank.commands.instances); ++i) {
    if (!rank.holds_states(i)) continue;
    if (what == Collected::main_params) {
      if (const Tensor frozen = rank.held(i, Storage::frozen); frozen.data != nullptr) {
        std::vector<float> shard = numbers_of(frozen, arrays);
        if (rank.shape(i).zero != 3) shard = shard_of(rank, i, true, shard);
        put_shard(rank, index, i, true, shard, tensors);
      }
    }
    if (rank.held(i, Storage::weight).data == nullptr) continue;
    std::vector<float> shard;
    if (what == Collected::gradients) {
      shard = numbers_of(rank.held(i, Storage::gradient), arrays);
      if (rank.shape(i).zero < 2) shard = shard_of(rank, i, false, shard);
    } else {
      shard = main_params(rank, i, arrays);
    }
    put_shard(rank, index, i, false, shard, tensors);
  }
}

}  // namespace qplan
