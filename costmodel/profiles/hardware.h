#pragma once
// The machine: one GPU, the node around it and the network between nodes, as data with sources. All
// figures are in profiles/*.json, those that a whole generation of GPUs shares in
// profiles/generations/*.json; none is in code.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.h"
#include "models/json.h"
#include "models/pods.h"
#include "models/program/op.h"
#include "models/units.h"

namespace qplan {

// What a profile's JSON may leave out has its value in profiles/generations, by the GPU's compute
// capability (layers.h); these structs hold no machine's figures. Errors are relative, one sigma.

// Time of a matrix product C[m,n] = A[m,k] B[k,n]:
//   t = t0 + (tc^4 + tm^4)^(1/4),
//   tc = 2mnk / (peak * e) * (1 + m0/m) (1 + n0/n) (1 + k0/k),   tm = bytes / (eb * bandwidth).
struct GemmFit {
  double efficiency = 0;          // e: share of the peak that large products reach in short bursts
  double m0 = 0, n0 = 0, k0 = 0;  // sizes at which half the rate is lost
  double bandwidth_efficiency = 0;  // eb
  Seconds latency;                  // t0
  double sustain = 1;               // rate in long training / rate in the bursts that were fitted
  double error = 0;
  // Of a product that is added to fp32 sums: the share of their traffic's time that the product
  // does not hide. Absent: not measured, Gpu::fp32_sums stands in.
  std::optional<double> accumulate_exposed;
  bool assumed = false;  // not measured on this GPU
};

// Time of fused attention over F FLOPs, b sequences and nh heads, on SM multiprocessors:
//   t = t0 + F / (peak * e) * (1 + s0/s) * (1 + w * SM / (b * nh * ceil(s/128))),
// where s is the length of the sequences.
struct AttentionFit {
  std::int64_t head_dim = 128;
  double efficiency = 0;     // e
  double s0 = 0;             // length at which half the rate is lost
  double wave = 0;           // w: what blocks cost that do not fill the GPU
  Seconds latency;           // t0
  double backward_rate = 0;  // backward's rate (of 2.5 times the FLOPs) / forward's, long sequences
  double backward_s0 = 0;    // ... which a length of s brings down to backward_rate / (1 + s0/s)
  std::optional<double> backward_wave;  // w of the backward; absent: as the forward's
  // Rate in long runs / rate in bursts, of attention that runs among matrix products: their power
  // takes the clock down for all.
  double sustain = 1;
  // ... and of attention that runs by itself; absent: the same. In between the share follows the
  // square of attention's part of the time, as measured on an H100 with FlashAttention-2
  // (docs/evidence/archive/issue3-thirteenth-round.md).
  std::optional<double> sustain_alone;
  double error = 0;
  bool assumed = false;
};

// The gated delta rule by fla's Triton kernels. A sequence is cut into chunks; products of F FLOPs
// and V bytes work on all chunks side by side, and take
//   ((F / (peak * e))^4 + (V / (eb * bandwidth))^4)^(1/4).
// Then the states pass from each chunk to the next: `chunk` seconds for each of them, as many times
// as the blocks that do so, `blocks_per_head` a head, fill the multiprocessors; at least what their
// bytes take.
struct DeltaRuleFit {
  double efficiency = 0, bandwidth_efficiency = 0;  // e, eb
  Seconds chunk, backward_chunk;
  double blocks_per_head = 0;
  double error = 0;
  bool assumed = false;
};

// Mamba-2's scan by mamba_ssm's Triton kernels. A tile is read, multiplied and written by turns, so
// that products of F FLOPs and V bytes take F / (peak * e) + V / (eb * bandwidth); each pass has
// its own shares. States pass from chunk to chunk at the same rate, `chunk` seconds each at least.
struct ScanFit {
  double efficiency = 0, bandwidth_efficiency = 0;
  double backward_efficiency = 0, backward_bandwidth_efficiency = 0;
  Seconds chunk, backward_chunk;
  double error = 0;
  bool assumed = false;
};

// Time of a collective inside an NVLink domain:
//   t = alpha + V / B + gamma * sqrt(V),
// where V, the bytes that each rank moves, is bus_factor() times the full buffer.
struct CollectiveFit {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 8;
  Seconds alpha;
  BytesPerSecond bandwidth;
  double gamma = 0;  // s / sqrt(byte)
  double error = 0;
  bool assumed = false;
};

// A measured table of one collective: time against the full buffer's bytes.
struct CollectiveTable {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 8;
  std::vector<Bytes> bytes;  // ascending
  std::vector<Seconds> times;
};

// GEMM utilisation (ideal time / measured time) on a grid, for interpolation in log m, n, k.
struct GemmTable {
  DType dtype = DType::bf16;
  std::vector<std::int64_t> m, n, k;  // ascending
  std::vector<float> utilisation;     // [m][n][k]; NaN where not measured
};

// What works of a kind took in steps that were measured, over their price, as logarithms: a search
// asks hundreds of thousands of times how near their sizes are (price/step_ratio.h).
struct StepRatio {
  std::vector<double> log2_sizes;
  double log_ratio = 0;
};
using StepRatios = std::map<std::string, std::vector<StepRatio>>;  // by kind

// A kind's efficiency is the traffic that rowwise_work.cpp counts for it / time / bandwidth. It may
// be well above 1: traffic is counted for a kernel that reads each logit twice and keeps it in
// fp32, and one that reads it once and keeps 16 bits moves a quarter of that. More than this is a
// mistake.
inline constexpr double kMostMemoryEfficiency = 8;

// Products that are added to fp32 sums, where a fit has no accumulate_exposed: they run at `rate`
// of the plain product's, and the sums' traffic overlaps with them.
struct Fp32Sums {
  double rate = 0, bandwidth_efficiency = 0;
};

// Products of matrices that begin at addresses which tensor cores cannot take.
struct UnalignedProducts {
  double alignment_bytes = 0;  // matrices that begin at multiples of this many bytes are aligned
  double share_of_bf16 = 0;    // rate of others / bf16 peak
  double error = 0;
};

// GPUs of one kind differ in speed.
struct SpeedSpread {
  double sigma = 0;
  double measured_ranks = 1;  // the profile's rates are the slowest's of so many
  // Of so many ranks that meet in every layer, the share of a step for which even the slowest of
  // them waits: no two are equally fast at any moment. 0 where nobody measured it.
  double waited_share = 0;
};

struct Gpu {
  std::string name;
  std::map<Precision, FlopsPerSecond> matmul;  // dense peaks
  double tf32_share = 0;                       // of the bf16 peak, that fp32 products have as TF32
  Bytes memory, usable_memory;                 // as sold; as the driver offers it to a process
  BytesPerSecond memory_bandwidth;
  double memory_efficiency = 0;  // of plain copies and elementwise kernels
  // Kinds that differ; at most kMostMemoryEfficiency.
  std::map<RowwiseKind, double> memory_efficiency_of;
  // What kernels of a kind take besides their traffic; absent: kernel_launch for each.
  std::map<RowwiseKind, Seconds> memory_latency_of;
  std::optional<double> adamw_efficiency;  // of a fused step over one long array
  double adamw_share_of_copy = 0;          // adamw_efficiency / memory_efficiency, where absent
  Fp32Sums fp32_sums;
  UnalignedProducts unaligned;
  SpeedSpread speed_spread;
  int multiprocessors = 1;
  int compute_capability = 0;         // 80, 90, 100
  bool fp8_needs_transposes = false;  // fp8 operands must have the contracted side in rows
  double tdp_watt = 0;
  Seconds kernel_launch;  // least time of a memory-bound kernel that follows another
  // How much sooner a kernel follows another in a CUDA graph than launched; 0: not measured.
  Seconds graph_gain;
};

// What fused attention's options cost. Kernels are the vendor's own (cuDNN's: "fused") and
// FlashAttention's.
struct AttentionOptions {
  // Backward that adds up the queries' gradients in a fixed order: the vendor's kernel takes
  // `fixed_order_stored` times as long; where that is absent it splits the sum as FlashAttention-2
  // does, which takes 1 + fixed_order_each_part for each part.
  std::optional<double> fixed_order_stored;
  double fixed_order_each_part = 0;
  // A score's random number, on so many multiprocessors.
  double dropout_multiprocessors = 1;
  Seconds dropout_fused, dropout_fused_backward, dropout_flash, dropout_flash_backward;
  Bytes dropout_unfused;   // a kernel of its own takes what a copy of so much takes a score
  Seconds sinks_backward;  // gradient of learned logits, the vendor's kernel: a query and head
};

struct Interconnect {
  int gpus_per_node = 1;
  // GPUs that reach each other without the network: over NVLink or, where a node has none, over
  // PCIe.
  int nvlink_domain = 1;
  BytesPerSecond nvlink;  // per GPU and direction; 0: GPUs of a node reach each other over PCIe
  bool nvls = false;      // the NVLink switch can add up (NVLS)
  // All-reduces among more ranks than this were measured adding up in the switch; 0: none were.
  int in_switch_above_ranks = 0;
  Seconds message_start;          // a message to another GPU of the domain
  BytesPerSecond message;         // ... and its rate
  double ring_share_of_pcie = 1;  // of pcie_rate(), that NCCL's rings reach among a node's GPUs
  int nics_per_node = 1;
  BytesPerSecond nic;                             // per NIC and direction, line rate
  double nic_efficiency = 0;                      // achieved share of line rate for large messages
  double all_to_all_nic_share = 0;                // ... of which NCCL's all-to-all reaches so much
  Seconds inter_node_latency;                     // a ring step or a message between nodes
  bool simple_only = false;                       // NCCL's low-latency protocols do not cross nodes
  double oversubscription = 1;                    // of the network above the leaf switches; 1: none
  PodLevels pods{};                               // above nodes; they hold whole nodes
  BytesPerSecond host_to_device, device_to_host;  // per GPU, pinned, all GPUs at once
  [[nodiscard]] bool over_pcie() const { return nvlink.value() <= 0; }
};

// One protocol of NCCL under one algorithm.
struct NcclProtocol {
  Seconds base;                     // to start
  Seconds nvlink_hop;               // from GPU to GPU inside a node
  std::optional<Seconds> pcie_hop;  // absent: the protocol does not go over PCIe
  double network_hop = 0;           // between nodes, over Interconnect::inter_node_latency
  double bandwidth = 0;             // what is left of the links' bandwidth
};
struct Nccl {
  std::array<NcclProtocol, 3> ring, tree;  // LL, LL128, Simple
  // GPU memory that it takes under qplan's own executor: the first communicator of all (its
  // kernels), each group's, the group's if it runs collectives and not only messages, a direction
  // of a pipeline's edge, each peer that experts' rows come from, and a ring's two neighbours.
  Bytes first_communicator, group, more_blocks, edge, expert_peer, ring_neighbours;
};

// A library for expert parallelism with kernels of its own: DeepEP, HybridEP.
struct ExpertLibrary {
  double nic_efficiency = 0;  // achieved share of a NIC's line rate
  double nvlink_share = 0;    // of what NCCL's all-to-all reaches inside a node
  Seconds start;              // before the first row moves
  int nvlink_peers = 1;       // GPUs of a node that its buffers are laid out for
};

struct Host {
  Bytes memory;                          // per node
  double adam_params_per_s = 0;          // CPU Adam per node, transfers excluded
  BytesPerSecond nvme_read, nvme_write;  // per node
  double watt_per_gpu = 0;               // share of a node's power without the GPU's
  // What a framework takes to launch an op, over what it takes on a DGX H100's Xeons.
  double launch_factor = 1;
  Seconds
      copy_start;  // a copy to or from the GPU, or a step on the host, from launch to first byte
};

// How much longer work takes beside other work: compute beside a collective's kernels, and the
// collective beside compute. They share multiprocessors, memory bandwidth and power.
struct Slowdown {
  double compute = 1, comm = 1;
};
struct Contention {
  Slowdown nvlink;                    // collectives inside a domain
  Slowdown network;                   // collectives that cross nodes
  Slowdown expert_library{};          // an expert library's inside a domain
  Slowdown expert_library_network{};  // ... and across nodes
};

// How far prices are off, relative, one sigma, where a fit has no figure of its own.
struct Errors {
  double fit = 0;                  // a fit that does not say
  double gemm_table = 0;           // a product inside a measured table
  double beyond_gemm_table = 0;    // ... beyond its edge
  double memory_bound = 0;         // kernels that memory bounds
  double host_copy = 0, host = 0;  // copies to and from the host, steps on it
  double collective_table = 0;     // a collective inside a measured table
  double network = 0;              // collectives and messages between nodes
  double network_all_to_all = 0;
  double pcie = 0;    // collectives over PCIe
  double launch = 0;  // what the launching thread takes: processors and releases differ
  // What all works of one fit are off by together, where it was measured on this GPU and where it
  // was not. Fits that were not are off by that much at least.
  double sustained = 0, assumed = 0;
};

struct HardwareProfile {
  std::string name;
  std::string description;
  Gpu gpu;
  Interconnect link;
  Host host;
  Contention contention;
  std::map<Precision, GemmFit> gemm;
  // Products of many experts at once, on top of `gemm`'s form with m = rows of one expert:
  // `efficiency` times the rate, one more factor (1 + m0/m) on products of activations, and a
  // bandwidth_efficiency of its own.
  GemmFit grouped_gemm;
  std::vector<AttentionFit> attention;  // by head_dim
  // FlashAttention-2 where it is not the machine's best; empty: `attention` is it.
  std::vector<AttentionFit> flash2_attention;
  // torch's FlexAttention; empty: taken for FlashAttention-2's equal.
  std::vector<AttentionFit> flex_attention;
  // Operands in fp8, shares of bf16's peak all the same; empty: taken to be as quick as
  // `attention`.
  std::vector<AttentionFit> fp8_attention;
  double flash1_rate = 0;  // rate of the first FlashAttention / of FlashAttention-2, both passes
  AttentionOptions attention_options;
  DeltaRuleFit delta_rule;
  ScanFit scan;
  Nccl nccl;
  ExpertLibrary expert_library;
  std::vector<CollectiveFit> collectives;  // inside a domain; empty: rings over PCIe
  std::vector<GemmTable> gemm_tables;
  std::vector<CollectiveTable> collective_tables;
  StepRatios step_ratios;
  Errors errors;
  double price_per_gpu_hour = 0;  // USD; 0: unknown
  Json source;                    // the whole profile as JSON, sources of figures included
};

// `path` prefixes messages. What the JSON leaves to the built-in profile that it `extends`, and to
// its generation, is filled in (layers.h). Throws Error naming the key, or all keys that lack.
HardwareProfile read_hardware(const Json& json, std::string_view path);
// A built-in profile by name or by another (other_names.h), or a file. Throws Error with the
// nearest name.
HardwareProfile load_hardware(const std::string& name_or_path);
std::vector<std::string> hardware_names();

// Nodes that so many GPUs fill, the last one in part.
inline std::int64_t nodes_for(const HardwareProfile& hardware, std::int64_t gpus) {
  return ceil_div(gpus, hardware.link.gpus_per_node);
}

// What goes over PCIe from GPU to GPU of a node without NVLink, all at once, each way.
BytesPerSecond pcie_rate(const Interconnect& link);

// The same machine built with other nodes: NVLink that joined a node joins the new one; NICs and
// the host come with the GPUs.
void set_gpus_per_node(HardwareProfile& hardware, int count);

// GPUs, and how they are wired into nodes.
struct Cluster {
  HardwareProfile hardware;
  std::int64_t gpus = 8;
};

}  // namespace qplan
