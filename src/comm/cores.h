// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole::comm {

/// The cores that this process may run on, in the kernel's format: "0-3,8". Empty if they are
/// unknown.
FARANDOLE_API std::string allowed_cores();

/// The number of cores in the union of these sets; launchers often pin each rank to its own. At
/// least 1.
FARANDOLE_API int count_cores(const std::vector<std::string>& sets);

/// The cgroup's CPU quota in cores, rounded up; a large number if there is no quota.
FARANDOLE_API int cgroup_core_quota();

}  // namespace farandole::comm
