// SPDX-License-Identifier: Apache-2.0
// Groups on accelerators where no thread can start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "farandole/error.h"
#include "simulated_groups/device_ranks.h"
#include "support/no_more_threads.h"

namespace farandole::sim {
namespace {

using test::full;
using Tensors = std::vector<at::Tensor>;

class DevicesWithoutThreads : public test::DeviceGroups {};
INSTANTIATE_TEST_SUITE_P(, DevicesWithoutThreads, test::kOnlyStaged,
                         ::testing::PrintToStringParamName());

/// The thread is the process's, so in a process that has it already the group works.
TEST_P(DevicesWithoutThreads, GiveATypedErrorOnAllRanks) {
  std::unique_ptr<test::NoMoreThreads> limit;
  std::atomic<int> done{0};
  std::promise<void> lifted;
  const std::shared_future<void> is_lifted = lifted.get_future().share();
  test::run_device_ranks(2, [&](ProcessGroupFarandole& group) {
    Tensors tensors{full(group, {2}, 1)};
    const auto host = group.communicator(c10::DeviceType::CPU);
    host->barrier();
    if (group.getRank() == 0) limit = std::make_unique<test::NoMoreThreads>();
    host->barrier();
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    try {
      group.allreduce(tensors, options);
    } catch (const SystemError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("starting a thread for"));
    } catch (const AbortedError& error) {  // told by the other rank
      EXPECT_THAT(error.what(), testing::HasSubstr("could not use"));
    }
    if (++done == 2) {
      limit.reset();
      lifted.set_value();
    }
    is_lifted.wait();  // the simulator may need a thread when tensors end
  });
}

}  // namespace
}  // namespace farandole::sim
