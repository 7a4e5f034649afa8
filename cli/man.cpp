// Pages for man(1), made of the verbs' tables of options.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "cli/option_table.h"
#include "cli/options.h"
#include "cli/output.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

// Text of roff: a hyphen that may be copied, and no line that begins with a request.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool starts = result.empty() || result.back() == '\n';
    if (starts && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

// An argument of a macro: quotes are doubled within quotes.
std::string argument(std::string_view text) {
  std::string result = "\"";
  for (const char c : roff(text)) result += c == '"' ? std::string("\\(dq") : std::string(1, c);
  return result + '"';
}

std::string title_line(const std::string& page) {
  // No date: the same program writes the same page.
  return fmt::format(".TH {} 1 \"\" {} qplan\n", argument(page),
                     argument(fmt::format("qplan {}", program_version())));
}

std::string section(std::string title) {
  std::transform(title.begin(), title.end(), title.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return fmt::format(".SH {}\n", argument(title));
}

// A sentence without the capital and the full stop that a summary of one line has not.
std::string phrase(std::string sentence) {
  sentence = sentence.substr(0, sentence.find(". "));
  if (sentence.ends_with('.')) sentence.pop_back();
  return sentence;
}

std::string option_text(const Json& option) {
  std::string tag;
  for (const std::string& name : texts_at(option, "names")) {
    tag += (tag.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  }
  if (!option["value"].is_null()) tag += " \\fI" + roff(text_at(option, "value")) + "\\fR";
  std::string help = text_at(option, "help");
  if (!option["default"].is_null()) help += fmt::format(" [{}]", text_at(option, "default"));
  return fmt::format(".TP\n{}\n{}\n", tag, roff(help));
}

std::string synopsis(const Json& table) {
  std::string line =
      fmt::format("\\fBqplan {}\\fR [\\fIoptions\\fR]", roff(text_at(table, "verb")));
  for (const Json& word : table["positionals"]) {
    line += fmt::format(" [\\fI{}\\fR]{}", roff(text_at(word, "name")),
                        word["repeatable"].get<bool>() ? "..." : "");
  }
  return line + '\n';
}

std::string page_name(const Json& table) {
  return "qplan-" + text_at(table, "verb");
}

void write_pages(const fs::path& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) {
    throw Error(fmt::format("cannot make the folder {}: {}", folder.string(), problem.message()));
  }
  const std::vector<Json> tables = option_tables();
  write_file_atomically((folder / "qplan.1").string(), command_page(tables));
  for (const Json& table : tables) {
    write_file_atomically((folder / (page_name(table) + ".1")).string(), verb_page(table));
  }
}

}  // namespace

std::string verb_page(const Json& table) {
  const std::string name = page_name(table);
  std::string page =
      title_line(name) + section("name") +
      fmt::format("{} \\- {}\n", roff(name), roff(phrase(text_at(table, "summary"))));
  page += section("synopsis") + synopsis(table);
  page += section("description") + roff(text_at(table, "summary")) + '\n';
  for (const Json& word : table["positionals"]) {
    page += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(text_at(word, "name")),
                        roff(text_at(word, "help")));
  }
  // Options of one group stand together in help, wherever the verb adds them.
  std::vector<std::string> groups;
  for (const Json& option : table["options"]) {
    const std::string group = option["group"];
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  for (const std::string& group : groups) {
    page += section(group);
    for (const Json& option : table["options"]) {
      if (option["group"] == group) page += option_text(option);
    }
  }
  page += section("example") + ".nf\n" + roff(text_at(table, "example")) + "\n.fi\n";
  return page + section("see also") + "\\fBqplan\\fR(1)\n";
}

std::string command_page(const std::vector<Json>& tables) {
  std::string page = title_line("qplan") + section("name") +
                     "qplan \\- which parallel plan for training a large language model, at what "
                     "cost\n" +
                     section("synopsis") + "\\fBqplan\\fR \\fIVERB\\fR [\\fIoptions\\fR]\n" +
                     section("verbs");
  for (const Verb& verb : verbs()) {
    page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(verb.name), roff(verb.summary));
  }
  page += section("exit status") +
          "0: done. 1: nothing fits, or what was asked falls short. 2: bad input. 3: a device or a "
          "launch failed.\n";
  page += section("environment") + ".TP\n\\fBNO_COLOR\\fR\nany value turns colours off\n";
  page +=
      section("example") + ".nf\nqplan search \\-\\-model qwen3\\-30b\\-a3b \\-\\-gpus 256\n.fi\n";
  std::vector<std::string> pages;
  for (const Json& table : tables) {
    pages.push_back(fmt::format("\\fB{}\\fR(1)", roff(page_name(table))));
  }
  return page + section("see also") + fmt::format("{}\n", fmt::join(pages, ",\n"));
}

Exit run_man(const Args& args, const Console& console) {
  std::string verb, folder;
  CommandLine line("man", "Pages for man(1): the command's, a verb's, or all of them as files.",
                   "qplan man search | man -l -");
  std::vector<std::string> names;
  for (const Verb& each : verbs()) names.emplace_back(each.name);
  const SetOption text = set_text(verb);
  line.positional("VERB", "whose page; without it the command's",
                  {{.words = names}, [text](const std::string& option, const std::string& word) {
                     text(option, word);
                   }});
  line.group("Output");
  line.option({"--out", "DIR", "folder to write all pages to", ""}, set_text(folder));
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_standard_output("--out", folder);
  if (!folder.empty()) {
    if (!verb.empty()) throw Error("man --out writes all pages; leave the verb out");
    write_pages(folder);
    return Exit::done;
  }
  if (verb.empty()) {
    console.out << command_page(option_tables());
    return Exit::done;
  }
  for (const Verb& each : verbs()) {
    if (each.name != verb) continue;
    console.out << verb_page(option_table(each));
    return Exit::done;
  }
  unknown_word("verb", verb, names);
}

}  // namespace qplan
