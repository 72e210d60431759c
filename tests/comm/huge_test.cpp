// SPDX-License-Identifier: Apache-2.0
// Counts and bytes that do not fit into 32 bits. They take 5 GiB and run with FARANDOLE_TEST_ALL.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "farandole/comm/communicator.h"
#include "support/pattern.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;

constexpr DataType kDtype = DataType::kUInt8;
constexpr size_t kCount = (size_t{1} << 31) + 77;
constexpr size_t kBlock = kCount / 2 + 1;  ///< of which two ranks hold more than kCount

/// One large buffer a rank, which operations work on in place.
void run_in_place(const std::function<void(Communicator&, std::vector<unsigned char>&)>& body) {
  if (!whole_matrix()) GTEST_SKIP() << "5 GiB; make test-all sets FARANDOLE_TEST_ALL";
  run_thread_ranks(2, [&](Communicator& group) {
    std::vector<unsigned char> data(2 * kBlock);
    body(group, data);
  });
}

void expect_equal(const std::vector<unsigned char>& data, const Pattern& pattern, size_t at,
                  size_t offset, size_t count) {
  EXPECT_EQ(pattern.first_difference(data.data() + at, offset, count), count);
}

TEST(Huge, AllReduce) {
  run_in_place([](Communicator& group, std::vector<unsigned char>& data) {
    Pattern::of_rank(group.rank(), kDtype).write(data.data(), 0, kCount);
    group.all_reduce(data.data(), data.data(), kCount, kDtype, ReduceOp::kSum);
    expect_equal(data, Pattern::of_reduction(2, kDtype, ReduceOp::kSum), 0, 0, kCount);
  });
}

TEST(Huge, Broadcast) {
  run_in_place([](Communicator& group, std::vector<unsigned char>& data) {
    Pattern::of_rank(group.rank(), kDtype).write(data.data(), 0, kCount);
    group.broadcast(data.data(), kCount, kDtype, 1);
    expect_equal(data, Pattern::of_rank(1, kDtype), 0, 0, kCount);
  });
}

TEST(Huge, ReduceScatterAndAllGather) {
  run_in_place([](Communicator& group, std::vector<unsigned char>& data) {
    Pattern::of_rank(group.rank(), kDtype).write(data.data(), 0, 2 * kBlock);
    unsigned char* own = data.data() + static_cast<size_t>(group.rank()) * kBlock;
    group.reduce_scatter(data.data(), own, kBlock, kDtype, ReduceOp::kSum);
    group.all_gather(own, data.data(), kBlock, kDtype);
    expect_equal(data, Pattern::of_reduction(2, kDtype, ReduceOp::kSum), 0, 0, 2 * kBlock);
  });
}

TEST(Huge, SendAndReceive) {
  run_in_place([](Communicator& group, std::vector<unsigned char>& data) {
    if (group.rank() == 0) {
      Pattern::of_rank(0, kDtype).write(data.data(), 0, kCount);
      group.send(data.data(), kCount, 1, 0)->wait({});
    } else {
      group.receive(data.data(), kCount, 0, 0)->wait({});
      expect_equal(data, Pattern::of_rank(0, kDtype), 0, 0, kCount);
    }
  });
}

}  // namespace
}  // namespace farandole::test
