#pragma once
// Which plans a search looks at: the values that each word of a plan may take.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <vector>

#include "models/error.h"
#include "models/plan/parallel_plan.h"
#include "models/plan/words.h"

namespace qplan {

// A list of values for each word of the table (models/plan/words.h), empty where nobody asked:
//   choices[&ParallelPlan::tp] = {4, 8};
class PlanChoices {
 public:
  template <class T>
  std::vector<T>& operator[](T ParallelPlan::*member) {
    return list<0, std::vector<T>>(values_, member);
  }
  template <class T>
  const std::vector<T>& operator[](T ParallelPlan::*member) const {
    return list<0, const std::vector<T>>(values_, member);
  }

 private:
  template <class... Words>
  static std::tuple<std::vector<typename Words::Value>...> lists_of(const std::tuple<Words...>&);
  using Values = decltype(lists_of(kPlanWords));

  // The list beside the row of `member`, looked for from the row `Row` on.
  template <std::size_t Row, class List, class Lists, class T>
  static List& list(Lists& lists, T ParallelPlan::*member) {
    using Word = std::tuple_element_t<Row, std::decay_t<decltype(kPlanWords)>>;
    if constexpr (std::is_same_v<typename Word::Value, T>) {
      if (std::get<Row>(kPlanWords).member == member) return std::get<Row>(lists);
    }
    QPLAN_CHECK(Row + 1 < std::tuple_size_v<Values>,
                "every member of a plan is a row of its table");
    constexpr std::size_t kNext = std::min(Row + 1, std::tuple_size_v<Values> - 1);
    if constexpr (kNext > Row) return list<kNext, List>(lists, member);
    std::abort();
  }

  Values values_;
};

struct SearchSpace {
  std::int64_t gpus = 8;
  // The words that every plan of a search has alike (Given::once, Given::layout): batch, sequence,
  // precision, and whatever else belongs to the job.
  ParallelPlan job;
  // The others; empty: what the recipe offers, and the degrees that divide.
  PlanChoices choices;

  template <class T>
  std::vector<T>& operator[](T ParallelPlan::*member) {
    return choices[member];
  }
  template <class T>
  const std::vector<T>& operator[](T ParallelPlan::*member) const {
    return choices[member];
  }
};

// Words that a search takes one value of.
constexpr bool is_of_job(Given given) {
  return given == Given::once || given == Given::layout;
}

}  // namespace qplan
