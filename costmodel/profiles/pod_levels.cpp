#include "costmodel/profiles/pod_levels.h"

#include <fmt/format.h>

#include <charconv>

#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/text.h"

namespace qplan {
namespace {

// Of typing mistakes, not of machines.
constexpr std::int64_t kMostGpusOfPod = std::int64_t{1} << 30;
constexpr double kMostOversubscription = 1000;

// Each level holds several pods of the one below.
void add_level(PodLevels& pods, std::size_t at, const PodLevel& level, const std::string& where) {
  if (at >= kMostPodLevels) {
    throw Error(fmt::format("{} has more than {} levels of pods", where, kMostPodLevels));
  }
  if (at > 0 && level.gpus % pods[at - 1].gpus != 0) {
    throw Error(fmt::format("{} has pods of {} GPUs in pods of {}, which do not hold whole ones",
                            where, pods[at - 1].gpus, level.gpus));
  }
  pods[at] = level;
}

template <class T>
bool reads_as_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

}  // namespace

PodLevels read_pods(const Json& list, const std::string& where) {
  if (!list.is_array()) throw Error(where + " must be a list of objects");
  PodLevels pods{};
  for (std::size_t i = 0; i < list.size(); ++i) {
    JsonReader in(list[i], fmt::format("{}[{}]", where, i));
    PodLevel level;
    level.gpus = in.integer("gpus", 1, kMostGpusOfPod);
    level.oversubscription = in.number("oversubscription", 1, kMostOversubscription);
    level.rails = in.boolean_or("rails", false);
    in.finish();
    add_level(pods, i, level, where);
  }
  return pods;
}

Json pods_to_json(const PodLevels& pods) {
  Json list = Json::array();
  for (const PodLevel& level : pods) {
    if (level.gpus == 0) continue;
    list.push_back({{"gpus", level.gpus},
                    {"oversubscription", level.oversubscription},
                    {"rails", level.rails}});
  }
  return list;
}

PodLevels parse_pods(const std::string& where, std::string_view text) {
  PodLevels pods{};
  std::size_t at = 0;
  for (const std::string_view one : split(text, ',')) {
    const auto parts = split(one, ':');
    PodLevel level;
    level.rails = parts.size() == 3 && parts[2] == "rails";
    const bool two = parts.size() == 2 || level.rails;
    if (!two || !reads_as_number(parts[0], level.gpus) ||
        !reads_as_number(parts[1], level.oversubscription) || level.gpus < 1 ||
        level.gpus > kMostGpusOfPod || !(level.oversubscription >= 1) ||
        level.oversubscription > kMostOversubscription) {
      throw Error(fmt::format(
          "{} '{}' is not GPUS:RATIO, as 3072:7 for pods of 3072 GPUs whose links to others "
          "carry a seventh of what their cards do, or GPUS:RATIO:rails",
          where, shown(std::string(one))));
    }
    add_level(pods, at++, level, where);
  }
  return pods;
}

std::string pods_text(const PodLevels& pods) {
  std::string text;
  for (const PodLevel& level : pods) {
    if (level.gpus == 0) continue;
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : ",", level.gpus, level.oversubscription,
                        level.rails ? ":rails" : "");
  }
  return text;
}

void check_pods(const Interconnect& link, const std::string& where) {
  for (const PodLevel& level : link.pods) {
    for (const int part : {link.gpus_per_node, link.nvlink_domain}) {
      if (level.gpus % part == 0) continue;
      throw Error(fmt::format("{} has pods of {} GPUs, which do not hold whole {}s of {}", where,
                              level.gpus, part == link.gpus_per_node ? "node" : "NVLink domain",
                              part));
    }
  }
}

}  // namespace qplan
