// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the sources of ProcessGroupFarandole share.

#include <atomic>
#include <exception>
#include <utility>

#include "farandole/process_group/process_group.h"
#include "process_group/argument_checks.h"
#include "process_group/collective_queue.h"

namespace farandole {

/// The names of a collective: c10d's, ours, and what torch.profiler shows.
struct ProcessGroupFarandole::Operation {
  c10d::OpType type;
  const char* name;
  const char* profiler_title;
};

/// One call of a collective, all but what it does.
struct ProcessGroupFarandole::Call {
  Operation operation;
  Tensors outputs;
  bool async;
  std::chrono::milliseconds timeout;
};

inline Caller ProcessGroupFarandole::caller(const Operation& operation) const {
  return {operation.name, name_, rank_, size_};
}

/// Keeps `error` as the group's first, if it is one of the group.
void note_error(std::atomic<c10d::ErrorType>& first, const std::exception_ptr& error);

}  // namespace farandole
