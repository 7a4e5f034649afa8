// other_flags: what a source says beside the columns, in its own words. One table of the words that
// a plan or a model has a word for, and one of those that change nothing that is priced.

#include <algorithm>
#include <array>

#include "planner/runs/measured_runs.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

using enum OverlapKind;

struct Flag {
  std::string_view word;
  void (*apply)(RunInputs&);
};

template <OverlapKind... Kinds>
void overlaps(RunInputs& in) {
  (in.plan.overlap.add(Kinds), ...);
}

template <OverlapKind... Kinds>
void waits(RunInputs& in) {
  (in.plan.overlap.remove(Kinds), ...);
}

template <auto Member, auto Value>
void sets(RunInputs& in) {
  in.plan.*Member = Value;
}

using P = ParallelPlan;
constexpr auto kForced = sets<&P::routing, Routing::forced>;
constexpr auto kInTurn = sets<&P::routing, Routing::in_turn>;
constexpr auto kNatural = sets<&P::routing, Routing::natural>;
constexpr auto kGraphs = sets<&P::cuda_graph, true>;
constexpr auto kNoGraphs = sets<&P::cuda_graph, false>;
constexpr auto kGradBf16 = sets<&P::grad_dtype, DType::bf16>;
constexpr auto kGradFp32 = sets<&P::grad_dtype, DType::fp32>;
constexpr auto kMomentsBf16 = sets<&P::moment_dtype, DType::bf16>;

// Megatron-Bridge's apply_moe_token_drop and NeMo's callback: capacity factor 1, padded to it,
// which only the alltoall dispatcher takes. Every expert's rows are then as even as forced ones.
void drops_tokens(RunInputs& in) {
  in.plan.routing = Routing::forced;
  in.plan.moe_dispatcher = MoeDispatcher::alltoall;
  if (in.model.moe) in.plan.moe_capacity_factor = 1;
}

// Words that some plan or model word stands for. A dispatcher has a column and is read from there.
constexpr auto kFlags = std::to_array<Flag>({
    // Routing.
    {"force-balance routing", kForced},
    {"force-balance", kForced},
    {"fake balanced gate", kInTurn},
    {"token drop", drops_tokens},
    {"capacity factor 1.0 drop", drops_tokens},
    {"capacity factor 1.0 drop+pad", drops_tokens},
    {"natural routing", kNatural},
    {"dropless natural routing", kNatural},
    {"UNBALANCED routing", kNatural},
    // Overlap.
    {"TP comm overlap", overlaps<tp>},
    {"Async TP", overlaps<tp>},
    {"AsyncTP", overlaps<tp>},
    {"no TP comm overlap", waits<tp>},
    {"vanilla TP", waits<tp>},
    {"overlap grad-reduce/param-gather", overlaps<grad, param>},
    {"no comm overlap", waits<tp, grad, param, ep>},
    {"moe_a2a_overlap=True", overlaps<ep>},
    {"A2A overlap", overlaps<ep>},
    {"A2A overlap (1F1B)", overlaps<ep>},
    {"1F1B a2a overlap", overlaps<ep>},
    {"EP comm overlap", overlaps<ep>},
    {"EP overlap", overlaps<ep>},
    {"EP overlap+delay_wgrad", overlaps<ep>},
    {"moe_a2a_overlap=False", waits<ep>},
    {"no A2A overlap", waits<ep>},
    {"no EP overlap", waits<ep>},
    // Formats of the states (README of the runs, trap 5).
    {"grad_reduce bf16", kGradBf16},
    {"bf16 grad reduce", kGradBf16},
    {"bf16 Adam moments", kMomentsBf16},
    {"bf16 grads and bf16 Adam moments (precision-aware optimizer)",
     [](RunInputs& in) {
       kGradBf16(in);
       kMomentsBf16(in);
     }},
    {"fp32 grad accumulate", kGradFp32},
    {"fp32 grad accumulation (unsharded)", kGradFp32},
    {"fp32 master/grads", kGradFp32},
    {"fp32 grads/optimizer", kGradFp32},
    // Launching.
    {"full-iteration CUDA graphs", kGraphs},
    {"no CUDA graph", kNoGraphs},
    {"no CUDA graphs", kNoGraphs},
    {"deterministic mode", sets<&P::deterministic, true>},
    // Fused cross-entropy; SimuMax means Transformer Engine's (its docs/strategy.md).
    {"CE fusion", sets<&P::loss, LossKind::te>},
    {"TE CE fusion", sets<&P::loss, LossKind::te>},
    {"TE fused CE", sets<&P::loss, LossKind::te>},
    {"NVTE_FUSED_ATTN=0", sets<&P::attention_backend, AttentionBackend::flash>},
    {"attention_backend=flash", sets<&P::attention_backend, AttentionBackend::flash>},
    {"dropout 0.1", sets<&P::dropout, true>},
    {"fp8 param gather", sets<&P::fp8_param_gather, true>},
    // Megatron's sorting of tokens.
    {"moe_permute_fusion=False", sets<&P::moe_permute_fusion, false>},
    {"moe_permute_fusion=false", sets<&P::moe_permute_fusion, false>},
    {"no permute fusion", sets<&P::moe_permute_fusion, false>},
    {"moe_permute_fusion=True", sets<&P::moe_permute_fusion, true>},
    {"permute fusion", sets<&P::moe_permute_fusion, true>},
    // What torch.compile makes of modules is the same under FSDP1, as is PyTorch 2's own attention,
    // FlashAttention-2 (fms-fsdp's README), and a loss apart: torchtitan before 2025. FSDP1 reduces
    // in bf16.
    {"torch.compile",
     [](RunInputs& in) {
       in.plan.compile = true;
       if (in.recipe != RecipeKind::fsdp1) return;
       in.recipe = RecipeKind::fsdp2_compile;
       in.month = 202412;
       in.plan.grad_dtype = DType::bf16;
     }},
    {"eager", sets<&P::compile, false>},
    {"eager (compile default false)", sets<&P::compile, false>},
    // Pipeline. torchtitan's interleaving held two stages a rank unless told otherwise.
    {"schedule 1F1B", sets<&P::vpp, 1>},
    {"1F1B", sets<&P::vpp, 1>},
    {"schedule Interleaved 1F1B",
     [](RunInputs& in) {
       if (in.plan.vpp == 1) in.plan.vpp = 2;
     }},
    // Transformer Engine's norms, products and attention in an FSDP2 model: Megatron's kernels.
    {"TE",
     [](RunInputs& in) {
       if (in.recipe == RecipeKind::fsdp2) in.recipe = RecipeKind::megatron_fsdp;
     }},
    {"packing",
     [](RunInputs& in) { in.plan.document_len = std::min(kPackedDocument, in.plan.seq_len); }},
    // The model.
    {"MTP 1 layer", [](RunInputs& in) { in.model.num_mtp_layers = 1; }},
    {"no MTP", [](RunInputs& in) { in.model.num_mtp_layers = 0; }},
});

// Words that begin like this are graphs of some modules.
constexpr std::array<std::string_view, 4> kGraphPrefixes{"cuda_graph=", "CUDA graph ",
                                                         "TE CUDA graphs", "CUDA graphs "};

// Known, and nothing that is priced follows from them: they restate a column (dispatcher, fsdp, sp,
// precision), the recipe (grouped GEMM, Transformer Engine, its fp16
// optimizer), or something finer than the model (delayed weight gradients, data, clipping,
// allocator settings).
constexpr auto kNothing = std::to_array<std::string_view>({
    "dropless",
    "dispatcher=hybridep",
    "dispatcher=alltoall",
    "dispatcher=deepep",
    "token_dispatcher=alltoall",
    "alltoall",
    "alltoall dispatcher",
    "DeepEP",
    "HybridEP",
    "HybridEP 32 SMs",
    "HybridEP 1.10x fixed capacity",
    "TorchSDPA",
    "FlexAttn",
    "torch_mm",
    "fsdp2_prefetch",
    "FSDP",
    "2D FSDP+TP",
    "CP",
    "Float8",
    "no SP",
    "SP input re-gather",
    "Megatron-DeepSpeed fp16 optimizer",
    "BF16_Optimizer",
    "grouped GEMM",
    "delay_wgrad",
    "fp8 all-gather",
    "precompute_float8_dynamic_scale",
    "force_recompute_fp8_weight_in_bwd",
    "mock data",
    "fp32 main grads/params/moments",  // the optimizer's copies: its defaults
    "no grad clip",
    "expandable segments",
    "paged stash",
    "baseline",
});

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// Graphs of modules ("transformer_engine:attn+moe_router"); of whole layers where none is named.
// Graphs of dense MLPs alone hold next to nothing of an MoE layer.
void set_graphs(std::string_view modules, const ModelSpec& model, ParallelPlan& plan) {
  const auto names = [modules](std::string_view name) {
    return modules.find(name) != std::string_view::npos;
  };
  const bool mamba = names("mamba") && model.mamba;
  const bool some = names("mlp") || names("mamba");
  plan.cuda_graph = names("attn") || names("moe_router") || mamba || !some;
  plan.cuda_graph_scope = CudaGraphScope::full;
  if (!plan.cuda_graph || names("full_iteration")) return;
  const bool router = names("moe_router") && !names("attn");
  plan.cuda_graph_scope = router ? CudaGraphScope::router : CudaGraphScope::layer;
  if (mamba && !names("attn") && !router) plan.cuda_graph_scope = CudaGraphScope::mamba;
}

// A word, and whether anybody knows it.
bool apply_flag(std::string_view word, RunInputs& inputs) {
  constexpr std::string_view kLayout = "pp_layout=";
  if (word.starts_with(kLayout)) {
    inputs.plan.pipeline_layout = parse_megatron_layout(word.substr(kLayout.size()));
    return true;
  }
  for (const Flag& flag : kFlags) {
    if (flag.word != word) continue;
    flag.apply(inputs);
    return true;
  }
  for (const std::string_view prefix : kGraphPrefixes) {
    if (!word.starts_with(prefix)) continue;
    set_graphs(word, inputs.model, inputs.plan);
    return true;
  }
  return std::find(kNothing.begin(), kNothing.end(), word) != kNothing.end();
}

}  // namespace

std::vector<std::string> apply_flags(std::string_view flags, RunInputs& inputs) {
  std::vector<std::string> unknown;
  // "A, B + C" is three words; "EP overlap+delay_wgrad" is one.
  while (!flags.empty()) {
    const std::size_t comma = std::min(flags.find(','), flags.size());
    const std::size_t plus = std::min(flags.find(" + "), flags.size());
    const std::string_view word = trimmed(flags.substr(0, std::min(comma, plus)));
    flags.remove_prefix(std::min(flags.size(), comma < plus ? comma + 1 : plus + 3));
    if (!word.empty() && !apply_flag(word, inputs)) unknown.emplace_back(word);
  }
  return unknown;
}

}  // namespace qplan
