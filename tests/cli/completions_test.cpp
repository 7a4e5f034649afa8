// Completions and pages know every option that help knows, and shells take them as they are.

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <set>

#include "cli/option_table.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

using Words = std::vector<std::string>;

// The names of options as the text of --help lists them: "  -o,--output FILE ...".
std::set<std::string> options_in_help(const std::string& verb) {
  static const std::regex line("\n  (-\\w,)?(--[a-z0-9-]+)");
  const std::string help = run({verb, "--help"}).out;
  std::set<std::string> names;
  for (std::sregex_iterator at(help.begin(), help.end(), line), end; at != end; ++at) {
    names.insert((*at)[2]);
    const std::string brief = (*at)[1];
    if (!brief.empty()) names.insert(brief.substr(0, 2));
  }
  return names;
}

struct Shell {
  int code = -1;
  std::string out;
};

Shell shell(const std::string& command) {
  Shell result;
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char part[4096];
  for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) {
    result.out.append(part, n);
  }
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

bool has_shell(const std::string& name) {
  return shell("command -v " + name).code == 0;
}

std::string single_quoted(const std::string& word) {
  return "'" + std::regex_replace(word, std::regex("'"), "'\\''") + "'";
}

// What bash offers for the last of these words.
std::set<std::string> offered(const Words& words, const std::string& in = "/") {
  const TemporaryFolder folder;
  const std::string script = folder.file("completions");
  write_file_atomically(script, run("completions bash").out);
  std::string driver =
      "cd " + single_quoted(in) + "; source " + single_quoted(script) + "; COMP_WORDS=(";
  for (const std::string& word : words) driver += single_quoted(word) + " ";
  driver += "); COMP_CWORD=" + std::to_string(words.size() - 1) +
            "; _qplan; printf \"%s\\n\" \"${COMPREPLY[@]}\"";
  const Shell answer = shell("bash --norc -c " + single_quoted(driver));
  CHECK(answer.code == 0);
  std::set<std::string> replies;
  std::istringstream lines(answer.out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) replies.insert(line);
  }
  return replies;
}

// What stands between `begin` and the next `end`.
std::string part_of(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  REQUIRE(from != std::string::npos);
  return text.substr(from, text.find(end, from + begin.size()) - from);
}

bool holds_word(const std::string& text, const std::string& word) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
    const std::size_t after = at + word.size();
    const bool ends =
        after == text.size() ||
        (std::isalnum(static_cast<unsigned char>(text[after])) == 0 && text[after] != '-');
    if (ends) return true;
  }
  return false;
}

}  // namespace

TEST_CASE(
    "every option of every verb's help is completed by bash, zsh and fish, and has its place "
    "in a page") {
  const std::string zsh = run("completions zsh").out, fish = run("completions fish").out;
  int options = 0;
  for (const Verb& verb : verbs()) {
    const std::string name(verb.name);
    CAPTURE(name);
    const std::set<std::string> bash = offered({"qplan", name, "-"});
    const std::string of_zsh = part_of(zsh, "        " + name + ")\n", "          ;;\n");
    const std::string of_fish = part_of(fish, "'__fish_seen_subcommand_from " + name + "'", "\n\n");
    const std::string page = run("man " + name).out;
    const std::set<std::string> known = options_in_help(name);
    CHECK(known.contains("--help"));
    CHECK(bash == known);
    for (const std::string& option : known) {
      CAPTURE(option);
      ++options;
      const bool brief = !option.starts_with("--");
      CHECK(holds_word(of_zsh, option));
      CHECK(holds_word(of_fish, brief ? " -s " + option.substr(1) : " -l " + option.substr(2)));
      CHECK(holds_word(page, "\\fB" + std::regex_replace(option, std::regex("-"), "\\-")));
    }
  }
  CHECK(options > 500);  // 17 verbs have 30 in the mean
}

TEST_CASE("bash completes verbs, options and the values that options know") {
  const std::set<std::string> all = offered({"qplan", ""});
  for (const Verb& verb : verbs()) CHECK(all.contains(std::string(verb.name)));
  using Set = std::set<std::string>;
  CHECK(offered({"qplan", "sea"}) == Set{"search"});
  CHECK(offered({"qplan", "help", "sea"}) == Set{"search"});
  CHECK(offered({"qplan", "search", "--framework", "nano"}) == Set{"nanotron"});
  CHECK(offered({"qplan", "search", "--framework", "=", "nano"}) == Set{"nanotron"});
  CHECK(offered({"qplan", "emit", "--framework", "nano"}).empty());  // has no files of its own
  CHECK(offered({"qplan", "emit", "--framework", "torch"}) == Set{"torchtitan"});
  CHECK(offered({"qplan", "predict", "--model", "qwen3-30b-"}) == Set{"qwen3-30b-a3b"});
  CHECK(offered({"qplan", "predict", "--precision", "mx"}) == Set{"mxfp8"});
  CHECK(offered({"qplan", "predict", "--grad-dtype", ""}) == Set{"fp32", "bf16", "fp16"});
  CHECK(offered({"qplan", "predict", "--grad_dtype", "b"}) == Set{"bf16"});
  CHECK(offered({"qplan", "search", "--compile", ""}) == Set{"true", "false"});
  CHECK(offered({"qplan", "search", "--compile", "--gp"}) == Set{"--gpus", "--gpus-per-node"});
  CHECK(offered({"qplan", "sweep", "--hardware", "h100-sxm,b20"}) ==
        Set{"h100-sxm,b200", "h100-sxm,b200-half-rate"});
  CHECK(offered({"qplan", "search", "--hardware", "mi325"}) == Set{"mi325x"});
  CHECK(offered({"qplan", "search", "--hardware", "h200-sxm,b20"}) ==
        Set{"h200-sxm,b200", "h200-sxm,b200-half-rate"});
  CHECK(offered({"qplan", "search", "--schedule", "1f1b,zbv"}) == Set{"1f1b,zbv"});
  CHECK(offered({"qplan", "search", "--gpus", ""}).empty());
  CHECK(offered({"qplan", "hardware", "show", "b200"}).contains("b200"));
  CHECK(offered({"qplan", "completions", ""}) == Set{"bash", "zsh", "fish"});
  CHECK(offered({"qplan", "report", "sea"}) == Set{"search"});
  CHECK(offered({"qplan", "report", "--sca"}) == Set{"--scaling"});
  CHECK(offered({"qplan", "report", "search", "--moe-im"}) == Set{"--moe-imbalance"});
  CHECK(offered({"qplan", "report", "predict", "--precision", "mx"}) == Set{"mxfp8"});
}

TEST_CASE("bash completes files where an option or a verb takes them") {
  const TemporaryFolder folder;
  write_file_atomically(folder.file("plan one.json"), "{}");
  std::filesystem::create_directory(folder.file("plans"));
  using Set = std::set<std::string>;
  const std::string here = folder.file("");
  CHECK(offered({"qplan", "emit", "pl"}, here) == Set{"plan one.json", "plans"});
  CHECK(offered({"qplan", "predict", "--plan", "pl"}, here) == Set{"plan one.json", "plans"});
  CHECK(offered({"qplan", "emit", "x.json", "--out", "pl"}, here) == Set{"plans"});
}

TEST_CASE("zsh and fish read what is written for them, where they are installed") {
  const TemporaryFolder folder;
  for (const std::string name : {"bash", "zsh", "fish"}) {
    if (!has_shell(name)) {
      MESSAGE(name, " is not installed; its completions were not read by it");
      continue;
    }
    CAPTURE(name);
    const std::string script = folder.file(name);
    write_file_atomically(script, run("completions " + name).out);
    const Shell read = shell(name + " -n " + single_quoted(script));
    CHECK(read.code == 0);
    CHECK(read.out.empty());
    if (name != "fish") continue;
    const auto ask = [&](const std::string& line) {
      return shell("HOME=" + single_quoted(folder.file("")) + " fish -c " +
                   single_quoted("source " + script + "; complete -C \"" + line + "\""))
          .out;
    };
    CHECK(ask("qplan search --framework nano").starts_with("nanotron\t"));
    CHECK(ask("qplan search --moe-imb").starts_with("--moe-imbalance\t"));
  }
}

TEST_CASE("a shell that is not known is bad input") {
  CHECK(run("completions").code == 2);
  const Ran other = run("completions tcsh");
  CHECK(other.code == 2);
  CHECK(other.err == "qplan: shell 'tcsh' is unknown; choose one of bash, zsh, fish\n");
}

TEST_CASE("there is a page for the command and for each verb") {
  const TemporaryFolder folder;
  const std::string pages = folder.file("man");
  CHECK(run({"man", "--out", pages}).code == 0);
  CHECK(read_text_file(pages + "/qplan.1") == run("man").out);
  std::size_t written = 1;
  for (const Verb& verb : verbs()) {
    const std::string name(verb.name);
    CAPTURE(name);
    const std::string page = read_text_file(pages + "/qplan-" + name + ".1");
    CHECK(page == run("man " + name).out);
    CHECK(page.starts_with(".TH \"qplan\\-" + name + "\" 1 "));
    CHECK(run("man").says("\\fB" + name + "\\fR\n"));
    ++written;
  }
  const std::filesystem::directory_iterator files(pages);
  CHECK(static_cast<std::size_t>(std::distance(begin(files), end(files))) == written);
  if (!has_shell("groff")) {
    MESSAGE("groff is not installed; the pages were not set by it");
    return;
  }
  const Shell set = shell("cat " + single_quoted(pages) + "/*.1 | groff -man -Tutf8 -ww -z");
  CHECK(set.code == 0);
  CHECK(set.out.empty());
}
