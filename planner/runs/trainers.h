#pragma once
// Whose runs constants were looked at beside (trainers.tsv), and how far off a prediction of
// anybody else's is.

#include <string>
#include <string_view>
#include <vector>

namespace qplan {

// One sigma: so far off lie the medians of 18 sources that nobody had predicted before, by their
// median size (docs/evidence/accuracy.md). Between the sources of known trainers it is 1.4%.
constexpr double kUnknownTrainerError = 0.16;

class TrainerTable {
 public:
  struct Trainer {
    std::string name, runs;  // runs: a file of tests/data/runs, or a source
  };

  // Throws Error with file and line for a row that is none.
  TrainerTable(std::string_view tsv, std::string_view where);

  [[nodiscard]] const std::vector<Trainer>& trainers() const { return trainers_; }
  // Whether `framework` begins with one's name, whatever the case. Nothing stated: the recipe's
  // own.
  [[nodiscard]] bool knows(std::string_view framework) const;

 private:
  std::vector<Trainer> trainers_;
};

const TrainerTable& known_trainers();  // the built-in table

}  // namespace qplan
