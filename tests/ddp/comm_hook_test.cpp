// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/comm_hook.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "ddp/hook_ranks.h"
#include "farandole/comm/events.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/ddp/hooks/compress_hook.h"
#include "farandole/error.h"

namespace farandole {
namespace {

using test::bucket_of;
using test::run_hook;
using test::run_hook_ranks;
using ::testing::HasSubstr;

/// Numbers 1 + rank, 2 + rank, ... modulo a few, so that sums are exact in half types.
at::Tensor numbers(const Group& group, int64_t n, at::ScalarType dtype = at::kFloat) {
  return at::arange(n, at::kLong).add_(1 + group->getRank()).remainder_(13).to(dtype);
}

/// The mean of numbers() over the ranks, computed in float64.
at::Tensor mean_of_numbers(const Group& group, int64_t n) {
  at::Tensor sum = at::zeros({n}, at::kDouble);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    sum += at::arange(n, at::kLong).add_(1 + rank).remainder_(13);
  }
  return sum / group->getSize();
}

TEST(CommHook, ResultIsATensorOrTheFirstOfAList) {
  class Nothing : public CommHook {
    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket&) override { return {}; }
  } hook;
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(hook.parseHookResult(tensor).is_same(tensor));
  EXPECT_TRUE(hook.parseHookResult(std::vector<at::Tensor>{tensor}).is_same(tensor));
}

// --- AllReduceHook

TEST(AllReduceHook, MakesTheMeanInPlace) {
  for (const char* backend : {"farandole", "summing"}) {
    for (const int world_size : {1, 2}) {
      run_hook_ranks(backend, world_size, [](const Group& group) {
        AllReduceHook hook(group);
        c10d::GradBucket bucket = bucket_of(numbers(group, 100), at::empty({100}));
        const auto future = hook.runHook(bucket);
        future->waitAndThrow();
        EXPECT_TRUE(hook.parseHookResult(future->value()).is_same(bucket.getBuffer()));
        EXPECT_TRUE(at::equal(bucket.getBuffer().to(at::kDouble), mean_of_numbers(group, 100)));
      });
    }
  }
}

TEST(AllReduceHook, ReturnsBeforePeersHaveCome) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    AllReduceHook hook(group);
    c10d::GradBucket bucket = bucket_of(numbers(group, 100), at::empty({100}));
    std::vector<at::Tensor> word{at::zeros({1})};
    if (group->getRank() == 1) group->recv(word, 0, 0)->wait();
    const auto future = hook.runHook(bucket);  // rank 1's begins when rank 0's has returned
    if (group->getRank() == 0) group->send(word, 1, 0)->wait();
    future->waitAndThrow();
  });
}

TEST(AllReduceHook, TellsWhatWentWrong) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    if (group->getRank() == 1) return;
    AllReduceHook hook(group);
    EXPECT_ANY_THROW(run_hook(hook, bucket_of(at::ones({3}), at::ones({3}))));
  });
}

// --- CompressHook

TEST(CompressHook, IsExactWhereTheHalfTypeIs) {
  for (const char* backend : {"farandole", "summing"}) {
    for (const at::ScalarType wire : {at::kBFloat16, at::kHalf}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        run_hook_ranks(backend, 2, [&](const Group& group) {
          CompressHook hook(group, {wire});
          const at::Tensor gradient = numbers(group, 1000, dtype);
          for (int step = 0; step < 2; ++step) {
            const at::Tensor result = run_hook(hook, bucket_of(gradient, gradient));
            EXPECT_EQ(result.scalar_type(), dtype);
            EXPECT_TRUE(at::equal(result.to(at::kDouble), mean_of_numbers(group, 1000)));
          }
        });
      }
    }
  }
}

TEST(CompressHook, AddsUpInFloat32AndRoundsTheMeanOnce) {
  run_hook_ranks("farandole", 3, [](const Group& group) {
    CompressHook hook(group);
    const std::vector<float> of_ranks = {1, 256, 1};  // 257 is no bfloat16, 258 is
    const at::Tensor gradient = at::full({5}, of_ranks[static_cast<size_t>(group->getRank())]);
    EXPECT_TRUE(at::equal(run_hook(hook, bucket_of(gradient, gradient)), at::full({5}, 86.0F)));
  });
}

TEST(CompressHook, SendsHalfTheBytes) {
  const auto bytes_sent = [](c10d::CommHookInterface& hook, int64_t n) {
    run_hook(hook, bucket_of(at::ones({n}), at::ones({n})));
    return comm::recent_events(1).back().bytes;
  };
  run_hook_ranks("farandole", 1, [&](const Group& group) {
    AllReduceHook whole(group);
    CompressHook half(group);
    EXPECT_EQ(bytes_sent(whole, 1000), 4000U);
    EXPECT_EQ(bytes_sent(half, 1000), 2000U);
    EXPECT_EQ(bytes_sent(half, 3000), 6000U);  // the bucket has changed
  });
}

TEST(CompressHook, LeavesOtherDtypesAsTheyAre) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    CompressHook hook(group);
    const at::Tensor half = numbers(group, 10, at::kHalf) + 0.25;  // would lose bits as bfloat16
    EXPECT_TRUE(at::equal(run_hook(hook, bucket_of(half, half)).to(at::kDouble),
                          mean_of_numbers(group, 10) + 0.25));
    const at::Tensor numbers_on_both = at::complex(at::ones({3}), at::full({3}, 2.0F));
    EXPECT_TRUE(
        at::equal(run_hook(hook, bucket_of(numbers_on_both, numbers_on_both)), numbers_on_both));
  });
}

TEST(CompressHook, OverflowBecomesInf) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    CompressHook hook(group, {at::kHalf});
    const at::Tensor large = at::full({3}, 1e6F);
    EXPECT_TRUE(run_hook(hook, bucket_of(large, large)).isinf().all().item<bool>());
  });
}

/// Half types are added up in it, on any backend.
TEST(CompressHook, TakesHalfTypesAsFloat32) {
  for (const char* backend : {"farandole", "summing"}) {
    run_hook_ranks(backend, 2, [](const Group& group) {
      CompressHook hook(group, {at::kFloat});
      const auto mean_of = [&](at::ScalarType dtype, double first, double second) {
        const at::Tensor own = at::full({5}, group->getRank() == 0 ? first : second, dtype);
        const at::Tensor mean = run_hook(hook, bucket_of(own, own));
        EXPECT_EQ(mean.scalar_type(), dtype);
        return mean[4].item<double>();
      };
      EXPECT_EQ(mean_of(at::kHalf, 65504, 65504), 65504);  // whose sum is no float16
      EXPECT_EQ(mean_of(at::kBFloat16, 3, 4), 3.5);
      EXPECT_EQ(mean_of(at::kFloat, 3, 4), 3.5);
      EXPECT_EQ(mean_of(at::kDouble, 1 + 1e-12, 1), 1);  // rounded on its way
      const auto bytes = static_cast<int64_t>(comm::recent_events(1).back().bytes);
      EXPECT_EQ(bytes, 5 * 4);
    });
  }
}

TEST(CompressHook, TakesFloatingPointTypesOnly) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    const std::string error =
        test::error_of<InvalidArgument>([&] { const CompressHook hook(group, {at::kLong}); });
    EXPECT_THAT(error, HasSubstr("CompressHook got the dtype Long."));
  });
}

}  // namespace
}  // namespace farandole
