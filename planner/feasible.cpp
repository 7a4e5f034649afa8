#include "planner/feasible.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "models/program/schedule.h"

namespace qplan {
namespace {

using RecipeSet = EnumSet<RecipeKind>;
using enum RecipeKind;

template <class E, class... Rest>
constexpr EnumSet<E> set_of(E first, Rest... rest) {
  EnumSet<E> set;
  set.add(first);
  (set.add(rest), ...);
  return set;
}

constexpr RecipeSet all_recipes() {
  RecipeSet set;
  for (const auto& [kind, word] : Words<RecipeKind>::table) set.add(kind);
  return set;
}

constexpr RecipeSet operator-(RecipeSet a, RecipeSet b) {
  return {static_cast<std::uint16_t>(a.bits & ~b.bits)};
}

constexpr RecipeSet operator|(RecipeSet a, RecipeSet b) {
  return {static_cast<std::uint16_t>(a.bits | b.bits)};
}

constexpr RecipeSet kEvery = all_recipes();
constexpr RecipeSet kMegatronCore = set_of(megatron, megatron_fsdp);
constexpr RecipeSet kDeepSpeed = set_of(deepspeed, megatron_deepspeed);
constexpr RecipeSet kTorch = set_of(fsdp1, fsdp2, fsdp2_compile);
// Pipelines that place whole layers by even division; the others balance uneven counts by
// themselves (DeepSpeed's partition_method, torchtitan's generated split, nanotron's cost blocks).
constexpr RecipeSet kEvenStages =
    set_of(megatron, megatron_legacy, megatron_fsdp, RecipeKind::qplan);

// One question: this plan, of this model, under this recipe.
struct Case {
  const ModelSpec& m;
  const ParallelPlan& p;
  RecipeKind recipe;
  const ClusterLimits& limits;
};

// Ids M, Q, D and section numbers are those of frameworks.md, whose sources are Megatron-LM
// d98e8a64, DeepSpeed edaa7221, Megatron-DeepSpeed 4efb479d, torchtitan b5bcd76c, accelerate
// 16cb6eb8. Predicates are total: each may be asked whatever the others say, of any plan that
// passes `positive_sizes`.
struct Rule {
  std::string_view id;
  RecipeSet recipes;  // it holds for
  bool (*broken)(const Case&);
  std::string (*message)(const Case&);
  std::string_view source;
};

// ---- what the rules ask ----

constexpr bool divides(std::int64_t divisor, std::int64_t number) {
  return number % divisor == 0;
}

constexpr std::int64_t stage_count(const ParallelPlan& p) {
  return std::int64_t{p.pp} * p.vpp;
}

bool has_dense_layer(const ModelSpec& m) {
  return !m.moe || std::any_of(m.layers.begin(), m.layers.end(),
                               [](const LayerKind& kind) { return !kind.moe; });
}

bool has_window(const ModelSpec& m) {
  return std::any_of(m.layers.begin(), m.layers.end(),
                     [](const LayerKind& kind) { return kind.window > 0; });
}

// Key and value heads that a rank holds; with fewer heads than ranks each keeps a copy of one.
std::int64_t kv_heads_per_rank(const Case& c) {
  const std::int64_t heads = c.m.mla ? c.m.num_attention_heads : c.m.num_key_value_heads;
  return std::max<std::int64_t>(1, heads / c.p.tp);
}

// Tokens that one rank's matrix products see.
std::int64_t tokens_per_rank(const ParallelPlan& p) {
  return p.micro_batch_size * p.seq_len / (std::int64_t{p.cp} * (p.sequence_parallel ? p.tp : 1));
}

constexpr bool is_low_precision(Precision p) {
  return p != Precision::bf16 && p != Precision::fp16;
}

// Rows must come in multiples of this: cuBLAS and Transformer Engine's 16, mxfp8's blocks of 32.
constexpr std::int64_t token_multiple(Precision p) {
  return p == Precision::mxfp8 ? 32 : 16;
}

constexpr int capability_for(Precision p) {
  switch (p) {
    case Precision::bf16:
    case Precision::fp16:
      return 0;
    case Precision::fp8:
      return 89;  // Ada and Hopper
    case Precision::mxfp8:
    case Precision::nvfp4:
      return 100;  // Blackwell
  }
  return 0;
}

constexpr bool is_fused_dispatcher(MoeDispatcher d) {
  return d == MoeDispatcher::deepep || d == MoeDispatcher::hybridep;
}

constexpr bool lacks_experts(const ModelSpec& m, const Recompute& recompute) {
  const bool needs_shared = recompute.modules.has(RecomputeModule::shared_experts);
  const bool needs_moe = needs_shared || recompute.modules.has(RecomputeModule::moe) ||
                         recompute.modules.has(RecomputeModule::moe_act);
  return (needs_moe && !m.moe) || (needs_shared && m.moe->shared_expert_intermediate_size == 0);
}

// ---- how the messages say it ----

std::string recipe_name(const Case& c) {
  return std::string(to_word(c.recipe));
}

template <class E>
std::string words_of(EnumSet<E> set) {
  std::string text;
  for (const auto& [e, word] : Words<E>::table) {
    if (!set.has(e)) continue;
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

// "use tp 1, 2, 4 or 8": the degrees that `number` can be cut into, up to 128.
std::string use_divisor(std::string_view word, std::int64_t number) {
  std::vector<std::int64_t> good;
  for (std::int64_t d = 1; d <= std::min<std::int64_t>(number, 128); ++d) {
    if (divides(d, number)) good.push_back(d);
  }
  if (good.size() < 2) return fmt::format("use {} 1", word);
  const std::int64_t last = good.back();
  good.pop_back();
  return fmt::format("use {} {} or {}", word, fmt::join(good, ", "), last);
}

std::string not_in(const Case& c, std::string_view what, std::string_view instead) {
  return fmt::format("{} has no {}; {}", recipe_name(c), what, instead);
}

// Why 1F1B all-to-all overlap cannot work here, or "" (M70).
std::string_view expert_overlap_obstacle(const Case& c) {
  if (!c.p.overlap.has(OverlapKind::ep)) return "";
  if (c.p.ep == 1) return "ep above 1";
  if (c.p.moe_dispatcher == MoeDispatcher::allgather) {
    return "an all-to-all dispatcher (alltoall, deepep or hybridep)";
  }
  if (c.p.pp > 1 && c.p.vpp == 1) return "virtual stages (vpp above 1) when pp is above 1";
  if (c.p.recompute.kind == RecomputeKind::full) return "recompute other than full";
  if (c.p.recompute.modules.has(RecomputeModule::moe)) return "a recompute set without moe";
  if (c.m.num_mtp_layers > 1) return "at most one multi-token-prediction layer";
  return "";
}

// What a schedule wants of vpp: exactly one chunk, exactly two, or more than one.
std::string_view chunk_rule(const ParallelPlan& p) {
  switch (p.schedule) {
    case ScheduleKind::interleaved:
      return p.vpp > 1 ? "" : "vpp above 1";
    case ScheduleKind::zbv:
      return p.vpp == 2 ? "" : "vpp 2, one chunk down and one back up";
    case ScheduleKind::dualpipe:
      return p.vpp == 1 ? "" : "vpp 1, its second chunk is a replica";
    case ScheduleKind::gpipe:
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::zb_h1:
      return p.vpp == 1 ? "" : "vpp 1 (interleaved and zbv have chunks)";
  }
  return "";
}

// Microbatches below which a schedule cannot fill its warm-up.
constexpr std::int64_t fewest_microbatches(const ParallelPlan& p) {
  switch (p.schedule) {
    case ScheduleKind::gpipe:
    case ScheduleKind::one_f_one_b:
      return 1;
    case ScheduleKind::interleaved:
    case ScheduleKind::zb_h1:
    case ScheduleKind::zbv:
      return p.pp;
    case ScheduleKind::dualpipe:
      return std::int64_t{2} * p.pp;
  }
  return 1;
}

constexpr bool is_state_dtype(DType t) {
  return t == DType::fp32 || t == DType::bf16 || t == DType::fp16;
}

// ---- the table ----

// Cheap rules that reject most of a search's candidates come first.
constexpr auto kRules = std::to_array<Rule>({
    {"positive_sizes", kEvery,
     [](const Case& c) {
       const ParallelPlan& p = c.p;
       return std::min({p.tp, p.pp, p.vpp, p.cp, p.ep, p.etp, p.dp}) < 1 ||
              std::min({p.micro_batch_size, p.global_batch_size, p.seq_len}) < 1 || p.zero < 0 ||
              p.zero > 3 || p.fsdp_shard < 0;
     },
     [](const Case& c) {
       return "degrees, batch sizes and seq_len must be at least 1 and zero 0 to 3: " +
              to_string(c.p);
     },
     "M08"},

    // Group sizes and batch.
    {"world_size", kEvery,
     [](const Case& c) { return c.limits.gpus > 0 && c.p.world() != c.limits.gpus; },
     [](const Case& c) {
       return fmt::format("tp {} x cp {} x dp {} x pp {} is {} ranks, not {} GPUs", c.p.tp, c.p.cp,
                          c.p.dp, c.p.pp, c.p.world(), c.limits.gpus);
     },
     "M01"},
    {"batch_divisibility", kEvery,
     [](const Case& c) { return !divides(c.p.micro_batch_size * c.p.dp, c.p.global_batch_size); },
     [](const Case& c) {
       return fmt::format(
           "a global batch of {} is not a whole number of microbatches of {} on each of dp {}; "
           "use a multiple of {}",
           c.p.global_batch_size, c.p.micro_batch_size, c.p.dp, c.p.micro_batch_size * c.p.dp);
     },
     "M07"},
    {"dense_experts", kEvery, [](const Case& c) { return !c.m.moe && (c.p.ep > 1 || c.p.etp > 1); },
     [](const Case& c) {
       return fmt::format("the model has no experts to split over ep {} x etp {}; use ep 1 etp 1",
                          c.p.ep, c.p.etp);
     },
     "M03"},
    {"expert_world", kEvery,
     [](const Case& c) {
       return !divides(std::int64_t{c.p.etp} * c.p.ep, std::int64_t{c.p.tp} * c.p.cp * c.p.dp);
     },
     [](const Case& c) {
       return fmt::format("etp {} x ep {} does not divide the {} ranks of a stage (tp x cp x dp)",
                          c.p.etp, c.p.ep, std::int64_t{c.p.tp} * c.p.cp * c.p.dp);
     },
     "M02, Q5; torchtitan parallel_dims (4.3)"},
    {"experts_per_rank", kEvery,
     [](const Case& c) { return c.m.moe && !divides(c.p.ep, c.m.moe->num_experts); },
     [](const Case& c) {
       return fmt::format("{} experts cannot be split over ep {}; {}", c.m.moe->num_experts, c.p.ep,
                          use_divisor("ep", c.m.moe->num_experts));
     },
     "M03, D04, D09"},
    {"fsdp_shard_divides", kEvery,
     [](const Case& c) {
       return c.p.fsdp_shard > 0 && !divides(c.p.fsdp_shard, std::int64_t{c.p.dp} * c.p.cp);
     },
     [](const Case& c) {
       return fmt::format("fsdp_shard {} does not divide the {} ranks of dp x cp", c.p.fsdp_shard,
                          std::int64_t{c.p.dp} * c.p.cp);
     },
     "M06, D08"},
    {"fsdp_shard_without_zero", kEvery,
     [](const Case& c) { return c.p.fsdp_shard > 0 && c.p.zero == 0; },
     [](const Case& c) {
       return fmt::format("fsdp_shard {} has nothing to shard at zero 0; use zero 1 to 3",
                          c.p.fsdp_shard);
     },
     "M06"},

    // Tensor and sequence parallel.
    {"attention_heads", kEvery,
     [](const Case& c) { return !divides(c.p.tp, c.m.num_attention_heads); },
     [](const Case& c) {
       return fmt::format("{} attention heads cannot be split over tp {}; {}",
                          c.m.num_attention_heads, c.p.tp,
                          use_divisor("tp", c.m.num_attention_heads));
     },
     "M20"},
    {"key_value_heads", kEvery,
     [](const Case& c) {
       const std::int64_t heads = c.m.num_key_value_heads;
       return !c.m.mla && !divides(c.p.tp, heads) && (heads < 1 || !divides(heads, c.p.tp));
     },
     [](const Case& c) {
       return fmt::format(
           "{} key-value heads can neither be split over nor repeated on tp {}; use a tp that "
           "divides {} or is a multiple of it",
           c.m.num_key_value_heads, c.p.tp, c.m.num_key_value_heads);
     },
     "M21"},
    // DTensor shards the heads and does not repeat them.
    {"key_value_heads_split", set_of(fsdp2, fsdp2_compile),
     [](const Case& c) { return !c.m.mla && !divides(c.p.tp, c.m.num_key_value_heads); },
     [](const Case& c) {
       return fmt::format("{} splits {} key-value heads, and cannot over tp {}; {}", recipe_name(c),
                          c.m.num_key_value_heads, c.p.tp,
                          use_divisor("tp", c.m.num_key_value_heads));
     },
     "M21 without repetition: a DTensor of K heads viewed as heads per rank"},
    {"vision_heads", kEvery,
     [](const Case& c) { return c.m.vision && !divides(c.p.tp, c.m.vision->num_heads); },
     [](const Case& c) {
       return fmt::format("the vision tower's {} heads cannot be split over tp {}; {}",
                          c.m.vision->num_heads, c.p.tp, use_divisor("tp", c.m.vision->num_heads));
     },
     "M20"},
    // Vocabulary rows need no rule: every recipe pads them to a multiple of tp.
    {"mlp_split", kEvery,
     [](const Case& c) { return !divides(c.p.tp, c.m.intermediate_size) && has_dense_layer(c.m); },
     [](const Case& c) {
       return fmt::format("an MLP of {} columns cannot be split over tp {}; {}",
                          c.m.intermediate_size, c.p.tp, use_divisor("tp", c.m.intermediate_size));
     },
     "Q4"},
    {"shared_expert_split", kEvery,
     [](const Case& c) {
       return c.m.moe && !divides(c.p.tp, c.m.moe->shared_expert_intermediate_size);
     },
     [](const Case& c) {
       return fmt::format("shared experts of {} columns cannot be split over tp {}; {}",
                          c.m.moe->shared_expert_intermediate_size, c.p.tp,
                          use_divisor("tp", c.m.moe->shared_expert_intermediate_size));
     },
     "Q4"},
    {"expert_split", kEvery,
     [](const Case& c) { return c.m.moe && !divides(c.p.etp, c.m.moe->moe_intermediate_size); },
     [](const Case& c) {
       return fmt::format("experts of {} columns cannot be split over etp {}; {}",
                          c.m.moe->moe_intermediate_size, c.p.etp,
                          use_divisor("etp", c.m.moe->moe_intermediate_size));
     },
     "Q4"},
    {"expert_bias_split", kMegatronCore,
     [](const Case& c) { return c.m.moe && c.m.moe->expert_bias && c.p.etp > 1; },
     [](const Case& c) {
       return fmt::format("experts with biases cannot be split, so etp {} is impossible; use etp 1",
                          c.p.etp);
     },
     "M61"},
    {"sequence_parallel_alone", kEvery,
     [](const Case& c) { return c.p.sequence_parallel && c.p.tp == 1; },
     [](const Case&) {
       return std::string(
           "sequence_parallel shares work among tp ranks, and tp is 1; leave it out");
     },
     "M22"},
    {"moe_needs_sequence_parallel",
     set_of(megatron, megatron_fsdp, fsdp2_compile, RecipeKind::qplan),
     [](const Case& c) { return c.m.moe && c.p.tp > 1 && !c.p.sequence_parallel; },
     [](const Case& c) {
       return fmt::format(
           "experts under tp {} need sequence_parallel, or every tp rank would send the same "
           "tokens",
           c.p.tp);
     },
     "Q1"},
    {"sequence_split", kEvery - kDeepSpeed,
     [](const Case& c) { return c.p.cp > 1 && !divides(std::int64_t{2} * c.p.cp, c.p.seq_len); },
     [](const Case& c) {
       return fmt::format(
           "a sequence of {} cannot be cut into the {} pieces (2 x cp) that balance a causal mask",
           c.p.seq_len, 2 * c.p.cp);
     },
     "M09"},
    {"sequence_split_ulysses", kDeepSpeed,
     [](const Case& c) { return !divides(c.p.cp, c.p.seq_len); },
     [](const Case& c) {
       return fmt::format("a sequence of {} cannot be split over cp {}", c.p.seq_len, c.p.cp);
     },
     "D06"},
    {"sequence_parallel_split", kEvery,
     [](const Case& c) {
       return c.p.sequence_parallel && !divides(std::int64_t{c.p.cp} * c.p.tp, c.p.seq_len);
     },
     [](const Case& c) {
       return fmt::format(
           "sequence_parallel cannot split a sequence of {} over cp {} x tp {} = {} ranks",
           c.p.seq_len, c.p.cp, c.p.tp, c.p.cp * c.p.tp);
     },
     "Q3"},
    {"learned_positions", kEvery,
     [](const Case& c) {
       return c.m.position == PositionEmbedding::learned && c.m.max_position_embeddings > 0 &&
              c.p.seq_len > c.m.max_position_embeddings;
     },
     [](const Case& c) {
       return fmt::format("the model has {} learned positions, too few for seq_len {}",
                          c.m.max_position_embeddings, c.p.seq_len);
     },
     "M10"},

    // Pipeline.
    {"pipeline_depth", kEvery,
     [](const Case& c) { return c.p.pipeline_layout.empty() && stage_count(c.p) > c.m.num_layers; },
     [](const Case& c) {
       return fmt::format("{} layers cannot fill pp {} x vpp {} = {} stages", c.m.num_layers,
                          c.p.pp, c.p.vpp, stage_count(c.p));
     },
     "M30"},
    {"layers_per_stage", kEvenStages,
     [](const Case& c) {
       return c.p.pipeline_layout.empty() && !divides(stage_count(c.p), c.m.num_layers);
     },
     [](const Case& c) {
       return fmt::format(
           "{} layers do not divide evenly into pp {} x vpp {} = {} stages; give a pipeline_layout",
           c.m.num_layers, c.p.pp, c.p.vpp, stage_count(c.p));
     },
     "M30, M32, Q2"},
    {"layout_stages", kEvery,
     [](const Case& c) {
       return !c.p.pipeline_layout.empty() && std::ssize(c.p.pipeline_layout) != stage_count(c.p);
     },
     [](const Case& c) {
       return fmt::format("pipeline_layout lists {} stages, not pp {} x vpp {} = {}",
                          c.p.pipeline_layout.size(), c.p.pp, c.p.vpp, stage_count(c.p));
     },
     "M37"},
    {"layout_layers", kEvery,
     [](const Case& c) {
       const auto& layout = c.p.pipeline_layout;
       return !layout.empty() &&
              std::accumulate(layout.begin(), layout.end(), std::int64_t{0}) != c.m.num_layers;
     },
     [](const Case& c) {
       const auto& layout = c.p.pipeline_layout;
       return fmt::format("pipeline_layout places {} layers, not the model's {}",
                          std::accumulate(layout.begin(), layout.end(), std::int64_t{0}),
                          c.m.num_layers);
     },
     "M37"},
    // The first stage has the embedding, the last the head, and the ones before it may be for
    // multi-token-prediction layers alone; every other stage holds a layer.
    {"layout_empty_stage", kEvery,
     [](const Case& c) {
       const auto& layout = c.p.pipeline_layout;
       const auto tail = std::ssize(layout) - 1 - c.m.num_mtp_layers;
       for (std::ptrdiff_t i = 0; i < std::ssize(layout); ++i) {
         const int fewest = i == 0 || i >= tail ? 0 : 1;
         if (layout[static_cast<std::size_t>(i)] < fewest) return true;
       }
       return false;
     },
     [](const Case& c) {
       return fmt::format(
           "pipeline_layout {} leaves a stage without layers; only the first, with the embedding, "
           "and the last, with the head, may be 0",
           fmt::join(c.p.pipeline_layout, "+"));
     },
     "M35, M37"},
    {"schedule_without_pipeline", kEvery,
     [](const Case& c) {
       return c.p.pp == 1 && c.p.schedule != ScheduleKind::one_f_one_b &&
              c.p.schedule != ScheduleKind::gpipe;
     },
     [](const Case& c) {
       return fmt::format("schedule {} needs pp above 1", to_word(c.p.schedule));
     },
     "M33"},
    {"virtual_stages", kEvery, [](const Case& c) { return !chunk_rule(c.p).empty(); },
     [](const Case& c) {
       return fmt::format("schedule {} needs {}, not vpp {}", to_word(c.p.schedule),
                          chunk_rule(c.p), c.p.vpp);
     },
     "M33; zero-bubble 39f2c18 (two chunks); DualPipe 3da1bbe"},
    {"schedule_microbatches", kEvery,
     [](const Case& c) { return c.p.num_microbatches() < fewest_microbatches(c.p); },
     [](const Case& c) {
       return fmt::format("schedule {} on pp {} needs at least {} microbatches, not {}",
                          to_word(c.p.schedule), c.p.pp, fewest_microbatches(c.p),
                          c.p.num_microbatches());
     },
     "M34; zero-bubble 39f2c18; DualPipe 3da1bbe"},
    {"interleaved_microbatches", kEvery,
     [](const Case& c) {
       return c.p.schedule == ScheduleKind::interleaved && !divides(c.p.pp, c.p.num_microbatches());
     },
     [](const Case& c) {
       return fmt::format(
           "interleaving sends microbatches in groups of pp {}, and {} do not "
           "fill whole groups",
           c.p.pp, c.p.num_microbatches());
     },
     "M34 with the default group"},
    {"dualpipe_pairs", kEvery,
     [](const Case& c) {
       return c.p.schedule == ScheduleKind::dualpipe &&
              (c.p.pp % 2 != 0 || c.p.num_microbatches() % 2 != 0);
     },
     [](const Case& c) {
       return fmt::format(
           "dualpipe feeds both ends of the pipeline, so pp and the microbatches must be even, "
           "not {} and {}",
           c.p.pp, c.p.num_microbatches());
     },
     "DualPipe 3da1bbe"},
    {"split_backward_sharding", kEvery,
     [](const Case& c) { return splits_backward(c.p.schedule) && c.p.zero >= 2; },
     [](const Case& c) {
       return fmt::format(
           "schedule {} delays weight gradients, which zero {} would have to reduce twice; use "
           "zero "
           "0 or 1",
           to_word(c.p.schedule), c.p.zero);
     },
     "zero-bubble 39f2c18 (gradients stay whole until the step's end)"},
    {"schedule_available", kEvery - set_of(fsdp1, fsdp2),
     [](const Case& c) { return !schedules_of(c.recipe).has(c.p.schedule); },
     [](const Case& c) {
       return not_in(c, fmt::format("{} schedule", to_word(c.p.schedule)),
                     "use " + words_of(schedules_of(c.recipe)));
     },
     "1.1, 3B, 4.3; nanotron pp_engine"},
    {"pipeline_available", set_of(fsdp1, fsdp2), [](const Case& c) { return c.p.pp > 1; },
     [](const Case& c) {
       return not_in(c, "pipeline over Hugging Face modules",
                     fmt::format("use pp 1, not {}", c.p.pp));
     },
     "4.1: parallelism_config has no pp"},
    {"interleaved_depth", set_of(megatron_deepspeed),
     [](const Case& c) { return c.p.vpp > 1 && c.p.pp <= 2; },
     [](const Case& c) {
       return fmt::format("megatron-deepspeed interleaves only with pp above 2, not {}", c.p.pp);
     },
     "3B, arguments.py:173"},

    // Context parallel.
    {"context_parallel_available", set_of(megatron_legacy, fsdp1),
     [](const Case& c) { return c.p.cp > 1; },
     [](const Case& c) { return not_in(c, "context parallelism", "use cp 1"); },
     "4.1: parallelism_config is FSDP2 only"},
    {"ulysses_heads", kEvery - kDeepSpeed,
     [](const Case& c) {
       return c.p.cp > 1 && c.p.cp_comm == CpComm::a2a &&
              (!divides(c.p.cp, c.m.num_attention_heads / c.p.tp) ||
               !divides(c.p.cp, kv_heads_per_rank(c)));
     },
     [](const Case& c) {
       return fmt::format(
           "cp_comm a2a trades sequence for heads, and a rank's {} query and {} key-value heads "
           "do not split over cp {}; use p2p",
           c.m.num_attention_heads / c.p.tp, kv_heads_per_rank(c), c.p.cp);
     },
     "M48, Q7"},
    {"deepspeed_ulysses_heads", kDeepSpeed,
     [](const Case& c) {
       const std::int64_t heads = c.m.num_attention_heads / c.p.tp;
       const std::int64_t kv = kv_heads_per_rank(c);
       return !divides(c.p.cp, heads) || (!divides(c.p.cp, kv) && !divides(kv, c.p.cp));
     },
     [](const Case& c) {
       return fmt::format(
           "Ulysses trades sequence for heads, and a rank's {} query and {} key-value heads do "
           "not split over cp {}",
           c.m.num_attention_heads / c.p.tp, kv_heads_per_rank(c), c.p.cp);
     },
     "D06"},
    {"ulysses_only", kDeepSpeed,
     [](const Case& c) { return c.p.cp > 1 && c.p.cp_comm != CpComm::a2a; },
     [](const Case& c) {
       return fmt::format("{} splits sequences by Ulysses; use cp_comm a2a, not {}", recipe_name(c),
                          to_word(c.p.cp_comm));
     },
     "D06, 3B"},
    {"ulysses_with_sequence_parallel", set_of(megatron_deepspeed),
     [](const Case& c) { return c.p.cp > 1 && c.p.sequence_parallel; },
     [](const Case& c) {
       return fmt::format("megatron-deepspeed refuses sequence_parallel together with cp {}",
                          c.p.cp);
     },
     "3B, initialize.py:247"},
    {"ring_window", kMegatronCore,
     [](const Case& c) { return c.p.cp > 1 && c.p.cp_comm == CpComm::p2p && has_window(c.m); },
     [](const Case&) {
       return std::string(
           "the ring (cp_comm p2p) has no sliding windows; use cp_comm a2a or all_gather");
     },
     "Transformer Engine 015d2257, attn_forward_func_with_cp"},
    {"mla_cp_comm", kMegatronCore,
     [](const Case& c) { return c.p.cp > 1 && c.m.mla && c.p.cp_comm != CpComm::p2p; },
     [](const Case& c) {
       return fmt::format("latent attention has no cp_comm {}; use p2p", to_word(c.p.cp_comm));
     },
     "Transformer Engine 015d2257, attn_forward_func_with_cp"},

    // Data parallel: what is sharded, and by whom.
    {"zero_above_one", set_of(megatron, megatron_legacy, nanotron),
     [](const Case& c) { return c.p.zero > 1; },
     [](const Case& c) {
       return fmt::format("{} shards the optimizer only (zero 1), not zero {}{}", recipe_name(c),
                          c.p.zero, c.recipe == megatron ? "; megatron-fsdp does" : "");
     },
     "1.2"},
    {"zero_below_two", kTorch | set_of(megatron_fsdp), [](const Case& c) { return c.p.zero < 2; },
     [](const Case& c) {
       return fmt::format(
           "{} shards parameters: zero 3, or 2 to keep them gathered after forward, not {}",
           recipe_name(c), c.p.zero);
     },
     "1.2, 4.1"},
    {"zero_with_pipeline", kDeepSpeed, [](const Case& c) { return c.p.pp > 1 && c.p.zero > 1; },
     [](const Case& c) {
       return fmt::format("DeepSpeed's pipeline (pp {}) works with zero 0 or 1, not {}", c.p.pp,
                          c.p.zero);
     },
     "D01"},
    {"tensor_parallel_available", set_of(fsdp1), [](const Case& c) { return c.p.tp > 1; },
     [](const Case& c) { return not_in(c, "tensor parallelism", "use tp 1"); },
     "4.1: parallelism_config is FSDP2 only"},
    {"autotp_zero", set_of(deepspeed), [](const Case& c) { return c.p.tp > 1 && c.p.zero > 2; },
     [](const Case& c) {
       return fmt::format("DeepSpeed's AutoTP (tp {}) works with zero 0 to 2, not 3", c.p.tp);
     },
     "D05"},
    {"mics_zero", kDeepSpeed, [](const Case& c) { return c.p.fsdp_shard > 0 && c.p.zero < 3; },
     [](const Case& c) {
       return fmt::format("DeepSpeed shards inside groups (MiCS, fsdp_shard {}) only at zero 3",
                          c.p.fsdp_shard);
     },
     "D08"},

    // Experts, beyond the sizes.
    {"expert_parallel_available", set_of(megatron_legacy, megatron_deepspeed, fsdp1, fsdp2),
     [](const Case& c) { return c.p.ep > 1; },
     [](const Case& c) {
       return not_in(c, "expert parallelism for this model",
                     fmt::format("use ep 1, not {}", c.p.ep));
     },
     "3B, 4.1"},
    {"expert_tensor_available", kEvery - set_of(megatron, megatron_fsdp, RecipeKind::qplan),
     [](const Case& c) { return c.p.etp > 1; },
     [](const Case& c) {
       return not_in(c, "expert tensor parallelism", fmt::format("use etp 1, not {}", c.p.etp));
     },
     "D04, 4.3"},
    {"autoep_zero3", set_of(deepspeed),
     [](const Case& c) { return c.p.zero == 3 && c.p.ep > 1 && (c.p.tp > 1 || c.p.cp > 1); },
     [](const Case& c) {
       return fmt::format("DeepSpeed's AutoEP (ep {}) at zero 3 excludes tp and cp above 1",
                          c.p.ep);
     },
     "D04"},
    {"dispatcher_without_experts", kEvery,
     [](const Case& c) { return !c.m.moe && is_fused_dispatcher(c.p.moe_dispatcher); },
     [](const Case& c) {
       return fmt::format("the model has no experts for dispatcher {}",
                          to_word(c.p.moe_dispatcher));
     },
     "M67"},
    {"dispatcher_available", kEvery - kMegatronCore - set_of(fsdp2, fsdp2_compile),
     [](const Case& c) { return is_fused_dispatcher(c.p.moe_dispatcher); },
     [](const Case& c) {
       return not_in(c, fmt::format("{} dispatcher", to_word(c.p.moe_dispatcher)), "use alltoall");
     },
     "1.4"},
    {"deepep_group", kMegatronCore,
     [](const Case& c) {
       return c.p.moe_dispatcher == MoeDispatcher::deepep && std::int64_t{c.p.ep} * c.p.tp == 1;
     },
     [](const Case&) {
       return std::string("dispatcher deepep needs ep x tp above 1; use alltoall");
     },
     "M67"},
    {"dispatcher_gpu", kEvery,
     [](const Case& c) {
       return is_fused_dispatcher(c.p.moe_dispatcher) && c.limits.compute_capability > 0 &&
              c.limits.compute_capability < 90;
     },
     [](const Case& c) {
       return fmt::format("dispatcher {} needs compute capability 90 (Hopper), not {}",
                          to_word(c.p.moe_dispatcher), c.limits.compute_capability);
     },
     "DeepEP dd758ca"},
    {"model_available", set_of(megatron_legacy, megatron_deepspeed),
     [](const Case& c) { return c.m.qk_norm || c.m.moe || c.m.mla || c.m.vision; },
     [](const Case& c) {
       return fmt::format("{} cannot build a model with {}; use megatron", recipe_name(c),
                          c.m.moe      ? "these experts"
                          : c.m.mla    ? "latent attention"
                          : c.m.vision ? "a vision tower"
                                       : "normalised queries and keys");
     },
     "3B"},

    // Precision.
    {"precision_gpu", kEvery,
     [](const Case& c) {
       return c.limits.compute_capability > 0 &&
              c.limits.compute_capability < capability_for(c.p.precision);
     },
     [](const Case& c) {
       return fmt::format("precision {} needs compute capability {}, not {}; use bf16",
                          to_word(c.p.precision), capability_for(c.p.precision),
                          c.limits.compute_capability);
     },
     "Transformer Engine: fp8 on Ada and Hopper, block scaling on Blackwell"},
    {"precision_available", kEvery,
     [](const Case& c) { return !precisions_of(c.recipe).has(c.p.precision); },
     [](const Case& c) {
       return not_in(c, fmt::format("precision {}", to_word(c.p.precision)),
                     "use " + words_of(precisions_of(c.recipe)));
     },
     "1.5, 3B, 4.3"},
    {"low_precision_tokens", kEvery,
     [](const Case& c) {
       return is_low_precision(c.p.precision) &&
              !divides(token_multiple(c.p.precision), tokens_per_rank(c.p));
     },
     [](const Case& c) {
       return fmt::format("precision {} needs tokens in multiples of {}, and a rank holds {}",
                          to_word(c.p.precision), token_multiple(c.p.precision),
                          tokens_per_rank(c.p));
     },
     "Q8"},
    {"state_dtypes", kEvery,
     [](const Case& c) {
       return !is_state_dtype(c.p.grad_dtype) || !is_state_dtype(c.p.main_params_dtype) ||
              !(is_state_dtype(c.p.moment_dtype) || c.p.moment_dtype == DType::fp8);
     },
     [](const Case& c) {
       return fmt::format(
           "gradients {}, main parameters {} and moments {} must be fp32, bf16 or fp16 (moments "
           "also fp8)",
           to_word(c.p.grad_dtype), to_word(c.p.main_params_dtype), to_word(c.p.moment_dtype));
     },
     "1.2"},
    {"precision_aware_optimizer", set_of(megatron),
     [](const Case& c) {
       return c.p.zero == 0 &&
              (c.p.main_params_dtype != DType::fp32 || c.p.moment_dtype != DType::fp32);
     },
     [](const Case&) {
       return std::string("optimizer states below fp32 need the distributed optimizer; use zero 1");
     },
     "M56; optimizer_config.py"},

    // Recompute.
    {"recompute_words", kEvery,
     [](const Case& c) {
       const Recompute& r = c.p.recompute;
       return (r.kind != RecomputeKind::selective && !r.modules.empty()) ||
              (r.kind != RecomputeKind::full && r.layers != 0) || r.layers < 0;
     },
     [](const Case& c) {
       return fmt::format("recompute {} takes {}", to_word(c.p.recompute.kind),
                          c.p.recompute.kind == RecomputeKind::full ? "a layer count and no modules"
                          : c.p.recompute.kind == RecomputeKind::selective
                              ? "modules and no layer count"
                              : "neither modules nor a layer count");
     },
     "M80, M81"},
    {"recompute_experts", kEvery, [](const Case& c) { return lacks_experts(c.m, c.p.recompute); },
     [](const Case& c) {
       return fmt::format("recompute {} names expert modules that the model does not have",
                          to_string(c.p.recompute));
     },
     "M82"},
    {"recompute_mla", kEvery,
     [](const Case& c) {
       return c.p.recompute.modules.has(RecomputeModule::mla_up_proj) && !c.m.mla;
     },
     [](const Case&) {
       return std::string("recompute mla_up_proj needs latent attention, which the model lacks");
     },
     "M82"},

    // Overlap.
    {"overlap_tp", kEvery,
     [](const Case& c) {
       return c.p.overlap.has(OverlapKind::tp) && c.p.tp > 1 && !c.p.sequence_parallel;
     },
     [](const Case& c) {
       return fmt::format("overlap tp at tp {} needs sequence_parallel", c.p.tp);
     },
     "M23"},
    {"overlap_param", kMegatronCore,
     [](const Case& c) {
       return c.p.overlap.has(OverlapKind::param) &&
              (c.p.zero == 0 || !c.p.overlap.has(OverlapKind::grad));
     },
     [](const Case& c) {
       return fmt::format("overlap param needs overlap grad and zero 1 or more, not zero {}{}",
                          c.p.zero, c.p.overlap.has(OverlapKind::grad) ? "" : " without grad");
     },
     "M50"},
    {"overlap_ep", kEvery, [](const Case& c) { return !expert_overlap_obstacle(c).empty(); },
     [](const Case& c) { return fmt::format("overlap ep needs {}", expert_overlap_obstacle(c)); },
     "M70"},

    // Offload.
    {"offload_fraction", kEvery,
     [](const Case& c) { return !(c.p.offload.optimizer >= 0 && c.p.offload.optimizer <= 1); },
     [](const Case& c) {
       return fmt::format("the offloaded fraction of the optimizer must be 0 to 1, not {}",
                          c.p.offload.optimizer);
     },
     "1.2"},
    {"offload_optimizer_available", set_of(megatron_legacy, nanotron),
     [](const Case& c) { return c.p.offload.optimizer > 0; },
     [](const Case& c) { return not_in(c, "optimizer offload", "use offload none"); }, "1.2"},
    {"offload_optimizer_zero", kDeepSpeed | set_of(megatron),
     [](const Case& c) { return c.p.offload.optimizer > 0 && c.p.zero == 0; },
     [](const Case&) {
       return std::string("optimizer offload needs a sharded optimizer; use zero 1 or more");
     },
     "M55, M56, 3.2"},
    {"offload_fraction_zero", kDeepSpeed,
     [](const Case& c) {
       return c.p.offload.optimizer > 0 && c.p.offload.optimizer < 1 && c.p.zero < 3;
     },
     [](const Case& c) {
       return fmt::format(
           "DeepSpeed offloads a fraction ({}) of the optimizer only at zero 3; offload all of it",
           c.p.offload.optimizer);
     },
     "3.2"},
    // CPUOffloadPolicy moves parameters, gradients and states as one.
    {"offload_whole", kTorch,
     [](const Case& c) {
       return (c.p.offload.optimizer > 0 || c.p.offload.params) &&
              !(c.p.offload.optimizer == 1 && c.p.offload.params);
     },
     [](const Case& c) {
       return fmt::format("{} offloads everything or nothing; use offload=optimizer,params",
                          recipe_name(c));
     },
     "4.1 fsdp_offload_params, 4.3 enable_cpu_offload"},
    {"offload_params_available", kEvery - kDeepSpeed - kTorch,
     [](const Case& c) { return c.p.offload.params; },
     [](const Case& c) { return not_in(c, "parameter offload", "use deepspeed at zero 3"); },
     "3.2"},
    {"offload_params_zero", kDeepSpeed,
     [](const Case& c) { return c.p.offload.params && c.p.zero < 3; },
     [](const Case& c) { return fmt::format("parameter offload needs zero 3, not {}", c.p.zero); },
     "3.2"},
    {"offload_nvme_available", kEvery - kDeepSpeed, [](const Case& c) { return c.p.offload.nvme; },
     [](const Case& c) { return not_in(c, "offload to NVMe", "use deepspeed at zero 3"); }, "3.2"},
    {"offload_nvme", kDeepSpeed,
     [](const Case& c) {
       return c.p.offload.nvme &&
              (c.p.zero < 3 || (c.p.offload.optimizer == 0 && !c.p.offload.params));
     },
     [](const Case& c) {
       return fmt::format(
           "nvme says where an offloaded optimizer lives at zero 3; offload is {} "
           "at zero {}",
           to_string(c.p.offload), c.p.zero);
     },
     "3.2"},
    {"offload_activations_available",
     set_of(megatron_legacy, nanotron, fsdp1, fsdp2, fsdp2_compile, RecipeKind::qplan),
     [](const Case& c) { return c.p.offload.activation_layers != 0; },
     [](const Case& c) { return not_in(c, "activation offload", "use recompute"); }, "1.3"},
    // `activations:N` is Transformer Engine's layer offload; `activations` is the fine-grained one,
    // which goes with a pipeline and with selective recompute.
    {"offload_activation_layers", kMegatronCore,
     [](const Case& c) {
       const int layers = c.p.offload.activation_layers;
       return layers > 0 &&
              (c.p.pp > 1 || c.p.recompute.kind != RecomputeKind::none || layers >= c.m.num_layers);
     },
     [](const Case& c) {
       return fmt::format(
           "offload of {} layers' activations needs pp 1, no recompute and fewer than the model's "
           "{} layers",
           c.p.offload.activation_layers, c.m.num_layers);
     },
     "M40"},
    {"offload_checkpoints", kDeepSpeed,
     [](const Case& c) {
       return c.p.offload.activation_layers != 0 && c.p.recompute.kind != RecomputeKind::full;
     },
     [](const Case&) {
       return std::string(
           "DeepSpeed offloads only checkpoints (cpu_checkpointing); use "
           "recompute full");
     },
     "3.4 activation_checkpointing"},

    // Launching.
    {"cuda_graph_available", kEvery - kMegatronCore - set_of(fsdp2_compile, RecipeKind::qplan),
     [](const Case& c) { return c.p.cuda_graph; },
     [](const Case& c) { return not_in(c, "CUDA graphs", "leave cuda_graph out"); }, "4.3"},
    {"cuda_graph_parallel", set_of(fsdp2_compile),
     [](const Case& c) { return c.p.cuda_graph && (c.p.pp > 1 || c.p.ep > 1); },
     [](const Case& c) {
       return fmt::format("torchtitan's CUDA graphs exclude pp {} and ep {} above 1", c.p.pp,
                          c.p.ep);
     },
     "4.3"},
});

template <std::size_t I>
bool is_broken(const Case& c) {
  constexpr const Rule& rule = kRules[I];
  return rule.recipes.has(c.recipe) && rule.broken(c);
}

// Unrolled over the table, so that the compiler sees every predicate and inlines it: 55 ns for a
// plan that breaks none against 155 ns by calls through the pointers (gcc 12 -O2, EPYC).
template <std::size_t... I>
const Rule* first_broken(const Case& c, std::index_sequence<I...>) {
  const Rule* found = nullptr;
  static_cast<void>(((is_broken<I>(c) && (found = &kRules[I]) != nullptr) || ...));
  return found;
}

}  // namespace

EnumSet<ScheduleKind> schedules_of(RecipeKind recipe) {
  using enum ScheduleKind;
  switch (recipe) {
    case megatron:
    case megatron_legacy:
    case megatron_fsdp:
    case megatron_deepspeed:
      return set_of(one_f_one_b, interleaved);
    case deepspeed:
      return set_of(one_f_one_b);
    case fsdp1:
    case fsdp2:
      return set_of(one_f_one_b);  // of one stage
    case fsdp2_compile:
      return set_of(gpipe, one_f_one_b, interleaved, zbv);
    case nanotron:
      return set_of(gpipe, one_f_one_b);
    case RecipeKind::qplan:
      return set_of(gpipe, one_f_one_b, interleaved, zb_h1, zbv);
  }
  return {};
}

EnumSet<Precision> precisions_of(RecipeKind recipe) {
  using enum Precision;
  switch (recipe) {
    case megatron:
    case megatron_fsdp:
    case fsdp2_compile:
      return set_of(bf16, fp16, fp8, mxfp8, nvfp4);
    case megatron_deepspeed:
    case fsdp1:
    case fsdp2:
      return set_of(bf16, fp16, fp8);
    case megatron_legacy:
    case deepspeed:
    case nanotron:
      return set_of(bf16, fp16);
    case RecipeKind::qplan:
      return set_of(bf16, fp16, fp8, mxfp8);
  }
  return {};
}

std::string_view broken_rule(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                             const ClusterLimits& limits) {
  const Rule* const rule =
      first_broken({model, plan, recipe.kind, limits}, std::make_index_sequence<kRules.size()>());
  return rule == nullptr ? std::string_view() : rule->id;
}

std::vector<Infeasible> why_infeasible(const ModelSpec& model, const ParallelPlan& plan,
                                       const Recipe& recipe, const ClusterLimits& limits) {
  std::vector<Infeasible> reasons;
  const Case c{model, plan, recipe.kind, limits};
  for (const Rule& rule : kRules) {
    if (!rule.recipes.has(c.recipe) || !rule.broken(c)) continue;
    reasons.push_back({rule.id, rule.message(c)});
    if (&rule == kRules.data()) break;  // of sizes below one the other rules cannot be asked
  }
  return reasons;
}

std::vector<RuleInfo> feasibility_rules() {
  std::vector<RuleInfo> rules;
  for (const Rule& rule : kRules) rules.push_back({rule.id, rule.recipes, rule.source});
  return rules;
}

}  // namespace qplan
