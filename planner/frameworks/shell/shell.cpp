// Texts of a shell script and their statements: words, assignments and redirections up to the end
// of a line, keywords of branches and functions, brackets, remarks.

#include <algorithm>
#include <array>
#include <utility>

#include "planner/frameworks/shell/script_reader.h"

namespace qplan {
namespace {

constexpr std::size_t kMostCommands = 10'000;
constexpr int kDeepestSource = 8;
constexpr int kMostReads = 1000;  // of files that it reads or starts

// What Slurm sets of an option of sbatch's (sbatch(1), output environment variables).
struct BatchVariables {
  std::array<std::string_view, 2> options, variables;  // each by either of its names
};
constexpr std::array<BatchVariables, 4> kOfBatch{{
    {{"--nodes", "-N"}, {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
    {{"--ntasks", "-n"}, {"SLURM_NTASKS", "SLURM_NPROCS"}},
    {{"--ntasks-per-node", ""}, {"SLURM_NTASKS_PER_NODE", ""}},
    {{"--gpus-per-node", ""}, {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"}},
}};

constexpr std::array<std::string_view, 5> kDeclarations{"export", "declare", "local", "readonly",
                                                        "typeset"};

// Whether a command may take an array of arguments: tests ask for its first item, and what prints
// it starts nothing.
bool takes_arguments(const ShellText& command) {
  constexpr std::array<std::string_view, 5> kOthers{"[", "[[", "test", "echo", "printf"};
  return !is_in(kOthers, plain(command));
}

}  // namespace

bool ScriptReader::may_read() {
  return sourced_deep_ <= kDeepestSource && ++reads_ <= kMostReads;
}

void ScriptReader::read(std::string_view text, const std::string& name) {
  if (may_read()) read(ShellCursor{text, sources_.add(name, text), 0});
}

void ScriptReader::read(const ShellCursor& cursor) {
  const ShellCursor outer = in_;
  auto before = std::exchange(before_, {});
  auto bodies = std::exchange(bodies_, {});
  auto outside = std::exchange(outside_, {});
  auto blocks = std::exchange(blocks_, {});
  const int brackets = std::exchange(open_brackets_, 0);
  const std::size_t documents = std::exchange(documents_end_, 0);
  in_ = cursor;
  command_end_.reset();
  while (!in_.at_end() && script_.commands.size() < kMostCommands) statement();
  if (in_.at_end()) end_blocks();
  command_end_.reset();
  in_ = outer;
  before_ = std::move(before);
  bodies_ = std::move(bodies);
  outside_ = std::move(outside);
  blocks_ = std::move(blocks);
  open_brackets_ = brackets;
  documents_end_ = documents;
}

// What expansion made of a word, as commands. Branches that it leaves open end with it.
void ScriptReader::read_again(const ShellText& text) {
  if (text.empty() || !may_read()) return;
  const std::string spelled = plain(text);
  const ShellBranches outer = branches_;
  ++sourced_deep_;
  read(ShellCursor{spelled, text.front().file, 0, &text});
  --sourced_deep_;
  branches_ = outer;
}

void ScriptReader::finish() {
  read_uncalled();
  for (const auto& [name, variable] : variables_) {
    if (!variable.is_array) continue;
    for (const ShellText& value : variable.values) {
      script_.arrays[name].push_back(sources_.word(value));
    }
  }
}

// Up to the end of a line, or to ';', '|', '&'.
void ScriptReader::statement() {
  const std::size_t begin = in_.at;
  words_.begin_command();
  remark_at_.reset();
  ShellCommand command;
  command.environment = exported_;
  handed_.clear();
  before_.clear();
  asks_case_ = false;
  Redirections redirections;
  std::vector<ShellText> words;
  bool declares = false, assigns = false, computes = false;
  const auto between = [&] { return in_.peek() == ';' || in_.peek() == '|' || in_.peek() == '&'; };
  for (;;) {
    words_.skip_blanks();
    if (in_.at_end() || in_.peek() == '\n') break;
    if (in_.peek() == '#') {
      remark();
    } else if (is_in_test(words) && in_.at_operator()) {
      words.push_back(in_.take_operator());
    } else if (in_pattern()) {
      ++in_.at;
    } else if (between()) {
      break;
    } else if (in_.peek() == '<' || in_.peek() == '>') {
      drop_descriptor(words);
      redirection(redirections);
    } else if (words.empty() && in_.peek() == '(' && in_.peek(1) == '(') {
      arithmetic_command();
      computes = true;
      sets_next_ = false;  // of "for ((i = 0; ...))"
    } else if (in_.peek() == '(' || in_.peek() == ')') {
      bracket(words);
    } else if ((words.empty() || declares) &&
               assignment(declares ? exported_ : command.environment, declares)) {
      assigns = true;
    } else if (words.empty() && meant_name()) {
      continue;  // which is set now
    } else {
      const bool first = words.empty();
      const std::size_t word_begin = in_.at;
      words_.takes_arguments(!first && takes_arguments(words.front()));
      for (ShellText& text : words_.word()) words.push_back(std::move(text));
      keep_defaults();
      if (first && words.size() == 1) keyword(words, word_begin);
      if (words.size() == 2 && plain(words[0]) == "!") block_word(plain(words[1]), word_begin);
      if (asks_case_ && words.size() == 2) case_word(words);
      if (words.size() == 2 && plain(words[0]) == "function") {
        opens_function_ = plain(words[1]);
        words.clear();
      }
      declares = !words.empty() && is_in(kDeclarations, plain(words.front()));
    }
  }
  const std::size_t end = in_.at;
  const std::string_view behind_command = meant_keyword(words);
  meant_test(words, begin, end);
  while (between()) ++in_.at;
  const std::string_view joint = in_.text.substr(end, in_.at - end);
  const bool line_ends = in_.peek() == '\n';
  if (line_ends) in_.at = std::max(in_.at + 1, std::exchange(documents_end_, 0));
  // They begin in the next line, whatever else stands in this one.
  const std::size_t behind = in_.at;
  if (!line_ends && !redirections.documents.empty()) {
    in_.at = std::max(std::min(in_.line_end() + 1, in_.text.size()), documents_end_);
  }
  ShellText input;
  // What a script reads; a file that it writes keeps its lines, which are read where it is.
  const bool reads = !words.empty() && plain(words.front()) == "read";
  for (HereDocument& document : redirections.documents) {
    document.joins = document.expands && reads;
    input = words_.document(document);
    keep_file(redirections.target, input);
  }
  // "echo "$JOB" > job.sh": what a here-document filled the variable with.
  const bool script = redirections.target.ends_with(".sh");
  if (redirections.documents.empty() && words.size() == 2 && plain(words[0]) == "echo" &&
      (script || plain(words[1]).find('\n') != std::string::npos)) {
    keep_file(redirections.target, words[1]);
  }
  if (!line_ends && !redirections.documents.empty()) documents_end_ = std::exchange(in_.at, behind);
  const bool remark_alone = words.empty() && !assigns && !computes && remark_at_;
  if (remark_alone && command_end_ && *command_end_ + 1 == begin) remark_below(end);
  if (sourced_deep_ == 0 && (assigns || computes || !words.empty())) began_ = true;
  if (words.empty() && computes) branches_.command_ends(Truth::open, joint);
  if (words.empty() && !assigns) return branches_.arm_ends(joint);
  auto result = words.empty() ? Truth::yes : test_result(words);  // an assignment succeeds
  if (!branches_.runs_in_order()) result = std::nullopt;
  if (branches_.reached() != Truth::no) run(std::move(command), words, {begin, end}, input);
  if (!words.empty()) take_back();
  if (!words.empty()) sets_next_ = false;
  branches_.command_ends(result, joint);
  branches_.arm_ends(joint);
  if (!behind_command.empty()) branches_.keyword(behind_command);
}

// What the word read last means where a command may begin; it is taken from `words` then.
void ScriptReader::keyword(std::vector<ShellText>& words, std::size_t begin) {
  if (sets_next_) return;  // "for case in ...": a name
  const std::string word = plain(words[0]);
  const bool opens = word == "{" && !opens_function_.empty();
  if (opens) {
    bodies_.push_back({opens_function_, in_.at});
    branches_.function_begins();
  } else if (word == "}" && branches_.at_function() && !bodies_.empty()) {
    ShellText body;
    for (std::size_t i = bodies_.back().begin; i < begin; ++i) body.push_back(in_.letter(i));
    functions_[bodies_.back().name] = {std::move(body), false};
    bodies_.pop_back();
  }
  opens_function_.clear();
  block_word(word, begin);
  if (!opens && !branches_.keyword(word)) return;
  sets_next_ = word == "for";
  asks_case_ = word == "case";
  words.clear();
}

// "WORD in", behind "case".
void ScriptReader::case_word(std::vector<ShellText>& words) {
  asks_case_ = false;
  if (plain(words[1]) != "in") return;
  branches_.case_of(words[0]);
  words.clear();
}

// At the "|" of a pattern such as "-h|--help)".
bool ScriptReader::in_pattern() const {
  if (in_.peek() != '|' || open_brackets_ > 0 || !branches_.in_cases()) return false;
  const std::size_t end = in_.text.find_first_of("\n;&()", in_.at);
  return end != std::string_view::npos && in_.text[end] == ')';
}

// Of a subshell; "name() {" is a function's head, and "--flag)" a pattern of a case.
void ScriptReader::bracket(std::vector<ShellText>& words) {
  const bool opens = in_.peek() == '(';
  const bool function = words.size() == 1 && opens && in_.peek(1) == ')';
  const bool pattern = !opens && open_brackets_ == 0 && branches_.in_cases();
  if (function) opens_function_ = plain(words[0]);
  if (pattern) branches_.arm_begins(words);
  if (function || pattern) words.clear();
  if (opens && !function && words.empty()) outside_.push_back({variables_, open_brackets_});
  const bool closes = !opens && !outside_.empty() && outside_.back().depth == open_brackets_ - 1;
  if (closes) {
    variables_ = std::move(outside_.back().variables);
    outside_.pop_back();
  }
  open_brackets_ = std::max(0, open_brackets_ + (opens ? 1 : -1));
  ++in_.at;
}

// "#SBATCH --nodes=4" is a remark that the batch system reads.
void ScriptReader::remark() {
  constexpr std::string_view kBatch = "#SBATCH";
  const std::size_t end = in_.line_end();
  remark_at_ = in_.at;
  if (!in_.text.substr(in_.at).starts_with(kBatch)) {
    in_.at = end;
    return;
  }
  if (sourced_deep_ == 0 && began_) {
    script_.findings.push_back(
        {Severity::warning,
         "late_directive",
         sources_.place(in_.letter(in_.at)),
         "sbatch reads no #SBATCH line below the first command: this one is a remark",
         "put it above the first command",
         "launcher: Slurm, sbatch(1): it stops at the first line that is neither blank nor a "
         "remark",
         {}});
    in_.at = end;
    return;
  }
  in_.at += kBatch.size();
  ShellText option;  // the word before
  while (in_.at < end) {
    while (is_shell_blank(in_.peek())) ++in_.at;
    ShellText word;
    while (in_.at < end && !is_shell_blank(in_.peek())) word.push_back(in_.take());
    if (word.empty()) continue;
    script_.directives.push_back(sources_.word(word));
    const auto equals =
        std::find_if(word.begin(), word.end(), [](const ShellLetter& l) { return l.c == '='; });
    const bool joined = word.size() > 2 && word[0].c == '-' && word[1].c != '-';  // "-N4"
    if (joined) {
      set_of_batch({word.begin(), word.begin() + 2}, {word.begin() + 2, word.end()});
    } else if (equals != word.end()) {
      set_of_batch({word.begin(), equals}, {std::next(equals), word.end()});
    } else {
      set_of_batch(option, word);
    }
    option = std::move(word);
  }
}

// A number alone: "2-4" nodes and "h100:8" are spelled otherwise in the variables.
void ScriptReader::set_of_batch(const ShellText& option, const ShellText& value) {
  const bool number = !value.empty() && std::all_of(value.begin(), value.end(), [](const auto& l) {
    return l.c >= '0' && l.c <= '9';
  });
  for (const BatchVariables& row : kOfBatch) {
    if (!number || option.empty() || !is_in(row.options, plain(option))) continue;
    for (const std::string_view name : row.variables) {
      if (name.empty()) continue;
      variables_[std::string(name)] = {.exported = true, .values = {value}};
      exported_[std::string(name)] = plain(value);
    }
  }
}

ShellScript read_shell(std::string_view text, const std::string& name, const FindFile& find_file) {
  ShellScript script;
  ScriptReader reader(script, find_file);
  reader.read(text, name);
  reader.finish();
  return script;
}

}  // namespace qplan
