#include "executor/cuda/weights.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "executor/checkpoint.h"
#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

float* numbers_of(const Tensor& on_host) {
  void* const data = on_host.data;
  return static_cast<float*>(data);
}

// Calls load(instance) for every block, on half the cores.
template <class Load>
void each_block(const CudaRank& rank, int device, Load load) {
  const auto instances = static_cast<int>(rank.commands.instances.size());
  const unsigned cores = std::max(std::thread::hardware_concurrency() / 2, 1U);
  std::atomic<int> next{0};
  std::vector<std::future<void>> workers;
  for (unsigned worker = 0; worker < std::min(cores, 16U); ++worker) {
    workers.push_back(std::async(std::launch::async, [&] {
      check(cudaSetDevice(device));
      for (int i = next++; i < instances; i = next++) load(i);
    }));
  }
  for (std::future<void>& worker : workers) worker.get();  // throws what it threw
}

// Elements begin .. begin + n - 1 of a part, to the host, by way of the scratch.
void draw_on_host(const CudaRank& rank, float* to, const kernels::SeededPart& part,
                  std::int64_t begin, std::int64_t n) {
  constexpr std::int64_t kMost = kernels::kScratchBytes / 4;
  auto* const scratch = static_cast<float*>(rank.scratch());
  for (std::int64_t first = 0; first < n; first += kMost) {
    const std::int64_t count = std::min(kMost, n - first);
    kernels::draw_weights(scratch, nullptr, part, begin + first, count, nullptr);
    check(cudaMemcpy(to + first, scratch, static_cast<std::size_t>(4 * count),
                     cudaMemcpyDeviceToHost));
  }
}

// Where a piece of a block's parameters lies in the model's.
kernels::SeededPart part_of(const ParameterIndex& index, const SeededWeights& source,
                            const ParameterPiece& piece) {
  const ModelParameter& whole = index.all()[static_cast<std::size_t>(piece.index)];
  return {source.seed,
          static_cast<std::uint32_t>(piece.index),
          source.centre(whole.parameter),
          piece.cols,
          whole.parameter.cols,
          piece.first_row,
          piece.first_col};
}

// A block's trained or frozen parameters from a seed, made where they are needed: working copies,
// and main ones of what is trained.
void draw_block(CudaRank& rank, const ParameterIndex& index, const SeededWeights& source, int i,
                bool frozen) {
  const Tensor weights = rank.held(i, frozen ? Storage::frozen : Storage::weight);
  if (weights.data == nullptr) return;
  check(cudaMemset(weights.data, 0, static_cast<std::size_t>(weights.bytes())));
  const Tensor main = frozen ? Tensor{} : rank.device_state(i).main_params;
  const std::int64_t host = frozen ? 0 : rank.offloaded(i);
  const Tensor host_main = host > 0 ? rank.host_state(i).main_params : Tensor{};
  const bool sharded = rank.shape(i).zero == 3;
  const std::vector<StateRun> runs = rank.state_runs(i, frozen);
  for (const ParameterPiece& piece : pieces_of(rank, index, i, frozen)) {
    const kernels::SeededPart part = part_of(index, source, piece);
    const std::int64_t end = piece.local + piece.rows * piece.cols;
    if (!sharded) {
      kernels::draw_weights(nullptr, bf16_of(weights.part(piece.local, 1, 1)), part, 0,
                            end - piece.local, nullptr);
    }
    for (const StateRun& run : runs) {
      const std::int64_t first = std::max(run.packed, piece.local);
      const std::int64_t last = std::min(run.packed + run.count, end);
      if (first >= last) continue;
      const std::int64_t at = run.shard + first - run.packed;
      const std::int64_t begin = first - piece.local;
      const std::int64_t on_host = std::clamp<std::int64_t>(host - at, 0, last - first);
      if (on_host > 0) draw_on_host(rank, numbers_of(host_main) + at, part, begin, on_host);
      if (sharded) {
        kernels::draw_weights(nullptr, bf16_of(weights.part(at, 1, 1)), part, begin, last - first,
                              nullptr);
      }
      if (frozen || on_host == last - first) continue;
      kernels::draw_weights(float_of(main.part(at + on_host - host, 1, 1)), nullptr, part,
                            begin + on_host, last - first - on_host, nullptr);
    }
  }
}

void draw_weights(CudaRank& rank, const ParameterIndex& index, const SeededWeights& source) {
  for (int i = 0; i < static_cast<int>(rank.commands.instances.size()); ++i) {
    if (!rank.holds_states(i)) continue;
    for (const bool frozen : {true, false}) draw_block(rank, index, source, i, frozen);
  }
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

}  // namespace

ArrayAccess device_arrays(const std::function<void()>& alive) {
  const auto copy = [alive](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    check(cudaMemcpy(to, from, bytes, kind));
    if (alive) alive();
  };
  return {[copy](const Tensor& from, std::span<float> out) {
            std::vector<std::byte> bytes(static_cast<std::size_t>(from.bytes()));
            copy(bytes.data(), from.data, bytes.size(), cudaMemcpyDeviceToHost);
            math::decode(from.dtype, bytes, out);
          },
          [copy](std::span<const float> values, const Tensor& to) {
            QPLAN_CHECK(to.elements() == std::ssize(values), "an array is written whole");
            std::vector<std::byte> bytes(static_cast<std::size_t>(to.bytes()));
            math::encode(to.dtype, values, bytes);
            copy(to.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
          }};
}

void load_states(CudaRank& rank, const ParameterIndex& index, const RunOptions& options,
                 const std::optional<Checkpoint>& checkpoint, int device) {
  for (int i = 0; i < static_cast<int>(rank.commands.instances.size()); ++i) {
    const Tensor states = rank.held(i, Storage::optimizer);
    if (states.data == nullptr) continue;
    check(cudaMemset(states.data, 0, static_cast<std::size_t>(states.bytes())));
  }
  const auto* seeded = options.weights.target<SeededWeights>();
  if (seeded != nullptr && !checkpoint) return draw_weights(rank, index, *seeded);
  const WeightSource weights = checkpoint ? weights_of(*checkpoint) : options.weights;
  const ArrayAccess arrays = device_arrays(options.alive);
  each_block(rank, device, [&](int i) {
    load_weights(rank, index, i, weights, arrays);
    if (checkpoint) load_moments(rank, index, i, *checkpoint, arrays);
  });
}

}  // namespace qplan
