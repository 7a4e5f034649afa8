#pragma once
// Stages, their layers, and the schedules that run them.

#include <numeric>

#include "models/program/schedule.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

// Pipelines that place whole layers by even division; the others balance uneven counts by
// themselves (DeepSpeed's partition_method, torchtitan's generated split, nanotron's cost blocks).
inline constexpr RecipeSet kEvenStages = kCoreAndOwn | set_of(megatron_legacy);

constexpr std::int64_t stage_count(const ParallelPlan& p) {
  return std::int64_t{p.pp} * p.vpp;
}

// What a schedule wants of vpp: exactly one chunk, exactly two, or more than one.
inline std::string_view chunk_rule(const ParallelPlan& p) {
  switch (p.schedule) {
    case ScheduleKind::interleaved:
      return p.vpp > 1 ? "" : "vpp above 1";
    case ScheduleKind::zbv:
      return p.vpp == 2 ? "" : "vpp 2, one chunk down and one back up";
    case ScheduleKind::dualpipe:
      return p.vpp == 1 ? "" : "vpp 1 (a rank's second stage is a copy of another rank's)";
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

inline constexpr auto kPipeline = std::to_array<Rule>({
    {"pipeline_depth", kEvery,
     [](const Case& c) { return c.p.pipeline_layout.empty() && stage_count(c.p) > c.m.num_layers; },
     [](const Case& c) {
       return fmt::format("{} layers cannot fill pp {} x vpp {} = {} stages", c.m.num_layers,
                          c.p.pp, c.p.vpp, stage_count(c.p));
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:997; arithmetic: a stage holds a layer"},
    {"layers_per_stage", kEvenStages,
     [](const Case& c) {
       return c.p.pipeline_layout.empty() && !divides(stage_count(c.p), c.m.num_layers);
     },
     [](const Case& c) {
       return fmt::format(
           "{} layers do not divide evenly into pp {} x vpp {} = {} stages; give a pipeline_layout",
           c.m.num_layers, c.p.pp, c.p.vpp, stage_count(c.p));
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:968; Megatron-LM d98e8a64, "
     "megatron/core/transformer/transformer_block.py:156"},
    {"layout_stages", kEvery,
     [](const Case& c) {
       return !c.p.pipeline_layout.empty() && std::ssize(c.p.pipeline_layout) != stage_count(c.p);
     },
     [](const Case& c) {
       return fmt::format("pipeline_layout lists {} stages, not pp {} x vpp {} = {}",
                          c.p.pipeline_layout.size(), c.p.pp, c.p.vpp, stage_count(c.p));
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2280; arithmetic: a "
     "count for each virtual stage"},
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
     "Megatron-LM d98e8a64, megatron/core/transformer/pipeline_parallel_layer_layout.py:107"},
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
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2342; arithmetic: a "
     "stage between the ends holds a layer"},
    {"schedule_without_pipeline", kEvery,
     [](const Case& c) {
       return c.p.pp == 1 && c.p.schedule != ScheduleKind::one_f_one_b &&
              c.p.schedule != ScheduleKind::gpipe;
     },
     [](const Case& c) {
       return fmt::format("schedule {} needs pp above 1", to_word(c.p.schedule));
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1003; arithmetic: one stage has nothing "
     "to schedule"},
    {"virtual_stages", kEvery, [](const Case& c) { return !chunk_rule(c.p).empty(); },
     [](const Case& c) {
       return fmt::format("schedule {} needs {}, not vpp {}", to_word(c.p.schedule),
                          chunk_rule(c.p), c.p.vpp);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1002; zero-bubble 39f2c186, "
     "megatron/core/pipeline_parallel/zerobubble/scheduler/zbv.py; DualPipe 3da1bbe, "
     "dualpipe/dualpipe.py"},
    // Of batches that fill a microbatch; what does not breaks batch_divisibility.
    {"schedule_microbatches", kEvery,
     [](const Case& c) {
       const std::int64_t count = c.p.num_microbatches();
       return count > 0 && count < fewest_microbatches(c.p);
     },
     [](const Case& c) {
       return fmt::format("schedule {} on pp {} needs at least {} microbatches, not {}",
                          to_word(c.p.schedule), c.p.pp, fewest_microbatches(c.p),
                          c.p.num_microbatches());
     },
     "Megatron-LM d98e8a64, megatron/core/pipeline_parallel/schedules.py:1161; DualPipe 3da1bbe, "
     "dualpipe/dualpipe.py:333; arithmetic: a warm-up needs microbatches to fill it"},
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
     "Megatron-LM d98e8a64, megatron/core/pipeline_parallel/schedules.py:1173 (with the default "
     "group of pp)"},
    {"dualpipe_pairs", kEvery,
     [](const Case& c) {
       return c.p.schedule == ScheduleKind::dualpipe &&
              (c.p.pp % 2 != 0 || c.p.num_microbatches() % 2 != 0);
     },
     [](const Case& c) {
       return fmt::format(
           "dualpipe feeds both ends of the pipeline alike, so pp and the number of microbatches "
           "must be even, not {} and {}",
           c.p.pp, c.p.num_microbatches());
     },
     "DualPipe 3da1bbe, dualpipe/dualpipe.py:332"},
    {"split_backward_sharding", kEvery,
     [](const Case& c) { return splits_backward(c.p.schedule) && c.p.zero >= 2; },
     [](const Case& c) {
       return fmt::format(
           "schedule {} delays weight gradients, which zero {} would have to reduce twice; use "
           "zero "
           "0 or 1",
           to_word(c.p.schedule), c.p.zero);
     },
     "zero-bubble 39f2c186, megatron/core/zbpp_utils.py (gradients stay whole until the step's "
     "end)"},
    {"tied_stages", set_of(fsdp2_compile),
     [](const Case& c) { return c.p.pp > 1 && c.m.tie_word_embeddings; },
     [](const Case& c) {
       return fmt::format(
           "torchtitan shares no weights between stages, and the head's are the embedding's; use "
           "pp 1, not {}",
           c.p.pp);
     },
     "torchtitan b5bcd76c, torchtitan/models/common/decoder.py:168"},
    {"schedule_available", kEvery - kFsdpOfModules,
     [](const Case& c) { return !schedules_of(c.recipe).has(c.p.schedule); },
     [](const Case& c) {
       return not_in(c, fmt::format("{} schedule", to_word(c.p.schedule)),
                     "use " + words_of(schedules_of(c.recipe)));
     },
     "Megatron-LM d98e8a64, megatron/core/pipeline_parallel/schedules.py; DeepSpeed edaa7221, "
     "deepspeed/runtime/pipe/engine.py:389; torchtitan b5bcd76c, torchtitan/config/configs.py:216; "
     "nanotron 2411b022, src/nanotron/config/utils_config.py:103"},
    {"pipeline_available", kFsdpOfModules, [](const Case& c) { return c.p.pp > 1; },
     [](const Case& c) {
       return not_in(c, "pipeline over Hugging Face modules",
                     fmt::format("use pp 1, not {}", c.p.pp));
     },
     "accelerate 16cb6eb8, src/accelerate/parallelism_config.py (no pipeline)"},
    // Its parser takes virtual stages, makes a list of iterators for them, and hands that list to
    // DeepSpeed's pipeline engine, which asks it for the next batch.
    {"interleaved_iterators", set_of(megatron_deepspeed), [](const Case& c) { return c.p.vpp > 1; },
     [](const Case& c) {
       return fmt::format(
           "megatron-deepspeed hands its virtual stages' list of data iterators to a pipeline "
           "engine that takes one, and stops at the first step; use vpp 1, not {}",
           c.p.vpp);
     },
     "Megatron-DeepSpeed 4efb479d, megatron/training.py:188, megatron/training.py:677; DeepSpeed "
     "edaa7221, deepspeed/runtime/pipe/engine.py:714"},
});

}  // namespace qplan::rules
