#pragma once
// The verbs. Each reads its own command line, answers on `out` and returns the exit code of
// docs/reference/contract.md 8; what it cannot use it throws as Error.

#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qplan {

enum class Exit : int { done = 0, nothing_fits = 1, bad_input = 2, device = 3 };

// What a person is looking at. The defaults are those of a file or a pipe.
struct Terminal {
  bool color = false;     // of `out`
  bool progress = false;  // `err` is a terminal: a line that says how far a search is
  int columns = 100;      // of what is drawn
  int page = 0;           // of `out`, where it is a terminal: text and tables are no wider
};

using Args = std::vector<std::string>;  // without the verb

struct Console {
  std::ostream& out;
  std::ostream& err;
  Terminal terminal;
  // The whole command line that asked, where that was another verb's (`report validate ...`).
  Args asked = {};
  // Told now and then how far an answer is, 0 to 1; what it throws ends the command.
  std::function<void(double done)> progress{};
};

// `args` without the program's name. Catches Error and prints its sentence on `err`.
int run_cli(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
            const Terminal& terminal = {});
int run_cli(const std::vector<std::string>& args, const Console& console);

Exit run_search(const Args& args, const Console& console);
Exit run_predict(const Args& args, const Console& console);
Exit run_sweep(const Args& args, const Console& console);
Exit run_goodput(const Args& args, const Console& console);
Exit run_trace(const Args& args, const Console& console);
Exit run_emit(const Args& args, const Console& console);
Exit run_check(const Args& args, const Console& console);
Exit run_compare(const Args& args, const Console& console);
Exit run_fit(const Args& args, const Console& console);
Exit run_watch(const Args& args, const Console& console);
Exit run_size(const Args& args, const Console& console);
Exit run_targets(const Args& args, const Console& console);
Exit run_run(const Args& args, const Console& console);
Exit run_validate(const Args& args, const Console& console);
Exit run_calibrate(const Args& args, const Console& console);
Exit run_accuracy(const Args& args, const Console& console);
Exit run_report(const Args& args, const Console& console);
Exit run_models(const Args& args, const Console& console);
Exit run_hardware(const Args& args, const Console& console);
Exit run_mcp(const Args& args, const Console& console);
Exit run_completions(const Args& args, const Console& console);
Exit run_man(const Args& args, const Console& console);

struct Verb {
  std::string_view name, summary;
  Exit (*run)(const Args&, const Console&);
  // The schemas of its answers in JSON (docs/reference/schema), with spaces between; empty: none.
  std::string_view answers{};
  bool is_tool = false;  // of `qplan mcp`: it only reads and computes, and needs no device
};
std::span<const Verb> verbs();
std::string_view program_version();

}  // namespace qplan
