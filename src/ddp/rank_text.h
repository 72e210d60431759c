// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace farandole {

/// For messages: "rank 1", "ranks 0, 2 and 3"; "every rank" where these are all of several.
std::string text_of_ranks(const std::vector<int>& ranks, int world_size);

}  // namespace farandole
