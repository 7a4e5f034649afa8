#include "cli/files_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "models/plan/words.h"
#include "planner/frameworks/finetuning/openrlhf.h"
#include "planner/frameworks/model_of_files.h"
#include "planner/frameworks/pretraining/nanotron.h"
#include "planner/frameworks/pretraining/titan_toml.h"

namespace qplan {

void read_model_of_files(FilesQuestion& question, const std::vector<ConfigText>& files) {
  const JobFiles job = read_job_files(files);
  if (const std::string id = model_id_of_files(job); !id.empty()) {
    const std::string name = built_in_of_id(id);
    if (name.empty()) {
      throw Error(fmt::format(
          "the files train {}, which is not built in; give its config.json as --model", shown(id)));
    }
    question.choices.model = name;
    if (id != name)
      question.assumed.push_back(fmt::format(
          "{} is of the size of the built-in {}; --model says another", shown(id), name));
    question.by_name = true;
    return;
  }
  const auto model = model_of_files(job);
  if (!model) {
    const std::string why = why_no_model(job);
    const bool empty = std::all_of(files.begin(), files.end(), [](const ConfigText& file) {
      return file_kind_of(file) == FileKind::empty;
    });
    if (empty) throw Error(fmt::format("{} is empty; give the job's files", files.front().name));
    if (why.empty()) return;  // which make_job says
    throw Error(fmt::format("--model is missing, and the files do not say all of it: {}", why));
  }
  read_model(model->config, "the model that the arguments describe");
  question.choices.model = "the-scripts-own";
  question.choices.model_config = model->config;
  question.assumed.insert(question.assumed.end(), model->assumed.begin(), model->assumed.end());
}

namespace {

// Nothing: it is no count, which the checks say.
std::optional<std::int64_t> count_of(const Setting& setting) {
  try {
    return degree_of(setting.value);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Two keys that say nodes and the GPUs of each. Nothing: they are not said, or only a run can tell.
std::optional<std::int64_t> product_of(const Settings& settings, std::string_view nodes,
                                       std::string_view each, std::int64_t usual_nodes = 0) {
  const Setting *const n = settings.find(nodes), *const g = settings.find(each);
  if (g == nullptr || !g->resolved || (n != nullptr && !n->resolved)) return std::nullopt;
  if (n == nullptr && usual_nodes == 0) return std::nullopt;
  const auto count = n == nullptr ? std::optional(usual_nodes) : count_of(*n),
             of_node = count_of(*g);
  return count && of_node ? std::optional(*count * *of_node) : std::nullopt;
}

// Of those that train and, where they have GPUs of their own, those that make answers.
std::optional<std::int64_t> gpus_of_step(const ConfigPart& part) {
  const Settings& s = part.settings;
  if (part.dialect == Dialect::slime) {
    const auto actor = product_of(s, "--actor-num-nodes", "--actor-num-gpus-per-node");
    const Setting* const engines = s.find("--rollout-num-gpus");
    if (!actor || s.has("--colocate") || engines == nullptr) return actor;
    const auto apart = engines->resolved ? count_of(*engines) : std::nullopt;
    return apart ? std::optional(*actor + *apart) : std::nullopt;
  }
  if (const auto all = product_of(s, "cluster.num_nodes", "cluster.gpus_per_node")) return all;
  const auto trainer = product_of(s, "trainer.nnodes", "trainer.n_gpus_per_node");
  if (!trainer || !s.has_section("rollout.")) return trainer;
  const bool apart = s.has("rollout.nnodes") || s.has("rollout.n_gpus_per_node");
  const auto engines = product_of(s, "rollout.nnodes", "rollout.n_gpus_per_node", 1);
  if (!apart) return trainer;
  return engines ? std::optional(*trainer + *engines) : std::nullopt;
}

// What accelerate counts, of all nodes together: its yaml's, or an argument that TRL hands to it.
std::optional<std::int64_t> processes_of(const ConfigPart& part) {
  const bool yaml = part.dialect == Dialect::accelerate && !part.derived;
  if (!yaml && part.dialect != Dialect::trl) return std::nullopt;
  const Setting* const said = part.settings.find(yaml ? "num_processes" : "--num_processes");
  return said != nullptr && said->resolved ? count_of(*said) : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> gpus_of_files(const std::vector<ConfigText>& files) {
  const JobFiles job = read_job_files(files);
  // A step's program is one process, however it is started, and asks Ray for the others.
  for (const ConfigPart& part : job.parts) {
    if (const auto gpus = gpus_of_openrlhf(part)) return gpus;
    const bool step = part.dialect == Dialect::verl || part.dialect == Dialect::nemo_rl;
    if (!step || part.script.find("sft") != std::string::npos) continue;
    if (const auto gpus = gpus_of_step(part)) return gpus;
  }
  if (const auto gpus = world_of(job.launches, false)) return gpus;
  for (const ConfigPart& part : job.parts) {
    if (const auto gpus = gpus_of_step(part)) return gpus;
  }
  for (const ConfigPart& part : job.parts) {
    if (const auto gpus = processes_of(part)) return gpus;
  }
  if (const auto gpus = world_of(job.launches, true)) return gpus;
  // Both start on as many as their degrees multiply to, and on no others.
  const ConfigPart *const nanotron = job.find(Dialect::nanotron), *const titan = job.find(
                                                                      Dialect::torchtitan_toml);
  if (nanotron != nullptr && !job.host_slots) return ranks_of_nanotron(nanotron->settings);
  if (titan != nullptr && !job.host_slots) return ranks_of_titan_toml(titan->settings);
  return job.host_slots;
}

Checked check_files(const FilesQuestion& question, const Job& job,
                    std::span<const ConfigText> files) {
  const Json config = config_of(job);
  Checked checked =
      check(files, {job.model, config, job.limits(), job.hardware.link.gpus_per_node,
                    question.seq_len, question.global_batch_size, question.micro_batch_size,
                    question.by_name || !question.choices.model_config.is_null()});
  checked.assumed.insert(checked.assumed.begin(), question.assumed.begin(), question.assumed.end());
  return checked;
}

bool speaks_of_plan(const Checked& checked) {
  return checked.framework && checked.says_plan;
}

bool step_is_job(const Checked& checked) {
  return checked.step && checked.framework != Framework::slime;
}

std::unique_ptr<Job> job_of_files(const FilesQuestion& question, const Checked& checked) {
  JobChoices choices = question.choices;
  choices.framework = checked.recipe;
  *choices.gpus -= checked.engines;
  return make_job(choices);
}

SearchSpace space_of_job(const ParallelPlan& plan, std::int64_t gpus) {
  SearchSpace space;
  space.gpus = gpus;
  for_each_word([&](const auto& word) {
    if (word.gives_way == GivesWay::never && word.given != Given::listed) {
      space.job.*word.member = plan.*word.member;
    }
  });
  space.job.precision = plan.precision;
  return space;
}

}  // namespace qplan
