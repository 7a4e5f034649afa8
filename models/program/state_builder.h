#pragma once
// States, parameter gathers, gradient reductions and the optimizer step: the same for every block.
// Private to the builders.

#include <cstdint>
#include <string_view>

#include "models/program/layer_context.h"

namespace qplan {

// Rows of the vocabulary that one tp rank holds, padding included.
std::int64_t vocabulary_share(const ModelSpec& model, const BlockShape& shape);

// One layer of a vision tower is a decoder layer of tower_spec(); these are its two ends.
Block build_patchify(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);
Block build_merger(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);

class StateBuilder {
 public:
  explicit StateBuilder(LayerContext& c) : c_(c), own_(sum_of(c.b.parameters())) {}

  // Makes the slots and tells the context what products read and write.
  void declare();

  // Forward starts: own parameters have been gathered; the next block's gather runs beside us.
  void enter_forward();

  void enter_backward();

  // Backward ends: the following block's reduction is waited for, ours is started.
  void leave_backward();

  void drain();

  void prefetch(const RankParameters& n, std::string_view name);

  // gather, reduce, norm and update: once a step.
  void once_a_step();

 private:
  [[nodiscard]] DType working_params() const;

  SlotId whole_parameters(std::string_view name, const RankParameters& n);

  // False where there is nobody to reduce with.
  bool reduce_scatter(std::int64_t count, Axis axis, int ranks, int replicas, Axis replica_axis,
                      SlotId input);

  void reduce_whole(std::int64_t count, Axis axis, int ranks, double element);

  // What several tensor-parallel ranks, or the two holders of a tied embedding, make a part of.
  void reduce_shared_parameters();

  // The updated parameters to every rank (distributed optimizer).
  void gather_updated(StreamSet after);

  void optimizer_step();

  LayerContext& c_;
  RankParameters own_, shard_;
  SlotId weights_ = kNoSlot, gradients_ = kNoSlot, optimizer_ = kNoSlot;
};

}  // namespace qplan
