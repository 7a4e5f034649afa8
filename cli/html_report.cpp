// `qplan report`: an answer as a page to read, to keep and to hand on.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <iterator>
#include <ostream>
#include <sstream>

#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/html_page.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/print.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {
namespace {

// Answers that are read: those of accuracy over thousands of runs among them.
constexpr JsonLimits kAnswerLimits{.bytes = std::size_t{64} << 20U, .values = 2'000'000};

struct PageQuestion {
  std::string output, scaling;
  Args rest;  // whom it asks, and what
};

// The value of an option in `args`, written "--name value" or "--name=value".
std::optional<std::string> value_in(const Args& args, std::string_view name) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == name && i + 1 < args.size()) return args[i + 1];
    if (args[i].starts_with(name) && args[i].substr(name.size()).starts_with('=')) {
      return args[i].substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

// `args` without these options; of those that are moved to `taken` their values too.
Args without_options(const Args& args, std::initializer_list<std::string_view> with_value,
                     std::initializer_list<std::string_view> flags, Args& taken) {
  Args rest;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].substr(0, args[i].find('='));
    const bool joined = name.size() < args[i].size();
    const auto is_in = [&](const auto& list) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    if (!is_in(with_value) && !(is_in(flags) && !joined)) {
      rest.push_back(args[i]);
      continue;
    }
    taken.push_back(args[i]);
    if (is_in(with_value) && !joined && i + 1 < args.size()) taken.push_back(args[++i]);
  }
  return rest;
}

// As a shell would read it.
std::string command_text(const std::string& verb, const Args& args) {
  std::string text = "qplan " + verb;
  for (const std::string& arg : args) {
    const bool plain = !arg.empty() && std::all_of(arg.begin(), arg.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("-_=+.,:/@%").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (plain) {
      text += ' ' + arg;
      continue;
    }
    text += " '";
    for (const char c : arg) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

// A verb's answer to a command line. None: it printed its help, or another rank reports.
struct Heard {
  Exit exit = Exit::done;
  std::optional<PageAnswer> answer;
};

// Model and machine of a command line: named, or of the plan file that it is about.
JobChoices given_in(const std::string& verb, const Args& args) {
  JobChoices given;
  const bool asks_plan = verb == "predict" || verb == "run" || verb == "validate";
  const bool stands_first = !args.empty() && !args.front().starts_with('-');
  const std::string plan = value_in(args, "--plan").value_or(stands_first ? args.front() : "");
  if (asks_plan && is_plan_file(plan)) given = read_plan_file(plan).choices;
  if (auto model = value_in(args, "--model")) {
    given.model = std::move(model);
    given.model_config = nullptr;
  }
  if (auto hardware = value_in(args, "--hardware")) {
    given.hardware = std::move(hardware);
    given.hardware_profile = nullptr;
  }
  if (auto read_as = value_in(args, "--as")) given.read_as = std::move(read_as);
  return given;
}

Heard ask(const std::string& verb, const Args& args, const Args& asked, const Console& console) {
  const auto known =
      std::find_if(verbs().begin(), verbs().end(), [&](const Verb& v) { return v.name == verb; });
  Args words = args;
  if (std::find(args.begin(), args.end(), "--json") == args.end()) words.emplace_back("--json");
  std::ostringstream out;
  Heard heard;
  heard.exit = known->run(words, {out, console.err, console.terminal, asked});
  const std::string text = out.str();
  if (text.starts_with('{')) {
    heard.answer = {verb, command_text(verb, args), parse_json(text, verb, kAnswerLimits),
                    given_in(verb, args)};
  } else {
    console.out << text;
  }
  return heard;
}

bool is_verb(const std::string& word) {
  return std::any_of(verbs().begin(), verbs().end(),
                     [&](const Verb& verb) { return verb.name == word; });
}

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// A saved answer; of a plan file, what predict says of it today.
Heard read_answer(const std::string& file, const Console& console) {
  const bool piped = file == "-";
  const std::string name = piped ? "standard input" : file;
  Json json = parse_json(piped ? standard_input() : read_text_file(file, kAnswerLimits), name,
                         kAnswerLimits);
  const auto verb = verb_of(json);
  if (!verb) {
    throw Error(
        fmt::format("{} is no answer that report draws: it takes what {} print with --json, "
                    "and plan files",
                    name, drawn_verbs()));
  }
  if (verb == "predict" && !json.contains("checkpoint") && !piped) {
    return ask("predict", {file}, {}, console);
  }
  return {Exit::done, PageAnswer{*verb, name, std::move(json), {}}};
}

// The curves of a search's job over other numbers of GPUs.
Heard ask_scaling(const PageQuestion& question, const Args& search, const Console& console) {
  Args ignored;
  // What a sweep does not take: it shows the best plan of each size, by tokens a second.
  Args args = without_options(search, {"--gpus", "--top", "--objective"}, {"--pareto", "--timing"},
                              ignored);
  args.insert(args.end(), {"--gpus", question.scaling});
  return ask("sweep", args, {}, console);
}

std::vector<Heard> hear(const PageQuestion& question, const Args& all, const Console& console) {
  const std::string& first = question.rest.front();
  const Args later(question.rest.begin() + 1, question.rest.end());
  Args asked{"report"};
  asked.insert(asked.end(), all.begin(), all.end());
  const bool options = std::any_of(question.rest.begin(), question.rest.end(),
                                   [](const std::string& word) { return word.starts_with("--"); });
  const bool search = first == "search" || first.starts_with("--");
  if (!question.scaling.empty() && !search) {
    throw Error("--scaling adds curves to a search; of other answers give `qplan sweep`'s beside");
  }
  if (search) {
    const Args& args = first == "search" ? later : question.rest;
    std::vector<Heard> heard{ask("search", args, asked, console)};
    if (!question.scaling.empty() && heard.front().answer) {
      heard.push_back(ask_scaling(question, args, console));
    }
    return heard;
  }
  if (is_drawn(first)) return {ask(first, later, asked, console)};
  if (is_verb(first)) {
    throw Error(fmt::format("report draws the answers of {}, none of {}'s", drawn_verbs(), first));
  }
  if (first != "-" && (!is_plan_file(first) || options)) {
    return {ask("predict", question.rest, asked, console)};
  }
  std::vector<Heard> heard;
  for (const std::string& file : question.rest) heard.push_back(read_answer(file, console));
  return heard;
}

}  // namespace

Exit run_report(const Args& args, const Console& console) {
  PageQuestion question;
  CommandLine line(
      "report",
      "An answer as one HTML file that needs no network: what was asked, the ranked "
      "plans, memory by stage, the step by part and as a timeline, why others lost, "
      "the interval and where prices come from.",
      "qplan report search --model qwen3-30b-a3b --gpus 256 -o report.html\n"
      "         qplan report plan.json -o report.html\n"
      "         qplan search --model tiny --gpus 8 --json | qplan report - -o report.html");
  std::string asks;
  std::vector<std::string> drawn;
  const std::string names = drawn_verbs();
  for (const std::string_view verb : split(names, ',')) drawn.emplace_back(trimmed(verb));
  line.positional(
      "WHAT",
      "a verb (" + drawn_verbs() +
          ") with its own options; or a plan file or a line of plan words; or files that "
          "hold what those verbs print with --json (- is standard input). Options "
          "without a verb are search's",
      set_name(asks, drawn));
  line.group("Output");
  line.option({"-o,--output", "FILE", "HTML file to write", ""}, set_text(question.output));
  line.option({"--scaling", "COUNT,...",
               "with a search: curves of speed, days and cost over these numbers of GPUs, as sweep "
               "finds them",
               ""},
              set_text(question.scaling));
  Args own;
  question.rest = without_options(args, {"-o", "--output", "--scaling"}, {}, own);
  const auto asks_for_help = [](const std::string& word) {
    return word == "--help" || word == "-h" || word == "--help=json";
  };
  if (!question.rest.empty() && asks_for_help(question.rest.front())) own = {question.rest.front()};
  if (!line.parse(own, console.out)) return Exit::done;
  if (question.rest.empty()) {
    throw Error(fmt::format("report needs a plan, an answer in JSON, or a verb to ask ({})",
                            drawn_verbs()));
  }
  const bool helps = std::any_of(question.rest.begin(), question.rest.end(), asks_for_help);
  if (question.output.empty() && !helps)
    throw Error("report needs -o FILE, the HTML file to write");

  const std::vector<Heard> heard = hear(question, args, console);
  std::vector<PageAnswer> answers;
  Exit exit = Exit::done;
  for (const Heard& one : heard) {
    if (one.answer) answers.push_back(*one.answer);
    if (one.exit != Exit::done) exit = one.exit;
  }
  if (answers.empty()) return exit;
  const std::string page = html_page(answers);
  write_output(question.output, page, console);
  print(console.err, "{}: {} kB{}; open it in a browser\n", output_name(question.output),
        page.size() / 1000,
        has_plots()
            ? ""
            : ", tables without plots: this qplan was built without Chart.js (libjs-chart.js "
              "of Debian and Ubuntu)");
  return exit;
}

}  // namespace qplan
