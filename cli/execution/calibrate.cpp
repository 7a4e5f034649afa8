// `qplan calibrate`: measures this machine's GPUs and writes a hardware profile.

#include "costmodel/profiles/calibrate.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <ostream>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/execution/execution.h"
#include "cli/execution/step_samples.h"
#include "cli/output.h"
#include "cli/print.h"
#include "cli/stopwatch.h"
#include "costmodel/profiles/hardware.h"
#include "executor/cuda/device_error.h"
#include "executor/cuda/measure.h"
#include "executor/cuda/run.h"
#include "executor/gpu_library.h"
#include "executor/host_memory.h"
#include "models/error.h"
#include "models/json.h"
#include "models/model_spec.h"

namespace qplan {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%d}", *std::gmtime(&now));
}

// Other profiles, of a GPU of the same name, may say more than ours; without one the nearest
// serves.
std::string base_for(const std::string& gpu) {
  for (const auto& [part, name] : {std::pair{"H200", "h200-sxm"},
                                   {"H100 PCIe", "h100-pcie"},
                                   {"H100", "h100-sxm"},
                                   {"A100", "a100-80gb-sxm"},
                                   {"B200", "b200"},
                                   {"B300", "b300"}}) {
    if (gpu.find(part) != std::string::npos) return name;
  }
  throw Error(
      fmt::format("no built-in profile is of a '{}'; name one to start from with "
                  "--hardware",
                  gpu));
}

Calibration measure(const ProcessRank& process, const Console& console, const std::string& base,
                    const std::vector<std::string>& models) {
  std::unique_ptr<Measurer> measurer = make_measurer(process, Queues::one);
  const GpuFacts& facts = measurer->facts();
  Calibration result{.gpu = facts.name,
                     .driver = facts.driver,
                     .date = today(),
                     .ranks = static_cast<int>(process.world)};
  const std::vector<Work> works = calibration_works(), together = collective_works();
  const std::vector<int> groups = collective_groups(result.ranks);
  std::size_t done = 0;
  const auto sample = [&](const Work& work, int ranks) {
    // Row walks are short of instructions as often as of bandwidth, and in a step they have the
    // clock of the products around them.
    const bool memory_bound = std::holds_alternative<Rowwise>(work);
    if (const auto time = memory_bound ? measurer->warm_time(work) : measurer->time(work, ranks)) {
      result.samples.push_back({work, *time, ranks});
    }
    if (console.terminal.progress && process.rank == 0) {
      print(console.err, "\r{:4} of {} works, {:<60}", ++done,
            works.size() + groups.size() * together.size(), to_string(work));
      console.err.flush();
    }
  };
  for (const Work& work : works) sample(work, 1);
  for (const int ranks : groups) {
    for (const Work& work : together) sample(work, ranks);
  }
  if (console.terminal.progress && process.rank == 0) console.err << '\n';
  result.launch = measurer->launch_time();
  result.graph_gain = measurer->graph_gain();
  for (const Work& work : warm_works()) {
    if (const auto time = measurer->warm_time(work)) result.warm.push_back({work, *time});
  }
  result.host_to_device = measurer->copy_rate(false);
  result.device_to_host = measurer->copy_rate(true);
  result.host_adam = measurer->host_adam_rate();
  result.host_memory = host_memory_here() * (1.0 / gpu_count());
  const double slowest = measurer->slowest();
  measurer.reset();  // its memory is for the models now
  const HardwareProfile start = load_hardware(base.empty() ? base_for(result.gpu) : base);
  StepSamples steps = step_samples(models, start, process, console);
  result.steps = std::move(steps.works);
  result.waited_share = steps.waited_share;
  // A step goes at the pace of the slowest GPU; samples of steps are at its pace already.
  for (std::vector<Sample>* samples : {&result.samples, &result.warm}) {
    for (Sample& s : *samples) {
      if (s.ranks == 1) s.time = s.time * slowest;
    }
  }
  return result;
}

}  // namespace

Exit run_calibrate(const Args& args, const Console& console) {
  std::string output, base, models;
  std::int64_t ranks = 0;
  CommandLine line("calibrate", "Measures this machine's GPUs and writes a hardware profile.",
                   "qplan calibrate -o profile.json\n"
                   "         qplan validate plan.json --backend cuda --hardware profile.json");
  line.option({"-o,--output", "FILE", "where the profile goes", "calibrated.json"},
              set_text(output));
  line.option({"--hardware", "NAME", "profile whose other figures it takes", "by the GPU's name"},
              set_name(base, hardware_names()));
  line.option(
      {"--model", "NAMES", "whose steps it measures: zoo names or config.json files, with commas",
       "one of each kind of layer"},
      set_name(models, model_names()));
  line.option(
      {"--ranks", "COUNT", "GPUs that measure; collectives among 2, 4, ... and all of them", "all"},
      set_whole(ranks, 1, 1 << 16));
  if (!line.parse(args, console.out)) return Exit::done;
  if (output.empty()) output = "calibrated.json";
  require_gpu_library();
  if (gpu_count() == 0) throw DeviceError("there is no GPU that CUDA can use on this machine");
  if (ranks == 0) ranks = gpu_count();

  std::optional<ProcessRank> process = process_rank(environment);
  if (!process && ranks > 1) return run_again_by_local_ranks(ranks, "calibrate", args);
  if (!process) process = ProcessRank{};
  const Stopwatch watch;
  std::vector<std::string> names;
  for (const std::string_view name : split(models, ',')) names.emplace_back(name);
  if (models.empty()) names = usual_step_models();
  for (const std::string& name : names)
    static_cast<void>(load_model(name));  // before anything runs
  const Calibration calibration = measure(*process, console, base, names);
  if (process->rank > 0) return Exit::done;
  const HardwareProfile start = load_hardware(base.empty() ? base_for(calibration.gpu) : base);
  const Json profile = calibrated_profile(start.source, calibration);
  static_cast<void>(read_hardware(profile, output));  // what is written can be read
  write_output(output, answer_text("profile", profile), console);
  print(beside_output(output, console).out,
        "{}: {} works and {} ops of steps on {} x {} in {:.0f} s, starting from {}\n",
        output_name(output), calibration.samples.size(), calibration.steps.size(),
        calibration.ranks, calibration.gpu, watch.elapsed_s(), start.name);
  return Exit::done;
}

}  // namespace qplan
