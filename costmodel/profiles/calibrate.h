#pragma once
// From measured times of works to a hardware profile: tables where prices interpolate, efficiencies
// where they are formulas.

#include <string>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "models/program/op.h"

namespace qplan {

struct Sample {
  Work work;
  Seconds time;
  int ranks = 1;  // of a collective's group
};

struct Calibration {
  std::string gpu, driver, date;  // of the machine; the day, as 2026-01-31
  int ranks = 1;                  // GPUs that measured, all the same works
  std::vector<Sample> samples{};
  std::vector<Sample> steps{};  // in training steps of several models, a sample an op
  double waited_share = 0;      // of a step whose ranks meet in every layer: the slowest one's wait
  std::vector<Sample> warm{};   // the same works, or the like, of GPUs at their power limit
  Seconds launch{}, graph_gain{};
  BytesPerSecond host_to_device{}, device_to_host{};
  double host_adam = 0;  // parameters a second of one GPU's share of the host's cores
  Bytes host_memory{};   // one GPU's share of the host's memory
};

// What to measure: products on the grid of the table, attention, memory-bound kinds.
std::vector<Work> calibration_works();

// What several GPUs measure together, each group of those sizes: powers of two, and all of them.
std::vector<Work> collective_works();
std::vector<int> collective_groups(int ranks);

// What to measure between large products, on GPUs as warm as in training: some of the products that
// are measured alone, and weight gradients that are added to fp32 sums.
std::vector<Work> warm_works();

// `base` with what was measured in the place of its own figures. What was not measured stays.
Json calibrated_profile(const Json& base, const Calibration& calibration);

}  // namespace qplan
