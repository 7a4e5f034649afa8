#include "models/plan/parallel_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "models/error.h"
#include "models/json.h"
#include "models/plan/plan_text.h"
#include "models/plan/word_values.h"
#include "models/plan/words.h"
#include "models/text.h"

namespace qplan {
namespace {

constexpr double kMostCapacity = 4096;  // far above any: with it each of 4096 experts takes all

template <class T>
constexpr bool is_number = std::is_same_v<T, int> || std::is_same_v<T, std::int64_t>;

// ---- text ----

template <class E>
std::string join_words(EnumSet<E> set) {
  std::string text;
  for (const auto& [e, word] : Words<E>::table) {
    if (!set.has(e)) continue;
    if (!text.empty()) text += '+';
    text += word;
  }
  return text;
}

template <class E>
void add_once(EnumSet<E>& set, E e) {
  if (set.has(e)) {
    throw Error(fmt::format("{} '{}' is given twice; write it once", Words<E>::what, to_word(e)));
  }
  set.add(e);
}

// "a+b" or "a,b".
std::string joined_by_plus(std::string_view text) {
  std::string joined(text);
  std::replace(joined.begin(), joined.end(), ',', '+');
  return joined;
}

template <class E>
EnumSet<E> split_words(std::string_view text) {
  const std::string joined = joined_by_plus(text);
  EnumSet<E> set;
  for (const auto part : split(joined, '+')) add_once(set, from_word<E>(part));
  return set;
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (is_number<T> || std::is_same_v<T, double>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(to_word(value));
  } else {
    return to_string(value);
  }
}

template <class E>
std::string text_of(const EnumSet<E>& set) {
  return set.empty() ? std::string(Words<E>::empty) : join_words(set);
}

std::string text_of(const std::vector<int>& layout) {
  return layout.empty() ? "even" : layout_text(layout);
}

void read_text(const PlanWord<bool>& word, std::string_view text, bool& value) {
  if (text != "true" && text != "false") {
    throw Error(fmt::format("{} must be true or false, not '{}'", word.name(), text));
  }
  value = text == "true";
}

void read_text(const PlanWord<double>& word, std::string_view text, double& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const bool within = value >= 0 && value <= kMostCapacity;  // false for NaN
  if (text.empty() || stop != end || code != std::errc{} || !within) {
    throw Error(fmt::format("{} must be a number from 0 to {}, not '{}'", word.name(),
                            kMostCapacity, text));
  }
}

// A set that says "none" and something says two things.
void refuse_none_beside_others(std::string_view key, std::string_view text,
                               const std::vector<std::string_view>& parts,
                               std::string_view none = "none") {
  if (parts.size() < 2 || std::find(parts.begin(), parts.end(), none) == parts.end()) return;
  throw Error(fmt::format("{} '{}' has {} beside others; {} stands alone", key, text, none, none));
}

// The enumerators that a word takes: where not all, a refusal names the word and those.
template <class T>
std::vector<std::string> words_taken(const PlanWord<T>& word) {
  std::vector<std::string> words;
  for (const auto& [e, name] : Words<T>::table) {
    if (word.takes.empty() || word.takes.has(e)) words.emplace_back(name);
  }
  return words;
}

template <class T>
void read_text(const PlanWord<T>& word, std::string_view text, T& value) {
  if constexpr (is_number<T>) {
    value = static_cast<T>(parse_count(word.name(), text, word.low, word.high));
  } else if (word.takes.empty()) {
    value = from_word<T>(text);
  } else {
    const auto found = try_from_word<T>(text);
    if (!found || !word.takes.has(*found)) unknown_word(word.key, text, words_taken(word));
    value = *found;
  }
}

void read_text(const PlanWord<Recompute>&, std::string_view text, Recompute& value) {
  value = parse_recompute(text);
}

void read_text(const PlanWord<Offload>&, std::string_view text, Offload& value) {
  value = parse_offload(text);
}

template <class E>
void read_text(const PlanWord<EnumSet<E>>& word, std::string_view text, EnumSet<E>& value) {
  if (text == Words<E>::empty) {
    value = {};
    return;
  }
  const std::string joined = joined_by_plus(text);
  refuse_none_beside_others(word.key, text, split(joined, '+'), Words<E>::empty);
  value = split_words<E>(text);
}

void read_text(const PlanWord<std::vector<int>>&, std::string_view text, std::vector<int>& value) {
  value = text == "even" ? std::vector<int>{} : parse_layout(joined_by_plus(text));
}

// ---- one line ----

bool is_shown(const ParallelPlan& plan, Shown shown) {
  switch (shown) {
    case Shown::if_changed:
      return false;
    case Shown::always:
      return true;
    case Shown::if_pipelined:
      return plan.pp > 1;
    case Shown::if_expert_parallel:
      return plan.ep > 1 || plan.etp > 1;
  }
  return false;
}

template <class T>
std::string line_word(const PlanWord<T>& word, const T& value) {
  if constexpr (std::is_same_v<T, ScheduleKind>) {
    return std::string(to_word(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    if (value) return std::string(word.name());
  } else if constexpr (is_number<T>) {
    if (!word.brief.empty()) return fmt::format("{}{}", word.brief, value);
  }
  return fmt::format("{}={}", word.name(), text_of(value));
}

// "mbs2" as name "mbs" and value "2", "recompute=full" as "recompute" and "full". A schedule and a
// switch stand alone: "zbv" is schedule=zbv, "sp" is sp=true.
enum class Form : std::uint8_t { named, glued, bare };
struct LineWord {
  std::string_view name, value;
  Form form;
};

LineWord take_apart(std::string_view token) {
  if (const std::size_t equals = token.find('='); equals != std::string_view::npos) {
    return {token.substr(0, equals), token.substr(equals + 1), Form::named};
  }
  if (try_from_word<ScheduleKind>(token)) return {"schedule", token, Form::named};
  if (const std::size_t digits = token.find_last_not_of("0123456789") + 1; digits < token.size()) {
    const bool negative = digits > 1 && token[digits - 1] == '-';  // "tp-4"
    const std::size_t cut = negative ? digits - 1 : digits;
    return {token.substr(0, cut), token.substr(cut), Form::glued};
  }
  return {token, "", Form::bare};
}

// Sets the plan's word if `token` is this one.
template <class T>
bool read_line_word(const PlanWord<T>& word, const LineWord& token, T& value) {
  if (!same_word(token.name, word.key) && !same_word(token.name, word.name())) return false;
  if constexpr (!is_number<T>) {
    if (token.form == Form::glued) return false;
  }
  if constexpr (std::is_same_v<T, bool>) {
    read_text(word, token.form == Form::bare ? "true" : token.value, value);
  } else {
    read_text(word, token.value, value);
  }
  return true;
}

[[noreturn]] void unknown_plan_word(std::string_view token, std::string_view name) {
  std::vector<std::string> known;
  for_each_word([&](const auto& word) {
    known.emplace_back(word.name());
    if (word.name() != word.key) known.emplace_back(word.key);
  });
  for (const auto& [e, word] : Words<ScheduleKind>::table) known.emplace_back(word);
  throw Error(fmt::format("plan word '{}' is unknown{}; a plan reads like '{}'", token,
                          did_you_mean(name, known), to_string(ParallelPlan{})));
}

// Reads a line on top of `plan`; says which words it has.
std::vector<SaidWord> read_line(std::string_view text, ParallelPlan& plan) {
  const std::string line = lower_case(text);  // no word has capitals: "BF16" is one, too
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<SaidWord> seen;
  for (std::size_t from = line.find_first_not_of(kSpace); from != std::string_view::npos;) {
    const std::size_t to = line.find_first_of(kSpace, from);
    const std::string_view token = std::string_view(line).substr(from, to - from);
    from = line.find_first_not_of(kSpace, to);

    const LineWord parts = take_apart(token);
    std::string_view key;
    for_each_word([&](const auto& word) {
      if (read_line_word(word, parts, plan.*word.member)) key = word.key;
    });
    if (key.empty()) unknown_plan_word(token, parts.name);
    for (const SaidWord& earlier : seen) {
      if (earlier.key != key) continue;
      throw Error(fmt::format("plan word '{}' sets {} a second time; give it once", token, key));
    }
    seen.push_back({key, std::string(token)});
  }
  return seen;
}

// ---- JSON ----

template <class T>
Json json_of(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::vector<int>>) {
    return value;
  } else {
    return text_of(value);
  }
}

template <class E>
Json json_of(const EnumSet<E>& set) {
  Json list = Json::array();
  for (const auto& [e, word] : Words<E>::table) {
    if (set.has(e)) list.push_back(word);
  }
  return list;
}

// The list of `key`, or nothing when it is absent or null.
const Json* list_of(JsonReader& reader, std::string_view key) {
  if (!reader.has(key)) {
    reader.ignore({key});
    return nullptr;
  }
  const Json& list = reader.value(key);
  if (!list.is_array()) reader.fail(key, "must be a list");
  return &list;
}

void read_json(JsonReader& reader, const PlanWord<bool>& word, bool& value) {
  value = reader.boolean_or(word.key, value);
}

void read_json(JsonReader& reader, const PlanWord<std::vector<int>>& word,
               std::vector<int>& value) {
  const Json* const list = list_of(reader, word.key);
  if (list == nullptr) return;
  value.clear();
  for (const Json& item : *list) {
    // A number above 2^63 comes out negative here.
    if (!item.is_number_integer() || item.get<std::int64_t>() < 0 ||
        item.get<std::int64_t>() > kMaxDegree) {
      reader.fail(word.key, fmt::format("must list whole numbers from 0 to {}", kMaxDegree));
    }
    value.push_back(item.get<int>());
  }
}

template <class E>
void read_json(JsonReader& reader, const PlanWord<EnumSet<E>>& word, EnumSet<E>& value) {
  const Json* const list = list_of(reader, word.key);
  if (list == nullptr) return;
  value = {};
  for (const Json& item : *list) {
    if (!item.is_string()) {
      reader.fail(word.key,
                  fmt::format("must list words such as \"{}\"", Words<E>::table[1].second));
    }
    add_once(value, from_word<E>(item.get<std::string>()));
  }
}

void read_json(JsonReader& reader, const PlanWord<double>& word, double& value) {
  value = reader.number_or(word.key, 0, kMostCapacity, value);
}

template <class T>
void read_json(JsonReader& reader, const PlanWord<T>& word, T& value) {
  if constexpr (is_number<T>) {
    value = static_cast<T>(reader.integer_or(word.key, word.low, word.high, value));
  } else {
    const std::string text = reader.string_or(word.key, text_of(value));
    read_text(word, text, value);
  }
}

}  // namespace

std::string to_string(const ParallelPlan& plan, const ParallelPlan& defaults) {
  const ParallelPlan usual;
  std::string line;
  for_each_word([&](const auto& word) {
    const auto& value = plan.*word.member;
    const bool by_default = value == usual.*word.member && value == defaults.*word.member;
    if (by_default && !is_shown(plan, word.shown)) return;
    if (!line.empty()) line += ' ';
    line += line_word(word, plan.*word.member);
  });
  return line;
}

ParallelPlan parse_plan(std::string_view text, const ParallelPlan& defaults) {
  ParallelPlan plan = defaults;
  static_cast<void>(read_line(text, plan));
  return plan;
}

std::vector<SaidWord> words_said(std::string_view line) {
  ParallelPlan plan;
  return read_line(line, plan);
}

Json plan_to_json(const ParallelPlan& plan) {
  Json object = Json::object();
  for_each_word(
      [&](const auto& word) { object[std::string(word.key)] = json_of(plan.*word.member); });
  return object;
}

ParallelPlan plan_from_json(const Json& object, std::string_view path) {
  JsonReader reader(object, std::string(path));
  ParallelPlan plan;
  for_each_word([&](const auto& word) {
    try {
      read_json(reader, word, plan.*word.member);
    } catch (const Error& error) {
      const std::string sentence = error.what();
      const std::string where = reader.path_of(word.key);
      if (sentence.find(where) != std::string::npos) throw;  // the reader named the place
      throw Error(fmt::format("{}: {}", where, sentence));
    }
  });
  reader.finish();
  return plan;
}

namespace {

template <class E>
std::vector<std::string> words_of_table() {
  std::vector<std::string> words;
  for (const auto& [e, name] : Words<E>::table) words.emplace_back(name);
  return words;
}

// The values of a word that can be listed.
template <class T>
std::vector<std::string> listed_values(const PlanWord<T>& word) {
  if constexpr (std::is_enum_v<T>) {
    return words_taken(word);
  } else if constexpr (std::is_same_v<T, bool>) {
    return {"true", "false"};
  } else {
    return {};
  }
}

template <class T>
bool is_joined(const PlanWord<T>&) {
  return std::is_same_v<T, std::vector<int>>;
}

template <class E>
bool is_joined(const PlanWord<EnumSet<E>>&) {
  return true;
}

template <class E>
std::vector<std::string> listed_values(const PlanWord<EnumSet<E>>&) {
  return words_of_table<E>();
}

std::vector<std::string> listed_values(const PlanWord<Recompute>&) {
  return words_of_table<RecomputeKind>();
}

// The values that help lists behind a word's noun phrase; empty: the phrase says them.
template <class T>
std::string values_text(const PlanWord<T>& word) {
  if (std::is_same_v<T, bool>) return "";
  return fmt::format("{}", fmt::join(listed_values(word), ", "));
}

std::string values_text(const PlanWord<Recompute>&) {
  return fmt::format("none, selective[:MODULE+...], full[:LAYERS]; a MODULE is {}",
                     fmt::join(words_of_table<RecomputeModule>(), ", "));
}

}  // namespace

std::vector<WordText> word_texts() {
  const ParallelPlan defaults;
  std::vector<WordText> texts;
  for_each_word([&](const auto& word) {
    using T = typename std::decay_t<decltype(word)>::Value;
    const std::string values = values_text(word);
    texts.push_back({.key = word.key,
                     .value = word.value,
                     .help = std::string(word.help) + (values.empty() ? "" : ": ") + values,
                     .fallback = text_of(defaults.*word.member),
                     .given = word.given,
                     .is_truth = std::is_same_v<T, bool>,
                     .is_number = is_number<T>});
  });
  return texts;
}

std::vector<std::string> values_of_word(std::string_view key) {
  std::vector<std::string> values;
  for_each_word([&](const auto& word) {
    if (word.key == key) values = listed_values(word);
  });
  return values;
}

std::optional<WordBounds> bounds_of_word(std::string_view key) {
  std::optional<WordBounds> bounds;
  for_each_word([&](const auto& word) {
    if constexpr (is_number<typename std::decay_t<decltype(word)>::Value>) {
      if (word.key == key) bounds = WordBounds{word.low, word.high};
    }
  });
  return bounds;
}

bool is_joined_list(std::string_view key) {
  bool joined = false;
  for_each_word([&](const auto& word) {
    if (word.key == key) joined = is_joined(word);
  });
  return joined;
}

std::string to_string(const Recompute& recompute) {
  std::string kind(to_word(recompute.kind));
  if (recompute.kind == RecomputeKind::selective && !recompute.modules.empty()) {
    return kind + ':' + join_words(recompute.modules);
  }
  if (recompute.kind == RecomputeKind::full && recompute.layers > 0) {
    return fmt::format("{}:{}", kind, recompute.layers);
  }
  return kind;
}

Recompute parse_recompute(std::string_view text) {
  const std::size_t colon = text.find(':');
  Recompute recompute;
  recompute.kind = from_word<RecomputeKind>(text.substr(0, colon));
  if (colon == std::string_view::npos) return recompute;
  const std::string_view rest = text.substr(colon + 1);
  switch (recompute.kind) {
    case RecomputeKind::none:
      throw Error(fmt::format("recompute '{}' says both nothing and something; write none", text));
    case RecomputeKind::selective:
      recompute.modules = split_words<RecomputeModule>(rest);
      break;
    case RecomputeKind::full:
      recompute.layers =
          static_cast<int>(parse_count("the N of recompute=full:N", rest, 1, kMaxDegree));
      break;
  }
  return recompute;
}

std::string to_string(const Offload& offload) {
  std::vector<std::string> parts;
  if (offload.optimizer > 0) {
    // "{}" is the shortest text that reads back as the same double.
    parts.push_back(offload.optimizer == 1 ? "optimizer"
                                           : fmt::format("optimizer:{}", offload.optimizer));
  }
  if (offload.params) parts.emplace_back("params");
  if (offload.activation_layers != 0) {
    parts.push_back(offload.activation_layers < 0
                        ? "activations"
                        : fmt::format("activations:{}", offload.activation_layers));
  }
  if (offload.nvme) parts.emplace_back("nvme");
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ","));
}

Offload parse_offload(std::string_view text) {
  Offload offload;
  if (text == "none") return offload;
  std::vector<std::string_view> seen;
  refuse_none_beside_others("offload", text, split(text, ','));
  for (const auto part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    const bool has_amount = colon != std::string_view::npos;
    const std::string_view amount = has_amount ? part.substr(colon + 1) : std::string_view{};
    for (const auto& earlier : seen) {
      if (earlier == name) {
        throw Error(fmt::format("offload '{}' names {} twice; give it once", text, name));
      }
    }
    seen.push_back(name);
    if (name == "optimizer") {
      offload.optimizer = 1;
      if (!has_amount) continue;
      const char* const end = amount.data() + amount.size();
      const auto [stop, code] = std::from_chars(amount.data(), end, offload.optimizer);
      const bool fraction = offload.optimizer > 0 && offload.optimizer <= 1;  // false for NaN
      if (stop != end || code != std::errc{} || !fraction) {
        throw Error(fmt::format(
            "offload=optimizer:FRACTION needs a fraction above 0 and at most 1, not '{}'", amount));
      }
    } else if (name == "activations") {
      offload.activation_layers =
          has_amount ? static_cast<int>(
                           parse_count("the N of offload=activations:N", amount, 1, kMaxDegree))
                     : -1;
    } else if ((name == "params" || name == "nvme") && !has_amount) {
      (name == "params" ? offload.params : offload.nvme) = true;
    } else {
      unknown_word("offload", part,
                   {"none", "optimizer[:fraction]", "params", "activations[:layers]", "nvme"});
    }
  }
  return offload;
}

}  // namespace qplan
