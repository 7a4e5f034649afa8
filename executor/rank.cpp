#include "executor/rank.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace qplan {
namespace {

StateShard::Section section(std::int64_t first, std::int64_t total, std::int64_t ranks,
                            std::int64_t position) {
  const std::int64_t size = ceil_div(total, ranks);
  const std::int64_t begin = std::min(position * size, total);
  return {.begin = first + begin,
          .count = std::min(size, total - begin),
          .size = size,
          .total = total,
          .first = first};
}

}  // namespace

Rank::Rank(const RankJob& shared, const RankProgram& own, std::int64_t number, std::byte* arena)
    : job(shared),
      commands(own),
      rank(number),
      at(shared.program.grid.dense(number)),
      expert_at(shared.program.grid.expert(number)),
      arena_(arena) {}

const Block& Rank::block(int instance) const {
  const BlockId id = commands.instances[static_cast<std::size_t>(instance)].block;
  return job.program.blocks[static_cast<std::size_t>(id)];
}

const BlockShape& Rank::shape(int instance) const {
  const BlockId id = commands.instances[static_cast<std::size_t>(instance)].block;
  return job.program.shapes[static_cast<std::size_t>(id)];
}

const ModelSpec& Rank::spec(const Command& c) const {
  switch (shape(c.instance).kind) {
    case BlockKind::patchify:
    case BlockKind::vision:
    case BlockKind::merger:
      return job.tower;
    case BlockKind::embedding:
    case BlockKind::mtp_embedding:
    case BlockKind::decoder:
    case BlockKind::head:
    case BlockKind::mtp:
    case BlockKind::stage_entry:
    case BlockKind::stage_exit:
    case BlockKind::step_edge:
      break;
  }
  return job.model;
}

Tensor Rank::tensor(const Command& c, const Operand& operand) const {
  const Slot& s = slot(c, operand);
  return {memory(operand.offset), s.dtype, s.shape[0], s.shape[1] * s.shape[2]};
}

bool Rank::holds_states(int instance) const {
  return !block(instance).parameters.empty() && !shares_embedding(job.model, shape(instance));
}

Tensor Rank::held(int instance, Storage storage) const {
  const Block& b = block(instance);
  for (std::size_t i = 0; i < b.slots.size(); ++i) {
    const Slot& s = b.slots[i];
    if (s.storage != storage) continue;
    const std::int64_t offset = commands.instances[static_cast<std::size_t>(instance)].held[i];
    return {memory(offset), s.dtype, s.shape[0], s.shape[1] * s.shape[2]};
  }
  return {};
}

std::vector<std::int64_t> Rank::group(Axis axis) const {
  return job.program.grid.group(axis, rank);
}

std::int64_t Rank::position(Axis axis) const {
  const std::vector<std::int64_t> ranks = group(axis);
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

StateShard Rank::shard(int instance, bool frozen) const {
  const BlockShape& s = shape(instance);
  const RankParameters all = sum_of(block(instance).parameters);
  const RankParameters own = frozen ? all.frozen() : all;
  const Axis dense = s.dense_replicas > 1 ? Axis::dp_shard : Axis::dp_cp;
  const bool whole = s.zero == 0;
  return {
      section(0, own.dense, whole ? 1 : s.dense_shard, whole ? 0 : position(dense)),
      section(own.dense, own.expert, whole ? 1 : s.expert_shard, whole ? 0 : position(Axis::edp))};
}

bool Rank::is_first_holder(int instance, const PackedParameter& p) const {
  const BlockShape& s = shape(instance);
  const bool expert = is_expert(p.whole.role);
  if (p.replicated && (expert ? expert_at.etp : at.tp) > 0) return false;
  // A copy of the embedding's table.
  if (p.whole.role == ParameterRole::embed_tokens && s.kind != BlockKind::embedding) return false;
  if (expert) return s.expert_replicas == 1 || position(Axis::edp) == 0;
  return s.dense_replicas == 1 || position(s.zero == 0 ? Axis::dp_cp : Axis::dp_replicate) == 0;
}

std::vector<StateRun> Rank::state_runs(int instance, bool frozen) const {
  const Block& b = block(instance);
  const StateShard mine = shard(instance, frozen);
  std::vector<StateRun> runs;
  for (std::size_t i = 0; i < b.parameters.size(); ++i) {
    const PackedParameter& p = b.parameters[i];
    if (p.frozen != frozen) continue;
    const bool expert = is_expert(p.whole.role);
    const StateShard::Section& part = expert ? mine.expert : mine.dense;
    const std::int64_t base = expert ? mine.dense.size : 0;
    for (std::int64_t copy = 0; copy < p.copies; ++copy) {
      const std::int64_t first = p.offset + copy * p.stride;
      const std::int64_t begin = std::max(first, part.begin);
      const std::int64_t end = std::min(first + p.rows * p.cols, part.begin + part.count);
      if (begin < end) runs.push_back({i, begin, base + begin - part.begin, end - begin});
    }
  }
  return runs;
}

std::int64_t Rank::offloaded(int instance) const {
  return offloaded_elements(shape(instance), shard(instance).size());
}

OptimizerState Rank::device_state(int instance) const {
  const BlockShape& s = shape(instance);
  const std::int64_t n = shard(instance).size() - offloaded(instance);
  const Tensor all = held(instance, Storage::optimizer);
  OptimizerState state;
  std::int64_t first = n, second = n;
  switch (s.optimizer) {
    case OptimizerKind::adam:
      break;
    case OptimizerKind::sgd:
    case OptimizerKind::lion:
      second = 0;
      break;
    case OptimizerKind::muon:
      first = second = 0;
      for (const StateRun& run : state_runs(instance)) {
        first += run.count;
        if (!is_hidden_matrix(block(instance).parameters[run.parameter].whole)) second += run.count;
      }
      break;
    case OptimizerKind::adafactor:
      first = second = 0;
      for (const PackedParameter& p : block(instance).parameters) {
        if (!p.frozen) second += p.copies * factors_of(p);
      }
      break;
    case OptimizerKind::adam8bit:
      QPLAN_CHECK(false, "optimizers that the executor has not are refused before they run");
  }
  state.moment1 = {all.data, s.moment_dtype, 1, first};
  state.moment2 = {state.moment1.data + state.moment1.bytes(), s.moment_dtype, 1, second};
  state.main_params = {state.moment2.data + state.moment2.bytes(), s.main_params_dtype, 1, n};
  return state;
}

OptimizerState Rank::host_state(int instance) {
  const std::int64_t n = offloaded(instance);
  std::vector<float>& all = host_[instance];
  all.resize(static_cast<std::size_t>(3 * n));
  const auto array = [&](std::int64_t i) {
    return Tensor{std::as_writable_bytes(std::span(all)).data() + i * n * 4, DType::fp32, 1, n};
  };
  return {array(0), array(1), array(2)};
}

std::vector<std::int64_t> positions_of(const ParallelPlan& p, std::int64_t cp_rank) {
  const std::int64_t local = p.seq_len / p.cp, half = local / 2;
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < local; ++i) {
    const std::int64_t chunk = i < half ? cp_rank : 2 * p.cp - 1 - cp_rank;
    result.push_back(p.cp == 1 ? i : chunk * half + i % half);
  }
  return result;
}

std::vector<std::int64_t> Rank::positions() const {
  const std::vector<std::int64_t> one = positions_of(job.plan, at.cp);
  std::vector<std::int64_t> result;
  for (std::int64_t sequence = 0; sequence < job.plan.micro_batch_size; ++sequence) {
    result.insert(result.end(), one.begin(), one.end());
  }
  return result;
}

std::vector<std::int32_t> Rank::tokens(int microbatch, int shift) const {
  const ParallelPlan& p = job.plan;
  const std::vector<std::int64_t> where = positions();
  const std::int64_t local = p.seq_len / p.cp;
  const std::int64_t first = (std::int64_t{microbatch} * p.dp + at.dp) * p.micro_batch_size;
  std::vector<std::int32_t> ids(where.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t sequence = first + static_cast<std::int64_t>(i) / local;
    const bool inside = where[i] + shift <= p.seq_len;
    const std::int64_t place = sequence * (p.seq_len + 1) + where[i] + shift;
    ids[i] = inside ? batch[static_cast<std::size_t>(place)] : -1;
  }
  return ids;
}

std::vector<std::int32_t> Rank::targets(int microbatch, int ahead) const {
  std::vector<std::int32_t> ids = tokens(microbatch, 1 + ahead);
  if (!job.images) return ids;
  const std::vector<std::int64_t> where = positions();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (job.images->visual_token(where[i] + 1 + ahead)) ids[i] = -1;
  }
  return ids;
}

std::int64_t Rank::predictions(int ahead) const {
  const std::int64_t length = job.plan.seq_len;
  std::int64_t of_sequence = length - ahead;
  for (std::int64_t place = 1 + ahead; job.images && place <= length; ++place) {
    if (job.images->visual_token(place)) --of_sequence;
  }
  return job.plan.global_batch_size * of_sequence;
}

double Rank::loss_weight(int ahead) const {
  const double weight = ahead > 0 ? job.model.mtp_loss_weight : 1.0;
  return weight / static_cast<double>(predictions(ahead));
}

void Rank::begin_step() {
  ++step;
  loss_sum = mtp_loss_sum = square_sum = 0;
}

std::string describe(const Rank& rank, const Command& c) {
  std::string what;
  switch (c.kind) {
    case CommandKind::op:
      what = to_string(c.op->work);
      break;
    case CommandKind::receive:
      what = fmt::format("receive from stage {}", c.peer);
      break;
    case CommandKind::take:
      what = fmt::format("take what stage {} sent", c.peer);
      break;
    case CommandKind::send:
      what = fmt::format("send to stage {}", c.peer);
      break;
  }
  what += fmt::format(" of {} {}", rank.block(c).name, rank.instance(c).layer);
  if (c.action.stage >= 0) what += fmt::format(" ({})", to_string(c.action));
  return what;
}

}  // namespace qplan
