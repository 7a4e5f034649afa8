#pragma once
// The step program: one training step as a value. Search prices it, the memory model folds it, the
// timeline draws it, the executor runs it.

#include <cstdint>
#include <functional>
#include <vector>

#include "models/image_layout.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/block.h"
#include "models/program/blocks.h"
#include "models/program/recipe.h"
#include "models/program/schedule.h"
#include "models/rank_grid.h"

namespace qplan {

// `count` consecutive layers of one kind.
struct Run {
  BlockShape shape;
  int count = 1;
};

// What one virtual stage holds, in forward order; backward walks it in reverse.
using StageRuns = std::vector<Run>;

// Facts of the job that are not the plan's.
struct JobFacts {
  double moe_imbalance = 1.2;  // busiest / mean expert rank, under natural routing
  double active_experts = 1;   // share of the experts that get tokens, under natural routing
  SequenceImages images{};     // of a vision-language sequence
  int nvlink_domain = 8;       // consecutive ranks joined by NVLink
  PodLevels pods{};            // of the network above nodes
  bool turns_fp8 = true;       // fp8 products need transposed copies (blocks.h)
};

// Where the ranks of a plan are.
RankGrid rank_grid(const ParallelPlan& plan, const JobFacts& facts);

// Pieces of the model a pipeline rank holds: vpp, or 2 for zbv. (dualpipe's second stage of a rank
// is a copy of another rank's.)
int chunks_per_rank(const ParallelPlan& plan);

// The schedule of a plan. Expert-parallel overlap pairs steady forwards with backwards; dualpipe
// always does.
ScheduleShape schedule_shape(const ParallelPlan& plan, const Recipe& recipe);

// Decoder layers of each piece of the model, in order. An empty layout is even; where layers do not
// divide, embedding and loss count as a layer each (Megatron's --account-for-*), and stages differ
// by at most one.
std::vector<int> stage_layers(const ModelSpec& model, const ParallelPlan& plan);

// The virtual stages, copies included; most are alike, so the distinct ones are held once.
struct StageList {
  std::vector<StageRuns> distinct;
  std::vector<int> of_stage;  // virtual stage -> its place in `distinct`
  [[nodiscard]] const StageRuns& runs(std::size_t stage) const {
    return distinct[static_cast<std::size_t>(of_stage[stage])];
  }
};

// The runs of every virtual stage. `base` is base_shape() of the plan; `parameters_of` says what
// rank_parameters() does, and may remember it.
using ParametersOf = std::function<RankParameters(const BlockShape&)>;
StageList stage_list(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                     const BlockShape& base, const JobFacts& facts,
                     const ParametersOf& parameters_of);
StageList stage_list(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                     const BlockShape& base, const JobFacts& facts);

// Bytes of one microbatch's activations at a stage boundary, as sent.
Bytes boundary_bytes(const ModelSpec& model, const BlockShape& base);
// Bytes of the buffer in which our executor leaves what it sends to a neighbour: the step goes on
// while the neighbour has not come to take it.
Bytes message_buffer_bytes(const ModelSpec& model, const BlockShape& base, const Recipe& recipe);

using BlockId = int;

struct Stage {
  struct Part {
    BlockId block = 0;
    int count = 1;
  };
  std::vector<Part> runs;
};

struct StepProgram {
  std::vector<Block> blocks;       // the distinct ones
  std::vector<BlockShape> shapes;  // what each was built from
  std::vector<Stage> stages;       // virtual stages (schedule.h)
  BlockId edge = 0;                // the step edge, once a rank
  ScheduleShape schedule;
  std::vector<std::vector<Action>> actions;  // one list a pipeline rank
  RankGrid grid;
  Bytes boundary;                  // of a stage boundary
  Bytes message_buffer;            // of each link of a rank, out or in, for the whole step
  bool reduce_overlapped = false;  // reductions run beside the last backward
  bool gather_overlapped = false;  // parameter gathers run beside the next step's first forward
};

StepProgram build_step_program(const ModelSpec& model, const ParallelPlan& plan,
                               const Recipe& recipe, const JobFacts& facts);

// Changes when anything that is executed or priced changes.
std::uint64_t fingerprint(const StepProgram& program);

// Which ops of a block an action (or the step's end) runs, as one straight line.
enum class Part : std::uint8_t {
  forward,
  forward_first,  // _first: parameter gather, then forward
  backward,
  backward_last,  // _last: backward, then gradient reduction
  backward_input,
  backward_weight,
  backward_weight_last,
  reduce,
  reduce_beside,  // beside compute of other blocks, which gives way
  clear,
  norm,
  update
};
inline constexpr int kPartCount = 12;
OpList part_ops(const Block& block, Part part);

// The part of a stage that an action runs.
Part part_of(const Action& action, bool gather_overlapped, bool reduce_overlapped);
bool runs_backward(Part part);  // walks a stage's runs in reverse

// Zero-bubble's split (section 12 of the design): W is the backward ops from which only gradients
// are reachable, B the rest.
struct BackwardSplit {
  OpList input, weight;
};
BackwardSplit split_backward(const Block& block);

}  // namespace qplan
