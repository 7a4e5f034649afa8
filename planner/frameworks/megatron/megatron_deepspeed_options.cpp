#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/megatron/shared.h"

namespace qplan {
namespace {

using namespace megatron;
using P = ParallelPlan;
using enum Severity;

// What its parser takes (arguments.py:981).
constexpr std::int64_t kFpdtChunk = 65536;
constexpr std::string_view kChunksStay =
    "chunks of FPDT that wait on the host: without --ds-sequence-parallel-fpdt-offloading they "
    "stay "
    "on the GPU, which takes more";

constexpr auto kDeepSpeedOptions = std::to_array<Option>({
    kTensorParallel,
    kSequenceParallel,
    kPipelineParallel,
    // Without it the model becomes a PipelineModule even on one stage (pretrain_gpt.py:51).
    {"--no-pipeline-parallel", "", [](const Subject& s) { return if_true(s.plan.pp == 1); },
     [](Draft&, const Json&) {}},
    {"--num-layers-per-virtual-pipeline-stage", "vpp",
     [](const Subject&) { return Json(nullptr); },  // no plan that runs has any
     [](Draft& d, const Json& v) { d.layers_per_virtual_stage = degree_of(v); }},
    {"--ds-sequence-parallel-size", "cp", plan_value<&P::cp>,
     [](Draft& d, const Json& v) {
       d.plan.cp = degree_of(v);
       if (d.plan.cp > 1) d.plan.cp_comm = CpComm::a2a;
     }},
    kMicroBatch,
    kGlobalBatch,
    kSequenceLength,
    {"--zero-stage", "zero", plan_value<&P::zero>,
     [](Draft& d, const Json& v) { d.plan.zero = static_cast<int>(whole_of(v, 0, 3)); }},
    kBf16,
    {"--fp16", "precision",
     [](const Subject& s) { return if_true(s.plan.precision == Precision::fp16); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.precision = Precision::fp16;
     }},
    {"--fp8-hybrid", "precision",
     [](const Subject& s) { return if_true(s.plan.precision == Precision::fp8); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.precision = Precision::fp8;
     }},
    {"--optimizer", "optimizer",
     [](const Subject& s) {
       return if_true(s.plan.optimizer != OptimizerKind::adam,
                      std::string(to_word(s.plan.optimizer)));
     },
     [](Draft& d, const Json& v) { d.plan.optimizer = from_word<OptimizerKind>(text_of(v)); }},
    {"--ds-sequence-parallel-fpdt", "fpdt_chunk",
     [](const Subject& s) { return if_true(s.plan.fpdt_chunk > 0); },
     [](Draft& d, const Json& v) {
       if (!truth_of(v)) return;
       d.plan.fpdt_chunk = kFpdtChunk;
       d.assumed.emplace_back(kChunksStay);
     }},
    {"--ds-sequence-parallel-fpdt-chunk-size", "fpdt_chunk",
     [](const Subject& s) { return if_true(s.plan.fpdt_chunk > 0, s.plan.fpdt_chunk); },
     [](Draft& d, const Json& v) {
       if (d.plan.fpdt_chunk > 0) d.plan.fpdt_chunk = whole_of(v, 1, std::int64_t{1} << 30);
     }},
    {"--ds-sequence-parallel-fpdt-offloading", "",
     [](const Subject& s) { return if_true(s.plan.fpdt_chunk > 0); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) std::erase(d.assumed, kChunksStay);
     }},
    // Whose kernels it calls, and whose layout of heads goes with them (transformer.py:957).
    {"--use-flash-attn-v2", "", [](const Subject& s) { return if_true(s.plan.fpdt_chunk > 0); },
     [](Draft&, const Json&) {}},
    // The parser stops at fp8 with the layers of its own that are the default (arguments.py:372).
    {"--transformer-impl", "precision",
     [](const Subject& s) {
       return if_true(s.plan.precision == Precision::fp8, "transformer_engine");
     },
     [](Draft&, const Json&) {}},
    {"--checkpoint-activations", "recompute",
     [](const Subject& s) { return if_true(s.plan.recompute.kind == RecomputeKind::full); },
     [](Draft& d, const Json& v) {
       if (truth_of(v)) d.plan.recompute = {RecomputeKind::full, {}, 0};
     }},
    {"--deepspeed-activation-checkpointing", "",
     [](const Subject& s) { return if_true(s.plan.recompute.kind == RecomputeKind::full); },
     [](Draft&, const Json&) {}},
    {"--recompute-granularity", "recompute",
     [](const Subject& s) {
       return if_true(s.plan.recompute.kind == RecomputeKind::selective, "selective");
     },
     [](Draft& d, const Json& v) { d.plan.recompute.kind = from_word<RecomputeKind>(text_of(v)); }},
    // It takes the place of the DeepSpeed file's cpu_checkpointing, said or not
    // (megatron/initialize.py, setup_deepspeed_random_and_activation_checkpointing; DeepSpeed's
    // tutorial of Ulysses-Offload).
    {"--checkpoint-in-cpu", "offload",
     [](const Subject& s) { return if_true(s.plan.offload.activation_layers != 0); },
     [](Draft& d, const Json& v) {
       const bool whole = d.plan.recompute.kind == RecomputeKind::full;
       if (truth_of(v) && whole) d.plan.offload.activation_layers = -1;
     }},
    {"--cpu-optimizer", "", [](const Subject& s) { return if_true(s.plan.offload.optimizer > 0); },
     [](Draft&, const Json&) {}},
});

constexpr auto kDeepSpeedFacts = std::to_array<Fact>({
    kLayers,
    kHidden,
    {.key = "--ffn-hidden-size",
     .write = [](const Subject& s) { return Json(s.model.intermediate_size); },
     .otherwise = "",
     .why = kOtherShapes,
     .computed = default_mlp_width},
    kHeads,
    {.key = "--kv-channels",
     .write = [](const Subject& s) { return Json(s.model.head_dim); },
     .otherwise = "",
     .why = kOtherShapes,
     .computed = default_head_width},
    {.key = "--num-key-value-heads",
     .write = [](const Subject& s) { return Json(s.model.num_key_value_heads); },
     .otherwise = "",
     .why = kOtherShapes,
     .computed = [](const Subject& s) { return Json(s.model.num_attention_heads); }},
    kPositions,
    {.key = "--use-rotary-position-embeddings",
     .write = [](const Subject& s) { return if_true(modern(s)); },
     .otherwise = "false",
     .why = kOtherModel},
    {.key = "--rotary-position-embeddings-theta",
     .write = rope_theta,
     .otherwise = "10000",
     .why = kOtherRotation,
     .judged = modern},
    {.key = "--normalization",
     .write =
         [](const Subject& s) {
           return Json(s.model.norm == Norm::rms_norm ? "rmsnorm" : "layernorm");
         },
     .otherwise = "layernorm",
     .why = kOtherModel},
    {.key = "--layernorm-epsilon",
     .write = [](const Subject& s) { return Json(s.model.norm_epsilon); },
     .otherwise = "1e-05",
     .severity = warning,
     .why = "norms round otherwise"},
    kSwiglu,
    kSquaredRelu,
    {.key = "--disable-bias-linear",
     .write = without_linear_bias,
     .otherwise = "false",
     .why = "linear layers get biases that the model has not"},
    kUntied,
    {.key = "--attention-dropout",
     .write = [](const Subject&) { return Json("0.0"); },
     .otherwise = "0.1",
     .severity = warning,
     .why = "attention is dropped at random",
     .judged = modern},
    {.key = "--hidden-dropout",
     .write = [](const Subject&) { return Json("0.0"); },
     .otherwise = "0.1",
     .severity = warning,
     .why = "activations are dropped at random",
     .judged = modern},
});

constexpr auto kDeepSpeedLimits = std::to_array<Limit>({
    {"dense_attention_only",
     [](const Subject& s) {
       const auto slides = [](const LayerKind& layer) { return layer.window > 0; };
       return s.model.attention_sinks || (s.model.rope_scaling && !s.model.mla) ||
              (s.model.qkv_bias && !s.model.attention_output_bias) ||
              s.model.rotary_fraction != 1 || s.model.qk_norm_whole || s.model.qk_norm_each ||
              s.model.norm_place != NormPlace::before || s.model.parallel_mlp ||
              s.model.gelu_gate || s.model.rotary_interleaved || s.model.indexer ||
              !s.model.unmodelled.empty() ||
              std::any_of(s.model.layers.begin(), s.model.layers.end(), slides);
     },
     [](const Subject& s) {
       return fmt::format("Megatron-DeepSpeed has no option for {}'s layers; use megatron",
                          s.model.name);
     },
     Asks::model},
    {"uneven_stages", [](const Subject& s) { return !s.plan.pipeline_layout.empty(); },
     [](const Subject&) {
       return std::string("Megatron-DeepSpeed places layers by itself; leave pipeline_layout out");
     }},
    {"whole_virtual_stages",
     [](const Subject& s) { return s.model.num_layers % (s.plan.pp * s.plan.vpp) != 0; },
     [](const Subject& s) {
       return fmt::format("{} layers do not divide into pp {} x vpp {} stages", s.model.num_layers,
                          s.plan.pp, s.plan.vpp);
     }},
    {"pipeline_of_sequences", [](const Subject& s) { return s.plan.pp > 1 && s.plan.cp > 1; },
     [](const Subject& s) {
       return fmt::format("Megatron-DeepSpeed's Ulysses (cp {}) goes without a pipeline; use pp 1",
                          s.plan.cp);
     }},
    {"layers_recomputed",
     [](const Subject& s) {
       const Recompute& r = s.plan.recompute;
       return r.layers > 0 || !r.modules.empty();
     },
     [](const Subject& s) {
       return fmt::format(
           "Megatron-DeepSpeed recomputes core attention or whole layers; use "
           "recompute=selective or full, not {}",
           to_string(s.plan.recompute));
     }},
    {"no_compiler", [](const Subject& s) { return s.plan.compile; },
     [](const Subject&) {
       return std::string("qplan does not write torch.compile for Megatron-DeepSpeed");
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
});

}  // namespace

std::span<const Option> megatron_deepspeed_options() {
  return kDeepSpeedOptions;
}

std::span<const Fact> megatron_deepspeed_facts() {
  return kDeepSpeedFacts;
}

std::span<const Limit> megatron_deepspeed_limits() {
  return kDeepSpeedLimits;
}

// Batch, ZeRO, offload and formats; parallelism is Megatron's.
std::span<const Option> megatron_deepspeed_config() {
  const auto all = deepspeed_options();
  const auto end = std::find_if(all.begin(), all.end(), [](const Option& option) {
    return option.key == "sequence_parallel_size";
  });
  return all.first(static_cast<std::size_t>(end - all.begin()));
}

}  // namespace qplan
