// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "farandole/checkpoint/training.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

struct LoadCheckpointOptions {
  /// Whether random number generators are set, if as many ranks load as have saved.
  bool rng = true;
  Group group = {};  ///< the ranks; the default group if empty
};

/// Loads what save_checkpoint() of C++ or Python has saved, on any number of ranks. Everything is
/// read and compared with its checksums first, and nothing is changed before all ranks have what
/// they need. Parameter groups may have another order, and optimizers may be sharded now and not
/// when they were saved.
///
/// `path`: the folder given to save_checkpoint(), of which the latest is loaded, or that of one
/// checkpoint. Returns the program's own values.
///
/// Errors: CheckpointError on all ranks: nothing is there, it is damaged, or belongs to another
/// model; the training is as before. Collective. Threads: one call at a time.
FARANDOLE_API CheckpointValues load_checkpoint(const std::string& path, const Training& training,
                                               const LoadCheckpointOptions& options = {});

/// The same if there is a checkpoint, and nullopt if there is none: for programs that are started
/// again.
FARANDOLE_API std::optional<CheckpointValues> resume_or_start(
    const std::string& path, const Training& training, const LoadCheckpointOptions& options = {});

}  // namespace farandole
