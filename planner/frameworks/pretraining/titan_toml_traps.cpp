// What torchtitan 0.2.1 refuses of its TOML, whatever the model.

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr auto kTitanTomlTraps = std::to_array<Trap>({
    {"option_needs", error, "parallelism.enable_async_tensor_parallel",
     [](const Case& c) {
       return c.on("parallelism.enable_async_tensor_parallel") && !c.on("compile.enable") &&
              !c.on("training.compile") && c.figure("parallelism.tensor_parallel_degree", 1) > 1;
     },
     "async tensor parallelism is made by the compiler, which is not on: torchtitan stops",
     "enable = true in [compile]",
     "torchtitan 81af8833d, torchtitan/distributed/tensor_parallel.py:21"},
    {"batch_divisibility", error, "training.local_batch_size",
     [](const Case& c) {
       const double local = c.figure("training.local_batch_size", 8);
       const double micro = c.figure("parallelism.pipeline_parallel_microbatch_size", 1);
       return c.figure("parallelism.pipeline_parallel_degree", 1) > 1 && micro > 0 &&
              std::fmod(local, micro) != 0;
     },
     "local_batch_size is no multiple of pipeline_parallel_microbatch_size, and torchtitan stops",
     "a pipeline_parallel_microbatch_size that divides it",
     "torchtitan 81af8833d, torchtitan/distributed/pipeline_parallel.py:190"},
    {"refused_value", error, "checkpoint.keep_latest_k",
     [](const Case& c) {
       return (c.on("checkpoint.enable") || c.on("checkpoint.enable_checkpoint")) &&
              c.figure("checkpoint.keep_latest_k", 10) == 1;
     },
     "checkpoint.keep_latest_k is 1, and the last checkpoint may be half written: torchtitan stops",
     "keep_latest_k = 2, or 0, which keeps all",
     "torchtitan 81af8833d, torchtitan/components/checkpoint.py:300"},
    {"options_exclude", error, "optimizer.early_step_in_backward",
     [](const Case& c) {
       return c.on("optimizer.early_step_in_backward") &&
              (c.figure("parallelism.pipeline_parallel_degree", 1) > 1 ||
               c.figure("parallelism.expert_parallel_degree", 1) > 1 ||
               c.on("fault_tolerance.enable"));
     },
     "optimizers in the backward go with no stages, no spread experts and no TorchFT",
     "early_step_in_backward = false",
     "torchtitan 81af8833d, torchtitan/components/optimizer.py:276"},
    {"option_needs", error, "activation_checkpoint.mode",
     [](const Case& c) {
       return c.is("activation_checkpoint.mode", "memory_budget") && !c.on("compile.enable");
     },
     "mode memory_budget is the compiler's, which is not on: torchtitan stops",
     "enable = true in [compile]",
     "torchtitan 81af8833d, torchtitan/distributed/activation_checkpoint.py:214"},
    {"refused_value", error, "activation_checkpoint.selective_ac_option",
     [](const Case& c) {
       const std::string option = c.word("activation_checkpoint.selective_ac_option");
       const bool digits = !option.empty() && std::all_of(option.begin(), option.end(), [](char d) {
         return d >= '0' && d <= '9';
       });
       return c.is("activation_checkpoint.mode", "selective", "selective") && option != "op" &&
              !digits;
     },
     "selective_ac_option is \"op\", or a number of layers in quotes", "\"op\"",
     "torchtitan 81af8833d, torchtitan/distributed/activation_checkpoint.py:180"},
    {"options_exclude", error, "quantize.linear.float8.enable_fsdp_float8_all_gather",
     [](const Case& c) {
       const Setting* const all = c.part.settings.find("model.converters");
       const auto names = all == nullptr ? std::vector<std::string>() : list_of(all->value);
       return c.on("quantize.linear.float8.enable_fsdp_float8_all_gather") &&
              c.has("quantize.linear.float8.recipe_name") &&
              std::find(names.begin(), names.end(), "quantize.linear.float8") != names.end();
     },
     "float8's recipe_name and enable_fsdp_float8_all_gather exclude each other, and torchtitan "
     "stops",
     "keep one of them", "torchtitan 81af8833d, torchtitan/components/quantization/float8.py:66"},
    {"refused_value", error, "validation.steps",
     [](const Case& c) {
       const double steps = c.figure("validation.steps", -1);
       return steps != -1 && steps <= 0;
     },
     "validation.steps must be above 0, or -1 for all of the data", "steps = -1",
     "torchtitan 81af8833d, torchtitan/config/job_config.py (Validation)"},
    {"option_needs", error, "training.dataloader.persistent_workers",
     [](const Case& c) {
       return c.on("training.dataloader.persistent_workers") &&
              c.figure("training.dataloader.num_workers", 0) == 0;
     },
     "persistent_workers needs num_workers, and PyTorch's DataLoader stops", "num_workers = 1",
     "PyTorch 2.11, torch/utils/data/dataloader.py (persistent_workers)"},
});

}  // namespace

std::span<const Trap> titan_toml_traps() {
  return kTitanTomlTraps;
}

}  // namespace qplan
