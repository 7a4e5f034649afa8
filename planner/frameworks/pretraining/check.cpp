#include "planner/frameworks/pretraining/pretraining.h"

namespace qplan {

void check_pretraining(const Scene& scene, Findings& out) {
  check_titan_toml(scene, out);
  check_nanotron(scene, out);
}

}  // namespace qplan
