// SPDX-License-Identifier: Apache-2.0
#include "profile/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/format/json.h"
#include "farandole/comm/event_stream.h"
#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/error.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "farandole/profile/annotation.h"
#include "optim/bowl.h"
#include "support/no_more_threads.h"
#include "support/raised.h"

namespace farandole::profiler {
namespace {

using checkpoint::Json;

class ProfileRecorder : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "farandole-profile-" + test->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(folder_);
  }

  RecorderOptions options() const {
    RecorderOptions options;
    options.folder = folder_;
    return options;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    return found;
  }
  /// What has been written so far.
  std::string written() const {
    std::ostringstream text;
    for (const std::string& path : files()) text << std::ifstream(path).rdbuf();
    return text.str();
  }
  /// Waits for the thread that writes, which may be late on a busy machine.
  static void wait_until(const std::function<bool()>& is_so) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_so() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  /// Of all files, by "cat/name": how many lines there are.
  std::map<std::string, int> counts() const {
    std::map<std::string, int> counts;
    for (const std::string& path : files()) {
      std::ostringstream text;
      text << std::ifstream(path).rdbuf();
      const Json all = Json::parse(text.str());
      for (const Json& line : all.array()) {
        std::string category;
        std::string name;
        for (const auto& [key, value] : line.object()) {
          if (key == "cat") category = value.string() + "/";
          if (key == "name") name = value.string();
        }
        if (!name.empty()) ++counts[category + name];
      }
    }
    return counts;
  }

  std::string folder_;
};

TEST_F(ProfileRecorder, WritesWhatATrainingDoes) {
  start(options());
  EXPECT_TRUE(is_recording());
  start(options());  // again is nothing
  test::run_replicas("shm", 2, [&](const Group& group) {
    DistributedDataParallel<test::Bowl> model(test::bowl(), group);
    ZeroRedundancyOptimizer optimizer(model, torch::optim::SGDOptions(0.1));
    for (int i = 0; i < 3; ++i) {
      const Annotation annotation("my phase");
      optimizer.zero_grad();
      model.forward(group->getRank(), i).backward();
      optimizer.step();
    }
  });
  stop();
  EXPECT_FALSE(is_recording());
  const auto seen = counts();
  EXPECT_EQ(seen.at("process_name"), 1);
  EXPECT_EQ(seen.at("annotation/my phase"), 6);
  EXPECT_EQ(seen.at("forward/forward"), 6);
  EXPECT_EQ(seen.at("backward/backward"), 6);
  EXPECT_EQ(seen.at("communication/exposed_communication"), 6);
  EXPECT_GE(seen.at("bucket/bucket 0"), 6);
  EXPECT_EQ(seen.at("optimizer/sharded_step"), 6);
  EXPECT_EQ(seen.at("step/step"), 6);
  EXPECT_EQ(seen.count("lost"), 0U);
}

TEST_F(ProfileRecorder, RecordsNothingWhereItsThreadCannotStart) {
  std::filesystem::create_directories(folder_);
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  {
    const test::NoMoreThreads limit;
    EXPECT_THAT(test::raised<SystemError>([&] { start(options()); }),
                testing::HasSubstr("starting a thread for the recorder failed"));
    EXPECT_FALSE(is_recording());
  }
  start(options());
  EXPECT_TRUE(is_recording());
}

TEST_F(ProfileRecorder, LetsAProgramEndItsSteps) {
  start(options());
  for (int i = 0; i < 4; ++i) {
    {
      const Annotation optimizer("Optimizer.step#SGD.step");  // as torch names it
      const Annotation inner("Optimizer.step#AdamW.step");
    }
    if (i > 1) step(i == 2 ? "TRAIN" : "EVAL");
  }
  stop();
  EXPECT_EQ(counts().at("step/step"), 5) << "the optimizers' of the first three, and its own two";
  EXPECT_EQ(counts().at("optimizer/optimizer_step"), 8);
}

TEST_F(ProfileRecorder, BeginsANewFileWhenOneIsLarge) {
  RecorderOptions small = options();
  small.max_file_bytes = 2000;
  start(small);
  for (size_t i = 1; i <= 4; ++i) {
    for (int j = 0; j < 30; ++j) const Annotation annotation("phase");
    wait_until([&] { return files().size() > i; });
  }
  stop();
  EXPECT_GE(files().size(), 3U);
  EXPECT_EQ(counts().at("annotation/phase"), 120);
  EXPECT_EQ(counts().at("process_name"), static_cast<int>(files().size()));
}

TEST_F(ProfileRecorder, SaysAtOnceThatAFolderCannotBeWritten) {
  std::ofstream(folder_) << "a file";
  EXPECT_THROW(start(options()), SystemError);
  EXPECT_FALSE(is_recording());
  EXPECT_FALSE(comm::is_streaming());
}

TEST_F(ProfileRecorder, BelongsToTheProcessThatStartedIt) {
#if defined(FARANDOLE_SANITIZED_THREAD)
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a forked child";
#endif
#if defined(FARANDOLE_SANITIZED_ADDRESS)
  GTEST_SKIP() << "AddressSanitizer's allocator may be locked in a forked child";
#endif
  start(options());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_off = !is_recording();
    stop();
    RecorderOptions own = options();
    own.folder += "-child";
    start(own);  // it may have one of its own
    const bool is_on = is_recording();
    { const Annotation annotation("of the child"); }
    stop();
    ::_exit(is_off && is_on ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  { const Annotation annotation("of the parent"); }
  stop();
  EXPECT_EQ(counts().count("annotation/of the child"), 0U);
  EXPECT_EQ(counts().at("annotation/of the parent"), 1);
  folder_ += "-child";
  EXPECT_EQ(counts().at("annotation/of the child"), 1);
}

TEST_F(ProfileRecorder, LeavesWhatAKilledProcessHadWritten) {
  const pid_t child = ::fork();
  if (child == 0) {
    start(options());
    { const Annotation annotation("phase"); }
    wait_until([&] { return written().find("\"phase\"") != std::string::npos; });
    ::raise(SIGKILL);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(files().size(), 1U);
  EXPECT_THAT(files()[0], testing::EndsWith(".json.tmp"));
  EXPECT_THAT(written(), testing::HasSubstr("\"phase\""));
}

}  // namespace
}  // namespace farandole::profiler
