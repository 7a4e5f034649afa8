#pragma once
// The batches of a run: sequences of seq_len + 1 token ids (inputs and the targets one further),
// from a seed or a file, and which rank reads which.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace qplan {

// How a step's global batch is spread. Sequence j of a step goes to microbatch j div (dp * mbs) and
// there to data-parallel rank (j div mbs) mod dp.
struct BatchLayout {
  std::int64_t global_batch_size = 1, micro_batch_size = 1, dp = 1, seq_len = 1;
  [[nodiscard]] std::int64_t num_microbatches() const {
    return global_batch_size / (micro_batch_size * dp);
  }
};

// The run's sequence (counted from its start) that is row `row` of a rank's microbatch.
std::int64_t global_sequence(const BatchLayout& layout, std::int64_t step, std::int64_t microbatch,
                             std::int64_t dp_rank, std::int64_t row);

// Fills `ids` with all of a sequence. Safe from several threads.
using TokenSource = std::function<void(std::int64_t sequence, std::span<std::int32_t> ids)>;

// Ids below vocab_size, drawn by seed, sequence and position.
TokenSource seeded_tokens(std::uint64_t seed, std::int64_t vocab_size);

struct TokenFileNeeds {
  std::int64_t vocab_size = 0, seq_len = 0;
  std::int64_t sequences = 0;  // that the run will read
  bool repeat = false;         // start over when the file's whole sequences are used up
};

// Raw little-endian int32 ids, sequence j at ids [j * (seq_len + 1), ...), without overlap. Throws
// Error for a file that is cut off in an id, too short (unless `repeat`), or holds an id outside
// the vocabulary; every id is checked at once, before the run.
TokenSource file_tokens(const std::string& path, const TokenFileNeeds& needs);

}  // namespace qplan
