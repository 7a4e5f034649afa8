#include "executor/cuda/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>

#include "executor/checkpoint.h"
#include "executor/cuda/backend.h"
#include "executor/cuda/weights.h"
#include "executor/gpu_limits.h"
#include "models/error.h"

namespace qplan {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One rank of a job on this process's GPU.
class GpuRun {
 public:
  GpuRun(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
         const RunOptions& options, const ProcessRank& process)
      : process_(process),
        options_(options),
        device_(select_device(plan, process)),
        program_(build_step_program(model, plan, recipe_of(RecipeKind::qplan), facts)),
        job_{model, plan, program_, options.optimizer},
        index_(model, plan.lora()),
        commands_(rank_program(program_, program_.grid.dense(process.rank).pp)),
        world_(meet(program_, process)),
        rank_(job_, commands_, process.rank),
        backend_(rank_, *world_, {options.timeout, plan.cuda_graph}) {
    if (!options.load.empty()) {
      loaded_.emplace(options.load, model);
      done_ = loaded_->facts();
    }
    backend_.rehearse();
    load_states(rank_, index_, options, loaded_, device_);
    rank_.step = done_.step;
  }

  RunResult run() {
    for (int stage = 0; stage < job_.plan.pp; ++stage) {
      const RankProgram p = rank_program(program_, stage);
      result_.live_peak.push_back(p.live_peak);
      result_.arena.push_back(Bytes(static_cast<double>(p.extent)));
    }
    result_.first_step = done_.step + 1;
    if (options_.keep_gradients) result_.gradients = empty_tensors(index_);
    if (options_.keep_weights) result_.weights = empty_tensors(index_);
    for (int step = 0; step < options_.steps; ++step) one_step(step);
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    result_.device_peak = Bytes(static_cast<double>(total - free));
    return std::move(result_);
  }

 private:
  static int select_device(const ParallelPlan& plan, const ProcessRank& process) {
    choose_queues(plan);
    if (process.local_rank >= gpu_count()) {
      throw DeviceError(
          fmt::format("rank {} needs GPU {} of its machine, which has {}; start one "
                      "process a GPU",
                      process.rank, process.local_rank, gpu_count()));
    }
    check(cudaSetDevice(process.local_rank));
    return process.local_rank;
  }

  // Of this process's context, which is made once.
  static void choose_queues(const ParallelPlan& plan) {
    static const bool one = takes_one_queue(plan);
    if (one && plan.pp > 1) {
      throw DeviceError(
          "this process has run a plan in one queue to the device, where stages of a pipeline wait "
          "for each other for ever; start another process");
    }
    // As many queues as a rank has lanes, or lanes would wait for each other.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", one ? "1" : "32", 1);
  }

  static std::unique_ptr<NcclWorld> meet(const StepProgram& program, const ProcessRank& process) {
    if (process.world == 1) return std::make_unique<NcclWorld>();
    ncclUniqueId id{};
    if (process.rank == 0) check(ncclGetUniqueId(&id));
    broadcast(process, std::as_writable_bytes(std::span(&id, 1)));
    return std::make_unique<NcclWorld>(program, process.rank, id);
  }

  void one_step(int step) {
    const std::vector<std::int32_t> ids = read_batch(options_, job_.plan, done_, step);
    rank_.batch = ids;
    const bool last = step + 1 == options_.steps;
    const bool timed = last && options_.keep_trace;
    std::optional<ExpertLoadLog> log;
    const std::int64_t senders = std::int64_t{job_.plan.ep} * job_.plan.etp;
    if (timed && job_.model.moe) log.emplace(commands_, senders, job_.model.moe->num_experts);
    rank_.load_log = log ? &*log : nullptr;
    const double begin = now();
    backend_.begin(timed);
    execute(commands_, backend_);
    result_.step_time.emplace_back(now() - begin);
    rank_.load_log = nullptr;
    if (log) {
      result_.expert_load =
          expert_load(log->counts(), senders, job_.model.moe->num_experts, job_.plan.ep);
    }
    if (options_.alive) options_.alive();
    if (options_.progress && process_.rank == 0) {
      options_.progress({step, result_.first_step + step, rank_.loss, rank_.mtp_loss,
                         rank_.grad_norm, result_.step_time.back()});
    }
    result_.loss.push_back(rank_.loss);
    if (job_.model.num_mtp_layers > 0) result_.mtp_loss.push_back(rank_.mtp_loss);
    result_.grad_norm.push_back(rank_.grad_norm);
    if (!std::isfinite(rank_.loss)) {
      throw DeviceError(
          fmt::format("the loss of step {} is {}; use a smaller --lr", step + 1, rank_.loss));
    }
    if (step == 0 && options_.keep_gradients) {
      collect(rank_, index_, Collected::gradients, device_arrays(), result_.gradients);
    }
    if (last && options_.keep_weights) {
      collect(rank_, index_, Collected::main_params, device_arrays(), result_.weights);
    }
    if (timed) make_trace();
    if (options_.saves_after(step)) save(step);
  }

  // Every rank writes its file, and the first one finishes the checkpoint when all have. Nobody
  // leaves before: a writer that has not finished takes what is written with it.
  void save(int step) {
    CheckpointWriter writer(options_.save, job_.model, facts_after(done_, job_.plan, step + 1));
    writer.write_rank(process_.rank, saved_states(rank_, index_, device_arrays(options_.alive)));
    backend_.meet();
    if (process_.rank == 0) writer.finish(job_.plan.world(), options_.plan_file);
    backend_.meet();
  }

  [[nodiscard]] int ranks_of(const Work& work) const {
    const auto* collective = std::get_if<Collective>(&work);
    return collective == nullptr ? 1 : program_.grid.shape(collective->axis).size;
  }

  // How long collectives of this rank, by place in the program, waited for others of their group:
  // who begins one last waits for nobody.
  [[nodiscard]] std::vector<Seconds> waits(const std::vector<CudaBackend::CommandTime>& times) {
    NcclWorld::OfGroups taken;
    std::vector<std::pair<std::size_t, std::pair<Axis, Stream>>> places;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const Command& c = commands_.commands[i];
      if (c.kind != CommandKind::op || ranks_of(c.op->work) == 1) continue;
      const std::pair key{std::get<Collective>(c.op->work).axis, c.op->stream};
      taken[key].push_back((times[i].end - times[i].begin).value());
      places.emplace_back(i, key);
    }
    world_->take_least(taken);
    std::vector<Seconds> waited(times.size());
    std::map<std::pair<Axis, Stream>, std::size_t> next;
    for (const auto& [i, key] : places) {
      const Seconds own = times[i].end - times[i].begin;
      waited[i] = std::max(own - Seconds(taken[key][next[key]++]), Seconds());
    }
    return waited;
  }

  void make_trace() {
    const auto times = backend_.times();
    const std::vector<Seconds> waited = waits(times);
    Trace& trace = result_.trace;
    trace.ranks = static_cast<int>(job_.plan.world());
    for (std::size_t i = 0; i < commands_.commands.size(); ++i) {
      const Command& c = commands_.commands[i];
      const bool op = c.kind == CommandKind::op;
      if (op && std::holds_alternative<Join>(c.op->work)) continue;
      TraceEvent e{.rank = static_cast<int>(process_.rank),
                   .pipe = c.kind == CommandKind::receive || c.kind == CommandKind::send,
                   .name = describe(rank_, c),
                   .category = op ? "op" : "send",
                   .action = c.action,
                   .begin = times[i].begin,
                   .end = times[i].end,
                   .waited = waited[i]};
      if (op) {
        e.stream = c.op->stream;
        result_.works.push_back({c.op->work, e.end - e.begin - e.waited, ranks_of(c.op->work)});
      }
      trace.end = std::max(trace.end, e.end);
      trace.events.push_back(std::move(e));
    }
  }

  const ProcessRank& process_;
  const RunOptions& options_;
  int device_;
  StepProgram program_;
  RankJob job_;
  ParameterIndex index_;
  RankProgram commands_;
  std::unique_ptr<NcclWorld> world_;
  CudaRank rank_;
  CudaBackend backend_;
  std::optional<Checkpoint> loaded_;
  CheckpointFacts done_;  // by runs before this one
  RunResult result_;
};

}  // namespace

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

namespace {

std::unique_ptr<GpuRun> make_run(const ModelSpec& model, const ParallelPlan& plan,
                                 const JobFacts& facts, const RunOptions& options,
                                 const ProcessRank& process) {
  try {
    return std::make_unique<GpuRun>(model, plan, facts, options, process);
  } catch (const OutOfDeviceMemory& error) {
    const std::string predicted = options.predicted_device
                                      ? fmt::format("; the plan was predicted to need {:.2f} GiB",
                                                    in_gib(*options.predicted_device))
                                      : "";
    throw OutOfDeviceMemory(fmt::format("rank {}: {}{}", process.rank, error.what(), predicted));
  }
}

}  // namespace

RunResult run_on_gpu(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
                     const RunOptions& options, const ProcessRank& process) {
  if (const auto reason = unexecuted_on_gpu(model, plan)) throw Error(*reason);
  if (process.world != plan.world()) {
    throw Error(fmt::format("the plan has {} ranks and {} processes were started", plan.world(),
                            process.world));
  }
  auto gpu_run = make_run(model, plan, facts, options, process);
  try {
    return gpu_run->run();
  } catch (const DeviceError&) {
    // Freeing memory and communicators would wait for kernels that wait for ranks which are gone.
    // The process is about to end, and the driver frees what it had.
    static_cast<void>(gpu_run.release());
    throw;
  }
}

}  // namespace qplan
