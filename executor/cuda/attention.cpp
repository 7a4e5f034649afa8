// Attention and what prepares it: heads taken out of packed q|k|v, their norms, rotary embedding;
// and the loss, which is as short.

#include <algorithm>

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

struct Heads {
  std::int64_t q = 0, kv = 0, dim = 0;
};
Heads heads_of(const CudaRank& rank) {
  const ModelSpec& m = rank.job.model;
  const int tp = rank.job.plan.tp;
  return {m.num_attention_heads / tp, m.num_key_value_heads / tp, m.head_dim};
}

kernels::VocabularyShard shard_of(const CudaRank& rank, std::int64_t cols) {
  return {rank.at.tp * cols, rank.job.model.vocab_size};
}

}  // namespace

namespace {

kernels::LatentHeads latent_heads(const CudaRank& rank, std::int64_t rows) {
  const MlaSpec& a = *rank.job.model.mla;
  return {.rows = rows,
          .heads = rank.job.model.num_attention_heads / rank.job.plan.tp,
          .plain = a.qk_nope_head_dim,
          .turned = a.qk_rope_head_dim,
          .value = a.v_head_dim,
          .latent = a.kv_lora_rank,
          .latent_stride = a.kv_lora_rank + a.qk_rope_head_dim};
}

// {q up, ...} -> {q}, {dq} -> {dq up}; {expanded latent, latent and rotary key} -> {k, v},
// {dk, dv} -> {d expanded, d rotary key behind a latent that is yet to be made}.
void launch_latent_heads(CudaRank& rank, const Command& c, RowwiseKind kind, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const kernels::LatentHeads heads = latent_heads(rank, rank.tensor(c, c.reads[0]).rows);
  if (kind != RowwiseKind::copy) {
    return kernels::turn_latent_queries(at(c.writes[0]), at(c.reads[0]), heads, rank.rotation(),
                                        kind == RowwiseKind::rope_backward, stream);
  }
  const bool backward = c.action.kind != ActionKind::forward && !c.op->recomputed;
  const auto expand = backward ? kernels::expand_latent_backward : kernels::expand_latent;
  expand(at(c.writes[0]), at(c.writes[1]), at(c.reads[0]), at(c.reads[1]), heads, rank.rotation(),
         stream);
}

}  // namespace

// {q|k|v} -> {q, k, v}, {q|k} -> {q, k}, and the gradients back; a plain copy has one of each.
void launch_heads(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const bool plain = work.kind == RowwiseKind::copy && c.reads.count == 1;
  if (rank.job.model.mla && !plain) return launch_latent_heads(rank, c, work.kind, stream);
  if (c.reads.count == 1 && c.writes.count == 1) {
    return copy(rank.tensor(c, c.reads[0]), rank.tensor(c, c.writes[0]), stream);
  }
  const bool split = c.reads.count == 1;
  const Tensor packed = rank.tensor(c, split ? c.reads[0] : c.writes[0]);
  const Operands& apart = split ? c.writes : c.reads;
  QPLAN_CHECK(apart.count >= 2, "queries and keys are packed together");
  const Heads h = heads_of(rank);
  const kernels::PackedHeads heads{
      .packed = bf16_of(packed),
      .q = bf16_of(rank.tensor(c, apart[0])),
      .k = bf16_of(rank.tensor(c, apart[1])),
      .v = apart.count > 2 ? bf16_of(rank.tensor(c, apart[2])) : nullptr,
      .rows = packed.rows,
      .q_heads = h.q,
      .kv_heads = h.kv,
      .head_dim = h.dim};
  const kernels::Rotation rotation =
      work.kind == RowwiseKind::copy ? kernels::Rotation{} : rank.rotation();
  const bool rotates = rank.shape(c.instance).layer.rotates;
  const kernels::QueryFactors queries = rotates ? kernels::QueryFactors{} : rank.temperatures();
  split ? kernels::split_heads(heads, rotation, stream, queries)
        : kernels::pack_heads(heads, rotation, stream, queries);
}

// Norms of the heads of queries and keys without weights: {q, k} -> {q|k}; {d q|k, q, k, dv} ->
// {dq|dk|dv}.
void launch_norms_without_weights(CudaRank& rank, const Command& c, bool backward,
                                  cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const std::size_t first = backward ? 1 : 0;
  const Heads h = heads_of(rank);
  const kernels::PackedHeads heads{.packed = at(c.writes[0]),
                                   .q = at(c.reads[first]),
                                   .k = at(c.reads[first + 1]),
                                   .v = backward ? at(c.reads[3]) : nullptr,
                                   .rows = rank.tensor(c, c.writes[0]).rows,
                                   .q_heads = h.q,
                                   .kv_heads = h.kv,
                                   .head_dim = h.dim};
  const auto epsilon = static_cast<float>(rank.job.model.norm_epsilon);
  if (!backward) return kernels::norm_heads(heads, epsilon, stream);
  kernels::norm_heads_backward(heads.packed, at(c.reads[0]), heads, epsilon, stream);
}

// {q|k|v, weights} -> {q, k, v}; {dq, dk, dv, q|k|v, weights} -> {dq|dk|dv, gradients}: norms of
// the heads of queries and keys, then turned.
void launch_normed_heads(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const auto& table = rank.block(c).parameters;
  const auto id = static_cast<std::size_t>(c.op->parameter);
  QPLAN_CHECK(table[id + 1].whole.role == ParameterRole::k_norm, "k_norm is packed behind q_norm");
  const bool backward = c.reads.count > 2;
  const Tensor packed = rank.tensor(c, c.reads[backward ? 3 : 0]);
  const Tensor weights = rank.tensor(c, c.reads[backward ? 4 : 1]);
  const Operands& apart = backward ? c.reads : c.writes;
  const Heads h = heads_of(rank);
  const kernels::PackedHeads heads{.packed = bf16_of(packed),
                                   .q = bf16_of(rank.tensor(c, apart[0])),
                                   .k = bf16_of(rank.tensor(c, apart[1])),
                                   .v = bf16_of(rank.tensor(c, apart[2])),
                                   .rows = packed.rows,
                                   .q_heads = h.q,
                                   .kv_heads = h.kv,
                                   .head_dim = h.dim};
  const kernels::HeadNorms norms{bf16_of(parameter_in(weights, table[id])),
                                 bf16_of(parameter_in(weights, table[id + 1])),
                                 static_cast<float>(rank.job.model.norm_epsilon)};
  if (!backward) return kernels::split_normed_heads(heads, rank.rotation(), norms, stream);
  const auto gradient_of = [&](const PackedParameter& norm) -> float* {
    if (norm.frozen) return nullptr;
    return float_of(parameter_in(rank.tensor(c, c.writes[1]), norm));
  };
  kernels::pack_normed_heads(bf16_of(rank.tensor(c, c.writes[0])), gradient_of(table[id]),
                             gradient_of(table[id + 1]), heads, rank.rotation(), norms,
                             static_cast<float*>(rank.scratch()), stream, row_order(rank));
}

namespace {

// q, k and v are three operands; or k and v are one, of other ranks.
bool keys_packed(const Command& c, const Attention& work) {
  const int operands = c.reads.count - (has_sinks(c) ? 1 : 0);
  const int fewer = (work.pass == Pass::forward ? 3 : 6) - operands;
  QPLAN_CHECK(fewer == 0 || fewer == 1, "keys and values are apart or packed");
  return fewer == 1;
}

}  // namespace

void launch_sinks(CudaRank& rank, const Command& c, const Attention& work,
                  const AttentionOperands& o, cudaStream_t stream) {
  if (!has_sinks(c)) return;
  const Tensor weights = rank.tensor(c, c.reads[c.reads.count - 1U]);
  const kernels::bf16* const sinks = bf16_of(sinks_in(rank, c, weights, work.heads));
  const kernels::AttentionPart whole{static_cast<kernels::bf16*>(o.out),
                                     static_cast<float*>(o.log_sum_exp)};
  const kernels::HeadRows rows{work.batch, work.q_len, work.heads, work.v_head_dim};
  if (work.pass == Pass::forward) return kernels::apply_sinks(whole, sinks, rows, stream);
  if (rank.shape(c.instance).frozen) return;
  const Tensor gradients = rank.tensor(c, c.writes[c.writes.count - 1U]);
  kernels::sinks_gradient(float_of(sinks_in(rank, c, gradients, work.heads)), whole,
                          static_cast<const kernels::bf16*>(o.dout), sinks, rows,
                          static_cast<float*>(rank.scratch()), stream);
}

namespace {

// Rows of an attention's operands that lie one behind the other. Chunks (Llama 4) are sequences of
// their own: where they divide sequences these are all rows, else of each sequence those in whole
// chunks, or those that are left behind them.
struct Stretches {
  std::int64_t count = 1, first = 0, apart = 0;  // first: row of the first one; apart: between two
};
Stretches stretches_of(const CudaRank& rank, const Command& c, const Attention& work) {
  const std::int64_t chunk = rank.shape(c.instance).layer.chunk, length = rank.job.plan.seq_len;
  const std::int64_t rest = chunk > 0 && chunk < length ? length % chunk : 0;
  if (rest == 0) return {};
  return {rank.job.plan.micro_batch_size, work.q_len == rest ? length - rest : 0, length};
}

Attention of_one_stretch(Attention work, const Stretches& stretches) {
  work.batch /= stretches.count;
  return work;
}

// The same operands from a row on. Log-sum-exps lie by head within each chunk.
AttentionOperands from_row(AttentionOperands o, const Attention& work, std::int64_t row) {
  const auto move = [row](void*& operand, std::int64_t row_bytes) {
    if (operand != nullptr) operand = static_cast<std::byte*>(operand) + row * row_bytes;
  };
  for (void** q : {&o.q, &o.dq}) move(*q, 2 * work.heads * work.head_dim);
  for (void** k : {&o.k, &o.dk}) move(*k, 2 * work.kv_heads * work.head_dim);
  for (void** v : {&o.v, &o.dv}) move(*v, 2 * work.kv_heads * work.v_head_dim);
  for (void** out : {&o.out, &o.dout}) move(*out, 2 * work.heads * work.v_head_dim);
  move(o.log_sum_exp, 4 * work.heads);
  return o;
}

}  // namespace

std::int64_t prepare_attention(CudaRank& rank, const Command& c, const Attention& work) {
  if (keys_packed(c, work)) return prepare_part_attention(rank, c, work);
  return rank.attention.prepare(of_one_stretch(work, stretches_of(rank, c, work)));
}

// {q, k, v} -> {out, log-sum-exp}; {q, k, v, out, log-sum-exp, dout} -> {dq, dk, dv}.
void launch_attention(CudaRank& rank, const Command& c, const Attention& work,
                      cudaStream_t stream) {
  if (keys_packed(c, work)) return launch_part_attention(rank, c, work, stream);
  const auto at = [&](const Operand& operand) { return rank.tensor(c, operand).data; };
  AttentionOperands o{.q = at(c.reads[0]), .k = at(c.reads[1]), .v = at(c.reads[2])};
  if (work.pass == Pass::forward) {
    o.out = at(c.writes[0]);
    o.log_sum_exp = at(c.writes[1]);
  } else {
    o.out = at(c.reads[3]);
    o.log_sum_exp = at(c.reads[4]);
    o.dout = at(c.reads[5]);
    o.dq = at(c.writes[0]);
    o.dk = at(c.writes[1]);
    o.dv = at(c.writes[2]);
  }
  const Stretches stretches = stretches_of(rank, c, work);
  const Attention one = of_one_stretch(work, stretches);
  for (std::int64_t i = 0; i < stretches.count; ++i) {
    const AttentionOperands own = from_row(o, one, stretches.first + i * stretches.apart);
    rank.attention.run(one, own, rank.scratch(), stream);
    launch_sinks(rank, c, one, own, stream);
  }
}

// log-sum: log of the sum of exponentials, first of this rank's columns, at the end of all.
// loss: minus the target's logit (0 where another rank has it), at the end the token's loss.
void launch_loss(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  // Every token's loss is added once, by the first rank of its tensor-parallel group.
  const auto count = [&](const Tensor& loss) {
    if (rank.at.tp > 0 || c.op->recomputed) return;
    kernels::add_losses(rank.losses(c.op->ahead), float_of(loss), loss.elements(), stream);
  };
  const std::int32_t* targets = rank.targets(c.action.microbatch, c.op->ahead);
  if (work.kind == RowwiseKind::cross_entropy) {
    const Tensor logits = rank.tensor(c, c.reads[0]);
    const Tensor loss = rank.tensor(c, c.writes[0]), log_sum = rank.tensor(c, c.writes[1]);
    const bool whole = c.writes.count <= 2;  // else the ranks' results are put together later
    kernels::cross_entropy(float_of(loss), float_of(log_sum), bf16_of(logits),
                           shard_of(rank, logits.cols), targets, whole, logits.rows, logits.cols,
                           stream);
    if (whole) return count(loss);
    copy(log_sum, rank.tensor(c, c.writes[2]), stream);
  } else if (work.kind == RowwiseKind::cross_entropy_backward) {
    const Tensor logits = rank.tensor(c, c.reads[0]), log_sum = rank.tensor(c, c.reads[1]);
    const Tensor dlogits = rank.tensor(c, c.writes[0]);
    const double scale = rank.loss_weight(c.op->ahead);
    kernels::cross_entropy_backward(bf16_of(dlogits), bf16_of(logits), float_of(log_sum),
                                    shard_of(rank, logits.cols), targets, static_cast<float>(scale),
                                    logits.rows, logits.cols, stream);
  } else if (c.op->role == Role::loss_rescale) {
    const Tensor log_sum = rank.tensor(c, c.writes[0]);
    kernels::loss_rescale(float_of(log_sum), float_of(rank.tensor(c, c.reads[1])),
                          log_sum.elements(), stream);
  } else {
    QPLAN_CHECK(c.op->role == Role::loss_finish, "a scale belongs to the loss");
    const Tensor loss = rank.tensor(c, c.writes[0]), log_sum = rank.tensor(c, c.writes[1]);
    kernels::loss_finish(float_of(loss), float_of(log_sum), float_of(rank.tensor(c, c.reads[2])),
                         targets, loss.elements(), stream);
    count(loss);
  }
}

}  // namespace qplan
