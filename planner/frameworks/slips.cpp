#include "planner/frameworks/slips.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/scene.h"

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

// Whether one is the other cut short ("len", "length"), with an s or without ("params",
// "parameters").
bool is_cut_short(std::string_view a, std::string_view b) {
  constexpr std::size_t kShortest = 3;
  const auto begins = [](std::string_view longer, std::string_view shorter) {
    if (shorter.ends_with('s')) shorter.remove_suffix(1);
    return shorter.size() >= kShortest && longer.starts_with(shorter);
  };
  const auto is_config = [](std::string_view word) { return word == "cfg" || word == "config"; };
  return a == b || begins(a, b) || begins(b, a) || (is_config(a) && is_config(b));
}

// The one option whose name has the same words, some of them cut short; empty: none, or several.
std::string abbreviated(const Tokens& written, std::string_view section,
                        std::span<const OptionList* const> lists) {
  if (written.size() < 2) return "";
  std::string found;
  const KnownOption* of = nullptr;
  for (const OptionList* const list : lists) {
    for (const std::string& name : list->names()) {
      if (!name.starts_with(section) || name.find('.', section.size()) != std::string::npos) {
        continue;
      }
      const Tokens tokens = tokens_of(name);
      const bool same = tokens.size() == written.size() &&
                        std::equal(tokens.begin(), tokens.end(), written.begin(), is_cut_short);
      if (!same || list->find(name) == of) continue;
      // Another spelling of it, or the same of another list, is no rival.
      if (of != nullptr && tokens_of(found) != tokens) return "";
      if (of != nullptr) continue;
      found = name;
      of = list->find(name);
    }
  }
  return found;
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
  if (several || !is_slip(tokens, tokens_of(nearest), lists)) {
    return abbreviated(tokens, section, lists);
  }
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
  for (const std::string& choice : choices) {
    if (same_word(written, choice)) return choice;
  }
  // "all-to-all" of "alltoall".
  const auto letters = [](std::string_view word) {
    std::string all(word);
    std::erase_if(all, [](char c) { return c == '-' || c == '_'; });
    return all;
  };
  for (const std::string& choice : choices) {
    if (choice.size() > 3 && letters(written) == letters(choice)) return choice;
  }
  const std::size_t most = written.size() >= 4 ? 1 : 0;
  std::string nearest;
  for (const std::string& choice : choices) {
    if (edit_distance(written, choice) > most) continue;
    if (!nearest.empty() || digits_of(std::string(written)) != digits_of(choice)) return "";
    nearest = choice;
  }
  return nearest;
}

bool has_block(const OptionList& list, const std::string& name) {
  const std::string section = name + ".";
  const auto at = std::lower_bound(list.names().begin(), list.names().end(), section);
  return at != list.names().end() && at->starts_with(section);
}

namespace {

// Whether the list has the key, or a section of that name.
bool has_name(const OptionList& list, const std::string& name) {
  return list.find(name) != nullptr || has_block(list, name);
}

// What stands beside a name: names of the same section, of keys and of sections.
std::vector<std::string> beside(const OptionList& list, std::string_view name) {
  const std::size_t dot = name.rfind('.');
  const std::string_view section = name.substr(0, dot == std::string_view::npos ? 0 : dot + 1);
  std::vector<std::string> names;
  for (const std::string& other : list.names()) {
    if (!other.starts_with(section)) continue;
    std::string cut = other.substr(0, other.find('.', section.size()));
    if (names.empty() || names.back() != cut) names.push_back(std::move(cut));
  }
  return names;
}

// How many letters of two keys, up to the end of the first part that differs, stand in each.
std::pair<std::size_t, std::size_t> first_difference(const std::string& a, const std::string& b) {
  std::size_t from = 0;
  for (;;) {
    const std::size_t in_a = a.find('.', from), in_b = b.find('.', from);
    if (in_a == std::string::npos || a.substr(0, in_a) != b.substr(0, in_b)) return {in_a, in_b};
    from = in_a + 1;
  }
}

}  // namespace

namespace {

// The one of these names whose last part has the same words, some of them cut short; empty: none
// has, or several have.
std::string abbreviated_of(const std::string& part, const std::vector<std::string>& others) {
  const auto last_words = [](const std::string& name) {
    return tokens_of(std::string_view(name).substr(name.rfind('.') + 1));  // npos + 1: all of it
  };
  const Tokens written = last_words(part);
  std::string found;
  for (const std::string& other : others) {
    const Tokens tokens = last_words(other);
    const bool same = written.size() > 1 && tokens.size() == written.size() &&
                      std::equal(tokens.begin(), tokens.end(), written.begin(), is_cut_short);
    if (!same) continue;
    if (!found.empty()) return "";
    found = other;
  }
  return found;
}

}  // namespace

std::string slip_of_key(const std::string& name, const OptionList& list) {
  if (name.size() > kLongestWord * 4) return "";
  for (std::size_t dot = name.find('.');; dot = name.find('.', dot + 1)) {
    const std::string part = name.substr(0, dot);
    if (!has_name(list, part)) {
      // Put out of action by whoever wrote it: "_validation_dataset".
      if (part[part.rfind('.') + 1] == '_') return "";
      const std::vector<std::string> others = beside(list, part);
      std::string near = nearest_name(part, others);
      if (near.empty() || !is_slip(std::string_view(part), std::string_view(near))) {
        near = abbreviated_of(part, others);
      }
      if (near.empty()) return "";
      return dot == std::string::npos ? near : near + name.substr(dot);
    }
    if (dot == std::string::npos) return "";
  }
}

bool in_open_section(const OptionList& list, const std::string& name) {
  for (std::size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0;
       dot = name.rfind('.', dot - 1)) {
    const KnownOption* const section = list.find(name.substr(0, dot));
    if (section != nullptr) return section->otherwise.starts_with('{');
  }
  return false;
}

std::string certain_key(const std::string& name, const OptionList& list) {
  const std::string near = slip_of_key(name, list);
  if (near.empty()) return "";
  const auto [end, real_end] = first_difference(name, near);
  const std::string written = name.substr(0, end), real = near.substr(0, real_end);
  const Tokens tokens = tokens_of(written), meant = tokens_of(real);
  const std::size_t distance = edit_distance(written, real);
  const OptionList* const lists[] = {&list};
  if (distance > most_slips(tokens) || !is_slip(tokens, meant, lists)) return "";
  for (const std::string& other : beside(list, written)) {
    if (other != real && edit_distance(written, other) <= distance) return "";
  }
  if (has_name(list, near) || in_open_section(list, near)) return near;
  return certain_key(near, list);  // what stands in it was misspelt, too
}

std::string certain_block(const std::string& name, const OptionList& list) {
  if (name.size() > kLongestWord * 4 || has_name(list, name)) return "";
  constexpr std::size_t kShortestBeginning = 6;               // "zero" begins one as "fsdp" does
  const std::string last = name.substr(name.rfind('.') + 1);  // npos + 1: none
  if (last.empty() || last.front() == '_') return "";
  std::vector<std::string> begun;
  std::string nearest;
  std::size_t best = most_slips(tokens_of(last)) + 1;
  bool several = false;
  for (const std::string& block : beside(list, name)) {
    if (!has_block(list, block) || digits_of(block) != digits_of(name)) continue;
    if (last.size() >= kShortestBeginning && block.starts_with(name)) begun.push_back(block);
    const std::size_t distance = edit_distance(name, block);
    several = distance == best ? true : several && distance > best;
    if (distance >= best) continue;
    best = distance;
    nearest = block;
  }
  if (!nearest.empty()) return several ? "" : nearest;
  return begun.size() == 1 ? begun.front() : "";
}

std::string unknown_block(const std::string& key, const OptionList& list) {
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    std::string block = key.substr(0, dot);
    if (!has_name(list, block)) return block;
  }
  return "";
}

std::vector<SectionSlip> slipped_sections(const Settings& settings, const OptionList& list) {
  std::vector<SectionSlip> slips;
  for (const Setting& setting : settings) {
    const std::string near = slip_of_key(setting.key, list);
    if (near.empty()) continue;
    const auto [end, real_end] = first_difference(setting.key, near);
    const std::string written = setting.key.substr(0, end), real = near.substr(0, real_end);
    const bool outermost = written.find('.') == std::string::npos;
    if (end == std::string::npos && !outermost) continue;  // a key of a section that is known
    const auto same = [&](const SectionSlip& other) { return other.written == written; };
    const auto says_real = [&](const Setting& other) {
      return other.place.file == setting.place.file &&
             (other.key == real || other.key.starts_with(real + "."));
    };
    if (std::any_of(slips.begin(), slips.end(), same) ||
        std::any_of(settings.begin(), settings.end(), says_real)) {
      continue;
    }
    slips.push_back({&setting, written, real});
  }
  return slips;
}

}  // namespace qplan
