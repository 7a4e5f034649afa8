#include "cli/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/default_hardware.h"
#include "costmodel/profiles/other_names.h"
#include "costmodel/profiles/pod_levels.h"
#include "executor/gpu_limits.h"
#include "models/error.h"
#include "models/plan/plan_text.h"
#include "models/program/step_program.h"
#include "models/schema_id.h"
#include "planner/frameworks/written_plans.h"
#include "planner/search/refusals.h"

namespace qplan {
namespace {

// ---- the overrides: one list for options, plan files and reports ----

// Limits are of typing mistakes, not of machines.
template <class Visit>
void for_each_override(Visit&& visit) {
  using C = JobChoices;
  visit("gpus_per_node", &C::gpus_per_node, 1.0, 1024.0);
  visit("nics_per_node", &C::nics_per_node, 1.0, 1024.0);
  visit("nic_gb_per_s", &C::nic_gb_per_s, 0.01, 1e5);
  visit("oversubscription", &C::oversubscription, 1.0, 1000.0);
  visit("memory_cap_gib", &C::memory_cap_gib, 0.001, 1e6);
  visit("moe_imbalance", &C::moe_imbalance, 1.0, 1000.0);
  visit("moe_active", &C::moe_active, 1e-4, 1.0);
  visit("images", &C::images, 1.0, 1e6);
  visit("image_pixels", &C::image_pixels, 1.0, 1e5);
  visit("price_per_gpu_hour_usd", &C::price, 0.0, 1e6);
}

void read_override(JsonReader& in, std::string_view key, std::optional<std::int64_t>& value,
                   double low, double high) {
  if (in.has(key)) value = in.integer(key, std::llround(low), std::llround(high));
}

void read_override(JsonReader& in, std::string_view key, std::optional<double>& value, double low,
                   double high) {
  if (in.has(key)) value = in.number(key, low, high);
}

// What is wrong with a value of a file, with its place before it ("plan.json: hardware").
template <class Read>
auto in_file(const std::string& place, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", place, error.what()));
  }
}

// ---- the machine ----

void apply_overrides(HardwareProfile& hardware, const JobChoices& choices) {
  Interconnect& link = hardware.link;
  if (choices.gpus_per_node) {
    set_gpus_per_node(hardware, static_cast<int>(*choices.gpus_per_node));
  }
  if (choices.nics_per_node) link.nics_per_node = static_cast<int>(*choices.nics_per_node);
  if (choices.nic_gb_per_s) link.nic = gb_per_s(*choices.nic_gb_per_s);
  if (choices.oversubscription) link.oversubscription = *choices.oversubscription;
  if (choices.pods) link.pods = *choices.pods;
  check_pods(link, choices.pods ? "--pods" : fmt::format("hardware {}", hardware.name));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void read_model_of(Job& job) {
  const JobChoices& choices = job.choices;
  const std::string as = choices.read_as.value_or("");
  if (!choices.model) {
    throw Error("--model is missing; `qplan models` lists the built-in ones");
  }
  if (!choices.model_config.is_null()) {
    job.model = read_model(choices.model_config, "the plan file's model_config", as);
    job.model.name = *choices.model;
    job.model_config = choices.model_config;
    return;
  }
  job.model = load_model(*choices.model, as);
  // A file may share its name with a built-in model and differ from it.
  const bool built_in =
      contains(model_names(), job.model.name) && load_model(job.model.name) == job.model;
  if (!built_in) job.model_config = model_config(*choices.model);
}

// "h100-sxm:64+a100-80gb-sxm:64": the kinds of a cluster, in the pipeline's order.
std::vector<GpuKind> kinds_named(const std::string& text) {
  std::vector<GpuKind> kinds;
  for (const std::string_view one : split(text, '+')) {
    const std::size_t colon = one.rfind(':');
    if (colon == std::string_view::npos) {
      throw Error(
          fmt::format("--hardware {}: '{}' does not say how many GPUs there are of it; write "
                      "NAME:COUNT+NAME:COUNT, as h100-sxm:64+a100-80gb-sxm:64",
                      shown(text), shown(std::string(one))));
    }
    const std::int64_t gpus =
        parse_count("--hardware", std::string(one.substr(colon + 1)), 1, kMostGpus);
    kinds.push_back({load_hardware(std::string(one.substr(0, colon))), gpus});
  }
  return kinds;
}

void read_kinds_of(Job& job, const std::string& text) {
  job.kinds = kinds_named(text);
  std::int64_t gpus = 0;
  for (GpuKind& kind : job.kinds) {
    apply_overrides(kind.hardware, job.choices);
    gpus += kind.gpus;
  }
  if (job.choices.gpus.value_or(gpus) != gpus) {
    throw Error(fmt::format("--gpus {} is not the {} GPUs of --hardware {}; leave it out",
                            *job.choices.gpus, gpus, shown(text)));
  }
  job.choices.gpus = gpus;
  job.hardware = as_one_machine(job.kinds);
}

void read_hardware_of(Job& job) {
  const JobChoices& choices = job.choices;
  const std::string name = choices.hardware.value_or(std::string(kDefaultHardware));
  if (choices.hardware_profile.is_null() && names_cluster(name)) {
    read_kinds_of(job, name);
    return;
  }
  const std::string alone = name.substr(0, name.find(':'));
  if (alone != name && contains(hardware_names(), alone)) {
    throw Error(fmt::format("--hardware {} is one kind of GPU; use --hardware {} --gpus {}",
                            shown(name), alone, shown(name.substr(alone.size() + 1))));
  }
  if (!choices.hardware_profile.is_null()) {
    job.hardware = read_hardware(choices.hardware_profile, "the plan file's hardware_profile");
    job.hardware_profile = choices.hardware_profile;
  } else {
    job.hardware = load_hardware(name);
    const bool built_in = contains(hardware_names(), job.hardware.name) &&
                          load_hardware(job.hardware.name).source == job.hardware.source;
    if (!built_in) job.hardware_profile = job.hardware.source;
  }
}

// An implementation's word, or that of files which `emit` writes: torchtitan's run fsdp2-compile,
// slime's megatron. A word that both know means the implementation.
NamedFramework framework_named(const std::string& text) {
  const std::string word = lower_case(text);
  NamedFramework named{try_from_word<RecipeKind>(word), std::nullopt};
  if (named.framework) return named;
  named.files = files_named(word);
  if (!named.files) unknown_word(Words<RecipeKind>::what, word, all_framework_words());
  named.framework = recipe_for(*named.files, RecipeKind::megatron);
  if (to_word(*named.files) == to_word(*named.framework)) named.files.reset();
  return named;
}

SetOption set_framework(JobChoices& choices, std::vector<NamedFramework>* several) {
  const auto set = [&choices, several](const std::string&, const std::string& text) {
    const std::vector<std::string> words =
        several == nullptr ? std::vector<std::string>{text} : split_list(text);
    std::vector<NamedFramework> all;
    for (const std::string& word : words) {
      const NamedFramework named = framework_named(word);
      if (std::find(all.begin(), all.end(), named) == all.end()) all.push_back(named);
    }
    if (several != nullptr) *several = all;
    if (all.size() > 1) return;
    choices.framework = all.front().framework;
    choices.files = all.front().files;
  };
  return {{.words = all_framework_words()}, set};
}

SetOption set_hardware(JobChoices& choices, std::vector<std::string>* several) {
  if (several == nullptr) return set_given(choices.hardware, set_name, hardware_names());
  const auto set = [&choices, several](const std::string& option, const std::string& text) {
    std::optional<std::string> name;
    for (const std::string& word : split_list(text)) {
      set_given(name, set_text)(option, word);
      const auto same = [machine = plain_machine_name(word)](const std::string& other) {
        return plain_machine_name(other) == machine;
      };
      if (std::none_of(several->begin(), several->end(), same)) several->push_back(word);
    }
    if (several->size() == 1) choices.hardware = name;
  };
  return {{.known = hardware_names()}, set};
}

// "1024" or "1280x720" as the side of the square of as many pixels.
SetOption set_pixels(std::optional<std::int64_t>& side) {
  return [&side](const std::string& option, const std::string& text) {
    constexpr std::int64_t kMost = 100000;
    const std::size_t cross = text.find('x');
    const std::int64_t width = parse_count(option, text.substr(0, cross), 1, kMost);
    const std::int64_t height =
        cross == std::string::npos ? width : parse_count(option, text.substr(cross + 1), 1, kMost);
    side = std::llround(std::sqrt(static_cast<double>(width) * static_cast<double>(height)));
  };
}

}  // namespace

// ---- options ----

void add_read_as_option(CommandLine& line, std::optional<std::string>& architecture) {
  line.option(
      {"--as", "MODEL_TYPE",
       "read a config.json of an unknown model_type as this one's (llama, qwen3_moe, ...)", ""},
      set_given(architecture, set_text));
}

void add_model_options(CommandLine& line, JobChoices& choices,
                       std::vector<NamedFramework>* several) {
  line.group("Model");
  line.option({"--model", "MODEL", kModelHelp, ""},
              set_given(choices.model, set_name, model_names()));
  add_read_as_option(line, choices.read_as);
  line.option({"--framework", several == nullptr ? "NAME" : "NAME,...",
               fmt::format("implementation to predict, or whose files are to be written: {}",
                           fmt::join(all_framework_words(), ", ")),
               "megatron"},
              set_framework(choices, several));
  line.option(
      {"--moe-imbalance", "RATIO", "busiest over mean expert rank, with --routing natural", "1.2"},
      set_given(choices.moe_imbalance, set_number, 1.0, 1000.0));
  line.option(
      {"--moe-active", "SHARE", "of the experts that get tokens, with --routing natural", "1"},
      set_given(choices.moe_active, set_number, 1e-4, 1.0));
  line.option({"--images", "COUNT", "images of a vision-language sequence",
               "as many as a quarter of it has room for"},
              set_given(choices.images, set_whole, std::int64_t{1}, std::int64_t{1000000}));
  line.option({"--image-size", "PIXELS", "of one image: 1024, or 1280x720",
               "16 x 16 tokens, 512 pixels with patches of 16 merged in twos"},
              set_pixels(choices.image_pixels));
}

void add_cluster_options(CommandLine& line, JobChoices& choices, ClusterOptions which) {
  line.group("Cluster");
  if (which.with_gpus) {
    line.option({"--gpus", "COUNT", "GPUs of the job", ""},
                set_given(choices.gpus, set_whole, std::int64_t{1}, kMostGpus));
  }
  if (which.with_hardware) {
    line.option(
        {"--hardware", which.several == nullptr ? "NAME" : "NAME,...",
         "built-in name (`qplan hardware`), or path of a profile; NAME:GPUS+NAME:GPUS for a "
         "cluster of several kinds, pipeline stages in that order",
         std::string(kDefaultHardware)},
        set_hardware(choices, which.several));
  }
  line.option({"--gpus-per-node", "COUNT", "GPUs of a node", "the hardware's, mostly 8"},
              set_given(choices.gpus_per_node, set_whole, std::int64_t{1}, std::int64_t{1024}));
  line.option({"--nics-per-node", "COUNT", "network cards of a node", "the hardware's"},
              set_given(choices.nics_per_node, set_whole, std::int64_t{1}, std::int64_t{1024}));
  line.option(
      {"--nic-gb-per-s", "GB_PER_S", "line rate of one network card, each way", "the hardware's"},
      set_given(choices.nic_gb_per_s, set_number, 0.01, 1e5));
  line.option({"--oversubscription", "RATIO", "oversubscription above the leaf switches",
               "the hardware's, mostly 1"},
              set_given(choices.oversubscription, set_number, 1.0, 1000.0));
  line.option({"--pods", "GPUS:RATIO,...",
               "GPUs of a pod and the oversubscription of what joins pods, larger pods of pods "
               "behind; `:rails` where a node's cards have leaf switches of their own",
               "the hardware's, mostly none"},
              [&choices](const std::string& option, const std::string& text) {
                choices.pods = parse_pods(option, text);
              });
  line.option({"--memory-cap-gib", "GIB", "device memory that a plan may fill",
               "95% of what is usable, 92% with experts"},
              set_given(choices.memory_cap_gib, set_number, 0.001, 1e6));
  line.option({"--price", "USD", "price of a GPU hour", "the hardware's, if it has one"},
              set_given(choices.price, set_number, 0.0, 1e6));
}

void check_batch(std::int64_t global_batch_size) {
  if (global_batch_size <= kMostSequences) return;
  throw Error(
      fmt::format("a global batch of {} sequences is more than is simulated; use at most {}",
                  global_batch_size, kMostSequences));
}

JobChoices merged(const JobChoices& options, const JobChoices& file) {
  JobChoices result = file;
  if (options.model) {
    result.model = options.model;
    result.model_config = nullptr;
    result.read_as.reset();
  }
  if (options.read_as) result.read_as = options.read_as;
  if (options.hardware) {
    result.hardware = options.hardware;
    result.hardware_profile = nullptr;
  }
  if (options.gpus) result.gpus = options.gpus;
  if (options.framework) {
    result.framework = options.framework;
    result.files = options.files;
  }
  for_each_override([&](std::string_view, auto member, double, double) {
    if (options.*member) result.*member = options.*member;
  });
  if (options.pods) result.pods = options.pods;
  return result;
}

Json overrides_to_json(const JobChoices& choices) {
  Json object = Json::object();
  for_each_override([&](std::string_view key, auto member, double, double) {
    if (choices.*member) object[std::string(key)] = *(choices.*member);
  });
  if (choices.pods) object["pods"] = pods_to_json(*choices.pods);
  if (choices.files) object["files"] = to_word(*choices.files);
  return object;
}

std::unique_ptr<Job> make_job(const JobChoices& choices, std::int64_t gpus) {
  auto job = std::make_unique<Job>();
  job->choices = choices;
  read_model_of(*job);
  read_hardware_of(*job);
  if (job->kinds.empty()) apply_overrides(job->hardware, choices);
  job->gpus = job->choices.gpus.value_or(gpus);
  job->framework = choices.framework.value_or(RecipeKind::megatron);
  if (choices.files && job->framework == recipe_for(*choices.files, RecipeKind::megatron)) {
    job->framework = usual_recipe(*choices.files, config_of(*job), job->gpus);
  }
  job->price_per_gpu_hour = choices.price.value_or(job->hardware.price_per_gpu_hour);
  JobFacts facts;
  facts.moe_imbalance = choices.moe_imbalance.value_or(facts.moe_imbalance);
  if ((choices.images || choices.image_pixels) && !job->model.vision) {
    throw Error(
        fmt::format("--images and --image-size are for models that see; {} has no vision tower",
                    job->model.name));
  }
  facts.images.count = choices.images.value_or(0);
  if (choices.image_pixels) {
    facts.images.side =
        tokens_a_side(*job->model.vision, *choices.image_pixels, *choices.image_pixels);
  }
  facts.active_experts = choices.moe_active.value_or(facts.active_experts);
  const Bytes cap = gib(choices.memory_cap_gib.value_or(0));
  job->cost =
      job->kinds.empty()
          ? std::make_unique<CostModel>(job->model, job->recipe(), job->hardware, facts, cap)
          : std::make_unique<CostModel>(job->model, job->recipe(), job->hardware, job->kinds, facts,
                                        cap);
  return job;
}

// ---- plan files ----

PlanFile read_plan_file(const std::string& path) {
  const Json json = read_json_file(path);
  if (!json.is_object() || !json.contains("plan")) {
    throw Error(
        fmt::format("{} is no plan file (it has no \"plan\"); `qplan search ... -o {}` "
                    "writes one",
                    path, path));
  }
  check_schema(json, "plan", path);
  return plan_file_of(json, path + ":");
}

PlanFile plan_file_of(const Json& object, const std::string& where) {
  // The rest of the report is for people and scripts; it is computed again, not read.
  JsonReader in(object, where);
  PlanFile file;
  JobChoices& choices = file.choices;
  choices.model = in.string("model");
  choices.hardware = in.string("hardware");
  choices.framework = in_file(in.path_of("framework"), [&in] {
    return from_word<RecipeKind>(in.string_or("framework", "megatron"));
  });
  choices.gpus = in.integer("gpus", 1, kMostGpus);
  if (in.has("model_config")) choices.model_config = in.value("model_config");
  if (in.has("read_as")) {
    JsonReader as(in.value("read_as"), in.path_of("read_as"));
    choices.read_as = as.string("architecture");
  }
  if (in.has("hardware_profile")) choices.hardware_profile = in.value("hardware_profile");
  if (in.has("overrides")) {
    JsonReader overrides(in.value("overrides"), in.path_of("overrides"));
    for_each_override([&](std::string_view key, auto member, double low, double high) {
      read_override(overrides, key, choices.*member, low, high);
    });
    if (overrides.has("pods")) {
      choices.pods = read_pods(overrides.value("pods"), overrides.path_of("pods"));
    }
    if (overrides.has("files")) {
      choices.files = in_file(overrides.path_of("files"), [&overrides] {
        return written_framework(overrides.string("files"));
      });
    }
    overrides.finish();
  }
  file.plan = plan_from_json(in.value("plan"), in.path_of("plan"));
  if (in.has("step")) file.step = rl_step_from_json(in.value("step"), in.path_of("step"));
  file.fingerprint = in.string_or("fingerprint", "");
  return file;
}

JobChoices merged_with_file(const JobChoices& options, const PlanFile& file,
                            const std::string& path) {
  // Read for what is said of a name alone: the job reads it again.
  const JobChoices& own = file.choices;
  Job alone;
  if (!options.model && own.model_config.is_null()) {
    alone.choices.model = own.model;
    alone.choices.read_as = options.read_as ? options.read_as : own.read_as;
    in_file(path + ": model", [&alone] { read_model_of(alone); });
  }
  if (!options.hardware && own.hardware_profile.is_null()) {
    alone.choices.hardware = own.hardware;
    in_file(path + ": hardware", [&alone] { read_hardware_of(alone); });
  }
  return merged(options, own);
}

void embed_job(Json& report, const Job& job) {
  if (!job.model_config.is_null()) report["model_config"] = job.model_config;
  if (!job.hardware_profile.is_null()) report["hardware_profile"] = job.hardware_profile;
}

Json config_of(const Job& job) {
  return job.model_config.is_null() ? model_config(job.model.name) : job.model_config;
}

std::optional<Framework> files_of(const Job& job, const ParallelPlan& plan) {
  const auto& asked = job.choices.files;
  if (asked && recipe_for(*asked, job.framework) == job.framework) return asked;
  return files_of(job.framework, job.model, plan);
}

std::vector<std::string> all_framework_words() {
  std::vector<std::string> words;
  for (const auto& [kind, word] : Words<RecipeKind>::table) words.emplace_back(word);
  for (const std::string_view word : files_words()) {
    if (!try_from_word<RecipeKind>(word)) words.emplace_back(word);
  }
  return words;
}

void check_images(const Job& job, std::int64_t seq_len) {
  const SequenceImages& images = job.cost->facts().images;
  if (images.count == 0) return;
  const std::int64_t side = images.side > 0 ? images.side : 16, tokens = side * side;
  if (images.count * tokens <= seq_len) return;
  throw Error(
      fmt::format("{} images of {} tokens are {}, and a sequence has {}: say fewer --images, a "
                  "smaller --image-size or --seq-len {}",
                  images.count, tokens, images.count * tokens, seq_len, images.count * tokens));
}

std::string line_of(const Job& job, const ParallelPlan& plan) {
  return to_string(plan, defaults_beside(plan, job.model, job.recipe()));
}

SearchResult search_offered(const Job& job, const SearchSpace& space,
                            const SearchOptions& options) {
  check_images(job, space.job.seq_len);
  const auto find = [&](const SearchOptions& how, const AsksSmallest& asks_smallest = {}) {
    return search_offered(*job.cost, space, how, files_of(job, space.job), config_of(job),
                          asks_smallest);
  };
  if (!job.recipe().executable) return find(options);
  SearchOptions on_gpus = options;
  on_gpus.refuses = either(options.refuses, [&](const ParallelPlan& plan) -> std::string_view {
    return unexecuted_on_gpu(job.model, plan) ? kCudaBackendRule : "";
  });
  const auto refused = [](const SearchResult& result) {
    return result.infeasible.contains(std::string(kCudaBackendRule));
  };
  SearchResult result = find(on_gpus, [&](const SearchResult& none) { return !refused(none); });
  return result.plans.empty() && refused(result) ? find(options) : result;
}

std::string fingerprint_of(const Job& job, const ParallelPlan& plan) {
  const StepProgram program = build_step_program(job.model, plan, job.recipe(), job.cost->facts());
  return fmt::format("{:016x}", fingerprint(program));
}

}  // namespace qplan
