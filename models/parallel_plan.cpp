#include "models/parallel_plan.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "models/error.h"
#include "models/json.h"
#include "models/plan_text.h"

namespace qplan {
namespace {

// When the one-line form shows a word.
enum class Shown : std::uint8_t { if_changed, always, if_pipelined, if_expert_parallel };

// A word of a plan. Numbers with a brief name are glued to it ("tp4"), everything else is
// name=value; a switch that is on is its bare name.
struct Word {
  std::string_view key;    // in JSON, and accepted in the line
  std::string_view brief;  // in the line; empty: the key
  Shown shown = Shown::if_changed;
  std::int64_t low = 1, high = 1;  // of numbers

  [[nodiscard]] std::string_view name() const { return brief.empty() ? key : brief; }
};

// Upper bounds far above any machine whose products still fit 63 bits: tp*cp*pp*dp < 2^59,
// sequences x tokens <= 2^60.
constexpr std::int64_t kMaxDataDegree = 1 << 20;
constexpr std::int64_t kMaxCount = 1 << 30;

// The one list of a plan's words; printing and parsing, line and JSON, all walk it. `visit` is
// called with a Word and a pointer to member.
template <class Visit>
void for_each_word(Visit&& visit) {
  using P = ParallelPlan;
  using enum Shown;
  visit(Word{"tp", "tp", always, 1, kMaxDegree}, &P::tp);
  visit(Word{"pp", "pp", always, 1, kMaxDegree}, &P::pp);
  visit(Word{"dp", "dp", always, 1, kMaxDataDegree}, &P::dp);
  visit(Word{"cp", "cp", if_changed, 1, kMaxDegree}, &P::cp);
  visit(Word{"ep", "ep", if_expert_parallel, 1, kMaxDegree}, &P::ep);
  visit(Word{"etp", "etp", if_expert_parallel, 1, kMaxDegree}, &P::etp);
  visit(Word{"zero", "zero", always, 0, 3}, &P::zero);
  visit(Word{"fsdp_shard", "", if_changed, 0, kMaxDataDegree}, &P::fsdp_shard);
  visit(Word{"micro_batch_size", "mbs", always, 1, kMaxCount}, &P::micro_batch_size);
  visit(Word{"global_batch_size", "gbs", always, 1, kMaxCount}, &P::global_batch_size);
  visit(Word{"seq_len", "seq", always, 1, kMaxCount}, &P::seq_len);
  visit(Word{"document_len", "doc", if_changed, 0, kMaxCount}, &P::document_len);
  visit(Word{"schedule", "", if_pipelined}, &P::schedule);
  visit(Word{"vpp", "vpp", if_changed, 1, kMaxDegree}, &P::vpp);
  visit(Word{"pipeline_layout", "layout"}, &P::pipeline_layout);
  visit(Word{"sequence_parallel", "sp"}, &P::sequence_parallel);
  visit(Word{"cp_comm", ""}, &P::cp_comm);
  visit(Word{"attention_backend", ""}, &P::attention_backend);
  visit(Word{"dropout", ""}, &P::dropout);
  visit(Word{"precision", ""}, &P::precision);
  visit(Word{"recompute", ""}, &P::recompute);
  visit(Word{"offload", ""}, &P::offload);
  visit(Word{"moe_dispatcher", ""}, &P::moe_dispatcher);
  visit(Word{"routing", ""}, &P::routing);
  visit(Word{"moe_capacity_factor", "capacity"}, &P::moe_capacity_factor);
  visit(Word{"moe_token_drop_policy", "drop"}, &P::moe_token_drop_policy);
  visit(Word{"moe_permute_fusion", ""}, &P::moe_permute_fusion);
  visit(Word{"fp8_param_gather", ""}, &P::fp8_param_gather);
  visit(Word{"grad_dtype", ""}, &P::grad_dtype);
  visit(Word{"main_params_dtype", ""}, &P::main_params_dtype);
  visit(Word{"moment_dtype", ""}, &P::moment_dtype);
  visit(Word{"overlap", ""}, &P::overlap);
  visit(Word{"cuda_graph", ""}, &P::cuda_graph);
  visit(Word{"cuda_graph_scope", ""}, &P::cuda_graph_scope);
  visit(Word{"compile", ""}, &P::compile);
  visit(Word{"deterministic", ""}, &P::deterministic);
  visit(Word{"loss", ""}, &P::loss);
}

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

template <class E>
EnumSet<E> split_words(std::string_view text) {
  EnumSet<E> set;
  for (const auto part : split(text, '+')) add_once(set, from_word<E>(part));
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

std::string text_of(const EnumSet<OverlapKind>& set) {
  return set.empty() ? "none" : join_words(set);
}

std::string text_of(const std::vector<int>& layout) {
  return layout.empty() ? "even" : layout_text(layout);
}

void read_text(const Word& word, std::string_view text, bool& value) {
  if (text != "true" && text != "false") {
    throw Error(fmt::format("{} must be true or false, not '{}'", word.name(), text));
  }
  value = text == "true";
}

void read_text(const Word& word, std::string_view text, double& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const bool within = value >= 0 && value <= kMostCapacity;  // false for NaN
  if (text.empty() || stop != end || code != std::errc{} || !within) {
    throw Error(fmt::format("{} must be a number from 0 to {}, not '{}'", word.name(),
                            kMostCapacity, text));
  }
}

template <class T>
void read_text(const Word& word, std::string_view text, T& value) {
  if constexpr (is_number<T>) {
    value = static_cast<T>(parse_count(word.name(), text, word.low, word.high));
  } else {
    value = from_word<T>(text);
  }
}

void read_text(const Word&, std::string_view text, Recompute& value) {
  value = parse_recompute(text);
}

void read_text(const Word&, std::string_view text, Offload& value) {
  value = parse_offload(text);
}

void read_text(const Word&, std::string_view text, EnumSet<OverlapKind>& value) {
  value = text == "none" ? EnumSet<OverlapKind>{} : split_words<OverlapKind>(text);
}

void read_text(const Word&, std::string_view text, std::vector<int>& value) {
  value = text == "even" ? std::vector<int>{} : parse_layout(text);
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
std::string line_word(const Word& word, const T& value) {
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
bool read_line_word(const Word& word, const LineWord& token, T& value) {
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
  for_each_word([&](const Word& word, auto) {
    known.emplace_back(word.name());
    if (word.name() != word.key) known.emplace_back(word.key);
  });
  for (const auto& [e, word] : Words<ScheduleKind>::table) known.emplace_back(word);
  throw Error(fmt::format("plan word '{}' is unknown{}; a plan reads like '{}'", token,
                          did_you_mean(name, known), to_string(ParallelPlan{})));
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

Json json_of(const EnumSet<OverlapKind>& set) {
  Json list = Json::array();
  for (const auto& [e, word] : Words<OverlapKind>::table) {
    if (set.has(e)) list.push_back(word);
  }
  return list;
}

// The list of `key`, or nothing when it is absent or null.
const Json* list_of(JsonReader& reader, const Word& word) {
  if (!reader.has(word.key)) {
    reader.ignore({word.key});
    return nullptr;
  }
  const Json& list = reader.value(word.key);
  if (!list.is_array()) reader.fail(word.key, "must be a list");
  return &list;
}

void read_json(JsonReader& reader, const Word& word, bool& value) {
  value = reader.boolean_or(word.key, value);
}

void read_json(JsonReader& reader, const Word& word, std::vector<int>& value) {
  const Json* const list = list_of(reader, word);
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

void read_json(JsonReader& reader, const Word& word, EnumSet<OverlapKind>& value) {
  const Json* const list = list_of(reader, word);
  if (list == nullptr) return;
  value = {};
  for (const Json& item : *list) {
    if (!item.is_string()) reader.fail(word.key, "must list words such as \"grad\"");
    add_once(value, from_word<OverlapKind>(item.get<std::string>()));
  }
}

void read_json(JsonReader& reader, const Word& word, double& value) {
  value = reader.number_or(word.key, 0, kMostCapacity, value);
}

template <class T>
void read_json(JsonReader& reader, const Word& word, T& value) {
  if constexpr (is_number<T>) {
    value = static_cast<T>(reader.integer_or(word.key, word.low, word.high, value));
  } else {
    const std::string text = reader.string_or(word.key, text_of(value));
    read_text(word, text, value);
  }
}

}  // namespace

std::string to_string(const ParallelPlan& plan) {
  const ParallelPlan defaults;
  std::string line;
  for_each_word([&](const Word& word, auto member) {
    if (plan.*member == defaults.*member && !is_shown(plan, word.shown)) return;
    if (!line.empty()) line += ' ';
    line += line_word(word, plan.*member);
  });
  return line;
}

ParallelPlan parse_plan(std::string_view line, const ParallelPlan& defaults) {
  constexpr std::string_view kSpace = " \t\r\n";
  ParallelPlan plan = defaults;
  std::vector<std::string_view> seen;  // keys
  for (std::size_t from = line.find_first_not_of(kSpace); from != std::string_view::npos;) {
    const std::size_t to = line.find_first_of(kSpace, from);
    const std::string_view token = line.substr(from, to - from);
    from = line.find_first_not_of(kSpace, to);

    const LineWord parts = take_apart(token);
    std::string_view key;
    for_each_word([&](const Word& word, auto member) {
      if (read_line_word(word, parts, plan.*member)) key = word.key;
    });
    if (key.empty()) unknown_plan_word(token, parts.name);
    for (const auto& earlier : seen) {
      if (earlier != key) continue;
      throw Error(fmt::format("plan word '{}' sets {} a second time; give it once", token, key));
    }
    seen.push_back(key);
  }
  return plan;
}

Json plan_to_json(const ParallelPlan& plan) {
  Json object = Json::object();
  for_each_word([&](const Word& word, auto member) {
    object[std::string(word.key)] = json_of(plan.*member);
  });
  return object;
}

ParallelPlan plan_from_json(const Json& object, std::string_view path) {
  JsonReader reader(object, std::string(path));
  ParallelPlan plan;
  for_each_word([&](const Word& word, auto member) {
    try {
      read_json(reader, word, plan.*member);
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

std::string to_string(const Recompute& recompute) {
  const std::string kind(to_word(recompute.kind));
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
