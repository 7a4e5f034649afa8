#pragma once
// What a row of the table of a plan's words says (words.h has the table).

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "models/enum_set.h"
#include "models/plan/parallel_plan.h"
#include "models/plan/recipe_kind.h"

namespace qplan {

// When the one-line form shows a word.
enum class Shown : std::uint8_t { if_changed, always, if_pipelined, if_expert_parallel };

// How the command line takes a word, and what a search does with it.
enum class Given : std::uint8_t {
  once,    // one value for the whole job: every plan of a search has it
  listed,  // alternatives as a list: "1,2,4", "1..3", "none,full"
  again,   // a value has commas itself; alternatives repeat the option
  layout   // one list of numbers, for every plan of a search
};

// What a word can change of a step. Plans that agree in all words that touch `work` or `buffers`
// hold the same buffers in forward and backward, so that a search folds them once; the others only
// move states around.
enum class Touches : std::uint8_t { work, buffers, states };
inline constexpr EnumSet<Touches> kWork = set_of(Touches::work, Touches::buffers);
inline constexpr EnumSet<Touches> kStates = set_of(Touches::states);
inline constexpr EnumSet<Touches> kAll = kWork | kStates;

// Where a framework's files cannot say a plan, `emit` looks for the nearest plan that they can: it
// sets words back to their default, those that give way freely first. `last`: the word is what the
// plan is about, and has a place of its own in emit's list; `never`: it belongs to the job.
enum class GivesWay : std::uint8_t { freely, last, never };

// Of words that not every framework has: who has it, and what to say to the others.
struct SaidBy {
  RecipeSet recipes = kEvery;
  std::string_view rule;     // its id
  std::string_view lacks;    // "fsdp2 has no ..."
  std::string_view instead;  // "leave ... out"
  std::string_view source;
};

struct NoChoice {};

template <class T>
struct PlanWord {
  using Value = T;
  std::string_view key;  // in JSON, and accepted in the line
  T ParallelPlan::*member;
  std::string_view brief{};        // in the line; empty: the key. Numbers are glued to it ("tp4")
  std::int64_t low = 1, high = 1;  // of numbers
  std::conditional_t<std::is_enum_v<T>, EnumSet<T>, NoChoice> takes{};  // empty: every enumerator
  std::string_view value{};  // on the command line: what stands for one value
  std::string_view help{};   // a noun phrase; the values follow it by themselves
  Shown shown = Shown::if_changed;
  Given given = Given::listed;
  EnumSet<Touches> touches = kWork;
  GivesWay gives_way = GivesWay::freely;
  // Other kernels, launches or copies for the same numbers: a search leaves it as its recipe has
  // it, and tries it on the plan that it found (planner/search/untried.h).
  bool setting = false;
  SaidBy said_by{};

  [[nodiscard]] constexpr std::string_view name() const { return brief.empty() ? key : brief; }
};

// Upper bounds far above any machine whose products still fit 63 bits: tp*cp*pp*dp < 2^59,
// sequences x tokens <= 2^60.
inline constexpr std::int64_t kMaxDataDegree = 1 << 20;
inline constexpr std::int64_t kMaxCount = 1 << 30;

// Whether two members are the same one, whatever their types.
template <class A, class B>
constexpr bool is_member(A ParallelPlan::*a, B ParallelPlan::*b) {
  if constexpr (std::is_same_v<A, B>) {
    return a == b;
  } else {
    return false;
  }
}

template <class T, class... Members>
constexpr bool is_any_of(T ParallelPlan::*member, Members... members) {
  return (is_member(member, members) || ...);
}

}  // namespace qplan
