#include "planner/runs/run_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "models/plan/plan_text.h"
#include "planner/runs/flags.h"
#include "planner/runs/model.h"
#include "planner/runs/phrases.h"
#include "planner/runs/releases.h"
#include "planner/runs/trainers.h"
#include "planner/search/layout.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20, kMostTokens = std::int64_t{1} << 30;

// ---- by whom, on what ----

RecipeKind recipe_of_run(const RunRow& row) {
  const std::string& word = row.text("recipe");
  const auto recipe = try_from_word<RecipeKind>(word);
  if (!recipe) throw Error(fmt::format("recipe '{}' is none of those predicted", shown(word)));
  // Megatron-FSDP is an option of the same framework.
  const bool sharded = !row.text("fsdp").empty() && *recipe == RecipeKind::megatron;
  return sharded ? RecipeKind::megatron_fsdp : *recipe;
}

// A framework's log names the memory that it found ("H100-95GiB"): where the machine named has
// another, the built-in one of the same generation that has as much.
std::string with_memory(const std::string& name, const std::string& gpu,
                        const std::vector<std::string>& known) {
  const std::size_t dash = gpu.find('-');
  if (dash == std::string::npos || !gpu.ends_with("GiB")) return name;
  const Bytes seen = gib(std::strtod(gpu.c_str() + dash + 1, nullptr));
  const auto has_it = [&](const std::string& machine) {
    return std::abs((load_hardware(machine).gpu.usable_memory - seen).value()) < gib(1).value();
  };
  if (has_it(name)) return name;
  const std::string generation = name.substr(0, name.find('-') + 1);
  for (const std::string& machine : known) {
    if (machine.starts_with(generation) && has_it(machine)) return machine;
  }
  return name;
}

// A built-in machine's name, or the file of a profile: somebody's own runs on their own machine.
std::string machine_of_run(const RunRow& row) {
  const std::string& name = row.text("hardware");
  if (name.ends_with(".json")) return name;
  const std::vector<std::string> known = hardware_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw Error(
        fmt::format("hardware '{}' is neither built in nor a profile's file (.json)", shown(name)));
  }
  return with_memory(name, row.text("gpu"), known);
}

MachineFacts facts_of(const std::string& machine) {
  const HardwareProfile profile = load_hardware(machine);
  return {profile.gpu.compute_capability, profile.link.gpus_per_node, profile.link.nvlink_domain,
          profile.gpu.usable_memory};
}

// ---- how the run was cut up ----

int degree(const RunRow& row, std::string_view column) {
  return static_cast<int>(row.whole(column, 1, kMostRanks).value_or(1));
}

std::int64_t needed(const RunRow& row, std::string_view column, std::int64_t high) {
  const auto value = row.whole(column, 1, high);
  if (!value) throw Error(fmt::format("{} is not stated", column));
  return *value;
}

void set_degrees(const RunRow& row, const RunInputs& in, ParallelPlan& plan) {
  plan.tp = degree(row, "tp");
  plan.pp = degree(row, "pp");
  plan.cp = degree(row, "cp");
  plan.vpp = plan.pp > 1 ? degree(row, "vpp") : 1;
  const std::int64_t others = std::int64_t{plan.tp} * plan.pp * plan.cp;
  if (in.gpus % others != 0) {
    throw Error(fmt::format("tp x pp x cp does not divide the GPUs: {} and {}", others, in.gpus));
  }
  plan.dp = static_cast<int>(in.gpus / others);
  if (!in.model.moe) return;
  plan.ep = degree(row, "ep");
  // Megatron's --expert-tensor-parallel-size is tp where nobody gives it (arguments.py), as far as
  // the ranks of a stage go round; the others do not cut experts.
  const std::int64_t ranks = std::int64_t{plan.tp} * plan.cp * plan.dp;
  plan.etp =
      kMegatronCore.has(in.recipe) && ranks % (std::int64_t{plan.ep} * plan.tp) == 0 ? plan.tp : 1;
  if (!row.text("etp").empty()) plan.etp = degree(row, "etp");
}

// torchtitan cut a rank's batch into as many microbatches as there are stages, unless told
// otherwise (experimental.pipeline_parallel_microbatches until 2025).
std::int64_t usual_micro_batch(const RunInputs& in) {
  if (in.recipe != RecipeKind::fsdp2_compile || in.plan.pp == 1) return 1;
  return std::max<std::int64_t>(
      1, in.plan.global_batch_size / (std::int64_t{in.plan.dp} * in.plan.pp));
}

void set_sharding(const RunRow& row, const RunInputs& in, ParallelPlan& plan) {
  plan.zero = static_cast<int>(row.whole("zero", 0, 3).value_or(plan.zero));
  // HSDP shards within a node and replicates between.
  if (row.text("fsdp") == "hsdp" && plan.dp % in.gpus_per_node == 0) {
    plan.fsdp_shard = in.gpus_per_node;
  }
}

// ---- the row's words ----

template <class E>
E word_or(const RunRow& row, std::string_view column, E fallback) {
  const std::string& word = row.text(column);
  return word.empty() ? fallback : from_word<E>(word);
}

// Whether a list such as "tp+ep" holds the word.
bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of("+,; "), list.size());
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

// The source's own words come before those that they were put into.
void set_recompute(const RunRow& row, RunInputs& in) {
  if (known_phrases().apply("recompute", row, in).applied) return;
  if (known_phrases().apply("recompute_words", row, in).applied) return;
  const std::string& words = row.text("recompute_words");
  if (!words.empty()) in.plan.recompute = parse_recompute(words);
}

void set_words(const RunRow& row, RunInputs& in) {
  set_recompute(row, in);
  ParallelPlan& plan = in.plan;
  const std::string& offload = row.text("offload_words");
  if (!offload.empty()) plan.offload = parse_offload(offload);
  plan.precision = word_or(row, "precision_words", plan.precision);
  plan.routing = word_or(row, "routing", plan.routing);
  if (plan.ep > 1) plan.moe_dispatcher = word_or(row, "dispatcher", plan.moe_dispatcher);
  // What the source says is on, beside what the recipe does anyway.
  for (const auto& [kind, word] : Words<OverlapKind>::table) {
    if (has_word(row.text("overlap"), word)) plan.overlap.add(kind);
  }
  const std::string& graphs = row.text("cuda_graph");
  if (!graphs.empty()) {
    plan.cuda_graph = true;
    if (graphs != "full_iteration") plan.cuda_graph_scope = CudaGraphScope::layer;
  }
  plan.sequence_parallel = row.yes("sp").value_or(splits_sequence(in.recipe));
}

// Words without an object: nothing to split, to hide or to gather.
void drop_empty_words(ParallelPlan& plan) {
  // No column names a schedule but by its chunks; a plan's own word for another one stands.
  const bool by_chunks = plan.schedule == ScheduleKind::interleaved ||
                         plan.schedule == ScheduleKind::one_f_one_b || plan.pp == 1;
  if (by_chunks) {
    plan.schedule = plan.vpp > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  }
  if (plan.tp == 1) {
    plan.sequence_parallel = false;
    plan.overlap.remove(OverlapKind::tp);
  }
  if (plan.ep == 1) plan.overlap.remove(OverlapKind::ep);
  plan.overlap = overlap_at_zero(plan.zero, plan.overlap);
}

// The framework's own placing; filled from the front (phrases.tsv), a pipeline of up to 16 stages
// has as many layers on each as it takes, and what is left on the last, with the loss and the
// layers that predict further ahead. Longer ones have these alone on the last, and what is left on
// the first.
std::vector<int> layout_of_run(const RunInputs& in) {
  constexpr int kLong = 32;
  const auto layers = static_cast<int>(in.model.num_layers);
  const int stages = in.plan.pp * in.plan.vpp;
  const int each = (layers + stages - 1) / stages;
  const int left = layers - each * (stages < kLong ? stages - 1 : stages - 2);
  if (!in.fills_from_front || stages == 1 || left <= 0) {
    return framework_layout(in.model, in.plan, in.recipe);
  }
  std::vector<int> layout(static_cast<std::size_t>(stages), each);
  (stages < kLong ? layout.back() : layout.front()) = left;
  if (stages >= kLong) layout.back() = 0;
  return layout;
}

}  // namespace

RunInputs inputs_of_run(const RunRow& row, std::vector<std::string>& unknown_flags) {
  RunInputs in;
  in.recipe = recipe_of_run(row);
  const RunDates dates = known_releases().dates_of(row, in);
  in.month = dates.month;
  in.release = dates.release;
  in.known_trainer = known_trainers().knows(row.text("framework"));
  in.hardware = machine_of_run(row);
  set_model(row, in);
  in.gpus = needed(row, "num_gpus", kMostRanks);
  const auto gpus_per_node = row.whole("gpus_per_node", 1, 1024);
  in.machine = facts_of(in.hardware);
  in.gpus_per_node = static_cast<int>(gpus_per_node.value_or(in.machine.gpus_per_node));
  in.network = network_of_words(row.text("inter_node_link"), in.gpus_per_node);
  const std::int64_t batch = needed(row, "global_batch", kMostRanks);
  const std::int64_t seq_len = needed(row, "seq_len", kMostTokens);
  in.plan = default_plan(in.model, recipe_of(in.recipe), in.gpus, batch, seq_len);
  set_degrees(row, in, in.plan);
  in.plan.micro_batch_size =
      row.whole("micro_batch", 1, kMostRanks).value_or(usual_micro_batch(in));
  set_sharding(row, in, in.plan);
  // From the general to the particular: each may change what came before.
  const PhraseTable& phrases = known_phrases();
  for (const char* column : {"inter_node_link", "zero_or_fsdp", "framework"}) {
    phrases.apply(column, row, in);
  }
  set_words(row, in);
  phrases.apply("notes", row, in);
  unknown_flags = apply_flags(row, in);
  // Words of the plan itself leave nothing to be understood, and come last.
  const std::string& words = row.text("plan_words");
  if (!words.empty()) in.plan = parse_plan(words, in.plan);
  drop_empty_words(in.plan);
  if (in.plan.pipeline_layout.empty()) in.plan.pipeline_layout = layout_of_run(in);
  return in;
}

}  // namespace qplan
