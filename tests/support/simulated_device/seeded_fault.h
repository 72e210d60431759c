// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace farandole::sim {

// A mistake for tests to find: a wait of a stream for an event that a program forgets. All
// functions: any thread.

/// The waits of streams for events since the last call, those left out included: "1 for 0", by the
/// numbers of the streams.
std::vector<std::string> take_stream_waits();
/// The wait that follows after `others` is left out.
void leave_out_wait_after(size_t others);
/// Notes a wait, and says whether it is to be left out.
bool leaves_out_wait(size_t waiting, size_t awaited);

}  // namespace farandole::sim
