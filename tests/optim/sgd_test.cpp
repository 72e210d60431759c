// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/sgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "farandole/error.h"
#include "rule_run.h"
#include "support/raised.h"

namespace farandole {
namespace {

using test::kOddLengths;
using test::RuleRun;
using test::values;
using testing::HasSubstr;

/// torch's optimizer, which cannot maximize, on gradients that are negated for it.
class TorchSgd {
 public:
  TorchSgd(const SgdHyperparameters& sgd, const at::Tensor& parameter)
      : parameter_(parameter.clone().requires_grad_()),
        maximizes_(sgd.maximize),
        optimizer_({parameter_}, torch::optim::SGDOptions(sgd.lr)
                                     .momentum(sgd.momentum)
                                     .dampening(sgd.dampening)
                                     .weight_decay(sgd.weight_decay)
                                     .nesterov(sgd.nesterov)) {}

  void step(const at::Tensor& gradient) {
    parameter_.mutable_grad() = maximizes_ ? -gradient : gradient;
    optimizer_.step();
  }
  at::Tensor parameter() const { return parameter_.detach(); }
  at::Tensor momentum_buffer() {
    const auto& state = optimizer_.state().at(parameter_.unsafeGetTensorImpl());
    return static_cast<const torch::optim::SGDParamState&>(*state).momentum_buffer();
  }

 private:
  at::Tensor parameter_;
  bool maximizes_;
  torch::optim::SGD optimizer_;
};

std::vector<SgdHyperparameters> sgd_variants() {
  std::vector<SgdHyperparameters> all;
  for (const bool maximize : {false, true}) {
    for (const double weight_decay : {0.0, 0.013}) {
      all.push_back({0.05, 0, 0, weight_decay, false, maximize});
      all.push_back({0.05, 0.9, 0, weight_decay, false, maximize});
      all.push_back({0.05, 0.9, 0.3, weight_decay, false, maximize});
      all.push_back({0.05, 0.9, 0, weight_decay, true, maximize});
    }
  }
  return all;
}

TEST(SgdRule, GivesTheBitsOfTorchInEveryVariant) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const SgdHyperparameters& variant : sgd_variants()) {
      for (const int64_t length : kOddLengths) {
        const SgdRule rule(variant);
        const at::Tensor start = values(length, 0, type);
        RuleRun run(rule, start);
        TorchSgd torch(variant, start);
        for (int64_t step = 1; step <= 50; ++step) {
          const at::Tensor gradient = values(length, step, type);
          run.step(rule, gradient);
          torch.step(gradient);
        }
        const std::string where = rule.description() + " on " + std::to_string(length);
        ASSERT_TRUE(at::equal(run.parameter(), torch.parameter())) << where;
        if (variant.momentum == 0) continue;
        ASSERT_TRUE(at::equal(run.state(0), torch.momentum_buffer())) << where;
      }
    }
  }
}

TEST(SgdRule, DoesNotMindHowAParameterIsCut) {
  for (const SgdHyperparameters& variant : sgd_variants()) {
    const SgdRule rule(variant);
    const at::Tensor start = values(4097, 0);
    RuleRun whole(rule, start, 4097);
    RuleRun cut(rule, start, 37);
    for (int64_t step = 1; step <= 3; ++step) {
      whole.step(rule, values(4097, step));
      cut.step(rule, values(4097, step));
    }
    EXPECT_TRUE(at::equal(whole.parameter(), cut.parameter())) << rule.description();
  }
}

TEST(SgdRule, KeepsNanAndInfinityWhereTheyAre) {
  const SgdRule rule({0.1});
  at::Tensor gradient = at::ones({40});
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  gradient[20] = std::numeric_limits<float>::infinity();
  RuleRun run(rule, at::ones({40}));
  run.step(rule, gradient);
  EXPECT_TRUE(run.parameter()[3].isnan().item<bool>());
  EXPECT_EQ(run.parameter()[20].item<float>(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(run.parameter().isfinite().sum().item<int64_t>(), 38);
}

TEST(SgdRule, NamesItsHyperparametersAndStates) {
  EXPECT_EQ(SgdRule({0.1}).description(),
            "SGD(lr=0.1, momentum=0, dampening=0, weight_decay=0, nesterov=false, maximize=false)");
  EXPECT_TRUE(SgdRule({0.1}).state_names().empty());
  EXPECT_THAT(SgdRule({0.1, 0.9}).state_names(), testing::ElementsAre("momentum_buffer"));
  EXPECT_EQ(SgdRule({0.1}).sums(), 0);
}

TEST(SgdRule, RefusesWhatTorchRefuses) {
  const auto refused = [](const SgdHyperparameters& sgd) {
    return test::raised<InvalidArgument>([&] { SgdRule rule(sgd); });
  };
  EXPECT_THAT(refused({-1}), HasSubstr("SGD got lr=-1."));
  EXPECT_THAT(refused({std::numeric_limits<double>::quiet_NaN()}), HasSubstr("SGD got lr=nan."));
  EXPECT_THAT(refused({1, -0.5}), HasSubstr("SGD got momentum=-0.5."));
  EXPECT_THAT(refused({1, 0, 0, -2}), HasSubstr("SGD got weight_decay=-2."));
  EXPECT_THAT(refused({1, 0, 0, 0, true}), HasSubstr("nesterov with momentum=0 and dampening=0."));
  EXPECT_THAT(refused({1, 0.9, 0.1, 0, true}), HasSubstr("dampening=0.1."));
}

}  // namespace
}  // namespace farandole
