// What nanotron refuses of its YAML, whatever the model.

#include <algorithm>
#include <cmath>

#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kConfig = "nanotron 2411b022, src/nanotron/config/config.py";
constexpr std::string_view kModels = "nanotron 2411b022, src/nanotron/config/models_config.py";

constexpr std::string_view kShapes = "model.model_config.";

double nano_shape(const Case& c, std::string_view name, double otherwise) {
  return c.figure(std::string(kShapes) + std::string(name), otherwise);
}

bool is_null(const Case& c, std::string_view key) {
  const Setting* const said = c.part.settings.find(key);
  return said == nullptr || said->value.is_null();
}

bool is_none_of(const Case& c, std::string_view key, std::string_view words) {
  if (is_null(c, key)) return false;
  const Setting* const said = c.part.settings.find(key);
  const auto known = words_at_commas(words);
  return std::find(known.begin(), known.end(), text_of(said->value)) == known.end();
}

constexpr auto kNanotronTraps = std::to_array<Trap>({
    {"option_needs", error, "parallelism.tp_linear_async_communication",
     [](const Case& c) {
       return c.on("parallelism.tp_linear_async_communication") &&
              c.word("parallelism.tp_mode", "all_reduce") == "all_reduce";
     },
     "asynchronous communication of tensor parallelism is not there in mode ALL_REDUCE, which is "
     "nanotron's own where none is said: it stops",
     "tp_mode: REDUCE_SCATTER",
     "nanotron 2411b022, src/nanotron/parallel/tensor_parallel/nn.py:146"},
    {"expert_parallel_mesh", error, "parallelism.expert_parallel_size",
     [](const Case& c) {
       // Examples of older releases bring a class of their own, and its program.
       return c.figure("parallelism.expert_parallel_size", 1) > 1 &&
              !c.has("model.model_config.is_llamoe_config");
     },
     "nanotron asks for tp x cp x dp x pp ranks and then orders them by expert_parallel_size too: "
     "above 1 it stops",
     "expert_parallel_size: 1", "nanotron 2411b022, src/nanotron/parallel/context.py:64"},
    {"refused_value", error, "metrics_logging.log_level",
     [](const Case& c) { return is_none_of(c, "metrics_logging.log_level", "0,1"); },
     "metrics_logging.log_level is 0 or 1", "log_level: 0", kConfig},
    {"refused_value", error, "metrics_logging.log_detail_interval",
     [](const Case& c) { return c.figure("metrics_logging.log_detail_interval", 10) <= 0; },
     "metrics_logging.log_detail_interval must be above 0", "log_detail_interval: 10", kConfig},
    {"option_needs", error, "model.model_config.ring_attn_heads_k_stride",
     [](const Case& c) {
       return !is_null(c, "model.model_config.ring_attn_heads_k_stride") &&
              c.word("model.model_config._attn_implementation") != "llama3_ring_attention";
     },
     "ring_attn_heads_k_stride is for _attn_implementation llama3_ring_attention alone, and "
     "nanotron stops",
     "leave it out", kModels},
    {"option_needs", error, "model.model_config._attn_implementation",
     [](const Case& c) {
       return c.is("model.model_config._attn_implementation", "llama3_ring_attention") &&
              is_null(c, "model.model_config.ring_attn_heads_k_stride");
     },
     "llama3_ring_attention needs ring_attn_heads_k_stride", "ring_attn_heads_k_stride: 1",
     kModels},
    {"option_needs", error, "model.model_config.flex_attention_mask",
     [](const Case& c) {
       return !is_null(c, "model.model_config.flex_attention_mask") &&
              !c.is("model.model_config._attn_implementation", "flex_attention");
     },
     "flex_attention_mask needs _attn_implementation flex_attention",
     "_attn_implementation: flex_attention", kModels},
    {"shape_heads", error, "model.model_config.num_attention_heads",
     [](const Case& c) {
       const double heads = nano_shape(c, "num_attention_heads", 32);
       const double tp = c.figure("parallelism.tp", 1);
       return heads > 0 && tp > 0 && std::fmod(heads, tp) != 0;
     },
     "num_attention_heads is no multiple of tp, and nanotron stops", "a tp that divides it",
     kConfig},
    {"shape_heads", error, "model.model_config.num_key_value_heads",
     [](const Case& c) {
       const double heads = nano_shape(c, "num_attention_heads", 32);
       const double groups = nano_shape(c, "num_key_value_heads", heads);
       return groups > 0 && std::fmod(heads, groups) != 0;
     },
     "num_attention_heads is no multiple of num_key_value_heads, and nanotron stops",
     "a number that divides num_attention_heads", kConfig},
    {"shape_heads", error, "model.model_config.num_key_value_heads",
     [](const Case& c) {
       const double groups = nano_shape(c, "num_key_value_heads", 0);
       const double tp = c.figure("parallelism.tp", 1);
       return groups > 0 && tp > 0 && std::fmod(groups, tp) != 0;
     },
     "num_key_value_heads is no multiple of tp, and nanotron stops", "a tp that divides it",
     "nanotron 2411b022, src/nanotron/models/llama.py:351"},
    {"shape_heads", error, "model.model_config.hidden_size",
     [](const Case& c) {
       const double heads = nano_shape(c, "num_attention_heads", 32);
       return heads > 0 && std::fmod(nano_shape(c, "hidden_size", 4096), heads) != 0;
     },
     "hidden_size is no multiple of num_attention_heads, and nanotron stops",
     "a multiple of num_attention_heads", "nanotron 2411b022, src/nanotron/models/llama.py:257"},
    {"refused_value", error, "model.model_config.moe_config.top_k",
     [](const Case& c) {
       return nano_shape(c, "moe_config.top_k", 2) > nano_shape(c, "moe_config.num_experts", 8);
     },
     "top_k is above num_experts, and nanotron stops", "a top_k up to num_experts", kModels},
    {"long_sequences", note, "tokens.sequence_length",
     [](const Case& c) {
       return c.figure("tokens.sequence_length", 0) >
              nano_shape(c, "max_position_embeddings", 2048);
     },
     "sequence_length is above max_position_embeddings, which the rotations are made for",
     "a sequence_length up to max_position_embeddings",
     "nanotron 2411b022, src/nanotron/models/llama.py:119"},
    {"profiled_steps", error, "profiler.profiler_export_path",
     [](const Case& c) {
       const double steps = c.figure("profiler.skip_first", 3) +
                            c.figure("profiler.repeat", 1) *
                                (c.figure("profiler.wait", 1) + c.figure("profiler.warmup", 1) +
                                 c.figure("profiler.active", 1));
       return !is_null(c, "profiler.profiler_export_path") &&
              c.figure("tokens.train_steps", steps) < steps;
     },
     "more steps are profiled (skip_first + repeat x (wait + warmup + active)) than train_steps, "
     "and nanotron stops",
     "a larger train_steps, or fewer profiled ones", kConfig},
    {"option_needs", error, "model.init_method.use_mup",
     [](const Case& c) { return !c.on("model.init_method.use_mup"); },
     "use_mup is false, and nanotron stops: left out, it is off", "leave it out", kModels},
});

}  // namespace

std::span<const Trap> nanotron_traps() {
  return kNanotronTraps;
}

}  // namespace qplan
