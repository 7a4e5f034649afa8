#pragma once
// The machine: one GPU, the node around it and the network between nodes, as data with sources.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.h"
#include "models/json.h"
#include "models/program/op.h"
#include "models/units.h"

namespace qplan {

// t = t0 + (tc^4 + tm^4)^(1/4), tc = 2mnk/(peak*e) (1+m0/m)(1+n0/n)(1+k0/k), tm = bytes/(eb*BW).
// docs/reference/physics.md 1.3.
struct GemmFit {
  double efficiency = 0.7;  // e
  double m0 = 0, n0 = 0, k0 = 0;
  double bandwidth_efficiency = 0.8;  // eb
  Seconds latency;                    // t0
  double sustain = 1;  // rate in long training / rate in the short bursts this was fitted to
  double error = 0.1;  // relative, one sigma; widens the stated interval
  // Of a product that is added to fp32 sums: share of their traffic's time that it does not hide.
  std::optional<double> accumulate_exposed;
  bool assumed = false;
};

// t = t0 + F/(peak*e) (1+s0/s)(1 + w*SM/(b*nh*ceil(s/128))). docs/reference/physics.md 1.5.
struct AttentionFit {
  std::int64_t head_dim = 128;
  double efficiency = 0.5, s0 = 0, wave = 0;
  Seconds latency;
  // Rate of the backward (2.5x FLOPs) / rate of the forward: backward_rate / (1 + backward_s0/s).
  double backward_rate = 0.83, backward_s0 = 0;
  // w of the backward, whose blocks go by keys; absent: as the forward's.
  std::optional<double> backward_wave;
  // Rate in long runs over that in burst: among products, whose heat the clock follows, and alone.
  // Between them by the square of attention's share of the time, as measured on an H100 with
  // FlashAttention-2 (docs/evidence/archive/issue3-thirteenth-round.md).
  double sustain = 1;
  std::optional<double> sustain_alone;  // absent: as among products
  double error = 0.1;
  bool assumed = false;
};

// The gated delta rule's kernels (fla's, on Triton). Within chunks, of products F and bytes V:
// ((F/(peak*e))^4 + (V/(eb*BW))^4)^(1/4); between them n * chunk * waves, at least what their bytes
// take: n chunks of a sequence, which its states go through one after the other, and waves of the
// blocks that do, `blocks_per_head` a head, over the multiprocessors. The figures are an H200's
// (fla-core 0.6.0, Triton 3.6, 4k to 16k tokens, 16 and 32 heads of 128): both passes' kernels
// within 4%; eb is that of W and U alone. Blocks a head are assumed.
struct DeltaRuleFit {
  double efficiency = 0.098, bandwidth_efficiency = 0.77;
  Seconds chunk = microseconds(1.2), backward_chunk = microseconds(3.3);
  double blocks_per_head = 2;
  double error = 0.3;
  bool assumed = true;
};

// Mamba-2's scan by mamba_ssm's Triton kernels, a share of the bf16 peak and one of the bandwidth
// for each pass: F/(peak*e) + V/(eb*BW) for products F and bytes V (a tile is read, multiplied and
// written by turns), and for the states that go from chunk to chunk their bytes at the same rate,
// at least a time a chunk of one sequence. The figures are an H200's (mamba_ssm 2.3.2, Triton 3.6,
// 4k to 32k tokens, 64 and 128 heads of 64, chunks of 128 and 256): both passes' kernels within 6%,
// of 16 heads a tenth more than said.
struct ScanFit {
  double efficiency = 0.196, bandwidth_efficiency = 0.78;
  double backward_efficiency = 0.143, backward_bandwidth_efficiency = 0.66;
  Seconds chunk = microseconds(0.53), backward_chunk = microseconds(1.8);
  double error = 0.3;
  bool assumed = true;
};

// t = alpha + V/B + gamma*sqrt(V), V = bytes each rank moves = bus_factor * full buffer.
// docs/reference/physics.md 1.7.
struct CollectiveFit {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 8;
  Seconds alpha;
  BytesPerSecond bandwidth;
  double gamma = 0;  // s / sqrt(byte)
  double error = 0.08;
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
// Of a kind's traffic as op.cpp has it, over the bandwidth: a loss that reads each logit once moves
// a quarter of what is counted for one that reads them twice and keeps them in fp32.
inline constexpr double kMostMemoryEfficiency = 8;

struct Gpu {
  std::string name;
  std::map<Precision, FlopsPerSecond> matmul;  // dense peaks
  Bytes memory, usable_memory;                 // as sold; as the driver offers it to a process
  BytesPerSecond memory_bandwidth;
  double memory_efficiency = 0.9;  // of plain copies and elementwise kernels
  // Exceptions; at most kMostMemoryEfficiency.
  std::map<RowwiseKind, double> memory_efficiency_of;
  // What kernels of a kind take besides their traffic; absent: their launches.
  std::map<RowwiseKind, Seconds> memory_latency_of;
  std::optional<double> adamw_efficiency;  // of a fused step over one long array
  int multiprocessors = 132;
  int compute_capability = 90;  // 80, 90, 100
  double tdp_watt = 700;
  Seconds kernel_launch;  // floor of a memory-bound kernel back to back
  // How much sooner a kernel follows another in a CUDA graph than launched; 0: not measured.
  Seconds graph_gain;
};

struct Interconnect {
  int gpus_per_node = 8;
  int nvlink_domain = 8;  // GPUs that reach each other over NVLink
  BytesPerSecond nvlink;  // per GPU and direction
  bool nvls = false;      // in-switch reduction available
  // A message to another GPU over NVLink. A copy reaches 0.88 of the link (H200,
  // stas00/ml-engineering), and starts as fast as an all-to-all of 1 KB (8 us, H100).
  Seconds message_start = microseconds(8);
  BytesPerSecond message;
  int nics_per_node = 8;
  BytesPerSecond nic;                             // per NIC and direction, line rate
  double nic_efficiency = 0.9;                    // achieved share of line rate for large messages
  Seconds inter_node_latency;                     // a ring step or a message between nodes
  bool simple_only = false;                       // NCCL's low-latency protocols do not cross nodes
  double oversubscription = 1;                    // of the network above the leaf switches; 1: none
  BytesPerSecond host_to_device, device_to_host;  // per GPU, pinned, all GPUs at once
};

struct Host {
  Bytes memory;                          // per node
  double adam_params_per_s = 4e9;        // CPU Adam per node, transfers excluded
  BytesPerSecond nvme_read, nvme_write;  // per node
  double watt_per_gpu = 0;               // share of a node's power without the GPU's
  // What a framework takes to launch an op, over what it takes on a DGX H100's Xeons.
  double launch_factor = 1;
};

// Slow-down of work that runs beside other work: compute beside a collective's kernels, and the
// collective beside compute. They share multiprocessors, memory bandwidth and power.
struct Slowdown {
  double compute = 1, comm = 1;
};
struct Contention {
  Slowdown nvlink;   // collectives inside an NVLink domain
  Slowdown network;  // collectives that cross nodes: slower, with as many multiprocessors
  // DeepEP and HybridEP keep to 16-24 multiprocessors (132/(132-16) = 1.14) and a part of the
  // links.
  Slowdown expert_library{1.14, 1.2};
  // Between nodes: DeepEP keeps 28-38 of the 43-58 GB/s that it reaches alone, 0.6, beside compute
  // (DeepSeek-V3 on 64 H800, deepseek-ai/profile-data), on as many multiprocessors.
  Slowdown expert_library_network{1.14, 1 / 0.6};
};

struct HardwareProfile {
  std::string name;
  std::string description;
  Gpu gpu;
  Interconnect link;
  Host host;
  Contention contention;
  std::map<Precision, GemmFit> gemm;
  // On top of `gemm`'s form with m = rows of one expert, all experts together: `efficiency` times
  // the rate, (1 + m0/m) on the activations' products, its own bandwidth_efficiency.
  GemmFit grouped_gemm;
  std::vector<AttentionFit> attention;  // by head_dim
  // FlashAttention-2 where it is not the machine's best; empty: `attention` is it.
  std::vector<AttentionFit> flash2_attention;
  DeltaRuleFit delta_rule;  // absent: assumed
  ScanFit scan;             // absent: assumed
  // torch's FlexAttention; empty: taken for FlashAttention-2's equal.
  std::vector<AttentionFit> flex_attention;
  // Rate of the first FlashAttention / of FlashAttention-2, both passes ("about 2x": arXiv
  // 2307.08691).
  double flash1_rate = 0.55;
  std::vector<CollectiveFit> collectives;
  std::vector<GemmTable> gemm_tables;
  std::vector<CollectiveTable> collective_tables;
  double price_per_gpu_hour = 0;  // USD; 0: unknown
  Json source;                    // the JSON it was read from, figures' sources included
};

// `path` prefixes messages. Throws Error naming the key.
HardwareProfile read_hardware(const Json& json, std::string_view path);
// A built-in profile by name, or a file. Throws Error with the nearest name.
HardwareProfile load_hardware(const std::string& name_or_path);
std::vector<std::string> hardware_names();

// The same machine built with other nodes: NVLink that joined a node joins the new one; NICs and
// the host come with the GPUs.
void set_gpus_per_node(HardwareProfile& hardware, int count);

// GPUs, and how they are wired into nodes.
struct Cluster {
  HardwareProfile hardware;
  std::int64_t gpus = 8;
};

}  // namespace qplan
