#include "executor/io/philox.h"

#include <doctest/doctest.h>

using namespace qplan;

// Known answers of the paper's own library (Random123, kat_vectors, philox4x32 10).
TEST_CASE("philox gives its authors' numbers") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) ==
        PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("seeds, streams, numbers and blocks all tell apart") {
  const auto base = random_block(7, RandomStream::weights, 3, 5);
  CHECK(base == random_block(7, RandomStream::weights, 3, 5));
  CHECK(base != random_block(8, RandomStream::weights, 3, 5));
  CHECK(base != random_block(7 | 1ULL << 40U, RandomStream::weights, 3, 5));
  CHECK(base != random_block(7, RandomStream::tokens, 3, 5));
  CHECK(base != random_block(7, RandomStream::weights, 4, 5));
  CHECK(base != random_block(7, RandomStream::weights, 3, 5 | 1ULL << 40U));
}
