#pragma once
// Ranks as threads of one process: where they meet for collectives, where messages lie between
// them, and how the failure of one ends all.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "models/program/op.h"
#include "models/program/rank_program.h"

namespace qplan {

// Another rank has failed; not to be reported.
struct Stopped {};

// Who meets: the group's first rank, its axis, the stream, and how often they have met before.
struct MeetingKey {
  std::int64_t first_rank = 0;
  Axis axis = Axis::tp;
  Stream stream = Stream::compute;
  std::int64_t count = 0;
  auto operator<=>(const MeetingKey&) const = default;
};

class CpuWorld {
 public:
  explicit CpuWorld(int ranks) : ranks_(ranks), waits_for_(static_cast<std::size_t>(ranks)) {}

  // One member of a collective: the rank's place in the group, and whatever `together` needs.
  struct Member {
    const Command* command = nullptr;
    void* rank = nullptr;
  };
  struct Meeting {
    std::vector<Member> members;
    std::size_t arrived = 0;
    bool done = false;
  };
  using Together = std::function<void(const std::vector<Member>&)>;

  // Takes place `position` of `size`. The last to come runs `together` for all. Never blocks.
  std::shared_ptr<Meeting> arrive(const MeetingKey& key, std::size_t position, std::size_t size,
                                  Member member, const Together& together);
  bool done(const Meeting& meeting);

  // A link holds one message, in `buffer`, which is the sender's: sending waits for the one before
  // to be taken, so that schedules which need more deadlock here as they would elsewhere. False:
  // not yet.
  struct LinkKey {
    std::int64_t from = 0, to = 0;
    bool backward = false;
    auto operator<=>(const LinkKey&) const = default;
  };
  struct Tag {
    int stage = 0, microbatch = 0;  // the receiver's
    bool operator==(const Tag&) const = default;
  };
  bool try_send(const LinkKey& link, Tag tag, std::span<const std::byte> message,
                std::span<std::byte> buffer);
  bool try_receive(const LinkKey& link, Tag tag, std::span<std::byte> message);

  // Changes whenever something happened that a waiting rank may have waited for.
  std::uint64_t version();
  // Sleeps until the version differs from `seen`; `what` is told if nobody can ever go on.
  // Throws Stopped when another rank has failed.
  void wait(std::uint64_t seen, std::int64_t rank, std::string what);
  void rank_ends();

  // The first failure is kept.
  void fail(std::string message);
  void throw_if_failed();
  [[nodiscard]] std::string failure();

 private:
  void changed();  // mutex held

  int ranks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::uint64_t version_ = 0;
  int waiting_ = 0, ended_ = 0;
  std::vector<std::string> waits_for_;
  std::string failure_;
  std::map<MeetingKey, std::shared_ptr<Meeting>> meetings_;
  struct Letter {
    Tag tag;
    std::span<const std::byte> bytes;
  };
  std::map<LinkKey, Letter> letters_;
};

}  // namespace qplan
