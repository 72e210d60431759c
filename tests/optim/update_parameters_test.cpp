// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/update_parameters.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "farandole/error.h"
#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/sgd.h"
#include "rule_run.h"
#include "support/raised.h"

namespace farandole {
namespace {

using test::error_of;
using test::RuleRun;
using test::values;
using testing::HasSubstr;

AdamRule adamw_rule() {
  AdamHyperparameters adam;
  adam.lr = 0.01;
  adam.weight_decay = 0.1;
  adam.decoupled_weight_decay = true;
  return AdamRule(adam);
}

std::vector<at::Tensor> zeros_for(const UpdateRule& rule, const at::Tensor& parameter) {
  std::vector<at::Tensor> states;
  for (size_t s = 0; s < rule.state_names().size(); ++s) {
    states.push_back(at::zeros_like(parameter));
  }
  return states;
}

/// `steps` steps of one parameter, with gradients values(numel, step).
at::Tensor trained(const UpdateRule& rule, const at::Tensor& start, int64_t steps) {
  at::Tensor parameter = start.clone();
  const std::vector<at::Tensor> states = zeros_for(rule, parameter);
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor gradient = values(start.numel(), step, start.scalar_type());
    update_parameters(rule, {parameter}, {gradient.view(start.sizes())}, {states}, {step});
  }
  return parameter;
}

TEST(UpdateParameters, UpdatesManyParametersAsTheRuleAloneDoes) {
  const AdamRule rule = adamw_rule();
  std::vector<at::Tensor> parameters;
  std::vector<std::vector<at::Tensor>> states;
  std::vector<RuleRun> runs;
  for (const int64_t length : {0, 1, 4097, 300001}) {
    parameters.push_back(values(length, 0));
    states.push_back(zeros_for(rule, parameters.back()));
    runs.emplace_back(rule, parameters.back());
  }
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < runs.size(); ++i) {
      gradients.push_back(values(parameters[i].numel(), step));
      if (gradients[i].numel() > 0) runs[i].step(rule, gradients[i]);
    }
    update_parameters(rule, parameters, gradients, states, {step, step, step, step});
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i], runs[i].parameter())) << i;
    EXPECT_TRUE(at::equal(states[i][1], runs[i].state(1))) << i;
  }
}

TEST(UpdateParameters, GivesTheSameBitsWithAnyNumberOfThreads) {
#ifdef FARANDOLE_SANITIZED_THREAD
  GTEST_SKIP() << "ThreadSanitizer does not see what OpenMP's threads wait for";
#endif
  const int threads = at::get_num_threads();
  const LambRule rule({});
  at::set_num_threads(1);
  const at::Tensor alone = trained(rule, values(300001, 0), 3);
  at::set_num_threads(4);
  const at::Tensor together = trained(rule, values(300001, 0), 3);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(alone, together));
}

/// Changes nothing, and notes the threads that it was called on.
class ThreadNote final : public UpdateRule {
 public:
  std::string description() const override { return "ThreadNote"; }
  std::vector<std::string> state_names() const override { return {}; }
  void update(const UpdateBlock<float>& /*block*/, const StepContext& /*context*/) const override {
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
  }
  void update(const UpdateBlock<double>& /*block*/, const StepContext& /*context*/) const override {
  }

  size_t threads() const { return threads_.size(); }

 private:
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;  // guarded by mutex_
};

TEST(UpdateParameters, RunsOnTorchsThreads) {
#ifdef FARANDOLE_SANITIZED_THREAD
  GTEST_SKIP() << "ThreadSanitizer does not see what OpenMP's threads wait for";
#endif
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const ThreadNote large;
  update_parameters(large, {at::ones({300001})}, {at::ones({300001})}, {{}}, {1});
  const ThreadNote small;
  update_parameters(small, {at::ones({3000})}, {at::ones({3000})}, {{}}, {1});
  at::set_num_threads(threads);
  EXPECT_EQ(large.threads(), 3U);
  EXPECT_EQ(small.threads(), 1U);
}

TEST(UpdateParameters, MeasuresAWholeParameterBeforeItsUpdate) {
  const LambRule rule({0.1});
  RuleRun run(rule, values(100003, 0, at::kDouble), 100003);
  for (int64_t step = 1; step <= 3; ++step) run.step(rule, values(100003, step, at::kDouble));
  EXPECT_LT(error_of(trained(rule, values(100003, 0, at::kDouble), 3), run.parameter()), 1e-13);
}

TEST(UpdateParameters, TakesGradientsAndStatesOfOtherStrides) {
  const AdamRule rule = adamw_rule();
  const at::Tensor start = values(60, 0).view({6, 10});
  const at::Tensor gradient = values(60, 1).view({6, 10});
  at::Tensor row_major = start.clone();
  at::Tensor column_major = start.t().contiguous().t();
  const std::vector<at::Tensor> states = zeros_for(rule, row_major);
  const std::vector<at::Tensor> others = {at::zeros({6, 10}),
                                          at::zeros({6, 20}).slice(1, 0, 20, 2)};
  update_parameters(rule, {row_major}, {gradient}, {states}, {1});
  update_parameters(rule, {column_major}, {gradient}, {others}, {1});
  EXPECT_TRUE(at::equal(row_major, column_major));
  EXPECT_TRUE(at::equal(states[0], others[0]));
  EXPECT_TRUE(at::equal(states[1], others[1]));
}

TEST(UpdateParameters, ComputesHalfTypesInFloat32) {
  const SgdRule rule({0.1, 0.9});
  for (const at::ScalarType half : {at::kHalf, at::kBFloat16}) {
    at::Tensor parameter = values(9001, 0).to(half);
    const at::Tensor gradient = values(9001, 1).to(half);
    at::Tensor wide = parameter.to(at::kFloat);
    const at::Tensor buffer = at::zeros({9001});
    const at::Tensor wide_buffer = at::zeros({9001});
    update_parameters(rule, {parameter}, {gradient}, {{buffer}}, {1});
    update_parameters(rule, {wide}, {gradient.to(at::kFloat)}, {{wide_buffer}}, {1});
    EXPECT_TRUE(at::equal(parameter, wide.to(half)));
    EXPECT_TRUE(at::equal(buffer, wide_buffer));
  }
}

TEST(UpdateParameters, MeasuresHalfTypes) {
  const LambRule rule({0.1});
  at::Tensor parameter = values(9001, 0).to(at::kBFloat16);
  const at::Tensor gradient = values(9001, 1).to(at::kBFloat16);
  at::Tensor wide = parameter.to(at::kFloat);
  update_parameters(rule, {parameter}, {gradient}, {{at::zeros({9001}), at::zeros({9001})}}, {1});
  update_parameters(rule, {wide}, {gradient.to(at::kFloat)}, {zeros_for(rule, wide)}, {1});
  EXPECT_TRUE(at::equal(parameter, wide.to(at::kBFloat16)));
}

TEST(UpdateParameters, SeesComplexNumbersAsPairsOfReals) {
  const AdamRule rule = adamw_rule();
  at::Tensor reals = values(62, 0).view({31, 2});
  const at::Tensor gradient = values(62, 1).view({31, 2});
  at::Tensor complex = at::view_as_complex(reals.clone());
  update_parameters(rule, {reals}, {gradient}, {zeros_for(rule, reals)}, {1});
  const at::Tensor conjugated = at::view_as_complex(gradient).conj().resolve_conj().conj();
  update_parameters(rule, {complex}, {conjugated}, {zeros_for(rule, complex)}, {1});
  EXPECT_TRUE(at::equal(at::view_as_real(complex), reals));
}

TEST(UpdateParameters, TellsAutogradThatAParameterHasChanged) {
  at::Tensor parameter = at::ones({3}).requires_grad_();
  const at::Tensor loss = parameter.square().sum();
  update_parameters(SgdRule({0.1}), {parameter}, {at::ones({3})}, {{}}, {1});
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(UpdateParameters, RefusesListsThatDoNotMatch) {
  const SgdRule rule({0.1, 0.9});
  const at::Tensor ones = at::ones({3});
  const auto refused = [&](const std::vector<at::Tensor>& gradients,
                           const std::vector<std::vector<at::Tensor>>& states, int64_t step) {
    return test::raised<InvalidArgument>(
        [&] { update_parameters(rule, {ones}, gradients, states, {step}); });
  };
  EXPECT_THAT(refused({}, {{ones}}, 1), HasSubstr("got 1 parameters, 0 gradients"));
  EXPECT_THAT(refused({ones}, {{}}, 1), HasSubstr("got 0 states of a parameter instead of 1."));
  EXPECT_THAT(refused({ones}, {{ones}}, 0), HasSubstr("got step 0."));
  EXPECT_THAT(refused({at::Tensor()}, {{ones}}, 1), HasSubstr("got an undefined gradient."));
  EXPECT_THAT(refused({at::ones({4})}, {{ones}}, 1),
              HasSubstr("got a gradient Float[4] for a parameter Float[3]."));
  EXPECT_THAT(refused({ones.to(at::kDouble)}, {{ones}}, 1), HasSubstr("got a gradient Double[3]"));
  EXPECT_THAT(refused({ones}, {{at::ones({3}, at::kDouble)}}, 1),
              HasSubstr("got a state 'momentum_buffer' Double[3]"));
  EXPECT_TRUE(at::equal(ones, at::ones({3})));
}

TEST(UpdateParameters, RefusesParametersThatItCannotUpdate) {
  const auto refused = [](const at::Tensor& parameter) {
    return test::raised<InvalidArgument>([&] {
      update_parameters(SgdRule({0.1}), {parameter}, {at::ones_like(parameter)}, {{}}, {1});
    });
  };
  EXPECT_THAT(refused(at::ones({3}, at::kLong)), HasSubstr("a parameter of dtype Long."));
  EXPECT_THAT(refused(at::ones({6}).slice(0, 0, 6, 2)), HasSubstr("a view with gaps"));
  EXPECT_THAT(refused(at::ones({1}).expand({6})), HasSubstr("a view with gaps"));
}

TEST(UpdateParameters, RefusesHalfStatesBesideHalfParameters) {
  const at::Tensor half = at::ones({3}, at::kHalf);
  const std::string text = test::raised<InvalidArgument>([&] {
    update_parameters(SgdRule({0.1, 0.9}), {half}, {half}, {{at::zeros({3}, at::kHalf)}}, {1});
  });
  EXPECT_THAT(text, HasSubstr("but states of half types are float32."));
}

TEST(UpdateParameters, RefusesSparseTensorsAndOtherDevices) {
  const at::Tensor ones = at::ones({3});
  const auto refused = [&](const at::Tensor& gradient) {
    return test::raised<NotSupported>(
        [&] { update_parameters(SgdRule({0.1}), {ones}, {gradient}, {{}}, {1}); });
  };
  EXPECT_THAT(refused(ones.to_sparse()), HasSubstr("a gradient of layout Sparse."));
  EXPECT_THAT(refused(at::ones({3}, at::kMeta)), HasSubstr("a gradient on meta."));
}

}  // namespace
}  // namespace farandole
