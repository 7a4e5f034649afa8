// Files of a folder are compiled together where QPLAN_UNITY is on (scripts/cmake/qplan.cmake): what
// one of them calls something in its unnamed namespace, no other may call something else.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/house/text.h"

using namespace qplan::house;

namespace {

// What stands between "namespace {" and its end, as clang-format writes both.
std::string unnamed_parts(const std::string& text) {
  std::string parts;
  constexpr std::string_view kBegin = "\nnamespace {\n", kEnd = "\n}  // namespace\n";
  for (std::size_t at = 0; (at = text.find(kBegin, at)) != std::string::npos;) {
    at += kBegin.size() - 1;
    const std::size_t end = text.find(kEnd, at);
    parts += text.substr(at, end - at) + "\n";
    if (end == std::string::npos) break;
    at = end;
  }
  return parts;
}

// Types by their names, functions by their names and what they take; each with its meaning: what an
// alias stands for, or "" for a definition.
std::map<std::string, std::string> names_in(const std::string& text) {
  static const std::regex type(
      "\n(?:template <[^\n]*>\n)?(?:enum class|class|struct) (\\w+)[^\n;]*\\{");
  static const std::regex alias("\nusing (\\w+) =([^;]*);");
  static const std::regex function(
      "\n(?:constexpr |inline |static |\\[\\[\\w+\\]\\] )*[A-Za-z_][\\w:<>,&* ]*[ &*](\\w+)"
      "\\(([^;{}()]*)\\)(?: noexcept)? \\{");
  static const std::regex blanks("\\s+");
  std::map<std::string, std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), type), end; it != end; ++it) {
    names.emplace((*it)[1].str(), "");
  }
  for (std::sregex_iterator it(text.begin(), text.end(), alias), end; it != end; ++it) {
    names.emplace((*it)[1].str(), std::regex_replace((*it)[2].str(), blanks, " "));
  }
  for (std::sregex_iterator it(text.begin(), text.end(), function), end; it != end; ++it) {
    names.emplace((*it)[1].str() + "(" + std::regex_replace((*it)[2].str(), blanks, " ") + ")", "");
  }
  return names;
}

}  // namespace

TEST_CASE("no two files of a folder give a name of their own two meanings") {
  struct Known {
    std::string meaning, file;
  };
  std::map<fs::path, std::map<std::string, Known>> known;  // by folder and name
  int files = 0;
  for (const char* top : {"cli", "costmodel", "executor", "models", "planner"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (entry.path().extension() != ".cpp") continue;
      ++files;
      const std::string file = entry.path().filename().string();
      auto& of_folder = known[entry.path().parent_path()];
      for (const auto& [name, meaning] : names_in(unnamed_parts(text_of(entry.path())))) {
        const auto [other, is_new] = of_folder.emplace(name, Known{meaning, file});
        const bool same_alias = !meaning.empty() && meaning == other->second.meaning;
        const std::string path = entry.path().string();
        CAPTURE(path);
        CAPTURE(name);
        CAPTURE(other->second.file);
        CHECK((is_new || same_alias));
      }
    }
  }
  CHECK(files > 200);
}

// Two headers meet in a file sooner or later, and before that the linker may take one's inline
// functions for the other's.
TEST_CASE("no two headers define types of one name") {
  static const std::regex type(
      "\n(?:enum class|class|struct) (\\w+)(?: final)?(?: : [^\n;{]*)? \\{|\nusing (\\w+) =");
  static const std::regex space("\nnamespace ([\\w:]+) \\{");
  std::map<std::string, std::string> known;  // where a name is defined
  for (const char* top : {"cli", "costmodel", "executor", "kernels", "models", "planner"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (entry.path().extension() != ".h") continue;
      const std::string file = entry.path().string(), text = text_of(entry.path());
      std::smatch within;
      std::regex_search(text, within, space);
      for (std::sregex_iterator it(text.begin(), text.end(), type), end; it != end; ++it) {
        const std::string name = within.str(1) + "::" + it->str(1) + it->str(2);
        const auto [other, is_new] = known.emplace(name, file);
        CAPTURE(file);
        CAPTURE(name);
        CAPTURE(other->second);
        CHECK(is_new);
      }
    }
  }
  CHECK(known.size() > 500);
}

TEST_CASE("names of unnamed namespaces are found as they are written") {
  const std::string text =
      "int outside(int x) {\n}\nnamespace {\n\nclass Judge {\n};\n\nbool is_name(char c) {\n}\n"
      "using Pair = int;\nstd::vector<int> all(const std::string& a,\n    int b) {\n}\n"
      "\n}  // namespace\n";
  CHECK(names_in(unnamed_parts(text)) ==
        std::map<std::string, std::string>{{"Judge", ""},
                                           {"Pair", " int"},
                                           {"all(const std::string& a, int b)", ""},
                                           {"is_name(char c)", ""}});
}
