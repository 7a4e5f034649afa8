#pragma once
// One row of the table of what cannot be, and what its tables share. Private to the planner.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/plan/words.h"
#include "planner/rules/feasible.h"

namespace qplan::rules {

using enum RecipeKind;

// One question: this plan, of this model, under this recipe.
struct Case {
  const ModelSpec& m;
  const ParallelPlan& p;
  RecipeKind recipe;
  const ClusterLimits& limits;
};

// Predicates are total: each may be asked whatever the others say, of any plan that passes
// `positive_sizes`.
struct Rule {
  std::string_view id;
  RecipeSet recipes;  // it holds for
  bool (*broken)(const Case&);
  std::string (*message)(const Case&);
  // Who refuses it and where, for people to open: "Megatron-LM d98e8a64, <file>:<line>", several
  // with "; " between. "arithmetic: ..." and "qplan: ..." where no framework says so: it follows
  // from the numbers, or is not modelled.
  std::string_view source;
};

// ---- what several tables ask ----

constexpr bool divides(std::int64_t divisor, std::int64_t number) {
  return number % divisor == 0;
}

// ---- how the messages say it ----

inline std::string recipe_name(const Case& c) {
  return std::string(to_word(c.recipe));
}

template <class E>
std::string words_of(EnumSet<E> set) {
  std::string text;
  for (const auto& [e, word] : Words<E>::table) {
    if (!set.has(e)) continue;
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

// "use tp 1, 2, 4 or 8": the degrees that `number` can be cut into, up to 128.
inline std::string use_divisor(std::string_view word, std::int64_t number) {
  std::vector<std::int64_t> good;
  for (std::int64_t d = 1; d <= std::min<std::int64_t>(number, 128); ++d) {
    if (divides(d, number)) good.push_back(d);
  }
  if (good.size() < 2) return fmt::format("use {} 1", word);
  const std::int64_t last = good.back();
  good.pop_back();
  return fmt::format("use {} {} or {}", word, fmt::join(good, ", "), last);
}

inline std::string not_in(const Case& c, std::string_view what, std::string_view instead) {
  return fmt::format("{} has no {}; {}", recipe_name(c), what, instead);
}

// ---- words that not every framework has ----

// The rule of one row of models/plan/words.h: who has no such word leaves it at its default.
template <auto Member>
constexpr Rule word_rule() {
  constexpr const SaidBy& said = word_of<Member>().said_by;
  return {said.rule, kEvery - said.recipes,
          [](const Case& c) {
            static const ParallelPlan kDefault;
            return c.p.*Member != kDefault.*Member;
          },
          [](const Case& c) {
            constexpr const SaidBy& s = word_of<Member>().said_by;
            return not_in(c, s.lacks, s.instead);
          },
          said.source};
}

template <std::size_t... Rows>
constexpr auto word_rules(std::index_sequence<Rows...>) {
  constexpr auto has_rule = [](const auto& word) { return !word.said_by.rule.empty(); };
  std::array<Rule, (static_cast<std::size_t>(has_rule(std::get<Rows>(kPlanWords))) + ...)> rules{};
  std::size_t count = 0;
  const auto add = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    constexpr auto member = std::get<I>(kPlanWords).member;
    if constexpr (has_rule(std::get<I>(kPlanWords))) rules[count++] = word_rule<member>();
  };
  (add(std::integral_constant<std::size_t, Rows>{}), ...);
  return rules;
}

inline constexpr auto kWords =
    word_rules(std::make_index_sequence<std::tuple_size_v<decltype(kPlanWords)>>{});

}  // namespace qplan::rules
