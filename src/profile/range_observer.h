// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "farandole/export.h"

namespace farandole::profiler {

/// From now on each range of at::RecordFunction (of torch, of the layers, of the program) becomes a
/// span when it ends, and each step of an optimizer within no other one ends a step of the
/// training, unless the program does: end_step(), or `first_step`, as RecorderOptions has it.
/// Threads: as start().
void observe_ranges(std::optional<uint64_t> first_step);
void leave_ranges();

/// How many workers load for the DataLoader that the calling thread begins to wait for, if that is
/// known. It must not throw.
using WorkerCounter = std::optional<uint32_t> (*)();
/// From now on each wait for a DataLoader asks `counter`, on its own thread.
FARANDOLE_API void count_workers_by(WorkerCounter counter);

/// The program ends a step, on any thread; from now on optimizers do not.
void end_step(const std::string& mode);

}  // namespace farandole::profiler
