// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/hooks/top_k_hook.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ddp/hook_ranks.h"
#include "farandole/comm/events.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/error.h"

namespace farandole {
namespace {

using test::bucket_of;
using test::expect_same_bits;
using test::run_hook;
using test::run_hook_ranks;
using ::testing::HasSubstr;

/// Gradients that differ from rank to rank and have to be rounded when they are added up.
at::Tensor fractions(const Group& group, int64_t n, at::ScalarType dtype = at::kFloat) {
  return (at::arange(n, at::kDouble) * (0.37 + group->getRank())).sin().to(dtype);
}

TEST(TopKHook, WithAllElementsHasTheBitsOfAllReduce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int world_size : {1, 2, 3}) {
      run_hook_ranks("farandole", world_size, [&](const Group& group) {
        TopKHook top_k(group, {1.0});
        AllReduceHook all_reduce(group);
        const at::Tensor gradient = fractions(group, 1000, dtype);
        const at::Tensor result = run_hook(top_k, bucket_of(gradient, gradient));
        EXPECT_TRUE(at::equal(result, run_hook(all_reduce, bucket_of(gradient, gradient))));
        expect_same_bits(group, result);
      });
    }
  }
}

TEST(TopKHook, SendsTheLargestOfEachRankInPlace) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    TopKHook hook(group, {0.25});
    const at::Tensor gradient = group->getRank() == 0 ? at::tensor({1.0F, -8.0F, 2.0F, 0.0F})
                                                      : at::tensor({1.0F, -2.0F, 0.0F, 6.0F});
    c10d::GradBucket bucket = bucket_of(gradient, gradient);
    const auto future = hook.runHook(bucket);
    future->waitAndThrow();
    EXPECT_TRUE(hook.parseHookResult(future->value()).is_same(bucket.getBuffer()));
    EXPECT_TRUE(at::equal(bucket.getBuffer(), at::tensor({0.0F, -4.0F, 0.0F, 3.0F})));
  });
}

TEST(TopKHook, SendsOneElementAtLeast) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    TopKHook hook(group, {1e-9});
    const at::Tensor gradient = at::tensor({1.0F, 3.0F, 2.0F});
    EXPECT_TRUE(
        at::equal(run_hook(hook, bucket_of(gradient, gradient)), at::tensor({0.0F, 3.0F, 0.0F})));
  });
}

TEST(TopKHook, SendsValuesAndShortIndices) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    TopKHook hook(group, {0.01});
    const at::Tensor gradient = fractions(group, 10000, at::kBFloat16);
    run_hook(hook, bucket_of(gradient, gradient));
    const std::vector<comm::Event> events = comm::recent_events(2);
    EXPECT_EQ(events[0].bytes, 100 * 2U);
    EXPECT_EQ(events[1].bytes, 100 * 4U);
  });
}

/// What arrives of a constant gradient within `steps`, and what that gradient is on average.
struct Arrived {
  at::Tensor sum;
  at::Tensor truth;
};

Arrived arrived_in(const Group& group, const TopKOptions& options, int steps,
                   at::ScalarType dtype) {
  TopKHook hook(group, options);
  const at::Tensor gradient = fractions(group, 500, dtype);
  at::Tensor truth = gradient.to(at::kDouble);
  all_reduce(truth, {c10d::ReduceOp::AVG, group});
  at::Tensor sum = at::zeros({500}, at::kDouble);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor result = run_hook(hook, bucket_of(gradient, gradient));
    expect_same_bits(group, result);
    sum += result;
  }
  return {sum, truth * steps};
}

TEST(TopKHook, ErrorFeedbackLosesNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    run_hook_ranks("farandole", 2, [&](const Group& group) {
      const Arrived arrived = arrived_in(group, {0.1}, 400, dtype);
      // An element waits until it is the largest: a tenth of them travel, so within some 20 steps.
      EXPECT_LT((arrived.sum - arrived.truth).abs().max().item<double>(), 20.0);
      EXPECT_GT(arrived.truth.abs().max().item<double>(), 100.0);
    });
  }
}

TEST(TopKHook, WithoutErrorFeedbackSmallGradientsNeverArrive) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    const Arrived arrived = arrived_in(group, {0.1, false}, 20, at::kFloat);
    EXPECT_GT((arrived.sum == 0).sum().item<int64_t>(), 500 / 2);
    EXPECT_GT((arrived.sum - arrived.truth).abs().max().item<double>(), 5.0);
  });
}

TEST(TopKHook, SendsNaNAndInfAndForgetsThem) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    TopKHook hook(group, {0.5});
    const float infinity = std::numeric_limits<float>::infinity();
    const at::Tensor overflown = at::tensor({1.0F, infinity, std::nanf(""), 2.0F});
    EXPECT_FALSE(run_hook(hook, bucket_of(overflown, overflown)).isfinite().all().item<bool>());
    const at::Tensor next = run_hook(hook, bucket_of(at::zeros({4}), overflown));
    EXPECT_TRUE(at::equal(next, at::tensor({1.0F, 0.0F, 0.0F, 2.0F})));
  });
}

TEST(TopKHook, BeginsAnewWithAnotherBucket) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    TopKHook hook(group, {0.5});
    run_hook(hook, bucket_of(at::tensor({1.0F, 2.0F}), at::empty({2})));
    EXPECT_TRUE(at::equal(run_hook(hook, bucket_of(at::ones({1}), at::empty({1}))), at::ones({1})));
  });
}

TEST(TopKHook, BeginsAnewWithOtherParametersOfTheSameSizes) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    TopKHook hook(group, {0.5});
    const at::Tensor a = at::empty({1});
    const at::Tensor b = at::empty({1});
    const auto step = [&](const std::vector<at::Tensor>& parameters) {
      const test::HandMadeBucket bucket(0, 1, parameters);
      return run_hook(hook, bucket.with({at::tensor({2.0F}), at::tensor({3.0F})}));
    };
    EXPECT_TRUE(at::equal(step({a, b}), at::tensor({0.0F, 3.0F})));
    EXPECT_TRUE(at::equal(step({b, a}), at::tensor({0.0F, 3.0F})));
    EXPECT_TRUE(at::equal(step({b, a}), at::tensor({4.0F, 0.0F})));
    hook.begin_plan();
    EXPECT_TRUE(at::equal(step({b, a}), at::tensor({0.0F, 3.0F})));
  });
}

TEST(TopKHook, KeepsTheErrorsOfBucketsApart) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    TopKHook hook(group, {0.5});
    const test::HandMadeBucket first(0, 2, {at::empty({2})});
    const test::HandMadeBucket second(1, 2, {at::empty({2})});
    run_hook(hook, first.with({at::tensor({1.0F, 2.0F})}));
    run_hook(hook, second.with({at::tensor({10.0F, 20.0F})}));
    EXPECT_TRUE(at::equal(run_hook(hook, first.with({at::zeros({2})})), at::tensor({1.0F, 0.0F})));
    EXPECT_TRUE(
        at::equal(run_hook(hook, second.with({at::zeros({2})})), at::tensor({10.0F, 0.0F})));
  });
}

TEST(TopKHook, AveragesComplexAndEmptyBuckets) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    TopKHook hook(group, {1.0});
    const at::Tensor imaginary = at::full({3}, static_cast<float>(group->getRank()));
    const at::Tensor gradient = at::complex(at::ones({3}), imaginary);
    EXPECT_TRUE(at::equal(run_hook(hook, bucket_of(gradient, gradient)),
                          at::complex(at::ones({3}), at::full({3}, 0.5F))));
    EXPECT_EQ(run_hook(hook, bucket_of(at::empty({0}), at::empty({0}))).numel(), 0);
  });
}

TEST(TopKHook, TakesARatioUpToOne) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    for (const double ratio : {0.0, -1.0, 1.5, std::nan("")}) {
      const std::string error =
          test::error_of<InvalidArgument>([&] { const TopKHook hook(group, {ratio}); });
      EXPECT_THAT(error, HasSubstr("TopKHook got the ratio "));
    }
  });
}

}  // namespace
}  // namespace farandole
