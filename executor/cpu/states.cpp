// Parameters, gradients and optimizer states: AdamW, norms, and the collectives that shard them.

#include <algorithm>
#include <cmath>

#include "executor/cpu/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

using Section = StateShard::Section;

void copy(const Tensor& from, const Tensor& to) {
  if (from.dtype == to.dtype) {
    std::copy_n(from.data, from.bytes(), to.data);
    return;
  }
  Values source(from), target(to, false);
  std::ranges::copy(source.all(), target.all().begin());
  target.commit();
}

void accumulate(const Tensor& from, const Tensor& to) {
  Values source(from), target(to);
  for (std::size_t i = 0; i < source.all().size(); ++i) target.all()[i] += source.all()[i];
  target.commit();
}

// One section of `whole` from a holder's shard.
void place_shard(const CpuRank& holder, const Command& c, bool expert, const Tensor& whole) {
  const bool frozen = moves_frozen(holder, c);
  const int instance = neighbour(holder, c);
  const StateShard shard = holder.shard(instance, frozen);
  const Section& s = expert ? shard.expert : shard.dense;
  const Tensor held = holder.held(instance, frozen ? Storage::frozen : Storage::weight);
  copy(shard_part(held, shard, expert), packed_part(whole, s));
}

}  // namespace

void run_join(CpuRank& rank, const Command& c) {
  if (writes(rank, c, Storage::wire, Flow::weights)) {
    const Tensor whole = rank.tensor(c, c.writes[0]);
    for (const bool expert : {false, true}) place_shard(rank, c, expert, whole);
  }
}

void copy_parameters(CpuRank& rank, const Command& c) {
  const Tensor whole = rank.tensor(c, c.writes[0]);
  for (const bool expert : {false, true}) {
    if (unshared(rank, c, expert)) place_shard(rank, c, expert, whole);
  }
}

void keep_gradients(CpuRank& rank, const Command& c) {
  for (const bool expert : {false, true}) {
    if (const auto sum = kept_sum(rank, c, expert)) accumulate(sum->from, sum->to);
  }
}

// Either the updated parameters of a sharded optimizer, in place, or a neighbour's parameters into
// a whole copy.
void gather_parameters(const Parties& parties, Axis axis) {
  const bool expert = axis == Axis::edp;
  for (const Party& to : parties) {
    const Tensor whole = to.rank.tensor(to.command, to.command.writes[0]);
    const bool ahead = writes(to.rank, to.command, Storage::wire, Flow::weights);
    for (const Party& from : parties) {
      if (ahead) {
        place_shard(from.rank, from.command, expert, whole);
        continue;
      }
      if (&from == &to) continue;
      const StateShard shard = from.rank.shard(from.command.instance);
      const Section& s = expert ? shard.expert : shard.dense;
      copy(packed_part(from.rank.tensor(from.command, from.command.writes[0]), s),
           packed_part(whole, s));
    }
  }
}

namespace {

// Element by element over all parties' `inputs`, in their order; the result to each one's output.
void sum_to_all(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
  std::vector<Values> values;
  for (const Tensor& t : inputs) values.emplace_back(t);
  std::vector<float> sums(values.front().all().size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double sum = 0;
    for (Values& v : values) sum += static_cast<double>(v.all()[i]);
    sums[i] = static_cast<float>(sum);
  }
  for (const Tensor& t : outputs) {
    Values output(t, false);
    std::ranges::copy(sums, output.all().begin());
    output.commit();
  }
}

// Every party's section of the sum of all parties' `inputs`. In place it is read for that sum only,
// so nothing is overwritten too early.
void sum_sections(const Parties& parties, const std::vector<Tensor>& inputs,
                  const std::vector<Tensor>& outputs, bool expert) {
  std::vector<Values> values;
  for (const Tensor& t : inputs) values.emplace_back(t);
  for (std::size_t p = 0; p < parties.size(); ++p) {
    const StateShard shard = parties[p].rank.shard(parties[p].command.instance);
    const Section& s = expert ? shard.expert : shard.dense;
    Values output(outputs[p], false);
    for (std::int64_t i = 0; i < s.count; ++i) {
      double sum = 0;
      for (Values& v : values)
        sum += static_cast<double>(v.all()[static_cast<std::size_t>(s.begin + i)]);
      output.all()[static_cast<std::size_t>(i)] = static_cast<float>(sum);
    }
    output.commit();
  }
}

}  // namespace

// Of one microbatch into what is kept, or of the step in place: the whole section, or every rank's
// share of it.
void reduce_gradients(const Parties& parties, const Collective& work) {
  const Party& one = parties.front();
  const Role role = one.command.op->role;
  if (role == Role::replicated_gradients || role == Role::tied_gradients) {
    std::vector<Tensor> parts;
    for (const Party& p : parties) parts.push_back(shared_gradient(p.rank, p.command));
    return sum_to_all(parts, parts);
  }
  const bool expert = work.axis == Axis::edp;
  std::vector<Tensor> inputs, sections, outputs;
  for (const Party& p : parties) {
    const StateShard shard = p.rank.shard(p.command.instance);
    inputs.push_back(p.rank.tensor(p.command, p.command.reads[0]));
    outputs.push_back(reduced_gradients(p.rank, p.command, expert));
    const bool fresh = reads_flow(p.rank, p.command, Flow::gradients);
    sections.push_back(fresh ? packed_part(inputs.back(), expert ? shard.expert : shard.dense)
                             : outputs.back());
  }
  if (work.kind == CollectiveKind::all_reduce) return sum_to_all(sections, outputs);
  sum_sections(parties, inputs, outputs, expert);
}

// Of this rank's shard; what several ranks hold alike is counted by the first of them.
void run_sum_of_squares(CpuRank& rank, const Command& c) {
  const Block& block = rank.block(c);
  const BlockShape& shape = rank.shape(c.instance);
  const bool sharded = shape.zero >= 2;
  const Tensor slot = rank.tensor(c, c.reads[0]);
  for (const StateRun& run : rank.state_runs(c.instance)) {
    const PackedParameter& p = block.parameters[run.parameter];
    if (!is_trained(p.whole.role) || !rank.is_first_holder(c.instance, p)) continue;
    Values gradient(slot.part(sharded ? run.shard : run.packed, 1, run.count));
    rank.square_sum += math::sum_of_squares(gradient.all());
  }
}

namespace {

// One parameter's numbers in the arrays of a block that is not sharded: where they are packed.
struct Stepped {
  Values gradient, main;
  Tensor working;

  Stepped(const CpuRank& rank, const Command& c, const OptimizerState& state, std::int64_t packed,
          std::int64_t shard, std::int64_t rows, std::int64_t cols)
      : gradient(rank.held(c.instance, Storage::gradient).part(packed, rows, cols)),
        main(state.main_params.part(shard, rows, cols)),
        working(rank.held(c.instance, Storage::weight).part(packed, rows, cols)) {}

  void commit() {
    main.commit();
    Values narrow(working, false);
    std::ranges::copy(main.all(), narrow.all().begin());
    narrow.commit();
  }
};

double clipping(const CpuRank& rank) {
  return math::clip_scale(rank.grad_norm, rank.job.optimizer.clip_grad);
}

double decay_of(const CpuRank& rank, const Parameter& p) {
  return is_vector(p) ? 0 : rank.job.optimizer.adamw.weight_decay;
}

void run_sgd(CpuRank& rank, const Command& c) {
  const Block& block = rank.block(c);
  const BlockShape& shape = rank.shape(c.instance);
  const OptimizerState state = rank.device_state(c.instance);
  const Tensor gradients = rank.held(c.instance, Storage::gradient);
  const Tensor weights = rank.held(c.instance, Storage::weight);
  for (const StateRun& run : rank.state_runs(c.instance)) {
    const Parameter& p = block.parameters[run.parameter].whole;
    if (!is_trained(p.role)) continue;
    Values gradient(gradients.part(shape.zero >= 2 ? run.shard : run.packed, 1, run.count));
    Values main(state.main_params.part(run.shard, 1, run.count));
    Values momentum(state.moment1.part(run.shard, 1, run.count));
    math::sgd({.lr = rank.job.optimizer.adamw.lr, .weight_decay = decay_of(rank, p)},
              gradient.all(), clipping(rank), main.all(), momentum.all());
    main.commit();
    momentum.commit();
    Values working(weights.part(shape.zero == 3 ? run.shard : run.packed, 1, run.count), false);
    std::ranges::copy(main.all(), working.all().begin());
    working.commit();
  }
}

void run_adafactor(CpuRank& rank, const Command& c) {
  const Block& block = rank.block(c);
  const OptimizerState state = rank.device_state(c.instance);
  std::int64_t next = 0;
  for (const PackedParameter& p : block.parameters) {
    if (p.frozen) continue;
    for (std::int64_t copy = 0; copy < p.copies; ++copy) {
      const std::int64_t first = p.offset + copy * p.stride;
      Values means(state.moment2.part(next, 1, factors_of(p)));
      next += factors_of(p);
      if (!is_trained(p.whole.role)) continue;
      Stepped stepped(rank, c, state, first, first, p.rows, p.cols);
      math::adafactor({.lr = rank.job.optimizer.adamw.lr, .weight_decay = decay_of(rank, p.whole)},
                      rank.step, stepped.gradient.matrix(), clipping(rank), stepped.main.matrix(),
                      means.all(), is_vector(p.whole));
      means.commit();
      stepped.commit();
    }
  }
}

// Where Muon's moments of each run begin.
struct MuonPlace {
  StateRun run;
  std::int64_t moment1 = 0, moment2 = 0;
};

std::vector<MuonPlace> muon_places(const CpuRank& rank, const Command& c) {
  std::vector<MuonPlace> places;
  std::int64_t first = 0, second = 0;
  for (const StateRun& run : rank.state_runs(c.instance)) {
    places.push_back({run, first, second});
    first += run.count;
    if (!is_hidden_matrix(rank.block(c).parameters[run.parameter].whole)) second += run.count;
  }
  return places;
}

// What Muon leaves to AdamW.
void run_rest_of_muon(CpuRank& rank, const Command& c) {
  const OptimizerState state = rank.device_state(c.instance);
  for (const MuonPlace& at : muon_places(rank, c)) {
    const Parameter& p = rank.block(c).parameters[at.run.parameter].whole;
    if (is_hidden_matrix(p) || !is_trained(p.role)) continue;
    Stepped stepped(rank, c, state, at.run.packed, at.run.shard, 1, at.run.count);
    Values m(state.moment1.part(at.moment1, 1, at.run.count));
    Values v(state.moment2.part(at.moment2, 1, at.run.count));
    math::AdamWSettings settings = rank.job.optimizer.adamw;
    settings.weight_decay = decay_of(rank, p);
    math::adamw(settings, rank.step, stepped.gradient.all(), clipping(rank), stepped.main.all(),
                m.all(), v.all());
    m.commit();
    v.commit();
    stepped.commit();
  }
}

}  // namespace

// Of one parameter: each copy is a run of its own, for nothing is sharded.
void run_muon(CpuRank& rank, const Command& c) {
  const OptimizerState state = rank.device_state(c.instance);
  const auto number = static_cast<std::size_t>(c.op->parameter);
  const PackedParameter& p = rank.block(c).parameters[number];
  for (const MuonPlace& at : muon_places(rank, c)) {
    if (at.run.parameter != number) continue;
    Stepped stepped(rank, c, state, at.run.packed, at.run.shard, p.rows, p.cols);
    Values momentum(state.moment1.part(at.moment1, p.rows, p.cols));
    math::muon({.lr = rank.job.optimizer.adamw.lr, .weight_decay = decay_of(rank, p.whole)},
               stepped.gradient.matrix(), clipping(rank), stepped.main.matrix(), momentum.matrix());
    momentum.commit();
    stepped.commit();
  }
}

void run_update(CpuRank& rank, const Command& c, const Update& work) {
  const OptimizerKind optimizer = rank.shape(c.instance).optimizer;
  switch (optimizer) {
    case OptimizerKind::adam:
      return run_adamw(rank, c, false);
    case OptimizerKind::sgd:
      return run_sgd(rank, c);
    case OptimizerKind::adafactor:
      return run_adafactor(rank, c);
    case OptimizerKind::muon:
      QPLAN_CHECK(work.optimizer == OptimizerKind::adam, "Muon leaves its vectors to AdamW");
      return run_rest_of_muon(rank, c);
    case OptimizerKind::adam8bit:
    case OptimizerKind::lion:
      QPLAN_CHECK(false, "optimizers that the executor has not are refused before they run");
  }
}

// Weight decay is for matrices: norms, biases and other vectors are not decayed (as Megatron does).
void run_adamw(CpuRank& rank, const Command& c, bool on_host) {
  const std::int64_t host = rank.offloaded(c.instance);
  const Block& block = rank.block(c);
  const BlockShape& shape = rank.shape(c.instance);
  OptimizerState state = on_host ? rank.host_state(c.instance) : rank.device_state(c.instance);
  const Tensor gradients = rank.held(c.instance, Storage::gradient);
  const Tensor weights = rank.held(c.instance, Storage::weight);
  const double scale = math::clip_scale(rank.grad_norm, rank.job.optimizer.clip_grad);
  const std::int64_t begin = on_host ? 0 : host;
  const std::int64_t end = on_host ? host : rank.shard(c.instance).size();
  for (const StateRun& run : rank.state_runs(c.instance)) {
    const Parameter& p = block.parameters[run.parameter].whole;
    const std::int64_t first = std::max(run.shard, begin);
    const std::int64_t count = std::min(run.shard + run.count, end) - first;
    if (count <= 0 || !is_trained(p.role)) continue;
    const std::int64_t packed = run.packed + first - run.shard;
    Values gradient(gradients.part(shape.zero >= 2 ? first : packed, 1, count));
    Values main(state.main_params.part(first - begin, 1, count));
    Values m(state.moment1.part(first - begin, 1, count));
    Values v(state.moment2.part(first - begin, 1, count));
    math::AdamWSettings settings = rank.job.optimizer.adamw;
    if (is_vector(p)) settings.weight_decay = 0;
    math::adamw(settings, rank.step, gradient.all(), scale, main.all(), m.all(), v.all());
    main.commit();
    m.commit();
    v.commit();
    Values working(weights.part(shape.zero == 3 ? first : packed, 1, count), false);
    std::ranges::copy(main.all(), working.all().begin());
    working.commit();
  }
}

}  // namespace qplan
