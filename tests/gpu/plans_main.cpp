// Losses of many plans on GPUs, one after the other: the processes of a job start once, for most of
// a small run is their start. For scripts/gpu_equivalence.py:
//
//     gpu_plans PLANS.json RANKS
//
// PLANS.json: [{"model": a config.json, "plan": a plan's line}, ...], all of RANKS ranks, with
// "steps", "lr", "moe_imbalance" and "timeout_s" as `qplan run` knows them. Prints a line of JSON a
// plan; the first failure ends all, as it ends a job.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "executor/cuda_run.h"
#include "executor/device_error.h"
#include "models/error.h"
#include "models/json.h"

using namespace qplan;

namespace {

// Each plan's processes meet anew. Below the ports that Linux gives to whoever asks for any; jobs
// beside each other begin at different ones, by the port that their launcher was given.
constexpr int kFirstPort = 20000, kJobs = 100, kPlansOfJob = 100;

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
  options.alive = sign_of_life(environment);
  return run_on_gpu(model, parse_plan(job.at("plan").get<std::string>()),
                    {.moe_imbalance = job.at("moe_imbalance")}, options, process);
}

void run_all(const Json& jobs, ProcessRank process) {
  const int first_port = kFirstPort + process.port % kJobs * kPlansOfJob;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    process.door = -1;
    process.port = first_port + static_cast<int>(i);
    const RunResult result = run_one(jobs[i], process);
    if (process.rank != 0) continue;
    const Json answer = {{"loss", result.loss}, {"grad_norm", result.grad_norm}};
    std::puts(answer.dump().c_str());
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
    run_all(parse_json(read_text_file(words[1]), words[1]), *process);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_plans: {}\n", error.what());
    return 3;
  }
  return 0;
}
