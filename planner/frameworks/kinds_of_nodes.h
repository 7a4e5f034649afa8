#pragma once
// Files of plans whose stages lie on GPUs of several kinds: nodes have to be ranked in the kinds'
// order. Private to emit().

#include <optional>
#include <string>

#include "planner/frameworks/emit.h"

namespace qplan {

// Why a framework cannot be told which nodes come first, or cannot start on such nodes; nothing
// where all GPUs are alike.
std::optional<Infeasible> kinds_unordered(Framework framework, const ClusterLimits& limits);

// Which node ranks are of which kind, and hold which pipeline ranks. Empty: all GPUs are alike.
std::string kinds_remark(Framework framework, const Subject& subject);

// A line for each node, in the order of their ranks, to be replaced by the node's name.
EmittedFile hosts_file(const Subject& subject);

// Whether a subject's GPUs are of several kinds.
bool on_several_kinds(const Subject& subject);

}  // namespace qplan
