#pragma once
// Calls of transformers', TRL's, PEFT's and torch's in a training program: keywords that their
// classes have not, words that they refuse. Private to check().

#include <string>
#include <string_view>

#include "planner/frameworks/scene.h"

namespace qplan {

// Whether a program takes the name from a package, and has none of its own by that name.
bool is_taken_from(const std::string& program, std::string_view name, std::string_view package);

// Whose class of a Trainer's arguments a call makes: "transformers" (TrainingArguments) or "trl"
// (SFTConfig, GRPOConfig, ...); empty: it makes none.
std::string_view library_of_arguments(const std::string& program, const PythonCall& call);

// Keywords of that class that it has not, and text where it compares numbers. What is a slip of a
// field was said before.
void check_keywords(const PythonCall& call, std::string_view library, const Findings& before,
                    Findings& out);

void check_library_calls(const Scene& scene, Findings& out);

}  // namespace qplan
