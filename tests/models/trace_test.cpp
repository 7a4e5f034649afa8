#include "models/program/trace.h"

#include <doctest/doctest.h>

#include "models/json.h"
#include "models/text.h"

using namespace qplan;

namespace {

TraceEvent event(int rank, const char* category, int stage, int microbatch, double begin,
                 double end) {
  TraceEvent e;
  e.rank = rank;
  e.name = category;
  e.category = category;
  e.action.kind = std::string(category) == "forward" ? ActionKind::forward : ActionKind::backward;
  e.action.stage = stage;
  e.action.microbatch = microbatch;
  e.begin = Seconds(begin);
  e.end = Seconds(end);
  return e;
}

// Two stages, one microbatch: forward 1 s, backward 2 s.
Trace two_stages() {
  return {.ranks = 2,
          .end = Seconds(6),
          .events = {event(0, "forward", 0, 0, 0, 1), event(1, "forward", 1, 0, 1, 2),
                     event(1, "backward", 1, 0, 2, 4), event(0, "backward", 0, 0, 4, 6)}};
}

}  // namespace

TEST_CASE("a trace opens as Chrome's format: a process a rank, a thread a stream") {
  Trace trace = two_stages();
  TraceEvent send = event(0, "send", 0, 0, 1, 1.25);
  send.pipe = true;
  send.name = "send \"0F0\"";
  trace.events.push_back(send);
  const Json json = parse_json(to_chrome_json(trace), "trace");
  const Json& events = json["traceEvents"];
  std::vector<std::string> threads;
  for (const Json& e : events) {
    if (e["name"] == "thread_name") threads.push_back(e["args"]["name"].get<std::string>());
  }
  CHECK(threads == std::vector<std::string>{"compute", "pipe_comm", "compute"});
  const Json& last = events.back();
  CHECK(last["name"] == "send \"0F0\"");
  CHECK(last["ph"] == "X");
  CHECK(last["pid"] == 0);
  CHECK(last["ts"].get<double>() == 1e6);
  CHECK(last["dur"].get<double>() == 0.25e6);
  CHECK(last["args"]["microbatch"] == 0);
}

TEST_CASE("an event of the step's edge belongs to no microbatch") {
  Trace trace{.ranks = 1, .end = Seconds(1), .events = {event(0, "optimizer", -1, 0, 0, 1)}};
  const Json json = parse_json(to_chrome_json(trace), "trace");
  CHECK_FALSE(json["traceEvents"].back().contains("args"));
}

TEST_CASE("an event says what it waited for others") {
  Trace trace{.ranks = 1, .end = Seconds(1), .events = {event(0, "reduce", 0, 0, 0, 1)}};
  trace.events.back().waited = Seconds(0.25);
  const Json json = parse_json(to_chrome_json(trace), "trace");
  CHECK(json["traceEvents"].back()["args"]["waited_us"].get<double>() == 0.25e6);
  CHECK(json["traceEvents"].back()["args"]["microbatch"] == 0);
}

TEST_CASE("an empty trace is still a trace") {
  const Trace trace{.ranks = 1, .end = Seconds(0), .events = {}};
  CHECK(parse_json(to_chrome_json(trace), "trace")["traceEvents"].size() == 1);
  CHECK(draw_pipeline(trace, 12, false) == "0 ..........\n");
}

TEST_CASE("a pipeline is drawn with its microbatches, directions and idle time") {
  CHECK(draw_pipeline(two_stages(), 14, false) ==
        "0 0>......0<<<\n"
        "1 ..0>0<<<....\n");
}

TEST_CASE("colours do not change what is drawn") {
  const std::string plain = draw_pipeline(two_stages(), 14, false);
  const std::string colored = draw_pipeline(two_stages(), 14, true);
  CHECK(colored != plain);
  CHECK(display_width(colored) == display_width(plain));
}

TEST_CASE("in one column a forward is its digit and a backward its sign") {
  const Trace trace{
      .ranks = 1,
      .end = Seconds(2),
      .events = {event(0, "forward", 0, 17, 0, 1), event(0, "backward", 0, 17, 1, 2)}};
  CHECK(draw_pipeline(trace, 4, false) == "0 7<\n");
}

TEST_CASE("ops of one action are drawn as one stretch") {
  const Trace trace{.ranks = 1,
                    .end = Seconds(4),
                    .events = {event(0, "forward", 0, 3, 0, 1), event(0, "forward", 0, 3, 1, 4)}};
  CHECK(draw_pipeline(trace, 6, false) == "0 3>>>\n");
}
