// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farandole {

/// "true" or "false", or the shortest text that reads back as the same number: "0.001", "1e-08".
std::string text_of(double number);
std::string text_of(bool value);

/// Each throws InvalidArgument, in words that name the optimizer and the hyperparameter.
void check_not_negative(const char* optimizer, const char* name, double value);
void check_beta(const char* optimizer, const char* name, double value);
void check_nesterov(const char* optimizer, double momentum, double dampening);

}  // namespace farandole
