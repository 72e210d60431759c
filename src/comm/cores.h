// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole::comm {

/// The cores that this process may run on, as the kernel writes them: "0-3,8". Empty if it does not
/// say.
FARANDOLE_API std::string allowed_cores();

/// Cores that ranks with these sets have together; launchers often pin each rank to its own. At
/// least 1.
FARANDOLE_API int count_cores(const std::vector<std::string>& sets);

/// Whole cores that the cgroup's quota amounts to, rounded up; a large number where there is no
/// quota.
FARANDOLE_API int cgroup_core_quota();

}  // namespace farandole::comm
