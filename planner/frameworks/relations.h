#pragma once
// What one option asks of the others: rows of a table, said in the words of the options themselves.

#include <span>
#include <string>
#include <string_view>

#include "planner/frameworks/scene.h"

namespace qplan {

// Where `when` holds, `must` has to. Both are made of terms:
//   --a            is given (a switch: is on)
//   !--a           is not
//   --a=x,y        its value, given or the parser's default, is one of these; != for none of them
//   --a>0          and >=, <, <=: compared as numbers, with a number or with --b
//   --a%--b        is a multiple of it
// `when` joins terms by '&', `must` alternatives by '|'. What only a run can tell is never judged.
struct Relation {
  std::string_view when, must, why;  // why: what follows otherwise; empty: the framework stops
  std::string_view source;
};

// Relations of the options that a dialect's parser knows.
std::span<const Relation> relations_of(Dialect dialect);

void check_relations(const Scene& scene, Findings& out);

// Whether an option is given, whatever its value is, and not in one of two branches: of a command,
// or of a YAML that is handed on as one.
bool is_given_somehow(const Setting& setting);

}  // namespace qplan
