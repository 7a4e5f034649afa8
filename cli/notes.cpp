#include "cli/notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "cli/page.h"
#include "costmodel/measured.h"
#include "executor/gpu_limits.h"
#include "planner/frameworks/emit.h"
#include "planner/search/enumerate.h"

namespace qplan {
namespace {

std::optional<std::string> emit_note(const Job& job, const ParallelPlan& plan) {
  const auto reason = why_unwritten(job, plan);
  if (!reason) return std::nullopt;
  return fmt::format("`qplan emit --framework {}` has no words for this plan: {}",
                     to_word(*files_of(job, plan)), reason->message);
}

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

std::vector<std::string> backend_notes(const Job& job, const ParallelPlan& plan) {
  if (!recipe_of(job.framework).executable) return {};
  const auto reason = unexecuted_on_gpu(job.model, plan);
  if (!reason) return {};
  return {*reason};
}

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

std::string notes_text(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += wrapped("note: " + note, page().text, 6);
  return text;
}

}  // namespace qplan
