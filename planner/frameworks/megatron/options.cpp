// The plan as Megatron's flags. Order matters where several flags say one word together: later rows
// read on top of earlier ones.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/program/fp8_parameters.h"
#include "models/program/loss.h"
#include "planner/frameworks/megatron/batch_steps.h"
#include "planner/frameworks/megatron/layer_facts.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/shared.h"
#include "planner/frameworks/own_words.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

using namespace megatron;
using P = ParallelPlan;
using enum OverlapKind;

Json word(DType type) {
  return std::string(to_word(type));
}

template <OverlapKind Kind>
Json overlap_value(const Subject& s) {
  return if_true(s.plan.overlap.has(Kind));
}

template <OverlapKind Kind>
void set_overlap(Draft& draft, const Json& value) {
  if (truth_of(value)) draft.plan.overlap.add(Kind);
}

Json recompute_modules(const Subject& s) {
  if (s.plan.recompute.modules.empty()) return nullptr;
  Json list = Json::array();
  for (const auto& [module, name] : Words<RecomputeModule>::table) {
    if (s.plan.recompute.modules.has(module)) list.push_back(std::string(name));
  }
  return list;
}

void set_recompute_modules(Draft& draft, const Json& value) {
  // Of models that are not read here (core/transformer/transformer_config.py:1945).
  constexpr std::array<std::string_view, 3> kOthers{"gdp_in_proj", "gdp_qkv", "mhc"};
  for (const std::string& name : list_of(value)) {
    if (const auto module = try_from_word<RecomputeModule>(name)) {
      draft.plan.recompute.modules.add(*module);
    } else if (std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end()) {
      refuse_word(name,
                  "core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts, "
                  "gdn_norm_out, gdp_in_proj, gdp_qkv, mhc");
    }
  }
}

// dist_muon is muon beside the distributed optimizer by its old name. SOAP and adaptive Muon keep
// more than any plan says, and Megatron's Lion leaves embeddings and vectors to Adam.
void read_megatron_optimizer(Draft& draft, const Json& value) {
  const std::string name = text_of(value);
  if (name == "dist_muon") {
    draft.plan.optimizer = OptimizerKind::muon;
    draft.plan.zero = std::max(draft.plan.zero, 1);
  } else if (name == "soap" || name == "adaptive_muon" || name == "lion") {
    draft.assumed.push_back(fmt::format(
        "Adam's two moments and step in place of what {} keeps and does, which is not modelled",
        name));
  } else {
    draft.plan.optimizer = from_word<OptimizerKind>(name);
  }
}

bool recomputes_fully(const Subject& s) {
  return s.plan.recompute.kind == RecomputeKind::full;
}

LossKind loss_run(const Subject& s) {
  return loss_of(s.plan.loss, s.plan.deterministic, recipe_of(s.recipe));
}

bool fuses_loss(const Subject& s) {
  return traits_of(loss_run(s), recipe_of(s.recipe)).fused;
}

Json fp8_format(const Subject& s) {
  if (s.plan.precision == Precision::fp8) return "hybrid";
  return s.plan.precision == Precision::mxfp8 ? Json("e4m3") : Json(nullptr);
}

Json fp8_recipe(const Subject& s) {
  if (s.plan.precision == Precision::fp8) return "tensorwise";
  return s.plan.precision == Precision::mxfp8 ? Json("mxfp8") : Json(nullptr);
}

void set_fp8_recipe(Draft& draft, const Json& value) {
  if (draft.plan.precision == Precision::fp8 && text_of(value) == "mxfp8") {
    draft.plan.precision = Precision::mxfp8;
  }
}

// By ZeRO stage.
constexpr std::array<std::string_view, 4> kStrategies{"no_shard", "optim", "optim_grads",
                                                      "optim_grads_params"};

Json sharding_strategy(const Subject& s) {
  if (!fsdp(s)) return nullptr;
  return std::string(kStrategies[static_cast<std::size_t>(s.plan.zero)]);
}

void set_sharding_strategy(Draft& draft, const Json& value) {
  if (draft.recipe != RecipeKind::megatron_fsdp) return;
  const std::string name = text_of(value);
  const auto* const found = std::find(kStrategies.begin(), kStrategies.end(), name);
  if (found == kStrategies.end()) {
    throw Error(fmt::format("'{}' is none of {}", shown(name), fmt::join(kStrategies, ", ")));
  }
  draft.plan.zero = static_cast<int>(found - kStrategies.begin());
}

// Copies of the sharded states.
Json optimizer_instances(const Subject& s) {
  if (s.plan.fsdp_shard == 0) return nullptr;
  return s.plan.dp * s.plan.cp / s.plan.fsdp_shard;
}

Json offload_modules(const Subject& s) {
  if (s.plan.offload.activation_layers >= 0) return nullptr;
  Json list = Json::array({"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"});
  // Of experts that are recomputed whole nothing is kept (transformer_config.py:2167).
  if (s.model.moe && !s.plan.recompute.modules.has(RecomputeModule::moe)) {
    list.insert(list.end(), {"expert_fc1", "moe_act"});
  }
  return list;
}

constexpr auto kOptions = std::to_array<Option>({
    // Degrees.
    kTensorParallel,
    kSequenceParallel,
    kPipelineParallel,
    {"--num-virtual-stages-per-pipeline-rank", "vpp",
     [](const Subject& s) {
       return if_true(s.plan.vpp > 1 && s.plan.pipeline_layout.empty() && !s.model.mamba,
                      s.plan.vpp);
     },
     set_degree<&P::vpp>},
    {"--num-layers-per-virtual-pipeline-stage", "vpp", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.layers_per_virtual_stage = degree_of(v); }},
    {"--microbatch-group-size-per-virtual-pipeline-stage", "schedule",
     [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.microbatch_group = degree_of(v); }},
    {"--pipeline-model-parallel-layout", "pipeline_layout",
     [](const Subject& s) {
       return if_true(!s.plan.pipeline_layout.empty() && !s.model.mamba,
                      megatron_layout(s.plan, s.model.num_mtp_layers));
     },
     [](Draft& d, const Json& v) {
       d.plan.pipeline_layout = parse_megatron_layout(text_of(v));
       d.plan.vpp = std::max(1, static_cast<int>(d.plan.pipeline_layout.size()) / d.plan.pp);
     }},
    // Written with the layers, by the facts.
    {"--hybrid-layer-pattern", "pipeline_layout", [](const Subject&) { return Json(nullptr); },
     set_pattern_stages},
    {"--hybrid-override-pattern", "pipeline_layout", [](const Subject&) { return Json(nullptr); },
     set_pattern_stages},
    {"--decoder-first-pipeline-num-layers", "pipeline_layout",
     [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.first_stage_layers = degree_of(v); }},
    {"--decoder-last-pipeline-num-layers", "pipeline_layout",
     [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.last_stage_layers = degree_of(v); }},
    {"--account-for-embedding-in-pipeline-split", "pipeline_layout",
     [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.counts_embedding = truth_of(v); }},
    {"--account-for-loss-in-pipeline-split", "pipeline_layout",
     [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.counts_loss = truth_of(v); }},
    {"--context-parallel-size", "cp", plan_value<&P::cp>, set_degree<&P::cp>},
    {"--cp-comm-type", "cp_comm",
     [](const Subject& s) {
       const bool gathers = s.plan.cp_comm == CpComm::all_gather;
       return if_true(s.plan.cp > 1, gathers ? "allgather" : std::string(to_word(s.plan.cp_comm)));
     },
     [](Draft& d, const Json& v) {
       const std::string name = first_of(v);
       // Ulysses inside a node and a ring between: priced as the ring.
       const auto known = name == "allgather" ? std::optional(CpComm::all_gather)
                          : name == "a2a+p2p" ? std::optional(CpComm::p2p)
                                              : try_from_word<CpComm>(name);
       if (!known) refuse_word(name, "p2p, a2a, allgather, a2a+p2p");
       d.plan.cp_comm = *known;
     }},
    {"--expert-model-parallel-size", "ep",
     [](const Subject& s) { return if_true(s.model.moe.has_value(), s.plan.ep); },
     set_degree<&P::ep>},
    {"--expert-tensor-parallel-size", "etp",
     [](const Subject& s) { return if_true(s.model.moe.has_value(), s.plan.etp); },
     [](Draft& d, const Json& v) { d.etp = degree_of(v); }},

    // Batch.
    kMicroBatch,
    kGlobalBatch,
    // The batch that it ends with.
    {kBatchSteps, "global_batch_size", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) {
       d.plan.global_batch_size = batch_steps(text_of(v)).back().batch;
     }},
    kSequenceLength,

    // What data parallelism shards.
    {"--use-megatron-fsdp", "zero", [](const Subject& s) { return if_true(fsdp(s)); },
     [](Draft& d, const Json& v) {
       if (!truth_of(v)) return;
       d.recipe = RecipeKind::megatron_fsdp;
       d.plan.zero = 3;
     }},
    {"--data-parallel-sharding-strategy", "zero", sharding_strategy, set_sharding_strategy},
    {"--use-distributed-optimizer", "zero",
     [](const Subject& s) { return if_true(s.plan.zero > 0); },
     [](Draft& d, const Json& v) {
       const bool fsdp = d.recipe == RecipeKind::megatron_fsdp;  // its strategy says the stage
       if (truth_of(v) && !fsdp) d.plan.zero = std::max(1, d.plan.zero);
     }},
    {"--num-distributed-optimizer-instances", "fsdp_shard", optimizer_instances,
     [](Draft& d, const Json& v) { d.shard_groups = degree_of(v); }},
    {"--overlap-grad-reduce", "overlap", overlap_value<grad>, set_overlap<grad>},
    {"--overlap-param-gather", "overlap", overlap_value<param>, set_overlap<param>},
    {"--tp-comm-overlap", "overlap",
     [](const Subject& s) { return if_true(s.plan.tp > 1 && s.plan.overlap.has(tp)); },
     set_overlap<tp>},
    {"--overlap-moe-expert-parallel-comm", "overlap", overlap_value<ep>, set_overlap<ep>},

    // Experts.
    {"--moe-token-dispatcher-type", "moe_dispatcher",
     [](const Subject& s) {
       const MoeDispatcher d = s.plan.moe_dispatcher;
       return if_true(s.model.moe.has_value(), is_dispatch_library(d) ? "flex" : std::string(to_word(d)));
     },
     [](Draft& d, const Json& v) {
       const std::string name = text_of(v);
       d.plan.moe_dispatcher =
           name == "flex" ? MoeDispatcher::deepep : from_word<MoeDispatcher>(name);
     }},
    {"--moe-flex-dispatcher-backend", "moe_dispatcher",
     [](const Subject& s) {
       return if_true(is_dispatch_library(s.plan.moe_dispatcher), std::string(to_word(s.plan.moe_dispatcher)));
     },
     [](Draft& d, const Json& v) {
       const std::string name = text_of(v);
       // NCCL's own exchange is the nearest to plain all-to-all.
       if (is_dispatch_library(d.plan.moe_dispatcher)) {
         d.plan.moe_dispatcher =
             name == "ncclep" ? MoeDispatcher::alltoall : from_word<MoeDispatcher>(name);
       }
     }},

    {"--moe-expert-capacity-factor", "moe_capacity_factor",
     [](const Subject& s) {
       return if_true(s.plan.moe_capacity_factor > 0, s.plan.moe_capacity_factor);
     },
     [](Draft& d, const Json& v) { d.plan.moe_capacity_factor = std::max(number_of(v), 0.0); }},
    {"--moe-token-drop-policy", "moe_token_drop_policy",
     [](const Subject& s) {
       return if_true(s.plan.moe_capacity_factor > 0,
                      std::string(to_word(s.plan.moe_token_drop_policy)));
     },
     [](Draft& d, const Json& v) {
       d.plan.moe_token_drop_policy = from_word<TokenDropPolicy>(text_of(v));
     }},
    {"--moe-permute-fusion", "moe_permute_fusion",
     [](const Subject& s) { return if_true(s.model.moe && s.plan.moe_permute_fusion); },
     [](Draft& d, const Json& v) { d.plan.moe_permute_fusion = truth_of(v); }},

    // Recompute.
    {"--recompute-granularity", "recompute",
     [](const Subject& s) {
       return if_true(s.plan.recompute.kind != RecomputeKind::none,
                      std::string(to_word(s.plan.recompute.kind)));
     },
     [](Draft& d, const Json& v) { d.plan.recompute.kind = from_word<RecomputeKind>(text_of(v)); }},
    {"--recompute-activations", "recompute", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.recompute.kind = RecomputeKind::selective;
     }},
    {"--recompute-method", "recompute",
     [](const Subject& s) {
       return if_true(recomputes_fully(s), s.plan.recompute.layers > 0 ? "block" : "uniform");
     },
     [](Draft& d, const Json& v) {
       // -1 waits for the number of layers, which means another thing with "uniform".
       d.plan.recompute.layers = text_of(v) == "block" ? -1 : 0;
     }},
    {"--recompute-num-layers", "recompute",
     [](const Subject& s) {
       return if_true(recomputes_fully(s), std::max(1, s.plan.recompute.layers));
     },
     [](Draft& d, const Json& v) {
       if (d.plan.recompute.layers < 0) d.plan.recompute.layers = degree_of(v);
     }},
    {"--recompute-modules", "recompute", recompute_modules, set_recompute_modules},

    // Formats.
    kBf16,
    {"--fp16", "precision",
     [](const Subject& s) { return if_true(s.plan.precision == Precision::fp16); },
     [](Draft& d, const Json& v) {
       if (!truth_of(v)) return;
       d.plan.precision = Precision::fp16;
       d.plan.grad_dtype = DType::fp16;  // unless told otherwise below
     }},
    {"--fp8-format", "precision", fp8_format,
     [](Draft& d, const Json&) {
       d.plan.precision = Precision::fp8;
       d.plan.fp8_param_gather = false;  // unless said below
     }},
    {"--fp8-recipe", "precision", fp8_recipe, set_fp8_recipe},
    {"--fp8-param-gather", "fp8_param_gather",
     [](const Subject& s) { return if_true(keeps_fp8_parameters(s.plan, recipe_of(s.recipe))); },
     [](Draft& d, const Json& v) { d.plan.fp8_param_gather = truth_of(v); }},
    // What MXFP8's weights are gathered in: without it in a buffer of their own, against which
    // Megatron warns (core/optimizer/optimizer_config.py).
    {"--reuse-grad-buf-for-mxfp8-param-ag", "fp8_param_gather",
     [](const Subject& s) {
       return if_true(s.plan.precision == Precision::mxfp8 &&
                      keeps_fp8_parameters(s.plan, recipe_of(s.recipe)));
     },
     [](Draft&, const Json&) {}},
    {"--fp4-format", "precision",
     [](const Subject& s) { return if_true(s.plan.precision == Precision::nvfp4, "e2m1"); },
     [](Draft& d, const Json&) { d.plan.precision = Precision::nvfp4; }},
    {"--no-gradient-accumulation-fusion", "gradient_accumulation_fusion",
     [](const Subject& s) { return if_true(!s.plan.gradient_accumulation_fusion); },
     [](Draft& d, const Json& v) { d.plan.gradient_accumulation_fusion = !truth_of(v); }},
    {"--optimizer", "optimizer",
     [](const Subject& s) {
       return if_true(s.plan.optimizer != OptimizerKind::adam,
                      std::string(to_word(s.plan.optimizer)));
     },
     read_megatron_optimizer},
    {"--accumulate-allreduce-grads-in-fp32", "grad_dtype",
     [](const Subject& s) { return if_true(s.plan.grad_dtype == DType::fp32); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.grad_dtype = DType::fp32;
     }},
    {"--grad-reduce-in-bf16", "grad_dtype",
     [](const Subject& s) { return if_true(s.plan.grad_dtype == DType::bf16); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.grad_dtype = DType::bf16;
     }},
    {"--use-precision-aware-optimizer", "main_params_dtype",
     [](const Subject& s) { return if_true(megatron_precision_aware(s)); },
     [](Draft& d, const Json& v) { d.precision_aware = truth_of(v); }},
    {"--main-grads-dtype", "grad_dtype",
     [](const Subject& s) { return if_true(megatron_precision_aware(s), word(s.plan.grad_dtype)); },
     [](Draft& d, const Json& v) {
       if (d.precision_aware) d.plan.grad_dtype = from_word<DType>(text_of(v));
     }},
    {"--main-params-dtype", "main_params_dtype",
     [](const Subject& s) {
       return if_true(megatron_precision_aware(s),
                      s.plan.main_params_dtype == DType::fp16 ? "fp16" : "fp32");
     },
     [](Draft& d, const Json& v) {
       if (text_of(v) == "fp16") d.plan.main_params_dtype = DType::fp16;
     }},
    {"--exp-avg-dtype", "moment_dtype",
     [](const Subject& s) {
       return if_true(megatron_precision_aware(s), word(s.plan.moment_dtype));
     },
     [](Draft& d, const Json& v) { d.plan.moment_dtype = from_word<DType>(text_of(v)); }},
    {"--exp-avg-sq-dtype", "moment_dtype",
     [](const Subject& s) {
       return if_true(megatron_precision_aware(s), word(s.plan.moment_dtype));
     },
     [](Draft& d, const Json& v) {
       // Where the two moments differ, the wider one stands for both.
       const auto type = from_word<DType>(text_of(v));
       if (size_of(type) > size_of(d.plan.moment_dtype)) d.plan.moment_dtype = type;
     }},

    // Offload.
    {"--optimizer-cpu-offload", "offload",
     [](const Subject& s) { return if_true(s.plan.offload.optimizer > 0); },
     [](Draft& d, const Json& v) { d.plan.offload.optimizer = truth_of(v) ? 1 : 0; }},
    {"--optimizer-offload-fraction", "offload",
     [](const Subject& s) {
       return if_true(s.plan.offload.optimizer > 0, s.plan.offload.optimizer);
     },
     [](Draft& d, const Json& v) {
       if (d.plan.offload.optimizer > 0) d.plan.offload.optimizer = number_of(v);
     }},
    {"--cpu-offloading-num-layers", "offload",
     [](const Subject& s) {
       return if_true(s.plan.offload.activation_layers > 0, s.plan.offload.activation_layers);
     },
     [](Draft& d, const Json& v) {
       d.plan.offload.activation_layers = static_cast<int>(whole_of(v, 0, 1 << 13));
     }},
    {"--fine-grained-activation-offloading", "offload",
     [](const Subject& s) { return if_true(s.plan.offload.activation_layers < 0); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.offload.activation_layers = -1;
     }},
    {"--offload-modules", "offload", offload_modules, [](Draft&, const Json&) {}},

    // Launching.
    {"--cuda-graph-impl", "cuda_graph",
     [](const Subject& s) {
       const bool whole = s.plan.cuda_graph_scope == CudaGraphScope::full;
       return if_true(s.plan.cuda_graph, whole ? "full_iteration" : "transformer_engine");
     },
     [](Draft& d, const Json& v) {
       const std::string name = text_of(v);
       d.plan.cuda_graph = name != "none";
       if (d.plan.cuda_graph && name != "full_iteration") {
         d.plan.cuda_graph_scope = CudaGraphScope::layer;
       }
     }},
    {"--cuda-graph-modules", "cuda_graph_scope", graph_modules, set_graph_modules},
    {"--attention-backend", "attention_backend",
     [](const Subject& s) {
       return if_true(s.plan.attention_backend != AttentionBackend::automatic,
                      std::string(to_word(s.plan.attention_backend)));
     },
     [](Draft& d, const Json& v) {
       // "local" is torch's products and Megatron's own softmax (core's DotProductAttention).
       const std::string name = text_of(v);
       d.plan.attention_backend =
           name == "local"
               ? AttentionBackend::unfused
               : try_from_word<AttentionBackend>(name).value_or(AttentionBackend::automatic);
     }},
    // Written as 0, by the facts.
    {"--attention-dropout", "dropout", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.attention_dropout = number_of(v) > 0; }},
    {"--hidden-dropout", "dropout", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.hidden_dropout = number_of(v) > 0; }},
    {"--deterministic-mode", "deterministic",
     [](const Subject& s) { return if_true(s.plan.deterministic); },
     [](Draft& d, const Json& v) { d.plan.deterministic = truth_of(v); }},
    {"--cross-entropy-loss-fusion", "loss", [](const Subject& s) { return if_true(fuses_loss(s)); },
     [](Draft& d, const Json& v) { d.fuses_loss = truth_of(v); }},
    {"--cross-entropy-fusion-impl", "loss",
     [](const Subject& s) { return if_true(fuses_loss(s), std::string(to_word(loss_run(s)))); },
     [](Draft& d, const Json& v) {
       d.fused_loss = text_of(v) == "te" ? LossKind::te : LossKind::native;
     }},
    // What graphs need: random states that are captured, and no look at the loss from the host.
    {"--te-rng-tracker", "", [](const Subject& s) { return if_true(s.plan.cuda_graph); },
     [](Draft&, const Json&) {}},
    {"--no-check-for-nan-in-loss-and-grad", "",
     [](const Subject& s) {
       return if_true(s.plan.cuda_graph && s.plan.cuda_graph_scope == CudaGraphScope::full);
     },
     [](Draft&, const Json&) {}},
});

}  // namespace

std::span<const Option> megatron_options() {
  return kOptions;
}

}  // namespace qplan
