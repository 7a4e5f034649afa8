#pragma once
// How the step is run: recompute, overlap, offload, launching.

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "models/program/loss.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

constexpr bool lacks_experts(const ModelSpec& m, const Recompute& recompute) {
  const bool needs_shared = recompute.modules.has(RecomputeModule::shared_experts);
  const bool needs_moe = needs_shared || recompute.modules.has(RecomputeModule::moe) ||
                         recompute.modules.has(RecomputeModule::moe_act);
  return (needs_moe && !m.moe) || (needs_shared && m.moe->shared_expert_intermediate_size == 0);
}

// Why 1F1B all-to-all overlap cannot work here, or "" (M70).
inline std::string_view expert_overlap_obstacle(const Case& c) {
  if (!c.p.overlap.has(OverlapKind::ep)) return "";
  if (c.p.ep == 1) return "ep above 1";
  if (c.p.schedule == ScheduleKind::dualpipe) return "another schedule: dualpipe always overlaps";
  if (c.p.moe_dispatcher == MoeDispatcher::allgather) {
    return "an all-to-all dispatcher (alltoall, deepep or hybridep)";
  }
  if (c.p.pp > 1 && c.p.vpp == 1) return "virtual stages (vpp above 1) when pp is above 1";
  if (c.p.recompute.kind == RecomputeKind::full) return "recompute other than full";
  if (c.p.recompute.modules.has(RecomputeModule::moe)) return "a recompute set without moe";
  if (c.m.num_mtp_layers > 1) return "at most one multi-token-prediction layer";
  if (c.m.num_mtp_layers == 1 && c.p.pp == 1) return "pp above 1 with multi-token prediction";
  return "";
}

// "default, unfused or te"
inline std::string other_losses(RecipeKind recipe) {
  std::vector<std::string_view> words{to_word(LossKind::by_framework)};
  for (const auto& [loss, word] : Words<LossKind>::table) {
    if (losses_of(recipe).has(loss)) words.push_back(word);
  }
  const std::string_view last = words.back();
  words.pop_back();
  return fmt::format("{} or {}", fmt::join(words, ", "), last);
}

// Our own executor stands for whichever framework was asked for: another is no way out of it.
inline std::string unmoved_states(const Case& c, std::string_view what) {
  if (c.recipe != RecipeKind::qplan) return not_in(c, what, "use deepspeed at zero 3");
  return fmt::format(
      "qplan's executor runs no {}, whichever framework is asked for; run it with "
      "offload=optimizer, "
      "or predict it as deepspeed at zero 3",
      what);
}

// Without layers of Gated DeltaNet and Mamba-2. torchtitan has Qwen3.5, behind a vision tower of
// its own, and splits its heads otherwise (torchtitan/models/qwen3_5).
inline constexpr RecipeSet kWithoutRecurrence = kEarlyMegatron | set_of(nanotron, fsdp2_compile);

inline constexpr auto kExecution = std::to_array<Rule>({
    // Recompute.
    {"recompute_words", kEvery,
     [](const Case& c) {
       const Recompute& r = c.p.recompute;
       return (r.kind != RecomputeKind::selective && !r.modules.empty()) ||
              (r.kind != RecomputeKind::full && r.layers != 0) || r.layers < 0;
     },
     [](const Case& c) {
       return fmt::format("recompute {} takes {}", to_word(c.p.recompute.kind),
                          c.p.recompute.kind == RecomputeKind::full ? "a layer count and no modules"
                          : c.p.recompute.kind == RecomputeKind::selective
                              ? "modules and no layer count"
                              : "neither modules nor a layer count");
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1914, "
     "megatron/core/transformer/transformer_config.py:1929"},
    {"recompute_experts", kEvery, [](const Case& c) { return lacks_experts(c.m, c.p.recompute); },
     [](const Case& c) {
       return fmt::format("recompute {} names expert modules that the model does not have",
                          to_string(c.p.recompute));
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1964; arithmetic: "
     "there is nothing to recompute"},
    {"recompute_mla", kEvery,
     [](const Case& c) {
       return c.p.recompute.modules.has(RecomputeModule::mla_up_proj) && !c.m.mla;
     },
     [](const Case&) {
       return std::string("recompute mla_up_proj needs latent attention, which the model lacks");
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1969"},
    {"recompute_delta_net", kEvery,
     [](const Case& c) {
       return c.p.recompute.modules.has(RecomputeModule::gdn_norm_out) && !c.m.delta_net;
     },
     [](const Case&) {
       return std::string(
           "recompute gdn_norm_out needs Gated DeltaNet layers, which the model lacks");
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1974"},

    // Overlap.
    {"overlap_tp", kEvery,
     [](const Case& c) {
       return c.p.overlap.has(OverlapKind::tp) && c.p.tp > 1 && !c.p.sequence_parallel;
     },
     [](const Case& c) {
       return fmt::format("overlap tp at tp {} needs sequence_parallel", c.p.tp);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1441"},
    {"overlap_param", kMegatronCore,
     [](const Case& c) {
       return c.p.overlap.has(OverlapKind::param) &&
              (c.p.zero == 0 || !c.p.overlap.has(OverlapKind::grad));
     },
     [](const Case& c) {
       return fmt::format("overlap param needs overlap grad and zero 1 or more, not zero {}{}",
                          c.p.zero, c.p.overlap.has(OverlapKind::grad) ? "" : " without grad");
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1025"},
    {"overlap_ep", kEvery, [](const Case& c) { return !expert_overlap_obstacle(c).empty(); },
     [](const Case& c) { return fmt::format("overlap ep needs {}", expert_overlap_obstacle(c)); },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:3002"},

    // Offload.
    {"offload_fraction", kEvery,
     [](const Case& c) { return !(c.p.offload.optimizer >= 0 && c.p.offload.optimizer <= 1); },
     [](const Case& c) {
       return fmt::format("the offloaded fraction of the optimizer must be 0 to 1, not {}",
                          c.p.offload.optimizer);
     },
     "arithmetic: a share of a whole"},
    {"offload_optimizer_available", set_of(megatron_legacy, nanotron, ddp),
     [](const Case& c) { return c.p.offload.optimizer > 0; },
     [](const Case& c) { return not_in(c, "optimizer offload", "use offload none"); },
     "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:347 (since 2024); nanotron "
     "2411b022, src/nanotron/optim/zero.py (no offload); PyTorch 2.9, "
     "torch/nn/parallel/distributed.py (no offload)"},
    {"offload_optimizer_zero", kDeepSpeed | kDistributedOptimizer,
     [](const Case& c) { return c.p.offload.optimizer > 0 && c.p.zero == 0; },
     [](const Case&) {
       return std::string("optimizer offload needs a sharded optimizer; use zero 1 or more");
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1885; DeepSpeed edaa7221, "
     "deepspeed/runtime/zero/config.py:164"},
    {"offload_fraction_zero", kDeepSpeed,
     [](const Case& c) {
       return c.p.offload.optimizer > 0 && c.p.offload.optimizer < 1 && c.p.zero < 3;
     },
     [](const Case& c) {
       return fmt::format(
           "DeepSpeed offloads a fraction ({}) of the optimizer only at zero 3; offload all of it",
           c.p.offload.optimizer);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:392"},
    // CPUOffloadPolicy moves parameters, gradients and states as one.
    {"offload_whole", kTorch,
     [](const Case& c) {
       return (c.p.offload.optimizer > 0 || c.p.offload.params) &&
              !(c.p.offload.optimizer == 1 && c.p.offload.params);
     },
     [](const Case& c) {
       return fmt::format("{} offloads everything or nothing; use offload=optimizer,params",
                          recipe_name(c));
     },
     "torchtitan b5bcd76c, torchtitan/config/configs.py:70; accelerate 16cb6eb8, "
     "src/accelerate/utils/dataclasses.py:2172 (CPUOffloadPolicy)"},
    {"offload_params_available", kEvery - kDeepSpeed - kTorch,
     [](const Case& c) { return c.p.offload.params; },
     [](const Case& c) { return unmoved_states(c, "parameter offload"); },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:157; qplan: no other recipe has the "
     "choice"},
    {"offload_params_zero", kDeepSpeed,
     [](const Case& c) { return c.p.offload.params && c.p.zero < 3; },
     [](const Case& c) { return fmt::format("parameter offload needs zero 3, not {}", c.p.zero); },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/config.py:157"},
    {"offload_nvme_available", kEvery - kDeepSpeed, [](const Case& c) { return c.p.offload.nvme; },
     [](const Case& c) { return unmoved_states(c, "offload to NVMe"); },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/offload_config.py:24; qplan: no other recipe has "
     "the choice"},
    {"offload_nvme", kDeepSpeed,
     [](const Case& c) {
       return c.p.offload.nvme &&
              (c.p.zero < 3 || (c.p.offload.optimizer == 0 && !c.p.offload.params));
     },
     [](const Case& c) {
       return fmt::format(
           "offload {} at zero {}: nvme says where an offloaded optimizer lives, at zero 3",
           to_string(c.p.offload), c.p.zero);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/zero/stage3.py:777"},
    {"offload_activations_available", set_of(megatron_legacy, nanotron, RecipeKind::qplan),
     [](const Case& c) { return c.p.offload.activation_layers != 0; },
     [](const Case& c) { return not_in(c, "activation offload", "use recompute"); },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1323; qplan: no other "
     "recipe has the choice"},
    // `activations:N` is Transformer Engine's layer offload; `activations` is the fine-grained one,
    // which goes with a pipeline and with selective recompute.
    {"offload_activation_layers", kMegatronCore,
     [](const Case& c) {
       const int layers = c.p.offload.activation_layers;
       return layers > 0 &&
              (c.p.pp > 1 || c.p.recompute.kind != RecomputeKind::none || layers >= c.m.num_layers);
     },
     [](const Case& c) {
       return fmt::format(
           "offload of {} layers' activations needs pp 1, no recompute and fewer than the model's "
           "{} layers",
           c.p.offload.activation_layers, c.m.num_layers);
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1885"},
    {"offload_checkpoints", kOffloadsCheckpoints,
     [](const Case& c) {
       return c.p.offload.activation_layers != 0 &&
              (c.p.recompute.kind != RecomputeKind::full || c.p.offload.activation_layers > 0);
     },
     [](const Case& c) {
       return fmt::format(
           "offload {}: here checkpoints alone go to the host, of all layers; use recompute=full "
           "with offload=activations",
           to_string(c.p.offload));
     },
     "transformers 5.17.0, src/transformers/modeling_utils.py:3107; DeepSpeed "
     "edaa7221, deepspeed/runtime/activation_checkpointing/checkpointing.py:1141"},

    // Attention in fp8: of Transformer Engine's backends cuDNN's alone trains with it.
    {"fp8_attention_without_fp8", kMegatronCore,
     [](const Case& c) {
       const Precision p = c.p.precision;
       return c.p.fp8_dot_product_attention && p != Precision::fp8 && p != Precision::mxfp8 &&
              p != Precision::nvfp4;
     },
     [](const Case& c) {
       return fmt::format("{} has no products in fp8; leave fp8_dot_product_attention out",
                          to_word(c.p.precision));
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/backends.py:1443"},
    {"fp8_attention_backend", kMegatronCore,
     [](const Case& c) {
       return c.p.fp8_dot_product_attention && (c.p.attention_backend == AttentionBackend::flash ||
                                                c.p.attention_backend == AttentionBackend::unfused);
     },
     [](const Case& c) {
       return fmt::format(
           "attention_backend={} has no fp8; leave it or fp8_dot_product_attention out",
           to_word(c.p.attention_backend));
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/utils.py:647"},

    // Launching.
    {"fp8_parameters_without_fp8", kDistributedOptimizer,
     [](const Case& c) {
       const Precision p = c.p.precision;
       return !c.p.fp8_param_gather && p != Precision::fp8 && p != Precision::mxfp8;
     },
     [](const Case& c) {
       return fmt::format("{} has no weights in fp8; leave fp8_param_gather=false out",
                          to_word(c.p.precision));
     },
     "Megatron-LM d98e8a64, --fp8-param-gather; arithmetic: without fp8 there are no weights in "
     "it"},
    {"deterministic_overlap", kMegatronCore,
     [](const Case& c) { return c.p.deterministic && c.p.overlap.has(OverlapKind::tp); },
     [](const Case&) {
       return std::string(
           "Megatron's deterministic mode refuses tensor-parallel overlap; leave tp out of "
           "overlap");
     },
     "Megatron-LM d98e8a64, megatron/training/determinism.py:24"},
    {"deterministic_sinks", kMegatronCore,
     [](const Case& c) { return c.p.deterministic && c.m.attention_sinks; },
     [](const Case&) {
       return std::string(
           "Transformer Engine's attention with sinks has no deterministic backward; leave "
           "deterministic out");
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/utils.py:1535"},
    {"loss_available", kEvery,
     [](const Case& c) {
       return c.p.loss != LossKind::by_framework && !losses_of(c.recipe).has(c.p.loss);
     },
     [](const Case& c) {
       return not_in(c, fmt::format("loss {}", to_word(c.p.loss)), "use " + other_losses(c.recipe));
     },
     "qplan: models/program/loss.h says which loss each framework has"},
    {"deterministic_loss", kMegatronCore,
     [](const Case& c) {
       return c.p.deterministic && (c.p.loss == LossKind::native || c.p.loss == LossKind::te);
     },
     [](const Case&) {
       return std::string("Megatron's deterministic mode refuses its fused losses; leave loss out");
     },
     "Megatron-LM d98e8a64, megatron/training/determinism.py:24"},
    {"deterministic_delta_net", kMegatronCore,
     [](const Case& c) { return c.p.deterministic && c.m.delta_net; },
     [](const Case&) {
       return std::string(
           "Megatron's deterministic mode runs Gated DeltaNet chunk by chunk in torch, which is "
           "not "
           "modelled; leave deterministic out");
     },
     "Megatron-LM d98e8a64, megatron/core/ssm/gated_delta_net/gdn.py:69; qplan: not modelled"},
    {"delta_net_available", kWithoutRecurrence,
     [](const Case& c) { return c.m.delta_net.has_value(); },
     [](const Case& c) {
       return not_in(c, "Gated DeltaNet that qplan knows", "use megatron, deepspeed or fsdp2");
     },
     "qplan: models/program/delta_net_part.cpp models it for other frameworks alone"},
    // Megatron's own kernels of it, which the mode takes, were not measured.
    {"deterministic_mamba", kMegatronCore,
     [](const Case& c) { return c.p.deterministic && c.m.mamba; },
     [](const Case&) {
       return std::string(
           "Megatron's deterministic mode runs Mamba-2's scan by kernels that are not modelled; "
           "leave deterministic out");
     },
     "Megatron-LM d98e8a64, megatron/core/ssm/ops/common/determinism.py:27; qplan: not modelled"},
    {"mamba_available", kWithoutRecurrence, [](const Case& c) { return c.m.mamba.has_value(); },
     [](const Case& c) {
       return not_in(c, "Mamba-2 that qplan knows", "use megatron, deepspeed or fsdp2");
     },
     "qplan: models/program/mamba_part.cpp models it for other frameworks alone"},
    {"cuda_graph_router", kEvery,
     [](const Case& c) {
       return c.p.cuda_graph && c.p.cuda_graph_scope == CudaGraphScope::router && !c.m.moe;
     },
     [](const Case&) {
       return std::string("a dense model has no router to capture; use cuda_graph_scope layer");
     },
     "Megatron-LM 1dcf0daf, megatron/core/transformer/transformer_config.py:1779"},
    {"cuda_graph_mamba", kEvery,
     [](const Case& c) {
       return c.p.cuda_graph && c.p.cuda_graph_scope == CudaGraphScope::mamba && !c.m.mamba;
     },
     [](const Case&) {
       return std::string(
           "a model without Mamba-2 layers has none to capture; use cuda_graph_scope layer");
     },
     "Megatron-LM d98e8a64, megatron/core/ssm/mamba_layer.py:113"},
    // A graph of a layer's parts neither contains nor is contained in what is recomputed.
    {"cuda_graph_recompute", kMegatronCore,
     [](const Case& c) {
       const bool parts = c.p.cuda_graph && c.p.cuda_graph_scope != CudaGraphScope::full;
       const bool experts = c.m.moe && c.p.cuda_graph_scope != CudaGraphScope::mamba;
       return parts && (c.p.recompute.kind == RecomputeKind::full ||
                        (experts && c.p.recompute.modules.has(RecomputeModule::moe)));
     },
     [](const Case& c) {
       return fmt::format(
           "graphs of layers exclude recompute {}; use cuda_graph_scope full, or less recompute",
           to_string(c.p.recompute));
     },
     "Megatron-LM 1dcf0daf, megatron/core/transformer/transformer_config.py:1808, "
     "megatron/core/transformer/transformer_config.py:1819"},
    {"cuda_graph_offload", kMegatronCore,
     [](const Case& c) { return c.p.cuda_graph && c.p.offload.activation_layers > 0; },
     [](const Case& c) {
       return fmt::format("CUDA graphs exclude the offload of {} layers' activations",
                          c.p.offload.activation_layers);
     },
     "Megatron-LM 1dcf0daf, megatron/core/transformer/transformer_config.py:1748"},
    {"cuda_graph_parallel", set_of(fsdp2_compile),
     [](const Case& c) { return c.p.cuda_graph && (c.p.pp > 1 || c.p.ep > 1); },
     [](const Case& c) {
       return fmt::format("torchtitan's CUDA graphs exclude pp {} and ep {} above 1", c.p.pp,
                          c.p.ep);
     },
     "torchtitan b5bcd76c, torchtitan/trainer.py:172"},
});

}  // namespace qplan::rules
