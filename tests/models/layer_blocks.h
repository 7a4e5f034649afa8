#pragma once
// A layer's block as tests of one mixer build and read it.

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/fold/block_cost.h"
#include "models/program/blocks.h"
#include "models/program/liveness.h"

namespace qplan {

// Layers of this kind over 4096 tokens, with sequence parallelism where tensors are split.
inline BlockShape layer_shape(const LayerKind& layer, int tp = 1, int cp = 1) {
  BlockShape s;
  s.layer = layer;
  s.seq_len = 4096;
  s.tp = tp;
  s.cp = cp;
  s.sequence_parallel = tp > 1;
  return s;
}

// Bytes a token that a layer's forward leaves for its backward.
inline double kept_per_token(const ModelSpec& model, RecipeKind recipe, const BlockShape& s) {
  const Block block = build_block(model, recipe_of(recipe), s);
  return memory_of(block, BackwardForm::whole).forward.net.value() / static_cast<double>(s.seq_len);
}

template <class Kind>
std::vector<Kind> works_of(const OpList& ops) {
  std::vector<Kind> found;
  for (const Op& op : ops) {
    if (const auto* work = std::get_if<Kind>(&op.work)) found.push_back(*work);
  }
  return found;
}

inline double sum_of(const std::map<std::string, double>& parts) {
  double sum = 0;
  for (const auto& [what, bytes] : parts) sum += bytes;
  return sum;
}

}  // namespace qplan
