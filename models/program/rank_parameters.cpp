// Which parameters one rank holds of each kind of block, and where it packs them.

#include <algorithm>

#include "models/error.h"
#include "models/program/state_builder.h"

namespace qplan {
namespace {

bool has_parameters(BlockKind kind) {
  return kind != BlockKind::stage_entry && kind != BlockKind::stage_exit &&
         kind != BlockKind::step_edge;
}

// Norms of queries and keys see a rank's heads; under sequence parallelism what works between the
// tensor-parallel regions sees a rank's tokens. Biases behind a reduction and learned positions see
// the gradient of every token; a tower's positions that of a rank's patches.
bool makes_partial_gradient(const BlockShape& s, const Parameter& whole) {
  if (s.tp == 1 || whole.split != Split::none || is_expert(whole.role)) return false;
  using enum ParameterRole;
  if (whole.role == q_norm || whole.role == k_norm) return true;
  const bool behind_reduction = whole.bias && (whole.role == o_proj || whole.role == down_proj);
  const bool whole_positions = whole.role == embed_positions && s.kind != BlockKind::patchify;
  return s.sequence_parallel && !behind_reduction && !whole_positions;
}

// One rank's share; places are given later.
PackedParameter share_of(const ModelSpec& m, const BlockShape& s, const Parameter& whole) {
  const bool expert = is_expert(whole.role);
  const int ranks = expert ? s.etp : s.tp;
  PackedParameter p{.whole = whole, .rows = whole.rows, .cols = whole.cols, .copies = whole.copies};
  p.replicated = whole.split == Split::none;
  p.partial_gradient = makes_partial_gradient(s, whole);
  if (expert) p.copies /= s.ep;
  switch (whole.split) {
    case Split::none:
      break;
    case Split::rows:
      p.rows /= ranks;
      break;
    case Split::cols:
      p.cols /= ranks;
      break;
    case Split::vocabulary:
      p.rows = vocabulary_share(m, s);
      break;
  }
  return p;
}

// 0: dense with partial gradients, 1: other dense, 2: experts'.
int section(const PackedParameter& p) {
  if (is_expert(p.whole.role)) return 2;
  return p.partial_gradient ? 0 : 1;
}

}  // namespace

// Megatron pads the vocabulary to a multiple of 128 * tp (vocab_utils.py).
std::int64_t vocabulary_share(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t unit = std::int64_t{128} * s.tp;
  return (m.vocab_size + unit - 1) / unit * unit / s.tp;
}

ModelPart model_part(BlockKind kind) {
  switch (kind) {
    case BlockKind::embedding:
      return ModelPart::embedding;
    case BlockKind::decoder:
      return ModelPart::decoder;
    case BlockKind::head:
      return ModelPart::head;
    case BlockKind::mtp:
      return ModelPart::mtp;
    case BlockKind::patchify:
      return ModelPart::patchify;
    case BlockKind::vision:
      return ModelPart::vision;
    case BlockKind::merger:
      return ModelPart::merger;
    case BlockKind::stage_entry:
    case BlockKind::stage_exit:
    case BlockKind::step_edge:
      break;
  }
  QPLAN_CHECK(false, "a block without parameters is no part of the model");
  return {};
}

std::vector<PackedParameter> packed_parameters(const ModelSpec& m, const BlockShape& s) {
  std::vector<PackedParameter> table;
  if (!has_parameters(s.kind)) return table;
  for (const Parameter& whole : parameters_of(m, model_part(s.kind), s.layer)) {
    table.push_back(share_of(m, s, whole));
  }
  // The head's copy of a tied embedding, where another stage holds the embedding.
  if (s.kind == BlockKind::head && m.tie_word_embeddings && s.tied_head) {
    const Parameter copy{.role = ParameterRole::lm_head,
                         .rows = m.vocab_size,
                         .cols = m.hidden_size,
                         .split = Split::vocabulary};
    table.push_back(share_of(m, s, copy));
  }
  std::stable_sort(table.begin(), table.end(),
                   [](const auto& a, const auto& b) { return section(a) < section(b); });
  std::int64_t place = 0;
  // One expert after the other, each with all its matrices: gate and up of one are neighbours.
  std::int64_t one_expert = 0;
  for (PackedParameter& p : table) {
    const bool expert = is_expert(p.whole.role);
    p.offset = place + (expert ? one_expert : 0);
    if (expert) {
      one_expert += p.rows * p.cols;
    } else {
      p.stride = p.rows * p.cols;
      place += p.elements();
    }
  }
  for (PackedParameter& p : table) {
    if (is_expert(p.whole.role)) p.stride = one_expert;
  }
  return table;
}

RankParameters sum_of(const std::vector<PackedParameter>& table) {
  RankParameters n;
  for (const PackedParameter& p : table) {
    (is_expert(p.whole.role) ? n.expert : n.dense) += p.elements();
    if (p.partial_gradient) n.partial += p.elements();
  }
  return n;
}

RankParameters rank_parameters(const ModelSpec& m, const BlockShape& s) {
  return sum_of(packed_parameters(m, s));
}

}  // namespace qplan
