#pragma once
// The command line of one verb: options in groups, every complaint one sentence, help with an
// example. CLI11 does the parsing.

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/text.h"
#include "models/words.h"

namespace qplan {

// What an option's value is, for who asks by machine (`--help=json`, `qplan mcp`). The option
// itself judges its text.
enum class Holds : std::uint8_t { text, whole, number, count, truth };

template <>
struct Words<Holds> {
  static constexpr std::string_view what = "type";
  static constexpr auto table =
      std::to_array<std::pair<Holds, std::string_view>>({{Holds::text, "text"},
                                                         {Holds::whole, "whole"},
                                                         {Holds::number, "number"},
                                                         {Holds::count, "count"},
                                                         {Holds::truth, "truth"}});
};

struct ValueType {
  Holds holds = Holds::text;
  double low = 0, high = 0;          // of numbers; both 0: no bounds are known
  std::vector<std::string> words{};  // of text: all there are; empty: any
  std::vector<std::string> known{};  // of text: some that there are, which shells complete
};

// Takes an option's text; throws Error that names the option.
class SetOption {
 public:
  using Set = std::function<void(const std::string& option, const std::string& text)>;
  template <class F>
  requires(!std::is_same_v<F, SetOption>) && std::is_convertible_v<F, Set> SetOption(F set)
      : set_(std::move(set)) {}
  SetOption(ValueType type, Set set) : type_(std::move(type)), set_(std::move(set)) {}
  void operator()(const std::string& option, const std::string& text) const { set_(option, text); }
  [[nodiscard]] const ValueType& type() const { return type_; }

 private:
  ValueType type_;
  Set set_;
};

inline constexpr std::string_view kHelpNames = "-h,--help", kHelpText = "this text";

struct OptionText {
  std::string name;        // "--gpus", "-o,--output"
  std::string value_name;  // "COUNT", "GIB"; in brackets: may be left out ("[true]" stands then)
  std::string help;        // a noun phrase
  std::string fallback;    // the default, as help shows it; empty: none
};

class CommandLine {
 public:
  CommandLine(std::string verb, const std::string& summary, const std::string& example);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void group(std::string name) { group_ = std::move(name); }  // of the options that follow
  void option(const OptionText& text, SetOption set);
  void repeatable(const OptionText& text, SetOption set);  // may be given several times
  void flag(const std::string& name, const std::string& help, bool& value);
  // Words without an option, in order; the last complaint says how many there may be.
  void positional(const std::string& name, const std::string& help, std::string& value);
  void positional(const std::string& name, const std::string& help, SetOption set);

  // Any number of them.
  void positionals(const std::string& name, const std::string& help,
                   std::vector<std::string>& values);

  // False: help was asked for and printed (`--help=json`: the same as JSON). Throws Error for
  // anything it cannot use.
  bool parse(const std::vector<std::string>& args, std::ostream& out);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::string verb_, group_;
};

// ---- what options hold ----

SetOption set_text(std::string& value);
// The name of something built in, or the path of a file that is like it.
SetOption set_name(std::string& value, std::vector<std::string> names);
SetOption set_whole(std::int64_t& value, std::int64_t low, std::int64_t high);
SetOption set_number(double& value, double low, double high);
// "1T", "300B", "2e12".
SetOption set_count(double& value, double low, double high);

template <class E>
SetOption set_word(E& value) {
  ValueType type;
  for (const auto& [e, word] : Words<E>::table) type.words.emplace_back(word);
  return {std::move(type), [&value](const std::string&, const std::string& text) {
            value = from_word<E>(lower_case(text));
          }};
}

// The same for a value that knows whether it was given.
template <class Optional, class Make, class... Bounds>
SetOption set_given(Optional& value, Make make, Bounds... bounds) {
  typename Optional::value_type any{};
  return {make(any, bounds...).type(),
          [&value, make, bounds...](const std::string& option, const std::string& text) {
            typename Optional::value_type read{};
            make(read, bounds...)(option, text);
            value = std::move(read);
          }};
}

// "a, b, c" of an enum, for help.
template <class E>
std::string word_list() {
  std::string list;
  for (const auto& [e, word] : Words<E>::table) {
    if (!list.empty()) list += ", ";
    list += word;
  }
  return list;
}

// ---- lists ----

std::vector<std::string> split_list(std::string_view text);  // at commas

// How "2..16" is read: every number, or doubling from the first.
enum class RangeStep : std::uint8_t { one, doubling };
// "8", "2,4,8" or "1..3", mixed too. Throws Error that names the option.
std::vector<std::int64_t> read_numbers(const std::string& option, const std::string& text,
                                       std::int64_t low, std::int64_t high, RangeStep step);

}  // namespace qplan
