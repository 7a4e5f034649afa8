#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "executor/cpu/world.h"

using namespace qplan;

namespace {

constexpr CpuWorld::LinkKey kLink{.from = 0, .to = 1, .backward = false};

std::array<std::byte, 4> bytes_of(unsigned char value) {
  std::array<std::byte, 4> bytes{};
  bytes.fill(std::byte{value});
  return bytes;
}

}  // namespace

TEST_CASE("a link holds one message, and gives it to the one it is for") {
  CpuWorld world(2);
  std::array<std::byte, 4> received{}, buffer{};
  CHECK_FALSE(world.try_receive(kLink, {3, 0}, received));
  CHECK(world.try_send(kLink, {3, 0}, bytes_of(7), buffer));
  CHECK(buffer == bytes_of(7));
  CHECK_FALSE(world.try_send(kLink, {3, 1}, bytes_of(8), buffer));
  CHECK(world.try_receive(kLink, {3, 0}, received));
  CHECK(received == bytes_of(7));
  CHECK(world.try_send(kLink, {3, 1}, bytes_of(8), buffer));
}

TEST_CASE("the last member of a meeting works for all") {
  CpuWorld world(3);
  int works = 0;
  const auto together = [&](const std::vector<CpuWorld::Member>& members) {
    ++works;
    CHECK(members.size() == 3);
  };
  std::array<int, 3> ranks{};
  const MeetingKey key{
      .first_rank = 0, .axis = Axis::dp, .stream = Stream::reduce_comm, .count = 0};
  const auto first = world.arrive(key, 0, 3, {nullptr, &ranks[0]}, together);
  world.arrive(key, 2, 3, {nullptr, &ranks[2]}, together);
  CHECK(works == 0);
  CHECK_FALSE(world.done(*first));
  world.arrive(key, 1, 3, {nullptr, &ranks[1]}, together);
  CHECK(works == 1);
  CHECK(world.done(*first));
}

TEST_CASE("when every rank waits it is a deadlock, and all are told what each waits for") {
  CpuWorld world(2);
  std::atomic<int> stopped = 0;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&world, &stopped, rank] {
        try {
          for (;;)
            world.wait(world.version(), rank, rank == 0 ? "its left hand" : "its right hand");
        } catch (const Stopped&) {
          ++stopped;
        }
      });
    }
  }
  CHECK(stopped == 2);
  CHECK(world.failure() ==
        "deadlock: rank 0 waits for its left hand; rank 1 waits for its right hand");
}

TEST_CASE("a rank that has ended helps nobody") {
  CpuWorld world(2);
  world.rank_ends();
  CHECK_THROWS_AS(world.wait(world.version(), 1, "a message"), Stopped);
  CHECK(world.failure() == "deadlock: rank 1 waits for a message");
}

TEST_CASE("the first failure is the one that is reported") {
  CpuWorld world(2);
  world.fail("rank 1, gemm of dense layer 0: out of luck");
  world.fail("rank 0 too");
  CHECK(world.failure() == "rank 1, gemm of dense layer 0: out of luck");
  CHECK_THROWS_AS(world.throw_if_failed(), Stopped);
  CHECK_THROWS_AS(world.wait(world.version(), 0, "rank 1"), Stopped);
}
