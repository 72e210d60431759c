// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/rule_of_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize.h>

#include <sstream>

#include "farandole/error.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars_options.h"
#include "support/raised.h"

namespace farandole {
namespace {

std::string description_of(const torch::optim::OptimizerOptions& options) {
  return update_rule_of(options)->description();
}

TEST(UpdateRuleOf, TakesEveryOptionOver) {
  EXPECT_EQ(description_of(SGDOptions(0.1).momentum(0.9).weight_decay(0.5).nesterov(true)),
            "SGD(lr=0.1, momentum=0.9, dampening=0, weight_decay=0.5, nesterov=true, "
            "maximize=false)");
  EXPECT_EQ(description_of(SGDOptions(0.1).momentum(0.9).dampening(0.25)),
            "SGD(lr=0.1, momentum=0.9, dampening=0.25, weight_decay=0, nesterov=false, "
            "maximize=false)");
  EXPECT_EQ(description_of(AdamOptions(0.1).betas({0.5, 0.75}).eps(0.25).amsgrad(true)),
            "Adam(lr=0.1, betas=(0.5, 0.75), eps=0.25, weight_decay=0, amsgrad=true, "
            "maximize=false)");
  EXPECT_EQ(description_of(AdamWOptions(0.1)),
            "AdamW(lr=0.1, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01, amsgrad=false, "
            "maximize=false)");
  EXPECT_EQ(description_of(LambOptions(0.1).betas({0.5, 0.75}).eps(0.25).bias_correction(false)),
            "LAMB(lr=0.1, betas=(0.5, 0.75), eps=0.25, weight_decay=0.01, bias_correction=false, "
            "maximize=false)");
  EXPECT_EQ(description_of(LarsOptions(0.1).trust_coefficient(0.5).eps(0.25).weight_decay(2)),
            "LARS(lr=0.1, momentum=0.9, dampening=0, weight_decay=2, nesterov=false, "
            "trust_coefficient=0.5, eps=0.25, maximize=false)");
}

TEST(UpdateRuleOf, IsNullForOtherOptimizers) {
  EXPECT_EQ(update_rule_of(torch::optim::RMSpropOptions(0.1)), nullptr);
}

TEST(UpdateRuleOf, RefusesWhatTheRuleRefuses) {
  const std::string text =
      test::raised<InvalidArgument>([] { update_rule_of(LambOptions().eps(-1)); });
  EXPECT_THAT(text, testing::HasSubstr("LAMB got eps=-1."));
}

/// What is left of it after it was saved and read back.
template <class T>
T saved_and_loaded(const T& value, T loaded) {
  torch::serialize::OutputArchive output;
  value.serialize(output);
  std::stringstream stream;
  output.save_to(stream);
  torch::serialize::InputArchive input;
  input.load_from(stream);
  loaded.serialize(input);
  return loaded;
}

TEST(LambOptions, AreSavedAndCloned) {
  const LambOptions options =
      LambOptions(0.1).betas({0.5, 0.75}).eps(0.25).weight_decay(2).bias_correction(false);
  EXPECT_TRUE(saved_and_loaded(options, LambOptions()) == options);
  EXPECT_FALSE(options == LambOptions(0.1));
  const torch::optim::OptimizerOptions& base = options;
  const auto clone = base.clone();
  clone->set_lr(0.5);
  EXPECT_EQ(clone->get_lr(), 0.5);
  EXPECT_EQ(options.lr(), 0.1);
}

TEST(LarsOptions, AreSavedAndCloned) {
  const LarsOptions options =
      LarsOptions(0.1).momentum(0.5).weight_decay(2).trust_coefficient(0.5).eps(1);
  EXPECT_TRUE(saved_and_loaded(options, LarsOptions(9)) == options);
  EXPECT_FALSE(options == LarsOptions(0.1));
  const torch::optim::OptimizerOptions& base = options;
  const auto clone = base.clone();
  clone->set_lr(0.5);
  EXPECT_EQ(clone->get_lr(), 0.5);
  EXPECT_EQ(options.lr(), 0.1);
}

TEST(LambParamState, IsSaved) {
  LambParamState state;
  state.step(7).exp_avg(at::arange(3)).exp_avg_sq(at::arange(4));
  EXPECT_TRUE(saved_and_loaded(state, {}) == state);
  EXPECT_FALSE(state == LambParamState());
}

TEST(LarsParamState, IsSavedWithAndWithoutABuffer) {
  LarsParamState state;
  EXPECT_TRUE(saved_and_loaded(state, {}) == state);
  state.momentum_buffer(at::arange(3));
  EXPECT_TRUE(saved_and_loaded(state, {}) == state);
  EXPECT_FALSE(state == LarsParamState());
}

}  // namespace
}  // namespace farandole
