#pragma once
// What published tables of runs mean by their phrases (phrases.tsv): a line of a CSV column, when
// it holds, and what follows, each with its source.

#include <string_view>
#include <vector>

#include "planner/runs/clue.h"
#include "planner/runs/effect.h"

namespace qplan {

struct Phrase : Clue {
  Effect effect;
};

class PhraseTable {
 public:
  // Throws Error with file and line for a row that is none: an unknown column, match, condition or
  // effect, no source, or one that stands there twice.
  PhraseTable(std::string_view tsv, std::string_view where);

  [[nodiscard]] const std::vector<Phrase>& phrases() const { return phrases_; }

  // What phrases of a column say of a text: the row's cell, or a word of it.
  struct Said {
    bool known = false, applied = false;  // a phrase is found; its condition holds, too
  };
  Said apply(std::string_view column, std::string_view text, const RunRow& row,
             RunInputs& in) const;
  Said apply(std::string_view column, const RunRow& row, RunInputs& in) const {
    return apply(column, row.text(column), row, in);
  }
  // ... of the model, before there is a plan.
  void apply_to_model(std::string_view column, std::string_view text, const RunRow& row,
                      RunInputs& in) const;

 private:
  std::vector<Phrase> phrases_;
};

const PhraseTable& known_phrases();  // the built-in table

}  // namespace qplan
