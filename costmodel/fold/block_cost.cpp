#include "costmodel/fold/block_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "costmodel/fold/pace.h"
#include "models/program/merge.h"

namespace qplan {
namespace {

Cost cost_of_axis(Axis axis) {
  switch (axis) {
    case Axis::tp:
    case Axis::etp:
      return Cost::tp;
    case Axis::cp:
      return Cost::cp;
    case Axis::ep:
      return Cost::ep;
    case Axis::pp:
      return Cost::p2p;
    case Axis::dp:
    case Axis::dp_cp:
    case Axis::edp:
    case Axis::embedding:
    case Axis::world:
    case Axis::dp_shard:
    case Axis::dp_replicate:
      return Cost::dp;
  }
  return Cost::dp;
}

bool by_clock(const Work& work) {
  return std::holds_alternative<Gemm>(work) || std::holds_alternative<GroupedGemm>(work) ||
         std::holds_alternative<Attention>(work) || std::holds_alternative<GatedDeltaRule>(work) ||
         std::holds_alternative<StateSpaceScan>(work);
}

bool is_comm(Stream s) {
  return s == Stream::model_comm || s == Stream::gather_comm || s == Stream::reduce_comm;
}

struct Span {
  double begin = 0, end = 0;
};

// When a collective runs, and how much longer compute takes beside it.
struct Beside {
  Span span;
  double slowdown;
};

double overlap(Span a, Span b) {
  return std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

std::optional<Axis> axis_of(const Work& work) {
  if (const auto* c = std::get_if<Collective>(&work)) return c->axis;
  if (const auto* s = std::get_if<SendRecv>(&work)) return s->axis;
  return std::nullopt;
}

std::vector<Slowdown> slowdowns_of(const PricedPart& priced, const CostContext& context) {
  std::vector<Slowdown> slowdowns(priced.ops.size());
  for (std::size_t i = 0; i < slowdowns.size(); ++i) {
    if (!is_comm(priced.ops[i].stream)) continue;
    slowdowns[i] = slowdown_of(priced.ops[i], priced.prices[i].time, context);
  }
  return slowdowns;
}

double kernels_of(const Work& work) {
  if (const auto* r = std::get_if<Rowwise>(&work)) return kernel_count(*r);
  if (const auto* d = std::get_if<GatedDeltaRule>(&work)) return kernel_count(*d);
  if (const auto* s = std::get_if<StateSpaceScan>(&work)) return kernel_count(*s);
  if (const auto* u = std::get_if<Update>(&work)) return kernel_count(*u);
  if (const auto* m = std::get_if<Muon>(&work)) return kernel_count(*m);
  if (const auto* a = std::get_if<Attention>(&work)) {
    if (a->kernel != AttentionKernel::unfused) return 2;
    constexpr double kBesideSoftmax = 5;
    return kBesideSoftmax + (fused_softmax(*a) ? 1 : 5);
  }
  return 1;
}

bool is_update(const Work& work) {
  return std::holds_alternative<Update>(work) || std::holds_alternative<Muon>(work);
}

// At a step's edges kernels go over lists of parameters, whichever layers these are of.
bool over_lists(const Work& work) {
  if (is_update(work)) return true;
  const auto* r = std::get_if<Rowwise>(&work);
  if (r == nullptr) return false;
  return r->kind == RowwiseKind::zero_fill || r->kind == RowwiseKind::sum_of_squares ||
         r->kind == RowwiseKind::scale;
}

// What a hook of a parameter enqueues, what makes an array contiguous, and a loss's kernel behind
// its others: no module of their own.
bool single_kernel(const Work& work) {
  const auto* r = std::get_if<Rowwise>(&work);
  return r != nullptr && (r->kind == RowwiseKind::accumulate || r->kind == RowwiseKind::copy);
}

// Graphs of layers leave embedding, loss and the step's edge to the launching thread; our
// executor's graph of a step the optimizer, whose settings change.
bool captured(const Op& op, std::optional<CudaGraphScope> graphs, const Recipe& recipe) {
  if (!graphs) return false;
  if (recipe.host.updates_outside_graph && is_update(op.work)) return false;
  switch (*graphs) {
    case CudaGraphScope::full:
      return true;
    case CudaGraphScope::layer:
      return op.layer_module != LayerModule::none && op.layer_module != LayerModule::experts;
    case CudaGraphScope::router:
      return op.layer_module == LayerModule::router;
    case CudaGraphScope::mamba:
      return op.layer_module == LayerModule::mamba;
  }
  return false;
}

// nanotron's tensor-parallel rings: what each step takes on the launching thread once the pipeline
// leaves a node, and on the stream once the ring does.
struct RingDelay {
  Seconds launch, time;
};

RingDelay ring_delay(const Work& work, const CostContext& context) {
  const auto* c = std::get_if<Collective>(&work);
  if (c == nullptr || c->axis != Axis::tp) return {};
  const Recipe& recipe = *context.recipe;
  if (!recipe.host.ring) return {};
  const GroupShape& ring = context.grid->shape(Axis::tp);
  const double steps = ring.size - 1;
  RingDelay delay;
  if (context.grid->shape(Axis::pp).nodes > 1) {
    delay.launch = recipe.host.ring->pipelined_step * steps;
  }
  if (ring.nodes > 1) delay.time = recipe.host.ring->crossing_step * steps;
  return delay;
}

// Receives are posted an action early, one from either neighbour, and keep their multiprocessors
// until the message has come: products of phi-4 and Llama 3 8B take 2.3 to 3.8% longer in stages
// than without (two H200, docs/evidence/archive/steps-2026-11-29-two-h200.json), 132 / (132 - 4) =
// 1.031.
double beside_messages(const Op& op, const CostContext& context) {
  constexpr int kWaiting = 2;
  if (!by_clock(op.work) || context.grid->shape(Axis::pp).size == 1) return 1;
  const double all = context.hardware->gpu.multiprocessors;
  return all / std::max(all - kWaiting * context.recipe->host.message_blocks, 1.0);
}

// Of an op alone.
Duration duration_of(const Op& op, const Price& price, const CostContext& context) {
  const RingDelay delay = ring_delay(op.work, context);
  const Seconds time = price.time * beside_messages(op, context) + delay.time;
  if (captured(op, context.graphs, *context.recipe)) return {time, Seconds(0)};
  const Seconds own =
      launch_time(op, *context.recipe) + hook_time(op, *context.recipe, context.zero);
  return {time, own * context.hardware->host.launch_factor + delay.launch};
}

// A grouped product's rows lie with the experts that got any: others' weights are not read, and no
// tile of theirs is part-filled. Where the rest is uneven, both stay sums over the same experts.
Work with_active_experts(const Work& work, double share) {
  const auto* product = std::get_if<GroupedGemm>(&work);
  if (product == nullptr || share >= 1) return work;
  GroupedGemm active = *product;
  const double groups = std::round(static_cast<double>(active.groups) * share);
  active.groups = std::max<std::int64_t>(static_cast<std::int64_t>(groups), 1);
  return active;
}

// Collectives that run beside work which the list does not show: they are slower, and that work,
// for which the list's last op stands, loses what compute loses beside them.
void beside_compute(PricedPart& priced, const CostContext& context) {
  const std::vector<Slowdown> slowdowns = slowdowns_of(priced, context);
  Seconds lost;
  for (std::size_t i = 0; i < priced.ops.size(); ++i) {
    if (!is_comm(priced.ops[i].stream)) continue;
    lost += priced.durations[i].time * (slowdowns[i].compute - 1);
    priced.durations[i].time *= slowdowns[i].comm;
  }
  if (!priced.durations.empty()) priced.durations.back().time += lost;
}

// The ring of gathers under products is copies between GPUs, by copy engines, which hold no
// multiprocessor: Transformer Engine's ring_exchange (pytorch/module/base.py, initialize_ub:
// use_ce=True) and torch's _pipelined_multi_all_gather_and_consume. Products of two H200 that send
// to each other without a pause take 1.036 to 1.049 times as long, the copies as long as alone
// (scripts/copy_engines.py, docs/evidence/archive/executor-draws-2026-11-30.md).
constexpr Slowdown kBesideCopies{.compute = 1.04, .comm = 1};
bool by_copy_engines(const Op& op) {
  const auto* c = std::get_if<Collective>(&op.work);
  return c != nullptr && c->kind == CollectiveKind::all_gather && op.pieces > 1;
}

}  // namespace

Slowdown slowdown_of(const Op& op, Seconds alone, const CostContext& context) {
  const Contention& contention = context.hardware->contention;
  const auto axis = axis_of(op.work);
  const bool leaves_node = axis && context.grid->shape(*axis).nodes > 1;
  const auto* c = std::get_if<Collective>(&op.work);
  if (c != nullptr && c->expert_parallel_library) {
    return leaves_node ? contention.expert_library_network : contention.expert_library;
  }
  if (!leaves_node) {
    const std::optional<BesideNvlink>& own = context.recipe->beside_nvlink;
    if (own) return {own->compute, own->comm};
    return by_copy_engines(op) ? kBesideCopies : contention.nvlink;
  }
  Slowdown slowdown = contention.network;
  if (c == nullptr || alone <= Seconds(0)) return slowdown;
  const Seconds inside = ring_in_nodes(*c, context.grid->shape(*axis), *context.hardware);
  slowdown.comm = std::max(slowdown.comm, contention.nvlink.comm * (inside / alone));
  return slowdown;
}

Cost cost_of(const Op& op, Part part) {
  if (const auto axis = axis_of(op.work)) return cost_of_axis(*axis);
  if (std::holds_alternative<HostCopy>(op.work) || std::holds_alternative<HostAdam>(op.work)) {
    return Cost::offload;
  }
  if (part == Part::clear || part == Part::norm || part == Part::update) return Cost::optimizer;
  return op.recomputed ? Cost::recompute : Cost::compute;
}

double routed_share(const ParallelPlan& plan, const JobFacts& facts) {
  return plan.routing == Routing::natural ? facts.active_experts : 1;
}

std::optional<CudaGraphScope> graphs_of(const ParallelPlan& plan) {
  if (!plan.cuda_graph) return std::nullopt;
  return plan.cuda_graph_scope;
}

Seconds launch_time(const Op& op, const Recipe& recipe) {
  if (std::holds_alternative<Join>(op.work)) return Seconds(0);
  const std::optional<Seconds>& further = recipe.host.further_launch;
  const bool enqueued_by_loop = op.piece > 0 && !std::holds_alternative<Attention>(op.work);
  if (further && is_update(op.work)) return *further * kernels_of(op.work);
  if (further && (enqueued_by_loop || over_lists(op.work) || single_kernel(op.work))) {
    return *further;
  }
  if (std::holds_alternative<Collective>(op.work)) return recipe.host.collective_launch;
  const auto* r = std::get_if<Rowwise>(&op.work);
  const bool casts =
      r != nullptr && (r->kind == RowwiseKind::cast || r->kind == RowwiseKind::quantize);
  if (r != nullptr && r->groups > 1) {
    const auto experts = static_cast<double>(r->groups);
    if (r->kind == RowwiseKind::amax) return recipe.host.expert.scale * experts;
    if (casts) return recipe.host.launch + recipe.host.expert.cast * experts;
  } else if (r != nullptr && r->kind == RowwiseKind::dequantize && recipe.host.dequantize_launch) {
    return *recipe.host.dequantize_launch;
  } else if (r != nullptr && recipe.host.cast_launch) {
    if (casts || r->kind == RowwiseKind::amax) return *recipe.host.cast_launch;
  }
  const auto* g = std::get_if<GroupedGemm>(&op.work);
  if (g != nullptr && recipe.kernels.one_product_per_expert) {
    // One module's products, or as many modules.
    const Seconds each = recipe.host.expert.product;
    const Seconds module = each < recipe.host.launch ? recipe.host.launch : Seconds(0);
    return module + each * static_cast<double>(g->groups);
  }
  const double kernels = kernels_of(op.work);
  return further ? recipe.host.launch + *further * (kernels - 1) : recipe.host.launch * kernels;
}

Seconds hook_time(const Op& op, const Recipe& recipe, int zero) {
  if (op.parameter < 0 || zero == 0) return Seconds(0);
  const auto* r = std::get_if<Rowwise>(&op.work);
  const bool norm_backward = r != nullptr && (r->kind == RowwiseKind::rms_norm_backward ||
                                              r->kind == RowwiseKind::layer_norm_backward);
  // A norm's backward gives its weight's gradient, too, where it has one.
  const bool both = norm_backward && op.writes.count > 1;
  const bool gradient = op.role == Role::weight_gradient;
  Seconds hooks;
  if (gradient || both) hooks += recipe.host.gradient_hook;
  if (zero == 3 && !gradient) hooks += recipe.host.module_hook;
  return hooks;
}

namespace {

// How long ops take that ran for `now` beside each other, by how long they do alone.
std::vector<Duration> beside_each_other(const OpList& ops, const std::vector<Duration>& alone,
                                        const std::vector<Duration>& now,
                                        const std::vector<Slowdown>& slowdowns) {
  // Three copies; the middle one sees both neighbours. Communication that nobody waits for may fall
  // behind by more copies, but behind the last there is no compute beside it either.
  StreamClocks clocks = clocks_at_zero();
  std::vector<Span> middle(ops.size()), compute;
  std::vector<Beside> comm;
  for (int copy = 0; copy < 3; ++copy) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      advance(clocks, ops[i], now[i]);
      const double end = clocks(index(ops[i].stream)).seconds().value();
      const Span span{end - now[i].time.value(), end};
      if (copy == 1) middle[i] = span;
      if (ops[i].stream == Stream::compute) compute.push_back(span);
      if (is_comm(ops[i].stream)) comm.push_back({span, slowdowns[i].compute});
    }
  }
  std::vector<Duration> stretched = alone;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!is_comm(ops[i].stream) && ops[i].stream != Stream::compute) continue;
    if (alone[i].time.value() <= 0) continue;
    const Span own = middle[i];
    double beside = 0;  // time beside work of the other kind
    double lost = 0;    // ... of which it gets nothing done
    const auto add = [&](Span other, double sigma) {
      const double shared = overlap(own, other);
      beside += shared;
      lost += shared * (1 - 1 / sigma);
    };
    if (is_comm(ops[i].stream)) {
      for (const Span& other : compute) add(other, slowdowns[i].comm);
    } else {
      for (const Beside& other : comm) add(other.span, other.slowdown);
    }
    const double length = own.end - own.begin;
    if (beside < length) {
      stretched[i].time += Seconds(lost);
    } else {  // all of it; two collectives at once slow compute no more than one does
      stretched[i].time *= 1 / (1 - lost / beside);
    }
  }
  return stretched;
}

bool about_as_long(const Duration& a, const Duration& b) {
  return std::abs((a.time - b.time).value()) <= 1e-6 * b.time.value();
}

}  // namespace

// What one loses depends on how long the other still runs, which depends on what that loses: a
// round moves an end by a fraction of what the round before did.
void stretch(const OpList& ops, std::vector<Duration>& durations,
             const std::vector<Slowdown>& slowdowns) {
  const bool any =
      std::any_of(ops.begin(), ops.end(), [](const Op& op) { return is_comm(op.stream); });
  if (!any) return;
  constexpr int kMostRounds = 12;
  const std::vector<Duration> alone = durations;
  bool moved = true;
  for (int round = 0; moved && round < kMostRounds; ++round) {
    std::vector<Duration> next = beside_each_other(ops, alone, durations, slowdowns);
    moved = !std::equal(next.begin(), next.end(), durations.begin(), about_as_long);
    durations = std::move(next);
  }
}

CostContext context_of(const ParallelPlan& plan, const HardwareProfile& hardware,
                       const RankGrid& grid, const Recipe& recipe, const JobFacts& facts) {
  return {&hardware, &grid,  &recipe, graphs_of(plan), routed_share(plan, facts),
          plan.zero, nullptr};
}

Price price_of(const Op& op, const CostContext& context) {
  Price p = price(with_active_experts(op.work, context.active_experts),
                  {context.hardware, context.grid, context.step_ratios});
  if (by_clock(op.work)) p.time *= pace_of(*context.grid, context.hardware->gpu.speed_spread);
  if (op.stream == Stream::compute && captured(op, context.graphs, *context.recipe)) {
    // At most half of it: the gain is of kernels that are longer than their launch.
    const Seconds gain = context.hardware->gpu.graph_gain * kernels_of(op.work);
    p.time = p.time - std::min(gain, p.time * 0.5);
  }
  return p;
}

PricedPart price_ops(OpList ops, const CostContext& context) {
  PricedPart result;
  result.ops = std::move(ops);
  result.durations.reserve(result.ops.size());
  result.prices.reserve(result.ops.size());
  bool recomputes = false;
  for (const Op& op : result.ops) {
    result.prices.push_back(price_of(op, context));
    result.durations.push_back(duration_of(op, result.prices.back(), context));
    if (op.recomputed && !recomputes) {
      result.durations.back().launch +=
          context.recipe->host.checkpoint * context.hardware->host.launch_factor;
    }
    recomputes = op.recomputed;
  }
  stretch(result.ops, result.durations, slowdowns_of(result, context));
  return result;
}

PricedPart price_part(const Block& block, Part part, const CostContext& context) {
  PricedPart priced = price_ops(part_ops(block, part), context);
  if (part == Part::reduce_beside) {
    beside_compute(priced, context);
  }
  return priced;
}

PricedPart price_pair(const Block& forward, const Block& backward, const CostContext& context) {
  return price_ops(merge_passes(forward.forward, backward.backward).ops, context);
}

std::vector<Duration> without(const PricedPart& priced, Part part, FreeWork free) {
  std::vector<Duration> durations = priced.durations;
  for (std::size_t i = 0; i < durations.size(); ++i) {
    if (free.has(cost_of(priced.ops[i], part))) durations[i].time = Seconds(0);
    if (free.has(Cost::host)) durations[i].launch = Seconds(0);
  }
  return durations;
}

StreamDelay delay_of(const OpList& ops, const std::vector<Duration>& durations) {
  StreamDelay state = no_delay();
  for (std::size_t i = 0; i < ops.size(); ++i) advance(state, ops[i], durations[i]);
  return state;
}

Seconds least_compute(const OpList& ops, const CostContext& context) {
  StreamClocks clocks = StreamClocks::Constant(MaxPlus(0));
  clocks(index(Stream::compute)) = MaxPlus(1);
  for (const Op& op : ops) {
    const bool counts = op.stream == Stream::compute || op.stream == Stream::model_comm;
    advance(clocks, op, counts ? duration_of(op, price_of(op, context), context) : Duration{});
  }
  return clocks(index(Stream::compute)).seconds();
}

BlockMemory memory_of(const Block& block, BackwardForm form) {
  BlockMemory memory;
  for (const Slot& slot : block.slots) {
    if (slot.storage == Storage::shared) memory.shared.push_back(slot);
  }
  for (const SlotId slot : block.until_backward_ends) {
    memory.staying += block.slots[static_cast<std::size_t>(slot)].bytes();
  }
  const auto leaves = [](const OpList& ops, bool recomputed) {
    Bytes sum;
    for (const Op& op : ops) {
      const auto* copy = std::get_if<HostCopy>(&op.work);
      if (copy != nullptr && copy->to_host && op.recomputed == recomputed) sum += copy->bytes;
    }
    return sum;
  };
  // What is made again in backward was dropped behind forward.
  const Bytes again = leaves(block.backward, true);
  memory.on_host = leaves(block.forward, false) - again;
  memory.passing_host = again;
  const StepLiveness live = step_liveness(block, form);
  memory.forward = memory_use(block, live.forward);
  memory.backward = memory_use(block, live.backward);
  memory.backward_input = memory_use(block, live.backward_input);
  memory.backward_weight = memory_use(block, live.backward_weight);
  memory.end = then(memory_use(block, live.norm), memory_use(block, live.update));
  return memory;
}

}  // namespace qplan
