#include "planner/frameworks/undecided.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/option_names.h"
#include "planner/frameworks/readers/layers.h"
#include "planner/frameworks/readers/meant_blocks.h"
#include "planner/frameworks/relations.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/scene.h"

namespace qplan {

bool is_of_refused_value(const Finding& finding) {
  return finding.rule == "bad_value" || finding.rule == "refused_value";
}

namespace {

constexpr int kMostJudgings = 400;
constexpr std::size_t kMostMixed = 16;  // with all unknown words at once
constexpr std::size_t kForPlan = 4;     // to see whether the plan is another

// Nothing: the word is not there.
using Instead = std::vector<std::optional<Json>>;

struct UnknownWord {
  std::size_t part = 0;  // of the job's
  std::string key;
  Instead instead;
};

// "--Tensor-parallel" and "tensor_parallel" are one name.
std::string bare(std::string_view name) {
  std::string letters;
  for (const char c : name.substr(name.starts_with("--") ? 2 : 0)) {
    if (c != ':') letters += c == '-' ? '_' : c;
  }
  return letters;
}

bool same_place(const Place& a, const Place& b) {
  return a.file == b.file && a.line == b.line;
}

// What is said of a word itself, whatever the others are.
bool is_of_word(const Finding& finding) {
  static constexpr std::array<std::string_view, 9> kRules{
      "bad_value",    "refused_value", "unknown_option", "stray_word",   "said_twice",
      "not_resolved", "stage_missing", "config_missing", kBranchesDecide};
  return std::find(kRules.begin(), kRules.end(), finding.rule) != kRules.end();
}

bool refuses(const Finding& finding) {
  const std::size_t name = finding.message.find(' ');
  const bool range = finding.rule == "option_needs" && finding.message.find(" must be ") == name;
  return finding.severity == Severity::error &&
         (is_of_refused_value(finding) || range || finding.rule == "unknown_option");
}

// DeepSpeed's stage where its block speaks of one and does not say which.
constexpr std::string_view kStageMissing = "stage_missing", kStage = "zero_optimization.stage";

// ---- what an unknown word may say ----

// Whether the text itself is known, and only not whether it is there.
bool is_spelled_out(const Setting& setting) {
  return setting.syntax == Syntax::words &&
         text_of(setting.value).find_first_of("$`") == std::string::npos;
}

// Whether only a run can tell the value; OmegaConf's may be the environment's.
bool is_open(const Setting& setting) {
  return !setting.resolved || (setting.syntax != Syntax::words && setting.value.is_string() &&
                               text_of(setting.value).find("${oc.env:") != std::string::npos);
}

bool has_list(const ConfigPart& part) {
  return !option_list_of(part.dialect).empty();
}

void add_numbers(std::int64_t gpus, const KnownOption* known, Instead& out) {
  constexpr std::int64_t kOfAll = 46'080;  // 2^10 * 45: what batches and lengths divide
  std::vector<std::int64_t> numbers{2, 4, 1, 8, 3, gpus, 0, kOfAll};
  for (std::int64_t n = 1; n <= std::min<std::int64_t>(gpus, 64); ++n) {
    if (gpus % n == 0) numbers.push_back(n);
  }
  std::set<std::int64_t> added;
  for (const std::int64_t n : numbers) {
    if (!added.insert(n).second) continue;
    const auto number = static_cast<double>(n);
    if (known == nullptr || (number >= known->low && number <= known->high)) out.emplace_back(n);
  }
}

void add_values(const ConfigPart& part, const std::string& key, std::int64_t gpus, Instead& out) {
  // What a Megatron-Bridge program sets is read as Megatron's flags.
  const bool bridge = part.dialect == Dialect::bridge;
  const KnownOption* const known = bridge           ? known_options("megatron").find(key)
                                   : has_list(part) ? known_option(part, key)
                                                    : nullptr;
  if (known != nullptr && !known->choices.empty()) {
    for (const std::string& choice : known->choices) out.emplace_back(Json(choice));
  } else if (known == nullptr) {
    add_numbers(gpus, known, out);
    out.insert(out.end(), {Json(true), Json(false)});
  } else if (known->arity == "0" || known->type == "bool") {
    out.emplace_back(Json(true));
    known->arity == "0" ? out.emplace_back(std::nullopt) : out.emplace_back(Json(false));
  } else if (known->type == "int") {
    add_numbers(gpus, known, out);
  } else if (known->type == "float") {
    out.insert(out.end(), {Json(0.0), Json(0.5), Json(1.0)});
  } else {
    out.emplace_back(std::nullopt);
    if (known->type.empty()) add_numbers(gpus, known, out);
  }
}

// ---- which words are unknown ----

class UnknownWords {
 public:
  UnknownWords(const JobFiles& job, std::int64_t gpus, const Findings& findings)
      : job_(job), gpus_(gpus) {
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      const ConfigPart& part = job.parts[i];
      if (part.derived) continue;
      for (const Setting& setting : part.settings) {
        if (is_open(setting) && setting.key.find('$') == std::string::npos) add(i, setting);
      }
      for (const Finding& finding : findings) {
        if (refuses(finding)) add_refused(i, finding);
        const bool stage = finding.rule == kStageMissing && part.dialect == Dialect::ds_config;
        if (stage) word(i, std::string(kStage));
      }
    }
  }

  [[nodiscard]] const std::vector<UnknownWord>& all() const { return words_; }

  // Whether a value is refused that only a run can tell.
  [[nodiscard]] bool is_of_open(const Finding& finding) const {
    if (!is_of_refused_value(finding)) return false;
    return std::any_of(open_.begin(), open_.end(), [&](const Setting* open) {
      const std::string name = open->key.substr(open->key.starts_with("--") ? 2 : 0);
      return same_place(open->place, finding.place) &&
             finding.message.find(name) != std::string::npos;
    });
  }

  // Whether a finding is of a word that is refused, whatever it should be.
  [[nodiscard]] bool is_of_refused(const Finding& finding) const {
    const std::string& rule = finding.rule;
    if (rule != "other_model" && rule != "option_needs" && rule != "launched_world") return false;
    return std::any_of(refused_.begin(), refused_.end(), [&](const Setting* refused) {
      return same_place(refused->place, finding.place) &&
             finding.message.find(refused->key) != std::string::npos;
    });
  }

 private:
  UnknownWord& word(std::size_t part, const std::string& key) {
    const auto known = std::find_if(words_.begin(), words_.end(), [&](const UnknownWord& w) {
      return w.part == part && w.key == key;
    });
    if (known != words_.end()) return *known;
    words_.push_back({part, key, {}});
    add_values(job_.parts[part], key, gpus_, words_.back().instead);
    return words_.back();
  }

  void add(std::size_t part, const Setting& setting) {
    open_.push_back(&setting);
    UnknownWord& unknown = word(part, setting.key);
    if (!is_spelled_out(setting)) return keep_given(part, setting, unknown);
    unknown.instead.insert(unknown.instead.begin(), {std::nullopt, setting.value});
  }

  // An option of a command whose value alone is unknown is given, whatever that is.
  void keep_given(std::size_t part, const Setting& setting, UnknownWord& unknown) const {
    const bool last = job_.parts[part].settings.find(setting.key) == &setting;
    if (!last || !is_given_somehow(setting)) return;
    std::erase(unknown.instead, std::optional<Json>());
    if (unknown.instead.empty()) unknown.instead.emplace_back(setting.value);
  }

  void add_refused(std::size_t at, const Finding& finding) {
    const ConfigPart& part = job_.parts[at];
    const std::string name = bare(finding.message.substr(0, finding.message.find(' ')));
    std::vector<const Setting*> named, there;
    for (const Setting& setting : part.settings) {
      if (!same_place(setting.place, finding.place)) continue;
      there.push_back(&setting);
      if (bare(setting.key) == name) named.push_back(&setting);
    }
    if (named.empty() && there.size() == 1) named = there;
    for (const Setting* const setting : named) {
      if (finding.rule != "unknown_option") {
        word(at, setting->key);
        refused_.push_back(setting);
      } else if (has_list(part)) {
        const std::string certain = certain_key(part, *setting);
        const std::string meant = certain.empty() ? nearest_key(part, *setting) : certain;
        if (meant.empty() || part.settings.has(meant)) continue;
        Instead& instead = word(at, meant).instead;
        instead.insert(instead.begin(), setting->value);
      }
    }
  }

  const JobFiles& job_;
  std::int64_t gpus_;
  std::vector<UnknownWord> words_;
  std::vector<const Setting*> refused_, open_;
};

// ---- words of a command that may be arguments ----

std::vector<std::string> flags_in(std::string_view text) {
  std::vector<std::string> flags;
  for (std::size_t at = text.find("--"); at != std::string_view::npos; at = text.find("--", at)) {
    constexpr std::string_view kLetters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    const std::size_t end = std::min(text.find_first_not_of(kLetters, at), text.size());
    flags.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return flags;
}

// "write --max-length 4": what the flag is given there.
std::optional<Json> value_behind(std::string_view text, const std::string& flag) {
  const std::size_t at = text.find(flag + " ");
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + flag.size() + 1);
  const std::string_view value = rest.substr(0, rest.find_first_of(" ,;"));
  if (value.empty() || value.starts_with('-')) return std::nullopt;
  return Json(std::string(value));
}

// Rules of the plan name its words, and no option.
bool is_of_plan(const Finding& finding) {
  return finding.source.starts_with("rule of ");
}

// Whether a rule's finding may hang on a word of the plan.
bool concerns(const Finding& finding, std::string_view word) {
  static constexpr std::array<std::string_view, 8> kDegrees{
      "tp", "pp", "cp", "ep", "vpp", "zero", "micro_batch_size", "global_batch_size"};
  return std::find(kDegrees.begin(), kDegrees.end(), word) != kDegrees.end() ||
         (!word.empty() && finding.message.find(word) != std::string::npos);
}

// Options that are not given and that the finding hangs on.
std::vector<UnknownWord> absent_words(const JobFiles& job, std::int64_t gpus,
                                      const Finding& finding) {
  std::vector<UnknownWord> words;
  for (std::size_t i = 0; i < job.parts.size(); ++i) {
    const ConfigPart& part = job.parts[i];
    if (part.open_word.empty() || part.derived || !has_list(part)) continue;
    const std::string text = finding.message + " " + finding.instead;
    std::vector<std::string> keys = flags_in(text);
    if (is_of_plan(finding)) {
      const bool swift = part.dialect == Dialect::ms_swift_megatron;
      for (const Option& option : options_of(swift ? Dialect::megatron : part.dialect)) {
        if (!concerns(finding, option.word)) continue;
        std::string key(option.key);
        if (swift) std::replace(key.begin() + 2, key.end(), '-', '_');
        keys.push_back(std::move(key));
      }
    }
    for (const std::string& key : keys) {
      if (part.settings.has(key) || known_option(part, key) == nullptr) continue;
      UnknownWord word{i, key, {}};
      if (const auto value = value_behind(text, key)) word.instead.emplace_back(value);
      add_values(part, key, gpus, word.instead);
      words.push_back(std::move(word));
    }
  }
  return words;
}

// ---- judging again ----

// The settings with a word that says something else.
Settings with_word(const ConfigPart& part, const std::string& key,
                   const std::optional<Json>& value) {
  const Setting* const last = part.settings.find(key);
  const bool refused = last != nullptr && !is_open(*last);
  Settings settings;
  for (const Setting& setting : part.settings) {
    if (setting.key == key && &setting == last && value) {
      Setting other = setting;
      other.value = *value;
      other.resolved = true;
      other.extra.clear();
      settings.add(std::move(other));
    } else if (setting.key != key || (!is_open(setting) && !refused)) {
      settings.add(setting);
    }
  }
  if (last == nullptr && value) settings.add({key, *value, part.place});
  return settings;
}

std::string without_digits(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

std::int64_t count_of(const Checked& checked, const std::string& rule) {
  return std::count_if(checked.findings.begin(), checked.findings.end(),
                       [&](const Finding& f) { return f.rule == rule; });
}

// The finding as it is said of the other job; null: it is not.
const Finding* found_again(const Finding& finding, const Checked& before, const Checked& after) {
  const bool only_one = count_of(before, finding.rule) == 1 && count_of(after, finding.rule) == 1;
  const std::string message = without_digits(finding.message);
  for (const Finding& other : after.findings) {
    if (other.rule != finding.rule || other.severity > finding.severity) continue;
    const bool one = only_one && (is_of_plan(finding) || same_place(finding.place, other.place));
    if (one || without_digits(other.message) == message) return &other;
  }
  return nullptr;
}

bool same_fix(const Correction& a, const Correction& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Edit& x, const Edit& y) {
    return x.file == y.file && x.text == y.text && (x.begin == x.end) == (y.begin == y.end);
  });
}

class Undecided {
 public:
  Undecided(const JobFiles& job, std::int64_t gpus, const JudgeJob& judge, Checked& checked)
      : job_(job),
        other_(job),
        gpus_(gpus),
        judge_(judge),
        checked_(checked),
        before_(checked),
        unknown_(job, gpus, checked.findings) {}

  void drop() {
    pass_over_blocks();
    vary(unknown_.all());
    for (std::size_t i = 0; i < checked_.findings.size(); ++i) {
      Finding& finding = checked_.findings[i];
      const bool matters = finding.severity != Severity::note || !finding.fix.empty();
      if (matters && hangs(finding)) vary_absent(finding);
    }
  }

 private:
  // Whether it may hang on a word of another place.
  [[nodiscard]] bool hangs(const Finding& finding) const {
    const bool of_reader = std::any_of(
        job_.findings.begin(), job_.findings.end(),
        [&](const Finding& f) { return f.rule == finding.rule && f.message == finding.message; });
    const bool of_word = is_of_word(finding) && !unknown_.is_of_open(finding);
    return !of_word && !of_reader && !unknown_.is_of_refused(finding);
  }

  [[nodiscard]] bool any_hangs() const {
    return std::any_of(checked_.findings.begin(), checked_.findings.end(),
                       [this](const Finding& f) { return hangs(f); });
  }

  // Nothing: the other job cannot be judged.
  std::optional<Checked> judged(
      const std::vector<std::pair<const UnknownWord*, std::size_t>>& said) {
    if (++judgings_ > kMostJudgings) return std::nullopt;
    std::vector<ConfigPart> parts = job_.parts;
    for (const auto& [word, which] : said) {
      parts[word->part].settings = with_word(parts[word->part], word->key, word->instead[which]);
    }
    other_.parts = derived_again(std::move(parts));
    try {
      return judge_(other_);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // A block whose name was misspelt is judged as the one that is meant, and read by nobody.
  void pass_over_blocks() {
    std::vector<std::string> names;
    for (const ConfigPart& part : job_.parts) {
      for (const MeantBlock& block : part.meant_blocks) names.push_back(block.written);
    }
    if (names.empty()) return;
    other_.parts = derived_again(without_blocks(job_.parts));
    ++judgings_;
    try {
      const Checked after = judge_(other_);
      keep_what_holds(after);
      if (after.plan == before_.plan && after.says_plan) return;
    } catch (const Error&) {
      // Then nothing is known of the plan without it.
    }
    checked_.undecided.insert(checked_.undecided.end(), names.begin(), names.end());
  }

  void keep_what_holds(const Checked& after) {
    std::erase_if(checked_.findings, [&](Finding& finding) {
      if (!hangs(finding)) return false;
      const Finding* const again = found_again(finding, before_, after);
      if (again == nullptr) return true;
      if (!same_fix(finding.fix, again->fix)) leave(finding);
      return false;
    });
  }

  static void leave(Finding& finding) {
    finding.fix = {};
    finding.fix.why_not = "what to write depends on a word that is not known";
  }

  // All unknown words at once, each time with others: after so many judgings each has said all that
  // it may say, and pairs of them have said many things.
  void vary(const std::vector<UnknownWord>& words) {
    std::size_t most = 0;
    for (const UnknownWord& word : words) most = std::max(most, word.instead.size());
    bool other_plan = false;
    for (std::size_t k = 0; k < std::min(most, kMostMixed); ++k) {
      if (k >= kForPlan && !any_hangs()) break;
      std::vector<std::pair<const UnknownWord*, std::size_t>> all;
      for (std::size_t i = 0; i < words.size(); ++i) {
        const std::size_t count = words[i].instead.size();
        all.emplace_back(&words[i], (k * stride_of(i, count) + i) % count);
      }
      const auto after = judged(all);
      if (!after) continue;
      other_plan = other_plan || !(after->plan == before_.plan);
      keep_what_holds(*after);
    }
    for (const UnknownWord& word : words) {
      if (other_plan && decides(word)) checked_.undecided.push_back(word.key);
    }
  }

  // Words of one number of values are not to go in step.
  static std::size_t stride_of(std::size_t word, std::size_t count) {
    constexpr std::array<std::size_t, 4> kStrides{1, 5, 7, 11};
    for (std::size_t i = 0; i < kStrides.size(); ++i) {
      const std::size_t stride = kStrides[(word + i) % kStrides.size()];
      if (std::gcd(stride, count) == 1) return stride;
    }
    return 1;
  }

  // Whether the plan is another with it.
  bool decides(const UnknownWord& word) {
    const ConfigPart& part = job_.parts[word.part];
    for (const Option& option : options_of(part.dialect)) {
      if (option.key == word.key && !option.word.empty()) return true;
    }
    for (std::size_t i = 0; i < std::min(word.instead.size(), kForPlan); ++i) {
      const auto after = judged({{&word, i}});
      if (after && !(after->plan == before_.plan)) return true;
    }
    return false;
  }

  // Words of a command may say what is not said.
  void vary_absent(Finding& finding) {
    for (const UnknownWord& word : absent_words(job_, gpus_, finding)) {
      for (std::size_t i = 0; i < word.instead.size(); ++i) {
        if (!word.instead[i]) continue;
        const auto after = judged({{&word, i}});
        if (!after || found_again(finding, before_, *after) != nullptr) continue;
        finding.severity = Severity::note;
        finding.message += fmt::format("; {} may say otherwise, which only a run can tell",
                                       shown(job_.parts[word.part].open_word));
        return leave(finding);
      }
    }
  }

  const JobFiles& job_;
  JobFiles other_;
  std::int64_t gpus_;
  const JudgeJob& judge_;
  Checked& checked_;
  const Checked before_;
  const UnknownWords unknown_;
  int judgings_ = 0;
};

}  // namespace

void drop_undecided(const JobFiles& job, std::int64_t gpus, const JudgeJob& judge,
                    Checked& checked) {
  Undecided(job, gpus, judge, checked).drop();
}

}  // namespace qplan
