#pragma once
// Configurations of reinforcement learning, and what is found in them, for tests.

#include <doctest/doctest.h>

#include <string>

#include "models/files.h"
#include "tests/planner/frameworks/jobs.h"

namespace qplan {

inline std::string rl_fixture(const std::string& name) {
  return read_text_file(std::string(QPLAN_TEST_DATA) + "/configs/rl/" + name);
}

inline void has_rule(const std::string& id, const Checked& checked, const std::string& words = "") {
  const Finding* const found = find(checked, id);
  REQUIRE_MESSAGE(found != nullptr, id << " among:\n" << findings_text(checked));
  CHECK_MESSAGE(found->message.find(words) != std::string::npos, found->message);
}

}  // namespace qplan
