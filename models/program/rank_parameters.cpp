// Which parameters one rank holds of each kind of block, and where it packs them.

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "models/error.h"
#include "models/program/state_builder.h"
#include "models/trained.h"

namespace qplan {
namespace {

bool has_parameters(BlockKind kind) {
  return kind != BlockKind::stage_entry && kind != BlockKind::stage_exit &&
         kind != BlockKind::step_edge;
}

// Norms of queries, keys and the delta rule's outputs see a rank's heads; under sequence
// parallelism what works between the tensor-parallel regions sees a rank's tokens. Biases behind a
// reduction and learned positions see the gradient of every token; a tower's positions that of a
// rank's patches.
// An adapter's matrix beside a split weight that is whole itself sees the outputs (A) or the inputs
// (B) of a rank's share; beside a whole weight it works where that does.
bool makes_partial_gradient(const BlockShape& s, const Parameter& whole,
                            const std::vector<Parameter>& table) {
  if (s.tp == 1 || whole.split != Split::none || is_expert(whole.role)) return false;
  using enum ParameterRole;
  if (whole.adapter != Adapter::none) {
    const auto weight = std::find_if(table.begin(), table.end(), [&](const Parameter& p) {
      return p.role == whole.role && !p.bias && p.adapter == Adapter::none;
    });
    QPLAN_CHECK(weight != table.end(), "an adapter stands beside its weight");
    // A parallel layer's magnitudes scale what all ranks have summed, and nobody adds theirs up
    // (dora_layers.py in Megatron-Bridge 067f987d: weight_magnitude is marked in no way).
    if (whole.adapter == Adapter::magnitude && s.parallel_adapters) return false;
    return weight->split != Split::none || s.sequence_parallel;
  }
  if (whole.role == q_norm || whole.role == k_norm || whole.role == linear_norm) return true;
  const bool behind_reduction = whole.bias && (whole.role == o_proj || whole.role == down_proj);
  const bool whole_positions = whole.role == embed_positions && s.kind != BlockKind::patchify;
  return s.sequence_parallel && !behind_reduction && !whole_positions;
}

// A vision tower's and MTP's weights are frozen without adapters of their own, too.
bool is_frozen(const BlockShape& s, const Parameter& p) {
  Trained trained{s.lora(), s.lora_embeddings};
  trained.lora.rank = 1;
  return s.frozen && trained.leaves_frozen(p);
}

// One rank's share; places are given later.
PackedParameter share_of(const ModelSpec& m, const BlockShape& s, const Parameter& whole,
                         const std::vector<Parameter>& table) {
  const bool expert = is_expert(whole.role);
  const int ranks = expert ? s.etp : s.tp;
  PackedParameter p{.whole = whole, .rows = whole.rows, .cols = whole.cols, .copies = whole.copies};
  p.replicated = whole.split == Split::none;
  p.frozen = is_frozen(s, whole);
  p.partial_gradient = !p.frozen && makes_partial_gradient(s, whole, table);
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

// 0: dense with partial gradients, 1: other dense, 2: tables of the vocabulary, 3: experts'.
int section(const PackedParameter& p) {
  if (is_expert(p.whole.role)) return 3;
  return p.partial_gradient ? 0 : is_table(p.whole) ? 2 : 1;
}

bool is_end(BlockKind kind) {
  return kind == BlockKind::embedding || kind == BlockKind::head;
}

// A tied head and the embedding: on one rank with the same states, or, where each keeps shards of
// its own, packed alike, with room for what only the other has, so that their shards of the table
// match.
bool packs_both_ends(const ModelSpec& m, const BlockShape& s) {
  if (!m.tie_word_embeddings || !is_end(s.kind)) return false;
  return s.embedding_table == EmbeddingTable::shared ||
         (s.embedding_table == EmbeddingTable::copied && s.zero >= 2);
}

// A block that is not the embedding and works with its table.
bool uses_embedding(const ModelSpec& m, const BlockShape& s) {
  return s.kind == BlockKind::mtp_embedding || (s.kind == BlockKind::head && m.tie_word_embeddings);
}

// The parameters of a block, and the head's copy of a tied embedding. Multi-token prediction comes
// after the final norm.
std::vector<Parameter> own_parameters(const ModelSpec& m, const BlockShape& s) {
  std::vector<Parameter> table = parameters_of(m, model_part(s.kind), s.layer);
  const auto is_final_norm = [](const Parameter& p) { return p.role == ParameterRole::final_norm; };
  if (s.kind == BlockKind::head && m.num_mtp_layers > 0) std::erase_if(table, is_final_norm);
  if (s.kind == BlockKind::mtp) {
    const std::vector<Parameter> head = parameters_of(m, ModelPart::head);
    std::copy_if(head.begin(), head.end(), std::back_inserter(table), is_final_norm);
  }
  if (s.kind == BlockKind::head && copies_embedding(m, s)) {
    const std::vector<Parameter> copy = parameters_of(m, ModelPart::embedding);
    std::copy_if(copy.begin(), copy.end(), std::back_inserter(table),
                 [](const Parameter& p) { return is_table(p); });
  }
  if (has_adapters(model_part(s.kind))) {
    const std::vector<Parameter> adapters = adapters_of(table, s.lora());
    table.insert(table.end(), adapters.begin(), adapters.end());
  }
  return table;
}

std::vector<Parameter> parameters_of_both_ends(const ModelSpec& m) {
  std::vector<Parameter> table = parameters_of(m, ModelPart::head);
  const std::vector<Parameter> embedding = parameters_of(m, ModelPart::embedding);
  table.insert(table.end(), embedding.begin(), embedding.end());
  return table;
}

// One after the other in the order of their sections; one expert after the other, each with all its
// matrices: gate and up of one are neighbours.
void place_one_after_the_other(std::span<PackedParameter> table) {
  std::int64_t next = 0, one_expert = 0;
  for (PackedParameter& p : table) {
    const bool expert = is_expert(p.whole.role);
    p.offset = next + (expert ? one_expert : 0);
    if (expert) {
      one_expert += p.rows * p.cols;
    } else {
      p.stride = p.rows * p.cols;
      next += p.elements();
    }
  }
  for (PackedParameter& p : table) {
    if (is_expert(p.whole.role)) p.stride = one_expert;
  }
}

void place(std::vector<PackedParameter>& table) {
  std::stable_sort(table.begin(), table.end(), [](const auto& a, const auto& b) {
    return std::pair(a.frozen, section(a)) < std::pair(b.frozen, section(b));
  });
  const auto frozen =
      std::find_if(table.begin(), table.end(), [](const auto& p) { return p.frozen; });
  place_one_after_the_other({table.begin(), frozen});
  place_one_after_the_other({frozen, table.end()});
}

}  // namespace

// Megatron pads the vocabulary to a multiple of 128 * tp (vocab_utils.py).
std::int64_t vocabulary_share(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t unit = std::int64_t{128} * s.tp;
  return ceil_div(m.vocab_size, unit) * unit / s.tp;
}

ModelPart model_part(BlockKind kind) {
  switch (kind) {
    case BlockKind::embedding:
    case BlockKind::mtp_embedding:
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

bool shares_embedding(const ModelSpec& m, const BlockShape& s) {
  return uses_embedding(m, s) && s.embedding_table == EmbeddingTable::shared;
}

bool copies_embedding(const ModelSpec& m, const BlockShape& s) {
  return uses_embedding(m, s) && s.embedding_table == EmbeddingTable::copied;
}

std::vector<PackedParameter> packed_parameters(const ModelSpec& m, const BlockShape& s) {
  std::vector<PackedParameter> table;
  if (!has_parameters(s.kind)) return table;
  const std::vector<Parameter> own = own_parameters(m, s);
  const bool both = packs_both_ends(m, s);
  const std::vector<Parameter> packed = both ? parameters_of_both_ends(m) : own;
  for (const Parameter& whole : packed) table.push_back(share_of(m, s, whole, packed));
  for (std::size_t i = 0; s.keeps_originals && i < packed.size(); ++i) {
    if (!is_table(table[i].whole)) continue;
    PackedParameter original = table[i];
    original.frozen = true;
    table.push_back(original);
  }
  place(table);
  if (both && s.embedding_table == EmbeddingTable::copied) {
    std::erase_if(table, [&](const PackedParameter& p) {
      return std::find(own.begin(), own.end(), p.whole) == own.end();
    });
  }
  return table;
}

RankParameters sum_of(const std::vector<PackedParameter>& table) {
  RankParameters n;
  for (const PackedParameter& p : table) {
    if (is_expert(p.whole.role)) {
      (p.frozen ? n.frozen_expert : n.expert) += p.elements();
    } else {
      std::int64_t& dense = p.frozen ? n.frozen_dense : n.dense;
      dense = std::max(dense, p.offset + p.elements());
      if (p.frozen && is_projection(p.whole)) n.frozen_linear += p.elements();
    }
    if (p.partial_gradient) n.partial += p.elements();
  }
  return n;
}

std::vector<AdaptedPart> adapted_parts(const std::vector<PackedParameter>& table,
                                       ParameterRole first, std::int64_t columns) {
  std::vector<AdaptedPart> parts;
  const auto place_of = [&](ParameterRole role, Adapter adapter) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const PackedParameter& p) {
      return p.whole.role == role && p.whole.adapter == adapter && !p.whole.bias;
    });
    return found == table.end() ? kNoParameter : static_cast<std::int16_t>(found - table.begin());
  };
  const std::int16_t begin = place_of(first, Adapter::none);
  std::int64_t column = 0;
  for (std::size_t i = static_cast<std::size_t>(begin); i < table.size() && column < columns; ++i) {
    const PackedParameter& weight = table[i];
    const std::int16_t a = place_of(weight.whole.role, Adapter::lora_a);
    if (a != kNoParameter) {
      const std::int16_t second = place_of(weight.whole.role, Adapter::lora_b);
      parts.push_back({.a = a,
                       .b = second,
                       .magnitude = place_of(weight.whole.role, Adapter::magnitude),
                       .weight = static_cast<std::int16_t>(i),
                       .column = column,
                       .width = table[static_cast<std::size_t>(second)].rows});
    }
    column += weight.rows;
  }
  return parts;
}

ParameterRole pack_begin(const std::vector<PackedParameter>& table, ParameterRole role) {
  const ParameterRole first = pack_begin(role);
  const bool there = std::any_of(table.begin(), table.end(),
                                 [first](const auto& p) { return p.whole.role == first; });
  return there ? first : role;
}

std::int64_t offloaded_elements(const BlockShape& s, std::int64_t elements) {
  // In whole vectors of 16 bytes of the narrowest states, so that the device's part begins at one:
  // AdamW takes 1.9 times as long where it does not
  // (docs/evidence/archive/executor-draws-2026-11-30.md).
  constexpr std::int64_t kVector = 8;
  if (s.optimizer_offload >= 1) return elements;
  const double share = static_cast<double>(elements) * s.optimizer_offload;
  return static_cast<std::int64_t>(share) / kVector * kVector;
}

RankParameters rank_parameters(const ModelSpec& m, const BlockShape& s) {
  return sum_of(packed_parameters(m, s));
}

}  // namespace qplan
