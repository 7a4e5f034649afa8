#include "cli/files_plan.h"

#include <fmt/format.h>

#include <array>

#include "models/error.h"
#include "models/plan/words.h"
#include "planner/frameworks/model_of_files.h"

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
    question.assumed = {
        fmt::format("{} is of the size of the built-in {}; --model says another", shown(id), name)};
    question.by_name = true;
    return;
  }
  const auto model = model_of_files(job);
  if (!model) {
    const std::string why = why_no_model(job);
    if (why.empty()) return;  // which make_job says
    throw Error(fmt::format("--model is missing, and the files do not say all of it: {}", why));
  }
  read_model(model->config, "the model that the arguments describe");
  question.choices.model = "the-scripts-own";
  question.choices.model_config = model->config;
  question.assumed = model->assumed;
}

std::optional<std::int64_t> gpus_of_files(const std::vector<ConfigText>& files) {
  // The keys by which files say nodes and the GPUs of each.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kKeys{
      {{"trainer.nnodes", "trainer.n_gpus_per_node"},     // verl
       {"cluster.num_nodes", "cluster.gpus_per_node"}}};  // NeMo-RL
  const JobFiles job = read_job_files(files);
  for (const Launch& launch : job.launches) {
    if (launch.nodes && launch.gpus_per_node) return *launch.nodes * *launch.gpus_per_node;
  }
  for (const ConfigPart& part : job.parts) {
    for (const auto& [nodes, each] : kKeys) {
      const Setting *const n = part.settings.find(nodes), *const g = part.settings.find(each);
      if (n == nullptr || g == nullptr || !n->resolved || !g->resolved) continue;
      return std::int64_t{degree_of(n->value)} * degree_of(g->value);
    }
  }
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
  if (step_is_job(checked)) *choices.gpus -= checked.step->job.rollout_gpus;
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
