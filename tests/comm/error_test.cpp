// SPDX-License-Identifier: Apache-2.0
#include "farandole/error.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

namespace farandole {
namespace {

TEST(Error, TellsRanksAndCollectiveWhereTheyAreKnown) {
  try {
    throw PeerFailure("peer-ended", "what.", "why.", "fix.", {{2, 3}, "send"});
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "what.\nwhy: why.\nfix: fix. [peer-ended]");
    EXPECT_EQ(error.ranks(), (std::vector<int>{2, 3}));
    EXPECT_EQ(error.rank(), 2);
    EXPECT_EQ(error.collective(), "send");
  }
}

TEST(Error, TellsNothingWhereTheyAreUnknown) {
  const InvalidArgument error("split-sizes", "what.", "why.", "fix.");
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_FALSE(error.rank().has_value());
  EXPECT_EQ(error.collective(), "");
}

static_assert(std::is_nothrow_copy_constructible_v<PeerFailure>);

}  // namespace
}  // namespace farandole
