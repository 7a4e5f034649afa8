#pragma once
// Processes of one job: who this one is, how all of them learn one thing, and how to start them on
// this machine.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/units.h"

namespace qplan {

struct ProcessRank {
  std::int64_t rank = 0, world = 1;
  int local_rank = 0;   // on its machine: which GPU
  std::string address;  // where rank 0 listens
  int port = 0;
  int door = -1;  // of rank 0: a socket that listens at the port already; -1: none
};

// Reads a variable of the environment; absent: not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// This process as torchrun (RANK, WORLD_SIZE, ...), mpirun (OMPI_COMM_WORLD_*) or srun (SLURM_*)
// has started it; absent: none of them has. Throws Error for numbers that are none, and for a job
// of several processes without MASTER_ADDR and MASTER_PORT.
std::optional<ProcessRank> process_rank(const Environment& environment);

// Rank 0's bytes, to all; once a process. Throws DeviceError when the others do not come within a
// minute.
void broadcast(const ProcessRank& own, std::span<std::byte> bytes);

// The largest of all ranks' numbers, to all; each must ask. Throws as broadcast() does.
double largest(const ProcessRank& own, double number);

struct LocalJob {
  int ranks = 1;
  std::vector<std::string> command;  // an executable file and its arguments
  Seconds silence{};                 // longest time without a sign of life of any rank; 0: any
};
struct LocalResult {
  int exit_code = 0;    // 0: every rank ended well
  std::string failure;  // else what the first one that failed did
};
// Starts a process for each rank, as torchrun would, and waits for all. When one fails the others
// are ended within seconds; they end with this process, too.
LocalResult run_local_ranks(const LocalJob& job);

// Where the processes of a job meet for its `meeting`th time, from 0: they do so anew for each plan
// that they run. Below the ports that Linux gives to whoever asks for any, and apart from those of
// other jobs of the machine, which their launchers gave other ports.
int meeting_port(int port, int meeting);

// What a rank calls now and then, at least after every step: tells the launcher that started it, if
// run_local_ranks() did. One rank that has stopped stops all, wherever they wait for it.
std::function<void()> sign_of_life(const Environment& environment);

}  // namespace qplan
