#pragma once
// A row of measured runs, as tests of how rows are read write it.

#include <map>
#include <string>

#include "planner/runs/measured_runs.h"

namespace qplan {

using Cells = std::map<std::string, std::string>;

// A small dense model on one node, by Megatron-Core; what a test does not say is like this.
inline CsvTable one_run(const Cells& changes) {
  Cells cells{{"id", "a-1"},
              {"grade", "A"},
              {"hardware", "h100-sxm"},
              {"recipe", "megatron"},
              {"base_model", ""},
              {"mlp", "swiglu"},
              {"norm", "rmsnorm"},
              {"precision_words", "bf16"},
              {"layers", "8"},
              {"hidden", "1024"},
              {"heads", "8"},
              {"ffn", "4096"},
              {"vocab", "32000"},
              {"seq_len", "2048"},
              {"num_gpus", "8"},
              {"gpus_per_node", "8"},
              {"global_batch", "64"},
              {"tp", "1"},
              {"pp", "1"}};
  for (const char* empty : {"head_dim",
                            "zero",
                            "fsdp",
                            "recompute_words",
                            "offload_words",
                            "routing",
                            "dispatcher",
                            "overlap",
                            "cuda_graph",
                            "mem_gib",
                            "mem_kind",
                            "model",
                            "params_b",
                            "kv_heads",
                            "experts",
                            "topk",
                            "moe_ffn",
                            "sp",
                            "vpp",
                            "cp",
                            "ep",
                            "etp",
                            "micro_batch",
                            "other_flags",
                            "step_time_s",
                            "tokens_per_s_per_gpu",
                            "notes",
                            "recompute",
                            "status"}) {
    cells[empty];
  }
  for (const auto& [column, cell] : changes) cells[column] = cell;
  CsvTable table;
  table.where = "t.csv";
  table.rows.push_back({2, {}});
  for (const auto& [column, cell] : cells) {
    table.columns.push_back(column);
    table.rows.front().cells.push_back(cell);
  }
  return table;
}

inline MeasuredRun read(const Cells& changes) {
  return read_measured_runs(one_run(changes)).front();
}

}  // namespace qplan
