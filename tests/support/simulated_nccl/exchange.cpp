// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/exchange.h"

#include <array>
#include <string>
#include <utility>

#include "support/simulated_nccl/misuse.h"

namespace farandole::sim::nccl {
namespace {

void insert(uint8_t& set, int rank) { set = static_cast<uint8_t>(set | (1U << rank)); }

}  // namespace

Exchange::Exchange(Region& region, Member member, std::vector<Message> messages)
    : region_(region),
      member_(member),
      messages_(std::move(messages)),
      progress_(messages_.size()),
      state_{},
      watch_(region) {
  state_.number = static_cast<uint16_t>(region.ranks[member.rank].kernel.load().number + 1);
  for (size_t i = 0; i < messages_.size(); ++i) {
    progress_[i].header = messages_[i].signature;
    insert(messages_[i].is_sent ? state_.sends : state_.receives, messages_[i].peer);
  }
}

Exchange::~Exchange() { region_.ranks[member_.rank].kernel.store({state_.number, 0, 0, 0, 0, 0}); }

bool Exchange::advance() {
  state_.open_sends = 0;
  state_.open_receives = 0;
  size_t moved = 0;
  std::array<std::array<bool, 2>, kMaxRanks> is_blocked{};
  for (size_t i = 0; i < messages_.size(); ++i) {
    const Message& message = messages_[i];
    bool& blocked = is_blocked[static_cast<size_t>(message.peer)][message.is_sent ? 1 : 0];
    progress_[i].is_done = !blocked && advance(i, moved);
    blocked = blocked || !is_moved(i);
    if (!progress_[i].is_done) {
      insert(message.is_sent ? state_.open_sends : state_.open_receives, message.peer);
    }
  }
  ++state_.looks;
  region_.ranks[member_.rank].kernel.store(state_);
  const bool is_done = state_.open_sends == 0 && state_.open_receives == 0;
  if (!is_done && moved == 0) check_deadlock();
  return is_done;
}

bool Exchange::advance(size_t index, size_t& moved) {
  const Message& message = messages_[index];
  // First: what the peer did before it left is seen then.
  const bool peer_left = region_.ranks[message.peer].left.load() != 0;
  const size_t part = is_moved(index) ? 0 : move(index);
  moved += part;
  if (is_moved(index) && (!message.is_sent || channel_of(message).empty())) return true;
  if (peer_left && part == 0) throw_unmatched(message);
  return false;
}

size_t Exchange::move(size_t index) {
  const Message& message = messages_[index];
  Progress& progress = progress_[index];
  Channel& channel = channel_of(message);
  size_t moved = 0;
  if (progress.header_bytes < sizeof(Signature)) {
    moved = move_part(channel, message,
                      reinterpret_cast<char*>(&progress.header) + progress.header_bytes,
                      sizeof(Signature) - progress.header_bytes);
    progress.header_bytes += moved;
    if (progress.header_bytes < sizeof(Signature)) return moved;
    if (!message.is_sent) check_signature(index);
  }
  const size_t part = move_part(channel, message, message.data + progress.data_bytes,
                                message.bytes - progress.data_bytes);
  progress.data_bytes += part;
  return moved + part;
}

size_t Exchange::move_part(Channel& channel, const Message& message, char* data,
                           size_t bytes) const {
  if (bytes == 0) return 0;
  return message.is_sent ? channel.put(data, bytes) : channel.take(data, bytes);
}

bool Exchange::is_moved(size_t index) const {
  return progress_[index].header_bytes == sizeof(Signature) &&
         progress_[index].data_bytes == messages_[index].bytes;
}

Channel& Exchange::channel_of(const Message& message) {
  return message.is_sent ? region_.channels[member_.rank][message.peer]
                         : region_.channels[message.peer][member_.rank];
}

void Exchange::check_signature(size_t index) const {
  const Message& message = messages_[index];
  const Signature& theirs = progress_[index].header;
  if (agree(theirs, message.signature)) return;
  const std::string me = "rank " + std::to_string(member_.rank);
  const std::string peer = "rank " + std::to_string(message.peer);
  throw Misuse(ncclInvalidUsage, me + " and " + peer + " of " + std::to_string(member_.world_size) +
                                     " make different calls.\nwhy: " + me + " is in " +
                                     describe(message.signature) + "; " + peer + " is in " +
                                     describe(theirs) +
                                     ".\nfix: call the same functions with the same arguments in "
                                     "the same order on all ranks.");
}

void Exchange::throw_unmatched(const Message& message) const {
  const std::string me = "rank " + std::to_string(member_.rank);
  const std::string peer = "rank " + std::to_string(message.peer);
  throw Misuse(ncclInvalidUsage, me + " waits for " + peer + " of " +
                                     std::to_string(member_.world_size) + " in vain.\nwhy: " + me +
                                     " is in " + describe(message.signature) + "; " + peer +
                                     " has finalized its communicator without the call that "
                                     "belongs to it.\nfix: make that call on " +
                                     peer + ", or leave this one out on " + me + ".");
}

void Exchange::check_deadlock() {
  const std::vector<int> ranks = watch_.look(member_.rank);
  if (ranks.empty()) return;
  std::string text = "rank " + std::to_string(ranks.front());
  for (size_t i = 1; i < ranks.size(); ++i) text += ", rank " + std::to_string(ranks[i]);
  const std::string next = std::to_string(ranks[1 % ranks.size()]);
  throw Misuse(ncclInvalidUsage, text + " of " + std::to_string(member_.world_size) +
                                     " wait for each other.\nwhy: rank " +
                                     std::to_string(member_.rank) + " is in " +
                                     describe_first_open() +
                                     ", to which nothing belongs in the kernel that runs on "
                                     "rank " +
                                     next +
                                     ", and so on.\nfix: put sends and receives that need each "
                                     "other into one group, and pair them.");
}

std::string Exchange::describe_first_open() const {
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (!progress_[i].is_done) return describe(messages_[i].signature);
  }
  return "no message";
}

}  // namespace farandole::sim::nccl
