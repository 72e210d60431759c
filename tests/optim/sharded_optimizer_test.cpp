// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/sharded_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <tuple>

#include "bowl.h"
#include "farandole/error.h"
#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/lars.h"
#include "farandole/optim/sgd.h"
#include "farandole/optim/update_parameters.h"

namespace farandole {
namespace {

using test::average_gradients;
using test::Bowl;
using test::bowl;
using test::BowlWeight;
using test::expect_weights;
using test::run_replicas;
using testing::HasSubstr;

using Ddp = DistributedDataParallel<Bowl>;
using Rule = std::shared_ptr<const UpdateRule>;

constexpr GradientMode kBoth[] = {GradientMode::kFull, GradientMode::kShard};

Rule sgd(double lr = 0.125, double momentum = 0.5) {
  SgdHyperparameters sgd;
  sgd.lr = lr;
  sgd.momentum = momentum;
  return std::make_shared<SgdRule>(sgd);
}

Rule adamw(double lr = 0.01) {
  AdamHyperparameters adam;
  adam.lr = lr;
  adam.weight_decay = 0.1;
  adam.decoupled_weight_decay = true;
  return std::make_shared<AdamRule>(adam);
}

/// One process with all parameters, whose gradients are averages.
class Plain {
 public:
  explicit Plain(const std::vector<BowlWeight>& specs = test::kOddWeights) : bowl_(specs) {}

  Bowl& bowl() { return bowl_; }
  /// As in the tests of update_parameters() against LibTorch.
  void step(const UpdateRule& rule) {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> parameters, gradients;
    std::vector<std::vector<at::Tensor>> states;
    std::vector<int64_t> steps;
    states_.resize(bowl_.weights.size());
    steps_.resize(bowl_.weights.size(), 0);
    for (size_t i = 0; i < bowl_.weights.size(); ++i) {
      if (!bowl_.weights[i].grad().defined()) continue;
      for (size_t s = states_[i].size(); s < rule.state_names().size(); ++s) {
        states_[i].push_back(at::zeros_like(bowl_.weights[i]));
      }
      parameters.push_back(bowl_.weights[i]);
      gradients.push_back(bowl_.weights[i].grad());
      states.push_back(states_[i]);
      steps.push_back(++steps_[i]);
    }
    update_parameters(rule, parameters, gradients, states, steps);
  }

 private:
  Bowl bowl_;
  std::vector<std::vector<at::Tensor>> states_;
  std::vector<int64_t> steps_;
};

std::vector<ShardedOptimizer::Group> groups_of(const Bowl& bowl) {
  return {{bowl.weights, test::names_of(bowl)}};
}

/// What one rank trains.
struct Rank {
  Group group;
  std::shared_ptr<Bowl> model;
  std::unique_ptr<Ddp> ddp;
  std::unique_ptr<ShardedOptimizer> optimizer;

  Rank(Group of, GradientMode mode, const std::vector<BowlWeight>& specs = test::kOddWeights)
      : group(std::move(of)), model(bowl(specs)), ddp(std::make_unique<Ddp>(model, group)) {
    optimizer = std::make_unique<ShardedOptimizer>(groups_of(*model), group, mode);
  }
  int rank() const { return group->getRank(); }
  int size() const { return group->getSize(); }
  void backward(int step) {
    model->zero_grad();
    ddp->forward(rank(), step).backward();
  }
  void step(int step, const Rule& rule) {
    backward(step);
    optimizer->step({rule});
  }
  std::string where(int step) const {
    return "on rank " + std::to_string(rank()) + " of " + std::to_string(size()) + " after step " +
           std::to_string(step);
  }
  void expect(const Bowl& plain, double tolerance, int step) {
    optimizer->wait();
    expect_weights(*model, plain, tolerance, where(step));
  }
};

class ShardedOptimizerOver
    : public testing::TestWithParam<std::tuple<std::string, GradientMode, int>> {
 protected:
  GradientMode mode() const { return std::get<1>(GetParam()); }
  int size() const { return std::get<2>(GetParam()); }
  bool is_foreign() const { return std::get<0>(GetParam()) == "foreign"; }
  void run(const std::function<void(const Group&)>& body) const {
    run_replicas(std::get<0>(GetParam()), size(), body);
  }
};

std::string name_of(const testing::TestParamInfo<ShardedOptimizerOver::ParamType>& info) {
  const auto& [backend, mode, size] = info.param;
  return backend + (mode == GradientMode::kFull ? "Full" : "Shard") + std::to_string(size);
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, ShardedOptimizerOver,
                         testing::Combine(testing::Values("farandole"), testing::ValuesIn(kBoth),
                                          testing::Values(1, 2, 3, 4)),
                         name_of);
// There DistributedDataParallel multiplies by 1 / ranks, which has other bits for 3.
INSTANTIATE_TEST_SUITE_P(Messages, ShardedOptimizerOver,
                         testing::Combine(testing::Values("foreign"), testing::ValuesIn(kBoth),
                                          testing::Values(1, 2, 4)),
                         name_of);

// --- 50 steps as an unsharded optimizer takes them

TEST_P(ShardedOptimizerOver, StepsAsLibTorchsSgdToTheLastBit) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Bowl plain;
    torch::optim::SGD unsharded(
        plain.weights,
        torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
    SgdHyperparameters sgd;
    sgd.lr = 0.05;
    sgd.momentum = 0.9;
    sgd.weight_decay = 0.01;
    sgd.nesterov = true;
    const Rule rule = std::make_shared<SgdRule>(sgd);
    for (int step = 1; step <= 50; ++step) {
      rank.step(step, rule);
      plain.zero_grad();
      average_gradients(plain, size(), step);
      unsharded.step();
      rank.expect(plain, 0, step);
    }
  });
}

TEST_P(ShardedOptimizerOver, StepsAsLibTorchsAdamW) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Bowl plain;
    torch::optim::AdamW unsharded(plain.weights,
                                  torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    const Rule rule = adamw();
    for (int step = 1; step <= 50; ++step) {
      rank.step(step, rule);
      plain.zero_grad();
      average_gradients(plain, size(), step);
      unsharded.step();
    }
    rank.expect(plain, 1e-5, 50);
  });
}

TEST_P(ShardedOptimizerOver, MeasuresWholeParametersForLambAndLars) {
  const Rule rules[] = {std::make_shared<LambRule>(LambHyperparameters{}),
                        std::make_shared<LarsRule>(LarsHyperparameters{})};
  for (const Rule& rule : rules) {
    run([&](const Group& group) {
      Rank rank(group, mode());
      Plain plain;
      for (int step = 1; step <= 50; ++step) {
        rank.step(step, rule);
        plain.bowl().zero_grad();
        average_gradients(plain.bowl(), size(), step);
        plain.step(*rule);
      }
      rank.expect(plain.bowl(), 1e-5, 50);
    });
  }
}

/// Whatever changes shards() between begin_step() and end_step() is what all ranks get.
TEST_P(ShardedOptimizerOver, LetsOthersStepItsShards) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Bowl plain;
    torch::optim::SGD unsharded(plain.weights, torch::optim::SGDOptions(0.25));
    for (int step = 1; step <= 5; ++step) {
      rank.backward(step);
      EXPECT_FALSE(rank.optimizer->begin_step("descent"));
      for (const at::Tensor& shard : rank.optimizer->shards(0)) {
        const c10::NoGradGuard no_grad;
        shard.sub_(shard.grad(), 0.25);
      }
      rank.optimizer->end_step();
      plain.zero_grad();
      average_gradients(plain, size(), step);
      unsharded.step();
      rank.expect(plain, 0, step);
    }
  });
}

// --- gradients: clipped, accumulated, missing

TEST_P(ShardedOptimizerOver, ClipsTheNormOfAllGradients) {
  const std::vector<BowlWeight> specs = {
      {{33, 17}}, {{1031}}, {{4, 7, 3, 3}}, {{129}, at::kDouble}};
  for (const double norm_type : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
    run([&](const Group& group) {
      Rank rank(group, mode(), specs);
      Bowl plain(specs);
      torch::optim::SGD unsharded(plain.weights, torch::optim::SGDOptions(0.25));
      for (int step = 1; step <= 3; ++step) {
        rank.backward(step);
        plain.zero_grad();
        average_gradients(plain, size(), step);
        // At the second step nothing is clipped.
        const double most = step == 2 ? 1e9 : 0.5;
        const double norm = rank.optimizer->clip_grad_norm(most, norm_type, false);
        EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain.weights, most, norm_type),
                    1e-5 * norm);
        rank.optimizer->step({sgd(0.25, 0)});
        unsharded.step();
      }
      rank.expect(plain, 1e-5, 3);
    });
  }
}

TEST_P(ShardedOptimizerOver, ClipsValues) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Bowl plain;
    torch::optim::SGD unsharded(plain.weights, torch::optim::SGDOptions(0.25));
    for (int step = 1; step <= 3; ++step) {
      rank.backward(step);
      rank.optimizer->clip_grad_value(0.5);
      rank.optimizer->step({sgd(0.25, 0)});
      plain.zero_grad();
      average_gradients(plain, size(), step);
      torch::nn::utils::clip_grad_value_(plain.weights, 0.5);
      unsharded.step();
      rank.expect(plain, 0, step);
    }
  });
}

TEST_P(ShardedOptimizerOver, AddsPassesUpUnderNoSync) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Bowl plain;
    torch::optim::SGD unsharded(plain.weights, torch::optim::SGDOptions(0.125));
    for (int step = 1; step <= 6; step += 3) {
      rank.model->zero_grad();
      {
        const auto no_sync = rank.ddp->no_sync();
        rank.ddp->forward(rank.rank(), step).backward();
        rank.ddp->forward(rank.rank(), step + 1).backward();
      }
      rank.ddp->forward(rank.rank(), step + 2).backward();
      rank.optimizer->step({sgd(0.125, 0)});
      plain.zero_grad();
      for (int part = 0; part < 3; ++part) average_gradients(plain, size(), step + part);
      unsharded.step();
      rank.expect(plain, 1e-6, step);
    }
  });
}

/// A clip between two backward passes is a clip of what was there.
TEST_P(ShardedOptimizerOver, ClipsWhatLaterPassesAddTo) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Bowl plain;
    torch::optim::SGD unsharded(plain.weights, torch::optim::SGDOptions(0.125));
    rank.backward(1);
    average_gradients(plain, size(), 1);
    rank.optimizer->clip_grad_norm(1, 2, false);
    torch::nn::utils::clip_grad_norm_(plain.weights, 1);
    rank.ddp->forward(rank.rank(), 2).backward();
    average_gradients(plain, size(), 2);
    rank.optimizer->step({sgd(0.125, 0)});
    unsharded.step();
    rank.expect(plain, 1e-5, 1);
  });
}

TEST_P(ShardedOptimizerOver, PlansFrozenParametersWhenTheyGetAGradient) {
  run([&](const Group& group) {
    const auto model = bowl();
    model->weights[1].set_requires_grad(false);
    Plain plain;
    plain.bowl().weights[1].set_requires_grad(false);
    auto ddp = std::make_unique<Ddp>(model, group);
    ShardedOptimizer optimizer(groups_of(*model), group, mode());
    const Rule rule = sgd();
    const auto take = [&](int step, bool backward = true) {
      if (backward) {
        model->zero_grad();
        ddp->forward(group->getRank(), step).backward();
      }
      optimizer.step({rule});
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), size(), step);
      plain.step(*rule);
      optimizer.wait();
      expect_weights(*model, plain.bowl(), 0, "after step " + std::to_string(step));
    };
    take(1);
    take(2);
    if (mode() == GradientMode::kShard) return;  // DistributedDataParallel has to know it
    model->weights[1].set_requires_grad(true);
    plain.bowl().weights[1].set_requires_grad(true);
    ddp = std::make_unique<Ddp>(model, group);
    for (int step = 3; step < 6; ++step) take(step);
    EXPECT_EQ(optimizer.steps(0), (std::vector<int64_t>{5, 3, 5, 5, 5, 5, 5}));
  });
}

// --- dtypes

TEST_P(ShardedOptimizerOver, KeepsHalfParametersInFloat32Too) {
  const std::vector<BowlWeight> specs = {{{300}, at::kBFloat16}, {{7}, at::kHalf}, {{33}}};
  run([&](const Group& group) {
    Rank rank(group, mode(), specs);
    const auto master = bowl({{{300}}, {{7}}, {{33}}});
    const Rule rule = sgd(0.001);  // smaller than what bfloat16 can add
    std::vector<at::Tensor> momenta;
    for (const at::Tensor& weight : master->weights) momenta.push_back(at::zeros_like(weight));
    for (int step = 1; step <= 20; ++step) {
      rank.step(step, rule);
      const c10::NoGradGuard no_grad;
      std::vector<at::Tensor> gradients;
      Bowl rounded(specs);
      for (size_t i = 0; i < 3; ++i) rounded.weights[i].copy_(master->weights[i]);
      average_gradients(rounded, size(), step);
      for (size_t i = 0; i < 3; ++i) gradients.push_back(rounded.weights[i].grad().to(at::kFloat));
      update_parameters(*rule, master->weights, gradients,
                        {{momenta[0]}, {momenta[1]}, {momenta[2]}}, {step, step, step});
      for (size_t i = 0; i < 3; ++i) rounded.weights[i].copy_(master->weights[i]);
      // Sums of halves are rounded at other places than the oracle's.
      rank.expect(rounded, size() == 1 ? 0 : 8e-3, step);
    }
    for (const at::Tensor& piece : rank.optimizer->state(0, "master_parameter")) {
      EXPECT_EQ(piece.scalar_type(), at::kFloat);
    }
  });
}

TEST_P(ShardedOptimizerOver, TakesOverWhatTheProgramSetsHalfParametersTo) {
  run([&](const Group& group) {
    Rank rank(group, mode(), {{{300}, at::kBFloat16}});
    rank.step(1, sgd(0.25, 0));
    rank.optimizer->wait();
    {
      const c10::NoGradGuard no_grad;
      rank.model->weights[0].fill_(3);
    }
    rank.model->zero_grad();
    rank.ddp->forward(rank.rank(), 2).backward();
    rank.optimizer->step({sgd(0, 0)});
    rank.optimizer->wait();
    EXPECT_TRUE(at::equal(rank.model->weights[0], at::full({300}, 3, at::kBFloat16)));
  });
}

TEST_P(ShardedOptimizerOver, StepsComplexParameters) {
  const std::vector<BowlWeight> specs = {{{65}, at::kComplexFloat}, {{3, 5}, at::kComplexDouble}};
  run([&](const Group& group) {
    Rank rank(group, mode(), specs);
    Plain plain(specs);
    for (int step = 1; step <= 5; ++step) {
      rank.step(step, adamw());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), size(), step);
      plain.step(*adamw());
      rank.expect(plain.bowl(), 1e-6, step);
    }
  });
}

// --- groups of parameters and of ranks

std::vector<ShardedOptimizer::Group> two_groups(const Bowl& bowl) {
  auto all = groups_of(bowl).front();
  const auto split = [](const auto& list, size_t from, size_t to) {
    using List = std::decay_t<decltype(list)>;
    return List(list.begin() + static_cast<std::ptrdiff_t>(from),
                list.begin() + static_cast<std::ptrdiff_t>(to));
  };
  const size_t count = all.parameters.size();
  return {{split(all.parameters, 0, 2), split(all.names, 0, 2)},
          {split(all.parameters, 2, count), split(all.names, 2, count)}};
}

TEST_P(ShardedOptimizerOver, HasARuleForEachGroup) {
  run([&](const Group& group) {
    const auto model = bowl();
    Ddp ddp(model, group);
    ShardedOptimizer optimizer(two_groups(*model), group, mode());
    Bowl plain;
    const auto halves = two_groups(plain);
    torch::optim::SGD first(halves[0].parameters, torch::optim::SGDOptions(0.125).momentum(0.5));
    torch::optim::AdamW second(halves[1].parameters,
                               torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    for (int step = 1; step <= 10; ++step) {
      model->zero_grad();
      ddp.forward(group->getRank(), step).backward();
      const double lr = 0.125 / step;
      optimizer.step({sgd(lr), adamw()});
      plain.zero_grad();
      average_gradients(plain, size(), step);
      first.param_groups()[0].options().set_lr(lr);
      first.step();
      second.step();
    }
    optimizer.wait();
    expect_weights(*model, plain, 1e-5, "");
  });
}

TEST_P(ShardedOptimizerOver, TakesMoreGroupsLater) {
  if (mode() == GradientMode::kShard) GTEST_SKIP() << "it has all parameters from the beginning";
  run([&](const Group& group) {
    const auto model = bowl();
    Ddp ddp(model, group);
    auto groups = two_groups(*model);
    ShardedOptimizer optimizer({groups[0]}, group, mode());
    Plain plain;
    for (int step = 1; step <= 8; ++step) {
      if (step == 4) optimizer.add_group(groups[1]);
      model->zero_grad();
      ddp.forward(group->getRank(), step).backward();
      optimizer.step(UpdateRules(step < 4 ? 1 : 2, sgd()));
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), size(), step);
      for (size_t i = 2; step < 4 && i < plain.bowl().weights.size(); ++i) {
        plain.bowl().weights[i].mutable_grad() = at::Tensor();
      }
      plain.step(*sgd());
    }
    optimizer.wait();
    expect_weights(*model, plain.bowl(), 0, "");
    EXPECT_EQ(optimizer.steps(0), (std::vector<int64_t>{8, 8}));
    EXPECT_EQ(optimizer.steps(1), (std::vector<int64_t>{5, 5, 5, 5, 5}));
  });
}

TEST_P(ShardedOptimizerOver, GathersWholeTensors) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Plain plain({{{33, 17}}, {{4, 7, 3, 3}}, {{0}}, {{}}});
    const auto model = bowl({{{33, 17}}, {{4, 7, 3, 3}}, {{0}}, {{}}});
    Ddp ddp(model, group);
    ShardedOptimizer optimizer(groups_of(*model), group, mode());
    for (int step = 1; step <= 3; ++step) {
      model->zero_grad();
      ddp.forward(group->getRank(), step).backward();
      optimizer.step({sgd(0.125, 1)});
    }
    optimizer.wait();
    // With momentum 1 and these steps the buffer tells how far each parameter went in the last.
    for (int to = -1; to < size(); ++to) {
      const auto whole = optimizer.gather(0, optimizer.state(0, "momentum_buffer"), to);
      if (to >= 0 && to != group->getRank()) {
        EXPECT_TRUE(whole.empty());
        continue;
      }
      ASSERT_EQ(whole.size(), 4U);
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(whole[i].sizes(), model->weights[i].sizes());
        EXPECT_EQ(whole[i].strides(), model->weights[i].strides());
      }
    }
    const auto parameters = optimizer.gather(0, optimizer.shards(0), -1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(parameters[i], model->weights[i].detach()));
    }
  });
}

TEST_P(ShardedOptimizerOver, HasShardsOfOneSizeAndStateOfThemAlone) {
  run([&](const Group& group) {
    Rank rank(group, mode(), {{{100, 101}}, {{513}}, {{77}}});
    EXPECT_EQ(rank.optimizer->state_bytes(), 0);
    rank.step(1, adamw());
    const int64_t elements = 100 * 101 + 513 + 77;
    EXPECT_GE(rank.optimizer->state_bytes(), 8 * elements / size());
    EXPECT_LE(rank.optimizer->state_bytes(), 8 * (elements / size() + 4 * 16));
    const auto own = static_cast<uint64_t>(rank.optimizer->state_bytes());
    for (const std::string& bytes : rank.optimizer->all_gather(std::to_string(own))) {
      EXPECT_EQ(bytes, std::to_string(own));
    }
    int64_t in_pieces = 0;
    for (const auto& piece : rank.optimizer->pieces(0)) in_pieces += piece.elements;
    int64_t everywhere = 0;
    for (const std::string& count : rank.optimizer->all_gather(std::to_string(in_pieces))) {
      everywhere += std::stoll(count);
    }
    EXPECT_EQ(everywhere, elements);
  });
}

TEST_P(ShardedOptimizerOver, IsRebuiltForTheSameRanks) {
  run([&](const Group& group) {
    Rank rank(group, mode());
    Plain plain;
    for (int step = 1; step <= 8; ++step) {
      if (step % 3 == 0) {
        rank.optimizer->begin_rebuild({});
        rank.optimizer->finish_rebuild();
      }
      rank.step(step, sgd());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), size(), step);
      plain.step(*sgd());
      rank.expect(plain.bowl(), 0, step);
    }
  });
}

// --- other ranks

class ShardedOptimizerIn : public testing::TestWithParam<GradientMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ShardedOptimizerIn, testing::ValuesIn(kBoth), [](const auto& each) {
  return each.param == GradientMode::kFull ? "Full" : "Shard";
});

/// Those who are left go on with the parameters; the state of the others is gone with them.
TEST_P(ShardedOptimizerIn, TellsWhichStateIsLostWhenRanksAreGone) {
  run_replicas("farandole", 3, [&](const Group& group) {
    Rank rank(group, GetParam());
    rank.step(1, sgd());
    if (rank.rank() == 1) return;
    const Group pair = test::group_around(ProcessGroupFarandole::of(*group)->shrink({1}));
    rank.ddp->set_process_group(pair);
    const std::string text = test::error_of<InvalidArgument>(
        [&] { rank.optimizer->begin_rebuild(GetParam() == GradientMode::kFull ? pair : Group()); });
    EXPECT_THAT(text, HasSubstr("rebuild() cannot find the optimizer state of rank 1 of 3."));
    EXPECT_THAT(text, HasSubstr("load a checkpoint into it"));
    ShardedOptimizer fresh(groups_of(*rank.model), pair, GetParam());
    Plain plain;
    {
      const c10::NoGradGuard no_grad;
      for (size_t i = 0; i < plain.bowl().weights.size(); ++i) {
        plain.bowl().weights[i].copy_(rank.model->weights[i]);
      }
    }
    rank.model->zero_grad();
    rank.ddp->forward(pair->getRank(), 2).backward();
    fresh.step({sgd()});
    average_gradients(plain.bowl(), 2, 2);
    plain.step(*sgd());
    expect_weights(*rank.model, plain.bowl(), 0, "");
  });
}

/// Before the first step there is no state that could be lost.
TEST_P(ShardedOptimizerIn, IsRebuiltForFewerRanksBeforeTheFirstStep) {
  run_replicas("farandole", 3, [&](const Group& group) {
    Rank rank(group, GetParam());
    if (rank.rank() == 0) return;
    rank.group = test::group_around(ProcessGroupFarandole::of(*group)->shrink({0}));
    rank.ddp->set_process_group(rank.group);
    rank.optimizer->begin_rebuild(rank.group);
    rank.optimizer->finish_rebuild();
    Plain plain;
    for (int step = 1; step <= 4; ++step) {
      rank.step(step, sgd());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), 2, step);
      plain.step(*sgd());
      rank.expect(plain.bowl(), 0, step);
    }
  });
}

/// The same ranks in another order and another group: every shard has to travel.
TEST_P(ShardedOptimizerIn, BringsItsStateToAnotherGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_replicas("farandole", 3, [&](const Group& group) {
    Rank rank(group, GetParam());
    Plain plain;
    for (int step = 1; step <= 9; ++step) {
      if (step == 4) {
        rank.group = test::group_around(c10::make_intrusive<ProcessGroupFarandole>(
            store, (rank.rank() + 1) % 3, 3,
            c10::make_intrusive<ProcessGroupFarandole::Options>(std::chrono::seconds(30))));
        rank.ddp->set_process_group(rank.group);
        rank.optimizer->begin_rebuild(rank.group);
        rank.optimizer->finish_rebuild();
        EXPECT_EQ(rank.optimizer->rank(), rank.rank());
        EXPECT_EQ(rank.optimizer->group(), rank.group);
      }
      rank.step(step, adamw());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), 3, step);
      plain.step(*adamw());
    }
    rank.expect(plain.bowl(), 1e-6, 9);
  });
}

TEST(ShardedOptimizer, NeedsARebuildAfterItsModelGotOtherRanks) {
  run_replicas("farandole", 2, [&](const Group& group) {
    Rank rank(group, GradientMode::kShard);
    rank.step(1, sgd());
    if (rank.rank() == 1) return;
    const Group alone = test::group_around(ProcessGroupFarandole::of(*group)->shrink({1}));
    rank.ddp->set_process_group(alone);
    rank.backward(2);
    const std::string text =
        test::error_of<InvalidArgument>([&] { rank.optimizer->step({sgd()}); });
    EXPECT_THAT(text, HasSubstr("the DistributedDataParallel has other ranks than its optimizer."));
  });
}

}  // namespace
}  // namespace farandole
