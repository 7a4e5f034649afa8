#include "cli/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace qplan {
namespace {

// A millionth of a step is a hundredth of a pixel of the widest screen, zoomed in a hundredfold.
constexpr std::int64_t kTicks = 1'000'000;

std::int64_t tick_of(Seconds time, Seconds end) {
  return std::llround(time / end * static_cast<double>(kTicks));
}

}  // namespace

Json timeline_json(const Trace& trace, std::size_t most) {
  std::vector<const TraceEvent*> events;
  for (const TraceEvent& event : trace.events) {
    if (event.end > event.begin) events.push_back(&event);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent* a, const TraceEvent* b) { return a->begin < b->begin; });
  Json left_out;
  const std::size_t all = events.size();
  if (all > most) {
    const auto first = events.begin() + static_cast<std::ptrdiff_t>(most / 2);
    const auto last = events.end() - static_cast<std::ptrdiff_t>(most - most / 2);
    left_out = {tick_of((*first)->begin, trace.end), tick_of((*last)->begin, trace.end)};
    events.erase(first, last);
  }
  // Rank, lane ("beside" comes after) and category.
  using Row = std::tuple<int, bool, std::string>;
  std::map<Row, Json> rows;
  for (const TraceEvent* event : events) {
    const bool beside = event->pipe || event->stream != Stream::compute;
    Json& row = rows[{event->rank, beside, event->category}];
    if (row.is_null()) {
      row = {{"rank", event->rank},         {"lane", beside ? "beside" : "compute"},
             {"category", event->category}, {"begin", Json::array()},
             {"end", Json::array()},        {"name", Json::array()}};
    }
    row["begin"].push_back(tick_of(event->begin, trace.end));
    row["end"].push_back(tick_of(event->end, trace.end));
    row["name"].push_back(event->name);
  }
  Json list = Json::array();
  for (auto& [key, row] : rows) list.push_back(std::move(row));
  return {{"end_s", trace.end.value()},
          {"ranks", trace.ranks},
          {"ticks", kTicks},
          {"events", all},
          {"left_out", std::move(left_out)},
          {"rows", std::move(list)}};
}

}  // namespace qplan
