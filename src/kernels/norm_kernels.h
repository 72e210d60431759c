// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "farandole/export.h"

namespace farandole {

/// What a block adds to a norm of `power` > 0: sum(|value|^power), or the largest |value| if the
/// power is infinite (NaN if one is NaN). The bits do not depend on the CPU. Any thread.
FARANDOLE_API double norm_term(const float* values, int64_t count, double power);
FARANDOLE_API double norm_term(const double* values, int64_t count, double power);

/// The terms of two blocks together.
FARANDOLE_API double joined_terms(double a, double b, double power);

}  // namespace farandole
