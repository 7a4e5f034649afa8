#include "planner/frameworks/shell/starts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/shell/text.h"

namespace qplan {
namespace {

using Kind = ShellStart::Kind;
using Spelled = std::vector<std::string>;

constexpr std::array<std::string_view, 5> kShells{"bash", "sh", "zsh", "dash", "ksh"};
constexpr std::array<std::string_view, 5> kPrefixes{"exec", "nohup", "env", "sudo", "time"};
// Of a script that they start where none names its shell.
constexpr std::array<std::string_view, 4> kStarters{"sbatch", "srun", "mpirun", "mpiexec"};
constexpr std::array<std::string_view, 3> kRemote{"ssh", "pdsh", "clush"};
constexpr std::array<std::string_view, 2> kTalkers{"echo", "printf"};

bool is_script_name(const std::string& word) {
  constexpr std::array<std::string_view, 4> kEndings{".sh", ".sbatch", ".slurm", ".bash"};
  if (word.find_first_of(" \t\n") != std::string::npos) return false;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return word.ends_with(ending); });
}

// Behind a shell's name: "-lc TEXT name a b", "-eo pipefail -c TEXT", "run.sh a b", "-s a b".
std::optional<ShellStart> behind_shell(const Spelled& words, std::size_t shell) {
  bool text = false, input = false;
  std::size_t i = shell + 1;
  for (; i < words.size() && words[i].size() > 1; ++i) {
    const std::string& word = words[i];
    if (word[0] != '-' && word[0] != '+') break;
    if (word == "--") {
      ++i;
      break;
    }
    if (word.starts_with("--")) {
      if (word == "--rcfile" || word == "--init-file") ++i;
      continue;
    }
    text = text || word.find('c') != std::string::npos;
    input = input || word.find('s') != std::string::npos;
    if (word.find_first_of("oO") != std::string::npos) ++i;  // "-o pipefail"
  }
  const bool more = i < words.size();
  if (text && more) return ShellStart{Kind::text, shell, i, 0, i + 2};  // behind the name, $0
  if (input || !more) return ShellStart{Kind::input, shell, shell, 0, i};
  return ShellStart{Kind::file, shell, i, 0, i + 1};
}

// "sbatch --wrap=TEXT", "--wrap TEXT".
std::optional<ShellStart> wrapped_text(const Spelled& words, std::size_t first) {
  constexpr std::string_view kWrap = "--wrap";
  for (std::size_t i = first + 1; i < words.size(); ++i) {
    if (words[i] == kWrap && i + 1 < words.size()) {
      return ShellStart{Kind::text, first, i + 1, 0, words.size()};
    }
    if (words[i].starts_with("--wrap=")) {
      return ShellStart{Kind::text, first, i, kWrap.size() + 1, words.size()};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<ShellStart> shell_start(const Spelled& words) {
  const auto from = std::find_if(words.begin(), words.end(),
                                 [](const std::string& w) { return !is_in(kPrefixes, w); });
  if (from == words.end()) return std::nullopt;
  const auto first = static_cast<std::size_t>(from - words.begin());
  const std::string program = base_name(*from);
  if (is_in(kTalkers, program)) return std::nullopt;
  if (is_script_name(*from)) return ShellStart{Kind::file, first, first, 0, first + 1};
  // Behind a program of Python's a shell's name is an argument, a folder's say.
  for (std::size_t i = first; i < words.size() && !words[i].ends_with(".py"); ++i) {
    if (!is_in(kShells, base_name(words[i]))) continue;
    const auto start = behind_shell(words, i);
    const bool named = start->kind != Kind::file || i == first ||
                       is_script_name(words[start->at]) ||
                       words[start->at].find('/') != std::string::npos;
    if (named) return start;
  }
  if (is_in(kRemote, program) && words.back().find(' ') != std::string::npos) {
    return ShellStart{Kind::text, first, words.size() - 1, 0, words.size()};
  }
  if (!is_in(kStarters, program)) return std::nullopt;
  if (program == "sbatch") {
    if (const auto wrapped = wrapped_text(words, first)) return wrapped;
  }
  const auto script = std::find_if(from + 1, words.end(), is_script_name);
  if (script == words.end()) {
    return program == "sbatch"
               ? std::optional(ShellStart{Kind::input, first, first, 0, words.size()})
               : std::nullopt;
  }
  const auto at = static_cast<std::size_t>(script - words.begin());
  return ShellStart{Kind::file, first, at, 0, at + 1};
}

}  // namespace qplan
