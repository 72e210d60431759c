// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/export.h"

namespace farandole {

/// How this process was started, as far as its environment tells.
struct Launch {
  std::string launcher;  ///< "torchrun" or "alone"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address;  ///< where the store is; empty when alone
  int master_port = 0;
  /// The launcher holds the store: every rank is its client, rank 0 too.
  bool store_is_served = false;
};

/// Reads the variables of the launchers that Farandole knows; alone if none is set.
/// Throws InvalidArgument naming what is missing or no number when they are set in part.
FARANDOLE_API Launch find_launch();
/// How often the launcher has restarted the ranks, as it tells it; empty if it does not.
std::string find_attempt();
/// For a process that is to run alone because nothing tells it otherwise: writes one line. Throws
/// InvalidArgument if a launcher that Farandole does not know (mpirun, srun) started several.
FARANDOLE_API void go_alone();

}  // namespace farandole
