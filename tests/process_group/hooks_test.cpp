// SPDX-License-Identifier: Apache-2.0
#include "process_group/hooks.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "farandole/error.h"
#include "farandole/process_group/work.h"
#include "process_group/group_ranks.h"

namespace farandole {
namespace {

using test::run_group_ranks;

TEST(HookTable, CallsItsHooksInTheOrderOfTheirNumbers) {
  HookTable<int> table("test hook");
  std::vector<int> calls;
  EXPECT_TRUE(table.empty());
  table.add(2, [&](int value) { calls.push_back(20 + value); });
  table.add(1, [&](int value) { calls.push_back(10 + value); });
  table.add(3, [](int) { throw std::runtime_error("this is logged"); });
  table.add(4, [&](int value) { calls.push_back(40 + value); });
  table.add(4, [&](int value) { calls.push_back(50 + value); });  // takes its place
  EXPECT_FALSE(table.empty());
  table.call(5);
  EXPECT_EQ(calls, (std::vector<int>{15, 25, 55}));
  for (const int id : {1, 2, 3, 4, 5}) table.remove(id);
  EXPECT_TRUE(table.empty());
  table.call(6);
  EXPECT_EQ(calls.size(), 3u);
}

TEST(HookTable, LetsAHookRemoveItself) {
  HookTable<> table("test hook");
  int calls = 0;
  table.add(1, [&] {
    ++calls;
    table.remove(1);
  });
  table.call();
  table.call();
  EXPECT_EQ(calls, 1);
}

TEST(WorkHook, HasACompletionKeyOfItsOwn) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    std::set<uint64_t> keys;
    for (int i = 0; i < 10; ++i) {
      std::vector<at::Tensor> tensors{at::ones({2})};
      const auto work = group.allreduce(tensors, {});
      work->wait();
      keys.insert(static_cast<WorkFarandole&>(*work).completion_key());
    }
    EXPECT_EQ(keys.size(), 10u);
  });
}

#ifdef C10D_BACKEND_HAS_HOOKS
TEST(CompletionHook, IsToldOfEachSuccessOnceWithItsDuration) {
  run_group_ranks(2, [](ProcessGroupFarandole& group) {
    EXPECT_TRUE(group.supportsCompletionHooks());
    std::mutex mutex;
    std::vector<c10d::CompletionHookArgs> told;  // guarded by mutex
    group.registerCompletionHook(1, [&](const c10d::CompletionHookArgs& args) {
      const std::lock_guard<std::mutex> lock(mutex);
      told.push_back(args);
    });
    std::vector<uint64_t> keys;
    const auto finish = [&](const c10::intrusive_ptr<c10d::Work>& work) {
      work->wait();
      keys.push_back(work->getCompletionKey());
    };
    for (const bool asynchronous : {false, true}) {
      std::vector<at::Tensor> tensors{at::ones({2})};
      c10d::AllreduceOptions options;
      options.asyncOp = asynchronous;
      if (group.getRank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      finish(group.allreduce(tensors, options));
    }
    std::vector<at::Tensor> tensors{at::ones({2})};
    if (group.getRank() == 0) {
      finish(group.send(tensors, 1, 0));
    } else {
      finish(group.recv(tensors, 0, 0));
    }
    std::vector<at::Tensor> wrong{at::ones({2 + group.getRank()})};
    test::error_of<MismatchError>([&] { group.allreduce(wrong, {})->wait(); });
    group.unregisterCompletionHook(1);
    group.allreduce(tensors, {})->wait();

    const std::lock_guard<std::mutex> lock(mutex);
    ASSERT_EQ(told.size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(told[i].completionKey, keys[i]);
      EXPECT_GE(told[i].duration_ms.value_or(-1), 0);
    }
    if (group.getRank() == 1) {
      EXPECT_GE(told[0].duration_ms.value_or(0), 20);  // it waited for rank 0
    }
  });
}
#endif

}  // namespace
}  // namespace farandole
