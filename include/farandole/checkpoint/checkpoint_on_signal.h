// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

struct CheckpointOnSignalOptions {
  std::vector<int> signals = {SIGTERM, SIGUSR1};  ///< those that ask for it
  std::string file = {};  ///< one that asks for it by being there, on any rank
  Group group = {};       ///< the ranks; the default group if empty
};

/// Tells all ranks after the same step that one of them is to be ended, as that of Python.
///
/// Schedulers send a signal some time before they take a machine (SLURM: `--signal=USR1@120`;
/// Kubernetes and spot instances: SIGTERM), often to one rank alone. A rank notes it, and the next
/// requested(), which all ranks call after the same step, says so on all of them:
///
///     CheckpointOnSignal preemption;
///     for (int64_t step = first; step < last; ++step) {
///       train(step);
///       if (!preemption.requested()) continue;
///       save_checkpoint(path, training, saving(step + 1));
///       return preemption.end();  // of main
///     }
///
/// Handlers that the program had set before are called too. Any number of them may be there.
/// Threads: one call at a time for each.
class FARANDOLE_API CheckpointOnSignal {
 public:
  /// EX_TEMPFAIL of sysexits.h, which schedulers take as "try again".
  static constexpr int kStatus = 75;

  /// Takes over the signals. Throws InvalidArgument for those that cannot be handled, and if there
  /// is no group. Local.
  explicit CheckpointOnSignal(CheckpointOnSignalOptions options = {});
  /// Gives the signals back.
  ~CheckpointOnSignal();
  CheckpointOnSignal(const CheckpointOnSignal&) = delete;
  CheckpointOnSignal& operator=(const CheckpointOnSignal&) = delete;

  /// Whether any rank was asked since this object is there, the same on all. Collective: one number
  /// to all ranks. Rank 0 logs it once. Throws what collectives throw.
  bool requested() const;
  /// kStatus, for main to return. Rank 0 logs the last checkpoint of save_checkpoint(), when it is
  /// on the disk, or what that save met. Local.
  int end() const;

 private:
  const std::string file_;
  const Group group_;
  std::map<int, unsigned> seen_;  ///< by signal: how often it had come before
  mutable bool was_told_ = false;
};

}  // namespace farandole
