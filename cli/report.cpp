#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/notes.h"
#include "cli/page.h"
#include "costmodel/peak.h"
#include "costmodel/worst_rank.h"
#include "planner/frameworks/emit.h"

namespace qplan {
namespace {

constexpr std::array kTimeParts{
    TimePart{"compute_s", "compute", 'C', &TimeBreakdown::compute},
    TimePart{"recompute_s", "recompute", 'R', &TimeBreakdown::recompute},
    TimePart{"tp_s", "tensor parallel", 'T', &TimeBreakdown::tp, true},
    TimePart{"cp_s", "context parallel", 'X', &TimeBreakdown::cp, true},
    TimePart{"ep_s", "expert parallel", 'E', &TimeBreakdown::ep, true},
    TimePart{"pp_bubble_s", "pipeline bubble", 'B', &TimeBreakdown::pp_bubble},
    TimePart{"pp_p2p_s", "pipeline sends", 'P', &TimeBreakdown::pp_p2p, true},
    TimePart{"dp_s", "data parallel", 'D', &TimeBreakdown::dp, true},
    TimePart{"optimizer_s", "optimizer", 'O', &TimeBreakdown::optimizer},
    TimePart{"offload_s", "offload", 'F', &TimeBreakdown::offload},
    TimePart{"host_s", "host", 'H', &TimeBreakdown::host},
};

constexpr std::array kMemoryParts{
    MemoryPart{"weights_gib", "weights", 'W', &StageMemory::weights},
    MemoryPart{"gradients_gib", "gradients", 'G', &StageMemory::gradients},
    MemoryPart{"optimizer_gib", "optimizer", 'O', &StageMemory::optimizer},
    MemoryPart{"activations_gib", "activations", 'A', &StageMemory::activations},
    MemoryPart{"buffers_gib", "buffers", 'B', &StageMemory::buffers},
};

Json memory_json(const MemoryEstimate& memory, Bytes capacity) {
  Json stages = Json::array();
  for (std::size_t i = 0; i < memory.stages.size(); ++i) {
    const StageMemory& stage = memory.stages[i];
    Json object{{"stage", i}};
    for (const MemoryPart& part : kMemoryParts) {
      object[std::string(part.key)] = in_gib(stage.*part.value);
    }
    object["reserved_gib"] = in_gib(stage.reserved);
    object["peak_gib"] = in_gib(stage.peak);
    object["device_gib"] = in_gib(stage.device);
    stages.push_back(std::move(object));
  }
  return {{"capacity_gib", in_gib(capacity)},
          {"peak_gib", in_gib(largest(memory, &StageMemory::peak))},
          {"reserved_peak_gib", in_gib(largest(memory, &StageMemory::reserved))},
          {"device_peak_gib", in_gib(largest(memory, &StageMemory::device))},
          {"worst_stage", memory.worst},
          {"stages", std::move(stages)},
          {"host_gib_per_node", in_gib(memory.host_per_node)}};
}

void add_estimate(Json& object, const Estimate& e) {
  object["step_time_s"] = e.step_time.value();
  object["tokens_per_s"] = e.tokens_per_s;
  object["tokens_per_s_per_gpu"] = e.tokens_per_s_per_gpu;
  object["model_tflops_per_gpu"] = e.model_tflops_per_gpu;
  object["mfu"] = e.mfu;
  object["memory"] = memory_json(e.memory, e.capacity);
  object["time"] = time_json(e.time);
  object["interval"] = {{"level", 0.8},
                        {"step_time_s", {e.step_time_low.value(), e.step_time_high.value()}},
                        {"peak_gib", {in_gib(e.peak_low), in_gib(e.peak_high)}}};
  object["priced_from"] = {{"table", e.priced_from.table},
                           {"formula", e.priced_from.formula},
                           {"assumed", e.priced_from.assumed}};
}

Json groups_json(const std::vector<Group>& groups) {
  Json list = Json::array();
  for (const Group& g : groups) {
    list.push_back({{"axis", to_word(g.axis)},
                    {"size", g.shape.size},
                    {"ranks_per_node", g.shape.ranks_per_node},
                    {"nodes", g.shape.nodes}});
  }
  return list;
}

std::string legend_of(char letter, std::string_view label) {
  return fmt::format("{} {}", letter, label);
}

}  // namespace

std::optional<Infeasible> why_unwritten(const Job& job, const ParallelPlan& plan) {
  const auto framework = files_of(job, plan);
  if (!framework) return std::nullopt;
  const Json config = config_of(job);
  const Subject subject{job.model, config, plan, job.framework, job.hardware.link.gpus_per_node};
  const auto reasons = why_inexpressible(*framework, subject, job.limits());
  if (reasons.empty()) return std::nullopt;
  return reasons.front();
}

std::span<const TimePart> time_parts() {
  return kTimeParts;
}

Json time_json(const TimeBreakdown& time) {
  Json parts = Json::object();
  for (const TimePart& part : kTimeParts) {
    parts[std::string(part.key)] = (time.*part.value).value();
  }
  return parts;
}

std::span<const MemoryPart> memory_parts() {
  return kMemoryParts;
}

Bytes largest(const MemoryEstimate& memory, Bytes StageMemory::*value) {
  return on_worst_rank(memory, value);
}

std::vector<Group> groups_of(const Job& job, const ParallelPlan& plan) {
  const RankGrid grid = rank_grid(plan, job.cost->facts());
  std::vector<Group> groups;
  for (const Axis axis :
       {Axis::tp, Axis::cp, Axis::etp, Axis::ep, Axis::dp_cp, Axis::edp, Axis::pp}) {
    const bool experts = axis == Axis::etp || axis == Axis::ep || axis == Axis::edp;
    if (experts && !job.model.moe) continue;
    if (grid.shape(axis).size > 1) groups.push_back({axis, grid.shape(axis)});
  }
  return groups;
}

std::string groups_text(const Job& job, const ParallelPlan& plan) {
  const Interconnect& link = job.hardware.link;
  // What fast links join: a rack of several nodes, or a pair of GPUs in one.
  const bool whole_node = link.over_pcie() || link.nvlink_domain == link.gpus_per_node;
  const std::string_view one = whole_node ? "a node" : "an NVLink domain";
  const std::string_view several = whole_node ? "nodes" : "NVLink domains";
  std::string text;
  for (const Group& g : groups_of(job, plan)) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} of {} ", to_word(g.axis), g.shape.size);
    text += g.shape.nodes == 1 ? fmt::format("in {}", one)
                               : fmt::format("over {} {}", g.shape.nodes, several);
  }
  return text.empty() ? "none: one GPU" : text;
}

bool below_node(const Job& job, const ParallelPlan& plan) {
  return plan.world() < job.hardware.link.gpus_per_node;
}

std::string host_memory_text(const Job& job, const ParallelPlan& plan,
                             const MemoryEstimate& memory) {
  const std::string need = human_bytes(memory.host_per_node), room = human_bytes(memory.host_room);
  if (!below_node(job, plan)) {
    return fmt::format("offloaded states need {} of host memory a node, which has {}", need, room);
  }
  return fmt::format(
      "offloaded states need {} of host memory, of which a job of {} of a node's {} GPUs has {}",
      need, plan.world(), job.hardware.link.gpus_per_node, room);
}

Answer ask(const Job& job, const ParallelPlan& plan) {
  check_batch(plan.global_batch_size);
  check_images(job, plan.seq_len);
  Answer answer{plan, why_infeasible(job.model, plan, job.recipe(), job.limits()), {}};
  if (!answer.feasible()) return answer;
  answer.estimate = job.cost->evaluate(plan);
  const Estimate& e = *answer.estimate;
  if (!e.fits) {
    const Bytes need = e.memory.worst_stage().device;
    if (need <= e.capacity) {
      answer.infeasible.push_back({"out_of_host_memory", host_memory_text(job, plan, e.memory)});
      return answer;
    }
    answer.infeasible.push_back(
        {"out_of_memory",
         fmt::format("stage {} needs {} of device memory, {} more than the {} that a plan may fill",
                     e.memory.worst, human_bytes(need), human_bytes(need - e.capacity),
                     human_bytes(e.capacity))});
  }
  return answer;
}

bool cannot_be_told(const Answer& best, const Answer& other) {
  return other.estimate->step_time <= best.estimate->step_time_high;
}

Json read_as_json(const ModelSpec& model) {
  return {{"architecture", model.architecture},
          {"model_type", model.read_as->model_type},
          {"ignored_keys", model.read_as->ignored_keys}};
}

Peak peak_of(const Job& job, const Answer& answer) {
  const Estimate& e = *answer.estimate;
  const PeakRate own = peak_rate(job.hardware.gpu, answer.plan.precision);
  const PeakRate common = peak_rate(job.hardware.gpu, Precision::bf16);
  return {own.format, own.rate.value() / 1e12, e.model_tflops_per_gpu * 1e12 / common.rate.value()};
}

std::string mfu_text(const Job& job, const Answer& answer) {
  const double mfu = answer.estimate->mfu;
  const Peak peak = peak_of(job, answer);
  if (peak.format == Precision::bf16) return percent(mfu) + '%';
  return fmt::format("{}% of the {} peak ({} TFLOP/s), {}% of bf16's", percent(mfu),
                     to_word(peak.format), significant(peak.tflops, 4), percent(peak.mfu_bf16));
}

namespace {

Json job_json(const Job& job) {
  Json object{{"model", job.model.name},
              {"hardware", job.hardware.name},
              {"framework", to_word(job.framework)},
              {"gpus", job.gpus}};
  if (Json overrides = overrides_to_json(job.choices); !overrides.empty()) {
    object["overrides"] = std::move(overrides);
  }
  if (job.model.read_as) object["read_as"] = read_as_json(job.model);
  return object;
}

// The same keys for every plan, so that a script need not ask first.
void add_no_estimate(Json& object) {
  for (const std::string_view key :
       {"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
        "mfu_peak", "mfu_bf16", "memory", "time", "interval", "priced_from", "groups"}) {
    object[std::string(key)] = nullptr;
  }
}

}  // namespace

Json nothing_report(const Job& job) {
  Json object = job_json(job);
  for (const std::string_view key : {"plan", "short", "fingerprint"}) {
    object[std::string(key)] = nullptr;
  }
  object["feasible"] = false;
  object["infeasible"] = Json::array();
  object["notes"] = Json::array();
  add_no_estimate(object);
  return object;
}

Json report(const Job& job, const Answer& answer) {
  Json object = job_json(job);
  object["plan"] = plan_to_json(answer.plan);
  object["short"] = line_of(job, answer.plan);
  // A plan that a rule forbids has no step program.
  object["fingerprint"] = answer.estimate ? Json(fingerprint_of(job, answer.plan)) : Json(nullptr);
  object["feasible"] = answer.feasible();
  Json& infeasible = object["infeasible"] = Json::array();
  for (const Infeasible& reason : answer.infeasible) {
    infeasible.push_back({{"rule", reason.rule},
                          {"message", reason.message},
                          {"source", reason.source.empty() ? Json(nullptr) : Json(reason.source)}});
  }
  object["notes"] = notes_of(job, answer);
  if (answer.estimate) {
    add_estimate(object, *answer.estimate);
    const Peak peak = peak_of(job, answer);
    object["mfu_peak"] = {{"precision", to_word(peak.format)}, {"tflops", peak.tflops}};
    object["mfu_bf16"] = peak.mfu_bf16;
    object["groups"] = groups_json(groups_of(job, answer.plan));
  } else {
    add_no_estimate(object);
  }
  return object;
}

// ---- text ----

std::string model_line(const Job& job, std::string_view executed_on) {
  const ParameterCount count = count_parameters(job.model);
  std::string line = fmt::format("{}, {} parameters", job.model.name,
                                 human_count(static_cast<double>(count.total())));
  if (count.inactive_experts > 0) {
    line += fmt::format(" ({} active)", human_count(static_cast<double>(count.active())));
  }
  if (!executed_on.empty()) {
    return fitted(line + fmt::format(", on {}, by {}\n", executed_on, to_word(job.framework)));
  }
  line += fmt::format(", on {} x {}", job.gpus, job.hardware.name);
  if (job.gpus > job.hardware.link.gpus_per_node) {
    line += fmt::format(" in nodes of {}", job.hardware.link.gpus_per_node);
  }
  line += fmt::format(", by {}", to_word(job.framework));
  if (job.choices.files) line += fmt::format(", which {}'s files run", to_word(*job.choices.files));
  return fitted(line + '\n');
}

std::string batch_line(const Job& job, std::int64_t global_batch_size, std::int64_t seq_len,
                       Precision precision) {
  const double tokens = static_cast<double>(global_batch_size) * static_cast<double>(seq_len);
  return fitted(
      fmt::format("global batch {} x {} tokens = {} tokens a step, {}; {} of {} may be filled\n",
                  global_batch_size, seq_len, human_count(tokens), to_word(precision),
                  human_bytes(job.cost->capacity()), human_bytes(job.hardware.gpu.usable_memory)));
}

std::string excess_text(const Job& job, const RankedPlan& smallest) {
  const Bytes device = smallest.device_peak, room = job.cost->capacity();
  if (device > room) {
    return fmt::format("{} on the device, {} too much", human_bytes(device),
                       human_bytes(device - room));
  }
  const MemoryEstimate memory = job.cost->memory(smallest.plan);
  if (memory.host_per_node <= memory.host_room) {
    return fmt::format("{} on the device, which leaves too little to the engine that makes answers",
                       human_bytes(device));
  }
  return fmt::format(
      "{} on the device, which would do, but {} in the memory of a node, {} too much",
      human_bytes(device), human_bytes(memory.host_per_node),
      human_bytes(memory.host_per_node - memory.host_room));
}

std::string memory_bar(const StageMemory& stage, Bytes capacity, int width) {
  std::vector<BarPart> parts;
  for (const MemoryPart& part : kMemoryParts) {
    parts.push_back({part.letter, stage.*part.value / capacity});
  }
  parts.push_back({'+', (stage.device - stage.peak) / capacity});
  return bar(parts, width);
}

std::string time_bar(const TimeBreakdown& time, int width) {
  std::vector<BarPart> parts;
  for (const TimePart& part : kTimeParts) {
    parts.push_back({part.letter, time.*part.value / time.total()});
  }
  return bar(parts, width);
}

std::string memory_legend() {
  std::string legend;
  for (const MemoryPart& part : kMemoryParts) legend += legend_of(part.letter, part.label) + ", ";
  return legend + fmt::format("+ {}, . free", kBesidePeak);
}

std::string time_legend() {
  std::string legend;
  for (const TimePart& part : kTimeParts) {
    if (!legend.empty()) legend += ", ";
    legend += legend_of(part.letter, part.label);
  }
  return legend;
}

double exposed_communication(const Estimate& estimate) {
  Seconds exposed;
  for (const TimePart& part : kTimeParts) {
    if (part.communication) exposed += estimate.time.*part.value;
  }
  return exposed / estimate.time.total();
}

}  // namespace qplan
