// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/folder_lock.h"
#include "farandole/checkpoint/tensor_slice.h"

namespace farandole::checkpoint {

/// A text of this rank for those of all ranks, in rank order.
using Exchange = std::function<std::vector<std::string>(const std::string& own)>;

/// One save of one rank. Every rank runs it.
struct SaveJob {
  std::string root;
  std::string temporary;  ///< made by rank 0
  std::string name;       ///< of the checkpoint
  int64_t number = 0;
  std::shared_ptr<FolderLock> lock;  ///< of rank 0
  int keep = 0;
  int rank = 0;
  int world_size = 1;
  std::vector<TensorSlice> slices;
  std::string values;
  std::string failed;  ///< what this rank has met already; then it writes nothing

  /// Writes this rank's file; when all ranks have, rank 0 makes the checkpoint of them. If one
  /// fails, all throw CheckpointError, which says whether the checkpoint was put in place, and the
  /// temporary folder is removed.
  void run(const Exchange& exchange) const;
};

/// Throws CheckpointError if a text is not empty: `own_error` on this rank, else that of the first
/// rank which has one. `call`: of the program. `is_in_place`: what was to be saved can be loaded.
void throw_first(const std::vector<std::string>& errors, int rank, const std::string& call,
                 bool is_in_place = false);

}  // namespace farandole::checkpoint
