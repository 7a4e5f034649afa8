#include "executor/cpu/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/error.h"

namespace qplan {

void CpuWorld::changed() {
  ++version_;
  waiting_ = 0;  // all of them look again
  wake_.notify_all();
}

std::shared_ptr<CpuWorld::Meeting> CpuWorld::arrive(const MeetingKey& key, std::size_t position,
                                                    std::size_t size, Member member,
                                                    const Together& together) {
  std::shared_ptr<Meeting> meeting;
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    auto& entry = meetings_[key];
    if (!entry) {
      entry = std::make_shared<Meeting>();
      entry->members.resize(size);
    }
    meeting = entry;
    QPLAN_CHECK(meeting->members.size() == size, "ranks agree on the size of their group");
    QPLAN_CHECK(meeting->members[position].rank == nullptr, "a rank arrives once");
    meeting->members[position] = member;
    last = ++meeting->arrived == size;
    if (last) meetings_.erase(key);
  }
  if (!last) return meeting;
  together(meeting->members);
  const std::lock_guard lock(mutex_);
  meeting->done = true;
  changed();
  return meeting;
}

bool CpuWorld::done(const Meeting& meeting) {
  const std::lock_guard lock(mutex_);
  return meeting.done;
}

bool CpuWorld::try_send(const LinkKey& link, Tag tag, std::span<const std::byte> message,
                        std::span<std::byte> buffer) {
  const std::lock_guard lock(mutex_);
  if (!letters_.try_emplace(link, Letter{tag, buffer}).second) return false;  // not yet taken
  QPLAN_CHECK(buffer.size() == message.size(), "a link's buffer holds a stage boundary");
  std::ranges::copy(message, buffer.begin());
  changed();
  return true;
}

bool CpuWorld::try_receive(const LinkKey& link, Tag tag, std::span<std::byte> message) {
  const std::lock_guard lock(mutex_);
  const auto it = letters_.find(link);
  if (it == letters_.end()) return false;
  if (it->second.tag != tag) {
    throw Error(fmt::format(
        "stage {} of microbatch {} was sent where stage {} of microbatch {} is expected",
        it->second.tag.stage, it->second.tag.microbatch, tag.stage, tag.microbatch));
  }
  QPLAN_CHECK(it->second.bytes.size() == message.size(), "both ends of a link agree on the size");
  std::copy(it->second.bytes.begin(), it->second.bytes.end(), message.begin());
  letters_.erase(it);
  changed();
  return true;
}

std::uint64_t CpuWorld::version() {
  const std::lock_guard lock(mutex_);
  return version_;
}

void CpuWorld::wait(std::uint64_t seen, std::int64_t rank, std::string what) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) throw Stopped{};
  if (version_ != seen) return;
  waits_for_[static_cast<std::size_t>(rank)] = std::move(what);
  if (++waiting_ + ended_ == ranks_) {
    // Nobody is left who could change anything.
    failure_ = "deadlock:";
    for (std::size_t r = 0; r < waits_for_.size(); ++r) {
      if (!waits_for_[r].empty())
        failure_ += fmt::format(" rank {} waits for {};", r, waits_for_[r]);
    }
    failure_.pop_back();
    changed();
  }
  wake_.wait(lock, [&] { return version_ != seen; });
  waits_for_[static_cast<std::size_t>(rank)].clear();
  if (!failure_.empty()) throw Stopped{};
}

void CpuWorld::rank_ends() {
  const std::lock_guard lock(mutex_);
  ++ended_;
  changed();  // the others look once more; if all wait then, it is a deadlock
}

void CpuWorld::fail(std::string message) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = std::move(message);
  changed();
}

void CpuWorld::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Stopped{};
}

std::string CpuWorld::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace qplan
