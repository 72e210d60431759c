// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "farandole/error.h"
#include "process_group/group_ranks.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;

WorkFarandole::Description description() {
  return {1, c10d::OpType::ALLREDUCE, "all_reduce", "default", {at::ones({2})}};
}

c10::intrusive_ptr<WorkFarandole> pending(const WorkFarandole::Abort& abort =
                                              [](const std::string&) {}) {
  return c10::make_intrusive<WorkFarandole>(description(), abort, nullptr);
}

const std::exception_ptr kFailure = std::make_exception_ptr(
    PeerFailure("peer-ended", "rank 2 is gone.", "it died.", "start it again."));

TEST(Work, IsDoneFromTheStartWhenTheCollectiveRanInline) {
  WorkFarandole work(description(), 7);
  EXPECT_TRUE(work.isCompleted());
  EXPECT_TRUE(work.isSuccess());
  EXPECT_TRUE(work.wait());
  EXPECT_EQ(work.getSequencenumber(), 7u);
  EXPECT_EQ(work.result().size(), 1u);
  EXPECT_TRUE(work.getFuture()->completed());
  EXPECT_EQ(work.getFuture().get(), work.getFuture().get());
}

TEST(Work, WaitsUntilItIsCompleted) {
  const auto work = pending();
  EXPECT_FALSE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  std::thread finisher([&] {
    std::this_thread::sleep_for(milliseconds(20));
    work->complete(nullptr);
  });
  EXPECT_TRUE(work->wait());
  EXPECT_TRUE(work->isSuccess());
  finisher.join();
}

TEST(Work, StaysValidAfterAWaitThatTimedOut) {
  const auto work = pending();
  const std::string text = test::error_of<TimeoutError>([&] { work->wait(milliseconds(10)); });
  EXPECT_NE(text.find("all_reduce in group 'default' on rank 1 reached its timeout of 10 ms"),
            std::string::npos)
      << text;
  work->complete(nullptr);
  EXPECT_TRUE(work->wait(milliseconds(10)));
}

TEST(Work, RethrowsWhatWentWrongWithItsType) {
  const auto work = pending();
  work->complete(kFailure);
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  EXPECT_TRUE(work->exception());
  EXPECT_THROW(work->wait(), PeerFailure);
}

TEST(Work, FulfilsItsFutureOnceWhenItIsDone) {
  const auto work = pending();
  const auto future = work->getFuture();
  int calls = 0;
  future->addCallback([&](c10::ivalue::Future& done) {
    ++calls;
    EXPECT_EQ(done.value().toTensorVector().size(), 1u);
  });
  EXPECT_FALSE(future->completed());
  work->complete(nullptr);
  EXPECT_TRUE(future->completed());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(work->getFuture().get(), future.get());
}

TEST(Work, PassesItsErrorToTheFuture) {
  const auto work = pending();
  const auto early = work->getFuture();
  work->complete(kFailure);
  EXPECT_TRUE(early->hasError());
  EXPECT_THROW(early->waitAndThrow(), PeerFailure);
}

TEST(Work, AbortsItsGroupOnlyWhileItIsPending) {
  int aborts = 0;
  std::string told;
  const auto work = pending([&](const std::string& reason) {
    ++aborts;
    told = reason;
  });
  work->abort();
  EXPECT_EQ(aborts, 1);
  EXPECT_EQ(told, "abort() was called on a Work");
  work->complete(nullptr);
  work->abort();
  EXPECT_EQ(aborts, 1);
}

}  // namespace
}  // namespace farandole
