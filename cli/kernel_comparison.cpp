#include "cli/kernel_comparison.h"

#include <fmt/format.h>

#include "cli/page.h"
#include "costmodel/fold/replay.h"
#include "models/error.h"
#include "models/json.h"
#include "models/rank_grid.h"
#include "models/text.h"

namespace qplan {
namespace {

Seconds computing(const KernelTotals& totals) {
  return totals.busy[static_cast<std::size_t>(KernelKind::product)] +
         totals.busy[static_cast<std::size_t>(KernelKind::attention)];
}

std::string milliseconds(Seconds time) {
  return significant(time.value() * 1e3, 4);
}

std::string ratio_text(Seconds measured, Seconds predicted) {
  return predicted > Seconds(0) ? fmt::format("{:.2f}", measured / predicted) : "";
}

}  // namespace

double KernelComparison::compute_ratio() const {
  return computing(recorded.mean) / computing(predicted);
}

KernelComparison compare_kernels(std::string name, const KernelTrace& recorded,
                                 const AskedPlan& asked) {
  const std::int64_t gpus = asked.job->gpus, rank = recorded.rank.value_or(0);
  if (recorded.world.value_or(gpus) != gpus || rank < 0 || rank >= gpus) {
    throw Error(fmt::format("{} is of rank {} of {} GPUs, and the plan has {}", name, rank,
                            recorded.world.value_or(gpus), gpus));
  }
  const RankGrid grid(asked.plan, 1);  // where a rank is in the pipeline depends on no domain
  KernelComparison comparison{.name = std::move(name),
                              .recorded = recorded,
                              .pipeline_rank = grid.dense(rank).pp,
                              .predicted = {}};
  comparison.predicted = predicted_kernels(trace_step(*asked.job->cost, asked.plan, TraceGrain::op),
                                           comparison.pipeline_rank);
  return comparison;
}

std::string kernels_text(const KernelComparison& comparison) {
  const KernelTotals& recorded = comparison.recorded.mean;
  const KernelTotals& predicted = comparison.predicted;
  Table table({{"kernels", "", Align::left},
               {"recorded", "ms"},
               {"predicted", "ms"},
               {"ratio", ""},
               {"of the step", "ms"},
               {"predicted", "ms"},
               {"more", "ms"}});
  const auto row = [&](std::string_view what, const std::string& busy, const std::string& expected,
                       const std::string& ratio, Seconds alone, Seconds alone_predicted) {
    table.row({std::string(what), busy, expected, ratio, milliseconds(alone),
               milliseconds(alone_predicted),
               fmt::format("{:+.1f}", (alone - alone_predicted).value() * 1e3)});
  };
  for (const auto& [kind, word] : Words<KernelKind>::table) {
    const auto k = static_cast<std::size_t>(kind);
    if (recorded.busy[k] == Seconds(0) && predicted.busy[k] == Seconds(0)) continue;
    row(word, milliseconds(recorded.busy[k]), milliseconds(predicted.busy[k]),
        ratio_text(recorded.busy[k], predicted.busy[k]), recorded.alone[k], predicted.alone[k]);
  }
  row("no kernel", "", "", "", recorded.idle(), predicted.idle());
  row("step", "", "", ratio_text(recorded.step, predicted.step), recorded.step, predicted.step);
  return fmt::format("{}: {} step{} of pipeline rank {}, the mean\n", comparison.name,
                     comparison.recorded.steps, comparison.recorded.steps == 1 ? "" : "s",
                     comparison.pipeline_rank) +
         table.text(page().table) +
         wrapped(
             "Of the step: a moment counts for the first kind above that runs in it. Kernels of "
             "communication wait for their peers, too, and a profiler slows the launching "
             "thread: both are shown, and only products and attention correct the profile.",
             page().text);
}

Json kernels_json(const KernelComparison& comparison) {
  const KernelTotals& recorded = comparison.recorded.mean;
  const KernelTotals& predicted = comparison.predicted;
  Json kinds = Json::array();
  for (const auto& [kind, word] : Words<KernelKind>::table) {
    const auto k = static_cast<std::size_t>(kind);
    kinds.push_back({{"kind", word},
                     {"recorded_s", recorded.busy[k].value()},
                     {"predicted_s", predicted.busy[k].value()},
                     {"recorded_alone_s", recorded.alone[k].value()},
                     {"predicted_alone_s", predicted.alone[k].value()}});
  }
  return {{"name", comparison.name},
          {"steps", comparison.recorded.steps},
          {"pipeline_rank", comparison.pipeline_rank},
          {"recorded_step_s", recorded.step.value()},
          {"predicted_step_s", predicted.step.value()},
          {"recorded_idle_s", recorded.idle().value()},
          {"predicted_idle_s", predicted.idle().value()},
          {"kinds", std::move(kinds)}};
}

}  // namespace qplan
