// Picks the verb; the one place where errors become exit codes.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <new>
#include <ostream>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/option_table.h"
#include "cli/page.h"
#include "cli/print.h"
#include "executor/cuda/device_error.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

constexpr std::string_view kVersion = QPLAN_VERSION;  // of the root CMakeLists.txt

constexpr std::array kVerbs{
    Verb{"search", "the best parallel plans for a model on N GPUs, and why others lost", run_search,
         "search search_lists search_steps", true},
    Verb{"predict", "one plan's memory, step time and breakdown", run_predict, "predict", true},
    Verb{"sweep", "a search per world size, batch, sequence length or GPU: scaling, days, cost",
         run_sweep, "sweep", true},
    Verb{"goodput", "what failures, checkpoints, spares, stragglers and thin links leave of a run",
         run_goodput, "goodput", true},
    Verb{"trace", "a plan's step as a Perfetto trace, or drawn in the terminal", run_trace},
    Verb{"emit", "a plan as a framework's configuration and launch scripts", run_emit, "emit",
         true},
    Verb{"check", "what is wrong with a framework's configuration, and a better plan", run_check,
         "check check_each", true},
    Verb{"size", "the fewest GPUs, longest sequence, largest batch or model, cheapest cluster",
         run_size, "size", true},
    Verb{"targets", "what a run of a plan should measure, as thresholds for monitoring",
         run_targets, "targets", true},
    Verb{"fit", "a profile corrected by your own runs, and the ranking anew", run_fit, "fit", true},
    Verb{"watch", "a live log beside what was predicted: alerts as JSON lines", run_watch, "watch"},
    Verb{"compare", "two plans, side by side: what differs, and what each difference does",
         run_compare, "compare", true},
    Verb{"run", "a plan, executed: losses, gradient norms, memory, step time", run_run, "run"},
    Verb{"validate", "a plan executed and predicted, side by side", run_validate, "validate"},
    Verb{"calibrate", "a hardware profile, measured on this machine's GPUs", run_calibrate},
    Verb{"accuracy", "predictions beside measured runs, and their errors", run_accuracy, "accuracy",
         true},
    Verb{"report", "an answer as a page: ranked plans, memory, time, timeline, in one HTML file",
         run_report},
    Verb{"models", "the built-in models; `models show NAME`", run_models, "models model", true},
    Verb{"hardware", "the built-in machines; `hardware show NAME`", run_hardware,
         "hardware profile", true},
    Verb{"mcp", "a server of these verbs for agents (Model Context Protocol, over stdio)", run_mcp},
    Verb{"completions", "what bash, zsh or fish completes", run_completions},
    Verb{"man", "pages for man(1)", run_man},
};

void print_help(std::ostream& out) {
  print(out,
        "qplan: which parallel plan for training a large language model, at what cost.\n\n"
        "Usage: qplan VERB [options]\n\nVerbs:\n");
  for (const Verb& verb : kVerbs) print(out, "  {:<13}{}\n", verb.name, verb.summary);
  print(out,
        "\n`qplan VERB --help` lists a verb's options; `qplan --version` prints {}.\n\n"
        "Example: qplan search --model qwen3-30b-a3b --gpus 256\n",
        kVersion);
}

Exit dispatch(const Args& args, const Console& console) {
  if (args.empty()) {
    print_help(console.err);
    return Exit::bad_input;
  }
  const std::string& word = args.front();
  const Args rest(args.begin() + 1, args.end());
  if (word == "--help" || word == "-h" || (word == "help" && rest.empty())) {
    print_help(console.out);
    return Exit::done;
  }
  if (word == "help") return dispatch({rest.front(), "--help"}, console);
  if (word == "--help=json" && rest.empty()) {
    console.out << answer_text("verbs", verbs_json());
    return Exit::done;
  }
  if (word == "--version") {
    print(console.out, "qplan {}\n", kVersion);
    return Exit::done;
  }
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) {
    if (verb.name == word) return verb.run(rest, console);
    names.emplace_back(verb.name);
  }
  const std::string hint = did_you_mean(word, names);
  throw Error(fmt::format(
      "{} '{}' is unknown{}", word.starts_with('-') ? "before a verb, option" : "verb", shown(word),
      hint.empty() ? fmt::format("; choose one of {}", fmt::join(names, ", ")) : hint));
}

}  // namespace

std::span<const Verb> verbs() {
  return kVerbs;
}

std::string_view program_version() {
  return kVersion;
}

int run_cli(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
            const Terminal& terminal) {
  return run_cli(args, {out, err, terminal});
}

int run_cli(const std::vector<std::string>& args, const Console& console) {
  const auto fail = [&console](std::string_view sentence, Exit code = Exit::bad_input) {
    print(console.err, "qplan: {}\n", sentence);
    return static_cast<int>(code);
  };
  const PageOf page(console.terminal.page);
  try {
    return static_cast<int>(dispatch(args, console));
  } catch (const Error& error) {
    return fail(error.what());
  } catch (const DeviceError& error) {
    return fail(error.what(), Exit::device);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(fmt::format("cannot use '{}': {}", error.path1().string(), error.code().message()));
  } catch (const std::bad_alloc&) {
    return fail("the question needs more memory than this machine has; ask a smaller one");
  }
}

}  // namespace qplan
