#include "executor/cuda/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <variant>

#include "executor/cuda/measure_device.h"
#include "executor/cuda/offload.h"
#include "models/statistics.h"

namespace qplan {
namespace {

class CudaMeasurer final : public Measurer {
 public:
  CudaMeasurer(const ProcessRank& process, Queues queues) : device_(process, queues) {}

  std::optional<Seconds> time(const Work& work, int ranks) override;
  std::optional<Seconds> warm_time(const Work& work) override;
  std::optional<BesideTimes> beside(const Work& work, const Work& message, int ranks) override;
  double slowest() override;
  Seconds launch_time() override;
  Seconds graph_gain() override;
  BytesPerSecond copy_rate(bool to_host) override;
  double host_adam_rate() override;
  [[nodiscard]] const GpuFacts& facts() const override { return device_.facts; }

 private:
  // The mean over all GPUs.
  Seconds mean(Seconds own);
  Seconds in_a_row(const std::function<void()>& once, bool as_graph);

  MeasuringDevice device_;
  double log_ratio_ = 0;  // of own times to the means, their sum
  int works_ = 0;
};

Seconds CudaMeasurer::mean(Seconds own) {
  if (device_.job == nullptr) return own;
  return Seconds(device_.agree(own.value(), ncclSum) / static_cast<double>(device_.process.world));
}

double CudaMeasurer::slowest() {
  const double own = works_ > 0 ? std::exp(log_ratio_ / works_) : 1;
  return device_.job == nullptr ? own : device_.agree(own, ncclMax);
}

std::optional<Seconds> CudaMeasurer::time(const Work& work, int ranks) {
  device_.choose_group(ranks);
  const std::function<void()> once = device_.any(work);
  if (!once) return std::nullopt;
  if (ranks > 1) return mean(device_.beside_compute(once));
  const Seconds own = device_.median(once, false), all = mean(own);
  log_ratio_ += std::log(own / all);
  ++works_;
  return all;
}

std::optional<Seconds> CudaMeasurer::warm_time(const Work& work) {
  const auto* product = std::get_if<Gemm>(&work);
  const DType format = product != nullptr ? product->dtype : DType::bf16;
  // Of products; the power limit acts over tens of milliseconds. Memory-bound work is a small part
  // of a step and draws less: it runs at the clock that the products beside it leave.
  constexpr double kTurn = 2e-3;
  const bool memory_bound = std::holds_alternative<Rowwise>(work);
  const double own_turn = memory_bound ? kTurn / 2 : kTurn;
  const int count = memory_bound ? 20 : 60;
  const std::function<void()> once = device_.any(work);
  if (!once) return std::nullopt;
  const std::function<void()> heat = device_.heater(format);
  const int heats = static_cast<int>(kTurn / device_.elapsed(heat, 2).value()) + 1;
  const int repetitions = static_cast<int>(own_turn / device_.elapsed(once, 2).value()) + 1;
  std::vector<Seconds> turns;
  for (int i = 0; i < count; ++i) {
    if (format == DType::bf16) device_.fill_again();
    for (int h = 0; h < heats; ++h) heat();
    turns.push_back(device_.elapsed(once, repetitions));
  }
  return mean(median_of(turns));
}

constexpr int kRunsBeside = 3;            // whose median counts
constexpr double kBesideSeconds = 60e-3;  // of the work alone: power and clocks have settled
constexpr double kSlowest = 2.5;          // messages cover work that takes so many times as long

// Communication goes first, as in a step (cuda_backend.cpp).
OwnedStream first_stream() {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return OwnedStream(stream);
}

Seconds between(const OwnedEvent& first, const OwnedEvent& last) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, first.get(), last.get()));
  return Seconds(static_cast<double>(milliseconds) * 1e-3);
}

std::optional<BesideTimes> CudaMeasurer::beside(const Work& work, const Work& message, int ranks) {
  MeasuringDevice& d = device_;
  d.choose_group(ranks);
  const std::function<void()> once = d.any(work), send = d.any(message);
  if (!once || !send) return std::nullopt;
  OwnedStream other = first_stream();
  const auto sent = [&] {
    std::swap(d.stream, other);
    send();
    std::swap(d.stream, other);
  };
  const auto repetitions_of = [&](const std::function<void()>& one, double seconds) {
    d.elapsed(one, 1);
    return static_cast<int>(d.agree(std::ceil(seconds / d.elapsed(one, 2).value()), ncclMax));
  };
  const int works = repetitions_of(once, kBesideSeconds);
  const int messages = repetitions_of(send, kSlowest * kBesideSeconds) + 2;
  std::vector<Seconds> alone, together, message_alone, message_together;
  std::vector<OwnedEvent> ends;
  for (int i = 0; i < messages; ++i) ends.push_back(make_event(true));
  for (int run = 0; run < kRunsBeside; ++run) {
    d.fill();
    d.agree(0);
    alone.push_back(d.elapsed(once, works));
    d.agree(0);
    message_alone.push_back(d.elapsed(send, std::max(messages / 3, 2)));
    d.fill();
    d.agree(0);  // all begin together
    for (const OwnedEvent& end : ends) {
      sent();
      check(cudaEventRecord(end.get(), other.get()));
    }
    // Once the first message is through, all ranks are there.
    check(cudaStreamWaitEvent(d.stream.get(), ends.front().get()));
    together.push_back(d.elapsed(once, works));
    check(cudaStreamSynchronize(other.get()));
    // Messages that lie beside the work as a whole. Where it fills the GPU they begin between its
    // kernels.
    std::size_t last = 0;
    while (last + 1 < ends.size() && between(ends[last + 1], d.end).value() > 0) ++last;
    const bool covered = last + 1 < ends.size();
    if (d.agree(covered ? 1 : 0) < 1) return std::nullopt;
    if (last == 0) last = 1;  // none as a whole: the one that outlasts it
    message_together.push_back(between(ends.front(), ends[last]) *
                               (1.0 / static_cast<double>(last)));
  }
  return BesideTimes{mean(median_of(alone)), mean(median_of(together)),
                     mean(median_of(message_alone)), mean(median_of(message_together))};
}

constexpr int kLaunches = 256;

// Of one of many launches in a row: as a graph, or one after the other.
Seconds CudaMeasurer::in_a_row(const std::function<void()>& once, bool as_graph) {
  MeasuringDevice& d = device_;
  const auto all = [&] {
    for (int i = 0; i < kLaunches; ++i) once();
  };
  if (!as_graph) return d.median(all, false) * (1.0 / kLaunches);
  cudaGraph_t captured = nullptr;
  check(cudaStreamBeginCapture(d.stream.get(), cudaStreamCaptureModeThreadLocal));
  all();
  check(cudaStreamEndCapture(d.stream.get(), &captured));
  const OwnedGraph graph(captured);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph.get(), 0));
  const OwnedGraphExec owned(executable);
  return d.median([&] { check(cudaGraphLaunch(executable, d.stream.get())); }, false) *
         (1.0 / kLaunches);
}

// As a graph, or the host's pace of launching would be measured.
Seconds CudaMeasurer::launch_time() {
  auto* one = static_cast<float*>(device_.take(4));
  return in_a_row([&] { kernels::accumulate(one, one, 1, device_.stream.get()); }, true);
}

// Of kernels that are longer than their launch, as most of a step's are.
Seconds CudaMeasurer::graph_gain() {
  const std::function<void()> once =
      device_.any(Rowwise{.kind = RowwiseKind::rms_norm, .rows = 4096, .cols = 4096});
  const Seconds gain = in_a_row(once, false) - in_a_row(once, true);
  return std::max(gain, Seconds(0));
}

BytesPerSecond CudaMeasurer::copy_rate(bool to_host) {
  constexpr std::int64_t kBytes = 256 << 20;
  const HostMemory host = host_memory(kBytes);
  const Seconds time = device_.median(
      [&] {
        void* memory = device_.take(kBytes);
        check(cudaMemcpyAsync(to_host ? host.get() : memory, to_host ? memory : host.get(), kBytes,
                              to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                              device_.stream.get()));
      },
      false);
  return Bytes(static_cast<double>(kBytes)) / time;
}

// As in a step: beside the next block's gradients, which come, and the last one's weights, which
// go. All share the host's memory. As many as a large block has: threads that start and cores that
// were idle are a part of a short step.
double CudaMeasurer::host_adam_rate() {
  constexpr std::int64_t kParams = 1 << 27;
  const HostMemory gradient = host_memory(4 * kParams), coming = host_memory(4 * kParams),
                   working = host_memory(2 * kParams), going = host_memory(2 * kParams);
  const OwnedStream to_host = first_stream(), to_gpu = first_stream();
  std::vector<float> main(kParams, 1), moment1(kParams, 0.1F), moment2(kParams, 0.1F);
  std::fill_n(numbers_in<float>(gradient), kParams, 0.1F);
  const HostAdamW arrays{
      numbers_in<float>(gradient),        main.data(), moment1.data(), moment2.data(),
      numbers_in<std::uint16_t>(working), kParams};
  const std::int64_t world = device_.process.world, cores = cores_of_gpu();
  void* const on_gpu = device_.take(4 * kParams);
  std::vector<double> seconds;
  constexpr int kWarm = 1, kSteps = 5;
  for (int step = 1; step <= kWarm + kSteps; ++step) {
    if (world > 1) device_.agree(0);  // all begin together
    const auto begin = std::chrono::steady_clock::now();
    check(
        cudaMemcpyAsync(coming.get(), on_gpu, 4 * kParams, cudaMemcpyDeviceToHost, to_host.get()));
    check(cudaMemcpyAsync(on_gpu, going.get(), 2 * kParams, cudaMemcpyHostToDevice, to_gpu.get()));
    host_adamw({}, step, 1, std::span(&arrays, 1), cores);
    const double taken =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (step > kWarm) seconds.push_back(taken);
    check(cudaStreamSynchronize(to_host.get()));
    check(cudaStreamSynchronize(to_gpu.get()));
  }
  std::sort(seconds.begin(), seconds.end());
  const double own = seconds[seconds.size() / 2];
  return static_cast<double>(kParams) / (world > 1 ? device_.agree(own, ncclMax) : own);
}

}  // namespace

std::unique_ptr<Measurer> make_measurer(const ProcessRank& process, Queues queues) {
  return std::make_unique<CudaMeasurer>(process, queues);
}

}  // namespace qplan
