#include "executor/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "executor/checkpoint.h"
#include "executor/cpu/backend.h"
#include "executor/cpu/world.h"
#include "executor/interpreter.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {
namespace {

// One job: the ranks' threads and what they share.
class CpuRun {
 public:
  CpuRun(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
         const RunOptions& options)
      : program_(build_step_program(model, plan, recipe_of(RecipeKind::qplan), facts)),
        job_{.model = model,
             .plan = plan,
             .program = program_,
             .optimizer = options.optimizer,
             .pixels = options.images},
        options_(options),
        index_(model, plan.lora()),
        world_(static_cast<int>(plan.world())) {
    if (model.vision) job_.images.emplace(model, plan.seq_len, facts.images);
    if (plan.optimizer != OptimizerKind::adam && !(options.load.empty() && options.save.empty())) {
      throw Error(
          fmt::format("checkpoints hold AdamW's moments, and the plan's optimizer is {}; "
                      "leave --load and --save out, or use optimizer=adam",
                      to_word(plan.optimizer)));
    }
    for (int stage = 0; stage < plan.pp; ++stage)
      programs_.push_back(rank_program(program_, stage));
    weights_ = options.weights;
    if (!options.load.empty()) {
      loaded_.emplace(options.load, model, trained_by(plan));
      done_ = loaded_->facts();
      weights_ = weights_of(*loaded_, options.weights);
    }
    for (std::int64_t r = 0; r < plan.world(); ++r) {
      const auto stage = static_cast<std::size_t>(program_.grid.dense(r).pp);
      ranks_.push_back(std::make_unique<CpuRank>(job_, programs_[stage], r));
    }
  }

  RunResult run() {
    result_.loss.resize(static_cast<std::size_t>(options_.steps));
    result_.grad_norm.resize(result_.loss.size());
    if (job_.model.num_mtp_layers > 0) result_.mtp_loss.resize(result_.loss.size());
    result_.step_time.assign(result_.loss.size(), Seconds(0));
    arrived_.assign(result_.loss.size(), 0);
    if (options_.keep_gradients) result_.gradients = empty_tensors(index_);
    if (options_.keep_weights) result_.weights = empty_tensors(index_);
    for (const RankProgram& p : programs_) {
      result_.live_peak.push_back(p.live_peak);
      result_.arena.push_back(Bytes(static_cast<double>(p.extent)));
    }
    result_.first_step = done_.step + 1;
    {
      std::vector<std::jthread> threads;
      for (const auto& rank : ranks_) threads.emplace_back([this, &rank] { thread(*rank); });
      watch();
    }
    if (const std::string failure = world_.failure(); !failure.empty()) throw Error(failure);
    return std::move(result_);
  }

 private:
  using Batch = std::vector<std::int32_t>;

  // Read by the first rank that begins a step, and kept until the last one ends it.
  std::shared_ptr<const Batch> batch_of(int step) {
    const std::lock_guard lock(batch_mutex_);
    if (auto known = batches_[step].lock()) return known;
    auto batch = std::make_shared<const Batch>(read_batch(options_, job_.plan, done_, step));
    std::erase_if(batches_, [](const auto& entry) { return entry.second.expired(); });
    batches_[step] = batch;
    return batch;
  }

  // Until all ranks have ended; fails the run when none ends a step in time.
  void watch() {
    std::unique_lock lock(result_mutex_);
    const std::chrono::duration<double> limit(options_.timeout.value());
    while (ended_ < job_.plan.world()) {
      const std::int64_t seen = progress_;
      if (progressed_.wait_for(lock, limit, [&] { return progress_ != seen; })) continue;
      world_.fail(fmt::format("no rank ended a step within {}; give more with --timeout",
                              human_seconds(options_.timeout)));
      return;
    }
  }
  void tell_progress(bool ends) {
    const std::lock_guard lock(result_mutex_);
    ++progress_;
    ended_ += ends ? 1 : 0;
    progressed_.notify_all();
  }

  void thread(CpuRank& rank) {
    try {
      for (int i = 0; i < std::ssize(rank.commands.instances); ++i) {
        load_weights(rank, index_, i, weights_, host_arrays());
        if (loaded_) load_moments(rank, index_, i, *loaded_, host_arrays());
      }
      rank.step = done_.step;
      CpuBackend::Options options;
      if (options_.shuffle)
        options.shuffle = *options_.shuffle + static_cast<std::uint64_t>(rank.rank);
      if (options_.before) {
        options.before = [this, &rank](std::size_t i) { options_.before(rank.rank, i); };
      }
      CpuBackend backend(rank, world_, options);
      for (int step = 0; step < options_.steps; ++step) {
        const auto batch = batch_of(step);
        rank.batch = *batch;
        rank.first_sequence = done_.sequences + step * job_.plan.global_batch_size;
        rank.begin_step();
        execute(rank.commands, backend);
        after_step(rank, backend, step);
        if (options_.saves_after(step)) save(rank);
        tell_progress(/*ends=*/false);
      }
    } catch (const Stopped&) {
    } catch (const std::exception& error) {
      world_.fail(error.what());
    }
    world_.rank_ends();
    tell_progress(/*ends=*/true);
  }

  void after_step(CpuRank& rank, const CpuBackend& backend, int step) {
    const std::lock_guard lock(result_mutex_);
    const auto k = static_cast<std::size_t>(step);
    result_.loss[k] = rank.loss;
    if (job_.model.num_mtp_layers > 0) result_.mtp_loss[k] = rank.mtp_loss;
    result_.grad_norm[k] = rank.grad_norm;
    if (!std::isfinite(rank.loss)) {
      throw Error(
          fmt::format("the loss of step {} is {}; use a smaller --lr", step + 1, rank.loss));
    }
    const auto& times = backend.times();
    const Seconds begin = times.front().begin;
    Seconds end = begin;
    for (const CommandTime& t : times) end = std::max(end, t.end);
    result_.step_time[k] = std::max(result_.step_time[k], end - begin);
    check_order(rank, backend);
    if (step == 0 && options_.keep_gradients) {
      collect(rank, index_, Collected::gradients, host_arrays(), result_.gradients);
    }
    if (++arrived_[k] == job_.plan.world() && options_.progress) {
      options_.progress({step, result_.first_step + step, result_.loss[k], rank.mtp_loss,
                         result_.grad_norm[k], result_.step_time[k]});
    }
    const bool last = step + 1 == options_.steps;
    if (last && options_.keep_weights) {
      collect(rank, index_, Collected::main_params, host_arrays(), result_.weights);
    }
    if (last && options_.keep_trace) add_to_trace(rank, backend);
  }

  // Every rank writes its file; the last one to do so finishes the checkpoint. A fast rank may be
  // at the next one by then.
  void save(CpuRank& rank) {
    Save* mine = nullptr;
    {
      const std::lock_guard lock(result_mutex_);
      std::unique_ptr<Save>& entry = saves_[rank.step];
      if (!entry) {
        entry = std::make_unique<Save>(options_.save, job_.model,
                                       facts_after(done_, job_.plan, rank.step - done_.step),
                                       trained_by(job_.plan));
      }
      mine = entry.get();
    }
    mine->writer.write_rank(rank.rank, saved_states(rank, index_, host_arrays()));
    if (++mine->written == job_.plan.world()) {
      mine->writer.finish(job_.plan.world(), options_.plan_file);
    }
  }

  void check_order(const CpuRank& rank, const CpuBackend& backend) {
    std::vector<std::size_t> last(static_cast<std::size_t>(rank.commands.lanes), 0);
    for (const std::size_t i : backend.order()) {
      std::size_t& before = last[static_cast<std::size_t>(rank.commands.commands[i].lane)];
      if (i + 1 <= before) result_.in_program_order = false;
      before = i + 1;
    }
    if (backend.order().size() != rank.commands.commands.size()) result_.in_program_order = false;
  }

  void add_to_trace(const CpuRank& rank, const CpuBackend& backend) {
    Trace& trace = result_.trace;
    trace.ranks = static_cast<int>(job_.plan.world());
    for (std::size_t i = 0; i < rank.commands.commands.size(); ++i) {
      const Command& c = rank.commands.commands[i];
      if (c.kind == CommandKind::op && std::holds_alternative<Join>(c.op->work)) continue;
      TraceEvent e{.rank = static_cast<int>(rank.rank),
                   .pipe = c.kind == CommandKind::receive || c.kind == CommandKind::send,
                   .name = describe(rank, c),
                   .category = c.kind == CommandKind::op ? "op" : "send",
                   .action = c.action,
                   .begin = backend.times()[i].begin,
                   .end = backend.times()[i].end};
      if (c.kind == CommandKind::op) e.stream = c.op->stream;
      trace.end = std::max(trace.end, e.end);
      trace.events.push_back(std::move(e));
    }
  }

  struct Save {
    Save(const std::string& root, const ModelSpec& model, const CheckpointFacts& facts,
         const Trained& trained)
        : writer(root, model, facts, trained) {}
    CheckpointWriter writer;
    std::atomic<std::int64_t> written{0};
  };

  StepProgram program_;
  RankJob job_;
  const RunOptions& options_;
  ParameterIndex index_;
  CpuWorld world_;
  std::vector<RankProgram> programs_;
  std::mutex batch_mutex_;
  std::map<int, std::weak_ptr<const Batch>> batches_;  // by step of this run
  std::vector<std::unique_ptr<CpuRank>> ranks_;
  WeightSource weights_;
  std::optional<Checkpoint> loaded_;
  CheckpointFacts done_;  // by runs before this one
  std::map<std::int64_t, std::unique_ptr<Save>> saves_;
  std::mutex result_mutex_;
  std::condition_variable progressed_;
  std::int64_t progress_ = 0, ended_ = 0;  // ranks' steps; ranks
  std::vector<std::int64_t> arrived_;      // ranks that have ended each step
  RunResult result_;
};

}  // namespace

bool RunOptions::saves_after(int step) const {
  if (save.empty()) return false;
  const bool due = save_interval > 0 && (step + 1) % save_interval == 0;
  return due || step + 1 == steps;
}

std::vector<std::int32_t> read_batch(const RunOptions& options, const ParallelPlan& plan,
                                     const CheckpointFacts& done, int step) {
  const std::int64_t sequences = plan.global_batch_size, length = plan.seq_len + 1;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sequences * length));
  for (std::int64_t j = 0; j < sequences; ++j) {
    options.tokens(done.sequences + step * sequences + j,
                   std::span(ids).subspan(static_cast<std::size_t>(j * length),
                                          static_cast<std::size_t>(length)));
  }
  return ids;
}

CheckpointFacts facts_after(const CheckpointFacts& done, const ParallelPlan& plan,
                            std::int64_t steps) {
  return {.step = done.step + steps,
          .sequences = done.sequences + steps * plan.global_batch_size,
          .plan = to_string(plan)};
}

Trained trained_by(const ParallelPlan& plan) {
  return {plan.lora(), plan.lora_embeddings};
}

RunResult run(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
              const RunOptions& options) {
  return CpuRun(model, plan, facts, options).run();
}

}  // namespace qplan
