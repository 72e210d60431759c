// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/scheduled_optimizer.h"

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "farandole/error.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars_options.h"

namespace farandole {
namespace {

using torch::optim::OptimizerOptions;

double lr_of(const OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {  // of the base class
    throw InvalidArgument("scheduler-without-lr",
                          "a scheduler got an optimizer whose options have no learning rate.",
                          "get_lr() and set_lr() of torch::optim::OptimizerOptions are not "
                          "overridden in the options of a parameter group.",
                          "override both in the class of the options.");
  }
}

template <class Options>
bool get_momentum(const OptimizerOptions& options, std::optional<double>& momentum) {
  const auto* const own = dynamic_cast<const Options*>(&options);
  if (own != nullptr) momentum = own->momentum();
  return own != nullptr;
}

template <class Options>
bool get_beta1(const OptimizerOptions& options, std::optional<double>& momentum) {
  const auto* const own = dynamic_cast<const Options*>(&options);
  if (own != nullptr) momentum = std::get<0>(own->betas());
  return own != nullptr;
}

std::optional<double> momentum_of(const OptimizerOptions& options) {
  std::optional<double> found;
  get_momentum<torch::optim::SGDOptions>(options, found) ||
      get_momentum<torch::optim::RMSpropOptions>(options, found) ||
      get_momentum<LarsOptions>(options, found) ||
      get_beta1<torch::optim::AdamOptions>(options, found) ||
      get_beta1<torch::optim::AdamWOptions>(options, found) ||
      get_beta1<LambOptions>(options, found);
  return found;
}

template <class Options>
void set_momentum(OptimizerOptions& options, double momentum) {
  if (auto* const own = dynamic_cast<Options*>(&options)) own->momentum(momentum);
}

template <class Options>
void set_beta1(OptimizerOptions& options, double beta1) {
  if (auto* const own = dynamic_cast<Options*>(&options)) {
    own->betas({beta1, std::get<1>(own->betas())});
  }
}

void set_momentum_of(OptimizerOptions& options, double momentum) {
  set_momentum<torch::optim::SGDOptions>(options, momentum);
  set_momentum<torch::optim::RMSpropOptions>(options, momentum);
  set_momentum<LarsOptions>(options, momentum);
  set_beta1<torch::optim::AdamOptions>(options, momentum);
  set_beta1<torch::optim::AdamWOptions>(options, momentum);
  set_beta1<LambOptions>(options, momentum);
}

}  // namespace

ScheduledOptimizer::ScheduledOptimizer(torch::optim::Optimizer& optimizer)
    : optimizer_(&optimizer), initial_lrs_(std::make_shared<std::vector<double>>(lrs())) {}

size_t ScheduledOptimizer::groups() const { return optimizer_->param_groups().size(); }

std::vector<double> ScheduledOptimizer::lrs() const {
  std::vector<double> result;
  for (const auto& group : optimizer_->param_groups()) result.push_back(lr_of(group.options()));
  return result;
}

void ScheduledOptimizer::set_lrs(const std::vector<double>& lrs) const {
  if (lrs.size() != groups()) {
    throw InvalidArgument("scheduler-groups",
                          "a scheduler has learning rates for " + std::to_string(lrs.size()) +
                              " parameter groups, and the optimizer has " +
                              std::to_string(groups()) + ".",
                          "the scheduler was made for the groups that the optimizer had then.",
                          "make a new scheduler after add_param_group().");
  }
  for (size_t i = 0; i < lrs.size(); ++i) optimizer_->param_groups()[i].options().set_lr(lrs[i]);
}

bool ScheduledOptimizer::has_momenta() const {
  const auto& groups = optimizer_->param_groups();
  return std::all_of(groups.begin(), groups.end(),
                     [](const auto& group) { return momentum_of(group.options()).has_value(); });
}

std::vector<double> ScheduledOptimizer::momenta() const {
  std::vector<double> result;
  for (const auto& group : optimizer_->param_groups()) {
    result.push_back(momentum_of(group.options()).value_or(0));
  }
  return result;
}

void ScheduledOptimizer::set_momenta(const std::vector<double>& momenta) const {
  for (size_t i = 0; i < momenta.size(); ++i) {
    set_momentum_of(optimizer_->param_groups()[i].options(), momenta[i]);
  }
}

}  // namespace farandole
