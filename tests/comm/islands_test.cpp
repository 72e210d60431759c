// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/islands.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Topology;
using ::testing::ElementsAre;

comm::CommunicatorOptions options_of(int rank, int world_size) {
  comm::CommunicatorOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.config.timeout = rank_deadline();
  return options;
}

Topology meet(comm::Store& store, const comm::CommunicatorOptions& options,
              const std::string& host_id) {
  comm::MeetingOptions meeting;
  meeting.group = options.name;
  meeting.rank = options.rank;
  meeting.world_size = options.world_size;
  meeting.host_id = host_id;
  meeting.timeout = options.config.timeout;
  return comm::discover_topology(store, meeting);
}

/// The islands that ranks, threads of this process, find. `enter` prepares a rank's thread.
std::vector<Topology> islands_of(const std::vector<std::string>& host_ids,
                                 const std::function<void(int)>& enter = {}) {
  const int world_size = static_cast<int>(host_ids.size());
  comm::InProcessStore store;
  std::vector<std::future<Topology>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto options = options_of(rank, world_size);
      const Topology candidates = meet(store, options, host_ids[static_cast<size_t>(rank)]);
      if (enter) enter(rank);
      return comm::hosts::find_islands(store, options, candidates);
    }));
  }
  std::vector<Topology> found;
  for (auto& rank : ranks) found.push_back(rank.get());
  for (const Topology& each : found) {
    EXPECT_EQ(each.host_of_rank, found.front().host_of_rank);
    EXPECT_EQ(each.host_names.size(), found.front().host_names.size());
  }
  return found;
}

bool may_enter_namespaces() { return ::geteuid() == 0; }

TEST(Islands, AreHostsWhereRanksShareMemory) {
  EXPECT_THAT(islands_of({"a", "a", "a"}).front().host_of_rank, ElementsAre(0, 0, 0));
  EXPECT_THAT(islands_of({"a", "b", "a", "b", "c"}).front().host_of_rank,
              ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(islands_of({"a"}).front().host_of_rank, ElementsAre(0));
  EXPECT_THAT(islands_of({"a", "b"}).front().host_of_rank, ElementsAre(0, 1));
}

TEST(Islands, AreFoundByManyRanksAtOnce) {
  std::vector<std::string> ids;
  std::vector<int> expected;
  for (int rank = 0; rank < 24; ++rank) {
    ids.push_back(rank % 3 == 0 ? "a" : "b");
    expected.push_back(rank % 3 == 0 ? 0 : 1);
  }
  EXPECT_EQ(islands_of(ids).front().host_of_rank, expected);
}

/// Ranks that claim one host, two of them in another network namespace, where no socket of the
/// others is found; and one in a third.
TEST(Islands, DivideAHostWhoseRanksDoNotReachEachOther) {
  if (!may_enter_namespaces()) GTEST_SKIP() << "only root makes network namespaces";
  std::promise<int> second;
  std::shared_future<int> namespace_of_second = second.get_future();
  const auto found = islands_of({"a", "a", "a", "a", "a"}, [&](int rank) {
    if (rank == 1 || rank == 4) {
      ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    }
    if (rank == 1) second.set_value(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (rank == 3) {
      ASSERT_EQ(::setns(namespace_of_second.get(), CLONE_NEWNET), 0);
      ::close(namespace_of_second.get());
    }
  });
  EXPECT_THAT(found.front().host_of_rank, ElementsAre(0, 1, 0, 1, 2));
  EXPECT_EQ(found[2].local_rank, 1);
  EXPECT_EQ(found[3].local_rank, 1);
  EXPECT_EQ(found[3].local_world_size, 2);
  EXPECT_EQ(found[4].local_world_size, 1);
}

TEST(Islands, KeepUsersApart) {
  if (!may_enter_namespaces()) GTEST_SKIP() << "only root becomes another user";
  const auto found = islands_of({"a", "a", "a"}, [&](int rank) {
    // The thread alone: glibc's setresuid() would change all threads.
    if (rank == 2) {
      ASSERT_EQ(::syscall(SYS_setresuid, 4711, 4711, 4711), 0);
    }
  });
  EXPECT_THAT(found.front().host_of_rank, ElementsAre(0, 0, 1));
}

/// A rank that dies before it has shown its memory.
TEST(Islands, NameARankThatDies) {
  const TemporaryDirectory folder;
  const auto rank_in_child = [&](int rank, const std::function<void()>& before) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    DirectoryStore store(folder.path());
    const auto options = options_of(rank, 3);
    const Topology candidates = meet(store, options, "a");
    before();
    std::string text;
    try {
      comm::hosts::find_islands(store, options, candidates);
    } catch (const PeerFailure& error) {
      text = error.what();
    } catch (const AbortedError& error) {
      text = error.what();
    }
    ::_exit(text.find("rank 2") != std::string::npos ? 0 : 1);
  };
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(rank_in_child(rank, [rank] {
      if (rank == 2) ::raise(SIGKILL);
    }));
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[rank], &status, 0), children[rank]);
    if (rank == 2) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace farandole::test
