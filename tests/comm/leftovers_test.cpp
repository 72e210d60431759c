// SPDX-License-Identifier: Apache-2.0
// What groups leave behind when they end, fail, do not form or are killed: nothing.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;

/// Everything of a group that the kernel would keep.
struct Leftovers {
  size_t descriptors = 0;  ///< open files of this process
  size_t mappings = 0;     ///< segments that this process maps
  size_t files = 0;        ///< of Farandole in /dev/shm
};

Leftovers now() {
  using Entries = std::filesystem::directory_iterator;
  Leftovers left;
  left.descriptors = static_cast<size_t>(std::distance(Entries("/proc/self/fd"), Entries()));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const bool segment = line.find("memfd:farandole") != std::string::npos ||
                         line.find("/dev/shm/") != std::string::npos;
    if (segment) ++left.mappings;
  }
  for (const auto& entry : Entries("/dev/shm")) {
    if (entry.path().string().find("farandole") != std::string::npos) ++left.files;
  }
  return left;
}

/// Files of other tests come and go meanwhile.
::testing::AssertionResult nothing_is_left(const Leftovers& before) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  Leftovers left = now();
  const auto is_none = [&] {
    return left.descriptors == before.descriptors && left.mappings == before.mappings &&
           left.files <= before.files;
  };
  while (!is_none() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
    left = now();
  }
  if (is_none()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << left.descriptors << " descriptors, " << left.mappings << " mappings and " << left.files
         << " files, not " << before.descriptors << ", " << before.mappings << " and "
         << before.files;
}

Config backed_by(SegmentBacking segments) {
  Config config;
  config.segments = segments;
  return config;
}

void use(Communicator& group) {
  auto first = group.shared_memory()->allocate_symmetric(100000);
  auto second = group.shared_memory()->allocate_symmetric(1);
  first.reset();
  auto* data = static_cast<float*>(second->local());
  *data = 1.0F;
  group.all_reduce(data, data, 1, DataType::kFloat32, ReduceOp::kSum);
  ASSERT_EQ(*data, static_cast<float>(group.world_size()));
  char byte = 0;
  const auto receive = group.receive(&byte, 1, group.rank(), 0);
  group.send("y", 1, group.rank(), 0)->wait({});
  receive->wait({});
}

class Leftover : public ::testing::TestWithParam<SegmentBacking> {
 protected:
  Leftover() { run_thread_ranks(1, use, {config_}); }  // what a process opens once and for all

  const Config config_ = backed_by(GetParam());
};

TEST_P(Leftover, IsNoneOfGroupsThatEnd) {
  const Leftovers before = now();
  for (int i = 0; i < 20; ++i) run_thread_ranks(3, use, {config_});
  EXPECT_TRUE(nothing_is_left(before));
}

TEST_P(Leftover, IsNoneOfGroupsThatAreAborted) {
  const Leftovers before = now();
  run_thread_ranks(3,
                   [](Communicator& group) {
                     use(group);
                     char byte = 0;
                     const auto transfer = group.receive(&byte, 1, group.rank(), 0);
                     group.barrier();
                     if (group.rank() == 1) group.abort("enough");
                     raised<CommError>([&] { group.barrier(); });
                   },
                   {config_});
  EXPECT_TRUE(nothing_is_left(before));
}

TEST_P(Leftover, IsNoneOfKilledProcesses) {
  const Leftovers before = now();
  run_process_ranks(3,
                    [](Communicator& group) {
                      use(group);
                      const auto memory = group.shared_memory()->allocate_symmetric(100000);
                      if (group.rank() == 2) ::raise(SIGKILL);
                      raised<CommError>([&] { group.barrier(); });
                      ::raise(SIGKILL);
                    },
                    {config_, {0, 1, 2}});
  EXPECT_TRUE(nothing_is_left(before));
}

TEST_P(Leftover, IsNoneOnSurvivorsOfAKilledRank) {
  const TemporaryDirectory folder;
  run_process_ranks(3,
                    [&](Communicator& group) {
                      use(group);
                      const Leftovers before = now();
                      {
                        DirectoryStore store(folder.path());
                        const auto second = group.shrink({}, store);
                        use(*second);
                        if (group.rank() == 1) ::raise(SIGKILL);
                        raised<CommError>([&] { second->barrier(); });
                      }
                      EXPECT_TRUE(nothing_is_left(before));
                    },
                    {config_, {1}});
}

TEST_P(Leftover, IsNoneOfAGroupThatDoesNotForm) {
  const Leftovers before = now();
  comm::InProcessStore store;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {  // rank 2 of 3 does not come
    ranks.emplace_back([&, rank] {
      comm::CommunicatorOptions options;
      options.rank = rank;
      options.world_size = 3;
      options.config = config_;
      options.config.timeout = milliseconds(100);
      raised<TimeoutError>([&] { comm::make_communicator("shm", store, options); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(nothing_is_left(before));
}

INSTANTIATE_TEST_SUITE_P(Backing, Leftover,
                         ::testing::Values(SegmentBacking::kMemfd, SegmentBacking::kTmpfile),
                         [](const auto& instance) {
                           return instance.param == SegmentBacking::kMemfd ? "Memfd" : "Tmpfile";
                         });

}  // namespace
}  // namespace farandole::test
