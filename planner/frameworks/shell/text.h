#pragma once
// A shell script's text letter by letter: where each letter was written, and what can be known of
// it without a run. Expansion mixes letters of several files; from them a word gets its place back.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/shell/shell.h"

namespace qplan {

// What a reader knows of a letter: it is there; it is there if a branch is taken; it spells
// something that only a run can tell.
enum class Certainty : std::uint8_t { known, perhaps, unknown };

struct ShellLetter {
  char c = 0;
  std::uint16_t file = 0;  // of ShellSources
  Certainty certainty = Certainty::known;
  std::size_t at = 0;  // bytes from the file's begin
};
using ShellText = std::vector<ShellLetter>;

std::string plain(const ShellText& text);
bool is_resolved(const ShellText& text);  // every letter is known

// Whether a word is one of these.
template <std::size_t N>
bool is_in(const std::array<std::string_view, N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_shell_name(char c);   // of a variable
bool is_shell_blank(char c);  // '\r' too, for files from Windows

// The files that a script is made of: itself, number 0, and what it sources.
class ShellSources {
 public:
  std::uint16_t add(const std::string& name, std::string_view text);
  [[nodiscard]] const std::string& name(std::uint16_t file) const { return files_[file].name; }
  [[nodiscard]] std::string_view text(std::uint16_t file) const { return files_[file].text; }
  [[nodiscard]] Place place(std::uint16_t file, std::size_t offset) const;
  [[nodiscard]] Place place(const ShellLetter& letter) const {
    return place(letter.file, letter.at);
  }
  // With a span where the letters stand side by side, as they are.
  [[nodiscard]] ShellWord word(const ShellText& text) const;

 private:
  struct File {
    std::string name, text;
    std::vector<std::size_t> line_ends;
  };
  std::deque<File> files_;  // whose texts are read while others come
};

// Where reading stands: in a file, or in what expansion made of a word ("bash -c TEXT"), whose
// letters keep the places where they were written.
struct ShellCursor {
  std::string_view text;
  std::uint16_t file = 0;
  std::size_t at = 0;
  const ShellText* letters = nullptr;  // of `text`, in such a word

  [[nodiscard]] bool at_end() const { return at >= text.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const;  // '\0' behind the end
  [[nodiscard]] std::size_t line_end() const;            // of the next '\n', or of the text
  [[nodiscard]] ShellLetter letter(std::size_t where) const;
  [[nodiscard]] bool at_unknown() const;  // what only a run can tell is not read a second time
  ShellLetter take();
  [[nodiscard]] bool at_operator() const;  // of "[[ ... ]]"
  std::vector<ShellLetter> take_operator();
  void skip_line();  // and its end
  // From an opening bracket behind the one that closes it, or to the end. False: none does.
  bool skip_brackets(char open, char close);
};

// [begin, end) replaced where it was written; empty where it does not stand there in one piece.
std::vector<Edit> edit_of(const ShellSources& sources, const ShellCursor& in, std::size_t begin,
                          std::size_t end, std::string text);

}  // namespace qplan
