// SPDX-License-Identifier: Apache-2.0
#include "farandole/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/system/segment.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "log.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Config, ReadsEveryVariable) {
  const Variable backend("FARANDOLE_BACKEND", "mpi");
  const Variable link("FARANDOLE_LINK", "mpi");
  const Variable devices("FARANDOLE_DEVICE_BACKEND", "staged");
  const Variable host("FARANDOLE_HOST_ID", "left");
  const Variable spin("FARANDOLE_SPIN_US", "0");
  const Variable staging("FARANDOLE_STAGING_BYTES", "30000");
  const Variable segments("FARANDOLE_SEGMENTS", "tmpfile");
  const Variable timeout("FARANDOLE_TIMEOUT_S", "7");
  const Variable births("FARANDOLE_BORN_GRADIENTS", "0");
  const Variable level("FARANDOLE_LOG", "error");
  const std::string given(32, 's');
  const Variable secret("FARANDOLE_JOB_SECRET", given.c_str());
  const Config config = Config::from_environment();
  EXPECT_EQ(config.backend, BackendChoice::kMpi);
  EXPECT_EQ(config.link, HostLinkChoice::kMpi);
  EXPECT_EQ(config.device_backend, DeviceBackendChoice::kStaged);
  EXPECT_EQ(config.host_id, "left");
  EXPECT_EQ(config.spin.count(), 0);
  EXPECT_EQ(config.staging_bytes, 32768U);
  EXPECT_EQ(config.segments, SegmentBacking::kTmpfile);
  EXPECT_EQ(config.timeout, std::chrono::seconds(7));
  EXPECT_FALSE(config.born_gradients);
  EXPECT_EQ(config.log_level, "error");
  EXPECT_EQ(config.job_secret, given);
}

TEST(Config, ASecretThatIsTooShortIsRefusedAndNotShown) {
  const Variable secret("FARANDOLE_JOB_SECRET", "hunter2");
  try {
    Config::from_environment();
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("FARANDOLE_JOB_SECRET"), HasSubstr("7 characters")));
    EXPECT_EQ(std::string(error.what()).find("hunter2"), std::string::npos);
  }
}

/// In a process of its own: the level is read once.
TEST(Config, ALineIsLoggedWhateverTheVariablesAre) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const char* name : {"FARANDOLE_SPIN_US", "FARANDOLE_LOG"}) {
    EXPECT_EXIT(
        {
          const Variable variable(name, "banana");
          std::thread([] { log(LogLevel::kInfo, "a line"); }).join();
          std::_Exit(0);
        },
        testing::ExitedWithCode(0), "farandole INFO: a line");
  }
}

TEST(Config, NamesTheVariableAndWhatItTakes) {
  for (const char* name : {"FARANDOLE_SPIN_US", "FARANDOLE_STAGING_BYTES", "FARANDOLE_TIMEOUT_S",
                           "FARANDOLE_SEGMENTS", "FARANDOLE_BORN_GRADIENTS", "FARANDOLE_LOG",
                           "FARANDOLE_BACKEND", "FARANDOLE_LINK", "FARANDOLE_DEVICE_BACKEND"}) {
    const Variable variable(name, "banana");
    EXPECT_THAT(raised<InvalidArgument>([] { Config::from_environment(); }),
                AllOf(HasSubstr(name), HasSubstr("banana"), HasSubstr("takes")));
  }
}

TEST(Config, GroupsWorkWithEachBackingAndWithoutSpinning) {
  for (const SegmentBacking backing : {SegmentBacking::kMemfd, SegmentBacking::kTmpfile}) {
    Config config;
    config.segments = backing;
    config.spin = std::chrono::microseconds(0);
    run_process_ranks(2,
                      [](comm::Communicator& group) {
                        for (int i = 0; i < 100; ++i) {
                          double value = 1.0;
                          group.all_reduce(&value, &value, 1, comm::DataType::kFloat64,
                                           comm::ReduceOp::kSum);
                          ASSERT_EQ(value, 2.0);
                        }
                      },
                      {config});
  }
}

TEST(Config, RanksThatDifferTakeTheLayoutOfRankZero) {
  for (const size_t of_rank_zero : {size_t{20480}, size_t{1} << 20}) {
    comm::InProcessStore store;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        comm::CommunicatorOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.config.staging_bytes = rank == 0 ? of_rank_zero : size_t{65536};
        auto group = comm::make_communicator("shm", store, options);
        std::vector<float> data(300000, 1.0F);
        group->all_reduce(data.data(), data.data(), data.size(), comm::DataType::kFloat32,
                          comm::ReduceOp::kSum);
        EXPECT_EQ(data, std::vector<float>(data.size(), 2.0F));
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(Config, AnImpossibleAllocationIsAnErrorOnEveryRankAndTheGroupGoesOn) {
  Config config;
  config.segments = SegmentBacking::kTmpfile;  // reserves its pages at once
  run_process_ranks(2,
                    [](comm::Communicator& group) {
                      const std::string text = raised<SystemError>(
                          [&] { group.shared_memory()->allocate_symmetric(size_t{1} << 40); });
                      EXPECT_THAT(text, AllOf(HasSubstr("why: "), HasSubstr("fix: ")));
                      group.barrier();
                    },
                    {config});
}

}  // namespace
}  // namespace farandole::test
