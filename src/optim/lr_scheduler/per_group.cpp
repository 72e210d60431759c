// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/per_group.h"

#include "optim/lr_scheduler/argument_check.h"

namespace farandole {

std::vector<double> PerGroup::for_groups(size_t groups, const std::string& scheduler,
                                         const std::string& argument) const {
  for (const double value : values_) {
    check_argument(value >= 0, scheduler, argument + " " + std::to_string(value),
                   "it must not be negative.");
  }
  if (is_one_) return std::vector<double>(groups, values_.front());
  check_argument(values_.size() == groups, scheduler,
                 std::to_string(values_.size()) + " values of " + argument + " for " +
                     std::to_string(groups) + " parameter groups",
                 "it takes one number for all groups or a list with one for each.");
  return values_;
}

}  // namespace farandole
