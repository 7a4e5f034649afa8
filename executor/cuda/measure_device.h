#pragma once
// A GPU with what works are timed on: random operands in more memory than its cache holds, a
// stream, events, and a communicator of the job. Private to measure.

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "executor/cuda/attention_cudnn.h"
#include "executor/cuda/gemm_cublaslt.h"
#include "executor/cuda/handles.h"
#include "executor/cuda/measure.h"
#include "executor/cuda/nccl_world.h"
#include "kernels/kernels.h"
#include "models/error.h"
#include "models/statistics.h"

namespace qplan {

struct MeasuringDevice {
  using bf16 = kernels::bf16;
  static constexpr std::int64_t kPoolBytes = std::int64_t{12} << 30;
  static constexpr std::int64_t kSeedBytes = 64 << 20;  // of random numbers, repeated over the pool
  static constexpr std::int64_t kAlignment = 256;
  static constexpr std::int64_t kHeaterSide = 8192;  // of the product that warms a GPU
  static constexpr std::size_t kRuns = 5;            // whose median counts
  static constexpr std::size_t kLongRuns = 3;        // of works that take longer than a run should
  // Of one run: long against a launch, short against a calibration.
  static constexpr double kRunSeconds = 6e-3;
  static constexpr int kMost = 400;  // repetitions in a run
  static std::int64_t round_up(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  MeasuringDevice(const ProcessRank& own, Queues queues) : process(selected(own, queues)) {
    pool = device_memory(kPoolBytes);
    scratch = device_memory(kernels::kScratchBytes);
    stream = make_stream();
    begin = make_event(true);
    end = make_event(true);
    draw();
    fill();
    read_facts();
    if (own.world > 1) meet();
  }
  ~MeasuringDevice() {
    for (const auto& [ranks, comm] : comms) ncclCommDestroy(comm);
    if (job != nullptr) ncclCommDestroy(job);
  }
  MeasuringDevice(const MeasuringDevice&) = delete;
  MeasuringDevice& operator=(const MeasuringDevice&) = delete;

  // Before anything is made on it.
  static const ProcessRank& selected(const ProcessRank& own, Queues queues) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues == Queues::one ? "1" : "32", 1);
    check(cudaSetDevice(own.local_rank));
    return own;
  }

  // Normal numbers as bf16; as fp32 they are numbers of the same size.
  void draw() {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 0.5F);
    std::vector<bf16> numbers(kSeedBytes / sizeof(bf16));
    for (bf16& x : numbers) x = __float2bfloat16_rn(normal(generator));
    drawn = device_memory(kSeedBytes);
    check(cudaMemcpy(drawn.get(), numbers.data(), kSeedBytes, cudaMemcpyHostToDevice));
  }
  // What works leave behind grows from one to the next until it is no number any more.
  void fill() const {
    for (std::int64_t at = 0; at < kPoolBytes; at += kSeedBytes) {
      check(cudaMemcpyAsync(pool.get() + at, drawn.get(), kSeedBytes, cudaMemcpyDeviceToDevice,
                            stream.get()));
    }
  }

  // In time, for works that go on for long.
  void fill_again() {
    if (used < kPoolBytes / 4 * 3) return;
    fill();
    used = 0;
  }

  // The same numbers in fp8, small enough to be numbers in both formats; scratch begins with their
  // scale.
  void fill_narrow() const {
    constexpr float kScale = 64;
    constexpr std::int64_t kCount = kSeedBytes / 2;
    check(cudaMemcpy(scratch.get(), &kScale, sizeof(kScale), cudaMemcpyHostToDevice));
    const void *const wide = drawn.get(), *const scale = scratch.get();
    for (std::int64_t at = 0; at < kPoolBytes; at += kCount) {
      kernels::quantize(pool.get() + at, static_cast<const bf16*>(wide),
                        static_cast<const float*>(scale), kernels::Fp8::e4m3, kCount, stream.get());
    }
  }

  void read_facts() {
    cudaDeviceProp properties{};
    int driver = 0;
    check(cudaGetDeviceProperties(&properties, process.local_rank));
    check(cudaDriverGetVersion(&driver));
    facts = {.name = properties.name,
             .driver = fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10),
             .multiprocessors = properties.multiProcessorCount,
             .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
             .compute_capability = properties.major * 10 + properties.minor};
  }

  void meet() {
    ncclUniqueId id{};
    if (process.rank == 0) check(ncclGetUniqueId(&id));
    broadcast(process, std::as_writable_bytes(std::span(&id, 1)));
    check(ncclCommInitRank(&job, static_cast<int>(process.world), id,
                           static_cast<int>(process.rank)));
  }

  // Of `ranks` neighbours; one alone has none.
  void choose_group(int ranks) {
    group_size = ranks;
    group = nullptr;
    if (ranks == 1) return;
    ncclComm_t& comm = comms[ranks];
    const int own = static_cast<int>(process.rank), first = own / ranks * ranks;
    if (comm == nullptr) {
      ncclConfig_t config = config_of_group({first, first + ranks - 1});
      check(ncclCommSplit(job, own / ranks, own % ranks, &comm, &config));
    }
    group = comm;
  }

  // Operands of the next repetition: fresh memory until the pool is used up.
  void* take(std::int64_t bytes) {
    bytes = round_up(bytes);
    QPLAN_CHECK(bytes <= kPoolBytes, "a work that is measured fits the pool");
    if (used + bytes > kPoolBytes) used = 0;
    void* memory = pool.get() + used;
    used += bytes;
    return memory;
  }
  // Positions and targets: any that are inside.
  std::int32_t* zeros(std::int64_t n) {
    if (n > zero_count) {
      zero_memory = device_memory(4 * n);
      check(cudaMemset(zero_memory.get(), 0, static_cast<std::size_t>(4 * n)));
      zero_count = n;
    }
    return static_cast<std::int32_t*>(static_cast<void*>(zero_memory.get()));
  }
  bf16* numbers(std::int64_t n) { return static_cast<bf16*>(take(2 * n)); }
  float* floats(std::int64_t n) { return static_cast<float*>(take(4 * n)); }
  std::int32_t* ints(std::int64_t n) { return static_cast<std::int32_t*>(take(4 * n)); }

  Seconds elapsed(const std::function<void()>& once, int repetitions) {
    check(cudaEventRecord(begin.get(), stream.get()));
    for (int i = 0; i < repetitions; ++i) once();
    check(cudaEventRecord(end.get(), stream.get()));
    check(cudaEventSynchronize(end.get()));
    check(cudaGetLastError());
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    return Seconds(static_cast<double>(milliseconds) * 1e-3 / repetitions);
  }

  // `agreed`: several processes must repeat equally often.
  Seconds median(const std::function<void()>& once, bool agreed) {
    elapsed(once, 1);
    const double one = elapsed(once, 2).value();
    double wanted = kRunSeconds / std::max(one, 1e-7);
    if (agreed) wanted = agree(wanted);
    const int repetitions = std::clamp(static_cast<int>(wanted), 1, kMost);
    std::vector<Seconds> runs(wanted < 1 ? kLongRuns : kRuns);
    for (Seconds& run : runs) run = elapsed(once, repetitions);
    return median_of(runs);
  }

  // A collective as a step has it: on a stream of its own, between kernels that it waits for and
  // that wait for it.
  Seconds beside_compute(const std::function<void()>& once) {
    const OwnedStream compute = make_stream();
    const OwnedEvent ready = make_event(), done = make_event();
    // Long enough that the host is always ahead: about 40 us on an H200.
    constexpr std::int64_t kElements = 24 << 20;
    const auto kernel = [&] {
      kernels::add(numbers(kElements), numbers(kElements), numbers(kElements), nullptr, kElements,
                   compute.get());
    };
    const auto turn = [&](bool together) {
      kernel();
      check(cudaEventRecord(ready.get(), compute.get()));
      check(cudaStreamWaitEvent(stream.get(), ready.get()));
      if (together) once();
      check(cudaEventRecord(done.get(), stream.get()));
      check(cudaStreamWaitEvent(compute.get(), done.get()));
    };
    const Seconds both = median([&] { turn(true); }, true);
    const Seconds alone = median([&] { turn(false); }, true);
    return std::max(both - alone, Seconds(1e-7));
  }

  // The smallest, or the largest, of all processes' numbers.
  double agree(double number, ncclRedOp_t which = ncclMin) {
    check(cudaMemcpy(scratch.get(), &number, sizeof(number), cudaMemcpyHostToDevice));
    check(ncclAllReduce(scratch.get(), scratch.get(), 1, ncclFloat64, which, job, stream.get()));
    check(cudaStreamSynchronize(stream.get()));
    check(cudaMemcpy(&number, scratch.get(), sizeof(number), cudaMemcpyDeviceToHost));
    return number;
  }

  // Enqueues the work once, whatever it is; null: it is not measured.
  std::function<void()> any(const Work& work);
  std::function<void()> once(const Gemm& w);
  // A large product of numbers that stay as they were drawn: a chain of products of products ends
  // in numbers that are infinite, and products of those draw so little power that nothing is
  // slowed.
  std::function<void()> heater(DType format);
  std::function<void()> narrow(const Gemm& w);
  std::function<void()> once(const GroupedGemm& w);
  std::function<void()> once(const Attention& w);
  std::function<void()> once(const Rowwise& w);
  std::function<void()> turned_heads(const Rowwise& w);
  std::function<void()> routed(const Rowwise& w);
  std::function<void()> permuted(const Rowwise& w);
  std::function<void()> looked_up(const Rowwise& w);
  std::function<void()> once(const Update& w);
  std::function<void()> once(const Collective& w);
  std::function<void()> once(const SendRecv& w);

  ProcessRank process;
  DeviceMemory pool, drawn, scratch, heating, attention_scratch, zero_memory, group_rows, row_map,
      words, product;
  std::int64_t used = 0, attention_bytes = 0, zero_count = 0, product_bytes = 0;
  OwnedStream stream;
  OwnedEvent begin, end;
  GpuFacts facts;
  ncclComm_t job = nullptr, group = nullptr;  // null: of one rank
  std::map<int, ncclComm_t> comms;            // by their ranks
  int group_size = 1;
  CublasLt blas;
  CudnnAttention attention;
};

}  // namespace qplan
