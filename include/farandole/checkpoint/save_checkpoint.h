// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "farandole/checkpoint/pending_checkpoint.h"
#include "farandole/checkpoint/training.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

struct SaveCheckpointOptions {
  CheckpointValues values = {};  ///< of rank 0
  /// Names the folder, "step-00001000"; without it saves are numbered.
  std::optional<int64_t> step = {};
  int keep = 0;  ///< checkpoints that stay, this one among them; 0: all
  /// Whether each rank's state of LibTorch's random number generators is saved: that of the CPU,
  /// and of the current GPU if the model is on one.
  bool rng = true;
  /// Return when this rank's part is copied, and let a thread write it. The next save to the same
  /// folder and a load from it by the same group, wait() and the end of the program wait for it.
  bool asynchronous = false;
  Group group = {};  ///< the ranks that train; the default group if empty
};

/// Saves a training into a new folder within `path`, as farandole.save_checkpoint() of Python does:
/// each writes what the other loads. Each rank writes one safetensors file: its shards of the
/// optimizer's state, and its part of what all ranks have alike. See checkpoint_writer.h.
///
/// Errors: CheckpointError on all ranks if one could not write, also of the asynchronous save
/// before; InvalidArgument and NotSupported for what a checkpoint cannot have. Collective. Threads:
/// one call at a time.
FARANDOLE_API PendingCheckpoint save_checkpoint(const std::string& path, const Training& training,
                                                const SaveCheckpointOptions& options = {});

}  // namespace farandole
