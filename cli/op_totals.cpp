#include "cli/op_totals.h"

#include <algorithm>

namespace qplan {
namespace {

template <class Counts>
OpTotals totals_of(const Trace& trace, Counts counts) {
  OpTotals totals;
  for (const TraceEvent& event : trace.events) {
    // Messages are no ops, nor what takes them from their buffers on the compute stream.
    if (event.pipe || event.category == "send" || !counts(event.rank)) continue;
    KindTotals& kind = totals[event.name.substr(0, event.name.find(' '))];
    ++kind.ops;
    kind.time += event.end - event.begin - event.waited;
    kind.waited += event.waited;
  }
  return totals;
}

}  // namespace

bool OpComparison::same_ops() const {
  return std::equal(predicted.begin(), predicted.end(), executed.begin(), executed.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && a.second.ops == b.second.ops;
                    });
}

std::vector<std::string> OpComparison::kinds() const {
  std::set<std::string> all;
  for (const OpTotals* totals : {&predicted, &executed}) {
    for (const auto& [kind, total] : *totals) all.insert(kind);
  }
  return {all.begin(), all.end()};
}

OpComparison compare_ops(const Trace& predicted, const Trace& executed, const RankGrid& grid) {
  const auto first = [&](int rank) {
    const auto at = grid.dense(rank);
    return at.tp == 0 && at.cp == 0 && at.dp == 0;
  };
  OpComparison c;
  for (const TraceEvent& event : executed.events) {
    if (first(event.rank)) c.pipeline_ranks.insert(grid.dense(event.rank).pp);
  }
  c.executed = totals_of(executed, first);
  c.predicted = totals_of(predicted, [&](int rank) { return c.pipeline_ranks.contains(rank); });
  return c;
}

}  // namespace qplan
