#include "executor/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "executor/cuda/device_error.h"
#include "models/error.h"
#include "models/text.h"

namespace qplan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);  // until all ranks have met
constexpr auto kGrace = std::chrono::seconds(5);      // between asking to end and ending
constexpr int kFailed = 3;                            // the exit code of a launch failure
constexpr int kGuests = 1024;                         // that may wait to be let in
constexpr char kSignVariable[] = "QPLAN_SIGN_FD";     // a pipe: any byte is a sign of life
constexpr char kDoorVariable[] = "QPLAN_DOOR_FD";     // rank 0's listening socket

std::int64_t number_of(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Error(
        fmt::format("the environment's {} must be a whole number, is '{}'", name, shown(text)));
  }
  return value;
}

class Socket {
 public:
  explicit Socket(int handle = -1) : handle_(handle) {}
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (handle_ >= 0) ::close(handle_);
  }
  [[nodiscard]] int get() const { return handle_; }
  [[nodiscard]] bool open() const { return handle_ >= 0; }

  bool send_all(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(handle_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  bool receive_all(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = ::recv(handle_, bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }

 private:
  int handle_;
};

// A socket of one of the addresses of a name, for which `use` succeeds.
template <class Use>
Socket open_socket(const std::string& host, int port, bool listens, Use use) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = listens ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (::getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &found) != 0) {
    return Socket();
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (socket.open() && use(socket.get(), a)) return socket;
  }
  return Socket();
}

Socket open_door(int port) {
  return open_socket("", port, true, [](int handle, const addrinfo* a) {
    const int yes = 1;
    ::setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    return ::bind(handle, a->ai_addr, a->ai_addrlen) == 0 && ::listen(handle, kGuests) == 0;
  });
}

// Every other rank, as rank 0 meets it.
std::vector<Socket> guests_of(const ProcessRank& own) {
  const Socket door = own.door >= 0 ? Socket(own.door) : open_door(own.port);
  if (!door.open()) {
    throw DeviceError(
        fmt::format("rank 0 cannot listen on port {} ({}); choose another "
                    "MASTER_PORT",
                    own.port, std::strerror(errno)));
  }
  const timeval patience{std::chrono::seconds(kPatience).count(), 0};
  ::setsockopt(door.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::vector<Socket> guests;
  for (std::int64_t met = 1; met < own.world; ++met) {
    guests.emplace_back(::accept(door.get(), nullptr, nullptr));
    if (!guests.back().open()) {
      throw DeviceError(
          fmt::format("only {} of {} ranks have come to rank 0 within a minute", met, own.world));
    }
  }
  return guests;
}

void answer(const Socket& guest, std::span<const std::byte> bytes) {
  if (!guest.send_all(bytes)) throw DeviceError("a rank that came to rank 0 has left");
}

// What rank 0 answers to what this rank says.
void ask(const ProcessRank& own, std::span<const std::byte> question, std::span<std::byte> bytes) {
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    const Socket socket =
        open_socket(own.address, own.port, false, [](int handle, const addrinfo* a) {
          return ::connect(handle, a->ai_addr, a->ai_addrlen) == 0;
        });
    if (socket.open() && socket.send_all(question) && socket.receive_all(bytes)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw DeviceError(fmt::format("rank {} found no rank 0 at {}:{} within a minute", own.rank,
                                own.address, own.port));
}

// Listens for the ranks of this machine before any of them starts: at a free port, which a rank
// that knocks where nobody listens could take itself (a connection from a port to itself succeeds).
struct LocalDoor {
  Socket socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;

  LocalDoor() {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(any);
    void* address = &any;
    if (::bind(socket.get(), static_cast<sockaddr*>(address), size) != 0 ||
        ::listen(socket.get(), kGuests) != 0 ||
        ::getsockname(socket.get(), static_cast<sockaddr*>(address), &size) != 0) {
      throw DeviceError(fmt::format("no free port on this machine ({})", std::strerror(errno)));
    }
    port = ntohs(any.sin_port);
  }
};

// In the child: becomes rank `rank`, or ends.
[[noreturn]] void become(const LocalJob& job, int rank, const LocalDoor& door, int signs,
                         pid_t parent) {
  ::signal(SIGTERM, SIG_DFL);  // a handler of this program's is not the rank's
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);  // it has ended in the meantime
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(job.ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(door.port));
  const auto inherit = [&](const char* name, int handle) {
    set(name, std::to_string(handle));
    ::fcntl(handle, F_SETFD, 0);
  };
  inherit(kSignVariable, signs);
  if (rank == 0) inherit(kDoorVariable, door.socket.get());
  std::vector<char*> words;
  for (const std::string& word : job.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  ::_exit(kFailed);
}

std::string end_of(int rank, int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("rank {} was ended by signal {} ({})", rank, WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("rank {} ended with code {}", rank, WEXITSTATUS(status));
}

}  // namespace

std::optional<ProcessRank> process_rank(const Environment& environment) {
  struct Launcher {
    const char *rank, *world, *local;
  };
  for (const Launcher& l :
       {Launcher{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
        Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        Launcher{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}}) {
    const auto rank = environment(l.rank), world = environment(l.world);
    if (!rank || !world) continue;
    ProcessRank own;
    own.rank = number_of(l.rank, *rank);
    own.world = number_of(l.world, *world);
    if (const auto local = environment(l.local)) {
      own.local_rank = static_cast<int>(number_of(l.local, *local));
    }
    const auto address = environment("MASTER_ADDR"), port = environment("MASTER_PORT");
    if (own.world > 1 && (!address || !port)) {
      throw Error(
          "a job of several processes needs MASTER_ADDR and MASTER_PORT in its environment: a "
          "machine name and a free port of rank 0");
    }
    if (address) own.address = *address;
    if (port) own.port = static_cast<int>(number_of("MASTER_PORT", *port));
    if (const auto door = environment(kDoorVariable); door && own.rank == 0) {
      own.door = static_cast<int>(number_of(kDoorVariable, *door));
    }
    // torchrun's agent may keep a store of its own at the port that it announces.
    if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") ++own.port;
    return own;
  }
  return std::nullopt;
}

void broadcast(const ProcessRank& own, std::span<std::byte> bytes) {
  if (own.world == 1) return;
  if (own.rank != 0) return ask(own, {}, bytes);
  for (const Socket& guest : guests_of(own)) answer(guest, bytes);
}

double largest(const ProcessRank& own, double number) {
  if (own.world == 1) return number;
  const std::span<double> bytes(&number, 1);
  if (own.rank != 0) {
    const double mine = number;
    ask(own, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(bytes));
    return number;
  }
  const std::vector<Socket> guests = guests_of(own);
  for (const Socket& guest : guests) {
    double theirs = 0;
    if (!guest.receive_all(std::as_writable_bytes(std::span(&theirs, 1)))) {
      throw DeviceError("a rank that came to rank 0 said nothing");
    }
    number = std::max(number, theirs);
  }
  for (const Socket& guest : guests) answer(guest, std::as_bytes(bytes));
  return number;
}

int meeting_port(int port, int meeting) {
  constexpr int kFirst = 20000, kJobs = 100, kMeetings = 100;
  return kFirst + port % kJobs * kMeetings + meeting % kMeetings;
}

std::function<void()> sign_of_life(const Environment& environment) {
  const auto pipe = environment(kSignVariable);
  if (!pipe) return [] {};
  return [handle = static_cast<int>(number_of(kSignVariable, *pipe))] {
    // A launcher that is gone, or has much to read already, needs no more.
    [[maybe_unused]] const ssize_t written = ::write(handle, "", 1);
  };
}

namespace {

// The ranks that run, and how they end.
class LocalRanks {
 public:
  explicit LocalRanks(const LocalJob& job) : job_(job) {
    if (::pipe2(signs_, O_CLOEXEC | O_NONBLOCK) != 0) throw DeviceError("no pipe could be made");
    const LocalDoor door;
    const pid_t parent = ::getpid();
    for (int rank = 0; rank < job.ranks; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) become(job, rank, door, signs_[1], parent);
      if (child < 0) throw DeviceError("no process could be started for a rank");
      running_.push_back(child);
    }
  }
  ~LocalRanks() {
    tell_all(SIGKILL);
    for (const int end : signs_) ::close(end);
  }
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  LocalResult wait() {
    for (auto left = std::ssize(running_); left > 0;) {
      int status = 0;
      const pid_t ended = ::waitpid(-1, &status, WNOHANG | WUNTRACED);
      const auto child = std::ranges::find(running_, ended);
      if (ended > 0 && child != running_.end()) {
        const auto rank = static_cast<int>(child - running_.begin());
        if (WIFSTOPPED(status)) {  // it may go on in time
          silent_ = fmt::format("rank {} was stopped by signal {}", rank, WSTOPSIG(status));
          continue;
        }
        *child = 0;
        --left;
        if (status != 0)
          fail(WIFEXITED(status) ? WEXITSTATUS(status) : kFailed, end_of(rank, status));
      } else {
        listen();
        if (deadline_ && Clock::now() > *deadline_) tell_all(SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    return result_;
  }

 private:
  void tell_all(int signal) const {
    for (const pid_t child : running_) {
      if (child > 0) ::kill(child, signal);
    }
  }

  // The first failure counts; the others are asked to end, and ended if they do not.
  void fail(int code, std::string what) {
    if (deadline_) return;
    result_ = {code, std::move(what)};
    tell_all(SIGTERM);
    deadline_ = Clock::now() + kGrace;
  }

  void listen() {
    char bytes[256];
    while (::read(signs_[0], bytes, sizeof(bytes)) > 0) last_sign_ = Clock::now();
    const std::chrono::duration<double> silent = Clock::now() - last_sign_;
    if (job_.silence.value() == 0 || silent.count() < job_.silence.value()) return;
    fail(kFailed, fmt::format("no rank gave a sign of life for {:.0f} s; {}, or give more time "
                              "with --timeout",
                              job_.silence.value(), silent_));
  }

  const LocalJob& job_;
  int signs_[2] = {-1, -1};  // read here, written by the ranks
  std::vector<pid_t> running_;
  Clock::time_point last_sign_ = Clock::now();
  std::optional<Clock::time_point> deadline_;  // once one has failed: until all must have ended
  LocalResult result_;
  std::string silent_ = "one of them may have stopped";
};

}  // namespace

LocalResult run_local_ranks(const LocalJob& job) {
  return LocalRanks(job).wait();
}

}  // namespace qplan
