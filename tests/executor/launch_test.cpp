#include "executor/launch.h"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <map>
#include <thread>

#include "models/error.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

Environment environment_of(std::map<std::string, std::string> variables) {
  return [all = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional(found->second);
  };
}

LocalResult run_shell(int ranks, const std::string& script) {
  return run_local_ranks({ranks, {"/bin/sh", "-c", script}});
}

}  // namespace

TEST_CASE("a process learns its rank from torchrun, mpirun or srun") {
  const auto torchrun = process_rank(environment_of({{"RANK", "3"},
                                                     {"WORLD_SIZE", "8"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"MASTER_ADDR", "node0"},
                                                     {"MASTER_PORT", "29500"}}));
  REQUIRE(torchrun);
  CHECK(torchrun->rank == 3);
  CHECK(torchrun->world == 8);
  CHECK(torchrun->local_rank == 1);
  CHECK(torchrun->address == "node0");
  CHECK(torchrun->port == 29500);
  const auto mpirun = process_rank(environment_of({{"OMPI_COMM_WORLD_RANK", "0"},
                                                   {"OMPI_COMM_WORLD_SIZE", "1"},
                                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  REQUIRE(mpirun);
  CHECK(mpirun->world == 1);
  const auto srun = process_rank(environment_of({{"SLURM_PROCID", "2"},
                                                 {"SLURM_NTASKS", "4"},
                                                 {"SLURM_LOCALID", "0"},
                                                 {"MASTER_ADDR", "node0"},
                                                 {"MASTER_PORT", "1234"}}));
  REQUIRE(srun);
  CHECK(srun->rank == 2);
  CHECK_FALSE(process_rank(environment_of({})));
}

TEST_CASE("several processes without a meeting point are refused, and so are ranks that are none") {
  CHECK_THROWS_AS(process_rank(environment_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}})), Error);
  CHECK_THROWS_AS(process_rank(environment_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}})), Error);
}

TEST_CASE("what rank 0 knows all ranks learn") {
  const LocalResult port_of_parent = run_shell(1, "test -n \"$MASTER_PORT\"");
  CHECK(port_of_parent.exit_code == 0);
  constexpr int kRanks = 4, kPort = 29611;
  std::array<std::array<std::byte, 128>, kRanks> messages{};
  messages[0].fill(std::byte{42});
  {
    std::vector<std::jthread> ranks;
    for (int r = kRanks - 1; r >= 0; --r) {
      ranks.emplace_back([&messages, r] {
        broadcast({r, kRanks, r, "127.0.0.1", kPort}, messages[static_cast<std::size_t>(r)]);
      });
    }
  }
  for (const auto& message : messages) CHECK(message == messages[0]);
}

TEST_CASE("all ranks learn the largest of their numbers, whoever has it") {
  constexpr int kRanks = 4, kPort = 29613;
  CHECK(largest({}, 0.5) == 0.5);
  for (int most = 0; most < kRanks; ++most) {
    std::array<double, kRanks> learnt{};
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < kRanks; ++r) {
        ranks.emplace_back([&learnt, r, most] {
          learnt[static_cast<std::size_t>(r)] =
              largest({r, kRanks, r, "127.0.0.1", kPort}, r == most ? 3.5 : -r);
        });
      }
    }
    for (const double number : learnt) CHECK(number == 3.5);
  }
}

TEST_CASE("every rank is a process of its own, with torchrun's variables") {
  const TemporaryFolder folder;
  const LocalResult result =
      run_shell(3, "touch " + folder.file("rank") + "$RANK-$LOCAL_RANK-$WORLD_SIZE-$MASTER_ADDR");
  CHECK(result.exit_code == 0);
  for (const char* name : {"rank0-0-3-127.0.0.1", "rank1-1-3-127.0.0.1", "rank2-2-3-127.0.0.1"}) {
    CAPTURE(name);
    CHECK(std::filesystem::exists(folder.file(name)));
  }
}

// Or a rank that knocks before rank 0 listens may take the port itself.
TEST_CASE("rank 0 has a door that was open before any rank began") {
  CHECK(run_shell(3, R"(case $RANK in
    0) test -S /proc/self/fd/$QPLAN_DOOR_FD ;;
    *) test -z "$QPLAN_DOOR_FD" ;;
    esac)")
            .exit_code == 0);
  const auto first = process_rank(environment_of({{"RANK", "0"},
                                                  {"WORLD_SIZE", "2"},
                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                  {"MASTER_PORT", "29500"},
                                                  {"QPLAN_DOOR_FD", "5"}}));
  REQUIRE(first);
  CHECK(first->door == 5);
}

TEST_CASE("a rank that fails or is killed ends all ranks at once, and is named") {
  for (const auto& [script, message, code] :
       {std::tuple{"test $RANK = 1 && exit 2; sleep 60", "rank 1 ended with code 2", 2},
        std::tuple{"test $RANK = 2 && kill -9 $$; sleep 60", "rank 2 was ended by signal 9", 3}}) {
    const auto begin = std::chrono::steady_clock::now();
    const LocalResult result = run_shell(3, script);
    CHECK(result.exit_code == code);
    CHECK(result.failure.find(message) != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  }
}

TEST_CASE("a rank that will not end is killed") {
  const auto begin = std::chrono::steady_clock::now();
  const LocalResult result = run_shell(
      2, "test $RANK = 0 && sleep 1 && exit 1; trap '' TERM; while true; do sleep 1; done");
  CHECK(result.exit_code == 1);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("ranks that all fall silent are ended; those that give signs of life are not") {
  const auto run_for = [](const std::string& script) {
    return run_local_ranks({2, {"/bin/sh", "-c", script}, Seconds(1.5)});
  };
  const auto begin = std::chrono::steady_clock::now();
  const LocalResult silent = run_for("sleep 60");
  CHECK(silent.exit_code == 3);
  CHECK(silent.failure.find("no rank gave a sign of life for 2 s") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));
  const LocalResult stopped = run_for("test $RANK = 1 && kill -STOP $$; sleep 60");
  CHECK(stopped.failure.find("rank 1 was stopped by signal 19") != std::string::npos);
  // One rank speaks for both.
  const LocalResult alive = run_for(
      "for i in 1 2 3 4 5 6; do test $RANK = 0 && printf x >&$QPLAN_SIGN_FD; sleep 0.5; done; "
      "true");
  CHECK(alive.exit_code == 0);
}

TEST_CASE("without a launcher that listens, a sign of life does nothing") {
  sign_of_life(environment_of({}))();
}
