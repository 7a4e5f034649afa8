#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/optimizer_names.h"
#include "planner/frameworks/own_words.h"

namespace qplan {
namespace {

using P = ParallelPlan;

bool offloads(const Subject& s) {
  return s.plan.offload.optimizer > 0;
}

Json device(const Subject& s) {
  return s.plan.offload.nvme ? "nvme" : "cpu";
}

void set_device(Draft& draft, const Json& value) {
  if (text_of(value) == "nvme") draft.plan.offload.nvme = true;
}

bool is_device(const Json& value) {
  const std::string name = text_of(value);
  return name == "cpu" || name == "nvme";
}

// Its names of formats, each of which may be long (runtime/config.py, DtypeEnum).
void set_grad_dtype(Draft& draft, const Json& value) {
  constexpr auto kNames =
      std::to_array<std::pair<std::string_view, DType>>({{"fp32", DType::fp32},
                                                         {"float32", DType::fp32},
                                                         {"torch.float32", DType::fp32},
                                                         {"float", DType::fp32},
                                                         {"bf16", DType::bf16},
                                                         {"bfloat16", DType::bf16},
                                                         {"torch.bfloat16", DType::bf16},
                                                         {"fp16", DType::fp16},
                                                         {"float16", DType::fp16},
                                                         {"torch.float16", DType::fp16},
                                                         {"half", DType::fp16}});
  const std::string name = text_of(value);
  const auto known =
      std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.first == name; });
  if (known == kNames.end()) refuse_word(name, "fp32, bf16, fp16");
  draft.plan.grad_dtype = known->second;
}

// Whose modules AutoEP knows, and by which preset (module_inject/auto_ep_presets); empty: nobody's.
std::string_view autoep_preset(const ModelSpec& model) {
  constexpr auto kPresets = std::to_array<std::pair<std::string_view, std::string_view>>(
      {{"deepseek_v2", "deepseek_v2"},
       {"deepseek_v3", "deepseek_v3"},
       {"mixtral", "mixtral"},
       {"qwen2_moe", "qwen3_moe"},
       {"qwen3_5_moe_text", "qwen3_5_moe"},
       {"qwen3_moe", "qwen3_moe"}});
  for (const auto& [architecture, preset] : kPresets) {
    if (architecture == model.architecture) return preset;
  }
  return "";
}

Json expert_preset(const Subject& s) {
  return if_true(s.plan.ep > 1, std::string(autoep_preset(s.model)));
}

// The Trainer wants micro-batch x accumulation x all ranks here, DeepSpeed x the ranks that have
// batches of their own: where tp or cp make them differ, both derive it.
Json whole_batch(const Subject& s) {
  const bool differ = s.recipe == RecipeKind::deepspeed && s.plan.tp * s.plan.cp > 1;
  return differ ? Json(nullptr) : Json(s.plan.global_batch_size);
}

constexpr auto kConfig = std::to_array<Option>({
    {"train_batch_size", "global_batch_size", whole_batch, set_count<&P::global_batch_size>},
    {"train_micro_batch_size_per_gpu", "micro_batch_size", plan_value<&P::micro_batch_size>,
     set_count<&P::micro_batch_size>},
    {"gradient_accumulation_steps", "",
     [](const Subject& s) { return Json(s.plan.num_microbatches()); },
     [](Draft& d, const Json& v) { d.accumulation = whole_of(v, 1, std::int64_t{1} << 30); }},
    {"zero_optimization.stage", "zero", plan_value<&P::zero>,
     [](Draft& d, const Json& v) { d.plan.zero = static_cast<int>(whole_of(v, 0, 3)); }},
    {"zero_optimization.overlap_comm", "overlap",
     [](const Subject& s) { return Json(s.plan.overlap.has(OverlapKind::grad)); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) {
         d.plan.overlap.add(OverlapKind::grad);
       } else {
         d.plan.overlap.remove(OverlapKind::grad);
       }
     }},
    {"zero_optimization.mics_shard_size", "fsdp_shard",
     [](const Subject& s) { return if_true(s.plan.fsdp_shard > 0, s.plan.fsdp_shard); },
     [](Draft& d, const Json& v) {
       d.plan.fsdp_shard = std::max(0, static_cast<int>(whole_of(v, -1, 1 << 20)));
     }},
    {"zero_optimization.offload_optimizer.device", "offload",
     [](const Subject& s) { return offloads(s) ? device(s) : Json(nullptr); },
     [](Draft& d, const Json& v) {
       if (is_device(v)) d.plan.offload.optimizer = 1;
       set_device(d, v);
     }},
    {"zero_optimization.offload_optimizer.ratio", "offload",
     [](const Subject& s) {
       return if_true(offloads(s) && s.plan.offload.optimizer < 1, s.plan.offload.optimizer);
     },
     [](Draft& d, const Json& v) {
       if (d.plan.offload.optimizer > 0) d.plan.offload.optimizer = number_of(v);
     }},
    {"zero_optimization.offload_param.device", "offload",
     [](const Subject& s) { return s.plan.offload.params ? device(s) : Json(nullptr); },
     [](Draft& d, const Json& v) {
       d.plan.offload.params = is_device(v);
       set_device(d, v);
     }},
    // Deprecated, and turned into the blocks above (runtime/zero/config.py:181, :202).
    {"zero_optimization.cpu_offload", "offload", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.offload.optimizer = 1;
     }},
    {"zero_optimization.cpu_offload_param", "offload",
     [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.offload.params = true;
     }},
    {"bf16.enabled", "precision",
     [](const Subject& s) { return Json(s.plan.precision != Precision::fp16); },
     [](Draft& d, const Json& v) {
       // The weights' format; products in fp8 are said elsewhere.
       if (truth_of(v) && d.plan.precision == Precision::fp16) d.plan.precision = Precision::bf16;
     }},
    {"fp16.enabled", "precision",
     [](const Subject& s) { return Json(s.plan.precision == Precision::fp16); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.precision = Precision::fp16;
     }},
    {"data_types.grad_accum_dtype", "grad_dtype",
     [](const Subject& s) { return Json(std::string(to_word(s.plan.grad_dtype))); },
     set_grad_dtype},
    {"sequence_parallel_size", "cp",
     [](const Subject& s) { return if_true(s.plan.cp > 1, s.plan.cp); },
     [](Draft& d, const Json& v) {
       d.plan.cp = degree_of(v);
       if (d.plan.cp > 1) d.plan.cp_comm = CpComm::a2a;
     }},
    {"data_parallel_size", "dp", [](const Subject& s) { return if_true(s.plan.cp > 1, s.plan.dp); },
     [](Draft& d, const Json& v) { d.plan.dp = degree_of(v); }},
    {"tensor_parallel.autotp_size", "tp",
     [](const Subject& s) { return if_true(s.plan.tp > 1, s.plan.tp); }, set_degree<&P::tp>},
    {"expert_parallel.enabled", "", [](const Subject& s) { return if_true(s.plan.ep > 1); },
     [](Draft&, const Json&) {}},
    {"expert_parallel.autoep_size", "ep",
     [](const Subject& s) { return if_true(s.plan.ep > 1, s.plan.ep); }, set_degree<&P::ep>},
    {"expert_parallel.preset_model", "", expert_preset, [](Draft&, const Json&) {}},
    {"optimizer.type", "optimizer",
     [](const Subject& s) {
       const std::string_view name = deepspeed_optimizer(s.plan.optimizer);
       return if_true(!name.empty(), std::string(name));
     },
     read_optimizer},
    // torch's SGD keeps what Megatron's does where it has a momentum.
    {"optimizer.params.momentum", "optimizer",
     [](const Subject& s) {
       return if_true(s.plan.optimizer == OptimizerKind::sgd, kSgdMomentum);
     },
     [](Draft& d, const Json& v) {
       if (d.plan.optimizer != OptimizerKind::sgd || number_of(v) == 0) return;
       std::erase(d.assumed, optimizer_named("sgd").assumed);
       d.takes_less = false;
     }},
    // Gram Newton-Schulz, the default, multiplies less of what is not square.
    {"optimizer.params.ns_method", "optimizer",
     [](const Subject& s) {
       return if_true(s.plan.optimizer == OptimizerKind::muon, std::string("standard"));
     },
     [](Draft&, const Json&) {}},
});

constexpr auto kConfigLimits = std::to_array<Limit>({
    {"no_pipeline_of_modules", [](const Subject& s) { return s.plan.pp > 1; },
     [](const Subject& s) {
       return fmt::format(
           "DeepSpeed's pipeline (pp {}) needs a model written as PipelineModule, which Hugging "
           "Face's are not; use pp 1, or megatron",
           s.plan.pp);
     }},
    {"autoep_presets",
     [](const Subject& s) { return s.plan.ep > 1 && autoep_preset(s.model).empty(); },
     [](const Subject& s) {
       return fmt::format("DeepSpeed's AutoEP has no preset for {}; use ep 1",
                          s.model.architecture);
     }},
    {"mics_is_gone", [](const Subject& s) { return s.plan.fsdp_shard > 0; },
     [](const Subject&) {
       return std::string(
           "DeepSpeed shards over all of dp: its groups (MiCS) are gone since 0.19.8; leave "
           "fsdp_shard out");
     }},
    {"one_overlap",
     [](const Subject& s) {
       const auto& o = s.plan.overlap;
       return o.has(OverlapKind::param) || o.has(OverlapKind::tp) || o.has(OverlapKind::ep);
     },
     [](const Subject&) {
       return std::string("DeepSpeed has one switch, overlap_comm; use overlap=grad or none");
     }},
    {"sequence_parallel_of_autotp", [](const Subject& s) { return s.plan.sequence_parallel; },
     [](const Subject&) {
       return std::string("AutoTP does not split norms; leave sequence_parallel out");
     }},
    {"dispatcher_of_modules",
     [](const Subject& s) {
       return s.model.moe && s.plan.moe_dispatcher != MoeDispatcher::alltoall;
     },
     [](const Subject&) {
       return std::string("DeepSpeed exchanges tokens by alltoall; use moe_dispatcher=alltoall");
     }},
    {"states_of_deepspeed",
     [](const Subject& s) {
       const DType half = s.plan.precision == Precision::fp16 ? DType::fp16 : DType::bf16;
       return s.plan.moment_dtype != DType::fp32 || s.plan.main_params_dtype != DType::fp32 ||
              (s.plan.grad_dtype != DType::fp32 && s.plan.grad_dtype != half);
     },
     [](const Subject&) {
       return std::string(
           "DeepSpeed keeps master weights and moments in fp32, and gradients in fp32 or in the "
           "format of the weights");
     }},
});

// ---- the Trainer ----

constexpr auto kTrainer = std::to_array<Option>({
    {"--per_device_train_batch_size", "micro_batch_size", plan_value<&P::micro_batch_size>,
     set_count<&P::micro_batch_size>},
    {"--gradient_accumulation_steps", "",
     [](const Subject& s) { return Json(s.plan.num_microbatches()); },
     [](Draft& d, const Json& v) { d.accumulation = whole_of(v, 1, std::int64_t{1} << 30); }},
    // run_clm.py packs texts into blocks; sft_vlm.py cuts samples of images and text.
    {"--block_size", "seq_len",
     [](const Subject& s) { return if_true(!s.model.vision, s.plan.seq_len); },
     set_count<&P::seq_len>},
    {"--max_length", "seq_len",
     [](const Subject& s) { return if_true(s.model.vision.has_value(), s.plan.seq_len); },
     set_count<&P::seq_len>},
    {"--bf16", "precision",
     [](const Subject& s) { return if_true(s.plan.precision != Precision::fp16); },
     [](Draft& d, const Json& v) {
       if (truth_of(v) && d.plan.precision == Precision::fp16) d.plan.precision = Precision::bf16;
     }},
    {"--fp16", "precision",
     [](const Subject& s) { return if_true(s.plan.precision == Precision::fp16); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.precision = Precision::fp16;
     }},
    {"--gradient_checkpointing", "recompute",
     [](const Subject& s) {
       const bool full = s.plan.recompute.kind == RecomputeKind::full;
       return if_true(full && s.recipe == RecipeKind::deepspeed);  // accelerate's file has its own
     },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.recompute = {RecomputeKind::full, {}, 0};
     }},
    // These two, and what a Trainer does where they are not said, settle_trainer_habits reads.
    {"--gradient_checkpointing_kwargs", "",
     [](const Subject& s) {
       // Of FSDP accelerate's file says where checkpoints lie.
       const bool host = s.plan.offload.activation_layers != 0 && !kTorch.has(s.recipe);
       const bool again = s.plan.use_reentrant;
       return if_true(again || host,
                      fmt::format("{{{}{}{}}}", again ? R"("use_reentrant": true)" : "",
                                  again && host ? ", " : "", host ? R"("offload": true)" : ""));
     },
     [](Draft&, const Json&) {}},
    {"--accelerator_config", "",
     [](const Subject& s) {
       const bool each = s.plan.sync_each_batch;
       const bool says = kTorch.has(s.recipe) && (!each || s.plan.num_microbatches() > 1);
       return if_true(
           says,
           fmt::format(R"({{"gradient_accumulation_kwargs": {{"sync_each_batch": {}}}}})", each));
     },
     [](Draft&, const Json&) {}},
    // Of what DeepSpeed's own file has no name for, and accelerate's none at all. bitsandbytes'
    // optimizers know no shards of FSDP2's; torchao's do.
    {"--optim", "optimizer",
     [](const Subject& s) {
       const bool narrow = s.plan.optimizer == OptimizerKind::adam8bit;
       const bool deepspeed = s.recipe == RecipeKind::deepspeed;
       return if_true(narrow, std::string(deepspeed ? "adamw_bnb_8bit" : "adamw_torch_8bit"));
     },
     read_optimizer},
    {"--torch_compile", "compile", [](const Subject& s) { return if_true(s.plan.compile); },
     [](Draft& d, const Json& v) { d.plan.compile = truth_of(v); }},
});

constexpr auto kTrainerLimits = std::to_array<Limit>({
    {"checkpointing_of_modules",
     [](const Subject& s) {
       const Recompute& r = s.plan.recompute;
       return r.kind == RecomputeKind::selective || r.layers > 0;
     },
     [](const Subject& s) {
       return fmt::format(
           "Hugging Face modules checkpoint every layer or none; use recompute=full or none, not "
           "{}",
           to_string(s.plan.recompute));
     }},
    {"kernels_of_modules",
     [](const Subject& s) {
       return s.plan.loss != LossKind::by_framework ||
              s.plan.module_kernels != ModuleKernels::eager || s.plan.fp32_norms;
     },
     [](const Subject&) {
       return std::string(
           "qplan writes Hugging Face's modules as they are, with their own loss; leave loss, "
           "module_kernels and fp32_norms out");
     }},
});

// Under "deepspeed_config." of accelerate's yaml, and in ds_config.json.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kAccelerateNames{
    {{"zero_stage", "zero_optimization.stage"},
     {"gradient_accumulation_steps", "gradient_accumulation_steps"},
     {"gradient_clipping", "gradient_clipping"},
     {"offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
     {"offload_param_device", "zero_optimization.offload_param.device"},
     {"zero3_save_16bit_model", "zero_optimization.stage3_gather_16bit_weights_on_model_save"}}};

}  // namespace

std::span<const Option> deepspeed_options() {
  return kConfig;
}

std::span<const Limit> deepspeed_limits() {
  return kConfigLimits;
}

void settle_deepspeed(Draft& draft, const Settings& settings) {
  // Stages below the third are handed no offload_param (runtime/engine.py:1777 at 38327e07f), which
  // a warning says: their parameters stay.
  if (draft.plan.zero < 3) {
    draft.plan.offload.params = false;
    if (draft.plan.offload.optimizer == 0) draft.plan.offload.nvme = false;
  }
  if (!settings.has("zero_optimization.overlap_comm") && draft.plan.zero < 3) {
    draft.plan.overlap.remove(OverlapKind::grad);
  }
  if (!settings.has("data_types.grad_accum_dtype")) {
    const bool half = draft.plan.precision == Precision::fp16;
    draft.plan.grad_dtype = half ? DType::fp16 : DType::bf16;  // the weights' (engine.py:1485)
  }
}

Settings deepspeed_settings(const Settings& accelerate) {
  Settings result;
  for (const auto& [name, key] : kAccelerateNames) {
    const Setting* const found = accelerate.find("deepspeed_config." + std::string(name));
    if (found == nullptr) continue;
    Setting setting = *found;
    setting.key = key;
    result.add(std::move(setting));
  }
  // Of a stage that nobody says DeepSpeedPlugin takes the second (accelerate 1.15.0,
  // utils/dataclasses.py).
  const bool elsewhere = accelerate.has("deepspeed_config.deepspeed_config_file");
  if (!elsewhere && !result.has("zero_optimization.stage")) {
    const Setting* const type = accelerate.find("distributed_type");
    result.add({"zero_optimization.stage", 2, type == nullptr ? Place{} : type->place});
  }
  if (const Setting* const mixed = accelerate.find("mixed_precision")) {
    Setting setting = *mixed;
    setting.key = text_of(mixed->value) + ".enabled";
    setting.value = true;
    setting.whole = setting.text = setting.name = {};  // which the yaml spells otherwise
    const bool format = text_of(mixed->value) == "bf16" || text_of(mixed->value) == "fp16";
    if (format) result.add(std::move(setting));
  }
  return result;
}

std::span<const Option> trainer_options() {
  return kTrainer;
}

std::span<const Limit> trainer_limits() {
  return kTrainerLimits;
}

}  // namespace qplan
