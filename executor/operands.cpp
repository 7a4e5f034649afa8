#include "executor/operands.h"

#include <algorithm>
#include <limits>

#include "models/error.h"

namespace qplan {

Tensor parameter_in(const Tensor& slot, const PackedParameter& p) {
  return slot.part(p.offset, p.rows, p.cols);
}

const PackedParameter& parameter_with(const Rank& rank, const Command& c, ParameterRole role) {
  const auto& table = rank.block(c).parameters;
  const auto found = std::find_if(table.begin(), table.end(), [role](const PackedParameter& p) {
    return p.whole.role == role && !p.whole.bias && p.whole.adapter == Adapter::none;
  });
  QPLAN_CHECK(found != table.end(), "a block has the parameters that its ops work with");
  return *found;
}

Weight weight_of(const Rank& rank, const Command& c, const Tensor& slot, std::int64_t out) {
  const Block& block = rank.block(c);
  const PackedParameter& p = block.parameters[static_cast<std::size_t>(c.op->parameter)];
  Weight w;
  w.weight = slot.part(p.offset + c.op->copy * p.stride, out,
                       p.cols);  // neighbours (q, k, v) are one matrix
  if (const PackedParameter* const bias = bias_of(rank, c, p)) {
    w.bias = slot.part(bias->offset + c.op->copy * bias->stride, 1, out);
  }
  return w;
}

const PackedParameter* bias_of(const Rank& rank, const Command& c, const PackedParameter& p) {
  if (p.whole.adapter != Adapter::none) return nullptr;
  for (const PackedParameter& other : rank.block(c).parameters) {
    if (other.whole.role == p.whole.role && other.whole.bias) return &other;
  }
  return nullptr;
}

bool adds_bias(const Rank& rank, const PackedParameter& p) {
  return p.whole.split != Split::cols ||
         (is_expert(p.whole.role) ? rank.expert_at.etp : rank.at.tp) == 0;
}

Adapter adapter_of(const Rank& rank, const Command& c) {
  if (c.op->parameter == kNoParameter) return Adapter::none;
  return rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)].whole.adapter;
}

namespace {

// The adapters from the first weight on that is packed with that of an op's parameter.
std::vector<AdaptedPart> parts_of_layer(const Rank& rank, const Command& c) {
  const auto& table = rank.block(c).parameters;
  const ParameterRole role = table[static_cast<std::size_t>(c.op->parameter)].whole.role;
  constexpr std::int64_t kEveryColumn = std::numeric_limits<std::int64_t>::max();
  return adapted_parts(table, pack_begin(table, role), kEveryColumn);
}

}  // namespace

AdapterView adapter_view(const Rank& rank, const Command& c) {
  const ParallelPlan& plan = rank.job.plan;
  std::int64_t inner = 0;
  for (const AdaptedPart& part : parts_of_layer(rank, c)) {
    if (part.b == c.op->parameter) {
      return {part.column,
              part.width,
              inner,
              plan.lora_rank,
              static_cast<float>(plan.lora_alpha) / static_cast<float>(plan.lora_rank),
              part.a};
    }
    inner += plan.lora_rank;
  }
  QPLAN_CHECK(false, "an adapter stands beside its weight");
  return {};
}

AdaptedPart adapted_part(const Rank& rank, const Command& c) {
  for (const AdaptedPart& part : parts_of_layer(rank, c)) {
    if (part.weight == c.op->parameter) return part;
  }
  QPLAN_CHECK(false, "norms are taken of weights with adapters");
  return {};
}

bool has_sinks(const Command& c) {
  return c.op->parameter != kNoParameter;
}

Tensor sinks_in(const Rank& rank, const Command& c, const Tensor& slot, std::int64_t heads) {
  const auto& p = rank.block(c).parameters[static_cast<std::size_t>(c.op->parameter)];
  const std::int64_t first = p.rows > heads ? rank.at.cp * heads : 0;
  return slot.part(p.offset + first, heads, 1);
}

bool moves_heads(const Command& c) {
  const Role role = c.op->role;
  return role == Role::dispatch || role == Role::group_rows || role == Role::ungroup_rows ||
         role == Role::combine;
}

math::Activation activation_of(const Rank& rank, const Command& c, RowwiseKind kind) {
  const ModelSpec& model = rank.spec(c);
  if (kind == RowwiseKind::swiglu || kind == RowwiseKind::swiglu_backward) {
    return model.architecture == "gpt_oss" ? math::Activation::swiglu_clamped
                                           : math::Activation::swiglu;
  }
  if (model.mlp == MlpKind::relu2) return math::Activation::relu2;
  // Mergers have torch's nn.GELU, which is exact.
  return rank.shape(c.instance).kind == BlockKind::merger ? math::Activation::gelu
                                                          : math::Activation::gelu_tanh;
}

Tensor narrowed_operand(const Rank& rank, const Command& c, const Rowwise& work) {
  const Tensor slot = rank.tensor(c, c.reads[0]);
  return c.op->parameter == kNoParameter ? slot : weight_of(rank, c, slot, work.rows).weight;
}

Piece piece_of(const Rank& rank, const Op& op, std::int64_t rows) {
  if (op.pieces == 1) return {1, rows, 0, rows};
  const std::int64_t ranks = rank.job.plan.tp, share = rows / ranks, count = share / op.pieces;
  return {ranks, share, op.piece * count, count};
}

bool reads_flow(const Rank& rank, const Command& c, Flow flow) {
  if (c.reads.count == 0) return false;
  const Slot& slot = rank.slot(c, c.reads[0]);
  return slot.storage == Storage::wire && slot.flow == flow;
}

bool writes(const Rank& rank, const Command& c, Storage storage, Flow flow) {
  if (c.writes.count == 0) return false;
  const Slot& slot = rank.slot(c, c.writes[0]);
  return slot.storage == storage && (storage != Storage::wire || slot.flow == flow);
}

bool moves_frozen(const Rank& rank, const Command& c) {
  const Slot& slot = rank.slot(c, c.writes[0]);
  return slot.storage == Storage::wire && slot.channel == kFrozenChannel;
}

Tensor packed_part(const Tensor& slot, const StateShard::Section& s) {
  return slot.part(s.begin, 1, s.count);
}

Tensor shard_part(const Tensor& slot, const StateShard& shard, bool expert) {
  const StateShard::Section& s = expert ? shard.expert : shard.dense;
  return slot.part(expert ? shard.dense.size : 0, 1, s.count);
}

Tensor shared_gradient(const Rank& rank, const Command& c) {
  const Block& block = rank.block(c);
  std::int64_t first = 0, count = sum_of(block.parameters).partial;  // packed first
  if (c.op->role == Role::tied_gradients) {
    const auto table = std::find_if(
        block.parameters.begin(), block.parameters.end(),
        [](const PackedParameter& p) { return p.whole.role == ParameterRole::embed_tokens; });
    QPLAN_CHECK(table != block.parameters.end(), "both holders of a table have it");
    first = table->offset;
    count = table->elements();
  }
  const Tensor slot = rank.tensor(c, c.writes[0]);
  if (rank.shape(c.instance).zero < 2) return slot.part(first, 1, count);
  const StateShard::Section own = rank.shard(c.instance).dense;
  const std::int64_t begin = std::clamp<std::int64_t>(first - own.begin, 0, own.count);
  const std::int64_t end = std::clamp<std::int64_t>(first + count - own.begin, 0, own.count);
  return slot.part(begin, 1, end - begin);
}

int neighbour(const Rank& rank, const Command& c) {
  const bool backward = c.action.kind != ActionKind::forward;
  const int other = c.instance + (backward ? -1 : 1);
  QPLAN_CHECK(rank.commands.instances[static_cast<std::size_t>(other)].stage ==
                  rank.commands.instances[static_cast<std::size_t>(c.instance)].stage,
              "parameters are gathered ahead within a stage");
  return other;
}

bool copies_parameters(const Rank& rank, const Command& c) {
  return writes(rank, c, Storage::wire, Flow::weights);
}

bool unshared(const Rank& rank, const Command& c, bool expert) {
  const BlockShape& s = rank.shape(neighbour(rank, c));
  return (expert ? s.expert_shard : s.dense_shard) == 1;
}

bool alone(const Rank& rank, int instance, bool expert) {
  const BlockShape& s = rank.shape(instance);
  return expert ? s.expert_shard == 1 && s.expert_replicas == 1
                : s.dense_shard == 1 && s.dense_replicas == 1;
}

bool keeps_gradients(const Rank& rank, const Command& c) {
  return c.reads.count == 2 && rank.slot(c, c.reads[0]).storage == Storage::gradient;
}

std::optional<GradientSum> kept_sum(const Rank& rank, const Command& c, bool expert) {
  const StateShard shard = rank.shard(c.instance);
  const Tensor kept = shard_part(rank.tensor(c, c.reads[0]), shard, expert);
  const Tensor fresh = packed_part(rank.tensor(c, c.reads[1]), expert ? shard.expert : shard.dense);
  if (kept.elements() == 0) return std::nullopt;
  if (alone(rank, c.instance, expert)) return GradientSum{fresh, kept};
  const bool copies = !expert && rank.shape(c.instance).dense_replicas > 1;
  if (copies && rank.position(Axis::dp_replicate) > 0) return std::nullopt;
  return GradientSum{kept, fresh};
}

Tensor reduced_gradients(const Rank& rank, const Command& c, bool expert) {
  const StateShard shard = rank.shard(c.instance);
  const Tensor slot = rank.tensor(c, c.writes[0]);
  if (rank.shape(c.instance).zero >= 2) return shard_part(slot, shard, expert);
  return packed_part(slot, expert ? shard.expert : shard.dense);
}

}  // namespace qplan
