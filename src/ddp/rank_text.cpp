// SPDX-License-Identifier: Apache-2.0
#include "ddp/rank_text.h"

#include <cstddef>

namespace farandole {

std::string text_of_ranks(const std::vector<int>& ranks, int world_size) {
  if (ranks.size() == static_cast<size_t>(world_size) && world_size > 1) return "every rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace farandole
