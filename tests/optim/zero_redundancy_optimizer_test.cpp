// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/zero_redundancy_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <sstream>

#include "bowl.h"
#include "farandole/error.h"
#include "support/forked_child.h"

namespace farandole {
namespace {

namespace optim = torch::optim;

using test::average_gradients;
using test::Bowl;
using test::bowl;
using test::expect_weights;
using test::kBothModes;
using test::run_replicas;
using test::trained;
using testing::HasSubstr;

using Zero = ZeroRedundancyOptimizer;
using Ddp = DistributedDataParallel<Bowl>;

/// What one rank trains.
struct ZeroRank {
  Group group;
  std::shared_ptr<Bowl> model;
  std::unique_ptr<Ddp> ddp;
  std::unique_ptr<Zero> optimizer;

  template <class How>
  ZeroRank(Group of, const How& how, GradientMode mode = GradientMode::kFull,
           const std::vector<test::BowlWeight>& specs = test::kOddWeights)
      : group(std::move(of)), model(bowl(specs)), ddp(std::make_unique<Ddp>(model, group)) {
    ZeroOptions zero;
    zero.gradients = mode;
    optimizer = std::make_unique<Zero>(*ddp, how, zero);
  }
  int rank() const { return group->getRank(); }
  int size() const { return group->getSize(); }
  void backward(int step) {
    optimizer->zero_grad();
    ddp->forward(rank(), step).backward();
  }
  void step(int number) {
    backward(number);
    optimizer->step();
    optimizer->wait();
  }
};

std::string saved(const optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void load(optim::Optimizer& optimizer, const std::string& text) {
  std::istringstream stream(text);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

/// What rank `from` saved, on all ranks.
std::string saved_by(ZeroRank& rank, int from) {
  rank.optimizer->consolidate_state_dict(from);
  const std::string own = rank.rank() == from ? saved(*rank.optimizer) : std::string();
  return rank.optimizer->engine().all_gather(own)[static_cast<size_t>(from)];
}

// --- every optimizer, as LibTorch's

/// An optimizer of LibTorch that has options of a type, or a Factory, by a name.
struct Kind {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(Zero::Groups)> unsharded;
  /// Null: by a Factory.
  std::shared_ptr<optim::OptimizerOptions> options;
  double tolerance;
};

template <class Optimizer, class Options>
Kind kind(std::string name, const Options& options, double tolerance, bool by_factory = false) {
  return {
      std::move(name),
      [=](Zero::Groups groups) { return std::make_unique<Optimizer>(std::move(groups), options); },
      by_factory ? nullptr : std::make_shared<Options>(options), tolerance};
}

std::vector<Kind> kinds() {
  return {
      kind<optim::SGD>("SGD", SGDOptions(0.1).momentum(0.9).nesterov(true), 0),
      kind<optim::SGD>("SGDWithoutMomentum", SGDOptions(0.1), 0),
      kind<optim::Adam>("Adam", AdamOptions(0.05).weight_decay(0.01), 1e-5),
      kind<optim::Adam>("AMSGrad", AdamOptions(0.05).amsgrad(true), 1e-5),
      kind<optim::AdamW>("AdamW", AdamWOptions(0.05), 1e-5),
      kind<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.05).momentum(0.5).centered(true),
                           1e-5),
      kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1).initial_accumulator_value(0.5),
                           1e-5),
      kind<optim::AdamW>("AdamWByFactory", AdamWOptions(0.05), 1e-5, true),
      kind<optim::RMSprop>("RMSpropByFactory", optim::RMSpropOptions(0.05), 1e-5, true),
  };
}

Zero::Groups one_group(const std::vector<at::Tensor>& parameters) {
  Zero::Groups groups;
  groups.emplace_back(parameters);
  return groups;
}

std::unique_ptr<ZeroRank> rank_of(const Group& group, const Kind& kind, GradientMode mode) {
  if (kind.options) return std::make_unique<ZeroRank>(group, *kind.options, mode);
  return std::make_unique<ZeroRank>(group, kind.unsharded, mode);
}

class Each : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Each, testing::ValuesIn(kinds()),
                         [](const auto& each) { return each.param.name; });

TEST_P(Each, TrainsAsLibTorchsOwn) {
  for (const int size : {1, 3}) {
    Bowl plain;
    const auto unsharded = GetParam().unsharded(one_group(plain.weights));
    const auto expected = trained(plain, size, 50, [&] { unsharded->step(); });
    for (const GradientMode mode : kBothModes) {
      run_replicas("farandole", size, [&](const Group& group) {
        const auto rank = rank_of(group, GetParam(), mode);
        for (int step = 1; step <= 50; ++step) rank->step(step);
        expect_weights(*rank->model, expected.back(), GetParam().tolerance,
                       "of " + std::to_string(size));
      });
    }
  }
}

/// LibTorch's optimizer goes on from what the sharded one saved.
TEST_P(Each, IsSavedForLibTorchsOwn) {
  run_replicas("farandole", 3, [&](const Group& group) {
    const auto rank = rank_of(group, GetParam(), GradientMode::kFull);
    for (int step = 1; step <= 4; ++step) rank->step(step);
    const std::string archive = saved_by(*rank, 1);
    Bowl plain;
    const auto unsharded = GetParam().unsharded(one_group(plain.weights));
    {
      const c10::NoGradGuard no_grad;
      for (size_t i = 0; i < plain.weights.size(); ++i)
        plain.weights[i].copy_(rank->model->weights[i]);
    }
    load(*unsharded, archive);
    for (int step = 5; step <= 8; ++step) {
      rank->step(step);
      plain.zero_grad();
      average_gradients(plain, 3, step);
      unsharded->step();
    }
    expect_weights(*rank->model, plain.weights, GetParam().tolerance, "after loading");
  });
}

/// And the other way, onto another number of ranks; also its learning rate.
TEST_P(Each, GoesOnFromWhatLibTorchsOwnSaved) {
  Bowl plain;
  const auto unsharded = GetParam().unsharded(one_group(plain.weights));
  const auto before = trained(plain, 2, 4, [&] { unsharded->step(); });
  unsharded->param_groups()[0].options().set_lr(0.025);
  const std::string archive = saved(*unsharded);
  for (int step = 5; step <= 8; ++step) {
    plain.zero_grad();
    average_gradients(plain, 2, step);
    unsharded->step();
  }
  for (const GradientMode mode : kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      const auto rank = rank_of(group, GetParam(), mode);
      rank->step(1);  // which is forgotten
      {
        const c10::NoGradGuard no_grad;
        for (size_t i = 0; i < before[3].size(); ++i) rank->model->weights[i].copy_(before[3][i]);
      }
      load(*rank->optimizer, archive);
      EXPECT_EQ(rank->optimizer->param_groups()[0].options().get_lr(), 0.025);
      for (int step = 5; step <= 8; ++step) rank->step(step);
      expect_weights(*rank->model, plain.weights, GetParam().tolerance, "after loading");
    });
  }
}

TEST_P(Each, IsRebuilt) {
  Bowl plain;
  const auto unsharded = GetParam().unsharded(one_group(plain.weights));
  const auto expected = trained(plain, 2, 6, [&] { unsharded->step(); });
  run_replicas("farandole", 2, [&](const Group& group) {
    const auto rank = rank_of(group, GetParam(), GradientMode::kFull);
    for (int step = 1; step <= 6; ++step) {
      if (step % 2 == 1) rank->optimizer->rebuild();
      rank->step(step);
    }
    expect_weights(*rank->model, expected.back(), GetParam().tolerance, "");
  });
}

// --- what takes an optimizer of LibTorch

TEST(ZeroRedundancyOptimizer, FollowsAScheduler) {
  Bowl plain;
  optim::SGD unsharded(plain.weights, SGDOptions(0.25));
  optim::StepLR unsharded_scheduler(unsharded, 2, 0.5);
  const auto expected = trained(plain, 2, 6, [&] {
    unsharded.step();
    unsharded_scheduler.step();
  });
  run_replicas("farandole", 2, [&](const Group& group) {
    ZeroRank rank(group, SGDOptions(0.25));
    optim::StepLR scheduler(*rank.optimizer, 2, 0.5);
    for (int step = 1; step <= 6; ++step) {
      rank.step(step);
      scheduler.step();
    }
    expect_weights(*rank.model, expected.back(), 0, "");
  });
}

TEST(ZeroRedundancyOptimizer, HasOptionsForEachGroup) {
  const auto groups_of = [](const Bowl& of) {
    Zero::Groups groups;
    groups.emplace_back(std::vector<at::Tensor>{of.weights.begin(), of.weights.begin() + 3});
    groups.emplace_back(std::vector<at::Tensor>{of.weights.begin() + 3, of.weights.end()},
                        std::make_unique<SGDOptions>(SGDOptions(0.5).momentum(0.5)));
    return groups;
  };
  Bowl plain;
  optim::SGD unsharded(groups_of(plain), SGDOptions(0.125));
  const auto expected = trained(plain, 2, 4, [&] { unsharded.step(); });
  run_replicas("farandole", 2, [&](const Group& group) {
    const auto model = bowl();
    Ddp ddp(model, group);
    Zero optimizer(groups_of(*model), SGDOptions(0.125), ZeroOptions{group});
    for (int step = 1; step <= 4; ++step) {
      optimizer.zero_grad();
      ddp.forward(group->getRank(), step).backward();
      optimizer.step();
    }
    expect_weights(*model, expected.back(), 0, "");
    EXPECT_EQ(static_cast<SGDOptions&>(optimizer.defaults()).lr(), 0.125);
  });
}

/// Groups come by the class's own method or by LibTorch's.
TEST(ZeroRedundancyOptimizer, TakesMoreGroups) {
  for (const bool is_fused : {true, false}) {
    for (const bool by_base : {true, false}) {
      run_replicas("farandole", 2, [&](const Group& group) {
        const auto model = bowl();
        Ddp ddp(model, group);
        Bowl plain;
        const std::vector<at::Tensor> first{model->weights[0], model->weights[1]};
        std::unique_ptr<Zero> optimizer;
        std::unique_ptr<optim::Optimizer> unsharded;
        if (is_fused) {
          optimizer = std::make_unique<Zero>(first, AdamOptions(0.1), ZeroOptions{group});
          unsharded = std::make_unique<optim::Adam>(
              std::vector<at::Tensor>{plain.weights[0], plain.weights[1]}, AdamOptions(0.1));
        } else {
          optimizer = std::make_unique<Zero>(first, optim::RMSpropOptions(0.1), ZeroOptions{group});
          unsharded = std::make_unique<optim::RMSprop>(
              std::vector<at::Tensor>{plain.weights[0], plain.weights[1]},
              optim::RMSpropOptions(0.1));
        }
        for (int step = 1; step <= 6; ++step) {
          if (step == 3) {
            const optim::OptimizerParamGroup more({model->weights[2], model->weights[5]});
            if (by_base) {
              static_cast<optim::Optimizer&>(*optimizer).add_param_group(more);
            } else {
              optimizer->add_param_group(more);
            }
            unsharded->add_param_group(
                optim::OptimizerParamGroup({plain.weights[2], plain.weights[5]}));
          }
          model->zero_grad();
          ddp.forward(group->getRank(), step).backward();
          optimizer->step();
          plain.zero_grad();
          average_gradients(plain, 2, step);
          unsharded->step();
        }
        expect_weights(*model, plain.weights, 1e-5, "");
      });
    }
  }
}

TEST(ZeroRedundancyOptimizer, ReturnsWhatAClosureReturns) {
  run_replicas("farandole", 2, [](const Group& group) {
    ZeroRank rank(group, SGDOptions(0.25));
    const c10::NoGradGuard no_grad;  // of the caller
    const at::Tensor loss = rank.optimizer->step([&] {
      rank.optimizer->zero_grad();
      at::Tensor value = rank.ddp->forward(rank.rank(), 1);
      value.backward();
      return value.detach();
    });
    EXPECT_GT(loss.item<double>(), 0);
  });
}

TEST(ZeroRedundancyOptimizer, TellsAllRanksOfAClosureThatThrew) {
  run_replicas("farandole", 2, [](const Group& group) {
    ZeroRank rank(group, SGDOptions(0.25));
    const auto step = [&] {
      rank.optimizer->step([&]() -> at::Tensor {
        if (rank.rank() == 1) throw std::out_of_range("no more data");
        return {};
      });
    };
    if (rank.rank() == 1) {
      EXPECT_THROW(step(), std::out_of_range);
    } else {
      EXPECT_THAT(test::error_of<StepError>(step), HasSubstr("rank 1 met: no more data"));
    }
    rank.step(2);  // goes on
  });
}

/// An optimizer of a Factory that throws in its step on one rank.
class Moody final : public optim::SGD {
 public:
  Moody(Zero::Groups groups, bool throws) : SGD(groups, SGDOptions(0.25)), throws_(throws) {}
  at::Tensor step(LossClosure closure) override {
    if (std::exchange(throws_, false)) throw std::runtime_error("not today");
    return SGD::step(closure);
  }

 private:
  bool throws_;
};

TEST(ZeroRedundancyOptimizer, TellsAllRanksOfAnInnerStepThatThrew) {
  run_replicas("farandole", 2, [](const Group& group) {
    const bool throws = group->getRank() == 0;
    ZeroRank rank(group, Zero::Factory([&](Zero::Groups groups) {
                    return std::make_unique<Moody>(std::move(groups), throws);
                  }));
    rank.backward(1);
    if (throws) {
      EXPECT_THROW(rank.optimizer->step(), std::runtime_error);
    } else {
      EXPECT_THAT(test::error_of<StepError>([&] { rank.optimizer->step(); }),
                  HasSubstr("rank 0 met: not today"));
    }
    rank.step(2);
  });
}

TEST(ZeroRedundancyOptimizer, ClipsInBothModes) {
  for (const GradientMode mode : kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      ZeroRank rank(group, SGDOptions(1), mode, {{{3}}});
      const at::Tensor before = rank.model->weights[0].detach().clone();
      rank.backward(1);
      EXPECT_GT(rank.optimizer->clip_grad_norm_(0.5), 0.5);
      rank.optimizer->step();
      const at::Tensor change = rank.model->weights[0].detach() - before;
      EXPECT_NEAR(change.norm().item<double>(), 0.5, 1e-5);
      rank.backward(2);
      rank.optimizer->clip_grad_value_(0.25);
      const at::Tensor middle = rank.model->weights[0].detach().clone();
      rank.optimizer->step();
      EXPECT_LE((rank.model->weights[0].detach() - middle).abs().max().item<double>(), 0.2501);
    });
  }
}

/// A rank whose inputs have ended steps with the others.
TEST(ZeroRedundancyOptimizer, GoesOnWithRanksThatHaveJoined) {
  for (const GradientMode mode : kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      ZeroRank rank(group, SGDOptions(0.125).momentum(0.5), mode);
      for (int step = 1; step <= (rank.rank() == 0 ? 5 : 2); ++step) rank.step(step);
      rank.ddp->join([&] { rank.optimizer->step(); });
      const auto sum = std::to_string(rank.model->weights[0].sum().item<float>());
      for (const std::string& each : rank.optimizer->engine().all_gather(sum)) {
        EXPECT_EQ(each, sum);
      }
    });
  }
}

/// Two models that each have an optimizer, and one passes through the other.
TEST(ZeroRedundancyOptimizer, TrainsTwoModelsAgainstEachOther) {
  for (const GradientMode mode : kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      const auto make = [] {
        const auto net = torch::nn::Linear(4, 4);
        const c10::NoGradGuard no_grad;
        net->weight.copy_(test::drawn(net->weight, 1));
        net->bias.copy_(test::drawn(net->bias, 2));
        return net;
      };
      DistributedDataParallel generator(make(), group);
      DistributedDataParallel critic(make(), group);
      ZeroOptions zero;
      zero.gradients = mode;
      Zero of_generator(generator, AdamOptions(0.01), zero);
      Zero of_critic(critic, AdamOptions(0.01), zero);
      for (int step = 1; step <= 4; ++step) {
        const at::Tensor noise = test::drawn(at::empty({8, 4}), 10 * step + group->getRank());
        of_critic.zero_grad();
        const at::Tensor fake = generator.forward(noise);
        critic.forward(fake.detach()).square().mean().backward();
        of_critic.step();
        of_generator.zero_grad();
        critic.forward(fake).square().mean().neg().backward();
        of_generator.step();
      }
      const auto sum = std::to_string(generator.module()->weight.sum().item<float>()) + " " +
                       std::to_string(critic.module()->weight.sum().item<float>());
      for (const std::string& each : of_critic.engine().all_gather(sum)) EXPECT_EQ(each, sum);
    });
  }
}

TEST(ZeroRedundancyOptimizer, CountsTheBytesOfItsState) {
  for (const Kind& each : kinds()) {
    if (each.name != "Adam" && each.name != "RMSprop" && each.name != "Adagrad") continue;
    run_replicas("farandole", 2, [&](const Group& group) {
      const auto rank = rank_of(group, each, GradientMode::kFull);
      rank->step(1);
      const int64_t elements = 33 * 17 + 1031 + 1 + 4 * 7 * 9 + 2 * (15 + 129);  // of float32
      const int64_t arrays = each.name == "Adam" ? 2 : each.name == "RMSprop" ? 3 : 1;
      EXPECT_NEAR(static_cast<double>(rank->optimizer->state_bytes()),
                  static_cast<double>(4 * arrays * elements) / 2,
                  static_cast<double>(4 * arrays * elements) / 10);
    });
  }
}

// --- archives

TEST(ZeroRedundancyOptimizer, KeepsTheFloat32ValuesOfHalfParametersInArchives) {
  for (const bool is_fused : {true, false}) {
    run_replicas("farandole", 2, [&](const Group& group) {
      const std::vector<test::BowlWeight> specs = {
          {{40}, at::kBFloat16}, {{9}}, {{5, 3}, at::kHalf}};
      const auto make = [&] {
        if (is_fused)
          return std::make_unique<ZeroRank>(group, AdamWOptions(0.001), kBothModes[0], specs);
        return std::make_unique<ZeroRank>(group, optim::RMSpropOptions(0.001), kBothModes[0],
                                          specs);
      };
      const auto rank = make();
      for (int step = 1; step <= 3; ++step) rank->step(step);
      const std::string archive = saved_by(*rank, 0);
      const auto other = make();
      {
        const c10::NoGradGuard no_grad;
        for (size_t i = 0; i < 3; ++i) other->model->weights[i].copy_(rank->model->weights[i]);
      }
      load(*other->optimizer, archive);
      for (int step = 4; step <= 6; ++step) {
        rank->step(step);
        other->step(step);
      }
      expect_weights(*other->model, rank->model->weights, 0, "");
      // LibTorch's optimizer reads it too, without those values.
      Bowl plain(specs);
      if (is_fused) {
        optim::AdamW unsharded(plain.weights, AdamWOptions(0.1));
        load(unsharded, archive);
      }
    });
  }
}

/// What was loaded is saved again before a step, also where there is nothing but those values.
TEST(ZeroRedundancyOptimizer, SavesTheFloat32ValuesThatItHasLoaded) {
  const auto check = [](const Group& group, const auto& how) {
    const std::vector<test::BowlWeight> specs = {{{40}, at::kBFloat16}, {{5, 3}, at::kHalf}};
    ZeroRank rank(group, how, kBothModes[0], specs);
    for (int step = 1; step <= 3; ++step) rank.step(step);
    const std::string archive = saved_by(rank, 0);
    ZeroRank other(group, how, kBothModes[0], specs);
    ZeroRank third(group, how, kBothModes[0], specs);
    for (ZeroRank* const next : {&other, &third}) {
      const c10::NoGradGuard no_grad;
      for (size_t i = 0; i < 2; ++i) next->model->weights[i].copy_(rank.model->weights[i]);
    }
    load(*other.optimizer, archive);
    load(*third.optimizer, saved_by(other, 0));
    for (int step = 4; step <= 9; ++step) {
      rank.step(step);
      third.step(step);
    }
    expect_weights(*third.model, rank.model->weights, 0, "");
  };
  run_replicas("farandole", 2, [&](const Group& group) {
    check(group, SGDOptions(0.001));
    check(group, SGDOptions(0.001).momentum(0.9));
    check(group, LarsOptions(1.0).momentum(0));
    check(group, optim::RMSpropOptions(0.001));
    const Zero::Factory factory = [](Zero::Groups groups) {
      return std::make_unique<optim::SGD>(std::move(groups), SGDOptions(0.001));
    };
    check(group, factory);
  });
}

TEST(ZeroRedundancyOptimizer, LeavesAForkedChildTensorsOfItsOwn) {
#ifdef FARANDOLE_SANITIZED_THREAD
  GTEST_SKIP() << "after forks of several threads ThreadSanitizer takes memory that malloc gives "
                  "from one to another for a race";
#endif
  for (const GradientMode mode : kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      const c10::NoGradGuard no_grad;
      ZeroRank rank(group, SGDOptions(0.1).momentum(0.9), mode);
      const auto step = [&](int number) {
        const c10::AutoGradMode with_grad(true);
        rank.step(number);
      };
      step(1);
      step(2);
      std::vector<at::Tensor> tensors;
      std::vector<at::Tensor> before;
      for (const at::Tensor& weight : rank.model->weights) {
        tensors.push_back(weight);
        tensors.push_back(weight.grad());
      }
      for (const at::Tensor& tensor : tensors) before.push_back(tensor.detach().clone());
      const auto are_as_before = [&] {
        return std::equal(tensors.begin(), tensors.end(), before.begin(), before.end(),
                          [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
      };
      group->barrier()->wait();
      test::ForkedChild child([&] {
        if (!are_as_before()) return false;
        for (const at::Tensor& tensor : tensors) tensor.fill_(7);
        return true;
      });
      EXPECT_TRUE(child.succeeded());
      group->barrier()->wait();
      EXPECT_TRUE(are_as_before());
      group->barrier()->wait();
      for (int number = 3; number < 6; ++number) step(number);
      Bowl plain;
      optim::SGD alone(plain.weights, SGDOptions(0.1).momentum(0.9));
      const c10::AutoGradMode with_grad(true);
      const auto weights = trained(plain, 2, 5, [&] { alone.step(); });
      expect_weights(*rank.model, weights.back(), 0, "after children");
    });
  }
}

template <class Options>
void expect_resumed(const Options& options) {
  run_replicas("farandole", 2, [&](const Group& group) {
    ZeroRank rank(group, options);
    for (int step = 1; step <= 3; ++step) rank.step(step);
    const std::string archive = saved_by(rank, 1);
    ZeroRank other(group, options);
    {
      const c10::NoGradGuard no_grad;
      for (size_t i = 0; i < other.model->weights.size(); ++i) {
        other.model->weights[i].copy_(rank.model->weights[i]);
      }
    }
    load(*other.optimizer, archive);
    for (int step = 4; step <= 6; ++step) {
      rank.step(step);
      other.step(step);
    }
    expect_weights(*other.model, rank.model->weights, 0, "");
  });
}

TEST(ZeroRedundancyOptimizer, SavesLambAndLars) {
  expect_resumed(LambOptions(0.01));
  expect_resumed(LarsOptions(0.1));
}

/// A parameter that was trained, and is frozen where the archive is read.
TEST(ZeroRedundancyOptimizer, LoadsTheStateOfFrozenParameters) {
  run_replicas("farandole", 2, [](const Group& group) {
    ZeroRank rank(group, AdamOptions(0.1));
    for (int step = 1; step <= 2; ++step) rank.step(step);
    const std::string archive = saved_by(rank, 0);
    const auto model = bowl();
    model->weights[1].set_requires_grad(false);
    Ddp ddp(model, group);
    Zero other(ddp, AdamOptions(0.1));
    load(other, archive);
    other.consolidate_state_dict(1);
    if (group->getRank() != 1) return;
    const auto& state = other.state().at(model->weights[1].unsafeGetTensorImpl());
    EXPECT_EQ(static_cast<const optim::AdamParamState&>(*state).step(), 2);
    EXPECT_GT(static_cast<const optim::AdamParamState&>(*state).exp_avg_sq().sum().item<float>(),
              0);
  });
}

TEST(ZeroRedundancyOptimizer, SavesOnlyWhereTheStateIs) {
  run_replicas("farandole", 2, [](const Group& group) {
    ZeroRank rank(group, AdamOptions(0.1));
    rank.step(1);
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { saved(*rank.optimizer); }),
                HasSubstr("which does not have the whole optimizer state."));
    rank.optimizer->consolidate_state_dict(1);
    if (rank.rank() == 0) {
      test::error_of<InvalidArgument>([&] { saved(*rank.optimizer); });
    } else {
      EXPECT_FALSE(saved(*rank.optimizer).empty());
    }
    rank.step(2);
    test::error_of<InvalidArgument>([&] { saved(*rank.optimizer); });
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { rank.optimizer->consolidate_state_dict(2); }),
                HasSubstr("consolidate_state_dict() got to=2."));
  });
}

TEST(ZeroRedundancyOptimizer, RefusesArchivesThatDoNotFit) {
  run_replicas("farandole", 1, [](const Group& group) {
    ZeroRank rank(group, AdamOptions(0.1));
    const auto text_of = [&](const std::string& archive) {
      return test::error_of<InvalidArgument>([&] { load(*rank.optimizer, archive); });
    };
    Bowl plain;
    optim::Adam fewer(std::vector<at::Tensor>{plain.weights[0]}, AdamOptions(0.1));
    EXPECT_THAT(text_of(saved(fewer)), HasSubstr("load() got an archive that does not match"));
    std::vector<at::Tensor> turned(plain.weights.rbegin(), plain.weights.rend());
    optim::Adam other(turned, AdamOptions(0.1));
    average_gradients(plain, 1, 1);
    other.step();
    EXPECT_THAT(text_of(saved(other)), HasSubstr("load() got 'exp_avg' with 129 elements for "
                                                 "parameter 0 of group 0."));
    optim::Adam same(plain.weights, AdamOptions(0.1));
    same.step();
    static_cast<AdamOptions&>(same.param_groups()[0].options()).amsgrad(true);
    EXPECT_THAT(text_of(saved(same)), HasSubstr("without 'max_exp_avg_sq'"));
  });
}

// --- misuse, and what nobody knows

/// Options and states of an optimizer that Farandole does not know.
struct OwnOptions : optim::OptimizerCloneableOptions<OwnOptions> {
  double lr = 0.25;
  double get_lr() const override { return lr; }
  void set_lr(const double value) override { lr = value; }
};
class Own final : public optim::Optimizer {
 public:
  explicit Own(const Zero::Groups& groups) : Optimizer(groups, std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure) override {
    const c10::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (auto& parameter : group.params()) {
        if (parameter.grad().defined()) parameter.sub_(parameter.grad(), group.options().get_lr());
      }
    }
    return {};
  }
};

TEST(ZeroRedundancyOptimizer, RefusesOptimizersThatItCannotShard) {
  run_replicas("farandole", 1, [](const Group& group) {
    const at::Tensor weight = at::ones({3}).requires_grad_();
    const auto text_of = [&](const auto& how) {
      return test::error_of<InvalidArgument>(
          [&] { Zero(std::vector<at::Tensor>{weight}, how, ZeroOptions{group}); });
    };
    EXPECT_THAT(text_of(optim::LBFGSOptions()),
                HasSubstr("ZeroRedundancyOptimizer cannot shard torch::optim::LBFGSOptions."));
    EXPECT_THAT(text_of(Zero::Factory([](const Zero::Groups& groups) {
                  return std::make_unique<optim::LBFGS>(groups);
                })),
                HasSubstr("ZeroRedundancyOptimizer cannot shard torch::optim::LBFGSOptions."));
    EXPECT_THAT(text_of(Zero::Factory([](const Zero::Groups&) { return nullptr; })),
                HasSubstr("the factory did not make an optimizer"));
    EXPECT_THAT(text_of(OwnOptions()), HasSubstr("ZeroRedundancyOptimizer got options of type "));
    Zero::Groups groups = one_group({weight});
    groups[0].set_options(std::make_unique<SGDOptions>(0.1));
    EXPECT_THAT(test::error_of<InvalidArgument>(
                    [&] { Zero(groups, AdamOptions(0.1), ZeroOptions{group}); }),
                HasSubstr("parameter group 0 has options of type torch::optim::SGDOptions."));
    Zero optimizer(std::vector<at::Tensor>{weight}, AdamOptions(0.1), ZeroOptions{group});
    groups[0].params() = {at::ones({3}).requires_grad_()};
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { optimizer.add_param_group(groups[0]); }),
                HasSubstr("parameter group 1 has options of type torch::optim::SGDOptions."));
    EXPECT_EQ(optimizer.param_groups().size(), 1U);
  });
}

TEST(ZeroRedundancyOptimizer, RefusesParametersThatWereExchanged) {
  run_replicas("farandole", 1, [](const Group& group) {
    ZeroRank rank(group, AdamOptions(0.1));
    rank.optimizer->param_groups()[0].params().push_back(at::ones({3}).requires_grad_());
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { rank.step(1); }),
                HasSubstr("the parameters of group 0 were replaced, or others were added."));
    EXPECT_THAT(
        test::error_of<InvalidArgument>([&] {
          rank.optimizer->add_param_group(optim::OptimizerParamGroup({rank.model->weights[0]}));
        }),
        HasSubstr("parameter 'weight0' was passed twice."));
    EXPECT_EQ(rank.optimizer->param_groups().size(), 1U);
  });
}

/// Needs a parameter in its shape: a row of its gradient is taken less the mean of rows.
class Centered final : public optim::Optimizer {
 public:
  explicit Centered(const Zero::Groups& groups)
      : Optimizer(groups, std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure) override {
    const c10::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (auto& parameter : group.params()) {
        const at::Tensor& gradient = parameter.grad();
        if (!gradient.defined()) continue;
        EXPECT_EQ(gradient.sizes(), parameter.sizes());
        const bool has_rows = parameter.dim() > 1;
        parameter.sub_(has_rows ? gradient - gradient.mean(0, true) : gradient,
                       group.options().get_lr());
      }
    }
    return {};
  }
};

TEST(ZeroRedundancyOptimizer, GivesOtherClassesWholeParameters) {
  Bowl plain;
  Centered unsharded(one_group(plain.weights));
  const auto expected = trained(plain, 3, 4, [&] { unsharded.step(nullptr); });
  for (const std::string backend : {"farandole", "foreign"}) {
    for (const GradientMode mode : kBothModes) {
      run_replicas(backend, 3, [&](const Group& group) {
        ZeroRank rank(group, Zero::Factory([](const Zero::Groups& groups) {
                        return std::make_unique<Centered>(groups);
                      }),
                      mode);
        EXPECT_EQ(rank.optimizer->engine().partition(), Partition::kParameters);
        for (int step = 1; step <= 4; ++step) rank.step(step);
        expect_weights(*rank.model, expected.back(), 1e-5, backend);
      });
    }
  }
}

TEST(ZeroRedundancyOptimizer, DividesWholeParametersIfAsked) {
  Bowl plain;
  optim::RMSprop unsharded(plain.weights, optim::RMSpropOptions(0.05).momentum(0.5));
  const auto expected = trained(plain, 2, 6, [&] { unsharded.step(); });
  run_replicas("farandole", 2, [&](const Group& group) {
    const auto model = bowl();
    Ddp ddp(model, group);
    ZeroOptions zero;
    zero.partition = Partition::kParameters;
    Zero optimizer(ddp, optim::RMSpropOptions(0.05).momentum(0.5), zero);
    std::string archive;
    for (int step = 1; step <= 6; ++step) {
      optimizer.zero_grad();
      ddp.forward(group->getRank(), step).backward();
      optimizer.step();
      if (step == 3) {
        optimizer.rebuild();
        optimizer.consolidate_state_dict(1);
        const std::string own = group->getRank() == 1 ? saved(optimizer) : std::string();
        archive = optimizer.engine().all_gather(own)[1];
        load(optimizer, archive);
      }
    }
    expect_weights(*model, expected.back(), 1e-5, "");
    Bowl other;
    optim::RMSprop libtorchs(other.weights, optim::RMSpropOptions(0.05).momentum(0.5));
    load(libtorchs, archive);
  });
}

TEST(ZeroRedundancyOptimizer, LetsTheNextForwardWaitForParameters) {
  Bowl plain;
  optim::SGD unsharded(plain.weights, SGDOptions(0.25));
  const auto expected = trained(plain, 2, 4, [&] { unsharded.step(); });
  for (const GradientMode mode : kBothModes) {
    run_replicas("foreign", 2, [&](const Group& group) {
      const auto model = bowl();
      Ddp ddp(model, group);
      ZeroOptions zero;
      zero.gradients = mode;
      zero.overlap_with_ddp = true;
      Zero optimizer(ddp, SGDOptions(0.25), zero);
      EXPECT_TRUE(optimizer.engine().sends_parameters());
      for (int step = 1; step <= 4; ++step) {
        optimizer.zero_grad();
        const auto loss = ddp.forward(group->getRank(), step);
        EXPECT_FALSE(optimizer.engine().is_sending());
        loss.backward();
        optimizer.step();
        EXPECT_TRUE(optimizer.engine().is_sending());
      }
      optimizer.wait();
      EXPECT_FALSE(optimizer.engine().is_sending());
      expect_weights(*model, expected.back(), 1e-5, "");
    });
  }
}

TEST(ZeroRedundancyOptimizer, RunsAnyElementWiseOptimizer) {
  Bowl plain;
  optim::SGD unsharded(plain.weights, SGDOptions(0.25));
  const auto expected = trained(plain, 2, 4, [&] { unsharded.step(); });
  run_replicas("farandole", 2, [&](const Group& group) {
    ZeroRank rank(group, Zero::Factory([](const Zero::Groups& groups) {
                    return std::make_unique<Own>(groups);
                  }));
    rank.optimizer->rebuild();  // there is nothing that it could lose
    for (int step = 1; step <= 4; ++step) rank.step(step);
    expect_weights(*rank.model, expected.back(), 0, "");
    EXPECT_THAT(test::error_of<NotSupported>([&] { rank.optimizer->consolidate_state_dict(); }),
                HasSubstr("the state of an optimizer with "));
    test::error_of<NotSupported>([&] { rank.optimizer->rebuild(); });
    rank.optimizer->param_groups()[0].options().set_lr(0.25 + rank.rank());
    rank.backward(5);
    EXPECT_THAT(test::error_of<StepError>([&] { rank.optimizer->step(); }),
                HasSubstr("OwnOptions(lr=1.25)"));
  });
}

}  // namespace
}  // namespace farandole
