#include "planner/search/default_batch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "models/model_spec.h"
#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"

using namespace qplan;

namespace {

// The worlds of the tests: all small ones, and some that are large.
std::vector<std::int64_t> worlds() {
  std::vector<std::int64_t> result(2048);
  std::iota(result.begin(), result.end(), std::int64_t{1});
  result.insert(result.end(), {3000, 4096, 5000, 8192, 10000, 16384, 24576, 100000, 131072});
  return result;
}

double wanted(std::int64_t gpus, std::int64_t seq_len) {
  return std::max(1.0, static_cast<double>(default_tokens(gpus)) / static_cast<double>(seq_len));
}

// The fewest data-parallel ranks that get a sequence each, of layouts that split a model over at
// most 64 ranks and as many stages.
std::int64_t fewest_ranks(std::int64_t gpus) {
  std::int64_t fewest = gpus;
  for (const std::int64_t t : divisors(gpus)) {
    for (const std::int64_t p : divisors(gpus / t)) {
      if (t <= 64 && p <= 64) fewest = std::min(fewest, gpus / t / p);
    }
  }
  return fewest;
}

}  // namespace

TEST_CASE("the default batch is near its tokens, or as near as the fewest ranks let it be") {
  for (const std::int64_t seq_len : {2048, 4096, 32768}) {
    for (const std::int64_t gpus : worlds()) {
      CAPTURE(gpus);
      CAPTURE(seq_len);
      const auto batch = static_cast<double>(default_global_batch_size(gpus, seq_len));
      const double tokens = wanted(gpus, seq_len);
      const auto fewest = static_cast<double>(fewest_ranks(gpus));
      // A prime of 1999 GPUs runs as dp 1999 alone: 1024 sequences are nothing for it.
      CHECK(batch <= std::max(tokens * 2, fewest * 1.5) + 1e-6);
      if (fewest <= tokens) CHECK(batch >= tokens / 2 - 1e-6);
    }
  }
}

TEST_CASE("some layout of each world has a whole number of sequences for each rank") {
  for (const std::int64_t gpus : worlds()) {
    CAPTURE(gpus);
    const std::int64_t batch = default_global_batch_size(gpus, 4096);
    CAPTURE(batch);
    // Of the data-parallel degrees that get a sequence each, with at most 8 ranks and as many
    // stages for a model: all where the world has many divisors, and some in any case.
    int all = 0, whole = 0;
    for (const std::int64_t t : divisors(gpus)) {
      for (const std::int64_t p : divisors(gpus / t)) {
        const std::int64_t dp = gpus / t / p;
        if (t > 64 || p > 64 || dp > batch) continue;
        ++all;
        whole += batch % dp == 0 ? 1 : 0;
      }
    }
    REQUIRE(all > 0);
    CHECK(whole > 0);
  }
}

TEST_CASE("powers of two get a power of two, and known worlds the batches that were measured") {
  for (std::int64_t gpus = 1; gpus <= 4096; gpus *= 2) {
    CHECK(default_global_batch_size(gpus, 4096) == 1024);
    CHECK(default_global_batch_size(gpus, 8192) == 512);
  }
  CHECK(default_global_batch_size(96, 4096) == 960);
  CHECK(default_global_batch_size(4096, 1 << 23) == 1);
}

TEST_CASE("a GPU has 1024 tokens of the default batch at least") {
  for (const std::int64_t gpus : worlds()) {
    CHECK(default_tokens(gpus) >= std::int64_t{1024} * gpus);
    CHECK(default_tokens(gpus) >= std::int64_t{4} << 20);
  }
  CHECK(default_tokens(4096) == std::int64_t{4} << 20);
  CHECK(default_tokens(16384) == std::int64_t{16} << 20);  // Llama 3 405B's
}

TEST_CASE("several worlds get one batch that each can divide, where there is any") {
  const std::vector<std::vector<std::int64_t>> sweeps = {
      {24, 48, 96, 192}, {8, 16, 32, 64, 128, 256}, {96, 100}, {7, 13}, {8, 1999}};
  for (const auto& sweep : sweeps) {
    const std::int64_t batch = default_global_batch_size(sweep, 4096);
    CAPTURE(batch);
    CHECK(batch >= 768);
    CHECK(batch <= 1365);
    for (const std::int64_t gpus : sweep) {
      CAPTURE(gpus);
      if (gpus < 1000) CHECK(std::gcd(batch, gpus) > 1);
    }
  }
  CHECK(default_global_batch_size(std::vector<std::int64_t>{24, 48, 96, 192}, 4096) % 192 == 0);
  // Half as many again, which leaves none of them without data parallelism.
  CHECK(default_global_batch_size(std::vector<std::int64_t>{7, 13, 17}, 4096) == 7 * 13 * 17);
}

TEST_CASE("the default length is within every built-in model's positions") {
  for (const std::string& name : model_names()) {
    CAPTURE(name);
    const ModelSpec model = load_model(name);
    const std::int64_t length = default_seq_len(model);
    CHECK(length <= 4096);
    CHECK(length <= model.max_position_embeddings);
    CHECK(length == std::min<std::int64_t>(4096, model.max_position_embeddings));
  }
}
