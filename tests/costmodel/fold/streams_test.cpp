#include "costmodel/fold/streams.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace qplan;

namespace {

MaxPlus at(double seconds) {
  return MaxPlus(Seconds(seconds));
}

struct Piece {
  std::vector<Op> ops;
  std::vector<Duration> durations;
};

// Random ops with whole-second durations, so that sums are exact.
Piece random_piece(std::mt19937& random, int size) {
  std::uniform_int_distribution<int> stream(0, kStreamCount - 1), bits(0, 127), time(0, 9);
  Piece piece;
  for (int i = 0; i < size; ++i) {
    Op op{.work = Join{}, .stream = static_cast<Stream>(stream(random))};
    op.after.bits = static_cast<std::uint8_t>(bits(random) & bits(random));
    piece.ops.push_back(op);
    piece.durations.push_back({Seconds(time(random)), Seconds(time(random) / 3)});
  }
  return piece;
}

StreamDelay fold(const Piece& piece) {
  StreamDelay state = no_delay();
  for (std::size_t i = 0; i < piece.ops.size(); ++i) {
    advance(state, piece.ops[i], piece.durations[i]);
  }
  return state;
}

StreamClocks replay(const Piece& piece, StreamClocks clocks) {
  for (std::size_t i = 0; i < piece.ops.size(); ++i) {
    advance(clocks, piece.ops[i], piece.durations[i]);
  }
  return clocks;
}

// doctest would print matrices, and their numbers have no text form.
template <class Matrix>
bool same(const Matrix& a, const Matrix& b) {
  return a == b;
}

StreamClocks random_clocks(std::mt19937& random) {
  std::uniform_int_distribution<int> time(0, 20);
  StreamClocks clocks;
  for (int i = 0; i < kStreamCount; ++i) clocks(i) = at(time(random));
  return clocks;
}

}  // namespace

TEST_CASE("in max-plus, addition is the later and multiplication takes the time") {
  CHECK(at(3) + at(5) == at(5));
  CHECK(at(3) * at(5) == at(8));
}

TEST_CASE("zero is never, one is no time at all") {
  const MaxPlus zero(0), one(1);
  CHECK(zero == MaxPlus());
  CHECK(one == at(0));
  for (const MaxPlus a : {at(-2), at(0), at(7)}) {
    CHECK(a + zero == a);
    CHECK(a * one == a);
    CHECK(a * zero == zero);
    CHECK(a + a == a);
  }
}

TEST_CASE("max-plus numbers associate, commute and distribute") {
  const std::vector<MaxPlus> some = {MaxPlus(0), at(-3), at(0), at(1), at(4)};
  for (const MaxPlus a : some) {
    for (const MaxPlus b : some) {
      CHECK(a + b == b + a);
      CHECK(a * b == b * a);
      for (const MaxPlus c : some) {
        CHECK((a + b) + c == a + (b + c));
        CHECK((a * b) * c == a * (b * c));
        CHECK(a * (b + c) == a * b + a * c);
      }
    }
  }
}

TEST_CASE("an op waits for its stream, for the streams it names and for its launch") {
  StreamClocks clocks = clocks_at_zero();
  clocks(index(Stream::compute)) = at(10);
  clocks(index(Stream::model_comm)) = at(4);
  clocks(index(Stream::reduce_comm)) = at(50);
  const Op gather{.work = Join{}, .stream = Stream::model_comm, .after = only(Stream::compute)};
  advance(clocks, gather, {Seconds(3), Seconds(1)});
  CHECK(clocks(index(Stream::host)) == at(1));
  CHECK(clocks(index(Stream::model_comm)) == at(13));
  CHECK(clocks(index(Stream::compute)) == at(10));
  CHECK(clocks(index(Stream::reduce_comm)) == at(50));
}

TEST_CASE("a host that launches slowly holds the device back") {
  StreamClocks clocks = clocks_at_zero();
  const Op kernel{.work = Join{}};
  for (int i = 0; i < 5; ++i) advance(clocks, kernel, {Seconds(1), Seconds(2)});
  CHECK(clocks(index(Stream::compute)) == at(11));  // the fifth launch ends at 10
}

TEST_CASE("a folded piece moves clocks as its ops do, one by one") {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    const Piece piece = random_piece(random, 1 + i % 30);
    const StreamClocks clocks = random_clocks(random);
    CHECK(same(apply(fold(piece), clocks), replay(piece, clocks)));
  }
}

TEST_CASE("two pieces in sequence are the product of their delays") {
  std::mt19937 random(6);
  for (int i = 0; i < 50; ++i) {
    const Piece a = random_piece(random, 7), b = random_piece(random, 9);
    const StreamClocks clocks = random_clocks(random);
    CHECK(same(apply(then(fold(a), fold(b)), clocks), replay(b, replay(a, clocks))));
  }
}

TEST_CASE("sequence is associative, and doing nothing is its one") {
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const StreamDelay a = fold(random_piece(random, 6)), b = fold(random_piece(random, 6)),
                      c = fold(random_piece(random, 6));
    CHECK(same(then(then(a, b), c), then(a, then(b, c))));
    CHECK(same(then(a, no_delay()), a));
    CHECK(same(then(no_delay(), a), a));
  }
}

TEST_CASE("a power is repetition") {
  std::mt19937 random(8);
  for (int i = 0; i < 20; ++i) {
    const StreamDelay base = fold(random_piece(random, 8));
    StreamDelay repeated = no_delay();
    for (int n = 0; n <= 9; ++n) {
      CHECK(same(power(base, n), repeated));
      repeated = then(repeated, base);
    }
  }
}
