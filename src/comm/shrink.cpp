// SPDX-License-Identifier: Apache-2.0
#include "comm/shrink.h"

#include <algorithm>
#include <string>

#include "farandole/error.h"

namespace farandole::comm {

CommunicatorOptions options_of_shrunk(const Communicator& group, CommunicatorOptions options,
                                      const std::vector<int>& excluded) {
  const auto is_excluded = [&](int peer) {
    return std::find(excluded.begin(), excluded.end(), peer) != excluded.end();
  };
  if (is_excluded(group.rank())) {
    throw InvalidArgument(
        "shrink-excluded",
        group.topology().name_of(group.rank()) + " called shrink() and is excluded.",
        "only the ranks that remain may call it.",
        "let the excluded rank destroy its group instead.");
  }
  options.name = group.name() + "/shrunk";
  options.while_forming = nullptr;
  options.world_size = 0;
  for (int peer = 0; peer < group.world_size(); ++peer) {
    if (is_excluded(peer)) continue;
    if (peer == group.rank()) options.rank = options.world_size;
    ++options.world_size;
  }
  return options;
}

}  // namespace farandole::comm
