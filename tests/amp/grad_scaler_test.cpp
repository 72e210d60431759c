// SPDX-License-Identifier: Apache-2.0
#include "farandole/amp/grad_scaler.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <sstream>

#include "farandole/error.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "optim/bowl.h"
#include "support/raised.h"

namespace farandole {
namespace {

using test::average_gradients;
using test::Bowl;
using test::raised;
using test::run_replicas;
using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

GradScalerOptions options(double scale, int64_t interval = 2000) {
  GradScalerOptions options;
  options.init_scale = scale;
  options.growth_interval = interval;
  return options;
}

at::Tensor parameter(double gradient, at::ScalarType dtype = at::kFloat) {
  at::Tensor made = at::full({3}, 1.0, dtype).set_requires_grad(true);
  made.mutable_grad() = at::full({3}, gradient, dtype);
  return made;
}

void scale_something(GradScaler& scaler) { scaler.scale(at::full({}, 1.0)); }

TEST(GradScaler, ScalesOutputsAndTheirGradients) {
  GradScaler scaler(options(8));
  const at::Tensor x = at::full({2}, 3.0).set_requires_grad(true);
  const std::vector<at::Tensor> scaled = scaler.scale(std::vector<at::Tensor>{x.sum(), x});
  EXPECT_EQ(scaled[0].item<float>(), 48);
  EXPECT_EQ(scaled[1][0].item<float>(), 24);
  EXPECT_EQ(scaler.scale(at::full({1}, 1.0, at::kHalf)).scalar_type(), at::kHalf);
  scaled[0].backward();
  EXPECT_EQ(x.grad()[1].item<float>(), 8);
}

TEST(GradScaler, StepsWithDividedGradients) {
  GradScaler scaler(options(4));
  const at::Tensor weight = parameter(8);
  SGD optimizer({weight}, SGDOptions(1));
  scale_something(scaler);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(weight[0].item<float>(), -1);
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST(GradScaler, LeavesStepsOutAndLowersTheScale) {
  GradScaler scaler(options(4));
  const at::Tensor weight = parameter(std::nan(""));
  SGD optimizer({weight}, SGDOptions(1));
  scale_something(scaler);
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(weight[0].item<float>(), 1);
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, RaisesTheScaleAfterAnInterval) {
  GradScaler scaler(options(4, 2));
  const at::Tensor weight = parameter(1);
  SGD optimizer({weight}, SGDOptions(0.0));
  std::vector<double> scales;
  for (int step = 0; step < 5; ++step) {
    scale_something(scaler);
    weight.mutable_grad() = at::full({3}, step == 2 ? HUGE_VAL : 1.0);
    scaler.step(optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_THAT(scales, testing::ElementsAre(4, 8, 4, 4, 8));
}

TEST(GradScaler, IsSavedAndLoaded) {
  GradScaler scaler(options(4, 5));
  scaler.set_backoff_factor(0.25);
  const at::Tensor weight = parameter(1);
  SGD optimizer({weight}, SGDOptions(0.0));
  scale_something(scaler);
  scaler.step(optimizer);
  scaler.update();
  std::stringstream stream;
  torch::save(scaler, stream);
  GradScaler other;
  torch::load(other, stream);
  EXPECT_EQ(other.state().scale, 4);
  EXPECT_EQ(other.state().growth_factor, 2);
  EXPECT_EQ(other.state().backoff_factor, 0.25);
  EXPECT_EQ(other.state().growth_interval, 5);
  EXPECT_EQ(other.state().growth_tracker, 1);
}

TEST(GradScaler, DoesNothingIfItIsOff) {
  GradScalerOptions off;
  off.enabled = false;
  GradScaler scaler(off);
  const at::Tensor weight = parameter(HUGE_VAL);
  SGD optimizer({weight}, SGDOptions(1));
  const at::Tensor loss = at::full({}, 1.0);
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(std::isinf(weight[0].item<float>()));
}

TEST(GradScaler, TellsMisuse) {
  GradScaler scaler;
  const at::Tensor weight = parameter(1);
  SGD optimizer({weight}, SGDOptions(1));
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.step(optimizer); }),
              HasSubstr("step() of a GradScaler was called before scale()"));
  scale_something(scaler);
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.update(); }), HasSubstr("without a step"));
  scaler.unscale_(optimizer);
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.unscale_(optimizer); }),
              HasSubstr("already been called on this optimizer"));
  scaler.step(optimizer);
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.unscale_(optimizer); }),
              HasSubstr("being called after step()"));
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.step(optimizer); }),
              HasSubstr("already been called since the last update()"));
  scaler.update();
  SGD half({parameter(1, at::kHalf)}, SGDOptions(1));
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.unscale_(half); }),
              HasSubstr("float16 gradients"));
  SGD none({at::full({1}, 1.0).set_requires_grad(true)}, SGDOptions(1));
  EXPECT_THAT(raised<InvalidArgument>([&] { scaler.step(none); }), HasSubstr("without gradients"));
  EXPECT_THAT(raised<InvalidArgument>([&] { GradScaler bad(options(-1)); }),
              HasSubstr("init_scale"));
}

/// The optimizers that a scaler may meet.
enum class Kind { kPlain, kFull, kShard, kInner };

std::unique_ptr<torch::optim::Optimizer> optimizer_of(Kind kind,
                                                      DistributedDataParallel<Bowl>& ddp) {
  const SGDOptions sgd = SGDOptions(0.125).momentum(0.5);
  if (kind == Kind::kPlain) return std::make_unique<SGD>(ddp.parameters(), sgd);
  ZeroOptions zero;
  if (kind == Kind::kShard) zero.gradients = GradientMode::kShard;
  if (kind != Kind::kInner) return std::make_unique<ZeroRedundancyOptimizer>(ddp, sgd, zero);
  const auto make = [sgd](ZeroRedundancyOptimizer::Groups groups) {
    return std::make_unique<SGD>(std::move(groups), sgd);
  };
  return std::make_unique<ZeroRedundancyOptimizer>(ddp, make, zero);
}

/// Step 2 is spoilt on the last rank; the others are those of one process.
void train(const Group& group, Kind kind, bool explicitly) {
  const auto model = test::bowl();
  Bowl alone;
  DistributedDataParallel ddp(model, group);
  const auto optimizer = optimizer_of(kind, ddp);
  SGD unsharded(alone.parameters(), SGDOptions(0.125).momentum(0.5));
  GradScaler scaler(options(1024));
  const int last = group->getSize() - 1;
  for (int step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    alone.zero_grad();
    at::Tensor loss = ddp.forward(group->getRank(), step);
    if (step == 2 && group->getRank() == last) loss = loss * HUGE_VAL;
    scaler.scale(loss).backward();
    average_gradients(alone, group->getSize(), step);
    if (explicitly) scaler.unscale_(*optimizer);
    EXPECT_EQ(scaler.step(*optimizer), step != 2);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), step < 2 ? 1024 : 512);
    if (step != 2) unsharded.step();
    if (auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get())) zero->wait();
  }
  for (size_t i = 0; i < alone.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(model->weights[i], alone.weights[i]))
        << "weight" << i << " on rank " << group->getRank();
  }
}

/// What a program may do to gradients between backward and step.
enum class Deed { kNothing, kSpoil, kMend, kReplace, kClip, kDeeds };

void act(Deed deed, Bowl& model, size_t which) {
  const c10::NoGradGuard no_grad;
  at::Tensor& gradient = model.weights[which].mutable_grad();
  if (deed == Deed::kSpoil) gradient.fill_(std::nan(""));
  if (deed == Deed::kReplace) gradient = gradient.clone();
  if (deed == Deed::kClip) gradient.clamp_(-1, 1);
  if (deed != Deed::kMend) return;
  for (const at::Tensor& weight : model.weights) weight.mutable_grad().nan_to_num_(0, 0, 0);
}

bool are_all_finite(const Bowl& model) {
  return std::all_of(model.weights.begin(), model.weights.end(), [](const at::Tensor& weight) {
    return weight.grad().isfinite().all().item<bool>();
  });
}

bool all_say(const Group& group, bool yes) {
  std::vector<at::Tensor> noes{at::full({1}, yes ? 0.0 : 1.0)};
  group->allreduce(noes)->wait();
  return noes[0].item<float>() == 0;
}

/// One drawn step after the other, each against a look at every gradient of every rank. Where
/// shards travel in backward, what is done to p.grad afterwards is in none.
void do_anything(const Group& group, Kind kind, uint64_t seed) {
  const bool counts = kind != Kind::kShard || group->getBackendName() == "farandole";
  constexpr int kSteps = 30;
  const auto model = test::bowl();
  DistributedDataParallel ddp(model, group);
  const auto optimizer = optimizer_of(kind, ddp);
  auto grows = options(1024, 1);
  grows.growth_factor = 1.5;
  GradScaler scaler(grows);
  std::mt19937_64 of_all(seed);
  std::mt19937_64 of_rank(seed * 1000 + static_cast<uint64_t>(group->getRank()));
  const auto has_luck = [](std::mt19937_64& from, uint64_t one_in) { return from() % one_in == 0; };
  int taken = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (!has_luck(of_all, 6)) optimizer->zero_grad(has_luck(of_all, 2));
    for (int passes = has_luck(of_all, 4) ? 2 : 1; passes > 0; --passes) {
      std::optional<NoSync> no_sync;
      if (passes == 2) no_sync.emplace(ddp.no_sync());
      const double factor = has_luck(of_rank, 6) ? HUGE_VAL : 1;
      scaler.scale(ddp.forward(group->getRank(), step) * factor).backward();
    }
    const auto deed = static_cast<Deed>(of_all() % static_cast<uint64_t>(Deed::kDeeds));
    const size_t which = of_all() % model->weights.size();
    const bool acts = counts && (deed != Deed::kSpoil || has_luck(of_rank, 2));
    if (acts) act(deed, *model, which);
    const bool expected = all_say(group, are_all_finite(*model));
    if (has_luck(of_all, 3)) scaler.unscale_(*optimizer);
    ASSERT_EQ(scaler.step(*optimizer), expected) << "step " << step << " of seed " << seed;
    scaler.update();
    if (auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get())) zero->wait();
    taken += expected ? 1 : 0;
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, kSteps);
}

using Case = std::tuple<const char*, int, Kind, bool>;
class GradScalerRanks : public testing::TestWithParam<Case> {};

TEST_P(GradScalerRanks, AgreeOnEachStep) {
  const auto [backend, world_size, kind, explicitly] = GetParam();
  run_replicas(backend, world_size, [kind = kind, explicitly = explicitly](const Group& group) {
    train(group, kind, explicitly);
  });
}

TEST_P(GradScalerRanks, SeeWhatTheProgramDoes) {
  const auto [backend, world_size, kind, explicitly] = GetParam();
  run_replicas(backend, world_size, [kind = kind, seed = explicitly ? 2 : 1](const Group& group) {
    do_anything(group, kind, seed);
  });
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kKinds[] = {"Plain", "Full", "Shard", "Inner"};
  const auto& [backend, world_size, kind, explicitly] = info.param;
  return std::string(backend) + std::to_string(world_size) + "Ranks" +
         kKinds[static_cast<int>(kind)] + (explicitly ? "Unscaled" : "");
}

INSTANTIATE_TEST_SUITE_P(
    , GradScalerRanks,
    testing::Combine(testing::Values("farandole", "foreign"), testing::Values(1, 2, 4),
                     testing::Values(Kind::kPlain, Kind::kFull, Kind::kShard, Kind::kInner),
                     testing::Bool()),
    name_of);

}  // namespace
}  // namespace farandole
