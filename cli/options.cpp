#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ostream>

#include "cli/answer.h"
#include "models/error.h"
#include "models/json.h"
#include "models/text.h"

namespace qplan {
namespace {

constexpr std::size_t kHelpColumn = 34, kHelpWidth = 110;

// Names in one column, noun phrases in the other.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    const std::string standard = CLI::Formatter::make_usage(app, std::move(name));
    const std::size_t badge = standard.find("[OPTIONS]");
    if (badge == std::string::npos) return '\n' + standard;
    return '\n' + standard.substr(0, badge) + "[options]" + standard.substr(badge + 9) + '\n';
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = std::move(group) + ":\n";
    for (const CLI::Option* option : options) text += make_option(option, is_positional);
    return is_positional ? text + '\n' : text;
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string line = "  " + option->get_name(is_positional, !is_positional);
    if (!is_positional && !option->get_option_text().empty()) line += option->get_option_text();
    if (display_width(line) + 2 > kHelpColumn) {
      line += '\n' + std::string(kHelpColumn, ' ');
    } else {
      line.resize(kHelpColumn, ' ');
    }
    const std::string help = wrapped(option->get_description(), kHelpWidth - kHelpColumn);
    for (const char c : help) {
      line += c;
      if (c == '\n') line += std::string(kHelpColumn, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }
};

// Underscores are welcome in an option's name, not touched in its value.
std::string with_dashes(std::string arg) {
  if (!arg.starts_with("--")) return arg;
  const std::size_t end = std::min(arg.find('='), arg.size());
  std::replace(arg.begin(), arg.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return arg;
}

}  // namespace

// ---- CommandLine ----

struct CommandLine::Parser {
  struct Entry {
    CLI::Option* option;
    std::string name;
    SetOption set;
    bool repeatable, value_optional;
    bool list = false;  // one value is several, with commas between
    std::string group{}, value_name{}, help{}, fallback{};
    [[nodiscard]] bool positional() const { return !name.starts_with('-'); }
  };
  CLI::App app;
  std::string summary, example;
  std::vector<Entry> entries;

  // CLI11 keeps the texts; they are read after it is done, so that an unknown option is the first
  // complaint.
  CLI::Option* add(const std::string& names, const std::string& help) {
    const CLI::callback_t keep = [](const CLI::results_t&) { return true; };
    return app.add_option(names, keep, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result{"--help"};
    for (const Entry& entry : entries) result.push_back(entry.name);
    return result;
  }
  void refuse_missing(const std::string& verb) const;
  void refuse_unknown(const std::string& verb) const;
  [[nodiscard]] Json table(const std::string& verb) const;
  static void refuse_repeated(const Entry& entry, const std::vector<std::string>& texts);
};

CommandLine::CommandLine(std::string verb, const std::string& summary, const std::string& example)
    : parser_(std::make_unique<Parser>()), verb_(std::move(verb)), group_("Options") {
  CLI::App& app = parser_->app;
  app.name("qplan " + verb_);
  app.description(summary);
  parser_->summary = summary;
  parser_->example = example;
  app.footer("Example: " + example);
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag();  // parse() adds it: last in help
  app.allow_extras();
}

CommandLine::~CommandLine() = default;

void CommandLine::option(const OptionText& text, SetOption set) {
  repeatable(text, std::move(set));
  parser_->entries.back().repeatable = false;
}

void CommandLine::repeatable(const OptionText& text, SetOption set) {
  const std::string help =
      text.fallback.empty() ? text.help : fmt::format("{} [{}]", text.help, text.fallback);
  CLI::Option* const option = parser_->add(text.name, help);
  const bool value_optional = text.value_name.starts_with('[');
  option->option_text(' ' + text.value_name)->group(group_);
  option->expected(value_optional ? 0 : 1, 1);
  const std::string name = text.name.substr(text.name.rfind(',') + 1);
  const bool list = text.value_name.ends_with(",...");
  parser_->entries.push_back({option, name, std::move(set), true, value_optional, list, group_,
                              text.value_name, text.help, text.fallback});
}

void CommandLine::flag(const std::string& name, const std::string& help, bool& value) {
  CLI::Option* const option = parser_->app.add_flag(name, help)->group(group_);
  const SetOption set({.holds = Holds::truth},
                      [&value](const std::string&, const std::string&) { value = true; });
  parser_->entries.push_back({option, name, set, true, true, false, group_, "", help, ""});
}

void CommandLine::positional(const std::string& name, const std::string& help, std::string& value) {
  positional(name, help, set_text(value));
}

void CommandLine::positional(const std::string& name, const std::string& help, SetOption set) {
  CLI::Option* const option = parser_->add(name, help);
  parser_->entries.push_back({option, name, std::move(set), false, false, false, "", name, help});
}

void CommandLine::positionals(const std::string& name, const std::string& help,
                              std::vector<std::string>& values) {
  CLI::Option* const option = parser_->add(name, help)->expected(-1);
  const auto add = [&values](const std::string&, const std::string& text) {
    values.push_back(text);
  };
  parser_->entries.push_back({option, name, add, true, false, false, "", name, help});
}

// An option whose value was forgotten has taken the next option for it.
void CommandLine::Parser::refuse_missing(const std::string& verb) const {
  const std::vector<std::string> options = names();
  for (const Entry& entry : entries) {
    for (const std::string& text : entry.option->results()) {
      const bool forgotten = !entry.positional() && text.starts_with("--") &&
                             std::find(options.begin(), options.end(), text) != options.end();
      if (!forgotten) continue;
      throw Error(fmt::format("{} {} needs a value ({}), and {} follows", verb, entry.name,
                              entry.value_name, text));
    }
  }
}

void CommandLine::Parser::refuse_unknown(const std::string& verb) const {
  const std::vector<std::string> extra = app.remaining();
  if (extra.empty()) return;
  const std::string& first = extra.front();
  if (!first.starts_with('-')) {
    throw Error(
        fmt::format("{} does not know what to do with '{}'; options begin with --, and "
                    "`qplan {} --help` lists them",
                    verb, shown(first), verb));
  }
  const std::string name = first.substr(0, first.find('='));
  const std::string hint = did_you_mean(name, names());
  throw Error(
      fmt::format("{} has no option '{}'{}", verb, shown(name),
                  hint.empty() ? fmt::format("; `qplan {} --help` lists them", verb) : hint));
}

// What `--help` shows, key by key (docs/reference/schema/options.schema.json).
Json CommandLine::Parser::table(const std::string& verb) const {
  const auto said = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json list = Json::array();
  for (const Entry& entry : entries) {
    const ValueType& type = entry.set.type();
    const bool bounded = type.low < type.high;
    const bool is_flag = !entry.positional() && entry.value_name.empty();
    list.push_back({{"name", entry.name},
                    {"positional", entry.positional()},
                    {"group", said(entry.group)},
                    {"value", said(entry.value_name)},
                    {"help", entry.help},
                    {"default", said(entry.fallback)},
                    {"type", to_word(type.holds)},
                    {"low", bounded ? Json(type.low) : Json()},
                    {"high", bounded ? Json(type.high) : Json()},
                    {"words", type.words},
                    {"known", type.known},
                    {"names", split_list(entry.option->get_name(entry.positional(), true))},
                    {"value_optional", entry.value_optional && !is_flag},
                    {"list", entry.list},
                    {"repeatable", entry.repeatable && !is_flag}});
  }
  return {{"verb", verb}, {"summary", summary}, {"example", example}, {"options", std::move(list)}};
}

// Which of two values was meant nobody can tell.
void CommandLine::Parser::refuse_repeated(const Entry& entry,
                                          const std::vector<std::string>& texts) {
  if (entry.repeatable || texts.size() < 2) return;
  const std::string once = entry.list ? fmt::format("give it once, as a list: {} {}", entry.name,
                                                    shown(fmt::format("{}", fmt::join(texts, ","))))
                                      : "give it once";
  throw Error(fmt::format("{} is given {} times; {}", entry.name, texts.size(), once));
}

bool CommandLine::parse(const std::vector<std::string>& args, std::ostream& out) {
  if (std::find(args.begin(), args.end(), "--help=json") != args.end()) {
    out << answer_text("options", parser_->table(verb_));
    return false;
  }
  std::vector<std::string> reversed;  // CLI11 pops from the back
  for (const std::string& arg : args) reversed.insert(reversed.begin(), with_dashes(arg));
  parser_->app.set_help_flag(std::string(kHelpNames), std::string(kHelpText))->group("Output");
  try {
    parser_->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    out << parser_->app.help();
    return false;
  } catch (const CLI::ArgumentMismatch& mismatch) {
    const std::string what = mismatch.what();  // "--tp: 1 required TEXT missing"
    throw Error(fmt::format("{} {} needs a value; `qplan {} --help` says which", verb_,
                            what.substr(0, what.find(':')), verb_));
  } catch (const CLI::ParseError& error) {
    throw Error(fmt::format("{}: {}; `qplan {} --help` lists the options", verb_,
                            shown(error.what()), verb_));
  }
  parser_->refuse_missing(verb_);
  parser_->refuse_unknown(verb_);
  for (const Parser::Entry& entry : parser_->entries) {
    const std::vector<std::string>& texts = entry.option->results();
    Parser::refuse_repeated(entry, texts);
    for (const std::string& text : texts) {
      // CLI11's stand-in for a value left out.
      const bool left_out = entry.value_optional && (text.empty() || text == "{}");
      entry.set(entry.name, left_out ? "true" : text);
    }
  }
  return true;
}

// ---- what options hold ----

namespace {

[[noreturn]] void refuse(const std::string& option, std::string_view what,
                         const std::string& text) {
  throw Error(fmt::format("{} must be {}, not '{}'", option, what, shown(text)));
}

std::int64_t read_whole(const std::string& option, const std::string& text, std::int64_t low,
                        std::int64_t high) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end || code != std::errc{} || value < low || value > high) {
    refuse(option, fmt::format("a whole number from {} to {}", low, high), text);
  }
  return value;
}

// The number at the start of `text`; `rest` is what follows it. NaN when there is none.
double leading_number(const std::string& text, std::string& rest) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc{}) return std::nan("");
  rest.assign(stop, end);
  return value;
}

}  // namespace

SetOption set_text(std::string& value) {
  return [&value](const std::string& option, const std::string& text) {
    if (text.empty()) throw Error(option + " is empty; give it a value");
    value = text;
  };
}

SetOption set_name(std::string& value, std::vector<std::string> names) {
  const SetOption text = set_text(value);
  return {{.known = std::move(names)},
          [text](const std::string& option, const std::string& word) { text(option, word); }};
}

SetOption set_whole(std::int64_t& value, std::int64_t low, std::int64_t high) {
  return {{Holds::whole, static_cast<double>(low), static_cast<double>(high), {}},
          [&value, low, high](const std::string& option, const std::string& text) {
            value = read_whole(option, text, low, high);
          }};
}

SetOption set_number(double& value, double low, double high) {
  return {{Holds::number, low, high, {}},
          [&value, low, high](const std::string& option, const std::string& text) {
            std::string rest;
            const double number = leading_number(text, rest);
            const bool in_range = number >= low && number <= high;  // false for NaN
            if (!in_range || !rest.empty()) {
              refuse(option, fmt::format("a number from {} to {}", low, high), text);
            }
            value = number;
          }};
}

SetOption set_count(double& value, double low, double high) {
  const auto set = [&value, low, high](const std::string& option, const std::string& text) {
    static constexpr std::array<std::pair<char, double>, 6> kSuffixes{
        {{'k', 1e3}, {'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'G', 1e9}, {'T', 1e12}}};
    std::string rest;
    double number = leading_number(text, rest);
    for (const auto& [suffix, factor] : kSuffixes) {
      if (rest == std::string(1, suffix)) {
        number *= factor;
        rest.clear();
        break;
      }
    }
    const bool in_range = number >= low && number <= high;
    if (!in_range || !rest.empty()) {
      refuse(option, fmt::format("a count such as 300B or 1.5T, from {} to {}", low, high), text);
    }
    value = number;
  };
  return {{Holds::count, low, high, {}}, set};
}

// ---- lists ----

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t from = 0;;) {
    const std::size_t to = text.find(',', from);
    parts.emplace_back(text.substr(from, to - from));
    if (to == std::string_view::npos) return parts;
    from = to + 1;
  }
}

std::vector<std::int64_t> read_numbers(const std::string& option, const std::string& text,
                                       std::int64_t low, std::int64_t high, RangeStep step) {
  constexpr std::size_t kMost = 4096;  // values; more is a typing mistake
  std::vector<std::int64_t> values;
  for (const std::string& part : split_list(text)) {
    const std::size_t dots = part.find("..");
    const std::int64_t first = read_whole(option, part.substr(0, dots), low, high);
    const std::int64_t last =
        dots == std::string::npos ? first : read_whole(option, part.substr(dots + 2), low, high);
    if (last < first) {
      throw Error(
          fmt::format("{} '{}' runs backwards; write {}..{}", option, shown(part), last, first));
    }
    for (std::int64_t value = first; value <= last;) {
      values.push_back(value);
      if (values.size() > kMost) {
        throw Error(fmt::format("{} '{}' is more than {} values; give a shorter range", option,
                                shown(text), kMost));
      }
      if (step == RangeStep::doubling && value == 0) break;
      value = step == RangeStep::one ? value + 1 : value * 2;
    }
  }
  return values;
}

}  // namespace qplan
