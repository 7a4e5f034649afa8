#pragma once
// Which commands of a shell script a plain run reaches: tests that the script itself decides
// ([ a = b ], [[ ... ]], test), and cases of words that it knows, are evaluated; all other
// conditions and loops are open.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/shell/text.h"

namespace qplan {

// In this order "both" is the lesser and "either" the greater of two.
enum class Truth : std::uint8_t { no, open, yes };
Truth opposite(Truth truth);

// What "[ ... ]", "[[ ... ]]" or "test ..." comes to; nothing: the words are another command.
std::optional<Truth> test_result(std::span<const ShellText> words);

// Whether the words begin with a "[[" that has not been closed: "&&" and "<" are words of it.
bool is_in_test(std::span<const ShellText> words);

class ShellBranches {
 public:
  // Whether `word` opens, divides or closes a branch, a loop or a group.
  bool keyword(std::string_view word);

  // Behind a command: what it comes to (nothing: only a run can tell), and what joins the next to
  // it ("&&", "||", or anything else).
  void command_ends(std::optional<Truth> result, std::string_view joint);

  // Whether the next command is run. Open: if a condition holds that only a run can tell.
  [[nodiscard]] Truth reached() const;

  // Whether a ")" that nothing opened ends a pattern here.
  [[nodiscard]] bool in_cases() const;

  // Of a case: the word that it asks for, the patterns that begin an arm, and what ends one (";;";
  // behind ";&" and ";;&" others may follow).
  void case_of(const ShellText& word);
  void arm_begins(std::span<const ShellText> patterns);
  void arm_ends(std::string_view joint);

  // A function's body is not run where it stands.
  void function_begins();
  [[nodiscard]] bool at_function() const;  // whether a "}" ends it

  // Whether a variable has the value here that was read last: not in what is run again, or
  // later than it is written.
  [[nodiscard]] bool runs_in_order() const;

 private:
  enum class Kind : std::uint8_t { branch, loop, cases, group };
  struct Frame {
    Kind kind = Kind::branch;
    Truth condition = Truth::yes;  // of this arm
    Truth earlier = Truth::no;     // whether an arm before it was taken
    bool in_condition = false;
    bool function = false;
    std::optional<std::string> word{};  // of a case, where it is known
  };
  static Truth reached_in(const Frame& frame);
  void close(Kind kind);

  std::vector<Frame> frames_;
  Truth joined_ = Truth::yes;     // whether "A &&" or "A ||" lets the next command run
  std::optional<Truth> outcome_;  // of the commands that are joined so far
};

}  // namespace qplan
