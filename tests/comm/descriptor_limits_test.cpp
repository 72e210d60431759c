// SPDX-License-Identifier: Apache-2.0
// Groups within the limits on open files and on descriptors under way between processes.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/backends.h"
#include "support/directory_store.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uid_t kNobody = 65534;

/// Drops to a user without privileges and at most `files` descriptors, in each process and of the
/// user under way. False where this process may not.
bool become_nobody_with(rlim_t files) {
  const rlimit limit{files, files};
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && ::setgid(kNobody) == 0 &&
         ::setuid(kNobody) == 0;
}

/// Forms one group and adds up a number over it. Returns an exit status.
int run_rank(const std::string& directory, int rank, int world_size) {
  try {
    DirectoryStore store(directory);
    comm::CommunicatorOptions options;
    options.rank = rank;
    options.world_size = world_size;
    auto group = comm::make_communicator("shm", store, options);
    int32_t sum = 1;
    group->all_reduce(&sum, &sum, 1, comm::DataType::kInt32, comm::ReduceOp::kSum);
    return sum == world_size ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

/// Runs ranks as nobody, each in a pid namespace of its own where asked.
void expect_group_of_nobody(int world_size, rlim_t files, bool own_pid_namespaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const TemporaryDirectory directory;
  ::chmod(directory.path().c_str(), 0777);
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    // A new namespace holds for children alone: each of those is number 1 in its own.
    if (own_pid_namespaces) {
      if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
      if (const pid_t inner = ::fork()) {
        int status = 0;
        ::waitpid(inner, &status, 0);
        ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
      }
    }
    ::_exit(become_nobody_with(files) ? run_rank(directory.path(), rank, world_size) : 1);
  }
  const auto deadline = steady_clock::now() + rank_deadline();
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (::waitpid(children[rank], &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(milliseconds(5));
      if (steady_clock::now() > deadline) ::kill(children[rank], SIGKILL);
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
  }
}

TEST(DescriptorLimits, LetAUserWithFewOpenFilesFormALargeGroup) {
  thin_matrix() ? expect_group_of_nobody(16, 64, false) : expect_group_of_nobody(64, 256, false);
}

TEST(DescriptorLimits, LetAUserWithFewOpenFilesFormAGroupAcrossPidNamespaces) {
  thin_matrix() ? expect_group_of_nobody(8, 48, true) : expect_group_of_nobody(24, 80, true);
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

TEST(DescriptorLimits, GroupsOfOneProcessShareTheirWatchesOfPeers) {
  const TemporaryDirectory directory;
  run_process_ranks(4, [&](Communicator& first) {
    constexpr size_t kGroups = 20;
    const size_t before = open_descriptors();
    DirectoryStore store(directory.path());
    std::vector<std::unique_ptr<Communicator>> groups;
    for (size_t i = 0; i < kGroups; ++i) {
      comm::CommunicatorOptions options;
      options.name = "group " + std::to_string(i);
      options.rank = first.rank();
      options.world_size = first.world_size();
      groups.push_back(comm::make_communicator("shm", store, options));
    }
    const size_t sockets = first.rank() == 0 ? 3 : 1;  // a star around rank 0
    EXPECT_EQ(open_descriptors() - before, kGroups * sockets);
    groups.back()->barrier();
    groups.clear();
    EXPECT_EQ(open_descriptors(), before);
  });
}

}  // namespace
}  // namespace farandole::test
