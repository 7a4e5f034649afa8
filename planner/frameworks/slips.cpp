#include "planner/frameworks/slips.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "models/edit_distance.h"
#include "models/text.h"

namespace qplan {
namespace {

constexpr std::string_view kSeparators = "-_.";
// Longer words than this are not typing mistakes (and the distance is quadratic).
constexpr std::size_t kLongestWord = 80;

using Tokens = std::vector<std::string>;

// "--moe-router-topk": moe, router, topk; in small letters.
Tokens tokens_of(std::string_view name) {
  Tokens tokens(1);
  for (const char c : name) {
    const bool separates = kSeparators.find(c) != std::string_view::npos;
    if (separates && !tokens.back().empty()) tokens.emplace_back();
    if (!separates) tokens.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (tokens.back().empty()) tokens.pop_back();
  return tokens;
}

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

std::string digits_of(const std::string& token) {
  std::string digits;
  for (const char c : token) {
    if (c >= '0' && c <= '9') digits += c;
  }
  return digits;
}

// Every word that some option's name is made of.
const std::set<std::string, std::less<>>& words_of(const OptionList& list) {
  static auto* const all = new std::map<const OptionList*, std::set<std::string, std::less<>>>;
  const auto [found, fresh] = all->try_emplace(&list);
  if (!fresh) return found->second;
  for (const std::string& name : list.names()) {
    for (std::string& token : tokens_of(name)) found->second.insert(std::move(token));
  }
  return found->second;
}

bool differ_by_s(const std::string& a, const std::string& b) {
  return a + 's' == b || b + 's' == a;
}

// Whether one word at most was mistyped, and into none that options are named by.
bool is_slip(const Tokens& written, const Tokens& real, std::span<const OptionList* const> lists) {
  if (joined(written) == joined(real)) return true;
  if (written.size() != real.size()) return false;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const std::string &w = written[i], &r = real[i];
    if (w == r) continue;
    if (digits_of(w) != digits_of(r)) return false;
    const bool another_word = std::any_of(lists.begin(), lists.end(), [&](const OptionList* list) {
      return words_of(*list).contains(w);
    });
    if (another_word && !differ_by_s(w, r)) return false;
  }
  return true;
}

// How many letters of a name may be wrong.
std::size_t most_slips(const Tokens& written) {
  const std::size_t letters = joined(written).size();
  return letters >= 10 ? 2 : letters >= 4 ? 1 : 0;
}

// '-' and '_' in their order, behind the dashes that a name begins with.
std::string separators_of(std::string_view name) {
  std::string separators;
  for (const char c : name.substr(std::min(name.find_first_not_of('-'), name.size()))) {
    if (c == '-' || c == '_') separators += c;
  }
  return separators;
}

// Of an option's spellings that are as near, the one with the separators that are written.
std::string spelled_as(std::string_view written, const std::string& nearest,
                       const KnownOption& option) {
  const std::string separators = separators_of(written);
  if (separators_of(nearest) == separators) return nearest;
  const std::size_t distance = edit_distance(written, nearest);
  for (const std::string& spelling : option.spellings) {
    const bool alike = separators_of(spelling) == separators;
    if (alike && edit_distance(written, spelling) == distance) return spelling;
  }
  return nearest;
}

}  // namespace

std::string certain_name(std::string_view written, std::span<const OptionList* const> lists) {
  if (written.size() > kLongestWord) return "";
  const Tokens tokens = tokens_of(written);
  if (tokens.empty()) return "";
  const std::size_t dot = written.rfind('.');
  const std::string_view section = written.substr(0, dot == std::string_view::npos ? 0 : dot + 1);
  std::size_t best = most_slips(tokens) + 1;
  std::string nearest;
  const KnownOption* of = nullptr;
  bool several = false;
  for (const OptionList* const list : lists) {
    for (const std::string& name : list->names()) {
      const bool far = name.size() > written.size() + 2 || written.size() > name.size() + 2;
      if (far || !name.starts_with(section) || name.ends_with(".*")) continue;
      if (name.find('.', section.size()) != std::string::npos) continue;
      const std::size_t distance = edit_distance(written, name);
      const KnownOption* const option = list->find(name);
      if (distance > best || (distance == best && nearest.empty())) continue;
      // Another spelling of the same option, or the same option of another list, is no rival.
      const bool rival = distance == best && option != of && name != nearest;
      several = rival || (several && distance == best);
      if (distance == best) continue;
      best = distance;
      nearest = name;
      of = option;
    }
  }
  if (several || !is_slip(tokens, tokens_of(nearest), lists)) return "";
  return of == nullptr ? nearest : spelled_as(written, nearest, *of);
}

namespace {

// Other names that people have for the formats.
constexpr std::array<std::array<std::string_view, 4>, 3> kFormats{
    {{"bf16", "bfloat16", "torch.bfloat16", "bf16-mixed"},
     {"fp16", "float16", "torch.float16", "half"},
     {"fp32", "float32", "torch.float32", "float"}}};

// The one choice that is the same format by another name; empty: none is.
std::string same_format(std::string_view written, const std::vector<std::string>& choices) {
  const std::string word = lower_case(written);
  for (const auto& names : kFormats) {
    if (std::find(names.begin(), names.end(), word) == names.end()) continue;
    for (const std::string& choice : choices) {
      if (std::find(names.begin(), names.end(), choice) != names.end()) return choice;
    }
  }
  return "";
}

}  // namespace

std::string certain_choice(std::string_view written, const std::vector<std::string>& choices) {
  if (std::string same = same_format(written, choices); !same.empty()) return same;
  const std::size_t most = written.size() >= 4 ? 1 : 0;
  std::string nearest;
  for (const std::string& choice : choices) {
    if (edit_distance(written, choice) > most) continue;
    if (!nearest.empty() || digits_of(std::string(written)) != digits_of(choice)) return "";
    nearest = choice;
  }
  return nearest;
}

}  // namespace qplan
