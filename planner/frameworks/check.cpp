#include "planner/frameworks/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include "costmodel/profiles/hardware.h"
#include "costmodel/profiles/other_names.h"
#include "models/error.h"
#include "planner/frameworks/check_rules.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/job_framework.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/forks.h"
#include "planner/frameworks/megatron/shape_sizes.h"
#include "planner/frameworks/megatron/swift.h"
#include "planner/frameworks/own_copy.h"
#include "planner/frameworks/read_plan.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/relations.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/undecided.h"

namespace qplan {
namespace {

// Megatron's flags under keys of yaml ("parallel.tensor_model_parallel_size").
Settings as_flags(const Settings& keys) {
  Settings flags;
  for (Setting setting : keys) {
    const std::size_t dot = setting.key.rfind('.');
    setting.key = "--" + setting.key.substr(dot == std::string::npos ? 0 : dot + 1);
    std::replace(setting.key.begin(), setting.key.end(), '_', '-');
    flags.add(std::move(setting));
  }
  return flags;
}

JobFiles with_flags_of_yaml(JobFiles job) {
  for (ConfigPart& part : job.parts) {
    if (part.dialect != Dialect::megatron_yaml) continue;
    part.settings.append(as_flags(part.settings));
  }
  return job;
}

// Whether the file is missing that says how states are sharded, or what is not said on top of it:
// without it there is no plan.
bool lacks_config(const Checked& checked, Framework framework) {
  const bool says_it = framework == Framework::deepspeed || framework == Framework::fsdp2 ||
                       framework == Framework::nemo_rl || framework == Framework::verl;
  return says_it && std::any_of(checked.findings.begin(), checked.findings.end(),
                                [](const Finding& f) { return f.rule == "config_missing"; });
}

// Whether accelerate's yaml does not tell what it starts: without that there is no plan either.
bool leaves_type_open(const JobFiles& job) {
  return std::any_of(job.parts.begin(), job.parts.end(), [](const ConfigPart& part) {
    return part.dialect == Dialect::accelerate && !part.derived &&
           distributed_type_of(part.settings).meant.empty();
  });
}

// Whether only a run can tell which layers its stages have, and stages of one length are none.
bool leaves_stages_open(const Scene& scene) {
  const ParallelPlan& plan = scene.draft.plan;
  const std::int64_t stages = std::int64_t{plan.pp} * plan.vpp;
  if (!plan.pipeline_layout.empty() || scene.question.model.num_layers % stages == 0) return false;
  return std::any_of(
      scene.files.parts.begin(), scene.files.parts.end(), [](const ConfigPart& part) {
        const Setting* const layout = part.settings.find("--pipeline-model-parallel-layout");
        return layout != nullptr && !layout->resolved;
      });
}

Finding nothing_to_check(const JobFiles& job) {
  Finding finding{Severity::error,
                  "nothing_to_check",
                  {job.texts.front().name, 0},
                  "no file says how the job is spread over GPUs",
                  "give the launch script with its arguments",
                  ""};
  if (job.missing.empty()) {
    const auto program = std::find_if(job.launches.rbegin(), job.launches.rend(),
                                      [](const Launch& launch) { return !launch.starts_shell; });
    if (program == job.launches.rend() || program->script.empty() ||
        is_of_megatron(program->script)) {
      return finding;
    }
    finding.place = program->script_place;
    finding.message += fmt::format(
        ": arguments of {} are not read here, as it is none of the programs that qplan knows",
        shown(base_name(program->script)));
    finding.instead =
        "give the files that it hands on (ds_config.json, accelerate's yaml), or ask `qplan "
        "predict` with its degrees";
    return finding;
  }
  const ShellWord& script = job.missing.back();  // what comes before it prepares
  const std::string name = shown(base_name(script.text));
  finding.place = script.place;
  finding.message += fmt::format(": {} is started here and is not among the files given", name);
  finding.instead = fmt::format("give {} too", name);
  return finding;
}

// Of ms-swift's and Megatron-Bridge's words what Megatron-Core refuses holds, and what
// Megatron-LM's own script does not, which is not run.
void check_megatron_of(const Scene& scene, Findings& out) {
  const std::size_t before = out.size();
  check_megatron(scene, out);
  if (scene.files.find(Dialect::ms_swift_megatron) == nullptr &&
      scene.files.find(Dialect::bridge) == nullptr) {
    return;
  }
  const auto begin = out.begin() + static_cast<std::ptrdiff_t>(before);
  const auto of_script = [](const Finding& f) {
    return f.severity == Severity::error &&
           f.source.find("megatron/training/") != std::string::npos;
  };
  out.erase(std::remove_if(begin, out.end(), of_script), out.end());
}

// Findings in the words that the files have. Corrections in others than these are none.
using Spell = std::string (*)(const std::string&);
void respell(Findings& out, Spell spelled, Spell advice) {
  for (Finding& finding : out) {
    finding.message = spelled(finding.message);
    finding.instead = advice(finding.instead);
    const bool words = std::any_of(finding.fix.begin(), finding.fix.end(), [&](const Edit& edit) {
      return edit.text.find("--") != std::string::npos && spelled(edit.text) != edit.text;
    });
    if (words) finding.fix.clear();
  }
}

// What a quote without an end holds may go on over lines.
void keep_to_one_line(Findings& out) {
  for (Finding& finding : out) {
    for (std::string* const sentence : {&finding.message, &finding.instead}) {
      std::replace_if(
          sentence->begin(), sentence->end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    }
  }
}

void sort_findings(Findings& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.severity, a.place.file, a.place.line) <
           std::tie(b.severity, b.place.file, b.place.line);
  });
  const auto same = [](const Finding& a, const Finding& b) {
    return a.rule == b.rule && a.message == b.message && a.place.file == b.place.file &&
           a.place.line == b.place.line;
  };
  findings.erase(std::unique(findings.begin(), findings.end(), same), findings.end());
}

// Whether a Trainer's program has samples of their own lengths, the longest as long as is said:
// run_clm.py cuts all text into blocks, and others where they are told to pack.
bool pads_samples(const JobFiles& files) {
  return std::any_of(files.parts.begin(), files.parts.end(), [](const ConfigPart& part) {
    return part.dialect == Dialect::trainer && !part.derived && !part.script.empty() &&
           base_name(part.script) != "run_clm.py" && !is_switched_on(part.settings, "--packing");
  });
}

}  // namespace

std::vector<TrapInfo> trap_infos() {
  std::vector<TrapInfo> infos;
  list_megatron_traps(infos);
  list_deepspeed_traps(infos);
  return infos;
}

std::int64_t Checked::count(Severity severity) const {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& f) { return f.severity == severity; });
}

namespace {

Checked judge_job(const JobFiles& job, std::span<const ConfigText> files,
                  const CheckQuestion& question) {
  Checked checked;
  checked.findings = job.findings;
  const auto framework = framework_of(job);
  checked.framework = framework ? named_by(job).value_or(*framework) : framework;
  if (!framework) {
    const Scene scene{job, question, {}, {}};
    check_options(scene, checked.findings);
    check_torch(scene, checked.findings);
    check_finetuning(scene, checked.findings);
    check_pretraining(scene, checked.findings);
    check_generations(scene, checked.findings);
    check_python(scene, checked.findings);
    check_launch(scene, checked.findings);
    leave_to_copies(files, checked.findings);
    if (!checked.has(Severity::error)) {
      checked.findings.push_back(nothing_to_check(job));
    }
    sort_findings(checked.findings);
    return checked;
  }
  PlanReading reading = read_plan(job, question, *framework, checked.findings);
  Scene& scene = reading.scene;
  check_options(scene, checked.findings);
  check_relations(scene, checked.findings);
  check_facts(scene, checked.findings);
  check_megatron_of(scene, checked.findings);
  check_bridge_adapters(scene, checked.findings);
  check_bridge_program(scene, checked.findings);
  check_deepspeed(scene, checked.findings);
  check_trainer(scene, checked.findings);
  check_torch(scene, checked.findings);
  check_finetuning(scene, checked.findings);
  check_verl(scene, checked.findings);
  check_nemo_rl(scene, checked.findings);
  check_pretraining(scene, checked.findings);
  check_generations(scene, checked.findings);
  check_python(scene, checked.findings);
  check_launch(scene, checked.findings);
  if (job.find(Dialect::ms_swift_megatron) != nullptr)
    respell(checked.findings, swift_spelled, swift_spelled);
  const bool decided = std::none_of(checked.findings.begin(), checked.findings.end(),
                                    [](const Finding& f) { return f.rule == kBranchesDecide; });
  const bool whole = decided && !lacks_config(checked, *framework) && !leaves_type_open(job) &&
                     !leaves_stages_open(scene);
  checked.says_plan = whole && (!scene.said.empty() || wraps_model(job));
  if (checked.says_plan) {
    check_rules(scene, checked.findings);
    checked.says_plan = check_size(scene, checked.findings);
  }
  const bool of_copy = leave_to_copies(files, checked.findings);
  const bool of_fork = leave_to_forks(job, checked.findings) || of_copy;
  sort_findings(checked.findings);
  checked.recipe = scene.draft.recipe;
  checked.plan = scene.draft.plan;
  checked.assumed = reading.assumed;
  checked.takes_less = of_fork || job.takes_less || reading.takes_less || scene.draft.takes_less;
  checked.shorter = job.shorter || reading.length_unsaid || pads_samples(job);
  if (!lacks_config(checked, *framework)) checked.step = std::move(scene.step);
  checked.engines = scene.engines;
  return checked;
}

}  // namespace

namespace {

// What is said of a plan's heads, layers and experts is of those that stand in for the ones that
// are refused.
void leave_shapes_open(const CheckQuestion& question, Checked& checked) {
  const auto refuses_shape = [&](const Finding& f) {
    const std::string_view flag = std::string_view(f.message).substr(0, f.message.find(' '));
    return f.rule == kShapesRefused ||
           (question.model_of_files && is_of_refused_value(f) && is_shape(flag));
  };
  const auto refused =
      std::find_if(checked.findings.begin(), checked.findings.end(), refuses_shape);
  if (refused == checked.findings.end()) return;
  checked.undecided.push_back(refused->message.substr(0, refused->message.find(' ')));
  std::erase_if(checked.findings, [](const Finding& finding) {
    constexpr std::array<std::string_view, 3> kOfShapes{"_heads", "layers", "expert"};
    return finding.source.starts_with("rule of ") &&
           std::any_of(kOfShapes.begin(), kOfShapes.end(), [&](std::string_view part) {
             return finding.rule.find(part) != std::string::npos;
           });
  });
}

}  // namespace

namespace {

// Of slime's actor that does not fill the job's GPUs, engines that divide them as little follow.
void drop_engines_of_actor(Checked& checked) {
  const auto is = [](std::string_view rule) {
    return [rule](const Finding& finding) { return finding.rule == rule; };
  };
  const auto& findings = checked.findings;
  if (std::any_of(findings.begin(), findings.end(), is("actor_gpus"))) {
    std::erase_if(checked.findings, is("engines_divide"));
  }
}

// A command that names its GPU is judged on that of the question all the same, which may not have
// its formats.
void leave_other_gpu(const JobFiles& job, const CheckQuestion& question, Checked& checked) {
  const int asked = question.limits.compute_capability;
  if (job.gpu.text.empty() || !job.gpu.resolved || asked == 0) return;
  const std::string named = plain_machine_name(job.gpu.text);
  const std::vector<std::string> built_in = hardware_names();
  const bool known = std::find(built_in.begin(), built_in.end(), named) != built_in.end();
  if (known && load_hardware(named).gpu.compute_capability == asked) return;
  for (Finding& finding : checked.findings) {
    if (finding.rule == "precision_gpu") finding.severity = Severity::note;
  }
  checked.takes_less = true;
  checked.assumed.push_back(
      fmt::format("another GPU than the command's, which is for {}", shown(job.gpu.text)));
  checked.findings.push_back(
      {Severity::note, "other_gpu", job.gpu.place,
       fmt::format("the command is for {}, and the plan is judged on another GPU",
                   shown(job.gpu.text)),
       fmt::format("--hardware of {}", shown(job.gpu.text)),
       "qplan: the GPU that the command names, and the one that was asked with"});
}

}  // namespace

Checked check(std::span<const ConfigText> files, const CheckQuestion& question) {
  const JobFiles job = read_job_files(files);
  const JudgeJob judge = [&](const JobFiles& read) {
    return read.find(Dialect::megatron_yaml) == nullptr
               ? judge_job(read, files, question)
               : judge_job(with_flags_of_yaml(read), files, question);
  };
  Checked checked = judge(job);
  drop_undecided(job, question.limits.gpus, judge, checked);
  drop_engines_of_actor(checked);
  leave_shapes_open(question, checked);
  leave_other_gpu(job, question, checked);
  keep_to_one_line(checked.findings);
  if (job.find(Dialect::bridge) != nullptr) {
    respell(checked.findings, bridge_spelled, bridge_advice);
    for (std::string& key : checked.undecided) key = bridge_spelled(key);
    if (job.python.empty()) {
      respell(checked.findings, bridge_as_key, bridge_as_key);
      for (std::string& key : checked.undecided) key = bridge_as_key(key);
    }
  }
  return checked;
}

}  // namespace qplan
