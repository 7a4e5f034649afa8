#pragma once
// What multi-token prediction passes from block to block: beside the activations.

#include <string_view>

#include "models/program/layer_context.h"

namespace qplan {

inline SlotId prediction(LayerContext& c, std::string_view name) {
  const SlotId id = c.b.slot(name, c.activation_dtype(), c.local_tokens, c.hidden, Storage::wire);
  c.b.at(id).flow = Flow::prediction;
  return id;
}

}  // namespace qplan
