// SPDX-License-Identifier: Apache-2.0
#include "ddp/rank_reports.h"

#include <gtest/gtest.h>

#include "ddp/replica_ranks.h"

namespace farandole::test {
namespace {

struct Number {
  uint64_t value;
};
constexpr size_t kDetails = 1000;
constexpr size_t kOthers = 3;

class RankReportsOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, RankReportsOver, testing::Values("farandole", "foreign"));

/// Each rank reports its number, three bytes of its own, and details.
void exchange_details(const Group& group, RankReports<Number>& reports, bool in_order,
                      const std::function<uint8_t(int rank, size_t index)>& detail) {
  std::byte* const tail = reports.write({static_cast<uint64_t>(group->getRank())});
  for (size_t i = 0; i < kOthers; ++i) tail[i] = std::byte(group->getRank());
  for (size_t i = 0; i < kDetails; ++i) {
    tail[kOthers + i] = std::byte{detail(group->getRank(), i)};
  }
  in_order ? reports.exchange_in_order() : reports.exchange();
  for (int rank = 0; rank < group->getSize(); ++rank) {
    EXPECT_EQ(reports.head(rank).value, static_cast<uint64_t>(rank));
    EXPECT_EQ(reports.tail(rank)[kOthers - 1], std::byte(rank));
    for (size_t i = 0; i < kDetails; ++i) {
      ASSERT_EQ(reports.tail(rank)[kOthers + i], std::byte{detail(rank, i)}) << rank << ' ' << i;
    }
  }
}

TEST_P(RankReportsOver, BringsDetailsThatAreEqualAndThatDiffer) {
  run_replicas(GetParam(), 3, [](const Group& group) {
    const ReplicaGroup replicas(group);
    RankReports<Number> reports(replicas, kOthers + kDetails, kDetails);
    for (const bool in_order : {true, false}) {
      exchange_details(group, reports, in_order, [](int, size_t i) { return uint8_t(i); });
      exchange_details(group, reports, in_order,
                       [](int rank, size_t i) { return uint8_t(i == 999 && rank == 1); });
      exchange_details(group, reports, in_order,
                       [](int rank, size_t i) { return uint8_t(i + size_t(rank)); });
    }
  });
}

TEST(RankReports, SendsEqualDetailsAsAFingerprint) {
  run_replicas("foreign", 2, [](const Group& group) {
    auto* const backend =
        dynamic_cast<ForeignBackend*>(group->getBackend(c10::DeviceType::CPU).get());
    const ReplicaGroup replicas(group);
    RankReports<Number> reports(replicas, kOthers + kDetails, kDetails);
    backend->gathered_bytes();
    exchange_details(group, reports, true, [](int, size_t) { return uint8_t{2}; });
    EXPECT_EQ(backend->gathered_bytes(), 8 + 3 + 16);
    exchange_details(group, reports, true, [](int rank, size_t) { return uint8_t(rank); });
    EXPECT_EQ(backend->gathered_bytes(), 8 + 3 + 16 + 1000);
  });
}

}  // namespace
}  // namespace farandole::test
