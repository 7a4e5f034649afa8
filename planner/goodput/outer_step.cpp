#include "planner/goodput/outer_step.h"

#include <algorithm>

#include "costmodel/profiles/hardware.h"

namespace qplan {
namespace {

// A ring over the sites: each sends its share of the sum to its neighbour, there and back, as
// collectives do (docs/reference/physics.md).
double turns(std::int64_t sites) {
  return 2 * as_double(sites - 1);
}

Bytes sent_by(const Sites& sites, double parameters, double bits) {
  return Bytes(parameters * bits / 8 * turns(sites.count) / as_double(sites.count));
}

Seconds exchange_of(const Sites& sites, Bytes sent) {
  const BytesPerSecond link = gb_per_s(sites.gbit_per_s / 8);
  return sent / link + sites.latency * turns(sites.count);
}

}  // namespace

OuterStep outer_step(const Sites& sites, double parameters, Seconds step) {
  OuterStep outer;
  if (sites.count <= 1) return outer;
  const double every = as_double(sites.every);
  outer.sent = sent_by(sites, parameters, sites.bits);
  outer.exchange = exchange_of(sites, outer.sent);
  // An exchange is over before the next begins.
  const Seconds hidden = step * as_double(std::min(sites.beside, sites.every));
  outer.exposed = std::max(Seconds(0), outer.exchange - hidden) / every;
  constexpr double kGradientBits = 32, kStateBytes = 4 + 4;
  outer.every_step = exchange_of(sites, sent_by(sites, parameters, kGradientBits));
  outer.states = Bytes(parameters * kStateBytes);
  return outer;
}

}  // namespace qplan
