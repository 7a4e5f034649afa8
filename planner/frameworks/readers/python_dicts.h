#pragma once
// Dictionaries of literals in Python, as keys of the file that says the same.

#include <string>

#include "planner/frameworks/readers/formats.h"

namespace qplan {

// Its keys behind `section`, each at the argument's place. Empty: it is none, or holds more than
// literals.
Settings dictionary_settings(const PythonArgument& argument, const std::string& section);

// The dictionary that stands in these bytes of a file, key by key with its places. What is no
// literal is known only when the program runs. Empty: it is none.
Settings dictionary_in(std::string_view file, Span span, const std::string& name);

// The dictionary that a program gives DeepSpeed, or a Trainer for DeepSpeed, in place of a
// ds_config.json: where it is written, or the variable that holds it. Empty: it gives none.
Settings deepspeed_dictionary(const PythonText& text, std::string_view file,
                              const std::string& name);

}  // namespace qplan
