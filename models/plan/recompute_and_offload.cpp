// What is recomputed and what lives on the host, as a plan's line and JSON say it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "models/error.h"
#include "models/plan/parallel_plan.h"
#include "models/plan/plan_text.h"
#include "models/plan/plan_values.h"

namespace qplan {

std::string to_string(const Recompute& recompute) {
  std::string kind(to_word(recompute.kind));
  if (recompute.kind == RecomputeKind::selective && !recompute.modules.empty()) {
    return kind + ':' + plan_values::join_words(recompute.modules);
  }
  if (recompute.kind == RecomputeKind::full && recompute.layers > 0) {
    return fmt::format("{}:{}", kind, recompute.layers);
  }
  return kind;
}

Recompute parse_recompute(std::string_view text) {
  const std::size_t colon = text.find(':');
  Recompute recompute;
  recompute.kind = from_word<RecomputeKind>(text.substr(0, colon));
  if (colon == std::string_view::npos) return recompute;
  const std::string_view rest = text.substr(colon + 1);
  switch (recompute.kind) {
    case RecomputeKind::none:
      throw Error(fmt::format("recompute '{}' says both nothing and something; write none", text));
    case RecomputeKind::selective:
      recompute.modules = plan_values::split_words<RecomputeModule>(rest);
      break;
    case RecomputeKind::full:
      recompute.layers =
          static_cast<int>(parse_count("the N of recompute=full:N", rest, 1, kMaxDegree));
      break;
  }
  return recompute;
}

std::string to_string(const Offload& offload) {
  std::vector<std::string> parts;
  if (offload.optimizer > 0) {
    // "{}" is the shortest text that reads back as the same double.
    parts.push_back(offload.optimizer == 1 ? "optimizer"
                                           : fmt::format("optimizer:{}", offload.optimizer));
  }
  if (offload.params) parts.emplace_back("params");
  if (offload.activation_layers != 0) {
    parts.push_back(offload.activation_layers < 0
                        ? "activations"
                        : fmt::format("activations:{}", offload.activation_layers));
  }
  if (offload.nvme) parts.emplace_back("nvme");
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ","));
}

Offload parse_offload(std::string_view text) {
  Offload offload;
  if (text == "none") return offload;
  std::vector<std::string_view> seen;
  std::string parts(text);  // overlap=grad+param is written so; no amount has a plus sign
  std::ranges::replace(parts, '+', ',');
  plan_values::refuse_none_beside_others("offload", text, split(parts, ','));
  for (const auto part : split(parts, ',')) {
    const std::size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    const bool has_amount = colon != std::string_view::npos;
    const std::string_view amount = has_amount ? part.substr(colon + 1) : std::string_view{};
    for (const auto& earlier : seen) {
      if (earlier == name) {
        throw Error(fmt::format("offload '{}' names {} twice; give it once", text, name));
      }
    }
    seen.push_back(name);
    if (name == "optimizer") {
      offload.optimizer = 1;
      if (!has_amount) continue;
      const char* const end = amount.data() + amount.size();
      const auto [stop, code] = std::from_chars(amount.data(), end, offload.optimizer);
      const bool fraction = offload.optimizer > 0 && offload.optimizer <= 1;  // false for NaN
      if (stop != end || code != std::errc{} || !fraction) {
        throw Error(fmt::format(
            "offload=optimizer:FRACTION needs a fraction above 0 and at most 1, not '{}'", amount));
      }
    } else if (name == "activations") {
      offload.activation_layers =
          has_amount ? static_cast<int>(
                           parse_count("the N of offload=activations:N", amount, 1, kMaxDegree))
                     : -1;
    } else if ((name == "params" || name == "nvme") && !has_amount) {
      (name == "params" ? offload.params : offload.nvme) = true;
    } else {
      unknown_word("offload", part,
                   {"none", "optimizer[:fraction]", "params", "activations[:layers]", "nvme"});
    }
  }
  return offload;
}

}  // namespace qplan
