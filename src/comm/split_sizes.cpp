// SPDX-License-Identifier: Apache-2.0
#include "comm/split_sizes.h"

#include <algorithm>

#include "farandole/error.h"

namespace farandole::comm {

size_t check_split_sizes(const std::string& group, const Topology& topology,
                         const std::vector<const size_t*>& rows) {
  const size_t world = rows.size();
  size_t largest = 0;
  for (size_t from = 0; from < world; ++from) {
    for (size_t to = 0; to < world; ++to) {
      const size_t sent = rows[from][to];
      const size_t expected = rows[to][world + from];
      if (from != to) largest = std::max(largest, sent);
      if (sent == expected) continue;
      const int sender = static_cast<int>(from);
      const int receiver = static_cast<int>(to);
      throw MismatchError(
          "unequal-splits",
          "all_to_all_v of group '" + group + "': " + topology.name_of(sender) + " sends " +
              std::to_string(sent) + " elements to " + topology.name_of(receiver) +
              ", which expects " + std::to_string(expected) + ".",
          "the split sizes of the two ranks do not agree.",
          "exchange the split sizes first (all_to_all of one number per rank).",
          topology.fault_of(
              from == to ? std::vector<int>{sender}
                         : std::vector<int>{std::min(sender, receiver), std::max(sender, receiver)},
              "all_to_all"));
    }
  }
  return largest;
}

}  // namespace farandole::comm
