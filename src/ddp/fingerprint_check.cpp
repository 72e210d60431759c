// SPDX-License-Identifier: Apache-2.0
#include "ddp/fingerprint_check.h"

#include <cstring>
#include <vector>

namespace farandole {

std::optional<size_t> find_rank_that_differs(const ReplicaGroup& group,
                                             const comm::Fingerprint& own) {
  constexpr size_t kBytes = sizeof(own);
  std::vector<std::byte> sent(kBytes);
  std::memcpy(sent.data(), &own, kBytes);
  const std::vector<std::byte> all = group.all_gather(sent);
  for (size_t rank = 1; rank < all.size() / kBytes; ++rank) {
    if (std::memcmp(all.data() + rank * kBytes, all.data(), kBytes) != 0) return rank;
  }
  return std::nullopt;
}

}  // namespace farandole
