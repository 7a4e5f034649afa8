#include "executor/measure.h"

#include <algorithm>
#include <functional>
#include <variant>

#include "executor/measure_device.h"

namespace qplan {
namespace {

class CudaMeasurer final : public Measurer {
 public:
  explicit CudaMeasurer(const ProcessRank& process) : device_(process) {}

  std::optional<Seconds> time(const Work& work) override;
  std::optional<Seconds> warm_time(const Work& work) override;
  Seconds launch_time() override;
  BytesPerSecond copy_rate(bool to_host) override;
  [[nodiscard]] const GpuFacts& facts() const override { return device_.facts; }

 private:
  MeasuringDevice device_;
};

std::optional<Seconds> CudaMeasurer::time(const Work& work) {
  const std::function<void()> once = device_.any(work);
  if (!once) return std::nullopt;
  const bool together = std::holds_alternative<Collective>(work);
  const Seconds own = together ? device_.beside_compute(once) : device_.median(once, false);
  // A step goes at the pace of the slowest GPU.
  return device_.group == nullptr ? own : Seconds(device_.agree(own.value(), ncclMax));
}

std::optional<Seconds> CudaMeasurer::warm_time(const Work& work) {
  Gemm heater{.m = 8192, .n = 8192, .k = 8192};
  if (const auto* product = std::get_if<Gemm>(&work)) heater.dtype = product->dtype;
  constexpr double kTurn = 2e-3;  // of either; the power limit acts over tens of milliseconds
  constexpr int kTurns = 60;
  const std::function<void()> once = device_.any(work), heat = device_.once(heater);
  if (!once) return std::nullopt;
  const int heats = static_cast<int>(kTurn / device_.elapsed(heat, 2).value()) + 1;
  const int repetitions = static_cast<int>(kTurn / device_.elapsed(once, 2).value()) + 1;
  std::vector<Seconds> turns;
  for (int i = 0; i < kTurns; ++i) {
    for (int h = 0; h < heats; ++h) heat();
    turns.push_back(device_.elapsed(once, repetitions));
  }
  std::sort(turns.begin(), turns.end());
  const Seconds own = turns[turns.size() / 2];
  return device_.group == nullptr ? own : Seconds(device_.agree(own.value(), ncclMax));
}

// As a graph, or the host's pace of launching would be measured.
Seconds CudaMeasurer::launch_time() {
  constexpr int kLaunches = 256;
  MeasuringDevice& d = device_;
  auto* one = static_cast<float*>(d.take(4));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(d.stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kLaunches; ++i) kernels::accumulate(one, one, 1, d.stream.get());
  check(cudaStreamEndCapture(d.stream.get(), &graph));
  check(cudaGraphInstantiate(&executable, graph, 0));
  const Seconds all = d.median([&] { check(cudaGraphLaunch(executable, d.stream.get())); }, false);
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
  return all * (1.0 / kLaunches);
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

}  // namespace

std::unique_ptr<Measurer> make_measurer(const ProcessRank& process) {
  return std::make_unique<CudaMeasurer>(process);
}

}  // namespace qplan
