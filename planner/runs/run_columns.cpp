#include "planner/runs/run_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "models/error.h"

namespace qplan {
namespace {

// The example is of NVIDIA-NeMo/Megatron-Bridge's verification card of Qwen3-8B. A cell that says
// nothing is left empty.
constexpr auto kColumns = std::to_array<RunColumn>({
    {"id", true, "mbcard-qwen3-8b-h100-16-bf16"},
    {"grade", true, "A"},
    {"hardware", true, "h100-sxm"},
    {"recipe", true, "megatron"},
    {"base_model", true, "qwen3-8b"},
    {"mlp", true, "swiglu"},
    {"norm", true, "rmsnorm"},
    {"head_dim", true, "128"},
    {"zero", true, "1"},
    {"fsdp", true, ""},
    {"recompute_words", true, "none"},
    {"offload_words", true, ""},
    {"precision_words", true, "bf16"},
    {"routing", true, ""},
    {"dispatcher", true, ""},
    {"overlap", true, ""},
    {"cuda_graph", true, ""},
    {"mem_gib", true, ""},
    {"mem_kind", true, ""},
    {"source_repo_or_paper", false, "NVIDIA-NeMo/Megatron-Bridge"},
    {"source_path_or_table", false,
     "examples/model_verification_cards/qwen3-8b/card.yaml items/pretrain/H100"},
    {"model", true, "Qwen3-8B"},
    {"params_b", true, "8.19"},
    {"active_params_b", false, ""},
    {"layers", true, "36"},
    {"hidden", true, "4096"},
    {"heads", true, "32"},
    {"kv_heads", true, "8"},
    {"ffn", true, "12288"},
    {"experts", true, ""},
    {"topk", true, ""},
    {"moe_ffn", true, ""},
    {"vocab", true, "151936"},
    {"seq_len", true, "4096"},
    {"gpu", false, "H100"},
    {"num_gpus", true, "16"},
    {"gpus_per_node", true, "8"},
    {"intra_node_link", false, "NVLink4 (H100 node)"},
    {"inter_node_link", false, ""},
    {"framework", false, "Megatron-Bridge (main, 2026)"},
    {"precision", false, "bf16"},
    {"tp", true, "1"},
    {"sp", true, "0"},
    {"pp", true, "1"},
    {"vpp", true, "1"},
    {"cp", true, "1"},
    {"ep", true, ""},
    {"etp", true, ""},
    {"dp", false, "16"},
    {"zero_or_fsdp", false, "dist-optimizer (ZeRO-1)"},
    {"micro_batch", true, "1"},
    {"global_batch", true, "1024"},
    {"recompute", false, "none"},
    {"offload", false, ""},
    {"other_flags", true,
     "bf16 grad reduce, fp32 main grads/params/moments, overlap grad-reduce/param-gather, TE fused "
     "CE"},
    {"step_time_s", true, "25.07032"},
    {"tokens_per_s_per_gpu", true, "10456.348"},
    {"tflops_per_gpu", false, "512.7"},
    {"mfu", false, ""},
    {"mem_gb_per_gpu", false, ""},
    {"notes", true, "mean of the last 10 of 50 or 100 steps; real data; dp derived"},
});

// Not in the header that all files share. `plan_words`: what no column of the header says, as words
// of a plan's line ("lora16 frozen_weights=nf4").
constexpr std::array<std::string_view, 3> kBesides{"tied_embeddings", "status", "plan_words"};

bool has(const CsvTable& table, std::string_view column) {
  return std::find(table.columns.begin(), table.columns.end(), column) != table.columns.end();
}

// Of the file's columns, those that nothing reads: one may be a missing one misspelt.
std::vector<std::string> strangers(const CsvTable& table) {
  std::vector<std::string> names;
  for (const std::string& column : table.columns) {
    if (!is_run_column(column)) names.push_back(column);
  }
  return names;
}

// A cell as CSV writes it; `example` holds no quotes and no line breaks.
std::string cell_text(std::string_view example) {
  const bool quoted = example.find(',') != std::string_view::npos;
  return quoted ? fmt::format("\"{}\"", example) : std::string(example);
}

}  // namespace

std::span<const RunColumn> run_columns() {
  return kColumns;
}

bool is_run_column(std::string_view name) {
  return std::any_of(kColumns.begin(), kColumns.end(),
                     [name](const RunColumn& column) { return column.name == name; }) ||
         std::find(kBesides.begin(), kBesides.end(), name) != kBesides.end();
}

void require_run_columns(const CsvTable& table) {
  const std::vector<std::string> others = strangers(table);
  std::vector<std::string> missing;
  for (const RunColumn& column : kColumns) {
    if (!column.needed || has(table, column.name)) continue;
    const std::string near = nearest_name(column.name, others);
    missing.push_back(near.empty() ? fmt::format("'{}'", column.name)
                                   : fmt::format("'{}' (or is it '{}'?)", column.name, near));
  }
  if (missing.empty()) return;
  throw Error(fmt::format(
      "{}: {} of measured runs {} missing: {}; `qplan accuracy --template` prints a file to begin "
      "with",
      table.where, missing.size() == 1 ? "a column" : fmt::format("{} columns", missing.size()),
      missing.size() == 1 ? "is" : "are", fmt::join(missing, ", ")));
}

std::string run_template() {
  std::vector<std::string> names, example;
  for (const RunColumn& column : kColumns) {
    names.emplace_back(column.name);
    example.push_back(cell_text(column.example));
  }
  return fmt::format("{}\n#{}\n", fmt::join(names, ","), fmt::join(example, ","));
}

}  // namespace qplan
