// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

/// One finished collective as its calling thread saw it. Times that are read are
/// std::chrono::steady_clock nanoseconds of this host.
struct Event {
  OpKind operation = OpKind::kBarrier;
  int16_t latest_rank = -1;  ///< the peer that this rank waited for last at entry; -1: nobody
  uint32_t group = 0;        ///< see group_id()
  uint64_t sequence = 0;     ///< number of the collective in its group, from 1
  uint64_t bytes = 0;        ///< of this rank's tensor or part; all_to_all_v: of what it sends
  uint64_t begin_ns = 0;
  uint64_t arrived_ns = 0;  ///< when the last peer had entered: begin..arrived is waiting; waits of
                            ///< less than about 2 us count as none
  uint64_t end_ns = 0;
};

/// Events that each thread keeps; older ones are overwritten.
constexpr size_t kEventsPerThread = 1024;

/// The clock of events, in ticks of its own: the time stamp counter where the kernel itself trusts
/// it (10 ns a look), else steady_clock.
FARANDOLE_API uint64_t event_ticks();
/// Puts in the place of each of `count` event_ticks() what now_ns() was then, all by one measure,
/// so that their order stays. 0 stays 0.
FARANDOLE_API void convert_to_ns(uint64_t* ticks, size_t count);

/// Appends to the calling thread's ring. The times of `event` are event_ticks(). Wait-free, no
/// allocation after a thread's first event.
FARANDOLE_API void record(const Event& event);

/// The newest `limit` events of all threads of this process, oldest first. Any thread, while others
/// record: an event that is being overwritten is left out, never torn.
FARANDOLE_API std::vector<Event> recent_events(size_t limit);

/// A small number for a group's name, the same for equal names in this process.
FARANDOLE_API uint32_t group_id(const std::string& name);
/// The other way round; "?" for a number that no group has.
FARANDOLE_API std::string name_of_group(uint32_t id);
/// "#42 all_reduce in group 'default': 4096 bytes, 12.3 us, of it 8.1 us waiting for rank 3"
FARANDOLE_API std::string describe(const Event& event);

/// std::chrono::steady_clock in nanoseconds.
FARANDOLE_API uint64_t now_ns();

}  // namespace farandole::comm
