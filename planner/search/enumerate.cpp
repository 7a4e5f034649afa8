#include "planner/search/enumerate.h"

#include <algorithm>

#include "models/program/loss.h"
#include "models/program/step_program.h"
#include "planner/rules/experts.h"
#include "planner/rules/feasible.h"
#include "planner/search/layout.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

using P = ParallelPlan;

template <class T>
bool contains(const std::vector<T>& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

template <class T>
std::vector<T> or_default(const std::vector<T>& asked, const std::vector<T>& offered) {
  return asked.empty() ? offered : asked;
}

std::vector<int> zero_stages(const Recipe& recipe) {
  std::vector<int> stages;
  for (int z = recipe.can.zero.first; z <= recipe.can.zero.last; ++z) stages.push_back(z);
  return stages;
}

// Those of a set, in the order of their words.
template <class E>
std::vector<E> members(EnumSet<E> set) {
  std::vector<E> result;
  for (const auto& [e, word] : Words<E>::table) {
    if (set.has(e)) result.push_back(e);
  }
  return result;
}

std::vector<Offload> offload_choices(const Recipe& recipe) {
  const StateOffload has = recipe.can.offload;
  std::vector<Offload> choices = {{}};
  // A share of it where the rest fits (the best plans are tried with as little as must be).
  if (has == StateOffload::optimizer) {
    choices.push_back({.optimizer = 0.25});
    choices.push_back({.optimizer = 1.0});
  }
  if (has == StateOffload::whole) choices.push_back({.optimizer = 1.0, .params = true});
  return choices;
}

// What to recompute: nothing, everything, the first quarters of each chunk (Megatron's block
// method; others have no word for it), and the modules that free memory
// (docs/reference/physics.md 5.4). core_attn frees nothing under fused attention and is left to who
// asks for it.
std::vector<Recompute> recompute_choices(const ModelSpec& model, const Recipe& recipe,
                                         int layers_per_chunk) {
  std::vector<Recompute> choices = {{}, {.kind = RecomputeKind::full, .modules = {}, .layers = 0}};
  const EnumSet<RecomputeChoice> has = recipe.can.recompute;
  for (int quarters = 3; quarters > 0 && has.has(RecomputeChoice::blocks); --quarters) {
    const int layers = layers_per_chunk * quarters / 4;
    if (layers == 0 || layers == choices.back().layers) break;
    choices.push_back({.kind = RecomputeKind::full, .modules = {}, .layers = layers});
  }
  const auto selective = [&](std::initializer_list<RecomputeModule> modules) {
    Recompute r{.kind = RecomputeKind::selective, .modules = {}, .layers = 0};
    for (const RecomputeModule m : modules) r.modules.add(m);
    choices.push_back(r);
  };
  const bool unnamed = has.has(RecomputeChoice::unnamed);
  if (recipe.kernels.attention == AttentionKernel::unfused && !unnamed) {
    selective({RecomputeModule::core_attn});
  }
  if (unnamed) choices.push_back({.kind = RecomputeKind::selective, .modules = {}, .layers = 0});
  if (!has.has(RecomputeChoice::modules)) return choices;
  if (model.moe) {
    selective({RecomputeModule::moe_act});
    selective({RecomputeModule::moe});
  } else {
    if (!recipe.kernels.norms_in_linears) selective({RecomputeModule::layernorm});
    selective({RecomputeModule::mlp});
  }
  if (model.moe && model.delta_net) {
    selective({RecomputeModule::gdn_norm_out, RecomputeModule::moe_act});
  }
  if (model.mla) selective({RecomputeModule::mla_up_proj, RecomputeModule::layernorm});
  return choices;
}

// Norms split over tp, or whole. Experts need them split where tp ranks would otherwise send the
// same tokens.
std::vector<bool> sequence_splits(const ModelSpec& model, const Recipe& recipe) {
  if (recipe.can.sequence_split == SequenceSplit::none) return {false};
  if (model.moe) return {true};
  return {true, false};
}

struct Chunking {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int vpp = 1;
};

// Chunks of layers that each rank of an interleaved pipeline may have: as many as a layout has
// stages for; any few where a search may place layers, for it evens them out; else those among
// which layers divide, or where none do embedding and loss as a layer each.
std::vector<int> interleavings(const ModelSpec& model, const Recipe& recipe,
                               const SearchSpace& space, int pp) {
  const std::int64_t with_ends = layers_with_ends(model);
  const auto those = [&](auto fills) {
    std::vector<int> chunks;
    for (int v = 2; v <= kMostChunks && std::int64_t{pp} * v <= with_ends; ++v) {
      if (fills(std::int64_t{pp} * v)) chunks.push_back(v);
    }
    return chunks;
  };
  const std::vector<int>& layout = space.job.pipeline_layout;
  if (!layout.empty()) return those([&](auto stages) { return stages == std::ssize(layout); });
  if (recipe.can.takes_layout) return those([](auto) { return true; });
  std::vector<int> even = those([&](auto stages) { return model.num_layers % stages == 0; });
  if (!even.empty()) return even;
  return those([&](auto stages) { return with_ends % stages == 0; });
}

std::vector<Chunking> chunkings(const ModelSpec& model, const Recipe& recipe,
                                const SearchSpace& space, int pp) {
  std::vector<Chunking> result;
  const EnumSet<ScheduleKind> has = recipe.can.schedules;
  const auto& schedules = space[&P::schedule];
  for (const auto& [kind, word] : Words<ScheduleKind>::table) {
    const bool asked = contains(schedules, kind);
    if (schedules.empty() ? !has.has(kind) : !asked) continue;
    if (pp == 1 && kind != ScheduleKind::one_f_one_b && !asked) continue;
    // Only on request: GPipe, which holds every microbatch and is never faster than 1F1B; ZB-V,
    // whose schedule has no repeating part to shorten a simulation by; and DualPipe, which holds
    // every stage twice, where another schedule shortens the bubble.
    const bool rare = kind == ScheduleKind::gpipe || kind == ScheduleKind::zbv ||
                      (kind == ScheduleKind::dualpipe && has.has(ScheduleKind::interleaved));
    if (rare && !asked) continue;
    std::vector<int> chunks = {1};
    if (kind == ScheduleKind::zbv) chunks = {2};
    if (kind == ScheduleKind::interleaved) chunks = interleavings(model, recipe, space, pp);
    for (const int v : or_default(space[&P::vpp], chunks)) result.push_back({kind, v});
  }
  return result;
}

struct ExpertLayout {
  int ep = 1, etp = 1;
  MoeDispatcher dispatcher = MoeDispatcher::alltoall;
};

// Where there is no library for experts Megatron's other dispatcher, which gathers all tokens, may
// be the faster of its two.
EnumSet<MoeDispatcher> dispatchers_on(const HardwareProfile& hardware, const Recipe& recipe) {
  EnumSet<MoeDispatcher> dispatchers = recipe.can.dispatchers;
  if (!dispatchers.has(MoeDispatcher::deepep)) return dispatchers;
  if (!rules::has_expert_library(hardware.gpu.compute_capability)) {
    return dispatchers.remove(MoeDispatcher::deepep).add(MoeDispatcher::allgather);
  }
  // The library of racks whose NVLink joins nodes is another (rule dispatcher_rack).
  if (!limits_of(hardware, 0).rack) return dispatchers;
  return dispatchers.remove(MoeDispatcher::deepep).add(MoeDispatcher::hybridep);
}

// Expert degrees that divide a stage's ranks, each with the dispatchers the recipe has there.
std::vector<ExpertLayout> expert_layouts(const ModelSpec& model, const Recipe& recipe,
                                         const HardwareProfile& hardware, const SearchSpace& space,
                                         const Skeleton& k) {
  const std::int64_t ranks = std::int64_t{k.tp} * k.cp * k.dp;
  std::vector<int> eps = {1}, etps = {1};
  if (model.moe) {
    eps = divisors(model.moe->num_experts);
    if (k.tp > 1) etps.push_back(k.tp);
  }
  std::vector<ExpertLayout> layouts;
  for (const int ep : or_default(space[&P::ep], eps)) {
    for (const int etp : or_default(space[&P::etp], etps)) {
      // Degrees that do not divide are no plans at all; asked for, they are refused with the
      // reason.
      const bool asked = !space[&P::ep].empty() || !space[&P::etp].empty();
      if (!asked && ranks % (std::int64_t{ep} * etp) != 0) continue;
      std::vector<MoeDispatcher> dispatchers = {MoeDispatcher::alltoall};
      if (ep > 1) dispatchers = members(dispatchers_on(hardware, recipe));
      for (const MoeDispatcher d : or_default(space[&P::moe_dispatcher], dispatchers)) {
        layouts.push_back({ep, etp, d});
      }
    }
  }
  return layouts;
}

// Micro-batches worth trying: powers of two to 8 sequences, and what else divides a rank's
// sequences: odd ones (1026 over dp 18 are 57, which no 2 divides), and more of short ones, up to
// 32 Ki tokens. Twice that where parameters are gathered for each microbatch: ZeRO-3 with full
// recomputation was 6% faster by 16 x 4096 than by 8 x 4096 on 64 H100, and no faster by 32 x 4096.
std::vector<std::int64_t> micro_batches(const Recipe& recipe, const SearchSpace& space,
                                        const Skeleton& k) {
  const std::vector<int> stages = or_default(space[&P::zero], zero_stages(recipe));
  const bool gathers = std::find(stages.begin(), stages.end(), 3) != stages.end();
  constexpr std::int64_t kFew = 8, kMostTokens = 1 << 15;
  const std::int64_t most = (gathers ? 2 : 1) * kMostTokens / space.job.seq_len;
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= std::max(kFew, most); ++size) {
    const bool power = (size & (size - 1)) == 0, few = size <= kFew;
    const bool divides = space.job.global_batch_size % (k.dp * size) == 0;
    if (few ? power || divides : power && divides) sizes.push_back(size);
  }
  return sizes;
}

struct Sharding {
  int zero = 0;
  EnumSet<OverlapKind> overlap;
};

// Without sharded optimizer states there are no parameters to gather beside forward.
std::vector<Sharding> sharding(const Recipe& recipe, const SearchSpace& space,
                               const ParallelPlan& so_far) {
  const bool split_backward = splits_backward(so_far.schedule);
  // Whatever the stage, parameters stay gathered through a step.
  const bool alike = recipe.states.gathers_once_in_pipeline && so_far.pp > 1;
  const bool alone = recipe.states.alone_as_zero1 && !so_far.shares_states();
  std::vector<Sharding> choices;
  for (const int zero : or_default(space[&P::zero], zero_stages(recipe))) {
    if (alike && zero == 3 && space[&P::zero].empty()) continue;
    if (alone && zero > 1 && space[&P::zero].empty()) continue;
    // Delayed weight gradients need whole gradients (rule split_backward_sharding).
    if (split_backward && zero >= 2 && space[&P::zero].empty()) continue;
    for (const EnumSet<OverlapKind> o : or_default(space[&P::overlap], {so_far.overlap})) {
      choices.push_back({zero, overlap_at_zero(zero, o)});
    }
  }
  return choices;
}

// Shard sets of FSDP: everybody, or one a node (HSDP) where the group is larger than a node.
std::vector<int> shard_sets(const Recipe& recipe, const HardwareProfile& hardware,
                            const Skeleton& k) {
  const int group = k.dp * k.cp, node = hardware.link.gpus_per_node;
  std::vector<int> sets = {0};
  if (recipe.states.shard_style == ShardStyle::fully_sharded && group > node && group % node == 0) {
    sets.push_back(node);
  }
  return sets;
}

// One word of the plan with the values it takes.
struct Word {
  std::size_t count = 0;
  std::function<void(ParallelPlan&, std::size_t)> set;
  bool reads_others = false;  // what it sets depends on words before it
};

template <class T, class Set>
Word word(std::vector<T> values, Set set) {
  const std::size_t count = values.size();
  return {.count = count,
          .set = [values = std::move(values), set](ParallelPlan& plan, std::size_t i) {
            set(plan, values[i]);
          }};
}

Word sharding_word(std::vector<Sharding> choices) {
  return word(std::move(choices), [](ParallelPlan& plan, const Sharding& v) {
    plan.zero = v.zero;
    plan.overlap = v.overlap;
  });
}

// Words whose values follow from the recipe, the degrees or each other, above.
template <class T>
constexpr bool has_choices_of_its_own(T P::*member) {
  return is_any_of(member, &P::tp, &P::pp, &P::dp, &P::cp, &P::ep, &P::etp, &P::zero,
                   &P::fsdp_shard, &P::micro_batch_size, &P::schedule, &P::vpp,
                   &P::sequence_parallel, &P::cp_comm, &P::recompute, &P::offload,
                   &P::moe_dispatcher, &P::overlap, &P::loss);
}

// Sets the words that take one value and leaves the others: most words of a plan, asked for once
// instead of once a plan. A word that reads others (the loss) comes behind them, so that one behind
// a word that turns stays.
std::vector<Word> turning(const std::vector<Word>& words, ParallelPlan& plan) {
  std::vector<Word> left;
  for (const Word& w : words) {
    const bool reads = w.reads_others && !left.empty();
    if (w.count == 1 && !reads) {
      w.set(plan, 0);
    } else {
      left.push_back(w);
    }
  }
  return left;
}

// All combinations, the last word turning fastest.
template <class Visit>
void walk(const std::vector<Word>& words, std::size_t depth, ParallelPlan& plan,
          const Visit& visit) {
  if (depth == words.size()) {
    visit(plan);
    return;
  }
  for (std::size_t i = 0; i < words[depth].count; ++i) {
    words[depth].set(plan, i);
    walk(words, depth + 1, plan, visit);
  }
}

}  // namespace

std::vector<int> divisors(std::int64_t n) {
  std::vector<int> result;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    result.push_back(static_cast<int>(d));
    if (d != n / d) result.push_back(static_cast<int>(n / d));
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::int64_t layers_with_ends(const ModelSpec& model) {
  return model.num_layers + 2 + model.num_mtp_layers;
}

std::vector<Skeleton> skeletons(const ModelSpec& model, const Recipe& recipe,
                                const HardwareProfile& hardware, const SearchSpace& space) {
  const std::vector<int> all = divisors(space.gpus);
  // Degrees nobody runs are left out unless asked for: tensor parallelism beyond the heads, a
  // context share below 2048 tokens, more stages than layers.
  const auto below = [&](std::int64_t limit) {
    std::vector<int> few;
    std::copy_if(all.begin(), all.end(), std::back_inserter(few),
                 [limit](int d) { return d <= limit; });
    return few;
  };
  const auto tps = or_default(
      space[&P::tp],
      below(std::min<std::int64_t>(model.num_attention_heads, hardware.link.nvlink_domain)));
  const auto cps =
      or_default(space[&P::cp], below(std::clamp<std::int64_t>(space.job.seq_len / 2048, 1, 64)));
  const auto pps = or_default(space[&P::pp], below(recipe.can.pipeline ? model.num_layers : 1));
  std::vector<Skeleton> result;
  for (const int tp : tps) {
    for (const int cp : cps) {
      for (const int pp : pps) {
        const std::int64_t group = std::int64_t{tp} * cp * pp;
        if (group > space.gpus || space.gpus % group != 0) continue;
        const auto dp = static_cast<int>(space.gpus / group);
        if (!space[&P::dp].empty() && !contains(space[&P::dp], dp)) continue;
        result.push_back({tp, cp, pp, dp});
      }
    }
  }
  return result;
}

struct Family::Words {
  std::vector<Word> turning;
};

void each_plan(const Family& family, const std::function<void(const ParallelPlan&)>& visit) {
  ParallelPlan plan = family.least;
  walk(family.words->turning, 0, plan, visit);
}

void each_plan(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
               const SearchSpace& space, const Skeleton& skeleton,
               const std::function<void(const ParallelPlan&)>& visit) {
  each_family(model, recipe, hardware, space, skeleton,
              [&](const Family& family) { each_plan(family, visit); });
}

void each_family(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
                 const SearchSpace& space, const Skeleton& k,
                 const std::function<void(const Family&)>& visit) {
  ParallelPlan p =
      default_plan(model, recipe, space.gpus, space.job.global_batch_size, space.job.seq_len);
  p.tp = k.tp;
  p.cp = k.cp;
  p.pp = k.pp;
  p.dp = k.dp;
  for_each_word([&](const auto& row) {
    if (row.given == Given::once) p.*row.member = space.job.*row.member;
  });
  p.grad_dtype = default_grad_dtype(recipe, p.precision);

  // Words that nobody chooses for: their default, or what was asked for.
  const auto others = [&](bool only_states) {
    std::vector<Word> words;
    for_each_word([&](const auto& row) {
      using T = typename std::decay_t<decltype(row)>::Value;
      if (is_of_job(row.given) || has_choices_of_its_own(row.member)) return;
      if ((row.touches == kStates) != only_states) return;
      words.push_back(
          word(or_default(space[row.member], {p.*row.member}),
               [member = row.member](ParallelPlan& plan, const T& v) { plan.*member = v; }));
    });
    return words;
  };

  const std::vector<bool> sps =
      k.tp == 1 ? std::vector<bool>{false}
                : or_default(space[&P::sequence_parallel], sequence_splits(model, recipe));
  std::vector<CpComm> cp_comms = {CpComm::p2p};
  if (k.cp > 1) cp_comms = or_default(space[&P::cp_comm], members(recipe.can.cp_exchanges));
  std::vector<Word> of_family = {
      word(expert_layouts(model, recipe, hardware, space, k),
           [](ParallelPlan& plan, const ExpertLayout& e) {
             plan.ep = e.ep;
             plan.etp = e.etp;
             plan.moe_dispatcher = e.dispatcher;
           }),
      word(or_default(space[&P::micro_batch_size], micro_batches(recipe, space, k)),
           [](ParallelPlan& plan, std::int64_t v) { plan.micro_batch_size = v; }),
      word(sps, [](ParallelPlan& plan, bool v) { plan.sequence_parallel = v; }),
      word(cp_comms, [](ParallelPlan& plan, CpComm v) { plan.cp_comm = v; }),
  };
  for (Word& w : others(false)) of_family.push_back(std::move(w));
  of_family.push_back(
      word(or_default(space[&P::loss], {p.loss}), [&recipe](ParallelPlan& plan, LossKind v) {
        plan.loss = loss_word(v, plan.deterministic, recipe);
      }));
  of_family.back().reads_others = true;

  const Word shard_set = word(or_default(space[&P::fsdp_shard], shard_sets(recipe, hardware, k)),
                              [](ParallelPlan& plan, int v) { plan.fsdp_shard = v; });
  const Word offload = word(or_default(space[&P::offload], offload_choices(recipe)),
                            [](ParallelPlan& plan, const Offload& v) { plan.offload = v; });

  for (const Chunking& chunking : chunkings(model, recipe, space, k.pp)) {
    p.schedule = chunking.schedule;
    p.vpp = chunking.vpp;
    p.pipeline_layout = space.job.pipeline_layout;
    const int stages = k.pp * chunks_per_rank(p);
    if (p.pipeline_layout.empty() && model.num_layers % stages != 0) {
      p.pipeline_layout = stage_layers(model, p);
    }
    const int per_chunk = std::max(1, static_cast<int>(model.num_layers) / stages);
    p.recompute = {};
    const std::vector<Word> turn = turning(of_family, p);
    // First what is recomputed, then the words that only move states around: what was folded before
    // serves them all.
    std::vector<Word> inside = {
        word(or_default(space[&P::recompute], recompute_choices(model, recipe, per_chunk)),
             [](ParallelPlan& plan, const Recompute& v) { plan.recompute = v; }),
        sharding_word(sharding(recipe, space, p)), shard_set, offload};
    for (Word& w : others(true)) inside.push_back(std::move(w));
    const auto words = std::make_shared<const Family::Words>(Family::Words{turning(inside, p)});
    std::size_t place = 0;
    walk(turn, 0, p, [&](const ParallelPlan& least) { visit({least, words, place++}); });
  }
}

}  // namespace qplan
