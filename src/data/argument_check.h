// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/error.h"

namespace farandole {

/// Throws unless the argument of a sampler `holds`. `got` is such as "batch_size 0", `rule` a
/// sentence.
inline void check_sampler(bool holds, const std::string& sampler, const std::string& got,
                          const std::string& rule) {
  if (holds) return;
  throw InvalidArgument("sampler-argument", "a " + sampler + " got " + got + ".", rule,
                        "pass such a value.");
}

}  // namespace farandole
