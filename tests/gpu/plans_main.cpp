// Losses and times of many plans on GPUs, one after the other: the processes of a job start once,
// for most of a small run is their start. For scripts/gpu_equivalence.py and validate_draw.py:
//
//     gpu_plans PLANS.json RANKS
//
// PLANS.json: [{"model": a config.json, "plan": a plan's line}, ...], all of RANKS ranks, with
// "steps", "lr", "moe_imbalance" and "timeout_s" as `qplan run` knows them, and "trace": whether
// the last step's ops are timed. Prints a line of JSON a plan; the first failure ends all, as it
// ends a job. With "digest" every rank prints one, with its rank and a digest of the first step's
// gradients and the last one's weights, of what it holds of them.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "executor/cuda/device_error.h"
#include "executor/cuda/run.h"
#include "executor/gpu_limits.h"
#include "models/error.h"
#include "models/json.h"

using namespace qplan;

namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

RunResult run_one(const Json& job, const ProcessRank& process) {
  const ModelSpec model = load_model(job.at("model"));
  RunOptions options;
  options.steps = job.at("steps");
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  options.optimizer.adamw.lr = job.at("lr");
  options.timeout = Seconds(job.at("timeout_s"));
  options.keep_trace = job.value("trace", false);
  options.keep_gradients = options.keep_weights = job.value("digest", false);
  options.alive = sign_of_life(environment);
  return run_on_gpu(model, parse_plan(job.at("plan").get<std::string>()),
                    {.moe_imbalance = job.at("moe_imbalance")}, options, process);
}

// Of this rank's timed step, by kind of work and shape: [ops, seconds, seconds of which other ranks
// were awaited].
Json works_of(const Trace& trace) {
  std::map<std::string, std::tuple<int, double, double>> found;
  for (const TraceEvent& event : trace.events) {
    if (event.category == "send") continue;
    auto& [ops, seconds, waited] = found[event.name];
    ++ops;
    seconds += (event.end - event.begin).value();
    waited += event.waited.value();
  }
  return found;
}

// Where a timed step's compute stream does nothing: the longest pauses, in milliseconds, and what
// came before and after.
Json pauses_of(const Trace& trace) {
  constexpr std::size_t kShown = 8;
  std::vector<const TraceEvent*> events;
  for (const TraceEvent& event : trace.events) {
    if (!event.pipe && event.stream == Stream::compute) events.push_back(&event);
  }
  std::sort(events.begin(), events.end(),
            [](const TraceEvent* a, const TraceEvent* b) { return a->begin < b->begin; });
  std::vector<std::tuple<double, std::string, std::string>> found;
  double sum = 0, reached = 0;
  std::string before = "begin";
  for (const TraceEvent* event : events) {
    const double pause = event->begin.value() - reached;
    if (pause > 0) {
      sum += pause;
      found.emplace_back(1e3 * pause, before, event->name);
    }
    reached = std::max(reached, event->end.value());
    before = event->name;
  }
  std::sort(found.rbegin(), found.rend());
  found.resize(std::min(found.size(), kShown));
  return {{"ms", 1e3 * sum}, {"longest", found}};
}

// How routers spread the tokens of the timed step, where they chose; else null.
Json routed_of(const RunResult& result) {
  if (!result.expert_load) return nullptr;
  return {{"active", result.expert_load->active}, {"busiest", result.expert_load->busiest}};
}

// FNV-1a, of every bit.
std::string digest_of(const RunResult& result) {
  std::uint64_t hash = 14695981039346656037U;
  for (const ModelTensors* tensors : {&result.gradients, &result.weights}) {
    for (const std::vector<float>& tensor : *tensors) {
      for (const float number : tensor) {
        hash = (hash ^ std::bit_cast<std::uint32_t>(number)) * 1099511628211U;
      }
    }
  }
  return fmt::format("{:016x}", hash);
}

Json answer_of(const RunResult& result) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  Json seconds = Json::array();
  for (const Seconds time : result.step_time) seconds.push_back(time.value());
  return {{"loss", result.loss},
          {"grad_norm", result.grad_norm},
          {"step_s", seconds},
          {"device_gib", in_gib(result.device_peak.value_or(Bytes()))},
          {"works", works_of(result.trace)},
          {"pauses", pauses_of(result.trace)},
          {"routed", routed_of(result)},
          {"ended", now.count()}};  // of the clock that a power meter's readings have
}

bool in_one_queue(const Json& job) {
  return takes_one_queue(parse_plan(job.at("plan").get<std::string>()));
}

// The plan that this process begins with; a process has one kind of queue to its GPU, and goes on
// as a new program where a plan wants the other.
constexpr const char* kFirstPlan = "QPLAN_FIRST_PLAN";
void go_on_from(std::size_t plan, char** words) {
  ::setenv(kFirstPlan, std::to_string(plan).c_str(), 1);
  ::execv("/proc/self/exe", words);
  throw DeviceError("gpu_plans cannot start anew");
}

void run_all(const Json& jobs, ProcessRank process, char** words) {
  const int port = process.port;
  const std::size_t first = std::stoul(environment(kFirstPlan).value_or("0"));
  for (std::size_t i = first; i < jobs.size(); ++i) {
    if (in_one_queue(jobs[i]) != in_one_queue(jobs[first])) go_on_from(i, words);
    process.door = -1;
    process.port = meeting_port(port, static_cast<int>(i));
    const RunResult result = run_one(jobs[i], process);
    const bool digests = jobs[i].value("digest", false);
    if (process.rank != 0 && !digests) continue;
    Json answer = answer_of(result);
    if (digests)
      answer.update({{"rank", process.rank}, {"plan", i}, {"digest", digest_of(result)}});
    fmt::print("{}\n", answer.dump());  // in one piece, beside other ranks'
    std::fflush(stdout);
  }
}

int run_by_local_ranks(char** words) {
  const LocalJob job{std::atoi(words[2]),
                     {std::filesystem::read_symlink("/proc/self/exe"), words[1], words[2]}};
  const LocalResult result = run_local_ranks(job);
  if (!result.failure.empty()) fmt::print(stderr, "{}\n", result.failure);
  return result.exit_code;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    fmt::print(stderr, "gpu_plans needs a file of plans and how many ranks they have\n");
    return 2;
  }
  try {
    auto process = process_rank(environment);
    if (!process && std::string(words[2]) == "1") process = ProcessRank{};
    if (!process) return run_by_local_ranks(words);
    run_all(parse_json(read_text_file(words[1]), words[1]), *process, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_plans: {}\n", error.what());
    return 3;
  }
  return 0;
}
