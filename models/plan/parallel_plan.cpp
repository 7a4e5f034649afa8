#include "models/plan/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "models/error.h"
#include "models/json.h"
#include "models/plan/plan_values.h"
#include "models/plan/word_values.h"
#include "models/plan/words.h"
#include "models/text.h"

namespace qplan {
namespace {

using namespace plan_values;

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

}  // namespace qplan
