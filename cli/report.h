#pragma once
// What is said about a plan: the object of docs/reference/contract.md 4, and the same numbers as
// text. The lists of parts here are the only ones.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/job.h"
#include "cli/job_defaults.h"
#include "models/rank_grid.h"
#include "models/text.h"
#include "planner/search/search.h"

namespace qplan {

// A part of the step time or of a stage's memory: its key in JSON, its name and letter in text.
struct TimePart {
  std::string_view key, label;
  char letter;
  Seconds TimeBreakdown::*value;
  bool communication = false;  // that no compute covers
};
std::span<const TimePart> time_parts();
Json time_json(const TimeBreakdown& time);

struct MemoryPart {
  std::string_view key, label;
  char letter;
  Bytes StageMemory::*value;
};
std::span<const MemoryPart> memory_parts();  // they sum to the peak
// What a device holds besides.
inline constexpr const char* kBesidePeak = "allocator, context and NCCL";

// The groups of ranks that a plan talks in, and the nodes each of them touches.
struct Group {
  Axis axis = Axis::tp;
  GroupShape shape;
};
std::vector<Group> groups_of(const Job& job, const ParallelPlan& plan);
std::string groups_text(const Job& job, const ParallelPlan& plan);

// Everything known about one plan. No estimate: a rule forbids it. "out_of_memory" is the rule of a
// plan that is priced and does not fit.
struct Answer {
  ParallelPlan plan;
  std::vector<Infeasible> infeasible;
  std::optional<Estimate> estimate;
  [[nodiscard]] bool feasible() const { return infeasible.empty(); }
};
Answer ask(const Job& job, const ParallelPlan& plan);

// Whether the plan's GPUs are a part of a node, whose host it then has a share of.
bool below_node(const Job& job, const ParallelPlan& plan);
// What offloaded states need of a node's memory, and what the job has of it.
std::string host_memory_text(const Job& job, const ParallelPlan& plan,
                             const MemoryEstimate& memory);

// Whether the other's time lies within the best one's interval. Both have estimates.
bool cannot_be_told(const Answer& best, const Answer& other);
// What is said behind their difference then; else nothing.
constexpr std::string_view tie_text(bool tie) {
  return tie ? ", less than the prediction can tell" : "";
}

// A plan that the framework's own files have no words for can be predicted, not emitted: the first
// reason, or nothing.
std::optional<Infeasible> why_unwritten(const Job& job, const ParallelPlan& plan);

// What stands in JSON for a model that was read as an architecture that is not its own.
Json read_as_json(const ModelSpec& model);

// What MFU is a share of: the peak in the plan's precision, or bf16's where the GPU states none of
// it. The plan has an estimate.
struct Peak {
  Precision format = Precision::bf16;
  double tflops = 0;
  double mfu_bf16 = 0;  // the same work over the bf16 peak: comparable among formats
};
Peak peak_of(const Job& job, const Answer& answer);
// "41.2%"; of another peak than bf16's with its name, and over bf16's beside it.
std::string mfu_text(const Job& job, const Answer& answer);
// The object of docs/reference/contract.md 4. Plan files are this plus embed_job().
Json report(const Job& job, const Answer& answer);

// The same keys where there is no plan at all.
Json nothing_report(const Job& job);

// Bytes of the worst rank: the largest over the stages.
Bytes largest(const MemoryEstimate& memory, Bytes StageMemory::*value);

// ---- text ----

// "qwen3-30b-a3b, 30.5B parameters (3.3B active), on 256 x h100-sxm in nodes of 8".
// `executed_on`: what ran the plan, where that is not the job's hardware.
std::string model_line(const Job& job, std::string_view executed_on = {});
std::string batch_line(const Job& job, std::int64_t global_batch_size, std::int64_t seq_len,
                       Precision precision);

// What of a plan that does not fit is too much: "80.1 GiB on the device, 4.9 GiB too much", or what
// it takes of a node's memory where the device would do.
std::string excess_text(const Job& job, const RankedPlan& smallest);

// Bars: a stage's parts against what the device offers, the step's parts against its time.
std::string memory_bar(const StageMemory& stage, Bytes capacity, int width);
std::string time_bar(const TimeBreakdown& time, int width);
// "W weights, G gradients, ..." below them.
std::string memory_legend();
std::string time_legend();

// The share of the step that no compute covers: every communication part.
double exposed_communication(const Estimate& estimate);

}  // namespace qplan
