// What compute and collectives do to each other when they run beside each other: every pair of the
// works and messages below, for docs/evidence/archive/issue6-eighth-round.md and the profiles'
// contention.
//
//     gpu_contention RANKS > pairs.json
//
// Over NVLink as it is; held by a network, as collectives of several nodes are, with
// NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo, and as many channels
// as NCCL_MIN_CTAS and NCCL_MAX_CTAS say. Prints a line of JSON a pair: times in us of each alone
// and beside the other, the median of three, and how many times as long it takes beside it.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "executor/cuda/device_error.h"
#include "executor/cuda/measure.h"
#include "models/error.h"
#include "models/json.h"

using namespace qplan;

namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Products of a square, of an MLP's two sides (Llama-3 8B) and of a wide one; attention of 4096
// tokens; row walks and copies of a layer and of 256 MiB.
std::vector<Work> works() {
  std::vector<Work> works;
  works.emplace_back(Gemm{.m = 8192, .n = 8192, .k = 8192});
  works.emplace_back(Gemm{.m = 4096, .n = 14336, .k = 4096});
  works.emplace_back(Gemm{.m = 4096, .n = 4096, .k = 14336});
  works.emplace_back(Gemm{.m = 16384, .n = 20480, .k = 5120});
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    works.emplace_back(Attention{.batch = 1,
                                 .heads = 32,
                                 .kv_heads = 8,
                                 .q_len = 4096,
                                 .kv_len = 4096,
                                 .head_dim = 128,
                                 .v_head_dim = 128,
                                 .pass = pass});
  }
  for (const RowwiseKind kind : {RowwiseKind::rms_norm_backward, RowwiseKind::swiglu}) {
    works.emplace_back(Rowwise{.kind = kind, .rows = 16384, .cols = 4096});
  }
  works.emplace_back(Rowwise{.kind = RowwiseKind::rope_backward, .rows = 16384, .cols = 8704});
  works.emplace_back(Rowwise{.kind = RowwiseKind::copy, .rows = 32768, .cols = 4096});
  return works;
}

std::vector<Work> messages() {
  constexpr double kBytes = 128 << 20;
  return {Collective{CollectiveKind::all_gather, Axis::world, Bytes(kBytes)},
          Collective{CollectiveKind::reduce_scatter, Axis::world, Bytes(kBytes)}};
}

double us(Seconds time) {
  return std::round(time.value() * 1e7) / 10;
}

void measure_all(const ProcessRank& process) {
  const std::unique_ptr<Measurer> measurer = make_measurer(process, Queues::many);
  for (const Work& message : messages()) {
    for (const Work& work : works()) {
      const auto times = measurer->beside(work, message, static_cast<int>(process.world));
      if (!times || process.rank != 0) continue;
      const Json answer = {{"work", to_string(work)},
                           {"message", to_string(message)},
                           {"work_us", us(times->work)},
                           {"work_beside_us", us(times->work_beside)},
                           {"message_us", us(times->message)},
                           {"message_beside_us", us(times->message_beside)},
                           {"compute", times->work_beside / times->work},
                           {"comm", times->message_beside / times->message}};
      std::puts(answer.dump().c_str());
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    fmt::print(stderr, "gpu_contention needs how many ranks send each other messages\n");
    return 2;
  }
  try {
    const auto process = process_rank(environment);
    if (process) {
      measure_all(*process);
      return 0;
    }
    const LocalResult result = run_local_ranks(
        {std::atoi(words[1]), {std::filesystem::read_symlink("/proc/self/exe"), words[1]}});
    if (!result.failure.empty()) fmt::print(stderr, "{}\n", result.failure);
    return result.exit_code;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_contention: {}\n", error.what());
    return 3;
  }
}
