#pragma once
// Faults as people make them, put into a configuration by a seeded generator, for tests.

#include <cctype>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {

enum class Fault : std::uint8_t {
  misspelt,       // a letter of a name too many, too few, another, two swapped
  other_case,     // of a name or a word
  dropped,        // a line with a name, or a flag
  off_by_one,     // a number
  other_number,   // doubled, halved, zero, or as 1e6 is written
  other_type,     // a word for a number, a number for a word, quotes put or taken
  contradiction,  // a flag or key once more, with another value
};
constexpr std::array<std::string_view, 7> kFaultNames{"misspelt",     "other case",   "dropped",
                                                      "off by one",   "other number", "other type",
                                                      "contradiction"};

class Faults {
 public:
  explicit Faults(unsigned seed) : random_(seed) {}

  // Which kind was put into one of the files; nothing: there is no place for the kind drawn.
  std::optional<Fault> put_into(std::vector<ConfigText>& files) {
    ConfigText& file = files[below(files.size())];
    const std::vector<Spot> spots = spots_of(file.text);
    if (spots.empty()) return std::nullopt;
    const Spot spot = spots[below(spots.size())];
    const auto fault = static_cast<Fault>(below(kFaultNames.size()));
    return put(file.text, spot, fault) ? std::optional(fault) : std::nullopt;
  }

  std::size_t below(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }

 private:
  // "name: value", "name=value", "--name value", "--name": bytes of both; an empty value: none.
  struct Spot {
    std::size_t name, name_end, value, value_end;
  };

  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' ||
           c == '+';
  }

  static std::vector<Spot> spots_of(const std::string& text) {
    std::vector<Spot> spots;
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] == '#') at = std::min(text.find('\n', at), text.size());
      if (at >= text.size()) break;
      if (!is_word(text[at])) {
        ++at;
        continue;
      }
      const std::size_t begin = at;
      while (at < text.size() && is_word(text[at])) ++at;
      const std::size_t end = at;
      const bool flag = text.compare(begin, 2, "--") == 0;
      std::size_t next = end;
      bool separated = false;
      while (next < text.size() && std::string_view(" \t:=\"'").find(text[next]) < 6) {
        separated = separated || text[next] == ':' || text[next] == '=';
        ++next;
      }
      if (end - begin < 3 || (!flag && !separated)) continue;
      std::size_t value_end = next;
      while (value_end < text.size() && is_word(text[value_end])) ++value_end;
      const bool no_value = text.compare(next, 2, "--") == 0 || next == end;
      spots.push_back({begin, end, next, no_value ? next : value_end});
    }
    return spots;
  }

  bool put(std::string& text, const Spot& s, Fault fault) {
    std::string name = text.substr(s.name, s.name_end - s.name);
    std::string value = text.substr(s.value, s.value_end - s.value);
    const bool number =
        !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    const bool short_number = number && value.size() < 10;
    switch (fault) {
      case Fault::misspelt:
        misspell(name);
        text.replace(s.name, s.name_end - s.name, name);
        return true;
      case Fault::other_case:
        if (value.empty() || below(2) == 0) {
          for (char& c : name) c = upper(c);
          text.replace(s.name, s.name_end - s.name, name);
        } else {
          for (char& c : value) c = upper(c);
          text.replace(s.value, s.value_end - s.value, value);
        }
        return true;
      case Fault::dropped: {
        const bool line = below(2) == 0;
        const std::size_t begin = line ? text.rfind('\n', s.name) + 1 : s.name;
        const std::size_t end =
            line ? std::min(text.find('\n', s.value_end), text.size() - 1) + 1 : s.value_end;
        text.erase(begin, end - begin);
        return true;
      }
      case Fault::off_by_one:
        if (!short_number) return false;
        value = std::to_string(std::max(0L, std::stol(value) + (below(2) == 0 ? 1 : -1)));
        text.replace(s.value, s.value_end - s.value, value);
        return true;
      case Fault::other_number: {
        if (!short_number) return false;
        const long n = std::stol(value);
        const std::vector<std::string> others{std::to_string(2 * n), std::to_string(n / 2), "0",
                                              std::to_string(n) + "e0", std::to_string(n) + ".0"};
        text.replace(s.value, s.value_end - s.value, others[below(others.size())]);
        return true;
      }
      case Fault::other_type:
        if (value.empty()) return false;
        text.replace(s.value, s.value_end - s.value,
                     number ? (below(2) == 0 ? "many" : "true") : (below(2) == 0 ? "7" : "false"));
        return true;
      case Fault::contradiction: {
        if (!number) return false;
        const std::string once = text.substr(s.name, s.value_end - s.name);
        const bool flag = once.starts_with("--");
        const std::string gap = flag ? " " : once.find('=') != std::string::npos ? ", " : "";
        if (gap.empty()) return false;  // keys of a file stand on lines of their own
        text.insert(s.value_end, gap + once + "0");
        return true;
      }
    }
    return false;
  }

  static char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

  void misspell(std::string& name) {
    const std::size_t dashes = name.find_first_not_of('-');
    const std::size_t at = dashes + below(name.size() - dashes);
    const char letter = static_cast<char>('a' + below(26));
    switch (below(4)) {
      case 0:
        name.erase(at, 1);
        break;
      case 1:
        name.insert(at, 1, letter);
        break;
      case 2:
        name[at] = letter;
        break;
      default:
        if (at + 1 < name.size()) std::swap(name[at], name[at + 1]);
        break;
    }
  }

  std::mt19937 random_;
};

}  // namespace qplan
