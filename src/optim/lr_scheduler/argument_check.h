// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/error.h"

namespace farandole {

/// Throws unless the argument of a scheduler `holds`. `got` is such as "gamma 2", `rule` a
/// sentence.
inline void check_argument(bool holds, const std::string& scheduler, const std::string& got,
                           const std::string& rule) {
  if (holds) return;
  throw InvalidArgument("scheduler-argument", "a " + scheduler + " got " + got + ".", rule,
                        "pass such a value, or leave it out for torch's default.");
}

}  // namespace farandole
