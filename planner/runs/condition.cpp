#include "planner/runs/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/text.h"
#include "planner/runs/pattern.h"
#include "planner/runs/run_columns.h"

namespace qplan {
namespace {

using Test = std::function<bool(const RunRow&, const RunInputs&)>;

// A term taken apart; no comparison: the name alone.
struct Term {
  std::string_view name, comparison, value;
};

Term take_apart(std::string_view term) {
  const std::size_t at = term.find_first_of("<>=~");
  if (at == std::string_view::npos) return {term, {}, {}};
  const std::size_t length = term.substr(at).starts_with(">=") ? 2 : 1;
  return {term.substr(0, at), term.substr(at, length), term.substr(at + length)};
}

// ---- numbers ----

struct NamedNumber {
  std::string_view name;
  double (*of)(const RunInputs&);
};
constexpr auto kNumbers = std::to_array<NamedNumber>({
    {"compute_capability",
     [](const RunInputs& in) { return as_double(in.machine.compute_capability); }},
    {"nvlink_domain", [](const RunInputs& in) { return as_double(in.machine.nvlink_domain); }},
    {"memory_gib", [](const RunInputs& in) { return in_gib(in.machine.memory); }},
});

bool compares(double number, std::string_view comparison, double value) {
  if (comparison == "<") return number < value;
  return comparison == "=" ? number == value : number >= value;
}

void require_comparison(const Term& term, std::initializer_list<std::string_view> known) {
  if (std::find(known.begin(), known.end(), term.comparison) != known.end()) return;
  throw Error(fmt::format("{} is not compared by '{}'", term.name, term.comparison));
}

Test number_test(const Term& term, double (*of)(const RunInputs&)) {
  require_comparison(term, {"<", "=", ">="});
  constexpr std::int64_t kMost = 1'000'000;
  const double value = as_double(parse_count(term.name, term.value, 0, kMost));
  return [of, value, comparison = std::string(term.comparison)](
             const RunRow&, const RunInputs& in) { return compares(of(in), comparison, value); };
}

Test release_test(const Term& term) {
  require_comparison(term, {"<", "=", ">="});
  const auto found = Pattern(Match::exact, "{YY.MM}").find(term.value);
  if (!found) throw Error(fmt::format("release '{}' is none such as 25.11", term.value));
  return [month = found->month, comparison = std::string(term.comparison)](const RunRow&,
                                                                           const RunInputs& in) {
    return in.release > 0 && compares(in.release, comparison, month);
  };
}

// ---- the rest ----

Test recipe_test(const Term& term) {
  require_comparison(term, {"="});
  std::vector<RecipeKind> recipes;
  for (const auto word : split(term.value, '|')) recipes.push_back(from_word<RecipeKind>(word));
  return [recipes](const RunRow&, const RunInputs& in) {
    return std::find(recipes.begin(), recipes.end(), in.recipe) != recipes.end();
  };
}

Test cell_test(const Term& term) {
  require_comparison(term, {"=", "~"});
  if (!is_run_column(term.name)) {
    throw Error(fmt::format("'{}' is no column of measured runs", term.name));
  }
  const bool whole = term.comparison == "=";
  return [whole, column = std::string(term.name), text = std::string(term.value)](
             const RunRow& row, const RunInputs&) {
    const std::string& cell = row.text(column);
    return whole ? cell == text : cell.find(text) != std::string::npos;
  };
}

Test word_test(const Term& term) {
  if (term.name == "moe") {
    return [](const RunRow&, const RunInputs& in) { return in.model.moe.has_value(); };
  }
  if (term.name == "mla") {
    return [](const RunRow&, const RunInputs& in) { return in.model.mla.has_value(); };
  }
  if (term.name == "hybrid") {
    return [](const RunRow&, const RunInputs& in) { return in.model.mamba.has_value(); };
  }
  if (term.name.empty()) throw Error("a condition is empty");
  static_cast<void>(parse_plan(term.name));  // throws for what is no word of a plan
  return [word = std::string(term.name)](const RunRow&, const RunInputs& in) {
    return parse_plan(word, in.plan) == in.plan;
  };
}

}  // namespace

Condition::Condition(std::string_view terms) {
  if (terms.empty()) return;
  for (const auto part : split(terms, ';')) terms_.push_back(read_term(trimmed(part)));
}

Test Condition::read_term(std::string_view text) {
  if (text.starts_with('!')) {
    return [test = read_term(text.substr(1))](const RunRow& row, const RunInputs& in) {
      return !test(row, in);
    };
  }
  const Term term = take_apart(text);
  if (term.comparison.empty()) return word_test(term);
  if (term.name == "release") return release_test(term);
  if (term.name == "recipe") return recipe_test(term);
  for (const NamedNumber& number : kNumbers) {
    if (number.name == term.name) return number_test(term, number.of);
  }
  return cell_test(term);
}

bool Condition::holds(const RunRow& row, const RunInputs& in) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const Test& test) { return test(row, in); });
}

}  // namespace qplan
