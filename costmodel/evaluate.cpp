#include "costmodel/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "costmodel/fold/attention_choice.h"
#include "costmodel/fold/plan_view.h"
#include "models/kernel_scratch.h"
#include "models/program/rank_program.h"
#include "models/program/step_program.h"

namespace qplan {

// One kind of a cluster's GPUs, as if all stages ran on it.
struct CostModel::Kind {
  std::int64_t gpus = 0;
  std::unique_ptr<CostModel> cost;
};

CostModel::CostModel(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
                     JobFacts facts, Bytes memory_cap)
    : model_(model),
      recipe_(recipe),
      hardware_(hardware),
      facts_(facts),
      memo_(std::make_unique<Memo>()) {
  facts_.nvlink_domain = hardware.link.nvlink_domain;
  facts_.pods = hardware.link.pods;
  facts_.turns_fp8 = hardware.gpu.fp8_needs_transposes;
  capacity_ =
      memory_cap.value() > 0 ? memory_cap : hardware.gpu.usable_memory * memory_share(model);
}

CostModel::CostModel(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& whole,
                     const std::vector<GpuKind>& kinds, JobFacts facts, Bytes memory_cap)
    : CostModel(model, recipe, whole, facts, memory_cap) {
  for (const GpuKind& kind : kinds) {
    gpus_of_kinds_.push_back({kind.hardware.name, kind.gpus, kind.hardware.link.gpus_per_node});
    kinds_.push_back(
        {kind.gpus, std::make_unique<CostModel>(model, recipe, kind.hardware, facts, memory_cap)});
  }
}

CostModel::~CostModel() = default;

HardwareProfile as_one_machine(const std::vector<GpuKind>& kinds) {
  HardwareProfile whole = kinds.front().hardware;
  double gpus = 0, price = 0, gpu_watt = 0, host_watt = 0;
  bool priced = true;
  std::map<Precision, double> peaks;
  whole.name.clear();
  whole.gpu.name.clear();
  for (const GpuKind& kind : kinds) {
    const HardwareProfile& own = kind.hardware;
    const auto count = static_cast<double>(kind.gpus);
    const std::string_view plus = gpus > 0 ? "+" : "";
    whole.name += fmt::format("{}{}:{}", plus, own.name, kind.gpus);
    whole.gpu.name += fmt::format("{}{}", plus, own.gpu.name);
    gpus += count;
    price += own.price_per_gpu_hour * count;
    gpu_watt += own.gpu.tdp_watt * count;
    host_watt += own.host.watt_per_gpu * count;
    priced = priced && own.price_per_gpu_hour > 0;
    for (const auto& [precision, peak] : own.gpu.matmul) peaks[precision] += peak.value() * count;
    Gpu& gpu = whole.gpu;
    gpu.memory = std::min(gpu.memory, own.gpu.memory);
    gpu.usable_memory = std::min(gpu.usable_memory, own.gpu.usable_memory);
    gpu.compute_capability = std::min(gpu.compute_capability, own.gpu.compute_capability);
    whole.link.nvlink_domain = std::min(whole.link.nvlink_domain, own.link.nvlink_domain);
    whole.link.gpus_per_node = std::min(whole.link.gpus_per_node, own.link.gpus_per_node);
    // The sources of one profile say nothing of the others.
  }
  // A format that one kind lacks is none of the cluster's.
  std::erase_if(whole.gpu.matmul, [&](const auto& peak) {
    return std::any_of(kinds.begin(), kinds.end(), [&](const GpuKind& kind) {
      return !kind.hardware.gpu.matmul.contains(peak.first);
    });
  });
  for (auto& [precision, peak] : whole.gpu.matmul) peak = FlopsPerSecond(peaks[precision] / gpus);
  whole.price_per_gpu_hour = priced ? price / gpus : 0;
  whole.gpu.tdp_watt = gpu_watt / gpus;
  whole.host.watt_per_gpu = host_watt / gpus;
  return whole;
}

const CostModel& CostModel::of_rank(const ParallelPlan& plan, int rank) const {
  if (kinds_.empty()) return *this;
  std::int64_t first = rank * (plan.world() / plan.pp);  // of its GPUs
  for (const Kind& kind : kinds_) {
    if (first < kind.gpus) return *kind.cost;
    first -= kind.gpus;
  }
  return *kinds_.back().cost;
}

double memory_share(const ModelSpec& model) {
  return model.moe ? 0.92 : 0.95;
}

RankParameters CostModel::parameters(const BlockShape& shape) const {
  BlockShape key = state_shape(own_work_shape(shape));
  // What shares a copy of the states has no say in what is shared; the stage of ZeRO has.
  key.zero = shape.zero;
  key.dense_shard = key.dense_replicas = key.expert_shard = key.expert_replicas = 1;
  return memo_->parameters.get(key, [&] { return rank_parameters(model_, shape); });
}

CostModel::PlanView CostModel::view(const ParallelPlan& plan) const {
  PlanView v;
  v.plan = &plan;
  v.base = base_shape(model_, plan_on(hardware_, plan, recipe_), recipe_, facts_.moe_imbalance,
                      facts_.turns_fp8);
  v.stages = stage_list(model_, plan, recipe_, v.base, facts_,
                        [this](const BlockShape& shape) { return parameters(shape); });
  v.schedule = schedule_shape(plan, recipe_);
  v.backward = backward_form(plan.schedule);
  return v;
}

// The models of the kinds that a plan's stages are on, each once; this one, where all are alike.
std::vector<const CostModel*> CostModel::kinds_of(const ParallelPlan& plan) const {
  std::vector<const CostModel*> found;
  for (int rank = 0; rank < plan.pp; ++rank) {
    const CostModel* kind = &of_rank(plan, rank);
    if (found.empty() || found.back() != kind) found.push_back(kind);
  }
  return found;
}

MemoryEstimate with_arena(const CostModel& cost, const ParallelPlan& plan,
                          MemoryEstimate estimate) {
  const StepProgram program = build_step_program(cost.model(), plan, cost.recipe(), cost.facts());
  for (std::size_t r = 0; r < estimate.stages.size(); ++r) {
    StageMemory& stage = estimate.stages[r];
    const Bytes extent(static_cast<double>(rank_program(program, static_cast<int>(r)).extent));
    stage.device += extent - stage.reserved;
    stage.reserved = extent;
    if (stage.device > estimate.worst_stage().device) estimate.worst = static_cast<int>(r);
  }
  return estimate;
}

namespace {

// What cuBLAS is handed to work in, in torch's pool for good. torch has one array a handle, of
// which the launching thread and the one that runs backward have one each
// (at::cuda::getCUDABlasWorkspace in torch's CUDABlas.cpp and CublasHandlePool.cpp): 32 MiB on
// Hopper, 8.1 MiB elsewhere, and 32 MiB in a fixed order, for which Megatron's deterministic mode
// wants CUBLAS_WORKSPACE_CONFIG=:4096:8. Transformer Engine has one of its own, 32 MiB from Hopper
// on and 4 MiB before, and four more for experts' grouped products (get_cublas_workspace_size_bytes
// and get_multi_stream_cublas_workspace in v2.4's module/base.py). torch's own layers take two a
// thread. On 60 runs of Megatron-LM's tests what is left of the allocated bytes after a step is
// this to 1 MiB with a distributed optimizer
// (docs/evidence/archive/accuracy-golden-2026-11-26.md).
Bytes product_workspaces(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                         const HardwareProfile& hardware) {
  if (!recipe.memory.product_workspaces) return Bytes(0);
  const int generation = hardware.gpu.compute_capability;
  const Bytes handle = plan.deterministic || generation == 90 ? mib(32) : mib(8.125);
  if (!recipe.memory.engine_layers) return handle * 4.0;
  const Bytes engine = generation >= 90 ? mib(32) : mib(4);
  const bool grouped = model.moe && recipe.memory.expert_workspaces;
  return handle * 2.0 + engine * (grouped ? 5.0 : 1.0);
}

}  // namespace

std::vector<NamedReserve> framework_reserves(const ModelSpec& model, const ParallelPlan& plan,
                                             const Recipe& recipe,
                                             const HardwareProfile& hardware) {
  std::vector<NamedReserve> reserves;
  if (const Bytes bytes = product_workspaces(model, plan, recipe, hardware); bytes > Bytes(0)) {
    reserves.push_back({"workspaces of matrix products", bytes});
  }
  // docs/reference/physics.md 5.5: dispatcher buffers 1-4 GB (DeepEP's are known: deepep_bytes());
  // CUDA graphs a few GB, over 10 GB with pipelining (Megatron-Bridge's performance guide), but not
  // those of the router alone, which hold little.
  if (model.moe && plan.ep > 1 && plan.moe_dispatcher == MoeDispatcher::hybridep) {
    reserves.push_back({"expert-parallel dispatcher buffers", gib(2.5)});
  }
  const bool deep = plan.pp > 1 && plan.cuda_graph_scope != CudaGraphScope::router;
  if (plan.cuda_graph && !recipe.memory.one_arena)
    reserves.push_back({"CUDA graph pools", gib(deep ? 10 : 3)});
  return reserves;
}

int communicator_count(const ParallelPlan& plan) {
  int count = 1;  // world
  const auto add = [&count](std::int64_t size) { count += size > 1 ? 1 : 0; };
  add(plan.tp);
  add(plan.cp);
  const int copies = stage_copies(plan.schedule);
  add(std::int64_t{plan.dp} * plan.cp * copies);
  add(plan.ep);
  add(plan.etp);
  add(plan.edp() * copies);
  add(plan.pp);
  add(plan.pp);
  return count;
}

namespace {

// Memory that kernels share, one after the other. Only attention's backward may need more, which is
// then taken besides.
constexpr Bytes kScratch(static_cast<double>(kKernelScratch));

// What attention's backward needs (cuDNN's): the queries' gradients in fp32 twice, 8 bytes each. In
// a fixed order it stores the scores' gradients instead, in 16 bits.
constexpr double kAttentionBytes = 8;
Bytes attention_scratch(const ModelSpec& model, const ParallelPlan& plan) {
  const double rows = static_cast<double>(plan.micro_batch_size * plan.seq_len) / plan.cp *
                      static_cast<double>(model.num_attention_heads) / plan.tp;
  if (!plan.deterministic)
    return Bytes(kAttentionBytes * rows * static_cast<double>(model.head_dim));
  const bool in_turn = plan.cp_comm == CpComm::p2p;
  return Bytes(2 * rows * static_cast<double>(plan.seq_len) / (in_turn ? plan.cp : 1));
}

// Our own executor's. A group has one communicator for each stream that it meets on, an edge of the
// pipeline one for each direction. Messages inside a group have buffers of their own: for each rank
// that experts' rows come from, and for a ring's two neighbours together. Groups that run
// collectives have more of NCCL's blocks than it takes by itself (executor/cuda/nccl_world.cpp).
Bytes executor_outside(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                       const HardwareProfile& hardware) {
  const Nccl& nccl = hardware.nccl;
  Bytes bytes =
      recipe.memory.context + std::max(kScratch, attention_scratch(model, plan)) - kScratch;
  if (plan.world() == 1) return bytes;
  const int reductions = plan.zero >= 1 ? 2 : 1;  // parameters are gathered on another stream
  int groups = 0;
  if (plan.tp > 1) groups += plan.sequence_parallel || model.qk_norm ? 2 : 1;
  if (plan.cp > 1) ++groups;
  if (std::int64_t{plan.dp} * plan.cp > 1) groups += reductions;
  if (plan.ep > 1) ++groups;
  if (model.moe && plan.edp() > 1) groups += reductions;
  if (model.tie_word_embeddings && plan.pp > 1) ++groups;
  const int edges = plan.pp == 1 ? 0 : plan.pp == 2 && plan.vpp == 1 ? 2 : 4;
  // Peers that NVLink reaches have as many channels as it can use. Over the network there are two a
  // peer, each with a buffer of 4 MiB a direction (NCHANNELS_PER_NET_PEER in NCCL's
  // src/graph/paths.cc, NCCL_BUFFSIZE); taken for what a pipeline's edge has, as nothing between
  // nodes was measured.
  const int beside = RankGrid(plan, hardware.link.nvlink_domain).shape(Axis::ep).ranks_per_node;
  bytes += nccl.expert_peer * static_cast<double>(beside - 1) +
           nccl.edge * static_cast<double>(plan.ep - beside);
  const bool messages = plan.cp > 1 && plan.cp_comm != CpComm::all_gather;
  if (messages) bytes += nccl.ring_neighbours;
  return bytes + nccl.first_communicator + nccl.group * static_cast<double>(groups) +
         nccl.more_blocks * static_cast<double>(groups - (messages ? 1 : 0)) +
         nccl.edge * static_cast<double>(edges);
}

// DeepEP's buffers, in the sizes that it hints at and Megatron takes (DeepEP v1.2.1,
// csrc/config.hpp, recommended configurations in buffer.py; Megatron-Core's fused_a2a.py): ten
// channels, each with room for some hundred tokens of every peer in the node and for 128 of every
// node, there and back. CUDA and NVSHMEM allocate them, not torch.
Bytes deepep_bytes(const ModelSpec& model, const ParallelPlan& plan, int peers) {
  if (!model.moe || plan.ep == 1 || plan.moe_dispatcher != MoeDispatcher::deepep) return {};
  constexpr double kChannels = 10, kNodeTokens = 128, kWorkspace = 32 << 20;
  // Source, 128 choices (index and weight), 128 scales.
  constexpr double kBesideRow = 8 + 128 * (8 + 4) + 128 * 4;
  const int ranks = plan.ep * plan.etp;
  const double row = 2.0 * static_cast<double>(model.hidden_size) + kBesideRow;
  const double tokens = ranks <= peers ? 256 : ranks <= 64 ? 288 : ranks <= 128 ? 560 : 720;
  const double nodes = ranks <= peers ? 0 : static_cast<double>(ranks) / peers;
  const double slots = std::min(ranks, peers) * tokens + 2 * nodes * kNodeTokens;
  return Bytes(kChannels * slots * row + kWorkspace);
}

}  // namespace

Bytes outside_bytes(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                    const HardwareProfile& hardware) {
  if (recipe.memory.nccl_as_measured) return executor_outside(model, plan, recipe, hardware);
  return recipe.memory.context +
         recipe.memory.communicator * static_cast<double>(communicator_count(plan)) +
         deepep_bytes(model, plan, hardware.expert_library.nvlink_peers);
}

}  // namespace qplan
