// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/last_checkpoint.h"

#include <mutex>

namespace farandole::checkpoint {
namespace {

struct LastCheckpoint {
  std::mutex mutex;
  std::optional<PendingCheckpoint> save;  // guarded by mutex
};

/// Never destroyed: what is logged at the exit may ask for it.
LastCheckpoint& newest() {
  static auto* const instance = new LastCheckpoint;
  return *instance;
}

}  // namespace

void note_last(const PendingCheckpoint& save) {
  const std::lock_guard<std::mutex> lock(newest().mutex);
  newest().save = save;
}

std::optional<PendingCheckpoint> last_checkpoint() {
  const std::lock_guard<std::mutex> lock(newest().mutex);
  return newest().save;
}

}  // namespace farandole::checkpoint
