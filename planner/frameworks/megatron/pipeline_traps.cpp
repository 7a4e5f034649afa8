#include <algorithm>
#include <array>
#include <string>

#include "models/error.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = MegatronCase;
using Trap = MegatronTrap;

int spelled_virtual_stages(const Case& c) {
  return (c.has("--num-layers-per-virtual-pipeline-stage") ? 1 : 0) +
         (c.has("--num-virtual-stages-per-pipeline-rank") ? 1 : 0) +
         (c.has("--pipeline-model-parallel-layout") ? 1 : 0);
}

// First and last stages may have counts of their own; told of the file that has the stages.
bool counts_stages(const Case& c) {
  if (!c.has("--pipeline-model-parallel-size")) return false;
  return c.scene.draft.first_stage_layers || c.scene.draft.last_stage_layers;
}

// Embedding and loss may count as a layer each.
bool counts_parts(const Case& c) {
  if (!c.has("--pipeline-model-parallel-size")) return false;
  return c.scene.draft.counts_embedding || c.scene.draft.counts_loss;
}

// Whether every stage, and every chunk of it, gets whole layers.
bool fills_stages(const Case& c) {
  return !uneven_stages(c.scene.draft, c.model()).empty();
}

// The fork is of 2023 and has neither counts nor layouts.
bool is_todays(const Case& c) {
  return c.part.dialect != Dialect::megatron_deepspeed;
}

constexpr auto kPipelineTraps = std::to_array<Trap>({
    {"virtual_stages_twice", error, "--num-virtual-stages-per-pipeline-rank",
     [](const Case& c) { return spelled_virtual_stages(c) > 1; },
     "virtual stages are said in more than one way",
     "keep one of --num-virtual-stages-per-pipeline-rank, "
     "--num-layers-per-virtual-pipeline-stage, --pipeline-model-parallel-layout",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:928"},
    {"layout_and_counts", error, "--pipeline-model-parallel-layout",
     [](const Case& c) {
       return c.has("--pipeline-model-parallel-layout") &&
              (c.has("--decoder-first-pipeline-num-layers") ||
               c.has("--decoder-last-pipeline-num-layers") ||
               c.has("--account-for-embedding-in-pipeline-split") ||
               c.has("--account-for-loss-in-pipeline-split"));
     },
     "a layout says all stages; counts of single ones exclude it", "keep the layout",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:945"},
    {"counts_without_pipeline", error, "--decoder-last-pipeline-num-layers",
     [](const Case& c) {
       return c.plan().pp == 1 && (c.has("--decoder-first-pipeline-num-layers") ||
                                   c.has("--decoder-last-pipeline-num-layers"));
     },
     "with one stage there is no first or last one", "leave it out",
     "slime 624b824a, slime/backends/megatron_utils/arguments.py:91; Megatron-LM d98e8a64, "
     "megatron/core/transformer/transformer_config.py:2304",
     "", true},
    {"counts_and_parts", error, "--pipeline-model-parallel-size",
     [](const Case& c) { return counts_stages(c) && counts_parts(c); },
     "where first or last stages have counts, embedding and loss cannot count as layers",
     "keep one of the two",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2235"},
    {"counted_stages", error, "--pipeline-model-parallel-size",
     [](const Case& c) {
       return c.plan().pp > 1 && counts_stages(c) && !counts_parts(c) && !fills_stages(c);
     },
     "the layers that first and last stage leave do not divide into the other stages and their "
     "chunks",
     "choose counts that leave a multiple of the other stages",
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2304"},
    {"counted_parts", error, "--pipeline-model-parallel-size",
     [](const Case& c) { return !counts_stages(c) && counts_parts(c) && !fills_stages(c); },
     "the layers, with embedding and loss counted as asked, do not divide into the stages and "
     "their chunks",
     "count both, one or none of them, or change the stages",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:997; Megatron-LM d98e8a64, "
     "megatron/core/transformer/transformer_config.py:2409"},
    {"virtual_layers", error, "--num-layers-per-virtual-pipeline-stage",
     [](const Case& c) {
       const auto& chunk = c.scene.draft.layers_per_virtual_stage;
       if (!c.has("--num-layers-per-virtual-pipeline-stage") || !chunk || !is_todays(c)) {
         return false;
       }
       const int layers = counted_layers(c.scene.draft, c.model()), pp = c.plan().pp;
       return counts_stages(c) || layers % pp != 0 || layers / pp % *chunk != 0;
     },
     "a rank's layers do not divide into chunks of that many",
     "use a divisor of a rank's layers, without counts for first and last stage",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:955"},
    {"virtual_stages_of_few", error, "--num-layers-per-virtual-pipeline-stage",
     [](const Case& c) {
       const auto& chunk = c.scene.draft.layers_per_virtual_stage;
       return c.has("--num-layers-per-virtual-pipeline-stage") && chunk && c.plan().pp == 1 &&
              counted_layers(c.scene.draft, c.model()) > *chunk;
     },
     "one stage has no virtual ones", "leave it out",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1002", "", true},
    {"virtual_stages_of_few", error, "--no-overlap-p2p-communication",
     [](const Case& c) {
       return c.has("--no-overlap-p2p-communication") && c.plan().vpp > 1 && c.plan().pp == 2;
     },
     "virtual stages on two stages need sends that overlap", "leave it out",
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1009", "", true},
    {"layout_ends", error, "--pipeline-model-parallel-layout",
     [](const Case& c) {
       const std::string layout = c.text("--pipeline-model-parallel-layout");
       return !layout.empty() &&
              (layout.find_last_of('E') != 0 || layout.find_first_of('L') != layout.size() - 1);
     },
     "a layout begins with the embedding and ends with the loss", "begin with E and end with L",
     "Megatron-LM d98e8a64, megatron/core/transformer/pipeline_parallel_layer_layout.py:95"},
    {"gather_with_step", error, "--overlap-param-gather-with-optimizer-step",
     [](const Case& c) {
       return c.has("--overlap-param-gather-with-optimizer-step") && c.plan().vpp == 1;
     },
     "parameters are gathered beside the optimizer's step only between virtual stages",
     "leave it out", "Megatron-LM d98e8a64, megatron/training/arguments.py:1067", "", true},
});

}  // namespace

std::span<const Trap> megatron_pipeline_traps() {
  return kPipelineTraps;
}

}  // namespace qplan
