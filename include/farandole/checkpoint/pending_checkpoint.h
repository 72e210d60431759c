// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "farandole/export.h"

namespace farandole {

/// A save that may still be under way. Threads: one call at a time.
class FARANDOLE_API PendingCheckpoint {
 public:
  /// Of one save. The writer's thread sets `folder`, whoever waits reads it.
  struct Outcome {
    std::promise<std::string> folder;
    const std::shared_future<std::string> known = folder.get_future().share();
    std::atomic<bool> was_reported{false};  ///< to the program
    const ::pid_t saving = ::getpid();      ///< the process that has the writer's thread
  };
  explicit PendingCheckpoint(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}

  /// Returns the checkpoint's folder when it is on the disk. Throws CheckpointError if the save has
  /// failed, each time, and in a forked child while it is under way; the checkpoints before are
  /// unchanged. Local.
  std::string wait() const;
  /// Whether wait() would return at once.
  bool is_done() const;

 private:
  std::shared_ptr<Outcome> outcome_;
};

}  // namespace farandole
