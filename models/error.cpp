#include "models/error.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "models/edit_distance.h"

namespace qplan {
namespace {

// Longer words than this are not typing mistakes (and the distance is quadratic).
constexpr std::size_t kLongestWord = 64;

}  // namespace

void check_failed(std::string_view sentence, std::source_location where) {
  std::fprintf(stderr, "qplan: internal error: %.*s (%s:%u, %s)\n",
               static_cast<int>(sentence.size()), sentence.data(), where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name());
  std::abort();
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongestWord) return "";
  // A third of the letters wrong is as far as a guess helps rather than confuses.
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  std::string nearest;
  // What begins like this is meant more often than what is a letter away ("h100": h100-sxm, not
  // h800).
  for (const std::string& candidate : candidates) {
    const bool begins =
        word.size() >= 3 && candidate.size() > word.size() && candidate.starts_with(word);
    if (begins && (nearest.empty() || candidate.size() < nearest.size())) nearest = candidate;
  }
  if (!nearest.empty()) return nearest;
  // Likewise what this begins like, up to a dash ("h800-sxm": h800, not h100-sxm; "gb200-nvl72").
  for (const std::string& candidate : candidates) {
    const bool begun = !candidate.empty() && !word.starts_with('-') &&
                       word.starts_with(candidate) && word.size() > candidate.size() &&
                       word[candidate.size()] == '-';
    if (begun && candidate.size() > nearest.size()) nearest = candidate;
  }
  if (!nearest.empty()) return nearest;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestWord) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best && distance < candidate.size()) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string result(text.substr(0, kMost));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  // A cut inside a UTF-8 character leaves its first bytes behind; drop them.
  if (text.size() > kMost) {
    while (!result.empty() && (static_cast<unsigned char>(result.back()) & 0xC0U) == 0x80) {
      result.pop_back();
    }
    if (!result.empty() && static_cast<unsigned char>(result.back()) >= 0xC0) result.pop_back();
    result += "...";
  }
  return result;
}

}  // namespace qplan
