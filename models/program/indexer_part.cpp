// Every rank of tp indexes the whole sequence: projections are duplicated and their inputs gathered
// (Megatron-LM 00bebb45, megatron/core/transformer/experimental_attention_variant/dsa.py).

#include "models/program/indexer_part.h"

#include <algorithm>

namespace qplan {

// Scores are made and chosen from part by part, as DeepSeek's kernel does: none is kept. One
// product of a head's width, and none with values: as many FLOPs as attention has at half that
// width. In backward the gradients of queries and keys, and the scores once more.
Attention IndexerPart::scores(Pass pass) const {
  const IndexerSpec& indexer = *c_.model.indexer;
  const std::int64_t length = c_.shape.seq_len / c_.shape.cp / c_.shape.documents;
  return {.batch = c_.shape.micro_batch_size * c_.shape.documents,
          .heads = indexer.num_heads,
          .kv_heads = 1,
          .q_len = length,
          .kv_len = length,
          .head_dim = (indexer.head_dim + 1) / 2,
          .v_head_dim = (indexer.head_dim + 1) / 2,
          .causal = c_.model.causal,
          .pass = pass,
          .products = products_beside_attention(c_.model, c_.shape.seq_len / c_.shape.documents)};
}

void IndexerPart::forward(SlotId normed, SlotId queries) {
  auto& b = c_.b;
  const IndexerSpec& indexer = *c_.model.indexer;
  const MlaSpec& mla = *c_.model.mla;
  const DType act = c_.activation_dtype();
  const std::int64_t q_width = indexer.num_heads * indexer.head_dim;
  normed_ = normed;
  queries_ = queries;
  const SlotId x = c_.gather_sequence(normed), q_in = c_.gather_sequence(queries);
  const SlotId q_up = b.slot("index q up", act, c_.tokens, q_width);
  const SlotId k_normed = b.slot("index k normed", act, c_.tokens, indexer.head_dim);
  q_ = b.slot("index q", act, c_.tokens, q_width);
  k_raw_ = b.slot("index k before norm", act, c_.tokens, indexer.head_dim);
  k_ = b.slot("index k", act, c_.tokens, indexer.head_dim);
  weights_ = b.slot("index weights", act, c_.tokens, indexer.num_heads);
  c_.linear(ParameterRole::index_q_proj, q_in, q_up, c_.tokens, q_width, mla.q_lora_rank);
  c_.linear(ParameterRole::index_k_proj, x, k_raw_, c_.tokens, indexer.head_dim, c_.hidden);
  c_.linear(ParameterRole::index_weights_proj, x, weights_, c_.tokens, indexer.num_heads,
            c_.hidden);
  c_.rowwise(RowwiseKind::layer_norm, c_.tokens, indexer.head_dim, {k_raw_, c_.weights}, {k_normed})
      .parameter = b.parameter(ParameterRole::index_k_norm);
  c_.rowwise(RowwiseKind::rope, c_.tokens, (indexer.num_heads + 1) * mla.qk_rope_head_dim,
             {q_up, k_normed}, {q_, k_});
  const Attention work = scores(Pass::forward);
  const std::int64_t most = std::min(indexer.top_k, work.kv_len);
  const SlotId best = b.slot("best scores", DType::fp32, c_.tokens, most);
  chosen_ = b.slot("chosen keys", DType::fp32, c_.tokens, most);
  b.compute(work, {q_, k_, weights_}, {best});
  // The choice reads each score, of four bytes: what a copy of two reads and writes.
  c_.rowwise(RowwiseKind::copy, c_.tokens, work.kv_len / 2, {best}, {chosen_});
}

void IndexerPart::backward() {
  if (c_.shape.frozen) return;  // nothing of it is trained, so its loss is not made
  auto& b = c_.b;
  const IndexerSpec& indexer = *c_.model.indexer;
  const DType act = c_.activation_dtype();
  const std::int64_t q_width = indexer.num_heads * indexer.head_dim;
  const SlotId dq = b.slot("d index q", act, c_.tokens, q_width);
  const SlotId dk = b.slot("d index k", act, c_.tokens, indexer.head_dim);
  const SlotId dk_raw = b.slot("d index k before norm", act, c_.tokens, indexer.head_dim);
  const SlotId dweights = b.slot("d index weights", act, c_.tokens, indexer.num_heads);
  b.compute(scores(Pass::backward), {q_, k_, weights_, chosen_}, {dq, dk, dweights});
  c_.rowwise(RowwiseKind::layer_norm_backward, c_.tokens, indexer.head_dim,
             {k_raw_, dk, c_.weights_backward}, {dk_raw, c_.gradients})
      .parameter = b.parameter(ParameterRole::index_k_norm);
  const SlotId x = c_.gather_sequence(normed_), q_in = c_.gather_sequence(queries_);
  c_.linear_wgrad(ParameterRole::index_q_proj, dq, q_in, c_.tokens, q_width,
                  c_.model.mla->q_lora_rank);
  c_.linear_wgrad(ParameterRole::index_k_proj, dk_raw, x, c_.tokens, indexer.head_dim, c_.hidden);
  c_.linear_wgrad(ParameterRole::index_weights_proj, dweights, x, c_.tokens, indexer.num_heads,
                  c_.hidden);
}

}  // namespace qplan
