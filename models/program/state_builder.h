#pragma once
// States, parameter gathers, gradient reductions and the optimizer step: the same for every block.
// Private to the builders.

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/program/layer_context.h"

namespace qplan {

// Rows of the vocabulary that one tp rank holds, padding included.
std::int64_t vocabulary_share(const ModelSpec& model, const BlockShape& shape);

// Transformer Engine's dummy gradient of an n x k weight, where the recipe keeps such.
void dummy_weight_gradient(LayerContext& c, std::int64_t n, std::int64_t k);

// An embedding, what predicts from the last layer, and multi-token prediction's block.
Block build_embedding(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);
Block build_head(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);
Block build_mtp(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);

// One layer of a vision tower is a decoder layer of tower_spec(); these are its two ends.
Block build_patchify(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);
Block build_merger(const ModelSpec& model, const Recipe& recipe, const BlockShape& shape);

class StateBuilder {
 public:
  explicit StateBuilder(LayerContext& c)
      : c_(c), own_(sum_of(c.b.parameters())), borrows_(shares_embedding(c.model, c.shape)) {}

  // Makes the slots and tells the context what products read and write.
  void declare();

  // Forward starts: own parameters have been gathered; the next block's gather runs beside us.
  void enter_forward();

  void enter_backward();

  // Backward ends: what gradients are added to begins at 0, the following block's reduction is
  // waited for, ours is started.
  void leave_backward();

  void drain();

  // Of trained and of frozen ones.
  void prefetch(const RankParameters& n, std::string_view name, std::string_view frozen_name);

  // clear, gather, reduce, norm and update: once a step.
  void once_a_step();

 private:
  [[nodiscard]] DType working_params() const;
  [[nodiscard]] bool narrow_shards() const;
  [[nodiscard]] bool keeps_bf16_gradients() const;
  [[nodiscard]] DType reduce_dtype() const;
  [[nodiscard]] DType summed_dtype() const;  // of whole gradients, over microbatches
  [[nodiscard]] DType kept_dtype() const;    // of gradients between reduction and update

  SlotId whole_parameters(std::string_view name, const RankParameters& n);
  // Of the frozen ones among `n`.
  SlotId whole_frozen(std::string_view name, const RankParameters& n);
  [[nodiscard]] double frozen_bytes(const RankParameters& n, bool of_shards) const;
  void declare_frozen();
  // The shards of `n` into `whole`, `element` bytes each. False where no other rank has any.
  bool gather_shards(const RankParameters& n, SlotId whole, double element, bool narrows,
                     StreamSet after);
  void copy_in(std::int64_t shard, double element, bool narrows);

  // Each parameter out of the buffer that all were gathered into, where the recipe does so.
  void wait_for_parameters();
  void copy_out(SlotId gathered);

  // Gradients that autograd puts together in one array before they are reduced (FSDP1).
  [[nodiscard]] bool flattens() const;
  SlotId flat_gradients();

  // Of one microbatch, out of `input`.
  void keep_gradients(SlotId input);
  void reduce_microbatch(std::int64_t count, Axis axis, int ranks, SlotId input);
  void sum_replicas(SlotId input);

  void reduce_whole(std::int64_t count, Axis axis, int ranks, double element);

  // Of gradients that several microbatches add up whole (BlockShape::sums_whole).
  void add_whole();
  void copy_sums();

  // Sums `count` elements that several ranks make a part of.
  void sum_shared(std::int64_t count, Axis axis, Role role);
  // The gradients of the embedding's table and of its copy, on the first and the last stage.
  void sum_embedding_copies();

  // The updated parameters to every rank (distributed optimizer).
  void gather_updated(StreamSet after);

  void optimizer_step();
  // What it does on the device: a pass over elements, and Muon's steps of matrices.
  [[nodiscard]] Update elementwise_update() const;
  struct MatrixUpdate {
    Muon step;
    std::int16_t parameter = kNoParameter;
    int ranks = 1;  // of tp, experts' of etp, that hold a part of each matrix
    bool expert = false;
  };
  [[nodiscard]] std::vector<MatrixUpdate> matrix_updates() const;
  [[nodiscard]] std::vector<MatrixUpdate> hidden_matrices() const;
  void orthogonalize(const MatrixUpdate& update);
  void declare_optimizer();

  // Held by the embedding of this rank, where its states are worked with.
  void borrow(SlotId slot);

  LayerContext& c_;
  RankParameters own_, shard_;
  bool borrows_ = false;
  SlotId weights_ = kNoSlot, gradients_ = kNoSlot, optimizer_ = kNoSlot, frozen_ = kNoSlot;
  SlotId whole_gradients_ = kNoSlot;  // what products write
};

}  // namespace qplan
