#include "planner/runs/golden_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "models/json.h"
#include "models/statistics.h"
#include "planner/frameworks/check.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "golden_values_";

// ---- the file's name: golden_values_{environment}_{platform}.json ----

// "dev_dgx_h100"; without the mark of a second start, from a checkpoint, of the same job.
std::string setting_of(const fs::path& path) {
  std::string name = path.stem().string();
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  constexpr std::string_view kAgain = "_2nd";
  if (name.ends_with(kAgain)) name.resize(name.size() - kAgain.size());
  return name;
}

// The machines of the platforms' names.
std::string machine_of(const std::string& setting) {
  const auto has = [&](std::string_view word) { return setting.find(word) != std::string::npos; };
  if (has("gb200")) return "gb200";
  if (has("h100")) return "h100-sxm";
  if (has("a100")) return "a100-80gb-sxm";
  throw Error(
      fmt::format("the machine is not stated: '{}' names none of dgx_a100, dgx_h100 and "
                  "dgx_gb200",
                  shown(setting)));
}

// ---- what was measured ----

// By step; steps without a number ("nan") are left out.
std::vector<double> values_of(const Json& golden, const char* metric) {
  std::vector<std::pair<std::int64_t, double>> steps;
  if (!golden.contains(metric) || !golden[metric].is_object()) return {};
  const Json& object = golden[metric];
  if (!object.contains("values") || !object["values"].is_object()) return {};
  for (const auto& [step, value] : object["values"].items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) continue;
    steps.emplace_back(std::strtoll(step.c_str(), nullptr, 10), value.get<double>());
  }
  std::sort(steps.begin(), steps.end());
  std::vector<double> values;
  for (const auto& [step, value] : steps) values.push_back(value);
  return values;
}

// The first steps warm up, and saving a checkpoint makes one step long.
void read_times(const std::vector<double>& times, MeasuredRun& run) {
  if (times.empty()) return;
  std::vector<double> late(times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                           times.end());
  const double middle = median_of(late);
  if (middle <= 0) return;
  run.step_time = Seconds(middle);
  Weighted steps;
  for (const double time : late) steps.emplace_back(time, 1);
  run.unsteady = *quantile(steps, 0.75) - *quantile(steps, 0.25) > kUnsteadySpread * middle;
}

// ---- who ran it: tests/test_utils/recipes beside tests/functional_tests ----

struct CiJob {
  std::int64_t gpus = 0;
  bool runs = false;  // on this environment and platform
};

fs::path recipes_above(const fs::path& golden) {
  for (fs::path folder = fs::absolute(golden).parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    const fs::path recipes = folder / "test_utils" / "recipes";
    std::error_code problem;
    if (fs::is_directory(recipes, problem)) return recipes;
  }
  return {};
}

std::vector<std::string> words_of(const Settings& yaml, const std::string& key) {
  const Setting* const found = yaml.find(key);
  return found == nullptr ? std::vector<std::string>{} : list_of(found->value);
}

// What one recipe says of a test; nothing: it does not list it.
std::optional<CiJob> job_in(const Settings& yaml, const std::string& test,
                            const std::string& setting) {
  const auto has = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  const auto whole = [&yaml](const char* key) {
    const Setting* const found = yaml.find(key);
    return found == nullptr ? std::int64_t{1} : whole_of(found->value, 1, 1 << 20);
  };
  std::optional<CiJob> job;
  for (int i = 0;; ++i) {
    const std::string entry = fmt::format("products.{}.", i);
    if (!yaml.has_section(entry)) break;
    if (!has(words_of(yaml, entry + "test_case"), test)) continue;
    if (!job) job = CiJob{.gpus = whole("spec.nodes") * whole("spec.gpus")};
    for (int k = 0;; ++k) {
      const std::string product = fmt::format("{}products.{}.", entry, k);
      if (!yaml.has_section(product)) break;
      std::vector<std::string> platforms = words_of(yaml, product + "platforms");
      if (platforms.empty()) platforms = words_of(yaml, "spec.platforms");
      for (const std::string& environment : words_of(yaml, product + "environment")) {
        for (const std::string& platform : platforms) {
          if (environment + "_" + platform == setting) job->runs = true;
        }
      }
    }
  }
  return job;
}

// Of the recipes that list the test, one that runs it on this platform before the others.
std::optional<CiJob> job_of_test(const fs::path& recipes, const std::string& test,
                                 const std::string& setting) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(recipes)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::optional<CiJob> found;
  for (const fs::path& file : files) {
    const std::string text = read_text_file(file.string());
    if (text.find(test) == std::string::npos) continue;
    const auto job = job_in(read_yaml_settings(text, file.string()).settings, test, setting);
    if (job && (!found || (job->runs && !found->runs))) found = job;
  }
  return found;
}

// ---- what was run ----

Settings arguments_of(const JobFiles& files) {
  const ConfigPart* const part = files.find(Dialect::megatron);
  if (part == nullptr) throw Error("model_config.yaml holds no arguments of Megatron's");
  return part->settings;
}

RunInputs inputs_of(const ConfigText& config, const std::string& machine, std::int64_t gpus) {
  const std::vector<ConfigText> texts{config};
  const JobFiles files = read_job_files(texts);
  const Settings arguments = arguments_of(files);
  RunInputs in;
  in.hardware = machine;
  const HardwareProfile profile = load_hardware(machine);
  in.machine = {profile.gpu.compute_capability, profile.link.gpus_per_node,
                profile.link.nvlink_domain, profile.gpu.usable_memory};
  in.gpus_per_node = profile.link.gpus_per_node;
  in.gpus = gpus;
  in.model = shapes_of_files(files);
  const Json no_config = Json::object();
  const Checked checked = check(texts, {.model = in.model,
                                        .config = no_config,
                                        .limits = {gpus, profile.gpu.compute_capability},
                                        .gpus_per_node = in.gpus_per_node,
                                        .seq_len = {},
                                        .global_batch_size = {},
                                        .micro_batch_size = {},
                                        .model_of_files = true});
  for (const Finding& finding : checked.findings) {
    if (finding.rule == "bad_value") throw Error(finding.message);
  }
  in.recipe = checked.recipe;
  in.plan = checked.plan;
  if (in.plan.world() != gpus) {
    throw Error(fmt::format("tp x pp x cp does not divide the GPUs: {} and {}",
                            std::int64_t{in.plan.tp} * in.plan.pp * in.plan.cp, gpus));
  }
  const Setting* const layers = arguments.find("--transformer-impl");
  in.torch_layers = layers != nullptr && text_of(layers->value) == "local";
  in.single_experts = in.model.moe && !arguments.has("--moe-grouped-gemm");
  if (in.plan.pipeline_layout.empty()) {
    in.plan.pipeline_layout = framework_layout(in.model, in.plan, in.recipe);
  }
  return in;
}

}  // namespace

std::vector<std::string> golden_files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(".json"))
      files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

MeasuredRun read_golden_run(const std::string& path, std::optional<std::int64_t> gpus) {
  const Json golden = parse_json(read_text_file(path), path);
  const fs::path file(path);
  // Tests of inference and of reinforcement learning keep other values under the same name.
  const bool trains = golden.is_object() && golden.contains("lm loss");
  if (!trains && !file.filename().string().starts_with(kPrefix)) {
    throw Error(fmt::format("{} is no file of golden values: it has no \"lm loss\"", path));
  }
  const std::string setting = setting_of(file);
  MeasuredRun run;
  run.model = fs::absolute(file).parent_path().filename().string();
  run.id = fmt::format("golden-{}/{}", run.model, file.stem().string().substr(kPrefix.size()));
  run.source = "golden";
  run.recipe = "megatron";
  run.grade = "B";
  if (!trains) {
    run.unpriced = "no training: the golden values have no \"lm loss\"";
    return run;
  }
  read_times(values_of(golden, "iteration-time"), run);
  // Bytes that one rank had allocated at most.
  const std::vector<double> peaks = values_of(golden, "mem-max-allocated-bytes");
  if (!peaks.empty()) {
    run.memory = Bytes(*std::max_element(peaks.begin(), peaks.end()));
    run.memory_kind = MemoryKind::allocated;
  }
  try {
    run.hardware = machine_of(setting);
    const fs::path recipes = recipes_above(file);
    const auto job = recipes.empty() ? std::nullopt : job_of_test(recipes, run.model, setting);
    // Where no recipe runs the test on this platform the file is of an earlier commit, whose
    // arguments may have been others.
    if (job) {
      run.grade = job->runs ? "A" : "C";
    } else if (!recipes.empty()) {
      run.grade = "C";
    }
    if (!job && !gpus) throw Error("the GPUs are not stated: no recipe lists the test");
    const fs::path config = file.parent_path() / "model_config.yaml";
    run.inputs = inputs_of({config.string(), read_text_file(config.string())}, run.hardware,
                           job ? job->gpus : *gpus);
    // The last rank writes the logs (_set_tensorboard_writer in Megatron-LM d98e8a64,
    // megatron/training/global_vars.py).
    run.inputs->memory_of = MemoryOf::last_stage;
    run.recipe = to_word(run.inputs->recipe);
    std::replace(run.recipe.begin(), run.recipe.end(), '-', '_');  // as the files of runs have it
  } catch (const Error& error) {
    run.unpriced = error.what();
  }
  return run;
}

}  // namespace qplan
