// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/lambda_lr.h"

#include <string>
#include <utility>

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

LambdaLR::LambdaLR(ScheduledOptimizer of, const Function& lr_lambda)
    : LambdaLR(of, std::vector<Function>(of.groups(), lr_lambda)) {}

LambdaLR::LambdaLR(ScheduledOptimizer of, std::vector<Function> lr_lambdas)
    : FormulaScheduler(std::move(of)), lr_lambdas_(std::move(lr_lambdas)) {
  const size_t groups = optimizer().groups();
  check_argument(lr_lambdas_.size() == groups, "LambdaLR",
                 std::to_string(lr_lambdas_.size()) + " functions for " + std::to_string(groups) +
                     " parameter groups",
                 "it takes one function for all groups or a list with one for each.");
  for (const Function& function : lr_lambdas_) {
    check_argument(function != nullptr, "LambdaLR", "an empty function",
                   "it is called in every step.");
  }
  begin();
}

LambdaLR::~LambdaLR() = default;

std::vector<double> LambdaLR::get_lr() {
  std::vector<double> lrs = base_lrs();
  for (size_t i = 0; i < lrs.size(); ++i) lrs[i] *= lr_lambdas_[i](last_epoch_);
  return lrs;
}

}  // namespace farandole
