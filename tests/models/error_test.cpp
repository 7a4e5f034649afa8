#include "models/error.h"

#include <doctest/doctest.h>

#include "models/dtype.h"
#include "models/words.h"

using namespace qplan;

TEST_CASE("the nearest name is the one a person meant") {
  const std::vector<std::string> names{"qwen3-8b", "qwen3-30b-a3b", "llama3-8b", "mixtral-8x7b"};
  CHECK(nearest_name("qwen3-30b-a3", names) == "qwen3-30b-a3b");
  CHECK(nearest_name("Qwen3_8B", names) == "qwen3-8b");
  CHECK(nearest_name("lama3-8b", names) == "llama3-8b");
  CHECK(nearest_name("mixtarl-8x7b", names) == "mixtral-8x7b");
  CHECK(did_you_mean("lama3-8b", names) == "; did you mean 'llama3-8b'?");
}

TEST_CASE("a name with something added behind a dash is that name, not one a letter away") {
  const std::vector<std::string> names{"h100-sxm", "h800", "gb200", "b200"};
  CHECK(nearest_name("h800-sxm", names) == "h800");
  CHECK(nearest_name("gb200-nvl72", names) == "gb200");
  CHECK(nearest_name("h100-sxn", names) == "h100-sxm");
  // Options share their beginnings.
  CHECK(nearest_name("--lr-wormup-iters", {"--lr", "--lr-warmup-iters"}) == "--lr-warmup-iters");
}

TEST_CASE("nothing is offered for a word that resembles nothing") {
  const std::vector<std::string> names{"tp", "pp", "dp", "qwen3-8b"};
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name("banana", names).empty());
  CHECK(nearest_name(std::string(100'000, 'x'), names).empty());
  CHECK(did_you_mean("banana", names).empty());
  CHECK(nearest_name("tp", {}).empty());
}

TEST_CASE("a short word is near only to words that share a letter with it") {
  CHECK(nearest_name("tpp", {"pp", "tp"}) == "pp");  // both are one edit away; the first wins
  CHECK(nearest_name("xy", {"ab"}).empty());
  CHECK(nearest_name("z", {"a"}).empty());
}

TEST_CASE("an unknown word's message lists the known ones") {
  CHECK(from_word<Precision>("mxfp8") == Precision::mxfp8);
  CHECK_THROWS_WITH_AS(
      from_word<Precision>("mxpf8"),
      "precision 'mxpf8' is unknown; choose one of bf16, fp16, fp8, mxfp8, nvfp4, fp32; "
      "did you mean 'mxfp8'?",
      Error);
  CHECK_THROWS_WITH_AS(from_word<Precision>(""),
                       "precision '' is unknown; choose one of bf16, fp16, fp8, mxfp8, nvfp4, fp32",
                       Error);
}

TEST_CASE("words may be written with either dash") {
  CHECK(same_word("zb-h1", "zb_h1"));
  CHECK(!same_word("zb-h1", "zb-h"));
  CHECK(!same_word("zb-h1", "zb-h2"));
  CHECK(same_word("", ""));
}

TEST_CASE("shown text is short and has no control characters") {
  CHECK(shown("a\x1b[31mb\n") == "a?[31mb?");
  CHECK(shown(std::string(200, 'x')) == std::string(80, 'x') + "...");
  // The 80th byte falls into a two-byte character, which goes as a whole.
  CHECK(shown(std::string(79, 'x') + "\xc3\xa9" + "yy") == std::string(79, 'x') + "...");
}
