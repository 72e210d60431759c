// SPDX-License-Identifier: Apache-2.0
// fork() while other threads are busy with the process's books about shared memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/comm/events.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::unique_ptr<comm::Communicator> lone_group(const std::string& name) {
  comm::InProcessStore store;
  comm::CommunicatorOptions options;
  options.name = name;
  return comm::make_communicator("shm", store, options);
}

/// Whether `child` exits by itself.
bool ends(pid_t child) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Fork, ChildReleasesMemoryAndMakesGroupsWhileThreadsAllocate) {
#if defined(FARANDOLE_SANITIZED_ADDRESS)
  GTEST_SKIP() << "AddressSanitizer's allocator keeps its own locks held in forked children";
#endif
  auto group = lone_group("parent");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      auto own = lone_group("thread " + std::to_string(i));
      while (!stop.load()) {
        auto memory = own->shared_memory()->allocate_symmetric(1);
        lone_group("short-lived");
        comm::recent_events(1);
      }
    });
  }
  const int forks = thin_matrix() ? 50 : 300;
  for (int i = 0; i < forks; ++i) {
    auto memory = group->shared_memory()->allocate_symmetric(1);
    const pid_t child = ::fork();
    if (child == 0) {
      memory.reset();
      group.reset();
      lone_group("short-lived")->shared_memory()->allocate_symmetric(1);
      comm::recent_events(1);
      ::_exit(0);
    }
    const bool ended = ends(child);
    EXPECT_TRUE(ended) << "the child of fork " << i << " hangs";
    if (!ended) break;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace farandole::test
