#pragma once
// The job of a question: which model, on which machines, in whose implementation. Read from
// options, from a plan file, or from both (options win).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "costmodel/evaluate.h"
#include "costmodel/profiles/hardware.h"
#include "models/json.h"
#include "models/model_spec.h"
#include "models/program/recipe.h"
#include "planner/rl/rl_step.h"
#include "planner/rules/feasible.h"

namespace qplan {

enum class Framework : std::uint8_t;  // planner/frameworks/emit.h
struct SearchOptions;                 // planner/search/search.h
struct SearchResult;
struct SearchSpace;

// What was asked for; an empty optional was not.
struct JobChoices {
  std::optional<std::string> model, hardware;
  std::optional<std::string> read_as;   // the architecture to read an unknown model_type as
  Json model_config, hardware_profile;  // embedded in a plan file; null: built in
  std::optional<std::int64_t> gpus;
  std::optional<RecipeKind> framework;
  std::optional<Framework> files;  // that the framework was named by, where it has another name
  std::optional<std::int64_t> gpus_per_node, nics_per_node;
  std::optional<double> nic_gb_per_s, oversubscription;
  std::optional<PodLevels> pods;
  std::optional<double> memory_cap_gib, moe_imbalance, moe_active, price;
  // Of a vision-language sequence: how many images, and the square side of one in pixels.
  std::optional<std::int64_t> images, image_pixels;
};

// What --framework names: an implementation, and the files if it was named by theirs.
struct NamedFramework {
  std::optional<RecipeKind> framework;
  std::optional<Framework> files;
  bool operator==(const NamedFramework&) const = default;
};

// `several`: --framework takes a list; a list of one is `choices`' too.
void add_model_options(CommandLine& line, JobChoices& choices,
                       std::vector<NamedFramework>* several = nullptr);
void add_read_as_option(CommandLine& line, std::optional<std::string>& architecture);  // --as
// `with_gpus` and `with_hardware` false: the verb reads lists of them itself.
struct ClusterOptions {
  bool with_gpus = true, with_hardware = true;
  std::vector<std::string>* several = nullptr;  // --hardware takes a list; one is `choices`' too
};
void add_cluster_options(CommandLine& line, JobChoices& choices, ClusterOptions which = {});

// `options` where given, else `file`.
JobChoices merged(const JobChoices& options, const JobChoices& file);

// "h200-sxm:8+l40s:32": a cluster of several kinds, which says its GPUs itself.
inline bool names_cluster(std::string_view hardware) {
  return hardware.find('+') != std::string_view::npos;
}

// What several verbs say.
inline constexpr const char* kGpusMissing = "--gpus is missing; say how many GPUs the job has";
inline constexpr const char* kModelHelp = "built-in name, or path of a Hugging Face config.json";

inline constexpr std::int64_t kMostGpus = 1 << 20;
void check_batch(std::int64_t global_batch_size);  // throws Error above kMostSequences

struct Job {
  ModelSpec model;
  HardwareProfile hardware;
  std::vector<GpuKind> kinds;  // of a cluster of several; `hardware` is all of them as one machine
  RecipeKind framework = RecipeKind::megatron;
  std::int64_t gpus = 0;
  double price_per_gpu_hour = 0;  // USD; 0: unknown
  JobChoices choices;             // what the others came from
  Json model_config;              // null: the model is built in
  Json hardware_profile;          // null: the machine is built in
  std::unique_ptr<CostModel> cost;

  [[nodiscard]] const Recipe& recipe() const { return recipe_of(framework); }
  [[nodiscard]] ClusterLimits limits() const { return limits_of(hardware, gpus, cost->kinds()); }
};

// Reads the model and the machine. `gpus` is what a verb that needs no --gpus falls back to.
// A pointer, because the cost model refers to the model and the machine.
std::unique_ptr<Job> make_job(const JobChoices& choices, std::int64_t gpus = 0);

// What --framework takes: the implementations, and the names of files that have others.
std::vector<std::string> all_framework_words();

// The framework whose files run the job, if one's do: the one that was asked for, or one that has
// words for the plan.
std::optional<Framework> files_of(const Job& job, const ParallelPlan& plan);

// Throws Error where the images that were asked for are more than a sequence has tokens.
void check_images(const Job& job, std::int64_t seq_len);

// The plan as one line that the verbs read back as the same, by the job's framework.
std::string line_of(const Job& job, const ParallelPlan& plan);

// A search for plans that those files can say; where none fits, for any. Of our own executor's
// plans for those that its CUDA backend runs; where none fits, for any. The others count as refused
// by kCudaBackendRule.
inline constexpr std::string_view kCudaBackendRule = "cuda_backend";
SearchResult search_offered(const Job& job, const SearchSpace& space, const SearchOptions& options);

// The overrides among the choices, as a plan file keeps them ("overrides").
Json overrides_to_json(const JobChoices& choices);

// ---- plan files ----

struct PlanFile {
  JobChoices choices;
  ParallelPlan plan;
  std::optional<RlStep> step;  // that the plan is a part of
  std::string fingerprint;
};
// Reads what `search -o` and `predict -o` write. Throws Error naming the place.
PlanFile read_plan_file(const std::string& path);
// The same of the object of docs/reference/contract.md 4 in any answer; `where` is said of it.
PlanFile plan_file_of(const Json& object, const std::string& where);

// `options` on top of the file at `path`. What is wrong with the file's own model or machine names
// the file.
JobChoices merged_with_file(const JobChoices& options, const PlanFile& file,
                            const std::string& path);

// What a plan file holds besides the report: everything needed to ask again on another machine.
void embed_job(Json& report, const Job& job);

// The Hugging Face config that the job's model was read from.
Json config_of(const Job& job);

// The fingerprint of the step program, as plan files and reports spell it.
std::string fingerprint_of(const Job& job, const ParallelPlan& plan);

}  // namespace qplan
