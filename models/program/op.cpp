#include "models/program/op.h"

#include "models/error.h"

namespace qplan {

void SlotList::add(SlotId id) {
  QPLAN_CHECK(count < ids.size(), "an op reads or writes at most eight slots");
  ids[count++] = id;
}

}  // namespace qplan
