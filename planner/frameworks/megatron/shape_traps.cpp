// Shapes and batches that Megatron's arguments say in numbers that do not go together.

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/megatron/batch_steps.h"
#include "planner/frameworks/megatron/shape_sizes.h"
#include "planner/frameworks/megatron/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = MegatronCase;
using Trap = MegatronTrap;

// Whether the model is the one that these arguments describe: no other was named to compare with.
bool describes_model(const Case& c) {
  return c.scene.question.model_of_files && takes_megatrons(c.part.dialect);
}

// 0: it is not said, known only when it runs, or no whole number.
std::int64_t whole_in(const Case& c, std::string_view key) {
  const Setting* const said = c.find(key);
  if (said == nullptr || !said->resolved) return 0;
  try {
    return whole_of(said->value, 1, std::int64_t{1} << 40);
  } catch (const Error&) {
    return 0;
  }
}

// --rampup-batch-size START STEP SAMPLES, up to --global-batch-size. Step 0: it is not known.
struct Ramp {
  std::int64_t start = 0, step = 0, end = 0;
};
Ramp ramp_of(const Case& c) {
  const Setting* const said = c.find("--rampup-batch-size");
  const std::int64_t end = whole_in(c, "--global-batch-size");
  if (said == nullptr || !said->resolved || end == 0) return {};
  const std::vector<std::string> values = list_of(said->value);
  if (values.size() != 3) return {};
  try {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    return {whole_of(values[0], 1, kMost), whole_of(values[1], 1, kMost), end};
  } catch (const Error&) {
    return {};
  }
}

// The first batch but the last that micro-batches do not divide; 0: none is.
std::int64_t uneven_step(const Case& c) {
  const Setting* const said = c.find(megatron::kBatchSteps);
  if (said == nullptr || !said->resolved) return 0;
  const std::int64_t round = std::int64_t{c.plan().micro_batch_size} * c.plan().dp;
  try {
    std::vector<megatron::BatchStep> steps = megatron::batch_steps(text_of(said->value));
    steps.pop_back();  // which is the plan's
    for (const megatron::BatchStep& step : steps) {
      if (round > 0 && step.batch % round != 0) return step.batch;
    }
  } catch (const Error&) {
    return 0;  // refused where it is read
  }
  return 0;
}

// Whether it is the batch that the run begins with.
bool begins_uneven(const Case& c) {
  if (c.may_be_said("--load") || !c.part.open_word.empty()) return false;
  const std::string schedule = c.text(megatron::kBatchSteps);
  return !schedule.empty() && megatron::batch_steps(schedule).front().batch == uneven_step(c);
}

std::string numbers_of_step(const Case& c) {
  return fmt::format("{} of {} x {}", uneven_step(c), c.plan().micro_batch_size, c.plan().dp);
}

constexpr std::string_view kEvenSteps =
    "batches that are multiples of micro-batch x data-parallel ranks";
constexpr std::string_view kOfSteps =
    "Megatron-LM d98e8a64, megatron/core/num_microbatches_calculator.py:577, "
    "megatron/training/training.py:4627";

bool leaves_rest(const Case& c, std::string_view all, std::string_view parts) {
  const std::int64_t of = whole_in(c, all), by = whole_in(c, parts);
  return of > 0 && by > 0 && of % by != 0;
}

constexpr auto kShapeTraps = std::to_array<Trap>({
    {"ramp_steps", error, "--rampup-batch-size",
     [](const Case& c) {
       const Ramp ramp = ramp_of(c);
       return ramp.step > 0 && (ramp.start > ramp.end || (ramp.end - ramp.start) % ramp.step != 0);
     },
     "the batch grows from its start to --global-batch-size in whole steps; where it cannot, "
     "Megatron stops, or since d98e8a64 lets it not grow at all",
     "a start and a step of which --global-batch-size is start + steps x step",
     "Megatron-LM 00caa53a, megatron/core/num_microbatches_calculator.py "
     "(RampupBatchsizeNumMicroBatchesCalculator)",
     "", false,
     [](const Case& c) {
       const Ramp ramp = ramp_of(c);
       return fmt::format("{} to {} by {}", ramp.start, ramp.end, ramp.step);
     }},
    // A run that goes on from a checkpoint may have passed it.
    {"batch_steps", error, megatron::kBatchSteps,
     [](const Case& c) { return uneven_step(c) > 0 && begins_uneven(c); },
     "the first batch of --step-batch-size-schedule is no multiple of micro-batch x data-parallel "
     "ranks: Megatron stops",
     kEvenSteps, kOfSteps, "", false, numbers_of_step},
    {"batch_steps", warning, megatron::kBatchSteps,
     [](const Case& c) { return uneven_step(c) > 0 && !begins_uneven(c); },
     "a batch of --step-batch-size-schedule is no multiple of micro-batch x data-parallel ranks: "
     "Megatron stops while it lasts",
     kEvenSteps, kOfSteps, "", false, numbers_of_step},
    {kShapesRefused, error, "--num-attention-heads",
     [](const Case& c) {
       return describes_model(c) && !c.has("--kv-channels") &&
              leaves_rest(c, "--hidden-size", "--num-attention-heads");
     },
     "--num-attention-heads must divide --hidden-size where --kv-channels does not say how wide a "
     "head is",
     "a divisor of --hidden-size, or --kv-channels beside it",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1332", "", false,
     [](const Case& c) {
       return fmt::format("{} over {}", c.text("--hidden-size"), c.text("--num-attention-heads"));
     }},
    {kShapesRefused, error, "--num-query-groups",
     [](const Case& c) {
       return describes_model(c) && c.has("--group-query-attention") &&
              leaves_rest(c, "--num-attention-heads", "--num-query-groups");
     },
     "--num-query-groups must divide --num-attention-heads: as many queries share each key",
     "a divisor of --num-attention-heads",
     "Megatron-LM d98e8a64, megatron/core/transformer/attention.py:359", "", false,
     [](const Case& c) {
       return fmt::format("{} over {}", c.text("--num-attention-heads"),
                          c.text("--num-query-groups"));
     }},
    {kShapesRefused, error, "--num-key-value-heads",
     [](const Case& c) {
       return describes_model(c) && c.part.dialect == Dialect::megatron_deepspeed &&
              leaves_rest(c, "--num-attention-heads", "--num-key-value-heads");
     },
     "--num-key-value-heads must divide --num-attention-heads: as many queries share each key",
     "a divisor of --num-attention-heads", "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:446",
     "", false,
     [](const Case& c) {
       return fmt::format("{} over {}", c.text("--num-attention-heads"),
                          c.text("--num-key-value-heads"));
     }},
    // Of a model that --model names, the facts tell it.
    {"ignored_groups", warning, "--num-query-groups",
     [](const Case& c) {
       return describes_model(c) && c.part.dialect != Dialect::megatron_deepspeed &&
              c.part.dialect != Dialect::bridge && !c.may_be_said("--group-query-attention") &&
              whole_in(c, "--num-query-groups") > 1;
     },
     "without --group-query-attention --num-query-groups is ignored, and every head has keys and "
     "values of its own",
     "add --group-query-attention",
     "Megatron-LM d98e8a64, megatron/training/arguments.py (core_transformer_config_from_args)",
     "--group-query-attention"},
    {kShapesRefused, error, "--moe-router-topk",
     [](const Case& c) {
       return describes_model(c) && whole_in(c, "--num-experts") > 0 &&
              whole_in(c, "--moe-router-topk") > whole_in(c, "--num-experts");
     },
     "--moe-router-topk chooses more experts for a token than --num-experts has",
     "as many as there are, or fewer",
     "Megatron-LM d98e8a64, megatron/core/transformer/moe/moe_utils.py (torch.topk)", "", false,
     [](const Case& c) {
       return fmt::format("{} of {}", c.text("--moe-router-topk"), c.text("--num-experts"));
     }},
});

}  // namespace

std::span<const MegatronTrap> megatron_shape_traps() {
  return kShapeTraps;
}

void check_shape_sizes(const MegatronCase& c, Findings& out) {
  if (!describes_model(c)) return;
  for (const ShapeSize& size : kShapeSizes) {
    const Setting* const said = c.find(size.flag);
    if (said == nullptr || !said->resolved) continue;
    std::int64_t number = 0;
    try {
      number = whole_of(said->value);
    } catch (const Error&) {
      continue;  // said as a refused value
    }
    if (number >= 1 && number <= size.most) continue;
    out.push_back(
        {error,
         std::string(kShapesRefused),
         said->place,
         fmt::format("{} is {}, and a model has from 1 to {} of it", size.flag, number, size.most),
         "",
         "arithmetic: nothing is of a size below 1, or above what any model has",
         {}});
  }
}

}  // namespace qplan
