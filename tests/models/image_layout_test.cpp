#include "models/image_layout.h"

#include <doctest/doctest.h>

using namespace qplan;

TEST_CASE("a long sequence has images of 256 tokens in equal parts, a short one a smaller image") {
  const ModelSpec model = load_model("qwen3-vl-30b-a3b");
  const ImageLayout four(model, 4096, SequenceImages{});
  CHECK(four.images() == 4);
  CHECK(four.tokens() == 256);
  CHECK(four.patches() == 1024);
  CHECK(four.visual_token(1023) == std::nullopt);
  CHECK(four.visual_token(1024) == 256);
  CHECK(four.visual_token(1024 + 256) == std::nullopt);
  const ImageLayout small(model, 16, SequenceImages{});
  CHECK(small.images() == 1);
  CHECK(small.tokens() == 4);
}

TEST_CASE("an image's tokens have the time it begins at, and the text goes on behind its sides") {
  const ImageLayout layout(load_model("tiny-vl"), 32,
                           SequenceImages{});  // two images of 2 x 2 tokens
  REQUIRE(layout.images() == 2);
  CHECK(layout.position(0) == TokenPosition{0, 0, 0});
  CHECK(layout.position(1) == TokenPosition{0, 0, 1});
  CHECK(layout.position(2) == TokenPosition{0, 1, 0});
  CHECK(layout.position(4) == TokenPosition{2, 2, 2});  // text
  CHECK(layout.position(15) == TokenPosition{13, 13, 13});
  CHECK(layout.position(16) == TokenPosition{14, 14, 14});
  CHECK(layout.position(19) == TokenPosition{14, 15, 15});
}

TEST_CASE("patches that become one token are neighbours") {
  const ImageLayout layout(load_model("tiny-vl"), 16,
                           SequenceImages{});  // 4 x 4 patches, merged 2 x 2
  CHECK(layout.patch_position(0) == PatchPosition{0, 0});
  CHECK(layout.patch_position(3) == PatchPosition{1, 1});
  CHECK(layout.patch_position(4) == PatchPosition{0, 2});
  CHECK(layout.patch_position(15) == PatchPosition{3, 3});
}

TEST_CASE("images that are counted stand in the sequence as many and as large as said") {
  const ModelSpec model = load_model("qwen3-vl-30b-a3b");
  // 1024 x 1024 pixels: 64 patches of 16 a side, merged in twos.
  CHECK(tokens_a_side(*model.vision, 1024, 1024) == 32);
  CHECK(tokens_a_side(*model.vision, 2048, 512) == 32);
  const ImageLayout layout(model, 4096, {.count = 3, .side = 32});
  CHECK(layout.images() == 3);
  CHECK(layout.tokens() == 1024);
  CHECK(layout.patches() == 4096);
  std::int64_t visual = 0;
  for (std::int64_t place = 0; place < 4096; ++place) visual += layout.visual_token(place) ? 1 : 0;
  CHECK(visual == 3 * 1024);
  // A side alone: as many of them as the share has room for.
  CHECK(ImageLayout(model, 16384, {.side = 32}).images() == 4);
}
