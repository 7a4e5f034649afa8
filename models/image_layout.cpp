#include "models/image_layout.h"

#include <algorithm>
#include <cmath>

#include "models/error.h"

namespace qplan {

std::int64_t tokens_a_side(const VisionSpec& vision, std::int64_t width, std::int64_t height) {
  const auto pixels = static_cast<double>(width) * static_cast<double>(height);
  const auto token = static_cast<double>(vision.patch_size * vision.spatial_merge_size);
  return std::max<std::int64_t>(1, std::llround(std::sqrt(pixels) / token));
}

ImageLayout::ImageLayout(const ModelSpec& model, std::int64_t seq_len,
                         const SequenceImages& images) {
  QPLAN_CHECK(model.vision.has_value(), "images belong to a model with a vision tower");
  merge_ = model.vision->spatial_merge_size;
  if (images.side > 0) side_ = images.side;
  if (images.count > 0) {
    images_ = images.count;
    QPLAN_CHECK(images_ * tokens() <= seq_len, "images that are counted fit into their sequence");
  } else {
    const auto room = static_cast<std::int64_t>(images.share * static_cast<double>(seq_len));
    while (side_ > 1 && tokens() > room) side_ /= 2;
    images_ = std::max<std::int64_t>(1, room / tokens());
  }
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
