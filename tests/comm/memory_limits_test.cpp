// SPDX-License-Identifier: Apache-2.0
// Memory that is not there: an error of ours, and not a signal.
#include "comm/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "comm/shm/system/segment.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/forked_child.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A meminfo and cgroups of a test's own.
class Host {
 public:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  auto left(const std::string& cgroup) const {
    return comm::memory_left(folder_.path() + "/meminfo", folder_.path() + "/cgroup", cgroup);
  }

 private:
  TemporaryDirectory folder_;
};

TEST(MemoryLeft, IsTheLeastOfTheHostAndAllCgroups) {
  const Host host;
  EXPECT_FALSE(host.left("/").has_value());
  host.write("meminfo", "MemTotal: 4000 kB\nMemAvailable:    1000 kB\nSwapFree: 24 kB\n");
  EXPECT_EQ(host.left("/a/b")->bytes, 1024U * 1024);
  EXPECT_EQ(host.left("/a/b")->limit, "the host");
  host.write("cgroup/a/memory.max", "900000\n");
  host.write("cgroup/a/memory.current", "500000\n");
  EXPECT_EQ(host.left("/a/b")->bytes, 400000U);
  EXPECT_EQ(host.left("/a/b")->limit, "its cgroup (memory.max)");
  host.write("cgroup/a/memory.stat", "anon 7\ninactive_file 30000\nactive_file 20000\n");
  EXPECT_EQ(host.left("/a/b")->bytes, 450000U);
  host.write("cgroup/a/b/memory.max", "max\n");
  host.write("cgroup/a/b/memory.current", "400000\n");
  EXPECT_EQ(host.left("/a/b")->bytes, 450000U);
  host.write("cgroup/a/b/memory.max", "400000\n");
  EXPECT_EQ(host.left("/a/b")->bytes, 0U);
  EXPECT_EQ(host.left("/")->bytes, 1024U * 1024);
}

TEST(MemoryLeft, IsSomethingHere) { EXPECT_GT(comm::memory_left()->bytes, 0U); }

TEST(MemoryLeft, IsLookedAtBeforeASegmentIsMade) {
  const size_t more = comm::memory_left()->bytes * 4;
  EXPECT_THAT(raised<SystemError>([&] { comm::shm::create_segment(more, SegmentBacking::kMemfd); }),
              AllOf(HasSubstr(std::to_string(more) + " bytes failed"), HasSubstr(" bytes left.")));
}

TEST(MemoryLeft, IsToldByAllRanksThatAskForMore) {
  const size_t more = comm::memory_left()->bytes * 4;  // the same on all ranks
  run_process_ranks(2, [more](comm::Communicator& group) {
    raised<SystemError>([&] { group.shared_memory()->allocate_symmetric(more); });
    group.barrier();  // it stays usable
  });
}

TEST(FileSizeLimit, IsAnErrorAndNoSignal) {
  for (const auto backing : {SegmentBacking::kMemfd, SegmentBacking::kTmpfile}) {
    ForkedChild child([&] {
      const rlimit size{65536, 65536};
      ::setrlimit(RLIMIT_FSIZE, &size);
      comm::shm::create_segment(65536, backing);
      const std::string text =
          raised<SystemError>([&] { comm::shm::create_segment(131072, backing); });
      return text.find("(ulimit -f)") != std::string::npos;
    });
    EXPECT_TRUE(child.succeeded());
  }
}

}  // namespace
}  // namespace farandole::test
