// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

namespace farandole::sim {

/// When streams run the kernels that were put on them. Each is an order that a GPU may choose, so a
/// program is right only if its results are right under all of them.
enum class Schedule {
  kEager,        ///< as soon as they can
  kLazy,         ///< only when the host or another stream waits for them
  kSlowDefault,  ///< on default streams each starts a random time later
  kSlowSide,     ///< the same on all other streams
};

/// For the names of tests.
std::ostream& operator<<(std::ostream& out, Schedule schedule);

/// The schedule of all devices of the process; kEager at first. Any thread.
Schedule schedule();
/// Only while all streams are idle.
void set_schedule(Schedule schedule);

/// Sleeps as long as a kernel must that is about to start on a default stream or on another.
void delay_kernel(bool on_default_stream);

}  // namespace farandole::sim
