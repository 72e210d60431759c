// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

/// The formula of lars.h, element by element in float64.
class PlainLars {
 public:
  PlainLars(const LarsHyperparameters& lars, const at::Tensor& start)
      : parameter(start.to(at::kDouble)), lars_(lars), b_(static_cast<size_t>(start.numel())) {}

  void step(const at::Tensor& gradient) {
    const at::Tensor wide = gradient.to(at::kDouble);
    const double* const g = wide.const_data_ptr<double>();
    double* const p = parameter.data_ptr<double>();
    double p_square = 0;
    double g_square = 0;
    for (size_t i = 0; i < b_.size(); ++i) {
      p_square += p[i] * p[i];
      g_square += g[i] * g[i];
    }
    const double p_norm = std::sqrt(p_square);
    const double g_norm = std::sqrt(g_square);
    const double below = g_norm + lars_.weight_decay * p_norm + lars_.eps;
    const bool has_norms = p_norm > 0 && g_norm > 0;
    const double local_lr = has_norms ? lars_.trust_coefficient * p_norm / below : 1;
    for (size_t i = 0; i < b_.size(); ++i) {
      const double d = local_lr * ((lars_.maximize ? -g[i] : g[i]) + lars_.weight_decay * p[i]);
      b_[i] = is_first_ ? d : lars_.momentum * b_[i] + (1 - lars_.dampening) * d;
      const double step = lars_.nesterov ? d + lars_.momentum * b_[i] : b_[i];
      p[i] -= lars_.lr * (lars_.momentum == 0 ? d : step);
    }
    is_first_ = false;
  }

  at::Tensor parameter;

 private:
  LarsHyperparameters lars_;
  std::vector<double> b_;
  bool is_first_ = true;
};

std::vector<LarsHyperparameters> lars_variants() {
  return {{0.5},
          {0.5, 0, 0, 0.01},
          {0.5, 0.9, 0, 0.01, true},
          {0.5, 0.9, 0.2, 0.01, false, 0.02, 1e-3},
          {0.5, 0.9, 0, 0.01, false, 0.001, 1e-8, true}};
}

TEST(LarsRule, FollowsTheFormula) {
  for (const LarsHyperparameters& variant : lars_variants()) {
    for (const int64_t length : kOddLengths) {
      const LarsRule rule(variant);
      RuleRun narrow(rule, values(length, 0));
      RuleRun wide(rule, values(length, 0, at::kDouble));
      PlainLars plain(variant, values(length, 0, at::kDouble));
      for (int64_t step = 1; step <= 50; ++step) {
        narrow.step(rule, values(length, step));
        wide.step(rule, values(length, step, at::kDouble));
        plain.step(values(length, step, at::kDouble));
      }
      EXPECT_LT(error_of(wide.parameter(), plain.parameter), 1e-12) << rule.description();
      EXPECT_LT(error_of(narrow.parameter(), plain.parameter), 1e-5) << rule.description();
    }
  }
}

TEST(LarsRule, HasALocalRateOfOneWhereANormIsZero) {
  const LarsRule rule({0.5, 0.9, 0, 0.25});
  RuleRun from_zero(rule, at::zeros({17}));
  from_zero.step(rule, at::ones({17}));
  EXPECT_TRUE(at::equal(from_zero.parameter(), at::full({17}, -0.5)));
  RuleRun no_gradient(rule, at::ones({17}));
  no_gradient.step(rule, at::zeros({17}));
  EXPECT_TRUE(at::equal(no_gradient.parameter(), at::full({17}, 0.875)));
}

TEST(LarsRule, SumsNearlyTheSameHoweverAParameterIsCut) {
  const LarsRule rule({0.5});
  RuleRun whole(rule, values(100003, 0), 100003);
  RuleRun cut(rule, values(100003, 0), 37);
  whole.step(rule, values(100003, 1));
  cut.step(rule, values(100003, 1));
  EXPECT_NEAR(whole.sums()[0] / cut.sums()[0], 1, 1e-14);
  EXPECT_NEAR(whole.sums()[1] / cut.sums()[1], 1, 1e-14);
}

TEST(LarsRule, SpreadsNanOfOneElementOverTheParameter) {
  const LarsRule rule({0.5});
  at::Tensor gradient = at::ones({40});
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  RuleRun run(rule, at::ones({40}));
  run.step(rule, gradient);
  EXPECT_TRUE(run.parameter().isnan().all().item<bool>());
}

TEST(LarsRule, NamesItsHyperparametersAndStates) {
  const LarsRule rule({0.5});
  EXPECT_EQ(rule.description(),
            "LARS(lr=0.5, momentum=0.9, dampening=0, weight_decay=0, nesterov=false, "
            "trust_coefficient=0.001, eps=1e-08, maximize=false)");
  EXPECT_THAT(rule.state_names(), testing::ElementsAre("momentum_buffer"));
  EXPECT_TRUE(LarsRule({0.5, 0}).state_names().empty());
  EXPECT_EQ(rule.sums(), 2);
}

TEST(LarsRule, RefusesNegativeNumbersAndNesterovWithDampening) {
  const auto refused = [](const LarsHyperparameters& lars) {
    return test::raised<InvalidArgument>([&] { LarsRule rule(lars); });
  };
  EXPECT_THAT(refused({-1}), HasSubstr("LARS got lr=-1."));
  EXPECT_THAT(refused({1, -1}), HasSubstr("LARS got momentum=-1."));
  EXPECT_THAT(refused({1, 0.9, 0, -1}), HasSubstr("LARS got weight_decay=-1."));
  EXPECT_THAT(refused({1, 0.9, 0, 0, false, -1}), HasSubstr("LARS got trust_coefficient=-1."));
  EXPECT_THAT(refused({1, 0.9, 0, 0, false, 1, -1}), HasSubstr("LARS got eps=-1."));
  EXPECT_THAT(refused({1, 0.9, 0.5, 0, true}), HasSubstr("dampening=0.5."));
}

}  // namespace
}  // namespace farandole
