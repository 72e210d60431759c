// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "support/simulated_nccl/deadlock.h"
#include "support/simulated_nccl/operation.h"
#include "support/simulated_nccl/region.h"

namespace farandole::sim::nccl {

/// A message between two ranks: the sender's signature, then bytes.
struct Message {
  int peer;
  bool is_sent;  ///< else received
  Signature signature;
  char* data;  ///< read only if is_sent
  size_t bytes;
};

/// Moves the messages of one kernel, all at once; those between two ranks in one direction in
/// order. A message is sent when its receiver has taken it: programs must not count on room in
/// between.
///
/// Threads: one.
class Exchange {
 public:
  Exchange(Region& region, Member member, std::vector<Message> messages);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Moves what can be moved; whether all is done. Throws Misuse if a message does not have the
  /// signature that its receiver expects, if the peer has finalized, or if ranks wait for each
  /// other for ever.
  bool advance();

 private:
  struct Progress {
    Signature header;  ///< of the message
    size_t header_bytes = 0;
    size_t data_bytes = 0;
    bool is_done = false;
  };

  /// Returns whether all of one message is done; adds to `moved` what was moved.
  bool advance(size_t index, size_t& moved);
  /// Returns how many bytes were moved.
  size_t move(size_t index);
  size_t move_part(Channel& channel, const Message& message, char* data, size_t bytes) const;
  bool is_moved(size_t index) const;
  Channel& channel_of(const Message& message);
  void check_signature(size_t index) const;
  void check_deadlock();
  [[noreturn]] void throw_unmatched(const Message& message) const;
  std::string describe_first_open() const;

  Region& region_;
  const Member member_;
  const std::vector<Message> messages_;
  std::vector<Progress> progress_;  ///< by message
  KernelState state_;
  DeadlockWatch watch_;
};

}  // namespace farandole::sim::nccl
