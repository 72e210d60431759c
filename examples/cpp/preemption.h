// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <farandole/farandole.h>

#include <csignal>

/// Tells all ranks after the same step that one of them is to be ended, as CheckpointOnSignal of
/// Python does. Make one in a program.
class Preemption {
 public:
  static constexpr int kStatus = 75;  ///< EX_TEMPFAIL of sysexits.h: try again later

  Preemption() {
    std::signal(SIGTERM, [](int) { is_asked = 1; });
    std::signal(SIGUSR1, [](int) { is_asked = 1; });
  }
  /// The same on all ranks. Collective.
  bool requested() const {
    const at::Tensor asked = at::tensor(static_cast<double>(is_asked));
    farandole::all_reduce(asked, {c10d::ReduceOp::MAX});
    return asked.item<double>() > 0;
  }

 private:
  static inline volatile std::sig_atomic_t is_asked = 0;
};
