// SPDX-License-Identifier: Apache-2.0
#include "process_group/argument_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "farandole/error.h"
#include "process_group/group_ranks.h"

namespace farandole::test {
namespace {

using comm::CollectiveOptions;
using comm::DataType;
using comm::ReduceOp;
using ::testing::HasSubstr;

/// A group of one rank whose memory nobody else could map.
class DistantCommunicator final : public comm::Communicator {
 public:
  DistantCommunicator() : Communicator("far", {}) {}
  comm::MemoryKind memory_kind() const override { return comm::MemoryKind::kHost; }
  void all_reduce(const void*, void*, size_t, DataType, ReduceOp,
                  const CollectiveOptions&) override {}
  void reduce_scatter(const void*, void*, size_t, DataType, ReduceOp,
                      const CollectiveOptions&) override {}
  void all_gather(const void*, void*, size_t, DataType, const CollectiveOptions&) override {}
  void broadcast(void*, size_t, DataType, int, const CollectiveOptions&) override {}
  void reduce(const void*, void*, size_t, DataType, ReduceOp, int,
              const CollectiveOptions&) override {}
  void gather(const void*, void*, size_t, DataType, int, const CollectiveOptions&) override {}
  void scatter(const void*, void*, size_t, DataType, int, const CollectiveOptions&) override {}
  void all_to_all(const void*, void*, size_t, DataType, const CollectiveOptions&) override {}
  void all_to_all_v(const void*, const size_t*, void*, const size_t*, DataType,
                    const CollectiveOptions&) override {}
  void barrier(const CollectiveOptions&) override {}
  std::shared_ptr<comm::Transfer> send(const void*, size_t, int, uint64_t,
                                       const CollectiveOptions&) override {
    return nullptr;
  }
  std::shared_ptr<comm::Transfer> receive(void*, size_t, int, uint64_t,
                                          const CollectiveOptions&) override {
    return nullptr;
  }
  void check_usable() const override {}
  void abort(const std::string&) override {}
  void set_timeout(std::chrono::milliseconds) override {}
  std::unique_ptr<Communicator> shrink(const std::vector<int>&, comm::Store&) override {
    return nullptr;
  }
};

TEST(ArgumentChecks, RefuseSharedMemoryWhereRanksShareNone) {
  DistantCommunicator distant;
  EXPECT_EQ(distant.shared_memory(), nullptr);
  const std::string group = "far";
  const Caller by{"symmetric_empty", group, 0, 1};
  EXPECT_THAT(error_of<NotSupported>([&] { shared_memory_of(by, distant); }),
              HasSubstr("symmetric_empty in group 'far' on rank 0 of 1 needs memory"));
}

TEST(ArgumentChecks, FindTheMemoryThatRanksShare) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    const auto communicator = group.communicator(c10::DeviceType::CPU);
    const Caller by{"symmetric_empty", group.name(), group.getRank(), group.getSize()};
    EXPECT_EQ(&shared_memory_of(by, *communicator), communicator->shared_memory());
    EXPECT_EQ(group.communicator(c10::DeviceType::CUDA), nullptr);
  });
}

}  // namespace
}  // namespace farandole::test
