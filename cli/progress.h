#pragma once
// How far an answer is: on a terminal, and for who else wants to know.

#include <functional>

#include "cli/commands.h"

namespace qplan {

// For SearchOptions::progress: its share of the whole lies between `from` and `to`. Empty: nobody
// looks. `console` has to outlive it.
std::function<void(double)> progress_of(const Console& console, double from = 0, double to = 1);

// Takes the line back that a terminal shows.
void end_progress(const Console& console);

}  // namespace qplan
