#include "models/image_layout.h"

#include <algorithm>

#include "models/error.h"

namespace qplan {

ImageLayout::ImageLayout(const ModelSpec& model, std::int64_t seq_len, double share) {
  QPLAN_CHECK(model.vision.has_value(), "images belong to a model with a vision tower");
  merge_ = model.vision->spatial_merge_size;
  const auto room = static_cast<std::int64_t>(share * static_cast<double>(seq_len));
  while (side_ > 1 && tokens() > room) side_ /= 2;
  images_ = std::max<std::int64_t>(1, room / tokens());
  part_ = seq_len / images_;
}

std::optional<std::int64_t> ImageLayout::visual_token(std::int64_t place) const {
  const std::int64_t image = place / part_, within = place % part_;
  if (image >= images_ || within >= tokens()) return std::nullopt;
  return image * tokens() + within;
}

TokenPosition ImageLayout::position(std::int64_t place) const {
  const std::int64_t part = std::min(place / part_, images_ - 1), within = place - part * part_;
  const std::int64_t begin = part * (side_ + part_ - tokens());
  if (within < tokens()) return {begin, begin + within / side_, begin + within % side_};
  const std::int64_t text = begin + side_ + within - tokens();
  return {text, text, text};
}

PatchPosition ImageLayout::patch_position(std::int64_t index) const {
  const std::int64_t token = index / (merge_ * merge_), inner = index % (merge_ * merge_);
  return {token / side_ * merge_ + inner / merge_, token % side_ * merge_ + inner % merge_};
}

}  // namespace qplan
