// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <mutex>

namespace farandole::sim::nccl {

/// The call of a communicator that has returned ncclInProgress, if there is one.
///
/// As adverse as NCCL may be: a call ends only when it is polled a second time, in the thread that
/// polls. Until then nothing is on a stream, and no new communicator is known. So an event that is
/// recorded too early stands for less than its program needs, which the race detector sees.
///
/// Threads: any.
class CallInProgress {
 public:
  /// `work`, which may be null, runs on a thread of its own; `finish` after it. Neither may throw.
  void begin(std::function<void()> work, std::function<void()> finish);
  /// Whether there is a call that has not ended.
  bool exists() const;
  /// Whether no call is in progress any more.
  bool poll();
  /// The call will never be polled again; `finish`, which may hold its communicator, is forgotten.
  void drop();

 private:
  struct Call;

  mutable std::mutex mutex_;
  std::shared_ptr<Call> call_;  ///< guarded by mutex_
  std::mutex polls_;            ///< held while a call is polled, so that none sees it half done
};

}  // namespace farandole::sim::nccl
