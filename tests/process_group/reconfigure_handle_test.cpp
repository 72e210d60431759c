// SPDX-License-Identifier: Apache-2.0
#include "process_group/reconfigure_handle.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "farandole/error.h"
#include "process_group/group_ranks.h"

namespace farandole {
namespace {

using test::error_of;
using Handles = std::vector<std::string>;

TEST(ReconfigureHandles, AreNumberedByRankWithNewOnesLast) {
  EXPECT_EQ(in_rank_order({"farandole:0:new:7", "farandole:10:first:1", "farandole:2:first:9",
                           "farandole:1:new:3", "farandole:0:new:5"}),
            (Handles{"farandole:2:first:9", "farandole:10:first:1", "farandole:0:new:5",
                     "farandole:0:new:7", "farandole:1:new:3"}));
}

TEST(ReconfigureHandles, AreThoseOfThisBackendAndDiffer) {
  check_handles({"farandole:0:first:1", "farandole:0:-5:1", "farandole:0:first:2"});
  for (const char* text : {"", "farandole:", "farandole:1:first", "gloo:0:1:2:", "farandole:01:a:b",
                           "farandole:1x:a:b", "farandole::a:b", " farandole:1:a:b"}) {
    error_of<InvalidArgument>([&] { check_handles({text}); });
  }
  error_of<InvalidArgument>([] { check_handles({}); });
  error_of<InvalidArgument>([] { check_handles({"farandole:0:a:b", "farandole:0:a:b"}); });
}

}  // namespace
}  // namespace farandole
