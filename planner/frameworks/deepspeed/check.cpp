// What ds_config.json means.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/deepspeed/check_accelerate.h"
#include "planner/frameworks/deepspeed/check_parameters.h"
#include "planner/frameworks/scene.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/spelled_values.h"

namespace qplan {
namespace {

using enum Severity;

struct Case {
  const Scene& scene;
  const ConfigPart& part;
  [[nodiscard]] const Setting* find(std::string_view key) const { return part.settings.find(key); }
  [[nodiscard]] bool has(std::string_view key) const { return part.settings.has(key); }
  [[nodiscard]] bool on(std::string_view key) const {
    const Setting* const found = find(key);
    return found != nullptr && !is_auto(key) && truth_of(found->value);
  }
  [[nodiscard]] bool is_auto(std::string_view key) const {
    const Setting* const found = find(key);
    return found != nullptr && text_of(found->value) == "auto";
  }
  [[nodiscard]] double number(std::string_view key, double otherwise) const {
    const Setting* const found = find(key);
    return found == nullptr || is_auto(key) ? otherwise : number_of(found->value);
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Setting* const found = find(key);
    return found == nullptr ? "" : text_of(found->value);
  }
  [[nodiscard]] int stage() const { return static_cast<int>(number("zero_optimization.stage", 0)); }
};

struct Trap {
  std::string_view rule;
  Severity severity;
  std::string_view at;
  bool (*springs)(const Case&);
  std::string_view message, instead, source;
  std::string_view value{};  // corrects `at`; for --fix
  bool drop = false;
};

bool is_one_bit(const std::string& written) {
  const std::string type = lower_case(written);
  return type.starts_with("onebit") || type.starts_with("zeroone");
}

bool is_one_of(const std::string& word, std::string_view list) {
  const std::string all = " " + std::string(list) + " ";
  return word.empty() || word == "auto" || all.find(" " + word + " ") != std::string::npos;
}

// DeepSpeed's own in any case, else a class of torch.optim (engine.py:2090,
// _configure_basic_optimizer).
bool is_optimizer(const std::string& type) {
  return is_one_of(
             lower_case(type),
             "adam adamw lamb onebitadam zerooneadam onebitlamb lion muon adagrad muadam muadamw "
             "musgd") ||
         is_one_of(type,
                   "Adadelta Adafactor Adagrad Adam AdamW SparseAdam Adamax ASGD SGD RAdam "
                   "Rprop RMSprop NAdam LBFGS Muon");
}

// ZERO_SUPPORTED_OPTIMIZERS, by the names that make them (mup's Adam is torch's).
bool is_tested_with_zero(const std::string& type) {
  return is_one_of(lower_case(type), "adam adamw adagrad lion muon muadam muadamw");
}

// Its own schedules, else a class of torch.optim.lr_scheduler.
bool is_scheduler(const std::string& type) {
  return is_one_of(type, "LRRangeTest OneCycle WarmupLR WarmupDecayLR WarmupCosineLR") ||
         is_one_of(type,
                   "LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR "
                   "ExponentialLR SequentialLR CosineAnnealingLR ChainedScheduler "
                   "ReduceLROnPlateau CyclicLR CosineAnnealingWarmRestarts OneCycleLR "
                   "PolynomialLR");
}

// accelerate has no word for the batch: its data loader does.
bool leaves_batch_open(const Case& c) {
  return !c.part.of_accelerate && !has_degrees_alone(c.part) && !c.has("train_batch_size") &&
         !c.has("train_micro_batch_size_per_gpu");
}

constexpr std::string_view kOldOffload = "old_offload";

// A model of today's kind in fp16, on a GPU that multiplies bf16 (since compute capability 8.0).
bool halves_beside_bf16(const Case& c) {
  const int capability = c.scene.question.limits.compute_capability;
  return c.on("fp16.enabled") && c.scene.question.model.position == PositionEmbedding::rope &&
         (capability == 0 || capability >= 80);
}

constexpr auto kTraps = std::to_array<Trap>({
    {"two_precisions", error, "fp16.enabled",
     [](const Case& c) { return c.on("bf16.enabled") && c.on("fp16.enabled"); },
     "bf16 and fp16 exclude each other", "switch one of them off",
     "DeepSpeed edaa7221, deepspeed/runtime/config.py:827"},
    {"amp_with_zero", error, "amp.enabled",
     [](const Case& c) { return c.on("amp.enabled") && c.stage() > 0; },
     "amp, which is NVIDIA Apex, and ZeRO exclude each other", "bf16 in place of amp",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:1984"},
    {"fp16_of_bf16_model", warning, "fp16.enabled",
     [](const Case& c) { return halves_beside_bf16(c) && !c.scene.question.model_of_files; },
     "fp16 overflows where the model was trained in bf16, and the GPU has bf16",
     "\"bf16\": {\"enabled\": true} in place of the fp16 block",
     "qplan: the model's config.json says torch_dtype bfloat16"},
    {"fp16_of_bf16_model", warning, "fp16.enabled",
     [](const Case& c) { return halves_beside_bf16(c) && c.scene.question.model_of_files; },
     "fp16 overflows where models of this kind are trained in bf16, and the GPU has bf16",
     "\"bf16\": {\"enabled\": true} in place of the fp16 block",
     "qplan: fp16 ends at 65504, and bf16 where fp32 does (IEEE 754)"},
    {"loss_scale_power", warning, "fp16.initial_scale_power",
     [](const Case& c) {
       return c.on("fp16.enabled") && c.number("fp16.initial_scale_power", 16) > 16;
     },
     "losses start scaled above the default 2^16, which fp16 cannot hold: the first steps overflow "
     "and are skipped",
     "leave initial_scale_power out",
     "DeepSpeed edaa7221, deepspeed/runtime/precision_config.py:135", "16"},
    {"communication_type", error, "communication_data_type",
     [](const Case& c) {
       const std::string type = c.text("communication_data_type");
       return !type.empty() && type != "fp16" && type != "bf16" && type != "fp32";
     },
     "communication_data_type must be fp16, bf16 or fp32; DeepSpeed stops", "fp16, bf16 or fp32",
     "DeepSpeed edaa7221, deepspeed/runtime/config.py:223"},
    {"options_exclude", error, "gradient_allreduce_op",
     [](const Case& c) {
       return c.text("gradient_allreduce_op") == "sum" &&
              c.number("zero_optimization.stage", 0) == 3;
     },
     "gradient_allreduce_op sum is refused at ZeRO-3; DeepSpeed stops", "\"avg\", its default",
     "DeepSpeed edaa7221, deepspeed/runtime/config.py:1031", "avg"},
    {"only_accumulation", error, "gradient_accumulation_steps",
     [](const Case& c) {
       return leaves_batch_open(c) && !c.is_auto("gradient_accumulation_steps");
     },
     "accumulation alone leaves the batch open, and DeepSpeed stops",
     "add train_micro_batch_size_per_gpu or train_batch_size",
     "DeepSpeed edaa7221, deepspeed/runtime/config.py:985"},
    {"batch_left_open", error, "",
     [](const Case& c) { return leaves_batch_open(c) && !c.has("gradient_accumulation_steps"); },
     "the batch is left open, and DeepSpeed stops",
     "add train_micro_batch_size_per_gpu or train_batch_size",
     "DeepSpeed edaa7221, deepspeed/runtime/config.py:985"},
    {"prefetch_bucket", warning, "zero_optimization.stage3_prefetch_bucket_size",
     [](const Case& c) {
       return c.stage() == 3 &&
              c.number("zero_optimization.stage3_prefetch_bucket_size", 5e7) >= 5e8;
     },
     "parameters are gathered ahead ten times further than the default 5e7: 1 GB in bf16 and more",
     "leave it out, or 5e7", "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:215",
     "50000000"},
    {"reduce_bucket", warning, "zero_optimization.reduce_bucket_size",
     [](const Case& c) { return c.number("zero_optimization.reduce_bucket_size", 5e8) > 1e9; },
     "the reduction bucket takes 2 bytes an element on each GPU, twice with overlap_comm",
     "5e8 is the default", "DeepSpeed edaa7221, deepspeed/runtime/zero/stage_1_and_2.py:2493",
     "500000000"},
    {"stage_missing", warning, "",
     [](const Case& c) {
       return !c.has("zero_optimization.stage") &&
              c.part.settings.has_section("zero_optimization.stage3_");
     },
     "zero_optimization has keys of stage 3 and no stage: DeepSpeed takes 0, and shards nothing",
     "add \"stage\": 3", "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:95"},
    {"offload_said_twice", error, "zero_optimization.cpu_offload",
     [](const Case& c) {
       return c.has("zero_optimization.cpu_offload") &&
              c.part.settings.has_section("zero_optimization.offload_optimizer");
     },
     "cpu_offload is the old word for offload_optimizer, and both are refused together",
     "keep offload_optimizer", "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:202", "",
     true},
    {kOldOffload, note, "zero_optimization.cpu_offload",
     [](const Case& c) {
       return c.on("zero_optimization.cpu_offload") &&
              !c.part.settings.has_section("zero_optimization.offload_optimizer");
     },
     "cpu_offload is the old word for offload_optimizer with the device cpu, and still taken as it",
     "\"offload_optimizer\": {\"device\": \"cpu\"}",
     "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:202"},
    {kOldOffload, note, "zero_optimization.cpu_offload_param",
     [](const Case& c) {
       return c.on("zero_optimization.cpu_offload_param") &&
              !c.part.settings.has_section("zero_optimization.offload_param");
     },
     "cpu_offload_param is the old word for offload_param with the device cpu, and still taken as "
     "it",
     "\"offload_param\": {\"device\": \"cpu\"}",
     "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:181"},
    {"nvme_without_path", error, "zero_optimization.offload_optimizer.device",
     [](const Case& c) {
       return c.text("zero_optimization.offload_optimizer.device") == "nvme" &&
              !c.has("zero_optimization.offload_optimizer.nvme_path");
     },
     "states go to a drive that nothing names", "add nvme_path, a folder on the drive",
     "DeepSpeed edaa7221, deepspeed/runtime/swap_tensor/optimizer_utils.py"},
    {"nvme_without_path", error, "zero_optimization.offload_param.device",
     [](const Case& c) {
       return c.text("zero_optimization.offload_param.device") == "nvme" &&
              !c.has("zero_optimization.offload_param.nvme_path");
     },
     "parameters go to a drive that nothing names", "add nvme_path, a folder on the drive",
     "DeepSpeed edaa7221, deepspeed/runtime/swap_tensor/partitioned_param_swapper.py"},
    {"offload_below_stage", warning, "zero_optimization.offload_param.device",
     [](const Case& c) {
       const std::string device = c.text("zero_optimization.offload_param.device");
       return (device == "cpu" || device == "nvme") && c.stage() < 3 &&
              !c.is_auto("zero_optimization.stage");
     },
     "parameters are offloaded by stage 3 alone", "stage 3, or leave offload_param out",
     "DeepSpeed edaa7221, deepspeed/runtime/zero/offload_config.py"},
    {"offload_below_stage", warning, "zero_optimization.offload_optimizer.device",
     [](const Case& c) {
       return c.text("zero_optimization.offload_optimizer.device") == "nvme" && c.stage() < 3 &&
              !c.is_auto("zero_optimization.stage");
     },
     "states go to a drive by stage 3 alone", "stage 3, or the device cpu",
     "DeepSpeed edaa7221, deepspeed/runtime/zero/offload_config.py"},
    {"clipping_in_optimizer", error, "optimizer.params.max_grad_norm",
     [](const Case& c) { return c.has("optimizer.params.max_grad_norm"); },
     "the optimizer refuses max_grad_norm", "gradient_clipping at the top",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2090", "", true},
    {"unknown_optimizer", error, "optimizer.type",
     [](const Case& c) { return !is_optimizer(c.text("optimizer.type")); },
     "neither DeepSpeed nor torch.optim has an optimizer of that name", "AdamW",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2090"},
    {"unknown_scheduler", error, "scheduler.type",
     [](const Case& c) { return !is_scheduler(c.text("scheduler.type")); },
     "neither DeepSpeed nor torch has a learning-rate schedule of that name", "WarmupDecayLR",
     "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py"},
    {"one_bit_with_zero", error, "optimizer.type",
     [](const Case& c) { return is_one_bit(c.text("optimizer.type")) && c.stage() > 0; },
     "optimizers that compress gradients exclude ZeRO", "AdamW",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2152", "AdamW"},
    {"untested_optimizer", error, "optimizer.type",
     [](const Case& c) {
       const std::string type = c.text("optimizer.type");
       return is_optimizer(type) && !is_tested_with_zero(type) && !is_one_bit(type) &&
              c.stage() > 0 && !c.on("zero_allow_untested_optimizer");
     },
     "ZeRO refuses optimizers that it was not tested with: all but Adam, AdamW, Adagrad, Lion and "
     "Muon",
     "AdamW, or \"zero_allow_untested_optimizer\": true",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:1986, deepspeed/runtime/zero/utils.py:45"},
    {"adam_is_adamw", note, "optimizer.type",
     [](const Case& c) {
       return c.text("optimizer.type") == "Adam" && c.has("optimizer.params.weight_decay") &&
              !c.has("optimizer.params.adam_w_mode");
     },
     "DeepSpeed's Adam decays weights as AdamW does", "write AdamW",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2099", "AdamW"},
    {"options_exclude", error, "amp.enabled",
     [](const Case& c) {
       return c.on("amp.enabled") && (c.on("fp16.enabled") || c.on("bf16.enabled"));
     },
     "amp and fp16 or bf16 exclude each other", "keep one of them",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2003"},
    {"refused_value", error, "optimizer.params.betas",
     [](const Case& c) {
       const Json& betas = c.find("optimizer.params.betas")->value;
       return betas.is_array() && std::any_of(betas.begin(), betas.end(), [](const Json& beta) {
                return beta.is_number() && (beta.get<double>() < 0 || beta.get<double>() >= 1);
              });
     },
     "each of betas lies below 1: torch stops at others, and DeepSpeed's own Adam makes no numbers "
     "of them",
     "[0.9, 0.95], say", "PyTorch 2.11, torch/optim/adamw.py (Invalid beta parameter)"},
    {"mics_is_gone", warning, "zero_optimization.mics_shard_size",
     [](const Case& c) { return c.number("zero_optimization.mics_shard_size", -1) > 0; },
     "sharding in groups (MiCS) was taken out of DeepSpeed, which refuses the key since 0.19.8",
     "zero_hpz_partition_size keeps a second copy in the node",
     "DeepSpeed v0.19.8, deepspeed/runtime/zero/config.py (issue 8489)", "", true},
    {"hpz_size", error, "zero_optimization.zero_hpz_partition_size",
     [](const Case& c) {
       const double size = c.number("zero_optimization.zero_hpz_partition_size", 1);
       const auto gpus = static_cast<double>(c.scene.question.limits.gpus);
       return size > 1 && gpus > 0 &&
              gpus / size != static_cast<double>(static_cast<int>(gpus / size));
     },
     "the secondary partition must divide the GPUs", "the GPUs of a node",
     "DeepSpeed edaa7221, deepspeed/utils/groups.py:879"},
    {"auto_without_trainer", error, "",
     [](const Case& c) {
       // Arguments that are Megatron's say that no Trainer fills it in.
       const bool megatron = c.scene.files.find(Dialect::megatron_deepspeed) != nullptr;
       return megatron && std::any_of(c.part.settings.begin(), c.part.settings.end(),
                                      [](const Setting& s) { return text_of(s.value) == "auto"; });
     },
     "\"auto\" is filled in by Hugging Face's Trainer; DeepSpeed itself fails on it",
     "write the numbers", "DeepSpeed edaa7221, deepspeed/runtime/config.py:925"},
});

// Blocks that DeepSpeed takes apart by their keys (zero/config.py, precision_config.py).
constexpr std::array<std::string_view, 8> kBlocks = {"zero_optimization",
                                                     "zero_optimization.offload_optimizer",
                                                     "zero_optimization.offload_param",
                                                     "bf16",
                                                     "fp16",
                                                     "optimizer",
                                                     "data_types",
                                                     "activation_checkpointing"};

void check_blocks(const Case& c, Findings& out) {
  for (const std::string_view block : kBlocks) {
    const Setting* const found = c.find(block);
    if (found == nullptr || found->value.is_object()) continue;
    // What has a default may be null, and "zero_optimization": true once meant stage 1.
    const bool top = block.find('.') == std::string_view::npos;
    if (top ? found->value.is_boolean() && block == "zero_optimization" : found->value.is_null()) {
      continue;
    }
    out.push_back({error,
                   "block_is_no_object",
                   found->place,
                   fmt::format("{} is '{}', and DeepSpeed stops where it is no block of keys",
                               block, shown(text_of(found->value))),
                   fmt::format("\"{}\": {{...}}", block.substr(block.rfind('.') + 1)),
                   "DeepSpeed edaa7221, deepspeed/runtime/config_utils.py",
                   {}});
  }
}

// Keys that are handed on as they are read (get_scalar_param, and the parameters of optimizers and
// schedules), and reckoned with: a text stops the job. Blocks that are pydantic models
// (zero_optimization, fp16, bf16, tensor_parallel, comms_logger, compile) take "64" for 64.
struct PlainNumber {
  std::string_view key;  // with a dot behind it: all that stand in it
  std::string_view source;
};
constexpr std::array<PlainNumber, 9> kPlainNumbers{
    {{"train_batch_size", "DeepSpeed edaa7221, deepspeed/runtime/config.py:931"},
     {"train_micro_batch_size_per_gpu", "DeepSpeed edaa7221, deepspeed/runtime/config.py:933"},
     {"gradient_accumulation_steps", "DeepSpeed edaa7221, deepspeed/runtime/config.py:935"},
     {"steps_per_print", "DeepSpeed edaa7221, deepspeed/runtime/engine.py:3392"},
     {"gradient_clipping", "DeepSpeed edaa7221, deepspeed/runtime/engine.py:3327"},
     {"gradient_predivide_factor", "DeepSpeed edaa7221, deepspeed/runtime/engine.py:3672"},
     {"sequence_parallel_size", "DeepSpeed edaa7221, deepspeed/runtime/config.py:722"},
     {"optimizer.params.", "PyTorch 2.11, torch/optim/adamw.py (0.0 <= lr)"},
     {"scheduler.params.", "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py"}}};

void check_quoted_numbers(const Case& c, Findings& out) {
  for (const Setting& setting : c.part.settings) {
    const bool literal = setting.syntax == Syntax::json || setting.syntax == Syntax::python;
    if (!literal || !setting.resolved || !setting.value.is_string()) continue;
    const auto plain =
        std::find_if(kPlainNumbers.begin(), kPlainNumbers.end(), [&](const PlainNumber& number) {
          return number.key.ends_with('.') ? setting.key.starts_with(number.key)
                                           : setting.key == number.key;
        });
    const std::string digits = text_of(setting.value);
    if (plain == kPlainNumbers.end() || !is_number(digits)) continue;
    Correction fix;
    if (setting.text.end > setting.text.begin) {
      fix = Correction{{setting.place.file, setting.text.begin, setting.text.end, digits}};
    }
    out.push_back({error, "quoted_number", setting.place,
                   fmt::format("{} is the text \"{}\", and DeepSpeed reckons with it as it stands: "
                               "Python stops at a text among numbers",
                               setting.key, digits),
                   fmt::format("{}, without quotes", digits), std::string(plain->source),
                   std::move(fix)});
  }
}

constexpr Trap kStage3Keys{"stage3_keys",
                           note,
                           "zero_optimization.stage3_",
                           nullptr,
                           "means nothing below stage 3",
                           "leave it out",
                           "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:215"};

// Each by itself, as each is taken out. accelerate's own file always says what it saves by.
void check_stage3_keys(const Case& c, Findings& out) {
  if (c.part.derived || c.part.of_accelerate) return;
  try {
    if (!c.has("zero_optimization.stage") || c.is_auto("zero_optimization.stage") || c.stage() >= 3)
      return;
  } catch (const Error&) {
    return;  // a stage that is none is said elsewhere
  }
  for (const Setting& setting : c.part.settings) {
    if (!setting.key.starts_with(kStage3Keys.at) || c.find(setting.key) != &setting) continue;
    out.push_back({kStage3Keys.severity, std::string(kStage3Keys.rule), setting.place,
                   fmt::format("{} {}", setting.key, kStage3Keys.message),
                   std::string(kStage3Keys.instead), std::string(kStage3Keys.source),
                   removed(c.scene, c.part, setting)});
  }
}

// DeepSpeed's name of a format that another one spells.
Correction named_format(const Scene& scene, const Setting& setting) {
  const std::string meant = certain_choice(text_of(setting.value), {"fp16", "bf16", "fp32"});
  return meant.empty() ? Correction{} : with_value(scene, setting, meant);
}

// The old key as the block that it stands for.
Correction as_block(const Setting& setting, std::string_view block) {
  const bool whole = setting.syntax == Syntax::json && setting.whole.end > setting.whole.begin;
  if (!whole) return {};
  return Correction{
      {setting.place.file, setting.whole.begin, setting.whole.end, std::string(block)}};
}

}  // namespace

namespace {

// "auto" is filled in by transformers and accelerate, which read strict JSON (json.load).
void harden_json(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::ds_config) continue;
    const bool filled_in =
        std::any_of(part.settings.begin(), part.settings.end(),
                    [](const Setting& setting) { return text_of(setting.value) == "auto"; });
    for (Finding& finding : out) {
      const bool strict =
          finding.rule == "json_trailing_comma" || finding.rule == "json_byte_order_mark";
      if (!filled_in || !strict || finding.place.file != part.place.file) continue;
      finding.severity = error;
      finding.source =
          "transformers 5.23.0, src/transformers/integrations/deepspeed.py (json.load)";
    }
  }
}

}  // namespace

void check_deepspeed(const Scene& scene, Findings& out) {
  harden_json(scene, out);
  check_deepspeed_file(scene, out);
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::ds_config) continue;
    const Case c{scene, part};
    check_blocks(c, out);
    check_quoted_numbers(c, out);
    check_stage3_keys(c, out);
    check_parameters(scene, part, out);
    for (const Trap& trap : kTraps) {
      bool springs = false;
      try {
        springs = (trap.at.empty() || c.has(trap.at)) && trap.springs(c);
      } catch (const Error&) {
        continue;
      }
      if (!springs) continue;
      const Setting* const at = c.find(trap.at);
      Correction fix;
      if (at != nullptr && !trap.value.empty())
        fix = with_value(scene, *at, std::string(trap.value));
      if (at != nullptr && trap.drop) fix = removed(scene, part, *at);
      if (trap.rule == "communication_type") fix = named_format(scene, *at);
      if (trap.rule == kOldOffload) fix = as_block(*at, trap.instead);
      out.push_back({trap.severity, std::string(trap.rule), at != nullptr ? at->place : part.place,
                     std::string(trap.message), std::string(trap.instead), std::string(trap.source),
                     std::move(fix)});
    }
  }
}

void list_deepspeed_traps(std::vector<TrapInfo>& out) {
  for (const Trap& trap : kTraps) out.push_back({trap.rule, trap.source});
  out.push_back({kStage3Keys.rule, kStage3Keys.source});
}

}  // namespace qplan
