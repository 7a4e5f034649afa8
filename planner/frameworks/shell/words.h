#pragma once
// Words of a shell script: quotes, escapes and continued lines (words.cpp), and what follows
// a '$': variables, arrays, defaults, arithmetic, other commands (expansion.cpp).

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/shell/text.h"

namespace qplan {

struct HereDocument {
  std::string end;
  bool strips_tabs = false, expands = true;
  bool joins = false;  // a backslash at a line's end is taken away with that end
};

struct ShellVariable {
  bool is_array = false, exported = false;
  std::vector<ShellText> values;  // one, unless it is an array
};
using ShellVariables = std::map<std::string, ShellVariable>;

// "NAME", "$NAME" and "${NAME}" of an arithmetic expression replaced by what they are worth.
// A name without a known value stays.
std::string with_values(std::string_view text, const ShellVariables& variables);

// Reads at a cursor, which it moves, with the variables as they are then. Broken continuations are
// findings. Throws Error for text that is nested too deep, or grows too long.
class ShellWordReader {
 public:
  ShellWordReader(ShellCursor& cursor, const ShellVariables& variables, const ShellSources& sources,
                  std::vector<Finding>& findings)
      : in_(cursor), variables_(variables), sources_(sources), findings_(findings) {}

  // Where the command begins that is read from here on.
  void begin_command() {
    command_ = in_.at;
    takes_arguments_ = false;
  }
  // Whether the words that follow are arguments, so that of an array of them all are meant.
  void takes_arguments(bool takes) { takes_arguments_ = takes; }
  void skip_blanks();  // and backslashes that continue a line
  [[nodiscard]] bool at_word_end() const;

  // One word as it is written; where a variable's value falls apart, several, or none.
  std::vector<ShellText> word();
  ShellText value();                         // behind "NAME="
  std::vector<ShellText> items();            // behind "NAME=(", and the ')'
  ShellText document_line(std::size_t end);  // of a here-document, up to an offset
  // The lines of a here-document up to its end, from the one that begins at the cursor.
  ShellText document(const HereDocument& document);

  // The remark in [begin, end), above the command that begins there, behind the word that its line
  // begins with.
  [[nodiscard]] Edit remark_above(std::size_t command, std::size_t begin, std::size_t end) const;

  // What "${NAME:=word}" has set since this was asked last.
  std::vector<std::pair<std::string, ShellText>> take_set() { return std::exchange(set_, {}); }

 private:
  // Where a piece of text stands: plain words fall apart at the blanks of a variable's value.
  enum class Mode : std::uint8_t { word, assignment, quoted };
  enum class Items : std::uint8_t { first, all, joined };  // of an array: "[@]"; "[*]" in quotes
  using Words = std::vector<ShellText>;                    // the last one is being written

  void piece(Words& words, Mode mode);
  void escape(ShellText& to, Mode mode);
  bool broken_continuation();
  bool glued_line();
  void first_item(const std::string& name, std::size_t from);

  void expand(Words& words, Mode mode);
  void braces(Words& words, std::size_t from, Mode mode);
  void arithmetic(ShellText& to, std::size_t from);
  bool document(Words& words, Mode mode);
  bool substituted(Words& words, Span inside, Mode mode);
  void escaped(ShellText& to);
  void unclosed(std::size_t quote);
  void closed(std::size_t quote);
  void unclosed_brackets(std::size_t from);
  // What stands behind the name in "${NAME...}", [begin, end); false: it is not followed.
  bool set_default(Words& words, const std::string& name, std::string_view rest, Span at,
                   Mode mode);
  bool alternative(Words& words, const ShellVariable* variable, std::string_view rest, Span at,
                   Mode mode);
  bool item(Words& words, const ShellVariable& variable, std::string_view index, Mode mode);
  bool shortened(Words& words, const ShellText& value, Span at, Mode mode);
  void insert(Words& words, const std::string& name, std::size_t from, Mode mode, Items items);
  void add_value(Words& words, const ShellText& value, Mode mode);
  void append_unknown(ShellText& to, std::size_t from) const;

  ShellCursor& in_;
  const ShellVariables& variables_;
  const ShellSources& sources_;
  std::vector<Finding>& findings_;
  std::vector<std::pair<std::string, ShellText>> set_;
  // The first quote of each file and kind whose text has several lines.
  std::map<std::pair<std::uint16_t, char>, std::size_t> over_lines_;
  std::size_t command_ = 0;
  bool takes_arguments_ = false;
  std::size_t letters_ = 0;  // that variables gave
  int depth_ = 0;            // of quotes and variables
};

}  // namespace qplan
