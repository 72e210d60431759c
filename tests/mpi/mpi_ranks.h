// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/store.h"
#include "support/ranks.h"

namespace farandole::test {

/// This process among those of its mpirun. All of them run the same tests in the same order.
struct MpiProcess {
  int rank;
  int world_size;
  static MpiProcess own();  ///< by the variables that mpirun sets
};

/// A store of all processes of this mpirun.
comm::Store& job_store();

/// What a group named `name` is made with: all processes are its ranks.
comm::CommunicatorOptions options_of_job(const std::string& name);

/// Runs `body` with a group of backend `mpi`, or `backend`, of all processes. Tests may call it
/// several times.
void run_on_mpi_ranks(const RankBody& body, const std::string& backend = "mpi");

/// Runs `body` with a group of all processes on emulated hosts, the one of rank r being hosts[r],
/// which MPI joins.
void run_on_mpi_hosts(const std::vector<int>& hosts, const RankBody& body);

/// all_reduce of `count` ones; the result is checked.
void sum(comm::Communicator& group, size_t count,
         std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

/// Rounds of an all_reduce of 1 + (round * stride) % most floats, a broadcast, and in every third
/// one a barrier; the results are checked.
void mix_sizes(comm::Communicator& group, int rounds, int stride, int most);

}  // namespace farandole::test
