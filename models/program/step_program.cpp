#include "models/program/step_program.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "models/hash.h"
#include "models/image_layout.h"
#include "models/program/layer_context.h"

namespace qplan {
namespace {

struct ShapeHash {
  std::size_t operator()(const BlockShape& s) const { return hash_of(s); }
};

void append(StageRuns& runs, const BlockShape& shape, int count) {
  if (count <= 0) return;
  if (!runs.empty() && runs.back().shape == shape) {
    runs.back().count += count;
  } else {
    runs.push_back({shape, count});
  }
}

BlockShape with_kind(BlockShape s, BlockKind kind) {
  s.kind = kind;
  if (kind != BlockKind::decoder && kind != BlockKind::mtp && kind != BlockKind::vision) {
    s.recompute = RecomputeKind::none;
    s.recompute_modules = {};
    s.recomputes_operators = false;
  }
  return s;
}

// Decoder layers [first, first + count) of a chunk; the first few recomputed or offloaded as asked.
// `seeing`: the first layers of a model, which add deepstack tokens, know of images.
void append_layers(StageRuns& runs, const ModelSpec& model, const ParallelPlan& plan,
                   const BlockShape& base, const BlockShape& seeing, int first, int count) {
  const int recomputed = plan.recompute.layers > 0 ? plan.recompute.layers : count;
  const int offloaded = plan.offload.activation_layers < 0 ? count : plan.offload.activation_layers;
  BlockShape shape = base;
  shape.kind = BlockKind::decoder;
  int pending = 0;
  for (int i = 0; i < count; ++i) {
    const LayerKind& layer = model.layers[static_cast<std::size_t>(first + i)];
    const bool keeps = base.recompute == RecomputeKind::full && i >= recomputed;
    const auto recompute = keeps ? RecomputeKind::none : base.recompute;
    const bool offload = i < offloaded;
    const bool adds = seeing.images > 0 && first + i < std::ssize(model.vision->deepstack_layers);
    const auto tap = static_cast<std::int8_t>(adds ? first + i : -1);
    if (pending > 0 && (shape.layer != layer || shape.recompute != recompute ||
                        shape.activations_offload != offload || shape.tap != tap)) {
      append(runs, shape, pending);
      pending = 0;
    }
    shape.layer = layer;
    shape.recompute = recompute;
    shape.activations_offload = offload;
    shape.tap = tap;
    shape.images = adds ? seeing.images : 0;
    shape.patches = adds ? seeing.patches : 0;
    ++pending;
  }
  append(runs, shape, pending);
}

// A tower in front of the first stage. Our executor's layers hand their taps on.
void append_vision(StageRuns& runs, const ModelSpec& model, const Recipe& recipe,
                   const BlockShape& base) {
  const std::vector<std::int64_t>& taps = model.vision->deepstack_layers;
  const std::vector<std::int64_t>& whole_layers = model.vision->whole_layers;
  BlockShape s = base;
  s.layer = {};
  append(runs, with_kind(s, BlockKind::patchify), 1);
  for (std::int64_t i = 0; i < model.vision->depth; ++i) {
    const auto tap = std::find(taps.begin(), taps.end(), i);
    const bool tapped = recipe.form.vision && tap != taps.end();
    s.tap = static_cast<std::int8_t>(tapped ? tap - taps.begin() : -1);
    // A window's patches are a sequence of their own.
    const bool whole = std::find(whole_layers.begin(), whole_layers.end(), i) != whole_layers.end();
    s.layer.chunk = whole ? 0 : model.vision->window_patches;
    append(runs, with_kind(s, BlockKind::vision), 1);
  }
  s.tap = -1;
  s.layer = {};
  append(runs, with_kind(s, BlockKind::merger), 1);
}

// What the blocks of the text that take visual tokens in know of them. Our executor's tower works
// on a microbatch's images on every context-parallel rank, of which each takes the tokens that are
// its own; others deal the images out.
BlockShape with_images(BlockShape s, const ModelSpec& model, const Recipe& recipe,
                       const JobFacts& facts) {
  const ImageLayout layout(model, s.seq_len, facts.images);
  const std::int64_t images = s.micro_batch_size * layout.images();
  s.images = recipe.form.vision ? images : std::max<std::int64_t>(1, images / s.cp);
  s.patches = layout.patches();
  return s;
}

// Fully sharded: every block knows what its neighbours gather, and the stage gets its two ends.
StageRuns chained(const ParametersOf& parameters_of, const BlockShape& base,
                  const StageRuns& plain) {
  StageRuns runs;
  std::vector<RankParameters> own;
  own.reserve(plain.size());
  for (const Run& run : plain) own.push_back(parameters_of(run.shape));
  BlockShape entry = with_kind(base, BlockKind::stage_entry);
  entry.next = own.front();
  append(runs, entry, 1);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const RankParameters before = i > 0 ? own[i - 1] : RankParameters{};
    const RankParameters after = i + 1 < plain.size() ? own[i + 1] : RankParameters{};
    const auto add = [&](RankParameters previous, RankParameters next, int count) {
      BlockShape s = plain[i].shape;
      s.previous = previous;
      s.next = next;
      append(runs, s, count);
    };
    const int n = plain[i].count;
    if (n == 1) {
      add(before, after, 1);
      continue;
    }
    add(before, own[i], 1);
    add(own[i], own[i], n - 2);
    add(own[i], after, 1);
  }
  BlockShape exit = with_kind(base, BlockKind::stage_exit);
  exit.previous = own.back();
  append(runs, exit, 1);
  return runs;
}

std::uint64_t hash_ops(std::uint64_t hash, const OpList& ops) {
  for (const Op& op : ops) {
    hash = hash_mix(hash, hash_of(op.work));
    hash = hash_mix(hash, static_cast<std::uint64_t>(op.stream) * 256 + op.after.bits);
    hash = hash_mix(hash, static_cast<std::uint64_t>(op.role) * 65536 +
                              static_cast<std::uint64_t>(op.parameter + 1) * 256 + op.piece +
                              (std::uint64_t{op.copy} << 32U) + (std::uint64_t{op.ahead} << 40U));
    for (const SlotId id : op.reads) hash = hash_mix(hash, static_cast<std::uint64_t>(id));
    for (const SlotId id : op.writes) hash = hash_mix(hash, static_cast<std::uint64_t>(id) + 65536);
  }
  return hash;
}

OpList joined(const OpList& a, const OpList& b) {
  OpList all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

// Waits that the split cut off: an op that reads what another stream wrote in this list waits for
// it.
void restore_waits(OpList& ops) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const SlotId id : ops[i].reads) {
      for (std::size_t j = 0; j < i; ++j) {
        const SlotList& written = ops[j].writes;
        const bool wrote = std::find(written.begin(), written.end(), id) != written.end();
        if (wrote && ops[j].stream != ops[i].stream)
          ops[i].after = ops[i].after | only(ops[j].stream);
      }
    }
  }
}

}  // namespace

RankGrid rank_grid(const ParallelPlan& plan, const JobFacts& facts) {
  return {plan, facts.nvlink_domain, facts.pods};
}

int chunks_per_rank(const ParallelPlan& plan) {
  switch (plan.schedule) {
    case ScheduleKind::zbv:
      return plan.pp > 1 ? 2 : 1;
    case ScheduleKind::interleaved:
      return plan.vpp;
    case ScheduleKind::gpipe:
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::zb_h1:
    case ScheduleKind::dualpipe:
      return 1;
  }
  return 1;
}

ScheduleShape schedule_shape(const ParallelPlan& plan, const Recipe& recipe) {
  const bool can_pair =
      plan.schedule == ScheduleKind::one_f_one_b || plan.schedule == ScheduleKind::interleaved;
  // From ZeRO-2 on every backward reduces its own gradients.
  const int zero = sharding_in_blocks(plan, recipe);
  const bool reduces_once = zero < 2 && plan.overlap.has(OverlapKind::grad);
  const bool asked = can_pair && plan.ep > 1 && plan.overlap.has(OverlapKind::ep);
  return {.kind = plan.schedule,
          .pp = plan.pp,
          .vpp = chunks_per_rank(plan),
          .microbatches = static_cast<int>(plan.num_microbatches()),
          .pairs = asked || plan.schedule == ScheduleKind::dualpipe,
          .whole_reductions =
              recipe.states.whole_reductions && can_pair && reduces_once && plan.pp > 1};
}

std::vector<int> stage_layers(const ModelSpec& model, const ParallelPlan& plan) {
  if (!plan.pipeline_layout.empty()) return plan.pipeline_layout;
  const int stages = plan.pp * chunks_per_rank(plan);
  const auto layers = static_cast<int>(model.num_layers);
  if (layers % stages == 0) {
    return std::vector<int>(static_cast<std::size_t>(stages), layers / stages);
  }
  // Embedding, loss and extra prediction layers count like a decoder layer each.
  const int tail = 1 + static_cast<int>(model.num_mtp_layers);
  const int total = layers + 1 + tail;
  std::vector<int> split(static_cast<std::size_t>(stages), total / stages);
  // What is left over goes to the middle, away from the two heavy ends.
  for (int i = 0; i < total % stages; ++i) {
    split[static_cast<std::size_t>((stages / 2 + i) % stages)] += 1;
  }
  split.front() -= 1;
  split.back() -= tail;
  for (std::size_t i = split.size() - 1; i > 0 && split.back() < 0; --i) {
    split[i - 1] -= 1;
    split.back() += 1;
  }
  return split;
}

StageList stage_list(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                     const BlockShape& base, const JobFacts& facts,
                     const ParametersOf& parameters_of) {
  const std::vector<int> layers = stage_layers(model, plan);
  const int zero = sharding_in_blocks(plan, recipe);
  const bool chain = gathers_parameters(recipe, zero) || zero >= 2;
  StageList list;
  list.of_stage.reserve(layers.size());
  int first = 0;
  std::vector<int> starts;  // of the stages: their first layer
  starts.reserve(layers.size());
  const bool sees = model.vision && recipe.form.vision;
  const BlockShape seeing = sees ? with_images(base, model, recipe, facts) : base;
  for (std::size_t i = 0; i < layers.size(); ++i, first += layers[i - 1]) {
    const bool inner = i > 0 && i + 1 < layers.size();
    // A middle stage with the layers of an earlier middle stage is that stage again.
    int same = -1;
    for (std::size_t j = 1; inner && j < i && same < 0; ++j) {
      if (layers[j] != layers[i]) continue;
      const auto start = model.layers.begin() + starts[j];
      if (std::equal(start, start + layers[i], model.layers.begin() + first)) {
        same = list.of_stage[j];
      }
    }
    starts.push_back(first);
    if (same >= 0) {
      list.of_stage.push_back(same);
      continue;
    }
    StageRuns runs;
    runs.reserve(4);  // as many as most stages have
    if (i == 0) {
      if (model.vision) append_vision(runs, model, recipe, with_images(base, model, recipe, facts));
      append(runs, with_kind(seeing, BlockKind::embedding), 1);
    }
    append_layers(runs, model, plan, base, seeing, first, layers[i]);
    if (i + 1 == layers.size()) {
      if (model.num_mtp_layers > 0) {
        append(runs, with_kind(base, BlockKind::mtp_embedding), 1);
        BlockShape mtp = with_kind(base, BlockKind::mtp);
        mtp.layer = {.moe = model.moe.has_value(), .window = 0};
        append(runs, mtp, 1);
      }
      append(runs, with_kind(base, BlockKind::head), 1);
    }
    list.of_stage.push_back(static_cast<int>(list.distinct.size()));
    if (chain && !runs.empty()) runs = chained(parameters_of, base, runs);
    list.distinct.push_back(std::move(runs));
  }
  const std::vector<int> once = list.of_stage;
  for (int copy = 1; copy < stage_copies(plan.schedule); ++copy) {
    list.of_stage.insert(list.of_stage.end(), once.begin(), once.end());
  }
  return list;
}

StageList stage_list(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                     const BlockShape& base, const JobFacts& facts) {
  return stage_list(model, plan, recipe, base, facts,
                    [&](const BlockShape& shape) { return rank_parameters(model, shape); });
}

Bytes boundary_bytes(const ModelSpec& model, const BlockShape& base) {
  const std::int64_t tokens = base.micro_batch_size * base.seq_len / base.cp;
  const std::int64_t local = base.sequence_parallel ? tokens / base.tp : tokens;
  const double element = size_of(hidden_dtype_of(model, base));
  return rounded(Bytes(static_cast<double>(local * model.hidden_size) * element));
}

Bytes message_buffer_bytes(const ModelSpec& model, const BlockShape& base, const Recipe& recipe) {
  return recipe.memory.message_buffers ? boundary_bytes(model, base) : Bytes(0);
}

StepProgram build_step_program(const ModelSpec& model, const ParallelPlan& plan,
                               const Recipe& recipe, const JobFacts& facts) {
  StepProgram program;
  const BlockShape base = base_shape(model, plan, recipe, facts.moe_imbalance, facts.turns_fp8);
  std::unordered_map<BlockShape, BlockId, ShapeHash> known;
  const auto id_of = [&](const BlockShape& shape) {
    const auto [it, added] = known.try_emplace(shape, static_cast<BlockId>(program.blocks.size()));
    if (added) {
      program.blocks.push_back(build_block(model, recipe, shape));
      program.shapes.push_back(shape);
    }
    return it->second;
  };
  const StageList stages = stage_list(model, plan, recipe, base, facts);
  for (std::size_t i = 0; i < stages.of_stage.size(); ++i) {
    Stage stage;
    for (const Run& run : stages.runs(i)) stage.runs.push_back({id_of(run.shape), run.count});
    program.stages.push_back(stage);
  }
  program.edge = id_of(with_kind(base, BlockKind::step_edge));
  program.schedule = schedule_shape(plan, recipe);
  program.actions = build_schedule(program.schedule);
  program.grid = rank_grid(plan, facts);
  program.boundary = boundary_bytes(model, base);
  program.message_buffer = message_buffer_bytes(model, base, recipe);
  program.reduce_overlapped = plan.overlap.has(OverlapKind::grad);
  program.gather_overlapped = plan.overlap.has(OverlapKind::param);
  return program;
}

std::uint64_t fingerprint(const StepProgram& program) {
  std::uint64_t hash = kHashSeed;
  for (const Block& block : program.blocks) {
    for (const Slot& slot : block.slots) {
      hash = hash_mix(hash, static_cast<std::uint64_t>(slot.bytes().value()));
      hash = hash_mix(hash, static_cast<std::uint64_t>(slot.storage) * 16 +
                                static_cast<std::uint64_t>(slot.dtype));
    }
    for (const PackedParameter& p : block.parameters) {
      hash = hash_mix(hash, static_cast<std::uint64_t>(p.whole.role) * 2 + int{p.whole.bias});
      hash = hash_mix(hash, static_cast<std::uint64_t>(p.offset));
    }
    for (const OpList* ops : {&block.clear, &block.forward, &block.backward, &block.gather,
                              &block.reduce, &block.norm, &block.update}) {
      hash = hash_ops(hash, *ops);
    }
  }
  for (const Stage& stage : program.stages) {
    for (const Stage::Part& run : stage.runs) {
      hash = hash_mix(hash, static_cast<std::uint64_t>(run.block) * 65536 +
                                static_cast<std::uint64_t>(run.count));
    }
  }
  if (program.message_buffer > Bytes(0)) {
    hash = hash_mix(hash, static_cast<std::uint64_t>(program.message_buffer.value()));
  }
  const ScheduleShape& s = program.schedule;
  for (const int n : {static_cast<int>(s.kind), s.pp, s.vpp, s.microbatches,
                      int{s.pairs} + 2 * int{s.whole_reductions}}) {
    hash = hash_mix(hash, static_cast<std::uint64_t>(n));
  }
  return hash_mix(hash, static_cast<std::uint64_t>(program.reduce_overlapped) * 2 +
                            static_cast<std::uint64_t>(program.gather_overlapped));
}

OpList part_ops(const Block& block, Part part) {
  switch (part) {
    case Part::forward:
      return block.forward;
    case Part::forward_first:
      return joined(block.gather, block.forward);
    case Part::backward:
      return block.backward;
    case Part::backward_last:
      return joined(block.backward, block.reduce);
    case Part::backward_input:
      return split_backward(block).input;
    case Part::backward_weight:
      return split_backward(block).weight;
    case Part::backward_weight_last:
      return joined(split_backward(block).weight, block.reduce);
    case Part::reduce:
      return block.reduce;
    case Part::reduce_beside: {
      OpList ops = block.reduce;
      if (!ops.empty()) ops.push_back({.work = Join{}, .stream = Stream::compute});
      return ops;
    }
    case Part::clear:
      return block.clear;
    case Part::norm:
      return block.norm;
    case Part::update:
      return block.update;
  }
  return {};
}

Part part_of(const Action& action, bool gather_overlapped, bool reduce_overlapped) {
  const bool reduce = action.last && reduce_overlapped;
  switch (action.kind) {
    case ActionKind::forward:
      return action.first && gather_overlapped ? Part::forward_first : Part::forward;
    case ActionKind::backward:
      return reduce ? Part::backward_last : Part::backward;
    case ActionKind::backward_input:
      return Part::backward_input;
    case ActionKind::backward_weight:
      return reduce ? Part::backward_weight_last : Part::backward_weight;
    case ActionKind::reduce:
      return action.last ? Part::reduce : Part::reduce_beside;
  }
  return Part::forward;
}

bool runs_backward(Part part) {
  return part == Part::backward || part == Part::backward_last || part == Part::backward_input ||
         part == Part::backward_weight || part == Part::backward_weight_last;
}

namespace {

bool is_gradient(const Slot& slot) {
  return slot.storage == Storage::gradient || slot.storage == Storage::fresh_gradient ||
         (slot.storage == Storage::wire && slot.flow == Flow::gradients);
}
bool leaves(const Slot& slot) {
  return slot.storage == Storage::wire && !is_gradient(slot);
}

}  // namespace

BackwardSplit split_backward(const Block& block) {
  std::vector<bool> of_input(block.slots.size(), false), of_weight(block.slots.size(), false);
  std::vector<bool> in_weight(block.backward.size(), false);
  for (std::size_t i = block.backward.size(); i-- > 0;) {
    const Op& op = block.backward[i];
    // Waits and gathers stay with B, and so does whatever writes the gradient that leaves the
    // block, or what nobody reads (a repeated module's output).
    bool input = op.stream == Stream::gather_comm, weight = false;
    for (const SlotId id : op.writes) {
      const auto slot = static_cast<std::size_t>(id);
      input = input || leaves(block.slots[slot]) || of_input[slot];
      weight = weight || is_gradient(block.slots[slot]) || of_weight[slot];
    }
    in_weight[i] = weight && !input;
    for (const SlotId id : op.reads) {
      (in_weight[i] ? of_weight : of_input)[static_cast<std::size_t>(id)] = true;
    }
  }
  BackwardSplit split;
  for (std::size_t i = 0; i < block.backward.size(); ++i) {
    (in_weight[i] ? split.weight : split.input).push_back(block.backward[i]);
  }
  restore_waits(split.weight);
  return split;
}

}  // namespace qplan
