#pragma once
// Reads a shell script statement by statement, in the order of a run: what is set, written, called
// and started. What is set where only a run can tell is marked. Its chapters are files of this
// folder, to which it is private.

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/frameworks/shell/branches.h"
#include "planner/frameworks/shell/shell.h"
#include "planner/frameworks/shell/text.h"
#include "planner/frameworks/shell/words.h"

namespace qplan {

struct Redirections {
  std::string target;  // "> name"
  std::vector<HereDocument> documents;
};

class ScriptReader {
 public:
  ScriptReader(ShellScript& script, const FindFile& find_file)
      : script_(script), find_file_(find_file) {}

  void read(std::string_view text, const std::string& name);
  void finish();

 private:
  using Environment = std::map<std::string, std::string>;
  struct Function {
    ShellText body;
    bool called = false;
  };
  struct OpenBody {
    std::string name;
    std::size_t begin = 0;
  };
  struct OpenBlock {
    std::string_view word;  // "if", "for", "case", "{"
    std::size_t at = 0;
    bool goes_on = false;  // behind "then" or "do"
  };
  struct Outside {
    ShellVariables variables;
    int depth = 0;  // of brackets
  };

  // Texts and their statements (shell.cpp).
  bool may_read();
  void read(const ShellCursor& cursor);
  void read_again(const ShellText& text);
  void statement();
  void keyword(std::vector<ShellText>& words, std::size_t begin);
  void case_word(std::vector<ShellText>& words);
  [[nodiscard]] bool in_pattern() const;
  void bracket(std::vector<ShellText>& words);
  void remark();
  void set_of_batch(const ShellText& option, const ShellText& value);

  // Whether blocks and tests are whole (blocks.cpp).
  void block_word(std::string_view word, std::size_t at);
  void end_blocks();
  std::string_view meant_keyword(std::vector<ShellText>& words);
  void meant_test(std::vector<ShellText>& words, std::size_t begin, std::size_t end);
  void add_fault(std::string_view rule, std::size_t at, std::string message, std::string instead,
                 std::vector<Edit> fix);

  // What sets variables (assignments.cpp).
  void keep_defaults();
  void take_back();
  bool assignment(Environment& environment, bool exports);
  bool meant_name();
  ShellVariable assigned(const std::string& name);
  [[nodiscard]] std::size_t value_behind_blanks(std::size_t name_size) const;
  void meant_assignment(Span head, const std::string& name, bool adds, ShellVariable& value);
  [[nodiscard]] ShellVariable with_certainty(ShellVariable value,
                                             const ShellVariable* before = nullptr) const;
  bool item_assignment(std::size_t name_size);
  void arithmetic_command();
  void set_by_arithmetic(std::string_view text, std::size_t at);
  ShellVariable& set(const std::string& name, bool adds, ShellVariable value);
  void set_unknown(const ShellText& name);
  void export_names(std::span<const ShellText> names);

  // Files that it writes (redirections.cpp).
  void drop_descriptor(std::vector<ShellText>& words) const;
  void redirection(Redirections& redirections);
  void keep_file(const std::string& name, const ShellText& text);
  static std::string base_of(const std::string& path);

  // Commands (commands.cpp).
  void run(ShellCommand command, std::span<const ShellText> words, Span span,
           const ShellText& input);
  void include(const ShellText& name);
  bool lost_continuation(const std::string& first, std::size_t begin);
  void remark_below(std::size_t end);
  [[nodiscard]] bool stands_alone(std::optional<std::size_t> remark) const;
  [[nodiscard]] std::size_t line_begin(std::size_t at) const;
  [[nodiscard]] std::string why_it_ends() const;
  std::vector<Edit> continued_line();
  std::vector<Edit> remarks_above();
  bool read_input(std::span<const ShellText> words, const ShellText& input);
  [[nodiscard]] ShellWord source(const ShellText& word) const { return sources_.word(word); }

  // Functions, shells and scripts that it calls or starts (calls.cpp).
  void start_shell(std::span<const ShellText> words, const ShellText& input);
  void start_file(const ShellText& name, std::span<const ShellText> arguments);
  template <class Read>
  void in_new_shell(std::span<const ShellText> arguments, const Read& read_it);
  bool call(const std::string& name, std::span<const ShellText> words);
  void read_uncalled();
  void set_arguments(std::span<const ShellText> arguments);
  void forget_arguments();

  ShellScript& script_;
  const FindFile& find_file_;
  ShellSources sources_;
  ShellCursor in_;
  ShellVariables variables_;
  Environment exported_;
  ShellWordReader words_{in_, variables_, sources_, script_.findings};
  ShellBranches branches_;
  std::map<std::string, Function> functions_;
  std::vector<OpenBody> bodies_;   // that are being read
  std::vector<OpenBlock> blocks_;  // of the text that is being read
  std::string opens_function_;     // behind "NAME()"
  std::vector<Outside> outside_;   // of subshells, which change nothing there
  std::map<std::string, std::optional<ShellVariable>> before_;  // of variables set before a command
  bool sets_next_ = false;                                      // behind "for"
  bool asks_case_ = false;                                      // behind "case"
  bool began_ = false;                                          // a command stands above
  int open_brackets_ = 0;
  std::size_t documents_end_ = 0;  // of here-documents that this line's end leads over
  std::optional<std::size_t> remark_at_, command_remark_;  // of this statement, and that before
  std::size_t command_begin_ = 0;                          // of one that lines are added to
  std::optional<std::size_t> command_end_;                 // of the one before, in the same text
  std::optional<std::size_t> lost_end_;  // the same, where remarks have lines of their own below
  std::set<std::string> handed_;         // variables set before this command
  std::map<std::string, ShellText> written_;  // files that it has written so far
  int sourced_deep_ = 0;
  int reads_ = 0;
};

}  // namespace qplan
