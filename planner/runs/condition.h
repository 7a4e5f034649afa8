#pragma once
// What else must hold of a run for a phrase to mean what its table says: "recipe=fsdp1",
// "mla; !release<25.11; nvlink_domain>=72".

#include <functional>
#include <string_view>
#include <vector>

#include "planner/runs/row.h"
#include "planner/runs/run_inputs.h"

namespace qplan {

// Terms divided by "; ", all of which must hold; '!' before one: it must not. No terms: always.
//   COLUMN=TEXT, COLUMN~TEXT      the row's cell is the text, holds it
//   recipe=WORD|WORD              the run is predicted as one of these
//   release<25.11                 the month that the row names (releases.tsv); none named: false
//   compute_capability>=100       ... also nvlink_domain and memory_gib, of the run's machine
//   moe, mla, hybrid              the model has experts, latent attention, layers of Mamba-2
//   zero1                         any other word: one of a plan's line, which the plan has already
// Numbers are compared by <, >= and =.
class Condition {
 public:
  explicit Condition(std::string_view terms);  // throws Error naming the term that is none
  [[nodiscard]] bool holds(const RunRow& row, const RunInputs& in) const;

 private:
  using Test = std::function<bool(const RunRow&, const RunInputs&)>;
  static Test read_term(std::string_view term);
  std::vector<Test> terms_;
};

}  // namespace qplan
