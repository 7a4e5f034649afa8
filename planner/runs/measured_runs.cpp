#include "planner/runs/measured_runs.h"

#include <fmt/format.h>

#include "models/error.h"
#include "planner/runs/row.h"
#include "planner/runs/run_columns.h"

namespace qplan {
namespace {

std::optional<Seconds> measured_time(const RunRow& row) {
  if (const auto time = row.number("step_time_s")) return Seconds(*time);
  const auto rate = row.number("tokens_per_s_per_gpu");
  const auto gpus = row.number("num_gpus"), batch = row.number("global_batch"),
             seq_len = row.number("seq_len");
  if (!rate || !gpus || !batch || !seq_len) return std::nullopt;
  return Seconds(*batch * *seq_len / (*rate * *gpus));
}

bool has_failed(const RunRow& row) {
  const std::string& status = row.text("status");
  if (!status.empty() && status != "ok" && status != "failed") row.fail("status", "ok, failed");
  return status == "failed";
}

MeasuredRun read_run(const RunRow& row) {
  MeasuredRun run;
  run.line = row.line();
  run.id = row.text("id");
  if (run.id.empty()) throw BadCell(fmt::format("{}: column id must not be empty", row.place()));
  run.grade = row.text("grade");
  run.source = run.id.substr(0, run.id.find('-'));
  run.model = row.text("model");
  run.recipe = row.text("recipe");
  run.hardware = row.text("hardware");
  run.failed = has_failed(row);
  run.step_time = measured_time(row);
  if (const auto memory = row.number("mem_gib")) run.memory = gib(*memory);
  run.memory_kind = try_from_word<MemoryKind>(row.text("mem_kind")).value_or(MemoryKind::unknown);
  return run;
}

}  // namespace

std::vector<MeasuredRun> read_measured_runs(const CsvTable& table) {
  require_run_columns(table);
  std::vector<MeasuredRun> runs;
  for (const CsvTable::Row& cells : table.rows) {
    const RunRow row(table, cells);
    MeasuredRun run = read_run(row);
    try {
      run.inputs = inputs_of_run(row, run.unknown_flags);
    } catch (const BadCell&) {
      throw;
    } catch (const Error& error) {
      run.unpriced = error.what();
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace qplan
