#include "models/program/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

// ---- Chrome ----

// Threads of a process: the streams, then the stage boundary's.
constexpr int kPipeThread = kStreamCount;
constexpr std::array<std::string_view, kStreamCount + 1> kThreads{
    "compute", "model_comm", "gather_comm", "reduce_comm", "h2d", "d2h", "host", "pipe_comm"};

int thread_of(const TraceEvent& event) {
  return event.pipe ? kPipeThread : index(event.stream);
}

std::string json_text(std::string_view text) {
  return Json(text).dump();
}

// Nanosecond steps; shorter is below the clock of any GPU.
Seconds to_nanosecond(Seconds time) {
  return Seconds(std::round(time.value() * 1e9) / 1e9);
}

std::string microseconds_text(Seconds time) {
  return fmt::format("{:.3f}", time.value() * 1e6);
}

std::string metadata(std::string_view what, int rank, int thread, std::string_view name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what,
                     rank, thread, json_text(name));
}

std::string complete_event(const TraceEvent& e) {
  std::string line = fmt::format(
      R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{},"dur":{})", json_text(e.name),
      json_text(e.category), e.rank, thread_of(e), microseconds_text(e.begin),
      microseconds_text(to_nanosecond(e.end) - to_nanosecond(e.begin)));
  std::vector<std::string> args;
  if (e.action.stage >= 0) {
    args.push_back(
        fmt::format(R"("stage":{},"microbatch":{})", e.action.stage, e.action.microbatch));
  }
  if (e.waited > Seconds()) {
    args.push_back(fmt::format(R"("waited_us":{})", microseconds_text(e.waited)));
  }
  if (!args.empty()) line += fmt::format(R"(,"args":{{{}}})", fmt::join(args, ","));
  return line + '}';
}

// ---- terminal ----

// How a category is drawn.
struct Ink {
  std::string_view category;
  char fill;
  int color;  // ANSI background
};
constexpr std::array<Ink, 5> kInks{{{"forward", '>', 44},
                                    {"backward", '<', 42},
                                    {"weight gradient", 'w', 46},
                                    {"reduce", 'r', 43},
                                    {"optimizer", 'o', 45}}};

const Ink* ink_of(std::string_view category) {
  const auto found = std::find_if(kInks.begin(), kInks.end(),
                                  [&](const Ink& ink) { return ink.category == category; });
  return found == kInks.end() ? nullptr : &*found;
}

// A stretch of compute that belongs together: ops of one action are one segment.
struct Segment {
  const TraceEvent* first;
  Seconds begin, end;
};

std::vector<Segment> compute_segments(const Trace& trace, int rank) {
  std::vector<Segment> segments;
  for (const TraceEvent& e : trace.events) {
    const bool drawn = e.rank == rank && !e.pipe && e.stream == Stream::compute && e.end > e.begin;
    if (drawn) segments.push_back({&e, e.begin, e.end});
  }
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
  std::vector<Segment> merged;
  for (const Segment& s : segments) {
    const bool same = !merged.empty() && merged.back().first->action == s.first->action &&
                      merged.back().first->category == s.first->category;
    if (same) {
      merged.back().end = std::max(merged.back().end, s.end);
    } else {
      merged.push_back(s);
    }
  }
  return merged;
}

// For each column the segment that fills most of it; -1 where idling does.
std::vector<int> columns_of(const std::vector<Segment>& segments, Seconds end, int columns) {
  std::vector<int> owner(static_cast<std::size_t>(columns), -1);
  const double step = end.value() / columns;
  std::vector<double> most(owner.size()), busy(owner.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const double from = segments[i].begin.value() / step, to = segments[i].end.value() / step;
    const int last = std::min(columns - 1, static_cast<int>(std::ceil(to)) - 1);
    for (int column = std::max(0, static_cast<int>(from)); column <= last; ++column) {
      const double share = std::min(to, column + 1.0) - std::max(from, static_cast<double>(column));
      const auto c = static_cast<std::size_t>(column);
      busy[c] += share;
      if (share > most[c]) {
        most[c] = share;
        owner[c] = static_cast<int>(i);
      }
    }
  }
  for (std::size_t c = 0; c < owner.size(); ++c) {
    if (busy[c] < 0.5) owner[c] = -1;
  }
  return owner;
}

// "12>>>" for a forward of microbatch 12 that is five columns wide. One column holds a forward's
// last digit and a backward's sign.
std::string drawn_segment(const TraceEvent& event, int width) {
  const Ink* const ink = ink_of(event.category);
  const char fill = ink == nullptr ? '#' : ink->fill;
  std::string text;
  if (event.action.stage >= 0) {
    const std::string number = fmt::format("{}", event.action.microbatch);
    if (static_cast<int>(number.size()) < width) {
      text = number;
    } else if (width > 1 || event.category == "forward") {
      text = number.substr(number.size() - 1);
    }
  }
  text.resize(static_cast<std::size_t>(width), fill);
  return text;
}

std::string colored(const std::string& text, const TraceEvent& event, int ranks) {
  const Ink* const ink = ink_of(event.category);
  if (ink == nullptr) return text;
  // A rank's later chunks are drawn bright.
  const bool bright = event.action.stage >= ranks;
  return fmt::format("\x1b[30;{}m{}\x1b[0m", ink->color + (bright ? 60 : 0), text);
}

std::string drawn_rank(const Trace& trace, int rank, int columns, bool color) {
  const std::vector<Segment> segments = compute_segments(trace, rank);
  const std::vector<int> owner = columns_of(segments, trace.end, columns);
  std::string row;
  for (std::size_t from = 0; from < owner.size();) {
    std::size_t to = from;
    while (to < owner.size() && owner[to] == owner[from]) ++to;
    if (owner[from] < 0) {
      row.append(to - from, '.');
    } else {
      const TraceEvent& event = *segments[static_cast<std::size_t>(owner[from])].first;
      const std::string text = drawn_segment(event, static_cast<int>(to - from));
      row += color ? colored(text, event, trace.ranks) : text;
    }
    from = to;
  }
  return row;
}

}  // namespace

std::string to_chrome_json(const Trace& trace) {
  std::vector<std::string> lines;
  std::vector<std::array<bool, kThreads.size()>> used(static_cast<std::size_t>(trace.ranks));
  for (const TraceEvent& e : trace.events) {
    QPLAN_CHECK(e.rank >= 0 && e.rank < trace.ranks, "a trace event belongs to one of its ranks");
    used[static_cast<std::size_t>(e.rank)][static_cast<std::size_t>(thread_of(e))] = true;
  }
  for (int rank = 0; rank < trace.ranks; ++rank) {
    lines.push_back(metadata("process_name", rank, 0, fmt::format("pipeline rank {}", rank)));
    for (std::size_t thread = 0; thread < kThreads.size(); ++thread) {
      if (!used[static_cast<std::size_t>(rank)][thread]) continue;
      lines.push_back(metadata("thread_name", rank, static_cast<int>(thread), kThreads[thread]));
    }
  }
  for (const TraceEvent& e : trace.events) lines.push_back(complete_event(e));
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n",
                     fmt::join(lines, ",\n"));
}

std::string draw_pipeline(const Trace& trace, int columns, bool color) {
  const std::size_t label = fmt::format("{}", trace.ranks - 1).size();
  const int width = std::max(1, columns - static_cast<int>(label) - 1);
  std::string text;
  for (int rank = 0; rank < trace.ranks; ++rank) {
    text += fmt::format("{:>{}} {}\n", rank, label, drawn_rank(trace, rank, width, color));
  }
  return text;
}

}  // namespace qplan
