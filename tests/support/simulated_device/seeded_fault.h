// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace farandole::sim {

// A mistake for tests to find: a wait of a stream for an event that a program forgets. All
// functions: any thread.

/// Waits of streams for events in this process so far, those left out included.
uint64_t stream_waits();
/// The wait that follows after `others` is left out.
void leave_out_wait_after(uint64_t others);
/// Counts a wait, and says whether it is to be left out.
bool leaves_out_this_wait();

}  // namespace farandole::sim
