// How much memory a container's control group leaves of a machine's.

#include "executor/host_memory.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/temporary_folder.h"

using namespace qplan;

TEST_CASE("a container has what its control group allows, and a machine what it has") {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path();
  const Bytes machine = host_memory_here(folder);  // no group at all
  CHECK(machine.value() > 1e8);
  std::filesystem::create_directory(folder / "memory");
  const auto says = [&](const char* file, const char* text) {
    std::ofstream(folder / file) << text << '\n';
    return host_memory_here(folder);
  };
  CHECK(says("memory.max", "max") == machine);
  CHECK(says("memory.max", "67108864") == Bytes(67108864));
  CHECK(says("memory/memory.limit_in_bytes", "33554432") == Bytes(33554432));
  CHECK(says("memory/memory.limit_in_bytes", "9223372036854771712") == Bytes(67108864));
}
