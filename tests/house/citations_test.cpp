// The pages of docs/reference and what cites them: every file and section that is named is there.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/house/text.h"

using namespace qplan::house;

namespace {

// Source, tests, scripts and pages, but this file, which has to name what it looks for.
std::vector<fs::path> texts() {
  constexpr std::array<std::string_view, 9> kFolders = {
      "cli", "costmodel", "docs", "executor", "kernels", "models", "planner", "scripts", "tests"};
  const std::set<std::string> kinds = {".h",  ".cpp", ".cu",    ".cuh", ".md", ".txt",
                                       ".py", ".sh",  ".cmake", "",     ".tsv"};
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(kRoot)) {
    if (entry.is_regular_file() && kinds.contains(entry.path().extension().string())) {
      paths.push_back(entry.path());
    }
  }
  for (const std::string_view folder : kFolders) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const bool text = kinds.contains(entry.path().extension().string());
      if (!entry.is_regular_file() || !text) continue;
      if (entry.path().filename() == "citations_test.cpp") continue;
      paths.push_back(entry.path());
    }
  }
  return paths;
}

// As one line: comments are wrapped anywhere.
std::string unwrapped(const std::string& text) {
  static const std::regex wrap("\n[ \t]*(//|#)?[ \t]*");
  return std::regex_replace(text, wrap, " ");
}

// The number that a heading begins with, and its anchor as GitHub makes it.
struct Page {
  std::set<std::string> sections, anchors;
};

std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0 || c == '-' || c == '_') {
      anchor += static_cast<char>(std::tolower(letter));
    } else if (c == ' ') {
      anchor += '-';
    }
  }
  return anchor;
}

Page read_page(const fs::path& path) {
  Page page;
  std::istringstream lines(text_of(path));
  bool code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) code = !code;
    if (code || !line.starts_with('#')) continue;
    const std::string heading = line.substr(std::min(line.size(), line.find(' ') + 1));
    page.anchors.insert(anchor_of(heading));
    const std::string number = heading.substr(0, heading.find(' '));
    if (std::isdigit(static_cast<unsigned char>(number[0])) != 0) page.sections.insert(number);
  }
  return page;
}

const std::map<std::string, Page>& pages() {
  static const std::map<std::string, Page> all = [] {
    std::map<std::string, Page> read;
    for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / "docs/reference")) {
      if (entry.path().extension() != ".md") continue;  // the schemas have a folder of their own
      read[entry.path().filename().string()] = read_page(entry.path());
    }
    return read;
  }();
  return all;
}

}  // namespace

TEST_CASE("a citation of docs/reference names a page, and a section that it has") {
  const std::regex citation(
      "reference/([a-z_]+\\.md)(#[a-z0-9_-]+| \\(?[0-9]+[A-Z]?(\\.[0-9]+)*)?");
  int cited = 0, sections = 0;
  for (const fs::path& path : texts()) {
    const std::string text = unwrapped(text_of(path));
    for (std::sregex_iterator at(text.begin(), text.end(), citation), end; at != end; ++at) {
      CAPTURE(path.string());
      CAPTURE(at->str());
      ++cited;
      const auto page = pages().find((*at)[1].str());
      const bool known = page != pages().end();
      CHECK(known);
      const std::string place = (*at)[2].str();
      if (!known || place.empty()) continue;
      ++sections;
      CHECK((place[0] == '#' ? page->second.anchors.contains(place.substr(1))
                             : page->second.sections.contains(place.substr(1))));
    }
  }
  CHECK(cited > 50);
  CHECK(sections > 40);
}

TEST_CASE("no page is cited by its bare name, nor one that is not here") {
  const std::regex name("(physics|frameworks|contract|design|style)\\.md");
  for (const fs::path& path : texts()) {
    if (path.extension() == ".md") continue;  // pages link each other by where they are
    const std::string text = text_of(path);
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at) {
      CAPTURE(path.string());
      CAPTURE(at->str());
      const std::string before = at->prefix().str();
      CHECK((before.ends_with("docs/reference/") || before.ends_with("docs/evidence/")));
    }
  }
}

TEST_CASE("a section has one place") {
  for (const auto& [name, page] : pages()) {
    CAPTURE(name);
    CHECK_FALSE(page.sections.empty());
    const std::string text = text_of(kRoot / "docs/reference" / name);
    for (const std::string& section : page.sections) {
      CAPTURE(section);
      const std::regex heading("(^|\n)#+ " + std::regex_replace(section, std::regex("\\."), "\\.") +
                               " ");
      CHECK(std::distance(std::sregex_iterator(text.begin(), text.end(), heading), {}) == 1);
    }
  }
}
