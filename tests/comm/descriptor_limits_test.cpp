// SPDX-License-Identifier: Apache-2.0
// Groups within the limits on open files and on descriptors under way between processes.
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
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
#include "farandole/comm/shared_memory.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/forked_child.h"
#include "support/raised.h"
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

/// Puts a file that is always readable in the place of each pidfd of this process. Returns how
/// many there were.
int replace_pidfds() {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  int count = 0;
  for (int number = 3; number < 1000; ++number) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(number);
    if (::readlink(link.c_str(), target, sizeof(target) - 1) < 0) continue;
    if (std::string(target) != "anon_inode:[pidfd]") continue;
    ::dup2(null, number);
    ++count;
  }
  return count;
}

TEST(Descriptors, ThatTheProgramReplacesKillNoRank) {
  RankOptions options;
  options.expected_to_die = {2};
  run_process_ranks(
      3,
      [](Communicator& group) {
        group.barrier();
        if (group.rank() != 2) {
          EXPECT_GT(replace_pidfds(), 0);
        }
        group.barrier();
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
        group.barrier();  // rank 1 is late and alive
        if (group.rank() == 2) ::raise(SIGKILL);
        EXPECT_THAT(raised<PeerFailure>([&] { group.barrier(); }), testing::HasSubstr("rank 2"));
      },
      options);
}

TEST(Descriptors, OfTheProgramAreNotClosedWithAGroup) {
  run_process_ranks(2, [](Communicator& first) {
    int own = -1;
    {
      comm::InProcessStore store;
      comm::CommunicatorOptions options;
      options.name = "alone";
      const auto group = comm::make_communicator("shm", store, options);
      const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      const auto memory = group->shared_memory()->allocate_symmetric(1 << 16);
      for (int number = before + 1; number < before + 4; ++number) {
        if (::dup2(before, number) == number) own = number;  // over what the group has kept
      }
    }
    EXPECT_GE(::fcntl(own, F_GETFD), 0);
    first.barrier();
  });
}

TEST(Descriptors, AreNeverThoseOfStandardStreams) {
  run_process_ranks(2, [](Communicator& first) {
    const int saved = ::dup(STDERR_FILENO);
    for (int number = 0; number < 3; ++number) ::close(number);
    const auto symmetric = first.shared_memory()->allocate_symmetric(1 << 16);
    auto* const memory = static_cast<char*>(symmetric->local());
    ForkedChild child([&] { return memory[0] == 0; });
    const std::string line = "a line on standard error\n";
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    std::vector<int> taken;
    for (int number = 0; number < 3; ++number) {
      if (::fcntl(number, F_GETFD) >= 0) taken.push_back(number);
    }
    for (int number = 0; number < 3; ++number) ::dup2(saved, number);
    ::close(saved);
    EXPECT_TRUE(taken.empty()) << "descriptor " << taken[0];
    EXPECT_EQ(written, -1);
    EXPECT_EQ(std::string(memory, memory + 10), std::string(10, '\0'));
    EXPECT_TRUE(child.succeeded());
    first.barrier();
  });
}

}  // namespace
}  // namespace farandole::test
