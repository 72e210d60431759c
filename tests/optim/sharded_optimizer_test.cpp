// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/sharded_optimizer.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
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
using test::kBothModes;
using test::run_replicas;
using test::trained;
using testing::HasSubstr;

using Ddp = DistributedDataParallel<Bowl>;
using Rule = std::shared_ptr<const UpdateRule>;

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
class PlainOptimizer {
 public:
  explicit PlainOptimizer(const std::vector<BowlWeight>& specs = test::kOddWeights)
      : bowl_(specs) {}

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

std::vector<ShardedOptimizer::ParameterGroup> groups_of(const Bowl& bowl) {
  return {{bowl.weights, test::names_of(bowl)}};
}

/// What one rank trains.
struct ShardedRank {
  Group group;
  std::shared_ptr<Bowl> model;
  std::unique_ptr<Ddp> ddp;
  std::unique_ptr<ShardedOptimizer> optimizer;

  ShardedRank(Group of, GradientMode mode, const std::vector<BowlWeight>& specs = test::kOddWeights)
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
  void expect(const std::vector<at::Tensor>& weights, double tolerance, int step) {
    optimizer->wait();
    expect_weights(*model, weights, tolerance, where(step));
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
                         testing::Combine(testing::Values("farandole"),
                                          testing::ValuesIn(kBothModes),
                                          testing::Values(1, 2, 3, 4)),
                         name_of);
// There DistributedDataParallel multiplies by 1 / ranks, which has other bits for 3.
INSTANTIATE_TEST_SUITE_P(Messages, ShardedOptimizerOver,
                         testing::Combine(testing::Values("foreign"), testing::ValuesIn(kBothModes),
                                          testing::Values(2, 4)),
                         name_of);

// --- 50 steps as an unsharded optimizer takes them

TEST_P(ShardedOptimizerOver, StepsAsLibTorchsSgdToTheLastBit) {
  Bowl plain;
  torch::optim::SGD unsharded(
      plain.weights,
      torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
  const auto expected = trained(plain, size(), 50, [&] { unsharded.step(); });
  SgdHyperparameters sgd;
  sgd.lr = 0.05;
  sgd.momentum = 0.9;
  sgd.weight_decay = 0.01;
  sgd.nesterov = true;
  const Rule rule = std::make_shared<SgdRule>(sgd);
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
    for (int step = 1; step <= 50; ++step) {
      rank.step(step, rule);
      rank.expect(expected[static_cast<size_t>(step - 1)], 0, step);
    }
  });
}

TEST_P(ShardedOptimizerOver, StepsAsLibTorchsAdamW) {
  Bowl plain;
  torch::optim::AdamW unsharded(plain.weights, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  const auto expected = trained(plain, size(), 50, [&] { unsharded.step(); });
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
    for (int step = 1; step <= 50; ++step) rank.step(step, adamw());
    rank.expect(expected.back(), 1e-5, 50);
  });
}

/// A selection, for they are the slowest.
class LayerWise : public ShardedOptimizerOver {};
INSTANTIATE_TEST_SUITE_P(Selection, LayerWise,
                         testing::Values(std::make_tuple("farandole", GradientMode::kFull, 2),
                                         std::make_tuple("farandole", GradientMode::kShard, 3),
                                         std::make_tuple("foreign", GradientMode::kFull, 4),
                                         std::make_tuple("foreign", GradientMode::kShard, 1)),
                         name_of);

TEST_P(LayerWise, MeasuresWholeParametersForLambAndLars) {
  const Rule rules[] = {std::make_shared<LambRule>(LambHyperparameters{}),
                        std::make_shared<LarsRule>(LarsHyperparameters{})};
  for (const Rule& rule : rules) {
    PlainOptimizer plain;
    const auto expected = trained(plain.bowl(), size(), 50, [&] { plain.step(*rule); });
    run([&](const Group& group) {
      ShardedRank rank(group, mode());
      for (int step = 1; step <= 50; ++step) rank.step(step, rule);
      rank.expect(expected.back(), 1e-5, 50);
    });
  }
}

/// Whatever changes shards() between begin_step() and end_step() is what all ranks get.
TEST_P(ShardedOptimizerOver, LetsOthersStepItsShards) {
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
    Bowl plain;
    torch::optim::SGD unsharded(plain.weights, torch::optim::SGDOptions(0.25));
    const std::vector<at::Tensor> shards = rank.optimizer->shards(0);
    for (int step = 1; step <= 5; ++step) {
      rank.backward(step);
      EXPECT_FALSE(rank.optimizer->begin_step("descent"));
      for (const at::Tensor& shard : shards) {
        const c10::NoGradGuard no_grad;
        shard.sub_(shard.grad(), 0.25);
      }
      rank.optimizer->end_step();
      plain.zero_grad();
      average_gradients(plain, size(), step);
      unsharded.step();
      rank.expect(plain.weights, 0, step);
    }
  });
}

// --- gradients: clipped, accumulated, missing

TEST_P(ShardedOptimizerOver, ClipsTheNormOfAllGradients) {
  const std::vector<BowlWeight> specs = {
      {{33, 17}}, {{1031}}, {{4, 7, 3, 3}}, {{129}, at::kDouble}};
  for (const double norm_type : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
    run([&](const Group& group) {
      ShardedRank rank(group, mode(), specs);
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
      rank.expect(plain.weights, 1e-5, 3);
    });
  }
}

TEST_P(ShardedOptimizerOver, ClipsValues) {
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
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
      rank.expect(plain.weights, 0, step);
    }
  });
}

TEST_P(ShardedOptimizerOver, AddsPassesUpUnderNoSync) {
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
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
      rank.expect(plain.weights, 1e-6, step);
    }
  });
}

/// A clip between two backward passes is a clip of what was there.
TEST_P(ShardedOptimizerOver, ClipsWhatLaterPassesAddTo) {
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
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
    rank.expect(plain.weights, 1e-5, 1);
  });
}

TEST_P(ShardedOptimizerOver, PlansFrozenParametersWhenTheyGetAGradient) {
  run([&](const Group& group) {
    const auto model = bowl();
    model->weights[1].set_requires_grad(false);
    PlainOptimizer plain;
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
      expect_weights(*model, plain.bowl().weights, 0, "after step " + std::to_string(step));
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
    ShardedRank rank(group, mode(), specs);
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
      rank.expect(rounded.weights, size() == 1 ? 0 : 8e-3, step);
    }
    for (const at::Tensor& piece : rank.optimizer->state(0, "master_parameter")) {
      EXPECT_EQ(piece.scalar_type(), at::kFloat);
    }
  });
}

TEST_P(ShardedOptimizerOver, TakesOverWhatTheProgramSetsHalfParametersTo) {
  run([&](const Group& group) {
    ShardedRank rank(group, mode(), {{{300}, at::kBFloat16}});
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
    ShardedRank rank(group, mode(), specs);
    PlainOptimizer plain(specs);
    for (int step = 1; step <= 5; ++step) {
      rank.step(step, adamw());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), size(), step);
      plain.step(*adamw());
      rank.expect(plain.bowl().weights, 1e-6, step);
    }
  });
}

// --- groups of parameters and of ranks

std::vector<ShardedOptimizer::ParameterGroup> two_groups(const Bowl& bowl) {
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
    expect_weights(*model, plain.weights, 1e-5, "");
  });
}

TEST_P(ShardedOptimizerOver, GathersWholeTensors) {
  run([&](const Group& group) {
    ShardedRank rank(group, mode());
    PlainOptimizer plain({{{33, 17}}, {{4, 7, 3, 3}}, {{0}}, {{}}});
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
    ShardedRank rank(group, mode(), {{{100, 101}}, {{513}}, {{77}}});
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
    ShardedRank rank(group, mode());
    PlainOptimizer plain;
    for (int step = 1; step <= 8; ++step) {
      if (step % 3 == 0) {
        rank.optimizer->begin_rebuild({});
        rank.optimizer->finish_rebuild();
      }
      rank.step(step, sgd());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), size(), step);
      plain.step(*sgd());
      rank.expect(plain.bowl().weights, 0, step);
    }
  });
}

// --- other ranks

class ShardedOptimizerIn : public testing::TestWithParam<GradientMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ShardedOptimizerIn, testing::ValuesIn(kBothModes),
                         [](const auto& each) {
                           return each.param == GradientMode::kFull ? "Full" : "Shard";
                         });

/// Those who are left go on with the parameters; the state of the others is gone with them.
TEST_P(ShardedOptimizerIn, TellsWhichStateIsLostWhenRanksAreGone) {
  run_replicas("farandole", 3, [&](const Group& group) {
    ShardedRank rank(group, GetParam());
    rank.step(1, sgd());
    if (rank.rank() == 1) return;
    const Group pair = test::group_around(ProcessGroupFarandole::of(*group)->shrink({1}));
    rank.ddp->set_process_group(pair);
    const std::string text = test::error_of<InvalidArgument>(
        [&] { rank.optimizer->begin_rebuild(GetParam() == GradientMode::kFull ? pair : Group()); });
    EXPECT_THAT(text, HasSubstr("rebuild() cannot find the optimizer state of rank 1 of 3."));
    EXPECT_THAT(text, HasSubstr("load a checkpoint into it"));
    ShardedOptimizer fresh(groups_of(*rank.model), pair, GetParam());
    PlainOptimizer plain;
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
    expect_weights(*rank.model, plain.bowl().weights, 0, "");
  });
}

/// Before the first step there is no state that could be lost.
TEST_P(ShardedOptimizerIn, IsRebuiltForFewerRanksBeforeTheFirstStep) {
  run_replicas("farandole", 3, [&](const Group& group) {
    ShardedRank rank(group, GetParam());
    if (rank.rank() == 0) return;
    rank.group = test::group_around(ProcessGroupFarandole::of(*group)->shrink({0}));
    rank.ddp->set_process_group(rank.group);
    rank.optimizer->begin_rebuild(rank.group);
    rank.optimizer->finish_rebuild();
    PlainOptimizer plain;
    for (int step = 1; step <= 4; ++step) {
      rank.step(step, sgd());
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), 2, step);
      plain.step(*sgd());
      rank.expect(plain.bowl().weights, 0, step);
    }
  });
}

/// It is there without a step, when it was loaded.
TEST_P(ShardedOptimizerIn, TellsWhichLoadedStateIsLost) {
  run_replicas("farandole", 2, [&](const Group& group) {
    ShardedRank rank(group, GetParam(), {{{33}}});
    rank.optimizer->make_state({sgd()});
    rank.optimizer->set_steps(0, {7});
    if (rank.rank() == 0) return;
    const Group alone = test::group_around(ProcessGroupFarandole::of(*group)->shrink({0}));
    rank.ddp->set_process_group(alone);
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { rank.optimizer->begin_rebuild(alone); }),
                HasSubstr("rebuild() cannot find the optimizer state of rank 0 of 2."));
  });
}

/// The same ranks in another order and another group: every shard has to travel.
TEST_P(ShardedOptimizerIn, BringsItsStateToAnotherGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_replicas("farandole", 3, [&](const Group& group) {
    ShardedRank rank(group, GetParam());
    PlainOptimizer plain;
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
    rank.expect(plain.bowl().weights, 1e-6, 9);
  });
}

void take_groups_later(const std::string& backend, int world_size) {
  run_replicas(backend, world_size, [&](const Group& group) {
    const auto model = bowl();
    Ddp ddp(model, group);
    auto groups = two_groups(*model);
    ShardedOptimizer optimizer({groups[0]}, group, GradientMode::kFull);
    PlainOptimizer plain;
    for (int step = 1; step <= 8; ++step) {
      if (step == 4) optimizer.add_group(groups[1]);
      model->zero_grad();
      ddp.forward(group->getRank(), step).backward();
      optimizer.step(UpdateRules(step < 4 ? 1 : 2, sgd()));
      plain.bowl().zero_grad();
      average_gradients(plain.bowl(), world_size, step);
      for (size_t i = 2; step < 4 && i < plain.bowl().weights.size(); ++i) {
        plain.bowl().weights[i].mutable_grad() = at::Tensor();
      }
      plain.step(*sgd());
    }
    optimizer.wait();
    expect_weights(*model, plain.bowl().weights, 0, "");
    EXPECT_EQ(optimizer.steps(0), (std::vector<int64_t>{8, 8}));
    EXPECT_EQ(optimizer.steps(1), (std::vector<int64_t>{5, 5, 5, 5, 5}));
  });
}

/// With kShard it has all parameters from the beginning.
TEST(ShardedOptimizer, TakesMoreGroupsLater) {
  take_groups_later("farandole", 1);
  take_groups_later("farandole", 3);
  take_groups_later("foreign", 2);
}

TEST(ShardedOptimizer, NeedsARebuildAfterItsModelGotOtherRanks) {
  run_replicas("farandole", 2, [&](const Group& group) {
    ShardedRank rank(group, GradientMode::kShard);
    rank.step(1, sgd());
    if (rank.rank() == 1) return;
    const Group alone = test::group_around(ProcessGroupFarandole::of(*group)->shrink({1}));
    rank.ddp->set_process_group(alone);
    rank.backward(2);
    const std::string text =
        test::error_of<InvalidArgument>([&] { rank.optimizer->step({sgd()}); });
    EXPECT_THAT(text,
                HasSubstr("the DistributedDataParallel and its optimizer have different ranks."));
  });
}

// --- ranks that do not step alike

/// What each rank throws in `step`, then a step that goes well.
std::vector<std::string> texts_of_step(const std::string& backend, int world_size,
                                       GradientMode mode,
                                       const std::function<void(ShardedRank&)>& step,
                                       const std::vector<BowlWeight>& specs = {{{33}}, {{77}}}) {
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  run_replicas(backend, world_size, [&](const Group& group) {
    ShardedRank rank(group, mode, specs);
    rank.step(1, sgd());
    rank.backward(2);
    try {
      step(rank);
    } catch (const std::exception& error) {
      texts[static_cast<size_t>(rank.rank())] = error.what();
    }
    rank.step(3, sgd(0.25));
    rank.optimizer->wait();
    for (const std::string& sum :
         rank.optimizer->all_gather(std::to_string(rank.model->weights[0].sum().item<float>()))) {
      EXPECT_EQ(sum, std::to_string(rank.model->weights[0].sum().item<float>()));
    }
  });
  return texts;
}

class RanksThatStep : public testing::TestWithParam<std::tuple<std::string, GradientMode>> {
 protected:
  std::vector<std::string> texts(int world_size,
                                 const std::function<void(ShardedRank&)>& step) const {
    return texts_of_step(std::get<0>(GetParam()), world_size, std::get<1>(GetParam()), step);
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, RanksThatStep,
                         testing::Combine(testing::Values("farandole", "foreign"),
                                          testing::ValuesIn(kBothModes)),
                         [](const auto& each) {
                           return std::get<0>(each.param) +
                                  (std::get<1>(each.param) == GradientMode::kFull ? "Full"
                                                                                  : "Shard");
                         });

TEST_P(RanksThatStep, HearWhatOneMetBeforeAStep) {
  const auto texts = this->texts(3, [](ShardedRank& rank) {
    if (rank.rank() == 1) return rank.optimizer->fail_step("a closure that went wrong");
    rank.optimizer->step({sgd()});
  });
  EXPECT_EQ(texts[1], "");
  for (const size_t rank : {0U, 2U}) {
    EXPECT_THAT(texts[rank], HasSubstr("optimizer step #2 in group 'default"));
    EXPECT_THAT(texts[rank], HasSubstr("failed on rank 1."));
    EXPECT_THAT(texts[rank], HasSubstr("\nwhy: rank 1 met: a closure that went wrong"));
    EXPECT_THAT(texts[rank], HasSubstr("Nothing was changed, so the step can be repeated."));
  }
}

TEST_P(RanksThatStep, HearWhatOneMetInAStep) {
  const auto texts = this->texts(3, [](ShardedRank& rank) {
    rank.optimizer->begin_step("by hand");
    if (rank.rank() == 2) return rank.optimizer->fail_step("no more of this");
    rank.optimizer->end_step();
  });
  EXPECT_EQ(texts[2], "");
  for (const size_t rank : {0U, 1U}) {
    EXPECT_THAT(texts[rank], HasSubstr("failed on rank 2."));
    EXPECT_THAT(texts[rank], HasSubstr("rank 2 met: no more of this"));
    EXPECT_THAT(texts[rank], HasSubstr("the shards of that rank may not have been stepped"));
  }
}

/// LAMB; where `fails`, the first measure() ends in an exception after it has read its block.
class LambThatFailsOnce final : public UpdateRule {
 public:
  explicit LambThatFailsOnce(bool fails) : fails_(fails) {}

  std::string description() const override { return lamb_.description(); }
  std::vector<std::string> state_names() const override { return lamb_.state_names(); }
  int sums() const override { return lamb_.sums(); }
  void measure(const UpdateBlock<float>& block, const StepContext& context,
               double* sums) const override {
    lamb_.measure(block, context, sums);
    if (fails_.exchange(false)) throw std::runtime_error("no memory");
  }
  void update(const UpdateBlock<float>& block, const StepContext& context) const override {
    lamb_.update(block, context);
  }
  void update(const UpdateBlock<double>& /*block*/, const StepContext& /*context*/) const override {
  }

 private:
  const LambRule lamb_{LambHyperparameters{}};
  mutable std::atomic<bool> fails_;
};

/// A step that one rank's measure() ends is as if it had not been: states, step numbers and what
/// clips and scalers have left to it.
TEST_P(RanksThatStep, RepeatAStepThatOneCouldNotMeasure) {
  const auto& [backend, mode] = GetParam();
  run_replicas(backend, 3, [mode = mode](const Group& group) {
    ShardedRank rank(group, mode);
    ShardedRank undisturbed(group, mode);
    const Rule lamb = std::make_shared<LambThatFailsOnce>(false);
    for (int step = 1; step <= 3; ++step) {
      for (ShardedRank* const each : {&undisturbed, &rank}) {
        each->backward(step);
        each->optimizer->clip_grad_norm(0.5, 2, false);
        each->optimizer->expect_scaled({1, 0.25, true});
      }
      undisturbed.optimizer->step({lamb});
      if (step == 2) {
        const std::vector<int64_t> steps = rank.optimizer->steps(0);
        const bool fails = rank.rank() == 1;
        const Rule rule = std::make_shared<LambThatFailsOnce>(fails);
        const auto attempt = [&] { rank.optimizer->step({rule}); };
        if (fails) {
          EXPECT_THROW(attempt(), std::runtime_error);
        } else {
          EXPECT_THAT(test::error_of<StepError>(attempt),
                      HasSubstr("Nothing was changed, so the step can be repeated."));
        }
        EXPECT_EQ(rank.optimizer->steps(0), steps);
        rank.optimizer->expect_scaled({1, 0.25, true});
      }
      rank.optimizer->step({lamb});
    }
    undisturbed.optimizer->wait();
    rank.optimizer->wait();
    expect_weights(*rank.model, undisturbed.model->weights, 0, rank.where(3));
    for (const std::string& name : lamb->state_names()) {
      const auto own = rank.optimizer->state(0, name);
      const auto expected = undisturbed.optimizer->state(0, name);
      for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], expected[i])) << name;
    }
  });
}

TEST_P(RanksThatStep, HaveTheSameHyperparameters) {
  const auto texts = this->texts(
      2, [](ShardedRank& rank) { rank.optimizer->step({sgd(rank.rank() == 0 ? 0.25 : 0.5)}); });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("ranks 0 and 1 have different hyperparameters."));
    EXPECT_THAT(text, HasSubstr("rank 0 steps with SGD(lr=0.25, "));
    EXPECT_THAT(text, HasSubstr("rank 1 with SGD(lr=0.5, "));
    EXPECT_THAT(text, HasSubstr("\nfix: set param_groups and step schedulers the same way"));
  }
}

TEST_P(RanksThatStep, HaveTheSameGradients) {
  const auto texts = this->texts(3, [](ShardedRank& rank) {
    if (rank.rank() == 1) rank.model->weights[1].mutable_grad() = at::Tensor();
    rank.optimizer->step({sgd()});
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("parameter 'weight1' has a gradient on ranks 0 and 2 and none on "
                                "rank 1."));
    EXPECT_THAT(text, HasSubstr("\nfix: give it a gradient on all ranks or on none"));
  }
}

// --- ranks that die

/// Rank 1 is killed at a point of its second step. One of the others hears it from the system, and
/// all within the limit.
void kill_in_step(bool inside) {
  const std::string path = testing::TempDir() + "/farandole_sharded_optimizer_test_" +
                           std::to_string(::getpid()) + (inside ? "_inside" : "_before");
  const auto body = [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    InitOptions options;
    options.rank = communicator.rank();
    options.world_size = communicator.world_size();
    options.init_method = "file://" + path;
    init_process_group(options);
    const at::Tensor weight = at::ones({4099}).requires_grad_();
    weight.mutable_grad() = at::ones({4099});
    ShardedOptimizer optimizer({{{weight}, {"weight"}}}, {}, GradientMode::kFull);
    optimizer.step({sgd()});
    communicator.barrier();
    if (communicator.rank() == 1) {
      if (inside) optimizer.begin_step(sgd()->description());
      ::kill(::getpid(), SIGKILL);
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = test::error_of<CommError>([&] { optimizer.step({sgd()}); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, test::detection_limit());
    EXPECT_THAT(text, HasSubstr("rank 1"));
    destroy();
  };
  test::run_process_ranks(3, body, {Config(), {1}});
  std::remove(path.c_str());
}

TEST(ShardedOptimizer, TellsOfARankThatDiedBeforeAStep) { kill_in_step(false); }
TEST(ShardedOptimizer, TellsOfARankThatDiedInAStep) { kill_in_step(true); }

// --- misuse

std::string refused(const std::vector<ShardedOptimizer::ParameterGroup>& groups, const Group& group,
                    GradientMode mode = GradientMode::kFull) {
  return test::error_of<InvalidArgument>([&] { ShardedOptimizer(groups, group, mode); });
}

TEST(ShardedOptimizer, RefusesWhatItCannotStep) {
  run_replicas("farandole", 1, [](const Group& group) {
    const at::Tensor weight = at::ones({3}).requires_grad_();
    EXPECT_THAT(refused({}, group), HasSubstr("a sharded optimizer got no parameters."));
    EXPECT_THAT(refused({{{weight, weight}, {"a", "b"}}}, group),
                HasSubstr("parameter 'b' was passed twice."));
    EXPECT_THAT(refused({{{weight}, {"a"}}, {{weight}, {"b"}}}, group),
                HasSubstr("parameter 'b' was passed twice."));
    EXPECT_THAT(refused({{{weight * 2}, {"a"}}}, group), HasSubstr("'a' is not a parameter"));
    EXPECT_THAT(refused({{{at::ones({3}, at::kInt)}, {"a"}}}, group),
                HasSubstr("parameter 'a' is of dtype Int."));
    EXPECT_THAT(refused({{{weight.detach().to_sparse()}, {"a"}}}, group),
                HasSubstr("parameter 'a' is of dtype Float and sparse."));
  });
}

TEST(ShardedOptimizer, RefusesParametersOfOtherShapes) {
  run_replicas("farandole", 2, [](const Group& group) {
    const at::Tensor weight = at::ones({3 + group->getRank()}).requires_grad_();
    EXPECT_THAT(refused({{{weight}, {"a"}}}, group),
                HasSubstr("the parameters of ranks 0 and 1 in group 'default"));
  });
}

/// Sizes and strides of both shapes add up to the same polynomial of base 31.
TEST(ShardedOptimizer, RefusesShapesThatAWeakHashTakesForTheSame) {
  run_replicas("farandole", 2, [](const Group& group) {
    const auto shape =
        group->getRank() == 0 ? std::vector<int64_t>{64, 1024} : std::vector<int64_t>{32, 1985};
    const at::Tensor weight = at::ones(shape).requires_grad_();
    EXPECT_THAT(refused({{{weight}, {"a"}}}, group),
                HasSubstr("the parameters of ranks 0 and 1 in group 'default"));
  });
}

TEST(ShardedOptimizer, RefusesOtherValuesInTheFirstStep) {
  run_replicas("farandole", 2, [](const Group& group) {
    const at::Tensor weight = at::full({3}, group->getRank(), at::kFloat).requires_grad_();
    ShardedOptimizer optimizer({{{weight}, {"a"}}}, group, GradientMode::kFull);
    weight.mutable_grad() = at::ones({3});
    const auto step = [&] { optimizer.step({std::make_shared<SgdRule>(SgdHyperparameters())}); };
    EXPECT_THAT(test::error_of<InvalidArgument>(step),
                HasSubstr("the parameters of ranks 0 and 1 in group 'default"));
    weight.detach().fill_(1);
    EXPECT_NO_THROW(step());
  });
}

TEST(ShardedOptimizer, LeavesAveragingToTheModelUnlessItHasAllOfIt) {
  run_replicas("farandole", 1, [](const Group& group) {
    const auto model = bowl();
    const auto other = bowl();
    Ddp ddp(model, group);
    auto groups = groups_of(*model);
    EXPECT_THAT(refused(groups_of(*other), group, GradientMode::kShard),
                HasSubstr("got parameters that do not all belong to one DistributedDataParallel."));
    groups[0].parameters.pop_back();
    groups[0].names.pop_back();
    EXPECT_THAT(refused(groups, group, GradientMode::kShard),
                HasSubstr("gradients=\"shard\" did not get parameter 'weight6'."));
    run_replicas("farandole", 1, [&](const Group& another) {
      EXPECT_THAT(refused(groups_of(*model), another, GradientMode::kShard),
                  HasSubstr("got a different process group than the DistributedDataParallel."));
    });
  });
}

/// As in sum_of_squares.h, each operation rounded by itself.
double norm_by_hand(const at::Tensor& values) {
  double lanes[16] = {};
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double value = values.const_data_ptr<double>()[i];
    const volatile double square = value * value;
    lanes[i % 16] += square;
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return std::sqrt(lanes[0]);
}

TEST(ShardedOptimizer, NormsHaveTheSameBitsWhateverTheCpuFuses) {
  run_replicas("farandole", 1, [](const Group& group) {
    ShardedRank rank(group, GradientMode::kFull, {{{333}, at::kDouble}});
    for (int step = 1; step <= 30; ++step) {
      const at::Tensor gradient = (at::arange(333, at::kDouble) * (0.37 + step)).sin();
      rank.model->weights[0].mutable_grad() = gradient;
      EXPECT_EQ(rank.optimizer->clip_grad_norm(1e9, 2, false), norm_by_hand(gradient));
    }
  });
}

TEST(ShardedOptimizer, RefusesCallsThatDoNotFit) {
  run_replicas("farandole", 1, [](const Group& group) {
    ShardedRank rank(group, GradientMode::kFull);
    ShardedOptimizer& optimizer = *rank.optimizer;
    const auto text_of = [](const std::function<void()>& call) {
      return test::error_of<InvalidArgument>(call);
    };
    EXPECT_THAT(text_of([&] { optimizer.end_step(); }),
                HasSubstr("end_step() was called outside of a step."));
    EXPECT_THAT(text_of([&] { optimizer.step({}); }),
                HasSubstr("step() got 0 rules for 1 parameter groups."));
    EXPECT_THAT(text_of([&] { optimizer.pieces(1); }), HasSubstr("there is no parameter group 1."));
    EXPECT_THAT(text_of([&] { optimizer.gather(0, {}, 1); }), HasSubstr("gather() got rank 1."));
    EXPECT_THAT(text_of([&] { optimizer.set_steps(0, {1}); }),
                HasSubstr("set_steps() got 1 numbers."));
    EXPECT_THAT(text_of([&] { optimizer.clip_grad_norm(1, 0, false); }),
                HasSubstr("clip_grad_norm_() got max_norm 1"));
    EXPECT_THAT(text_of([&] { optimizer.clip_grad_value(-1); }),
                HasSubstr("clip_grad_value_() got -1"));
  });
}

TEST(ShardedOptimizer, RefusesGradientsThatItCannotUse) {
  run_replicas("farandole", 1, [](const Group& group) {
    const at::Tensor weight = at::ones({3, 2}).requires_grad_();
    ShardedOptimizer optimizer({{{weight}, {"w"}}}, group, GradientMode::kFull);
    weight.mutable_grad() = at::ones({3, 2}).to_sparse();
    EXPECT_THAT(test::error_of<NotSupported>([&] { optimizer.step({sgd()}); }),
                HasSubstr("parameter 'w' has a sparse gradient."));
    weight.mutable_grad() = at::ones({3, 2});
    weight.set_data(at::ones({4, 2}));
    test::error_of<InvalidArgument>([&] { optimizer.step({sgd()}); });
  });
}

TEST(ShardedOptimizer, NeedsGradientsOfTheModelToAverageThemItself) {
  run_replicas("farandole", 1, [](const Group& group) {
    ShardedRank rank(group, GradientMode::kShard);
    rank.model->weights[0].mutable_grad() = at::ones_like(rank.model->weights[0]);
    EXPECT_THAT(
        test::error_of<InvalidArgument>([&] { rank.optimizer->step({sgd()}); }),
        HasSubstr("the gradient of parameter 'weight0' is in memory that other ranks cannot"));
    rank.step(1, sgd());
    rank.backward(2);
    rank.optimizer->clip_grad_value(1);
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { rank.ddp->forward(0, 3).backward(); }),
                HasSubstr("a backward came between clip_grad_value_() and step()."));
  });
}

TEST(ShardedOptimizer, ThrowsOnANormThatIsNoNumberIfAsked) {
  run_replicas("farandole", 2, [](const Group& group) {
    ShardedRank rank(group, GradientMode::kFull);
    rank.backward(1);
    rank.model->weights[0].mutable_grad().fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(rank.optimizer->clip_grad_norm(1, 2, false)));
    EXPECT_THAT(
        test::error_of<InvalidArgument>([&] { rank.optimizer->clip_grad_norm(1, 2, true); }),
        HasSubstr("the norm of the gradients is nan."));
  });
}

/// The parameters stay, in memory that they keep.
TEST(ShardedOptimizer, MayGoBeforeItsModelAndAfterIt) {
  for (const GradientMode mode : kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      ShardedRank rank(group, mode);
      rank.step(1, sgd());
      rank.optimizer.reset();
      rank.backward(2);
      rank.optimizer = std::make_unique<ShardedOptimizer>(groups_of(*rank.model), group, mode);
      rank.step(3, sgd());
      rank.ddp.reset();
      rank.optimizer.reset();
      EXPECT_TRUE(std::isfinite(rank.model->weights[0].sum().item<float>()));
    });
  }
}

}  // namespace
}  // namespace farandole
