// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the sources of ProcessGroupFarandole share: process_group.cpp, reductions.cpp, moves.cpp.

#include <utility>

#include "farandole/process_group/process_group.h"
#include "process_group/argument_checks.h"

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
  return {operation.name, options_->group_name, rank_, size_};
}

}  // namespace farandole
