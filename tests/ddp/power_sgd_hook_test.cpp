// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/hooks/power_sgd_hook.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
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
using test::HandMadeBucket;
using test::run_hook;
using test::run_hook_ranks;
using ::testing::HasSubstr;

/// Options that compress from the first step on.
PowerSgdOptions at_once(int64_t rank = 1) {
  PowerSgdOptions options;
  options.matrix_approximation_rank = rank;
  options.start_iter = 0;
  return options;
}

at::Tensor wave(int64_t n, double frequency) {
  return (at::arange(n, at::kDouble) * frequency).sin().to(at::kFloat);
}

/// A matrix of rank 1 that differs from rank to rank, all with the same row space.
at::Tensor rank_one(const Group& group) {
  return at::outer(wave(40, 0.3 + group->getRank()), wave(30, 0.7));
}

/// A matrix of full rank whose singular values fall slowly.
at::Tensor full_rank(const Group& group, int64_t rows = 24, int64_t columns = 20) {
  return wave(rows * columns, 0.123 + group->getRank()).view({rows, columns});
}

at::Tensor mean_of(const Group& group, const at::Tensor& gradient) {
  at::Tensor mean = gradient.to(at::kDouble);
  all_reduce(mean, {c10d::ReduceOp::SUM, group});
  return mean.view({-1}) / group->getSize();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble).view({-1}) - b.view({-1})).abs().max().item<double>();
}

/// `hook` makes the mean of all ranks' of `gradient`, which differs from rank to rank.
void expect_mean(PowerSgdHook& hook, const Group& group, const at::Tensor& gradient) {
  const at::Tensor result = run_hook(hook, bucket_of(gradient, gradient));
  EXPECT_LT(largest_difference(result, mean_of(group, gradient)), 1e-5);
}

// --- Approximation

TEST(PowerSgdHook, ReproducesAMatrixOfRankOne) {
  for (const char* backend : {"farandole", "summing"}) {
    for (const int world_size : {1, 2, 3}) {
      run_hook_ranks(backend, world_size, [](const Group& group) {
        PowerSgdHook hook(group, at_once());
        const at::Tensor gradient = rank_one(group);
        for (int step = 0; step < 3; ++step) {
          c10d::GradBucket bucket = bucket_of(gradient, gradient);
          const auto future = hook.runHook(bucket);
          future->waitAndThrow();
          EXPECT_TRUE(hook.parseHookResult(future->value()).is_same(bucket.getBuffer()));
          EXPECT_LT(largest_difference(bucket.getBuffer(), mean_of(group, gradient)), 1e-5);
        }
      });
    }
  }
}

TEST(PowerSgdHook, MoreColumnsThanTheMatrixHasDoNoHarm) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdHook hook(group, at_once(4));
    const at::Tensor gradient = rank_one(group);
    for (int step = 0; step < 5; ++step) {
      const at::Tensor result = run_hook(hook, bucket_of(gradient, gradient));
      EXPECT_LT(largest_difference(result, mean_of(group, gradient)), 1e-5);
    }
  });
}

TEST(PowerSgdHook, IsTheSameOnAllRanks) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t rank : {1, 3}) {
      run_hook_ranks("farandole", 3, [&](const Group& group) {
        PowerSgdHook hook(group, at_once(rank));
        const at::Tensor gradient = full_rank(group, 60, 50).to(dtype);
        for (int step = 0; step < 4; ++step) {
          const at::Tensor result = run_hook(hook, bucket_of(gradient, gradient));
          EXPECT_EQ(result.scalar_type(), dtype);
          expect_same_bits(group, result);
        }
      });
    }
  }
}

TEST(PowerSgdHook, ErrorFeedbackMakesTheSumOfManyStepsTrue) {
  for (const bool warm_start : {true, false}) {
    run_hook_ranks("farandole", 2, [&](const Group& group) {
      PowerSgdOptions options = at_once();
      options.warm_start = warm_start;
      PowerSgdHook hook(group, options);
      const at::Tensor gradient = full_rank(group);
      const at::Tensor mean = mean_of(group, gradient);
      at::Tensor sum = at::zeros_like(mean);
      std::vector<double> error;
      for (int step = 1; step <= 400; ++step) {
        sum += run_hook(hook, bucket_of(gradient, gradient));
        if (step == 1 || step == 100 || step == 400) {
          error.push_back((sum / step - mean).norm().item<double>() / mean.norm().item<double>());
        }
      }
      EXPECT_GT(error[0], 0.5);  // one column of a matrix of full rank
      EXPECT_LT(error[1], 0.25);
      EXPECT_LT(error[2], 0.07);
    });
  }
}

TEST(PowerSgdHook, WithoutErrorFeedbackTheRestIsLost) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdOptions options = at_once();
    options.use_error_feedback = false;
    PowerSgdHook hook(group, options);
    const at::Tensor gradient = full_rank(group);
    const at::Tensor mean = mean_of(group, gradient);
    at::Tensor sum = at::zeros_like(mean);
    for (int step = 0; step < 50; ++step) sum += run_hook(hook, bucket_of(gradient, gradient));
    EXPECT_GT((sum / 50 - mean).norm().item<double>() / mean.norm().item<double>(), 0.5);
  });
}

TEST(PowerSgdHook, WarmStartFindsTheLargestSingularValue) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    PowerSgdOptions options = at_once();
    options.use_error_feedback = false;
    PowerSgdHook hook(group, options);
    // Singular values 10 and 5 with directions that are not those of the axes.
    const at::Tensor u = std::get<0>(at::linalg_qr(full_rank(group, 30, 2)));
    const at::Tensor v = std::get<0>(at::linalg_qr(full_rank(group, 20, 2)));
    const at::Tensor gradient = u.mm(at::tensor({10.0F, 5.0F}).diag()).mm(v.t());
    at::Tensor result;
    for (int step = 0; step < 20; ++step) result = run_hook(hook, bucket_of(gradient, gradient));
    const at::Tensor best = at::outer(u.select(1, 0), v.select(1, 0)) * 10;
    EXPECT_LT(largest_difference(result, best.to(at::kDouble)), 1e-3);
  });
}

// --- Buckets

TEST(PowerSgdHook, AveragesWhatIsNotWorthCompressing) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdHook hook(group, at_once());
    const std::vector<at::Tensor> parameters = {at::empty({7}), at::empty({40, 30}),
                                                at::empty({3, 4}), at::empty({})};
    const float rank = static_cast<float>(group->getRank());
    const HandMadeBucket bucket(0, 1, parameters);
    const at::Tensor result =
        run_hook(hook, bucket.with({at::full({7}, rank), rank_one(group),
                                    at::full({3, 4}, 3 * rank), at::full({}, 5 * rank)}));
    EXPECT_TRUE(at::equal(result.narrow(0, 0, 7), at::full({7}, 0.5F)));
    EXPECT_TRUE(at::equal(result.narrow(0, 1207, 12), at::full({12}, 1.5F)));
    EXPECT_EQ(result[1219].item<float>(), 2.5F);
    EXPECT_LT(largest_difference(result.narrow(0, 7, 1200), mean_of(group, rank_one(group))), 1e-5);
  });
}

TEST(PowerSgdHook, SendsTwoThinMatrices) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    PowerSgdHook hook(group, at_once(2));
    const at::Tensor gradient = full_rank(group, 100, 50);
    run_hook(hook, bucket_of(gradient, gradient));
    const std::vector<comm::Event> events = comm::recent_events(2);
    EXPECT_EQ(events[0].bytes, 100 * 2 * 4U);
    EXPECT_EQ(events[1].bytes, 50 * 2 * 4U);
  });
}

TEST(PowerSgdHook, ConvolutionsAreMatricesOfTheirOutputChannels) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdHook hook(group, at_once());
    const at::Tensor gradient = rank_one(group).view({40, 5, 3, 2});
    expect_mean(hook, group, gradient);
  });
}

TEST(PowerSgdHook, ReducesManyBucketsInOneOrder) {
  run_hook_ranks("farandole", 3, [](const Group& group) {
    PowerSgdHook hook(group, at_once());
    const size_t count = 8;
    std::vector<HandMadeBucket> buckets;
    for (size_t i = 0; i < count; ++i) {
      buckets.emplace_back(i, count, std::vector<at::Tensor>{at::empty({40, 30}), at::empty({5})});
    }
    for (int step = 0; step < 20; ++step) {
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
      for (const HandMadeBucket& bucket : buckets) {
        c10d::GradBucket with = bucket.with({rank_one(group), at::ones({5})});
        futures.push_back(hook.runHook(with));
      }
      for (const auto& future : futures) {
        future->waitAndThrow();
        const at::Tensor result = hook.parseHookResult(future->value());
        EXPECT_LT(largest_difference(result.narrow(0, 0, 1200), mean_of(group, rank_one(group))),
                  1e-5);
      }
    }
  });
}

TEST(PowerSgdHook, StateFollowsItsParameterIntoAnotherBucket) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    const at::Tensor one = at::empty({24, 20});
    const at::Tensor other = at::empty({24, 20});
    const at::Tensor gradient = full_rank(group);
    const auto results = [&](bool swap) {
      PowerSgdHook hook(group, at_once());
      run_hook(hook, HandMadeBucket(0, 1, {one, other}).with({gradient, gradient * 0}));
      const HandMadeBucket next(
          0, 1, swap ? std::vector<at::Tensor>{other, one} : std::vector<at::Tensor>{one, other});
      const at::Tensor result = run_hook(hook, next.with({gradient * 0, gradient * 0}));
      return result.view({2, -1})[swap ? 1 : 0].clone();  // what is left of one's gradient
    };
    EXPECT_GT(results(false).norm().item<double>(), 1e-3);
    EXPECT_TRUE(at::equal(results(false), results(true)));
  });
}

TEST(PowerSgdHook, BeginsAnewWithANewPlanAndWithParametersAtOldAddresses) {
  run_hook_ranks("farandole", 1, [](const Group& group) {
    const at::Tensor gradient = full_rank(group);
    const at::Tensor parameter = at::empty({24, 20});
    const auto left_after = [&](const std::function<void(PowerSgdHook&)>& change) {
      PowerSgdHook hook(group, at_once());
      run_hook(hook, bucket_of(gradient, parameter));
      change(hook);
      return run_hook(hook, bucket_of(gradient * 0, parameter)).norm().item<double>();
    };
    EXPECT_GT(left_after([](PowerSgdHook&) {}), 1e-3);
    EXPECT_EQ(left_after([](PowerSgdHook& hook) { hook.begin_plan(); }), 0);
    PowerSgdHook hook(group, at_once());
    for (int i = 0; i < 50; ++i) {  // one of them comes to lie where another was
      run_hook(hook, bucket_of(gradient, at::empty({24, 20})));
      const at::Tensor next = at::empty({24, 20});
      EXPECT_EQ(run_hook(hook, bucket_of(gradient * 0, next)).norm().item<double>(), 0);
    }
  });
}

TEST(PowerSgdHook, AveragesUntilItsFirstIteration) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdOptions options = at_once();
    options.start_iter = 2;
    PowerSgdHook hook(group, options);
    AllReduceHook whole(group);
    const at::Tensor gradient = full_rank(group);
    const HandMadeBucket first(0, 2, {gradient});
    const HandMadeBucket second(1, 2, {gradient});
    for (int step = 0; step < 2; ++step) {
      for (const HandMadeBucket& bucket : {first, second}) {
        EXPECT_TRUE(at::equal(run_hook(hook, bucket.with({gradient})),
                              run_hook(whole, bucket.with({gradient}))));
      }
    }
    c10d::GradBucket compressed = first.with({gradient});
    const auto future = hook.runHook(compressed);
    EXPECT_FALSE(future->completed());  // until the bucket behind it comes
    run_hook(hook, second.with({gradient}));
    future->waitAndThrow();
    EXPECT_GT(largest_difference(compressed.getBuffer(), mean_of(group, gradient)), 1e-3);
  });
}

// --- Zeros, NaN and failures

TEST(PowerSgdHook, RecoversFromZeroGradients) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdHook hook(group, at_once());
    const at::Tensor gradient = rank_one(group);
    const at::Tensor zeros = at::zeros_like(gradient);
    EXPECT_TRUE(at::equal(run_hook(hook, bucket_of(zeros, gradient)), zeros.view({-1})));
    expect_mean(hook, group, gradient);
  });
}

TEST(PowerSgdHook, ShowsInfOnAllRanksAndForgetsIt) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    PowerSgdHook hook(group, at_once());
    const at::Tensor gradient = rank_one(group);
    at::Tensor overflown = gradient.clone();
    if (group->getRank() == 1) overflown[3][4] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(run_hook(hook, bucket_of(overflown, gradient)).isfinite().all().item<bool>());
    expect_mean(hook, group, gradient);
  });
}

TEST(PowerSgdHook, TellsWhatWentWrongWithTheBucketBefore) {
  run_hook_ranks("farandole", 2, [](const Group& group) {
    if (group->getRank() == 1) return;
    PowerSgdHook hook(group, at_once());
    const at::Tensor gradient = rank_one(group);
    c10d::GradBucket first = HandMadeBucket(0, 2, {gradient}).with({gradient});
    c10d::GradBucket second = HandMadeBucket(1, 2, {gradient}).with({gradient});
    const auto future = hook.runHook(first);
    EXPECT_ANY_THROW(hook.runHook(second)->waitAndThrow());
    EXPECT_ANY_THROW(future->waitAndThrow());
  });
}

std::string error_of(const std::function<void(PowerSgdOptions&)>& change) {
  std::string error;
  run_hook_ranks("farandole", 1, [&](const Group& group) {
    PowerSgdOptions options;
    change(options);
    error = test::error_of<InvalidArgument>([&] { const PowerSgdHook hook(group, options); });
  });
  return error;
}

TEST(PowerSgdHook, RefusesOptionsOutOfRange) {
  EXPECT_THAT(error_of([](PowerSgdOptions& o) { o.matrix_approximation_rank = 0; }),
              HasSubstr("PowerSgdHook got matrix_approximation_rank = 0."));
  EXPECT_THAT(error_of([](PowerSgdOptions& o) { o.start_iter = -1; }),
              HasSubstr("PowerSgdHook got start_iter = -1."));
  EXPECT_THAT(error_of([](PowerSgdOptions& o) { o.min_compression_rate = 0; }),
              HasSubstr("PowerSgdHook got min_compression_rate = 0.0"));
  EXPECT_THAT(error_of([](PowerSgdOptions& o) { o.orthogonalization_epsilon = std::nan(""); }),
              HasSubstr("PowerSgdHook got orthogonalization_epsilon = nan."));
}

}  // namespace
}  // namespace farandole
