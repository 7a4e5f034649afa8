#include "planner/frameworks/torch/reward_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "models/ascii.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

// How many items a list has as it is written; 0: it is no list, or holds what may be several.
std::size_t items_of_list(std::string_view written) {
  if (!written.starts_with('[') || !written.ends_with(']')) return 0;
  std::size_t items = 0;
  int depth = 0;
  bool open = false;  // something of an item was seen
  for (const char c : written.substr(1, written.size() - 2)) {
    if (c == '*' || c == '"' || c == '\'' || c == '#') return 0;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == ',' && depth == 0) {
      open = false;
    } else if (c != ' ' && c != '\n' && c != '\t' && !open) {
      open = true;
      ++items;
    }
  }
  return written.find(" for ") != std::string_view::npos ? 0 : items;
}

}  // namespace

void check_reward_counts(const PythonText& text, Findings& out) {
  const PythonCall *config = nullptr, *trainer = nullptr;
  for (const PythonCall& call : text.calls) {
    const std::string callee = callee_of(call);
    for (auto& [name, found] :
         {std::pair<std::string_view, const PythonCall**>{"GRPOConfig", &config},
          {"GRPOTrainer", &trainer}}) {
      if (callee != name) continue;
      if (*found != nullptr) return;
      *found = &call;
    }
  }
  if (config == nullptr || trainer == nullptr) return;
  const PythonArgument* const weights = config->find("reward_weights");
  const PythonArgument* rewards = trainer->find("reward_funcs");
  if (weights == nullptr || rewards == nullptr) return;
  // A variable that is set once.
  const PythonArgument* set = nullptr;
  for (const PythonAssignment& assignment : text.assignments) {
    if (assignment.target != rewards->text) continue;
    if (set != nullptr) return;
    set = &assignment.value;
  }
  if (set != nullptr) rewards = set;
  const bool function = set == nullptr && rewards->text.find("reward") != std::string::npos &&
                        std::all_of(rewards->text.begin(), rewards->text.end(), is_name) &&
                        !rewards->text.ends_with("s");
  const std::size_t counted = items_of_list(weights->text);
  const std::size_t there = function ? 1 : items_of_list(rewards->text);
  if (counted == 0 || there == 0 || counted == there) return;
  out.push_back({Severity::error,
                 "option_needs",
                 weights->place,
                 fmt::format("{} reward_weights for {} that reward: TRL stops", counted, there),
                 fmt::format("{} numbers, or no reward_weights", there),
                 "TRL f2cd5771, trl/trainer/grpo_trainer.py:529",
                 {}});
}

}  // namespace qplan
