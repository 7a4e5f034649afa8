#pragma once
// The values of a plan's words as text, both ways: what the line, JSON and help have in common.
// Private to this folder.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/plan/words.h"
#include "models/text.h"

namespace qplan::plan_values {

// Far above any: with it each of 4096 experts takes all.
inline constexpr double kMostCapacity = 4096;

template <class T>
inline constexpr bool is_number = std::is_same_v<T, int> || std::is_same_v<T, std::int64_t>;

template <class E>
std::string join_words(EnumSet<E> set) {
  std::string text;
  for (const auto& [e, word] : Words<E>::table) {
    if (!set.has(e)) continue;
    if (!text.empty()) text += '+';
    text += word;
  }
  return text;
}

template <class E>
void add_once(EnumSet<E>& set, E e) {
  if (set.has(e)) {
    throw Error(fmt::format("{} '{}' is given twice; write it once", Words<E>::what, to_word(e)));
  }
  set.add(e);
}

// "a+b" or "a,b".
inline std::string joined_by_plus(std::string_view text) {
  std::string joined(text);
  std::replace(joined.begin(), joined.end(), ',', '+');
  return joined;
}

template <class E>
EnumSet<E> split_words(std::string_view text) {
  const std::string joined = joined_by_plus(text);
  EnumSet<E> set;
  for (const auto part : split(joined, '+')) add_once(set, from_word<E>(part));
  return set;
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (is_number<T> || std::is_same_v<T, double>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(to_word(value));
  } else {
    return to_string(value);
  }
}

template <class E>
std::string text_of(const EnumSet<E>& set) {
  return set.empty() ? std::string(Words<E>::empty) : join_words(set);
}

inline std::string text_of(const std::vector<int>& layout) {
  return layout.empty() ? "even" : layout_text(layout);
}

inline void read_text(const PlanWord<bool>& word, std::string_view text, bool& value) {
  if (text != "true" && text != "false") {
    throw Error(fmt::format("{} must be true or false, not '{}'", word.name(), text));
  }
  value = text == "true";
}

inline void read_text(const PlanWord<double>& word, std::string_view text, double& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const bool within = value >= 0 && value <= kMostCapacity;  // false for NaN
  if (text.empty() || stop != end || code != std::errc{} || !within) {
    throw Error(fmt::format("{} must be a number from 0 to {}, not '{}'", word.name(),
                            kMostCapacity, text));
  }
}

// A set that says "none" and something says two things.
inline void refuse_none_beside_others(std::string_view key, std::string_view text,
                                      const std::vector<std::string_view>& parts,
                                      std::string_view none = "none") {
  if (parts.size() < 2 || std::find(parts.begin(), parts.end(), none) == parts.end()) return;
  throw Error(fmt::format("{} '{}' has {} beside others; {} stands alone", key, text, none, none));
}

// The enumerators that a word takes: where not all, a refusal names the word and those.
template <class T>
std::vector<std::string> words_taken(const PlanWord<T>& word) {
  std::vector<std::string> words;
  for (const auto& [e, name] : Words<T>::table) {
    if (word.takes.empty() || word.takes.has(e)) words.emplace_back(name);
  }
  return words;
}

template <class T>
void read_text(const PlanWord<T>& word, std::string_view text, T& value) {
  if constexpr (is_number<T>) {
    value = static_cast<T>(parse_count(word.name(), text, word.low, word.high));
  } else if (word.takes.empty()) {
    value = from_word<T>(text);
  } else {
    const auto found = try_from_word<T>(text);
    if (!found || !word.takes.has(*found)) unknown_word(word.key, text, words_taken(word));
    value = *found;
  }
}

inline void read_text(const PlanWord<Recompute>&, std::string_view text, Recompute& value) {
  value = parse_recompute(text);
}

inline void read_text(const PlanWord<Offload>&, std::string_view text, Offload& value) {
  value = parse_offload(text);
}

template <class E>
void read_text(const PlanWord<EnumSet<E>>& word, std::string_view text, EnumSet<E>& value) {
  if (text == Words<E>::empty) {
    value = {};
    return;
  }
  const std::string joined = joined_by_plus(text);
  refuse_none_beside_others(word.key, text, split(joined, '+'), Words<E>::empty);
  value = split_words<E>(text);
}

inline void read_text(const PlanWord<std::vector<int>>&, std::string_view text,
                      std::vector<int>& value) {
  value = text == "even" ? std::vector<int>{} : parse_layout(joined_by_plus(text));
}

}  // namespace qplan::plan_values
