#include "executor/io/tokens.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <memory>
#include <vector>

#include "executor/io/philox.h"
#include "models/error.h"
#include "models/files.h"

namespace qplan {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

struct TokenFile {
  std::string path;
  Descriptor file;
  std::int64_t sequences = 0;  // whole ones

  void read(std::int64_t first, std::span<std::int32_t> ids) const {
    auto bytes = std::as_writable_bytes(ids);
    auto offset = static_cast<off_t>(first * 4);
    while (!bytes.empty()) {
      const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw Error(fmt::format("cannot read '{}': {}", path, system_reason()));
      if (got == 0) throw Error(fmt::format("'{}' became shorter while it was read", path));
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      offset += got;
    }
  }
};

std::shared_ptr<TokenFile> open_tokens(const std::string& path, const TokenFileNeeds& needs) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    throw Error(fmt::format("cannot open '{}': {}", path, system_reason()));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("'{}' is not a regular file; name a file of int32 token ids", path));
  }
  if (status.st_size % 4 != 0) {
    throw Error(
        fmt::format("'{}' has {} bytes, which is no whole number of int32 ids; it is cut "
                    "off or of another type",
                    path, status.st_size));
  }
  const std::int64_t sequences = status.st_size / 4 / (needs.seq_len + 1);
  const bool enough = needs.repeat ? sequences > 0 : sequences >= needs.sequences;
  if (!enough) {
    throw Error(
        fmt::format("'{}' has {} sequences of {} + 1 ids and the run reads {}; run fewer "
                    "steps{}",
                    path, sequences, needs.seq_len, needs.sequences,
                    sequences > 0 ? ", or read it again with --repeat" : ""));
  }
  return std::make_shared<TokenFile>(TokenFile{path, std::move(file), sequences});
}

void check_ids(const TokenFile& file, const TokenFileNeeds& needs) {
  constexpr std::int64_t chunk = std::int64_t{1} << 18;
  const std::int64_t used = std::min(file.sequences, needs.sequences) * (needs.seq_len + 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(chunk, used)));
  for (std::int64_t first = 0; first < used; first += chunk) {
    const auto part = std::span(ids).first(static_cast<std::size_t>(std::min(chunk, used - first)));
    file.read(first, part);
    const auto wrong = std::find_if(part.begin(), part.end(), [&](std::int32_t id) {
      return id < 0 || id >= needs.vocab_size;
    });
    if (wrong != part.end()) {
      throw Error(fmt::format("'{}': id {} at position {} is outside the vocabulary of {}",
                              file.path, *wrong, first + (wrong - part.begin()), needs.vocab_size));
    }
  }
}

}  // namespace

std::int64_t global_sequence(const BatchLayout& layout, std::int64_t step, std::int64_t microbatch,
                             std::int64_t dp_rank, std::int64_t row) {
  const std::int64_t block = microbatch * layout.dp + dp_rank;
  return step * layout.global_batch_size + block * layout.micro_batch_size + row;
}

TokenSource seeded_tokens(std::uint64_t seed, std::int64_t vocab_size) {
  return [seed, vocab_size](std::int64_t sequence, std::span<std::int32_t> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto block =
          random_block(seed, RandomStream::tokens, static_cast<std::uint32_t>(sequence), i / 4);
      // The high half of a 64-bit product is uniform below the vocabulary, to 2^-32.
      const std::uint64_t scaled =
          std::uint64_t{block[i % 4]} * static_cast<std::uint64_t>(vocab_size);
      ids[i] = static_cast<std::int32_t>(scaled >> 32U);
    }
  };
}

TokenSource file_tokens(const std::string& path, const TokenFileNeeds& needs) {
  const std::shared_ptr<const TokenFile> file = open_tokens(path, needs);
  check_ids(*file, needs);
  return [file](std::int64_t sequence, std::span<std::int32_t> ids) {
    file->read(sequence % file->sequences * std::ssize(ids), ids);
  };
}

}  // namespace qplan
