#pragma once
// Sites that train apart and meet now and then (local SGD, DiLoCo): each runs the plan on its own
// GPUs, and every so many steps they exchange how far their parameters went. What that costs; not
// what it does to convergence, which DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (arXiv
// 2501.18512) measured for their models and nobody can say for others.

#include <cstdint>

#include "models/units.h"

namespace qplan {

struct Sites {
  std::int64_t count = 1;
  double gbit_per_s = 100;   // of each site's link to the others, one direction
  Seconds latency{};         // one way between neighbours
  std::int64_t every = 100;  // steps between two exchanges
  double bits =
      32;  // of a parameter's outer gradient as it is sent: 32 in DiLoCo, 4 in Streaming DiLoCo
  // Steps that go on while an exchange is under way; 0: everybody waits. Streaming DiLoCo's
  // parts of the model, exchanged in turn, need the same bytes between two exchanges of one part.
  std::int64_t beside = 0;
};

struct OuterStep {
  Bytes sent;          // by each site, each exchange
  Seconds exchange;    // that it takes
  Seconds exposed;     // ... of which every step waits, in the mean
  Seconds every_step;  // what each step would wait if the sites exchanged gradients of 32 bits each
                       // step
  // The parameters as they were and a momentum (Nesterov's, the outer optimizer of DiLoCo), fp32.
  Bytes states;  // of a site
};
// `parameters`: all that are trained. `step`: a site's own.
OuterStep outer_step(const Sites& sites, double parameters, Seconds step);

}  // namespace qplan
