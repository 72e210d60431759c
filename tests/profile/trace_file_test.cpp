// SPDX-License-Identifier: Apache-2.0
#include "profile/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "checkpoint/format/json.h"
#include "farandole/error.h"

namespace farandole::profiler {
namespace {

constexpr int64_t kFivePastNoon = 1'795'694'700'000'000'000;  // 2026-11-26 12:05 UTC

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class TraceFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "farandole-trace-" + test->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(TraceFiles, AreArraysInTheFolderOfTheHourOfTheirEnd) {
  const std::string begun = folder_ + "/2026112612/1795694700000000_7-algo-1_x.json.tmp";
  TraceFile file(folder_, "7-algo-1_x", kFivePastNoon, "{\"a\":1},\n");
  EXPECT_EQ(text_of(begun), "[\n{\"a\":1}");
  file.append("{\"b\":2},\n");
  file.append("");
  EXPECT_EQ(text_of(begun), "[\n{\"a\":1},\n{\"b\":2}") << "each line is there at once";
  EXPECT_EQ(file.bytes(), 18);
  file.close(kFivePastNoon + 3'600'000'000'000);
  EXPECT_FALSE(std::filesystem::exists(begun));
  const std::string ended = folder_ + "/2026112613/1795698300000000_7-algo-1_x.json";
  EXPECT_EQ(checkpoint::Json::parse(text_of(ended)).array().size(), 2U);
}

TEST_F(TraceFiles, SayWhatCouldNotBeWritten) {
  std::ofstream(folder_) << "a file";
  try {
    TraceFile file(folder_ + "/below", "x", kFivePastNoon, "");
    ADD_FAILURE() << "made a folder below a file";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("could not be made"));
    EXPECT_THAT(error.what(), testing::HasSubstr("[profile-file]"));
  }
}

}  // namespace
}  // namespace farandole::profiler
