// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm {

/// What each rank passed to all_to_all_v: rows[r] holds the elements that rank r sends to each
/// rank, then those that it expects from each. Every rank checks every pair, so that all ranks
/// throw or none does. Returns the largest block for another rank. Throws MismatchError with the
/// two ranks that disagree.
FARANDOLE_API size_t check_split_sizes(const std::string& group, const Topology& topology,
                                       const std::vector<const size_t*>& rows);

}  // namespace farandole::comm
