#include "models/plan/word_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <type_traits>

#include "models/plan/plan_values.h"
#include "models/plan/words.h"

namespace qplan {
namespace {

using namespace plan_values;

template <class E>
std::vector<std::string> words_of_table() {
  std::vector<std::string> words;
  for (const auto& [e, name] : Words<E>::table) words.emplace_back(name);
  return words;
}

// The values of a word that can be listed.
template <class T>
std::vector<std::string> listed_values(const PlanWord<T>& word) {
  if constexpr (std::is_enum_v<T>) {
    return words_taken(word);
  } else if constexpr (std::is_same_v<T, bool>) {
    return {"true", "false"};
  } else {
    return {};
  }
}

template <class T>
bool is_joined(const PlanWord<T>&) {
  return std::is_same_v<T, std::vector<int>>;
}

template <class E>
bool is_joined(const PlanWord<EnumSet<E>>&) {
  return true;
}

template <class E>
std::vector<std::string> listed_values(const PlanWord<EnumSet<E>>&) {
  return words_of_table<E>();
}

std::vector<std::string> listed_values(const PlanWord<Recompute>&) {
  return words_of_table<RecomputeKind>();
}

// The values that help lists behind a word's noun phrase; empty: the phrase says them.
template <class T>
std::string values_text(const PlanWord<T>& word) {
  if (std::is_same_v<T, bool>) return "";
  return fmt::format("{}", fmt::join(listed_values(word), ", "));
}

std::string values_text(const PlanWord<Recompute>&) {
  return fmt::format("none, selective[:MODULE+...], full[:LAYERS]; a MODULE is {}",
                     fmt::join(words_of_table<RecomputeModule>(), ", "));
}

}  // namespace

std::vector<WordText> word_texts() {
  const ParallelPlan defaults;
  std::vector<WordText> texts;
  for_each_word([&](const auto& word) {
    using T = typename std::decay_t<decltype(word)>::Value;
    const std::string values = values_text(word);
    texts.push_back({.key = word.key,
                     .value = word.value,
                     .help = std::string(word.help) + (values.empty() ? "" : ": ") + values,
                     .fallback = text_of(defaults.*word.member),
                     .given = word.given,
                     .is_truth = std::is_same_v<T, bool>,
                     .is_number = is_number<T>});
  });
  return texts;
}

std::vector<std::string> values_of_word(std::string_view key) {
  std::vector<std::string> values;
  for_each_word([&](const auto& word) {
    if (word.key == key) values = listed_values(word);
  });
  return values;
}

std::optional<WordBounds> bounds_of_word(std::string_view key) {
  std::optional<WordBounds> bounds;
  for_each_word([&](const auto& word) {
    if constexpr (is_number<typename std::decay_t<decltype(word)>::Value>) {
      if (word.key == key) bounds = WordBounds{word.low, word.high};
    }
  });
  return bounds;
}

bool is_joined_list(std::string_view key) {
  bool joined = false;
  for_each_word([&](const auto& word) {
    if (word.key == key) joined = is_joined(word);
  });
  return joined;
}

}  // namespace qplan
