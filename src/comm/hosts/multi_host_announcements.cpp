// SPDX-License-Identifier: Apache-2.0
// How hosts learn that they have called the same; see MultiHostCommunicator.
#include <algorithm>

#include "comm/hosts/multi_host_communicator.h"
#include "comm/hosts/parts.h"
#include "comm/shm/signature_text.h"
#include "farandole/error.h"

namespace farandole::comm::hosts {

MultiHostCommunicator::Announcement MultiHostCommunicator::own_announcement(const Call& call,
                                                                            bool differs) const {
  Announcement own{};
  own.sequence = island_->lockstep().sequence();
  own.call = differs ? island_->signature_of(0) : call.signature;
  own.differing = -1;
  own.thread = waits_->thread();
  for (int local = 1; differs && local < map_.size_of(host_); ++local) {
    const shm::Signature other = island_->signature_of(local);
    if (shm::is_same_call(own.call, other)) continue;
    own.differing = map_.rank_of(host_, local);
    own.other = other;
    break;
  }
  return own;
}

/// Tells each rank that this one sends to what its host has called, and how much follows.
std::vector<MultiHostCommunicator::Mark> MultiHostCommunicator::announce(Call& call,
                                                                         const Moves& sends,
                                                                         bool differs) {
  waits_->enter(island_->lockstep().sequence(), call.signature);
  std::vector<Mark> marks;
  announced_.clear();
  announced_.reserve(link_->peers().size());  // streams keep addresses
  for (const int peer : link_->peers()) {
    if (!map_.sends(rank(), peer)) continue;
    announced_.push_back(own_announcement(call, differs));
    for (const Move& each : sends) announced_.back().bytes += each.peer == peer ? each.bytes : 0;
    ByteStream& stream = link_->stream(peer, kCollectives);
    marks.push_back({peer, stream.send(&announced_.back(), sizeof(Announcement)), 0});
  }
  call.has_announced = true;
  return marks;
}

/// Reads what the other hosts have called. All ranks of all hosts read the same announcements, so
/// all throw or none.
void MultiHostCommunicator::hear_announcements(const Call& call, bool differs) {
  std::vector<Announcement> heard(index_of(map_.count()));
  heard[index_of(host_)] = own_announcement(call, differs);
  std::vector<Mark> marks;
  for (int host = 0; host < map_.count(); ++host) {
    if (host == host_) continue;
    const int peer = map_.sender_to(rank(), host);
    ByteStream& stream = link_->stream(peer, kCollectives);
    marks.push_back({peer, 0, stream.receive(&heard[index_of(host)], sizeof(Announcement))});
  }
  await_announcements(call, marks);
  for (const Mark& mark : marks) {
    const uint64_t thread = heard[index_of(map_.host_of(mark.peer))].thread;
    waits_->note_thread(mark.peer, static_cast<uint32_t>(thread));
  }
  const Announcement& own = heard[index_of(host_)];
  for (const Announcement& each : heard) {
    if (each.sequence == own.sequence && each.bytes <= area_bytes_ * index_of(world_size()))
      continue;
    throw CommError("hosts-out-of-step",
                    text_of(call) + ": another host sent what does not belong there.",
                    "it counts " + std::to_string(each.sequence) +
                        " collectives so far, this one " + std::to_string(own.sequence) + ".",
                    "report it, with the logs of all ranks.");
  }
  const bool all_agree = std::all_of(heard.begin(), heard.end(), [&](const Announcement& each) {
    return each.differing < 0 && shm::is_same_call(each.call, heard.front().call);
  });
  if (all_agree) return;
  drop(call, heard);
  throw_mismatch(call, heard);
}

/// Waits for the other hosts to enter. `marks`: of their announcements.
void MultiHostCommunicator::await_announcements(const Call& call, const std::vector<Mark>& marks) {
  try {
    drive(
        call, [&] { return has_moved(marks); }, [&] { look_for_crossing(call, marks); });
  } catch (const PeerFailure&) {
    look_for_crossing(call, marks);  // which may be why that rank has ended
    throw;
  }
}

/// Throws if a rank of a missing host waits for this rank in another group; see shm::CrossedWaits.
void MultiHostCommunicator::look_for_crossing(const Call& call, const std::vector<Mark>& marks) {
  const auto is_missing = [&](int rank) {
    return map_.host_of(rank) != host_ &&
           std::any_of(marks.begin(), marks.end(), [&](const Mark& mark) {
             return map_.host_of(mark.peer) == map_.host_of(rank) && !has_moved({mark});
           });
  };
  const auto crossing = waits_->look(is_missing);
  const std::string news = waits_->news();
  if (!news.empty()) link_->note(news);
  if (!crossing) return;
  throw waits_->error_for(
      *crossing, text_of(call),
      topology().fault_of({crossing->peer}, comm::name_of(call.signature.operation)));
}

/// Reads what follows the announcements, and has all sent that is queued.
void MultiHostCommunicator::drop(const Call& call, const std::vector<Announcement>& heard) {
  uint64_t most = 0;
  for (const Announcement& each : heard) most = std::max(most, each.bytes);
  std::vector<std::byte> dropped(most);
  for (int host = 0; host < map_.count(); ++host) {
    if (host == host_) continue;
    link_->stream(map_.sender_to(rank(), host), kCollectives)
        .receive(dropped.data(), heard[index_of(host)].bytes);
  }
  drive(call, nullptr);
}

void MultiHostCommunicator::throw_mismatch(const Call& own_call,
                                           const std::vector<Announcement>& heard) const {
  const shm::Signature& reference = heard.front().call;
  std::vector<int> differing;
  const shm::Signature* other = nullptr;
  const auto add = [&](int rank, const shm::Signature& call) {
    if (shm::is_same_call(call, reference)) return;
    if (other == nullptr || rank < differing.front()) other = &call;
    differing.insert(std::upper_bound(differing.begin(), differing.end(), rank), rank);
  };
  for (int host = 0; host < map_.count(); ++host) {
    const Announcement& each = heard[index_of(host)];
    add(map_.rank_of(host, 0), each.call);
    if (each.differing >= 0) add(static_cast<int>(each.differing), each.other);
  }
  throw MismatchError("collective-mismatch",
                      "collective #" + std::to_string(heard.front().sequence) + " in group '" +
                          name() + "': " + topology().name_of(map_.rank_of(0, 0)) + " called " +
                          shm::text_of(reference) + ", " + topology().name_of(differing.front()) +
                          " called " + shm::text_of(*other) + ".",
                      "every rank of a group must call the same collectives in the same order.",
                      "look for code that depends on the rank, or for tensors of different sizes.",
                      topology().fault_of(differing, comm::name_of(own_call.signature.operation)));
}

}  // namespace farandole::comm::hosts
