// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "farandole/checkpoint/pending_checkpoint.h"
#include "farandole/checkpoint/tensor_slice.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// How a checkpoint is saved.
struct SaveOptions {
  std::string name;  ///< of its folder; empty: "save-" and the number of the save
  int keep = 0;      ///< checkpoints that are kept, this one among them; 0: all
  /// save() returns when the slices are copied to memory that the writer keeps, and a thread writes
  /// them while training goes on.
  bool asynchronous = false;
};

/// Saves checkpoints of all ranks of a group into one folder, which all of them reach.
///
/// Each rank writes one safetensors file (github.com/huggingface/safetensors) of its slices into a
/// folder tmp-..., and waits until it is on the disk. When all have, rank 0 writes index.json with
/// sizes and checksums and renames the folder. So a checkpoint is there as a whole or not at all,
/// whenever a rank or the machine stops. Then "latest" names it, and old ones are removed.
///
/// A folder belongs to the writers of one process (rank 0's) at a time: others, of another job too,
/// are refused.
///
/// Errors: CheckpointError, the same on all ranks but for the text; what collectives throw.
/// Threads: one call at a time.
class FARANDOLE_API CheckpointWriter {
 public:
  /// `folder` is made by the first save. `group`: of any backend; the default group if empty.
  /// Collective.
  explicit CheckpointWriter(std::string folder, const Group& group = {});
  /// Waits for a save that is under way; what it throws is logged.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Saves `slices` of this rank, whose keys differ, and `values`, a JSON text, of rank 0. First
  /// waits for the save before, and throws what that has met. A save that fails leaves the
  /// checkpoints before as they were. Collective.
  PendingCheckpoint save(const std::vector<TensorSlice>& slices, const std::string& values,
                         const SaveOptions& options = {});
  /// Returns when the last save is done, and throws what it has met unless that was told already.
  /// Local.
  void wait();

  int rank() const;
  int world_size() const;
  /// Throws CheckpointError on all ranks if `error` is not empty on one of them: there with that
  /// text. `call`: of the program. Collective.
  void agree(const std::string& call, const std::string& error) const;
  /// A text of every rank. Collective.
  std::vector<std::string> all_gather(const std::string& text) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace farandole
