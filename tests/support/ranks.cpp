// SPDX-License-Identifier: Apache-2.0
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <thread>

#include "support/directory_store.h"

namespace farandole::test {
namespace {

using Clock = std::chrono::steady_clock;

/// A communicator of the group "test".
std::unique_ptr<comm::Communicator> join_group(comm::Store& store, int rank, int world_size,
                                               const RankOptions& asked) {
  comm::CommunicatorOptions options;
  options.name = "test";
  options.rank = rank;
  options.world_size = world_size;
  options.config = asked.config;
  if (!asked.hosts.empty()) {
    options.config.host_id = "host" + std::to_string(asked.hosts[static_cast<size_t>(rank)]);
    options.config.network_interface = "lo";
  }
  return comm::make_communicator(asked.backend, store, options);
}

/// Runs one rank in a forked child and never returns. Writes what went wrong to `report`.
[[noreturn]] void child_main(int rank, int world_size, const RankBody& body,
                             const RankOptions& options, const std::string& directory) {
  std::string problem;
  try {
    DirectoryStore store(directory);
    const auto communicator = join_group(store, rank, world_size, options);
    body(*communicator);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (problem.empty() && ::testing::Test::HasFailure()) problem = "a failed expectation, see above";
  if (!problem.empty()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, problem.c_str());
    std::fflush(stderr);
  }
  std::fflush(stdout);
  // Without destructors of the parent's copies; sanitizers report leaks in the parent.
  ::_exit(problem.empty() ? 0 : 1);
}

void check_exit(int rank, int status, bool expected_to_die) {
  if (expected_to_die) {
    EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << rank << " was meant to die";
  } else if (WIFSIGNALED(status)) {
    ADD_FAILURE() << "rank " << rank << " was killed by signal " << WTERMSIG(status);
  } else {
    EXPECT_EQ(WEXITSTATUS(status), 0) << "rank " << rank << " failed, see its output";
  }
}

/// The number of running processes per core: the current number or the average of the last minute,
/// whichever is larger, and at least 1. See /proc/loadavg in proc(5).
double running_processes_per_core() {
  std::ifstream file("/proc/loadavg");
  double minute = 0;
  double skipped = 0;
  double running = 0;
  file >> minute >> skipped >> skipped >> running;
  return std::max({1.0, minute / std::thread::hardware_concurrency(),
                   running / std::thread::hardware_concurrency()});
}

}  // namespace

std::chrono::seconds rank_deadline() {
#if defined(FARANDOLE_SANITIZED)
  return std::chrono::seconds(240);
#else
  return std::chrono::seconds(90);
#endif
}

std::chrono::milliseconds detection_limit() {
#if defined(FARANDOLE_SANITIZED)
  constexpr double kIdleMilliseconds = 10000;
#else
  constexpr double kIdleMilliseconds = 1000;
#endif
  return std::chrono::milliseconds(
      static_cast<int64_t>(kIdleMilliseconds * running_processes_per_core()));
}

bool thin_matrix() { return std::getenv("FARANDOLE_TEST_THIN") != nullptr; }
bool whole_matrix() { return std::getenv("FARANDOLE_TEST_ALL") != nullptr; }

void run_thread_ranks(int world_size, const RankBody& body, const RankOptions& options) {
  comm::InProcessStore store;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::atomic<int> running{world_size};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto communicator = join_group(store, rank, world_size, options);
        body(*communicator);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
      running.fetch_sub(1);
    });
  }
  const auto deadline = Clock::now() + rank_deadline();
  while (running.load() > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (Clock::now() < deadline) continue;
    std::fprintf(stderr, "%d of %d rank threads hang; ending the test\n", running.load(),
                 world_size);
    std::abort();
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void run_process_ranks(int world_size, const RankBody& body, const RankOptions& options) {
  const TemporaryDirectory directory;
  std::fflush(stdout);
  std::fflush(stderr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) child_main(rank, world_size, body, options, directory.path());
    ASSERT_GT(child, 0) << "fork failed";
    children.push_back(child);
  }
  const auto deadline = Clock::now() + rank_deadline();
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = children[static_cast<size_t>(rank)];
    int status = 0;
    bool late = false;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (!late && Clock::now() > deadline) {
        late = true;
        ADD_FAILURE() << "rank " << rank << " hangs; killed";
        ::kill(child, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    const auto& mortal = options.expected_to_die;
    const bool meant = std::count(mortal.begin(), mortal.end(), rank) != 0;
    if (!late) check_exit(rank, status, meant);
  }
}

}  // namespace farandole::test
