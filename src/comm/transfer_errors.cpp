// SPDX-License-Identifier: Apache-2.0
#include "comm/transfer_errors.h"

#include <utility>

#include "farandole/error.h"

namespace farandole::comm {

std::exception_ptr transfer_size_error(const Topology& topology, size_t came,
                                       const MessageText& message) {
  return std::make_exception_ptr(MismatchError(
      "transfer-size",
      topology.name_of(topology.rank) + " received " + std::to_string(came) + " bytes from " +
          topology.name_of(message.peer) + " with tag " + std::to_string(message.tag) +
          " into a buffer of " + std::to_string(message.bytes) + " bytes.",
      "the send and its matching receive differ in size.",
      "pass tensors of equal shape and dtype on both sides, or use different tags.",
      topology.fault_of({message.peer}, message.call)));
}

std::exception_ptr receive_from_itself_error(const Topology& topology, uint64_t tag) {
  return std::make_exception_ptr(InvalidArgument(
      "receive-from-itself",
      topology.name_of(topology.rank) + " is waiting for a message from itself with tag " +
          std::to_string(tag) + ".",
      "it has not sent one, and cannot send while it waits.",
      "receive from another rank, or start an asynchronous send to this rank first."));
}

std::string late_transfer_text(const Topology& topology, const MessageText& message,
                               int64_t timeout_ms) {
  const std::string peer = message.peer < 0 ? "any rank" : topology.describe(message.peer);
  return "a transfer of " + std::to_string(message.bytes) + " bytes with " + peer + ", tag " +
         std::to_string(message.tag) + ", reached its timeout of " + std::to_string(timeout_ms) +
         " ms on " + topology.name_of(topology.rank) + ".";
}

std::exception_ptr late_transfer_error(const Topology& topology, const MessageText& message,
                                       const std::string& text) {
  Fault fault{{}, message.call};
  if (message.peer >= 0) fault.ranks.push_back(topology.rank_in_group(message.peer));
  return std::make_exception_ptr(TimeoutError(
      "transfer-timeout", text, "the peer has not posted the matching send or receive.",
      "post it with the same tag, or increase the timeout.", std::move(fault)));
}

std::string cut_off_transfer_text(const Topology& topology, int gone) {
  return "a transfer between " + topology.name_of(topology.rank) + " and " +
         topology.describe(gone) + " was interrupted.";
}

std::exception_ptr cut_off_transfer_error(const Topology& topology, int gone,
                                          const std::string& text) {
  return std::make_exception_ptr(PeerFailure(
      "transfer-cut-off", text, "that rank ended or left the group.",
      "look at that rank's own output, then restart the job or continue without that rank.",
      topology.fault_of({gone})));
}

std::exception_ptr unfinished_transfer_error() {
  return std::make_exception_ptr(AbortedError(
      "transfer-unfinished", "a send or receive was not finished.",
      "its group was destroyed first.", "wait for every transfer before you destroy the group."));
}

void throw_forked_transfer() {
  throw CommError("forked-transfer", "a send or receive was used in a forked child process.",
                  "the child shares the rank's memory but is not a rank.",
                  "wait for it in the process that started it, and not in DataLoader workers.");
}

}  // namespace farandole::comm
