// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/lr_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <limits>
#include <sstream>
#include <stdexcept>

#include "bowl.h"
#include "farandole/error.h"
#include "farandole/optim/lars_options.h"
#include "farandole/optim/linear_scaled_lr.h"
#include "farandole/optim/lr_scheduler/chained_scheduler.h"
#include "farandole/optim/lr_scheduler/constant_lr.h"
#include "farandole/optim/lr_scheduler/cosine_annealing_lr.h"
#include "farandole/optim/lr_scheduler/cosine_annealing_warm_restarts.h"
#include "farandole/optim/lr_scheduler/exponential_lr.h"
#include "farandole/optim/lr_scheduler/lambda_lr.h"
#include "farandole/optim/lr_scheduler/linear_lr.h"
#include "farandole/optim/lr_scheduler/multi_step_lr.h"
#include "farandole/optim/lr_scheduler/one_cycle_lr.h"
#include "farandole/optim/lr_scheduler/polynomial_lr.h"
#include "farandole/optim/lr_scheduler/reduce_lr_on_plateau.h"
#include "farandole/optim/lr_scheduler/sequential_lr.h"
#include "farandole/optim/lr_scheduler/step_lr.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "support/raised.h"

// That values are those of torch's Python is tested in tests/python/test_lr_schedulers.py.

namespace farandole {
namespace {

using test::Bowl;
using test::expect_weights;
using test::raised;
using test::run_replicas;
using test::trained;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::optim::SGD;

std::vector<at::Tensor> one_weight() { return {at::full({1}, 1.0).set_requires_grad(true)}; }

/// Two groups with learning rates 1 and 2.
struct TwoGroups {
  static std::vector<torch::optim::OptimizerParamGroup> groups() {
    std::vector<torch::optim::OptimizerParamGroup> made;
    made.emplace_back(one_weight(), std::make_unique<SGDOptions>(1.0));
    made.emplace_back(one_weight(), std::make_unique<SGDOptions>(2.0));
    return made;
  }
  SGD optimizer{groups(), SGDOptions(1.0)};
  double lr(size_t group) { return optimizer.param_groups()[group].options().get_lr(); }
};

template <class Scheduler, class... Arguments>
std::string refused(const Arguments&... arguments) {
  TwoGroups of;
  const std::string text =
      raised<InvalidArgument>([&] { Scheduler scheduler(of.optimizer, arguments...); });
  EXPECT_EQ(of.lr(0), 1);  // nothing was changed
  return text;
}

TEST(LRScheduler, SetsTheFirstLearningRatesAtOnce) {
  TwoGroups of;
  LinearLR scheduler(of.optimizer, 0.25, 1.0, 3);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.25, 0.5));
  EXPECT_EQ(of.lr(1), 0.5);
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5, 1));
  EXPECT_EQ(scheduler.last_epoch(), 1);
}

TEST(LRScheduler, RefusesWhatCannotBe) {
  EXPECT_THAT(refused<LinearLR>(0.0), HasSubstr("a LinearLR got start_factor 0.000000.\nwhy: it "
                                                "must be above 0 and at most 1."));
  EXPECT_THAT(refused<LinearLR>(1.5), HasSubstr("start_factor 1.5"));
  EXPECT_THAT(refused<LinearLR>(0.5, -0.1), HasSubstr("end_factor -0.1"));
  EXPECT_THAT(refused<LinearLR>(0.5, 1.0, 0), HasSubstr("total_iters 0"));
  EXPECT_THAT(refused<LinearLR>(std::numeric_limits<double>::quiet_NaN()), HasSubstr("nan"));
  EXPECT_THAT(refused<ConstantLR>(0.0), HasSubstr("factor 0.0"));
  EXPECT_THAT(refused<ConstantLR>(0.5, -1), HasSubstr("total_iters -1"));
  EXPECT_THAT(refused<StepLR>(0), HasSubstr("step_size 0"));
  EXPECT_THAT(refused<MultiStepLR>(std::vector<int64_t>{3, 2}), HasSubstr("milestone 2 after 3"));
  EXPECT_THAT(refused<MultiStepLR>(std::vector<int64_t>{-1}), HasSubstr("milestone -1 after 0"));
  EXPECT_THAT(refused<PolynomialLR>(0), HasSubstr("total_iters 0"));
  EXPECT_THAT(refused<PolynomialLR>(5, -1.0), HasSubstr("power -1"));
  EXPECT_THAT(refused<CosineAnnealingLR>(0), HasSubstr("T_max 0"));
  EXPECT_THAT(refused<CosineAnnealingWarmRestarts>(0), HasSubstr("T_0 0"));
  EXPECT_THAT(refused<CosineAnnealingWarmRestarts>(1, 0), HasSubstr("T_mult 0"));
  EXPECT_THAT(refused<LambdaLR>(std::vector<LambdaLR::Function>(3)),
              HasSubstr("3 functions for 2 parameter groups"));
  EXPECT_THAT(refused<LambdaLR>(LambdaLR::Function()), HasSubstr("an empty function"));
}

TEST(LRScheduler, RefusesAnOptimizerWithoutLearningRate) {
  struct Options : torch::optim::OptimizerCloneableOptions<Options> {};
  struct Still : torch::optim::Optimizer {
    using torch::optim::Optimizer::Optimizer;
    at::Tensor step(LossClosure) override { return {}; }
  };
  Still optimizer(one_weight(), std::make_unique<Options>());
  EXPECT_THAT(raised<InvalidArgument>([&] { StepLR scheduler(optimizer, 1); }),
              HasSubstr("whose options have no learning rate"));
}

TEST(LRScheduler, FollowsAddedGroupsWhereTorchDoes) {
  TwoGroups of;
  StepLR every(of.optimizer, 1, 0.5);
  CosineAnnealingWarmRestarts known(of.optimizer, 5);
  of.optimizer.add_param_group(TwoGroups::groups()[1]);
  every.step();
  EXPECT_THAT(every.get_last_lr(), ElementsAre(0.5, 1, 1));
  EXPECT_THAT(raised<InvalidArgument>([&] { known.step(); }),
              HasSubstr("learning rates for 2 parameter groups, and the optimizer has 3"));
}

TEST(LRScheduler, StaysAsItWasIfAFunctionThrows) {
  TwoGroups of;
  bool is_broken = false;
  LambdaLR scheduler(of.optimizer, [&](int64_t epoch) {
    if (is_broken) throw std::runtime_error("broken");
    return 1.0 / static_cast<double>(epoch + 1);
  });
  scheduler.step();
  const LRSchedulerState before = scheduler.state();
  is_broken = true;
  EXPECT_EQ(raised<std::runtime_error>([&] { scheduler.step(); }), "broken");
  EXPECT_EQ(scheduler.state(), before);
  is_broken = false;
  scheduler.step();
  EXPECT_EQ(of.lr(0), 1.0 / 3);
}

// --- one cycle

OneCycleOptions cycle(double pct_start, bool cycle_momentum = true) {
  OneCycleOptions options;
  options.pct_start = pct_start;
  options.cycle_momentum = cycle_momentum;
  return options;
}

TEST(OneCycleLR, RefusesWhatCannotBe) {
  EXPECT_THAT(refused<OneCycleLR>(1.0, 0), HasSubstr("total_steps 0"));
  EXPECT_THAT(refused<OneCycleLR>(1.0, 9, cycle(1.5)), HasSubstr("pct_start 1.5"));
  EXPECT_THAT(refused<OneCycleLR>(-1.0, 9), HasSubstr("max_lr -1"));
  EXPECT_THAT(refused<OneCycleLR>(PerGroup({1.0, 1.0, 1.0}), 9),
              HasSubstr("3 values of max_lr for 2 parameter groups"));
  OneCycleOptions options;
  options.div_factor = 0;
  EXPECT_THAT(refused<OneCycleLR>(1.0, 9, options), HasSubstr("div_factor 0"));
  options = {};
  options.final_div_factor = -1;
  EXPECT_THAT(refused<OneCycleLR>(1.0, 9, options), HasSubstr("final_div_factor -1"));
  EXPECT_THAT(refused<OneCycleLR>(1.0, 10, cycle(0.1)), HasSubstr("a phase without steps"));
}

TEST(OneCycleLR, NeedsAMomentumToCycle) {
  torch::optim::Adagrad optimizer(one_weight());
  EXPECT_THAT(raised<InvalidArgument>([&] { OneCycleLR scheduler(optimizer, 1.0, 9); }),
              HasSubstr("without momentum and beta1"));
  OneCycleLR scheduler(optimizer, 1.0, 9, cycle(0.3, false));
  scheduler.step();
}

TEST(OneCycleLR, EndsAfterItsSteps) {
  TwoGroups of;
  OneCycleLR scheduler(of.optimizer, 1.0, 10);
  for (int step = 0; step < 10; ++step) scheduler.step();
  const LRSchedulerState before = scheduler.state();
  EXPECT_THAT(raised<InvalidArgument>([&] { scheduler.step(); }),
              HasSubstr("was stepped 11 times, and has 10 steps"));
  EXPECT_EQ(scheduler.state(), before);
}

TEST(OneCycleLR, CyclesTheMomentumOfLars) {
  torch::optim::SGD unused(one_weight(), SGDOptions(1.0));
  struct Still : torch::optim::Optimizer {
    using torch::optim::Optimizer::Optimizer;
    at::Tensor step(LossClosure) override { return {}; }
  };
  Still optimizer(one_weight(), std::make_unique<LarsOptions>(1.0));
  OneCycleLR scheduler(optimizer, 1.0, 10);
  const auto& lars = static_cast<LarsOptions&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(lars.momentum(), 0.95);
  for (int step = 0; step < 2; ++step) scheduler.step();
  EXPECT_EQ(lars.momentum(), 0.85);
  EXPECT_EQ(lars.lr(), 1);
}

// --- schedulers of schedulers

using Milestones = std::vector<int64_t>;
using Factories = std::vector<LRSchedulerFactory>;

TEST(SequentialLR, RefusesWhatCannotBe) {
  const auto part = schedule_of<StepLR>(1);
  EXPECT_THAT(refused<SequentialLR>(Factories{}, Milestones{}), HasSubstr("got no scheduler"));
  EXPECT_THAT(refused<SequentialLR>(Factories{part, part}, Milestones{}),
              HasSubstr("0 milestones for 2 schedulers"));
  EXPECT_THAT(refused<SequentialLR>(Factories{part, part}, Milestones{0}),
              HasSubstr("milestone 0 after 0"));
  EXPECT_THAT(refused<SequentialLR>(Factories{part, part, part}, Milestones{2, 2}),
              HasSubstr("milestone 2 after 2"));
  const auto chain = schedule_of<ChainedScheduler>(Factories{part});
  const auto halving = schedule_of<ConstantLR>(0.5);
  EXPECT_THAT(refused<SequentialLR>(Factories{halving, chain}, Milestones{2}),
              HasSubstr("after its first scheduler"));
  EXPECT_THAT(refused<ChainedScheduler>(Factories{halving, schedule_of<StepLR>(0)}),
              HasSubstr("step_size 0"));
  EXPECT_THAT(refused<ChainedScheduler>(Factories{}), HasSubstr("got no scheduler"));
}

TEST(SequentialLR, GivesAllPartsTheSameInitialLearningRates) {
  TwoGroups of;
  SequentialLR scheduler(of.optimizer,
                         {schedule_of<LinearLR>(0.5, 1.0, 2), schedule_of<PolynomialLR>(4)}, {2});
  std::vector<double> lrs;
  for (int step = 0; step < 6; ++step) {
    lrs.push_back(of.lr(1));
    scheduler.step();
  }
  EXPECT_THAT(lrs, ElementsAre(1, 1.5, 2, 1.5, 1, 0.5));
}

// --- one's own

/// Halves the initial learning rates as long as `until` is ahead.
class HalfUntil final : public FormulaScheduler {
 public:
  HalfUntil(ScheduledOptimizer of, int64_t until) : FormulaScheduler(std::move(of)), until_(until) {
    begin();
  }

 protected:
  std::vector<double> get_lr() override { return scaled_base_lrs(last_epoch_ < until_ ? 0.5 : 1); }
  void name_fields(SchedulerFields& fields) override {
    FormulaScheduler::name_fields(fields);
    fields.add("until", until_);
  }

 private:
  int64_t until_;
};

TEST(FormulaScheduler, IsTheBaseOfOnesOwn) {
  TwoGroups of;
  SequentialLR scheduler(of.optimizer, {schedule_of<HalfUntil>(1), schedule_of<HalfUntil>(1)}, {2});
  std::vector<double> lrs;
  for (int step = 0; step < 4; ++step) {
    lrs.push_back(of.lr(0));
    scheduler.step();
  }
  EXPECT_THAT(lrs, ElementsAre(0.5, 1, 0.5, 1));
  EXPECT_EQ(scheduler.state().at("_schedulers.1.until"), std::vector<double>{1});
}

// --- state

TEST(LRSchedulerState, ListsNumbersByTorchsNames) {
  TwoGroups of;
  SequentialLR scheduler(
      of.optimizer,
      {schedule_of<LinearLR>(0.5, 1.0, 2), schedule_of<MultiStepLR>(Milestones{4, 6}, 0.5)}, {2});
  scheduler.step();
  const LRSchedulerState expected = {{"_last_lr", {0.75, 1.5}},
                                     {"_milestones", {2}},
                                     {"_schedulers.0._last_lr", {0.75, 1.5}},
                                     {"_schedulers.0._step_count", {2}},
                                     {"_schedulers.0.base_lrs", {1, 2}},
                                     {"_schedulers.0.end_factor", {1}},
                                     {"_schedulers.0.last_epoch", {1}},
                                     {"_schedulers.0.start_factor", {0.5}},
                                     {"_schedulers.0.total_iters", {2}},
                                     {"_schedulers.1._last_lr", {0.5, 1}},
                                     {"_schedulers.1._step_count", {1}},
                                     {"_schedulers.1.base_lrs", {1, 2}},
                                     {"_schedulers.1.gamma", {0.5}},
                                     {"_schedulers.1.last_epoch", {-1}},
                                     {"_schedulers.1.milestones", {4, 6}},
                                     {"last_epoch", {1}},
                                     {"lr", {0.75, 1.5}}};
  EXPECT_EQ(scheduler.state(), expected);
}

TEST(LRSchedulerState, IsLoadedAnyNumberOfTimes) {
  TwoGroups of;
  CosineAnnealingLR scheduler(of.optimizer, 10);
  for (int step = 0; step < 3; ++step) scheduler.step();
  const LRSchedulerState third = scheduler.state();
  scheduler.step();
  const std::vector<double> fourth = scheduler.get_last_lr();
  for (int time = 0; time < 2; ++time) {
    scheduler.load_state(third);
    scheduler.load_state(third);
    EXPECT_EQ(scheduler.state(), third);
    EXPECT_EQ(of.lr(0), third.at("lr")[0]);
    scheduler.step();
    EXPECT_EQ(scheduler.get_last_lr(), fourth);
    for (int step = 0; step < 5; ++step) scheduler.step();
  }
}

TEST(LRSchedulerState, HasTheArgumentsWhichMayBeChanged) {
  TwoGroups of;
  StepLR saved(of.optimizer, 2, 0.5);
  LRSchedulerState state = saved.state();
  StepLR loaded(of.optimizer, 100, 0.1);
  loaded.load_state(state);
  EXPECT_EQ(loaded.state(), state);
  state["step_size"] = {1};
  loaded.load_state(state);
  loaded.step();
  EXPECT_EQ(of.lr(0), 0.5);
}

TEST(LRSchedulerState, IsNotLoadedIfItDoesNotFit) {
  TwoGroups of;
  StepLR scheduler(of.optimizer, 2, 0.5);
  const LRSchedulerState right = scheduler.state();
  const auto refuses = [&](LRSchedulerState state, const std::string& why) {
    state["lr"] = {7, 7};
    EXPECT_THAT(raised<InvalidArgument>([&] { scheduler.load_state(state); }), HasSubstr(why));
    EXPECT_EQ(scheduler.state(), right);
  };
  refuses(ExponentialLR(of.optimizer, 1.0).state(), "it lacks 'step_size'");
  refuses(MultiStepLR(of.optimizer, {}, 1.0).state(), "it has 'milestones'");
  LRSchedulerState other = right;
  other["step_size"] = {1.5};
  refuses(other, "'step_size' does not fit");
  other["step_size"] = {1, 2};
  refuses(other, "'step_size' does not fit");
  for (const double number : {0.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    other["step_size"] = {number};
    refuses(other, "'step_size' does not fit");
  }
  other = right;
  other["base_lrs"] = {1};
  refuses(other, "'base_lrs' does not fit");
  SGD single(one_weight(), SGDOptions(1.0));
  refuses(StepLR(single, 2, 0.5).state(), "does not fit");
  torch::serialize::OutputArchive empty;
  std::stringstream stream;
  empty.save_to(stream);
  EXPECT_THAT(raised<InvalidArgument>([&] { torch::load(scheduler, stream); }),
              HasSubstr("an archive without a scheduler"));
}

TEST(LRSchedulerState, HasMilestonesThatFitTheParts) {
  TwoGroups of;
  SequentialLR scheduler(of.optimizer, {schedule_of<StepLR>(1), schedule_of<StepLR>(2)}, {3});
  LRSchedulerState state = scheduler.state();
  for (const std::vector<double>& milestones :
       {std::vector<double>{}, {0}, {1.5}, {2, 5}, {1e300}}) {
    state["_milestones"] = milestones;
    EXPECT_THAT(raised<InvalidArgument>([&] { scheduler.load_state(state); }),
                HasSubstr("'_milestones' does not fit"));
  }
  state["_milestones"] = {7};
  scheduler.load_state(state);
  EXPECT_EQ(scheduler.state(), state);
}

TEST(LRSchedulerState, OfTwoSchedulersIsLoadedInAnyOrder) {
  TwoGroups of;
  LinearLR warmup(of.optimizer, 0.25, 1.0, 8);
  ReduceLROnPlateauOptions options;
  options.patience = 0;
  ReduceLROnPlateau plateau(of.optimizer, options);
  warmup.step();
  for (int step = 0; step < 2; ++step) plateau.step(1.0);
  const double lr = of.lr(0);
  const LRSchedulerState states[] = {warmup.state(), plateau.state()};
  warmup.step();
  plateau.load_state(states[1]);
  warmup.load_state(states[0]);
  EXPECT_EQ(of.lr(0), lr);
}

// --- plateaus

TEST(ReduceLROnPlateau, RefusesWhatCannotBe) {
  const auto refuses = [](const auto& change, const std::string& got) {
    ReduceLROnPlateauOptions options;
    change(options);
    EXPECT_THAT(refused<ReduceLROnPlateau>(options), HasSubstr("a ReduceLROnPlateau got " + got));
  };
  using Options = ReduceLROnPlateauOptions;
  refuses([](Options& each) { each.factor = 1; }, "factor 1.0");
  refuses([](Options& each) { each.patience = -1; }, "patience -1");
  refuses([](Options& each) { each.cooldown = -1; }, "cooldown -1");
  refuses([](Options& each) { each.threshold = -1; }, "threshold -1");
  refuses([](Options& each) { each.eps = -1; }, "eps -1");
  refuses([](Options& each) { each.min_lr = PerGroup({0.0, 0.0, 0.0}); }, "3 values of min_lr");
}

// --- sharded optimizers

/// The same training by one rank with an optimizer of LibTorch and by two with a sharded one.
template <class Optimizer, class Options, class Make>
void follows(const Options& options, double tolerance, const Make& make) {
  Bowl plain;
  Optimizer unsharded(plain.weights, options);
  const auto unsharded_scheduler = make(unsharded);
  const auto expected = trained(plain, 2, 8, [&] {
    unsharded.step();
    unsharded_scheduler->step();
  });
  run_replicas("farandole", 2, [&](const Group& group) {
    const auto model = test::bowl();
    DistributedDataParallel<Bowl> ddp(model, group);
    ZeroRedundancyOptimizer optimizer(ddp, options);
    const auto scheduler = make(optimizer);
    for (int step = 1; step <= 8; ++step) {
      optimizer.zero_grad();
      ddp.forward(group->getRank(), step).backward();
      optimizer.step();
      optimizer.wait();
      scheduler->step();
    }
    expect_weights(*model, expected.back(), tolerance, "");
  });
}

TEST(LRScheduler, DrivesAShardedOptimizer) {
  const auto warmup_and_cosine = [](torch::optim::Optimizer& optimizer) {
    return std::make_unique<SequentialLR>(
        optimizer,
        Factories{schedule_of<LinearLR>(0.25, 1.0, 3), schedule_of<CosineAnnealingLR>(5)},
        Milestones{3});
  };
  const auto one_cycle = [](torch::optim::Optimizer& optimizer) {
    return std::make_unique<OneCycleLR>(optimizer, 0.1, 9);
  };
  follows<SGD>(SGDOptions(0.25).momentum(0.5), 0, warmup_and_cosine);
  follows<SGD>(SGDOptions(0.25).momentum(0.5), 0, one_cycle);
  follows<SGD>(SGDOptions(0.25), 0, one_cycle);
  follows<torch::optim::Adam>(AdamOptions(0.05), 1e-5, one_cycle);
}

// --- linear scaling

TEST(LinearScaledLr, MultipliesByTheGrowthOfTheBatch) {
  EXPECT_EQ(linear_scaled_lr(0.1, 8192), 0.1 * 8192 / 256);
  EXPECT_EQ(linear_scaled_lr(0.5, 64, 32), 1);
  EXPECT_THAT(raised<InvalidArgument>([] { linear_scaled_lr(0.1, 0); }),
              HasSubstr("got global_batch_size 0 and reference_batch_size 256"));
  EXPECT_THAT(raised<InvalidArgument>([] { linear_scaled_lr(0.1, 1, -1); }),
              HasSubstr("reference_batch_size -1"));
}

}  // namespace
}  // namespace farandole
