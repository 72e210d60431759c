// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lamb.h"

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

/// The formula of the paper, element by element in float64.
class PlainLamb {
 public:
  PlainLamb(const LambHyperparameters& lamb, const at::Tensor& start)
      : parameter(start.to(at::kDouble)), lamb_(lamb), m_(numel()), v_(numel()) {}

  void step(const at::Tensor& gradient) {
    ++steps_;
    const at::Tensor wide = gradient.to(at::kDouble);
    const double* const g = wide.const_data_ptr<double>();
    double* const p = parameter.data_ptr<double>();
    std::vector<double> u(numel());
    double p_square = 0;
    double u_square = 0;
    for (size_t i = 0; i < u.size(); ++i) {
      const double ascent = lamb_.maximize ? -g[i] : g[i];
      m_[i] = lamb_.beta1 * m_[i] + (1 - lamb_.beta1) * ascent;
      v_[i] = lamb_.beta2 * v_[i] + (1 - lamb_.beta2) * ascent * ascent;
      const double m = m_[i] / correction(lamb_.beta1);
      const double v = v_[i] / correction(lamb_.beta2);
      u[i] = m / (std::sqrt(v) + lamb_.eps) + lamb_.weight_decay * p[i];
      p_square += p[i] * p[i];
      u_square += u[i] * u[i];
    }
    const bool has_norms = p_square > 0 && u_square > 0;
    const double ratio = has_norms ? std::sqrt(p_square) / std::sqrt(u_square) : 1;
    for (size_t i = 0; i < u.size(); ++i) p[i] -= lamb_.lr * ratio * u[i];
  }

  at::Tensor parameter;

 private:
  size_t numel() const { return static_cast<size_t>(parameter.numel()); }
  double correction(double beta) const {
    return lamb_.bias_correction ? 1 - std::pow(beta, steps_) : 1;
  }

  LambHyperparameters lamb_;
  std::vector<double> m_;
  std::vector<double> v_;
  int steps_ = 0;
};

std::vector<LambHyperparameters> lamb_variants() {
  return {{},
          {0.02, 0.9, 0.999, 1e-6, 0},
          {0.02, 0.8, 0.99, 1e-3, 0.1, false},
          {0.02, 0.3, 0.4, 1e-6, 0.01, true, true}};
}

TEST(LambRule, FollowsTheFormula) {
  for (const LambHyperparameters& variant : lamb_variants()) {
    for (const int64_t length : kOddLengths) {
      const LambRule rule(variant);
      RuleRun narrow(rule, values(length, 0));
      RuleRun wide(rule, values(length, 0, at::kDouble));
      PlainLamb plain(variant, values(length, 0, at::kDouble));
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

TEST(LambRule, TakesNoRatioOfANormThatIsZero) {
  const LambRule rule({0.5, 0.9, 0.999, 0, 0});
  RuleRun from_zero(rule, at::zeros({17}));
  from_zero.step(rule, at::ones({17}));
  EXPECT_LT(error_of(from_zero.parameter(), at::full({17}, -0.5)), 1e-6);

  const LambRule with_epsilon({0.5, 0.9, 0.999, 1e-6, 0});
  RuleRun no_gradient(with_epsilon, at::ones({17}));
  no_gradient.step(with_epsilon, at::zeros({17}));
  EXPECT_TRUE(at::equal(no_gradient.parameter(), at::ones({17})));
}

TEST(LambRule, SumsNearlyTheSameHoweverAParameterIsCut) {
  const LambRule rule({});
  RuleRun whole(rule, values(100003, 0), 100003);
  RuleRun cut(rule, values(100003, 0), 37);
  whole.step(rule, values(100003, 1));
  cut.step(rule, values(100003, 1));
  EXPECT_NEAR(whole.sums()[0] / cut.sums()[0], 1, 1e-14);
  EXPECT_NEAR(whole.sums()[1] / cut.sums()[1], 1, 1e-14);
  EXPECT_TRUE(at::equal(whole.state(0), cut.state(0)));
  EXPECT_TRUE(at::equal(whole.state(1), cut.state(1)));
}

TEST(LambRule, DoesNotMindWhereItsUpdateIsCut) {
  const LambRule rule({});
  const double sums[] = {3, 2};
  const StepContext context{2, false, sums};
  at::Tensor whole = values(4097, 0);
  at::Tensor cut = whole.clone();
  const at::Tensor gradient = values(4097, 3);
  const auto* const g = gradient.const_data_ptr<float>();
  at::Tensor m = values(4097, 1);
  at::Tensor v = values(4097, 2).square();
  at::Tensor cut_m = m.clone();
  at::Tensor cut_v = v.clone();
  float* states[] = {m.data_ptr<float>(), v.data_ptr<float>()};
  rule.update(UpdateBlock<float>{whole.data_ptr<float>(), g, states, 4097}, context);
  for (int64_t first = 0; first < 4097; first += 241) {  // 4097 = 17 * 241
    float* const part[] = {cut_m.data_ptr<float>() + first, cut_v.data_ptr<float>() + first};
    rule.update(UpdateBlock<float>{cut.data_ptr<float>() + first, g + first, part, 241}, context);
  }
  EXPECT_TRUE(at::equal(whole, cut));
  EXPECT_TRUE(at::equal(m, cut_m));
  EXPECT_TRUE(at::equal(v, cut_v));
}

TEST(LambRule, SpreadsNanOfOneElementOverTheParameter) {
  const LambRule rule({});
  at::Tensor gradient = at::ones({40});
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  RuleRun run(rule, at::ones({40}));
  run.step(rule, gradient);
  EXPECT_TRUE(run.parameter().isnan().all().item<bool>());
}

TEST(LambRule, NamesItsHyperparametersAndStates) {
  const LambRule rule({});
  EXPECT_EQ(rule.description(),
            "LAMB(lr=0.001, betas=(0.9, 0.999), eps=1e-06, weight_decay=0.01, "
            "bias_correction=true, maximize=false)");
  EXPECT_THAT(rule.state_names(), testing::ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_EQ(rule.sums(), 2);
}

TEST(LambRule, RefusesNegativeNumbersAndBetasOfOne) {
  const auto refused = [](const LambHyperparameters& lamb) {
    return test::raised<InvalidArgument>([&] { LambRule rule(lamb); });
  };
  EXPECT_THAT(refused({-1}), HasSubstr("LAMB got lr=-1."));
  EXPECT_THAT(refused({1, 1}), HasSubstr("LAMB got beta1=1."));
  EXPECT_THAT(refused({1, 0.9, 2}), HasSubstr("LAMB got beta2=2."));
  EXPECT_THAT(refused({1, 0.9, 0.9, -1}), HasSubstr("LAMB got eps=-1."));
  EXPECT_THAT(refused({1, 0.9, 0.9, 0, -1}), HasSubstr("LAMB got weight_decay=-1."));
}

}  // namespace
}  // namespace farandole
