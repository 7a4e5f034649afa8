#include "planner/runs/phrases.h"

#include <array>

#include "planner/runs/run_tables.h"

namespace qplan {
namespace {

constexpr std::array<std::string_view, 7> kPhraseColumns{"column", "match", "phrase", "where",
                                                         "effect", "note",  "source"};

}  // namespace

PhraseTable::PhraseTable(std::string_view tsv, std::string_view where) {
  read_run_table(tsv, where, kPhraseColumns, [this](const CsvTable::Row& row) {
    add_clue(phrases_, Phrase{read_clue(row), Effect(row.cells[4])});
  });
}

PhraseTable::Said PhraseTable::apply(std::string_view column, std::string_view text,
                                     const RunRow& row, RunInputs& in) const {
  Said said;
  for (const Phrase& phrase : phrases_) {
    if (phrase.column != column) continue;
    const auto found = phrase.pattern.find(text);
    if (!found) continue;
    said.known = true;
    if (!phrase.condition.holds(row, in)) continue;
    said.applied = true;
    phrase.effect.on_run(in, *found);
  }
  return said;
}

void PhraseTable::apply_to_model(std::string_view column, std::string_view text, const RunRow& row,
                                 RunInputs& in) const {
  for (const Phrase& phrase : phrases_) {
    if (phrase.column != column) continue;
    const auto found = phrase.pattern.find(text);
    if (found && phrase.condition.holds(row, in)) phrase.effect.on_model(in.model, *found);
  }
}

const PhraseTable& known_phrases() {
  return built_in_table<PhraseTable>("phrases");
}

}  // namespace qplan
