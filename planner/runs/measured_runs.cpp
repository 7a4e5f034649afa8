#include "planner/runs/measured_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "planner/runs/model.h"
#include "planner/runs/row.h"
#include "planner/runs/states.h"
#include "planner/search/layout.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

// What is read, beside `tied_embeddings` and `status`, which a file may lack.
constexpr auto kColumns = std::to_array<std::string_view>({
    "id",
    "grade",
    "hardware",
    "recipe",
    "base_model",
    "mlp",
    "norm",
    "head_dim",
    "zero",
    "fsdp",
    "recompute_words",
    "offload_words",
    "precision_words",
    "routing",
    "dispatcher",
    "overlap",
    "cuda_graph",
    "mem_gib",
    "mem_kind",
    "model",
    "params_b",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "experts",
    "topk",
    "moe_ffn",
    "vocab",
    "seq_len",
    "num_gpus",
    "gpus_per_node",
    "tp",
    "sp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "micro_batch",
    "global_batch",
    "other_flags",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "notes",
});

constexpr std::int64_t kMostRanks = 1 << 20, kMostTokens = std::int64_t{1} << 30;

void require_columns(const CsvTable& table) {
  const auto has = [&](std::string_view column) {
    return std::find(table.columns.begin(), table.columns.end(), column) != table.columns.end();
  };
  for (const std::string_view column : kColumns) {
    if (has(column)) continue;
    throw Error(fmt::format("{}: column '{}' of measured runs is missing{}", table.where, column,
                            did_you_mean(column, table.columns)));
  }
}

// ---- how the run was cut up ----

RecipeKind recipe_of_run(const RunRow& row) {
  const std::string& word = row.text("recipe");
  const auto recipe = try_from_word<RecipeKind>(word);
  if (!recipe) throw Error(fmt::format("recipe '{}' is none of those predicted", shown(word)));
  // Megatron-FSDP is an option of the same framework.
  const bool sharded = !row.text("fsdp").empty() && *recipe == RecipeKind::megatron;
  return sharded ? RecipeKind::megatron_fsdp : *recipe;
}

bool is_megatron_core(RecipeKind recipe) {
  return recipe == RecipeKind::megatron || recipe == RecipeKind::megatron_fsdp;
}

// Releases of NeMo and Megatron-Bridge are named by months. NeMo's last before Megatron-Bridge took
// over is of July 2025; other runs of Megatron-Core were published by August 2026, the latest.
int month_of_megatron(const std::string& framework) {
  constexpr int kLastNemo = 202507, kLatest = 202608;
  const bool nemo = framework.starts_with("NeMo");
  if (!nemo && !framework.starts_with("Megatron")) return 0;
  const double release = release_of(framework);
  if (release > 20) return 200000 + static_cast<int>(release * 100 + 0.5);
  return nemo ? kLastNemo : kLatest;
}

// The month in the name of a benchmark's page, "llama3_h100_202412_torchtitan.md" or
// "..._2025-06_..." as 202412 and 202506, of torchtitan, which names no releases. Other published
// runs of compiled FSDP2 are taken for torchtitan's first benchmark, runs of no page for today's:
// 0. Composer's benchmarks with mixed_precision PURE are all of May 2023 and torch 1.13.1
// (llm-foundry 300cc5c58: its tables, setup.py, the image in submit_benchmarks.py; later ones say
// DEFAULT).
int month_of_run(const RunRow& row, RecipeKind recipe) {
  constexpr int kPure = 202305;
  const bool pure = row.text("zero_or_fsdp").find("mp=PURE") != std::string::npos;
  if (recipe == RecipeKind::fsdp1 && pure) return kPure;
  if (is_megatron_core(recipe)) return month_of_megatron(row.text("framework"));
  const std::string& page = row.text("source_path_or_table");
  if (recipe != RecipeKind::fsdp2_compile || page.empty()) return 0;
  constexpr int kFirstBenchmark = 202412;
  const bool titan = row.text("framework").find("torchtitan") != std::string::npos;
  if (!titan) return kFirstBenchmark;
  const auto digits = [&page](std::size_t from, std::size_t count) {
    int value = 0;
    for (std::size_t i = from; i < from + count; ++i) {
      if (i >= page.size() || page[i] < '0' || page[i] > '9') return -1;
      value = 10 * value + (page[i] - '0');
    }
    return value;
  };
  for (std::size_t at = 0; at < page.size(); ++at) {
    const int year = digits(at, 4);
    if (year < 2020 || year > 2100) continue;
    const int month = digits(at + (at + 4 < page.size() && page[at + 4] == '-' ? 5 : 4), 2);
    if (month >= 1 && month <= 12) return 100 * year + month;
  }
  return kFirstBenchmark;
}

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
  const bool cuts = in.recipe == RecipeKind::megatron || in.recipe == RecipeKind::megatron_fsdp;
  plan.etp = cuts && ranks % (std::int64_t{plan.ep} * plan.tp) == 0 ? plan.tp : 1;
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
  // Composer's mixed_precision: DEFAULT reduces in fp32, PURE in what is gathered
  // (get_mixed_precision in mosaic_fsdp_utils.py, v0.16.4 and v0.17.2).
  const bool named = row.text("zero_or_fsdp").find("mp=DEFAULT") != std::string::npos;
  if (in.recipe == RecipeKind::fsdp1 && named) plan.grad_dtype = DType::fp32;
}

// NeMo's and Megatron-Bridge's performance recipes reduce gradients in bf16 (grad_reduce_in_fp32 =
// False: NeMo scripts/performance, Megatron-Bridge recipes and perf configs); plain Megatron does
// so in fp32.
// Megatron-Bridge's recipes of DeepSeek-V3 and Moonlight keep Adam's moments in bf16 (exp_avg_dtype
// in recipes/deepseek and recipes/moonlight, v0.2.0 to v0.5.0); Kimi K2's is Muon, with one moment.
// Experts on an NVL72 rack are exchanged by HybridEP (Megatron-Bridge's dispatcher guide, from
// release 25.11 on). From release 26.06 on its MXFP8 recipes there capture the whole iteration and
// overlap the exchanges: the runs that say so (26.06 to 26.08) all do. "main" is later.
//
// Release 25.09 dropped tokens, but for DeepSeek-V3 on Hopper: balance by force, DeepEP and
// overlapped exchanges (r0.1.0, scripts/performance/run_script.py). With as many rows for each
// expert whole layers fit a graph: its recipes of experts on Blackwell capture them where they
// neither interleave nor recompute (their perf_matrix, cuda_graphs).
//
// NeMo's performance recipes of experts drop tokens, too (MegatronTokenDropCallback), but for
// DeepSeek-V3 on Hopper, with DeepEP (r2.4.0, scripts/performance/llm and recipes).
void set_framework_defaults(const RunRow& row, const RunInputs& in, ParallelPlan& plan) {
  const std::string& framework = row.text("framework");
  const bool bridge = framework.starts_with("Megatron-Bridge");
  if (in.recipe != RecipeKind::megatron || !(bridge || framework.starts_with("NeMo"))) return;
  plan.grad_dtype = DType::bf16;
  if (bridge && in.model.mla) plan.moment_dtype = DType::bf16;
  constexpr int kRack = 72, kHopper = 90;
  const double release = release_of(framework);
  const bool early = release > 0 && release < 25.11;
  if (plan.ep == 1) return;
  const HardwareProfile hardware = load_hardware(in.hardware);
  const bool hopper = hardware.gpu.compute_capability == kHopper;
  if (!bridge) {
    if (hopper && in.model.mla) {
      plan.moe_dispatcher = MoeDispatcher::deepep;
    } else if (row.text("routing") != "natural") {
      plan.moe_capacity_factor = 1;
    }
    return;
  }
  if (early && hopper && row.text("routing") == "forced") {
    plan.moe_dispatcher = MoeDispatcher::deepep;
    plan.overlap.add(OverlapKind::ep);
  }
  const bool whole_layers = plan.vpp == 1 && row.text("recompute_words") == "none";
  if (early && hardware.gpu.compute_capability > kHopper && whole_layers) plan.cuda_graph = true;
  if (early || hardware.link.nvlink_domain < kRack) return;
  plan.moe_dispatcher = MoeDispatcher::hybridep;
  const bool later = release >= 26.06 || framework.find("main") != std::string::npos;
  if (!later || row.text("precision_words") != "mxfp8") return;
  plan.cuda_graph = true;
  plan.overlap.add(OverlapKind::ep);
}

// Transformer Engine's loss: Megatron-Bridge's performance recipes (scripts/performance/utils,
// v0.2.0 to v0.6.0), those of NeMo from v2.4.0 on (scripts/performance/helpers.py; release 25.07,
// and dgxc's of that name), Megatron-LM's moe_recipes (branch dev, cross_entropy_fusion_impl) and
// Megatron-MoE-ModelZoo (model_configs/benchmarking). NeMo turned Megatron's own on in September
// 2024 (1d5de59460); before, and in NeMo 1, there is none.
LossKind loss_of_run(const RunRow& row, const RunInputs& in) {
  constexpr double kNemoTe = 25.07, kNemoFused = 24.09;
  const std::string &framework = row.text("framework"), &page = row.text("source_path_or_table");
  if (!is_megatron_core(in.recipe)) return LossKind::by_framework;
  if (framework.starts_with("Megatron-Bridge") || framework.starts_with("Megatron-LM dev") ||
      framework.starts_with("Megatron-Core")) {
    return LossKind::te;
  }
  if (!framework.starts_with("NeMo")) return LossKind::by_framework;
  // F.cross_entropy of 16-bit logits (fp32_upcast false in its llm_benchmark): as many bytes.
  if (framework.find("AutoModel") != std::string::npos) return LossKind::te;
  const std::size_t commit = page.find("@commit ");
  const double release = commit == std::string::npos
                             ? release_of(framework)
                             : std::strtod(page.c_str() + commit + 8, nullptr);
  if (release >= kNemoTe && release < 100) return LossKind::te;
  return release > 0 && release < kNemoFused ? LossKind::unfused : LossKind::by_framework;
}

// "SFT packed seq 4096", as notes of fine-tuning runs say it.
void set_documents(const RunRow& row, ParallelPlan& plan) {
  if (row.text("notes").find("packed") == std::string::npos) return;
  plan.document_len = std::min(kPackedDocument, plan.seq_len);
}

// Megatron's own default, which Megatron-Bridge's, NeMo's and Megatron-LM's recipes of experts
// change and Pai-Megatron-Patch's Qwen3 scripts do not.
void set_pai_defaults(const RunRow& row, ParallelPlan& plan) {
  if (row.text("framework").starts_with("Pai-Megatron-Patch")) plan.moe_permute_fusion = false;
}

// Megatron-Bridge's recipes of models with latent attention fill pipelines of up to 16 stages from
// the front: as many layers on each as it takes, what is left on the last, with the loss and the
// layers that predict further ahead. Longer ones have these alone on the last, and what is left on
// the first (recipes/deepseek/deepseek_v3.py, layout_map, v0.2.0 to v0.5.0; kimi/kimi_k2.py,
// v0.4.0; pp_layout in scripts/performance/configs, v0.2.0 and v0.5.0).
std::vector<int> layout_of_run(const RunRow& row, const RunInputs& in) {
  constexpr int kLong = 32;
  const auto layers = static_cast<int>(in.model.num_layers);
  const int stages = in.plan.pp * in.plan.vpp;
  const int each = (layers + stages - 1) / stages;
  const int left = layers - each * (stages < kLong ? stages - 1 : stages - 2);
  const bool fills = row.text("framework").starts_with("Megatron-Bridge") && in.model.mla;
  if (!fills || stages == 1 || left <= 0) return framework_layout(in.model, in.plan, in.recipe);
  std::vector<int> layout(static_cast<std::size_t>(stages), each);
  (stages < kLong ? layout.back() : layout.front()) = left;
  if (stages >= kLong) layout.back() = 0;
  return layout;
}

Recompute recompute_of_run(const RunRow& row, const RunInputs& in) {
  const std::string& words = row.text("recompute_words");
  // torchtitan's layer option checkpoints whole layers, one in so many.
  if (row.text("recompute").find("every 2nd layer") != std::string::npos) {
    const std::int64_t stages = std::int64_t{in.plan.pp} * in.plan.vpp;
    return {
        .kind = RecomputeKind::full,
        .modules = {},
        .layers = static_cast<int>(std::max<std::int64_t>(1, in.model.num_layers / stages / 2))};
  }
  // fms-fsdp's selective checkpointing takes every block unless told otherwise (its
  // docs/configurations.md).
  if (row.text("recompute").find("FSDP AC") != std::string::npos) return parse_recompute("full");
  // Megatron-Bridge's recipes of models with latent attention recompute its up projections, and on
  // 80 GB dense MLPs as well (recompute_modules in scripts/performance/configs/deepseek and kimi,
  // v0.5.0): what a row means that says no more, or nothing.
  const bool bridge = row.text("framework").starts_with("Megatron-Bridge");
  if ((words.empty() || words == "selective") && bridge && in.model.mla) {
    return parse_recompute(load_hardware(in.hardware).gpu.usable_memory < gib(90)
                               ? "selective:mla_up_proj+mlp"
                               : "selective:mla_up_proj");
  }
  // Shorter names of Megatron's modules.
  if (words == "selective:norm+act") {
    return parse_recompute(in.model.moe ? "selective:layernorm+moe_act" : "selective:layernorm");
  }
  return words.empty() ? in.plan.recompute : parse_recompute(words);
}

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

void set_words(const RunRow& row, const RunInputs& in, ParallelPlan& plan) {
  plan.recompute = recompute_of_run(row, in);
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
  plan.schedule = plan.vpp > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  if (plan.tp == 1) {
    plan.sequence_parallel = false;
    plan.overlap.remove(OverlapKind::tp);
  }
  if (plan.ep == 1) plan.overlap.remove(OverlapKind::ep);
  if (plan.zero == 0) plan.overlap.remove(OverlapKind::param);
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

RunInputs inputs_of_run(const RunRow& row, std::vector<std::string>& unknown_flags) {
  RunInputs in;
  in.recipe = recipe_of_run(row);
  in.month = month_of_run(row, in.recipe);
  in.hardware = machine_of_run(row);
  in.model = model_of_run(row, in.recipe);
  in.gpus = needed(row, "num_gpus", kMostRanks);
  in.gpus_per_node = static_cast<int>(
      row.whole("gpus_per_node", 1, 1024).value_or(load_hardware(in.hardware).link.gpus_per_node));
  in.network = network_of_words(row.text("inter_node_link"), in.gpus_per_node);
  const std::int64_t batch = needed(row, "global_batch", kMostRanks);
  const std::int64_t seq_len = needed(row, "seq_len", kMostTokens);
  in.plan = default_plan(in.model, recipe_of(in.recipe), in.gpus, batch, seq_len);
  set_degrees(row, in, in.plan);
  in.plan.micro_batch_size =
      row.whole("micro_batch", 1, kMostRanks).value_or(usual_micro_batch(in));
  set_sharding(row, in, in.plan);
  set_framework_defaults(row, in, in.plan);
  set_pai_defaults(row, in.plan);
  set_words(row, in, in.plan);
  set_run_states(row, in, in.plan);
  in.plan.loss = loss_of_run(row, in);
  set_documents(row, in.plan);
  unknown_flags = apply_flags(row.text("other_flags"), in);
  drop_empty_words(in.plan);
  if (in.plan.pipeline_layout.empty()) in.plan.pipeline_layout = layout_of_run(row, in);
  return in;
}

// ---- what was measured ----

std::optional<Seconds> measured_time(const RunRow& row) {
  if (const auto time = row.number("step_time_s")) return Seconds(*time);
  const auto rate = row.number("tokens_per_s_per_gpu");
  const auto gpus = row.number("num_gpus"), batch = row.number("global_batch"),
             seq_len = row.number("seq_len");
  if (!rate || !gpus || !batch || !seq_len) return std::nullopt;
  return Seconds(*batch * *seq_len / (*rate * *gpus));
}

bool has_failed(const RunRow& row) {
  const std::string& status = row.text("status");
  if (!status.empty() && status != "ok" && status != "failed") row.fail("status", "ok, failed");
  return status == "failed";
}

MeasuredRun read_run(const RunRow& row) {
  MeasuredRun run;
  run.line = row.line();
  run.id = row.text("id");
  if (run.id.empty()) throw BadCell(fmt::format("{}: column id must not be empty", row.place()));
  run.grade = row.text("grade");
  run.source = run.id.substr(0, run.id.find('-'));
  run.model = row.text("model");
  run.recipe = row.text("recipe");
  run.hardware = row.text("hardware");
  run.failed = has_failed(row);
  run.step_time = measured_time(row);
  if (const auto memory = row.number("mem_gib")) run.memory = gib(*memory);
  run.memory_kind = try_from_word<MemoryKind>(row.text("mem_kind")).value_or(MemoryKind::unknown);
  return run;
}

}  // namespace

std::vector<MeasuredRun> read_measured_runs(const CsvTable& table) {
  require_columns(table);
  std::vector<MeasuredRun> runs;
  for (const CsvTable::Row& cells : table.rows) {
    const RunRow row(table, cells);
    MeasuredRun run = read_run(row);
    try {
      run.inputs = inputs_of_run(row, run.unknown_flags);
    } catch (const BadCell&) {
      throw;
    } catch (const Error& error) {
      run.unpriced = error.what();
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace qplan
