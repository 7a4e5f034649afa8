// What NeMo AutoModel refuses of its own YAML.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;
using Trap = FineTuningTrap;

constexpr std::string_view kNemoDist =
    "NeMo-AutoModel 36044ad3, nemo_automodel/recipes/_dist_utils.py";
constexpr std::string_view kNemoMesh =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/distributed/mesh_utils.py";
constexpr std::string_view kNemoPeft =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/_peft/module_matcher.py";
constexpr std::string_view kNemoPipe =
    "NeMo-AutoModel 36044ad3, nemo_automodel/components/distributed/pipelining/autopipeline.py";
constexpr std::string_view kNemoTrain =
    "NeMo-AutoModel 36044ad3, nemo_automodel/recipes/llm/train_ft.py";

bool is_megatron_fsdp(const Case& c) {
  return c.is("distributed.strategy", "megatron_fsdp") ||
         c.is("distributed.strategy", "megatron-fsdp") || c.is("distributed.strategy", "mfsdp");
}

// Whether the last part of a pattern ("*.layers.0.*_porj") is one letter away from the end of a
// module's name, and none ends so.
bool is_slip_of_module(const std::string& pattern) {
  constexpr std::array<std::string_view, 11> kModules{
      "q_proj",  "k_proj",    "v_proj",       "o_proj",  "qkv_proj",  "gate_proj",
      "up_proj", "down_proj", "gate_up_proj", "lm_head", "linear_qkv"};
  const std::string last = pattern.substr(pattern.rfind('.') + 1);  // npos + 1: the whole
  const std::size_t star = last.rfind('*');
  const std::string end = last.substr(star + 1);  // npos + 1: the whole
  constexpr std::size_t kShortest = 4;
  if (end.size() < kShortest) return false;
  bool near = false;
  for (const std::string_view module : kModules) {
    for (std::size_t size = end.size() - 1; size <= end.size() + 1; ++size) {
      if (size > module.size() || (star == std::string::npos && size != module.size())) continue;
      const std::string_view tail = module.substr(module.size() - size);
      if (tail == end) return false;
      near = near || is_slip(end, tail);
    }
  }
  return near;
}

bool has_slip_of_target(const Case& c) {
  const std::vector<std::string> patterns =
      list_of(c.part.settings.find("peft.target_modules")->value);
  return std::any_of(patterns.begin(), patterns.end(), is_slip_of_module);
}

// Of one of these, and none of them itself.
template <std::size_t N>
bool is_slip_of(const std::string& name, const std::array<std::string_view, N>& known) {
  const auto is = [&](std::string_view real) { return real == name; };
  const auto near = [&](std::string_view real) { return is_slip(name, real); };
  return std::none_of(known.begin(), known.end(), is) &&
         std::any_of(known.begin(), known.end(), near);
}

// In any case of letters.
constexpr std::array<std::string_view, 9> kSchedules{
    "1f1b",      "interleaved1f1b",        "gpipe",
    "loopedbfs", "interleavedzerobubble",  "zbvzerobubble",
    "dualpipev", "pipelineschedulesingle", "pipelineschedulemulti"};

constexpr std::array<std::string_view, 5> kDispatchers{"torch", "deepep", "hybridep", "uccl_ep",
                                                       "mok"};

constexpr auto kAutomodelTraps = std::to_array<Trap>({
    {"option_needs", error, "distributed.pp_size",
     [](const Case& c) {
       return c.figure("distributed.pp_size", 1) > 1 && !c.has("distributed.pipeline") &&
              !c.part.settings.has_section("distributed.pipeline.");
     },
     "pp_size above 1 needs a block distributed.pipeline, which says schedule and microbatch",
     "pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 1}", kNemoDist},
    {"idle_option", note, "distributed.pipeline.pp_schedule",
     [](const Case& c) { return c.figure("distributed.pp_size", 1) <= 1; },
     "distributed.pipeline does nothing with one stage", "pp_size above 1", kNemoDist},
    {"strategy_degrees", error, "distributed.pp_size",
     [](const Case& c) {
       return c.figure("distributed.pp_size", 1) > 1 &&
              (is_megatron_fsdp(c) || c.is("distributed.strategy", "ddp"));
     },
     "Megatron-FSDP and DDP have no pipeline stages", "strategy: fsdp2", kNemoMesh},
    {"strategy_degrees", error, "distributed.ep_size",
     [](const Case& c) {
       return c.figure("distributed.ep_size", 1) > 1 &&
              (is_megatron_fsdp(c) || c.is("distributed.strategy", "ddp"));
     },
     "Megatron-FSDP and DDP have no expert parallelism", "strategy: fsdp2", kNemoMesh},
    {"strategy_degrees", error, "distributed.dp_replicate_size",
     [](const Case& c) {
       return c.figure("distributed.dp_replicate_size", 1) > 1 &&
              (is_megatron_fsdp(c) || c.is("distributed.strategy", "ddp"));
     },
     "dp_replicate_size goes with FSDP2 alone", "strategy: fsdp2", kNemoMesh},
    {"strategy_degrees", error, "distributed.tp_size",
     [](const Case& c) {
       return c.figure("distributed.tp_size", 1) > 1 && c.is("distributed.strategy", "ddp");
     },
     "DDP has no tensor parallelism", "strategy: fsdp2", kNemoMesh},
    {"strategy_degrees", error, "distributed.cp_size",
     [](const Case& c) {
       return c.figure("distributed.cp_size", 1) > 1 && c.is("distributed.strategy", "ddp");
     },
     "DDP has no context parallelism", "strategy: fsdp2", kNemoMesh},
    {"option_needs", error, "distributed.activation_checkpointing",
     [](const Case& c) {
       return c.is("distributed.activation_checkpointing", "selective") && is_megatron_fsdp(c);
     },
     "selective checkpointing goes with FSDP2 and DDP alone", "activation_checkpointing: true",
     kNemoDist},
    {"replicas", error, "distributed.dp_replicate_size",
     [](const Case& c) {
       const double copies = c.figure("distributed.dp_replicate_size", 1);
       const double all = c.figure("distributed.dp_size", 0);
       return copies > 1 && all > 0 && (copies >= all || std::fmod(all, copies) != 0);
     },
     "dp_size is a multiple of dp_replicate_size, and larger: FSDP2 has no copies alone",
     "dp_replicate_size: the copies, dp_size: all data-parallel ranks", kNemoMesh},
    {"pipeline_batch", error, "distributed.pipeline.pp_microbatch_size",
     [](const Case& c) {
       const double micro = c.figure("distributed.pipeline.pp_microbatch_size", 1);
       return c.figure("distributed.pp_size", 1) > 1 && micro > 0 &&
              std::fmod(c.figure("step_scheduler.local_batch_size", 1), micro) != 0;
     },
     "local_batch_size is no whole number of pp_microbatch_size, and all of it passes through the "
     "stages at once",
     "local_batch_size: a multiple of pp_microbatch_size", kNemoPipe},
    {"refused_value", error, "distributed.pipeline.pp_schedule",
     [](const Case& c) {
       return is_slip_of(c.word("distributed.pipeline.pp_schedule"), kSchedules);
     },
     "torch has no such schedule of stages, and stops",
     "1f1b, interleaved1f1b, gpipe, loopedbfs, interleavedzerobubble, zbvzerobubble, dualpipev",
     "PyTorch 2.11, torch/distributed/pipelining/schedules.py (get_schedule_class)"},
    {"option_needs", error, "model._target_",
     [](const Case& c) {
       return c.word("model._target_").ends_with("from_pretrained") &&
              !c.has("model.pretrained_model_name_or_path");
     },
     "from_pretrained has no default of pretrained_model_name_or_path, and Python stops",
     "model.pretrained_model_name_or_path", kNemoTrain},
    {"refused_value", error, "distributed.activation_checkpointing",
     [](const Case& c) {
       constexpr std::array<std::string_view, 9> kWays{"true", "false", "full", "selective", "none",
                                                       "on",   "off",   "yes",  "no"};
       const std::string way = c.word("distributed.activation_checkpointing");
       return !way.empty() && way.find('$') == std::string::npos &&
              std::find(kWays.begin(), kWays.end(), way) == kWays.end();
     },
     "activation_checkpointing is true, false, full or selective", "activation_checkpointing: true",
     "NeMo-AutoModel 36044ad3, nemo_automodel/recipes/_dist_utils.py:69"},
    {"refused_value", error, "lr_scheduler.min_lr",
     [](const Case& c) {
       const double highest = c.figure("lr_scheduler.max_lr", c.figure("optimizer.lr", 0));
       return highest > 0 && c.figure("lr_scheduler.min_lr", 0) > highest;
     },
     "lr_scheduler.min_lr is above the optimizer's lr, and AutoModel stops",
     "a min_lr below optimizer.lr",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/optim/scheduler.py:91"},
    {"adapter_rank", error, "peft.dim", [](const Case& c) { return c.figure("peft.dim", 8) <= 0; },
     "adapters of rank 0 hold nothing, and their scale is alpha / dim: it stops", "dim: 8",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/_peft/lora.py:189"},
    {"unknown_option", error, "optimizer.learning_rate",
     [](const Case& c) { return c.word("optimizer._target_").starts_with("torch.optim."); },
     "torch's optimizers take no learning_rate, and Python stops", "lr",
     "PyTorch 2.11, torch/optim/adamw.py"},
    {"world_size", error, "distributed.dp_size",
     [](const Case& c) {
       const double gpus = static_cast<double>(c.scene.question.limits.gpus);
       const double all = c.figure("distributed.dp_size", 0) * c.figure("distributed.tp_size", 1) *
                          c.figure("distributed.cp_size", 1) * c.figure("distributed.pp_size", 1);
       // A teacher has a mesh of its own.
       const bool alone = c.word("recipe").find("distill") == std::string::npos &&
                          !c.part.settings.has_section("teacher");
       return alone && gpus > 0 && all > 0 && all != gpus;
     },
     "dp_size x tp_size x cp_size x pp_size are not the job's GPUs, and torch makes no such mesh",
     "dp_size: none, which takes what the others leave", kNemoMesh},
    {"refused_value", error, "checkpoint.model_save_format",
     [](const Case& c) {
       const std::string format = c.word("checkpoint.model_save_format", "safetensors");
       return format.find('$') == std::string::npos && format != "safetensors" &&
              format != "torch_save";
     },
     "checkpoint.model_save_format is safetensors or torch_save", "safetensors",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/checkpoint/config.py:170"},
    {"refused_value", warning, "model.backend.dispatcher",
     [](const Case& c) { return is_slip_of(c.word("model.backend.dispatcher"), kDispatchers); },
     "model.backend.dispatcher is none that AutoModel knows, and experts fall back to torch's",
     "torch, deepep, hybridep, uccl_ep or mok",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/models/common/utils.py:338"},
    {"options_exclude", error, "peft.exclude_modules",
     [](const Case& c) { return c.has("peft.target_modules"); },
     "target_modules and exclude_modules exclude each other", "keep one of them", kNemoPeft},
    {"unknown_target", error, "peft.target_modules",
     [](const Case& c) { return has_slip_of_target(c); },
     "a pattern of target_modules is a slip of a module's name and matches none: nothing is "
     "adapted "
     "there",
     "names as q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or *_proj for all",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/_peft/module_matcher.py"},
    {"options_exclude", error, "peft.match_all_linear",
     [](const Case& c) {
       return c.on("peft.match_all_linear") &&
              (c.has("peft.target_modules") || c.has("peft.exclude_modules"));
     },
     "match_all_linear takes neither target_modules nor exclude_modules", "keep one of them",
     kNemoPeft},
    {"option_needs", error, "loss_fn._target_",
     [](const Case& c) {
       return c.word("loss_fn._target_").find("fusedlinearcrossentropy") != std::string::npos &&
              !c.on("model.output_hidden_states") &&
              !c.on("model.text_config.output_hidden_states") &&
              // Its own models, which alone spread experts, hand them out; stages are asked to.
              !c.part.settings.has_section("model.backend.") &&
              c.figure("distributed.ep_size", 1) <= 1 && c.figure("distributed.pp_size", 1) <= 1 &&
              c.word("recipe").find("vlm") == std::string::npos;
     },
     "FusedLinearCrossEntropy reads hidden states, which the model has to hand out",
     "model.output_hidden_states: true", kNemoTrain},
    {"options_exclude", error, "qat.enabled",
     [](const Case& c) { return c.on("qat.enabled") && c.part.settings.has_section("peft."); },
     "quantisation-aware training does not go with adapters", "keep one of them", kNemoTrain},
    {"half_states", warning, "model.torch_dtype",
     [](const Case& c) {
       const std::string type = c.word("model.torch_dtype");
       const bool narrow =
           type.find("bf16") != std::string::npos || type.find("bfloat16") != std::string::npos;
       return narrow && !c.part.settings.has_section("peft.") &&
              c.word("optimizer._target_").starts_with("torch.optim.adam") &&
              c.scene.files.find(Dialect::accelerate) != nullptr &&
              c.word("recipe").find("benchmark") == std::string::npos;
     },
     "weights and Adam's moments stay in bf16, where small updates are rounded away",
     "torch_dtype: float32, whose products run in bf16 all the same",
     "NeMo-AutoModel 36044ad3, nemo_automodel/components/distributed/config.py"},
});

}  // namespace

std::span<const Trap> automodel_traps() {
  return kAutomodelTraps;
}

}  // namespace qplan
