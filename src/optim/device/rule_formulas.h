// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>

#include "optim/device/formulas.h"

namespace farandole {

template <class T>
using AnyFormula = std::variant<AdamFormula<T>, SgdFormula<T>, LarsFormula<T>, LambFormula<T>>;

/// What kernels compute for a rule in one step (DeviceUpdateRule::formulas()).
struct RuleFormulas {
  AnyFormula<float> in_float;
  AnyFormula<double> in_double;
};

/// Both, of a function that makes one: formulas_of([](auto number) { ... decltype(number) ... }).
template <class Function>
RuleFormulas formulas_of(const Function& make) {
  return {make(float{}), make(double{})};
}

}  // namespace farandole
