#include "planner/runs/pattern.h"

#include <fmt/format.h>

#include "models/ascii.h"
#include "models/error.h"

namespace qplan {
namespace {

constexpr int kFirstYear = 2020, kLastYear = 2100;

// The month whose digits stand in `text` where `date` has Y and M; 0: none does.
int month_in(std::string_view text, std::string_view date) {
  int year = date.starts_with("YYYY") ? 0 : 20;  // "26" is 2026
  int month = 0;
  for (std::size_t i = 0; i < date.size(); ++i) {
    const bool in_year = date[i] == 'Y', in_month = date[i] == 'M';
    if (!in_year && !in_month) {
      if (text[i] != date[i]) return 0;
      continue;
    }
    if (!is_digit(text[i])) return 0;
    int& number = in_year ? year : month;
    number = 10 * number + (text[i] - '0');
  }
  const bool is_one = year >= kFirstYear && year <= kLastYear && month >= 1 && month <= 12;
  return is_one ? 100 * year + month : 0;
}

}  // namespace

Pattern::Pattern(Match match, std::string_view phrase) : match_(match), before_(phrase) {
  const std::size_t open = phrase.find('{');
  if (open == std::string_view::npos) return;
  const std::size_t close = phrase.find('}', open);
  if (close == std::string_view::npos) {
    throw Error(fmt::format("phrase '{}' opens a brace that it does not close", phrase));
  }
  before_ = phrase.substr(0, open);
  date_ = phrase.substr(open + 1, close - open - 1);
  after_ = phrase.substr(close + 1);
}

std::optional<Found> Pattern::find_at(std::string_view text, std::size_t at) const {
  std::string_view rest = text.substr(at);
  if (!rest.starts_with(before_)) return std::nullopt;
  rest.remove_prefix(before_.size());
  int month = 0;
  if (!date_.empty()) {
    if (rest.size() < date_.size()) return std::nullopt;
    month = month_in(rest, date_);
    if (month == 0) return std::nullopt;
    rest.remove_prefix(date_.size());
  }
  if (!rest.starts_with(after_)) return std::nullopt;
  rest.remove_prefix(after_.size());
  if (match_ == Match::exact && !rest.empty()) return std::nullopt;
  return Found{text, rest, month};
}

std::optional<Found> Pattern::find(std::string_view text) const {
  const std::size_t places = match_ == Match::contains ? text.size() + 1 : 1;
  for (std::size_t at = 0; at < places; ++at) {
    if (const auto found = find_at(text, at)) return found;
  }
  return std::nullopt;
}

int parse_month(std::string_view text) {
  const auto found = Pattern(Match::exact, "{YYYYMM}").find(text);
  if (!found) throw Error(fmt::format("month '{}' is none such as 202412", text));
  return found->month;
}

}  // namespace qplan
