// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/multi_host_communicator.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "comm/arguments.h"
#include "comm/diagnosis.h"
#include "comm/hosts/parts.h"
#include "comm/lost_rank.h"
#include "comm/shm/signature_text.h"
#include "comm/shm/system/reason.h"
#include "comm/shrink.h"
#include "farandole/comm/events.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"

namespace farandole::comm::hosts {
namespace {

using std::chrono::milliseconds;

/// By how much the link gives up later than ranks that wait for a rank of their own host to enter.
milliseconds margin_of(milliseconds timeout) { return std::max(timeout / 20, milliseconds(200)); }

}  // namespace

MultiHostCommunicator::Call MultiHostCommunicator::begin(OpKind operation, size_t count,
                                                         DataType dtype,
                                                         const CollectiveOptions& options) {
  if (failure_ && island_->lockstep().in_creator()) std::rethrow_exception(failure_);
  try {
    check_usable();
  } catch (const CommError&) {
    failure_ = std::current_exception();
    throw;
  }
  Call call{};
  call.signature.operation = operation;
  call.signature.dtype = dtype;
  call.signature.root = -1;
  call.signature.count = count;
  call.element_bytes = size_of(dtype);
  call.timeout = timeout_of(options);
  call.sleep_at_once = options.sleep_at_once;
  call.deadline = Clock::now() + call.timeout + margin_of(call.timeout);
  call.begin_ticks = kDiagnosis ? event_ticks() : 0;
  return call;
}

milliseconds MultiHostCommunicator::timeout_of(const CollectiveOptions& options) const {
  return std::min(options.timeout.count() > 0 ? options.timeout : timeout_.load(),
                  shm::kMostTimeout);
}

/// Whatever other error than a mismatch ends a collective, it ends the group.
void MultiHostCommunicator::run(Call& call, const std::function<void()>& body) {
  try {
    body();
  } catch (const MismatchError&) {
    throw;
  } catch (const Error& error) {
    failure_ = failure_of_later_calls(std::current_exception(), name());
    const auto* lost = dynamic_cast<const PeerFailure*>(&error);
    island_->abort_for(topology().name_of(rank()) + " gave up: " + shm::reason_of(error.what()),
                       lost == nullptr ? -1 : lost->rank().value_or(-1));
    throw;
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    island_->abort(topology().name_of(rank()) + " gave up in " + text_of(call) + ": " +
                   error.what());
    throw;
  }
}

/// Takes `total` through the areas in chunks; at least one, so that all ranks meet.
void MultiHostCommunicator::pass(Call& call, size_t total, size_t chunk_size,
                                 const Phases& phases) {
  const auto launch = [&](size_t begin) {
    Chunk chunk{begin, std::min(chunk_size, total - begin), ++turn_, {}};
    phases.fill(chunk);
    meet(call);
    phases.launch(chunk);
    return chunk;
  };
  std::deque<Chunk> pending{launch(0)};  // the last one is launched, those before are combined
  const auto finish_until = [&](size_t kept) {
    for (; pending.size() > kept; pending.pop_front()) phases.finish(pending.front());
  };
  while (pending.back().begin + pending.back().size < total) {
    pending.push_back(launch(pending.back().begin + pending.back().size));
    if (phases.combine) phases.combine(pending[pending.size() - 2]);
    finish_until(phases.combine ? 2 : 1);
  }
  finish_until(1);
  if (phases.combine) phases.combine(pending.back());
  finish_until(0);
}

/// The ranks of this host meet. In the first turn they show each other their calls.
void MultiHostCommunicator::meet(Call& call) {
  if (call.has_entered) return step(call);
  call.has_entered = true;
  CollectiveOptions options;
  options.timeout = call.timeout;
  options.sleep_at_once = call.sleep_at_once;
  try {
    island_->enter_for(call.signature, options);
  } catch (const MismatchError&) {
    announce(call, {}, /*differs=*/true);  // the other hosts wait for that
    hear_announcements(call, /*differs=*/true);
  }
}

void MultiHostCommunicator::step(const Call& call) const {
  island_->step_for(call.timeout + 2 * margin_of(call.timeout));  // later than the link
}

/// Queues what this rank sends and receives in a turn, with each peer in the order of the lists.
void MultiHostCommunicator::queue(Call& call, Chunk& chunk, const Moves& sends,
                                  const Moves& receives) {
  const bool is_first = !call.has_announced;
  if (is_first) chunk.marks = announce(call, sends, /*differs=*/false);
  for (const Move& each : sends) {
    const uint64_t mark = link_->stream(each.peer, kCollectives).send(each.data, each.bytes);
    chunk.marks.push_back({each.peer, mark, 0});
  }
  if (is_first) hear_announcements(call, /*differs=*/false);
  for (const Move& each : receives) {
    const uint64_t mark = link_->stream(each.peer, kCollectives).receive(each.data, each.bytes);
    chunk.marks.push_back({each.peer, 0, mark});
  }
}

void MultiHostCommunicator::await(const Call& call, const Chunk& chunk) const {
  drive(call, [&] { return has_moved(chunk.marks); });
}

bool MultiHostCommunicator::has_moved(const std::vector<Mark>& marks) const {
  return std::all_of(marks.begin(), marks.end(), [&](const Mark& mark) {
    const ByteStream& stream = link_->stream(mark.peer, kCollectives);
    return stream.sent() >= mark.sent && stream.received() >= mark.received;
  });
}

/// `look`: called every 50 ms.
void MultiHostCommunicator::drive(const Call& call, const std::function<bool()>& is_done,
                                  const std::function<void()>& look) const {
  link_->drive(kCollectives, {call.timeout, call.deadline, is_done, [&] { return text_of(call); },
                              comm::name_of(call.signature.operation),
                              [&] {
                                island_->lockstep().check_peers_in_collective();
                                if (look) look();
                              }});
}

std::string MultiHostCommunicator::text_of(const Call& call) const {
  return "collective #" + std::to_string(island_->lockstep().sequence()) + " " +
         shm::text_of(call.signature) + " in group '" + name() + "' on " +
         topology().own_position();
}

// ---- Areas

std::byte* MultiHostCommunicator::filled(int local, const Chunk& chunk) const {
  return static_cast<std::byte*>(areas_->peer(local)) + chunk.turn % kFilled * area_bytes_;
}

std::byte* MultiHostCommunicator::arrived(int local, const Chunk& chunk) const {
  return static_cast<std::byte*>(areas_->peer(local)) +
         (kFilled + chunk.turn % kArrived) * area_bytes_;
}

// ---- The rest of the interface

void MultiHostCommunicator::record_event(const Call& call, size_t bytes) const {
  if (!kDiagnosis) return;
  Event event;
  event.operation = call.signature.operation;
  const int latest = island_->lockstep().latest_rank();
  event.latest_rank = static_cast<int16_t>(latest < 0 ? -1 : map_.rank_of(host_, latest));
  event.group = event_group_;
  event.sequence = island_->lockstep().sequence();
  event.bytes = bytes;
  event.begin_ns = call.begin_ticks;
  event.arrived_ns = call.begin_ticks;
  event.end_ns = event_ticks();
  record(event);
}

void MultiHostCommunicator::barrier(const CollectiveOptions& options) {
  Call call = begin(OpKind::kBarrier, 0, DataType::kUInt8, options);
  run(call, [&] {
    // A rank that has heard a host knows that all ranks of that host have entered.
    const Phases phases{[](const Chunk&) {}, [&](Chunk& chunk) { queue(call, chunk, {}, {}); },
                        [&](Chunk& chunk) { await(call, chunk); }};
    pass(call, 0, 1, phases);
  });
  record_event(call, 0);
}

/// Ranks of this host come first, then the others; see PointToPoint.
int MultiHostCommunicator::transfer_peer(int rank) const {
  if (rank == kAnySource) return rank;
  if (map_.host_of(rank) == host_) return map_.local_of(rank);
  const auto found = std::lower_bound(remote_.begin(), remote_.end(), rank);
  return map_.size_of(host_) + static_cast<int>(found - remote_.begin());
}

std::shared_ptr<Transfer> MultiHostCommunicator::send(const void* data, size_t bytes,
                                                      int destination, uint64_t tag,
                                                      const CollectiveOptions& options) {
  check_peer("send", "destination", destination, 0, world_size());
  check_usable();
  check_message("send", data, bytes);
  auto* bytes_to_send = static_cast<std::byte*>(const_cast<void*>(data));  // only read
  return island_->point_to_point().send(
      {bytes_to_send, bytes, transfer_peer(destination), tag, timeout_of(options)});
}

std::shared_ptr<Transfer> MultiHostCommunicator::receive(void* data, size_t bytes, int source,
                                                         uint64_t tag,
                                                         const CollectiveOptions& options) {
  check_peer("receive", "source", source, kAnySource, world_size());
  check_usable();
  check_message("receive", data, bytes);
  return island_->point_to_point().receive(
      {static_cast<std::byte*>(data), bytes, transfer_peer(source), tag, timeout_of(options)});
}

void MultiHostCommunicator::check_usable() const {
  if (island_->lockstep().in_creator()) {
    link_->check_usable([this] { return "group '" + name() + "'"; });
  }
  island_->check_usable();
}

void MultiHostCommunicator::check_alive() const {
  check_usable();
  island_->check_alive();
}

void MultiHostCommunicator::check_joins(const std::function<bool(int rank)>& is_missed) {
  island_->check_joins([&](int local) { return is_missed(map_.rank_of(host_, local)); });
  for (const int peer : link_->peers()) {
    if (link_->has_left(peer) && is_missed(peer))
      throw left_while_forming(name(), topology(), peer);
  }
  const auto crossing = waits_->look_while_forming(
      [&](int rank) { return map_.host_of(rank) != host_ && is_missed(rank); });
  const std::string news = waits_->news_of_formation();
  if (!news.empty()) link_->note(news);
  if (crossing) throw waits_->error_while_forming(*crossing);
}

void MultiHostCommunicator::abort(const std::string& reason) { island_->abort(reason); }

void MultiHostCommunicator::set_timeout(milliseconds timeout) {
  timeout_.store(timeout);
  island_->set_timeout(timeout);
}

std::unique_ptr<Communicator> MultiHostCommunicator::shrink(const std::vector<int>& excluded,
                                                            Store& store) {
  CommunicatorOptions options = options_of_shrunk(*this, options_, excluded);
  options.config.timeout = timeout_;
  return make(store, options);
}

}  // namespace farandole::comm::hosts
