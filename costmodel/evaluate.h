#pragma once
// The question everybody asks: what does this plan cost on this cluster? Memory and time are folded
// from the step program's blocks; blocks are built, priced and summarised once and remembered.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "models/gpus_of_kind.h"
#include "models/model_spec.h"
#include "models/program/step_program.h"

namespace qplan {

// Bytes on one pipeline stage's ranks. Parts are those alive at the stage's peak.
struct StageMemory {
  Bytes weights, gradients, optimizer;
  Bytes activations;  // kept for backward, in flight or transient
  Bytes buffers;      // named buffers the framework holds besides
  Bytes peak;         // allocated: the sum of the above
  Bytes reserved;     // what the framework's allocator takes from the driver
  Bytes device;       // as the driver shows it: context and communicators included
};

struct MemoryEstimate {
  std::vector<StageMemory> stages;  // one a pipeline rank
  int worst = 0;                    // the stage that fills most of what it may
  Bytes capacity;                   // that stage's: usable memory times the stated share
  Bytes host_per_node;              // offloaded states and activations, pinned
  Bytes host_room;                  // a node's memory, or the share of a job below a node
  [[nodiscard]] const StageMemory& worst_stage() const {
    return stages[static_cast<std::size_t>(worst)];
  }
};

// Parts of the step time on the rank that finishes last; they sum to it
// (docs/reference/contract.md 4, `time`).
struct TimeBreakdown {
  Seconds compute, recompute, tp, cp, ep, pp_bubble, pp_p2p, dp, optimizer, offload, host;
  [[nodiscard]] Seconds total() const {
    return compute + recompute + tp + cp + ep + pp_bubble + pp_p2p + dp + optimizer + offload +
           host;
  }
};

struct PricedFrom {
  double table = 0, formula = 0, assumed = 0;  // shares of the priced time
};

// Everything that is said about one plan.
struct Estimate {
  MemoryEstimate memory;
  bool fits = false;
  Bytes capacity;  // usable memory times the stated share
  Seconds step_time;
  double tokens_per_s = 0, tokens_per_s_per_gpu = 0;
  double model_tflops_per_gpu = 0, mfu = 0;
  TimeBreakdown time;
  PricedFrom priced_from;
  Seconds step_time_low, step_time_high;  // the stated 80% interval
  Bytes peak_low, peak_high;
};

// Four in five of normal errors lie within so many sigmas: those of the stated intervals.
constexpr double kIntervalSigmas = 1.28;

// Half of the stated interval over the step time.
double half_width(const Estimate& estimate);

// What makes the step time worse known, by one sigma, than its interval says.
void widen(Estimate& estimate, double sigma);

// Share of usable memory that a plan may fill (docs/reference/contract.md 4): 0.92 for experts,
// else 0.95.
double memory_share(const ModelSpec& model);

// Model FLOPs of one step by Megatron's convention: 3 x forward, causal halved, head included. Of
// weights that adapters leave frozen two of the three.
Flops step_model_flops(const ModelSpec& model, std::int64_t seq_len, std::int64_t sequences,
                       const Lora& lora = {});

struct FreeWork;
struct StageBusy;

// What no step can undercut, from compute alone.
struct StepBound {
  Seconds step;          // of this plan
  Seconds evened;        // of this plan under any pipeline layout: every rank as busy as the mean
  double imbalance = 1;  // the busiest pipeline rank over the mean
};

// One microbatch, forward and backward, on the compute stream, in units of a mean decoder layer.
struct EndWork {
  double first = 0;  // what the first stage runs besides decoder layers: embedding, vision tower
  double last = 0;   // ... and the last: prediction layers, logits, loss
  // What a decoder layer takes on each pipeline rank, where the cluster's GPUs differ; empty: one.
  std::vector<double> layer{};
};

// The GPUs of one kind in a cluster of several. Pipeline stages are placed on the kinds in order,
// so that data, tensor and expert parallelism stay within a kind and the pipeline alone crosses.
struct GpuKind {
  HardwareProfile hardware;
  std::int64_t gpus = 0;
};

// A cluster of several kinds as one machine, for what is asked of it as a whole: peaks and prices
// are means by GPUs, limits those of the least.
HardwareProfile as_one_machine(const std::vector<GpuKind>& kinds);

class CostModel {
 public:
  // The references must outlive the model. `memory_cap` zero: the GPU's usable memory.
  CostModel(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
            JobFacts facts, Bytes memory_cap = Bytes(0));
  // A cluster of several kinds; `whole` is as_one_machine() of them.
  CostModel(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& whole,
            const std::vector<GpuKind>& kinds, JobFacts facts, Bytes memory_cap = Bytes(0));
  ~CostModel();
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  // Of a cluster of several kinds; empty: all its GPUs are alike. Rules whole_stages_of_a_kind and
  // kinds_side_by_side say which plans can be priced on it.
  [[nodiscard]] const std::vector<GpusOfKind>& kinds() const { return gpus_of_kinds_; }

  // All are safe to call from several threads and give the same answer in any order.
  [[nodiscard]] MemoryEstimate memory(const ParallelPlan& plan) const;
  [[nodiscard]] bool fits(const MemoryEstimate& memory) const;
  [[nodiscard]] StepBound lower_bound(const ParallelPlan& plan) const;
  // At most lower_bound(), and the same wherever the states live: nothing that moves them takes
  // time, nor does anything slow what it runs beside.
  [[nodiscard]] StepBound own_work_bound(const ParallelPlan& plan) const;
  [[nodiscard]] EndWork end_work(const ParallelPlan& plan) const;
  [[nodiscard]] Seconds step_time(const ParallelPlan& plan) const;
  // Nothing where the step takes longer than `limit` and that is seen before its schedule is
  // simulated.
  [[nodiscard]] std::optional<Seconds> step_time_within(const ParallelPlan& plan,
                                                        Seconds limit) const;
  // A step of which nothing is trained: every microbatch's forward, and no more
  // (log-probabilities).
  [[nodiscard]] Seconds forward_time(const ParallelPlan& plan) const;
  [[nodiscard]] Estimate evaluate(const ParallelPlan& plan) const;

  [[nodiscard]] const ModelSpec& model() const { return model_; }
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] const HardwareProfile& hardware() const { return hardware_; }
  [[nodiscard]] const JobFacts& facts() const { return facts_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }

 private:
  friend class PlanSifter;
  struct Memo;
  struct PlanView;
  struct MemoryView;
  struct Seen;
  struct SeenRuns;
  // Of a view whose key is set: which blocks it runs, and then what they hold.
  void look(MemoryView& view, Seen& seen) const;
  void fold(MemoryView& view, Seen& seen) const;
  [[nodiscard]] MemoryEstimate memory(const ParallelPlan& plan, const MemoryView& view,
                                      Seen& seen) const;
  struct StageTimes;
  struct StagesOfKinds;
  template <class BusyOf>
  [[nodiscard]] StagesOfKinds stages_of_kinds(const PlanView& view, BusyOf busy_of_kind) const;
  // The model of a pipeline rank's kind of GPU; this one, where the cluster has one kind.
  [[nodiscard]] const CostModel& of_rank(const ParallelPlan& plan, int rank) const;
  [[nodiscard]] std::vector<const CostModel*> kinds_of(const ParallelPlan& plan) const;
  [[nodiscard]] StageTimes stage_times(const PlanView& view, FreeWork free) const;
  [[nodiscard]] Seconds crossing(const ParallelPlan& plan) const;
  [[nodiscard]] MemoryEstimate memory_of_kinds(const ParallelPlan& plan, const MemoryView& view,
                                               Seen& seen) const;
  [[nodiscard]] PlanView view(const ParallelPlan& plan) const;
  [[nodiscard]] StepBound own_work_bound(const PlanView& view, const SeenRuns* seen) const;
  [[nodiscard]] RankParameters parameters(const BlockShape& shape) const;
  [[nodiscard]] std::vector<StageBusy> busy(const PlanView& view) const;
  [[nodiscard]] std::vector<StageBusy> least_busy(const PlanView& view, const SeenRuns* seen) const;
  [[nodiscard]] Seconds step_time(const PlanView& view, FreeWork free) const;
  [[nodiscard]] std::optional<Seconds> step_time_within(const PlanView& view, FreeWork free,
                                                        Seconds limit) const;

  const ModelSpec& model_;
  const Recipe& recipe_;
  const HardwareProfile& hardware_;
  JobFacts facts_;
  Bytes capacity_;
  std::unique_ptr<Memo> memo_;
  struct Kind;
  std::vector<Kind> kinds_;                // of a cluster of several
  std::vector<GpusOfKind> gpus_of_kinds_;  // the same, for the rules
};

// What search asks of every plan, one thread's worth: plans that differ only in where their states
// live share the fold of their activations and the bound of their own work with the plan before,
// and plans that differ only in their schedule the blocks of all plans before.
class PlanSifter {
 public:
  explicit PlanSifter(const CostModel& cost);
  ~PlanSifter();
  PlanSifter(const PlanSifter&) = delete;
  PlanSifter& operator=(const PlanSifter&) = delete;

  struct Check {
    Bytes device_peak;
    bool fits = false;
  };
  // Whether the plan differs from the one before in more than where its states live.
  bool look_at(const ParallelPlan& plan);
  Check check(const ParallelPlan& plan);
  StepBound own_work_bound(const ParallelPlan& plan);

 private:
  const CostModel& cost_;
  std::unique_ptr<CostModel::Seen> seen_;
  std::unique_ptr<CostModel::MemoryView> last_;
};

// Of our own executor, which lays a whole step out before it begins: what is reserved is that
// arena's extent, known to the byte. Too slow for a search.
MemoryEstimate with_arena(const CostModel& cost, const ParallelPlan& plan, MemoryEstimate estimate);

// What a stage boundary costs under a plan, and whether its sender waits.
struct PipelineLinks {
  Seconds send;  // one boundary, one direction
  // ... of pipeline rank r and the next (of the last and the first), where pods make them differ;
  // empty: all take `send`.
  std::vector<Seconds> sends{};
  bool overlapped = false;  // the sender's compute does not wait for its sends
  bool host_waits = false;  // the launching thread goes on only when a message has gone or come
  Seconds stall{};          // ... and this much later, at either end
  Seconds step_overhead;    // host time between steps
  // Between two pipeline ranks side by side; the last is the first's neighbour too.
  [[nodiscard]] Seconds send_between(int a, int b) const {
    if (sends.empty()) return send;
    const auto [low, high] = std::minmax(a, b);
    return sends[static_cast<std::size_t>(high == low + 1 ? low : high)];
  }
  void send_no_faster_than(const PipelineLinks& other);
};
PipelineLinks pipeline_links(const CostModel& cost, const ParallelPlan& plan, const RankGrid& grid);

// Buffers that a framework holds besides the program, each with its name and reason.
struct NamedReserve {
  std::string_view name;
  Bytes bytes;
};
std::vector<NamedReserve> framework_reserves(const ModelSpec& model, const ParallelPlan& plan,
                                             const Recipe& recipe, const HardwareProfile& hardware);

// How many NCCL communicators a rank opens.
int communicator_count(const ParallelPlan& plan);

// Device memory beside the program: CUDA context, communicators, libraries' workspaces.
Bytes outside_bytes(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                    const HardwareProfile& hardware);

}  // namespace qplan
