#pragma once
// Where the images of a vision-language sequence stand, and the positions that rotary embeddings
// turn its tokens and its patches by (Qwen3-VL). Every sequence is cut into as many equal parts as
// it has images: a part begins with its image and goes on with text.

#include <array>
#include <cstdint>
#include <optional>

#include "models/model_spec.h"

namespace qplan {

// Time, height, width. Text has the same position in all three.
using TokenPosition = std::array<std::int64_t, 3>;
// Row and column in an image's grid of patches.
using PatchPosition = std::array<std::int64_t, 2>;

// What is said of a sequence's images.
struct SequenceImages {
  double share = 0.25;     // of the sequence that are image tokens, where nobody counts images
  std::int64_t count = 0;  // images of a sequence; 0: as many as `share` has room for
  std::int64_t side = 0;   // of an image, in tokens; 0: 16
  bool operator==(const SequenceImages&) const = default;
};

// Tokens a side of an image of so many pixels: the square of as many pixels, in whole tokens.
std::int64_t tokens_a_side(const VisionSpec& vision, std::int64_t width, std::int64_t height);

class ImageLayout {
 public:
  // Images of 16 x 16 tokens (32 x 32 patches of 16 pixels at a merge of 2: 512 x 512 pixels) where
  // nobody says, as many as fit into the share of the sequence; where not even one does, a smaller
  // one: half the side, and so on. Those that are counted fit, or it is our mistake.
  ImageLayout(const ModelSpec& model, std::int64_t seq_len, const SequenceImages& images);

  [[nodiscard]] std::int64_t images() const { return images_; }        // of a sequence
  [[nodiscard]] std::int64_t tokens() const { return side_ * side_; }  // of an image
  [[nodiscard]] std::int64_t patches() const { return tokens() * merge_ * merge_; }
  [[nodiscard]] std::int64_t patches_a_side() const { return side_ * merge_; }

  // Which of the sequence's visual tokens stands at a place of the sequence; none: text.
  [[nodiscard]] std::optional<std::int64_t> visual_token(std::int64_t place) const;
  // An image's tokens have the time at which it begins, and go on from there in height and width;
  // the text behind it goes on from the largest of them.
  [[nodiscard]] TokenPosition position(std::int64_t place) const;
  // Patch `index` of an image: those that are merged into one token are neighbours.
  [[nodiscard]] PatchPosition patch_position(std::int64_t index) const;

 private:
  std::int64_t merge_ = 1, side_ = 16, images_ = 1, part_ = 1;
};

}  // namespace qplan
