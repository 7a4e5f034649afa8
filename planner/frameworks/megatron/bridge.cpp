#include "planner/frameworks/megatron/bridge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "models/ascii.h"
#include "planner/frameworks/megatron/bridge_adapters.h"
#include "planner/frameworks/megatron/bridge_implied.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/megatron/megatron.h"

namespace qplan {
namespace {

// switched: on in the recipes, so that false is said as well.
enum class Kind : std::uint8_t { plain, negated, dtype, switched };

struct Name {
  std::string_view flag, target;
  std::string_view left_out;  // what stands for a flag that is not there, over the recipe's own
  Kind kind = Kind::plain;
};

constexpr auto kNames = std::to_array<Name>({
    {"--tensor-model-parallel-size", "model.tensor_model_parallel_size", ""},
    {"--sequence-parallel", "model.sequence_parallel", "False"},
    {"--pipeline-model-parallel-size", "model.pipeline_model_parallel_size", ""},
    {"--num-virtual-stages-per-pipeline-rank", "model.virtual_pipeline_model_parallel_size",
     "None"},
    {"--pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", "None"},
    {"--mtp-num-layers", "model.mtp_num_layers", "None"},  // Qwen3-Next's recipe has one of its own
    {"--context-parallel-size", "model.context_parallel_size", ""},
    {"--cp-comm-type", "model.cp_comm_type", "None"},
    {"--expert-model-parallel-size", "model.expert_model_parallel_size", ""},
    {"--expert-tensor-parallel-size", "model.expert_tensor_parallel_size", ""},
    {"--micro-batch-size", "train.micro_batch_size", ""},
    {"--global-batch-size", "train.global_batch_size", ""},
    {"--seq-length", "dataset.seq_length", ""},
    // Of the two either one switches it on for both (training/config.py:2101).
    {"--use-distributed-optimizer", "ddp.use_distributed_optimizer", "False"},
    {"--use-distributed-optimizer", "optimizer.use_distributed_optimizer", "False"},
    {"--num-distributed-optimizer-instances", "ddp.num_distributed_optimizer_instances", "1"},
    {"--overlap-grad-reduce", "comm_overlap.overlap_grad_reduce", "False"},
    {"--overlap-param-gather", "comm_overlap.overlap_param_gather", "False"},
    {"--tp-comm-overlap", "comm_overlap.tp_comm_overlap", "False"},
    {"--overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm",
     "False"},
    {"--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", ""},
    {"--moe-flex-dispatcher-backend", "model.moe_flex_dispatcher_backend", ""},
    {"--moe-expert-capacity-factor", "model.moe_expert_capacity_factor", "None"},
    {"--moe-token-drop-policy", "model.moe_token_drop_policy", ""},
    {"--moe-permute-fusion", "model.moe_permute_fusion", "False", Kind::switched},
    {"--fp8-param-gather", "mixed_precision.fp8_param_gather", "False", Kind::switched},
    {kFp8Attention, kFp8Attention, ""},
    {"--no-gradient-accumulation-fusion", "model.gradient_accumulation_fusion", "True",
     Kind::negated},
    {"--recompute-granularity", "model.recompute_granularity", "None"},
    {"--recompute-method", "model.recompute_method", "None"},
    {"--recompute-num-layers", "model.recompute_num_layers", "None"},
    {"--recompute-modules", "model.recompute_modules", "None"},
    {"--grad-reduce-in-bf16", "mixed_precision.grad_reduce_in_fp32", "True", Kind::negated},
    {"--optimizer", "optimizer.optimizer", ""},
    {"--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer", "False"},
    {"--main-grads-dtype", "optimizer.main_grads_dtype", "torch.float32", Kind::dtype},
    {"--main-params-dtype", "optimizer.main_params_dtype", "torch.float32", Kind::dtype},
    {"--exp-avg-dtype", "optimizer.exp_avg_dtype", "torch.float32", Kind::dtype},
    {"--exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype", "torch.float32", Kind::dtype},
    {"--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload", "False"},
    {"--optimizer-offload-fraction", "optimizer.optimizer_offload_fraction", ""},
    {"--cpu-offloading-num-layers", "model.cpu_offloading_num_layers", ""},
    {"--fine-grained-activation-offloading", "model.fine_grained_activation_offloading", "False"},
    {"--offload-modules", "model.offload_modules", ""},
    {"--cuda-graph-impl", "model.cuda_graph_impl", "\"none\""},
    {"--cuda-graph-modules", "model.cuda_graph_scope", ""},
    {"--deterministic-mode", "model.deterministic_mode", "False"},
    {"--cross-entropy-loss-fusion", "model.cross_entropy_loss_fusion", "False"},
    {"--cross-entropy-fusion-impl", "model.cross_entropy_fusion_impl", ""},
});

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kDtypes{
    {{"fp32", "torch.float32"},
     {"bf16", "torch.bfloat16"},
     {"fp16", "torch.float16"},
     {"fp8", "torch.uint8"}}};

constexpr std::array<std::pair<Precision, std::string_view>, 5> kMixed{
    {{Precision::bf16, "bf16_mixed"},
     {Precision::fp16, "fp16_mixed"},
     {Precision::fp8, "bf16_with_fp8_current_scaling_mixed"},
     {Precision::mxfp8, "bf16_with_mxfp8_mixed"},
     {Precision::nvfp4, "bf16_with_nvfp4_mixed"}}};

std::string python(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return '"' + value.get<std::string>() + '"';
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const Json& item : value) items.push_back(python(item));
    return fmt::format("[{}]", fmt::join(items, ", "));
  }
  return text_of(value);
}

std::string python(const Name& name, const Json& value) {
  if (name.kind == Kind::negated) return value.get<bool>() ? "False" : "True";
  if (name.kind == Kind::plain || name.kind == Kind::switched) return python(value);
  for (const auto& [word, dtype] : kDtypes) {
    if (text_of(value) == word) return std::string(dtype);
  }
  return python(value);
}

// A value as Megatron's flag has it; null: the flag is not there.
Json as_flag(const Name& name, const PythonArgument& argument) {
  if (name.kind == Kind::dtype) {
    for (const auto& [word, dtype] : kDtypes) {
      if (argument.text == dtype) return std::string(word);
    }
    return nullptr;
  }
  if (name.kind == Kind::negated) {
    return argument.value.is_boolean() && !argument.value.get<bool>() ? Json(true) : Json(nullptr);
  }
  if (name.kind == Kind::switched) return argument.value;
  if (argument.value.is_boolean() && !argument.value.get<bool>()) return nullptr;
  return argument.value;
}

// Whether only a run can tell a number or a switch. (Names of other values are words of theirs.)
bool is_unknown(const Name& name, const PythonArgument& argument) {
  if (argument.text == kByRecipe) return true;
  if (argument.resolved || name.kind == Kind::dtype) return false;
  const KnownOption* const known = known_options("megatron").find(name.flag);
  return known != nullptr && (known->type == "int" || known->arity == "0");
}

// The model's own length and the data's, which are to be one.
constexpr std::array<std::string_view, 2> kLengths{"model.seq_length", "dataset.seq_length"};

// What a program may say beside what is written of a plan.
constexpr auto kReadAlone = std::to_array<Name>({
    {"--seq-length", kLengths.front(), ""},
    {"--decoder-first-pipeline-num-layers", "model.num_layers_in_first_pipeline_stage", ""},
    {"--decoder-last-pipeline-num-layers", "model.num_layers_in_last_pipeline_stage", ""},
    {"--account-for-embedding-in-pipeline-split", "model.account_for_embedding_in_pipeline_split",
     ""},
    {"--account-for-loss-in-pipeline-split", "model.account_for_loss_in_pipeline_split", ""},
    // Of the two either one switches it on (training/config.py:1484).
    {"--use-megatron-fsdp", "ddp.use_megatron_fsdp", ""},
    {"--use-megatron-fsdp", "dist.use_megatron_fsdp", ""},
    {"--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", ""},
});

std::vector<Name> names_read(std::string_view target) {
  std::vector<Name> names;
  const auto is_of = [&](const Name& name) { return name.target == target; };
  std::copy_if(kNames.begin(), kNames.end(), std::back_inserter(names), is_of);
  std::copy_if(kReadAlone.begin(), kReadAlone.end(), std::back_inserter(names), is_of);
  return names;
}

// A field by the name that it is read by.
std::string field_read(const std::string& target) {
  return target == "dataset.sequence_length" ? std::string(kLengths.back()) : target;
}

// Whether there are graphs for which a scope says what they hold.
bool captures(const std::vector<PythonAssignment>& fields) {
  return std::none_of(fields.begin(), fields.end(), [](const PythonAssignment& assignment) {
    return assignment.target == "model.cuda_graph_impl" &&
           text_of(assignment.value.value) == "none";
  });
}

bool recomputes_modules(const std::vector<PythonAssignment>& fields) {
  return std::any_of(fields.begin(), fields.end(), [](const PythonAssignment& assignment) {
    return assignment.target == "model.recompute_granularity" &&
           text_of(assignment.value.value) == "selective";
  });
}

// Where a program says what a flag does; empty: it is not known.
std::string field_of_flag(const std::string& flag) {
  constexpr std::array<std::string_view, 5> kFormats{"--bf16", "--fp16", "--fp8-format",
                                                     "--fp8-recipe", "--fp4-format"};
  constexpr std::array<std::string_view, 8> kOthers{
      "model", "train", "optimizer", "ddp", "dataset", "scheduler", "checkpoint", "tokenizer"};
  for (const Name& name : kNames) {
    if (name.flag == flag) return std::string(name.target);
  }
  for (const Name& name : kReadAlone) {
    if (name.flag == flag) return std::string(name.target);
  }
  if (std::find(kFormats.begin(), kFormats.end(), flag) != kFormats.end()) return "mixed_precision";
  std::string bare = flag.substr(std::min<std::size_t>(2, flag.size()));
  std::replace(bare.begin(), bare.end(), '-', '_');
  for (const std::string_view section : kOthers) {
    const std::string field = fmt::format("{}.{}", section, bare);
    if (known_options("bridge_fields").find(field) != nullptr) return field;
  }
  return "";
}

// What may be set elsewhere, and decides whether a plan can run at all.
void add_open(const BridgeProgram& program, Settings& settings) {
  constexpr std::array<std::string_view, 8> kDecisive{
      "--tensor-model-parallel-size", "--sequence-parallel", "--pipeline-model-parallel-size",
      "--context-parallel-size",      "--micro-batch-size",  "--expert-model-parallel-size",
      "--use-distributed-optimizer",  "--global-batch-size"};
  if (program.fields.empty()) return;
  const Place file{program.fields.front().value.place.file, 0};
  for (const Name& name : kNames) {
    const bool open = program.open_sections.contains(name.target.substr(0, name.target.find('.')));
    const bool decides =
        std::find(kDecisive.begin(), kDecisive.end(), name.flag) != kDecisive.end();
    const bool said = std::any_of(program.fields.begin(), program.fields.end(),
                                  [&](const auto& field) { return field.target == name.target; });
    if (!open || !decides || said || settings.has(name.flag)) continue;
    settings.add({std::string(name.flag), std::string(kElsewhere), file, {}, {}, false});
  }
}

// A sentence whose flags are spelled by a function, which may take of what stands behind them.
template <class Spell>
std::string respelled(std::string rest, const Spell& spell) {
  std::string text;
  while (!rest.empty()) {
    const bool begins =
        rest.starts_with("--") && (text.empty() || text.ends_with(' ') || text.ends_with('('));
    if (!begins) {
      text += rest.front();
      rest.erase(0, 1);
      continue;
    }
    const std::size_t end =
        std::min(rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), rest.size());
    const std::string flag = rest.substr(0, end);
    rest.erase(0, end);
    text += spell(flag, rest);
  }
  return text;
}

// Of models without a recipe: a relative's, with the model itself by AutoBridge, which reads its
// configuration (Megatron-Bridge 067f987d, models/llama, models/minimax_m2).
constexpr std::string_view kLlama2_13b = R"(AutoBridge.from_hf_pretrained(
        "meta-llama/Llama-2-13b-hf").to_megatron_provider(load_weights=False))";
constexpr std::string_view kLlama2_70b = R"(AutoBridge.from_hf_pretrained(
        "meta-llama/Llama-2-70b-hf").to_megatron_provider(load_weights=False))";
constexpr std::string_view kMiniMaxM2 = R"(AutoBridge.from_hf_pretrained(
        "MiniMaxAI/MiniMax-M2").to_megatron_provider(load_weights=False))";

constexpr auto kRecipes = std::to_array<BridgeRecipe>({
    {"deepseek-v2", "deepseek_v2_pretrain_128gpu_h100_bf16_config"},
    {"deepseek-v3", "deepseek_v3_pretrain_1024gpu_h100_bf16_config"},
    {"glm4.5", "glm45_355b_pretrain_128gpu_h100_bf16_config"},
    {"glm4.5-air", "glm45_air_106b_pretrain_32gpu_h100_bf16_config"},
    {"gpt-oss-120b", "gpt_oss_120b_pretrain_64gpu_h100_bf16_config"},
    {"gpt-oss-20b", "gpt_oss_20b_pretrain_16gpu_h100_bf16_config"},
    {"gpt3-175b", "gpt3_175b_pretrain_32gpu_h100_bf16_config"},
    {"kimi-k2", "kimi_k2_pretrain_512gpu_h100_bf16_config"},
    {"llama2-13b", "llama2_7b_pretrain_2gpu_h100_bf16_config", kLlama2_13b},
    {"llama2-70b", "llama2_7b_pretrain_2gpu_h100_bf16_config", kLlama2_70b},
    {"llama2-7b", "llama2_7b_pretrain_2gpu_h100_bf16_config"},
    {"llama3-405b", "llama31_405b_pretrain_256gpu_h100_bf16_config"},
    {"llama3-70b", "llama31_70b_pretrain_32gpu_h100_bf16_config"},
    {"llama3-8b", "llama31_8b_pretrain_2gpu_h100_bf16_config"},
    {"minimax-m2", "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config", kMiniMaxM2},
    {"moonlight-16b-a3b", "moonlight_16b_pretrain_16gpu_h100_bf16_config"},
    {"nemotron-3-nano-30b-a3b", "nemotron_3_nano_pretrain_8gpu_h100_bf16_config"},
    {"nemotron-3-super-120b-a12b", "nemotron_3_super_pretrain_16gpu_h100_bf16_config"},
    {"nemotron-3-ultra-550b-a55b", "nemotron_3_ultra_pretrain_24gpu_h100_bf16_config"},
    {"nemotron-h-8b", "nemotronh_8b_pretrain_2gpu_h100_bf16_config"},
    {"qwen2.5-14b", "qwen25_14b_pretrain_4gpu_h100_bf16_config"},
    {"qwen3-0.6b", "qwen3_600m_pretrain_1gpu_h100_bf16_config"},
    {"qwen3-1.7b", "qwen3_1p7b_pretrain_1gpu_h100_bf16_config"},
    {"qwen3-14b", "qwen3_14b_pretrain_8gpu_h100_bf16_config"},
    {"qwen3-235b-a22b", "qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config"},
    {"qwen3-30b-a3b", "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"},
    {"qwen3-32b", "qwen3_32b_pretrain_16gpu_h100_bf16_config"},
    {"qwen3-4b", "qwen3_4b_pretrain_2gpu_h100_bf16_config"},
    {"qwen3-next-80b-a3b", "qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config"},
    {"qwen3-8b", "qwen3_8b_pretrain_4gpu_h100_bf16_config"},
    {"qwen3-vl-30b-a3b", "qwen3_vl_30b_a3b_pretrain_8gpu_h100_bf16_mock_config"},
    // Of the text alone, as the built-in models are; for 27b there is one with its vision tower.
    {"qwen3.5-35b-a3b", "qwen35_text_35b_a3b_pretrain_config"},
    {"qwen3.5-9b", "qwen35_text_9b_pretrain_config"},
});

}  // namespace

const BridgeRecipe* bridge_recipe(std::string_view model) {
  const auto* const found =
      std::find_if(kRecipes.begin(), kRecipes.end(),
                   [&](const BridgeRecipe& recipe) { return recipe.model == model; });
  return found == kRecipes.end() ? nullptr : found;
}

namespace {

// "llama3_8b" of "llama31_8b_pretrain_2gpu_h100_bf16_config": Llama 3.1's shapes are Llama 3's.
std::string family_of_recipe(std::string_view function) {
  constexpr std::string_view kNewer = "llama31_";
  std::string stem(function);
  for (const std::string_view stage : {"_pretrain", "_sft", "_peft", "_finetune"}) {
    const std::size_t at = stem.find(stage);
    if (at != std::string::npos) stem.resize(at);
  }
  if (stem.size() == function.size()) return "";
  if (stem.starts_with(kNewer)) stem.replace(0, kNewer.size(), "llama3_");
  return stem;
}

}  // namespace

std::string built_in_of_bridge_recipe(std::string_view function) {
  const std::string family = family_of_recipe(function);
  const auto* const found =
      std::find_if(kRecipes.begin(), kRecipes.end(), [&](const BridgeRecipe& recipe) {
        return recipe.provider.empty() && family_of_recipe(recipe.function) == family;
      });
  return family.empty() || found == kRecipes.end() ? "" : std::string(found->model);
}

// Whether a switch that recipes have on is one of this job's.
bool has_a_say(const Name& name, const Subject& subject) {
  if (name.flag == "--fp8-param-gather") {
    const Precision p = subject.plan.precision;
    return p == Precision::fp8 || p == Precision::mxfp8;
  }
  return subject.model.moe.has_value();
}

std::vector<BridgeAssignment> bridge_assignments(const Subject& subject) {
  const auto flags = written(bridge_options(), subject);
  std::vector<BridgeAssignment> result;
  for (const auto& [precision, name] : kMixed) {
    if (precision == subject.plan.precision) {
      result.push_back({"mixed_precision", std::string(name) + "()"});
    }
  }
  const bool whole_graph =
      subject.plan.cuda_graph && subject.plan.cuda_graph_scope == CudaGraphScope::full;
  for (const Name& name : kNames) {
    const auto found = std::find_if(flags.begin(), flags.end(),
                                    [&](const WrittenOption& o) { return o.key == name.flag; });
    std::string value =
        found == flags.end() ? std::string(name.left_out) : python(name, found->value);
    // A fact of the model, which its recipe may say otherwise.
    if (name.flag == "--mtp-num-layers" && subject.model.num_mtp_layers > 0) {
      value = std::to_string(subject.model.num_mtp_layers);
    }
    // Its pinned Megatron spells the whole iteration as a scope.
    if (whole_graph && name.flag == "--cuda-graph-impl") value = "\"local\"";
    if (whole_graph && name.flag == "--cuda-graph-modules") value = "\"full_iteration\"";
    if (name.kind == Kind::switched && !has_a_say(name, subject)) continue;
    if (!value.empty()) result.push_back({std::string(name.target), value});
  }
  return result;
}

std::vector<std::string> bridge_fields_called(std::string_view name) {
  if (name == "seq_length") return {kLengths.begin(), kLengths.end()};
  for (const Name& known : kNames) {
    const std::string_view field = known.target.substr(known.target.rfind('.') + 1);
    if (field == name) return {std::string(known.target)};
  }
  return {};
}

Settings bridge_settings(const PythonText& text) {
  Settings settings;
  const BridgeProgram program = bridge_program(text);
  const std::vector<PythonAssignment>& fields = program.fields;
  for (const PythonAssignment& assignment : with_implied(fields)) {
    const PythonArgument& value = assignment.value;
    const auto add = [&](std::string_view flag, Json flag_value) {
      // What a flag would say, the file says in words of its own: no part of it is the flag's.
      settings.add({std::string(flag), std::move(flag_value), value.place, {}, {}, true});
    };
    const std::string target = field_read(assignment.target);
    if (target == "model.cuda_graph_scope" && !captures(fields)) continue;
    // A recipe's modules below another granularity that stands on top of it.
    const bool of_recipe = value.span.end == value.span.begin;
    if (target == "model.recompute_modules" && of_recipe && !recomputes_modules(fields)) continue;
    if (std::find(kLengths.begin(), kLengths.end(), target) != kLengths.end()) {
      settings.add({target, value.value, value.place, {}, {}, value.resolved});
    }
    if (target == "mixed_precision") {
      std::string name = value.text.substr(0, value.text.find('('));
      std::erase(name, '"');
      add(name.starts_with("fp16") ? "--fp16" : "--bf16", true);
      if (name.find("mxfp8") != std::string::npos) {
        add("--fp8-format", "e4m3");
        add("--fp8-recipe", "mxfp8");
      } else if (name.find("fp8") != std::string::npos) {
        add("--fp8-format", "hybrid");
        add("--fp8-recipe", "tensorwise");
      } else if (name.find("nvfp4") != std::string::npos) {
        add("--fp4-format", "e2m1");
      }
      // On in its presets but those of blocks (training/mixed_precision.py).
      const bool fp8 = name.find("fp8") != std::string::npos;
      if (fp8 && name.find("subchannel") == std::string::npos) add("--fp8-param-gather", true);
      continue;
    }
    for (const Name& name : names_read(target)) {
      if (is_unknown(name, value)) {
        settings.add({std::string(name.flag), value.text, value.place, {}, {}, false});
        continue;
      }
      Json flag = as_flag(name, value);
      if (target == "mixed_precision.grad_reduce_in_fp32" && flag.is_null()) {
        add("--accumulate-allreduce-grads-in-fp32", true);
      }
      if (target == "model.cuda_graph_scope" && text_of(flag) == "full_iteration") {
        add("--cuda-graph-impl", "full_iteration");
      } else if (target == "model.cross_entropy_loss_fusion" && value.value.is_boolean()) {
        add(name.flag, value.value);  // on unless said, other than Megatron-LM's
      } else if (!flag.is_null()) {
        add(name.flag, std::move(flag));
      }
    }
  }
  add_open(program, settings);
  add_adapter_settings(text, settings);
  return settings;
}

std::string bridge_spelled(const std::string& sentence) {
  return respelled(sentence, [](const std::string& flag, std::string&) {
    const std::string field = field_of_flag(flag);
    return field.empty() ? flag : "cfg." + field;
  });
}

std::string bridge_advice(const std::string& sentence) {
  return respelled(sentence, [](const std::string& flag, std::string& behind) {
    const std::string field = field_of_flag(flag);
    const KnownOption* const known = known_options("megatron").find(flag);
    if (field.empty()) return flag;
    if (known == nullptr || field == "mixed_precision") return "cfg." + field;
    if (known->arity == "0") return fmt::format("cfg.{} = True", field);
    const std::size_t end = std::min(behind.find_first_of(" ,;", 1), behind.size());
    const std::string value = behind.substr(std::min<std::size_t>(1, behind.size()), end - 1);
    if (!behind.starts_with(' ') || value.empty() || value[0] == '-') return "cfg." + field;
    behind.erase(0, end);
    if (behind.starts_with(" --")) behind.insert(0, ";");
    const std::string quote = is_digit(value[0]) ? "" : "\"";
    return fmt::format("cfg.{} = {}{}{}", field, quote, value, quote);
  });
}

bool merges_overrides(std::string_view program) {
  return program.find("process_config_with_overrides") != std::string_view::npos ||
         program.find("parse_hydra_overrides") != std::string_view::npos ||
         program.find("OmegaConf.merge") != std::string_view::npos;
}

}  // namespace qplan
