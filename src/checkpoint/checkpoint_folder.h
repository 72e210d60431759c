// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/slice_file.h"

namespace farandole::checkpoint {

// How checkpoints lie in the folder in which they are saved:
//
//   step-00001000/rank-00000-of-00002.safetensors, ..., index.json
//   tmp-.../          of a save that is under way, or that was killed
//   NAME.replaced/    the one before, while another takes its place where the file system cannot
//                     exchange two folders in one step; a save that was killed leaves it
//   latest            a text file with the name of the newest
//
// A folder without index.json is no checkpoint. All functions throw CheckpointError. Any thread;
// those that write are called by one rank.

constexpr const char* kIndexName = "index.json";

/// index.json.
struct CheckpointIndex {
  int64_t number = 0;  ///< counts the saves to one folder
  std::string name;    ///< of the folder; empty in older ones
  int world_size = 1;
  std::vector<FileRecord> files;
  std::string values;  ///< what the program saved beside tensors: JSON

  std::string to_text() const;
  /// `path`: of the file, for messages.
  static CheckpointIndex read(const std::string& path);
};

/// Removes what saves that were killed have left in `root`, and brings back what they have moved
/// aside. Nobody else must write there. Does not throw.
void remove_leftovers(const std::string& root) noexcept;
/// A new folder for a save to `root`, which is made if it is not there.
std::string make_temporary(const std::string& root, const std::string& name);
/// The number of the next save.
int64_t next_number(const std::string& root);
/// Makes a temporary folder, whose files are all on the disk, the checkpoint `name`, which it
/// replaces if it is there. `is_newest`: whether it becomes the latest. `is_in_place` becomes true
/// when it can be loaded, also if an error follows.
void commit(const std::string& root, const std::string& temporary, const std::string& name,
            const CheckpointIndex& index, bool is_newest, bool& is_in_place);
/// Removes all checkpoints but the newest `keep`. One under another name than it was saved with is
/// a copy that the program keeps.
void remove_old(const std::string& root, int keep);
/// Removes a folder with all in it. Does not throw.
void remove_folder(const std::string& path) noexcept;

/// Whether there is a checkpoint at `path`.
bool has_checkpoint(const std::string& path);
/// The folder of the checkpoint at `path`: itself, or the latest in it.
std::string find_checkpoint(const std::string& path);
/// All checkpoints in `root`, the oldest first.
std::vector<std::string> checkpoints_in(const std::string& root);

}  // namespace farandole::checkpoint
