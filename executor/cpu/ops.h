#pragma once
// What one command does to one rank's memory, in the reference mathematics of executor/math.
// Private to the CPU backend.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "executor/cpu/rank.h"
#include "executor/cpu/world.h"
#include "executor/math/router.h"
#include "executor/operands.h"
#include "models/error.h"

namespace qplan {

// Work that one rank does alone.
void compute(CpuRank& rank, const Command& command);

// A collective, done by its last rank for all. Members are in the order of the group.
void together(const std::vector<CpuWorld::Member>& members);

// ---- parts of compute(), by subject ----

void run_product(CpuRank& rank, const Command& command, const Gemm& work);
void run_experts_product(CpuRank& rank, const Command& command, const GroupedGemm& work);
void run_attention(CpuRank& rank, const Command& command, const Attention& work);
void run_rowwise(CpuRank& rank, const Command& command, const Rowwise& work);
// DoRA: an adapter's B A, norms of merged rows, and what is scaled by them.
void run_merge(CpuRank& rank, const Command& command);
void run_merged_squares(CpuRank& rank, const Command& command);
void run_magnify(CpuRank& rank, const Command& command, const Rowwise& work);
void run_magnify_backward(CpuRank& rank, const Command& command, const Rowwise& work);
void run_rope(CpuRank& rank, const Command& command, const Rowwise& work);
void run_copy(CpuRank& rank, const Command& command);
// A copy into or out of what ranks exchange when heads are traded for sequence.
void move_heads(CpuRank& rank, const Command& command);
void run_qk_norm(CpuRank& rank, const Command& command, bool backward);
// Llama 4: experts' rows times a number each, before the experts read them.
void run_scale_rows(CpuRank& rank, const Command& command, bool backward);
// Gated DeltaNet, and what Mamba-2 shares with it.
void run_convolution(CpuRank& rank, const Command& command, bool backward);
void run_delta_norm(CpuRank& rank, const Command& command, bool backward);
void run_decay_gates(CpuRank& rank, const Command& command, bool backward);
void run_delta_rule(CpuRank& rank, const Command& command, const GatedDeltaRule& work);
void run_gated_norm(CpuRank& rank, const Command& command, bool backward);
// A copy between what the projection makes and arrays of its own.
void put_projected(CpuRank& rank, const Command& command);
// Mamba-2.
void run_scan(CpuRank& rank, const Command& command, const StateSpaceScan& work);
void run_group_norm(CpuRank& rank, const Command& command, bool backward);
// What images need beyond a language model's work; false: this command is none of it.
bool run_images(CpuRank& rank, const Command& command);
void run_loss(CpuRank& rank, const Command& command, RowwiseKind kind);
void add_bias_to_scale_gradient(CpuRank& rank, const Command& command, Values& dscale);
void run_router(CpuRank& rank, const Command& command, bool backward);
void run_permute(CpuRank& rank, const Command& command);
void run_adamw(CpuRank& rank, const Command& command, bool on_host);
void run_update(CpuRank& rank, const Command& command, const Update& work);
void run_muon(CpuRank& rank, const Command& command);
void run_sum_of_squares(CpuRank& rank, const Command& command);
// Linear layers in fp8.
void run_amax(CpuRank& rank, const Command& command, const Rowwise& work);
void run_quantize(CpuRank& rank, const Command& command, const Rowwise& work);
void run_transpose(CpuRank& rank, const Command& command);
void run_fp8_product(CpuRank& rank, const Command& command, const Gemm& work);
// A Join that moves states where one rank alone holds them: parameters into a block's whole copy,
// a whole gradient into the kept one.
void run_join(CpuRank& rank, const Command& command);
// What this rank alone holds, beside a gather.
void copy_parameters(CpuRank& rank, const Command& command);
void keep_gradients(CpuRank& rank, const Command& command);

// ---- collectives over states and over expert rows ----

struct Party {
  CpuRank& rank;
  const Command& command;
};
using Parties = std::vector<Party>;
void gather_parameters(const Parties& parties, Axis axis);
void reduce_gradients(const Parties& parties, const Collective& work);
// Context parallelism: keys and values of all, their gradients back, or heads for sequence.
void exchange_context(const Parties& parties, const Collective& work);
void exchange_rows(const Parties& parties, bool to_experts);

// ---- what several subjects need ----

// Columns that a row of packed q|k|v and the rows of q, k and v share. Where tp ranks are more than
// key-value heads, the packed row is that of all ranks, one after the other.
struct ColumnRun {
  std::int64_t packed = 0, own = 0, count = 0;
};
struct HeadColumns {
  std::vector<ColumnRun> q, k, v, gate;
};
// Columns out of packed rows, and into them.
void take(const std::vector<ColumnRun>& runs, math::Matrix packed, math::Matrix own);
void put(const std::vector<ColumnRun>& runs, math::Matrix own, math::Matrix packed);
// Columns of what Gated DeltaNet's projection makes: those that the convolution reads, the gate of
// the norm, strengths and then decays; and what the convolution reads of Mamba-2's.
struct DeltaColumns {
  std::vector<ColumnRun> channels, gate, strengths;
};
DeltaColumns delta_columns(const CpuRank& rank, const Command& command);
std::vector<ColumnRun> mamba_channels(const CpuRank& rank, const Command& command);
// What stands side by side in `cols` columns of all heads that ranks exchange for sequence: each of
// these is cut into the ranks' shares.
std::vector<std::int64_t> exchanged_parts(const CpuRank& rank, const Command& command,
                                          std::int64_t cols);
HeadColumns head_columns(const CpuRank& rank, const Command& command, std::int64_t packed_cols);

// Angles that rotary embedding turns a command's rows by, for each of the dims / 2 pairs of a head.
std::vector<double> rope_angles(const Rank& rank, const Command& command, std::int64_t dims);

// Token ids whose rows of the embedding are used: -1 where a visual token stands instead.
std::vector<std::int32_t> embedded_tokens(const Rank& rank, std::vector<std::int32_t> ids);

// The first `cols` columns of a tensor, or, where a row of it is shorter, several rows as one (a
// vision tower's mergers).
inline math::Matrix rows_of(Values& values, std::int64_t cols) {
  const math::Matrix m = values.matrix();
  if (m.cols >= cols) return m.columns(0, cols);
  return {values.all(), m.rows * m.cols / cols, cols};
}

// The gradient of a norm's or a recurrence's parameter in the last slot that its backward writes. A
// frozen one has none: what the mathematics makes of it goes nowhere.
class NormGradient {
 public:
  NormGradient(const Rank& rank, const Command& c, const PackedParameter& p) {
    if (p.frozen) {
      nowhere_.resize(static_cast<std::size_t>(p.rows * p.cols));
    } else {
      const Tensor slot = rank.tensor(c, c.writes[c.writes.count - 1U]);
      kept_.emplace(slot.part(p.offset + c.op->copy * p.stride, p.rows, p.cols));
    }
  }
  [[nodiscard]] std::span<float> all() { return kept_ ? kept_->all() : std::span(nowhere_); }
  void commit() {
    if (kept_) kept_->commit();
  }

 private:
  std::optional<Values> kept_;
  std::vector<float> nowhere_;
};

// Rows of a parameter (or of its gradient, in the last slot that is written) that belong to the
// heads of this rank: where heads are exchanged for sequence, its share of each part.
class HeadParameter {
 public:
  HeadParameter(const CpuRank& rank, const Tensor& slot, const PackedParameter& p);
  [[nodiscard]] std::span<float> all() { return own_; }
  [[nodiscard]] math::Matrix matrix() { return {own_, std::ssize(own_) / cols_, cols_}; }

 protected:
  HeadParameter(const CpuRank& rank, const PackedParameter& p);
  std::vector<ColumnRun> rows_;
  std::int64_t cols_ = 1;
  std::vector<float> own_;
};
class HeadGradient : public HeadParameter {
 public:
  HeadGradient(const CpuRank& rank, const Command& c, const PackedParameter& p)
      : HeadParameter(rank, p), kept_(rank, c, p) {}
  void commit();  // adds to the kept one

 private:
  NormGradient kept_;
};

// Of a model that has experts.
inline const MoeSpec& moe_of(const CpuRank& rank) {
  return *rank.job.model.moe;
}
math::RouterShape router_shape(const CpuRank& rank);
// First entries of each row of the row map (cpu_experts.cpp): the experts chosen for each token.
std::vector<std::int32_t> chosen_experts(const CpuRank& rank, const Tensor& row_map);

// Rows of a received-tokens slot that belong to one local expert.
struct ExpertRows {
  std::int64_t expert = 0, first = 0, count = 0;
};
std::vector<ExpertRows> expert_rows(const CpuRank& rank, const Tensor& counts, std::int64_t rows);

}  // namespace qplan
