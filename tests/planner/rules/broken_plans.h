#pragma once
// For each rule a plan that breaks it, and the small models that those plans are of.

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "planner/rules/feasible.h"

namespace qplan {

inline ModelSpec dense_model(std::int64_t layers, std::int64_t hidden, std::int64_t intermediate,
                             std::int64_t heads, std::int64_t kv_heads) {
  ModelSpec m;
  m.hidden_size = hidden;
  m.num_layers = layers;
  m.vocab_size = 151936;
  m.intermediate_size = intermediate;
  m.num_attention_heads = heads;
  m.num_key_value_heads = kv_heads;
  m.head_dim = 128;
  m.layers.resize(static_cast<std::size_t>(layers));
  return m;
}

inline ModelSpec moe_model(ModelSpec m, std::int64_t experts, std::int64_t top_k,
                           std::int64_t intermediate, std::int64_t dense_layers = 0) {
  MoeSpec moe;
  moe.num_experts = experts;
  moe.top_k = top_k;
  moe.moe_intermediate_size = intermediate;
  m.moe = moe;
  for (auto i = dense_layers; i < m.num_layers; ++i) {
    m.layers[static_cast<std::size_t>(i)].moe = true;
  }
  return m;
}

// Shapes of the models' config.json files.
inline ModelSpec llama3_70b() {
  return dense_model(80, 8192, 28672, 64, 8);
}
inline ModelSpec qwen3_32b() {
  ModelSpec m = dense_model(64, 5120, 25600, 64, 8);
  m.qk_norm = true;
  return m;
}
inline ModelSpec with_sinks(ModelSpec m) {
  m.attention_sinks = true;
  return m;
}
inline ModelSpec qwen3_30b() {
  ModelSpec m = moe_model(dense_model(48, 2048, 6144, 32, 4), 128, 8, 768);
  m.qk_norm = true;
  return m;
}
inline ModelSpec qwen3_235b() {
  ModelSpec m = moe_model(dense_model(94, 4096, 12288, 64, 4), 128, 8, 1536);
  m.qk_norm = true;
  return m;
}
inline ModelSpec deepseek_v3() {
  ModelSpec m = moe_model(dense_model(61, 7168, 18432, 128, 128), 256, 8, 2048, 3);
  m.moe->shared_expert_intermediate_size = 2048;
  m.mla = MlaSpec{1536, 512, 128, 64, 128};
  m.num_mtp_layers = 1;
  return m;
}
inline ModelSpec sparse() {
  ModelSpec m = deepseek_v3();
  m.indexer = IndexerSpec{64, 128, 2048};
  return m;
}
inline ModelSpec gpt_oss() {
  ModelSpec m = moe_model(dense_model(24, 2880, 2880, 64, 8), 32, 4, 2880);
  m.moe->expert_bias = true;
  m.layers[0].window = 128;
  return m;
}
inline ModelSpec qwen3_vl() {
  ModelSpec m = qwen3_30b();
  m.vision = VisionSpec{};
  m.vision->num_heads = 18;
  m.vision->deepstack_layers = {8, 16, 24};
  return m;
}
inline ModelSpec gated_tower() {
  ModelSpec m = qwen3_30b();
  m.vision = VisionSpec{};
  m.vision->num_heads = 16;
  m.vision->intermediate_size = 3420;
  return m;
}
inline ModelSpec minimax() {
  return load_model("minimax-m2");
}
inline ModelSpec hybrid() {
  ModelSpec m = qwen3_32b();
  m.delta_net = DeltaNetSpec{
      .num_key_heads = 16, .num_value_heads = 48, .key_head_dim = 128, .value_head_dim = 128};
  for (std::size_t i = 0; i < m.layers.size(); ++i)
    m.layers[i].mixer = i % 4 == 3 ? Mixer::attention : Mixer::delta_net;
  return m;
}
inline ModelSpec nemotron() {
  return load_model("nemotron-3-nano-30b-a3b");
}
inline ModelSpec scout() {
  return load_model("llama4-scout-17b-16e");
}
inline ModelSpec strange_rope() {
  ModelSpec m = dense_model(24, 1024, 4096, 16, 16);
  m.rope_scaling = RopeScaling{};
  return m;
}
inline ModelSpec gpt2() {
  ModelSpec m = dense_model(24, 1024, 4096, 16, 16);
  m.position = PositionEmbedding::learned;
  m.max_position_embeddings = 1024;
  return m;
}
// With the layers that FPDT's code runs.
inline ModelSpec biased_gpt() {
  ModelSpec m = gpt2();
  m.mlp = MlpKind::gelu;
  m.qkv_bias = m.attention_output_bias = m.mlp_bias = true;
  return m;
}
inline ModelSpec tied_model() {
  ModelSpec m = dense_model(24, 1024, 4096, 16, 16);
  m.tie_word_embeddings = true;
  return m;
}
inline ModelSpec tied_predicting_two() {
  ModelSpec m = tied_model();
  m.num_mtp_layers = 1;
  return m;
}

inline Recipe recipe(RecipeKind kind) {
  Recipe r;
  r.kind = kind;
  return r;
}

struct Broken {
  std::string_view rule;
  RecipeKind kind;
  ModelSpec model;
  std::string_view plan;
  ClusterLimits limits = {};
  void (*twist)(ParallelPlan&) = nullptr;  // what no line can say
};

inline const std::vector<GpusOfKind>& two_kinds() {
  static const std::vector<GpusOfKind> kinds = {{"h100-sxm", 16}, {"a100-80gb-sxm", 8}};
  return kinds;
}

// One plan for each rule that breaks it.
inline std::vector<Broken> broken_plans() {
  using enum RecipeKind;
  constexpr auto qplan_recipe = RecipeKind::qplan;
  return {
      {"positive_sizes", megatron, llama3_70b(), "tp1", {}, [](ParallelPlan& p) { p.tp = 0; }},
      {"document_length", megatron, llama3_70b(), "seq4096 doc4097"},
      {"world_size", megatron, llama3_70b(), "tp8 pp2 dp2 gbs2", {64, 90}},
      {"whole_stages_of_a_kind", megatron, llama3_70b(), "tp4 pp2 dp3 gbs3", {24, 80, two_kinds()}},
      {"kinds_side_by_side",
       megatron,
       qwen3_30b(),
       "pp3 vpp2 interleaved dp8 ep8 gbs48 overlap=ep",
       {24, 90, two_kinds()}},
      {"batch_divisibility", megatron, llama3_70b(), "dp3 mbs2 gbs16"},
      {"dense_experts", megatron, llama3_70b(), "dp8 ep8 gbs8"},
      {"expert_world", megatron, qwen3_30b(), "dp8 ep16 gbs8"},
      {"experts_per_rank", megatron, qwen3_30b(), "dp24 ep24 gbs24"},
      {"fsdp_shard_divides", megatron_fsdp, llama3_70b(), "dp16 gbs16 zero3 fsdp_shard=6"},
      {"fsdp_shard_without_zero", megatron, llama3_70b(), "dp16 gbs16 fsdp_shard=8"},
      {"attention_heads", megatron, llama3_70b(), "tp12 gbs1"},
      {"key_value_heads", megatron, qwen3_30b(), "tp3 sp seq3072"},
      {"key_value_heads_split", fsdp2_compile, qwen3_30b(), "tp8 sp zero3"},
      {"vision_heads", megatron, qwen3_vl(), "tp4 sp"},
      {"vision_mlp_split", megatron, gated_tower(), "tp8 sp"},
      {"recompute_delta_net", megatron, llama3_70b(), "recompute=selective:gdn_norm_out"},
      {"delta_net_heads", megatron, hybrid(), "tp8 cp4 sp"},
      {"delta_net_tensor_parallel", fsdp2, hybrid(), "tp2 zero3"},
      {"delta_net_context", fsdp2, hybrid(), "cp2 zero3"},
      {"delta_net_available", fsdp2_compile, hybrid(), "zero3"},
      {"deterministic_delta_net", megatron, hybrid(), "zero1 deterministic"},
      {"mamba_heads", megatron, nemotron(), "tp2 cp3 sp seq3072"},
      {"mamba_tensor_parallel", fsdp2, nemotron(), "tp2 zero3"},
      {"mamba_context", fsdp2, nemotron(), "cp2 zero3"},
      {"mamba_available", fsdp2_compile, nemotron(), "zero3"},
      {"deterministic_mamba", megatron, nemotron(), "zero1 deterministic"},
      {"cuda_graph_mamba", megatron, llama3_70b(), "cuda_graph cuda_graph_scope=mamba"},
      {"mlp_split", megatron, gpt2(), "tp3 seq1024"},
      {"shared_expert_split", megatron, deepseek_v3(), "tp3 sp seq3072"},
      {"expert_split", megatron, qwen3_30b(), "dp5 etp5 gbs5"},
      {"expert_bias_split", megatron, gpt_oss(), "dp2 etp2 gbs2"},
      {"sequence_parallel_alone", megatron, llama3_70b(), "sp"},
      {"moe_needs_sequence_parallel", megatron, qwen3_30b(), "tp2"},
      {"sequence_split", megatron, llama3_70b(), "cp8 seq4104"},
      {"sequence_split_ulysses", deepspeed, llama3_70b(), "cp8 cp_comm=a2a seq4100 zero1"},
      {"sequence_parallel_split", megatron, llama3_70b(), "tp8 sp seq4100"},
      {"learned_positions", megatron, gpt2(), "seq2048"},
      {"pipeline_depth", nanotron, gpt2(), "pp32 seq1024 gbs32"},
      {"layers_per_stage", megatron, qwen3_235b(), "pp8 gbs32"},
      {"layout_stages", megatron, llama3_70b(), "pp4 layout=40+40 gbs8"},
      {"layout_layers", megatron, llama3_70b(), "pp4 layout=20+20+20+19 gbs8"},
      {"layout_empty_stage", megatron, llama3_70b(), "pp4 layout=40+0+40+0 gbs8"},
      {"schedule_without_pipeline", RecipeKind::qplan, llama3_70b(), "zb-h1"},
      {"virtual_stages", megatron, llama3_70b(), "pp4 vpp2 1f1b gbs8"},
      {"schedule_microbatches", megatron, llama3_70b(), "pp4 vpp2 interleaved gbs2"},
      {"split_backward_sharding", qplan_recipe, llama3_70b(), "pp4 dp2 zb-h1 zero2 gbs16"},
      {"interleaved_microbatches", megatron, llama3_70b(), "pp4 vpp2 interleaved gbs6"},
      {"dualpipe_pairs", qplan_recipe, llama3_70b(), "pp5 dualpipe gbs10"},
      {"schedule_available", megatron, llama3_70b(), "pp4 zb-h1 gbs8"},
      {"tied_stages", RecipeKind::fsdp2_compile, tied_model(), "pp2 gbs8 zero2"},
      {"pipeline_available", fsdp2, llama3_70b(), "pp4 gbs8 zero3"},
      {"interleaved_iterators", megatron_deepspeed, llama3_70b(), "pp4 vpp2 interleaved gbs8"},
      {"context_parallel_available", fsdp1, llama3_70b(), "cp2 zero3"},
      {"ulysses_heads", megatron, llama3_70b(), "tp4 cp4 cp_comm=a2a"},
      {"deepspeed_ulysses_heads", deepspeed, llama3_70b(), "cp12 cp_comm=a2a seq3072"},
      {"ulysses_only", deepspeed, llama3_70b(), "cp4 cp_comm=p2p"},
      {"ulysses_with_sequence_parallel", megatron_deepspeed, llama3_70b(),
       "tp2 sp cp2 cp_comm=a2a"},
      {"fpdt_available", deepspeed, llama3_70b(), "zero1 fpdt_chunk=1024"},
      {"fpdt_whole_chunks", megatron_deepspeed, biased_gpt(), "seq1024 fpdt_chunk=100"},
      {"fpdt_layers", megatron_deepspeed, llama3_70b(), "dp8 gbs8 seq4096 fpdt_chunk=1024"},
      {"fpdt_alone", megatron_deepspeed, biased_gpt(), "tp2 seq1024 fpdt_chunk=256"},
      {"ring_window", megatron, gpt_oss(), "cp2"},
      {"indexer_context", megatron, sparse(), "cp2"},
      {"every_key", fsdp2, sparse(), "zero3"},
      {"sinks_context", megatron, load_model("gpt-oss-20b"), "cp2 cp_comm=all_gather"},
      {"chunked_context", megatron, scout(), "cp2 seq16384"},
      {"every_expert", fsdp2, scout(), "zero3"},
      {"mla_cp_comm", megatron, deepseek_v3(), "cp2 cp_comm=a2a"},
      {"zero_above_one", megatron, llama3_70b(), "dp8 zero3 gbs8"},
      {"zero_below_two", fsdp2, llama3_70b(), "dp8 zero1 gbs8"},
      {"zero_with_pipeline", deepspeed, llama3_70b(), "pp2 dp8 zero2 gbs8"},
      {"tensor_parallel_available", fsdp1, llama3_70b(), "tp2 zero3"},
      {"autotp_zero", deepspeed, llama3_70b(), "tp2 dp4 gbs4 zero3"},
      {"mics_zero", deepspeed, llama3_70b(), "dp8 gbs8 zero2 fsdp_shard=4"},
      {"expert_parallel_available", fsdp2, qwen3_30b(), "dp8 ep8 gbs8 zero3"},
      {"expert_tensor_available", fsdp2_compile, qwen3_30b(), "dp8 etp2 gbs8 zero3"},
      {"experts_within_shards", fsdp2_compile, qwen3_30b(), "dp8 ep8 gbs8 zero3 fsdp_shard=4"},
      {"autoep_zero3", deepspeed, qwen3_30b(), "cp2 dp8 ep8 gbs8 zero3 cp_comm=a2a"},
      {"dispatcher_without_experts", megatron, llama3_70b(), "tp2 moe_dispatcher=deepep"},
      {"dispatcher_available", qplan_recipe, qwen3_30b(), "dp8 ep8 gbs8 moe_dispatcher=deepep"},
      {"capacity_available", deepspeed, qwen3_30b(), "dp8 gbs8 zero1 capacity=1.25"},
      {"permute_fusion_available", deepspeed, qwen3_30b(),
       "dp8 gbs8 zero1 moe_permute_fusion=false"},
      {"fp8_parameters_available", deepspeed, llama3_70b(), "zero1 fp8_param_gather=false"},
      {"fp8_parameters_without_fp8", megatron, llama3_70b(), "zero1 fp8_param_gather=false"},
      {"fp8_attention_available", deepspeed, llama3_70b(), "zero1 fp8_dot_product_attention"},
      {"fp8_attention_without_fp8", megatron, llama3_70b(), "zero1 fp8_dot_product_attention"},
      {"fp8_attention_backend", megatron, llama3_70b(),
       "zero1 precision=fp8 fp8_dot_product_attention attention_backend=flash"},
      {"capacity_without_experts", qplan_recipe, llama3_70b(), "capacity=1"},
      {"drop_policy_without_capacity", megatron, qwen3_30b(), "drop=position"},
      {"zero_of_ddp", ddp, llama3_70b(), "dp8 gbs8 zero1"},
      {"lora_words_need_rank", fsdp2, llama3_70b(), "zero3 lora_targets=q_proj"},
      {"lora_words_need_rank", fsdp2, llama3_70b(), "zero3 frozen=nf4"},
      {"lora_words_need_rank", ddp, llama3_70b(), "dp8 gbs8 zero0 fp32_norms"},
      {"lora_a2a_available", ddp, llama3_70b(), "dp8 gbs8 zero0 lora8 lora_a2a"},
      {"lora_dtype_available", megatron, llama3_70b(), "lora8 lora_dtype=fp32"},
      {"lora_embeddings_tied", fsdp2, load_model("qwen3-0.6b"), "zero3 lora8 lora_embeddings"},
      {"lora_embeddings_lookup", fsdp2, load_model("qwen2.5-vl-7b"), "zero3 lora8 lora_embeddings"},
      {"dora_experts", fsdp2, qwen3_30b(), "zero3 lora8 lora_targets=experts dora"},
      {"dora_parallel", megatron, llama3_70b(), "lora8 lora_dropout=0.1 dora"},
      {"fp32_norms_available", megatron, llama3_70b(), "lora8 fp32_norms"},
      {"sync_each_batch_available", megatron, llama3_70b(), "sync_each_batch=false"},
      {"use_reentrant_available", megatron, llama3_70b(), "recompute=full use_reentrant"},
      {"module_kernels_available", megatron, llama3_70b(), "module_kernels=norms"},
      {"lora_adapts_a_layer", megatron, llama3_70b(), "lora8 lora_targets=kv_b_proj"},
      {"optimizer_available", megatron, llama3_70b(), "zero1 optimizer=adam8bit"},
      {"optimizer_available", megatron, llama3_70b(), "zero1 optimizer=adafactor"},
      {"optimizer_available", megatron_fsdp, llama3_70b(), "zero3 optimizer=muon"},
      {"optimizer_available", fsdp2, llama3_70b(), "zero3 optimizer=muon"},
      {"optimizer_available", fsdp1, llama3_70b(), "zero3 optimizer=adafactor"},
      {"optimizer_available", fsdp2_compile, llama3_70b(), "zero3 optimizer=sgd"},
      {"optimizer_available", qplan_recipe, llama3_70b(), "zero1 optimizer=lion"},
      {"moment_format_of_adam", megatron, llama3_70b(), "zero1 optimizer=sgd moment_dtype=bf16"},
      {"precision_aware_adam", megatron, llama3_70b(),
       "zero1 optimizer=sgd main_params_dtype=bf16"},
      {"offloaded_adam", deepspeed, llama3_70b(),
       "dp8 gbs8 zero2 offload=optimizer optimizer=lion"},
      {"muon_fp16", megatron, llama3_70b(), "zero1 optimizer=muon precision=fp16"},
      {"muon_shard_groups", megatron, llama3_70b(), "dp8 gbs8 zero1 fsdp_shard=4 optimizer=muon"},
      {"muon_expert_vectors", megatron, gpt_oss(), "dp8 gbs8 zero1 optimizer=muon"},
      {"muon_zero3", deepspeed, llama3_70b(), "dp8 gbs8 zero3 optimizer=muon"},
      {"whole_matrices", qplan_recipe, llama3_70b(), "zero0 tp2 optimizer=adafactor"},
      {"whole_matrices", qplan_recipe, llama3_70b(), "dp2 gbs2 zero1 optimizer=muon"},
      {"lora_dropout_share", ddp, llama3_70b(), "zero0 lora8 lora_dropout=1"},
      {"quantized_available", megatron, llama3_70b(), "lora8 frozen=nf4"},
      {"frozen_fp32_gathered", ddp, llama3_70b(), "lora8 frozen=fp32"},
      {"frozen_fp32_gathered", deepspeed, llama3_70b(), "dp8 zero2 gbs8 lora8 frozen=fp32"},
      {"quantized_tp", deepspeed, llama3_70b(), "tp2 lora8 frozen=int4"},
      {"lora_overlap_tp", qplan_recipe, llama3_70b(), "tp2 sp overlap=tp lora8"},
      {"lora_executor_dropout", qplan_recipe, llama3_70b(), "lora8 lora_dropout=0.1"},
      {"lora_experts_etp", qplan_recipe, qwen3_30b(), "tp2 sp etp2 lora8 lora_targets=experts"},
      {"lora_rank_tp", megatron, llama3_70b(), "tp2 sp lora3"},
      {"lora_vision", qplan_recipe, qwen3_vl(), "lora8"},
      {"lora_fp8", qplan_recipe, llama3_70b(), "lora8 precision=fp8"},
      {"executor_graph", qplan_recipe, qwen3_30b(), "dp2 ep2 gbs2 cuda_graph"},
      {"executor_graph", qplan_recipe, llama3_70b(), "tp2 cuda_graph"},
      {"executor_graph", qplan_recipe, llama3_70b(), "cuda_graph cuda_graph_scope=layer"},
      {"deepep_group", megatron, qwen3_30b(), "dp8 gbs8 moe_dispatcher=deepep"},
      {"dispatcher_gpu", megatron, qwen3_30b(), "dp8 ep8 gbs8 moe_dispatcher=deepep", {0, 80}},
      {"dispatcher_gpu", megatron, qwen3_30b(), "dp8 ep8 gbs8 moe_dispatcher=deepep", {0, 94}},
      {"dispatcher_rack",
       megatron,
       qwen3_30b(),
       "dp8 ep8 gbs8 moe_dispatcher=deepep",
       {.compute_capability = 100, .rack = true}},
      {"dispatcher_network",
       megatron,
       qwen3_30b(),
       "dp16 ep16 gbs16 moe_dispatcher=deepep",
       {.compute_capability = 90, .library_reach = 8}},
      {"dispatcher_links",
       megatron,
       qwen3_30b(),
       "dp8 ep8 gbs8 moe_dispatcher=hybridep",
       {.compute_capability = 120, .nvlinked = 1}},
      {"dispatcher_links",
       megatron,
       qwen3_30b(),
       "dp8 ep4 gbs8 moe_dispatcher=deepep",
       {.compute_capability = 90, .nvlinked = 2}},
      {"model_available", megatron_deepspeed, qwen3_32b(), "tp8"},
      {"precision_gpu", megatron, llama3_70b(), "precision=mxfp8", {0, 90}},
      {"precision_available", qplan_recipe, llama3_70b(), "precision=nvfp4", {0, 100}},
      {"low_precision_tokens", megatron, llama3_70b(), "precision=fp8 seq4100"},
      {"low_precision_widths", megatron, dense_model(24, 1000, 4000, 8, 8), "precision=fp8"},
      {"low_precision_widths", megatron, moe_model(dense_model(24, 2880, 2880, 64, 8), 32, 4, 2880),
       "tp8 etp8 sp precision=fp8"},
      {"precision_aware_optimizer", megatron, llama3_70b(), "moment_dtype=bf16 zero0"},
      {"executor_model", qplan_recipe, strange_rope(), "tp1"},
      {"executor_model", qplan_recipe, minimax(), "dp256 gbs256"},
      {"delta_net_heads", qplan_recipe, hybrid(), "tp32"},
      {"mamba_heads", qplan_recipe, nemotron(), "tp16 sp"},
      {"executor_mamba_groups", qplan_recipe, nemotron(), "tp4 cp4 sp"},
      {"executor_recurrence_fp8", qplan_recipe, hybrid(), "precision=fp8"},
      {"executor_documents", qplan_recipe, llama3_70b(), "doc256"},
      {"executor_deepstack", qplan_recipe, qwen3_vl(), "pp24 gbs24"},
      {"executor_vision_sp", qplan_recipe, qwen3_vl(), "tp2 sp seq4"},
      {"executor_model", qplan_recipe, tied_predicting_two(), "tp1"},
      {"executor_dispatcher", qplan_recipe, qwen3_30b(), "dp2 ep2 gbs2 moe_dispatcher=allgather"},
      {"executor_fp8", qplan_recipe, qwen3_vl(), "precision=fp8"},
      {"executor_state_dtypes", qplan_recipe, llama3_70b(), "moment_dtype=fp8"},
      {"executor_overlap_tp", qplan_recipe, llama3_70b(), "tp2 sp overlap=tp seq4100"},
      {"recompute_words",
       megatron,
       llama3_70b(),
       "recompute=full:4",
       {},
       [](ParallelPlan& p) { p.recompute.modules.add(RecomputeModule::mlp); }},
      {"recompute_experts", megatron, llama3_70b(), "recompute=selective:moe_act"},
      {"recompute_mla", megatron, llama3_70b(), "recompute=selective:mla_up_proj"},
      {"overlap_tp", megatron, llama3_70b(), "tp8 overlap=tp"},
      {"overlap_param", megatron, llama3_70b(), "dp8 gbs8 zero1 overlap=param"},
      {"overlap_ep", megatron, qwen3_30b(), "dp8 ep8 gbs8 overlap=ep recompute=full"},
      {"offload_fraction",
       megatron,
       llama3_70b(),
       "zero1",
       {},
       [](ParallelPlan& p) { p.offload.optimizer = 1.5; }},
      {"offload_optimizer_available", nanotron, llama3_70b(), "zero1 offload=optimizer"},
      {"offload_optimizer_available", ddp, llama3_70b(), "zero0 offload=optimizer"},
      {"offload_optimizer_zero", megatron, llama3_70b(), "zero0 offload=optimizer"},
      {"offload_fraction_zero", deepspeed, llama3_70b(), "zero2 offload=optimizer:0.5"},
      {"offload_whole", fsdp2, llama3_70b(), "zero3 offload=optimizer"},
      {"offload_params_available", megatron, llama3_70b(), "zero1 offload=params"},
      {"offload_params_zero", deepspeed, llama3_70b(), "zero2 offload=params"},
      {"offload_nvme_available", qplan_recipe, llama3_70b(), "zero3 offload=optimizer,nvme"},
      {"offload_nvme", deepspeed, llama3_70b(), "zero2 offload=optimizer,nvme"},
      {"offload_activations_available", qplan_recipe, llama3_70b(), "offload=activations"},
      {"offload_activation_layers", megatron, llama3_70b(), "pp2 gbs4 offload=activations:10"},
      {"offload_checkpoints", deepspeed, llama3_70b(), "zero1 offload=activations"},
      {"offload_checkpoints", fsdp2, llama3_70b(), "zero3 recompute=full offload=activations:4"},
      {"attention_backend_available", qplan_recipe, llama3_70b(), "zero1 attention_backend=flash"},
      {"dropout_available", fsdp2, llama3_70b(), "zero3 dropout"},
      {"deterministic_available", deepspeed, llama3_70b(), "zero1 deterministic"},
      {"deterministic_overlap", megatron, llama3_70b(),
       "tp2 zero1 sp deterministic overlap=tp+grad+param"},
      {"deterministic_sinks", megatron, with_sinks(llama3_70b()), "zero1 deterministic"},
      {"loss_available", deepspeed, llama3_70b(), "zero1 loss=te"},
      {"deterministic_loss", megatron, llama3_70b(), "zero1 deterministic loss=native"},
      {"cuda_graph_available", deepspeed, llama3_70b(), "zero1 cuda_graph"},
      {"cuda_graph_parallel", fsdp2_compile, llama3_70b(), "pp2 gbs4 zero3 cuda_graph"},
      {"cuda_graph_router", megatron, llama3_70b(), "zero1 cuda_graph cuda_graph_scope=router"},
      {"cuda_graph_recompute", megatron, llama3_70b(),
       "zero1 recompute=full cuda_graph cuda_graph_scope=layer"},
      {"cuda_graph_offload", megatron, llama3_70b(), "zero1 offload=activations:1 cuda_graph"},
  };
}

inline ParallelPlan plan_of(const Broken& example) {
  ParallelPlan plan = parse_plan(example.plan);
  if (example.twist != nullptr) example.twist(plan);
  return plan;
}

}  // namespace qplan
