#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/torch/fsdp_mesh.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

using namespace fsdp;
using P = ParallelPlan;
using enum Severity;

constexpr auto kAccelerate = std::to_array<Option>({
    {"fsdp_config.fsdp_reshard_after_forward", "zero",
     [](const Subject& s) { return Json(s.plan.zero == 3); },
     [](Draft& d, const Json& v) {
       // Another word is FSDP1's, which does not read it here, or refused (check_accelerate).
       if (same_value(v, Json(true))) d.plan.zero = 3;
       if (same_value(v, Json(false))) d.plan.zero = 2;
     }},
    {"fsdp_config.fsdp_offload_params", "offload",
     [](const Subject& s) { return Json(offloads(s)); },
     [](Draft& d, const Json& v) {
       d.plan.offload.params = truth_of(v);
       d.plan.offload.optimizer = truth_of(v) ? 1 : 0;
     }},
    {"fsdp_config.fsdp_activation_checkpointing", "recompute",
     [](const Subject& s) { return Json(s.plan.recompute.kind == RecomputeKind::full); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.recompute = {RecomputeKind::full, {}, 0};
     }},
    {"fsdp_config.fsdp_activation_checkpointing_offload", "offload",
     [](const Subject& s) { return if_true(s.plan.offload.activation_layers != 0); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.offload.activation_layers = -1;
     }},
    {"mixed_precision", "precision",
     [](const Subject& s) { return Json(std::string(to_word(s.plan.precision))); },
     [](Draft& d, const Json& v) {
       if (text_of(v) != "no") d.plan.precision = from_word<Precision>(text_of(v));
     }},
    {"parallelism_config.parallelism_config_tp_size", "tp", plan_value<&P::tp>, set_degree<&P::tp>},
    {"parallelism_config.parallelism_config_cp_size", "cp", plan_value<&P::cp>, set_degree<&P::cp>},
    {"parallelism_config.parallelism_config_cp_comm_strategy", "cp_comm",
     [](const Subject& s) {
       const bool gathers = s.plan.cp_comm == CpComm::all_gather;
       return if_true(s.plan.cp > 1, gathers ? "allgather" : "alltoall");
     },
     [](Draft& d, const Json& v) {
       // torch rotates key-value blocks by all-to-all: a ring in all but name.
       if (d.plan.cp > 1) {
         d.plan.cp_comm = text_of(v) == "alltoall" ? CpComm::p2p : CpComm::all_gather;
       }
     }},
    {"parallelism_config.parallelism_config_dp_replicate_size", "fsdp_shard",
     [](const Subject& s) { return Json(dp_replicate(s.plan)); }, set_copies},
    {"parallelism_config.parallelism_config_dp_shard_size", "dp",
     [](const Subject& s) { return Json(dp_shard(s.plan)); },
     [](Draft& d, const Json& v) { d.plan.dp = degree_of(v); }},
});

constexpr auto kAccelerateFacts = std::to_array<Fact>({
    {.key = "compute_environment",
     .write = [](const Subject&) { return Json("LOCAL_MACHINE"); },
     .otherwise = "LOCAL_MACHINE",
     .severity = warning,
     .why = "the launcher starts elsewhere"},
    {.key = "distributed_type",
     .write = [](const Subject&) { return Json("FSDP"); },
     .otherwise = "",
     // Written alone: what is read may be of other types (check_accelerate).
     .judged = [](const Subject&) { return false; }},
    {.key = "fsdp_config.fsdp_version",
     .write = [](const Subject&) { return Json(2); },
     .otherwise = "1",
     .severity = note,
     .why = "FSDP1 is the older implementation, and some keys mean other things"},
    {.key = "fsdp_config.fsdp_auto_wrap_policy",
     .write = [](const Subject&) { return Json("TRANSFORMER_BASED_WRAP"); },
     .otherwise = "NO_WRAP",
     .why = "the whole model is one unit, gathered at once before the first layer runs",
     .same =
         [](const Json& given, const Json& wanted) {
           return same_value(given, wanted) || text_of(given) == "SIZE_BASED_WRAP";
         }},
    {.key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
     .write =
         [](const Subject& s) {
           const std::string_view name = decoder_layer_class(s.model.architecture);
           return if_true(!name.empty(), std::string(name));
         },
     .otherwise = "",
     .why = "layers are not units of their own",
     // Left out, accelerate asks the model (_no_split_modules).
     .computed =
         [](const Subject& s) {
           return Json(std::string(decoder_layer_class(s.model.architecture)));
         },
     .same =
         [](const Json& given, const Json& wanted) {
           return text_of(given).find(text_of(wanted)) != std::string::npos;
         }},
});

// accelerate 16cb6eb8: parallelism_config.py:336 refuses tp or cp beside copies that shard nothing.
// FSDP's mesh is "dp_shard_cp" (fsdp_utils.py:770), which exists where dp_shard or cp is above 1
// (parallelism_config.py:136 and 239).
bool joins_no_shards(const Subject& s) {
  const ParallelPlan& p = s.plan;
  if (dp_shard(p) > 1 || (p.tp == 1 && p.cp == 1)) return false;
  return p.cp == 1 || p.dp > 1;
}

constexpr auto kAccelerateLimits = std::to_array<Limit>({
    {"fp32_shards", [](const Subject& s) { return !fp32_states(s); }, fp32_only},
    {"optimizer_of_trainer",
     [](const Subject& s) {
       return s.plan.optimizer != OptimizerKind::adam &&
              s.plan.optimizer != OptimizerKind::adam8bit;
     },
     [](const Subject& s) {
       return fmt::format(
           "a Trainer's SGD has no momentum and its Lion is bitsandbytes', which does not run "
           "under FSDP2; use optimizer adam or adam8bit, not {}",
           to_word(s.plan.optimizer));
     }},
    {"fsdp_overlap", [](const Subject& s) { return s.plan.overlap != fsdp_overlap(); },
     [](const Subject&) {
       return std::string(
           "FSDP2 always prefetches and reduces behind compute, and nothing else; "
           "use overlap=grad,param");
     }},
    {"sequence_parallel_of_modules", [](const Subject& s) { return s.plan.sequence_parallel; },
     [](const Subject&) {
       return std::string("accelerate's tp does not split norms; leave sequence_parallel out");
     }},
    {"ulysses_of_accelerate",
     [](const Subject& s) { return s.plan.cp > 1 && s.plan.cp_comm == CpComm::a2a; },
     [](const Subject&) {
       return std::string(
           "with FSDP, accelerate splits sequences by ring or all-gather; use "
           "cp_comm p2p or all_gather");
     }},
    {"shards_of_mesh", shards_unevenly, whole_shards},
    {"precision_of_accelerate",
     [](const Subject& s) {
       return s.plan.precision != Precision::bf16 && s.plan.precision != Precision::fp16;
     },
     [](const Subject& s) {
       return fmt::format("qplan writes accelerate's files for bf16 and fp16, not {}",
                          to_word(s.plan.precision));
     }},
    {"layer_class",
     [](const Subject& s) { return decoder_layer_class(s.model.architecture).empty(); },
     [](const Subject& s) {
       return fmt::format("the layer class that FSDP wraps is not known for {}",
                          s.model.architecture);
     },
     Asks::model},
    {"dispatcher_of_modules",
     [](const Subject& s) {
       return s.model.moe && s.plan.moe_dispatcher != MoeDispatcher::alltoall;
     },
     [](const Subject&) {
       return std::string(
           "FSDP has no experts to exchange tokens with; use "
           "moe_dispatcher=alltoall");
     }},
});

constexpr auto kMeshLimits = std::to_array<Limit>({
    {"shard_above_one", joins_no_shards,
     [](const Subject& s) {
       return std::string(
           s.plan.cp > 1
               ? "accelerate joins tp or cp to copies only where a dp shards (dp_shard above 1)"
               : "accelerate joins tp only with a dp or cp that shards (dp_shard above 1)");
     }},
});

}  // namespace

std::span<const Option> accelerate_options() {
  return kAccelerate;
}

std::span<const Fact> accelerate_facts() {
  return kAccelerateFacts;
}

std::span<const Limit> accelerate_limits() {
  return kAccelerateLimits;
}

std::span<const Limit> accelerate_mesh_limits() {
  return kMeshLimits;
}

bool is_replicated(const Settings& accelerate) {
  const std::string type = distributed_type_of(accelerate).meant;
  return type == "MULTI_GPU" || type == "NO";
}

bool is_of_one_process(const Settings& accelerate) {
  return distributed_type_of(accelerate).meant == "NO";
}

std::string fsdp1_strategy(const Settings& accelerate) {
  constexpr std::array<std::string_view, 5> kNames{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                                   "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  const Setting* const said = accelerate.find("fsdp_config.fsdp_sharding_strategy");
  if (said == nullptr || said->value.is_null()) return std::string(kNames.front());
  // By name or by number (torch.distributed.fsdp.ShardingStrategy).
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const std::string number = fmt::format("{}", i + 1);
    if (text_of(said->value) == number ||
        same_value(said->value, Json(std::string(kNames.at(i))))) {
      return std::string(kNames.at(i));
    }
  }
  return text_of(said->value);
}

bool is_fsdp2(const Settings& accelerate) {
  const Setting* const version = accelerate.find("fsdp_config.fsdp_version");
  return version != nullptr && same_value(version->value, Json(2));
}

void settle_accelerate(Draft& draft, const Settings& settings, std::int64_t gpus,
                       int gpus_per_node) {
  if (is_replicated(settings)) {
    draft.recipe = RecipeKind::ddp;
    draft.plan.overlap = recipe_of(RecipeKind::ddp).defaults.overlap;
    draft.plan.grad_dtype = DType::fp32;
    draft.plan.zero = draft.plan.fsdp_shard = 0;
    return;
  }
  // axolotl makes copies of the shards that are said, as many as the other degrees leave.
  if (settings.has(kFillsReplicas) && draft.plan.dp > 0 && !draft.shard_groups) {
    const ParallelPlan& p = draft.plan;
    const std::int64_t once = std::int64_t{p.tp} * p.cp * p.pp * p.dp;
    draft.shard_groups = static_cast<int>(std::max<std::int64_t>(1, gpus / once));
  }
  set_shards(draft, gpus);
  // FSDP1 has no parallelism_config.
  if (is_fsdp2(settings) || settings.has_section("parallelism_config.")) return;
  draft.recipe = RecipeKind::fsdp1;
  draft.plan.overlap = recipe_of(RecipeKind::fsdp1).defaults.overlap;
  draft.plan.grad_dtype = recipe_of(RecipeKind::fsdp1).defaults.grad_dtype;
  const std::string strategy = fsdp1_strategy(settings);
  draft.plan.zero = strategy == "SHARD_GRAD_OP" || strategy == "HYBRID_SHARD_ZERO2" ? 2 : 3;
  if (strategy == "NO_SHARD") draft.plan.fsdp_shard = 1;
  if (strategy.starts_with("HYBRID_SHARD")) {
    draft.plan.fsdp_shard = std::min(draft.plan.dp, gpus_per_node);
  }
}

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 41> kDecoderLayers{
    {{"cohere", "CohereDecoderLayer"},
     {"cohere2", "Cohere2DecoderLayer"},
     {"deepseek_v2", "DeepseekV2DecoderLayer"},
     {"deepseek_v3", "DeepseekV3DecoderLayer"},
     {"deepseek_v32", "DeepseekV32DecoderLayer"},
     {"ernie4_5", "Ernie4_5DecoderLayer"},
     {"ernie4_5_moe", "Ernie4_5_MoeDecoderLayer"},
     {"gemma3", "Gemma3DecoderLayer"},
     {"gemma3_text", "Gemma3DecoderLayer"},
     {"glm4", "Glm4DecoderLayer"},
     {"glm4_moe", "Glm4MoeDecoderLayer"},
     {"gpt2", "GPT2Block"},
     {"gpt_oss", "GptOssDecoderLayer"},
     {"hunyuan_v1_dense", "HunYuanDenseV1DecoderLayer"},
     {"hunyuan_v1_moe", "HunYuanMoEV1DecoderLayer"},
     {"internlm3", "LlamaDecoderLayer"},  // transformers runs it as Llama
     {"llama", "LlamaDecoderLayer"},
     {"llama4", "Llama4TextDecoderLayer"},
     {"llama4_text", "Llama4TextDecoderLayer"},
     {"minimax_m2", "MiniMaxM2DecoderLayer"},
     {"mistral", "MistralDecoderLayer"},
     {"mixtral", "MixtralDecoderLayer"},
     {"nemotron", "NemotronDecoderLayer"},
     {"nemotron_h", "NemotronHBlock"},
     {"olmo2", "Olmo2DecoderLayer"},
     {"olmo3", "Olmo3DecoderLayer"},
     {"phi3", "Phi3DecoderLayer"},
     {"qwen2", "Qwen2DecoderLayer"},
     {"qwen2_5_vl", "Qwen2_5_VLDecoderLayer,Qwen2_5_VLVisionBlock"},
     {"qwen2_5_vl_text", "Qwen2_5_VLDecoderLayer"},
     {"qwen2_moe", "Qwen2MoeDecoderLayer"},
     {"qwen3", "Qwen3DecoderLayer"},
     {"qwen3_5", "Qwen3_5DecoderLayer"},  // of the text model, as all of Qwen3.5 here
     {"qwen3_5_moe", "Qwen3_5MoeDecoderLayer"},
     {"qwen3_5_moe_text", "Qwen3_5MoeDecoderLayer"},
     {"qwen3_5_text", "Qwen3_5DecoderLayer"},
     {"qwen3_moe", "Qwen3MoeDecoderLayer"},
     {"qwen3_next", "Qwen3NextDecoderLayer"},
     {"qwen3_vl_moe", "Qwen3VLMoeTextDecoderLayer,Qwen3VLMoeVisionBlock"},
     {"qwen3_vl_moe_text", "Qwen3VLMoeTextDecoderLayer"},
     {"seed_oss", "SeedOssDecoderLayer"}}};

// Layers of transformers' other language models, which no model here has (5.23.0,
// src/transformers/models, _no_split_modules).
constexpr std::string_view kOtherLayers =
    ",ArceeDecoderLayer,ApertusDecoderLayer,BartDecoderLayer,BambaDecoderLayer,BloomBlock,"
    "CodeGenBlock,Cohere2DecoderLayer,CohereDecoderLayer,DeepseekV2DecoderLayer,Ernie4_"
    "5DecoderLayer,"
    "Exaone4DecoderLayer,FalconDecoderLayer,FalconH1DecoderLayer,Gemma2DecoderLayer,"
    "Gemma3DecoderLayer,GemmaDecoderLayer,GlmDecoderLayer,GPT2Block,GPTBigCodeBlock,GPTJBlock,"
    "GPTNeoBlock,GPTNeoXLayer,GraniteDecoderLayer,GraniteMoeDecoderLayer,JetMoeDecoderLayer,"
    "MptBlock,OlmoDecoderLayer,OlmoeDecoderLayer,OPTDecoderLayer,PersimmonDecoderLayer,"
    "PhiDecoderLayer,PhimoeDecoderLayer,Qwen2VLDecoderLayer,SmolLM3DecoderLayer,"
    "StableLmDecoderLayer,Starcoder2DecoderLayer,T5Block,XGLMDecoderLayer,";

}  // namespace

std::string_view decoder_layer_class(std::string_view architecture) {
  for (const auto& [name, layer] : kDecoderLayers) {
    if (name == architecture) return layer;
  }
  return "";
}

bool is_decoder_layer_class(std::string_view name) {
  if (kOtherLayers.find(fmt::format(",{},", name)) != std::string_view::npos) return true;
  return std::any_of(kDecoderLayers.begin(), kDecoderLayers.end(), [&](const auto& known) {
    return fmt::format(",{},", known.second).find(fmt::format(",{},", name)) != std::string::npos;
  });
}

}  // namespace qplan
