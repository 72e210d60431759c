// SPDX-License-Identifier: Apache-2.0
// How messages fail: late, endless, cut off by the end of a peer, or with their group.
#include <algorithm>
#include <utility>

#include "comm/mpi/message_parts.h"
#include "comm/mpi/messages.h"
#include "comm/mpi/runtime.h"
#include "comm/transfer_errors.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {

using std::chrono::milliseconds;

/// Fails a receive that waits for a message of this rank itself, which cannot send while it waits.
/// Needs mutex_.
void Messages::refuse_endless(Operation& operation) {
  const int own = topology_.rank;
  const bool is_alone = topology_.world_size == 1;
  if (operation.other != own && !(is_alone && operation.other == kAnySource)) return;
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const auto& each) { return each.get() == &operation; });
  const bool is_sent = std::any_of(sends_.begin(), sends_.end(), [&](const auto& each) {
    return each->request.peer == own && each->request.tag == operation.request.tag;
  });
  if (receive == receives_.end() || is_sent) return;
  const auto kept = std::move(*receive);  // owns `operation`
  receives_.erase(receive);
  finish(operation, receive_from_itself_error(topology_, operation.request.tag));
}

/// Ends the group because `operation` reached its timeout. Needs mutex_.
void Messages::fail_late(Operation& operation, milliseconds timeout) {
  if (operation.done.load(std::memory_order_relaxed)) return;
  const MessageText text{operation.request.bytes, operation.other, operation.request.tag,
                         operation.name};
  const std::string what = late_transfer_text(topology_, text, timeout.count());
  give_up(what, late_transfer_error(topology_, text, what), -1);
}

/// Ends the group because the user has interrupted the wait for `operation`. Needs mutex_.
void Messages::fail_interrupted(const Operation& operation) {
  if (operation.done.load(std::memory_order_relaxed)) return;
  const std::string subject = "a wait for a transfer on " + topology_.name_of(topology_.rank);
  give_up(interrupted_text(subject), std::make_exception_ptr(group_interrupted_error(subject)), -1);
}

/// All transfers will fail with `error` once the group has been told why. Needs mutex_.
void Messages::give_up(const std::string& why, std::exception_ptr error, int lost_rank) {
  if (failure_ || error_) return;
  lost_rank_ = lost_rank;
  gave_up_ = topology_.name_of(topology_.rank) + " gave up: " + why;
  error_ = std::move(error);
}

/// Tells the group if this rank gave up, then fails all transfers.
void Messages::tell_group(Lock& lock) {
  if (gave_up_.empty()) return;
  const std::string reason = std::exchange(gave_up_, "");
  lock.unlock();
  group_.abort(reason, lost_rank_);
  lock.lock();
  fail_all(error_);
}

/// Fails all transfers if the group is over, or a peer of one of them has ended. Needs mutex_.
void Messages::look_for_failures() {
  next_look_ = Clock::now() + shm::kLivenessInterval;
  if (failure_ || error_) return;
  group_.listen();
  try {
    group_.check_usable({[this] { return "group '" + group_.name() + "'"; }});
  } catch (const CommError&) {
    fail_all(std::current_exception());
    return;
  }
  advance();  // messages that a peer sent before it ended are received
  const int gone = find_lost();
  if (gone < 0) return;
  const std::string what = cut_off_transfer_text(topology_, gone);
  give_up(what, cut_off_transfer_error(topology_, gone, what), gone);
}

/// A peer of a transfer that has ended; -1: none.
int Messages::find_lost() const {
  int others_left = 0;
  std::vector<bool> lost(static_cast<size_t>(topology_.world_size));
  for (int peer = 0; peer < topology_.world_size; ++peer) {
    if (peer == topology_.rank) continue;
    lost[static_cast<size_t>(peer)] = group_.is_lost(peer);
    others_left += lost[static_cast<size_t>(peer)] ? 0 : 1;
  }
  const auto is_lost = [&](int peer) { return lost[static_cast<size_t>(peer)]; };
  for (const auto& send : sends_) {
    if (is_lost(send->request.peer)) return send->request.peer;
  }
  for (const auto& receive : receives_) {
    if (receive->other != kAnySource && is_lost(receive->other)) return receive->other;
    const bool nobody_left = receive->other == kAnySource && others_left == 0;
    if (nobody_left && topology_.world_size > 1) return topology_.rank == 0 ? 1 : 0;
  }
  for (const Incoming& message : incoming_) {
    if (message.receive && is_lost(message.source)) return message.source;
  }
  return -1;
}

/// MPI must not write to buffers of receives any more; what it may still read of sends, stays.
void Messages::fail_all(const std::exception_ptr& error) {
  if (!failure_) failure_ = error;
  const bool is_over = Runtime::is_over();
  for (auto& send : sends_) {
    if (!is_over && !are_done(send->requests)) new std::shared_ptr<Operation>(send);  // its head
    finish(*send, error);
  }
  sends_.clear();
  for (auto& receive : receives_) finish(*receive, error);
  receives_.clear();
  for (Incoming& message : incoming_) {
    for (MPI_Request& request : message.requests) {
      if (is_over || request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
      static_cast<void>(message.kept.release());  // if it is too late to cancel
    }
    if (message.receive) finish(*message.receive, error);
  }
  incoming_.clear();
}

}  // namespace farandole::comm::mpi
