#include "planner/frameworks/rl/open_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "models/text.h"
#include "planner/frameworks/rl/rl.h"

namespace qplan {
namespace {

// Ends of the keys that a plan or its step cannot do without.
constexpr auto kSizes = std::to_array<std::string_view>(
    {"data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "rollout.n",
     "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
     "expert_model_parallel_size", "ulysses_sequence_parallel_size", "gpu_memory_utilization",
     "ppo_mini_batch_size", "actor.strategy"});

// A size that counts, spelled out in one branch of several.
bool is_open_size(const Settings& settings, const Setting& setting) {
  const bool size = std::any_of(kSizes.begin(), kSizes.end(),
                                [&](std::string_view end) { return setting.key.ends_with(end); });
  return size && !setting.resolved && settings.find(setting.key) == &setting &&
         text_of(setting.value).find_first_of("$`") == std::string::npos;
}

}  // namespace

void note_open_sizes(const ConfigPart& part, Findings& out) {
  constexpr std::size_t kNamed = 3;
  const Setting* first = nullptr;
  std::string named;
  std::size_t count = 0;
  for (const Setting& setting : part.settings) {
    if (!is_open_size(part.settings, setting)) continue;
    if (first == nullptr) first = &setting;
    if (++count > kNamed) continue;
    named += fmt::format("{}{} is {}", count > 1 ? ", " : "", setting.key,
                         shown(text_of(setting.value)));
  }
  if (first == nullptr) return;
  if (count > kNamed) named += fmt::format(" and {} more are said", count - kNamed);
  out.push_back({Severity::note,
                 std::string(kBranchesDecide),
                 first->place,
                 fmt::format("{} in one branch of the script, and which is taken only a run can "
                             "tell: no plan is made",
                             named),
                 "write the values, or what the branches ask for",
                 "",
                 {}});
}

}  // namespace qplan
