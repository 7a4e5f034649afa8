#pragma once
// What the CUDA backend does not execute, though the reference backend may: asked before a plan
// runs, and of plans that are proposed, on machines without a GPU, too.

#include <optional>
#include <string>

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"

namespace qplan {

// A sentence's end with what is lacking and what to use instead, or absent.
std::optional<std::string> unexecuted_on_gpu(const ModelSpec& model, const ParallelPlan& plan);

// Whether a rank's work goes to its GPU through one queue (else one a lane).
bool takes_one_queue(const ParallelPlan& plan);

}  // namespace qplan
