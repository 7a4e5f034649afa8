// The plan nearest to one that a framework's files cannot say.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/error.h"
#include "models/plan/words.h"
#include "planner/frameworks/emit.h"
#include "planner/rl/rl_step.h"
#include "planner/search/enumerate.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

using P = ParallelPlan;

// ---- other values of one word, the likely one first ----

template <auto... Members>
void set_back(P& plan, const P& defaults) {
  ((plan.*Members = defaults.*Members), ...);
}

void unplace_layers(P& plan) {
  plan.pipeline_layout.clear();
}

void unchunk(P& plan) {
  plan.vpp = 1;
  plan.schedule = ScheduleKind::one_f_one_b;
}

// The divisors of `all` but `present`: the nearest first, as ratios, of two the smaller one.
std::vector<int> nearest_degrees(std::int64_t all, int present) {
  std::vector<int> degrees = divisors(all);
  std::erase(degrees, present);
  const auto ratio = [present](int d) {
    const auto [least, most] = std::minmax(d, present);
    return static_cast<double>(most) / least;
  };
  std::stable_sort(degrees.begin(), degrees.end(),
                   [&](int a, int b) { return ratio(a) < ratio(b); });
  return degrees;
}

// Other values of a word: its default, then the others where it has a few.
template <class Word, class Visit>
void other_values(const Word& word, const P& plan, const P& defaults, Visit visit) {
  using T = typename Word::Value;
  const T present = plan.*word.member, usual = defaults.*word.member;
  const auto take = [&](const T& value) {
    if (value == present) return;
    P changed = plan;
    changed.*word.member = value;
    visit(std::move(changed), value == usual);
  };
  take(usual);
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [value, name] : Words<T>::table) {
      const bool taken = word.takes.empty() || word.takes.has(value);
      if (taken && value != usual) take(value);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    take(!usual);
  }
}

// What a step's answers make of a plan is its batch. Packing them takes a millisecond, and most
// changes leave it as it is: it is done once for all plans alike in what packing_of() reads.
class BatchOfStep {
 public:
  explicit BatchOfStep(const Subject& subject) : subject_(subject) {}

  void set_in(P& plan) const {
    if (subject_.step == nullptr || plan.dp <= 0 || plan.micro_batch_size <= 0) return;
    const Read read{plan.tp,      plan.pp,      plan.dp, plan.cp, plan.micro_batch_size,
                    plan.seq_len, plan.schedule};
    const auto [known, is_new] = sequences_.try_emplace(read, 0);
    if (is_new) known->second = packed(plan);
    plan.global_batch_size = known->second;
  }

  [[nodiscard]] std::int64_t packed(const P& plan) const {
    return packing_of(subject_.step->job, subject_.model, plan).sequences;
  }

 private:
  using Read = std::tuple<int, int, int, int, std::int64_t, std::int64_t, ScheduleKind>;
  const Subject& subject_;
  mutable std::map<Read, std::int64_t> sequences_;
};

// A plan with one word changed. The later the word, the dearer: what the plan is about goes when
// nothing else helps.
struct Change {
  int word = 0, rank = 0;  // rank: of word and value, the same whatever the plan
  P plan;
};

std::vector<Change> changes_of(const Subject& subject, const BatchOfStep& batch, const P& plan,
                               const P& defaults, std::int64_t gpus) {
  std::vector<Change> changes;
  int word = 0, value = 0;
  const auto next_word = [&] {
    ++word;
    value = 0;
  };
  const auto add = [&](P changed, int dearer = 0) {
    constexpr int kMostValues = 1 << 10;
    ++value;
    if (changed == plan) return;
    batch.set_in(changed);
    changes.push_back({word, (word + dearer) * kMostValues + value, std::move(changed)});
  };
  const auto edit = [&](auto&& change) {
    P changed = plan;
    change(changed);
    add(std::move(changed));
  };
  // Of words that give way freely, any goes back to its default before one takes another value.
  constexpr int kOtherValues = 100, kDear = 2 * kOtherValues;
  static_assert(std::tuple_size_v<decltype(kPlanWords)> < kOtherValues);
  const auto last = [&](const auto& row) {
    next_word();
    other_values(row, plan, defaults, [&](P changed, bool) { add(std::move(changed)); });
  };
  for_each_word([&](const auto& row) {
    if (row.gives_way != GivesWay::freely) return;
    next_word();
    other_values(row, plan, defaults,
                 [&](P changed, bool usual) { add(std::move(changed), usual ? 0 : kOtherValues); });
  });
  next_word();
  if (plan.lora_rank > 0) {
    edit([](P& p) {
      const bool wide = p.lora_dtype == AdapterFormat::fp32;
      p.lora_dtype = wide ? AdapterFormat::computed : AdapterFormat::fp32;
    });
  }
  word = kDear;
  // States are of one piece where a framework keeps them all in fp32.
  edit([&](P& p) {
    set_back<&P::grad_dtype, &P::main_params_dtype, &P::moment_dtype>(p, defaults);
  });
  next_word();
  for (const RecomputeKind kind :
       {RecomputeKind::full, RecomputeKind::selective, RecomputeKind::none}) {
    edit([kind](P& p) { p.recompute = {kind, {}, 0}; });
  }
  next_word();
  if (plan.offload.optimizer > 0 || plan.offload.params) {
    edit([](P& p) { p.offload = {.optimizer = 1}; });
    edit([](P& p) { p.offload = {.optimizer = 1, .params = true}; });
  }
  edit([](P& p) { p.offload = {}; });
  next_word();
  edit([&](P& p) { set_back<&P::zero>(p, defaults); });
  for (const int away : {-1, 1, -2, 2, -3, 3}) {
    const int zero = plan.zero + away;
    if (zero >= 0 && zero <= 3 && zero != defaults.zero) edit([zero](P& p) { p.zero = zero; });
  }
  last(word_of<&P::cp_comm>());
  last(word_of<&P::sequence_parallel>());
  next_word();
  edit([](P& p) { p.fsdp_shard = 0; });
  last(word_of<&P::precision>());
  next_word();
  edit(unplace_layers);
  next_word();
  edit(unchunk);
  next_word();
  edit([](P& p) {
    unplace_layers(p);
    unchunk(p);
  });
  next_word();
  const std::int64_t sequences = plan.micro_batch_size;
  for (const std::int64_t near :
       {sequences + 1, sequences - 1, 2 * sequences, sequences / 2, std::int64_t{1}}) {
    if (near > 0) edit([near](P& p) { p.micro_batch_size = near; });
  }
  // Degrees. What one gives up, or takes, is data parallelism's, and so is what a plan of fewer
  // ranks leaves idle.
  next_word();
  for (const int etp : {1, plan.tp}) edit([etp](P& p) { p.etp = etp; });
  next_word();
  const std::int64_t experts = subject.model.moe ? subject.model.moe->num_experts : 1;
  for (const int ep : nearest_degrees(experts, plan.ep)) edit([ep](P& p) { p.ep = ep; });
  const auto degree = [&](int P::*member, auto&& settle) {
    next_word();
    const std::int64_t others = plan.world() / plan.dp / plan.*member;
    const std::int64_t ranks =
        gpus % others == 0 ? gpus / others : std::int64_t{plan.dp} * plan.*member;
    for (const int ways : nearest_degrees(ranks, plan.*member)) {
      edit([&](P& p) {
        p.*member = ways;
        p.dp = static_cast<int>(ranks / ways);
        settle(p);
      });
    }
  };
  degree(&P::cp, [](P&) {});
  degree(&P::pp, [](P& p) {
    unplace_layers(p);
    if (p.pp == 1) unchunk(p);
  });
  degree(&P::tp, [](P& p) { p.sequence_parallel = p.sequence_parallel && p.tp > 1; });
  return changes;
}

// ---- the way there ----

struct Step {
  P plan;
  std::vector<int> words;  // changed so far
  std::vector<int> ranks;  // of the changes, the dearest first: cheaper ways compare less
};

// Goes on change by change, each of which ends the refusal that comes first: what no refusal is
// about stays as it is.
class Way {
 public:
  Way(Framework framework, const Subject& subject, const ClusterLimits& limits)
      : framework_(framework),
        subject_(subject),
        batch_(subject),
        limits_(limits),
        defaults_(default_plan(subject.model, recipe_of(subject.recipe), subject.plan.world(),
                               subject.plan.global_batch_size, subject.plan.seq_len)) {
    defaults_.grad_dtype = default_grad_dtype(recipe_of(subject.recipe), subject.plan.precision);
  }

  std::optional<P> shortest(const PlanFits& fits) const {
    constexpr std::size_t kMostChanges = 10, kMostFurther = 2;
    if (step_has_no_words()) return std::nullopt;
    std::vector<Step> steps{{subject_.plan, {}, {}}};
    std::optional<P> first;
    std::size_t further = 0;
    for (std::size_t changes = 0; changes < kMostChanges && !steps.empty(); ++changes) {
      std::vector<Step> refused;
      for (Step& step : after(steps)) {
        if (!refusals_of(step.plan).empty()) {
          refused.push_back(std::move(step));
          continue;
        }
        P plan = with_needless_undone(step.plan, fits);
        if (!fits || fits(plan)) return plan;
        if (!first) first = plan;
      }
      if (first && ++further > kMostFurther) break;
      steps = std::move(refused);
    }
    return first;
  }

 private:
  // A later change may have ended what an earlier one was for: its word goes back.
  [[nodiscard]] P with_needless_undone(P plan, const PlanFits& fits) const {
    for_each_word([&](const auto& row) {
      if (plan.*row.member == subject_.plan.*row.member) return;
      P back = plan;
      back.*row.member = subject_.plan.*row.member;
      batch_.set_in(back);
      if (back.world() != plan.world() || !refusals_of(back).empty()) return;
      if (!fits || fits(back) || !fits(plan)) plan = std::move(back);
    });
    return plan;
  }

  [[nodiscard]] std::vector<std::string_view> refusals_of(const P& plan) const {
    return refusals_of(plan, subject_.step);
  }

  [[nodiscard]] std::vector<std::string_view> refusals_of(const P& plan, const RlStep* step) const {
    const Subject changed{subject_.model,  subject_.config,        plan,
                          subject_.recipe, subject_.gpus_per_node, step};
    return refusals(framework_, changed, limits_);
  }

  // Whether the files lack words for the step around the plan: what is refused for its sake alone,
  // and whichever word of the plan changes. Every way from there would be tried in vain.
  [[nodiscard]] bool step_has_no_words() const {
    if (subject_.step == nullptr) return false;
    const auto without = refusals_of(subject_.plan, nullptr);
    const auto all = refusals_of(subject_.plan);
    return std::any_of(all.begin(), all.end(), [&](std::string_view refusal) {
      if (std::find(without.begin(), without.end(), refusal) != without.end()) return false;
      const auto changes = changes_of(subject_, batch_, subject_.plan, defaults_, gpus());
      return std::all_of(changes.begin(), changes.end(),
                         [&](const Change& change) { return is_refused(change.plan, refusal); });
    });
  }

  [[nodiscard]] std::int64_t gpus() const {
    return limits_.gpus > 0 ? limits_.gpus : subject_.plan.world();
  }

  [[nodiscard]] bool is_refused(const P& plan, std::string_view refusal) const {
    const auto all = refusals_of(plan);
    return std::find(all.begin(), all.end(), refusal) != all.end();
  }

  // One change further each, cheap ways first.
  [[nodiscard]] std::vector<Step> after(const std::vector<Step>& steps) const {
    constexpr std::size_t kMostSteps = 24, kMostTogether = 3, kFew = 4;
    std::vector<Step> further;
    // Where no change helps alone, two or three may.
    for (std::size_t together = 1; together <= kMostTogether && further.empty(); ++together) {
      const std::size_t count = together == 1 ? steps.size() : std::min(steps.size(), kFew);
      for (std::size_t i = 0; i < count; ++i) {
        end(refusals_of(steps[i].plan).front(), steps[i], 0, together, further);
      }
    }
    std::sort(further.begin(), further.end(),
              [](const Step& a, const Step& b) { return a.ranks < b.ranks; });
    const auto same = [](const Step& a, const Step& b) { return a.plan == b.plan; };
    further.erase(std::unique(further.begin(), further.end(), same), further.end());
    if (further.size() > kMostSteps) further.resize(kMostSteps);
    return further;
  }

  // Appends the ways on from `step` by `count` changes, of words from `from` on, that end the
  // refusal. Several at once take each word's likeliest value.
  void end(std::string_view refusal, const Step& step, int from, std::size_t count,
           std::vector<Step>& further) const {
    int before = 0;
    for (Change& change : changes_of(subject_, batch_, step.plan, defaults_, gpus())) {
      const bool likeliest = change.word != before;
      before = change.word;
      const auto& words = step.words;
      const bool changed = std::find(words.begin(), words.end(), change.word) != words.end();
      if (changed || change.word < from) continue;
      const bool alone = from == 0 && count == 1;
      if (!alone && !likeliest) continue;
      Step next{std::move(change.plan), step.words, step.ranks};
      next.words.push_back(change.word);
      next.ranks.insert(
          std::upper_bound(next.ranks.begin(), next.ranks.end(), change.rank, std::greater<>()),
          change.rank);
      if (count > 1) {
        end(refusal, next, change.word + 1, count - 1, further);
      } else if (!is_refused(next.plan, refusal)) {
        further.push_back(std::move(next));
      }
    }
  }

  Framework framework_;
  const Subject& subject_;
  BatchOfStep batch_;
  const ClusterLimits& limits_;
  P defaults_;
};

}  // namespace

bool nearest_expressible(Framework framework, const Subject& subject, const ClusterLimits& limits,
                         ParallelPlan& nearest, const PlanFits& fits) {
  // Whatever the plan, files that cannot name the model are not written.
  if (!has_files_of(framework, subject.model)) return false;
  const auto found = Way(framework, subject, limits).shortest(fits);
  if (found) nearest = *found;
  QPLAN_CHECK(!found || !subject.step || nearest.dp <= 0 ||
                  nearest.global_batch_size == BatchOfStep(subject).packed(nearest),
              "a plan's batch is what its step's answers make of it");
  return found.has_value();
}

}  // namespace qplan
