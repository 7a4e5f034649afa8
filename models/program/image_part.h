#pragma once
// Where the text takes visual tokens in (vision_blocks.cpp).

#include <cstdint>
#include <string_view>

#include "models/program/layer_context.h"

namespace qplan {

// A wire between a vision tower's taps, their mergers and the decoder layers that add their tokens.
SlotId tap_wire(LayerContext& context, std::string_view name, std::int64_t rows, std::int64_t cols,
                std::int64_t channel);

// Where the text takes visual tokens in: in the embedding their rows replace those of placeholders,
// in the first decoder layers the deepstack tokens are added (vision_blocks.cpp). Under sequence
// parallelism a rank makes a share of the tokens and needs those that stand in its share of the
// sequence, so they are gathered first, and their gradients scattered.
class ImagePart {
 public:
  explicit ImagePart(LayerContext& context);
  // Writes the visual tokens' rows over the text's.
  void put(SlotId text);
  // The layer's result y becomes y + tokens; returns its slot.
  SlotId add(SlotId y);
  // The gradient of the tokens, out of that of the rows they were put in or added to.
  void take(SlotId dy);

 private:
  SlotId whole(SlotId tokens);
  [[nodiscard]] Bytes bytes() const;

  LayerContext& c_;
  std::int64_t whole_rows_ = 0, rows_ = 0;  // visual tokens of a microbatch; of this rank
};

}  // namespace qplan
