// Completions for bash, zsh and fish, made of the verbs' tables of options.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

#include "cli/html_page.h"
#include "cli/option_table.h"
#include "cli/options.h"
#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

using Strings = std::vector<std::string>;

bool takes_value(const Json& option) {
  return !option["value"].is_null();
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

// One word of a shell script, whatever is in it; bash and zsh.
std::string shell_word(const std::string& text) {
  return '\'' + replaced(text, "'", "'\\''") + '\'';
}

// What stands after an option, or as a word without one.
struct Values {
  Strings words;
  std::string path;  // "file", "folder" or none
  bool list = false, optional = false;
  bool operator==(const Values&) const = default;
  [[nodiscard]] bool known() const { return !words.empty() || !path.empty(); }
};

Values values_of(const Json& row) {
  // "LIST": words of one value with commas between ("--overlap tp,grad").
  const bool list = row.contains("list") && (row["list"].get<bool>() || row["value"] == "LIST");
  return {texts_at(row, "words"), text_at(row, "path"), list, false};
}

std::string verb_names(const std::vector<Json>& tables) {
  Strings names;
  for (const Json& table : tables) names.push_back(table["verb"]);
  return fmt::format("{}", fmt::join(names, " "));
}

// "search|predict|...": what `report` asks.
std::string drawn_pattern() {
  return replaced(drawn_verbs(), ", ", "|");
}

// ---- bash ----

// "search:--model", the pattern of an option's value; "search:" of the verb's words.
using Patterns = std::vector<std::pair<Values, Strings>>;

void add_pattern(Patterns& patterns, const Values& values, std::string pattern) {
  const auto same = [&values](const auto& row) { return row.first == values; };
  auto row = std::find_if(patterns.begin(), patterns.end(), same);
  if (row == patterns.end()) row = patterns.insert(row, {values, {}});
  row->second.push_back(std::move(pattern));
}

// Options whose values are the same share an arm: the built-in models are listed once. `value` is 1
// where one must follow, 2 where it may be left out.
std::string bash_arms(const std::vector<Json>& tables) {
  Patterns patterns;
  for (const Json& table : tables) {
    const std::string verb = table["verb"];
    for (const Json& option : table["options"]) {
      if (!takes_value(option)) continue;
      Values values = values_of(option);
      values.optional = option["value_optional"].get<bool>();
      for (const std::string& name : texts_at(option, "names")) {
        add_pattern(patterns, values, verb + ':' + name);
      }
    }
  }
  std::string arms;
  for (const auto& [values, places] : patterns) {
    arms += fmt::format("    {})\n      words={} path={} list={} value={}\n      ;;\n",
                        fmt::join(places, "|"),
                        shell_word(fmt::format("{}", fmt::join(values.words, " "))),
                        shell_word(values.path), values.list ? 1 : 0, values.optional ? 2 : 1);
  }
  return arms;
}

std::string bash_verbs(const std::vector<Json>& tables) {
  std::string arms;
  for (const Json& table : tables) {
    Strings options, words;
    for (const Json& option : table["options"]) {
      for (std::string& name : texts_at(option, "names")) options.push_back(std::move(name));
    }
    std::string path;
    for (const Json& word : table["positionals"]) {
      for (std::string& value : texts_at(word, "words")) {
        if (std::find(words.begin(), words.end(), value) == words.end()) words.push_back(value);
      }
      if (path.empty()) path = text_at(word, "path");
    }
    arms += fmt::format("    {})\n      options={}\n      words={} path={}\n      ;;\n",
                        std::string(table["verb"]),
                        shell_word(fmt::format("{}", fmt::join(options, " "))),
                        shell_word(fmt::format("{}", fmt::join(words, " "))), shell_word(path));
  }
  return arms;
}

constexpr std::string_view kBash =
    R"(# Completion of qplan for bash, as `qplan completions bash` writes it.
# shellcheck shell=bash disable=SC2207
_qplan() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}
  local options='' words='' path='' list=0 value=0 before=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '@verbs@ help --help --version' -- "$cur"))
    return
  fi
  # readline makes three words of --option=value.
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $prev == '=' ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  [[ $prev != --* ]] || prev=${prev//_/-}
  # What stands behind the verb that report asks is that verb's.
  if [[ $verb == report ]] && ((COMP_CWORD > 2)); then
    case ${COMP_WORDS[2]} in
      @drawn@) verb=${COMP_WORDS[2]} ;;
    esac
  fi
  case $verb:$prev in
@values@  esac
  if ((value == 0)) || [[ $value == 2 && $cur == -* ]]; then
    case $verb in
@options@    help) words='@verbs@' ;;
    esac
    if [[ $cur == -* ]]; then
      COMPREPLY=($(compgen -W "$options" -- "$cur"))
      return
    fi
  fi
  if ((list)) && [[ $cur == *,* ]]; then
    before=${cur%,*},
    cur=${cur##*,}
  fi
  COMPREPLY=($(compgen -P "$before" -W "$words" -- "$cur"))
  if [[ $path ]]; then
    local IFS=$'\n' kind=-f
    [[ $path == file ]] || kind=-d
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen "$kind" -- "$cur"))
  fi
}
complete -F _qplan qplan
)";

// ---- zsh ----

// Within the brackets of a specification of _arguments.
std::string zsh_help(std::string text) {
  for (const std::string_view special : {"\\", "[", "]", ":"}) {
    text = replaced(std::move(text), special, '\\' + std::string(special));
  }
  return text;
}

std::string zsh_action(const Values& values) {
  if (!values.known()) return " ";
  const std::string files = values.path == "folder" ? "_files -/" : "_files";
  if (values.words.empty()) return files;
  const std::string words = fmt::format("compadd -- {}", fmt::join(values.words, " "));
  if (values.list) return fmt::format("_sequence {}", replaced(words, "compadd --", "compadd - "));
  return values.path.empty() ? fmt::format("({})", fmt::join(values.words, " "))
                             : fmt::format("{{{}; {}}}", words, files);
}

// "--gpus=[GPUs of the job]:COUNT: ", for each of an option's names.
std::string zsh_option(const Json& option) {
  const Strings names = texts_at(option, "names");
  const std::string value = replaced(text_at(option, "value"), "[", "");
  std::string lines;
  for (const std::string& name : names) {
    std::string spec = name;
    if (option["repeatable"].get<bool>() && takes_value(option)) {
      spec = '*' + spec;
    } else {
      spec = fmt::format("({}){}", fmt::join(names, " "), spec);
    }
    if (takes_value(option)) spec += name.starts_with("--") ? "=" : "+";
    spec += fmt::format("[{}]", zsh_help(text_at(option, "help")));
    if (takes_value(option)) {
      spec += fmt::format("{}{}:{}", option["value_optional"].get<bool>() ? "::" : ":",
                          zsh_help(replaced(value, "]", "")), zsh_action(values_of(option)));
    }
    lines += fmt::format("          {} \\\n", shell_word(spec));
  }
  return lines;
}

std::string zsh_verbs(const std::vector<Json>& tables) {
  std::string arms;
  for (const Json& table : tables) {
    arms += fmt::format("        {})\n          _arguments \\\n", std::string(table["verb"]));
    for (const Json& option : table["options"]) arms += zsh_option(option);
    for (const Json& word : table["positionals"]) {
      arms += fmt::format(
          "          {} \\\n",
          shell_word(fmt::format("{}:{}:{}", word["repeatable"].get<bool>() ? "*" : ":",
                                 zsh_help(text_at(word, "name")), zsh_action(values_of(word)))));
    }
    arms += "          && return\n          ;;\n";
  }
  return arms;
}

std::string zsh_summaries(const std::vector<Json>& tables) {
  std::string lines;
  for (const Json& table : tables) {
    const std::string verb = table["verb"];
    lines += fmt::format("    {}\n", shell_word(verb + ':' + zsh_help(text_at(table, "summary"))));
  }
  return lines;
}

constexpr std::string_view kZsh = R"(#compdef qplan
# Completion of qplan for zsh, as `qplan completions zsh` writes it: a file _qplan on the fpath.
_qplan() {
  local curcontext=$curcontext state line
  local -a verbs
  typeset -A opt_args
  verbs=(
@summaries@    'help:a verb'\''s options'
  )
  _arguments -C '1: :->verb' '*:: :->rest' && return
  case $state in
    verb) _describe -t verbs verb verbs ;;
    rest)
      if [[ $words[1] == report ]] && (( CURRENT > 2 )); then
        case $words[2] in
          @drawn@) shift words; (( CURRENT-- )) ;;
        esac
      fi
      case $words[1] in
@options@        help) _arguments '1: :(@verbs@)' ;;
      esac
      ;;
  esac
}
if [[ $funcstack[1] == _qplan ]]; then
  _qplan "$@"
else
  compdef _qplan qplan
fi
)";

// ---- fish ----

// In fish's quotes a backslash is special before a quote and itself.
std::string fish_word(const std::string& text) {
  return '\'' + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + '\'';
}

std::string fish_option(const std::string& condition, const Json& option) {
  std::string line = condition;
  for (const std::string& name : texts_at(option, "names")) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  const Values values = values_of(option);
  if (takes_value(option) && !option["value_optional"].get<bool>()) {
    line += values.path.empty() ? " -x" : " -r -F";
  }
  if (!values.words.empty() && takes_value(option)) {
    const std::string words = fmt::format("{}", fmt::join(values.words, " "));
    line += " -a " + fish_word(values.list ? fmt::format("(__fish_append , {})", words) : words);
  }
  return line + " -d " + fish_word(text_at(option, "help")) + '\n';
}

// ---- the verb ----

using Script = std::string (*)(const std::vector<Json>&);
constexpr std::array<std::pair<std::string_view, Script>, 3> kShells{
    {{"bash", bash_completions}, {"zsh", zsh_completions}, {"fish", fish_completions}}};

Strings shell_names() {
  Strings names;
  for (const auto& [name, script] : kShells) names.emplace_back(name);
  return names;
}

}  // namespace

std::string bash_completions(const std::vector<Json>& tables) {
  std::string script = replaced(std::string(kBash), "@values@", bash_arms(tables));
  script = replaced(std::move(script), "@drawn@", drawn_pattern());
  script = replaced(std::move(script), "@options@", bash_verbs(tables));
  return replaced(std::move(script), "@verbs@", verb_names(tables));
}

std::string zsh_completions(const std::vector<Json>& tables) {
  std::string script = replaced(std::string(kZsh), "@summaries@", zsh_summaries(tables));
  script = replaced(std::move(script), "@drawn@", drawn_pattern());
  script = replaced(std::move(script), "@options@", zsh_verbs(tables));
  return replaced(std::move(script), "@verbs@", verb_names(tables));
}

std::string fish_completions(const std::vector<Json>& tables) {
  std::string script =
      "# Completion of qplan for fish, as `qplan completions fish` writes it.\n"
      "complete -c qplan -f\n"
      "complete -c qplan -n __fish_use_subcommand -l help -d 'the verbs'\n"
      "complete -c qplan -n __fish_use_subcommand -l version -d 'the version'\n"
      "complete -c qplan -n __fish_use_subcommand -a help -d \"a verb's options\"\n" +
      fmt::format("complete -c qplan -n '__fish_seen_subcommand_from help' -a '{}'\n",
                  verb_names(tables));
  for (const Json& table : tables) {
    const std::string verb = table["verb"];
    script += fmt::format("\ncomplete -c qplan -n __fish_use_subcommand -a {} -d {}\n", verb,
                          fish_word(text_at(table, "summary")));
    const std::string of_verb =
        fmt::format("complete -c qplan -n '__fish_seen_subcommand_from {}'", verb);
    for (const Json& option : table["options"]) script += fish_option(of_verb, option);
    for (const Json& word : table["positionals"]) {
      const Values values = values_of(word);
      if (!values.path.empty()) script += of_verb + " -F\n";
      if (values.words.empty()) continue;
      script += fmt::format("{} -a '{}' -d {}\n", of_verb, fmt::join(values.words, " "),
                            fish_word(text_at(word, "help")));
    }
  }
  return script;
}

Exit run_completions(const Args& args, const Console& console) {
  std::string shell;
  CommandLine line("completions", "What a shell completes of qplan's command line, as its script.",
                   "qplan completions bash > ~/.local/share/bash-completion/completions/qplan");
  const SetOption text = set_text(shell);
  line.positional(
      "SHELL", fmt::format("{}", fmt::join(shell_names(), ", ")),
      {{.words = shell_names()},
       [text](const std::string& option, const std::string& word) { text(option, word); }});
  if (!line.parse(args, console.out)) return Exit::done;
  for (const auto& [name, script] : kShells) {
    if (name != shell) continue;
    console.out << script(option_tables());
    return Exit::done;
  }
  if (shell.empty()) throw Error("completions needs a shell; say bash, zsh or fish");
  unknown_word("shell", shell, shell_names());
}

}  // namespace qplan
