#pragma once
// Places in the text of a file: lines, blanks, and where an option and its value stand. Private to
// corrections.

#include <cstddef>
#include <string>
#include <string_view>

#include "planner/frameworks/setting.h"

namespace qplan {

inline constexpr std::string_view kBlanks = " \t\r";

bool is_empty(Span span);
bool is_blank(std::string_view text);
std::string_view cut(const std::string& text, Span span);

// The line that holds `at`, without its end; and behind its end.
Span line_at(const std::string& text, std::size_t at);
std::size_t next_line(const std::string& text, std::size_t at);
std::string line_break(const std::string& text, std::size_t at);

// ---- words of a shell ----

// Whether a quote may stand behind a value, which would take in what is written there: its own
// begins further from the key than one blank or '='.
bool ends_in_quotes(const Setting& setting);
// A flag, then its value behind blanks, '=', a quote or a continued line: not one that a variable
// holds elsewhere, or that arithmetic made.
bool in_one_piece(const std::string& text, const Setting& s);
// Whether the bytes of the value spell it.
bool spells_value(const std::string& text, const Setting& s);
// A word's own quotes, where it stands in some: "--flag" and the value behind it.
Span with_quotes(const std::string& text, const Setting& s);
// What to take out for the flag and its value to be gone.
Span word_to_remove(const std::string& text, const Setting& s);

// ---- files of keys ----

// A key that begins its line, in YAML's block style.
bool begins_line(const std::string& text, const Setting& s);
// Values that other places may share, or that span lines in a way of their own.
bool is_special_yaml(std::string_view raw);
// A member of an object or a call, with one of its commas.
Span with_comma(const std::string& text, Span span);
// Its line; what is remarked behind it stays.
Span yaml_to_remove(const std::string& text, const Setting& s);

}  // namespace qplan
