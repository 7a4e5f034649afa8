#include "planner/runs/kernel_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "models/csv.h"
#include "models/error.h"
#include "models/json.h"
#include "models/text.h"
#include "planner/runs/run_tables.h"

namespace qplan {
namespace {

// ---- names ----

struct KernelName {
  std::string part;
  KernelKind kind;
};

constexpr std::array<std::string_view, 3> kNameColumns{"part", "kind", "what"};

class KernelNames {
 public:
  KernelNames(std::string_view tsv, std::string_view where) {
    read_run_table(tsv, where, kNameColumns, [this](const CsvTable::Row& row) {
      // "other kernels" is what people read; a table says "other" (and "product").
      const auto& table = Words<KernelKind>::table;
      const auto found = std::find_if(table.begin(), table.end(), [&](const auto& word) {
        return word.second.starts_with(row.cells[1]);
      });
      if (found == table.end()) throw Error("'" + row.cells[1] + "' is no kind of kernels");
      names_.push_back({row.cells[0], found->first});
    });
  }
  [[nodiscard]] KernelKind kind_of(std::string_view name) const {
    const std::string lower = lower_case(name);
    const auto found = std::find_if(names_.begin(), names_.end(), [&](const KernelName& known) {
      return lower.find(known.part) != std::string::npos;
    });
    return found == names_.end() ? KernelKind::other : found->kind;
  }

 private:
  std::vector<KernelName> names_;
};

// ---- spans of time ----

struct KernelSpan {
  double begin = 0, end = 0;  // of whatever unit
  KernelKind kind = KernelKind::other;
};

std::size_t place(KernelKind kind) {
  return static_cast<std::size_t>(kind);
}

// Of the window from `from` to `to`, in units of `unit` seconds, over so many steps.
KernelTotals totals_of(const std::vector<KernelSpan>& spans, double from, double to, double unit,
                       double steps) {
  struct Edge {
    double at;
    int change;
    KernelKind kind;
  };
  std::vector<Edge> edges;
  edges.reserve(spans.size() * 2);
  for (const KernelSpan& span : spans) {
    const double begin = std::max(span.begin, from), end = std::min(span.end, to);
    if (end <= begin) continue;
    edges.push_back({begin, 1, span.kind});
    edges.push_back({end, -1, span.kind});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  std::array<int, kKernelKinds> running{};
  std::array<double, kKernelKinds> busy{}, alone{};
  double before = from;
  for (const Edge& edge : edges) {
    const double passed = edge.at - before;
    bool taken = false;
    for (std::size_t k = 0; k < kKernelKinds; ++k) {
      if (running[k] == 0) continue;
      busy[k] += passed;
      if (!taken) alone[k] += passed;
      taken = true;
    }
    running[place(edge.kind)] += edge.change;
    before = edge.at;
  }
  KernelTotals totals;
  const double scale = unit / steps;
  totals.step = Seconds((to - from) * scale);
  for (std::size_t k = 0; k < kKernelKinds; ++k) {
    totals.busy[k] = Seconds(busy[k] * scale);
    totals.alone[k] = Seconds(alone[k] * scale);
  }
  return totals;
}

// ---- what is recorded ----

struct Recorded {
  std::vector<KernelSpan> kernels;
  std::vector<KernelSpan>
      steps;  // as the profiler marks them on the GPU or, where it does not, the host
  std::optional<std::int64_t> rank, world;
  double unit = 1;  // seconds of a span's 1
};

std::optional<std::int64_t> whole_number(const Json& object, const char* key) {
  if (!object.contains(key) || !object[key].is_number_integer()) return std::nullopt;
  return object[key].get<std::int64_t>();
}

// Kineto's traces have events by the million, so that none is kept as JSON.
class KinetoReader {
 public:
  // What the parser calls when an object ends; false: it need not be kept.
  bool take(const Json& event) {
    if (event.contains("rank") && event.contains("world_size")) {
      found_.rank = whole_number(event, "rank");
      found_.world = whole_number(event, "world_size");
    }
    if (!event.contains("ph") || !event.contains("name")) return true;
    if (event.value("ph", "") == "X") take_span(event);
    return false;
  }
  Recorded done() {
    found_.unit = 1e-6;
    found_.steps = on_gpu_.empty() ? std::move(on_host_) : std::move(on_gpu_);
    return std::move(found_);
  }

 private:
  static bool is_number(const Json& event, const char* key) {
    return event.contains(key) && event[key].is_number();
  }

  void take_span(const Json& event) {
    if (!is_number(event, "ts") || !is_number(event, "dur") || !event["name"].is_string()) return;
    const std::string category = lower_case(event.value("cat", ""));
    const auto& name = event["name"].get_ref<const std::string&>();
    KernelSpan span{.begin = event["ts"], .end = 0};
    span.end = span.begin + event["dur"].get<double>();
    if (category == "kernel") {
      span.kind = kind_of_kernel(name);
      found_.kernels.push_back(span);
    } else if (category == "gpu_memcpy" || category == "gpu_memset") {
      // What stays on the GPU is a kernel like any other that memory bounds.
      const bool leaves =
          name.find("Pinned") != std::string::npos || name.find("Pageable") != std::string::npos ||
          name.find("HtoD") != std::string::npos || name.find("DtoH") != std::string::npos;
      span.kind = leaves ? KernelKind::copy : KernelKind::other;
      found_.kernels.push_back(span);
    } else if (name.starts_with("ProfilerStep")) {
      (category.starts_with("gpu") ? on_gpu_ : on_host_).push_back(span);
    }
  }

  Recorded found_;
  std::vector<KernelSpan> on_gpu_, on_host_;
};

Recorded read_kineto(std::string_view text, std::string_view where) {
  KinetoReader reader;
  try {
    const Json left = Json::parse(text, [&](int, Json::parse_event_t event, Json& value) {
      return event != Json::parse_event_t::object_end || reader.take(value);
    });
  } catch (const Json::exception& error) {
    throw Error(fmt::format("{}: this is no whole trace of PyTorch's profiler: {}", where,
                            shown(error.what())));
  }
  return reader.done();
}

// Nsight Systems' columns, as `nsys stats` of 2022 to 2025 names them.
Recorded read_nsys(std::string_view text, std::string_view where) {
  // What nsys says of its own stands above the table.
  const CsvTable table = parse_csv(text.substr(text.find("Start (ns)")), where);
  const auto column = [&](std::string_view name) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), name);
    if (found == table.columns.end()) {
      throw Error(fmt::format("{}: the table has no column '{}'", where, name));
    }
    return static_cast<std::size_t>(found - table.columns.begin());
  };
  const std::size_t start = column("Start (ns)"), duration = column("Duration (ns)"),
                    device = column("Device"), name = column("Name");
  const auto number = [where](const CsvTable::Row& row, std::size_t cell) {
    const std::string& said = row.cells[cell];
    double value = 0;
    const char* end = said.data() + said.size();
    const auto [stop, code] = std::from_chars(said.data(), end, value);
    if (code == std::errc() && stop == end && !said.empty()) return value;
    throw Error(fmt::format("{}:{}: '{}' is no time in ns", where, row.line, shown(said)));
  };
  Recorded found;
  found.unit = 1e-9;
  for (const CsvTable::Row& row : table.rows) {
    if (row.cells[device] != table.rows.front().cells[device]) continue;  // one GPU's
    KernelSpan span{.begin = number(row, start), .end = 0};
    span.end = span.begin + number(row, duration);
    const std::string& kernel = row.cells[name];
    const bool is_copy =
        kernel.starts_with("[CUDA memcpy") && kernel.find("Device-to-Device") == std::string::npos;
    span.kind = is_copy                       ? KernelKind::copy
                : kernel.starts_with("[CUDA") ? KernelKind::other
                                              : kind_of_kernel(kernel);
    found.kernels.push_back(span);
  }
  return found;
}

bool is_nsys(std::string_view text) {
  constexpr std::size_t kAbove = 4096;  // of what nsys says first
  const std::string_view head = text.substr(0, kAbove);
  const std::size_t at = head.find("Start (ns)");
  return at != std::string_view::npos && head.find("Duration (ns)", at) != std::string_view::npos;
}

bool is_kineto(std::string_view text) {
  // "traceEvents" stands behind a few kB of what the profiler says of the machine.
  constexpr std::size_t kHead = std::size_t{1} << 20U;
  const std::string_view head = text.substr(0, kHead);
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && head[first] == '{' &&
         head.find("\"traceEvents\"") != std::string_view::npos;
}

}  // namespace

KernelKind kind_of_kernel(std::string_view name) {
  return built_in_table<KernelNames>("kernel_names").kind_of(name);
}

Seconds KernelTotals::idle() const {
  return std::accumulate(alone.begin(), alone.end(), step,
                         [](Seconds left, Seconds part) { return left - part; });
}

bool is_kernel_trace(std::string_view text) {
  return is_kineto(text) || is_nsys(text);
}

KernelTrace read_kernel_trace(std::string_view text, std::string_view where, std::int64_t steps) {
  const Recorded found = is_nsys(text) ? read_nsys(text, where) : read_kineto(text, where);
  if (found.kernels.empty()) {
    throw Error(
        fmt::format("{}: the trace has no kernel of a GPU; was it recorded with "
                    "ProfilerActivity.CUDA?",
                    where));
  }
  const std::vector<KernelSpan>& bounds = found.steps.empty() ? found.kernels : found.steps;
  double from = bounds.front().begin, to = bounds.front().end;
  for (const KernelSpan& span : bounds) {
    from = std::min(from, span.begin);
    to = std::max(to, span.end);
  }
  if (found.steps.empty() && steps == 0) {
    throw Error(
        fmt::format("{}: the trace marks no step (profiler.step() does); say with "
                    "--trace-steps how many optimizer steps it has",
                    where));
  }
  KernelTrace trace;
  trace.steps = found.steps.empty() ? steps : std::ssize(found.steps);
  trace.kernels = std::ssize(found.kernels);
  trace.rank = found.rank;
  trace.world = found.world;
  trace.mean = totals_of(found.kernels, from, to, found.unit, static_cast<double>(trace.steps));
  return trace;
}

KernelTotals predicted_kernels(const Trace& step, int pipeline_rank) {
  constexpr std::array kProducts{std::string_view("gemm"), std::string_view("grouped_gemm"),
                                 std::string_view("muon")};
  constexpr std::array kRecurrent{std::string_view("attention"),
                                  std::string_view("gated_delta_rule"),
                                  std::string_view("state_space_scan")};
  const auto is_one_of = [](const auto& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  std::vector<KernelSpan> spans;
  for (const TraceEvent& event : step.events) {
    if (event.rank != pipeline_rank || event.stream == Stream::host) continue;
    const std::string_view word = std::string_view(event.name).substr(0, event.name.find(' '));
    KernelSpan span{event.begin.value(), event.end.value(), KernelKind::other};
    if (event.pipe || (event.stream != Stream::compute && event.stream != Stream::h2d &&
                       event.stream != Stream::d2h)) {
      span.kind = KernelKind::communication;
    } else if (event.stream != Stream::compute) {
      span.kind = KernelKind::copy;
    } else if (is_one_of(kProducts, word)) {
      span.kind = KernelKind::product;
    } else if (is_one_of(kRecurrent, word)) {
      span.kind = KernelKind::attention;
    }
    spans.push_back(span);
  }
  return totals_of(spans, 0, step.end.value(), 1, 1);
}

}  // namespace qplan
