// SPDX-License-Identifier: Apache-2.0
// What fails on one rank changes nothing on any: every allocation of a rank fails once.
#include "optim/shards/joint_change.h"

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "bowl.h"
#include "farandole/error.h"
#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/sgd.h"
#include "farandole/optim/update_parameters.h"
#include "farandole/optim/zero_redundancy_optimizer.h"

namespace farandole {
namespace {

namespace optim = torch::optim;

using test::Bowl;
using test::bowl;
using test::expect_weights;
using test::run_replicas;
using testing::HasSubstr;

using Rule = std::shared_ptr<const UpdateRule>;
using Zero = ZeroRedundancyOptimizer;

/// Elements enough for each array of a shard to be larger than FailingAllocator::kLeastBytes.
const std::vector<test::BowlWeight> kWeights = {{{37, 21}}, {{1031}}, {{213}, at::kDouble}};

/// Fails once on a thread that asks for it. Messages between ranks are smaller than what it counts.
class FailingAllocator final : public c10::Allocator {
 public:
  static constexpr size_t kLeastBytes = 256;

  /// Which allocation of this thread fails, from 1; 0: none.
  static int& countdown() {
    static thread_local int count = 0;
    return count;
  }
  static void install() {
    static auto* const instance = new FailingAllocator;
    static_cast<void>(instance);
  }

  at::DataPtr allocate(size_t bytes) override {
    if (bytes >= kLeastBytes && countdown() > 0 && --countdown() == 0) throw std::bad_alloc();
    return inner_->allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  FailingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 250); }
  c10::Allocator* const inner_;
};

/// Calls `call` on all ranks, again and again, while ever later allocations of rank 1 fail, until
/// none does. `between`: after each failure.
void survive(const Group& group, const std::function<void()>& call,
             const std::function<void()>& between) {
  FailingAllocator::install();
  for (int attempt = 1;; ++attempt) {
    const bool fails = group->getRank() == 1;
    FailingAllocator::countdown() = fails ? attempt : 0;
    bool is_done = true;
    try {
      call();
    } catch (const std::exception&) {
      is_done = false;
    }
    if (fails && FailingAllocator::countdown() != 0) {
      EXPECT_TRUE(is_done);
    } else if (fails) {
      EXPECT_FALSE(is_done);
    }
    FailingAllocator::countdown() = 0;
    if (is_done) {
      EXPECT_GT(attempt, 1) << "nothing was allocated";
      return;
    }
    between();
  }
}

Rule adam() {
  AdamHyperparameters hyperparameters;
  hyperparameters.lr = 0.01;
  return std::make_shared<AdamRule>(hyperparameters);
}

struct Trained {
  Group group;
  std::shared_ptr<Bowl> model = bowl(kWeights);
  DistributedDataParallel<Bowl> ddp;
  int step = 0;

  explicit Trained(Group of) : group(std::move(of)), ddp(model, group) {}
  void backward() {
    model->zero_grad();
    ddp.forward(group->getRank(), ++step).backward();
  }
  /// What one process comes to in as many steps.
  void expect_as_one(const Rule& rule) const {
    Bowl plain(kWeights);
    std::vector<std::vector<at::Tensor>> states;
    for (const at::Tensor& weight : plain.weights) {
      states.emplace_back();
      for (size_t i = 0; i < rule->state_names().size(); ++i) {
        states.back().push_back(at::zeros_like(weight));
      }
    }
    int64_t count = 0;
    const auto weights = test::trained(plain, group->getSize(), step, [&] {
      const c10::NoGradGuard no_grad;
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& weight : plain.weights) gradients.push_back(weight.grad());
      ++count;
      update_parameters(*rule, plain.weights, gradients, states,
                        std::vector<int64_t>(gradients.size(), count));
    });
    expect_weights(*model, weights.back(), 1e-6, "after step " + std::to_string(step));
  }
};

std::vector<ShardedOptimizer::ParameterGroup> all_of(const Bowl& model) {
  return {{model.weights, test::names_of(model)}};
}

TEST(JointChange, ARebuildThatFailsAnywhereLeavesStateAndParameters) {
  for (const GradientMode mode : test::kBothModes) {
    run_replicas("farandole", 3, [&](const Group& group) {
      Trained trained(group);
      ShardedOptimizer optimizer(all_of(*trained.model), group, mode);
      const auto step = [&] {
        trained.backward();
        optimizer.step({adam()});
      };
      step();
      survive(
          group,
          [&] {
            const int countdown = std::exchange(FailingAllocator::countdown(), 0);
            optimizer.begin_rebuild({});
            FailingAllocator::countdown() = countdown;
            optimizer.finish_rebuild();
          },
          step);
      step();
      trained.expect_as_one(adam());
    });
  }
}

TEST(JointChange, AnInnerOptimizerOutlivesARebuildThatFails) {
  run_replicas("farandole", 2, [&](const Group& group) {
    Trained trained(group);
    int failures = 0;
    Zero optimizer(trained.model->weights, Zero::Factory([&](Zero::Groups groups) {
                     if (failures > 0 && failures-- > 0) throw std::runtime_error("no optimizer");
                     return std::make_unique<optim::SGD>(std::move(groups),
                                                         optim::SGDOptions(0.1).momentum(0.5));
                   }),
                   ZeroOptions{group});
    for (int round = 0; round < 3; ++round) {
      trained.backward();
      optimizer.step();
      failures = group->getRank() == round ? 1 : 0;
      if (round == 2) {
        optimizer.rebuild();
      } else if (failures == 1) {
        EXPECT_THROW(optimizer.rebuild(), std::runtime_error);
      } else {
        const std::string text = test::error_of<StepError>([&] { optimizer.rebuild(); });
        EXPECT_THAT(text, HasSubstr("rebuild() failed on rank " + std::to_string(round)));
        EXPECT_THAT(text, HasSubstr("it met: no optimizer"));
      }
    }
    trained.backward();
    optimizer.step();
    SgdHyperparameters sgd;
    sgd.lr = 0.1;
    sgd.momentum = 0.5;
    trained.expect_as_one(std::make_shared<SgdRule>(sgd));
  });
}

/// A group that is added in the end, after attempts that failed on one rank or the other.
TEST(JointChange, AGroupIsAddedOnAllRanksOrOnNone) {
  run_replicas("farandole", 2, [&](const Group& group) {
    Trained trained(group);
    std::vector<at::Tensor> first(trained.model->weights.begin(), trained.model->weights.end() - 1);
    const at::Tensor last = trained.model->weights.back();
    int failures = 0;
    Zero optimizer(first, Zero::Factory([&](Zero::Groups groups) {
                     if (failures > 0 && failures-- > 0) throw std::runtime_error("no optimizer");
                     return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions(0.1));
                   }),
                   ZeroOptions{group});
    const at::Tensor before = last.detach().clone();
    for (int round = 0; round < 3; ++round) {
      failures = group->getRank() == round ? 1 : 0;
      const auto add = [&] {
        optimizer.add_param_group(
            optim::OptimizerParamGroup({last}, std::make_unique<optim::SGDOptions>(0.1)));
      };
      if (round == 2) {
        add();
      } else if (failures == 1) {
        EXPECT_THROW(add(), std::runtime_error);
      } else {
        EXPECT_THAT(test::error_of<StepError>(add), HasSubstr("add_param_group() failed on rank "));
      }
      EXPECT_EQ(optimizer.param_groups().size(), round == 2 ? 2U : 1U);
      trained.backward();
      optimizer.step();
      EXPECT_EQ(at::equal(before, last), round != 2);
      optimizer.consolidate_state_dict(0);
    }
  });
}

TEST(JointChange, AGroupThatTakesTooMuchMemoryChangesNothing) {
  run_replicas("farandole", 2, [&](const Group& group) {
    Trained trained(group);
    const auto names = test::names_of(*trained.model);
    ShardedOptimizer::ParameterGroup first{{trained.model->weights[0]}, {names[0]}};
    ShardedOptimizer::ParameterGroup rest{{trained.model->weights[1], trained.model->weights[2]},
                                          {names[1], names[2]}};
    ShardedOptimizer optimizer({first}, group, GradientMode::kFull);
    size_t groups = 1;
    const auto step = [&] {
      trained.backward();
      optimizer.step(UpdateRules(groups, adam()));
    };
    survive(
        group, [&] { optimizer.add_group(rest, [&] { at::zeros({1000}); }); },
        [&] {
          EXPECT_THROW(optimizer.pieces(1), InvalidArgument);
          EXPECT_EQ(optimizer.steps(0).size(), 1U);
        });
    groups = 2;
    for (int i = 0; i < 3; ++i) step();
    trained.expect_as_one(adam());
  });
}

TEST(JointChange, NewcomersAreSteppedAfterAFactoryThatFailed) {
  run_replicas("farandole", 2, [&](const Group& group) {
    const auto model = bowl(kWeights);
    model->weights[1].set_requires_grad(false);
    DistributedDataParallel<Bowl> ddp(model, group);
    int failures = 0;
    Zero optimizer(model->weights, Zero::Factory([&](Zero::Groups groups) {
                     if (failures > 0 && failures-- > 0) throw std::runtime_error("no optimizer");
                     return std::make_unique<optim::SGD>(std::move(groups), optim::SGDOptions(0.1));
                   }),
                   ZeroOptions{group});
    model->weights[1].set_requires_grad(true);
    const auto shard_of_rank_0 = [&] { return model->weights[1].detach().narrow(0, 0, 500); };
    const at::Tensor before = shard_of_rank_0().clone();
    failures = group->getRank() == 0 ? 1 : 0;
    for (int step = 1; step < 3; ++step) {
      optimizer.zero_grad();
      ddp.forward(group->getRank(), step).backward();
      if (step == 2) {
        optimizer.step();
      } else if (failures == 1) {
        EXPECT_THROW(optimizer.step(), std::runtime_error);
      } else {
        test::error_of<StepError>([&] { optimizer.step(); });
      }
      EXPECT_EQ(at::equal(before, shard_of_rank_0()), step == 1);
    }
  });
}

/// The others are told before they wait for this rank's part of the norms.
TEST(JointChange, ALayerWiseStepThatFailsOnOneRankChangesNothing) {
  for (const GradientMode mode : test::kBothModes) {
    run_replicas("farandole", 2, [&](const Group& group) {
      Trained trained(group);
      ShardedOptimizer optimizer(all_of(*trained.model), group, mode);
      const Rule lamb = std::make_shared<LambRule>(LambHyperparameters());
      std::vector<at::Tensor> before;
      for (const at::Tensor& weight : trained.model->weights) {
        before.push_back(weight.detach().clone());
      }
      trained.backward();
      int failures = 0;
      survive(
          group,
          [&] {
            try {
              optimizer.step({lamb});  // which makes its state first
            } catch (const StepError& error) {
              EXPECT_NE(group->getRank(), 1);
              EXPECT_THAT(error.what(), HasSubstr("rank 1 met: "));
              EXPECT_THAT(error.what(), HasSubstr("Nothing was changed"));
              throw;
            } catch (const std::bad_alloc&) {
              EXPECT_EQ(group->getRank(), 1);
              throw;
            }
          },
          [&] {
            ++failures;
            expect_weights(*trained.model, before, 0, "after a step that failed");
          });
      EXPECT_GT(failures, 2);
      trained.expect_as_one(lamb);
    });
  }
}

}  // namespace
}  // namespace farandole
