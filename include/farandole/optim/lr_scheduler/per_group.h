// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// One number for all parameter groups of an optimizer, or one for each.
class FARANDOLE_API PerGroup {
 public:
  PerGroup(double value) : values_{value}, is_one_(true) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}

  /// One for each group. Throws InvalidArgument, with the names of the scheduler and the argument,
  /// if a list has another length, or if a number is negative.
  std::vector<double> for_groups(size_t groups, const std::string& scheduler,
                                 const std::string& argument) const;

 private:
  std::vector<double> values_;
  bool is_one_ = false;
};

}  // namespace farandole
