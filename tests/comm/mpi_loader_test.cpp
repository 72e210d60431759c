// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "farandole/comm/backends.h"
#include "farandole/error.h"
#include "support/raised.h"

namespace farandole::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MpiLoader, SaysHowToGetMpiWhereThePlugInIsMissing) {
  EXPECT_THAT(raised<NotSupported>([] { comm::load_mpi_plugin("/nowhere/libfarandole_mpi.so"); }),
              AllOf(HasSubstr("/nowhere/libfarandole_mpi.so"),
                    HasSubstr("pip install farandole[mpi]"), HasSubstr("mpicxx")));
}

TEST(MpiLoader, RefusesOtherLibraries) {
  EXPECT_THAT(raised<NotSupported>([] { comm::load_mpi_plugin("libdl.so.2"); }),
              HasSubstr("is no plug-in of Farandole"));
}

TEST(MpiLoader, IsNoBackendUnlessTold) {
  EXPECT_EQ(comm::backend_for(comm::MemoryKind::kHost), "tcp");
  EXPECT_EQ(comm::backend_for(comm::MemoryKind::kHost, BackendChoice::kMpi), "mpi");
}

}  // namespace
}  // namespace farandole::test
