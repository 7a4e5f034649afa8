#include "cli/progress.h"

#include <ostream>

#include "cli/print.h"

namespace qplan {

std::function<void(double)> progress_of(const Console& console, double from, double to) {
  if (!console.terminal.progress && !console.progress) return {};
  return [&console, from, to](double share) {
    const double done = from + (to - from) * share;
    if (console.terminal.progress) {
      print(console.err, "\rsearching {:3.0f}%", 100 * done);
      console.err.flush();
    }
    if (console.progress) console.progress(done);
  };
}

void end_progress(const Console& console) {
  if (console.terminal.progress) print(console.err, "\r              \r");
}

}  // namespace qplan
