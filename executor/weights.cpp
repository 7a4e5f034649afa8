#include "executor/weights.h"

#include <algorithm>

#include "models/error.h"

namespace qplan {
namespace {

std::uint64_t key_of(ModelPart part, std::int64_t layer, const Parameter& p, std::int64_t copy) {
  const auto bits = [](auto value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t place = (bits(layer) * 65536 + bits(copy)) * 16 + bits(part);
  return ((place * 256 + bits(p.role)) * 2 + bits(p.bias)) * 4 + bits(p.adapter);
}

}  // namespace

ParameterIndex::ParameterIndex(const ModelSpec& model, const Lora& lora)
    : all_(model_parameters(model, lora)) {
  for (const ModelParameter& p : all_) {
    by_key_.emplace_back(key_of(p.part, p.layer, p.parameter, p.copy), p.index);
  }
  std::sort(by_key_.begin(), by_key_.end());
}

std::int64_t ParameterIndex::find(ModelPart part, std::int64_t layer, const Parameter& parameter,
                                  std::int64_t copy) const {
  const std::uint64_t key = key_of(part, layer, parameter, copy);
  const auto it =
      std::lower_bound(by_key_.begin(), by_key_.end(), std::pair{key, std::int64_t{-1}});
  if (it != by_key_.end() && it->first == key) return it->second;
  // A tied head has the embedding's table. The embedding that it shares its states with, and
  // multi-token prediction, have the head's norm.
  const ModelPart other = part == ModelPart::head ? ModelPart::embedding : ModelPart::head;
  const std::uint64_t there_key = key_of(other, 0, parameter, copy);
  const auto there =
      std::lower_bound(by_key_.begin(), by_key_.end(), std::pair{there_key, std::int64_t{-1}});
  QPLAN_CHECK(there != by_key_.end() && there->first == there_key,
              "a block's parameters are the model's");
  return there->second;
}

std::vector<ParameterPiece> pieces_of(const ParameterIndex& parameters, ModelPart part,
                                      std::int64_t layer, const PackedParameter& packed,
                                      const ShardPlace& place) {
  const Parameter& whole = packed.whole;
  const bool expert = is_expert(whole.role);
  const std::int64_t share = expert ? place.etp : place.tp;
  const std::int64_t first_copy = expert ? place.ep * packed.copies : 0;
  const bool by_rows = whole.split == Split::rows || whole.split == Split::vocabulary;
  const std::int64_t first_row = by_rows ? share * packed.rows : 0;
  const std::int64_t first_col = whole.split == Split::cols ? share * packed.cols : 0;
  std::vector<ParameterPiece> pieces;
  for (std::int64_t copy = 0; copy < packed.copies; ++copy) {
    const std::int64_t index = parameters.find(part, layer, whole, first_copy + copy);
    std::int64_t local = packed.offset + copy * packed.stride;
    if (!by_rows || whole.parts.front() == 0) {
      const std::int64_t rows = std::clamp<std::int64_t>(whole.rows - first_row, 0, packed.rows);
      pieces.push_back({local, rows, packed.cols, index, first_row, first_col});
      continue;
    }
    const std::int64_t ranks = whole.rows / packed.rows;
    std::int64_t begin = 0;  // of a part in the whole
    for (const std::int64_t all : whole.parts) {
      const std::int64_t rows = all / ranks;
      if (rows > 0) pieces.push_back({local, rows, packed.cols, index, begin + share * rows, 0});
      local += rows * packed.cols;
      begin += all;
    }
  }
  return pieces;
}

}  // namespace qplan
