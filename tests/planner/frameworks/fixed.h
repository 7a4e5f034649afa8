#pragma once
// What --fix makes of one file, for tests.

#include <span>
#include <string>
#include <vector>

#include "planner/frameworks/fix.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {

inline std::string fixed_text(const std::string& name, const std::string& text,
                              const std::string& model_name, std::int64_t gpus) {
  const ModelSpec model = load_model(model_name);
  const Json config = model_config(model_name);
  const std::vector<ConfigText> files{{name, text}};
  const auto judge = [&](std::span<const ConfigText> texts) {
    return check_cited(texts, question_of(model, config, gpus));
  };
  return fix(files, judge).files[0].text;
}

}  // namespace qplan
