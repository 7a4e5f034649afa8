#pragma once
// GPUs of one kind differ in speed, and each from moment to moment: who meets others waits.

#include <cstdint>

#include "costmodel/profiles/hardware.h"
#include "models/rank_grid.h"

namespace qplan {

// How much longer products and attention take on the slowest of so many GPUs than on the slowest
// of those that rates were measured on; below 1 for fewer.
double slowest_of(std::int64_t ranks, const SpeedSpread& spread);

// Ranks that wait for each other in every layer or micro-batch: those of tensor, context and expert
// parallelism, and the stages of a pipeline. Data parallelism's meet once a step, or ahead of time.
std::int64_t meeting_ranks(const RankGrid& grid);

// What products and attention take in a step over what they take on one GPU of the profile: all
// ranks wait for the slowest once a step or more, and the slowest for those that it meets.
double pace_of(const RankGrid& grid, const SpeedSpread& spread);

}  // namespace qplan
