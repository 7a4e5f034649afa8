#pragma once
// The plan that a job's files amount to: what they say, and what their framework takes where they
// do not. Private to check().

#include <string>
#include <vector>

#include "planner/frameworks/scene.h"

namespace qplan {

struct PlanReading {
  Scene scene;
  std::vector<std::string> assumed;  // what the plan took from nowhere: sentences
  bool takes_less = false;           // memory, the job does, than the plan
  bool length_unsaid = false;        // of sequences
};

PlanReading read_plan(const JobFiles& files, const CheckQuestion& question, Framework framework,
                      Findings& out);

}  // namespace qplan
