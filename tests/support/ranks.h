// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"

namespace farandole::test {

/// What each rank runs, with its communicator.
using RankBody = std::function<void(comm::Communicator&)>;

/// What ranks are made with.
struct RankOptions {
  Config config = Config();
  std::vector<int> expected_to_die = {};  ///< process ranks that are killed, by whoever
  std::string backend = comm::backend_for(comm::MemoryKind::kHost);
  std::vector<int> hosts = {};  ///< the host of each rank; empty: all ranks are on one
};

/// Runs `body` on `world_size` ranks that are threads of this process, each with a communicator of
/// one new group. Rethrows the first error of the lowest rank. Ends the test program if the ranks
/// are not done within the deadline.
void run_thread_ranks(int world_size, const RankBody& body, const RankOptions& options = {});

/// As run_thread_ranks(), but ranks are forked processes with a store in a temporary folder. A rank
/// passes if `body` returns; a failed expectation or an exception of its own fails the test with
/// its text. Process ranks that hang are killed by the deadline and fail the test.
void run_process_ranks(int world_size, const RankBody& body, const RankOptions& options = {});

/// The deadline of one group of ranks: generous, and longer still under sanitizers.
std::chrono::seconds rank_deadline();
/// The time within which a waiting rank must learn of a failure. Detection takes under 100 ms; the
/// library promises one second. The limit is longer under sanitizers, and grows with the number of
/// running processes per core. Call this at the end of the wait.
std::chrono::milliseconds detection_limit();

/// Whether FARANDOLE_TEST_THIN asks for the short version of a test matrix, as sanitizers need.
bool thin_matrix();
/// Whether FARANDOLE_TEST_ALL asks for a whole test matrix, and for tests that take gigabytes.
bool whole_matrix();

}  // namespace farandole::test
