#include "executor/io/tokens.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "tests/complaint.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

void write_ids(const std::string& path, const std::vector<std::int32_t>& ids,
               std::streamsize bytes = -1) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()),
             bytes < 0 ? static_cast<std::streamsize>(ids.size() * 4) : bytes);
}

std::vector<std::int32_t> sequence(const TokenSource& tokens, std::int64_t index,
                                   std::size_t count) {
  std::vector<std::int32_t> ids(count);
  tokens(index, ids);
  return ids;
}

}  // namespace

TEST_CASE("sequences go to microbatches, then to data-parallel ranks, then to rows") {
  const BatchLayout layout{.global_batch_size = 8, .micro_batch_size = 2, .dp = 2, .seq_len = 4};
  CHECK(layout.num_microbatches() == 2);
  for (std::int64_t j = 0; j < 8; ++j) {
    const std::int64_t microbatch = j / (2 * 2), rank = j / 2 % 2;
    CHECK(global_sequence(layout, 3, microbatch, rank, j % 2) == 3 * 8 + j);
  }
}

TEST_CASE("every plan of a batch reads each sequence once") {
  for (const std::int64_t dp : {1, 2, 4}) {
    for (const std::int64_t mbs : {1, 3}) {
      const BatchLayout layout{.global_batch_size = 24, .micro_batch_size = mbs, .dp = dp};
      std::set<std::int64_t> seen;
      for (std::int64_t m = 0; m < layout.num_microbatches(); ++m) {
        for (std::int64_t d = 0; d < dp; ++d) {
          for (std::int64_t r = 0; r < mbs; ++r) seen.insert(global_sequence(layout, 1, m, d, r));
        }
      }
      CHECK(seen.size() == 24);
      CHECK(*seen.begin() == 24);
      CHECK(*seen.rbegin() == 47);
    }
  }
}

TEST_CASE("seeded ids depend on seed, sequence and position, and fill the vocabulary evenly") {
  const TokenSource tokens = seeded_tokens(5, 10);
  const auto long_one = sequence(tokens, 3, 10'000);
  const auto start = sequence(tokens, 3, 7);
  CHECK(std::equal(start.begin(), start.end(), long_one.begin()));
  CHECK(sequence(tokens, 4, 7) != start);
  CHECK(sequence(seeded_tokens(6, 10), 3, 7) != start);
  std::map<std::int32_t, int> count;
  for (const std::int32_t id : long_one) ++count[id];
  CHECK(count.size() == 10);
  CHECK(count.begin()->first == 0);
  CHECK(count.rbegin()->first == 9);
  // 1000 expected of each; five deviations of a binomial are 150.
  for (const auto& [id, n] : count) CHECK(std::abs(n - 1000) < 150);
}

TEST_CASE("a file's sequences follow each other without overlap") {
  const TemporaryFolder folder;
  write_ids(folder.file("t"), {0, 1, 2, 3, 4, 5, 6, 7});
  const TokenSource tokens =
      file_tokens(folder.file("t"), {.vocab_size = 8, .seq_len = 2, .sequences = 2});
  CHECK(sequence(tokens, 0, 3) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(sequence(tokens, 1, 3) == std::vector<std::int32_t>{3, 4, 5});
}

TEST_CASE("a repeated file starts over after its last whole sequence") {
  const TemporaryFolder folder;
  write_ids(folder.file("t"), {0, 1, 2, 3, 4, 5, 6, 7});
  const TokenSource tokens = file_tokens(
      folder.file("t"), {.vocab_size = 8, .seq_len = 2, .sequences = 9, .repeat = true});
  CHECK(sequence(tokens, 2, 3) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(sequence(tokens, 5, 3) == std::vector<std::int32_t>{3, 4, 5});
}

TEST_CASE("what is wrong with a token file is said before the run") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t");
  const auto complaint = [&](const TokenFileNeeds& needs) {
    return complaint_of([&] { file_tokens(path, needs); });
  };
  CHECK(complaint({.vocab_size = 8, .seq_len = 2, .sequences = 1}).find("cannot open") == 0);
  write_ids(path, {0, 1, 2, 3, 9, 5, -1});
  CHECK(complaint({.vocab_size = 8, .seq_len = 2, .sequences = 3}) ==
        "'" + path +
            "' has 2 sequences of 2 + 1 ids and the run reads 3; run fewer steps, or read "
            "it again with --repeat");
  CHECK(complaint({.vocab_size = 8, .seq_len = 2, .sequences = 2}) ==
        "'" + path + "': id 9 at position 4 is outside the vocabulary of 8");
  CHECK(complaint({.vocab_size = 8, .seq_len = 2, .sequences = 1}) == "accepted");  // not reached
  CHECK(complaint({.vocab_size = 10, .seq_len = 6, .sequences = 1}) ==
        "'" + path + "': id -1 at position 6 is outside the vocabulary of 10");
  CHECK(complaint({.vocab_size = 8, .seq_len = 20, .sequences = 1, .repeat = true})
            .ends_with("run fewer steps"));
  write_ids(path, {0, 1, 2}, 10);
  CHECK(complaint({.vocab_size = 8, .seq_len = 1, .sequences = 1})
            .find("no whole number of int32 ids") != std::string::npos);
}
