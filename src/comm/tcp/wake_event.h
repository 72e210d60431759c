// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "comm/shm/system/descriptor.h"
#include "comm/shm/system/system_call.h"

namespace farandole::comm::tcp {

/// Wakes a thread that sleeps in poll(): readable from signal() until clear(). An eventfd.
/// Threads: any. Where the program has closed the eventfd, nobody is woken, and no file of the
/// program gets a byte.
class WakeEvent {
 public:
  /// Throws SystemError.
  WakeEvent() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_.valid()) shm::throw_errno("eventfd", "use fewer groups or fewer open files.");
  }

  int get() const { return event_.get(); }
  bool is_intact() const { return event_.is_intact(); }
  void signal() const {
    if (!is_intact()) return;
    const uint64_t one = 1;
    // A full counter is readable, too.
    [[maybe_unused]] const ssize_t written = ::write(get(), &one, sizeof(one));
  }
  void clear() const {
    if (!is_intact()) return;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t read = ::read(get(), &count, sizeof(count));
  }

 private:
  shm::Descriptor event_;
};

}  // namespace farandole::comm::tcp
