// Statements of a shell script: assignments, redirections, here-documents, commands. Branches and
// loops are not followed; what is set inside them is marked.

#include "planner/frameworks/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/error.h"
#include "planner/frameworks/shell_text.h"
#include "planner/frameworks/shell_words.h"

namespace qplan {
namespace {

constexpr std::size_t kMostCommands = 10'000;
constexpr int kDeepestSource = 8;

template <std::size_t N>
using WordList = std::array<std::string_view, N>;

constexpr WordList<5> kOpeners{"if", "for", "while", "until", "case"};
constexpr WordList<3> kClosers{"fi", "done", "esac"};
constexpr WordList<6> kOtherKeywords{"then", "else", "elif", "do", "{", "}"};
constexpr WordList<4> kDeclarations{"export", "declare", "local", "readonly"};
constexpr WordList<3> kReaders{"read", "printf", "mapfile"};  // that set variables as they run

template <std::size_t N>
bool is_in(const WordList<N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

struct HereDocument {
  std::string end;
  bool strips_tabs = false, expands = true;
};

struct Redirections {
  std::string target;  // "> name"
  std::vector<HereDocument> documents;
};

class ScriptReader {
 public:
  ScriptReader(ShellScript& script, const FindFile& find_file)
      : script_(script), find_file_(find_file) {}

  void read(std::string_view text, const std::string& name) {
    if (sourced_deep_ > kDeepestSource) return;
    const ShellCursor outer = in_;
    in_ = {text, sources_.add(name, text), 0};
    while (!in_.at_end() && script_.commands.size() < kMostCommands) statement();
    in_ = outer;
  }

  void finish() {
    for (const auto& [name, variable] : variables_) {
      if (!variable.is_array) continue;
      for (const ShellText& value : variable.values) {
        script_.arrays[name].push_back(sources_.word(value));
      }
    }
  }

 private:
  using Environment = std::map<std::string, std::string>;

  // Up to the end of a line, or to ';', '|', '&'.
  void statement() {
    ShellCommand command;
    command.environment = exported_;
    Redirections redirections;
    std::vector<ShellText> words;
    bool declares = false;
    const auto between = [&] {
      return in_.peek() == ';' || in_.peek() == '|' || in_.peek() == '&';
    };
    for (;;) {
      words_.skip_blanks();
      if (in_.at_end() || in_.peek() == '\n' || between()) break;
      if (in_.peek() == '#') {
        remark();
      } else if (in_.peek() == '<' || in_.peek() == '>') {
        redirection(redirections);
      } else if (in_.peek() == '(' || in_.peek() == ')') {
        ++in_.at;
      } else if ((words.empty() || declares) &&
                 assignment(declares ? exported_ : command.environment)) {
        continue;
      } else {
        for (ShellText& text : words_.word()) words.push_back(std::move(text));
        declares = !words.empty() && is_in(kDeclarations, plain(words.front()));
      }
    }
    while (between()) ++in_.at;
    if (in_.peek() == '\n') ++in_.at;
    for (const HereDocument& document : redirections.documents) {
      here_document(document, redirections.target);
    }
    run(std::move(command), words);
  }

  // "#SBATCH --nodes=4" is a remark that the batch system reads.
  void remark() {
    constexpr std::string_view kBatch = "#SBATCH";
    const std::size_t end = in_.line_end();
    if (!in_.text.substr(in_.at).starts_with(kBatch)) {
      in_.at = end;
      return;
    }
    in_.at += kBatch.size();
    while (in_.at < end) {
      while (is_shell_blank(in_.peek())) ++in_.at;
      ShellText word;
      while (in_.at < end && !is_shell_blank(in_.peek())) word.push_back(in_.take());
      if (!word.empty()) script_.directives.push_back(sources_.word(word));
    }
  }

  // ---- assignments ----

  // NAME=..., NAME+=..., NAME=(...).
  bool assignment(Environment& environment) {
    std::size_t ahead = 0;
    while (is_shell_name(in_.peek(ahead))) ++ahead;
    if (ahead == 0 || (in_.peek() >= '0' && in_.peek() <= '9')) return false;
    const bool adds = in_.peek(ahead) == '+';
    const std::size_t equals = ahead + (adds ? 1 : 0);
    if (in_.peek(equals) != '=') return false;
    const std::string name(in_.text.substr(in_.at, ahead));
    in_.at += equals + 1;
    const ShellVariable& variable = set(name, adds, assigned());
    if (!variable.is_array && is_resolved(variable.values.front())) {
      environment[name] = plain(variable.values.front());
    }
    return true;
  }

  // Unknown where it depends on a branch or a loop.
  ShellVariable assigned() {
    ShellVariable value;
    value.is_array = in_.peek() == '(';
    if (value.is_array) {
      ++in_.at;
      value.values = words_.items();
    } else {
      value.values = {words_.value()};
    }
    if (nesting_ == 0) return value;
    for (ShellText& text : value.values) {
      for (ShellLetter& l : text) l.certainty = std::max(l.certainty, Certainty::perhaps);
    }
    return value;
  }

  const ShellVariable& set(const std::string& name, bool adds, ShellVariable value) {
    ShellVariable& variable = variables_[name];
    if (adds && value.is_array) {
      variable.is_array = true;
      variable.values.insert(variable.values.end(), value.values.begin(), value.values.end());
    } else if (adds && !variable.values.empty()) {
      ShellText& text = variable.values.front();
      text.insert(text.end(), value.values.front().begin(), value.values.front().end());
    } else {
      variable = std::move(value);
    }
    return variable;
  }

  // ---- files ----

  // "> name", "< name", "<<END", "<<-END", "<<'END'".
  void redirection(Redirections& redirections) {
    const bool in = in_.peek() == '<';
    const std::size_t from = in_.at;
    while (in_.peek() == '<' || in_.peek() == '>' || in_.peek() == '&') ++in_.at;
    const bool here = in_.text.substr(from, in_.at - from) == "<<";
    HereDocument document;
    document.strips_tabs = here && in_.peek() == '-';
    if (document.strips_tabs) ++in_.at;
    words_.skip_blanks();
    document.expands = in_.peek() != '\'' && in_.peek() != '"' && in_.peek() != '\\';
    const std::vector<ShellText> words = words_.word();
    const std::string name = words.empty() ? "" : plain(words.front());
    if (here) {
      document.end = name;
      redirections.documents.push_back(document);
    } else if (!in) {
      redirections.target = name;
    }
  }

  // The lines up to the document's end; kept if they go to a file.
  void here_document(const HereDocument& document, const std::string& target) {
    ShellFile file{target, "", sources_.place(in_.file, in_.at), true};
    while (!in_.at_end()) {
      const std::size_t end = in_.line_end();
      std::string_view line = in_.text.substr(in_.at, end - in_.at);
      if (document.strips_tabs)
        line.remove_prefix(std::min(line.find_first_not_of('\t'), line.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      const bool last = line == document.end;
      if (!last && document.expands) {
        const ShellText text = words_.document_line(end);
        file.resolved = file.resolved && is_resolved(text);
        file.text += plain(text) + '\n';
      } else if (!last) {
        file.text += std::string(line) + '\n';
      }
      in_.at = end;  // an expansion may have read on
      in_.skip_line();
      if (last) break;
    }
    if (!target.empty()) script_.files.push_back(std::move(file));
  }

  void include(const ShellText& name) {
    const ShellWord word = sources_.word(name);
    // What is unknown of a path is mostly the script's own folder; the file's name is enough.
    const std::string base = std::filesystem::path(word.text).filename().string();
    if (const auto found = find_file_ ? find_file_(base) : std::nullopt) {
      ++sourced_deep_;
      read(found->text, found->name);
      --sourced_deep_;
      return;
    }
    script_.findings.push_back(
        {Severity::note, "sourced_file_missing", word.place,
         fmt::format("{} is read here and is not among the files given", shown(base)),
         fmt::format("give {} too", shown(base)), ""});
  }

  // ---- commands ----

  void run(ShellCommand command, const std::vector<ShellText>& words) {
    std::size_t from = skip_keywords(words);
    if (from == words.size()) return;
    if (plain(words[from]) == "eval" && from + 1 < words.size()) ++from;
    const std::string first = plain(words[from]);
    if (first == "source" || first == ".") {
      if (from + 1 < words.size()) include(words[from + 1]);
    } else if (is_in(kReaders, first)) {
      for (std::size_t i = from + 1; i < words.size(); ++i) set_unknown(words[i]);
    } else {
      for (std::size_t i = from; i < words.size(); ++i) {
        command.words.push_back(sources_.word(words[i]));
      }
      script_.commands.push_back(std::move(command));
    }
  }

  // The first word that is none; keeps count of the branches and loops that it goes through.
  std::size_t skip_keywords(const std::vector<ShellText>& words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string word = plain(words[i]);
      if (is_in(kOpeners, word)) {
        ++nesting_;
      } else if (is_in(kClosers, word)) {
        nesting_ = std::max(0, nesting_ - 1);
      } else if (!is_in(kOtherKeywords, word)) {
        return i;
      }
    }
    return words.size();
  }

  void set_unknown(const ShellText& name) {
    ShellText value = name;
    for (ShellLetter& l : value) l.certainty = Certainty::unknown;
    variables_[plain(name)] = {false, {value}};
  }

  ShellScript& script_;
  const FindFile& find_file_;
  ShellSources sources_;
  ShellCursor in_;
  ShellVariables variables_;
  Environment exported_;
  ShellWordReader words_{in_, variables_, sources_, script_.findings};
  int nesting_ = 0;  // of branches and loops
  int sourced_deep_ = 0;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& name, const FindFile& find_file) {
  ShellScript script;
  ScriptReader reader(script, find_file);
  reader.read(text, name);
  reader.finish();
  return script;
}

}  // namespace qplan
