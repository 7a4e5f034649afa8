#pragma once
// What one rank is, whatever executes it: its place in the groups, where its slots lie, which
// states it keeps, its batch, and the sums of the step that is under way.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/io/images.h"
#include "executor/math/optimizer.h"
#include "executor/tensor.h"
#include "executor/weights.h"
#include "models/image_layout.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/rank_program.h"

namespace qplan {

struct OptimizerSettings {
  math::AdamWSettings adamw;
  double clip_grad = 1;  // largest gradient norm; 0: any
};

// What every rank of a job shares, and none of them changes.
struct RankJob {
  const ModelSpec& model;
  const ParallelPlan& plan;
  const StepProgram& program;
  OptimizerSettings optimizer;
  // Of a model with a vision tower: the tower's layers as a model, where images stand, their
  // pixels.
  ModelSpec tower = model.vision ? tower_spec(*model.vision) : ModelSpec{};
  std::optional<ImageLayout> images{};
  ImageSource pixels{};
};

// The part of a block's states that one data-parallel rank updates: of the packed dense elements
// and of the packed experts' after them, an equal share each, the last one perhaps shorter.
struct StateShard {
  struct Section {
    std::int64_t begin = 0, count = 0;  // of the packed parameters
    std::int64_t size = 0;              // elements kept for it: ceil(section / ranks)
    std::int64_t total = 0, first = 0;  // the whole section, and where it begins
  };
  Section dense, expert;
  [[nodiscard]] std::int64_t size() const { return dense.size + expert.size; }
};

// `count` elements of one parameter in both numberings.
struct StateRun {
  std::size_t parameter = 0;
  std::int64_t packed = 0, shard = 0, count = 0;
};

// An optimizer's arrays of a block. AdamW's have one number an element of the shard each. A
// momentum alone is moment1. Muon's moments follow each other parameter by parameter, as
// state_runs() goes, moment2 those of what AdamW steps alone; Adafactor's moment2 are means of
// squares, copy by copy in the order of the block's parameters.
struct OptimizerState {
  Tensor moment1, moment2, main_params;
};

// Positions of one sequence's tokens on a rank of the context-parallel group: the first and the
// last chunk that are left, so that causal work is equal (zig-zag).
std::vector<std::int64_t> positions_of(const ParallelPlan& plan, std::int64_t cp_rank);

class Rank {
 public:
  // `arena`: memory of the program's extent, of the host or of a device; null: given later.
  Rank(const RankJob& job, const RankProgram& commands, std::int64_t rank, std::byte* arena);

  const RankJob& job;
  const RankProgram& commands;
  const std::int64_t rank;
  const RankGrid::Dense at;
  const RankGrid::Expert expert_at;

  // The step's tokens, global_batch_size sequences of seq_len + 1.
  std::span<const std::int32_t> batch;
  std::int64_t first_sequence = 0;  // the batch's first one, counted from the first run's start
  std::int64_t step = 0;            // from 1
  double loss_sum = 0, mtp_loss_sum = 0, square_sum = 0;
  double loss = 0, mtp_loss = 0, grad_norm = 0;  // of all ranks, from the step's edge on

  [[nodiscard]] const BlockInstance& instance(const Command& c) const {
    return commands.instances[static_cast<std::size_t>(c.instance)];
  }
  [[nodiscard]] const Block& block(int instance) const;
  [[nodiscard]] const Block& block(const Command& c) const { return block(c.instance); }
  [[nodiscard]] const BlockShape& shape(int instance) const;
  // What a command's block is a part of: the model, or its vision tower.
  [[nodiscard]] const ModelSpec& spec(const Command& c) const;

  [[nodiscard]] Tensor tensor(const Command& c, const Operand& operand) const;
  [[nodiscard]] const Slot& slot(const Command& c, const Operand& operand) const {
    return block(c).slots[static_cast<std::size_t>(operand.slot)];
  }
  // Whether the instance has parameters of its own to load, update and save. (A tied head on the
  // embedding's rank works with those of the embedding.)
  [[nodiscard]] bool holds_states(int instance) const;
  // A slot of an instance that is there for the whole step; data is null where there is none.
  [[nodiscard]] Tensor held(int instance, Storage storage) const;
  [[nodiscard]] std::byte* memory(std::int64_t offset) const { return arena_ + offset; }

  // The whole group of an axis, and this rank's place in it.
  [[nodiscard]] std::vector<std::int64_t> group(Axis axis) const;
  [[nodiscard]] std::int64_t position(Axis axis) const;

  // Of a block's trained parameters, or of its frozen ones.
  [[nodiscard]] StateShard shard(int instance, bool frozen = false) const;
  // Whether no rank before this one holds the same elements of that parameter's states.
  [[nodiscard]] bool is_first_holder(int instance, const PackedParameter& p) const;
  // Every element of a shard, parameter by parameter.
  [[nodiscard]] std::vector<StateRun> state_runs(int instance, bool frozen = false) const;
  // The optimizer's arrays on the device, and where the plan offloads a part, on the host: the
  // first elements of the shard.
  [[nodiscard]] OptimizerState device_state(int instance) const;
  OptimizerState host_state(int instance);
  [[nodiscard]] std::int64_t offloaded(int instance) const;

  // Positions in the sequence and token ids of the rows of a microbatch that one tensor-parallel
  // group holds, sequence after sequence; `shift`: so many further on, -1 beyond the sequence's
  // end.
  [[nodiscard]] std::vector<std::int64_t> positions() const;
  [[nodiscard]] std::vector<std::int32_t> tokens(int microbatch, int shift) const;
  // What those rows are to predict: the next token, in multi-token prediction the one so many
  // further `ahead`. -1: nothing, beyond the end and where a visual token stands (as transformers'
  // labels of -100).
  [[nodiscard]] std::vector<std::int32_t> targets(int microbatch, int ahead) const;
  // Tokens of a step that have a target.
  [[nodiscard]] std::int64_t predictions(int ahead) const;
  // Of each of their losses in the step's: they are a mean, that of multi-token prediction
  // weighted.
  [[nodiscard]] double loss_weight(int ahead) const;

  // Counts the step and clears its sums.
  void begin_step();

 protected:
  void set_arena(std::byte* arena) { arena_ = arena; }

 private:
  std::byte* arena_ = nullptr;
  std::unordered_map<int, std::vector<float>> host_;
};

// "gemm 8x64x64 fp32 of dense layer 2 (0F1)".
std::string describe(const Rank& rank, const Command& command);

}  // namespace qplan
