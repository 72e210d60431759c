// SPDX-License-Identifier: Apache-2.0
// The formulas of rules for accelerators, on tensors of the CPU, against those in host memory.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/lars.h"
#include "farandole/optim/sgd.h"
#include "optim/step/device_rounding.h"
#include "rule_run.h"

namespace farandole {
namespace {

using test::error_of;
using test::kOddLengths;
using test::RuleRun;
using test::values;
using Rules = std::vector<std::shared_ptr<const UpdateRule>>;

/// Parameters that a rule trains as lists.
class DeviceRun {
 public:
  DeviceRun(const UpdateRule& rule, std::vector<at::Tensor> parameters) {
    for (const at::Tensor& each : parameters) update_.parameters.push_back(each.clone());
    update_.states.resize(rule.state_names().size());
    for (auto& states : update_.states) {
      for (const at::Tensor& each : parameters) states.push_back(at::zeros_like(each));
    }
    update_.step = 0;
  }

  void step(const UpdateRule& rule, const std::vector<at::Tensor>& gradients) {
    update_.is_first = ++update_.step == 1;
    update_.gradients = gradients;
    update_.sums.clear();
    if (rule.sums() > 0) update_.sums = rule.on_device()->measure_on_device(update_);
    rule.on_device()->update_on_device(update_);
  }

  const DeviceUpdate& update() const { return update_; }

 private:
  DeviceUpdate update_;
};

AdamHyperparameters adam(bool decoupled, bool amsgrad, bool maximize) {
  AdamHyperparameters adam;
  adam.lr = 0.01;
  adam.weight_decay = 0.1;
  adam.decoupled_weight_decay = decoupled;
  adam.amsgrad = amsgrad;
  adam.maximize = maximize;
  return adam;
}

SgdHyperparameters sgd(double momentum, bool nesterov, bool maximize) {
  SgdHyperparameters sgd;
  sgd.lr = 0.01;
  sgd.momentum = momentum;
  sgd.nesterov = nesterov;
  sgd.maximize = maximize;
  sgd.weight_decay = 0.1;
  sgd.dampening = nesterov ? 0 : 0.2;
  return sgd;
}

LambHyperparameters lamb(double weight_decay, bool bias_correction, bool maximize) {
  LambHyperparameters lamb;
  lamb.weight_decay = weight_decay;
  lamb.bias_correction = bias_correction;
  lamb.maximize = maximize;
  return lamb;
}

LarsHyperparameters lars(double momentum, double weight_decay, bool maximize) {
  LarsHyperparameters lars;
  lars.momentum = momentum;
  lars.weight_decay = weight_decay;
  lars.maximize = maximize;
  return lars;
}

Rules all_rules() {
  Rules rules;
  for (const bool decoupled : {false, true}) {
    for (const bool amsgrad : {false, true}) {
      rules.push_back(std::make_shared<AdamRule>(adam(decoupled, amsgrad, amsgrad)));
    }
  }
  rules.push_back(std::make_shared<SgdRule>(sgd(0, false, true)));
  rules.push_back(std::make_shared<SgdRule>(sgd(0.9, false, false)));
  rules.push_back(std::make_shared<SgdRule>(sgd(0.9, true, true)));
  rules.push_back(std::make_shared<LambRule>(lamb(0.1, true, true)));
  rules.push_back(std::make_shared<LambRule>(lamb(0, false, false)));
  rules.push_back(std::make_shared<LarsRule>(lars(0.9, 0.1, true)));
  rules.push_back(std::make_shared<LarsRule>(lars(0, 0, false)));
  return rules;
}

TEST(DeviceRules, UpdateAsInHostMemory) {
  for (const auto& rule : all_rules()) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      std::vector<at::Tensor> parameters;
      for (const int64_t length : kOddLengths) parameters.push_back(values(length, length, type));
      parameters.push_back(at::zeros({9}, type));  // whose norm is 0
      std::vector<RuleRun> expected;
      for (const at::Tensor& each : parameters) expected.emplace_back(*rule, each);
      DeviceRun run(*rule, parameters);
      for (int64_t step = 1; step <= 5; ++step) {
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& each : parameters) {
          gradients.push_back(values(each.numel(), step, type));
        }
        const at::Tensor before = gradients.back().clone();
        run.step(*rule, gradients);
        EXPECT_TRUE(at::equal(gradients.back(), before)) << "a gradient was changed";
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i].step(*rule, gradients[i]);
          const double most = type == at::kFloat ? 2e-5 : 1e-7;
          EXPECT_LT(error_of(run.update().parameters[i], expected[i].parameter()), most)
              << rule->description() << " of " << type << ", step " << step << ", " << i;
          for (size_t s = 0; s < run.update().states.size(); ++s) {
            EXPECT_LT(error_of(run.update().states[s][i], expected[i].state(s)), most)
                << rule->description() << ", state " << s;
          }
        }
      }
    }
  }
}

TEST(DeviceRules, RoundStochasticallyToTheSameBits) {
  at::Tensor numbers = values(70001, 3);
  const float special[] = {0.0F, -0.0F, INFINITY, -INFINITY, NAN, 3.4e38F, -3.3961e38F, 1e-41F};
  std::memcpy(numbers.mutable_data_ptr<float>(), special, sizeof(special));
  for (const uint64_t first : {uint64_t{0}, uint64_t{12345}, (uint64_t{1} << 32) - 77}) {
    const StochasticRounding by{rounding_key(7, 3, 5), first};
    const at::Tensor rounded = stochastically_rounded(numbers, by);
    std::vector<uint16_t> expected(static_cast<size_t>(numbers.numel()));
    round_stochastically(numbers.const_data_ptr<float>(), expected.data(), expected.size(), by.key,
                         first);
    ASSERT_EQ(rounded.scalar_type(), at::kBFloat16);
    EXPECT_EQ(std::memcmp(rounded.const_data_ptr(), expected.data(), rounded.nbytes()), 0) << first;
  }
}

}  // namespace
}  // namespace farandole
