#include "planner/frameworks/readers/dashes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <string_view>

#include "models/error.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/launch.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {
namespace {

// Hyphen, non-breaking hyphen, figure dash, en dash, em dash, bar, minus.
constexpr std::array<std::string_view, 7> kDashes{"\xE2\x80\x90", "\xE2\x80\x91", "\xE2\x80\x92",
                                                  "\xE2\x80\x93", "\xE2\x80\x94", "\xE2\x80\x95",
                                                  "\xE2\x88\x92"};

// Whose options may lose a dash. Launchers of other kinds have words with one ("mpirun -np").
constexpr std::array<std::string_view, 12> kLists{
    "megatron",   "slime",           "megatron_deepspeed", "trainer",           "trl",
    "run_clm",    "ms_swift",        "torchrun",           "ms_swift_megatron", "accelerate_launch",
    "torchtitan", "deepspeed_launch"};

// Bytes of the dashes that a word begins with; `other`: one of them is not of ASCII.
std::size_t dashes_of(std::string_view word, bool& other) {
  std::size_t at = 0;
  for (bool more = true; more;) {
    more = false;
    if (word.substr(at).starts_with('-')) {
      ++at;
      more = true;
    }
    for (const std::string_view dash : kDashes) {
      if (!word.substr(at).starts_with(dash)) continue;
      at += dash.size();
      other = more = true;
    }
  }
  return at;
}

bool is_option(const std::string& name) {
  return std::any_of(kLists.begin(), kLists.end(), [&](std::string_view list) {
    return known_options(list).find(name) != nullptr;
  });
}

// As it is meant; empty: it is right, or no option.
std::string meant(const std::string& text) {
  bool other = false;
  const std::size_t dashes = dashes_of(text, other);
  if (dashes == 0 || dashes == text.size()) return "";
  if (std::isalpha(static_cast<unsigned char>(text[dashes])) == 0) return "";
  const std::string name = "--" + text.substr(dashes);
  if (other) return name;
  const bool one = dashes == 1 && text.size() > 2;
  const std::string bare = name.substr(0, name.find('='));
  return one && !is_option(bare.substr(1)) && is_option(bare) ? name : "";
}

// Whose own options have one dash ("mpirun -hostfile", of Open MPI; "mpirun -env", of MVAPICH).
bool is_batch_launcher(const std::string& word) {
  constexpr std::array<std::string_view, 6> kNames{"mpirun", "mpiexec",    "orterun",
                                                   "srun",   "mpirun_rsh", "horovodrun"};
  return std::find(kNames.begin(), kNames.end(), base_name(word)) != kNames.end();
}

bool is_typographic(std::string_view word) {
  bool other = false;
  dashes_of(word, other);
  return other;
}

}  // namespace

std::vector<ShellWord> with_two_dashes(std::vector<ShellWord> words,
                                       std::vector<Finding>& findings) {
  bool started = false, of_batch = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    ShellWord& word = words[i];
    const bool starts = is_launcher(word.text) || word.text.starts_with("--") ||
                        word.text.ends_with(".py") || word.text == "swift" || word.text == "trl" ||
                        word.text == "megatron";
    // Up to the program that they start, the words are MPI's or Slurm's.
    const bool batch = is_batch_launcher(word.text);
    of_batch = batch || (of_batch && !is_launcher(word.text) && !word.text.ends_with(".py"));
    const bool other = of_batch && !batch && !is_typographic(word.text);
    const std::string spelled = other ? "" : meant(word.text);
    if (!spelled.empty() && (started || i == 0)) {
      Correction fix;
      const bool in_one_piece = word.span.end - word.span.begin == word.text.size();
      const std::size_t dashes = word.text.size() - spelled.size() + 2;
      if (in_one_piece) fix = {{word.place.file, word.span.begin, word.span.begin + dashes, "--"}};
      fix.renames = true;
      findings.push_back(
          {Severity::error, "dashes", word.place,
           fmt::format("{} does not begin with two dashes: it is read as no option, but as a word "
                       "or a value",
                       shown(word.text)),
           fmt::format("write {}", shown(spelled)), "Python 3, Lib/argparse.py", std::move(fix)});
      word.text = spelled;
    }
    started = started || starts || !spelled.empty();
  }
  return words;
}

void find_lost_dashes(std::span<const ShellWord> words, std::vector<Finding>& findings) {
  if (words.size() < 4 || words[1].text != "job" || words[2].text != "submit") return;
  const auto program = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text == "python" || word.text == "python3";
  });
  const auto is_dashes = [](const ShellWord& word) { return word.text == "--"; };
  const auto is_option = [](const ShellWord& word) {
    return word.text.size() > 2 && word.text.starts_with("--");
  };
  if (program == words.end() || std::any_of(words.begin(), program, is_dashes) ||
      std::none_of(program, words.end(), is_option) ||
      std::any_of(words.begin(), program, [](const ShellWord& word) {
        return !word.resolved && !word.text.starts_with("--");
      })) {
    return;
  }
  Finding finding{Severity::error,
                  "missing_dashes",
                  program->place,
                  "without -- before the program ray job submit takes the program's arguments for "
                  "its own, and stops at them",
                  fmt::format("-- {}", program->text),
                  "Ray 2.60.0, python/ray/dashboard/modules/job/cli.py:216 (click)",
                  {}};
  if (program->span.end > program->span.begin) {
    finding.fix =
        Correction{{program->place.file, program->span.begin, program->span.begin, "-- "}};
    finding.fix.renames = true;
  }
  findings.push_back(std::move(finding));
}

}  // namespace qplan
