// SPDX-License-Identifier: Apache-2.0
#include "optim/rules/hyperparameters.h"

#include <charconv>

#include "farandole/error.h"

namespace farandole {

std::string text_of(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

std::string text_of(bool value) { return value ? "true" : "false"; }

// Comparisons are written so that NaN fails them.

void check_not_negative(const char* optimizer, const char* name, double value) {
  if (value >= 0) return;
  throw InvalidArgument("hyperparameter-range",
                        std::string(optimizer) + " got " + name + "=" + text_of(value) + ".",
                        "it must be at least 0.", "pass such a number, as for torch.optim.");
}

void check_beta(const char* optimizer, const char* name, double value) {
  if (value >= 0 && value < 1) return;
  throw InvalidArgument(
      "hyperparameter-range", std::string(optimizer) + " got " + name + "=" + text_of(value) + ".",
      "it must be at least 0 and less than 1.", "pass such a number, as for torch.optim.");
}

void check_nesterov(const char* optimizer, double momentum, double dampening) {
  if (momentum > 0 && dampening == 0) return;
  throw InvalidArgument("nesterov",
                        std::string(optimizer) + " got nesterov with momentum=" +
                            text_of(momentum) + " and dampening=" + text_of(dampening) + ".",
                        "Nesterov momentum is defined with a momentum and without dampening.",
                        "pass a momentum above 0 and dampening=0, or nesterov=false.");
}

}  // namespace farandole
