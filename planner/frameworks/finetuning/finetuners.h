#pragma once
// The dialects that hand their words to other readers: by what, and which of their keys name the
// checkpoint.

#include <array>
#include <string_view>

#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

struct FineTuner {
  Dialect dialect;
  TrainerJob (*make)(const Settings&, const Place&);
  std::array<std::string_view, 3> model_keys;  // "": none
};

const FineTuner* finetuner_of(Dialect dialect);  // null: no such dialect

}  // namespace qplan
