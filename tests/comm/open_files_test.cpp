// SPDX-License-Identifier: Apache-2.0
#include "comm/open_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <limits>

namespace farandole::comm {
namespace {

using testing::HasSubstr;

TEST(OpenFiles, AreCounted) {
  const auto before = open_files();
  ASSERT_TRUE(before);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto after = open_files();
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->open, before->open + 2);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(after->most, limit.rlim_cur);
}

TEST(OpenFiles, AreMentionedWhenFewMoreGroupsFit) {
  EXPECT_EQ(text_of_few_left("g", 7, {800, 1024}), "");
  EXPECT_EQ(text_of_few_left("g", 0, {1020, 1024}), "");
  EXPECT_EQ(text_of_few_left("g", 7, {5000, std::numeric_limits<size_t>::max()}), "");
  const std::string text = text_of_few_left("g", 7, {954, 1024});
  EXPECT_THAT(text, HasSubstr("group 'g' took 7 descriptors"));
  EXPECT_THAT(text, HasSubstr("954 of at most 1024 open: about 10 more groups like it fit"));
  EXPECT_THAT(text, HasSubstr("(ulimit -n)"));
  EXPECT_THAT(text_of_few_left("of many hosts", 200, {300, 1024}), HasSubstr("about 3 more"));
  EXPECT_THAT(text_of_few_left("g", 7, {1030, 1024}), HasSubstr("about 0 more"));
}

}  // namespace
}  // namespace farandole::comm
