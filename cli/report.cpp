#include "cli/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "cli/page.h"
#include "costmodel/measured.h"
#include "costmodel/peak.h"
#include "executor/gpu_limits.h"
#include "planner/frameworks/emit.h"
#include "planner/search/enumerate.h"

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

std::optional<std::string> emit_note(const Job& job, const ParallelPlan& plan) {
  const auto reason = why_unwritten(job, plan);
  if (!reason) return std::nullopt;
  return fmt::format("`qplan emit --framework {}` has no words for this plan: {}",
                     to_word(*files_of(job, plan)), reason->message);
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
  Bytes most;
  for (const StageMemory& stage : memory.stages) most = std::max(most, stage.*value);
  return most;
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
  std::string text;
  for (const Group& g : groups_of(job, plan)) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} of {} ", to_word(g.axis), g.shape.size);
    text += g.shape.nodes == 1 ? "in a node" : fmt::format("over {} nodes", g.shape.nodes);
  }
  return text.empty() ? "none: one GPU" : text;
}

namespace {

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

}  // namespace

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

std::vector<std::string> length_notes(const ModelSpec& model, std::int64_t seq_len) {
  const std::int64_t most = model.max_position_embeddings;
  if (most <= 0 || seq_len <= most) return {};
  return {fmt::format(
      "sequences of {} are longer than the {} positions of the model (max_position_embeddings)",
      seq_len, most)};
}

std::vector<std::string> search_notes(const ModelSpec& model, const SearchSpace& space,
                                      const JobDefaults& defaults) {
  std::vector<std::string> list = model_notes(model);
  for (std::string& note : length_notes(model, space.job.seq_len)) list.push_back(std::move(note));
  const std::int64_t batch = space.job.global_batch_size;
  if (defaults.batch.empty()) return list;
  // The most data-parallel ranks that get a sequence each.
  std::int64_t most = 1;
  for (const int dp : divisors(space.gpus)) {
    if (dp <= batch) most = dp;
  }
  const std::int64_t splits = std::gcd(batch, space.gpus);
  if (splits < most) {
    list.push_back(
        fmt::format("the default batch of {} sequences splits over dp {} at most; "
                    "--global-batch-size {} does over dp {}",
                    batch, splits, (batch + most / 2) / most * most, most));
  }
  return list;
}

bool rests_on_assumptions(const Estimate& estimate) {
  return estimate.priced_from.assumed > kMuchAssumed;
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

std::vector<std::string> backend_notes(const Job& job, const ParallelPlan& plan) {
  if (!recipe_of(job.framework).executable) return {};
  const auto reason = unexecuted_on_gpu(job.model, plan);
  if (!reason) return {};
  return {*reason};
}

namespace {

// What takes longer for lying in several pods.
std::optional<std::string> pods_note(const Job& job, const ParallelPlan& plan) {
  const RankGrid grid = rank_grid(plan, job.cost->facts());
  std::vector<std::string> waiting;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::dp_cp, Axis::edp, Axis::pp}) {
    if (axis == Axis::edp && !job.model.moe) continue;
    const GroupShape& group = grid.shape(axis);
    const double elsewhere = 1 - static_cast<double>(group.ranks_per_node) / group.size;
    const double times = axis == Axis::ep ? group.pods.exchange / elsewhere : group.pods.edge;
    if (times > 1) waiting.push_back(fmt::format("{} {}", to_word(axis), significant(times, 2)));
  }
  if (waiting.empty()) return std::nullopt;
  return fmt::format("links between pods take longer than the cards do, by a factor: {}",
                     fmt::join(waiting, ", "));
}

// What a recipe's kernels are does not follow from the word; "" where the plan says what they are.
std::string compile_note(const Job& job, const ParallelPlan& plan) {
  const bool compiled = job.recipe().defaults.compile;
  if (plan.compile == compiled) return "";
  if (compiled) {
    return fmt::format(
        "{} is priced with its layers compiled, whatever compile says; --framework "
        "fsdp2 prices modules that are not",
        to_word(job.framework));
  }
  const bool fsdp2 = job.framework == RecipeKind::fsdp2;
  return fmt::format("what torch.compile spares is not priced by {}{}", to_word(job.framework),
                     fsdp2 ? "; --framework fsdp2-compile prices compiled layers" : "");
}

}  // namespace

std::vector<std::string> notes_of(const Job& job, const Answer& answer) {
  const ParallelPlan& plan = answer.plan;
  std::vector<std::string> list = model_notes(job.model);
  for (std::string& note : length_notes(job.model, plan.seq_len)) list.push_back(std::move(note));
  if (!answer.estimate) return list;
  for (const std::string& note : backend_notes(job, plan)) list.push_back(note);
  const Estimate& e = *answer.estimate;
  if (plan.tp > job.hardware.link.nvlink_domain) {
    const Interconnect& link = job.hardware.link;
    list.push_back(fmt::format("tp {} reaches beyond the {} GPUs that {} joins", plan.tp,
                               link.nvlink_domain, link.over_pcie() ? "PCIe" : "NVLink"));
  }
  if (auto note = pods_note(job, plan)) list.push_back(std::move(*note));
  if (e.memory.host_per_node > e.memory.host_room) {
    list.push_back(host_memory_text(job, plan, e.memory));
  } else if (e.memory.host_per_node.value() > 0 && below_node(job, plan)) {
    list.push_back(
        fmt::format("a job of {} of a node's {} GPUs is given that share of its host: {} of memory "
                    "and {}% of the cores; a host with more needs a hardware profile of its own",
                    plan.world(), job.hardware.link.gpus_per_node, human_bytes(e.memory.host_room),
                    percent(e.memory.host_room / job.hardware.host.memory)));
  }
  if (e.fits && e.memory.worst_stage().device * 1.05 > e.capacity) {
    list.push_back("memory is within 5% of what may be filled: the prediction's own error decides");
  }
  if (rests_on_assumptions(e)) {
    list.push_back(
        fmt::format("{}% of the step is priced from assumed efficiencies; calibrate, or "
                    "trust the interval",
                    fixed(100 * e.priced_from.assumed, 0)));
  }
  const std::string& gpu = job.hardware.gpu.name;
  const bool adapters = plan.lora_rank > 0;
  if (!job.recipe().executable && find_measured_on(job.framework, gpu, adapters) == nullptr) {
    list.push_back(fmt::format(
        "no run of {}{} on {} was held against predictions; the interval is wider for it",
        to_word(job.framework), adapters ? " with adapters" : "", gpu));
  }
  if (!job.kinds.empty()) {
    list.push_back(
        "stages lie on kinds of GPUs in the order named; all messages between stages are "
        "taken to be as slow as those between kinds, MFU is of the mean peak");
  }
  if (job.kinds.empty() && e.capacity > job.hardware.gpu.usable_memory) {
    list.push_back(fmt::format("plans may fill {}, more than the {} that the device has",
                               human_bytes(e.capacity),
                               human_bytes(job.hardware.gpu.usable_memory)));
  }
  if (auto note = compile_note(job, plan); !note.empty()) list.push_back(std::move(note));
  if (const auto note = emit_note(job, plan)) list.push_back(*note);
  if (job.model.moe && plan.routing != Routing::natural) {
    list.push_back("experts are taken to be evenly loaded; --routing natural prices the busiest");
  }
  return list;
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

std::string notes_text(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += wrapped("note: " + note, page().text, 6);
  return text;
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
