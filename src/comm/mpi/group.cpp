// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/group.h"

#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "comm/fork_safe_mutex.h"
#include "comm/lost_rank.h"
#include "comm/mpi/check.h"
#include "comm/mpi/runtime.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {
namespace {

using std::chrono::milliseconds;

enum Kind : uint32_t { kWaiting = 1, kAborts = 2, kLeaves = 3, kNews = 4 };

/// How long the last messages of a process that has ended may be on their way.
constexpr milliseconds kGrace{200};
/// How long a rank that aborts or leaves works at its notices: the first message to a rank of
/// another host may have to connect.
constexpr milliseconds kFlush{100};
/// How long MPI may take to find out who has ended.
constexpr milliseconds kNaming{2000};

constexpr int kVainLooks = 8;

/// Of this process.
std::vector<Group*>& all_groups() {
  static auto* const groups = new std::vector<Group*>;  // never destroyed
  return *groups;
}

/// Taken before the mutex of a group.
std::mutex& all_groups_mutex() { return fork_safe_mutex<Group>(); }

}  // namespace

struct Group::Notice {
  uint32_t kind;
  int32_t lost_rank;
  uint64_t sequence;
  uint32_t text_bytes;
  std::array<char, 492> text;
};

Group::Group(MPI_Comm communicator, const Topology& topology, shm::Liveness liveness,
             Options options)
    : communicator_(communicator),
      topology_(topology),
      liveness_(std::move(liveness)),
      options_(std::move(options)),
      waits_(options_.name, topology),
      left_(static_cast<size_t>(topology.world_size)),
      waiting_(static_cast<size_t>(topology.world_size)),
      gone_(static_cast<size_t>(topology.world_size)) {
  check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  const std::lock_guard<std::mutex> lock(all_groups_mutex());
  all_groups().push_back(this);
}

Group::~Group() {
  {
    const std::lock_guard<std::mutex> lock(all_groups_mutex());
    all_groups().erase(std::find(all_groups().begin(), all_groups().end(), this));
  }
  if (!in_creator()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!Runtime::is_over()) {
    if (!failure_) tell(kLeaves, entered_, "", -1);
    flush(kFlush);
  }
  for (Sending& each : sending_) static_cast<void>(each.notice.release());  // MPI may read it yet
}

/// Needs mutex_.
void Group::tell(uint32_t kind, uint64_t sequence, const std::string& text, int lost_rank) {
  Notice notice{};
  notice.kind = kind;
  notice.lost_rank = lost_rank;
  notice.sequence = sequence;
  notice.text_bytes = static_cast<uint32_t>(text.copy(notice.text.data(), notice.text.size()));
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    if (peer == topology_.rank || left_[static_cast<size_t>(peer)]) continue;
    Sending each{std::make_unique<Notice>(notice), MPI_REQUEST_NULL};
    const int code = MPI_Isend(each.notice.get(), sizeof(Notice), MPI_BYTE, peer, kNotice,
                               communicator_, &each.request);
    if (code == MPI_SUCCESS) sending_.push_back(std::move(each));
  }
  drop_sent();
}

/// Needs mutex_.
void Group::drop_sent() {
  sending_.remove_if([](Sending& each) {
    int is_done = 0;
    return MPI_Test(&each.request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done != 0;
  });
}

/// Needs mutex_.
void Group::flush(milliseconds limit) {
  const auto end = Clock::now() + limit;
  for (drop_sent(); !sending_.empty() && Clock::now() < end; drop_sent()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Group::listen() {
  const std::lock_guard<std::mutex> lock(mutex_);
  take_notices();
}

/// Takes the notices of the other groups: a rank that waits in one learns that a peer waits in
/// another. It waits for no group whose mutex another thread has, as one that aborts.
void Group::listen_in_other_groups() const {
  const std::lock_guard<std::mutex> lock(all_groups_mutex());
  for (Group* const group : all_groups()) {
    if (group == this || !group->in_creator()) continue;
    if (const std::unique_lock own(group->mutex_, std::try_to_lock); own) group->take_notices();
  }
}

/// Needs mutex_.
void Group::take_notices() {
  if (Runtime::is_over()) return;
  drop_sent();
  // A call that finds nothing may only have taken in what others have sent.
  for (int vain = 0; vain < kVainLooks;) {
    int is_there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code =
        MPI_Improbe(MPI_ANY_SOURCE, kNotice, communicator_, &is_there, &message, &status);
    if (code != MPI_SUCCESS) return;  // who has ended is found by other means
    vain += is_there == 0 ? 1 : 0;
    if (is_there == 0) continue;
    Notice notice{};
    if (MPI_Mrecv(&notice, sizeof(notice), MPI_BYTE, &message, &status) != MPI_SUCCESS) return;
    take(notice, status.MPI_SOURCE);
  }
}

/// Needs mutex_.
void Group::take(const Notice& notice, int source) {
  const auto index = static_cast<size_t>(source);
  if (notice.kind == kWaiting) waiting_[index] = std::max(waiting_[index], notice.sequence);
  if (notice.kind == kLeaves) left_[index] = notice.sequence;
  const std::string text(notice.text.data(),
                         std::min<size_t>(notice.text_bytes, notice.text.size()));
  if (notice.kind == kNews) waits_.hear(source, text);
  if (notice.kind == kAborts && !failure_) {
    failure_ = Failure{source, text, notice.lost_rank};
    waits_.end();
  }
}

void Group::check_in_creator() const {
  if (in_creator()) return;
  throw CommError(
      "forked-child", "group '" + options_.name + "' was used in a forked child process.",
      "the child shares the memory of " + topology_.name_of(topology_.rank) + " but is not a rank.",
      "call collectives only in the process that made the group, and not in DataLoader workers.");
}

/// The same error on ranks that were told as on the one that has noticed, as in shared memory.
void Group::check_usable(const Subject& subject) const {
  check_in_creator();
  if (Runtime::is_over()) {
    throw AbortedError("mpi-group-ended", subject.text() + " came after MPI_Finalize().",
                       "MPI takes no more calls in this process.",
                       "destroy groups before MPI is finalized.");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) return;
  const auto& [rank, reason, lost] = *failure_;
  if (lost >= 0 && lost != topology_.rank) {
    throw PeerFailure("peer-ended-elsewhere",
                      subject.text() + ": " + topology_.describe(rank) + " noticed the end of " +
                          topology_.describe(lost) + ".",
                      reason, kFixOfDeath, topology_.fault_of({lost}, subject.collective));
  }
  throw AbortedError(
      "aborted", subject.text() + " was aborted by " + topology_.describe(rank) + ".", reason,
      "fix the cause on that rank; destroy this group and make a new one to continue.",
      topology_.fault_of({rank}, subject.collective));
}

void Group::abort(const std::string& reason, int lost_rank) {
  if (!in_creator()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = Failure{topology_.rank, reason, lost_rank};
    waits_.end();
    if (!Runtime::is_over()) {
      tell(kAborts, entered_, reason, lost_rank);
      flush(kFlush);
#if defined(OPEN_MPI) && defined(MPIX_ERR_REVOKED)
      if (lost_rank >= 0) MPIX_Comm_revoke(communicator_);  // wakes peers in MPI's collectives
#endif
    }
  }
  if (options_.before_abort) options_.before_abort();
}

bool Group::is_over() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_.has_value();
}

void Group::say_waiting(uint64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_ && !Runtime::is_over()) tell(kWaiting, sequence, "", -1);
}

void Group::tell_news(const std::string& news) {
  if (news.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_ && !Runtime::is_over()) tell(kNews, 0, news, -1);
}

void Group::check_crossed_waits(uint64_t sequence, const Subject& subject) {
  listen_in_other_groups();
  const auto crossing = waits_.look([&](int peer) {
    return heard_waiting(peer) < sequence && left_after(peer).value_or(0) < sequence;
  });
  tell_news(waits_.news());
  if (!crossing) return;
  throw waits_.error_for(*crossing, subject.text(),
                         topology_.fault_of({crossing->peer}, subject.collective));
}

void Group::check_joins(const std::function<bool(int rank)>& is_missed) {
  if (!in_creator()) return;
  listen();
  listen_in_other_groups();
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    if (left_after(peer) && is_missed(peer))
      throw left_while_forming(options_.name, topology_, peer);
  }
  const auto crossing = waits_.look_while_forming(is_missed);
  tell_news(waits_.news_of_formation());
  if (crossing) throw waits_.error_while_forming(*crossing);
}

uint64_t Group::heard_waiting(int peer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_[static_cast<size_t>(peer)];
}

std::optional<uint64_t> Group::left_after(int peer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_[static_cast<size_t>(peer)];
}

bool Group::is_lost(int peer) {
  const bool is_dead = liveness_.is_dead(peer);
  if (is_dead) Runtime::note_an_end();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto index = static_cast<size_t>(peer);
  if (!is_dead && !left_[index]) return false;
  if (!gone_[index]) gone_[index] = Clock::now();
  return Clock::now() - *gone_[index] >= kGrace;
}

std::string Group::how_lost(int peer) const {
  return liveness_.is_dead(peer) ? liveness_.cause_of_death(peer) : "left the group";
}

/// MPI may know that the communicator is revoked before it knows who has ended.
int Group::name_failed_process(const Subject& subject) {
  const auto end = Clock::now() + kNaming;
  while (Clock::now() < end) {
    listen();
    check_usable(subject);
    for (int peer = 0; peer < topology_.world_size; ++peer) {
      if (peer != topology_.rank && liveness_.is_dead(peer)) return peer;
    }
    const int failed = failed_process(communicator_);
    if (failed >= 0) return failed;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return -1;
}

void Group::check_code(int code, const char* call, const Subject& subject) {
  if (code == MPI_SUCCESS) return;
  listen();
  check_usable(subject);  // a peer may have said more
  if (!is_process_failure(code)) return check(code, call);
  Runtime::note_an_end();
  const int lost = name_failed_process(subject);
  if (lost < 0) return check(code, call);
  throw PeerFailure("peer-ended",
                    subject.text() + ": " + topology_.describe(lost) + " " + how_lost(lost) + ".",
                    std::string(call) + ": " + text_of(code) + ".", kFixOfDeath,
                    topology_.fault_of({lost}, subject.collective));
}

}  // namespace farandole::comm::mpi
