// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/export.h"

namespace farandole {

/// How this process was started, as far as its environment tells.
///
/// The ranks meet in a store: at master_address, or at the address that rank 0 writes into
/// meeting_file. If a launcher says neither, only the program can.
struct Launch {
  std::string launcher;  ///< "torchrun", "mpirun" (any MPI's), "srun" or "alone"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address;  ///< where the store is; may be empty
  int master_port = 0;
  std::string meeting_file;  ///< on the one host of all ranks, in a folder of this run's; or empty
  /// torchrun's variables are set, but not those that it sets for itself.
  bool by_hand = false;
  /// The launcher holds the store: every rank is its client, rank 0 too.
  bool store_is_served = false;

  bool has_meeting_place() const { return !master_address.empty() || !meeting_file.empty(); }
};

/// Reads the variables of the launchers that Farandole knows; alone if none is set, or if a
/// launcher of MPI or Slurm started one process. torchrun's come first, so that it may be started
/// by another one. Throws InvalidArgument naming what is missing or no number when variables are
/// set in part.
FARANDOLE_API Launch find_launch();
/// Throws InvalidArgument that says how to tell the ranks of `launch` where they meet.
[[noreturn]] void throw_no_meeting_place(const Launch& launch);
/// How often the launcher has restarted the ranks, as it tells it; empty if it does not.
std::string find_attempt();
/// For a process that runs alone because nothing tells it otherwise: writes one line.
FARANDOLE_API void go_alone();

}  // namespace farandole
