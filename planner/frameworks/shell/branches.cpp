#include "planner/frameworks/shell/branches.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "planner/frameworks/shell/patterns.h"

namespace qplan {
namespace {

using TestWords = std::span<const ShellText>;

Truth truth_of(bool holds) {
  return holds ? Truth::yes : Truth::no;
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t n = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, n);
  return code == std::errc{} && stop == end ? std::optional(n) : std::nullopt;
}

// "a = b", "a -lt b".
Truth comparison(const std::string& left, const std::string& op, const std::string& right) {
  const bool pattern = right.find_first_of("*?[") != std::string::npos;
  if (op == "=" || op == "==") return pattern ? Truth::open : truth_of(left == right);
  if (op == "!=") return pattern ? Truth::open : truth_of(left != right);
  const auto a = number(left), b = number(right);
  if (!a || !b) return Truth::open;
  if (op == "-eq") return truth_of(*a == *b);
  if (op == "-ne") return truth_of(*a != *b);
  if (op == "-lt") return truth_of(*a < *b);
  if (op == "-le") return truth_of(*a <= *b);
  if (op == "-gt") return truth_of(*a > *b);
  if (op == "-ge") return truth_of(*a >= *b);
  return Truth::open;
}

// Of a variable that the script does not set: a plain run has none, as a default has it.
bool is_unset(const ShellText& word) {
  const std::string text = plain(word);
  std::string_view name = text;
  if (name.starts_with("${") && name.ends_with('}')) {
    name = name.substr(2, name.size() - 3);
  } else if (name.starts_with('$')) {
    name.remove_prefix(1);
  } else {
    return false;
  }
  return !name.empty() && (name[0] < '0' || name[0] > '9') &&
         std::all_of(name.begin(), name.end(), is_shell_name) &&
         std::none_of(word.begin(), word.end(),
                      [](const ShellLetter& l) { return l.certainty != Certainty::unknown; });
}

// Without "&&", "||" and brackets; questions to the file system are open.
Truth simple_test(TestWords words) {
  if (!words.empty() && plain(words[0]) == "!") return opposite(simple_test(words.subspan(1)));
  if (words.size() == 2 && plain(words[0]) == "-z" && is_unset(words[1])) return Truth::yes;
  if (!std::all_of(words.begin(), words.end(), is_resolved)) return Truth::open;
  switch (words.size()) {
    case 0:
      return Truth::no;
    case 1:
      return truth_of(!words[0].empty());
    case 2:
      if (plain(words[0]) == "-z") return truth_of(words[1].empty());
      if (plain(words[0]) == "-n") return truth_of(!words[1].empty());
      return Truth::open;
    case 3:
      return comparison(plain(words[0]), plain(words[1]), plain(words[2]));
    default:
      return Truth::open;
  }
}

// "a || b && c": "&&" binds closer.
Truth joined_test(TestWords words) {
  for (const std::string_view joint : {"||", "&&"}) {
    const auto at = std::find_if(words.begin(), words.end(),
                                 [&](const ShellText& word) { return plain(word) == joint; });
    if (at == words.end()) continue;
    const auto before = static_cast<std::size_t>(at - words.begin());
    const Truth left = joined_test(words.first(before));
    const Truth right = joined_test(words.subspan(before + 1));
    return joint == "||" ? std::max(left, right) : std::min(left, right);
  }
  const bool brackets = std::any_of(words.begin(), words.end(), [](const ShellText& word) {
    return plain(word) == "(" || plain(word) == ")";
  });
  return brackets ? Truth::open : simple_test(words);
}

}  // namespace

Truth opposite(Truth truth) {
  if (truth == Truth::open) return Truth::open;
  return truth == Truth::yes ? Truth::no : Truth::yes;
}

std::optional<Truth> test_result(TestWords words) {
  if (words.empty()) return std::nullopt;
  const std::string first = plain(words.front());
  if (first == "!") {
    const auto result = test_result(words.subspan(1));
    return result ? std::optional(opposite(*result)) : std::nullopt;
  }
  if (first == "test") return simple_test(words.subspan(1));
  const std::string closing = first == "[" ? "]" : first == "[[" ? "]]" : "";
  if (closing.empty()) return std::nullopt;
  if (words.size() < 2 || plain(words.back()) != closing) return Truth::open;
  const TestWords inside = words.subspan(1, words.size() - 2);
  return first == "[[" ? joined_test(inside) : simple_test(inside);
}

bool is_in_test(TestWords words) {
  if (!words.empty() && plain(words.front()) == "!") words = words.subspan(1);
  return !words.empty() && plain(words.front()) == "[[" && plain(words.back()) != "]]";
}

// ---- branches ----

bool ShellBranches::keyword(std::string_view word) {
  Frame* const arm =
      !frames_.empty() && frames_.back().kind == Kind::branch ? &frames_.back() : nullptr;
  if (word == "if") {
    frames_.push_back({Kind::branch, Truth::open, Truth::no, true});
  } else if (word == "for" || word == "while" || word == "until") {
    frames_.push_back({Kind::loop, Truth::open});
  } else if (word == "case") {
    frames_.push_back({Kind::cases, Truth::open});
  } else if (word == "{") {
    frames_.push_back({Kind::group});
  } else if (word == "then") {
    if (arm != nullptr) arm->in_condition = false;
  } else if (word == "elif" || word == "else") {
    if (arm == nullptr) return true;
    arm->earlier = std::max(arm->earlier, arm->condition);
    arm->in_condition = word == "elif";
    arm->condition = word == "elif" ? Truth::open : Truth::yes;
  } else if (word == "fi") {
    close(Kind::branch);
  } else if (word == "done") {
    close(Kind::loop);
  } else if (word == "esac") {
    close(Kind::cases);
  } else if (word == "}") {
    close(Kind::group);
  } else {
    return word == "do";
  }
  return true;
}

void ShellBranches::close(Kind kind) {
  if (!frames_.empty() && frames_.back().kind == kind) frames_.pop_back();
}

void ShellBranches::command_ends(std::optional<Truth> result, std::string_view joint) {
  if (joined_ == Truth::yes) outcome_ = result;
  if (joined_ == Truth::open) outcome_ = Truth::open;
  if (!frames_.empty() && frames_.back().in_condition) {
    frames_.back().condition = outcome_.value_or(Truth::open);
  }
  // A command that is no test is taken to succeed where another waits for that.
  if (joint == "&&") {
    joined_ = outcome_.value_or(Truth::yes);
  } else if (joint == "||") {
    joined_ = opposite(outcome_.value_or(Truth::open));
  } else {
    joined_ = Truth::yes;
  }
}

Truth ShellBranches::reached_in(const Frame& frame) {
  const Truth no_earlier = opposite(frame.earlier);
  return frame.in_condition ? no_earlier : std::min(no_earlier, frame.condition);
}

Truth ShellBranches::reached() const {
  Truth reached = joined_;
  for (const Frame& frame : frames_) reached = std::min(reached, reached_in(frame));
  return reached;
}

bool ShellBranches::in_cases() const {
  return !frames_.empty() && frames_.back().kind == Kind::cases;
}

void ShellBranches::case_of(const ShellText& word) {
  if (in_cases() && is_resolved(word)) frames_.back().word = plain(word);
}

void ShellBranches::arm_begins(std::span<const ShellText> patterns) {
  if (!in_cases()) return;
  Frame& arm = frames_.back();
  arm.condition = Truth::no;
  for (const ShellText& pattern : patterns) {
    const bool known = arm.word && is_resolved(pattern);
    const auto fits = known ? matches(*arm.word, plain(pattern)) : std::nullopt;
    const bool any = plain(pattern) == "*";
    arm.condition = std::max(arm.condition, any    ? Truth::yes
                                            : fits ? truth_of(*fits)
                                                   : Truth::open);
  }
}

void ShellBranches::arm_ends(std::string_view joint) {
  if (!in_cases() || !joint.starts_with(";") || joint.size() < 2) return;
  Frame& arm = frames_.back();
  if (joint != ";;") arm.condition = std::min(arm.condition, Truth::open);
  if (joint != ";;") arm.word.reset();
  arm.earlier = std::max(arm.earlier, arm.condition);
}

void ShellBranches::function_begins() {
  frames_.push_back({.kind = Kind::group, .condition = Truth::no, .function = true});
}

bool ShellBranches::at_function() const {
  return !frames_.empty() && frames_.back().function;
}

bool ShellBranches::runs_in_order() const {
  return std::all_of(frames_.begin(), frames_.end(), [](const Frame& frame) {
    return frame.kind == Kind::branch || frame.kind == Kind::cases;
  });
}

}  // namespace qplan
