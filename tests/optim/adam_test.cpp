// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/adam.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>

#include "farandole/error.h"
#include "rule_run.h"
#include "support/raised.h"

namespace farandole {
namespace {

using test::error_of;
using test::kOddLengths;
using test::RuleRun;
using test::values;
using testing::HasSubstr;

/// The loop of Python's torch.optim over single tensors, _single_tensor_adam(), operation by
/// operation.
class TorchAdam {
 public:
  TorchAdam(const AdamHyperparameters& adam, const at::Tensor& start)
      : parameter(start.clone()),
        exp_avg(at::zeros_like(start)),
        exp_avg_sq(at::zeros_like(start)),
        max_exp_avg_sq(at::zeros_like(start)),
        adam_(adam) {}

  void step(at::Tensor gradient) {
    ++steps;
    if (adam_.maximize) gradient = -gradient;
    if (adam_.weight_decay != 0 && adam_.decoupled_weight_decay) {
      parameter.mul_(1 - adam_.lr * adam_.weight_decay);
    } else if (adam_.weight_decay != 0) {
      gradient = gradient.add(parameter, adam_.weight_decay);
    }
    exp_avg.lerp_(gradient, 1 - adam_.beta1);
    exp_avg_sq.mul_(adam_.beta2).addcmul_(gradient, gradient, 1 - adam_.beta2);
    const double size = adam_.lr / (1 - std::pow(adam_.beta1, steps));
    const double correction = std::sqrt(1 - std::pow(adam_.beta2, steps));
    at::Tensor square = exp_avg_sq;
    if (adam_.amsgrad) square = at::maximum_out(max_exp_avg_sq, max_exp_avg_sq, exp_avg_sq);
    parameter.addcdiv_(exp_avg, (square.sqrt() / correction).add_(adam_.eps), -size);
  }

  at::Tensor parameter;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;
  int steps = 0;

 private:
  AdamHyperparameters adam_;
};

std::vector<AdamHyperparameters> adam_variants() {
  std::vector<AdamHyperparameters> all;
  for (const bool decoupled : {false, true}) {
    for (const bool amsgrad : {false, true}) {
      for (const double weight_decay : {0.0, 0.013}) {
        all.push_back({0.01, 0.9, 0.999, 1e-8, weight_decay, amsgrad, false, decoupled});
      }
    }
  }
  all.push_back({0.01, 0.3, 0.5, 1e-3, 0.1, false, true, true});  // lerp() from the other end
  return all;
}

/// Whether all elements differ by rounding alone: in each step one of the parameter's last bits,
/// and a few of its change, which is some lr at most.
bool are_near(const RuleRun& run, const TorchAdam& torch, const AdamHyperparameters& adam) {
  const bool is_double = torch.parameter.scalar_type() == at::kDouble;
  const double epsilon = is_double ? std::numeric_limits<double>::epsilon()
                                   : double{std::numeric_limits<float>::epsilon()};
  const at::Tensor expected = torch.parameter.to(at::kDouble);
  const at::Tensor error = (run.parameter().to(at::kDouble) - expected).abs();
  return (error <= torch.steps * epsilon * (expected.abs() + 4 * adam.lr)).all().item<bool>();
}

void expect_like_torch(const AdamHyperparameters& adam, int64_t length, at::ScalarType type) {
  const AdamRule rule(adam);
  RuleRun run(rule, values(length, 0, type));
  TorchAdam torch(adam, values(length, 0, type));
  for (int64_t step = 1; step <= 50; ++step) {
    run.step(rule, values(length, step, type));
    torch.step(values(length, step, type));
  }
  const std::string where = rule.description() + " on " + std::to_string(length);
  EXPECT_TRUE(are_near(run, torch, adam)) << where;
  // With Adam's weight decay the parameters, which differ a little, enter the moments.
  if (adam.weight_decay != 0 && !adam.decoupled_weight_decay) return;
  EXPECT_TRUE(at::equal(run.state(0), torch.exp_avg)) << where;
  EXPECT_TRUE(at::equal(run.state(1), torch.exp_avg_sq)) << where;
  if (!adam.amsgrad) return;
  EXPECT_TRUE(at::equal(run.state(2), torch.max_exp_avg_sq)) << where;
}

TEST(AdamRule, IsTorchsButForRoundingInEveryVariant) {
  at::set_num_threads(1);  // or the square roots of torch wait for a second core
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const AdamHyperparameters& variant : adam_variants()) {
      for (const int64_t length : kOddLengths) expect_like_torch(variant, length, type);
    }
  }
}

/// LibTorch's own optimizers round elsewhere: they multiply and add where Python's interpolate.
template <class Optimizer, class Options>
void expect_near_libtorch(bool decoupled) {
  const AdamRule rule({0.01, 0.9, 0.999, 1e-8, 0.013, false, false, decoupled});
  RuleRun run(rule, values(4097, 0));
  at::Tensor parameter = values(4097, 0).requires_grad_();
  Optimizer optimizer({parameter}, Options(0.01).weight_decay(0.013));
  for (int64_t step = 1; step <= 50; ++step) {
    run.step(rule, values(4097, step));
    parameter.mutable_grad() = values(4097, step);
    optimizer.step();
  }
  EXPECT_LT(error_of(run.parameter(), parameter.detach()), 1e-6);
}

TEST(AdamRule, IsNearLibTorchsAdam) {
  expect_near_libtorch<torch::optim::Adam, torch::optim::AdamOptions>(false);
}

TEST(AdamRule, IsNearLibTorchsAdamW) {
  expect_near_libtorch<torch::optim::AdamW, torch::optim::AdamWOptions>(true);
}

TEST(AdamRule, DoesNotMindHowAParameterIsCut) {
  for (const AdamHyperparameters& variant : adam_variants()) {
    const AdamRule rule(variant);
    RuleRun whole(rule, values(4097, 0), 4097);
    RuleRun cut(rule, values(4097, 0), 37);
    for (int64_t step = 1; step <= 3; ++step) {
      whole.step(rule, values(4097, step));
      cut.step(rule, values(4097, step));
    }
    EXPECT_TRUE(at::equal(whole.parameter(), cut.parameter())) << rule.description();
  }
}

TEST(AdamRule, DividesZeroGradientsByEpsilon) {
  const AdamRule rule({0.1});
  RuleRun run(rule, at::ones({17}));
  run.step(rule, at::zeros({17}));
  EXPECT_TRUE(at::equal(run.parameter(), at::ones({17})));
}

TEST(AdamRule, NamesItsHyperparametersAndStates) {
  AdamHyperparameters adam;
  EXPECT_EQ(AdamRule(adam).description(),
            "Adam(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0, amsgrad=false, "
            "maximize=false)");
  EXPECT_THAT(AdamRule(adam).state_names(), testing::ElementsAre("exp_avg", "exp_avg_sq"));
  adam.decoupled_weight_decay = true;
  adam.amsgrad = true;
  EXPECT_THAT(AdamRule(adam).description(), HasSubstr("AdamW(lr=0.001"));
  EXPECT_THAT(AdamRule(adam).state_names(),
              testing::ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
}

TEST(AdamRule, RefusesWhatTorchRefuses) {
  const auto refused = [](const AdamHyperparameters& adam) {
    return test::raised<InvalidArgument>([&] { AdamRule rule(adam); });
  };
  EXPECT_THAT(refused({-1}), HasSubstr("Adam got lr=-1."));
  EXPECT_THAT(refused({1, 1}), HasSubstr("Adam got beta1=1."));
  EXPECT_THAT(refused({1, 0.9, -0.1}), HasSubstr("Adam got beta2=-0.1."));
  EXPECT_THAT(refused({1, 0.9, 0.9, std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("Adam got eps=nan."));
  EXPECT_THAT(refused({1, 0.9, 0.9, 0, -1, false, false, true}),
              HasSubstr("AdamW got weight_decay=-1."));
}

}  // namespace
}  // namespace farandole
