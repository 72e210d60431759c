// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/export.h"

namespace farandole {

/// The first host of a list as Slurm writes it: "node[003-005,9],login1" gives "node003".
FARANDOLE_API std::string first_host_of(const std::string& node_list);
/// How many tasks run on the node with index `node`, of a list as "2(x3),1"; 0 if it does not say.
FARANDOLE_API int tasks_on_node(const std::string& tasks_per_node, int node);

}  // namespace farandole
