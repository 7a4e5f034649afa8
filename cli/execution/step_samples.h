#pragma once
// What calibration measures in training steps: each op of short runs of several models, by the same
// executor that runs plans.

#include <string>
#include <vector>

#include "cli/commands.h"
#include "costmodel/profiles/calibrate.h"
#include "executor/launch.h"
#include "models/model_spec.h"

namespace qplan {

// Models of each kind of layer that the executor runs on GPUs: taken where none is named.
std::vector<std::string> usual_step_models();

// The first layers of a model, as many as it has of different kinds, and two at least. Its other
// layers repeat these.
ModelSpec few_layers_of(ModelSpec model);

struct StepSamples {
  std::vector<Sample> works;
  double waited_share = 0;  // of steps in which ranks meet in every layer: Calibration's
};

// Works of this process's GPU by itself, at the pace of the slowest of all, and collectives among
// all processes. What does not fit `base`'s GPU, or is not executed, is left out, and said on the
// console.
StepSamples step_samples(const std::vector<std::string>& models, const HardwareProfile& base,
                         const ProcessRank& process, const Console& console);

}  // namespace qplan
