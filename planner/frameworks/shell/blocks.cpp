// Blocks and tests of a shell script that are not whole: bash stops at them, or does something
// else. Only what stands in a file as it is read is looked at.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "planner/frameworks/shell/script_reader.h"

namespace qplan {
namespace {

// A block's words: the one that begins it, those that it goes on with, the one that ends it.
struct BlockWords {
  std::string_view begins, goes_on, ends;
};
constexpr std::array<BlockWords, 7> kBlocks{{{"if", "then", "fi"},
                                             {"for", "do", "done"},
                                             {"while", "do", "done"},
                                             {"until", "do", "done"},
                                             {"select", "do", "done"},
                                             {"case", "", "esac"},
                                             {"{", "", "}"}}};

// Null: the word begins no block.
const BlockWords* block_of(std::string_view word) {
  const auto row = std::find_if(kBlocks.begin(), kBlocks.end(),
                                [&](const BlockWords& block) { return block.begins == word; });
  return row == kBlocks.end() ? nullptr : &*row;
}

bool ends_block(std::string_view word) {
  return std::any_of(kBlocks.begin(), kBlocks.end(),
                     [&](const BlockWords& block) { return block.ends == word; });
}

}  // namespace

void ScriptReader::add_fault(std::string_view rule, std::size_t at, std::string message,
                             std::string instead, std::vector<Edit> fix) {
  const Place place = sources_.place(in_.letter(at));
  const bool known =
      std::any_of(script_.findings.begin(), script_.findings.end(), [&](const Finding& finding) {
        return finding.rule == rule && finding.place.file == place.file &&
               finding.place.line == place.line;
      });
  if (known) return;  // of a file that is read twice
  script_.findings.push_back({Severity::error, std::string(rule), place, std::move(message),
                              std::move(instead), "bash(1), compound commands", std::move(fix)});
  script_.findings.back().fix.renames = true;  // what it hides may come up
}

// At `at` in the text, where a command may begin.
void ScriptReader::block_word(std::string_view word, std::size_t at) {
  if (in_.letters != nullptr || !in_.text.substr(at).starts_with(word)) return;
  if (const BlockWords* const block = block_of(word)) {
    return blocks_.push_back({block->begins, at, block->goes_on.empty()});
  }
  const BlockWords* const open = blocks_.empty() ? nullptr : block_of(blocks_.back().word);
  if (open != nullptr && word == open->goes_on) {
    blocks_.back().goes_on = true;
    return;
  }
  const bool divides = word == "elif" || word == "else";
  if (!divides && !ends_block(word)) return;
  const bool fits = open != nullptr && (divides ? open->begins == "if" : open->ends == word);
  if (fits && blocks_.back().goes_on) {
    if (divides) blocks_.back().goes_on = word == "else";
    if (!divides) blocks_.pop_back();
    return;
  }
  if (fits) {
    add_fault("missing_word", blocks_.back().at,
              fmt::format("{} has no {} before its {}: bash stops there, and runs nothing below",
                          shown(open->begins), shown(open->goes_on), shown(word)),
              fmt::format("put {} behind the condition", shown(open->goes_on)), {});
    if (divides) blocks_.back().goes_on = word == "else";
    if (!divides) blocks_.pop_back();
    return;
  }
  if (open == nullptr) {
    return add_fault("stray_block_word", at,
                     fmt::format("{} ends nothing that was begun: bash stops here", shown(word)),
                     "take it out, or begin the block", {});
  }
  add_fault(
      "unclosed_block", blocks_.back().at,
      fmt::format("{} is not ended by {}: bash stops at the {} in line {}", shown(open->begins),
                  shown(open->ends), shown(word), sources_.place(in_.letter(at)).line),
      fmt::format("put {} where it ends", shown(open->ends)), {});
  // The one around it that the word ends, if there is one.
  const auto around = std::find_if(blocks_.rbegin(), blocks_.rend(), [&](const OpenBlock& block) {
    return divides ? block.word == "if" : block_of(block.word)->ends == word;
  });
  if (around == blocks_.rend()) return;
  blocks_.erase(around.base() - (divides ? 0 : 1), blocks_.end());
}

void ScriptReader::end_blocks() {
  if (in_.letters != nullptr) return;
  // A quote without an end hides the words of blocks.
  const std::string& file = sources_.name(in_.file);
  const auto is = [&](std::string_view rule) {
    return [rule, &file](const Finding& f) { return f.rule == rule && f.place.file == file; };
  };
  auto& findings = script_.findings;
  if (std::any_of(findings.begin(), findings.end(), is("unclosed_quote"))) {
    for (const std::string_view rule : {"unclosed_block", "stray_block_word", "missing_word"}) {
      std::erase_if(findings, is(rule));
    }
    return;
  }
  if (blocks_.empty()) return;
  const OpenBlock& block = blocks_.back();
  const BlockWords& words = *block_of(block.word);
  add_fault("unclosed_block", block.at,
            fmt::format("{} is not ended by {}: bash stops at the end of the file",
                        shown(words.begins), shown(words.ends)),
            fmt::format("put {} where it ends", shown(words.ends)), {});
}

// "if [ a ] then", "for i in 1 2 do": the word that was meant for a keyword is taken out. Empty:
// none was.
std::string_view ScriptReader::meant_keyword(std::vector<ShellText>& words) {
  if (in_.letters != nullptr || blocks_.empty() || words.size() < 2 || words.back().empty()) {
    return {};
  }
  OpenBlock& block = blocks_.back();
  const std::string_view word = block_of(block.word)->goes_on;
  const std::size_t at = words.back().front().at;
  if (block.goes_on || word.empty() || plain(words.back()) != word ||
      words.back().front().file != in_.file || !in_.text.substr(at).starts_with(word)) {
    return {};
  }
  std::size_t behind = at;
  while (behind > 0 && is_shell_blank(in_.text[behind - 1])) --behind;
  add_fault("missing_separator", at,
            fmt::format("{} stands behind a command's words, and so is one of them: bash stops "
                        "where it misses it",
                        shown(word)),
            fmt::format("write ; {}", shown(word)), edit_of(sources_, in_, behind, behind, ";"));
  block.goes_on = true;
  words.pop_back();
  return word;
}

// "[ -n "$A"]", "[-n "$A" ]": a bracket that is no word of its own ends or begins no test.
void ScriptReader::meant_test(std::vector<ShellText>& words, std::size_t begin, std::size_t end) {
  if (in_.letters != nullptr || words.size() < 2) return;
  const std::string first = plain(words.front()), last = plain(words.back());
  const bool twice = first.starts_with("[[");
  const std::string_view opens = twice ? "[[" : "[", closes = twice ? "]]" : "]";
  if (!first.starts_with('[') || last.empty()) return;
  while (end > begin && is_shell_blank(in_.text[end - 1])) --end;
  const std::string instead = "put a blank before and behind each bracket of a test";
  if (first == opens && last != closes && last.ends_with(closes) &&
      in_.text.substr(begin, end - begin).ends_with(closes)) {
    const std::size_t at = end - closes.size();
    add_fault("missing_blank", at,
              fmt::format("{} is part of the word before it, and the test has no end: {}", closes,
                          twice ? "bash stops here" : "it fails"),
              instead, edit_of(sources_, in_, at, at, " "));
    // The script goes on as if the test had failed.
    if (!twice) script_.findings.back().severity = Severity::warning;
    ShellText& word = words.back();
    const ShellText bracket(word.end() - static_cast<std::ptrdiff_t>(closes.size()), word.end());
    word.erase(word.end() - static_cast<std::ptrdiff_t>(closes.size()), word.end());
    words.push_back(bracket);
  } else if (first.size() > opens.size() && last == closes && first[opens.size()] != ']') {
    const std::size_t at = words.front().front().at;
    if (words.front().front().file != in_.file || !in_.text.substr(at).starts_with(opens)) return;
    add_fault(
        "missing_blank", at,
        fmt::format("{} is no command: {} begins a test as a word of its own", shown(first), opens),
        instead, edit_of(sources_, in_, at + opens.size(), at + opens.size(), " "));
    ShellText& word = words.front();
    const ShellText bracket(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(opens.size()));
    word.erase(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(opens.size()));
    words.insert(words.begin(), bracket);
  }
}

}  // namespace qplan
