#include "planner/frameworks/megatron/batch_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/setting.h"

namespace qplan::megatron {
namespace {

// "1.5B"; K, M, B and T in either case.
double figure(std::string text) {
  double unit = 1;
  constexpr std::string_view kUnits = "KMBT";
  const std::size_t power =
      text.empty() ? kUnits.npos : kUnits.find(static_cast<char>(text.back() & ~0x20));
  if (power != kUnits.npos) {
    for (std::size_t i = 0; i <= power; ++i) unit *= 1000;
    text.pop_back();
  }
  return number_of(Json(text)) * unit;
}

BatchStep step_of(const std::string& entry) {
  const std::size_t colon = entry.find(':');
  if (colon == std::string::npos) {
    throw Error(fmt::format("must be of entries TOKENS:BATCH, not '{}'", shown(entry)));
  }
  try {
    return {std::floor(figure(entry.substr(0, colon))),
            static_cast<std::int64_t>(figure(entry.substr(colon + 1)))};
  } catch (const Error&) {
    throw Error(fmt::format("must be of entries TOKENS:BATCH in numbers, not '{}'", shown(entry)));
  }
}

}  // namespace

std::vector<BatchStep> batch_steps(const std::string& schedule) {
  std::string text = schedule;
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream entries(text);
  std::vector<BatchStep> steps;
  for (std::string entry; entries >> entry;) steps.push_back(step_of(entry));
  std::stable_sort(steps.begin(), steps.end(),
                   [](const BatchStep& a, const BatchStep& b) { return a.from < b.from; });
  if (steps.empty() || steps.front().from != 0) {
    throw Error(fmt::format("must begin at 0 tokens, not '{}'", shown(schedule)));
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i > 0 && steps[i].from == steps[i - 1].from) {
      throw Error(
          fmt::format("must have one batch from a number of tokens on, not '{}'", shown(schedule)));
    }
    if (steps[i].batch < 1 || steps[i].batch > std::int64_t{1} << 30) {
      throw Error(fmt::format("must have batches of 1 and more, not '{}'", shown(schedule)));
    }
  }
  return steps;
}

}  // namespace qplan::megatron
