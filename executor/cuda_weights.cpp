#include "executor/cuda_weights.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "executor/cuda_ops.h"
#include "executor/states.h"

namespace qplan {
namespace {

void upload(const Tensor& to, std::span<const float> numbers) {
  QPLAN_CHECK(to.elements() == std::ssize(numbers), "a tensor is uploaded whole");
  std::vector<std::byte> bytes(static_cast<std::size_t>(to.bytes()));
  math::encode(to.dtype, numbers, bytes);
  check(cudaMemcpy(to.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}

// Fills main parameters and working copies with numbers of any source, made on all cores.
void upload_weights(CudaRank& rank, const ParameterIndex& index, const RunOptions& options,
                    int device) {
  const auto load = [&](int i) {
    if (!rank.holds_states(i)) return;
    const Tensor weights = rank.held(i, Storage::weight);
    const std::vector<float> packed = packed_weights(rank, index, i, options.weights);
    const std::vector<float> shard = shard_of(rank, i, packed);
    upload(weights, rank.shape(i).zero == 3 ? shard : packed);
    upload(rank.device_state(i).main_params, shard);
    if (options.alive) options.alive();
  };
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

// The same with numbers from a seed, made where they are needed.
void draw_weights(const CudaRank& rank, const ParameterIndex& index, const SeededWeights& source) {
  for (int i = 0; i < static_cast<int>(rank.commands.instances.size()); ++i) {
    if (!rank.holds_states(i)) continue;
    const Tensor weights = rank.held(i, Storage::weight);
    check(cudaMemset(weights.data, 0, static_cast<std::size_t>(weights.bytes())));
    const Tensor main = rank.device_state(i).main_params;
    const bool sharded = rank.shape(i).zero == 3;
    const std::vector<StateRun> runs = rank.state_runs(i);
    for (const ParameterPiece& piece : pieces_of(rank, index, i)) {
      const ModelParameter& whole = index.all()[static_cast<std::size_t>(piece.index)];
      const kernels::SeededPart part{source.seed,
                                     static_cast<std::uint32_t>(piece.index),
                                     source.centre(whole.parameter),
                                     piece.cols,
                                     whole.parameter.cols,
                                     piece.first_row,
                                     piece.first_col};
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
        kernels::draw_weights(float_of(main.part(at, 1, 1)),
                              sharded ? bf16_of(weights.part(at, 1, 1)) : nullptr, part,
                              first - piece.local, last - first, nullptr);
      }
    }
  }
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

}  // namespace

void load_weights(CudaRank& rank, const ParameterIndex& index, const RunOptions& options,
                  int device) {
  for (int i = 0; i < static_cast<int>(rank.commands.instances.size()); ++i) {
    const Tensor states = rank.held(i, Storage::optimizer);
    if (states.data == nullptr) continue;
    check(cudaMemset(states.data, 0, static_cast<std::size_t>(states.bytes())));
  }
  if (const auto* seeded = options.weights.target<SeededWeights>()) {
    draw_weights(rank, index, *seeded);
  } else {
    upload_weights(rank, index, options, device);
  }
}

}  // namespace qplan
