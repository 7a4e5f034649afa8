#include "models/program/block.h"

#include <doctest/doctest.h>

using namespace qplan;

TEST_CASE("bytes are rounded up to 256, and a multiple of 256 stays as it is") {
  CHECK(rounded(Bytes(0)).value() == 0);
  CHECK(rounded(Bytes(1)).value() == 256);
  CHECK(rounded(Bytes(256)).value() == 256);
  CHECK(rounded(Bytes(257)).value() == 512);
}

TEST_CASE("a slot's bytes are its elements times the size of one, rounded") {
  const Slot slot{.name = "x", .dtype = DType::bf16, .shape = {3, 5, 7}};
  CHECK(slot.elements() == 105);
  CHECK(slot.bytes().value() == 256);  // 210 bytes
  const Slot wide{.name = "x", .dtype = DType::fp32, .shape = {128, 4, 1}};
  CHECK(wide.bytes().value() == 2048);
}

TEST_CASE("two fp4 elements share a byte") {
  const Slot slot{.name = "x", .dtype = DType::fp4, .shape = {1024, 1, 1}};
  CHECK(slot.bytes().value() == 512);
}

TEST_CASE("an offloaded fraction of a slot takes no device memory") {
  const Slot half{.name = "x", .dtype = DType::fp32, .shape = {1024, 1, 1}, .fraction = 0.5};
  CHECK(half.bytes().value() == 2048);
  const Slot none{.name = "x", .dtype = DType::fp32, .shape = {1024, 1, 1}, .fraction = 0};
  CHECK(none.bytes().value() == 0);
}

TEST_CASE("only weights, gradients and optimizer state are held by the block itself") {
  Block block;
  for (const Storage storage :
       {Storage::weight, Storage::gradient, Storage::optimizer, Storage::shared, Storage::local,
        Storage::wire, Storage::fresh_gradient}) {
    block.slots.push_back(
        {.name = "x", .storage = storage, .dtype = DType::boolean, .shape = {256, 1, 1}});
  }
  block.slots.push_back(
      {.name = "x", .storage = Storage::optimizer, .dtype = DType::fp32, .shape = {64, 3, 1}});
  const PersistentBytes held = persistent_bytes(block);
  CHECK(held.weights.value() == 256);
  CHECK(held.gradients.value() == 256);
  CHECK(held.optimizer.value() == 256 + 768);
  CHECK(held.total().value() == 256 + 256 + 1024);
}
