// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace farandole::profiler {

/// From now on each range of at::RecordFunction (of torch, of the layers, of the program) becomes a
/// span when it ends, and each step of an optimizer within no other one ends a step of the
/// training, unless the program does: end_step(), or `first_step`, as RecorderOptions has it.
/// Threads: as start().
void observe_ranges(std::optional<uint64_t> first_step);
void leave_ranges();

/// The program ends a step, on any thread; from now on optimizers do not.
void end_step(const std::string& mode);

}  // namespace farandole::profiler
