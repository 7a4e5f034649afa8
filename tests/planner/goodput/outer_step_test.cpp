#include "planner/goodput/outer_step.h"

#include <doctest/doctest.h>

using namespace qplan;

TEST_CASE("two sites send each parameter once, more nearly twice") {
  Sites sites{.count = 2, .gbit_per_s = 8, .every = 100, .bits = 32};
  const OuterStep two = outer_step(sites, 1e9, Seconds(1));
  CHECK(two.sent.value() == 4e9);
  CHECK(two.exchange.value() == doctest::Approx(4));  // 4 GB at 1 GB/s
  CHECK(two.exposed.value() == doctest::Approx(0.04));
  CHECK(two.every_step.value() == doctest::Approx(4));
  sites.count = 8;
  CHECK(outer_step(sites, 1e9, Seconds(1)).sent.value() == 2 * 4e9 * 7 / 8);
}

TEST_CASE("one site sends nothing") {
  const OuterStep alone = outer_step({}, 1e9, Seconds(1));
  CHECK(alone.sent == Bytes(0));
  CHECK(alone.exposed == Seconds(0));
  CHECK(alone.states == Bytes(0));
}

TEST_CASE("fewer bits, rarer exchanges and steps beside them cost less") {
  const Sites sites{
      .count = 4, .gbit_per_s = 10, .latency = Seconds(0.03), .every = 50, .bits = 32};
  const Seconds step(2);
  const OuterStep plain = outer_step(sites, 10e9, step);
  Sites other = sites;
  other.bits = 4;
  CHECK(outer_step(other, 10e9, step).sent == plain.sent / 8);
  other = sites;
  other.every = 100;
  CHECK(outer_step(other, 10e9, step).exposed == plain.exposed / 2);
  other = sites;
  other.beside = 5;
  CHECK(outer_step(other, 10e9, step).exposed.value() ==
        doctest::Approx((plain.exchange.value() - 10) / 50));
  // What is not done when the next begins is waited for.
  other.beside = 1000;
  other.gbit_per_s = 1;
  const OuterStep slow = outer_step(other, 10e9, step);
  CHECK(slow.exposed.value() == doctest::Approx((slow.exchange.value() - 100) / 50));
  other.gbit_per_s = 1000;
  CHECK(outer_step(other, 10e9, step).exposed == Seconds(0));
}

TEST_CASE("the outer optimizer keeps the parameters as they were and a momentum, in fp32") {
  CHECK(outer_step({.count = 2}, 1e9, Seconds(1)).states == Bytes(8e9));
}
