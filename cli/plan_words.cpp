#include "cli/plan_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "cli/job.h"
#include "models/ascii.h"
#include "models/error.h"
#include "models/plan/word_values.h"
#include "models/plan/words.h"
#include "models/program/loss.h"
#include "models/text.h"

namespace qplan {
namespace {

// One more value that a search may take of the word `key`: the one that `plan` has. Said twice, a
// value is one: the plans of a search are distinct.
void allow(SearchSpace& space, std::string_view key, const ParallelPlan& plan) {
  for_each_word([&](const auto& word) {
    if (word.key != key) return;
    const auto& value = plan.*word.member;
    if (is_of_job(word.given)) {
      space.job.*word.member = value;
      return;
    }
    auto& values = space[word.member];
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  });
}

// "q_proj, v_proj" or "q_proj v_proj" as a line has it: "q_proj+v_proj". Nothing between two commas
// stays nothing, for the plan's reader to refuse.
std::string joined_list(const std::string& text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> words;
  for (const std::string& part : split_list(text)) {
    std::size_t from = part.find_first_not_of(kBlanks);
    if (from == std::string::npos) words.emplace_back();
    while (from != std::string::npos) {
      const std::size_t to = part.find_first_of(kBlanks, from);
      words.push_back(part.substr(from, to - from));
      from = part.find_first_not_of(kBlanks, to);
    }
  }
  return fmt::format("{}", fmt::join(words, "+"));
}

// The plan with this word set; the plan's own reader says what is wrong with a value.
ParallelPlan with_word(const ParallelPlan& plan, std::string_view key, std::string value) {
  if (is_joined_list(key)) value = joined_list(value);
  // A space would start another word of the line.
  if (value.empty() || value.find_first_of(" \t\r\n=") != std::string::npos) {
    throw Error(fmt::format("'{}' is no value of {}", shown(value), key));
  }
  return parse_plan(fmt::format("{}={}", key, value), plan);
}

template <class Read>
auto naming(const std::string& option, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", option, error.what()));
  }
}

std::vector<std::string> alternatives(const WordText& word, const std::string& option,
                                      const std::string& text) {
  if (word.given != Given::listed) return {text};
  const auto bounds = bounds_of_word(word.key);
  if (!bounds) return split_list(text);
  std::vector<std::string> values;
  for (const std::int64_t n :
       read_numbers(option, text, bounds->low, bounds->high, RangeStep::one)) {
    values.push_back(fmt::format("{}", n));
  }
  return values;
}

// A switch may be given without a value where alternatives are: `--compile` is `--compile true`.
std::string value_name(const WordText& word) {
  const bool bare = word.is_truth && word.given != Given::once;
  return bare ? fmt::format("[{}]", word.value) : std::string(word.value);
}

// Of a list whose values can be listed, how several are written, too.
std::string help_of(const WordText& word) {
  const bool list = is_joined_list(word.key) && !values_of_word(word.key).empty();
  return word.help + (list ? "; several with commas between" : "");
}

ValueType type_of(const WordText& word) {
  std::vector<std::string> known = values_of_word(word.key);
  if (word.is_truth) return {.holds = Holds::truth, .known = std::move(known)};
  return {.holds = word.is_number && word.given != Given::layout ? Holds::whole : Holds::text,
          .known = std::move(known)};
}

void add_single(CommandLine& line, const WordText& word, PlanWords& words,
                const std::string& fallback) {
  const auto set = [&words, key = word.key](const std::string& option, const std::string& text) {
    naming(option, [&] { return with_word({}, key, text); });
    words[std::string(key)] = text;
  };
  line.option({option_name(word.key), value_name(word), help_of(word), fallback},
              SetOption(type_of(word), set));
}

// "none,optimizer" of a word whose values have commas themselves was meant as two values.
void refuse_alternatives(const std::string& option, const std::string& text) {
  std::vector<std::string> parts = split_list(lower_case(text));
  const auto none = std::find(parts.begin(), parts.end(), "none");
  if (parts.size() < 2 || none == parts.end()) return;
  parts.erase(none);
  throw Error(
      fmt::format("{}: none stands alone in a list; alternatives repeat the option: {} "
                  "none {} {}",
                  option, option, option, shown(fmt::format("{}", fmt::join(parts, ",")))));
}

void add_constraint(CommandLine& line, const WordText& word, SearchSpace& space) {
  const auto set = [&space, word](const std::string& option, const std::string& text) {
    if (word.given == Given::again) refuse_alternatives(option, text);
    for (const std::string& value : alternatives(word, option, text)) {
      allow(space, word.key, naming(option, [&] { return with_word({}, word.key, value); }));
    }
  };
  const bool list = word.given == Given::listed && !word.is_truth;
  const OptionText option{option_name(word.key), value_name(word) + (list ? ",..." : ""),
                          help_of(word), ""};
  // Where one value is a list already, only repetition can give several.
  if (word.given == Given::again) {
    line.repeatable(option, SetOption(type_of(word), set));
  } else {
    line.option(option, SetOption(type_of(word), set));
  }
}

bool given(const PlanWords& words, std::string_view key) {
  return words.find(key) != words.end();
}

}  // namespace

std::string option_name(std::string_view key) {
  std::string name = "--" + std::string(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

void add_job_words(CommandLine& line, PlanWords& words,
                   const std::vector<std::string_view>& without, const std::string& default_batch) {
  for (const WordText& word : word_texts()) {
    if (word.given != Given::once) continue;
    if (std::find(without.begin(), without.end(), word.key) != without.end()) continue;
    const bool batch = word.key == "global_batch_size", length = word.key == "seq_len";
    add_single(line, word, words, batch ? default_batch : length ? kDefaultLength : word.fallback);
  }
}

void add_job_word_list(CommandLine& line, std::string_view key, std::vector<std::string>& values) {
  for (const WordText& word : word_texts()) {
    if (word.key != key) continue;
    const auto set = [&values, key = word.key](const std::string& option, const std::string& text) {
      for (const std::string& value : split_list(lower_case(text))) {
        naming(option, [&] { return with_word({}, key, value); });
        if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
      }
    };
    line.option({option_name(word.key), std::string(word.value) + ",...", word.help, word.fallback},
                SetOption(type_of(word), set));
  }
}

JobDefaults set_job_words(SearchSpace& space, const PlanWords& words, const ModelSpec& model,
                          const Recipe& recipe, std::int64_t gpus,
                          std::span<const std::int64_t> worlds) {
  space.gpus = gpus;
  for (const auto& [key, value] : words) allow(space, key, with_word({}, key, value));
  if (!given(words, "lora_dtype")) {
    space.job.lora_dtype = defaults_beside(space.job, model, recipe).lora_dtype;
  }
  if (worlds.empty()) worlds = std::span(&gpus, 1);
  JobDefaults defaults = set_defaults(
      space.job, {given(words, "global_batch_size"), given(words, "seq_len")}, model, worlds);
  check_batch(space.job.global_batch_size);
  return defaults;
}

void add_plan_words(CommandLine& line, PlanWords& words) {
  for (const WordText& word : word_texts()) {
    if (word.given == Given::once) continue;
    add_single(line, word, words, word.key == "dp" ? "the rest" : "");
  }
}

void add_constraints(CommandLine& line, SearchSpace& space) {
  line.group("Search space (each takes one value, several, or a range: 4; 2,4,8; 1..3)");
  for (const WordText& word : word_texts()) {
    if (word.given != Given::once) add_constraint(line, word, space);
  }
}

ParallelPlan with_words(ParallelPlan plan, const PlanWords& words, const Recipe& recipe,
                        std::int64_t gpus, bool dp_stands) {
  const ParallelPlan before = plan;
  for (const auto& [key, value] : words) plan = with_word(plan, key, value);
  if (!given(words, "grad_dtype") && plan.precision != before.precision &&
      before.grad_dtype == default_grad_dtype(recipe, before.precision)) {
    plan.grad_dtype = default_grad_dtype(recipe, plan.precision);
  }
  if (!dp_stands && !given(words, "dp") && plan.world() != gpus) {
    // Where the other degrees do not divide the GPUs, the rule world_size says so.
    const std::int64_t others = std::int64_t{plan.tp} * plan.cp * plan.pp;
    plan.dp = static_cast<int>(std::max<std::int64_t>(1, gpus / others));
  }
  if (given(words, "vpp") && !given(words, "schedule")) {
    if (plan.vpp > 1 && plan.schedule == ScheduleKind::one_f_one_b) {
      plan.schedule = ScheduleKind::interleaved;
    } else if (plan.vpp == 1 && plan.schedule == ScheduleKind::interleaved) {
      plan.schedule = ScheduleKind::one_f_one_b;
    }
  }
  if (given(words, "tp") && !given(words, "sequence_parallel")) {
    plan.sequence_parallel = plan.tp > 1 && splits_sequence(recipe.kind);
  }
  plan.loss = loss_word(plan.loss, plan.deterministic, recipe);
  return plan;
}

bool line_says(const std::string& line, std::string_view key) {
  const std::vector<SaidWord> said = words_said(line);
  return std::any_of(said.begin(), said.end(),
                     [&](const SaidWord& word) { return word.key == key; });
}

void refuse_two_values(const std::string& line, const PlanWords& words) {
  const ParallelPlan plan = parse_plan(line);
  for (const SaidWord& said : words_said(line)) {
    const auto option = words.find(said.key);
    if (option == words.end() || with_word(plan, option->first, option->second) == plan) continue;
    throw Error(fmt::format("the plan says {} and {} says {}; give one of them", shown(said.text),
                            option_name(said.key), shown(option->second)));
  }
}

std::string in_notation(const std::string& sentence, Notation notation) {
  if (notation == Notation::file) return sentence;
  std::string text;
  for (std::size_t from = 0; from < sentence.size();) {
    std::size_t to = from;
    while (to < sentence.size() && is_name(sentence[to])) ++to;
    std::string word = sentence.substr(from, std::max<std::size_t>(1, to - from));
    from += word.size();
    for_each_word([&](const auto& row) {
      if (word != row.key) return;
      // An option's name without '_' is a word of English, too: "precision", "loss".
      const bool option = notation == Notation::options && word.find('_') != std::string::npos;
      if (notation == Notation::line) word = row.name();
      if (option) word = option_name(row.key);
    });
    text += word;
  }
  return text;
}

std::vector<std::string_view> plan_option_keys() {
  std::vector<std::string_view> keys;
  for_each_word([&](const auto& word) { keys.push_back(word.key); });
  return keys;
}

}  // namespace qplan
