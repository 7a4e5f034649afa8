#include "planner/search/parallel_for.h"

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

using namespace qplan;

TEST_CASE("every piece of work is done once, by however many threads") {
  for (const int threads : {1, 2, 7}) {
    std::vector<int> done(100);
    parallel_for(done.size(), threads, [&](std::size_t i) { ++done[i]; });
    CHECK(done == std::vector<int>(100, 1));
  }
}

TEST_CASE("what a piece of work throws reaches the caller, whichever thread did it") {
  for (const int threads : {1, 2, 7}) {
    CAPTURE(threads);
    CHECK_THROWS_AS(parallel_for(100, threads, [](std::size_t) { throw std::bad_alloc(); }),
                    std::bad_alloc);
    // Of several, the first by index.
    const auto late = [](std::size_t i) {
      if (i >= 40) throw std::runtime_error(std::to_string(i));
    };
    CHECK_THROWS_WITH_AS(parallel_for(100, threads, late), "40", std::runtime_error);
  }
}
